"""TensorBoard: a folder of event files as one run: scalars by step, one file a session.

Read by a decoder of forerun's own: the libraries that read these files bring a web server along,
and cannot say at which byte a file that is still being written ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from forerun.errors import RequestError
from forerun.measure.logs.events import BadEventError, Event, event_of
from forerun.measure.logs.opening import bytes_of, head_of, written_s
from forerun.measure.logs.points import Point, add_points
from forerun.measure.logs.series import RESTART, Gathered, LogSeries
from forerun.measure.logs.tfrecord import Reading, is_record_file, records_in

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
