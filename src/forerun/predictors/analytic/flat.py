"""Flat operations: every operation of every instance of many jobs in one set of columns.

A *key* is a way of cutting a workload; an *instance* is one workload on one kind of node cut by one
key, costed once for all jobs that share it. `Rows` are the jobs beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, ColumnRows, FloatArray, IntArray, is_even
from forerun.domain.graph import (
    BLOCK_INDEX,
    KIND_INDEX,
    KINDS,
    PHASE_INDEX,
    SHARD_INDEX,
    Block,
    Graph,
    OpColumns,
    OpKind,
    Phase,
    Shard,
)
from forerun.domain.hardware import Device
from forerun.domain.plan import ALL_REDUCE, SERVER_SYNCS
from forerun.domain.workload import ACTIVATION_BYTES, OPERAND_BYTES, Workload
from forerun.predictors.analytic.constants import Constants, framework_key

Owner = TypeVar("Owner")
T = TypeVar("T")


def _mask(*kinds: OpKind) -> BoolArray:
    return np.isin(KINDS, kinds)


IS_GROUPED = _mask(OpKind.CONV_GROUPED, OpKind.CONV_DEPTHWISE)
IS_CONV = IS_GROUPED | _mask(OpKind.CONV, OpKind.CONV_1X1)
IS_MATRIX = IS_CONV | _mask(OpKind.MATMUL, OpKind.ATTENTION, OpKind.RECURRENT)
IS_FUSED_AWAY = _mask(OpKind.ELEMENTWISE, OpKind.NORM, OpKind.BATCH_NORM, OpKind.SOFTMAX)
_IS_SCORE = _mask(OpKind.ATTENTION, OpKind.SOFTMAX)
_IS_CHEAP = _mask(OpKind.NORM, OpKind.ELEMENTWISE)
_MATMUL, _WIDENS = KIND_INDEX[OpKind.MATMUL], 10.0


@dataclass(frozen=True)
class Keys(ColumnRows):
    """k distinct ways of cutting one workload: float columns of shape (k,)."""

    micro_batch: FloatArray
    tp: FloatArray
    cp: FloatArray
    ep: FloatArray
    sequence_parallel: FloatArray
    recompute: NDArray[np.int64]
    channels_last: FloatArray


def cut_by_tensor(columns: OpColumns) -> BoolArray:
    """Return which operations tensor parallelism divides, (operations,)."""
    return np.isin(columns.shard, (SHARD_INDEX[Shard.TENSOR], SHARD_INDEX[Shard.EXPERT]))


def activation_cut(columns: OpColumns, keys: Keys) -> FloatArray:
    """Return what divides the activations of each operation, (k, operations)."""
    sequence = columns.shard == SHARD_INDEX[Shard.SEQUENCE]
    split = sequence & (keys.sequence_parallel[:, None] > 0)
    return np.where(cut_by_tensor(columns) | split, keys.tp[:, None], 1.0)


def is_weight_gradient(columns: OpColumns) -> BoolArray:
    """Return which backward operations have dims and write no activation, (operations,)."""
    products = _is_backward(columns) & (columns.dims[:, 0] > 0)
    return np.asarray(products & (columns.writes == 0))


def _is_backward(columns: OpColumns) -> BoolArray:
    return np.asarray(columns.phase == PHASE_INDEX[Phase.BACKWARD])


def selected(workload: Workload, columns: OpColumns) -> BoolArray:
    """Return which operations selective recomputation does again (Korthikanti et al. 2022).

    With fused attention: cheap ones, and products that widen a latent vector (DeepSeek-AI 2024, 3.2.3).
    """
    if not workload.fused_attention:
        return np.asarray(_IS_SCORE[columns.kind])
    _, n, k, groups = columns.dims.T
    widens = (columns.kind == _MATMUL) & (n > _WIDENS * k) & (k > 0) & (groups <= 1)
    return np.asarray(_IS_CHEAP[columns.kind] | widens)


# Selected layers are those that selective recomputation does again.
SLOTS = (
    "layer_forward", "layer_selected", "layer_backward",
    "embed_forward", "embed_backward", "head_forward", "head_backward",
)  # fmt: skip
SLOT_INDEX = {name: i for i, name in enumerate(SLOTS)}


def slots_of(workload: Workload, ops: OpColumns) -> NDArray[np.int64]:
    """Return which of `SLOTS` each operation belongs to, (operations,)."""
    slots = np.zeros(len(ops.kind), dtype=np.int64)
    for block in Block:
        for phase in (Phase.FORWARD, Phase.BACKWARD):
            ours = (ops.block == BLOCK_INDEX[block]) & (ops.phase == PHASE_INDEX[phase])
            slots[ours] = SLOT_INDEX[f"{block}_{phase}"]
    slots[selected(workload, ops) & (slots == 0)] = SLOT_INDEX["layer_selected"]
    return slots


_ATTENTION = KIND_INDEX[OpKind.ATTENTION]
_CONV = KIND_INDEX[OpKind.CONV]
_GROUPED = KIND_INDEX[OpKind.CONV_GROUPED]
# Of kernels that Winograd's algorithm takes: pixels; how many more pixels may be read than written,
# as images lose their edges; the fewest channels that are worth the transforms.
_WINOGRAD = ((9.0, 1.2, 12.0), (25.0, 2.0, 16.0))
# Its tiles of 4 x 4 pixels stand mostly empty on so small a map.
_SMALLEST_MAP = 4
_THIN = 256  # the largest usual rank of adapters
FEW_ROWS = 1000  # of which a column is made sooner than a view


@dataclass(frozen=True)
class FlatOps:
    """Operations of I instances: columns (E,) as `columns_of` makes them, kernels launched (I, slots).

    machines: R (device, workload) pairs that rates hang on; machine: of each instance, (I,).
    """

    columns: Mapping[str, NDArray[Any]]
    launched: FloatArray
    machines: tuple[tuple[Device, Workload], ...]
    machine: IntArray


def remember(owner: Owner, make: Callable[[Owner], T], key: Any = None) -> T:
    """Return make(owner), of a workload, cluster, graph or rows, made once for each key; kept as long as the owner."""
    facts, key = vars(owner).setdefault("_facts", {}), key or make
    if key not in facts:
        facts[key] = make(owner)
    found: T = facts[key]
    return found


def distinct_ops(workload: Workload) -> OpColumns:
    """Return the forward and backward operations with equal ones counted in `repeat`."""
    return remember(workload.graph, _distinct_ops)


def _distinct_ops(graph: Graph) -> OpColumns:
    columns = graph.columns
    keep = columns.phase != PHASE_INDEX[Phase.OPTIMIZER]
    names = ("kind", "phase", "block", "shard", "flops", "reads", "writes", "weights", "launches")
    matrix = np.column_stack([*(getattr(columns, n)[keep] for n in names), columns.dims[keep]])
    _, first, position = np.unique(matrix, axis=0, return_index=True, return_inverse=True)
    rows = np.flatnonzero(keep)[first]
    picked = {name: values[rows] for name, values in vars(columns).items()}
    picked["repeat"] = np.bincount(position.ravel(), columns.repeat[keep], len(first))
    return OpColumns(**picked)


def runs_of_equal(workloads: Sequence[Workload]) -> list[IntArray]:
    """Return the positions of each workload; equal workloads stand side by side."""
    starts = [i for i, w in enumerate(workloads) if i == 0 or w is not workloads[i - 1]]
    return np.split(np.arange(len(workloads)), starts[1:])


def flatten(
    workloads: Sequence[Workload], devices: Sequence[Device], keys: Keys, constants: Constants
) -> FlatOps:
    """Return the flat operations of I instances, (I,) keys; equal workloads stand side by side."""
    machines: dict[Any, tuple[int, tuple[Device, Workload]]] = {}
    machine = np.array([
        machines.setdefault(
            (id(d), w.precision, framework_key(w.framework), w.fused_attention),
            (len(machines), (d, w)),
        )[0]
        for d, w in zip(devices, workloads, strict=True)
    ])  # fmt: skip
    pieces = []
    for rows in runs_of_equal(workloads):
        workload = workloads[rows[0]]
        peaks = np.array([devices[i].flops(workload.precision) for i in rows])
        ops, some = distinct_ops(workload), keys.take(rows)
        pieces.append(columns_of(workload, ops, some, peaks, rows, machine[rows], constants))
    joined = {name: np.concatenate([p[name].ravel() for p in pieces]) for name in pieces[0]}
    shape = (len(workloads), len(SLOTS))
    kernels = joined["launches"] * joined["repeat"]
    launched = np.bincount(joined["slot"], kernels, shape[0] * shape[1]).astype(np.float64)
    pairs = tuple(pair for _, pair in machines.values())
    return FlatOps(joined, launched.reshape(shape), pairs, machine)


def columns_of(
    workload: Workload, ops: OpColumns, keys: Keys, peaks: FloatArray, rows: IntArray,
    machine: IntArray, constants: Constants,
) -> dict[str, NDArray[Any]]:  # fmt: skip
    """Return the flat columns, (k, operations), of a workload's operations on k instances."""
    samples = (keys.micro_batch / keys.cp)[:, None]
    size, operand = ACTIVATION_BYTES[workload.precision], OPERAND_BYTES[workload.precision]
    expert = ops.shard == SHARD_INDEX[Shard.EXPERT]
    tp = np.where(cut_by_tensor(ops), keys.tp[:, None], 1.0)
    work, weights = activation_cut(ops, keys), tp * np.where(expert, keys.ep[:, None], 1.0)
    m, n, k, copies = product_sizes(ops, keys)
    is_product = (ops.dims[:, 0] > 0) & IS_MATRIX[ops.kind]
    # A weight gradient's small output is filled by splitting its long reduction.
    split = np.where(is_weight_gradient(ops), np.maximum(k / constants.split_reduction, 1.0), 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        tiles = 1.0 / m + 1.0 / n + 0.5 / k
        flight = 1.0 / (m * n * copies * split)
    # Grouped convolutions are thin by nature: their class efficiency already says so.
    tiles = np.where(is_product & ~IS_GROUPED[ops.kind], tiles, 0.0)
    nhwc = IS_CONV[ops.kind] & (keys.channels_last[:, None] > 0) & (size < 4.0)
    grouped = ops.kind == _GROUPED
    elements = (ops.reads + ops.writes) * samples / work
    # Recipes of 8 and 4 bits keep the logits' product in 16, and adapters. Inputs and gradients of the others
    # are read, cast and written in both orders, for the product and for a gradient of weights.
    narrow = (ops.kind == _MATMUL) & (operand < size) & (ops.dims[:, 0] > 0)
    head = narrow & (ops.block == BLOCK_INDEX[Block.HEAD])
    wide = narrow & ~head & (ops.dims[:, 1:3].min(axis=1) > _THIN)
    frozen = workload.graph.frozen > 0 and not (wide & is_weight_gradient(ops)).any()
    orders = 1.0 if frozen else 2.0
    cast = np.where(wide & ~is_weight_gradient(ops), size + orders * operand, 0.0)
    alone = constants.framework(workload.framework).expert_kernels
    loops = np.where(expert & is_product, alone * np.maximum(copies - 1.0, 0.0), 0.0)

    def each(values: NDArray[Any]) -> NDArray[Any]:
        return np.broadcast_to(values, work.shape)

    # Output channels a group over 16, up to 64, of grouped convolutions, else 1.
    data_gradient = _is_backward(ops) & ~is_weight_gradient(ops)
    channels = np.where(data_gradient, ops.dims[:, 2], ops.dims[:, 1])
    width = np.where(ops.kind == _GROUPED, np.clip(channels, 1.0, 64.0) / 16.0, 1.0)
    return {
        # Position in the flattened (machines, kinds) table of rates.
        "rate": machine[:, None] * len(KINDS) + ops.kind,
        "flops": ops.flops * samples / work,
        "traffic": elements * size,  # bytes
        "weights": ops.weights * np.where(head, size, max(operand, 1.0)) / weights,
        "cast": cast * ops.reads * samples / work,
        "half_head": each(head),
        "launches": each(ops.launches),
        "loops": loops * (1.0 + (cast > 0)),  # other experts' products, and their casts
        "repeat": each(ops.repeat),
        "tiles": tiles,
        # The device's FLOP/s over output elements in flight.
        "waves": peaks[:, None] * np.where(is_product, flight, 0.0),
        "width": np.where(nhwc & grouped, 1.0, width),
        "moved": np.where(IS_MATRIX[ops.kind], 0.0, elements),
        "direct": each(_is_direct(ops)),
        "experts": expert & (keys.ep[:, None] > 1),
        "half_conv": nhwc & ~grouped,
        "half_grouped": nhwc & grouped,
        "slot": rows[:, None] * len(SLOTS) + slots_of(workload, ops),
    }


def product_sizes(
    ops: OpColumns, keys: Keys
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return m, n, k and the number of matrix products as they are cut, (k, operations) each."""
    m, n, k, groups = ops.dims.T
    samples = (keys.micro_batch / keys.cp)[:, None]
    attention, reduction = ops.kind == _ATTENTION, is_weight_gradient(ops)
    tp = np.where(cut_by_tensor(ops), keys.tp[:, None], 1.0)
    # A rank with fewer experts sees more tokens of each: those of all ranks that share them out.
    gathered = np.where(ops.shard == SHARD_INDEX[Shard.EXPERT], keys.ep[:, None], 1.0)
    gathered = np.minimum(gathered, np.maximum(groups, 1.0))
    samples = samples * np.where(attention, 1.0, gathered)
    cut_n = np.where(reduction, n >= m, n > k) & ~attention
    cut_other = ~cut_n & ~attention
    m = m * np.where(reduction | attention, 1.0, samples)
    return (
        m / np.where(cut_other & reduction, tp, 1.0), n / np.where(cut_n, tp, 1.0),
        k * np.where(reduction, samples, 1.0) / np.where(cut_other & ~reduction, tp, 1.0),
        groups * np.where(attention, samples / tp, 1.0) / gathered,
    )  # fmt: skip


def convolution_reads(ops: OpColumns) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return (kernel pixels x input channels, output pixels, pixels read for each written), (ops,)."""
    m, n, k, _ = ops.dims.T
    gradient = is_weight_gradient(ops)
    data = _is_backward(ops) & ~gradient
    depth = np.where(gradient, m, np.where(data, n, k))
    pixels = np.where(gradient, k, m)
    source = np.where(gradient, ops.reads - k * n, np.where(data, ops.writes, ops.reads))
    with np.errstate(divide="ignore", invalid="ignore"):
        return depth, pixels, source / (depth * pixels)


def _is_direct(ops: OpColumns) -> BoolArray:
    """Return which dense convolutions are not at stride 1 with 3 x 3 or 5 x 5 kernels, Winograd's, (ops,)."""
    depth, pixels, ratio = convolution_reads(ops)
    winograd = np.zeros(len(depth), dtype=bool)
    for taps, most, channels in _WINOGRAD:
        kernel = (depth % taps == 0) & (depth >= taps * channels) & (pixels > _SMALLEST_MAP)
        winograd |= kernel & (ratio * taps > 0.95) & (ratio * taps < most)
    return np.asarray((ops.kind == _CONV) & (ops.dims[:, 0] > 0) & ~winograd)


def total(columns: Iterable[FloatArray]) -> FloatArray:
    """Return the sum of columns, (n,) or (1,) each."""
    first, *others = columns
    result = np.array(first, dtype=np.float64)
    for column in others:
        if len(column) > len(result):
            result = result + column
        else:
            result += column
    return result


def spread_over(values: FloatArray, index: NDArray[Any]) -> FloatArray:
    """Return values of few owners as a column of their rows, (n,)."""
    if len(index) > FEW_ROWS and (len(values) == 1 or is_even(index)):
        return _repeated(values[index[:1]], len(index))
    return np.asarray(values[index])


def thin(index: NDArray[Any]) -> NDArray[Any]:
    """Return an index, (n,), as a view of one number where all are equal: `spread_over` sees that at once."""
    return _repeated(index[:1].copy(), len(index)) if is_even(index) else index


def _repeated(one: NDArray[Any], n: int) -> NDArray[Any]:
    """Return one value, (1,), n times, without memory of its own; np.broadcast_to takes ten times as long."""
    one.flags.writeable = False  # who wrote into one row would write into all
    return np.ndarray(n, one.dtype, one, strides=(0,))


def narrow(columns: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Return columns of which those that hold one value are (1,)."""
    return {name: v[:1] if is_even(v) else v for name, v in columns.items()}


@dataclass(frozen=True)
class Rows(ColumnRows):
    """n resolved jobs as float columns (n,) by name.

    plan: degrees; key: what `operations.instance_costs` and `memory.held_bytes` return; work, node:
    facts of workload and cluster; software: the framework's constants.
    """

    plan: dict[str, FloatArray]
    key: dict[str, FloatArray]
    work: dict[str, FloatArray]
    node: dict[str, FloatArray]
    software: dict[str, FloatArray]
    sync: NDArray[np.int32]

    @cached_property
    def served(self) -> BoolArray:
        """Which rows pass servers, (n,), or (1,) where none does."""
        found = np.isin(self.sync, SERVER_SYNCS)
        return found if found.any() else found[:1]

    @property
    def offloads(self) -> bool:
        """Whether any row keeps states, weights or activations elsewhere."""
        return "offload" in self.plan

    @property
    def narrow(self) -> Rows:
        """The same with columns that hold one value as (1,): less to compute.

        Not where rows are probed, or reduce in other ways: their formulas stack columns.
        """
        if self.has_probed or (self.sync != ALL_REDUCE).any():
            return self
        plan, key, work, node, software = map(
            narrow, (self.plan, self.key, self.work, self.node, self.software)
        )
        return Rows(plan, key, work, node, software, self.sync)

    @property
    def has_probed(self) -> bool:
        """Whether any row stands on a probed device."""
        return "measured" in self.node

    @cached_property
    def micro_batches(self) -> FloatArray:
        """Forward-backward passes of a device in one step, at least 1."""
        plan = self.plan
        return np.maximum(plan["global_batch"] / (plan["micro_batch"] * plan["dp"]), 1.0)

    @cached_property
    def layer_shares(self) -> tuple[FloatArray, FloatArray]:
        """The fullest (first) and the last stage's share of the layers, (n,), evenly or by weights.

        Where layers do not divide, the last stage has one less: the loss counts as a layer.
        """
        work, pp, vpp = self.work, self.plan["pp"], self.plan["vpp"]
        layers = np.maximum(work["layers"], 1.0)
        each = np.ceil(layers / (pp * vpp)) * vpp
        even = np.minimum(each / layers, 1.0)
        last_even = even - (pp * each > layers) * (pp > 1) / layers
        counted = (self.software["counts_head"] > 0) & (pp > 1) & (vpp == 1)
        if not counted.any():
            return even, last_even
        one = (work["layer_tensor"] + work["layer_whole"] + work["layer_expert"]) / layers
        head = work["head_tensor"] + work["head_whole"] + work["head_copied"]
        dealt = layers + head / np.maximum(one, 1.0)
        first = np.minimum(np.ceil(dealt / pp), layers) / layers
        last = 1.0 - np.minimum(np.ceil(dealt * (pp - 1.0) / pp), layers) / layers
        return np.where(counted, first, even), np.where(counted, last, last_even)

    @cached_property
    def stage_layers(self) -> FloatArray:
        """Layers of the fullest stage, at least 1, (n,)."""
        return np.maximum(self.work["layers"] * self.layer_shares[0], 1.0)

    @cached_property
    def in_flight(self) -> FloatArray:
        """Micro-batches whose activations stage 0 holds at once under 1F1B: no more than there are."""
        pp, vpp = self.plan["pp"], self.plan["vpp"]
        factor = np.where(vpp > 1, 1.0 + (pp - 1.0) / (pp * vpp), 1.0)
        return np.minimum(self.micro_batches, pp * factor)

    @cached_property
    def expert_spread(self) -> FloatArray:
        """Ranks over which one copy of the experts is cut: ep x tp, or a stage's where less."""
        plan = self.plan
        return np.minimum(plan["ep"] * plan["tp"], plan["dp"] * plan["cp"] * plan["tp"])

    @cached_property
    def local_params(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Parameters before ZeRO: (dense on the first, on the last stage, experts on any), (n,)."""
        work, (share, share_last), tp = self.work, self.layer_shares, self.plan["tp"]
        one_stage = self.plan["pp"] == 1
        layers, embed, head = (
            work[f"{block}_tensor"] / tp + work[f"{block}_whole"]
            for block in ("layer", "embed", "head")
        )
        first = layers * share + embed + np.where(one_stage, head, 0.0)
        last = layers * share_last + head + np.where(one_stage, embed, work["head_copied"] / tp)
        experts = work["layer_expert"] * share + work["head_expert"]
        return first, last, experts / self.expert_spread

    @property
    def one_layer(self) -> FloatArray:
        """Parameters of one layer on a device before ZeRO, (n,)."""
        work = self.work
        dense = work["layer_tensor"] / self.plan["tp"] + work["layer_whole"]
        whole = dense + work["layer_expert"] / self.expert_spread
        return np.asarray(whole / np.maximum(work["layers"], 1.0))
