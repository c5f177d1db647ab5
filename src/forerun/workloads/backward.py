"""Backward and optimizer operations, derived from the forward ones by rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from forerun.domain.graph import Graph, Op, OpKind, Phase
from forerun.domain.workload import OPTIMIZER_STATES
from forerun.errors import RequestError, one_of

CONVOLUTIONS = frozenset({OpKind.CONV, OpKind.CONV_1X1, OpKind.CONV_GROUPED, OpKind.CONV_DEPTHWISE})
_PRODUCTS = CONVOLUTIONS | {OpKind.MATMUL, OpKind.RECURRENT}
# Forward FLOPs times this: five products (scores again, dV, dP, dQ, dK) against two.
# Dao et al., FlashAttention-2 (2023), section 4.1.
FUSED_ATTENTION_BACKWARD = 2.5
# A multi-tensor kernel takes about 36 tensors and 320 chunks of 65,536 elements a launch.
_TENSORS_A_LAUNCH = 36
_ELEMENTS_A_LAUNCH = 320 * 65536
# LAMB and LARS first take the norms of a weight and of its update.
_NORM_READS = {"lamb": 2.0, "lars": 2.0}


def conv_kind(area: int, groups: int, channels: int, out_channels: int) -> OpKind:
    """Return the class of a convolution from its kernel area, groups and channels."""
    if groups == 1:
        return OpKind.CONV_1X1 if area == 1 else OpKind.CONV
    depthwise = groups == channels <= out_channels or groups == out_channels <= channels
    return OpKind.CONV_DEPTHWISE if depthwise else OpKind.CONV_GROUPED


def complete(
    forward: Sequence[Op], optimizer: str, unknown: Sequence[str] = (), sparse_params: float = 0.0
) -> Graph:
    """Return the graph of a training step: forward, backward in reverse order, optimizer. Raises RequestError.

    Rules, for a forward product y[m, n] = x[m, k] w[k, n]:

    * data gradient: dims (m, k, n), as many FLOPs as forward; none where the operation reads the
      network's input (`inputs` empty in a graph with edges, or first in one without).
    * weight gradient: dims (k, n, m), as many FLOPs. **The batch grows its reduction (the third of
      its dims), not its m.** Its output is stated in `weights`, and `writes` is 0.
    * a product of two activations has two data gradients; fused attention costs 2.5 forwards.
    * embedding: a scatter-add, and the zeroing of a dense gradient unless it is sparse.
    * everything else reads its saved input and the output's gradient, and writes the input's.

    `unknown` names operations whose cost is only bounded; `sparse_params` of recommenders' tables
    are left out of the optimizer.
    """
    has_edges = any(op.inputs for op in forward)
    backward: list[Op] = []
    for position in reversed(range(len(forward))):
        op = forward[position]
        if op.phase is not Phase.FORWARD:
            continue
        first = not op.inputs if has_edges else position == 0
        backward.extend(_gradients(op, position, first, sparse_params > 0))
    params = sum(op.params * op.repeat for op in forward)
    tensors = sum(op.repeat for op in forward if op.params > 0)
    last = optimizer_op(max(params - sparse_params, 0.0), tensors, optimizer)
    return Graph((*forward, *backward, last), tuple(unknown))


def optimizer_op(params: float, tensors: int, optimizer: str) -> Op:
    """Return one fused optimizer operation over all parameters, stated per step. Raises RequestError.

    With n states a parameter it reads n + 2 (weight, gradient, states) and writes n + 1 fp32
    elements, whatever the workload's precision. `none` (forward and backward only) does nothing.
    """
    if optimizer not in OPTIMIZER_STATES:
        raise RequestError(
            f"optimizer {optimizer!r}", "no such optimizer",
            one_of(optimizer, OPTIMIZER_STATES),
        )  # fmt: skip
    states, launches = OPTIMIZER_STATES[optimizer], 0
    if optimizer == "none":
        params = 0.0
    else:
        kernels = (tensors / _TENSORS_A_LAUNCH, params / _ELEMENTS_A_LAUNCH)
        launches = max(1, *(math.ceil(count) for count in kernels))
    return Op(
        name=f"optimizer.{optimizer}", kind=OpKind.OPTIMIZER, phase=Phase.OPTIMIZER,
        flops=(2.0 + 5.0 * states) * params,
        reads=(2.0 + states + _NORM_READS.get(optimizer, 0.0)) * params,
        writes=(1.0 + states) * params, launches=launches,
    )  # fmt: skip


def is_fused_attention(op: Op) -> bool:
    """Whether an ATTENTION operation is a whole one: it writes m x head size, not the m x n of its dims."""
    if op.kind is not OpKind.ATTENTION or len(op.dims) < 3:
        return op.kind is OpKind.ATTENTION
    m, n, k, groups = (*op.dims, 1)[:4]
    one_product = op.writes == m * n * groups and op.reads <= groups * k * (m + n)
    return not one_product


def _gradients(op: Op, position: int, first: bool, sparse: bool) -> list[Op]:
    def gradient(name: str, reads: float, writes: float, **numbers: Any) -> Op:
        changes = {"weights": 0.0, **numbers}
        return replace(
            op, name=f"{op.name}.{name}", phase=Phase.BACKWARD, reads=reads, writes=writes,
            params=0.0, saved=0.0, shape=(), inputs=(position,), **changes,
        )  # fmt: skip

    if op.kind in _PRODUCTS or (op.kind is OpKind.ATTENTION and not is_fused_attention(op)):
        return _product_gradients(op, gradient, first)
    if op.kind is OpKind.ATTENTION:
        flops, launches = FUSED_ATTENTION_BACKWARD * op.flops, op.launches + 1
        reads = op.reads + 2 * op.writes
        return [gradient("grad", reads, op.reads, flops=flops, launches=launches)]
    if op.kind is OpKind.EMBEDDING:
        dense = 0.0 if sparse else op.params
        return [gradient("grad", 2 * op.writes, op.writes, weights=dense)]
    if first and op.params <= 0:
        return []  # a constant of the input (its scaling, its layout) has no gradient
    reads, writes, flops = op.reads + op.writes, op.reads, 2 * op.flops
    if op.kind is OpKind.ELEMENTWISE and op.saved == 0 and op.reads >= 2 * op.writes:
        # A residual sum: its gradient passes through, and the two branches' are added.
        reads, writes, flops = op.reads, op.writes, op.flops
    elif op.kind is OpKind.POOL:
        reads, flops = 2 * op.writes, op.flops
    elif op.kind in (OpKind.REDUCE, OpKind.COPY):
        reads, flops = op.writes, op.flops
    return [gradient("grad", reads, writes, flops=flops, weights=op.params)]


def _product_gradients(op: Op, gradient: Callable[..., Op], first: bool) -> list[Op]:
    """Return the two gradients of a product, one of them where it reads the network's input."""
    m, n, k, groups = (*op.dims, 1, 1, 1, 1)[:4]
    left_dims, right_dims = ((m, k, n, groups), (k, n, m, groups)) if op.dims else ((), ())
    weights = op.weights or op.params
    if weights <= 0:  # y = a b of two activations
        left = min(float(m * k * groups), op.reads) if op.dims else op.reads / 2
        right = op.reads - left
        return [
            gradient("grad_left", op.writes + right, left, dims=left_dims),
            gradient("grad_right", op.writes + left, right, dims=right_dims),
        ]
    weight = gradient("wgrad", op.reads + op.writes, 0.0, weights=weights, dims=right_dims)
    if first:
        return [weight]
    return [gradient("dgrad", op.writes, op.reads, weights=weights, dims=left_dims), weight]


