"""Which class an aten operation belongs to, by its name; products of matrices are in `products`."""

from __future__ import annotations

from forerun.domain.graph import OpKind

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
    OpKind.NORM: """native_layer_norm native_layer_norm_backward native_group_norm
        native_group_norm_backward _fused_rms_norm _fused_rms_norm_backward rms_norm
        _fused_layer_norm _weight_norm_interface _weight_norm_interface_backward""",
    OpKind.BATCH_NORM: """native_batch_norm native_batch_norm_backward cudnn_batch_norm
        cudnn_batch_norm_backward miopen_batch_norm miopen_batch_norm_backward
        _native_batch_norm_legit _native_batch_norm_legit_functional
        _native_batch_norm_legit_no_training _batch_norm_with_update
        _batch_norm_with_update_functional batch_norm_backward batch_norm_stats
        batch_norm_elemt batch_norm_gather_stats batch_norm_backward_reduce
        batch_norm_backward_elemt""",
    OpKind.SOFTMAX: """_softmax _log_softmax _safe_softmax _masked_softmax _softmax_backward_data
        _log_softmax_backward_data _masked_softmax_backward""",
    OpKind.EMBEDDING: """embedding embedding_dense_backward embedding_backward
        embedding_sparse_backward _embedding_bag _embedding_bag_forward_only
        _embedding_bag_backward _embedding_bag_dense_backward _embedding_bag_sparse_backward
        _embedding_bag_per_sample_weights_backward embedding_renorm""",
    OpKind.REDUCE: """sum mean max min amax amin var std var_mean std_mean norm linalg_vector_norm
        linalg_matrix_norm argmax argmin logsumexp prod any all cumsum cumprod logcumsumexp
        cummax cummin median nanmedian mode sort topk kthvalue argsort aminmax nansum
        count_nonzero nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward
        nonzero _unique2 unique_dim unique_consecutive bincount histc searchsorted bucketize
        _ctc_loss _ctc_loss_backward _cdist_forward _cdist_backward _pdist_forward
        _pdist_backward trace renorm value_selecting_reduction_backward masked_select
        multi_margin_loss multi_margin_loss_backward multilabel_margin_loss_forward
        multilabel_margin_loss_backward""",
    OpKind.COPY: """clone copy _to_copy cat stack index index_select gather take scatter
        scatter_add scatter_reduce index_put _index_put_impl _unsafe_index _unsafe_index_put
        index_add index_copy index_fill select_scatter slice_scatter slice_backward
        select_backward diagonal_backward unfold_backward as_strided_scatter as_strided_copy
        constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d
        replication_pad2d replication_pad3d reflection_pad1d_backward reflection_pad2d_backward
        reflection_pad3d_backward replication_pad1d_backward replication_pad2d_backward
        replication_pad3d_backward roll flip rot90 repeat repeat_interleave fill zero zeros ones
        full zeros_like ones_like full_like new_zeros new_ones new_full arange linspace logspace
        eye tril triu tril_indices triu_indices im2col col2im pixel_shuffle pixel_unshuffle
        channel_shuffle native_channel_shuffle constant contiguous _pack_padded_sequence
        _pack_padded_sequence_backward block_diag diag_embed diag expand_copy masked_scatter
        masked_scatter_backward view_copy view_as_complex_copy view_as_real_copy permute_copy
        select_copy slice_copy split_copy unbind_copy t_copy transpose_copy squeeze_copy
        unsqueeze_copy one_hot _reshape_copy _pin_memory unfold_copy meshgrid
        _efficientzerotensor index_select_backward affine_grid_generator
        affine_grid_generator_backward vander""",
    OpKind.ELEMENTWISE: """native_dropout native_dropout_backward dropout bernoulli rand rand_like
        randn randn_like randint randint_like randperm normal uniform random exponential
        geometric log_normal multinomial _foreach_add _foreach_mul glu glu_backward mse_loss
        mse_loss_backward
        smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward l1_loss
        soft_margin_loss soft_margin_loss_backward binary_cross_entropy
        binary_cross_entropy_backward leaky_relu_backward hardtanh_backward elu_backward
        softplus_backward hardswish_backward hardsigmoid_backward hardshrink_backward
        softshrink_backward log_sigmoid_forward log_sigmoid_backward rrelu_with_noise
        rrelu_with_noise_backward prelu _prelu_kernel _prelu_kernel_backward mish_backward
        logit_backward cross linalg_cross lerp addcmul addcdiv isin polar complex
        frac_backward upsample_nearest1d upsample_nearest2d upsample_nearest3d
        upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d
        _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
        _upsample_bilinear2d_aa _upsample_bicubic2d_aa grid_sampler_2d grid_sampler_3d
        grid_sampler_2d_backward grid_sampler_3d_backward _fft_r2c _fft_c2c _fft_c2r
        clamp_backward _to_dense kl_div outer ger addr _fake_quantize_learnable_per_tensor_affine
        _thnn_fused_lstm_cell _thnn_fused_gru_cell logical_not view_as_complex
        _foreach_norm set_data allclose""",
}
BY_NAME: dict[str, OpKind] = {
    name: kind for kind, names in _NAMES.items() for name in names.split()
}


def kind_of(name: str, namespace: str, pointwise: bool) -> OpKind:
    """Return the class of an operation that is no product; UNKNOWN where nobody knows it.

    Args:
        name: the operation's name without overload and without the underscore of in-place forms.
        namespace: `aten`, `prims`, or the library that defines it.
        pointwise: whether torch itself calls it point-wise.
    """
    if namespace not in ("aten", "prims"):
        return OpKind.UNKNOWN
    known = BY_NAME.get(name)
    if known is not None:
        return known
    if pointwise:
        return OpKind.ELEMENTWISE
    if "pool" in name:
        return OpKind.POOL
    if name.startswith(("upsample", "_upsample")):
        return OpKind.ELEMENTWISE
    return OpKind.UNKNOWN
