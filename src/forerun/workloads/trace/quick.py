"""Shapes of the most frequent operations, known without torch's slow Python meta kernels.

Those kernels take a millisecond an operation and load torch's compiler on their first use; what
they would find for these operations follows from the arguments at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from forerun.workloads.trace.backend import load_torch

# Of one shape and type in, of the same out.
_POINTWISE = frozenset(
    """add sub mul div relu sigmoid tanh silu gelu neg exp threshold_backward sigmoid_backward
    tanh_backward silu_backward gelu_backward native_dropout_backward""".split()
)


def quick_answer(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], mutates: bool) -> Any:
    """Return what an operation on meta tensors returns, None where torch must be asked."""
    if mutates or "dtype" in kwargs or not args or not getattr(args[0], "is_meta", False):
        return None
    if name in _POINTWISE:
        return _pointwise(args)
    handler = _HANDLERS.get(name)
    return None if handler is None else handler(args)


def _pointwise(args: Sequence[Any]) -> Any:
    torch, first = load_torch(), args[0]
    if not first.is_floating_point():
        return None
    for other in args[1:]:
        if isinstance(other, torch.Tensor):
            same = other.shape == first.shape and other.dtype == first.dtype
            if not (same and other.is_meta):
                return None
        elif isinstance(other, complex):
            return None
    return torch.empty_like(first)


def _addmm(args: Sequence[Any]) -> Any:
    left, right = args[1], args[2]
    fits = left.dim() == right.dim() == 2 and left.shape[1] == right.shape[0]
    same = args[0].dtype == left.dtype == right.dtype and args[0].shape == right.shape[1:]
    return left.new_empty((left.shape[0], right.shape[1])) if fits and same else None


def _mean(args: Sequence[Any]) -> Any:
    tensor = args[0]
    if not tensor.is_floating_point() or len(args) < 2 or not args[1]:
        return None
    sides = {side % tensor.dim() for side in args[1]}
    keep = len(args) > 2 and args[2]
    shape = [
        1 if side in sides else size
        for side, size in enumerate(tensor.shape)
        if keep or side not in sides
    ]
    return tensor.new_empty(shape)


def _batch_norm(args: Sequence[Any]) -> Any:
    image, training = args[0], args[5]
    if not training or image.dim() < 2:
        return None
    torch = load_torch()
    statistics = [torch.empty(image.shape[1], dtype=_wide(image), device="meta") for _ in range(2)]
    return (torch.empty_like(image), *statistics)


def _batch_norm_backward(args: Sequence[Any]) -> Any:
    torch, image, mask = load_torch(), args[1], args[9]
    channels, dtype = image.shape[1], args[2].dtype if args[2] is not None else _wide(image)
    gradients = [torch.empty(channels, dtype=dtype, device="meta") if m else None for m in mask[1:]]
    return (torch.empty_like(image) if mask[0] else None, *gradients)


def _wide(tensor: Any) -> Any:
    """Return the type of statistics over a tensor: at least fp32."""
    torch = load_torch()
    narrow = (torch.float16, torch.bfloat16)
    return torch.float32 if tensor.dtype in narrow else tensor.dtype


_HANDLERS: Mapping[str, Callable[[Sequence[Any]], Any]] = {
    "addmm": _addmm,
    "mean": _mean,
    "native_batch_norm": _batch_norm,
    "native_batch_norm_backward": _batch_norm_backward,
}
