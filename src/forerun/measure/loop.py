"""Training loop: forerun's own training of a module: DDP, made-up batches, any optimizer of torch."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import numpy as np

from forerun import packaged
from forerun.errors import RequestError, one_of
from forerun.measure.recorder import Recorder, trained_tensors
from forerun.measure.servers.client import Servers
from forerun.measure.task import Task
from forerun.registry import imported

# Settings that this loop honours, and what they say; others are arguments of the callable.
SETTINGS: Mapping[str, str] = packaged.table(__file__, "settings.yaml")
_RETURNS = (
    "return a module, (module, example_inputs), or a dict with module, inputs and, if wanted, loss"
)
_DDP = ("broadcast_buffers", "find_unused_parameters", "gradient_as_bucket_view", "static_graph")
_LEAST_OF_SLOWEST = 2  # steps beyond its warm-up that an asynchronous run lasts for
_POOL = 64  # distinct samples: enough to leave the caches, few enough to be made at once
LEARNING_RATE = 1e-4  # small: outputs that shrink to denormal numbers would slow a CPU down
# Name -> class of torch.optim.
_OPTIMIZERS = {
    "sgd": "SGD", "momentum": "SGD", "adam": "Adam", "adamw": "AdamW", "adagrad": "Adagrad",
    "rmsprop": "RMSprop", "adafactor": "Adafactor",
}  # fmt: skip


@dataclass(frozen=True)
class TrainedModule:
    """A module to train, its example inputs, and its loss (None: its own, or made up)."""

    module: Any
    inputs: Any
    loss: Callable[[Any], Any] | None = None


def load_entry(reference: str) -> Any:
    """Return what `package.module:callable` names, in the working directory too. Raises RequestError."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return imported("entry", reference, "check its name")


def is_training_function(target: Any) -> bool:
    """Whether it is called with one argument, its configuration; a builder needs none."""
    if isinstance(target, type) or not callable(target):
        return False
    parameters = inspect.signature(target).parameters.values()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.default is p.empty and p.kind in positional for p in parameters) == 1


def build(task: Task, target: Any) -> TrainedModule:
    """Return what a builder makes of the task's settings. Raises RequestError where it takes none such."""
    import torch

    given = {name: value for name, value in task.settings.items() if name not in SETTINGS}
    is_module = isinstance(target, torch.nn.Module)
    takes = set() if is_module else set(inspect.signature(target).parameters)
    for name in given:
        if name not in takes:
            found = f"neither a setting of the loop nor an argument of {task.entry}"
            todo = one_of(name, [*SETTINGS, *sorted(takes)])
            raise RequestError(f"{task.entry} with {name}={given[name]}", found, todo)
    made = target if is_module else target(**given)
    if isinstance(made, Mapping) and "module" in made:
        built = TrainedModule(made["module"], made.get("inputs"), made.get("loss"))
    elif isinstance(made, tuple) and len(made) == 2:
        built = TrainedModule(*made)
    else:
        built = TrainedModule(made, None)
    found = "no example inputs"
    if not isinstance(built.module, torch.nn.Module):
        found = f"a {type(built.module).__name__}, not a torch.nn.Module"
    elif built.inputs is not None:
        return built
    raise RequestError(f"entry {task.entry!r}", f"it returned {found}", _RETURNS)


def train(task: Task, built: TrainedModule, recorder: Recorder) -> None:
    """Train a module, in DDP where there are several replicas, and mark each step. Raises RequestError."""
    trainer = _Trainer(task, built, recorder)
    if (servers := trainer.servers) is not None and not task.in_step:
        # The slowest worker has to count some steps too.
        least = task.steps.warmup + _LEAST_OF_SLOWEST
        recorder.decide_alone(task.stale_bound is None, lambda: servers.slowest >= least)
    epochs = _epochs(task, trainer.inputs, recorder.rank, recorder.gpu is not None)
    recorder.explicit = True
    recorder.use_synthetic_data()
    recorder.samples = task.global_batch
    if not task.steps.epochs:
        trainer.run(chain.from_iterable(epochs))
    elif task.steps.warmup:
        trainer.run(islice(chain.from_iterable(epochs), task.steps.warmup))
    for epoch in islice(epochs, task.steps.epochs):
        with recorder.epoch():
            trainer.run(epoch, usual=task.batch)
    if servers is not None:
        servers.leave()


