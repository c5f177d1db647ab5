"""A torch module, or `package.module:callable`, becomes a Workload: one step is traced on the meta device.

Nothing is computed, so a model that fits no machine traces in seconds; `backend` alone imports torch.
"""

from __future__ import annotations

import copy
import inspect
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from forerun.domain.graph import Block, Graph, Op, OpKind, Phase, Shard
from forerun.domain.workload import (
    ACTIVATION_BYTES,
    DEPENDS_ON_DATA,
    NO_OPERATION_READS,
    OPTIMIZER_STATES,
    LayerShape,
    Workload,
)
from forerun.errors import ForerunError, RequestError, UnknownNameError
from forerun.registry import imported
from forerun.workloads.backward import CONVOLUTIONS, optimizer_op
from forerun.workloads.trace.aten import sample_shape
from forerun.workloads.trace.backend import dispatch_mode, function_mode, load_torch
from forerun.workloads.trace.fused import Fusions
from forerun.workloads.trace.recorder import (
    MOST_OPERATIONS,
    MOST_READS,
    EndlessError,
    MemoryBook,
    OpRecorder,
    RawOp,
    tensors_in,
)

Loss = Callable[[Any], Any]
# Spread of the random weights where a module that has none must be run for real.
_WEIGHT_SPREAD = 0.02
_UNCOPIED = (TypeError, RuntimeError, AttributeError, ValueError, NotImplementedError)


