"""The encoder equals a slow, literal reading of its equations, whatever the order and company of a graph."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.predictors.graphs.encoder import (
    FARTHEST,
    GATED,
    WIDTH,
    GraphBatch,
    shapes,
    states,
)
from forerun.predictors.graphs.hypernetwork import as_tensors, torch_backend
from forerun.predictors.graphs.primitives import PRIMITIVES, PrimitiveGraph, size_codes
from tests.predictors.graphs.drawn import drawn_graphs, graph_of, reordered

torch = pytest.importorskip("torch")


class Mlp(torch.nn.Module):
    """hid -> hid / 2 -> hid, both with ReLU."""

    def __init__(self) -> None:
        super().__init__()
        nn = torch.nn
        self.fc = nn.Sequential(
            nn.Linear(WIDTH, WIDTH // 2), nn.ReLU(), nn.Linear(WIDTH // 2, WIDTH), nn.ReLU()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x)


class Reference(torch.nn.Module):
    """GatedGNN node by node, with T = 1, as the paper writes it."""

    def __init__(self) -> None:
        super().__init__()
        nn = torch.nn
        wanted = shapes()
        self.embed = nn.Embedding(*wanted["embed.weight"])
        self.shape_enc = nn.Module()
        self.shape_enc.embed_channel = nn.Embedding(*wanted["shape_enc.embed_channel.weight"])
        self.shape_enc.embed_spatial = nn.Embedding(*wanted["shape_enc.embed_spatial.weight"])
        self.mlp, self.mlp_ve = Mlp(), Mlp()
        self.gru = nn.GRUCell(WIDTH, WIDTH)

    def forward(self, graph: PrimitiveGraph, near: bool = False) -> torch.Tensor:
        codes = torch.as_tensor(size_codes(graph.sizes))
        tables = [self.shape_enc.embed_channel] * 2 + [self.shape_enc.embed_spatial] * 2
        encoded = [table(code) for table, code in zip(tables, codes.T, strict=True)]
        start = self.embed(torch.as_tensor(graph.primitive)) + torch.cat(encoded, dim=1)
        state = list(start)
        edges = [tuple(edge) for edge in graph.edges.tolist()]
        for back in (False, True):
            pairs = [(b, a) for a, b in edges] if back else edges
            away = shortest(len(graph), pairs)
            for v in reversed(range(len(graph))) if back else range(len(graph)):
                message = torch.zeros(WIDTH)
                for u in range(len(graph)):
                    steps = away.get((u, v))
                    if steps == 1:
                        message = message + self.mlp(state[u])
                    if steps is not None and (1 if near else 2) <= steps <= FARTHEST:
                        message = message + self.mlp_ve(state[u]) / steps
                state[v] = self.gru(message[None], state[v][None])[0]
        return torch.stack(state)


def shortest(count: int, edges: list[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """Return the steps of the shortest way from one node to another, where there is one."""
    found = {}
    for source in range(count):
        queue, steps = deque([source]), {source: 0}
        while queue:
            node = queue.popleft()
            for a, b in edges:
                if a == node and b not in steps:
                    steps[b] = steps[node] + 1
                    queue.append(b)
        found |= {(source, node): count for node, count in steps.items() if count}
    return found


@pytest.fixture(scope="module")
def reference() -> Reference:
    torch.manual_seed(7)
    return Reference()


def weights_of(module: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: value.detach().numpy() for name, value in module.state_dict().items()}


def test_the_weights_are_those_of_the_published_encoder(reference: Reference) -> None:
    assert {n: tuple(w.shape) for n, w in weights_of(reference).items()} == shapes()


@pytest.mark.parametrize("near", [False, True])
@given(graph=drawn_graphs())
def test_states_equal_the_literal_equations(
    reference: Reference, near: bool, graph: PrimitiveGraph
) -> None:
    with torch.no_grad():
        expected = reference(graph, near).numpy()
    found = states(GraphBatch.of([graph], near), weights_of(reference))
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("near", [False, True])
@given(graphs=st.lists(drawn_graphs(), min_size=1, max_size=3))
def test_gradients_equal_those_of_the_literal_equations(
    reference: Reference, near: bool, graphs: list[PrimitiveGraph]
) -> None:
    reference.zero_grad()
    scale = torch.arange(1.0, WIDTH + 1) / WIDTH
    (torch.cat([reference(graph, near) for graph in graphs]).square() * scale).sum().backward()
    weights = {n: torch.tensor(w, requires_grad=True) for n, w in weights_of(reference).items()}
    batch = as_tensors(GraphBatch.of(graphs, near))
    (states(batch, weights, torch_backend()).square() * scale).sum().backward()
    for name, expected in reference.named_parameters():
        wanted = torch.zeros_like(expected) if expected.grad is None else expected.grad
        most = 1e-5 * max(float(wanted.abs().max()), 1.0)
        np.testing.assert_allclose(
            weights[name].grad.numpy(), wanted.numpy(), atol=most, err_msg=name
        )


def test_a_long_chain_ends_its_virtual_edges_at_fifty_steps(reference: Reference) -> None:
    count = FARTHEST + 12
    chain = graph_of([CONV] * count, [(i, i + 1) for i in range(count - 1)])
    with torch.no_grad():
        expected = reference(chain).numpy()
    np.testing.assert_allclose(
        states(GraphBatch.of([chain]), weights_of(reference)), expected, atol=1e-5
    )
    length = GraphBatch.of([chain]).along.levels
    assert min(float(level.shares.min()) for level in length[1:]) == pytest.approx(1 / FARTHEST)


@given(graph=drawn_graphs(), seed=st.integers(0, 1000))
def test_the_order_of_nodes_changes_nothing(
    reference: Reference, graph: PrimitiveGraph, seed: int
) -> None:
    other = reordered(graph, seed)
    both = GATED.embeddings([graph, other], weights_of(reference))
    np.testing.assert_allclose(both[0], both[1], atol=1e-5)


@given(graphs=st.lists(drawn_graphs(), min_size=2, max_size=5))
def test_a_graph_is_embedded_alike_alone_and_among_others(
    reference: Reference, graphs: list[PrimitiveGraph]
) -> None:
    weights = weights_of(reference)
    together = GATED.embeddings(graphs, weights)
    alone = np.concatenate([GATED.embeddings([g], weights) for g in graphs])
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_another_structure_has_another_embedding(reference: Reference) -> None:
    weights = weights_of(reference)
    chain = graph_of([CONV] * 4, [(0, 1), (1, 2), (2, 3)])
    fork = graph_of([CONV] * 4, [(0, 1), (0, 2), (1, 3), (2, 3)])
    found = GATED.embeddings([chain, fork], weights)
    assert np.abs(found[0] - found[1]).max() > 1e-3


CONV = PRIMITIVES.index("conv")
