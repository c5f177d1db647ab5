"""Who wrote which memory: tensors are known by their storage, so that a view is its base."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from forerun.workloads.trace.backend import load_torch


@dataclass(slots=True, eq=False)
class Memory:
    """One storage: the operation that last wrote it, and what is known of its content.

    Attributes:
        holder: keeps the address from being used again.
        writer: position of the operation that last wrote it, None for what came from outside.
        static: does not grow with the batch (parameters, buffers, and what is made of them).
        params: trainable parameters that it holds, until an operation owns them.
        weight: a parameter or buffer of the module.
        kept: counted among the tensors saved for backward.
        real: the values behind a meta tensor, where the caller gave some.
    """

    holder: Any
    writer: int | None = None
    static: bool = False
    params: float = 0.0
    weight: bool = False
    kept: bool = False
    real: Any = None


@dataclass
class MemoryBook:
    """Every storage seen in a step.

    Attributes:
        float_bytes: bytes of the floating-point element that counts as one.
        activation_bytes: bytes of an activation at the workload's precision; masks and
            indices, whose width does not follow the precision, are counted in these.
        samples: samples in the traced batch.
    """

    float_bytes: float
    activation_bytes: float
    samples: int
    _by_key: dict[int, Memory] = field(default_factory=dict)

    def find(self, tensor: Any) -> Memory | None:
        """Return the memory of a tensor, None where it was never seen."""
        return self._by_key.get(_key(tensor))

    def enter(self, tensor: Any, **known: Any) -> Memory:
        """Write down a tensor's memory, with what is known of it."""
        memory = Memory(_holder(tensor), **known)
        self._by_key[_key(tensor)] = memory
        return memory

    def weights(self) -> list[Memory]:
        """Return the memories of parameters and buffers."""
        return [memory for memory in self._by_key.values() if memory.weight]

    def of(self, tensor: Any) -> Memory:
        """Return the memory of a tensor; one that came from nowhere is a constant.

        A parameter that no module announced (the step of a plain function) announces itself.
        """
        known = self.find(tensor)
        if known is not None:
            return known
        if isinstance(tensor, load_torch().nn.Parameter):
            params = float(tensor.numel()) if tensor.requires_grad else 0.0
            return self.enter(tensor, static=True, weight=True, params=params)
        return self.enter(tensor, static=not self.batched(tensor))

    def batched(self, tensor: Any) -> bool:
        """Whether a tensor made of nothing grows with the batch, judged by its leading side."""
        return self.samples > 1 and tensor.dim() > 0 and tensor.shape[0] == self.samples

    def elements(self, tensor: Any) -> float:
        """Return the elements read or written through a tensor, in activation elements."""
        count = tensor.numel()
        if not tensor.is_sparse and any(stride == 0 for stride in tensor.stride()):
            sides = zip(tensor.shape, tensor.stride(), strict=True)
            count = math.prod(side for side, stride in sides if stride != 0)
        return float(count) * self.unit(tensor)

    def storage_elements(self, tensor: Any) -> float:
        """Return the elements of the whole storage behind a tensor, in activation elements."""
        if tensor.is_sparse:
            return float(tensor.numel()) * self.unit(tensor)
        size_bytes: int = tensor.untyped_storage().nbytes()
        element_bytes: int = tensor.element_size()
        return size_bytes / element_bytes * self.unit(tensor)

    def unit(self, tensor: Any) -> float:
        """Return how many activation elements one element of a tensor takes."""
        follows = tensor.is_floating_point() or tensor.is_complex()
        size_bytes: int = tensor.element_size()
        return size_bytes / (self.float_bytes if follows else self.activation_bytes)


def _key(tensor: Any) -> int:
    if tensor.is_sparse:
        return id(tensor)
    key: int = tensor.untyped_storage()._cdata
    return key


def _holder(tensor: Any) -> Any:
    """Return what keeps a storage's address in use without keeping its bytes."""
    if tensor.is_sparse:
        return tensor
    storage = tensor.untyped_storage()
    if storage.device.type == "meta":
        return storage
    return load_torch().multiprocessing.reductions.StorageWeakRef(storage)


def tensors_in(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the tensors in nested lists, tuples and mappings, in order."""
    tensor = load_torch().Tensor
    for value in values:
        if isinstance(value, tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)
        elif isinstance(value, dict):
            yield from tensors_in(value.values())
