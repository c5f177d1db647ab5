"""Plausible answers where a step asks for values, which tensors on the meta device do not have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from forerun.workloads.trace.backend import load_torch
from forerun.workloads.trace.memory import MemoryBook

_LONGEST_COPY = 1_000_000  # elements that a copy off the meta device may have


@dataclass(frozen=True, slots=True)
class Answer:
    """A value to be taken in place of running the operation."""

    value: Any


@dataclass
class Fakes:
    """Answers for operations whose result depends on data.

    Attributes:
        notes: what was assumed, in words, each once.
    """

    notes: dict[str, None] = field(default_factory=dict)

    def answer(
        self, func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], book: MemoryBook
    ) -> Answer | None:
        """Return the answer to an operation on meta tensors, None where it can run."""
        handler = _HANDLERS.get(name)
        if handler is None or not args or not _is_meta(args[0]):
            return None
        done = handler(func, args, kwargs, book)
        if done is None:
            return None
        value, note = done
        if note:
            self.notes[note] = None
        return Answer(value)


_Result = tuple[Any, str] | None
_ALL_ELEMENTS = "a selection that depends on data was taken to select every element"
_READ_VALUE = "a value read from a tensor was taken to be 1 or true"
_COPIED = "values copied off the meta device were taken to be 1"


def _is_meta(value: Any) -> bool:
    return bool(getattr(value, "is_meta", False))


def _scalar(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], book: MemoryBook) -> _Result:
    tensor = args[0]
    real = _real(tensor, book)
    if real is not None:
        return real.item(), ""
    if tensor.dtype is load_torch().bool:
        return True, _READ_VALUE
    return (1.0 if tensor.is_floating_point() else 1), _READ_VALUE


def _equal(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], book: MemoryBook) -> _Result:
    return args[0].shape == args[1].shape, _READ_VALUE


def _nonzero(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], book: MemoryBook
) -> _Result:
    return _indices(args[0], args[0].dim()), _ALL_ELEMENTS


def _masked_select(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], book: MemoryBook
) -> _Result:
    torch = load_torch()
    count = torch.broadcast_shapes(args[0].shape, args[1].shape).numel()
    return torch.empty(count, dtype=args[0].dtype, device="meta"), _ALL_ELEMENTS


def _index(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], book: MemoryBook) -> _Result:
    torch = load_torch()
    if not any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]):
        return None
    indices: list[Any] = []
    for index in args[1]:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            indices += [_indices(index) for _ in range(index.dim())]
        else:
            indices.append(index)
    return func(args[0], indices), _ALL_ELEMENTS


def _unique(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], book: MemoryBook) -> _Result:
    tensor = args[0]
    flat = tensor.new_empty(tensor.numel())
    inverse = _indices(tensor).reshape(tensor.shape)
    return (flat, inverse, _indices(tensor)), _ALL_ELEMENTS


def _repeat(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], book: MemoryBook) -> _Result:
    torch = load_torch()
    count = kwargs.get("output_size") or args[0].numel()
    note = "" if kwargs.get("output_size") else "counts of a repeat were taken to be 1"
    return torch.empty(count, dtype=torch.long, device="meta"), note


def _bincount(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], book: MemoryBook
) -> _Result:
    least = kwargs.get("minlength", args[2] if len(args) > 2 else 0)
    count = least or args[0].numel()
    return _indices(args[0].new_empty(count)), _ALL_ELEMENTS


def _copy_off(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], book: MemoryBook
) -> _Result:
    """Answer a copy to the CPU with the caller's own values where they are at hand, else ones."""
    torch, tensor = load_torch(), args[0]
    device = kwargs.get("device")
    if device is None or torch.device(device).type != "cpu" or tensor.numel() > _LONGEST_COPY:
        return None
    dtype = kwargs.get("dtype") or tensor.dtype
    real = _real(tensor, book)
    if real is not None:
        return real.to(dtype), ""
    return torch.ones(tensor.shape, dtype=dtype, device="cpu"), _COPIED


def _real(tensor: Any, book: MemoryBook) -> Any:
    """Return the values that the caller gave for a meta tensor, None where there are none."""
    memory = book.find(tensor)
    if memory is None or memory.real is None or memory.writer is not None:
        return None
    real = memory.real
    return real if real.shape == tensor.shape and real.dtype == tensor.dtype else None


def _indices(tensor: Any, columns: int = 0) -> Any:
    """Return as many positions as a tensor has elements, in rows of `columns` where it is given."""
    torch = load_torch()
    shape = (tensor.numel(), columns) if columns else (tensor.numel(),)
    return torch.empty(shape, dtype=torch.long, device="meta")


_HANDLERS: dict[str, Callable[[Any, Sequence[Any], Mapping[str, Any], MemoryBook], _Result]] = {
    "_local_scalar_dense": _scalar,
    "equal": _equal,
    "allclose": _equal,
    "nonzero": _nonzero,
    "masked_select": _masked_select,
    "index": _index,
    "_unique2": _unique,
    "unique_consecutive": _unique,
    "repeat_interleave": _repeat,
    "bincount": _bincount,
    "_to_copy": _copy_off,
}
