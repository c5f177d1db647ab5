"""Usage: what a worker and its children use: CPU time, resident memory, network bytes, the GPU."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from forerun.measure.processes import stat_fields

GPU = "FORERUN_GPU"  # which of the GPUs that this process sees is its own, where a runner knows
# Of /proc/PID/stat: processor time of a process and of its ended children.
_TICKS = slice(11, 15)


def own_gpu() -> int:
    """Return which of the GPUs that this process sees is its own: the runner's choice, or its local rank."""
    return int(os.environ.get(GPU) or os.environ.get("LOCAL_RANK", "0"))


def cpu_seconds() -> float:
    """Return the processor time of this process and of all its children, the ended ones too.

    Workers of a DataLoader are children, and their time counts. Outside Linux, children that still
    run are left out.
    """
    total = time.process_time()
    if sys.platform != "win32":
        import resource

        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        total += used.ru_utime + used.ru_stime
    for pid in _descendants(os.getpid()):
        with suppress(OSError):
            total += sum(map(int, stat_fields(pid)[_TICKS])) / os.sysconf("SC_CLK_TCK")
    return total


def _descendants(pid: int) -> list[int]:
    """Return a process's children, theirs and so on, without a look at all processes: it is timed."""
    found, waiting = list[int](), [pid]
    while waiting:
        for path in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            with suppress(OSError):
                children = [int(word) for word in path.read_text().split()]
                found += children
                waiting += children
    return found


def sent_bytes(interface: str = "") -> float | None:
    """Return bytes that this network namespace has sent, None where the system does not say.

    Args:
        interface: the one counted; "" is all of them but loopback, or loopback where alone.
    """
    try:
        lines = Path("/proc/self/net/dev").read_text().splitlines()[2:]
    except OSError:
        return None
    cells = {name.strip(): rest for name, _, rest in (line.partition(":") for line in lines)}
    sent = {name: float(rest.split()[8]) for name, rest in cells.items()}
    if interface in sent:
        return sent[interface]
    return sum(bytes_ for name, bytes_ in sent.items() if name != "lo" or len(sent) == 1)


def _resident(field: str) -> float | None:
    """Return VmRSS or VmHWM of this process in bytes, None where the system does not say."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return float(line.split()[1]) * 1024
    return None


class PeakMemory:
    """Peak memory of a worker above what it had at birth of this object, in bytes.

    On a GPU it is torch's own peak of that device. On CPUs it is the resident memory: free memory
    of an earlier task is given back first, and the kernel's peak is reset; where the kernel refuses
    that, the peak is that of the process so far.
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
    """CPU time and traffic over a window: `begin` it, then read `rates`.

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
        """Sample the GPU's load, where there is one."""
        if self._gpu is not None:
            self._gpu.sample()

    def rates(self) -> dict[str, float | None]:
        """Return cores kept busy, bytes sent a second, and the GPU's busy share, since `begin`."""
        wall = max(time.perf_counter() - self._wall, 1e-9)
        sent = sent_bytes(self._interface)
        return {
            "cpu_share": max(cpu_seconds() - self._cpu, 0.0) / wall,
            "network_bytes_per_second": (
                None if sent is None or self._sent is None else (sent - self._sent) / wall
            ),
            "gpu_share": None if self._gpu is None else self._gpu.share(),
        }


def gpu_uuid(index: int) -> str:
    """Return the driver's id of a GPU of torch's, "" where torch does not know it.

    Torch counts the GPUs of CUDA_VISIBLE_DEVICES, the driver all of the machine.
    """
    import torch

    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return "" if uuid is None else f"GPU-{str(uuid).removeprefix('GPU-')}"


class GpuBusy:
    """How busy a GPU was, by its driver's own count (NVML), at the moments it was sampled.

    Args:
        uuid: of the GPU (`gpu_uuid`); "" disables it.
        library: NVML; None is the one of this machine.
    """

    def __init__(self, uuid: str, library: Any = None) -> None:
        self._shares: list[float] = []
        self._library: Any = None
        self._handle = ctypes.c_void_p()
        if library is None:
            with suppress(OSError):
                library = ctypes.CDLL("libnvidia-ml.so.1")
        if library is None or not uuid or library.nvmlInit_v2() != 0:
            return
        name = ctypes.c_char_p(uuid.encode())
        if library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(self._handle)) == 0:
            self._library = library

    def sample(self) -> None:
        """Note how busy the GPU has been in the last fraction of a second."""
        shares = (ctypes.c_uint * 2)()
        if (
            self._library is not None
            and self._library.nvmlDeviceGetUtilizationRates(self._handle, shares) == 0
        ):
            self._shares.append(shares[0] / 100)

    def share(self) -> float | None:
        """Return the mean of the samples, None where there are none."""
        return sum(self._shares) / len(self._shares) if self._shares else None
