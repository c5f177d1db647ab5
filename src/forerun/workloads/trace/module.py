"""A torch module becomes a Workload: one training step is traced, then read.

What tensor parallelism would divide in a traced layer, told from how data flows through it.

Folding: the operations of a step become a Graph in which equal layers are written once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from forerun.domain.graph import Block, Graph, Op, OpKind, Phase, Shard
from forerun.domain.workload import ACTIVATION_BYTES, OPTIMIZER_STATES, LayerShape, Workload
from forerun.errors import RequestError, UnknownNameError
from forerun.workloads.backward import optimizer_op
from forerun.workloads.trace.backend import load_torch
from forerun.workloads.trace.blocks import (
    find_layers,
    mark_blocks,
    mark_materialised_attention,
    owner,
)
from forerun.workloads.trace.copies import cpu_copy, meta_copy, refuse_lazy, unwrapped
from forerun.workloads.trace.memory import tensors_in
from forerun.workloads.trace.raw import RawOp
from forerun.workloads.trace.step import Call, Loss, Step, StepError, run_step


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


# A module with fewer parameters is run for real where the meta device cannot run it.
LARGEST_REAL_PARAMS = 50e6


def trace_module(
    module: Any,
    example_inputs: Any = None,
    *,
    loss: Loss | None = None,
    optimizer: str = "adamw",
    precision: str | None = None,
    name: str = "",
    samples: int | None = None,
    dataset_size: float = 0.0,
) -> Workload:
    """Return the workload of training a module, from one step traced on the meta device.

    The module is copied without its weights and never changed. Where the meta device cannot run
    it and it is small, the copy is run once for real on the CPU.

    Args:
        module: an nn.Module, or a function of tensors (run as it is, on its tensors' device).
        example_inputs: a tensor, a tuple of positional arguments or a mapping of keyword
            arguments, with a leading batch side. Their values are not read.
        loss: a function from the module's output to a scalar; by default the output's own `loss`,
            or the sum of its floating-point tensors.
        optimizer: a key of `OPTIMIZER_STATES`; it is one derived operation.
        precision: arithmetic of the step; by default that of the parameters.
        name: of the workload; by default the module's class.
        samples: in the example inputs; by default the leading side of the first tensor.
        dataset_size: samples in an epoch, 0 where not known.

    Raises:
        MissingExtraError: torch is not installed.
        RequestError: no example inputs, a module that raises or cannot be traced, no loss.
    """
    torch = load_torch()
    name = name or getattr(module, "__name__", "") or type(unwrapped(module)).__name__
    if optimizer not in OPTIMIZER_STATES:
        raise UnknownNameError("optimizer", optimizer, OPTIMIZER_STATES)
    is_module = isinstance(module, torch.nn.Module)
    if is_module:
        refuse_lazy(module)
    call = _call_of(example_inputs, name)
    samples = samples or _samples_of(call, name)
    precision = precision or _precision_of(module)
    if precision not in ACTIVATION_BYTES:
        raise UnknownNameError("precision", precision, ACTIVATION_BYTES)
    runner = _trace if is_module else _trace_function
    step, traced, notes = runner(module, call, loss, samples, ACTIVATION_BYTES[precision], name)
    return _workload(
        step, traced, call, samples, notes,
        name=name, optimizer=optimizer, precision=precision, dataset_size=dataset_size,
    )  # fmt: skip


_Traced = tuple[Step, Any, list[str]]


def _trace(
    module: Any, call: Call, loss: Loss | None, samples: int, activation_bytes: float, name: str
) -> _Traced:
    """Trace on meta; where that fails, run a small module for real."""
    module = unwrapped(module)
    count = sum(p.numel() for p in module.parameters())
    copied = meta_copy(module)
    try:
        return run_step(copied, call, loss, "meta", samples, activation_bytes), copied, []
    except StepError as error:
        failed = error
    if count >= LARGEST_REAL_PARAMS:
        raise RequestError(
            f"trace {name}",
            f"{failed.operation or 'it'} failed on the meta device: {_told(failed.error)}",
            "if the module itself is sound, register a meta kernel for that operation, or give a "
            f"model of the same kind with fewer than {LARGEST_REAL_PARAMS / 1e6:.0f} M parameters, "
            "which is run for real",
        ) from failed.error
    copied = cpu_copy(module)
    try:
        step = run_step(copied, call, loss, "cpu", samples, activation_bytes)
    except StepError as error:
        raise RequestError(
            f"trace {name}",
            f"the module raised {_told(error.error)}",
            "check the module and the shapes of its example inputs: call it once yourself",
        ) from error.error
    where = f" at {failed.operation}" if failed.operation else ""
    note = f"run for real on the CPU: the meta device stopped{where}: {_told(failed.error)}"
    return step, copied, [note]


def _trace_function(
    function: Any, call: Call, loss: Loss | None, samples: int, activation_bytes: float, name: str
) -> _Traced:
    """Trace a plain function where its tensors are, and put back the gradients that it made."""
    if not callable(function):
        raise RequestError(
            f"trace {name}", f"a {type(function).__name__} is neither a module nor a function",
            "give a torch.nn.Module, or a function of tensors that returns a loss",
        )  # fmt: skip
    torch = load_torch()
    given = call.tensors()
    device = "meta" if all(t.is_meta for t in given) else "cpu"
    touched: dict[Any, Any] = {}

    def watched(*args: Any, **kwargs: Any) -> Any:
        output = function(*args, **kwargs)
        for leaf in _leaves(tensors_in((output,))):
            touched.setdefault(leaf, leaf.grad)
        return output

    try:
        step = run_step(watched, call, loss, device, samples, activation_bytes)
    except StepError as error:
        raise RequestError(
            f"trace {name}", f"the function raised {_told(error.error)}",
            "check it and its example inputs: call it once yourself",
        ) from error.error  # fmt: skip
    finally:
        for leaf, grad in touched.items():
            leaf.grad = grad
    return step, torch.nn.Module(), ["a plain function was traced with its own tensors"]


def _leaves(outputs: Any) -> list[Any]:
    """Return the tensors whose gradients a backward pass from these outputs would fill."""
    seen, leaves = set(), []
    nodes = [t.grad_fn for t in outputs if t.grad_fn is not None]
    while nodes:
        node = nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        nodes += [parent for parent, _ in node.next_functions if parent is not None]
    return leaves


def _told(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:160]}" if text else type(error).__name__


def _call_of(example_inputs: Any, name: str) -> Call:
    if example_inputs is None:
        raise RequestError(
            f"trace {name}", "no example inputs were given",
            "give example_inputs: a tensor, a tuple or a mapping of tensors with a leading batch "
            "side (a path package.module:callable may return (module, example_inputs))",
        )  # fmt: skip
    if isinstance(example_inputs, Mapping):
        return Call((), dict(example_inputs))
    if isinstance(example_inputs, tuple | list):
        return Call(tuple(example_inputs), {})
    return Call((example_inputs,), {})


def _samples_of(call: Call, name: str) -> int:
    tensors = call.tensors()
    if not tensors:
        raise RequestError(
            f"trace {name}", "its example inputs hold no tensor",
            "give at least one tensor with a leading batch side, or samples=",
        )  # fmt: skip
    return max(1, tensors[0].shape[0]) if tensors[0].dim() else 1


def _precision_of(module: Any) -> str:
    torch = load_torch()
    if not isinstance(module, torch.nn.Module):
        return "fp32"
    kinds = Counter[Any]()
    for parameter in module.parameters():
        kinds[parameter.dtype] += parameter.numel()
    dtype = kinds.most_common(1)[0][0] if kinds else torch.float32
    named = {torch.float64: "fp64", torch.float16: "fp16", torch.bfloat16: "bf16"}
    return named.get(dtype, "fp32")


def _workload(
    step: Step, module: Any, call: Call, samples: int, notes: list[str], *,
    name: str, optimizer: str, precision: str, dataset_size: float,
) -> Workload:  # fmt: skip
    ops, recorder = step.ops, step.recorder
    materialised = mark_materialised_attention(ops, samples)
    layers = find_layers(module, ops)
    mark_blocks(layers, ops)
    sharded = bool(layers) and label_shards(ops)
    notes = [*notes, *recorder.fakes.notes, *_parameter_notes(module)]
    trainable = [p for p in module.parameters() if p.requires_grad]
    graph = fold(
        ops, layers, samples, optimizer, tuple(recorder.unknown), len(trainable),
        sum(memory.params for memory in recorder.book.weights()),
    )  # fmt: skip
    if graph.unknown:
        notes.append(f"bounded by the bytes they move: {', '.join(graph.unknown)}")
    return Workload(
        name=name,
        graph=graph,
        shape=_shape(step, layers, sharded, materialised),
        family=type(module).__name__.lower() if list(module.parameters()) else "",
        precision=precision,
        framework="pytorch",
        optimizer=optimizer,
        dataset_size=dataset_size,
        fused_attention=materialised == 0,
        source=f"traced with torch {load_torch().__version__}",
        notes=tuple(notes),
        **_sample(call, samples, ops),
    )


def _parameter_notes(module: Any) -> list[str]:
    frozen = sum(p.numel() for p in module.parameters() if not p.requires_grad)
    return [f"{frozen:,} frozen parameters are read but not trained"] if frozen else []


def _sample(call: Call, samples: int, ops: Sequence[Any]) -> dict[str, Any]:
    """Return what one sample is, by the shape of the first input."""
    first = call.tensors()[0]
    known: dict[str, Any] = {}
    sequential = (OpKind.ATTENTION, OpKind.RECURRENT, OpKind.EMBEDDING)
    has_order = any(op.kind in sequential for op in ops)
    if first.dim() == 4 and first.is_floating_point():
        known |= {"sample": "image", "image_size": int(first.shape[-1])}
    elif first.dim() in (2, 3) and has_order and first.is_floating_point() == (first.dim() == 3):
        known |= {"sample": "sequence", "seq_len": first.numel() // samples}
        if first.dim() == 3:
            known["seq_len"] //= first.shape[-1]
    return known


def _shape(step: Step, layers: Sequence[str], sharded: bool, materialised: int) -> LayerShape:
    """Return the dimensions that plans divide; heads only where their division is understood."""
    ops = step.ops
    heads, kv_heads = materialised, materialised
    if step.recorder.heads:
        common = Counter(step.recorder.heads).most_common(1)[0][0]
        heads, kv_heads = common.heads, common.kv_heads
    hidden = Counter(step.widths[n] for n in layers if n in step.widths).most_common(1)
    width = hidden[0][0] if hidden else 0
    products = [
        op.product
        for op in ops
        if op.phase is Phase.FORWARD and op.kind is OpKind.MATMUL and op.right_static
        and op.product is not None
    ]  # fmt: skip
    down = [round(product.k) for product in products if product.n == width != product.k]
    tables = [op.table[0] for op in ops if op.phase is Phase.FORWARD and op.table]
    return LayerShape(
        layers=len(layers),
        hidden=width,
        heads=heads if sharded else 0,
        kv_heads=kv_heads if sharded else 0,
        ffn=max(down, default=0) if heads else 0,
        vocab=max(tables, default=0),
    )
