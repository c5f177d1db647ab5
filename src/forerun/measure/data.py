"""Data: made-up samples, shaped as a module's example inputs, through a real loader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from forerun.errors import RequestError
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
