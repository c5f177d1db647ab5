"""Usage: what a worker takes of its machine: CPU time, resident memory, network bytes, the GPU."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_TRAFFIC = Path("/proc/self/net/dev")
_NVML = "libnvidia-ml.so.1"


def sent_bytes(interface: str = "") -> float | None:
    """Return bytes that this network namespace has sent, None where the system does not say.

    Args:
        interface: the one counted; "" is all of them but loopback, or loopback where alone.
    """
    try:
        lines = _TRAFFIC.read_text().splitlines()[2:]
    except OSError:
        return None
    sent = {}
    for line in lines:
        name, _, cells = line.partition(":")
        sent[name.strip()] = float(cells.split()[8])
    if interface in sent:
        return sent[interface]
    return (
        sum(v for name, v in sent.items() if name != "lo") if len(sent) > 1 else sum(sent.values())
    )


def _resident(field: str) -> float | None:
    """Return VmRSS or VmHWM of this process in bytes, None where the system does not say."""
    with suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith(f"{field}:"):
                return float(line.split()[1]) * 1024
    return None


class PeakMemory:
    """Peak memory of a worker above what it had at birth of this object, in bytes.

    On a GPU it is torch's own peak of that device. On CPUs it is the resident memory: free memory
    that an earlier task left in the heap is given back first, and the kernel's peak is reset; where
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
            _CLEAR.write_text("5")
        self._start = _resident("VmRSS")

    def bytes(self) -> float | None:
        """Return the peak so far, None where it cannot be told."""
        if self._device is not None:
            import torch

            return float(torch.cuda.max_memory_allocated(self._device))
        peak = _resident("VmHWM")
        if peak is None or self._start is None:
            return _portable_peak()
        return max(peak - self._start, 0.0)


def _portable_peak() -> float | None:
    """Return the peak of the whole process where there is no /proc."""
    if sys.platform == "win32":
        return None
    import resource

    scale = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * scale


class Usage:
    """CPU time and traffic over a window: `begin` it, then ask for `rates`."""

    def __init__(self, interface: str = "", gpu: int | None = None) -> None:
        self._interface = interface or os.environ.get("GLOO_SOCKET_IFNAME", "")
        self._gpu = None if gpu is None else GpuBusy(gpu)
        self.begin()

    def begin(self) -> None:
        """Start the window now."""
        self._wall = time.perf_counter()
        self._cpu = time.process_time()
        self._sent = sent_bytes(self._interface)

    def sample(self) -> None:
        """Look at the GPU; free of cost where there is none."""
        if self._gpu is not None:
            self._gpu.sample()

    def rates(self) -> dict[str, float | None]:
        """Return cores kept busy, bytes sent a second, and the GPU's busy share, since `begin`."""
        wall = max(time.perf_counter() - self._wall, 1e-9)
        sent = sent_bytes(self._interface)
        network = None if sent is None or self._sent is None else (sent - self._sent) / wall
        return {
            "cpu_share": (time.process_time() - self._cpu) / wall,
            "network_bytes_per_second": network,
            "gpu_share": None if self._gpu is None else self._gpu.share(),
        }


class GpuBusy:
    """How busy a GPU was, by its driver's own count (NVML), at the moments it was looked at."""

    def __init__(self, index: int) -> None:
        self._seen: list[float] = []
        self._library: Any = None
        with suppress(OSError, AttributeError):
            library = ctypes.CDLL(_NVML)
            self._handle = ctypes.c_void_p()
            if library.nvmlInit_v2() == 0 and (
                library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(self._handle)) == 0
            ):
                self._library = library

    def sample(self) -> None:
        """Note how busy the GPU has been in the last fraction of a second."""
        if self._library is None:
            return
        shares = (ctypes.c_uint * 2)()
        if self._library.nvmlDeviceGetUtilizationRates(self._handle, shares) == 0:
            self._seen.append(shares[0] / 100)

    def share(self) -> float | None:
        """Return the mean of what was seen, None where nothing was."""
        return sum(self._seen) / len(self._seen) if self._seen else None
