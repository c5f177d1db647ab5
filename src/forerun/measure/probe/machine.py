"""Machine: how much of a host a process gets, how much memory it may use, what it should reach."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from pathlib import Path
from typing import Any

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
