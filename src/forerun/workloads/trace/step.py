"""One real training step under the recorder: forward, loss, backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from forerun.domain.graph import Phase
from forerun.errors import RequestError
from forerun.workloads.trace.backend import dispatch_mode, function_mode, load_torch, module_hooks
from forerun.workloads.trace.copies import values_on
from forerun.workloads.trace.fakes import Fakes
from forerun.workloads.trace.fused import Fusions
from forerun.workloads.trace.memory import MemoryBook, tensors_in
from forerun.workloads.trace.raw import RawOp
from forerun.workloads.trace.recorder import Recorder

Loss = Callable[[Any], Any]


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
    """What was seen of one training step.

    Attributes:
        ops: forward and backward operations, in order.
        paths: modules in the order in which their forward began.
        widths: the last side of each module's output, where it is a tensor of three sides.
    """

    recorder: Recorder
    paths: dict[str, None] = field(default_factory=dict)
    widths: dict[str, int] = field(default_factory=dict)

    @property
    def ops(self) -> list[RawOp]:
        """Forward and backward operations, in order."""
        return self.recorder.ops


class StepError(Exception):
    """The step did not run: the operation that was asked for, and what was raised."""

    def __init__(self, operation: str, error: BaseException) -> None:
        super().__init__(operation, error)
        self.operation = operation
        self.error = error


def run_step(
    module: Any, call: Call, loss: Loss | None, device: str, samples: int, activation_bytes: float
) -> Step:
    """Run one training step of a copied module and return what was seen.

    Args:
        module: a copy on `device`, or a function of tensors.
        call: example inputs, on any device.
        loss: from the module's output to a scalar; None for its own loss or the sum of its output.
        device: meta or cpu.
        samples: in the example batch.
        activation_bytes: of an activation element.

    Raises:
        StepError: forward, loss or backward raised.
        RequestError: the loss is not a scalar that depends on a parameter.
    """
    torch = load_torch()
    recorder = Recorder(MemoryBook(_float_bytes(module), activation_bytes, samples), Fakes())
    step = Step(recorder)
    moved = Call(values_on(call.args, device), values_on(dict(call.kwargs), device))
    _enter_weights(recorder.book, module)
    for tensor, original in zip(moved.tensors(), call.tensors(), strict=True):
        real = None if original.is_meta or original.device.type != "cpu" else original.detach()
        recorder.book.enter(tensor, real=real)
    try:
        with torch.enable_grad(), _watched(step, module, device):
            with torch.autograd.graph.saved_tensors_hooks(recorder.keep, lambda tensor: tensor):
                value = scalar_loss(module(*moved.args, **moved.kwargs), loss)
            recorder.phase = Phase.BACKWARD
            value.backward()
    except RequestError:
        raise
    except Exception as error:
        raise StepError(recorder.asked, error) from error
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
        leaves = [t for t in tensors_in(_plain(v) for v in values) if t.requires_grad]
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


def _plain(value: Any) -> Any:
    """Return mappings that are no dict (outputs of model libraries) as one."""
    return dict(value) if isinstance(value, Mapping) else value


@contextmanager
def _watched(step: Step, module: Any, device: str) -> Iterator[None]:
    """Watch modules, calls and operations while a step runs; global random state is put back."""
    torch, recorder = load_torch(), step.recorder
    names = (
        {part: name for name, part in module.named_modules()}
        if isinstance(module, torch.nn.Module)
        else {}
    )
    stack: list[str] = []

    def enter(part: Any) -> None:
        stack.append(recorder.path)
        recorder.path = names.get(part, recorder.path)
        step.paths.setdefault(recorder.path)

    def leave(part: Any, output: Any) -> None:
        first = next(tensors_in((output,)), None)
        if first is not None and first.dim() == 3:
            step.widths[recorder.path] = int(first.shape[-1])
        recorder.path = stack.pop() if stack else ""

    with ExitStack() as contexts:
        contexts.enter_context(torch.random.fork_rng(devices=[]))
        contexts.enter_context(module_hooks(enter, leave))
        contexts.enter_context(torch.device(device))
        contexts.enter_context(function_mode(Fusions(recorder, device).intercept))
        contexts.enter_context(dispatch_mode(recorder.intercept))
        yield


def _enter_weights(book: MemoryBook, module: Any) -> None:
    """Write down parameters and buffers; a tied parameter is one memory and counts once."""
    if not isinstance(module, load_torch().nn.Module):
        return
    for parameter in module.parameters():
        memory = book.find(parameter) or book.enter(parameter, static=True, weight=True)
        memory.params += float(parameter.numel()) if parameter.requires_grad else 0.0
    for buffer in module.buffers():
        if book.find(buffer) is None:
            book.enter(buffer, static=True, weight=True)


def _float_bytes(module: Any) -> float:
    """Return the bytes of most of a module's floating-point parameter elements."""
    parameters: Sequence[Any] = (
        list(module.parameters()) if isinstance(module, load_torch().nn.Module) else []
    )
    counts: dict[int, int] = {}
    for parameter in parameters:
        if parameter.is_floating_point():
            size = parameter.element_size()
            counts[size] = counts.get(size, 0) + parameter.numel()
    return float(max(counts, key=lambda size: counts[size])) if counts else 4.0
