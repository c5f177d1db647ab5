"""Optimizers: torch's own, by the names that workloads use."""

from __future__ import annotations

from typing import Any

from forerun.errors import RequestError, one_of

LEARNING_RATE = 1e-4  # small: outputs that shrink to denormal numbers would slow a CPU down

# Name -> (class of torch.optim, further arguments).
_TORCH: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {}),
    "momentum": ("SGD", {"momentum": 0.9}),
    "adam": ("Adam", {}),
    "adamw": ("AdamW", {}),
    "adagrad": ("Adagrad", {}),
    "rmsprop": ("RMSprop", {}),
    "adafactor": ("Adafactor", {}),
}
NAMES = ("none", *_TORCH)


def make_optimizer(name: str, parameters: Any, learning_rate: float = LEARNING_RATE) -> Any:
    """Return the torch optimizer of a name, or None for `none`.

    Raises:
        RequestError: torch has none of that name.
    """
    import torch

    if name == "none":
        return None
    if name not in _TORCH or not hasattr(torch.optim, _TORCH[name][0]):
        raise RequestError(
            f"optimizer {name!r}", "torch has none of that name", one_of(name, NAMES)
        )
    kind, given = _TORCH[name]
    return getattr(torch.optim, kind)(parameters, lr=learning_rate, **given)
