"""What one step is written down as: its operations (RawOp) and who wrote which memory (MemoryBook)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from forerun.domain.graph import Block, OpKind, Phase, Shard
from forerun.workloads.trace.aten import Product
from forerun.workloads.trace.backend import load_torch


@dataclass(slots=True)
class RawOp:
    """One dispatched operation; numbers are for one sample, as in `Op`.

    Attributes:
        static: its work and output do not grow with the batch.
        product, shape: of the whole batch.
        left_static, right_static: factors of the product that do not grow with the batch.
        inputs, sizes: operations whose outputs it reads, in order, and how many elements of each.
        weight_sizes: sizes of the weights that it reads.
        table: (rows, width) where it looks rows up.
        source: for a backward operation, the forward one that it differentiates.
    """

    label: str
    kind: OpKind
    phase: Phase
    flops: float = 0.0
    reads: float = 0.0
    writes: float = 0.0
    weights: float = 0.0
    params: float = 0.0
    saved: float = 0.0
    launches: int = 1
    shape: tuple[int, ...] = ()
    path: str = ""
    static: bool = False
    weight_gradient: bool = False
    product: Product | None = None
    left_static: bool = False
    right_static: bool = False
    inputs: dict[int, None] = field(default_factory=dict)
    sizes: dict[int, float] = field(default_factory=dict)
    weight_sizes: set[int] = field(default_factory=set)
    table: tuple[int, ...] = ()
    source: int | None = None
    block: Block = Block.LAYER
    shard: Shard = Shard.NONE

    def into_weight_gradient(self, elements: float) -> None:
        """Become the gradient of a weight of `elements`: its output does not grow with the batch."""
        self.weight_gradient = self.static = True
        self.weights += elements
        self.writes = 0.0

    def dims(self, samples: int) -> tuple[int, ...]:
        """Return (m, n, k, groups) for one sample: the side that grows with the batch stands first.

        Attention and stacks of activation products grow by groups, a weight gradient by its k.
        """
        product = self.product
        if product is None:
            return ()
        m, n, k, groups = product.m, product.n, product.k, product.groups
        if self.weight_gradient:
            k /= samples
        elif self.left_static and not self.right_static:
            m, n = n / samples, m
        elif not (self.right_static or math.fmod(groups, samples)) and groups >= samples > 1:
            groups /= samples
        elif not self.static:
            m /= samples
        return tuple(max(1, round(side)) for side in (m, n, k, groups))


@dataclass(slots=True, eq=False)
class Memory:
    """One storage: the operation that last wrote it, and what is known of its content.

    Attributes:
        holder: keeps the address from being used again.
        writer: position of the operation that last wrote it, None for what came from outside.
        static: does not grow with the batch (parameters, buffers, and what is made of them).
        params: trainable parameters that it holds, until an operation owns them.
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
    """Every storage seen in a step; tensors are known by it, so that a view is its base.

    Elements are counted in floating-point ones of `float_bytes`; masks and indices, whose width does
    not follow the precision, in `activation_bytes`.
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
        holder = tensor if tensor.is_sparse else tensor.untyped_storage()
        if not tensor.is_sparse and holder.device.type != "meta":
            # Keep the address in use without keeping the bytes.
            holder = load_torch().multiprocessing.reductions.StorageWeakRef(holder)
        memory = self._by_key[_key(tensor)] = Memory(holder, **known)
        return memory

    def unread_params(self) -> float:
        """Return the trainable parameters that no operation owns."""
        return sum(memory.params for memory in self._by_key.values())

    def of(self, tensor: Any) -> Memory:
        """Return the memory of a tensor; one that came from nowhere is a constant."""
        return self.find(tensor) or self.enter(tensor, static=not self.batched(tensor))

    def batched(self, tensor: Any) -> bool:
        """Whether a tensor made of nothing grows with the batch, judged by its leading side."""
        return self.samples > 1 and tensor.dim() > 0 and tensor.shape[0] == self.samples

    def elements(self, tensor: Any) -> float:
        """Return the elements read or written through a tensor, in activation elements."""
        count = tensor.numel()
        if not tensor.is_sparse and 0 in tensor.stride():
            sides = zip(tensor.shape, tensor.stride(), strict=True)
            count = math.prod(side for side, stride in sides if stride != 0)
        return float(count) * self._unit(tensor)

    def storage_elements(self, tensor: Any) -> float:
        """Return the elements of the whole storage behind a tensor, in activation elements."""
        if tensor.is_sparse:
            return float(tensor.numel()) * self._unit(tensor)
        size_bytes: int = tensor.untyped_storage().nbytes()
        element_bytes: int = tensor.element_size()
        return size_bytes / element_bytes * self._unit(tensor)

    def _unit(self, tensor: Any) -> float:
        """Return how many activation elements one element of a tensor takes."""
        follows = tensor.is_floating_point() or tensor.is_complex()
        size_bytes: int = tensor.element_size()
        return size_bytes / (self.float_bytes if follows else self.activation_bytes)


def _key(tensor: Any) -> int:
    key: int = id(tensor) if tensor.is_sparse else tensor.untyped_storage()._cdata
    return key


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
