"""Keys: the distinct ways of cutting a workload, what each costs, and classes of operations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray
from forerun.domain.graph import (
    KIND_INDEX,
    PHASE_INDEX,
    SHARD_INDEX,
    OpColumns,
    OpKind,
    Phase,
    Shard,
)


def _mask(kinds: Iterable[OpKind]) -> BoolArray:
    """Return which positions of `graph.KINDS` are among the kinds."""
    mask = np.zeros(len(KIND_INDEX), dtype=bool)
    mask[[KIND_INDEX[kind] for kind in kinds]] = True
    return mask


IS_CONV = _mask((OpKind.CONV, OpKind.CONV_1X1, OpKind.CONV_GROUPED, OpKind.CONV_DEPTHWISE))
IS_GROUPED = _mask((OpKind.CONV_GROUPED, OpKind.CONV_DEPTHWISE))
IS_MATRIX = IS_CONV | _mask((OpKind.MATMUL, OpKind.ATTENTION, OpKind.RECURRENT))
IS_SCORE = _mask((OpKind.ATTENTION, OpKind.SOFTMAX))
IS_CHEAP = _mask((OpKind.NORM, OpKind.ELEMENTWISE))
IS_FUSED_AWAY = _mask((OpKind.ELEMENTWISE, OpKind.NORM, OpKind.BATCH_NORM, OpKind.SOFTMAX))


@dataclass(frozen=True)
class Keys:
    """k distinct ways of cutting one workload: float columns of shape (k,)."""

    micro_batch: FloatArray
    tp: FloatArray
    cp: FloatArray
    ep: FloatArray
    sequence_parallel: FloatArray
    recompute: NDArray[np.int64]
    channels_last: FloatArray

    def __len__(self) -> int:
        return len(self.micro_batch)

    def take(self, index: NDArray[np.int64]) -> Keys:
        """Return the keys at the given positions."""
        return Keys(**{name: values[index] for name, values in vars(self).items()})

    def digest(self) -> bytes:
        """Return what tells these keys from others."""
        columns = (self.micro_batch, self.tp, self.cp, self.ep, self.sequence_parallel)
        return b"".join(c.tobytes() for c in (*columns, self.recompute))


def cut_by_tensor(columns: OpColumns) -> BoolArray:
    """Return which operations tensor parallelism divides, (operations,)."""
    tensor, expert = SHARD_INDEX[Shard.TENSOR], SHARD_INDEX[Shard.EXPERT]
    return np.asarray((columns.shard == tensor) | (columns.shard == expert))


def activation_cut(columns: OpColumns, keys: Keys) -> FloatArray:
    """Return what divides the activations of each operation, (k, operations)."""
    tp = keys.tp[:, None]
    sequence = columns.shard == SHARD_INDEX[Shard.SEQUENCE]
    by_sequence = np.where(sequence & (keys.sequence_parallel[:, None] > 0), tp, 1.0)
    return np.where(cut_by_tensor(columns), tp, by_sequence)


def is_weight_gradient(columns: OpColumns) -> BoolArray:
    """Backward operations with dims and no activation output (see `workloads.backward`)."""
    return np.asarray(
        (columns.phase == PHASE_INDEX[Phase.BACKWARD])
        & (columns.dims[:, 0] > 0)
        & (columns.writes == 0)
    )