# Convolutional networks write about 5.5 M activations for the square root of a GMAC
# (Radosavovic et al. 2020, table 1: RegNetX and ResNe(X)t within a quarter, 0.4 to 32 GMAC).
_MACTIVATIONS_A_ROOT_GMAC = 5.5
# Products of a network whose layers are not known; it sets the size of each and its launches.
_USUAL_PRODUCTS = 50


def graph_from_totals(
    params: float, gmacs: float, mactivations: float = 0.0, seq_len: int = 0,
    optimizer: str = "adamw",
) -> Graph:  # fmt: skip
    """Return a graph of 50 equal products, each with a normalisation and an activation behind it.

    gmacs: 1e9 multiply-adds of a sample's forward pass. mactivations: 1e6 elements that products
    write; 0: 5.5 x sqrt(gmacs) for images, gmacs / 200 for tokens. seq_len: 0 for images (convolutions).
    """
    if not mactivations:
        mactivations = gmacs / 200 if seq_len else _MACTIVATIONS_A_ROOT_GMAC * math.sqrt(gmacs)
    share = 1.0 / _USUAL_PRODUCTS
    moved, weights = share * mactivations * 1e6, share * params
    product, norm = (OpKind.MATMUL, OpKind.NORM) if seq_len else (OpKind.CONV, OpKind.BATCH_NORM)
    ops: list[Op] = []
    for name, repeat in (("first", 1), ("layer", _USUAL_PRODUCTS - 1)):
        start = len(ops)
        ops += [
            Op(f"{name}.product", product, flops=share * 2e9 * gmacs, reads=moved, writes=moved,
               weights=weights, params=weights, saved=moved, repeat=repeat,
               inputs=(start - 1,) if start else ()),
            Op(f"{name}.norm", norm, reads=moved if seq_len else 2 * moved, writes=moved,
               saved=moved, repeat=repeat, inputs=(start,)),
            Op(f"{name}.activation", OpKind.ELEMENTWISE, reads=moved, writes=moved, repeat=repeat,
               inputs=(start + 1,)),
        ]  # fmt: skip
    return complete(ops, optimizer)
