"""The recorder: writes down each operation of a step as torch dispatches it.

Gradients as torch computes them, told apart: of data, and of weights no batch makes larger.

Shapes of the most frequent operations, known without torch's slow Python meta kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from forerun.domain.graph import OpKind, Phase
from forerun.errors import RequestError
from forerun.workloads.trace.backend import load_torch
from forerun.workloads.trace.fakes import Fakes
from forerun.workloads.trace.kinds import FREE, GATHERS, OVERWRITES, SCATTERS, kind_of
from forerun.workloads.trace.memory import Memory, MemoryBook, tensors_in
from forerun.workloads.trace.products import FACTORS, FUSED, Product, product_of
from forerun.workloads.trace.raw import Heads, RawOp

# Of one shape and type in, of the same out.
_POINTWISE = frozenset(
    """add sub mul div relu sigmoid tanh silu gelu neg exp threshold_backward sigmoid_backward
    tanh_backward silu_backward gelu_backward native_dropout_backward""".split()
)


def quick_answer(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], mutates: bool) -> Any:
    """Return what an operation on meta tensors returns, None where torch must be asked."""
    if mutates or "dtype" in kwargs or not args or not getattr(args[0], "is_meta", False):
        return None
    if name in _POINTWISE:
        return _pointwise(args)
    handler = _HANDLERS.get(name)
    return None if handler is None else handler(args)


def _pointwise(args: Sequence[Any]) -> Any:
    torch, first = load_torch(), args[0]
    if not first.is_floating_point():
        return None
    for other in args[1:]:
        if isinstance(other, torch.Tensor):
            same = other.shape == first.shape and other.dtype == first.dtype
            if not (same and other.is_meta):
                return None
        elif isinstance(other, complex):
            return None
    return torch.empty_like(first)


def _addmm(args: Sequence[Any]) -> Any:
    left, right = args[1], args[2]
    fits = left.dim() == right.dim() == 2 and left.shape[1] == right.shape[0]
    same = args[0].dtype == left.dtype == right.dtype and args[0].shape == right.shape[1:]
    return left.new_empty((left.shape[0], right.shape[1])) if fits and same else None


def _mean(args: Sequence[Any]) -> Any:
    tensor = args[0]
    if not tensor.is_floating_point() or len(args) < 2 or not args[1]:
        return None
    sides = {side % tensor.dim() for side in args[1]}
    keep = len(args) > 2 and args[2]
    shape = [
        1 if side in sides else size
        for side, size in enumerate(tensor.shape)
        if keep or side not in sides
    ]
    return tensor.new_empty(shape)


def _batch_norm(args: Sequence[Any]) -> Any:
    image, training = args[0], args[5]
    if not training or image.dim() < 2:
        return None
    torch = load_torch()
    statistics = [torch.empty(image.shape[1], dtype=_wide(image), device="meta") for _ in range(2)]
    return (torch.empty_like(image), *statistics)


def _batch_norm_backward(args: Sequence[Any]) -> Any:
    torch, image, mask = load_torch(), args[1], args[9]
    channels, dtype = image.shape[1], args[2].dtype if args[2] is not None else _wide(image)
    gradients = [torch.empty(channels, dtype=dtype, device="meta") if m else None for m in mask[1:]]
    return (torch.empty_like(image) if mask[0] else None, *gradients)


def _wide(tensor: Any) -> Any:
    """Return the type of statistics over a tensor: at least fp32."""
    torch = load_torch()
    narrow = (torch.float16, torch.bfloat16)
    return torch.float32 if tensor.dtype in narrow else tensor.dtype


_HANDLERS: Mapping[str, Callable[[Sequence[Any]], Any]] = {
    "addmm": _addmm,
    "mean": _mean,
    "native_batch_norm": _batch_norm,
    "native_batch_norm_backward": _batch_norm_backward,
}


def find_weight_gradients(
    op: RawOp, forward: RawOp, written: Sequence[Any], book: MemoryBook
) -> list[Any]:
    """Return the tensors among those written that are gradients of weights, and state them so.

    A gradient of a weight has the size of a weight that the forward operation read. Where it is
    the only output, it is made of activations alone; among several, data gradients come first.
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
    """Return a convolution's backward as its data gradient and its weight gradient.

    torch dispatches them as one operation, and may leave either out; each does as many FLOPs as
    forward (a grouped one, too: no channel meets the other groups' channels).
    """
    data, weight, bias = (*bound["output_mask"], False, False, False)[:3]
    grad = book.elements(bound["grad_output"]) / book.samples
    image = book.elements(bound["input"]) / book.samples
    kernel = book.elements(bound["weight"])
    made = list(outputs)
    parts: list[tuple[RawOp, list[Any]]] = []
    if data:
        product = _data_product(op.product)
        part = replace(
            op, label="dgrad", reads=grad, writes=image, weights=kernel, product=product,
            inputs=dict(op.inputs), right_static=True, shape=tuple(made[0].shape),
        )  # fmt: skip
        parts.append((part, [made.pop(0)]))
    if weight:
        part = replace(
            op, label="wgrad", reads=grad + image, writes=0.0, weights=kernel, static=True,
            product=_weight_product(op.product), weight_gradient=True, launches=1 + int(bias),
            inputs=dict(op.inputs), shape=tuple(made[0].shape),
        )  # fmt: skip
        parts.append((part, made))
    elif bias:
        part = replace(op, label="bias_grad", flops=0.0, reads=grad, writes=0.0, product=None,
                       static=True, inputs=dict(op.inputs))  # fmt: skip
        parts.append((part, made))
    return parts


