"""The recorder: writes down each operation of a step (RawOp) and who wrote which memory (MemoryBook)."""

from __future__ import annotations

import math
import operator
import os
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from forerun.domain.graph import Block, OpKind, Phase, Shard
from forerun.errors import RequestError
from forerun.workloads.trace import aten
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
    product: aten.Product | None = None
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
        touched: a forward operation read it.
        kept: counted among the tensors saved for backward.
        real: the values behind a meta tensor, where the caller gave some.
    """

    holder: Any
    writer: int | None = None
    static: bool = False
    params: float = 0.0
    weight: bool = False
    touched: bool = False
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
        count = (tensor._values() if tensor.is_sparse else tensor).numel()
        if not tensor.is_sparse and 0 in tensor.stride():
            sides = zip(tensor.shape, tensor.stride(), strict=True)
            count = math.prod(side for side, stride in sides if stride != 0)
        return float(count) * self._unit(tensor)

    def storage_elements(self, tensor: Any) -> float:
        """Return the elements of the whole storage behind a tensor, in activation elements."""
        if tensor.is_sparse:
            return self.elements(tensor)
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


# The largest steps that people train dispatch some tens of thousands.
MOST_OPERATIONS = 200_000
MOST_READS = 600  # of a line in one module; the largest mixtures read one for each of 512 experts
_LONGEST_COPY = 1_000_000  # elements that a copy off the meta device may have
_ALL_ELEMENTS = "a selection that depends on data was taken to select every element"
_READ_VALUE = "a value read from a tensor was taken to be 1 or true"
_READS = ("_local_scalar_dense", "equal", "allclose")  # operations that hand a value to Python
_COPIED = "values copied off the meta device were taken to be 1"


def _read_values(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], book: MemoryBook
) -> tuple[Any, str] | None:
    torch, tensor = load_torch(), args[0]
    if name in ("equal", "allclose"):
        return tensor.shape == args[1].shape, _READ_VALUE
    memory = book.find(tensor)
    real = None if memory is None or memory.writer is not None else memory.real
    if real is not None and (real.shape != tensor.shape or real.dtype != tensor.dtype):
        real = None
    if name == "_local_scalar_dense":
        if real is not None:
            return real.item(), ""
        one = True if tensor.dtype is torch.bool else 1.0 if tensor.is_floating_point() else 1
        return one, _READ_VALUE
    device = kwargs.get("device")
    to_cpu = device is not None and torch.device(device).type == "cpu"
    if not to_cpu or tensor.numel() > _LONGEST_COPY:
        return None
    dtype = kwargs.get("dtype") or tensor.dtype
    if real is not None:
        return real.to(dtype), ""
    return torch.ones(tensor.shape, dtype=dtype, device="cpu"), _COPIED


def _selected(
    func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, str] | None:
    torch, tensor = load_torch(), args[0]

    def indices(*shape: int) -> Any:
        return torch.empty(shape, dtype=torch.long, device="meta")

    match name:
        case "nonzero":
            return indices(tensor.numel(), tensor.dim()), _ALL_ELEMENTS
        case "masked_select":
            count = torch.broadcast_shapes(tensor.shape, args[1].shape).numel()
            return tensor.new_empty(count), _ALL_ELEMENTS
        case "index":
            chosen: list[Any] = []
            for index in args[1]:
                masked = index is not None and index.dtype in (torch.bool, torch.uint8)
                chosen += [indices(index.numel())] * index.dim() if masked else [index]
            same = len(chosen) == len(args[1]) and all(map(operator.is_, chosen, args[1]))
            return None if same else (func(tensor, chosen), _ALL_ELEMENTS)
        case "_unique2" | "unique_consecutive":
            count = tensor.numel()
            inverse = indices(*tensor.shape)
            return (tensor.new_empty(count), inverse, indices(count)), _ALL_ELEMENTS
        case "repeat_interleave":
            stated = kwargs.get("output_size")
            note = "" if stated else "counts of a repeat were taken to be 1"
            return indices(stated or tensor.numel()), note
        case "bincount":
            least = kwargs.get("minlength", args[2] if len(args) > 2 else 0)
            return indices(least or tensor.numel()), _ALL_ELEMENTS
    return None


def find_weight_gradients(
    op: RawOp, forward: RawOp, written: Sequence[Any], book: MemoryBook
) -> list[Any]:
    """Return the tensors among those written that are gradients of weights, and state them so.

    They have the size of a weight that the forward operation read; data gradients come first.
    """
    sizes = forward.weight_sizes
    if op.static or not sizes:
        return []
    if len(written) == 1:
        if op.weights or written[0].numel() not in sizes:
            return []
        op.into_weight_gradient(book.elements(written[0]))
        return list(written)
    found = [t for t in written[1:] if t.numel() in sizes]
    elements = sum(book.elements(t) for t in found)
    op.writes -= elements / book.samples
    op.weights += elements
    return found


def split_convolution(
    op: RawOp, bound: Mapping[str, Any], outputs: Sequence[Any], book: MemoryBook
) -> list[tuple[RawOp, list[Any]]]:
    """Return a convolution's backward, which torch dispatches as one, as its data and weight gradients."""
    data, weight, bias = bound["output_mask"]
    grad = book.elements(bound["grad_output"]) / book.samples
    image = book.elements(bound["input"]) / book.samples
    kernel, product = book.elements(bound["weight"]), op.product
    made = list(outputs)
    parts: list[tuple[RawOp, list[Any]]] = []
    if data:
        part = replace(
            op, label="dgrad", reads=grad, writes=image, weights=kernel,
            product=product and replace(product, n=product.k, k=product.n),
            inputs=dict(op.inputs), right_static=True, shape=tuple(made[0].shape),
        )  # fmt: skip
        parts.append((part, [made.pop(0)]))
    if weight:
        part = replace(
            op, label="wgrad", reads=grad + image, writes=0.0, weights=kernel, static=True,
            product=product and replace(product, m=product.k, k=product.m),
            weight_gradient=True, launches=1 + int(bias), inputs=dict(op.inputs),
            shape=tuple(made[0].shape),
        )  # fmt: skip
        parts.append((part, made))
    elif bias:
        part = replace(op, label="bias_grad", flops=0.0, reads=grad, writes=0.0, product=None,
                       static=True, inputs=dict(op.inputs))  # fmt: skip
        parts.append((part, made))
    return parts


