"""Machine: how much of a host a process gets, and may use, and whether others disturb it."""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from forerun.measure.cgroups import own_groups, quota, usable_cores


def memory_bytes(torch: Any, device: str) -> float:
    """Return the memory of the device, or of the host under this process's limits."""
    if device == "cuda":
        return float(torch.cuda.get_device_properties(0).total_memory)
    found = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            found = min(found, float(Path(path).read_text(encoding="utf-8")))
    return found


def _cpu_rate(work: Callable[[], object], seconds: float) -> float:
    wall, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - wall < seconds:
        work()
    return (time.process_time() - cpu) / (time.perf_counter() - wall)


def cpu_share(seconds: float = 1.0, windows: int = 5) -> tuple[float, float]:
    """Return (CPU seconds that a busy process gets in a second, range of windows over it)."""
    shares = [_cpu_rate(lambda: sum(range(256)), seconds / windows) for _ in range(windows)]
    middle = statistics.median(shares)
    return middle, (max(shares) - min(shares)) / middle


# A process that gets less of what it may have shares it with others.
BUSY_SHARE = 0.75
# Repeats, or shares of windows, further apart than this are no figures to rely on.
BUSY_SPREAD = 0.25
_GROUPS = Path("/sys/fs/cgroup")
_MOUNTED = {"": ("",), "cpu": ("cpu", "cpu,cpuacct")}  # folders of a controller, version 2 and 1
# Of three, or five, normal draws the range is so many standard deviations (Tippett 1925).
_RANGE_OF_3, _RANGE_OF_5 = 1.69, 2.33
_USUAL_ERROR = 0.2  # standard deviation of the log


def cpu_access(torch: Any, device: str, threads: int) -> dict[str, float]:
    """Return what a process gets of one core (1 where the wall clock times), and of what it may have."""
    if device != "cpu":
        return {"cpu_share": 1.0, "cpu_share_spread": 0.0, "got_share": 1.0}
    allowed = allowed_cores()
    share, spread = cpu_share()
    got = share / min(allowed, 1.0)
    if threads > 1:
        a = torch.randn(512, 512)
        a.mm(a)  # the threads are there
        got, share, spread = _cpu_rate(partial(a.mm, a), 0.5) / min(allowed, threads), 1.0, 0.0
    found = {"cpu_share": share, "cpu_share_spread": spread, "got_share": min(got, 1.0)}
    return found | {"allowed_cores": allowed}


def is_busy(found: Mapping[str, Any]) -> bool:
    """Whether others take a part of what the process might have."""
    return float(found.get("got_share", 1.0)) < BUSY_SHARE


def busy_text(found: Mapping[str, Any]) -> str:
    """Return in words what the process gets."""
    share = 100 * found["got_share"]
    return f"the machine is busy: a process gets {share:.0f} % of what it may have"


def sureness(found: Mapping[str, Any]) -> float:
    """Return 1 / (1 + (error / 0.2)^2) of the figures' error, 1 where nobody disturbed them."""
    spread, shares = float(found["spread"]), float(found["cpu_share_spread"])
    if not is_busy(found) and max(spread, shares) <= BUSY_SPREAD:
        return 1.0
    error = math.hypot(spread / _RANGE_OF_3, shares / _RANGE_OF_5)
    error = math.hypot(error, 0.5 * (1.0 - float(found.get("got_share", 1.0))))
    return 1.0 / (1.0 + (error / _USUAL_ERROR) ** 2)


def allowed_cores() -> float:
    """Return how many cores this process may have, by its affinity and its control groups' quotas."""
    cores = float(len(usable_cores()))
    for name, path in own_groups().items():
        for top in (_GROUPS / mounted for mounted in _MOUNTED.get(name, ())):
            folder = top / path.strip("/")
            for group in (folder, *(p for p in folder.parents if p.is_relative_to(top))):
                with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
                    cores = min(cores, quota(group))
    return cores