def _data_product(product: Product | None) -> Product | None:
    return product and replace(product, n=product.k, k=product.n)


def _weight_product(product: Product | None) -> Product | None:
    return product and replace(product, m=product.k, k=product.m)


# The largest steps that people train dispatch some tens of thousands.
MOST_OPERATIONS = 200_000


@dataclass(frozen=True, slots=True)
class Traits:
    """What an operation's schema says, looked up once for each operation."""

    name: str
    namespace: str
    is_view: bool
    mutates: bool
    arguments: tuple[str, ...]
    kind: OpKind

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by the names of the schema."""
        return {**dict(zip(self.arguments, args, strict=False)), **kwargs}


@cache
def traits_of(func: Any) -> Traits:
    """Return the traits of an operator overload."""
    label = func._overloadpacket.__name__
    name = label.rstrip("_") if not label.startswith("__") else label.strip("_")
    return Traits(
        name=name,
        namespace=func.namespace,
        is_view=bool(func.is_view),
        mutates=bool(func._schema.is_mutable),
        arguments=tuple(argument.name for argument in func._schema.arguments),
        kind=kind_of(name, func.namespace, _is_pointwise(func, name)),
    )


def _is_pointwise(func: Any, name: str) -> bool:
    """Whether torch calls an operation point-wise; in-place forms are known by the others."""
    torch = load_torch()
    if torch.Tag.pointwise in func.tags:
        return True
    packet = getattr(getattr(torch.ops, func.namespace), name, None)
    if packet is None or not hasattr(packet, "overloads"):
        return False
    overloads: list[str] = packet.overloads()
    return any(torch.Tag.pointwise in getattr(packet, o).tags for o in overloads)


@dataclass
class Recorder:
    """Sees every operation of one step, in order.

    Attributes:
        book: who wrote which memory.
        fakes: answers for what meta tensors cannot say.
        ops: the operations so far.
        phase: the part of the step that runs now.
        path: the module whose forward runs now.
        heads: shapes of the attentions that were seen.
        asked: the operation that runs now, for messages.
        dispatched: operations that torch dispatched so far, views and all.
    """

    book: MemoryBook
    fakes: Fakes
    ops: list[RawOp] = field(default_factory=list)
    phase: Phase = Phase.FORWARD
    path: str = ""
    heads: list[Heads] = field(default_factory=list)
    asked: str = ""
    dispatched: int = 0
    unknown: dict[str, None] = field(default_factory=dict)
    _pending_saved: float = 0.0
    _by_sequence: dict[int, tuple[int | None, str]] = field(default_factory=dict)

    def intercept(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an operation and write it down; the callback of a dispatch mode."""
        traits = traits_of(func)
        self.dispatched += 1
        if self.dispatched > MOST_OPERATIONS:
            raise RequestError(
                "trace one training step", f"it dispatched {MOST_OPERATIONS:,} operations and had"
                " not ended",
                "bound the loops of its forward: one that hangs on the values of tensors may never"
                " end here; or trace a part of the module",
            )  # fmt: skip
        self.asked = f"{traits.namespace}::{traits.name}"
        answer = self.fakes.answer(func, traits.name, args, kwargs, self.book)
        if answer is not None:
            result = answer.value
        else:
            result = quick_answer(traits.name, args, kwargs, traits.mutates)
            if result is None:
                result = func(*args, **kwargs)
        self._record(traits, args, kwargs, result)
        return result

    def keep(self, tensor: Any) -> Any:
        """Count a tensor that autograd saves for backward; the callback of a saving hook.

        It is counted with the operation that wrote it, once for its whole storage; parameters
        and what does not grow with the batch are not counted.
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
        op.params += self._own(read)
        op.saved, self._pending_saved = op.saved + self._pending_saved, 0.0
        for tensor in written:
            memory = self.book.find(tensor) or self.book.enter(tensor)
            memory.writer, memory.static = position, op.static
        self.ops.append(op)
        return position

    def source(self) -> tuple[int | None, str]:
        """Return the forward operation behind the gradient that runs now, and its module."""
        node = load_torch()._C._current_autograd_node()
        if node is None:
            return None, self.path
        known = self._by_sequence.get(node._sequence_nr() + 1)
        return known or (None, self.path)

    def mark(self, position: int | None) -> None:
        """Remember that the autograd node made last belongs to a forward operation."""
        sequence = load_torch().autograd._get_sequence_nr()
        known = self._by_sequence.get(sequence)
        if known is None or (known[0] is None and position is not None):
            self._by_sequence[sequence] = (position, self.path)

    def _own(self, read: Sequence[Memory]) -> float:
        """Take over the parameters that no operation owns yet."""
        if self.phase is not Phase.FORWARD:
            return 0.0
        owned = 0.0
        for memory in read:
            owned, memory.params = owned + memory.params, 0.0
        return owned

    def _record(
        self, traits: Traits, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        forward = self.phase is Phase.FORWARD
        outputs = list(tensors_in((result,)))
        fresh = [t for t in outputs if self.book.find(t) is None]
        moves = bool(fresh) or traits.mutates
        if traits.is_view or traits.name in FREE or not moves or not outputs:
            for tensor in tensors_in((args, kwargs)):
                self.book.of(tensor)  # a view of a parameter is that parameter
            fresh = [t for t in fresh if self.book.find(t) is None]
            for tensor in fresh:
                self.book.enter(tensor, static=not self.book.batched(tensor))
            if forward:
                self.mark(None)
            return
        written = outputs if traits.mutates else fresh
        bound = traits.bind(args, kwargs)
        op, read = self._cost(traits, bound, written)
        source, op.path = (None, self.path) if forward else self.source()
        op.source = source
        parts = [(op, written)]
        gradients: list[Any] = []
        if traits.name == "convolution_backward":
            parts = split_convolution(op, bound, outputs, self.book)
        elif source is not None:
            gradients = find_weight_gradients(op, self.ops[source], written, self.book)
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
        if traits.mutates and traits.name in OVERWRITES | SCATTERS:
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
        op.product = product_of(traits.name, bound, written)
        if op.product is not None:
            self._factors(op, op.product, traits.name, bound)
        if op.kind is OpKind.EMBEDDING and "weight" in bound:
            op.table = tuple(bound["weight"].shape)
        return op, read

    def _traffic(
        self, op: RawOp, traits: Traits, inputs: list[Any], read: list[Memory], written: list[Any]
    ) -> None:
        """State the elements that an operation reads and writes."""
        out = sum(self.book.elements(t) for t in written)
        sizes = [self.book.elements(t) for t in inputs]
        if traits.name in GATHERS and sizes:
            sizes[0] = min(sizes[0], out)  # only the rows asked for
        elif traits.mutates and traits.name in SCATTERS:
            out = sum(sizes)
        samples = self.book.samples
        gathered = traits.name in GATHERS and not op.static
        for size, memory in zip(sizes, read, strict=True):
            if memory.static and not gathered:
                op.weights += size
            else:
                op.reads += size / samples
        if op.static:
            op.weights += out
        else:
            op.writes += out / samples

    def _factors(self, op: RawOp, product: Product, name: str, bound: Mapping[str, Any]) -> None:
        """State the product in an operation, and which of its factors is a weight."""
        op.kind, op.flops = product.kind, product.flops / self.book.samples
        if name in FUSED:
            if op.phase is Phase.FORWARD:
                self.heads.append(Heads.of(bound["query"].shape, bound["key"].shape))
            return
        left, right = FACTORS.get(name, ("input", "weight"))
        op.left_static = left in bound and self.book.of(bound[left]).static
        op.right_static = right in bound and self.book.of(bound[right]).static


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
