"""What aten operations are: the class of each by its name, and the products of matrices in them.

FLOPs are those of products only (a multiply-add is two). Numbers are for the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from forerun import packaged
from forerun.domain.graph import OpKind
from forerun.workloads.backward import FUSED_ATTENTION_BACKWARD, conv_kind

# `aten.yaml` says what each set of names means.
_TABLE = packaged.table(__file__, "aten.yaml")
FREE, OVERWRITES, GATHERS, SCATTERS = (
    frozenset(_TABLE[name].split()) for name in ("free", "overwrites", "gathers", "scatters")
)
FACTORS: Mapping[str, Sequence[str]] = _TABLE["factors"]
_KIND_BY_NAME: dict[str, OpKind] = {
    name: OpKind(kind) for kind, names in _TABLE["kinds"].items() for name in names.split()
}


def kind_of(name: str, namespace: str, pointwise: bool) -> OpKind:
    """Return the class of an operation that is no product, by its plain name; UNKNOWN where nobody knows it."""
    if namespace not in ("aten", "prims"):
        return OpKind.UNKNOWN
    plain = name.strip("_").removesuffix("_data").removesuffix("_backward")
    known = _KIND_BY_NAME.get(plain) or _KIND_BY_NAME.get(plain.removesuffix("_copy"))
    if known is None and "pool" in name and not pointwise:
        return OpKind.POOL
    if known is None and (pointwise or plain.startswith("upsample")):
        return OpKind.ELEMENTWISE
    return known or OpKind.UNKNOWN


# What a CPU runs where a small module is run for real.
ATTENTION_FORWARD = "_scaled_dot_product_flash_attention_for_cpu"
ATTENTION = (ATTENTION_FORWARD, f"{ATTENTION_FORWARD}_backward")
# One layer of a recurrent network on a CPU: its matrices for the input and for the state.
RECURRENT: Mapping[str, tuple[str, str]] = {
    "mkldnn_rnn_layer": ("weight0", "weight1"), "mkldnn_rnn_layer_backward": ("weight1", "weight2"),
}  # fmt: skip


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
    """Return a convolution as its implicit matrix product; a transposed one has both ends exchanged.

    Shapes: image (batch, channels, *pixels), weight (out, in / groups, *kernel) or transposed (in,
    out / groups, ...), output (batch, channels, *pixels).
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


def fused_attention(
    query: Sequence[int], key: Sequence[int], value: Sequence[int], causal: bool
) -> Product:
    """Return one fused attention over shapes (batch, heads, tokens, head size).

    2 q k (d + dv) FLOPs a head, half of it where it is causal. Dims are those of the scores.
    """
    heads = math.prod(query[:-2])
    tokens, keys, size, value_size = query[-2], key[-2], query[-1], value[-1]
    share = 0.5 if causal and tokens == keys else 1.0
    flops = 2.0 * share * heads * tokens * keys * (size + value_size)
    return Product(OpKind.ATTENTION, flops, tokens, keys, (size + value_size) // 2, heads)


def product_of(name: str, bound: Mapping[str, Any], outputs: Sequence[Any]) -> Product | None:
    """Return the product inside an operation (arguments bound by name), None where there is none."""
    if name in FACTORS:
        left, right = (bound[key].shape for key in FACTORS[name])
        return (
            grouped_product(left, right) if name == "_grouped_mm" else matrix_product(left, right)
        )
    if name in ("convolution", "convolution_backward"):
        output = outputs[0] if name == "convolution" else bound["grad_output"]
        return convolution(
            bound["input"].shape, bound["weight"].shape, output.shape,
            bool(bound["transposed"]), int(bound["groups"]),
        )  # fmt: skip
    if name in RECURRENT:
        entry, state = (bound[key].shape for key in RECURRENT[name])
        tokens, inner = math.prod(bound["input"].shape[:-1]), entry[1] + state[1]
        times = 4.0 if name.endswith("_backward") else 2.0  # both gradients
        flops = times * tokens * entry[0] * inner
        return Product(OpKind.RECURRENT, flops, tokens, entry[0], inner)
    if name in ATTENTION:
        query, key, value = (bound[key].shape for key in ("query", "key", "value"))
        done = fused_attention(query, key, value, bool(bound.get("is_causal", False)))
        times = 1.0 if name == ATTENTION_FORWARD else FUSED_ATTENTION_BACKWARD
        return replace(done, flops=times * done.flops)
    return None


def sample_shape(shape: tuple[int, ...], samples: int) -> tuple[int, ...]:
    """Return the shape for one sample of a tensor whose leading side grows with the batch."""
    if not shape or shape[0] % samples:
        return shape
    lead = shape[0] // samples
    return shape[1:] if lead == 1 and len(shape) > 1 else (lead, *shape[1:])
