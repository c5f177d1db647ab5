"""TensorBoard: folders of event files as runs: scalars by step, one file a session.

Decoded here: the tensorboard package (2.21) installs 90 MB, takes 1.6 s to import on two cores, and
does not say where a file that is damaged or still being written ends.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from forerun.errors import RequestError
from forerun.measure.logs.files import bytes_of, head_of, written_s
from forerun.measure.logs.series import RESTART, LogSeries, Scalar, SeriesBuilder, add_scalars

_HEADER, _FOOTER = 12, 4
_CHECKED_BYTES = 4096  # longer records hold images and graphs, which are not read
_MARK = "tfevents"
_WRITER = re.compile(r"tfevents\.\d+\.(.+\.\d+)\.\d+(?:\D.*)?$")  # seconds, host.process, number
# DataType of tensorflow's types.proto.
_DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 19: "<f2"}


def _crc_of_byte(value: int) -> int:
    for _ in range(8):
        value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    return value


_CRC = tuple(map(_crc_of_byte, range(256)))


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of bytes."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _CRC[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at
    raise ValueError("a number is cut off")


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of a protocol buffer's fields. Raises ValueError where it is none."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        if key & 7 == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        size = {1: 8, 5: 4}.get(key & 7, -1)
        if key & 7 == 2:
            size, at = _varint(data, at)
        if size < 0 or at + size > len(data):
            raise ValueError("a field is cut off, or of no known type")
        yield key >> 3, data[at : at + size]
        at += size


def _floats(value: int | bytes, dtype: str) -> list[float]:
    size = np.dtype(dtype).itemsize
    whole = isinstance(value, bytes) and len(value) % size == 0
    return np.frombuffer(value, dtype).astype(float).tolist() if whole else []  # type: ignore[arg-type]


def _event(data: bytes) -> tuple[float, int, dict[str, float]]:
    """Return an Event's wall time, step and scalars by tag. Raises ValueError where it is none."""
    time, step, scalars = math.nan, 0, dict[str, float]()
    for number, value in _fields(data):
        if number == 1:
            time = next(iter(_floats(value, "<f8")), math.nan)
        elif number == 2 and isinstance(value, int):
            step = value - (1 << 64) if value >= 1 << 63 else value
        elif number == 5 and isinstance(value, bytes):  # Summary
            for _, one in _fields(value):
                # Summary.Value: tag, simple_value (float) and tensor.
                parts = dict(_fields(one)) if isinstance(one, bytes) else {}
                numbers = _floats(parts.get(2, b""), "<f4") + _tensor(parts.get(8, b""))
                if isinstance(tag := parts.get(1), bytes) and len(numbers) == 1:
                    scalars[tag.decode("utf-8", errors="replace")] = numbers[0]
    return time, step, scalars


def _tensor(data: int | bytes) -> list[float]:
    """Return the numbers of a TensorProto: dtype, tensor_content, float_val and double_val."""
    parts = dict(_fields(data)) if isinstance(data, bytes) else {}
    kind = parts.get(1)
    dtype = _DTYPES.get(kind, "V1") if isinstance(kind, int) else "V1"
    return [
        number for field, form in ((4, dtype), (5, "<f4"), (6, "<f8"))
        for number in _floats(parts.get(field, b""), form)
    ]  # fmt: skip


