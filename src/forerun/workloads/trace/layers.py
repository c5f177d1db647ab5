"""Repeated layers of a traced step: found, labelled for parallel plans, and written once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from forerun.domain.graph import Block, Graph, Op, OpKind, Phase, Shard
from forerun.workloads.backward import CONVOLUTIONS, optimizer_op
from forerun.workloads.trace.aten import sample_shape
from forerun.workloads.trace.backend import load_torch
from forerun.workloads.trace.recorder import RawOp

# Blocks that do next to no work are no layers, nor is a class that does little beside the others
# (the merging of patches between stages).
_LEAST_SHARE = 0.1
_LEAST_CLASS_SHARE = 0.05


def find_layers(module: Any, ops: Sequence[RawOp]) -> list[str]:
    """Return the names of a module's repeated layers, in the order of their first operation.

    A layer is a block in a ModuleList, Sequential or ModuleDict, of a class that occurs at least
    twice, outside every other layer. Plain operators are no blocks.
    """
    classes = _candidates(module)
    work = dict.fromkeys(classes, 0.0)  # forward FLOPs; blocks inside blocks count for both
    paths: dict[str, float] = {}
    for op in ops:
        if op.phase is Phase.FORWARD:
            paths[op.path] = paths.get(op.path, 0.0) + op.flops
    for path, flops in paths.items():
        parts = path.split(".")
        for end in range(1, len(parts) + 1):
            name = ".".join(parts[:end])
            if name in work:
                work[name] += flops
    total, counts = sum(paths.values()), Counter(classes.values())
    by_class: dict[type, float] = {}
    for name, kind in classes.items():
        by_class[kind] = by_class.get(kind, 0.0) + work[name]
    least = _LEAST_CLASS_SHARE * max(by_class.values(), default=0.0)
    kept = {name for name, kind in classes.items() if counts[kind] > 1 and by_class[kind] >= least}
    outermost = {name for name in kept if not layer_of(name.rpartition(".")[0], kept)}
    # Paths stand in the order in which they first ran.
    layers = [name for name in dict.fromkeys(layer_of(p, outermost) for p in paths) if name]
    if total <= 0 or len(layers) < 2 or sum(work[n] for n in layers) < _LEAST_SHARE * total:
        return []
    return layers


def _candidates(module: Any) -> dict[str, type]:
    nn = load_torch().nn
    holders = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
    found: dict[str, type] = {}
    for name, part in module.named_modules():
        if not isinstance(part, holders):
            continue
        for child_name, child in part.named_children():
            plain = type(child).__module__.startswith("torch.nn.") and not any(child.children())
            if not plain and not isinstance(child, holders):
                found[f"{name}.{child_name}" if name else child_name] = type(child)
    return found


def layer_of(path: str, layers: Sequence[str] | set[str]) -> str:
    """Return the layer that a module's name lies in, "" where it lies in none."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        prefix = ".".join(parts[:end])
        if prefix in layers:
            return prefix
    return ""


def mark_blocks(layers: Sequence[str], ops: Sequence[RawOp]) -> None:
    """State of each operation whether it comes before the layers, in or between them, or after."""
    forward = [i for i, op in enumerate(ops) if op.phase is Phase.FORWARD]
    inside = [i for i in forward if layer_of(ops[i].path, layers)]
    if not inside:
        return
    block = Block.HEAD
    for position, op in enumerate(ops):
        place = position if op.phase is Phase.FORWARD else op.source
        if place is not None:
            block = Block.HEAD if place > inside[-1] else Block.LAYER
            block = Block.EMBED if place < inside[0] else block
        op.block = block


def mark_materialised_attention(ops: Sequence[RawOp], samples: int) -> int:
    """Mark products of activations around a softmax as attention; return its heads, 0 for none."""
    heads = 0
    products = {
        i: op.product
        for i, op in enumerate(ops)
        if op.kind is OpKind.MATMUL and op.product and op.product.groups > 1
        and not (op.left_static or op.right_static)
    }  # fmt: skip
    around: set[int] = set()
    for position, op in enumerate(ops):
        if op.kind is OpKind.SOFTMAX and op.phase is Phase.FORWARD:
            scores = _upstream(ops, position, set(products))
            if scores is not None:
                around.add(scores)
                heads = max(heads, round(products[scores].groups / samples))
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


def label_shards(ops: Sequence[RawOp]) -> bool:
    """State in place what tensor parallelism divides; return whether the flow of data fitted it."""
    divided: dict[int, bool] = {}
    labels: dict[int, Shard] = {}
    for position, op in enumerate(ops):
        if op.phase is Phase.FORWARD:
            verdict = _divides(op, divided)
            if verdict is None:
                return False
            divided[position], labels[position] = verdict
    if not any(ops[i].kind is OpKind.ATTENTION and labels[i] is Shard.TENSOR for i in labels):
        return False
    for position, op in enumerate(ops):
        if op.source is not None:
            labels[position] = labels.get(op.source, Shard.NONE)
        elif op.phase is Phase.BACKWARD and not op.static:
            labels[position] = _label_of_sum(op, ops, divided, labels)
        op.shard = labels.get(position, Shard.NONE)
    return True