@dataclass(frozen=True, slots=True)
class Call:
    """How a module is called: positional and keyword arguments."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def tensors(self) -> list[Any]:
        """Return its tensors in order."""
        return list(tensors_in((*self.args, *self.kwargs.values())))


@dataclass
class Step:
    """What was seen of one training step; `widths`: the last side of module outputs of three sides."""

    module: Any
    recorder: OpRecorder
    widths: dict[str, int] = field(default_factory=dict)

    def work(self) -> tuple[float, int]:
        """Return FLOPs a sample, and minus the parameters that no operation read."""
        return sum(op.flops for op in self.recorder.ops), -self.unread()[0]

    def unread(self) -> tuple[int, list[str]]:
        """Return the parameters that no operation read: how many, and the outermost names that hold them."""
        book, left, used = self.recorder.book, {}, {""}
        for name, parameter in self.module.named_parameters():
            memory = book.find(parameter)
            if memory is None or not memory.touched:
                left[name] = int(parameter.numel())
            else:
                used.update(_prefixes(name))
        names = (next(part for part in _prefixes(name) if part not in used) for name in left)
        return sum(left.values()), list(dict.fromkeys(names))


class StepError(Exception):
    """The step did not run: the operation that ran, what was raised, and the last line that read a value."""

    def __init__(self, operation: str, error: BaseException, line: str) -> None:
        super().__init__(operation, error, line)
        self.operation = operation
        self.error = error
        self.line = line


def run_step(
    module: Any, call: Call, loss: Loss | None, device: str, samples: int, activation_bytes: float,
    others: Collection[str] = (), most: int | None = None, most_reads: float = MOST_READS,
) -> Step:  # fmt: skip
    """Run one training step of a copy of a module on meta or cpu and return what was seen.

    On meta no weight is read; on the CPU weights without values are made up. `loss` None is the
    module's own loss or the sum of its output. `others`: lines that read the other value of a tensor
    (`OpRecorder`). Raises StepError where forward, loss or backward raised, EndlessError where it has
    more than `most` operations, or one line reads values more than `most_reads` times.
    """
    torch = load_torch()
    convert = _to_meta if device == "meta" else _to_cpu
    copied = _copied(module, convert)
    args, kwargs = torch.utils._pytree.tree_map_only(
        torch.Tensor, convert, (call.args, dict(call.kwargs))
    )
    book = MemoryBook(float(_main_dtype(copied).itemsize), activation_bytes, samples)
    for parameter in copied.parameters():  # a tied parameter is one memory and counts once
        memory = book.find(parameter) or book.enter(parameter, static=True, weight=True)
        memory.params += float(parameter.numel()) if parameter.requires_grad else 0.0
    for buffer in copied.buffers():
        if book.find(buffer) is None:
            book.enter(buffer, static=True, weight=True)
    for tensor, original in zip(Call(args, kwargs).tensors(), call.tensors(), strict=True):
        real = None if original.device.type != "cpu" else original.detach()
        book.enter(tensor, real=real)
    recorder = OpRecorder(book, others, most, most_reads)
    step = Step(copied, recorder)
    try:
        with torch.enable_grad(), _watched(step, device):
            with torch.autograd.graph.saved_tensors_hooks(recorder.keep, lambda tensor: tensor):
                value = scalar_loss(copied(*args, **kwargs), loss)
            recorder.phase = Phase.BACKWARD
            value.backward()
    except Exception as error:
        if recorder.is_endless:
            raise
        raise StepError(recorder.running, error, next(reversed(recorder.read), "")) from error
    return step


def scalar_loss(output: Any, loss: Loss | None) -> Any:
    """Return the loss of an output: given, its own, or the sum of its floating tensors. Raises RequestError."""
    torch = load_torch()
    if loss is not None:
        value = loss(output)
    else:
        value = output.get("loss") if isinstance(output, Mapping) else None
        value = getattr(output, "loss", None) if value is None else value
    if value is None:
        values = vars(output).values() if hasattr(output, "__dataclass_fields__") else (output,)
        # Outputs of model libraries are mappings that are no dict.
        plain = (dict(v) if isinstance(v, Mapping) else v for v in values)
        leaves = [t for t in tensors_in(plain) if t.requires_grad]
        parts = [t.sum() if t.dim() else t for t in leaves if t.is_floating_point()]
        value = sum(parts[1:], parts[0]) if parts else None
    if not isinstance(value, torch.Tensor) or not value.requires_grad or value.numel() != 1:
        raise RequestError(
            "one training step",
            "its output holds no floating-point tensor that depends on a parameter"
            if value is None else "the loss is not a scalar that depends on a parameter",
            "give loss=, a function from the module's output to a scalar tensor",
        )  # fmt: skip
    return value


@contextmanager
def _watched(step: Step, device: str) -> Iterator[None]:
    """Watch modules, calls and operations while a step runs; global random state is put back."""
    torch, recorder = load_torch(), step.recorder
    names = {part: name for name, part in step.module.named_modules()}
    stack: list[str] = []

    def enter(part: Any, args: Any) -> None:
        stack.append(recorder.path)
        recorder.path = names.get(part, recorder.path)

    def leave(part: Any, args: Any, output: Any) -> None:
        first = next(tensors_in((output,)), None)
        if first is not None and first.dim() == 3:
            step.widths[recorder.path] = int(first.shape[-1])
        recorder.path = stack.pop() if stack else ""

    with ExitStack() as contexts:
        contexts.enter_context(torch.random.fork_rng(devices=[]))
        hooks = torch.nn.modules.module
        contexts.callback(hooks.register_module_forward_pre_hook(enter).remove)
        contexts.callback(hooks.register_module_forward_hook(leave).remove)
        contexts.enter_context(torch.device(device))
        contexts.enter_context(function_mode(Fusions(recorder, device).intercept))
        contexts.enter_context(dispatch_mode(recorder.intercept))
        yield


def _main_dtype(module: Any) -> Any:
    counts = Counter[Any]()
    for parameter in module.parameters():
        if parameter.is_floating_point():
            counts[parameter.dtype] += parameter.numel()
    return counts.most_common(1)[0][0] if counts else load_torch().float32


def _copied(module: Any, convert: Callable[[Any], Any]) -> Any:
    torch = load_torch()
    memo: dict[int, Any] = {}  # converted tensors by the identity of the original, for deepcopy
    for part in module.modules():
        for held in (part._parameters, part._buffers, vars(part)):
            for tensor in held.values():
                if isinstance(tensor, torch.Tensor) and id(tensor) not in memo:
                    moved = convert(tensor)
                    if isinstance(tensor, torch.nn.Parameter):
                        moved = torch.nn.Parameter(moved, requires_grad=tensor.requires_grad)
                    memo[id(tensor)] = moved
    try:
        made = copy.deepcopy(module, dict(memo))
    except _UNCOPIED:
        made = _cloned(module, memo)
    return made.train()


def _cloned(module: Any, memo: dict[int, Any]) -> Any:
    """Return a copy of a module that shares the attributes which cannot be copied."""
    if id(module) in memo:
        return memo[id(module)]
    made = memo[id(module)] = object.__new__(type(module))
    for name, value in vars(module).items():
        if name == "_modules":
            copied: Any = {n: None if c is None else _cloned(c, memo) for n, c in value.items()}
        else:
            try:
                copied = copy.deepcopy(value, memo)
            except _UNCOPIED:
                copied = value
        made.__dict__[name] = copied
    return made


def _to_meta(tensor: Any) -> Any:
    made = load_torch().empty_like(tensor, device="meta", requires_grad=False)
    return made.requires_grad_() if _is_learned_input(tensor) else made


def _to_cpu(tensor: Any) -> Any:
    torch = load_torch()
    if not tensor.is_meta:
        moved = tensor.detach().to("cpu", copy=True)
    elif tensor.is_floating_point():
        made = torch.randn(tensor.shape, dtype=torch.float32) * _WEIGHT_SPREAD
        moved = made.to(tensor.dtype)
    else:
        moved = torch.zeros(tensor.shape, dtype=tensor.dtype)
    return moved.requires_grad_() if _is_learned_input(tensor) else moved


def _is_learned_input(tensor: Any) -> bool:
    return bool(tensor.requires_grad and tensor.is_leaf) and not isinstance(
        tensor, load_torch().nn.Parameter
    )


_NAMED = 4  # names in a note
# A module with fewer parameters is run for real where the meta device cannot run it.
LARGEST_REAL_PARAMS = 50e6


def trace_module(
    module: Any, example_inputs: Any = None, *, loss: Loss | None = None, optimizer: str = "adamw",
    precision: str | None = None, name: str = "", samples: int | None = None,
    dataset_size: float = 0.0,
) -> Workload:  # fmt: skip
    """Return the workload of training a module, from one step traced on the meta device.

    The module is copied without its weights and never changed. Where the meta device cannot run
    it and it is small, the copy is run once for real on the CPU.

    Args:
        module: one, or a list, tuple or mapping of several; each then has its own example inputs, in
            the same order or by the same names, and runs beside the others.
        example_inputs: a tensor, a tuple of positional arguments or a mapping of keyword
            arguments, with a leading batch side. Their values are not read.
        loss: from the output to a scalar; by default the output's `loss`, or the sum of its tensors.
        optimizer: a key of `OPTIMIZER_STATES`; it is one derived operation.
        precision: arithmetic of the step; by default that of the parameters.
        samples: in the example inputs; by default the leading side of the first tensor.
        dataset_size: samples in an epoch, 0 where not known.

    Raises MissingExtraError without torch, else RequestError.
    """
    torch = load_torch()
    named = _several(module)
    if named:
        module, example_inputs = _side_by_side(named, example_inputs, name or "modules")
    module = _unwrapped(module)
    name = name or type(module).__name__
    if not isinstance(module, torch.nn.Module):
        raise RequestError(
            f"trace {name}", f"it is a {type(module).__name__}, not a torch.nn.Module",
            "give a module; a function can be the forward of one",
        )  # fmt: skip
    if not isinstance(optimizer, str):
        raise RequestError(
            f"trace {name}", f"its optimizer is a {type(optimizer).__name__}, not a name",
            f"name one that updates all parameters: {', '.join(OPTIMIZER_STATES)}",
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
    dtypes = {torch.float64: "fp64", torch.float16: "fp16", torch.bfloat16: "bf16"}
    precision = precision or dtypes.get(_main_dtype(module), "fp32")
    if precision not in ACTIVATION_BYTES:
        raise UnknownNameError("precision", precision, ACTIVATION_BYTES)
    step = _run(module, call, loss, samples, ACTIVATION_BYTES[precision], name)
    recorder, ops = step.recorder, step.recorder.ops
    materialised = mark_materialised_attention(ops, samples)
    layers = find_layers(step.module, ops)
    mark_blocks(layers, ops)
    sharded = bool(layers) and label_shards(ops)
    parameters = list(step.module.parameters())
    graph = folded_graph(
        ops, layers, samples, optimizer, tuple(recorder.unknown),
        sum(p.requires_grad for p in parameters), recorder.book.unread_params(),
        sum(m.weight.numel() for m in step.module.modules() if getattr(m, "sparse", False) is True),
        float(frozen := sum(p.numel() for p in parameters if not p.requires_grad)),
    )  # fmt: skip
    notes = [*filter(None, [_note_on_models(named, step.module, optimizer)]), *recorder.notes]
    unread, names = step.unread()
    if unread:
        total = sum(p.numel() for p in parameters)
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        notes.append(
            f"{NO_OPERATION_READS} {unread:,} of {total:,} parameters ({100 * unread / total:.3g} %):"
            f" {', '.join(names[:_NAMED])}{more}; they take memory and no time"
        )
    if frozen:
        notes.append(f"{frozen:,} frozen parameters are read but not trained")
    if graph.unknown:
        notes.append(f"bounded by the bytes they move: {', '.join(graph.unknown)}")
    return Workload(
        name=name, graph=graph, shape=_layer_shape(step, layers, sharded, materialised),
        family=type(step.module).__name__.lower() if parameters else "", precision=precision,
        framework="pytorch", optimizer=optimizer, dataset_size=dataset_size,
        default_global_batch=samples if samples >= _OWN_BATCH else 0,
        fused_attention=materialised == 0, source=f"traced with torch {torch.__version__}",
        notes=tuple(notes), **_sample(call, samples, step),
    )  # fmt: skip


def _by_name(values: Any) -> dict[str, Any]:
    """Return what a list, tuple or mapping holds by name or place, {} for everything else."""
    if isinstance(values, list | tuple):
        values = dict(enumerate(values))
    return {str(key): v for key, v in values.items()} if isinstance(values, Mapping) else {}


def _several(modules: Any) -> dict[str, Any]:
    """Return the modules of a list, tuple or mapping of modules by name, {} for everything else."""
    named, kind = _by_name(modules), load_torch().nn.Module
    return named if all(isinstance(module, kind) for module in named.values()) else {}


def _side_by_side(named: Mapping[str, Any], inputs: Any, name: str) -> tuple[Any, Any]:
    """Return one module that runs several, each on its own inputs, and its inputs. Raises RequestError."""
    given, torch = _by_name(inputs), load_torch()
    if set(given) != set(named):
        raise RequestError(
            f"trace {name}", f"it has {len(named)} modules ({', '.join(named)}) and example inputs"
            f" of {', '.join(given) or 'none'}",
            "give inputs for each, in a list or under the same names; or give one module whose"
            " forward does all passes of a step",
        )  # fmt: skip
    calls = {key: _call_of(given[key], f"{name} ({key})") for key in named}

    def forward(joined: Any, calls: Mapping[str, Any]) -> list[Any]:
        parts = joined.named_children()
        return [scalar_loss(part(*calls[key][0], **calls[key][1]), None) for key, part in parts]

    joined = type("SideBySide", (torch.nn.Module,), {"forward": forward})()
    for key, part in named.items():
        joined.add_module(key, part)
    return joined, ({key: (call.args, dict(call.kwargs)) for key, call in calls.items()},)


# Names of a part that is usually trained in turn with another one.
_ADVERSARY = re.compile(r"(^|_)(discriminator|critic|net_?d)($|_)", re.IGNORECASE)


def _note_on_models(named: Mapping[str, Any], module: Any, optimizer: str) -> str:
    """Return what is assumed of a step that trains several models, "" where there is one."""
    once = f"assumed: one forward, one backward and one update by {optimizer} in each step"
    if named:
        return (
            f"{once} of {len(named)} modules ({', '.join(named)}), each on its own inputs; for further"
            " passes, or passes of one through another, give one module whose forward does them"
        )
    rival = next((key for key, _ in module.named_children() if _ADVERSARY.search(key)), "")
    return rival and (
        f"{once}, of {rival} and all else together; if it is trained in turn, call it in forward as"
        " often as one step of both does"
    )


def _unwrapped(module: Any) -> Any:
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
    def on(device: str) -> Step:
        most = math.inf if device == "meta" else _MOST_REAL_FLOPS / samples
        run = partial(run_step, module, call, loss, device, samples, activation_bytes)
        return _busiest(run, most)

    try:
        return on("meta")
    except StepError as error:
        failed = error
    if isinstance(failed.error, RequestError):
        raise failed.error
    if sum(p.numel() for p in module.parameters()) >= LARGEST_REAL_PARAMS:
        raise RequestError(
            f"trace {name}",
            f"{failed.operation or 'it'} failed on the meta device: {_message(failed.error)}",
            "if the module itself is sound, register a meta kernel for that operation, or give a "
            f"model of the same kind with fewer than {LARGEST_REAL_PARAMS / 1e6:.0f} M parameters, "
            "which is run for real",
        ) from failed.error
    try:
        step = on("cpu")
    except StepError as error:
        if isinstance(error.error, RequestError):
            raise error.error from None
        raise RequestError(
            f"trace {name}",
            f"the module raised {_message(error.error)}",
            "check the module and the shapes of its example inputs: call it once yourself",
        ) from error.error
    where = f" at {failed.operation}" if failed.operation else ""
    reason = f"the meta device stopped{where}: {_message(failed.error)}"
    step.recorder.notes = {f"run for real on the CPU: {reason}": None, **step.recorder.notes}
    return step


# Lines that read values of tensors of which both values are tried.
_MOST_LINES = 12
# FLOPs of a step that is run for real once more, some tenths of a second of a core.
_MOST_REAL_FLOPS = 2e10
# A loop that goes on for other values than those taken first may have as many operations as that.
_LONGER, _SPARE_OPERATIONS = 200, 5_000


def _busiest(run: Callable[..., Step], most_flops: float) -> Step:
    """Return the step that does the most work of those to which values read from tensors lead.

    A value that stops the step is taken otherwise; a step of over `most_flops` a sample is not run
    again. Raises StepError where no value lets it run, RequestError where one lets it run without end.
    """
    others: set[str] = set()
    first: StepError | None = None
    best: Step | None = None
    while best is None:
        try:
            best = run(others)
        except StepError as error:
            first = first or error
            if not error.line or error.line in others:
                raise first from None
            others.add(error.line)
        except EndlessError as error:
            stopped = others.intersection(error.lines)  # by their first value
            if not error.lines or not (stopped or _is_endless(run, others.union(error.lines))):
                raise
            run = partial(run, most_reads=math.inf)  # its length does not hang on these values
    tried, shares = set(others), {}
    while len(tried) < _MOST_LINES and best.work()[0] <= most_flops:
        line = next((line for line in best.recorder.read if line not in tried), "")
        if not line:
            break
        tried.add(line)
        with suppress(StepError):
            most = _SPARE_OPERATIONS + _LONGER * best.recorder.dispatched
            other = run({*others, line}, min(most, MOST_OPERATIONS))
            if other.work() > best.work():
                best, other, others = other, best, {*others, line}
            shares[line] = other.work()[0] / max(best.work()[0], 1.0)
    best.recorder.notes.update(dict.fromkeys(_notes_on_values(best.recorder.read, shares)))
    return best


def _is_endless(run: Callable[..., Step], others: Collection[str]) -> bool:
    with suppress(StepError):
        try:
            run(others)
        except EndlessError:
            return True
    return False


def _notes_on_values(read: Mapping[str, Any], shares: Mapping[str, float]) -> Iterator[str]:
    """Yield what was assumed of values read from tensors; `shares`: FLOPs of the other value's step."""
    plain: dict[str, list[str]] = {}
    for line, value in read.items():
        number = {0: "0 or false", 1: "1 or true"}.get(value, "that of made-up weights")
        if round(shares.get(line, 1.0), 2) < 1:
            yield (
                f"{DEPENDS_ON_DATA} at {line}; traced with the value {number}, which does the most"
                f" work (the other: {100 * shares[line]:.3g} % of its FLOPs)"
            )
        else:
            plain.setdefault(number, []).append(line)
    for number, lines in plain.items():
        yield f"a value read from a tensor was taken to be {number} ({', '.join(lines)})"


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


