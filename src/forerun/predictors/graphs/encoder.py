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
from functools import partial
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
        # Behind the messages of all nodes lies one of zeros, which every node reads.
        sources = np.concatenate([2 * place[read] + second, np.full(count, 2 * count)])
        readers = np.concatenate([place[by], np.arange(count)])
        # Numbers of 16 bits are sorted by radix.
        order = np.argsort(readers.astype(np.min_scalar_type(count)), kind="stable")
        sources, readers = sources[order], readers[order]
        share: NDArray[Any] = np.concatenate([shares, np.ones(count)])[order].astype(np.float32)[:, None]  # fmt: skip
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
            source, target, length = (np.concatenate([a, a[direct]]) for a in (source, target, length))  # fmt: skip
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
    """The few operations that NumPy and torch name differently; levels: `run_levels`."""

    tanh: Callable[[Any], Any]
    joined: Callable[[Sequence[Any]], Any]
    zeros: Callable[..., Any]
    softmax: Callable[[Any], Any]
    levels: Callable[..., Any]

    def corners(self, one: Any, other: Any) -> Any:
        """Return a matrix with two of equal sides (a, b) in its corners, (2 a, 2 b)."""
        blank = self.zeros(*one.shape)
        upper, lower = self.joined([one, blank]), self.joined([blank, other])
        return self.joined([upper.T, lower.T]).T


def _sums(values: FloatArray, level: Level) -> FloatArray:
    if len(level.begins) == 1:
        return np.asarray(level.shares.T @ values)
    return np.asarray(np.add.reduceat(values * level.shares, level.begins, axis=0))


def _softmax(values: FloatArray) -> FloatArray:
    raised = np.exp(values - values.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))


_ZERO, _HALF, _ONE = np.array([[[0.0]], [[0.5]], [[1.0]]], dtype=np.float32)


Kept = list[tuple[FloatArray, ...]]


def run_levels(way: Pass, *inputs: FloatArray, kept: Kept | None = None) -> NDArray[Any]:
    """Return the new states of nodes in the order of a pass, (n, width).

    kept: is given each level's gates, candidates for states, both layers of its nets, and what it reads, which
    gradients need.
    """
    recurrent, half_before, inner, inner_bias, outer, outer_bias, taken_in, bias = inputs
    count, width = half_before.shape
    both, messages = 2 * width, np.zeros((count + 1, 2 * width), dtype=np.float32)
    each = messages.reshape(2 * count + 2, width)
    new_states = np.empty((count, width), dtype=np.float32)
    for level in way.levels:
        first, last = level.first, level.last
        held = recurrent[first:last]
        read = _sums(each.take(level.sources, axis=0), level)
        fresh = read @ taken_in + bias
        gates = np.tanh(fresh[:, :both] + held[:, :both]) + _ONE
        new = np.tanh(fresh[:, both:] + gates[:, :width] * held[:, both:])
        state = new + gates[:, width:] * (half_before[first:last] - _HALF * new)
        half = np.maximum(state @ inner + inner_bias, _ZERO)
        whole = np.maximum(half @ outer + outer_bias, _ZERO, out=messages[first:last])
        new_states[first:last] = state
        if kept is not None:
            kept.append((gates, new, half, whole, read))
    return new_states


def level_gradients(
    way: Pass, inputs: Sequence[FloatArray], states: FloatArray, kept: Kept, given: FloatArray
) -> tuple[FloatArray, ...]:
    """Return the gradient of each input of `run_levels` by that of the states that it returned, (n, width)."""
    recurrent, half_before, inner, _, outer, _, taken_in, _ = inputs
    gates, new, half, whole, read = (np.concatenate(parts) for parts in zip(*kept, strict=True))
    (count, width), both = states.shape, 2 * states.shape[1]
    # How gates and candidates change with what goes into their tanh, and states with them.
    of_new = (1.0 - 0.5 * gates[:, width:]) * (1.0 - new * new)
    of_gates = gates * (2.0 - gates)
    of_gates[:, width:] *= half_before - 0.5 * new
    messages = np.zeros((count + 1, both), dtype=np.float32)
    each = messages.reshape(2 * count + 2, width)
    to_fresh = np.empty((count, 3 * width), dtype=np.float32)
    to_states, to_half, to_whole = np.empty_like(states), np.empty_like(half), np.empty_like(whole)
    for level in reversed(way.levels):
        at = slice(level.first, level.last)
        to_whole[at] = messages[at] * (whole[at] > 0.0)
        to_half[at] = (to_whole[at] @ outer.T) * (half[at] > 0.0)
        to_states[at] = given[at] + to_half[at] @ inner.T
        to_fresh[at, both:] = to_states[at] * of_new[at]
        to_fresh[at, :width] = to_fresh[at, both:] * recurrent[at, both:] * of_gates[at, :width]
        to_fresh[at, width:both] = to_states[at] * of_gates[at, width:]
        # Several nodes of a level may read one message.
        distinct, place = np.unique(level.sources, return_inverse=True)
        shares = np.zeros((len(distinct), level.last - level.first), dtype=np.float32)
        shares[place, level.groups] = level.shares[:, 0]
        each[distinct] += shares @ (to_fresh[at] @ taken_in.T)
    to_recurrent = to_fresh.copy()
    to_recurrent[:, both:] *= gates[:, :width]
    return (
        to_recurrent, to_states * gates[:, width:], states.T @ to_half, to_half.sum(axis=0)[None],
        half.T @ to_whole, to_whole.sum(axis=0)[None], read.T @ to_fresh, to_fresh.sum(axis=0)[None],
    )  # fmt: skip


NUMPY = Backend(
    np.tanh, lambda arrays: np.concatenate(arrays, axis=1),
    lambda *sides: np.zeros(sides, dtype=np.float32), _softmax, run_levels,
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
    width = state.shape[1]
    state = state[way.node]
    both = 2 * width
    # sigmoid(x) is 0.5 tanh(0.5 x) + 0.5: the halves are taken out of the loop, into the weights.
    halves = using.joined([using.zeros(1, both) + 0.5, using.zeros(1, width) + 1.0])
    half_before = 0.5 * state
    recurrent = 0.5 * (state @ weights["gru.weight_hh"].T + weights["gru.bias_hh"])
    taken_in = weights["gru.weight_ih"].T * halves
    bias = weights["gru.bias_ih"][None] * halves
    narrow, narrow_bias, wide, wide_bias = (
        [weights[f"{mlp}.fc.{i}.{part}"] for mlp in ("mlp", "mlp_ve")]
        for i in (0, 2) for part in ("weight", "bias")
    )  # fmt: skip
    inner, inner_bias = (using.joined([w.T for w in narrow]), using.joined([b[None] for b in narrow_bias]))  # fmt: skip
    outer = using.corners(wide[0].T, wide[1].T)
    outer_bias = using.joined([b[None] for b in wide_bias])
    found = using.levels(way, recurrent, half_before, inner, inner_bias, outer, outer_bias, taken_in, bias)  # fmt: skip
    return found[way.place]


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
NEAR = "near"  # a name among the weights of an encoder that the released code trained
RELEASED = Encoder(lambda width: shapes(width) | {NEAR: (1,)}, partial(GraphBatch.of, near=True), states)  # fmt: skip
