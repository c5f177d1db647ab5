"""Measured operations: what a graph's operations cost on a device that a probe has measured.

Where a device carries curves (`domain.measured`), each operation is priced by the curve of its own
name, else of its class and phase, at its own size; no efficiency is assumed. Calls of the framework
around it are added. What remains for calibration is one factor for products and one for the rest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.domain.graph import KINDS, PHASE_INDEX, OpColumns, OpKind, Phase
from forerun.domain.hardware import Device
from forerun.domain.measured import Measured
from forerun.domain.workload import ACTIVATION_BYTES, Workload
from forerun.predictors.analytic.buckets import bucket_columns
from forerun.predictors.analytic.keys import (
    IS_GROUPED,
    IS_MATRIX,
    Keys,
    activation_cut,
    cut_by_tensor,
    is_weight_gradient,
)
from forerun.predictors.analytic.measured_facts import tensors_of
from forerun.predictors.analytic.slots import SLOTS, slots_of

_NUMBER = re.compile(r"_\d+$")
_ANY_PRODUCT = "matmul.forward"  # stands for products whose own curve was not measured
_GROUP_WIDTH, _KERNEL_AREA = 16.0, 9.0
# Kernels of fused attention skip whole blocks of what a causal mask hides, never less.
_BLOCK = 64.0


@dataclass(frozen=True)
class MeasuredOps:
    """Seconds of measured instances by slot, (I, slots): products, and all else with the calls.

    measured: (I,) which instances stand on a measured device; columns: more of them, each (I,), see
    `buckets`.
    """

    measured: NDArray[np.bool_]
    products: FloatArray
    others: FloatArray
    columns: Mapping[str, FloatArray]

    def seconds(self, products: FloatArray, others: FloatArray) -> FloatArray:
        """Return device seconds by slot, (I, slots); rates over those measured, each (I,)."""
        return self.products / products[:, None] + self.others / others[:, None]


def measured_ops(
    workloads: list[Workload], devices: list[Device], keys: Keys
) -> MeasuredOps | None:
    """Return the measured operations of I instances, None where no device was measured.

    A precision in which products or what moves elements were not measured is left to data sheets.
    """
    known = np.array(
        [
            device.measured is not None and _covers(device.measured, workload.precision)
            for workload, device in zip(workloads, devices, strict=True)
        ]
    )
    if not known.any():
        return None
    shape = (len(known), len(SLOTS))
    products, others = np.zeros(shape), np.zeros(shape)
    columns = bucket_columns((), np.zeros((shape[0], 0)))
    pairs: dict[tuple[int, int], list[int]] = {}
    for i in np.flatnonzero(known):
        pairs.setdefault((id(workloads[i]), id(devices[i])), []).append(int(i))
    for rows in pairs.values():
        workload, device = workloads[rows[0]], devices[rows[0]]
        assert device.measured is not None
        some = keys.take(np.array(rows))
        products[rows], others[rows], buckets = _one(workload, device.measured, some)
        for name, values in buckets.items():
            columns[name][rows] = values
    return MeasuredOps(known, products, others, columns)


def _covers(measured: Measured, precision: str) -> bool:
    """Whether curves price any product and any operation that moves elements in a precision."""
    return None not in (
        measured.curve(precision, (_ANY_PRODUCT,)), measured.curve(precision, ("elementwise",))
    )  # fmt: skip


def _one(
    workload: Workload, measured: Measured, keys: Keys
) -> tuple[FloatArray, FloatArray, dict[str, FloatArray]]:
    """Return seconds of (products, all else) by slot, each (k, slots), and the buckets."""
    ops = workload.graph.columns
    sizes = _sizes(ops, keys)
    slots = slots_of(workload, ops)
    products, others = (np.zeros((len(keys), len(SLOTS))) for _ in range(2))
    backward = ops.phase == PHASE_INDEX[Phase.BACKWARD]
    optimizer = ops.phase == PHASE_INDEX[Phase.OPTIMIZER]
    cold = _cold_seconds(workload, measured, keys, sizes)
    each = np.zeros(sizes.moved.shape)
    for i, op in enumerate(workload.graph.ops):
        if optimizer[i]:
            continue
        seconds = _op_seconds(workload, measured, i, sizes) + cold[:, i]
        call = measured.backward_call_seconds if backward[i] else measured.forward_call_seconds
        each[:, i] = seconds + call
        into = products if IS_MATRIX[ops.kind[i]] else others
        into[:, slots[i]] += each[:, i] * op.repeat
        if op.params > 0:  # its gradient is kept when backward has come there
            there = SLOTS.index(SLOTS[slots[i]].replace("selected", "backward")
                                .replace("forward", "backward"))  # fmt: skip
            others[:, there] += tensors_of(op) * measured.gradient_seconds * op.repeat
    return products, others, bucket_columns(workload.graph.ops, each)


@dataclass(frozen=True)
class Sizes:
    """Sizes of n operations under k keys, (k, n): of the product, and elements that are moved."""

    rows: FloatArray
    columns: FloatArray
    depth: FloatArray
    copies: FloatArray
    moved: FloatArray
    flops: FloatArray


def _sizes(ops: OpColumns, keys: Keys) -> Sizes:
    """Return the sizes of operations as they are cut; see `flat._shapes` for what tp divides."""
    m, n, k, groups = (ops.dims[:, i] for i in range(4))
    samples = (keys.micro_batch / keys.cp)[:, None]
    attention = ops.kind == KINDS.index(OpKind.ATTENTION)
    reduction = is_weight_gradient(ops)
    tp = np.where(cut_by_tensor(ops), keys.tp[:, None], 1.0)
    cut_n = np.where(reduction, n >= m, n > k) & ~attention
    cut_other = ~cut_n & ~attention
    work = activation_cut(ops, keys)
    weights = ops.weights / tp
    return Sizes(
        rows=m * np.where(reduction | attention, 1.0, samples)
        / np.where(cut_other & reduction, tp, 1.0),
        columns=n / np.where(cut_n, tp, 1.0),
        depth=k * np.where(reduction, samples, 1.0) / np.where(cut_other & ~reduction, tp, 1.0),
        copies=groups * np.where(attention, samples / tp, 1.0),
        moved=(ops.reads + ops.writes) * samples / work + weights,
        flops=ops.flops * samples / work,
    )  # fmt: skip


def _cold_seconds(workload: Workload, measured: Measured, keys: Keys, sizes: Sizes) -> FloatArray:
    """Return seconds in which operations wait for what is not in the caches any more, (k, n).

    Curves are measured on data that the call before has touched. In a step, weights, what forward
    keeps for backward, and the memory that forward's outputs are given, were last touched a step
    ago: they come from as far away as the step's own footprint reaches.
    """
    ops = workload.graph.columns
    curve = measured.curve(workload.precision, ("memory",))
    if curve is None:
        return np.zeros_like(sizes.moved)
    size = ACTIVATION_BYTES[workload.precision]
    samples = (keys.micro_batch / keys.cp)[:, None]
    saved = (ops.saved * ops.repeat).sum() * samples
    footprint = size * (saved + 2.0 * workload.params / keys.tp[:, None])
    least, most = curve.axes[0][0], curve.axes[0][-1]
    far = curve.at(np.clip(footprint, least, most))
    near = curve.at(np.clip(size * sizes.moved, least, most))
    backward = ops.phase == PHASE_INDEX[Phase.BACKWARD]
    gone = np.where(backward, 0.5 * ops.reads, ops.writes) * samples + ops.weights
    # A curve's element is read and written.
    return np.maximum(far - near, 0.0) * 0.5 * gone


def _op_seconds(workload: Workload, measured: Measured, i: int, sizes: Sizes) -> FloatArray:
    """Return seconds of operation i of a workload under k keys, (k,)."""
    op, kind = workload.graph.ops[i], workload.graph.columns.kind[i]
    name = _NUMBER.sub("", op.name.rpartition(".")[2])
    phase = "forward" if op.phase is Phase.FORWARD else "backward"
    moved = sizes.moved[:, i]
    if IS_MATRIX[kind] and op.dims:
        return _product_seconds(workload, measured, i, sizes)
    if op.kind is OpKind.COPY and op.reads + op.writes <= 0:
        moved = np.maximum(moved, 1.0)
    curve = measured.curve(workload.precision, (name, f"{op.kind}.{phase}", str(op.kind)))
    if curve is None:
        curve = measured.curve(workload.precision, ("elementwise",))
    assert curve is not None  # `_covers`
    if len(curve.axes) == 1:
        return curve.at(moved)
    width = np.full(len(moved), float(op.shape[-1]) if op.shape else curve.axes[1][-1])
    return curve.at(moved, width)


def _product_seconds(workload: Workload, measured: Measured, i: int, sizes: Sizes) -> FloatArray:
    """Return seconds of product i under k keys, (k,)."""
    op, ops = workload.graph.ops[i], workload.graph.columns
    rows, columns, depth = sizes.rows[:, i], sizes.columns[:, i], sizes.depth[:, i]
    copies, kind = sizes.copies[:, i], op.kind
    weights = bool(is_weight_gradient(ops)[i])
    role = "wgrad" if weights else "forward" if op.phase is Phase.FORWARD else "dgrad"
    if kind is OpKind.ATTENTION:
        curve = measured.curve(workload.precision, (f"attention.{_phase(op.phase)}",))
        if curve is not None:
            whole = (4.0 if op.phase is Phase.FORWARD else 10.0) * rows * columns * depth * copies
            share = np.clip(sizes.flops[:, i] / whole, 0.0, 1.0)
            share = share + (1.0 - share) * np.minimum(_BLOCK / rows, 1.0)
            return curve.at(rows, depth, copies) * share
    if IS_GROUPED[ops.kind[i]]:
        curve = measured.curve(workload.precision, (f"{kind}.{role}",))
        if curve is not None:
            pixels = depth if weights else rows
            taken = _flops_of_group(kind, pixels, copies)
            return curve.at(pixels, copies) * sizes.flops[:, i] / taken
    names = (f"{kind}.{role}", f"matmul.{role}", _ANY_PRODUCT)
    curve = measured.curve(workload.precision, names)
    assert curve is not None  # `_covers`
    # Copies of a product are one with more rows.
    return curve.at(rows * copies, columns, depth)


def _flops_of_group(kind: OpKind, pixels: FloatArray, groups: FloatArray) -> FloatArray:
    """Return the FLOPs of the grouped convolutions that were measured, at these sizes."""
    width = 1.0 if kind is OpKind.CONV_DEPTHWISE else _GROUP_WIDTH
    return 2.0 * _KERNEL_AREA * pixels * groups * width * width


def _phase(phase: Phase) -> str:
    return "forward" if phase is Phase.FORWARD else "backward"