def _sample(call: Call, samples: int, step: Step) -> dict[str, Any]:
    first = call.tensors()[0]
    images = [int(t.shape[-1]) for t in call.tensors() if t.dim() == 4 and t.is_floating_point()]
    sequential = (OpKind.ATTENTION, OpKind.RECURRENT, OpKind.EMBEDDING)
    has_order = any(op.kind in sequential for op in step.recorder.ops)
    if first.dim() == 4 and max(images, default=0) > 1:  # latents of a GAN have one pixel
        return {"sample": "image", "image_size": max(images)}
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
    forward = [op for op in step.recorder.ops if op.phase is Phase.FORWARD]
    products = [
        op.product
        for op in forward
        if op.kind is OpKind.MATMUL and op.right_static and op.product is not None
    ]
    down = [round(product.k) for product in products if product.n == width != product.k]
    return LayerShape(
        layers=len(layers), hidden=width, heads=heads if sharded else 0,
        kv_heads=kv_heads if sharded else 0, ffn=max(down, default=0) if heads else 0,
        vocab=max((op.table[0] for op in forward if op.table), default=0),
    )  # fmt: skip


_OWN_BATCH = 8  # fewer samples are there to be traced, and no batch to train with
_FORM = "write package.module:callable, for example examples.resnet50:build"
_RETURNS = (
    "return a module, (module, example_inputs), as lists or dicts of several with inputs for each,"
    " or a dict with module, inputs and, if wanted, "
    "name, loss, optimizer, precision, samples, dataset_size"
)
_OPTIONS = ("name", "loss", "optimizer", "precision", "samples", "dataset_size")


