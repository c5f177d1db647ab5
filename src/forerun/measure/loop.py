"""Loop: forerun's own training of a module: DDP, made-up batches, any optimizer, until it is enough.

Optimizers: torch's own, by the names that workloads use.

Data: made-up samples, shaped as a module's example inputs, through a real loader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from forerun.errors import RequestError, one_of
from forerun.measure.entry import Built
from forerun.measure.precision import Precision
from forerun.measure.recorder import Recorder
from forerun.measure.task import Task

_POOL = 64  # distinct samples: enough to leave the caches, few enough to be made at once


class Inputs:
    """Example inputs taken apart: which tensors have a leading batch side, and how they are called."""

    def __init__(self, example: Any, name: str) -> None:
        import torch

        self.keys = list(example) if isinstance(example, Mapping) else None
        values = list(example.values()) if isinstance(example, Mapping) else example
        self.values = list(values) if isinstance(values, list | tuple) else [values]
        tensors = [v for v in self.values if isinstance(v, torch.Tensor) and v.dim() > 0]
        if not tensors or tensors[0].size(0) < 1:
            raise RequestError(
                f"example inputs of {name}", "no tensor with a leading batch side",
                "return a tensor, a tuple or a mapping of tensors whose first side is the batch",
            )  # fmt: skip
        side = tensors[0].size(0)
        self.batched = [
            i for i, v in enumerate(self.values)
            if isinstance(v, torch.Tensor) and v.dim() > 0 and v.size(0) == side
        ]  # fmt: skip

    def call(self, module: Any, batch: list[Any]) -> Any:
        """Return the module's output for batched tensors, the other inputs as in the example."""
        values = list(self.values)
        for i, tensor in zip(self.batched, batch, strict=True):
            values[i] = tensor
        if self.keys is not None:
            return module(**dict(zip(self.keys, values, strict=True)))
        return module(*values)

    def to(self, device: Any, double: bool = False) -> Inputs:
        """Return itself with every tensor on a device, and numbers in double precision if asked."""
        self.values = [v.to(device) if hasattr(v, "to") else v for v in self.values]
        if double:
            self.values = [
                v.double() if hasattr(v, "is_floating_point") and v.is_floating_point() else v
                for v in self.values
            ]
        return self


class MadeUp:
    """A dataset of `size` samples: numbers as spread as the example's, labels from its own rows."""

    def __init__(self, inputs: Inputs, size: int, seed: int) -> None:
        import torch

        generator = torch.Generator().manual_seed(seed)
        self._size = size
        self._count = min(size, _POOL)
        self._pools = [
            _pool(inputs.values[i].detach().cpu(), self._count, generator) for i in inputs.batched
        ]

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, i: int) -> list[Any]:
        return [pool[i % self._count] for pool in self._pools]


def _pool(example: Any, count: int, generator: Any) -> Any:
    """Return `count` samples like those of an example batch (its rows, or numbers as spread)."""
    import torch

    if example.is_floating_point():
        spread = float(example.float().std()) if example.numel() > 1 else 0.0
        numbers = torch.randn((count, *example.shape[1:]), generator=generator)
        if spread > 0:
            numbers = numbers * spread + float(example.float().mean())
        return numbers.to(example.dtype)
    if example.dtype in (torch.int64, torch.int32) and example.numel():
        low, high = int(example.min()), int(example.max())
        sides = (count, *example.shape[1:])
        return torch.randint(low, high + 1, sides, generator=generator).to(example.dtype)
    return example[torch.randint(0, len(example), (count,), generator=generator)]


class Batches:
    """Endless or whole passes over a task's made-up data, for one worker.

    Args:
        task: its batch, dataset size and settings.
        inputs: what the samples look like.
        rank: which worker's share.
        pinned: batches lie in pinned memory, on their way to a GPU.
    """

    def __init__(self, task: Task, inputs: Inputs, rank: int, pinned: bool) -> None:
        from torch.utils.data import DataLoader
        from torch.utils.data.distributed import DistributedSampler

        whole = task.steps.epochs > 0
        size = task.dataset_size or max(task.global_batch * 8, _POOL)
        dataset: Any = MadeUp(inputs, size, task.seed)
        self._sampler: Any = DistributedSampler(
            dataset, num_replicas=task.workers, rank=rank, seed=task.seed, drop_last=not whole
        )
        self._loader: Any = DataLoader(
            dataset, batch_size=task.batch, sampler=self._sampler, drop_last=not whole,
            num_workers=int(task.settings.get("loader_workers", 0)), pin_memory=pinned,
        )  # fmt: skip
        self._epoch = 0

    def __len__(self) -> int:
        return len(self._loader)

    def epoch(self) -> Iterator[list[Any]]:
        """Yield the batches of the next pass; the loader starts anew, as it does in training."""
        self._sampler.set_epoch(self._epoch)
        self._epoch += 1
        yield from self._loader

    def endless(self) -> Iterator[list[Any]]:
        """Yield batches of one pass after another."""
        while True:
            yield from self.epoch()


LEARNING_RATE = 1e-4  # small: outputs that shrink to denormal numbers would slow a CPU down

# Name -> (class of torch.optim, further arguments).
_TORCH: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {}),
    "momentum": ("SGD", {"momentum": 0.9}),
    "adam": ("Adam", {}),
    "adamw": ("AdamW", {}),
    "adagrad": ("Adagrad", {}),
    "rmsprop": ("RMSprop", {}),
    "adafactor": ("Adafactor", {}),
}
NAMES = ("none", *_TORCH)


def make_optimizer(name: str, parameters: Any, learning_rate: float = LEARNING_RATE) -> Any:
    """Return the torch optimizer of a name, or None for `none`.

    Raises:
        RequestError: torch has none of that name.
    """
    import torch

    if name == "none":
        return None
    if name not in _TORCH or not hasattr(torch.optim, _TORCH[name][0]):
        raise RequestError(
            f"optimizer {name!r}", "torch has none of that name", one_of(name, NAMES)
        )
    kind, given = _TORCH[name]
    return getattr(torch.optim, kind)(parameters, lr=learning_rate, **given)


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
