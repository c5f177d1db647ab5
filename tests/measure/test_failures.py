"""Causes: of many workers that ended badly, the one that the others followed is told."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from forerun.measure.failures import WorkerEnd, cause

KILL, SEGV, ABRT = -signal.SIGKILL, -signal.SIGSEGV, -signal.SIGABRT
GONE = {
    "status": "failed",
    "reason": "RuntimeError: [gloo] Connection closed by peer",
    "ended": 1.0,
}
WRONG = {"status": "failed", "reason": "ValueError: wrong shape", "ended": 3.0}
LATER = {"status": "failed", "reason": "KeyError: later", "ended": 4.0}
MEMORY = {"status": "oom", "reason": "OutOfMemoryError: CUDA", "ended": 9.0}
FINE = {"status": "ok", "reason": "", "ended": 2.0}
ALIVE = (None, None)

Worker = tuple[int | None, dict[str, Any] | None]


@pytest.mark.parametrize(
    ("ends", "kernel", "status", "reason"),
    [
        ([(ABRT, None), (1, MEMORY)], -1, "oom", "worker 1 of 2: OutOfMemoryError: CUDA"),
        ([(ABRT, None), (KILL, None)], 1, "oom", "worker 1 of 2 was killed by the kernel"),
        ([(KILL, None), (KILL, None)], 1, "oom", "worker 1 of 2 was killed by the kernel"),
        ([(ABRT, None), (SEGV, None)], -1, "failed", "worker 1 of 2 was killed by signal 11"),
        ([(ABRT, None), (1, WRONG)], -1, "failed", "worker 1 of 2: ValueError: wrong shape"),
        ([(ABRT, None), (1, GONE)], -1, "failed", "worker 0 of 2 was killed by signal 6"),
        ([(ABRT, MEMORY), (1, GONE)], -1, "oom", "worker 0 of 2: OutOfMemoryError"),
        ([(1, GONE), (KILL, None)], -1, "failed", "worker 1 of 2 was killed by signal 9"),
        ([(1, MEMORY), (SEGV, None)], -1, "failed", "worker 1 of 2 was killed by signal 11"),
        ([(1, GONE), (3, None)], -1, "failed", "worker 1 of 2 ended with exit status 3"),
        ([(1, LATER), (1, WRONG), (1, GONE)], -1, "failed", "worker 1 of 3: ValueError"),
        ([(1, WRONG), (1, MEMORY)], -1, "oom", "worker 1 of 2: OutOfMemoryError"),
        ([(0, FINE), (1, GONE)], -1, "failed", "worker 1 of 2: RuntimeError: [gloo]"),
        ([ALIVE, (0, FINE)], -1, "failed", "its workers wrote no records"),
    ],
)
def test_the_cause_is_told_and_not_what_followed_from_it(
    ends: list[Worker], kernel: int, status: str, reason: str
) -> None:
    told = cause(
        [WorkerEnd(i, code, record, None, "", i == kernel) for i, (code, record) in enumerate(ends)]
    )
    assert told[0] == status
    assert told[1].startswith(reason)