def workload_from_reference(
    reference: str, example_inputs: Any = None, *, seq_len: int | None = None,
    image_size: int | None = None, **options: Any,
) -> Workload:  # fmt: skip
    """Import `package.module:callable`, call it, and trace the module that it returns. Raises RequestError.

    It may return a module, a pair (module, example_inputs), or a mapping with keys `module`,
    `inputs` and options of `trace_module`; a module class or a module may stand in its place.
    `seq_len` and `image_size` go to the callable; `options` win over what it returns.
    """
    torch = load_torch(f"trace {reference}")
    module_name, _, attribute = reference.partition(":")
    if not module_name or not attribute:
        raise RequestError(f"workload {reference!r}", "it names no callable", _FORM)
    raised = f"importing {module_name} raised"
    with _guarded(reference, raised, "correct the module so that it imports"):
        target = imported("workload", reference, _FORM)
    sizes: dict[str, Any] = {"seq_len": seq_len, "image_size": image_size}
    sizes = {key: size for key, size in sizes.items() if size is not None}
    made = _call(reference, target, sizes)
    if isinstance(made, Mapping) and "module" in made:
        found = {key: value for key, value in made.items() if key not in ("module", "inputs")}
        unknown = sorted(set(found) - set(_OPTIONS))
        if unknown:
            raise RequestError(
                f"workload {reference!r}", f"the callable returned unknown keys {unknown}", _RETURNS
            )
        module, inputs = made["module"], made.get("inputs")
    else:
        is_pair = isinstance(made, tuple) and len(made) == 2 and not _several(made)
        module, inputs = made if is_pair else (made, None)
        found = {}
    if not isinstance(module, torch.nn.Module) and not _several(module):
        raise RequestError(
            f"workload {reference!r}",
            f"the callable returned {type(module).__name__}, not a torch.nn.Module", _RETURNS,
        )  # fmt: skip
    given = {"name": reference, **found, **{k: v for k, v in options.items() if v is not None}}
    with _guarded(reference, "the module raised", "call it once yourself, and correct it"):
        return trace_module(module, example_inputs if inputs is None else inputs, **given)


