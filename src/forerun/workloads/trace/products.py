"""Products of matrices inside aten operations: convolutions, matrix products, fused attention.

FLOPs are those of products only, as published counts have it (a multiply-add is two); everything
else is stated by the elements that it moves. Numbers here are for the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forerun.domain.graph import OpKind
from forerun.workloads.backward import FUSED_ATTENTION_BACKWARD

# The names of the two factors in each operation's schema.
FACTORS: Mapping[str, tuple[str, str]] = {
    "mm": ("self", "mat2"),
    "bmm": ("self", "mat2"),
    "addmm": ("mat1", "mat2"),
    "_addmm_activation": ("mat1", "mat2"),
    "baddbmm": ("batch1", "batch2"),
    "addbmm": ("batch1", "batch2"),
    "mv": ("self", "vec"),
    "addmv": ("mat", "vec"),
    "dot": ("self", "tensor"),
    "vdot": ("self", "other"),
    "_int_mm": ("self", "mat2"),
    "_scaled_mm": ("self", "mat2"),
    "_grouped_mm": ("self", "mat2"),
    "matmul": ("self", "other"),
}
_LIBRARY_CONVOLUTIONS = frozenset(
    {"cudnn_convolution", "mkldnn_convolution", "convolution_overrideable", "_convolution"}
)
CONVOLUTIONS = frozenset({"convolution"}) | _LIBRARY_CONVOLUTIONS
ATTENTION_FORWARD = frozenset(
    {
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_fused_attention_overrideable",
        "scaled_dot_product_attention",
    }
)
ATTENTION_BACKWARD = frozenset(f"{name}_backward" for name in ATTENTION_FORWARD)
# One layer of a recurrent network on a CPU: its matrices for the input and for the state.
RECURRENT: Mapping[str, tuple[str, str]] = {
    "mkldnn_rnn_layer": ("weight0", "weight1"),
    "mkldnn_rnn_layer_backward": ("weight1", "weight2"),
}
FUSED = ATTENTION_FORWARD | ATTENTION_BACKWARD


@dataclass(frozen=True, slots=True)
class Product:
    """groups products of m x k by k x n, over the whole batch."""

    kind: OpKind
    flops: float
    m: float
    n: float
    k: float
    groups: float = 1.0


def matrix_product(left: Sequence[int], right: Sequence[int]) -> Product:
    """Return the product of shapes (..., m, k) and (..., k, n); vectors have one column."""
    rows, inner = (left[-2], left[-1]) if len(left) > 1 else (1, left[-1])
    columns = right[-1] if len(right) > 1 else 1
    left_groups, right_groups = math.prod(left[:-2]), math.prod(right[:-2])
    if len(right) < 3:  # a stack of left factors shares the right one
        rows, left_groups = rows * left_groups, 1
    groups = max(left_groups, right_groups)
    flops = 2.0 * groups * rows * columns * inner
    return Product(OpKind.MATMUL, flops, rows, columns, inner, groups)


def grouped_product(left: Sequence[int], right: Sequence[int]) -> Product:
    """Return a ragged grouped product, where each row meets one of the groups' weights."""
    if len(left) == 2 and len(right) == 3:
        rows = left[0]
        flops = 2.0 * rows * right[1] * right[2]
        return Product(OpKind.MATMUL, flops, rows, right[2], right[1])
    if len(left) == len(right) == 2:  # the gradient of the groups' weights
        flops = 2.0 * left[0] * left[1] * right[1]
        return Product(OpKind.MATMUL, flops, left[0], right[1], left[1])
    return matrix_product(left, right)