def _read(file: Path) -> tuple[float, list[Scalar], list[str]]:
    """Return a file's first time, its scalars up to where it is written, and notes of its end."""
    data = bytes_of(file)
    begin_s, points, notes = math.inf, list[Scalar](), list[str]()
    at, records, damaged = 0, 0, 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 8], "little")
        end = at + _HEADER + size
        if at + _HEADER <= len(data) and _masked(data[at : at + 8]) != data[at + 8 : at + _HEADER]:
            if not records:
                asked = f"reading {file}"
                todo = "copy it again from where the job writes: as it is it holds no events"
                raise RequestError(asked, f"byte {at:,} begins no TensorBoard record", todo)
            notes.append(f"{file.name}: damaged at byte {at:,}; the rest is not read")
            break
        if end + _FOOTER > len(data):
            notes.append(f"{file.name}: the record at byte {at:,} is not whole (yet)")
            break
        body, check, at = data[at + _HEADER : end], data[end : end + _FOOTER], end + _FOOTER
        try:
            if size <= _CHECKED_BYTES and _masked(body) != check:
                raise ValueError("a wrong checksum")
            records += 1
            time, step, scalars = _event(body)
        except ValueError:
            damaged += 1
            continue
        begin_s = min(begin_s, time)
        points += [(tag, value, time, float(step)) for tag, value in scalars.items()]
    if damaged:
        notes.append(f"{file.name}: {damaged} damaged records left out")
    return begin_s, points, notes


def accepts(path: Path) -> bool:
    """Return whether a path is an event file, or a folder that has some (below it too)."""
    if path.is_dir():
        return next(_event_files(path), None) is not None
    head = head_of(path)[:_HEADER] if path.is_file() else b""
    return _MARK in path.name or (len(head) == _HEADER and _masked(head[:8]) == head[8:])


def _event_files(folder: Path) -> Iterator[Path]:
    return (p for p in folder.rglob(f"*{_MARK}*") if p.is_file())


def read(path: Path, pattern: str = "") -> tuple[LogSeries, ...]:
    """Return the runs below a folder, as TensorBoard sees them. Raises RequestError."""
    folders: dict[Path, list[Path]] = {}
    for file in sorted(_event_files(path)) if path.is_dir() else [path]:
        folders.setdefault(file.parent, []).append(file)
    groups: dict[Path, list[Path]] = {}
    for folder, own in folders.items():
        groups.setdefault(_home(folder, folders), []).extend(own)
    found = [s for f in folders if f in groups and (s := _run(path, f, groups[f])) is not None]
    if not found:
        todo = "wait until the job has logged some, or log with SummaryWriter.add_scalar"
        raise RequestError(f"reading {path}", "its event files have no scalars (yet)", todo)
    return tuple(found)


def _home(folder: Path, folders: Mapping[Path, list[Path]]) -> Path:
    """Return the folder of a folder's run: one above, where one process wrote both."""
    mine = set(map(_writer, folders[folder]))
    for above in folder.parents:
        if above in folders and "" not in mine and mine <= set(map(_writer, folders[above])):
            return _home(above, folders)
    return folder


def _writer(file: Path) -> str:
    """Return the host and process that a file's name tells, "" where it tells none."""
    match = _WRITER.search(file.name)
    return match[1] if match else ""


def _run(root: Path, folder: Path, files: list[Path]) -> LogSeries | None:
    sessions, notes = list[tuple[float, str, list[Scalar]]](), list[str]()
    for file in sorted(files, key=lambda file: file.parent != folder):
        begin_s, points, found = _read(file)
        notes += found
        if file.parent == folder:
            sessions.append((begin_s, _writer(file), points))
        elif points:
            # Written on the way by the session that the same process had begun last.
            own = sorted(s for s in sessions if s[1] == _writer(file))
            _, _, theirs = [*own[:1], *(s for s in own if s[0] <= points[0][2])][-1]
            prefix = f"{file.parent.relative_to(folder).as_posix()}/"
            theirs += [(prefix + key, *rest) for key, *rest in points]  # type: ignore[misc]
    sessions = sorted(session for session in sessions if session[2])
    if not sessions:
        return None
    gathered = SeriesBuilder()
    for i, (_, _, points) in enumerate(sessions):
        if i:
            gathered.event(RESTART)
        notes += add_scalars(points, gathered)
    relative = folder.relative_to(root) if root.is_dir() else Path()
    name = str(relative) if str(relative) != "." else folder.resolve().name
    return LogSeries(
        name=name, reader="tensorboard", paths=tuple(map(str, files)),
        columns=gathered.columns(), facts=gathered.facts, absolute=True,
        written_s=written_s(*files), notes=tuple(dict.fromkeys(notes)),
    )  # fmt: skip
