"""Graphormer equals a slow, literal reading of its equations, in NumPy and torch, whatever the order and company of a graph."""

from __future__ import annotations

import math
import runpy
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import RequestError
from forerun.predictors.graphs.encoder import FARTHEST, WIDTH
from forerun.predictors.graphs.graphormer import (
    GRAPHORMER,
    HEADS,
    LAYERS,
    PaddedBatch,
    shapes,
    states,
)
from forerun.predictors.graphs.hypernetwork import (
    as_tensors,
    drawn_network,
    first_weights,
    torch_backend,
    trained,
)
from forerun.predictors.graphs.primitives import PrimitiveGraph, size_codes
from forerun.predictors.graphs.weights import encoder_of, read_weights
from tests.predictors.graphs.drawn import drawn_graphs, reordered
from tests.predictors.graphs.test_encoder import shortest

torch = pytest.importorskip("torch")
save_file = pytest.importorskip("safetensors.numpy").save_file
BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "hypernetwork.py"
WEIGHTS = first_weights(0, GRAPHORMER.shapes(WIDTH))


def norm(x: np.ndarray, name: str) -> np.ndarray:
    z = (x - x.mean()) / math.sqrt(x.var() + 1e-5)
    return z * WEIGHTS[f"{name}.weight"] + WEIGHTS[f"{name}.bias"]


def linear(x: np.ndarray, name: str) -> np.ndarray:
    return WEIGHTS[f"{name}.weight"] @ x + WEIGHTS.get(f"{name}.bias", 0.0)


def literal(graph: PrimitiveGraph) -> np.ndarray:
    """Return the states node by node, head by head."""
    edges = [tuple(edge) for edge in graph.edges.tolist()]
    away, n, side = shortest(len(graph), edges), len(graph), WIDTH // HEADS
    codes, x = size_codes(graph.sizes), []
    for v in range(n):
        parts = [
            WEIGHTS[f"shape_enc.embed_{kind}.weight"][codes[v, column]]
            for column, kind in enumerate(("channel", "channel", "spatial", "spatial"))
        ]
        x.append(
            WEIGHTS["embed.weight"][graph.primitive[v]] + np.concatenate(parts)
            + WEIGHTS["centrality_embed_in.weight"][sum(b == v for _, b in edges)]
            + WEIGHTS["centrality_embed_out.weight"][sum(a == v for a, _ in edges)]
        )  # fmt: skip
    for layer in range(LAYERS):
        name = f"layers.{layer}"
        whole = [linear(norm(one, f"{name}.ln1"), f"{name}.qkv") for one in x]
        after = []
        for v in range(n):
            seen = []
            for head in range(HEADS):
                mine = slice(head * side, (head + 1) * side)
                scores = []
                for u in range(n):
                    forward, back = away.get((u, v)), away.get((v, u))
                    code = 2 * FARTHEST + 1 if u != v else FARTHEST
                    if forward is not None and forward <= FARTHEST:
                        code = FARTHEST + forward
                    if back is not None and back <= FARTHEST:
                        code = FARTHEST - back
                    product = whole[v][:WIDTH][mine] @ whole[u][WIDTH : 2 * WIDTH][mine]
                    scores.append(product / side**0.5 + WEIGHTS["edge_embed.weight"][code, head])
                share = np.exp(scores) / np.exp(scores).sum()
                seen.append(sum(share[u] * whole[u][2 * WIDTH :][mine] for u in range(n)))
            y = x[v] + linear(np.concatenate(seen), f"{name}.out")
            half = linear(norm(y, f"{name}.ln2"), f"{name}.up")
            half = torch.nn.functional.gelu(torch.as_tensor(half), approximate="tanh").numpy()
            after.append(y + linear(half, f"{name}.down"))
        x = after
    return np.stack([norm(one, "ln") for one in x])


@given(drawn_graphs())
def test_states_equal_the_literal_equations(graph: PrimitiveGraph) -> None:
    found = states(PaddedBatch.of([graph]), WEIGHTS)
    np.testing.assert_allclose(found, literal(graph), atol=2e-5)


@given(drawn_graphs(), drawn_graphs(), st.integers(0, 99))
def test_order_and_company_change_nothing(
    graph: PrimitiveGraph, other: PrimitiveGraph, seed: int
) -> None:
    alone = GRAPHORMER.embeddings([graph], WEIGHTS)[0]
    both = GRAPHORMER.embeddings([other, reordered(graph, seed)], WEIGHTS)
    np.testing.assert_allclose(both[1], alone, atol=1e-5)


def test_torch_and_numpy_agree_and_gradients_reach_every_weight() -> None:
    rng = np.random.default_rng(1)
    batch = PaddedBatch.of([drawn_network(rng) for _ in range(4)])
    weights = {n: torch.tensor(w, requires_grad=True) for n, w in WEIGHTS.items()}
    found = states(as_tensors(batch), weights, torch_backend())
    np.testing.assert_allclose(found.detach().numpy(), states(batch, WEIGHTS), atol=2e-5)
    (found**2 * torch.arange(WIDTH)).sum().backward()
    assert all(w.grad is not None and torch.isfinite(w.grad).all() for w in weights.values())


def test_a_file_says_by_its_names_which_encoder_it_holds(tmp_path) -> None:  # type: ignore[no-untyped-def]
    save_file(WEIGHTS, tmp_path / "ghn3.safetensors")
    read = read_weights(tmp_path / "ghn3.safetensors")
    assert encoder_of(read) is GRAPHORMER
    np.testing.assert_array_equal(read["edge_embed.weight"], WEIGHTS["edge_embed.weight"])


def test_width_layers_and_heads_are_those_of_the_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    wide, path = first_weights(0, shapes(64, 2, 8)), tmp_path / "ghn3.safetensors"
    save_file(wide, path)
    read, rng = read_weights(path), np.random.default_rng(1)
    graphs = [drawn_network(rng) for _ in range(2)]
    found = GRAPHORMER.embeddings(graphs, read)
    assert found.shape == (2, 64)
    assert np.abs(found[0] - found[1]).max() > 1e-3
    for name in ("edge_embed.weight", "layers.1.out.bias", "embed.weight"):
        save_file({**wide, name: wide[name][..., :-1].copy()}, path)
        with pytest.raises(RequestError, match="has to be of"):
            read_weights(path)


def test_it_trains_as_a_hypernetwork() -> None:
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=(64, 1, 8, 8)), rng.integers(0, 10, 64)
    learned = trained(images, labels, seed=0, steps=12, encoder=GRAPHORMER)
    assert learned.losses[-3:].mean() < learned.losses[:3].mean()
    accuracy = runpy.run_path(str(BENCHMARK))["accuracy"]
    assert 0 <= accuracy(drawn_network(rng), images, labels, learned, GRAPHORMER) <= 1
