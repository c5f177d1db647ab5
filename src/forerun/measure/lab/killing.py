"""Killing: ends processes that a listing names, and no other that has taken a dead one's number."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection

from forerun.errors import RequestError

_PATIENCE_SECONDS = 20.0
_PAUSE_SECONDS = 0.005


def kill_all(listed: Callable[[], Collection[int]]) -> None:
    """Kill every process that a listing names, until it names none.

    A process is held by a descriptor, and the listing read again, before the signal goes out:
    the number of one that has just ended may already be another's.

    Raises:
        RequestError: some cannot be ended within 20 s (they wait for a device).
    """
    until = time.monotonic() + _PATIENCE_SECONDS
    while pids := listed():
        held = {pid: fd for pid in pids if (fd := _hold(pid)) is not None}
        try:
            for pid in held.keys() & set(listed()):
                _send(held[pid])
        finally:
            for descriptor in held.values():
                os.close(descriptor)
        if time.monotonic() > until:
            raise RequestError(
                "ending the processes of a host", f"{sorted(pids)} do not end",
                "see what they wait for (ps -o pid,stat,wchan,args), then `forerun lab down`",
            )  # fmt: skip
        time.sleep(_PAUSE_SECONDS)


def _hold(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _send(descriptor: int) -> None:
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except ProcessLookupError:
        return