def _label_of_sum(
    op: RawOp, ops: Sequence[RawOp], divided: Mapping[int, bool], labels: Mapping[int, Shard]
) -> Shard:
    """Return what divides a gradient that no forward operation has: what divides its first term."""
    term = next((i for i in op.inputs if ops[i].phase is Phase.BACKWARD), None)
    if term is None:
        return Shard.NONE
    first = ops[term]
    columns = first.source is not None and divided.get(first.source, False)
    if first.kind is OpKind.MATMUL and labels.get(term) is Shard.TENSOR and columns:
        return Shard.SEQUENCE
    return labels.get(term, Shard.NONE)


def _divides(op: RawOp, divided: Mapping[int, bool]) -> tuple[bool, Shard] | None:
    """Return (its output is divided, what divides it), or None where the rule does not fit."""
    if op.static:
        return False, Shard.NONE
    whole = [size for source, size in op.sizes.items() if not divided.get(source, False)]
    parts = [size for source, size in op.sizes.items() if divided.get(source, False)]
    if op.kind is OpKind.EMBEDDING:
        return False, Shard.TENSOR
    if op.kind in CONVOLUTIONS:
        return (False, Shard.NONE) if not parts and op.block is not Block.LAYER else None
    if op.kind is OpKind.MATMUL and op.right_static:
        if op.block is Block.EMBED:
            return (False, Shard.NONE) if not parts else None
        return not parts, Shard.TENSOR
    if op.kind is OpKind.ATTENTION or parts:
        # A smaller whole operand (a mask, rotary angles) is shared by all heads.
        fits = bool(parts) and (not whole or max(whole) < max(parts))
        return (True, Shard.TENSOR) if fits else None
    return False, Shard.SEQUENCE


def folded_graph(
    ops: Sequence[RawOp], layers: Sequence[str], samples: int, optimizer: str,
    unknown: Sequence[str], tensors: int, unused: float,
) -> Graph:  # fmt: skip
    """Return the graph of a step; layers with the same operations are written once, with `repeat`.

    Of those the one that runs first in its phase stays, so that edges still point backward.
    `tensors` the optimizer updates; `unused` parameters no operation read.
    """
    stands_for, prefixes = _folding(ops, set(layers), samples)
    repeats = Counter(stands_for.values())
    positions: dict[int, int] = {}
    made: list[Op] = []
    names = Counter[str]()
    for index, op in enumerate(ops):
        if stands_for.get(index, index) != index:
            continue
        inputs = {positions[stands_for.get(i, i)] for i in op.inputs}
        positions[index] = len(made)
        name = _name(op, ops, prefixes.get(index, ""))
        names[name] += 1
        made.append(
            Op(
                name if names[name] == 1 else f"{name}_{names[name]}",
                op.kind, op.phase, op.flops, op.reads, op.writes, op.weights, op.params,
                op.shape if op.static else sample_shape(op.shape, samples),
                op.dims(samples), op.saved, op.launches, repeats.get(index, 1), op.block, op.shard,
                tuple(sorted(inputs)),
            )
        )  # fmt: skip
    if unused:
        made.append(Op("unused_parameters", OpKind.COPY, params=unused, launches=0))
    params = sum(op.params * op.repeat for op in made)
    made.append(optimizer_op(params, tensors, optimizer))
    return Graph(tuple(made), tuple(unknown))


def _folding(
    ops: Sequence[RawOp], layers: set[str], samples: int
) -> tuple[dict[int, int], dict[int, str]]:
    """Return the operation that stands for each one of a layer, and the layers of those folded."""
    stands_for: dict[int, int] = {}
    prefixes: dict[int, str] = {}
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        members: dict[str, list[int]] = {}
        for index, op in enumerate(ops):
            name = layer_of(op.path, layers) if op.phase is phase else ""
            if name:
                members.setdefault(name, []).append(index)
        first: dict[tuple[object, ...], str] = {}
        for name, mine in members.items():
            signature = tuple(_signature(ops[i], name, samples) for i in mine)
            kept = first.setdefault(signature, name)
            for index, stays in zip(mine, members[kept], strict=True):
                stands_for[index] = stays
                if kept != name:
                    prefixes[stays] = kept
    return stands_for, prefixes


def _signature(op: RawOp, layer: str, samples: int) -> tuple[object, ...]:
    return (
        op.path[len(layer) :], op.label, op.kind, op.flops, op.reads, op.writes, op.weights,
        op.params, op.saved, op.launches, op.shape, op.dims(samples), op.block, op.shard,
    )  # fmt: skip


def _name(op: RawOp, ops: Sequence[RawOp], prefix: str) -> str:
    label = op.label
    if op.source is not None:
        if op.weight_gradient:
            label = "wgrad"
        elif op.product is not None and op.kind is not OpKind.ATTENTION:
            label = "dgrad"
        label = f"{ops[op.source].label}.{label}"
    name = f"{op.path}.{label}" if op.path else label
    parts = prefix.split(".")
    for place in reversed(range(len(parts))):
        if parts[place].isdigit():
            parts[place] = "*"
            break
    return ".".join(parts) + name[len(prefix) :]