def _call(reference: str, target: Any, sizes: Mapping[str, int]) -> Any:
    is_module = isinstance(target, load_torch().nn.Module)
    if not callable(target):
        raise RequestError(
            f"workload {reference!r}", f"a {type(target).__name__} is not callable", _RETURNS
        )
    arguments: Collection[str] = ()
    if not is_module:
        with suppress(TypeError, ValueError):  # a builtin has no signature
            arguments = inspect.signature(target).parameters
    refused = [key for key in sizes if key not in arguments]
    if refused:
        raise RequestError(
            f"workload {reference!r} with {refused[0]}={sizes[refused[0]]}",
            f"its callable has no argument {refused[0]}",
            f"give the callable an argument {refused[0]}, and build its example inputs from it",
        )
    if is_module:
        return target
    with _guarded(reference, "the callable raised", "correct it so that it can be called"):
        return target(**sizes)


@contextmanager
def _guarded(reference: str, raised: str, next_step: str) -> Iterator[None]:
    """Run a user's code: whatever it raises, also SystemExit, is a RequestError; its prints go to stderr."""
    here = str(Path.cwd())
    sys.path.insert(0, here)  # the user's own modules lie in the working directory
    try:
        with redirect_stdout(sys.stderr):
            yield
    except (ForerunError, KeyboardInterrupt):
        raise
    except BaseException as error:
        found = f"{raised} {_message(error)}"
        raise RequestError(f"workload {reference!r}", found, next_step) from error
    finally:
        if here in sys.path:
            sys.path.remove(here)


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
        for name in _prefixes(path):
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
    return next((name for name in reversed(_prefixes(path)) if name in layers), "")


