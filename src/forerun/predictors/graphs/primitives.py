"""PrimitiveGraph: a network as GHN-2 reads it: nodes of fifteen primitives with the sizes of their weights.

Source: Knyazev et al., Parameter Prediction for Unseen Deep Architectures (NeurIPS 2021), the encoder of
PredictDDL. Activations, views and copies are no nodes; a bias of a product is one, that of a norm is not.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from forerun.arrays import FloatArray, IntArray
from forerun.domain.graph import Graph, Op, OpKind, Phase
from forerun.errors import RequestError

PRIMITIVES = (
    "max_pool", "avg_pool", "sep_conv", "dil_conv", "conv", "msa", "cse", "sum", "concat", "input",
    "bias", "bn", "ln", "pos_enc", "glob_avg",
)  # fmt: skip
CODE: Mapping[str, int] = {name: i for i, name in enumerate(PRIMITIVES)}
# Sizes that have a code of their own; another size has that of the nearest.
CLASSES = 10  # of the images that encoders here are trained on
CHANNELS = np.unique([1, 3, CLASSES, *range(8, 65, 8), *range(64, 4097, 16), *range(4096, 8193, 32)])  # fmt: skip
SPATIAL = np.array([1, 3, 5, 7, 9, 11, 14, 16])
# Larger graphs are refused: distances between nodes are a square of them.
MOST_NODES = 6000
_CONVOLUTIONS = {
    OpKind.CONV: "conv", OpKind.CONV_1X1: "conv", OpKind.MATMUL: "conv",
    OpKind.CONV_GROUPED: "sep_conv", OpKind.CONV_DEPTHWISE: "sep_conv",
}  # fmt: skip
_NORMS = {OpKind.BATCH_NORM: "bn", OpKind.NORM: "ln"}
# Classes of operations that GHN-2 has no primitive for, and that do compute.
_FOREIGN = frozenset({OpKind.RECURRENT, OpKind.UNKNOWN})


@dataclass(frozen=True)
class PrimitiveGraph:
    """One network of n nodes in an order in which every node follows what it reads.

    Attributes:
        primitive: (n,) positions in PRIMITIVES.
        sizes: (n, 4) of the weights: output channels, input channels of a group, kernel height and width;
            zeros where a node has none.
        edges: (e, 2) node that is read, and node that reads.
        foreign: operations without a primitive, and the share of the forward FLOPs that they are.
    """

    primitive: IntArray
    sizes: IntArray
    edges: IntArray
    foreign: Mapping[str, float]

    def __len__(self) -> int:
        return len(self.primitive)

    @cached_property
    def key(self) -> str:
        """A hash of the structure: equal graphs share it."""
        parts = (self.primitive, self.sizes, self.edges)
        return hashlib.sha256(b"".join(np.int64(p).tobytes() for p in parts)).hexdigest()

    @cached_property
    def depth(self) -> IntArray:
        """The longest way from an input to each node, (n,)."""
        return _longest(len(self), self.edges)

    @cached_property
    def height(self) -> IntArray:
        """The longest way from each node to an end, (n,)."""
        return _longest(len(self), len(self) - 1 - self.edges[::-1, ::-1])[::-1]


def _longest(count: int, edges: IntArray) -> IntArray:
    """Return the longest way to each node; edges come in the order of the nodes that read."""
    longest = [0] * count
    for source, target in edges[np.argsort(edges[:, 1], kind="stable")].tolist():
        if longest[source] >= longest[target]:
            longest[target] = longest[source] + 1
    return np.array(longest, dtype=np.int64)


def size_codes(sizes: IntArray) -> IntArray:
    """Return the codes of sizes, (n, 4): channels, channels, and two of kernels; the last code is of no size."""
    codes = np.empty_like(sizes)
    for column, known in enumerate((CHANNELS, CHANNELS, SPATIAL, SPATIAL)):
        values = sizes[:, column]
        above = np.clip(np.searchsorted(known, values), 1, len(known) - 1)
        nearer = values - known[above - 1] <= known[above] - values
        codes[:, column] = np.where(values > 0, above - nearer, len(known))
    return codes


def primitive_graph(graph: Graph, name: str = "the network") -> PrimitiveGraph:
    """Return a network's forward pass as a graph of primitives; repeated layers stand one after another.

    Raises RequestError where there is no operation with a primitive, where an operation reads a later
    one, or where there are too many nodes.
    """
    ops = [op for op in graph.ops if op.phase is Phase.FORWARD]
    for position, op in enumerate(ops):
        late = [i for i in op.inputs if not 0 <= i < position]
        if late:
            raise RequestError(
                f"a graph of primitives of {name}",
                f"operation {position} ({op.name}) reads operation {late[0]}, which does not come before it",
                "give operations in an order without cycles",
            )  # fmt: skip
    building = _Building(name)
    at = 0
    while at < len(ops):
        end = at + 1
        repeat = ops[at].repeat
        while repeat > 1 and end < len(ops) and ops[end].repeat > 1:
            repeat = min(repeat, ops[end].repeat)
            end += 1
        building.add(ops, range(at, end), repeat)
        at = end
    return building.finished(ops)


class _Building:
    """Nodes so far; `carried` holds, for each operation, the nodes whose values its output is made of."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.primitive = [CODE["input"]]
        self.sizes: list[tuple[int, ...]] = [(0, 0, 0, 0)]
        self.edges: dict[tuple[int, int], None] = {}
        self.carried: list[tuple[int, ...]] = []

    def add(self, ops: Sequence[Op], segment: range, copies: int) -> None:
        """Add the operations of a segment; a further copy reads the copy before where the first read its entry."""
        entry = ops[segment.start].inputs
        for copy in range(copies):
            before = self.carried[-1] if copy else ()
            inside: list[tuple[int, ...]] = []
            for position in segment:
                op, read = ops[position], list[int]()
                for i in op.inputs:
                    if i >= segment.start:
                        read += inside[i - segment.start]
                    else:
                        read += before if before and i in entry else self.carried[i]
                if not op.inputs:
                    read += before or (0,)
                inside.append(self._carry(op, tuple(dict.fromkeys(read)), ops))
            self.carried[segment.start :] = inside
            if len(self.primitive) > MOST_NODES:
                raise RequestError(
                    f"a graph of primitives of {self.name}", f"it has more than {MOST_NODES:,} nodes",
                    "predict it by a predictor that needs none, such as analytic",
                )  # fmt: skip

    def _carry(self, op: Op, read: tuple[int, ...], ops: Sequence[Op]) -> tuple[int, ...]:
        """Return the nodes that an operation's output is made of, adding those that it is."""
        found = self._primitive(op, read, ops)
        if not found:
            return read
        if found == "msa":
            # Scores, their softmax and what they weigh are one attention.
            same = [i for i in read if self.primitive[i] == CODE["msa"]]
            if same:
                self.edges.update({(i, same[-1]): None for i in read if i < same[-1]})
                return (same[-1], *(i for i in read if i > same[-1]))
        sizes = _sizes(op, found, ops)
        node = self._node(found, sizes, read)
        products = sizes[0] * sizes[1] * sizes[2] * sizes[3]
        convolves = found in ("conv", "sep_conv") and op.kind is not OpKind.EMBEDDING
        if convolves and op.weights - products >= sizes[0] > 0:
            node = self._node("bias", (sizes[0], 1, 1, 1), (node,))
        return (node,)

    def _node(self, primitive: str, sizes: tuple[int, ...], read: tuple[int, ...]) -> int:
        node = len(self.primitive)
        self.primitive.append(CODE[primitive])
        self.sizes.append(sizes)
        self.edges.update({(i, node): None for i in read})
        return node

    def _primitive(self, op: Op, read: tuple[int, ...], ops: Sequence[Op]) -> str:
        """Return the primitive of an operation, "" where it is none."""
        kind, name = op.kind, op.name.lower()
        if kind in _CONVOLUTIONS:
            return _CONVOLUTIONS[kind] if op.weights else ""
        if kind in _NORMS:
            return _NORMS[kind]
        if kind is OpKind.EMBEDDING:
            return "pos_enc" if "pos" in name else "conv"
        if kind is OpKind.ATTENTION or (kind is OpKind.SOFTMAX and "log_softmax" not in name):
            return "msa"
        pixels = math.prod(op.shape[1:])
        inputs = [ops[i] for i in op.inputs]
        if kind in (OpKind.POOL, OpKind.REDUCE):
            if pixels == 1 and inputs and math.prod(inputs[0].shape[1:]) > 1:
                return "glob_avg"
            if kind is OpKind.REDUCE:
                return ""
            average = any(word in name for word in ("avg", "average", "mean")) or not op.saved
            return "avg_pool" if average else "max_pool"
        if kind is OpKind.COPY:
            return "concat" if len(read) > 1 else ""
        if kind is OpKind.ELEMENTWISE and op.params:
            return "pos_enc" if "pos" in name else "bias"
        if kind is OpKind.ELEMENTWISE and len(read) > 1 and len(inputs) > 1:
            if any(math.prod(i.shape[1:]) == 1 < pixels for i in inputs):
                return "cse"
            return "" if "mul" in name else "sum"
        return ""

    def finished(self, ops: Sequence[Op]) -> PrimitiveGraph:
        """Return the graph, its nodes checked."""
        if len(self.primitive) == 1:
            raise RequestError(
                f"a graph of primitives of {self.name}",
                "it has no operation that is one of " + ", ".join(PRIMITIVES),
                "trace the module, or name a network of the zoo whose layers are known",
            )
        whole = max(sum(op.flops * op.repeat for op in ops), 1.0)
        return PrimitiveGraph(
            np.array(self.primitive, dtype=np.int64), np.array(self.sizes, dtype=np.int64),
            np.array(list(self.edges), dtype=np.int64).reshape(-1, 2),
            {op.name: op.flops * op.repeat / whole for op in ops if op.kind in _FOREIGN},
        )  # fmt: skip


