"""Graph and Op: one training step as operations with shapes, FLOPs, elements moved and parameters.

For one sample at the graph's own size; weights do not grow with the batch, repeated layers stand once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray

CodeArray = NDArray[np.int16]


class OpKind(StrEnum):
    """Operation classes; each has its own efficiency curve on a device."""

    MATMUL = "matmul"
    CONV = "conv"
    CONV_1X1 = "conv_1x1"
    CONV_GROUPED = "conv_grouped"
    CONV_DEPTHWISE = "conv_depthwise"
    ATTENTION = "attention"
    RECURRENT = "recurrent"
    NORM = "norm"
    BATCH_NORM = "batch_norm"
    ELEMENTWISE = "elementwise"
    SOFTMAX = "softmax"
    POOL = "pool"
    REDUCE = "reduce"
    EMBEDDING = "embedding"
    COPY = "copy"
    OPTIMIZER = "optimizer"
    UNKNOWN = "unknown"


KINDS: tuple[OpKind, ...] = tuple(OpKind)
KIND_INDEX: Mapping[str, int] = {kind: i for i, kind in enumerate(KINDS)}


class Phase(StrEnum):
    """The part of a training step that an operation belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


PHASE_INDEX: Mapping[str, int] = {phase: i for i, phase in enumerate(Phase)}


class Block(StrEnum):
    """Where in a pipeline an operation may stand: the entry, a repeated layer, or the exit."""

    EMBED = "embed"
    LAYER = "layer"
    HEAD = "head"


BLOCK_INDEX: Mapping[str, int] = {block: i for i, block in enumerate(Block)}


class Shard(StrEnum):
    """What divides an operation.

    TENSOR: tp divides work, activations and weights. SEQUENCE: tp divides work and activations with
    sequence parallelism. EXPERT: like TENSOR, and ep divides weights too.
    """

    NONE = "none"
    TENSOR = "tensor"
    SEQUENCE = "sequence"
    EXPERT = "expert"


SHARD_INDEX: Mapping[str, int] = {shard: i for i, shard in enumerate(Shard)}


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of a training step, for one sample.

    Attributes:
        flops: floating-point operations (a multiply-add is two).
        reads, writes: activation elements (not bytes).
        weights: weight elements read, whatever the batch.
        params: parameters owned (stated once, on the forward operation).
        dims: (m, n, k, groups) of the matrix product, or (); m grows with the batch (for attention, groups
            does). Of a convolution: output pixels, and per group output channels, input channels x kernel area.
        saved: activation elements kept from forward to backward.
        launches: device kernels started.
        repeat: identical copies that the step holds.
        inputs: positions of the operations whose outputs it reads.
    """

    name: str
    kind: OpKind
    phase: Phase = Phase.FORWARD
    flops: float = 0.0
    reads: float = 0.0
    writes: float = 0.0
    weights: float = 0.0
    params: float = 0.0
    shape: tuple[int, ...] = ()
    dims: tuple[int, ...] = ()
    saved: float = 0.0
    launches: int = 1
    repeat: int = 1
    block: Block = Block.LAYER
    shard: Shard = Shard.NONE
    inputs: tuple[int, ...] = ()


@dataclass(frozen=True)
class OpColumns:
    """The operations of a graph as columns of length n; `repeat` is a column, not applied."""

    kind: CodeArray
    phase: CodeArray
    block: CodeArray
    shard: CodeArray
    flops: FloatArray
    reads: FloatArray
    writes: FloatArray
    weights: FloatArray
    params: FloatArray
    saved: FloatArray
    launches: FloatArray
    repeat: FloatArray
    dims: FloatArray  # (n, 4): m, n, k, groups; zeros where the operation is no matrix product


_CODES = {"kind": KIND_INDEX, "phase": PHASE_INDEX, "block": BLOCK_INDEX, "shard": SHARD_INDEX}
_NUMBERS = ("flops", "reads", "writes", "weights", "params", "saved", "launches", "repeat")


@dataclass(frozen=True)
class Graph:
    """One training step in execution order.

    unknown: operations whose cost is only bounded. frozen: of the parameters, how many are not trained;
    quantized: how many of these are kept in 4 bits.
    """

    ops: tuple[Op, ...]
    unknown: tuple[str, ...] = ()
    frozen: float = 0.0
    quantized: float = 0.0

    @cached_property
    def columns(self) -> OpColumns:
        """The operations as NumPy columns (computed once)."""
        ops = self.ops
        dims = np.zeros((len(ops), 4))
        for i, op in enumerate(ops):
            dims[i, : len(op.dims)] = op.dims
        dims[(dims[:, 0] > 0) & (dims[:, 3] == 0), 3] = 1
        codes: dict[str, Any] = {
            field: np.array([index[getattr(op, field)] for op in ops], dtype=np.int16)
            for field, index in _CODES.items()
        }
        numbers: dict[str, Any] = {
            field: np.array([getattr(op, field) for op in ops], dtype=np.float64)
            for field in _NUMBERS
        }
        return OpColumns(dims=dims, **codes, **numbers)

    def total(self, field: str, phase: Phase | None = None, kind: OpKind | None = None) -> float:
        """Return the sum of a numeric field over the step, `repeat` applied."""
        columns = self.columns
        values = getattr(columns, field) * (1.0 if field == "repeat" else columns.repeat)
        keep = np.ones(len(self.ops), dtype=bool)
        if phase is not None:
            keep &= columns.phase == PHASE_INDEX[phase]
        if kind is not None:
            keep &= columns.kind == KIND_INDEX[kind]
        return float(values[keep].sum())

    @cached_property
    def params(self) -> float:
        """Parameters that a step holds, frozen ones too."""
        return self.total("params")

    @cached_property
    def forward_flops(self) -> float:
        """Forward floating-point operations of one sample (two a multiply-add)."""
        return self.total("flops", Phase.FORWARD)

    @cached_property
    def backward_flops(self) -> float:
        """Backward floating-point operations of one sample."""
        return self.total("flops", Phase.BACKWARD)

    @cached_property
    def activations(self) -> float:
        """Elements written by the forward operations of one sample."""
        return self.total("writes", Phase.FORWARD)

    @cached_property
    def saved(self) -> float:
        """Elements per sample kept for the backward phase, with no recomputation."""
        return self.total("saved", Phase.FORWARD)
