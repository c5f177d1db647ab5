"""GatedGNN, the encoder of GHN-2: states of a graph's nodes, and their mean, the graph's embedding.

Source: Knyazev et al. 2021, with T = 1: one pass along the edges and one against them. A node's message sums
MLP(h_u) over those that it reads, and MLP_sp(h_u) / s over those that lie 2 to 50 steps away; a GRU takes it
in. Nodes of equal depth do not read one another, so that each depth of all graphs is one step here. The same
equations run in NumPy, where a graph is embedded, and in torch, where the encoder is trained.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.predictors.graphs.primitives import (
    CHANNELS,
    PRIMITIVES,
    SPATIAL,
    PrimitiveGraph,
    distances,
    size_codes,
)

Weights = Mapping[str, Any]  # arrays of NumPy or torch, by name
FARTHEST = 50  # steps of a virtual edge
WIDTH = 32  # of states, as published


class Level(NamedTuple):
    """Nodes of one depth, `first` to `last` of a pass, and what they read, grouped by node.

    sources: places in the stacked messages, both kinds of each node. groups: position from `first` of each.
    """

    first: int
    last: int
    sources: IntArray
    shares: Any  # (r, 1), 1 / s
    begins: IntArray
    groups: IntArray


@dataclass(frozen=True)
class Pass:
    """One pass over n nodes in the order of their depth. place: of each node in that order, (n,); node: the inverse."""

    node: IntArray
    place: IntArray
    levels: tuple[Level, ...]

    @staticmethod
    def of(depth: IntArray, read: IntArray, by: IntArray, second: IntArray, shares: Any) -> Pass:
        """Return the pass in which node `by[i]` reads the message of node `read[i]`, its second one or first, (r,)."""
        count = len(depth)
        node = np.argsort(depth, kind="stable")
        place = np.empty(count, dtype=np.int64)
        place[node] = np.arange(count)
        # Behind the messages of all nodes lies the bias, which every node reads.
        sources = np.concatenate([2 * place[read] + second, np.full(count, 2 * count)])
        readers = np.concatenate([place[by], np.arange(count)])
        order = np.argsort(readers, kind="stable")
        sources, readers = sources[order], readers[order]
        share: NDArray[Any] = np.concatenate([shares, np.ones(count)])[order].astype(np.float32)[
            :, None
        ]
        begins = np.searchsorted(readers, np.arange(count + 1))
        cuts = np.searchsorted(depth[node], np.arange(depth.max() + 2))
        edges = begins[cuts].tolist()
        levels = tuple(
            Level(
                first, last, sources[low:high], share[low:high], begins[first:last] - low, readers[low:high] - first
            )
            for (first, last), (low, high) in zip(
                itertools.pairwise(cuts.tolist()), itertools.pairwise(edges), strict=True
            )
        )  # fmt: skip
        return Pass(node, place, levels)


@dataclass(frozen=True)
class GraphBatch:
    """Graphs side by side, made once for all passes; n nodes together.

    begins: the first node of each graph. primitive (n,) and sizes (n, 4) are codes.
    """

    primitive: IntArray
    sizes: IntArray
    begins: IntArray
    counts: IntArray
    along: Pass
    against: Pass

    @staticmethod
    def of(graphs: Sequence[PrimitiveGraph], near: bool = False) -> GraphBatch:
        """Return the batch of graphs.

        near: virtual edges also join neighbours, as in the released code; the paper's sum starts at 2 steps.
        """
        counts = np.array([len(g) for g in graphs])
        begins = np.concatenate([[0], np.cumsum(counts)[:-1]])
        source, target, length = distances(graphs, FARTHEST)
        # Of each node's two messages the first is for direct neighbours, the second for virtual ones.
        second = (length > 1.0).astype(np.int64)
        if near:
            direct = second == 0
            source, target, length = (
                np.concatenate([a, a[direct]]) for a in (source, target, length)
            )
            second = np.concatenate([second, np.ones(direct.sum(), dtype=np.int64)])
        shares = 1.0 / length
        depth = np.concatenate([g.depth for g in graphs])
        height = np.concatenate([g.height for g in graphs])
        return GraphBatch(
            np.concatenate([g.primitive for g in graphs]),
            size_codes(np.concatenate([g.sizes for g in graphs])), begins, counts,
            Pass.of(depth, source, target, second, shares), Pass.of(height, target, source, second, shares),
        )  # fmt: skip


@dataclass(frozen=True)
class Backend:
    """The few operations that NumPy and torch name differently; `put` returns the array with rows of a range replaced."""

    tanh: Callable[[Any], Any]
    relu: Callable[[Any], Any]
    joined: Callable[[Sequence[Any]], Any]
    zeros: Callable[..., Any]
    put: Callable[[Any, int, int, Any], Any]
    rows: Callable[[Any, IntArray], Any]
    softmax: Callable[[Any], Any]
    sums: Callable[[Any, Level], Any]

    def corners(self, one: Any, other: Any) -> Any:
        """Return a matrix with two of equal sides (a, b) in its corners, (2 a, 2 b)."""
        blank = self.zeros(*one.shape)
        upper, lower = self.joined([one, blank]), self.joined([blank, other])
        return self.joined([upper.T, lower.T]).T


def _put(array: FloatArray, first: int, last: int, values: FloatArray) -> FloatArray:
    array[first:last] = values
    return array


def _sums(values: FloatArray, level: Level) -> FloatArray:
    if len(level.begins) == 1:
        return np.asarray(level.shares.T @ values)
    return np.asarray(np.add.reduceat(values * level.shares, level.begins, axis=0))


def _softmax(values: FloatArray) -> FloatArray:
    raised = np.exp(values - values.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))


_ZERO = np.zeros(1, dtype=np.float32)
NUMPY = Backend(
    np.tanh, lambda x: np.maximum(x, _ZERO), lambda arrays: np.concatenate(arrays, axis=1),
    lambda *sides: np.zeros(sides, dtype=np.float32), _put,
    lambda array, rows: array.take(rows, axis=0), _softmax, _sums,
)  # fmt: skip


def features(primitive: IntArray, sizes: IntArray, weights: Weights, using: Backend) -> Any:
    """Return what nodes (n,) with codes of sizes (n, 4) begin with, (n, width)."""
    return weights["embed.weight"][primitive] + using.joined([
        weights[f"shape_enc.embed_{'channel' if column < 2 else 'spatial'}.weight"][codes]
        for column, codes in enumerate(sizes.T)
    ])  # fmt: skip


def states(batch: GraphBatch, weights: Weights, using: Backend = NUMPY) -> Any:
    """Return the final state of each node, (n, width)."""
    start = features(batch.primitive, batch.sizes, weights, using)
    return _passed(batch.against, _passed(batch.along, start, weights, using), weights, using)


def _passed(way: Pass, state: Any, weights: Weights, using: Backend) -> Any:
    """Return the states of all nodes after one pass, (n, width)."""
    count, width = state.shape
    state = state[way.node]
    both = 2 * width
    # sigmoid(x) is 0.5 tanh(0.5 x) + 0.5: the halves are taken out of the loop, into the weights.
    halves = using.joined([using.zeros(1, both) + 0.5, using.zeros(1, width) + 1.0])
    half_before, one = 0.5 * state, using.zeros(1, 1) + 1.0  # arrays join faster than numbers do
    half_one = 0.5 * one
    recurrent = 0.5 * (state @ weights["gru.weight_hh"].T + weights["gru.bias_hh"])
    # What a node says, as the GRU takes it in: a sum of messages is then a sum of these. The row behind
    # those of all nodes is the bias, which every node reads.
    taken_in = weights["gru.weight_ih"].T * halves
    bias = weights["gru.bias_ih"][None] * halves
    narrow, narrow_bias, wide, wide_bias = (
        [weights[f"{mlp}.fc.{i}.{part}"] for mlp in ("mlp", "mlp_ve")]
        for i in (0, 2) for part in ("weight", "bias")
    )  # fmt: skip
    inner, inner_bias = (
        using.joined([w.T for w in narrow]),
        using.joined([b[None] for b in narrow_bias]),
    )
    outer = using.corners(wide[0].T, wide[1].T)
    outer_bias = using.joined([b[None] for b in wide_bias])
    spoken = using.corners(taken_in, taken_in)
    messages = using.put(
        using.zeros(count + 1, 6 * width), count, count + 1, using.joined([bias, bias])
    )
    new_states = using.zeros(count, width)
    for level in way.levels:
        first, last = level.first, level.last
        held = recurrent[first:last]
        read = using.rows(messages.reshape(2 * count + 2, 3 * width), level.sources)
        fresh = using.sums(read, level)
        gates = using.tanh(fresh[:, :both] + held[:, :both]) + one
        new = using.tanh(fresh[:, both:] + gates[:, :width] * held[:, both:])
        new = new + gates[:, width:] * (half_before[first:last] - half_one * new)
        new_states = using.put(new_states, first, last, new)
        half = using.relu(new @ inner + inner_bias)
        said = using.relu(half @ outer + outer_bias) @ spoken
        messages = using.put(messages, first, last, said)
    return new_states[way.place]


def tables(width: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tables that nodes' features come from."""
    return {
        "embed.weight": (len(PRIMITIVES), width),
        "shape_enc.embed_channel.weight": (len(CHANNELS) + 1, width // 4),
        "shape_enc.embed_spatial.weight": (len(SPATIAL) + 1, width // 4),
    }


def shapes(width: int = WIDTH) -> dict[str, tuple[int, ...]]:
    """Return the shape of each weight of an encoder."""
    found = tables(width)
    for gate, inputs in (("ih", width), ("hh", width)):
        found[f"gru.weight_{gate}"] = (3 * width, inputs)
        found[f"gru.bias_{gate}"] = (3 * width,)
    for mlp in ("mlp", "mlp_ve"):
        found |= {
            f"{mlp}.fc.0.weight": (width // 2, width), f"{mlp}.fc.0.bias": (width // 2,),
            f"{mlp}.fc.2.weight": (width, width // 2), f"{mlp}.fc.2.bias": (width,),
        }  # fmt: skip
    return found


@dataclass(frozen=True)
class Encoder:
    """A kind of encoder: the shapes of its weights by its width, the batch that it reads, and the states of n nodes, (n, width)."""

    shapes: Callable[[int], dict[str, tuple[int, ...]]]
    batch: Callable[[Sequence[PrimitiveGraph]], Any]
    states: Callable[[Any, Weights, Backend], Any]

    def embeddings(self, graphs: Sequence[PrimitiveGraph], weights: Weights) -> FloatArray:
        """Return the embedding of each graph, the mean of its nodes' states, (graphs, width)."""
        batch = self.batch(graphs)
        sums = np.add.reduceat(self.states(batch, weights, NUMPY), batch.begins, axis=0)
        return np.asarray(sums / batch.counts[:, None])


GATED = Encoder(shapes, GraphBatch.of, states)
