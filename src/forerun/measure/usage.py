"""Usage: what a worker and its children take: CPU time, resident memory, network bytes, the GPU."""

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
GPU = "FORERUN_GPU"  # which of the GPUs that this process sees is its own, where a runner knows
# Of /proc/PID/stat behind the command's name: processor time of a process and of its ended children.
_TICKS = slice(11, 15)


def own_gpu() -> int:
    """Return which of the GPUs that this process sees is its own: the one told, or its local rank."""
    return int(os.environ.get(GPU) or os.environ.get("LOCAL_RANK", "0"))


def cpu_seconds() -> float:
    """Return the processor time of this process and of all its children, the ended ones too.

    Workers of a DataLoader are children: they load and augment for this process. Where the system
    does not tell children (/proc), those that still run are left out.
    """
    ended = 0.0
    if sys.platform != "win32":
        import resource

        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        ended = used.ru_utime + used.ru_stime
    return time.process_time() + ended + sum(map(_process_seconds, _descendants(os.getpid())))


def _descendants(pid: int) -> list[int]:
    """Return the children of a process, and theirs, that still run (Linux; elsewhere none)."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        for path in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            with suppress(OSError):
                children = [int(word) for word in path.read_text().split()]
                found += children
                waiting += children
    return found


def _process_seconds(pid: int) -> float:
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[_TICKS])) / os.sysconf("SC_CLK_TCK")
    return 0.0


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
    """CPU time and traffic over a window: `begin` it, then ask for `rates`.

    Args:
        interface: the network interface that is counted; "" as GLOO_SOCKET_IFNAME says, or all.
        gpu: which of the GPUs that torch sees is the worker's own, None where it has none.
    """

    def __init__(self, interface: str = "", gpu: int | None = None) -> None:
        self._interface = interface or os.environ.get("GLOO_SOCKET_IFNAME", "")
        self._gpu = None if gpu is None else GpuBusy(gpu_uuid(gpu))
        self.begin()

    def begin(self) -> None:
        """Start the window now."""
        self._wall = time.perf_counter()
        self._cpu = cpu_seconds()
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
            "cpu_share": max(cpu_seconds() - self._cpu, 0.0) / wall,
            "network_bytes_per_second": network,
            "gpu_share": None if self._gpu is None else self._gpu.share(),
        }


def gpu_uuid(index: int) -> str:
    """Return the name by which the driver knows a GPU of torch's, "" where torch does not tell it.

    Torch counts the GPUs that CUDA_VISIBLE_DEVICES leaves it, the driver all of the machine: the
    same number is another GPU there.
    """
    import torch

    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return "" if uuid is None else f"GPU-{str(uuid).removeprefix('GPU-')}"


def _nvml() -> Any:
    """Return the driver's library (NVML), None where there is none."""
    try:
        return ctypes.CDLL(_NVML)
    except OSError:
        return None


class GpuBusy:
    """How busy a GPU was, by its driver's own count (NVML), at the moments it was looked at.

    Args:
        uuid: of the GPU (`gpu_uuid`); of "" nothing is told.
        library: NVML; None is the one of this machine.
    """

    def __init__(self, uuid: str, library: Any = None) -> None:
        self._seen: list[float] = []
        self._library: Any = None
        self._handle = ctypes.c_void_p()
        library = library if library is not None else _nvml()
        if library is None or not uuid or library.nvmlInit_v2() != 0:
            return
        name = ctypes.c_char_p(uuid.encode())
        if library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(self._handle)) == 0:
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
