"""Scaling: by what factor the loss was scaled whose gradients an optimizer is about to take."""

from __future__ import annotations

import sys
from types import FrameType

_DEPTH = (
    24  # callers that are looked through: between a scaler and its optimizer lie a few wrappers
)


def loss_scale() -> float:
    """Return the loss scale of the update under way; 1.0 where no GradScaler does it.

    To be called from an optimizer's pre-hook: whether a scaler does this update, and which, is
    told by who called. The gradients that were reduced before are those of the scaled loss, also
    where `unscale_` was called meanwhile. A loss that is multiplied by hand is not known of: its
    gradients are those of another loss.
    """
    from torch.amp import GradScaler

    code = GradScaler.step.__code__
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_DEPTH):
        if frame is None:
            break
        if frame.f_code is code:
            scaler = frame.f_locals["self"]
            return float(scaler.get_scale()) if scaler.is_enabled() else 1.0
        frame = frame.f_back
    return 1.0
