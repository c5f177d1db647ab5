"""GatedGNN, the encoder of GHN-2: states of a graph's nodes, and their mean, the graph's embedding.

Source: Knyazev et al. 2021, with T = 1: one pass along the edges and one against them. A node's message sums
MLP(h_u) over those that it reads, and MLP_sp(h_u) / s over those that lie 2 to 50 steps away; a GRU takes it
in. Nodes of equal depth do not read one another, so that each depth of all graphs is one step here. The same
equations run in NumPy, where a graph is embedded, and in torch, where the encoder is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True)
class Level:
    """Nodes of one depth and what they read: places in the stacked messages (both kinds), grouped by node."""

    nodes: IntArray
    sources: IntArray
    shares: Any  # (r, 1), 1 / s
    begins: IntArray
    groups: IntArray  # (r,) position in `nodes` of each


@dataclass(frozen=True)
class GraphBatch:
    """Graphs side by side, made once for all passes; n nodes together.

    begins: the first node of each graph. primitive (n,) and sizes (n, 4) are codes.
    """

    primitive: IntArray
    sizes: IntArray
    begins: IntArray
    counts: IntArray
    along: tuple[Level, ...]
    against: tuple[Level, ...]

    @staticmethod
    def of(graphs: Sequence[PrimitiveGraph], near: bool = False) -> GraphBatch:
        """Return the batch of graphs.

        near: virtual edges also join neighbours, as in the released code; the paper's sum starts at 2 steps.
        """
        counts = np.array([len(g) for g in graphs])
        begins = np.concatenate([[0], np.cumsum(counts)[:-1]])
        source, target, length = distances(graphs, FARTHEST)
        direct = length == 1.0
        virtual = np.ones(len(length), dtype=bool) if near else ~direct
        # Of each node's two messages the first is for direct neighbours, the second for virtual ones.
        reads = 2 * np.concatenate([source[direct], source[virtual]])
        second = np.repeat([0, 1], [direct.sum(), virtual.sum()])
        read_by = np.concatenate([target[direct], target[virtual]])
        back = 2 * read_by
        back_by = np.concatenate([source[direct], source[virtual]])
        shares = 1.0 / np.concatenate([length[direct], length[virtual]])
        depth = np.concatenate([g.depth for g in graphs])
        height = np.concatenate([g.height for g in graphs])
        return GraphBatch(
            np.concatenate([g.primitive for g in graphs]),
            size_codes(np.concatenate([g.sizes for g in graphs])), begins, counts,
            _levels(depth, reads + second, read_by, shares),
            _levels(height, back + second, back_by, shares),
        )  # fmt: skip


def _levels(
    depth: IntArray, reads: IntArray, read_by: IntArray, shares: FloatArray
) -> tuple[Level, ...]:
    order = np.lexsort((read_by, depth[read_by]))
    reads, read_by = reads[order], read_by[order]
    share: NDArray[Any] = shares[order].astype(np.float32)[:, None]
    deep = np.arange(depth.max() + 2)
    by_depth = np.argsort(depth, kind="stable")
    node_cuts = np.searchsorted(depth[by_depth], deep)
    edge_cuts = np.searchsorted(depth[read_by], deep)
    first = np.r_[True, read_by[1:] != read_by[:-1]][: len(read_by)]
    begins, group = np.flatnonzero(first), np.cumsum(first) - 1
    begin_cuts = np.searchsorted(begins, edge_cuts)
    level_of = depth[read_by]
    begins = begins - edge_cuts[level_of[begins]]
    group = group - begin_cuts[level_of]
    found = []
    for level in range(len(deep) - 1):
        nodes = slice(node_cuts[level], node_cuts[level + 1])
        edges = slice(edge_cuts[level], edge_cuts[level + 1])
        starts = slice(begin_cuts[level], begin_cuts[level + 1])
        found.append(
            Level(by_depth[nodes], reads[edges], share[edges], begins[starts], group[edges])
        )
    return tuple(found)


@dataclass(frozen=True)
class Backend:
    """The few operations that NumPy and torch name differently; `put` returns the array with rows replaced."""

    sigmoid: Callable[[Any], Any]
    tanh: Callable[[Any], Any]
    relu: Callable[[Any], Any]
    joined: Callable[[Sequence[Any]], Any]
    zeros: Callable[..., Any]
    put: Callable[[Any, IntArray, Any], Any]
    sums: Callable[[Any, IntArray, IntArray], Any]


def _put(array: FloatArray, rows: IntArray, values: FloatArray) -> FloatArray:
    array[rows] = values
    return array


NUMPY = Backend(
    lambda x: 0.5 * np.tanh(0.5 * x) + 0.5, np.tanh, lambda x: np.maximum(x, 0.0),
    lambda arrays: np.concatenate(arrays, axis=1), lambda *sides: np.zeros(sides, dtype=np.float32), _put,
    lambda values, begins, groups: np.add.reduceat(values, begins, axis=0),
)  # fmt: skip


def states(batch: GraphBatch, weights: Weights, using: Backend = NUMPY) -> Any:
    """Return the final state of each node, (n, width)."""
    start = weights["embed.weight"][batch.primitive] + using.joined([
        weights[f"shape_enc.embed_{'channel' if column < 2 else 'spatial'}.weight"][codes]
        for column, codes in enumerate(batch.sizes.T)
    ])  # fmt: skip
    return _pass(batch.against, _pass(batch.along, start, weights, using), weights, using)


def _pass(levels: Sequence[Level], state: Any, weights: Weights, using: Backend) -> Any:
    """Return the states of all nodes after one pass, (n, width)."""
    count, width = state.shape
    both = 2 * width
    before = state
    recurrent = before @ weights["gru.weight_hh"].T + weights["gru.bias_hh"]
    taken_in, bias = weights["gru.weight_ih"].T, weights["gru.bias_ih"]
    inner, inner_bias, outer, outer_bias = (
        [weights[f"{mlp}.fc.{i}.{part}"] for mlp in ("mlp", "mlp_ve")]
        for i in (0, 2) for part in ("weight", "bias")
    )  # fmt: skip
    inner, inner_bias = (
        using.joined([w.T for w in inner]),
        using.joined([b[None] for b in inner_bias]),
    )
    # What a node says, as the GRU takes it in: a sum of messages is then a sum of these.
    messages = using.zeros(count, 2, 3 * width)
    for depth, level in enumerate(levels):
        nodes = level.nodes
        held = recurrent[nodes]
        if depth:
            said = messages.reshape(2 * count, 3 * width)[level.sources] * level.shares
            fresh = using.sums(said, level.begins, level.groups) + bias
        else:
            fresh = bias[None]
        gates = using.sigmoid(fresh[:, :both] + held[:, :both])
        new = using.tanh(fresh[:, both:] + gates[:, :width] * held[:, both:])
        new = new + gates[:, width:] * (before[nodes] - new)
        state = using.put(state, nodes, new)
        half = using.relu(new @ inner + inner_bias)
        said = using.joined([
            using.relu(part @ weight.T + shift) @ taken_in
            for part, weight, shift in (
                (half[:, : width // 2], outer[0], outer_bias[0]), (half[:, width // 2 :], outer[1], outer_bias[1])
            )
        ])  # fmt: skip
        messages = using.put(messages, nodes, said.reshape(len(nodes), 2, 3 * width))
    return state


def embeddings(batch: GraphBatch, weights: Weights) -> FloatArray:
    """Return the embedding of each graph, the mean of its nodes' states, (graphs, width)."""
    sums = np.add.reduceat(states(batch, weights), batch.begins, axis=0)
    return np.asarray(sums / batch.counts[:, None])


def shapes(width: int = WIDTH) -> dict[str, tuple[int, ...]]:
    """Return the shape of each weight of an encoder."""
    found: dict[str, tuple[int, ...]] = {
        "embed.weight": (len(PRIMITIVES), width),
        "shape_enc.embed_channel.weight": (len(CHANNELS) + 1, width // 4),
        "shape_enc.embed_spatial.weight": (len(SPATIAL) + 1, width // 4),
    }
    for gate, inputs in (("ih", width), ("hh", width)):
        found[f"gru.weight_{gate}"] = (3 * width, inputs)
        found[f"gru.bias_{gate}"] = (3 * width,)
    for mlp in ("mlp", "mlp_ve"):
        found |= {
            f"{mlp}.fc.0.weight": (width // 2, width), f"{mlp}.fc.0.bias": (width // 2,),
            f"{mlp}.fc.2.weight": (width, width // 2), f"{mlp}.fc.2.bias": (width,),
        }  # fmt: skip
    return found