def convolution(
    image: Sequence[int], weight: Sequence[int], output: Sequence[int],
    transposed: bool, groups: int,
) -> Product:  # fmt: skip
    """Return a convolution as its implicit matrix product.

    Each output pixel of each output channel takes input channels / groups x kernel area
    multiply-adds; a transposed convolution is the data gradient of one with both ends exchanged.

    Args:
        image: shape (batch, channels, *pixels) of its input.
        weight: shape of its weight; (out, in / groups, *kernel), transposed (in, out / groups, ...).
        output: shape (batch, channels, *pixels) of its output.
        transposed: whether it is a transposed one.
        groups: of channels.
    """
    area = math.prod(weight[2:])
    batch, channels, out_channels = image[0], image[1], output[1]
    kind = conv_kind(area, groups, channels, out_channels)
    pixels = batch * math.prod(image[2:] if transposed else output[2:])
    n = (channels if transposed else out_channels) / groups
    k = (out_channels if transposed else channels) / groups * area
    flops = 2.0 * groups * pixels * n * k
    if transposed:
        n, k = k, n
    return Product(kind, flops, pixels, n, k, groups)


def conv_kind(area: int, groups: int, channels: int, out_channels: int) -> OpKind:
    """Return the class of a convolution from its kernel area, groups and channels."""
    if groups == 1:
        return OpKind.CONV_1X1 if area == 1 else OpKind.CONV
    depthwise = groups == channels <= out_channels or groups == out_channels <= channels
    return OpKind.CONV_DEPTHWISE if depthwise else OpKind.CONV_GROUPED


def fused_attention(
    query: Sequence[int], key: Sequence[int], value: Sequence[int], causal: bool
) -> Product:
    """Return one fused attention over shapes (batch, heads, tokens, head size).

    Scores and their product with the values: 2 q k (d + dv) FLOPs a head; half of the square is
    skipped where it is causal. Dims are those of the scores.
    """
    heads = math.prod(query[:-2])
    tokens, keys, size, value_size = query[-2], key[-2], query[-1], value[-1]
    share = 0.5 if causal and tokens == keys else 1.0
    flops = 2.0 * share * heads * tokens * keys * (size + value_size)
    return Product(OpKind.ATTENTION, flops, tokens, keys, (size + value_size) // 2, heads)


def _recurrent(
    image: Sequence[int], entry: Sequence[int], state: Sequence[int], name: str
) -> Product:
    """Return one recurrent layer; backward does the work of forward twice."""
    rows, inner = math.prod(image[:-1]), entry[1] + state[1]
    times = 2.0 if name.endswith("_backward") else 1.0
    return Product(OpKind.RECURRENT, times * 2.0 * rows * entry[0] * inner, rows, entry[0], inner)


def product_of(name: str, bound: Mapping[str, Any], outputs: Sequence[Any]) -> Product | None:
    """Return the product inside an operation, None where there is none.

    Args:
        name: the operation's name without overload.
        bound: its arguments by the names of its schema.
        outputs: the tensors that it returned.
    """
    if name in FACTORS:
        left, right = (bound[key].shape for key in FACTORS[name])
        return (
            grouped_product(left, right) if name == "_grouped_mm" else matrix_product(left, right)
        )
    if name == "linear":
        weight = bound["weight"].shape
        return matrix_product(bound["input"].shape, (weight[-1], weight[0]))
    if name in CONVOLUTIONS:
        image = bound.get("input", bound.get("self"))
        return convolution(
            image.shape, bound["weight"].shape, outputs[0].shape,
            bool(bound.get("transposed", False)), int(bound["groups"]),
        )  # fmt: skip
    if name == "convolution_backward":
        return convolution(
            bound["input"].shape, bound["weight"].shape, bound["grad_output"].shape,
            bool(bound["transposed"]), int(bound["groups"]),
        )  # fmt: skip
    if name in RECURRENT:
        first, second = RECURRENT[name]
        return _recurrent(bound["input"].shape, bound[first].shape, bound[second].shape, name)
    if name in FUSED:
        causal = bool(bound.get("is_causal", False))
        query, key, value = (bound[key].shape for key in ("query", "key", "value"))
        done = fused_attention(query, key, value, causal)
        if name in ATTENTION_BACKWARD:
            flops = FUSED_ATTENTION_BACKWARD * done.flops
            return Product(done.kind, flops, done.m, done.n, done.k, done.groups)
        return done
    return None
