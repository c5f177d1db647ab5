"""Slots: the sums that an instance's operations are made into."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forerun.domain.graph import BLOCK_INDEX, PHASE_INDEX, Block, OpColumns, Phase
from forerun.domain.workload import Workload
from forerun.predictors.analytic.activations import selected

# Selected layers are those that selective recomputation does again.
SLOTS = (
    "layer_forward", "layer_selected", "layer_backward",
    "embed_forward", "embed_backward", "head_forward", "head_backward",
)  # fmt: skip
_BLOCKS = {"layer": Block.LAYER, "embed": Block.EMBED, "head": Block.HEAD}


def slots_of(workload: Workload, ops: OpColumns) -> NDArray[np.int64]:
    """Return which sum each operation belongs to, (operations,)."""
    slots = np.zeros(len(ops.kind), dtype=np.int64)
    for name, block in _BLOCKS.items():
        ours = ops.block == BLOCK_INDEX[block]
        for word, phase in (("forward", Phase.FORWARD), ("backward", Phase.BACKWARD)):
            slots[ours & (ops.phase == PHASE_INDEX[phase])] = SLOTS.index(f"{name}_{word}")
    again = selected(workload, ops.kind) & (slots == SLOTS.index("layer_forward"))
    slots[again] = SLOTS.index("layer_selected")
    return slots