@dataclass(frozen=True, slots=True)
class Traits:
    """An operation's schema, looked up once for each operation."""

    name: str
    namespace: str
    is_view: bool
    mutates: bool
    arguments: tuple[str, ...]
    kind: OpKind


@cache
def traits_of(func: Any) -> Traits:
    """Return the traits of an operator overload."""
    label = func._overloadpacket.__name__
    name = label.rstrip("_") if not label.startswith("__") else label.strip("_")
    return Traits(
        name=name, namespace=func.namespace, is_view=bool(func.is_view),
        mutates=bool(func._schema.is_mutable),
        arguments=tuple(argument.name for argument in func._schema.arguments),
        kind=aten.kind_of(name, func.namespace, _is_pointwise(func, name)),
    )  # fmt: skip


def _is_pointwise(func: Any, name: str) -> bool:
    torch = load_torch()
    if torch.Tag.pointwise in func.tags:
        return True
    packet: Any = getattr(getattr(torch.ops, func.namespace), name, None)
    overloads: list[str] = packet.overloads() if hasattr(packet, "overloads") else []
    return any(torch.Tag.pointwise in getattr(packet, o).tags for o in overloads)


class EndlessError(RequestError):
    """A step had not ended when it was stopped; `lines`: those that read values again and again."""

    lines: Collection[str] = ()


