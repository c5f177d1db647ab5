"""Folding: the operations of a step become a Graph in which equal layers are written once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from forerun.domain.graph import Graph, Op, OpKind, Phase
from forerun.workloads.backward import optimizer_op
from forerun.workloads.trace.blocks import owner
from forerun.workloads.trace.raw import RawOp


@dataclass
class _Folding:
    """Which operations stay, and which one stands for each that goes."""

    stands_for: dict[int, int] = field(default_factory=dict)
    repeat: dict[int, int] = field(default_factory=dict)
    prefix: dict[int, str] = field(default_factory=dict)


def fold(
    ops: Sequence[RawOp], layers: Sequence[str], samples: int, optimizer: str,
    unknown: Sequence[str], tensors: int, unused: float,
) -> Graph:  # fmt: skip
    """Return the graph of a step.

    Layers with the same operations are written once, with `repeat`: the one that runs first in
    its phase stays, so that edges still point backward.

    Args:
        ops: forward and backward operations in order.
        layers: names of repeated layers.
        samples: in the traced batch.
        optimizer: a key of `OPTIMIZER_STATES`.
        unknown: operations whose cost is only bounded.
        tensors: parameter tensors that the optimizer updates.
        unused: trainable parameters that no operation read.
    """
    folding = _fold_layers(ops, frozenset(layers), samples)
    positions: dict[int, int] = {}
    made: list[Op] = []
    names: dict[str, int] = {}
    for index, op in enumerate(ops):
        if index in folding.stands_for:
            continue
        inputs = {positions[folding.stands_for.get(i, i)] for i in op.inputs}
        positions[index] = len(made)
        name = _unique(_name(op, ops, folding.prefix.get(index, "")), names)
        made.append(_op(op, name, samples, folding.repeat.get(index, 1), inputs))
    if unused:
        made.append(Op("unused_parameters", OpKind.COPY, params=unused, launches=0))
    params = sum(op.params * op.repeat for op in made)
    made.append(optimizer_op(params, tensors, optimizer))
    return Graph(tuple(made), tuple(unknown))


def _op(op: RawOp, name: str, samples: int, repeat: int, inputs: set[int]) -> Op:
    return Op(
        name=name,
        kind=op.kind,
        phase=op.phase,
        flops=op.flops,
        reads=op.reads,
        writes=op.writes,
        weights=op.weights,
        params=op.params,
        shape=op.sample_shape(samples),
        dims=op.dims(samples),
        saved=op.saved,
        launches=op.launches,
        repeat=repeat,
        block=op.block,
        shard=op.shard,
        inputs=tuple(sorted(inputs)),
    )


def _name(op: RawOp, ops: Sequence[RawOp], prefix: str) -> str:
    """Return a dotted path; a gradient is named after the operation that it differentiates."""
    label = op.label
    if op.source is not None:
        if op.weight_gradient:
            label = "wgrad"
        elif op.product is not None and op.kind is not OpKind.ATTENTION:
            label = "dgrad"
        label = f"{ops[op.source].label}.{label}"
    name = f"{op.path}.{label}" if op.path else label
    return _starred(name, prefix) if prefix else name


def _starred(name: str, prefix: str) -> str:
    """Return a layer's name with a star in place of its position (layers.*.attention)."""
    parts = prefix.split(".")
    for place in reversed(range(len(parts))):
        if parts[place].isdigit():
            parts[place] = "*"
            break
    return ".".join(parts) + name[len(prefix) :]


def _unique(name: str, names: dict[str, int]) -> str:
    count = names[name] = names.get(name, 0) + 1
    return name if count == 1 else f"{name}_{count}"


def _fold_layers(ops: Sequence[RawOp], layers: frozenset[str], samples: int) -> _Folding:
    folding = _Folding()
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        members: dict[str, list[int]] = {}
        for index, op in enumerate(ops):
            name = owner(op.path, layers) if op.phase is phase else ""
            if name:
                members.setdefault(name, []).append(index)
        first: dict[tuple[object, ...], str] = {}
        for name, mine in members.items():
            signature = tuple(_signature(ops[i], name, samples) for i in mine)
            kept = first.setdefault(signature, name)
            for index, stays in zip(mine, members[kept], strict=True):
                folding.repeat[stays] = folding.repeat.get(stays, 0) + 1
                if kept != name:
                    folding.stands_for[index] = stays
                    folding.prefix[stays] = kept
    return folding


def _signature(op: RawOp, layer: str, samples: int) -> tuple[object, ...]:
    """Return what must be equal for two operations of two layers to be written as one."""
    return (
        op.path[len(layer) :], op.label, op.kind, op.flops, op.reads, op.writes, op.weights,
        op.params, op.saved, op.launches, op.shape, op.dims(samples), op.block, op.shard,
    )  # fmt: skip
