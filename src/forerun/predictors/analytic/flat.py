"""Flat operations: every operation of every instance of many jobs in one set of columns.

An *instance* is one workload on one kind of node cut by one key; its graph is costed once for all
jobs that share it. What no constant moves is worked out here, once; `operations` then prices all
instances in a few array operations, so that calibration can ask again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.domain.graph import (
    KIND_INDEX,
    KINDS,
    PHASE_INDEX,
    SHARD_INDEX,
    OpColumns,
    OpKind,
    Phase,
    Shard,
)
from forerun.domain.hardware import Device
from forerun.domain.workload import ACTIVATION_BYTES, OPERAND_BYTES, Workload
from forerun.predictors.analytic.constants import Constants, framework_key
from forerun.predictors.analytic.keys import (
    IS_CONV,
    IS_GROUPED,
    IS_MATRIX,
    Keys,
    activation_cut,
    cut_by_tensor,
    is_weight_gradient,
)
from forerun.predictors.analytic.slots import SLOTS, slots_of

_ATTENTION = KIND_INDEX[OpKind.ATTENTION]
_CONV = KIND_INDEX[OpKind.CONV]
_GROUPED = KIND_INDEX[OpKind.CONV_GROUPED]
# Of kernels that Winograd's algorithm takes: pixels; how many more pixels may be read than written,
# as images lose their edges; the fewest channels that are worth the transforms.
_WINOGRAD = ((9.0, 1.2, 12.0), (25.0, 2.0, 16.0))
# Its tiles of 4 x 4 pixels stand mostly empty on so small a map.
_SMALLEST_MAP = 4


@dataclass(frozen=True)
class FlatOps:
    """E operations of I instances: columns of shape (E,) unless said.

    rate: position in the (R, kinds) table of rates, flattened; flops, traffic (bytes of
    activations before fusion), weights (bytes): of one copy after every cut; launches, repeat.
    tiles: 1/m + 1/n + 1/2k of a matrix product, waves: the device's FLOP/s over output elements in
    flight; width: channels of a group over 16, up to 64, of grouped convolutions, else 1; moved:
    elements of what is no product, else 0; direct: dense convolutions that Winograd's algorithm
    cannot do; experts, half_conv, half_grouped, gradients: which
    operations are spread over experts' ranks, are 16-bit convolutions in nhwc (grouped ones
    apart), or are weight gradients that LoRA leaves out; slot: instance x slot. launched: (I, slots) kernels. machines: the R (device, workload) pairs that rates hang on.
    """

    rate: IntArray
    flops: FloatArray
    traffic: FloatArray
    weights: FloatArray
    launches: FloatArray
    repeat: FloatArray
    tiles: FloatArray
    waves: FloatArray
    width: FloatArray
    moved: FloatArray
    direct: NDArray[np.bool_]
    experts: NDArray[np.bool_]
    half_conv: NDArray[np.bool_]
    half_grouped: NDArray[np.bool_]
    gradients: NDArray[np.bool_]
    slot: IntArray
    launched: FloatArray
    machines: tuple[tuple[Device, Workload], ...]
    machine: IntArray

    def part(self, index: IntArray) -> FlatOps:
        """Return the operations at the given positions; instances and machines stay."""
        kept = ("launched", "machines", "machine")
        columns = {name: v if name in kept else v[index] for name, v in vars(self).items()}
        return FlatOps(**columns)


def distinct_ops(workload: Workload) -> OpColumns:
    """Return the forward and backward operations with equal ones counted in `repeat`."""
    columns = workload.graph.columns
    keep = columns.phase != PHASE_INDEX[Phase.OPTIMIZER]
    names = ("kind", "phase", "block", "shard", "flops", "reads", "writes", "weights", "launches")
    matrix = np.column_stack([*(getattr(columns, n)[keep] for n in names), columns.dims[keep]])
    code = matrix @ np.random.default_rng(0).uniform(1.0, 2.0, matrix.shape[1])
    _, first, position = np.unique(code, return_index=True, return_inverse=True)
    if not np.array_equal(matrix[first][position], matrix):  # two kinds of operation, one code
        first = position = np.arange(len(matrix))
    rows = np.flatnonzero(keep)[first]
    picked = {name: getattr(columns, name)[rows] for name in OpColumns.__dataclass_fields__}
    picked["repeat"] = np.bincount(position, columns.repeat[keep], len(first))
    return OpColumns(**picked)


def flatten(
    workloads: Sequence[Workload],
    devices: Sequence[Device],
    keys: Keys,
    ops_of: Callable[[Workload], OpColumns],
    constants: Constants,
) -> FlatOps:
    """Return the flat operations of I instances.

    Args:
        workloads, devices: of each instance, equal workloads side by side.
        keys: how each is cut, (I,).
        ops_of: `distinct_ops`, kept between calls.
        constants: for those that no fit moves.
    """
    count = len(workloads)
    starts = [i for i in range(count) if i == 0 or workloads[i] is not workloads[i - 1]]
    pieces: list[dict[str, Any]] = []
    machines: dict[Any, int] = {}
    pairs: list[tuple[Device, Workload]] = []
    machine = np.empty(count, dtype=np.int64)
    for i, (device, workload) in enumerate(zip(devices, workloads, strict=True)):
        name = (id(device), workload.precision, framework_key(workload.framework),
                workload.fused_attention)  # fmt: skip
        if name not in machines:
            machines[name] = len(pairs)
            pairs.append((device, workload))
        machine[i] = machines[name]
    for start, end in zip(starts, [*starts[1:], count], strict=True):
        rows = np.arange(start, end)
        peaks = np.array([d.flops(workloads[start].precision) for d in devices[start:end]])
        ops = ops_of(workloads[start])
        pieces.append(_one(workloads[start], ops, keys.take(rows), peaks, rows, machine, constants))
    joined = {name: np.concatenate([p[name].ravel() for p in pieces]) for name in pieces[0]}
    kernels = joined["launches"] * joined["repeat"]
    launched = np.bincount(joined["slot"], kernels, count * len(SLOTS)).astype(np.float64)
    launched = launched.reshape(count, len(SLOTS))
    return FlatOps(**joined, launched=launched, machines=tuple(pairs), machine=machine)


def _one(
    workload: Workload, ops: OpColumns, keys: Keys, peaks: FloatArray, rows: IntArray,
    machine: IntArray, constants: Constants,
) -> dict[str, NDArray[Any]]:  # fmt: skip
    """Return the flat columns of one workload's instances, each (k, operations)."""
    k = len(rows)
    samples = (keys.micro_batch / keys.cp)[:, None]
    work, weights = _cut(ops, keys)
    size, operand = ACTIVATION_BYTES[workload.precision], OPERAND_BYTES[workload.precision]
    tiles, flight = _shapes(ops, keys, constants)
    expert = (ops.shard == SHARD_INDEX[Shard.EXPERT]) & (keys.ep[:, None] > 1)
    nhwc = IS_CONV[ops.kind] & (keys.channels_last[:, None] > 0) & (size < 4.0)
    grouped = ops.kind == _GROUPED
    elements = (ops.reads + ops.writes) * samples / work
    lora = is_weight_gradient(ops) & (workload.task == "lora")

    def each(values: NDArray[Any]) -> NDArray[Any]:
        return np.broadcast_to(values, (k, len(ops.kind)))

    return {
        "rate": machine[rows][:, None] * len(KINDS) + ops.kind,
        "flops": ops.flops * samples / work,
        "traffic": elements * size,
        "weights": ops.weights * max(operand, 1.0) / weights,
        "launches": each(ops.launches),
        "repeat": each(ops.repeat),
        "tiles": tiles,
        "waves": peaks[:, None] * flight,
        "width": np.where(nhwc & grouped, 1.0, _group_width(ops)),
        "moved": np.where(IS_MATRIX[ops.kind], 0.0, elements),
        "direct": each(_is_direct(ops)),
        "experts": expert,
        "half_conv": nhwc & ~grouped,
        "half_grouped": nhwc & grouped,
        "gradients": each(lora),
        "slot": rows[:, None] * len(SLOTS) + slots_of(workload, ops),
    }


