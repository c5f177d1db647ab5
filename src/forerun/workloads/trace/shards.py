"""What tensor parallelism would divide in a traced layer, told from how data flows through it.

The rule is Megatron's (Shoeybi et al. 2019, section 3): a product that reads a whole activation is
divided by columns, and what follows is divided too, until a product by rows makes it whole again.
Where the flow does not fit this rule, nothing is labelled, and tensor parallelism is declined.
"""

from __future__ import annotations

from collections.abc import Sequence

from forerun.domain.graph import Block, OpKind, Phase, Shard
from forerun.workloads.trace.raw import RawOp

_PRODUCTS = frozenset({OpKind.MATMUL})


def label_shards(ops: Sequence[RawOp]) -> bool:
    """State in place what divides each operation; return whether the flow fitted the rule."""
    divided: dict[int, bool] = {}
    for position, op in enumerate(ops):
        if op.phase is not Phase.FORWARD:
            continue
        verdict = _divides(op, divided)
        if verdict is None:
            _clear(ops)
            return False
        divided[position], op.shard = verdict
    if not any(op.kind is OpKind.ATTENTION and op.shard is Shard.TENSOR for op in ops):
        _clear(ops)
        return False
    for op in ops:
        if op.phase is Phase.BACKWARD and not op.static:
            op.shard = _of_gradient(op, ops, divided)
        elif op.phase is Phase.BACKWARD and op.source is not None:
            op.shard = ops[op.source].shard
    return True


def _of_gradient(op: RawOp, ops: Sequence[RawOp], divided: dict[int, bool]) -> Shard:
    """Return what divides a gradient: what divides its operation, or what it is made of.

    The data gradient of a product by columns is whole, so a sum of such gradients is.
    """
    if op.source is not None:
        return ops[op.source].shard
    made_of = next((ops[i] for i in op.inputs if ops[i].phase is Phase.BACKWARD), None)
    if made_of is None:
        return Shard.NONE
    columns = made_of.source is not None and divided.get(made_of.source, False)
    if made_of.kind in _PRODUCTS and made_of.shard is Shard.TENSOR and columns:
        return Shard.SEQUENCE
    return made_of.shard


def _divides(op: RawOp, divided: dict[int, bool]) -> tuple[bool, Shard] | None:
    """Return (its output is divided, what divides it), or None where the rule does not fit."""
    if op.static:
        return False, Shard.NONE
    whole = [size for source, size in op.sizes.items() if not divided.get(source, False)]
    parts = [size for source, size in op.sizes.items() if divided.get(source, False)]
    if op.kind is OpKind.EMBEDDING:
        return False, Shard.TENSOR
    if op.kind in (OpKind.CONV, OpKind.CONV_1X1, OpKind.CONV_GROUPED, OpKind.CONV_DEPTHWISE):
        return (False, Shard.NONE) if not parts and op.block is not Block.LAYER else None
    if op.kind in _PRODUCTS and op.right_static:
        if op.block is Block.EMBED:
            return (False, Shard.NONE) if not parts else None
        return not parts, Shard.TENSOR
    if op.kind is OpKind.ATTENTION or parts:
        # A smaller whole operand (a mask, rotary angles) is shared by all heads.
        fits = bool(parts) and (not whole or max(whole) < max(parts))
        return (True, Shard.TENSOR) if fits else None
    return False, Shard.SEQUENCE


def _clear(ops: Sequence[RawOp]) -> None:
    for op in ops:
        op.shard = Shard.NONE
