"""One real training step under the recorder: copy, forward, loss, backward."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from forerun.domain.graph import Phase
from forerun.errors import RequestError
from forerun.workloads.trace.backend import dispatch_mode, function_mode, load_torch
from forerun.workloads.trace.fused import Fusions
from forerun.workloads.trace.recorder import Recorder
from forerun.workloads.trace.records import MemoryBook, RawOp, tensors_in

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
    recorder: Recorder
    widths: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def ops(self) -> list[RawOp]:
        """Forward and backward operations, in order."""
        return self.recorder.ops


class StepError(Exception):
    """The step did not run: the operation that ran, and what was raised."""

    def __init__(self, operation: str, error: BaseException) -> None:
        super().__init__(operation, error)
        self.operation = operation
        self.error = error


def run_step(
    module: Any, call: Call, loss: Loss | None, device: str, samples: int, activation_bytes: float
) -> Step:
    """Run one training step of a copy of a module on meta or cpu and return what was seen.

    On meta no weight is read; on the CPU weights without values are made up. `loss` None is the
    module's own loss or the sum of its output.

    Raises:
        StepError: forward, loss or backward raised.
        RequestError: the loss is not a scalar that depends on a parameter.
    """
    torch = load_torch()
    convert = _to_meta if device == "meta" else _to_cpu
    copied = _copied(module, convert)
    args, kwargs = torch.utils._pytree.tree_map_only(
        torch.Tensor, convert, (call.args, dict(call.kwargs))
    )
    book = MemoryBook(_float_bytes(copied), activation_bytes, samples)
    for parameter in copied.parameters():  # a tied parameter is one memory and counts once
        memory = book.find(parameter) or book.enter(parameter, static=True, weight=True)
        memory.params += float(parameter.numel()) if parameter.requires_grad else 0.0
    for buffer in copied.buffers():
        if book.find(buffer) is None:
            book.enter(buffer, static=True, weight=True)
    for tensor, original in zip(Call(args, kwargs).tensors(), call.tensors(), strict=True):
        real = None if original.device.type != "cpu" else original.detach()
        book.enter(tensor, real=real)
    recorder = Recorder(book)
    step = Step(copied, recorder)
    try:
        with torch.enable_grad(), _watched(step, device):
            with torch.autograd.graph.saved_tensors_hooks(recorder.keep, lambda tensor: tensor):
                value = scalar_loss(copied(*args, **kwargs), loss)
            recorder.phase = Phase.BACKWARD
            value.backward()
    except RequestError:
        raise
    except Exception as error:
        raise StepError(recorder.running, error) from error
    step.notes += recorder.notes
    return step


def scalar_loss(output: Any, loss: Loss | None) -> Any:
    """Return the loss of a module's output: given, its own, or the sum of its floating tensors.

    Raises:
        RequestError: there is no scalar that depends on a parameter.
    """
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


def _float_bytes(module: Any) -> float:
    """Return the bytes of most of a module's floating-point parameter elements."""
    counts = Counter[int]()
    for parameter in module.parameters():
        if parameter.is_floating_point():
            counts[parameter.element_size()] += parameter.numel()
    return float(counts.most_common(1)[0][0]) if counts else 4.0


def _copied(module: Any, convert: Callable[[Any], Any]) -> Any:
    """Return a copy of a module in training mode, its tensors converted."""
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