def _group_width(ops: OpColumns) -> FloatArray:
    """Return output channels a group over 16, up to 64, of grouped convolutions, else 1, (ops,)."""
    data_gradient = (ops.phase == PHASE_INDEX[Phase.BACKWARD]) & ~is_weight_gradient(ops)
    channels = np.where(data_gradient, ops.dims[:, 2], ops.dims[:, 1])
    return np.where(ops.kind == _GROUPED, np.clip(channels, 1.0, 64.0) / 16.0, 1.0)


def _is_direct(ops: OpColumns) -> NDArray[np.bool_]:
    """Return which dense convolutions are neither 3 x 3 nor 5 x 5 at stride 1, (operations,).

    Winograd's algorithm and Fourier transforms do these two with fewer products (cuDNN's
    WINOGRAD_NONFUSED takes kernels of 3 and of 5). Such a one has a kernel of 9 or 25 times its
    input channels, and reads (nearly) as many pixels as it writes: more than a few.
    """
    m, n, k, _ = ops.dims.T
    gradient = is_weight_gradient(ops)
    data = (ops.phase == PHASE_INDEX[Phase.BACKWARD]) & ~gradient
    depth = np.where(gradient, m, np.where(data, n, k))
    pixels = np.where(gradient, k, m)
    source = np.where(gradient, ops.reads - k * n, np.where(data, ops.writes, ops.reads))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = source / (depth * pixels)
    winograd = np.zeros(len(m), dtype=bool)
    for taps, most, channels in _WINOGRAD:
        kernel = (depth % taps == 0) & (depth >= taps * channels) & (pixels > _SMALLEST_MAP)
        winograd |= kernel & (ratio * taps > 0.95) & (ratio * taps < most)
    return np.asarray((ops.kind == _CONV) & (m > 0) & ~winograd)


