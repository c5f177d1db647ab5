"""TensorBoard: a folder of event files as one run: scalars by step, one file a session.

Read by a decoder of forerun's own: the libraries that read these files bring a web server along,
and cannot say at which byte a file that is still being written ends.

TFRecord: the framing of TensorBoard's event files, read up to where the writer has come.

Events: the scalars in TensorBoard's protocol buffers (Event, Summary, TensorProto).
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from forerun.errors import RequestError
from forerun.measure.logs.opening import bytes_of, head_of, written_s
from forerun.measure.logs.series import RESTART, Gathered, LogSeries, Point, add_points

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


_HEADER, _FOOTER = 12, 4
_MASK = 0xA282EAD8
_CHECKED_BYTES = 4096  # records that are longer hold images and graphs, which nobody here reads


def _table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of bytes."""
    value, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    """Return the checksum of bytes as the format stores it."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF


@dataclass
class Reading:
    """How far a file was read, and why not further.

    Attributes:
        records: those that were whole.
        damaged: whole records whose checksum is wrong; they are left out.
        cut_at: the byte at which a record is not whole (yet), -1 where the file ends with one.
        broken_at: the byte at which there is no record, -1 where there is none such.
    """

    records: int = 0
    damaged: int = 0
    cut_at: int = -1
    broken_at: int = -1


def records_in(data: bytes, reading: Reading) -> Iterator[bytes]:
    """Yield the bytes of each whole record, and tell in `reading` how it ended."""
    at = 0
    while at < len(data):
        if at + _HEADER > len(data):
            reading.cut_at = at
            return
        length, check = struct.unpack_from("<QI", data, at)
        if masked(data[at : at + 8]) != check:
            reading.broken_at = at
            return
        end = at + _HEADER + length
        if end + _FOOTER > len(data):
            reading.cut_at = at
            return
        body = data[at + _HEADER : end]
        (check,) = struct.unpack_from("<I", data, end)
        at = end + _FOOTER
        if length <= _CHECKED_BYTES and masked(body) != check:
            reading.damaged += 1
            continue
        reading.records += 1
        yield body


def is_record_file(head: bytes) -> bool:
    """Return whether a file that begins so is one of records."""
    if len(head) < _HEADER:
        return False
    return masked(head[:8]) == int(struct.unpack_from("<I", head, 8)[0])


_MARK = "tfevents"
_WRITER = re.compile(r"tfevents\.\d+\.(.+\.\d+)\.\d+(?:\D.*)?$")  # seconds, host.process, number


@dataclass
class _Session:
    """The events that one start of a job wrote."""

    writer: str
    begin_s: float
    events: list[Event]


def accepts(path: Path) -> bool:
    """Return whether a path is an event file, or a folder that has some (below it too)."""
    if path.is_dir():
        return next(_event_files(path), None) is not None
    return _MARK in path.name or (path.is_file() and is_record_file(head_of(path)[:12]))


def _event_files(folder: Path) -> Iterator[Path]:
    return (p for p in folder.rglob(f"*{_MARK}*") if p.is_file())


def read_tensorboard(path: Path, pattern: str = "") -> tuple[LogSeries, ...]:
    """Return the runs below a folder: each folder with files is one, as TensorBoard sees them.

    But what SummaryWriter puts below its own folder (add_scalars, add_hparams) is of its run.

    Raises:
        RequestError: no event could be read, or no scalar is in them.
    """
    files = sorted(_event_files(path)) if path.is_dir() else [path]
    folders: dict[Path, list[Path]] = {}
    for file in files:
        folders.setdefault(file.parent, []).append(file)
    homes = {folder: _home(folder, folders) for folder in folders}
    groups = {
        home: [file for folder in folders if homes[folder] == home for file in folders[folder]]
        for home in folders if homes[home] == home
    }  # fmt: skip
    found = [s for f, group in groups.items() if (s := _run(path, f, group)) is not None]
    if not found:
        raise RequestError(
            f"reading {path}", "its event files have no scalars (yet)",
            "wait until the job has logged some, or log with SummaryWriter.add_scalar",
        )  # fmt: skip
    return tuple(found)


def _home(folder: Path, folders: Mapping[Path, list[Path]]) -> Path:
    """Return the folder whose run a folder's files are of: one above, where one process wrote both."""
    mine = {_writer(file) for file in folders[folder]}
    for above in folder.parents:
        if above in folders and "" not in mine and mine <= {_writer(f) for f in folders[above]}:
            return _home(above, folders)
    return folder


