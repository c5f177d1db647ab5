"""Events: the scalars in TensorBoard's protocol buffers (Event, Summary, TensorProto).

The field numbers are those of tensorflow/core/util/event.proto, framework/summary.proto and
framework/tensor.proto, unchanged since 2015. Only what a scalar needs is decoded.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SESSION_START = 1
_DTYPES = {1: "<f", 2: "<d", 3: "<i", 9: "<q", 19: "<e"}  # float, double, int32, int64, half


@dataclass
class Event:
    """One event: when, at which step, and the scalars by tag."""

    wall_time_s: float = math.nan
    step: int = 0
    scalars: dict[str, float] = field(default_factory=dict)
    session_start: bool = False


class BadEventError(ValueError):
    """Bytes that are no protocol buffer."""


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise BadEventError("a number is cut off")


def _fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Yield (number, wire type, value) of a message's fields."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        value: int | bytes
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield number, wire, value
            continue
        if wire == _BYTES:
            size, at = _varint(data, at)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise BadEventError(f"wire type {wire} is not known")
        if at + size > len(data):
            raise BadEventError("a field is cut off")
        yield number, wire, data[at : at + size]
        at += size


def event_of(data: bytes) -> Event:
    """Return the event in a record. Raises BadEventError where it is none."""
    event = Event()
    for number, wire, value in _fields(data):
        if number == 1 and wire == _FIXED64:
            (event.wall_time_s,) = struct.unpack("<d", value)  # type: ignore[arg-type]
        elif number == 2 and isinstance(value, int):
            event.step = value - (1 << 64) if value >= 1 << 63 else value
        elif number == 5 and isinstance(value, bytes):
            _summary(value, event.scalars)
        elif number == 7 and isinstance(value, bytes):
            event.session_start = any(n == 1 and v == _SESSION_START for n, _, v in _fields(value))
    return event


def _summary(data: bytes, scalars: dict[str, float]) -> None:
    for number, _, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            tag, scalar = _value(value)
            if tag and scalar is not None:
                scalars[tag] = scalar


def _value(data: bytes) -> tuple[str, float | None]:
    tag, scalar = "", None
    for number, wire, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            tag = value.decode("utf-8", errors="replace")
        elif number == 2 and wire == _FIXED32:
            (scalar,) = struct.unpack("<f", value)  # type: ignore[arg-type]
        elif number == 8 and isinstance(value, bytes):
            scalar = _tensor(value)
    return tag, scalar


def _tensor(data: bytes) -> float | None:
    """Return the one number of a tensor, None where it has several or is no number."""
    kind, content = 0, b""
    numbers: list[float] = []
    for number, wire, value in _fields(data):
        if number == 1 and isinstance(value, int):
            kind = value
        elif number == 4 and isinstance(value, bytes):
            content = value
        elif number in (5, 6):
            form = "f" if number == 5 else "d"
            raw = value if isinstance(value, bytes) else b""
            size = struct.calcsize(form)
            numbers += struct.unpack(f"<{len(raw) // size}{form}", raw[: len(raw) // size * size])
        elif number in (7, 10):
            numbers += _whole_numbers(value, wire)
    form = _DTYPES.get(kind, "")
    if content and form and len(content) == struct.calcsize(form):
        numbers = [float(struct.unpack(form, content)[0])]
    return float(numbers[0]) if len(numbers) == 1 else None


def _whole_numbers(value: int | bytes, wire: int) -> list[float]:
    """Return signed whole numbers, packed or not."""
    if isinstance(value, int):
        return [float(value - (1 << 64) if value >= 1 << 63 else value)]
    found, at = [], 0
    while at < len(value):
        one, at = _varint(value, at)
        found.append(float(one - (1 << 64) if one >= 1 << 63 else one))
    return found
