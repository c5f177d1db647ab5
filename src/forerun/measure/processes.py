"""Processes: found by their parents or by a mark in their environment, and ended with certainty."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

from forerun.errors import RequestError

RUNNER = "FORERUN_RUNNER"  # process id of the runner that started this process
MARK = "FORERUN_LAUNCH"  # every process of a launch carries it, whatever group it has moved to
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)
_KILL_SECONDS = 20.0
_STATE_FIELD, _START_FIELD = 0, 19  # of /proc/PID/stat behind the command's name


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat behind the command's name. Raises OSError of none such."""
    # The name stands in brackets, and may hold brackets and blanks itself.
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def started_at(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None for a dead or zombie one."""
    try:
        fields = stat_fields(pid)
    except OSError:
        return None
    return None if fields[_STATE_FIELD] in "ZX" else int(fields[_START_FIELD])


def descendants(pids: Sequence[int]) -> list[int]:
    """Return the children of processes, theirs and so on (Linux; elsewhere none is found)."""
    found = []
    for pid in pids:
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            with suppress(OSError):
                found += list(map(int, path.read_text().split()))
    return found + descendants(found) if found else []


def marked(mark: str) -> list[int]:
    """Return processes that carry a launch's mark (Linux; elsewhere none is found)."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def end_all(processes: Sequence[subprocess.Popen[bytes]], mark: str) -> None:
    """Kill process groups, their descendants, and whatever else carries a mark; wait for them."""
    _kill(descendants([process.pid for process in processes if process.poll() is None]))
    _kill([process.pid for process in processes], os.killpg)
    for process in processes:
        process.wait()
    for _ in range(5):  # what was being born while the others were killed
        strays = marked(mark)
        _kill(strays)
        if not strays:
            break
        time.sleep(0.02)


def _kill(pids: Sequence[int], kill: Callable[[int, int], None] = os.kill) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def kill_all(listed: Callable[[], Collection[int]]) -> None:
    """Kill every process that a listing names, until it names none. Raises RequestError after 20 s.

    Each is held by a descriptor while it is listed again: its number may be another's by now.
    """
    until = time.monotonic() + _KILL_SECONDS
    while pids := listed():
        held = {}
        for pid in pids:
            with suppress(ProcessLookupError):
                held[pid] = os.pidfd_open(pid)
        try:
            for pid in held.keys() & set(listed()):
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(held[pid], signal.SIGKILL)
        finally:
            for descriptor in held.values():
                os.close(descriptor)
        if time.monotonic() > until:
            raise RequestError(
                "ending the processes of a host", f"{sorted(pids)} do not end",
                "see what they wait for (ps -o pid,stat,wchan,args), then `forerun lab down`",
            )  # fmt: skip
        time.sleep(0.005)


def die_with_parent() -> None:
    """Ask the kernel to end this process with its parent; exit where its runner is gone already."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    try:
        os.kill(int(os.environ.get(RUNNER, "0")) or os.getpid(), 0)
    except ProcessLookupError:  # it ended before the kernel was asked
        os._exit(1)
    except PermissionError:
        pass
