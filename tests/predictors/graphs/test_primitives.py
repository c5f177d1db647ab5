"""Networks as graphs of GHN-2's primitives: what is a node, what it joins, and what is refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from forerun.domain.graph import Graph, Op, OpKind
from forerun.errors import RequestError
from forerun.predictors.graphs.primitives import (
    CHANNELS,
    MOST_NODES,
    PRIMITIVES,
    SPATIAL,
    PrimitiveGraph,
    distances,
    primitive_graph,
    size_codes,
)
from forerun.workloads.resolve import workload
from tests.predictors.graphs.drawn import drawn_graphs, graph_of


def counted(graph: PrimitiveGraph) -> dict[str, int]:
    return dict(Counter(PRIMITIVES[i] for i in graph.primitive))


def of(name: str, **changes: object) -> PrimitiveGraph:
    return primitive_graph(workload(name, **changes).graph, name)


def test_resnet18_has_the_nodes_of_its_definition() -> None:
    found = of("resnet18")
    assert counted(found) == {
        "input": 1, "conv": 21, "bn": 20, "sum": 8, "max_pool": 1, "glob_avg": 1, "bias": 1,
    }  # fmt: skip
    first = int(np.flatnonzero(found.primitive == PRIMITIVES.index("conv"))[0])
    assert found.sizes[first].tolist() == [64, 3, 7, 7]
    assert found.edges[found.edges[:, 1] == first, 0].tolist() == [0]
    # A block's sum reads two nodes, and each other node but the input one.
    reads = np.bincount(found.edges[:, 1], minlength=len(found))
    sums = found.primitive == PRIMITIVES.index("sum")
    assert (reads[sums] == 2).all()
    assert (reads[~sums][1:] == 1).all()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vgg16", {"input": 1, "conv": 16, "bias": 16, "max_pool": 5, "avg_pool": 1}),
        ("googlenet", {"concat": 9}),
        ("mobilenet_v2", {"sep_conv": 17, "conv": 36, "sum": 10}),
        ("efficientnet_b0", {"cse": 16, "sep_conv": 16}),
        ("vit_b_16", {"msa": 12, "ln": 25, "pos_enc": 1}),
    ],
)
def test_networks_have_the_nodes_of_their_definitions(name: str, expected: dict[str, int]) -> None:
    found = counted(of(name))
    assert {primitive: found.get(primitive, 0) for primitive in expected} == expected


def test_repeated_layers_stand_one_after_another() -> None:
    found = of("gpt2")
    assert counted(found)["msa"] == 12
    assert found.depth.max() > 12 * 8


def test_weights_are_those_of_the_network() -> None:
    graph = workload("resnet50").graph
    found = primitive_graph(graph)
    products = np.isin(found.primitive, [PRIMITIVES.index(n) for n in ("conv", "sep_conv")])
    weights = found.sizes[products].prod(axis=1).sum()
    others = found.sizes[np.isin(found.primitive, [PRIMITIVES.index("bias")]), 0].sum()
    norms = 2 * found.sizes[found.primitive == PRIMITIVES.index("bn"), 0].sum()
    assert weights + others + norms == graph.params


def test_what_has_no_primitive_is_listed_with_its_share() -> None:
    found = of("gnmt")
    assert found.foreign
    assert 0.3 < sum(found.foreign.values()) <= 1.0
    assert not of("resnet50").foreign


def test_the_share_of_what_repeats_is_that_of_all_of_it() -> None:
    cells = (
        Op("cell", OpKind.RECURRENT, flops=3.0, repeat=4),
        Op("norm", OpKind.NORM, flops=1.0, repeat=4),
    )
    found = primitive_graph(Graph(cells))
    assert found.foreign == {"cell": 0.75}
    assert counted(found) == {"input": 1, "ln": 4}


def test_sizes_have_the_code_of_the_nearest() -> None:
    codes = size_codes(np.array([[3, 65, 7, 0], [9000, 0, 13, 100]]))
    assert [CHANNELS[i] for i in (codes[0, 0], codes[0, 1], codes[1, 0])] == [3, 64, CHANNELS[-1]]
    assert SPATIAL[codes[0, 2]] == 7
    assert codes[0, 3] == len(SPATIAL)
    assert codes[1, 1] == len(CHANNELS)
    assert SPATIAL[codes[1, 3]] == SPATIAL[-1]


@given(graph=drawn_graphs())
def test_distances_are_those_of_a_walk(graph: PrimitiveGraph) -> None:
    count = len(graph)
    joined = np.zeros((count, count), dtype=int)
    joined[tuple(graph.edges.T)] = 1
    expected, reached, power = {}, np.eye(count, dtype=int), np.eye(count, dtype=int)
    for steps in range(1, count):
        power = (power @ joined > 0).astype(int)
        for a, b in np.argwhere(power & ~(reached > 0)):
            expected[int(a), int(b)] = steps
        reached = reached | power
    source, target, length = distances([graph], 50)
    found = {(int(a), int(b)): int(s) for a, b, s in zip(source, target, length, strict=True)}
    assert found == expected


def test_equal_structures_share_a_key() -> None:
    assert of("resnet18").key == of("resnet18", image_size=160).key
    assert of("resnet18").key != of("resnet34").key


@pytest.mark.parametrize(
    ("ops", "words"),
    [
        ((), "no operation that is one of"),
        ((Op("relu", OpKind.ELEMENTWISE),), "no operation that is one of"),
        ((Op("a", OpKind.NORM, inputs=(1,)), Op("b", OpKind.NORM, inputs=(0,))), "does not come before"),
        ((Op("a", OpKind.NORM, inputs=(0,)),), "does not come before"),
        ((Op("a", OpKind.NORM, params=8, repeat=MOST_NODES + 1),), "more than"),
    ],
)  # fmt: skip
def test_graphs_that_cannot_be_encoded_are_refused(ops: tuple[Op, ...], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        primitive_graph(Graph(ops), "mine")


def test_every_network_of_the_zoo_is_a_graph() -> None:
    from forerun.workloads.zoo import zoo_names

    for name in list(zoo_names())[::9]:
        graph = workload(name).graph
        found = primitive_graph(graph, name)
        assert (found.edges[:, 0] < found.edges[:, 1]).all(), name
        alone = np.setdiff1d(np.arange(1, len(found)), found.edges[:, 1])
        assert not len(alone), (name, alone)


def test_depths_and_heights_are_longest_ways() -> None:
    graph = graph_of([9, 4, 4, 7], [(0, 1), (1, 2), (2, 3), (0, 3)])
    assert graph.depth.tolist() == [0, 1, 2, 3]
    assert graph.height.tolist() == [3, 2, 1, 0]
    alone = replace(graph, edges=np.zeros((0, 2), dtype=np.int64))
    assert alone.depth.tolist() == [0] * 4
