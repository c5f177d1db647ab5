"""Repeated layers of a module: which of its parts are layers, what comes before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from forerun.domain.graph import Block, OpKind, Phase
from forerun.workloads.trace.backend import load_torch
from forerun.workloads.trace.raw import RawOp

# Blocks that do next to no work are no layers, nor is a class that does little beside the others
# (the merging of patches between stages).
_LEAST_SHARE = 0.1
_LEAST_CLASS_SHARE = 0.05


def find_layers(module: Any, ops: Sequence[RawOp]) -> list[str]:
    """Return the names of a module's repeated layers, in the order of their first operation.

    A layer is a block held by a list or a sequence (ModuleList, Sequential, ModuleDict), of a class
    that occurs at least twice, outside every other layer. Plain operators are no blocks.

    Args:
        module: the module that was traced.
        ops: its operations.
    """
    candidates = _candidates(module)
    work = _work_by_name(candidates, ops)
    total = sum(op.flops for op in ops if op.phase is Phase.FORWARD)
    if total <= 0:
        return []
    by_class: dict[type, float] = {}
    counts = Counter(candidates.values())
    for name, kind in candidates.items():
        by_class[kind] = by_class.get(kind, 0.0) + work[name]
    kept = [
        name
        for name, kind in candidates.items()
        if counts[kind] > 1 and by_class[kind] >= _LEAST_CLASS_SHARE * max(by_class.values())
    ]
    layers = _outermost(kept)
    order = _first_positions(layers, ops)
    layers = sorted((name for name in layers if name in order), key=order.__getitem__)
    if len(layers) < 2 or sum(work[name] for name in layers) < _LEAST_SHARE * total:
        return []
    return layers


def mark_blocks(layers: Sequence[str], ops: Sequence[RawOp]) -> None:
    """State of each operation whether it comes before the layers, in or between them, or after.

    A backward operation stands where the forward one stands that it differentiates.
    """
    if not layers:
        return
    inside = [i for i, op in enumerate(ops) if op.phase is Phase.FORWARD and owner(op.path, layers)]
    first, last = inside[0], inside[-1]
    block = Block.HEAD
    for position, op in enumerate(ops):
        if op.phase is Phase.FORWARD:
            block = _block_at(position, first, last)
        elif op.source is not None:
            block = _block_at(op.source, first, last)
        op.block = block


def owner(path: str, layers: Sequence[str] | frozenset[str]) -> str:
    """Return the layer that a module's name lies in, "" where it lies in none."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        prefix = ".".join(parts[:end])
        if prefix in layers:
            return prefix
    return ""


def _block_at(position: int, first: int, last: int) -> Block:
    if position < first:
        return Block.EMBED
    return Block.HEAD if position > last else Block.LAYER


def _candidates(module: Any) -> dict[str, type]:
    """Return blocks held by lists and sequences, by name, with their class."""
    nn = load_torch().nn
    holders = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
    found: dict[str, type] = {}
    for name, part in module.named_modules():
        if not isinstance(part, holders):
            continue
        for child_name, child in part.named_children():
            plain = type(child).__module__.startswith("torch.nn.") and not any(child.children())
            if not plain and not isinstance(child, holders):
                found[f"{name}.{child_name}" if name else child_name] = type(child)
    return found


def _work_by_name(candidates: Mapping[str, type], ops: Sequence[RawOp]) -> dict[str, float]:
    """Return forward FLOPs inside each candidate; blocks inside blocks count for both."""
    work = dict.fromkeys(candidates, 0.0)
    by_path: dict[str, float] = {}
    for op in ops:
        if op.phase is Phase.FORWARD:
            by_path[op.path] = by_path.get(op.path, 0.0) + op.flops
    for path, flops in by_path.items():
        parts = path.split(".")
        for end in range(1, len(parts) + 1):
            prefix = ".".join(parts[:end])
            if prefix in work:
                work[prefix] += flops
    return work


def _outermost(names: Sequence[str]) -> list[str]:
    known = frozenset(names)
    return [name for name in names if not owner(name.rpartition(".")[0], known)]


def _first_positions(layers: Sequence[str], ops: Sequence[RawOp]) -> dict[str, int]:
    known = frozenset(layers)
    first: dict[str, int] = {}
    for position, op in enumerate(ops):
        if op.phase is Phase.FORWARD:
            name = owner(op.path, known)
            if name:
                first.setdefault(name, position)
    return first


def mark_materialised_attention(ops: Sequence[RawOp], samples: int) -> int:
    """Mark products of activations around a softmax as attention; return its heads, 0 for none.

    Heads are the matrices of the scores, for one sample.
    """
    heads = 0
    products = {
        i
        for i, op in enumerate(ops)
        if op.kind is OpKind.MATMUL and op.product and op.product.groups > 1
        and not (op.left_static or op.right_static)
    }  # fmt: skip
    around: set[int] = set()
    for position, op in enumerate(ops):
        if op.kind is not OpKind.SOFTMAX or op.phase is not Phase.FORWARD:
            continue
        scores = _upstream(ops, position, products)
        if scores is not None:
            product = ops[scores].product
            around.add(scores)
            if product is not None:
                heads = max(heads, round(product.groups / samples))
    for position in sorted(products):
        op = ops[position]
        if op.phase is Phase.FORWARD:
            belongs = _upstream(ops, position, around) is not None
        else:
            belongs = op.source in around
        if belongs:
            around.add(position)
    for position in around:
        ops[position].kind = OpKind.ATTENTION
    return heads


def _upstream(ops: Sequence[RawOp], position: int, wanted: set[int], steps: int = 6) -> int | None:
    """Return the nearest operation wanted before one, through operations that keep its size."""
    here = [position]
    for _ in range(steps):
        here = [
            source
            for start in here
            for source in ops[start].inputs
            if source in wanted
            or ops[source].kind in (OpKind.ELEMENTWISE, OpKind.COPY, OpKind.SOFTMAX)
        ]
        found = next((source for source in here if source in wanted), None)
        if found is not None:
            return found
    return None
