"""A torch module becomes a Workload: one training step is traced, then read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from forerun.domain.graph import OpKind, Phase
from forerun.domain.workload import ACTIVATION_BYTES, OPTIMIZER_STATES, LayerShape, Workload
from forerun.errors import RequestError, UnknownNameError
from forerun.workloads.trace.backend import load_torch
from forerun.workloads.trace.blocks import find_layers, mark_blocks, mark_materialised_attention
from forerun.workloads.trace.copies import cpu_copy, meta_copy, refuse_lazy, unwrapped
from forerun.workloads.trace.fold import fold
from forerun.workloads.trace.memory import tensors_in
from forerun.workloads.trace.shards import label_shards
from forerun.workloads.trace.step import Call, Loss, Step, StepError, run_step

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
