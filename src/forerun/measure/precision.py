"""Precision: arithmetic of a training step, said whole each time: one process serves many tasks."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any


def use_tf32(on: bool) -> None:
    """Let products and convolutions of float32 on a GPU round to TF32, or let neither.

    Both switches are always set: torch lets convolutions round by itself and products not, and
    what another task in this process chose would last.
    """
    import torch

    torch.backends.cuda.matmul.allow_tf32 = on
    torch.backends.cudnn.allow_tf32 = on


class Precision:
    """Arithmetic of a step: autocast and, for fp16, a scaled loss.

    Args:
        precision: one of `task.PRECISIONS`; fp64 is the module's own matter.
        device: cpu or cuda.
    """

    def __init__(self, precision: str, device: str) -> None:
        import torch

        use_tf32(precision == "tf32")
        self._device = device
        self._dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision)
        scaled = precision == "fp16" and device == "cuda"
        self._scaler = torch.amp.GradScaler(device) if scaled else None

    def forward(self) -> AbstractContextManager[Any]:
        """Return the context that a forward pass runs in."""
        import torch

        if self._dtype is None:
            return nullcontext()
        context: AbstractContextManager[Any] = torch.autocast(self._device, self._dtype)
        return context

    def backward(self, loss: Any) -> None:
        """Let gradients of a loss flow."""
        (loss if self._scaler is None else self._scaler.scale(loss)).backward()

    def step(self, optimizer: Any) -> None:
        """Let an optimizer update."""
        if self._scaler is None:
            optimizer.step()
        else:
            self._scaler.step(optimizer)
            self._scaler.update()
