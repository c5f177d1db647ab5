"""What aten operations are: the class of each by its name, and the products of matrices in them.

FLOPs are those of products only (a multiply-add is two). Numbers are for the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from forerun.domain.graph import OpKind
from forerun.workloads.backward import FUSED_ATTENTION_BACKWARD, conv_kind

# Nothing is computed: memory is set aside, or a scalar is made.
FREE = frozenset(
    """empty empty_like empty_strided new_empty new_empty_strided empty_permuted lift lift_fresh
    scalar_tensor _local_scalar_dense is_same_size sym_size sym_numel sym_stride set
    _has_compatible_shallow_copy_type _assert_async _assert_tensor_metadata is_pinned
    _sparse_coo_tensor_with_dims_and_tensors _coalesced resize_as resize equal record_stream
    as_strided transpose t squeeze unsqueeze swapdims swapaxes detach view _reshape_alias
    """.split()
)
# The old contents of what these write are not read.
OVERWRITES = frozenset(
    "copy fill zero bernoulli normal uniform random exponential geometric set log_normal".split()
)
# These touch only the rows that they are pointed at, in their first tensor.
GATHERS = frozenset(
    """index index_select gather take take_along_dim embedding _embedding_bag
    _embedding_bag_forward_only _unsafe_index""".split()
)
# In place, these write only the rows that they are given.
SCATTERS = frozenset(
    """index_put _index_put_impl _unsafe_index_put index_add index_copy scatter scatter_add
    scatter_reduce select_scatter slice_scatter masked_scatter""".split()
)

_NAMES: dict[OpKind, str] = {
    OpKind.NORM: """native_layer_norm native_group_norm fused_rms_norm rms_norm
        fused_layer_norm weight_norm_interface""",
    OpKind.BATCH_NORM: """native_batch_norm native_batch_norm_legit
        native_batch_norm_legit_functional native_batch_norm_legit_no_training
        batch_norm_with_update batch_norm_with_update_functional batch_norm batch_norm_stats
        batch_norm_elemt batch_norm_gather_stats batch_norm_backward_reduce
        batch_norm_backward_elemt""",
    OpKind.SOFTMAX: """softmax log_softmax safe_softmax masked_softmax""",
    OpKind.EMBEDDING: """embedding embedding_dense embedding_sparse embedding_bag
        embedding_bag_forward_only embedding_bag_dense embedding_bag_sparse
        embedding_bag_per_sample_weights embedding_renorm""",
    OpKind.REDUCE: """sum mean max min amax amin var std var_mean std_mean norm
        linalg_vector_norm linalg_matrix_norm argmax argmin logsumexp prod any all cumsum
        cumprod logcumsumexp cummax cummin median nanmedian mode sort topk kthvalue argsort
        aminmax nansum count_nonzero nll_loss_forward nll_loss nll_loss2d_forward nll_loss2d
        nonzero unique2 unique_dim unique_consecutive bincount histc searchsorted bucketize
        ctc_loss cdist_forward cdist pdist_forward pdist trace renorm value_selecting_reduction
        masked_select multi_margin_loss multilabel_margin_loss_forward
        multilabel_margin_loss""",
    OpKind.COPY: """clone copy to_copy cat stack index index_select gather take scatter
        scatter_add scatter_reduce index_put index_put_impl unsafe_index unsafe_index_put
        index_add index_copy index_fill select_scatter slice_scatter slice select diagonal
        unfold as_strided_scatter as_strided constant_pad_nd reflection_pad1d reflection_pad2d
        reflection_pad3d replication_pad1d replication_pad2d replication_pad3d roll flip rot90
        repeat repeat_interleave fill zero zeros ones full zeros_like ones_like full_like
        new_zeros new_ones new_full arange linspace logspace eye tril triu tril_indices
        triu_indices im2col col2im pixel_shuffle pixel_unshuffle channel_shuffle
        native_channel_shuffle constant contiguous pack_padded_sequence block_diag diag_embed
        diag expand masked_scatter view view_as_real permute split unbind t transpose squeeze
        unsqueeze one_hot reshape pin_memory meshgrid efficientzerotensor affine_grid_generator
        vander""",
    OpKind.ELEMENTWISE: """native_dropout dropout bernoulli rand rand_like randn randn_like
        randint randint_like randperm normal uniform random exponential geometric log_normal
        multinomial foreach_add foreach_mul glu mse_loss smooth_l1_loss huber_loss l1_loss
        soft_margin_loss binary_cross_entropy leaky_relu hardtanh elu softplus hardswish
        hardsigmoid hardshrink softshrink log_sigmoid_forward log_sigmoid rrelu_with_noise
        prelu prelu_kernel mish logit cross linalg_cross lerp addcmul addcdiv isin polar
        complex frac grid_sampler_2d grid_sampler_3d fft_r2c fft_c2c fft_c2r clamp to_dense
        kl_div outer ger addr logical_not foreach_norm set allclose""",
}
_KIND_BY_NAME: dict[str, OpKind] = {
    name: kind for kind, names in _NAMES.items() for name in names.split()
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


# The names of the two factors in each operation's schema.
FACTORS: Mapping[str, tuple[str, str]] = {
    "mm": ("self", "mat2"), "bmm": ("self", "mat2"), "addmm": ("mat1", "mat2"),
    "_addmm_activation": ("mat1", "mat2"), "baddbmm": ("batch1", "batch2"),
    "addbmm": ("batch1", "batch2"), "mv": ("self", "vec"), "addmv": ("mat", "vec"),
    "dot": ("self", "tensor"), "vdot": ("self", "other"), "_int_mm": ("self", "mat2"),
    "_scaled_mm": ("self", "mat2"), "_grouped_mm": ("self", "mat2"),
}  # fmt: skip
# What a CPU runs where a small module is run for real.
ATTENTION_FORWARD = "_scaled_dot_product_flash_attention_for_cpu"
ATTENTION = (ATTENTION_FORWARD, f"{ATTENTION_FORWARD}_backward")
# One layer of a recurrent network on a CPU: its matrices for the input and for the state.
RECURRENT: Mapping[str, tuple[str, str]] = {
    "mkldnn_rnn_layer": ("weight0", "weight1"),
    "mkldnn_rnn_layer_backward": ("weight1", "weight2"),
}


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
