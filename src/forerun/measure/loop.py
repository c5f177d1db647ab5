"""Loop: forerun's own training of a module: DDP, made-up batches, any optimizer, until it is enough."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from forerun.errors import RequestError
from forerun.measure.data import Batches, Inputs
from forerun.measure.entry import Built
from forerun.measure.optimizers import LEARNING_RATE, make_optimizer
from forerun.measure.precision import Precision
from forerun.measure.recorder import Recorder
from forerun.measure.task import Task

_DDP = ("broadcast_buffers", "find_unused_parameters", "gradient_as_bucket_view", "static_graph")


def train(task: Task, built: Built, recorder: Recorder) -> None:
    """Train a module as a task asks, and tell the recorder of every step and its parts.

    The process group must be there where the task has several workers. On one worker the module
    is trained as it is, without DDP.

    Raises:
        RequestError: an optimizer or a setting that cannot be had.
    """
    trainer = Trainer(task, built, recorder)
    batches = Batches(task, trainer.inputs, recorder.rank, recorder.gpu is not None)
    recorder.explicit = True
    recorder.data_is_made_up()
    recorder.samples = task.global_batch
    if not task.steps.epochs:
        trainer.run(batches.endless())
        return
    if task.steps.warmup:
        trainer.run(_first(batches.endless(), task.steps.warmup))
    for _ in range(task.steps.epochs):
        recorder.epoch_begins()
        trainer.run(batches.epoch(), usual=task.batch)
        recorder.epoch_ends()


def _first(batches: Iterable[Any], count: int) -> Iterable[Any]:
    for i, batch in enumerate(batches):
        if i == count:
            return
        yield batch


class Trainer:
    """A module, its optimizer and its way through a step."""

    def __init__(self, task: Task, built: Built, recorder: Recorder) -> None:
        import torch

        torch.manual_seed(task.seed)
        self._recorder = recorder
        self._device = torch.device("cpu" if recorder.gpu is None else f"cuda:{recorder.gpu}")
        self.inputs = Inputs(built.inputs, task.entry).to(self._device, task.precision == "fp64")
        self._loss = built.loss
        self._passes = _passes(task)
        self._module = _placed(task, built.module, self._device)
        self._optimizer = make_optimizer(
            task.optimizer, [p for p in self._module.parameters() if p.requires_grad],
            float(task.settings.get("learning_rate", LEARNING_RATE)),
        )  # fmt: skip
        self._precision = Precision(task.precision, self._device.type)
        if task.workers > 1:
            recorder.reduce_through(self._module)

    def run(self, batches: Iterable[list[Any]], usual: int = 0) -> None:
        """Train over batches, until they end or it is enough.

        Args:
            batches: lists of batched tensors.
            usual: samples of a full batch; shorter ones are trained on and not counted as steps.
        """
        recorder = self._recorder
        recorder.begin()
        recorder.resume()
        recorder.switch("input")
        for batch in batches:
            moved = [tensor.to(self._device, non_blocking=True) for tensor in batch]
            self._step(moved)
            if usual and len(moved[0]) < usual:
                recorder.resume()
            elif recorder.step():
                return
            recorder.switch("input")

    def _step(self, batch: list[Any]) -> None:
        for i in range(self._passes):
            self._recorder.switch("forward")
            part = [_chunk(tensor, i, self._passes) for tensor in batch]
            last = i == self._passes - 1
            with self._alone(last):
                with self._precision.forward():
                    loss = mean_loss(self.inputs.call(self._module, part), self._loss)
                self._recorder.switch("backward")
                self._precision.backward(loss / self._passes)
        self._recorder.switch("optimizer")
        if self._optimizer is not None:
            self._precision.step(self._optimizer)
        self._module.zero_grad(set_to_none=True)

    def _alone(self, last: bool) -> AbstractContextManager[Any]:
        """Return a context in which no gradients are reduced, but for the last pass of a step."""
        if last or not hasattr(self._module, "no_sync"):
            return nullcontext()
        no_sync: AbstractContextManager[Any] = self._module.no_sync()
        return no_sync


def mean_loss(output: Any, loss: Any = None) -> Any:
    """Return the loss of an output: given, its own, itself if a scalar, or the mean of its squares.

    Raises:
        RequestError: there is nothing that a gradient could flow from.
    """
    if loss is not None:
        return loss(output)
    own = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if own is not None:
        return own
    if getattr(output, "requires_grad", False) and output.dim() == 0:
        return output
    squares = [t.float().square().mean() for t in _floating(output)]
    if not squares:
        raise RequestError(
            f"the loss of an output of type {type(output).__name__}", "no gradient flows from it",
            "return a loss with the module, or let its output have one",
        )  # fmt: skip
    return sum(squares[1:], squares[0])


def _floating(output: Any) -> list[Any]:
    """Return the floating tensors of an output that need a gradient."""
    if hasattr(output, "requires_grad"):
        return [output] if output.requires_grad and output.is_floating_point() else []
    if hasattr(output, "values"):
        output = list(output.values())
    return (
        [t for item in output for t in _floating(item)] if isinstance(output, list | tuple) else []
    )


def _passes(task: Task) -> int:
    passes = int(task.settings.get("accumulate", 1))
    if passes < 1 or task.batch % passes:
        raise RequestError(
            f"{passes} passes over {task.batch} samples a worker",
            "they do not divide it evenly", "choose a divisor of the batch",
        )  # fmt: skip
    return passes


def _chunk(tensor: Any, i: int, passes: int) -> Any:
    if passes == 1:
        return tensor
    size = -(-len(tensor) // passes)
    return tensor[i * size : (i + 1) * size]


def _placed(task: Task, module: Any, device: Any) -> Any:
    """Return the module on its device, in its precision and format, in DDP where there are several."""
    import torch

    module = module.train().to(device)
    if task.precision == "fp64":
        module = module.double()
    if task.settings.get("channels_last"):
        module = module.to(memory_format=torch.channels_last)
    if task.settings.get("compile"):
        module = torch.compile(module)
    if task.workers == 1:
        return module
    from torch.nn.parallel import DistributedDataParallel

    given = {name: bool(task.settings[name]) for name in _DDP if name in task.settings}
    if "bucket_mb" in task.settings:
        given["bucket_cap_mb"] = task.settings["bucket_mb"]
    return DistributedDataParallel(
        module, device_ids=None if device.type == "cpu" else [device.index], **given
    )
