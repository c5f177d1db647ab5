"""Progress: how far a worker has come, in a mapped file that outlives it, and a log of its steps."""

from __future__ import annotations

import json
import mmap
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

STARTING, STEPPING, FINISHED = range(3)
_MAGIC = b"forerun1"
_HEAD = struct.Struct("<8sqqdd")  # magic, phase, steps, begun, last (seconds since 1970)
_ROOM = 8192  # durations kept: the last so many
_SIZE = _HEAD.size + _ROOM * 8


@dataclass(frozen=True, slots=True)
class WorkerProgress:
    """A worker's phase, steps and their seconds; `begun` and `last` step end are seconds since 1970."""

    phase: int
    steps: int
    begun: float
    last: float
    seconds: tuple[float, ...]

    def place(self) -> str:
        """Return where the worker was, in words."""
        if self.phase == STARTING:
            return "before its first step"
        return "after its last step" if self.phase == FINISHED else f"in step {self.steps + 1}"


def slowest_place(workers: Sequence[WorkerProgress | None]) -> str:
    """Return where the worker was that had come least far; None is one that has not begun to report."""
    started = [one for one in workers if one is not None]
    if len(started) < len(workers):
        return "while starting"
    return min(started, key=lambda one: one.steps).place()


class Reporter:
    """Reports to other processes how far a worker has come."""

    def begin(self) -> None:
        """Say that stepping begins."""

    def step(self, seconds: float) -> None:
        """Say that a step ended, which took so long."""

    def finish(self) -> None:
        """Say that nothing more is coming."""


class ProgressFile(Reporter):
    """A Reporter: a step costs one write into memory, which the kernel keeps for readers."""

    def __init__(self, path: Path) -> None:
        # Room is taken now: on a full disk this raises, where a write into the map would kill.
        with path.open("w+b") as stream:
            stream.write(bytes(_SIZE))
            stream.flush()
            self._map = mmap.mmap(stream.fileno(), _SIZE)
        self._steps = 0
        self._begun = 0.0
        self._write(STARTING)

    def begin(self) -> None:  # noqa: D102
        self._begun = time.time()
        self._write(STEPPING)

    def step(self, seconds: float) -> None:  # noqa: D102
        struct.pack_into("<d", self._map, _HEAD.size + self._steps % _ROOM * 8, seconds)
        self._steps += 1
        self._write(STEPPING)

    def finish(self) -> None:  # noqa: D102
        self._write(FINISHED)

    def _write(self, phase: int) -> None:
        _HEAD.pack_into(self._map, 0, _MAGIC, phase, self._steps, self._begun, time.time())


def read_progress(path: Path) -> WorkerProgress | None:
    """Return what a worker wrote, None where it has not come so far."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(data) < _SIZE or not data.startswith(_MAGIC):
        return None
    _, phase, steps, begun, last = _HEAD.unpack_from(data)
    ring = struct.unpack_from(f"<{_ROOM}d", data, _HEAD.size)
    kept = range(max(steps - _ROOM, 0), steps)
    return WorkerProgress(phase, steps, begun, last, tuple(ring[i % _ROOM] for i in kept))


class StepLog(Reporter):
    """A log of steps in lines of JSON, at most one a second; `done` steps came before this run."""

    def __init__(self, path: Path, done: int = 0) -> None:
        self._path, self._done = path, done
        self._steps = self._written = done
        self._since = self._last = 0.0

    def step(self, seconds: float) -> None:  # noqa: D102
        self._steps += 1
        self._last = time.perf_counter()
        if self._steps == self._done + 1:  # the first one starts the clock
            self._written, self._since = self._steps, self._last
        if self._last - self._since >= 1.0:
            self._write()

    def finish(self) -> None:
        """Write the last steps too, however short the time since."""
        if self._steps > self._written:
            self._write()

    def _write(self) -> None:
        line = {
            "step": self._steps, "time": time.time() - (time.perf_counter() - self._last),
            "step_time_s": (self._last - self._since) / (self._steps - self._written),
        }  # fmt: skip
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")
        self._written, self._since = self._steps, self._last
