"""Usage: what a worker and its children use: CPU time, resident memory, network bytes, the GPU."""

from __future__ import annotations

import ctypes
import gc
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from forerun.measure.processes import descendants, stat_fields

GPU = "FORERUN_GPU"  # which of the GPUs that this process sees is its own, where a runner knows
_TICKS = slice(11, 15)  # of /proc/PID/stat: processor time of a process and its ended children


def own_gpu() -> int:
    """Return which of the GPUs that this process sees is its own: the runner's choice, or its local rank."""
    return int(os.environ.get(GPU) or os.environ.get("LOCAL_RANK", "0"))


def cpu_seconds() -> float:
    """Return the processor time of this process and of its children, on Linux the running ones too."""
    total = sum(os.times()[:4])
    for pid in descendants([os.getpid()]):
        with suppress(OSError):
            total += sum(map(int, stat_fields(pid)[_TICKS])) / os.sysconf("SC_CLK_TCK")
    return total


def sent_bytes(interface: str = "") -> float | None:
    """Return bytes that an interface ("": all but loopback) has sent, None where that is not known."""
    try:
        lines = Path("/proc/self/net/dev").read_text().splitlines()[2:]
    except OSError:
        return None
    cells = (line.partition(":") for line in lines)
    sent = {name.strip(): float(rest.split()[8]) for name, _, rest in cells}
    if interface in sent:
        return sent[interface]
    return sum(count for name, count in sent.items() if name != "lo" or len(sent) == 1)


def _resident(field: str) -> float | None:
    """Return VmRSS or VmHWM of this process in bytes, None where the system does not say."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return float(line.split()[1]) * 1024
    return None


class PeakMemory:
    """Peak memory of a worker in bytes: torch's of its GPU, or the resident growth of its process.

    On CPUs free memory of an earlier task is given back first, and the kernel's peak is reset; where
    the kernel refuses that, the peak is that of the process so far.
    """

    def __init__(self, device: Any = None) -> None:
        gc.collect()
        self._device = device
        if device is not None:
            import torch

            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
            return
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        self._start = _resident("VmRSS")

    def bytes(self) -> float | None:
        """Return the peak so far, None where the system does not say (outside Linux)."""
        if self._device is not None:
            import torch

            return float(torch.cuda.max_memory_allocated(self._device))
        peak = _resident("VmHWM")
        return None if peak is None or self._start is None else max(peak - self._start, 0.0)


class Usage:
    """CPU time, traffic and the GPU's load over a window: `begin` it, then read `rates`."""

    def __init__(self, gpu: int | None = None) -> None:
        self._interface = os.environ.get("GLOO_SOCKET_IFNAME", "")
        self._gpu = gpu
        self._shares: list[float] = []  # of the GPU's time in which it was busy, as sampled
        self.begin()

    def begin(self) -> None:
        """Start the window now."""
        self._wall = time.perf_counter()
        self._cpu = cpu_seconds()
        self._sent = sent_bytes(self._interface)

    def sample(self) -> None:
        """Note how busy the GPU has been in the last fraction of a second, where its driver says so."""
        if self._gpu is None:
            return
        import torch

        try:
            self._shares.append(torch.cuda.utilization(self._gpu) / 100)
        except ImportError:  # there is no NVML
            self._gpu = None
        except Exception:  # noqa: BLE001  (errors of NVML's own: this sample is left out)
            pass

    def rates(self) -> dict[str, float | None]:
        """Return cores kept busy, bytes sent a second, and the GPU's busy share, since `begin`."""
        wall = max(time.perf_counter() - self._wall, 1e-9)
        sent, before = sent_bytes(self._interface), self._sent
        return {
            "cpu_share": max(cpu_seconds() - self._cpu, 0.0) / wall,
            "network_bytes_per_second": (
                None if sent is None or before is None else (sent - before) / wall
            ),
            "gpu_share": sum(self._shares) / len(self._shares) if self._shares else None,
        }