def _sizes(op: Op, primitive: str, ops: Sequence[Op]) -> tuple[int, ...]:
    """Return (output channels, input channels a group, kernel height, kernel width) of an operation's weights."""
    if primitive in ("bn", "ln", "bias"):
        return (_positive(op.params / (2 if primitive != "bias" else 1)), 1, 1, 1)
    if op.kind is OpKind.EMBEDDING or primitive == "pos_enc":
        width = op.shape[-1] if op.shape else 1
        return (width, _positive(op.params / width), 1, 1)
    if primitive not in ("conv", "sep_conv") or len(op.dims) < 3:
        return (0, 0, 0, 0)
    _, n, k, *rest = op.dims
    groups = max(rest[0], 1) if rest else 1
    out = n * groups
    if op.kind in (OpKind.MATMUL, OpKind.CONV_1X1):
        return (out, k, 1, 1)
    source = ops[op.inputs[0]].shape if op.inputs else ()
    channels = source[0] / groups if source else 0
    if op.kind is OpKind.CONV_DEPTHWISE:
        channels = 1
    if not channels or k % channels:
        # What an operation reads of the network's own input: images of three or one channels.
        channels = next((c for c in (3, 1) if k % c == 0 and math.isqrt(k // c) ** 2 == k // c), 1)
    area = int(k // channels)
    side = math.isqrt(area)
    return (out, int(channels), *((side, side) if side * side == area else (1, area)))


def _positive(value: float) -> int:
    return max(int(value), 1)


def distances(graphs: Sequence[PrimitiveGraph], most: int) -> tuple[IntArray, IntArray, FloatArray]:
    """Return (source, target, length) of the shortest ways of 1 to `most` steps within each graph, (p,) each.

    Nodes are numbered through all graphs. Ways are found for all graphs at once, depth by depth.
    """
    counts = np.array([len(g) for g in graphs])
    start = np.concatenate([[0], np.cumsum(counts)])
    total, widest, far = int(start[-1]), int(counts.max()), most + 1
    ways = np.full((total, widest), far, dtype=np.int16)
    own = np.arange(total) - np.repeat(start[:-1], counts)
    ways[np.arange(total), own] = 0
    edges = np.concatenate([g.edges + at for g, at in zip(graphs, start, strict=False)])
    depth = np.concatenate([g.depth for g in graphs])
    edges = edges[np.lexsort((edges[:, 1], depth[edges[:, 1]]))]
    source, target = np.ascontiguousarray(edges.T)
    begins = np.flatnonzero(np.diff(target, prepend=-1))  # a node's first edge
    nodes = target[begins]
    cuts = np.searchsorted(depth[target], np.arange(1, depth.max() + 2))
    of_node = np.searchsorted(begins, cuts)
    for (first, end), (low, high) in zip(itertools.pairwise(cuts), itertools.pairwise(of_node), strict=True):  # fmt: skip
        at = nodes[low:high]
        ways[at] = np.minimum.reduceat(ways[source[first:end]], begins[low:high] - first) + 1
        ways[at, own[at]] = 0
    target, column = np.nonzero((ways > 0) & (ways <= most))
    source = column + np.repeat(start[:-1], counts)[target]
    return source, target, ways[target, column].astype(np.float64)