def _cut(ops: OpColumns, keys: Keys) -> tuple[FloatArray, FloatArray]:
    """Return what divides (FLOPs and activation traffic, weights) of each operation, (k, ops)."""
    expert = ops.shard == SHARD_INDEX[Shard.EXPERT]
    ep = np.where(expert, keys.ep[:, None], 1.0)
    return activation_cut(ops, keys), np.where(cut_by_tensor(ops), keys.tp[:, None], 1.0) * ep


def _shapes(ops: OpColumns, keys: Keys, constants: Constants) -> tuple[FloatArray, FloatArray]:
    """Return (1/m + 1/n + 1/2k, 1/elements of output in flight) of matrix products, (k, ops).

    0 for what is no matrix product. Grouped convolutions are thin by nature: their class
    efficiency already says so.
    """
    m, n, k, groups = (ops.dims[:, i] for i in range(4))
    is_product = (m > 0) & IS_MATRIX[ops.kind]
    samples = keys.micro_batch[:, None] / keys.cp[:, None]
    attention = ops.kind == _ATTENTION
    reduction = is_weight_gradient(ops)
    tp = np.where(cut_by_tensor(ops), keys.tp[:, None], 1.0)
    # tp cuts the larger of a weight matrix's sides; in a weight gradient those are m and n.
    cut_n = np.where(reduction, n >= m, n > k) & ~attention
    cut_other = ~cut_n & ~attention
    rows = m * np.where(reduction | attention, 1.0, samples)
    rows = rows / np.where(cut_other & reduction, tp, 1.0)
    cols = n / np.where(cut_n, tp, 1.0)
    inner = k * np.where(reduction, samples, 1.0) / np.where(cut_other & ~reduction, tp, 1.0)
    copies = groups * np.where(attention, samples / tp, 1.0)
    # A weight gradient's small output is filled by splitting its long reduction.
    split = np.where(reduction, np.maximum(inner / constants.split_reduction, 1.0), 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        tiles = 1.0 / rows + 1.0 / cols + 0.5 / inner
        flight = 1.0 / (rows * cols * copies * split)
    grouped = IS_GROUPED[ops.kind]
    return np.where(is_product & ~grouped, tiles, 0.0), np.where(is_product, flight, 0.0)