def _writer(file: Path) -> str:
    """Return the host and process that a file's name tells, "" where it tells none."""
    match = _WRITER.search(file.name)
    return match[1] if match else ""


def _run(root: Path, folder: Path, files: list[Path]) -> LogSeries | None:
    """Return the run of one folder, None where its files have no scalars."""
    sessions, notes = list[_Session](), list[str]()
    for file in sorted(files, key=lambda file: file.parent != folder):
        events, said = _events(file)
        notes += said
        events = [e for e in events if e.scalars or file.parent == folder]
        if not events:
            continue
        if file.parent == folder:
            sessions.append(_Session(_writer(file), events[0].wall_time_s, events))
            continue
        # Written on the way by the session that the same process had begun last.
        own = [s for s in sessions if s.writer == _writer(file)]
        begun = [s for s in own if s.begin_s <= events[0].wall_time_s] or own[:1]
        prefix = f"{file.parent.relative_to(folder).as_posix()}/"
        for event in events:
            event.scalars = {prefix + tag: value for tag, value in event.scalars.items()}
        max(begun, key=lambda s: s.begin_s).events.extend(events)
    sessions = [s for s in sessions if any(e.scalars for e in s.events)]
    if not sessions:
        return None
    sessions.sort(key=lambda s: s.begin_s)
    gathered = Gathered()
    other = set[str]()
    for i, session in enumerate(sessions):
        if i:
            gathered.event(RESTART)
        other.update(_points(session.events, gathered))
    if other:
        notes.append(
            f"logged by another count than steps, and left out: {', '.join(sorted(other))}"
        )
    relative = folder.relative_to(root) if root.is_dir() else Path()
    name = str(relative) if str(relative) != "." else folder.resolve().name
    return LogSeries(
        name=name, reader="tensorboard", paths=tuple(map(str, files)),
        columns=gathered.columns(), facts=gathered.facts, absolute=True,
        written_s=written_s(*files), notes=tuple(notes),
    )  # fmt: skip


def _events(file: Path) -> tuple[list[Event], list[str]]:
    """Return a file's events up to where it is written, and what to say of its end."""
    data, _ = bytes_of(file)
    reading = Reading()
    events, odd = list[Event](), 0
    for record in records_in(data, reading):
        try:
            events.append(event_of(record))
        except BadEventError:
            odd += 1
    notes = []
    if reading.broken_at >= 0:
        if not reading.records:
            raise RequestError(
                f"reading {file}", f"byte {reading.broken_at:,} begins no TensorBoard record",
                "copy it again from where the job writes; as it is it holds no events, for all its name",
            )  # fmt: skip
        notes.append(f"{file.name}: damaged at byte {reading.broken_at:,}; the rest is not read")
    if reading.cut_at >= 0:
        notes.append(f"{file.name}: the record at byte {reading.cut_at:,} is not whole (yet)")
    if reading.damaged + odd:
        notes.append(f"{file.name}: {reading.damaged + odd} damaged records left out")
    return events, notes


def _points(events: list[Event], gathered: Gathered) -> tuple[str, ...]:
    """Add one file's events; return the tags that count something else than steps."""
    points: list[Point] = [
        (tag, value, event.wall_time_s, float(event.step))
        for event in events
        for tag, value in event.scalars.items()
    ]
    return add_points(points, gathered)
