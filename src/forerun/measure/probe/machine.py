"""Machine: how much of a host a process gets, how much memory it may use, what it should reach.

Busy: whether others use the machine while it is measured, by what a process gets of it.
"""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forerun.measure.cgroups import own_groups, quota
from forerun.measure.limits import usable_cores

# Numbers of 4 bytes in a vector register times the units that multiply and add them, times two.
_VECTOR_FLOPS = (("avx512f", 32.0), ("avx2", 32.0), ("sve", 32.0), ("asimd", 16.0), ("avx", 16.0))


def memory_bytes(torch: Any, device: str) -> float:
    """Return the memory that a process may use: the device's, or the host's under its limits."""
    if device == "cuda":
        return float(torch.cuda.get_device_properties(0).total_memory)
    found = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            found = min(found, float(Path(path).read_text(encoding="utf-8")))
    return found


def cpu_share(seconds: float = 1.0, windows: int = 5) -> tuple[float, float]:
    """Return (CPU seconds that a busy process gets in a second, range of windows over it).

    A quota, or other processes, leave less than 1.
    """
    shares = []
    for _ in range(windows):
        wall, cpu = time.perf_counter(), time.process_time()
        while time.perf_counter() - wall < seconds / windows:
            sum(range(256))
        shares.append((time.process_time() - cpu) / (time.perf_counter() - wall))
    middle = statistics.median(shares)
    return middle, (max(shares) - min(shares)) / middle


def nominal_flops(threads: int) -> float:
    """Return the fp32 FLOP/s that clock and width of the processor make; 0 where they are not told.

    An estimate: the clock as the system states it, two fused multiply-adds of 256 bits a cycle.
    """
    fields: dict[str, str] = {}
    with contextlib.suppress(OSError, ValueError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        for line in reversed(text.splitlines()):
            key, _, value = line.partition(":")
            fields[key.strip()] = value.strip()
        flags = set(fields.get("flags", fields.get("Features", "")).split())
        width = next((flops for flag, flops in _VECTOR_FLOPS if flag in flags), 0.0)
        return threads * width * float(fields.get("cpu MHz", 0.0)) * 1e6
    return 0.0


# A process that gets less of what it may have shares it with others.
BUSY_SHARE = 0.75
# Repeats, or shares of windows, further apart than this are no figures to rely on.
BUSY_SPREAD = 0.25
_GROUPS = Path("/sys/fs/cgroup")
_MOUNTED = {"": ("",), "cpu": ("cpu", "cpu,cpuacct")}  # folders of a controller, version 2 and 1
# Of three, or five, normal draws the range is so many standard deviations (Tippett 1925).
_RANGE_OF_3, _RANGE_OF_5 = 1.69, 2.33
_USUAL_ERROR = 0.2  # standard deviation of the log at which figures tell half of what they could


def cpu_access(torch: Any, device: str, threads: int) -> dict[str, float]:
    """Return what a process of so many threads gets, and what it might have.

    `cpu_share`, `cpu_share_spread`: of one core, as seconds of one thread are divided by it (1 where
    the wall clock times); `got_share`: of the cores that the threads may have; `allowed_cores`;
    `load`, `cores`: processes that want to run, and cores, of the machine; `stolen`: the share of
    the machine that its own host gives to others.
    """
    if device != "cpu":
        return {"cpu_share": 1.0, "cpu_share_spread": 0.0, "got_share": 1.0}
    before, allowed = _times(), allowed_cores()
    share, spread = cpu_share()
    got = min(share / min(allowed, 1.0), 1.0)
    if threads > 1:
        got = min(_threads_share(torch) / min(allowed, threads), 1.0)
        share, spread = 1.0, 0.0
    return {
        "cpu_share": share, "cpu_share_spread": spread, "got_share": got, "allowed_cores": allowed,
        "load": _load(), "cores": float(os.cpu_count() or 1), "stolen": _stolen(before, _times()),
    }  # fmt: skip


def is_busy(found: Mapping[str, Any]) -> bool:
    """Whether others take a part of what the process might have."""
    return float(found.get("got_share", 1.0)) < BUSY_SHARE


def busy_text(found: Mapping[str, Any]) -> str:
    """Return in words what the process gets, and who has the rest."""
    rest = [
        f"{found['load']:.0f} processes want its {found['cores']:.0f} cores"
        if found.get("load", 0.0) > found.get("cores", math.inf) else "",
        f"its own host gives {100 * found['stolen']:.0f} % of it to others"
        if found.get("stolen", 0.0) > 0.05 else "",
    ]  # fmt: skip
    others = ", ".join(part for part in rest if part)
    return (
        f"the machine is busy: a process gets {100 * found['got_share']:.0f} % of what it may have"
        f"{f' ({others})' if others else ''}"
    )


def sureness(found: Mapping[str, Any]) -> float:
    """Return how much the figures tell of the machine, 1 where nobody disturbed the measurement.

    Repeats that lie apart, and a share that changes, are errors of every figure; what they leave is
    1 / (1 + (error / 0.2)^2).
    """
    spread, shares = float(found["spread"]), float(found["cpu_share_spread"])
    if not is_busy(found) and max(spread, shares) <= BUSY_SPREAD:
        return 1.0
    error = math.hypot(spread / _RANGE_OF_3, shares / _RANGE_OF_5)
    error = math.hypot(error, 0.5 * (1.0 - float(found.get("got_share", 1.0))))
    return 1.0 / (1.0 + (error / _USUAL_ERROR) ** 2)


def allowed_cores() -> float:
    """Return how many cores this process may have, by its affinity and its control groups' quotas."""
    cores = float(len(usable_cores()))
    for folder in _own_folders():
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            cores = min(cores, quota(folder))
    return cores


def _own_folders() -> list[Path]:
    """Return the folders of this process's CPU control groups, and of those above them."""
    found: list[Path] = []
    with contextlib.suppress(OSError, ValueError):
        for name, path in own_groups().items():
            for mounted in _MOUNTED.get(name, ()):
                top = _GROUPS / mounted
                folder = top / path.strip("/")
                found += [folder, *(p for p in folder.parents if p == top or top in p.parents)]
    return found


def _threads_share(torch: Any, seconds: float = 0.5) -> float:
    """Return how many cores' time the threads of large products get."""
    a = torch.randn(512, 512)
    a.mm(a)  # the threads are there
    wall, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - wall < seconds:
        a.mm(a)
    return (time.process_time() - cpu) / (time.perf_counter() - wall)


def _load() -> float:
    """Return how many processes run or want to, NaN where the system does not tell."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = Path("/proc/loadavg").read_text(encoding="utf-8")
        return float(text.split()[3].partition("/")[0])
    return math.nan


def _times() -> tuple[float, float]:
    """Return (stolen, all) ticks of the machine's cores so far; zeros where nobody tells."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        first = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0]
        ticks = [float(word) for word in first.split()[1:9]]
        return ticks[7], sum(ticks)
    return 0.0, 0.0


def _stolen(before: tuple[float, float], after: tuple[float, float]) -> float:
    passed = after[1] - before[1]
    return (after[0] - before[0]) / passed if passed > 0 else 0.0
