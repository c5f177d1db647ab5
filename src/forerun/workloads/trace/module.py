"""A torch module becomes a Workload: one training step is traced, then read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from forerun.domain.graph import OpKind, Phase
from forerun.domain.workload import ACTIVATION_BYTES, OPTIMIZER_STATES, LayerShape, Workload
from forerun.errors import RequestError, UnknownNameError
from forerun.workloads.trace.backend import load_torch
from forerun.workloads.trace.layers import (
    find_layers,
    folded_graph,
    label_shards,
    mark_blocks,
    mark_materialised_attention,
)
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
        module: an nn.Module.
        example_inputs: a tensor, a tuple of positional arguments or a mapping of keyword
            arguments, with a leading batch side. Their values are not read.
        loss: from the output to a scalar; by default the output's `loss`, or the sum of its tensors.
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
    module = _unwrapped(module)
    name = name or type(module).__name__
    if not isinstance(module, torch.nn.Module):
        raise RequestError(
            f"trace {name}", f"it is a {type(module).__name__}, not a torch.nn.Module",
            "give a module; a function can be the forward of one",
        )  # fmt: skip
    if optimizer not in OPTIMIZER_STATES:
        raise UnknownNameError("optimizer", optimizer, OPTIMIZER_STATES)
    lazy = torch.nn.parameter.UninitializedTensorMixin
    if any(isinstance(p, lazy) for p in module.parameters()):
        raise RequestError(
            f"trace {type(module).__name__}", "it has lazy parameters without a shape",
            "call it once on an example input before it is traced",
        )  # fmt: skip
    call = _call_of(example_inputs, name)
    samples = samples or (max(1, call.tensors()[0].shape[0]) if call.tensors()[0].dim() else 1)
    precision = precision or _precision_of(module)
    if precision not in ACTIVATION_BYTES:
        raise UnknownNameError("precision", precision, ACTIVATION_BYTES)
    step = _run(module, call, loss, samples, ACTIVATION_BYTES[precision], name)
    ops, recorder = step.ops, step.recorder
    materialised = mark_materialised_attention(ops, samples)
    layers = find_layers(step.module, ops)
    mark_blocks(layers, ops)
    sharded = bool(layers) and label_shards(ops)
    parameters = list(step.module.parameters())
    graph = folded_graph(
        ops, layers, samples, optimizer, tuple(recorder.unknown),
        sum(p.requires_grad for p in parameters), recorder.book.unread_params(),
    )  # fmt: skip
    notes = list(step.notes)
    frozen = sum(p.numel() for p in parameters if not p.requires_grad)
    if frozen:
        notes.append(f"{frozen:,} frozen parameters are read but not trained")
    if graph.unknown:
        notes.append(f"bounded by the bytes they move: {', '.join(graph.unknown)}")
    return Workload(
        name=name,
        graph=graph,
        shape=_layer_shape(step, layers, sharded, materialised),
        family=type(step.module).__name__.lower() if parameters else "",
        precision=precision,
        framework="pytorch",
        optimizer=optimizer,
        dataset_size=dataset_size,
        fused_attention=materialised == 0,
        source=f"traced with torch {torch.__version__}",
        notes=tuple(notes),
        **_sample(call, samples, step),
    )


def _unwrapped(module: Any) -> Any:
    """Return the module inside wrappers that compile it or run it in parallel."""
    inner = getattr(module, "_orig_mod", None)
    parallel = load_torch().nn.parallel
    if inner is None and isinstance(
        module, parallel.DataParallel | parallel.DistributedDataParallel
    ):
        inner = module.module
    return module if inner is None else _unwrapped(inner)


def _run(
    module: Any, call: Call, loss: Loss | None, samples: int, activation_bytes: float, name: str
) -> Step:
    """Trace on meta; where that fails, run a small module for real."""
    try:
        return run_step(module, call, loss, "meta", samples, activation_bytes)
    except StepError as error:
        failed = error
    if sum(p.numel() for p in module.parameters()) >= LARGEST_REAL_PARAMS:
        raise RequestError(
            f"trace {name}",
            f"{failed.operation or 'it'} failed on the meta device: {_message(failed.error)}",
            "if the module itself is sound, register a meta kernel for that operation, or give a "
            f"model of the same kind with fewer than {LARGEST_REAL_PARAMS / 1e6:.0f} M parameters, "
            "which is run for real",
        ) from failed.error
    try:
        step = run_step(module, call, loss, "cpu", samples, activation_bytes)
    except StepError as error:
        raise RequestError(
            f"trace {name}",
            f"the module raised {_message(error.error)}",
            "check the module and the shapes of its example inputs: call it once yourself",
        ) from error.error
    where = f" at {failed.operation}" if failed.operation else ""
    reason = f"the meta device stopped{where}: {_message(failed.error)}"
    step.notes.insert(0, f"run for real on the CPU: {reason}")
    return step


def _message(error: BaseException) -> str:
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
        call = Call((), dict(example_inputs))
    elif isinstance(example_inputs, tuple | list):
        call = Call(tuple(example_inputs), {})
    else:
        call = Call((example_inputs,), {})
    if not call.tensors():
        raise RequestError(
            f"trace {name}", "its example inputs hold no tensor",
            "give at least one tensor with a leading batch side",
        )  # fmt: skip
    return call


def _precision_of(module: Any) -> str:
    torch = load_torch()
    kinds = Counter[Any]()
    for parameter in module.parameters():
        kinds[parameter.dtype] += parameter.numel()
    dtype = kinds.most_common(1)[0][0] if kinds else torch.float32
    named = {torch.float64: "fp64", torch.float16: "fp16", torch.bfloat16: "bf16"}
    return named.get(dtype, "fp32")


def _sample(call: Call, samples: int, step: Step) -> dict[str, Any]:
    """Return what one sample is, by the shape of the first input."""
    first = call.tensors()[0]
    sequential = (OpKind.ATTENTION, OpKind.RECURRENT, OpKind.EMBEDDING)
    has_order = any(op.kind in sequential for op in step.ops)
    if first.dim() == 4 and first.is_floating_point():
        return {"sample": "image", "image_size": int(first.shape[-1])}
    if first.dim() in (2, 3) and has_order and first.is_floating_point() == (first.dim() == 3):
        features = first.shape[-1] if first.dim() == 3 else 1
        return {"sample": "sequence", "seq_len": first.numel() // samples // features}
    return {}


def _layer_shape(
    step: Step, layers: Sequence[str], sharded: bool, materialised: int
) -> LayerShape:  # fmt: skip
    """Return the dimensions that plans divide; heads only where their division is understood."""
    heads = kv_heads = materialised
    if step.recorder.heads:
        heads, kv_heads = Counter(step.recorder.heads).most_common(1)[0][0]
    hidden = Counter(step.widths[n] for n in layers if n in step.widths).most_common(1)
    width = hidden[0][0] if hidden else 0
    forward = [op for op in step.ops if op.phase is Phase.FORWARD]
    products = [
        op.product
        for op in forward
        if op.kind is OpKind.MATMUL and op.right_static and op.product is not None
    ]
    down = [round(product.k) for product in products if product.n == width != product.k]
    return LayerShape(
        layers=len(layers),
        hidden=width,
        heads=heads if sharded else 0,
        kv_heads=kv_heads if sharded else 0,
        ffn=max(down, default=0) if heads else 0,
        vocab=max((op.table[0] for op in forward if op.table), default=0),
    )
