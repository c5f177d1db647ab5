"""Machine: what a host is, and how much of it a process gets."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from pathlib import Path
from typing import Any


def fingerprint(torch: Any, device: str, threads: int) -> dict[str, str]:
    """Return what tells this machine and its software from others."""
    found = {
        "cpu": _cpu_name(),
        "cores": str(os.cpu_count() or 1),
        "threads": str(threads),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }
    if device == "cuda":
        found["gpu"] = str(torch.cuda.get_device_name(0))
        found["cuda"] = str(torch.version.cuda)
    return found


def _cpu_name() -> str:
    """Return the processor as the system names it, with its instruction sets for arithmetic."""
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        known = dict(reversed([line.partition(":")[::2] for line in lines if ":" in line]))
        fields = {key.strip(): value.strip() for key, value in known.items()}
        flags = set(fields.get("flags", fields.get("Features", "")).split())
        wide = [f for f in ("avx2", "avx512f", "avx512_bf16", "amx_tile", "sve") if f in flags]
        name = " ".join([fields.get("model name", name), *wide])
    return name


def memory_bytes(torch: Any, device: str) -> float:
    """Return the memory that a process may use: the device's, or the host's under its limits."""
    if device == "cuda":
        return float(torch.cuda.get_device_properties(0).total_memory)
    found = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for path in (
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    ):
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
    shares.sort()
    middle = shares[len(shares) // 2]
    return middle, (shares[-1] - shares[0]) / middle
