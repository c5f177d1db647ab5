"""Graphs of primitives for tests: drawn at random, and the same one in another order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from forerun.predictors.graphs.primitives import PRIMITIVES, PrimitiveGraph


def graph_of(
    primitive: Sequence[int],
    edges: Sequence[tuple[int, int]],
    sizes: Sequence[Sequence[int]] | None = None,
) -> PrimitiveGraph:
    """Return a graph of nodes, without sizes where none are given."""
    return PrimitiveGraph(
        np.array(primitive, dtype=np.int64),
        np.array(sizes if sizes is not None else np.zeros((len(primitive), 4)), dtype=np.int64),
        np.array(edges, dtype=np.int64).reshape(-1, 2),
        {},
    )


@st.composite
def drawn_graphs(draw: st.DrawFn) -> PrimitiveGraph:
    """Draw a graph of 1 to 12 nodes, each after what it reads; some nodes may read none."""
    count = draw(st.integers(1, 12))
    pairs = [(a, b) for b in range(count) for a in range(b)]
    chosen = draw(st.sets(st.sampled_from(pairs))) if pairs else set()
    primitive = draw(st.lists(st.integers(0, len(PRIMITIVES) - 1), min_size=count, max_size=count))
    size = st.sampled_from([0, 1, 3, 8, 20, 64, 700, 9000])
    sizes = draw(st.lists(st.tuples(size, size, size, size), min_size=count, max_size=count))
    return graph_of(primitive, sorted(chosen), sizes)


def reordered(graph: PrimitiveGraph, seed: int) -> PrimitiveGraph:
    """Return the same graph with its nodes in another order in which each follows what it reads."""
    rng, count = np.random.default_rng(seed), len(graph)
    left, order = set(range(count)), []
    reads = {v: {int(a) for a, b in graph.edges if b == v} for v in range(count)}
    while left:
        ready = sorted(v for v in left if not reads[v] & left)
        order.append(int(rng.choice(ready)))
        left.remove(order[-1])
    place = np.argsort(order)
    edges = place[graph.edges] if len(graph.edges) else graph.edges
    edges = edges[rng.permutation(len(edges))]
    return PrimitiveGraph(graph.primitive[order], graph.sizes[order], edges, {})