@dataclass
class OpRecorder:
    """Sees every operation of one step, in order.

    Attributes:
        book: who wrote which memory.
        notes: what was assumed of data, each once.
        phase, path: the part of the step, and the module whose forward, runs now.
        heads: (heads of queries, heads of keys and values) of the attentions that were seen.
        running: the operation that runs now, for messages.
        unknown: operations whose cost is only bounded.
        others: lines of code where a value read from a tensor is taken to be the other one (0, false).
        most: operations that it may have, by default `MOST_OPERATIONS`.
        most_reads: times that one line may read a value in one module.
        read: the lines that read one, each once, with the value that was taken.
    """

    book: MemoryBook
    others: Collection[str] = ()
    most: int | None = None
    most_reads: float = MOST_READS
    read: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    ops: list[RawOp] = field(default_factory=list)
    phase: Phase = Phase.FORWARD
    path: str = ""
    heads: list[tuple[int, int]] = field(default_factory=list)
    running: str = ""
    dispatched: int = 0
    unknown: dict[str, None] = field(default_factory=dict)
    _reads: Counter[tuple[str, str]] = field(default_factory=Counter)
    _most_read: int = 0
    _pending_saved: float = 0.0
    _by_sequence: dict[int, tuple[int | None, str]] = field(default_factory=dict)

    @property
    def is_endless(self) -> bool:
        """Whether the step has more operations, or reads one value more often, than is recorded."""
        too_long = self.dispatched > (self.most or MOST_OPERATIONS)
        return too_long or self._most_read > self.most_reads

    def intercept(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an operation and write it down; the callback of a dispatch mode."""
        traits = traits_of(func)
        self.dispatched += 1
        if self.is_endless:
            read = ", ".join(self.read)
            error = EndlessError(
                "trace one training step", f"it dispatched {self.dispatched - 1:,} operations and had"
                " not ended" + (f"; it read values of tensors at {read}" if read else ""),
                "bound the loops of its forward: one that hangs on the values of tensors may never"
                " end here; or trace a part of the module",
            )  # fmt: skip
            error.lines = {line for (_, line), n in self._reads.items() if 2 * n > self.most_reads}
            raise error
        self.running = f"{traits.namespace}::{traits.name}"
        assumed = None  # the result of what depends on data, and the assumption
        if args and getattr(args[0], "is_meta", False):
            reads = traits.name in (*_READS, "_to_copy")
            assumed = (
                _read_values(traits.name, args, kwargs, self.book) if reads
                else _selected(func, traits.name, args, kwargs)
            )  # fmt: skip
        if assumed is None:
            result = func(*args, **kwargs)
            memory = self.book.find(args[0]) if traits.name in _READS else None
            is_made = memory is not None and memory.writer is not None
        else:
            result, note = assumed
            is_made = bool(note)
            if note not in ("", _READ_VALUE):
                self.notes[note] = None
        if traits.name in _READS and is_made:
            # Python is given the value of a tensor: the line that reads it is written down.
            line = _calling_line()
            result = type(result)(not result) if line in self.others else result
            self.read.pop(line, None)  # the last to be read stands last
            self.read[line] = result
            self._reads[self.path, line] += 1
            self._most_read = max(self._most_read, self._reads[self.path, line])
        self._record(traits, args, kwargs, result)
        return result

    def keep(self, tensor: Any) -> Any:
        """Count a tensor that autograd saves for backward; the callback of a saving hook.

        Its whole storage counts once, with the operation that wrote it; parameters, and what does not grow
        with the batch, do not.
        """
        memory = self.book.of(tensor)
        if self.phase is Phase.FORWARD and not (memory.kept or memory.static or memory.weight):
            memory.kept = True
            elements = self.book.storage_elements(tensor) / self.book.samples
            if memory.writer is None:
                self._pending_saved += elements
            else:
                self.ops[memory.writer].saved += elements
        return tensor

    def add(self, op: RawOp, read: Sequence[Memory], written: Sequence[Any]) -> int:
        """Append an operation with the memories it reads and the tensors it writes."""
        position = len(self.ops)
        op.inputs.update({m.writer: None for m in read if m.writer is not None})
        if self.phase is Phase.FORWARD:  # the first to read a parameter owns it
            for memory in read:
                op.params, memory.params = op.params + memory.params, 0.0
                memory.touched = True
        op.saved, self._pending_saved = op.saved + self._pending_saved, 0.0
        for tensor in written:
            memory = self.book.find(tensor) or self.book.enter(tensor)
            memory.writer, memory.static = position, op.static
        self.ops.append(op)
        return position

    def attend(self, query: Sequence[int], key: Sequence[int]) -> None:
        """Remember the heads of one attention from its shapes (..., heads, tokens, head size)."""
        heads, kv_heads = (shape[-3] if len(shape) > 3 else 1 for shape in (query, key))
        self.heads.append((heads, kv_heads))

    def mark(self, position: int | None) -> None:
        """Remember that the autograd node made last belongs to a forward operation."""
        sequence = load_torch().autograd._get_sequence_nr()
        known = self._by_sequence.get(sequence)
        if known is None or (known[0] is None and position is not None):
            self._by_sequence[sequence] = (position, self.path)

    def _source(self) -> tuple[int | None, str]:
        node = load_torch()._C._current_autograd_node()
        known = self._by_sequence.get(node._sequence_nr() + 1) if node is not None else None
        return known or (None, self.path)

    def _record(
        self, traits: Traits, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        forward = self.phase is Phase.FORWARD
        outputs = list(tensors_in((result,)))
        fresh = [t for t in outputs if self.book.find(t) is None]
        moves = bool(fresh) or traits.mutates
        if traits.is_view or traits.name in aten.FREE or not moves or not outputs:
            for tensor in (*tensors_in((args, kwargs)), *fresh):
                self.book.of(tensor)  # a view of a parameter is that parameter
            if forward:
                self.mark(None)
            return
        written = outputs if traits.mutates else fresh
        bound = {**dict(zip(traits.arguments, args, strict=False)), **kwargs}
        op, read = self._cost(traits, bound, written)
        op.source, op.path = (None, self.path) if forward else self._source()
        parts = [(op, written)]
        gradients: list[Any] = []
        if traits.name == "convolution_backward":
            parts = split_convolution(op, bound, outputs, self.book)
        elif op.source is not None:
            gradients = find_weight_gradients(op, self.ops[op.source], written, self.book)
        position = None
        for part, tensors in parts:
            position = self.add(part, read, tensors)
        for tensor in gradients:
            self.book.of(tensor).static = True
        if forward:
            self.mark(position)
        if op.kind is OpKind.UNKNOWN:
            self.unknown[f"{traits.namespace}::{traits.name}"] = None

    def _cost(
        self, traits: Traits, bound: Mapping[str, Any], written: list[Any]
    ) -> tuple[RawOp, list[Memory]]:
        """Return an operation with what it moves and computes for one sample, and what it reads."""
        inputs = _distinct(tensors_in(bound.values()))
        if traits.mutates and traits.name in aten.OVERWRITES | aten.SCATTERS:
            inputs = [t for t in inputs if not any(t is w for w in written)]
        read = [self.book.of(t) for t in inputs]
        if inputs:
            static = all(memory.static for memory in read)
        else:
            static = not any(self.book.batched(t) for t in written)
        op = RawOp(traits.name, traits.kind, self.phase, static=static)
        op.shape = tuple(written[0].shape)
        op.weight_sizes = {t.numel() for t, m in zip(inputs, read, strict=True) if m.static}
        op.sizes = {
            m.writer: float(t.numel())
            for t, m in zip(inputs, read, strict=True)
            if m.writer is not None and not m.static
        }
        self._traffic(op, traits, inputs, read, written)
        op.product = aten.product_of(traits.name, bound, written)
        if op.product is not None:
            op.kind, op.flops = op.product.kind, op.product.flops / self.book.samples
            if traits.name == aten.ATTENTION_FORWARD:
                self.attend(bound["query"].shape, bound["key"].shape)
            elif traits.name not in aten.ATTENTION:
                left, right = aten.FACTORS.get(traits.name, ("input", "weight"))
                op.left_static = left in bound and self.book.of(bound[left]).static
                op.right_static = right in bound and self.book.of(bound[right]).static
        if op.kind is OpKind.EMBEDDING and "weight" in bound:
            op.table = tuple(bound["weight"].shape)
        return op, read

    def _traffic(
        self, op: RawOp, traits: Traits, inputs: list[Any], read: list[Memory], written: list[Any]
    ) -> None:
        out = sum(self.book.elements(t) for t in written)
        sizes = [self.book.elements(t) for t in inputs]
        if traits.name in aten.GATHERS and sizes:
            sizes[0] = min(sizes[0], out)  # only the rows looked up
        elif traits.mutates and traits.name in aten.SCATTERS:
            out = sum(sizes)
        samples = self.book.samples
        gathered = traits.name in aten.GATHERS and not op.static
        for size, memory in zip(sizes, read, strict=True):
            if memory.static and not gathered:
                op.weights += size
            else:
                op.reads += size / samples
        if op.static:
            op.weights += out
        else:
            op.writes += out / samples


def _calling_line() -> str:
    """Return file:line of the innermost frame outside torch and this folder."""
    libraries = tuple(f"{Path(file).parent}{os.sep}" for file in (load_torch().__file__, __file__))
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(libraries):
        frame = frame.f_back
    path = Path(frame.f_code.co_filename)
    here = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path.name
    return f"{here}:{frame.f_lineno}"


def _distinct(tensors: Any) -> list[Any]:
    """Return tensors without those that read the same elements again (x * x reads x once)."""
    seen: dict[Any, Any] = {}
    for tensor in tensors:
        if tensor.is_sparse:
            key: Any = id(tensor)
        else:
            key = (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape)
        seen.setdefault(key, tensor)
    return list(seen.values())
