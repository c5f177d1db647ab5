"""Failures: why the workers of a run ended as they did: one status and one reason for the run."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from forerun.errors import RequestError
from forerun.measure.cgroups import ControlGroup
from forerun.measure.progress import WorkerProgress

_OUT_OF_MEMORY = (
    "out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory",
    "std::bad_alloc", "unable to allocate",
)  # fmt: skip
# What a worker reports when another one died, whose reason is the run's.
_PEER_LOST = (
    "connection closed by peer", "connection reset by peer", "broken pipe", "socket closed",
    "connection refused", "timed out waiting for clients", "remote process exited", "gloo",
)  # fmt: skip
# Ends of a worker, from cause to consequence.
_KERNEL, _SIGNAL, _MEMORY, _FIRSTHAND, _ABORT, _BARE, _CONSEQUENCE, _NOTHING = range(8)


def status_of(error: BaseException) -> str:
    """Return oom where memory ran out, failed otherwise."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "oom"
    text = str(error).lower()
    plain = isinstance(error, RuntimeError | OSError) and any(w in text for w in _OUT_OF_MEMORY)
    return "oom" if plain else "failed"


def reason_of(error: BaseException) -> str:
    """Return an exception in one line: its kind, its words, and the line of code it came from."""
    words = " ".join(str(error).split())[:300]
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "site-packages" not in f.filename and "forerun" not in f.filename]
    place = f" ({own[-1].filename.rpartition('/')[2]}:{own[-1].lineno})" if own else ""
    return f"{type(error).__name__}{': ' if words else ''}{words}{place}"


def is_peer_lost(reason: str) -> bool:
    """Whether a reason only says that another worker went away."""
    return any(words in reason.lower() for words in _PEER_LOST)


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """How a worker, or a parameter `server`, ended: exit status (None: it ran), record, progress, last line."""

    rank: int
    code: int | None
    record: Mapping[str, Any] | None
    progress: WorkerProgress | None
    log: str = ""
    by_kernel: bool = False
    server: int | None = None

    @property
    def place(self) -> str:
        """Where the worker was, in words."""
        if self.server is not None:
            return "while others trained"
        return "while starting" if self.progress is None else self.progress.place()


def cause(workers: Sequence[WorkerEnd]) -> tuple[str, str]:
    """Return (status, reason) of a run whose workers did not all end well, by the first cause there is."""
    (kind, _), first = min(((_order(one), one) for one in workers), key=lambda pair: pair[0])
    worker = f"worker {first.rank} of {sum(one.server is None for one in workers)}"
    worker = worker if first.server is None else f"parameter server {first.server}"
    if kind == _NOTHING:
        return "failed", "its workers wrote no records"
    if kind == _KERNEL:
        return "oom", f"{worker} was killed by the kernel, out of memory, {first.place}"
    if kind in (_SIGNAL, _ABORT):
        number, names = -(first.code or 0), {s.value: f" ({s.name})" for s in signal.Signals}
        words = f"{worker} was killed by signal {number}{names.get(number, '')} {first.place}"
        return "failed", words
    if kind != _BARE and first.record is not None:
        return str(first.record["status"]), f"{worker}: {first.record['reason']}"
    last = f": {first.log}" if first.log else ""
    return "failed", f"{worker} ended with exit status {first.code} {first.place}{last}"


def _order(one: WorkerEnd) -> tuple[int, float]:
    if one.by_kernel:
        return _KERNEL, 0.0
    if (one.code or 0) < 0 and one.code != -signal.SIGABRT:
        return _SIGNAL, 0.0
    if one.record is not None and one.record["status"] != "ok":
        lost = is_peer_lost(str(one.record["reason"]))
        kind = _CONSEQUENCE if lost else _FIRSTHAND
        return _MEMORY if one.record["status"] == "oom" else kind, float(one.record["ended"])
    if one.code == -signal.SIGABRT:
        return _ABORT, 0.0
    return _BARE if one.code is not None and one.record is None else _NOTHING, 0.0


class MemoryKills:
    """The kernel's out-of-memory kills among workers, by their control groups' counts and its log."""

    def __init__(self, pids: Mapping[int, int]) -> None:
        self._groups: dict[int, ControlGroup] = {}
        for rank, pid in pids.items():
            with suppress(RequestError):
                self._groups[rank] = ControlGroup.found(pid=pid)
        self._before = {rank: group.oom_kills() for rank, group in self._groups.items()}
        self._log: int | None = None
        with suppress(OSError):  # where this process may read the kernel's log
            self._log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._log, 0, os.SEEK_END)

    def close(self) -> None:
        """Close the kernel's log."""
        if self._log is not None:
            os.close(self._log)
            self._log = None

    def killed(self, rank: int, pid: int) -> bool:
        """Whether the kernel killed a worker, out of memory, since the run began."""
        if rank in self._groups and self._groups[rank].oom_kills() > self._before[rank]:
            return True
        found = []
        with suppress(OSError):  # where there is no log, or no more of it
            while text := os.read(self._log or -1, 8192):
                found.append(text.decode(errors="replace"))
        return any(f"Killed process {pid} " in text for text in found)