class _Inputs:
    def __init__(self, example: Any, task: Task, device: Any) -> None:
        import torch

        self._keys = list(example) if isinstance(example, Mapping) else None
        values = list(example.values()) if isinstance(example, Mapping) else example
        self.values = list(values) if isinstance(values, list | tuple) else [values]
        sides = {
            i: v.size(0) for i, v in enumerate(self.values)
            if isinstance(v, torch.Tensor) and v.dim() > 0
        }  # fmt: skip
        side = next(iter(sides.values()), 0)
        if side < 1:
            todo = "return a tensor, a tuple or a mapping of tensors whose first side is the batch"
            found = "no tensor with a leading batch side"
            raise RequestError(f"example inputs of {task.entry}", found, todo)
        self.batched = [i for i, size in sides.items() if size == side]
        self.values = [v.to(device) if hasattr(v, "to") else v for v in self.values]
        if task.partitions > 1:
            from forerun.measure.partitioned import shared

            # Made-up samples are like these, and those of a replica's parts are the same.
            self.values = [shared(v) if isinstance(v, torch.Tensor) else v for v in self.values]
        if task.precision == "fp64":
            for i, v in enumerate(self.values):
                if isinstance(v, torch.Tensor) and v.is_floating_point():
                    self.values[i] = v.double()

    def call(self, module: Any, batch: list[Any]) -> Any:
        """Return the module's output for batched tensors, the other inputs as in the example."""
        values = list(self.values)
        for i, tensor in zip(self.batched, batch, strict=True):
            values[i] = tensor
        if self._keys is not None:
            return module(**dict(zip(self._keys, values, strict=True)))
        return module(*values)


def _made_up(example: Any, count: int, generator: Any) -> Any:
    """Return `count` samples like those of an example batch (its rows, or numbers as spread)."""
    import torch

    sides = (count, *example.shape[1:])
    if example.is_floating_point():
        spread, mean = torch.std_mean(example.float(), correction=int(example.numel() > 1))
        numbers = torch.randn(sides, generator=generator)
        return (numbers * spread + mean if spread > 0 else numbers).to(example.dtype)
    if example.dtype in (torch.int64, torch.int32) and example.numel():
        low, high = int(example.min()), int(example.max())
        return torch.randint(low, high + 1, sides, generator=generator).to(example.dtype)
    return example[torch.randint(0, len(example), (count,), generator=generator)]


def _epochs(task: Task, inputs: _Inputs, rank: int, pinned: bool) -> Iterator[Iterable[list[Any]]]:
    import torch
    from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

    whole = task.steps.epochs > 0
    size = task.dataset_size or max(task.global_batch * 8, _POOL)
    distinct, generator = min(size, _POOL), torch.Generator().manual_seed(task.seed)
    pools = [_made_up(inputs.values[i].detach().cpu(), distinct, generator) for i in inputs.batched]
    dataset: Any = Subset(TensorDataset(*pools), np.resize(np.arange(distinct), size))
    sampler: Any = DistributedSampler(
        dataset, num_replicas=task.replicas, rank=rank // task.partitions, seed=task.seed,
        drop_last=not whole,
    )  # fmt: skip
    loader: Any = DataLoader(
        dataset, batch_size=task.batch, sampler=sampler, drop_last=not whole,
        num_workers=int(task.settings.get("loader_workers", 0)), pin_memory=pinned,
    )  # fmt: skip
    for epoch in count():
        sampler.set_epoch(epoch)
        yield loader


