"""Failures: why the workers of a run ended as they did: one status and one reason for the run."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forerun.measure.progress import Seen

_OUT_OF_MEMORY = (
    "out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory",
    "std::bad_alloc", "unable to allocate",
)  # fmt: skip
# A worker whose neighbour died says one of these: the neighbour's reason is the run's.
_SECONDHAND = (
    "connection closed by peer", "connection reset by peer", "broken pipe", "socket closed",
    "connection refused", "timed out waiting for clients", "remote process exited", "gloo",
)  # fmt: skip


def status_of(error: BaseException) -> str:
    """Return oom where memory ran out, failed otherwise."""
    name = type(error).__name__
    if isinstance(error, MemoryError) or name == "OutOfMemoryError":
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


def is_secondhand(reason: str) -> bool:
    """Whether a reason only says that another worker went away."""
    text = reason.lower()
    return any(words in text for words in _SECONDHAND)


_KERNEL_LOG = "/dev/kmsg"
# Ends of a worker, from cause to consequence.
_KERNEL, _SIGNAL, _MEMORY, _FIRSTHAND, _ABORT, _BARE, _CONSEQUENCE, _NOTHING = range(8)


@dataclass(frozen=True, slots=True)
class Ended:
    """How one worker ended.

    Attributes:
        code: its exit status, negative for a signal, None where it still ran and was ended.
        record: what it wrote, None where nothing.
        seen: how far it had come.
        log: the last line of its log.
        by_kernel: the kernel ended it, for want of memory.
    """

    rank: int
    code: int | None
    record: Mapping[str, Any] | None
    seen: Seen | None
    log: str = ""
    by_kernel: bool = False


def cause(workers: Sequence[Ended]) -> tuple[str, str]:
    """Return (status, reason) of a run whose workers did not all end well.

    The first of these that there is, since each may be what the ones below followed from: a worker
    that the kernel ended for want of memory; one that a signal ended; what a worker says itself,
    memory before all else and the earliest before later ones; one that aborted, as libraries do
    whose neighbour has gone; one that ended without a word; and what merely says that another
    worker went away.
    """
    count = len(workers)
    first = min(workers, key=_order)
    kind = _order(first)[0]
    if kind == _NOTHING:
        return "failed", "its workers wrote no records"
    if kind in (_KERNEL, _SIGNAL, _ABORT):
        return _killed(first, count)
    if kind != _BARE and first.record is not None:
        reason = f"{_worker(first.rank, count)}: {first.record['reason']}"
        return str(first.record["status"]), reason
    last = f": {first.log}" if first.log else ""
    return "failed", (
        f"{_worker(first.rank, count)} ended with exit status {first.code} {place(first)}{last}"
    )


def _order(one: Ended) -> tuple[int, float]:
    """Return the place of a worker's end among the causes of a run's, and its time where known."""
    failed = one.record is not None and one.record["status"] != "ok"
    if one.by_kernel:
        return _KERNEL, 0.0
    if one.code is not None and one.code < 0 and one.code != -signal.SIGABRT:
        return _SIGNAL, 0.0
    if failed and one.record is not None:
        ended = float(one.record["ended"])
        if one.record["status"] == "oom":
            return _MEMORY, ended
        return _CONSEQUENCE if is_secondhand(str(one.record["reason"])) else _FIRSTHAND, ended
    if one.code == -signal.SIGABRT:
        return _ABORT, 0.0
    bare = one.code is not None and one.record is None
    return _BARE if bare else _NOTHING, 0.0


def _killed(one: Ended, count: int) -> tuple[str, str]:
    number = -(one.code or 0)
    if one.by_kernel:
        return (
            "oom",
            f"{_worker(one.rank, count)} was killed by the kernel, out of memory, {place(one)}",
        )
    with suppress(ValueError):
        name = signal.Signals(number).name
        return (
            "failed",
            f"{_worker(one.rank, count)} was killed by signal {number} ({name}) {place(one)}",
        )
    return "failed", f"{_worker(one.rank, count)} was killed by signal {number} {place(one)}"


def _worker(rank: int, count: int) -> str:
    return f"worker {rank} of {count}"


def place(one: Ended) -> str:
    """Return where a worker was, in words."""
    return "while starting" if one.seen is None else one.seen.place()


class MemoryKills:
    """Counts of the kernel's out-of-memory kills, read before and after a run."""

    def __init__(self, pids: Mapping[int, int]) -> None:
        """Look at the workers' control groups; `pids` are process ids by rank."""
        self._files = {rank: _counter(pid) for rank, pid in pids.items()}
        self._before = {rank: _kills(path) for rank, path in self._files.items()}
        self._log = _open_log()

    def close(self) -> None:
        """Let go of the kernel's log."""
        if self._log is not None:
            os.close(self._log)
            self._log = None

    def killed(self, rank: int, pid: int) -> bool:
        """Whether the kernel ended a worker for want of memory, as far as it can be told."""
        before, after = self._before[rank], _kills(self._files[rank])
        if before is not None and after is not None and after > before:
            return True
        return self._told(pid)

    def _told(self, pid: int) -> bool:
        """Look for the process in what the kernel's log has said since the run began."""
        if self._log is None:
            return False
        told = []
        with suppress(OSError):
            while text := os.read(self._log, 8192):
                told.append(text.decode(errors="replace"))
        return any(f"Killed process {pid} " in text for text in told)


def _open_log() -> int | None:
    """Open the kernel's log at its end, where this process may."""
    try:
        log = os.open(_KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK)
        os.lseek(log, 0, os.SEEK_END)
    except OSError:
        return None
    return log


def _counter(pid: int) -> Path | None:
    """Return the file that counts out-of-memory kills in a process's control group."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, names, path = line.split(":", 2)
            top = Path("/sys/fs/cgroup")
            if "memory" in names.split(","):
                return top / "memory" / path.lstrip("/") / "memory.oom_control"
            if not names and (found := top / path.lstrip("/") / "memory.events").exists():
                return found
    return None


def _kills(path: Path | None) -> int | None:
    if path is None:
        return None
    with suppress(OSError):
        for line in path.read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return None
