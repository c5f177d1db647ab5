"""Geometry of windows: how many fit, and what class of convolution they make."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.domain.graph import OpKind
from forerun.errors import RequestError


def spread(value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """Return one number for each spatial dimension."""
    return (value,) * rank if isinstance(value, int) else tuple(value)


def window_count(
    size: int,
    kernel: int,
    stride: int,
    padding: int,
    dilation: int = 1,
    ceil: bool = False,
    name: str = "layer",
) -> int:
    """Return how many windows fit along one dimension, by the rule of PyTorch's layers.

    Raises:
        RequestError: none fits.
    """
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    count = (-(-span // stride) if ceil else span // stride) + 1
    if ceil and (count - 1) * stride >= size + padding:
        count -= 1  # a window may not start in the padding on the far side
    if span < 0 or count < 1:
        raise RequestError(
            f"{name} over {size} pixels",
            f"its window of {kernel} does not fit",
            "ask for a larger image size",
        )
    return count


def conv_kind(area: int, groups: int, channels: int, out: int) -> OpKind:
    """Return the class of a convolution: dense, 1 x 1, grouped or depth-wise."""
    if groups == 1:
        return OpKind.CONV_1X1 if area == 1 else OpKind.CONV
    return OpKind.CONV_DEPTHWISE if groups == channels <= out else OpKind.CONV_GROUPED