def _prefixes(path: str) -> list[str]:
    return [*accumulate(path.split("."), "{}.{}".format)]


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
    unknown: Sequence[str], tensors: int, unused: float, sparse: float, frozen: float,
) -> Graph:  # fmt: skip
    """Return the graph of a step; layers with the same operations are written once, with `repeat`.

    Of those the one that runs first in its phase stays, so that edges still point backward.
    `tensors` the optimizer updates; `unused` parameters no operation read; gradients of `sparse` ones
    hold the rows that were looked up, and no optimizer passes over them all. `frozen` ones are held, not trained.
    """
    known = set(layers)
    stands_for: dict[int, int] = {}
    prefixes: dict[int, str] = {}
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        members: dict[str, list[int]] = {}
        for index, op in enumerate(ops):
            name = layer_of(op.path, known) if op.phase is phase else ""
            if name:
                members.setdefault(name, []).append(index)
        first: dict[tuple[object, ...], str] = {}
        for name, mine in members.items():
            signature = tuple(
                (op.path[len(name) :], op.label, op.kind, op.flops, op.reads, op.writes, op.weights,
                 op.params, op.saved, op.launches, op.shape, op.dims(samples), op.block, op.shard)
                for op in map(ops.__getitem__, mine)
            )  # fmt: skip
            kept = first.setdefault(signature, name)
            for index, stays in zip(mine, members[kept], strict=True):
                stands_for[index] = stays
                if kept != name:
                    prefixes[stays] = kept
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
    if frozen:
        made.append(Op("frozen_parameters", OpKind.COPY, params=frozen, launches=0))
    made.append(optimizer_op(max(params - sparse, 0.0), tensors, optimizer))
    return Graph(tuple(made), tuple(unknown), frozen=frozen)


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