class _Trainer:
    def __init__(self, task: Task, built: TrainedModule, recorder: Recorder) -> None:
        import torch

        torch.manual_seed(task.seed)
        self._recorder = recorder
        self._device = torch.device("cpu" if recorder.gpu is None else f"cuda:{recorder.gpu}")
        self.inputs = _Inputs(built.inputs, task, self._device)
        self._loss = built.loss
        self._passes = int(task.settings.get("accumulate", 1))
        self._module = _placed(task, built.module, self._device, self._example_loss)
        rate = float(task.settings.get("learning_rate", LEARNING_RATE))
        self.servers = Servers(task, self._module, recorder, rate) if task.servers else None
        trained = [p for p in self._module.parameters() if p.requires_grad]
        self._optimizer = None if task.servers else make_optimizer(task.optimizer, trained, rate)
        # Arithmetic of a step: autocast and, for fp16, a scaled loss; fp64 is the module's own.
        use_tf32(task.precision == "tf32")
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(task.precision)
        self._autocast = partial(torch.autocast, self._device.type, dtype) if dtype else nullcontext
        # Servers apply gradients as they come, without a scale.
        scaled = task.precision == "fp16" and self._device.type == "cuda" and not task.servers
        self._scaler = torch.amp.GradScaler(self._device.type, enabled=scaled)
        if task.replicas > 1 and not task.servers:
            recorder.reduce_through(self._module)

    def _example_loss(self, module: Any) -> Any:
        example = [self.inputs.values[i] for i in self.inputs.batched]
        return mean_loss(self.inputs.call(module, example), self._loss)

    def run(self, batches: Iterable[list[Any]], usual: int = 0) -> None:
        recorder = self._recorder
        recorder.begin()
        recorder.resume()
        recorder.switch("input")
        for batch in batches:
            moved = [tensor.to(self._device, non_blocking=True) for tensor in batch]
            self._step(moved)
            if usual and len(moved[0]) < usual:
                recorder.resume()
            elif recorder.step() or (self.servers is not None and self.servers.stopped):
                return
            recorder.switch("input")

    def _step(self, batch: list[Any]) -> None:
        sizes = [-(-len(tensor) // self._passes) for tensor in batch]
        for i in range(self._passes):
            self._recorder.switch("forward")
            part = [t[i * n : (i + 1) * n] for t, n in zip(batch, sizes, strict=True)]
            last = i == self._passes - 1
            alone = not last and hasattr(self._module, "no_sync")
            with self._module.no_sync() if alone else nullcontext():
                with self._autocast():
                    loss = mean_loss(self.inputs.call(self._module, part), self._loss)
                self._recorder.switch("backward")
                self._scaler.scale(loss / self._passes).backward()
        if self.servers is not None:
            self._recorder.switch("sync")
            self.servers.exchange()
            return
        self._recorder.switch("optimizer")
        if self._optimizer is not None:
            self._scaler.step(self._optimizer)
            self._scaler.update()
        self._module.zero_grad(set_to_none=True)


def make_optimizer(name: str, parameters: Any, learning_rate: float = LEARNING_RATE) -> Any:
    """Return the torch optimizer of a name, or None for `none`. Raises RequestError."""
    import torch

    if name == "none":
        return None
    kind = getattr(torch.optim, _OPTIMIZERS.get(name, ""), None)
    if kind is None:
        choices = one_of(name, ("none", *_OPTIMIZERS))
        raise RequestError(f"optimizer {name!r}", "torch has none of that name", choices)
    given = {"momentum": 0.9} if name == "momentum" else {}
    return kind(parameters, lr=learning_rate, **given)


def mean_loss(output: Any, loss: Any = None) -> Any:
    """Return an output's loss: given, its own, itself if a scalar, or mean squares. Raises RequestError."""
    if loss is not None:
        return loss(output)
    own = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if own is not None:
        return own
    if getattr(output, "requires_grad", False) and output.dim() == 0:
        return output
    squares = [t.float().square().mean() for t in trained_tensors(output)]
    if not squares:
        asked = f"the loss of an output of type {type(output).__name__}"
        todo = "return a loss with the module, or let its output have one"
        raise RequestError(asked, "no gradient flows from it", todo)
    return sum(squares[1:], squares[0])


def _placed(task: Task, module: Any, device: Any, loss: Callable[[Any], Any]) -> Any:
    import torch

    module = module.train().to(device, torch.float64 if task.precision == "fp64" else None)
    if task.settings.get("channels_last"):
        module = module.to(memory_format=torch.channels_last)
    group = None
    if task.partitions > 1:
        from forerun.measure.partitioned import cut, groups

        cut(module, task.partitions, partial(loss, module))
        group = groups(task.partitions)[1]
    if task.settings.get("compile"):
        module = torch.compile(module)
    if task.replicas == 1 or task.servers:
        return module
    from torch.nn.parallel import DistributedDataParallel

    given = {name: bool(task.settings[name]) for name in _DDP if name in task.settings}
    if "bucket_mb" in task.settings:
        given["bucket_cap_mb"] = task.settings["bucket_mb"]
    devices = None if device.type == "cpu" else [device.index]
    return DistributedDataParallel(module, device_ids=devices, process_group=group, **given)


def use_tf32(on: bool) -> None:
    """Let products and convolutions of float32 on a GPU round to TF32, or neither."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = on
    torch.backends.cudnn.allow_tf32 = on
