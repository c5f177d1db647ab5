"""Processes: what they use (CPU time, memory, network bytes, the GPU), and how they are ended with certainty."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from forerun.errors import RequestError

RUNNER = "FORERUN_RUNNER"  # process id of the runner that started this process
MARK = "FORERUN_LAUNCH"  # every process of a launch carries it, whatever group it has moved to
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)
_KILL_SECONDS = 20.0
_STATE_FIELD, _START_FIELD = 0, 19  # of /proc/PID/stat behind the command's name


def import_path(given: str = "", *more: str) -> str:
    """Return the PYTHONPATH of a process that imports forerun too."""
    source = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(filter(None, (given, source, *more)))


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat behind the command's name. Raises OSError of none such."""
    # The name stands in brackets, and may hold brackets and blanks itself.
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def started_at(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None for a dead or zombie one."""
    try:
        fields = stat_fields(pid)
    except OSError:
        return None
    return None if fields[_STATE_FIELD] in "ZX" else int(fields[_START_FIELD])


def descendants(pids: Sequence[int]) -> list[int]:
    """Return the children of processes, theirs and so on (Linux; elsewhere none is found)."""
    found = []
    for pid in pids:
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            with suppress(OSError):
                found += list(map(int, path.read_text().split()))
    return found + descendants(found) if found else []


def marked(mark: str) -> list[int]:
    """Return processes that carry a launch's mark (Linux; elsewhere none is found)."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def end_all(processes: Sequence[subprocess.Popen[bytes]], mark: str) -> None:
    """Kill process groups, their descendants, and whatever else carries a mark; wait for them."""
    _kill(descendants([process.pid for process in processes if process.poll() is None]))
    _kill([process.pid for process in processes], os.killpg)
    for process in processes:
        with suppress(ChildProcessError):
            if process.returncode is None:  # its own wait may find its lock taken, by a signal
                process.returncode = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
    for _ in range(5):  # what was being born while the others were killed
        strays = marked(mark)
        _kill(strays)
        if not strays:
            break
        time.sleep(0.02)


def _kill(pids: Sequence[int], kill: Callable[[int, int], None] = os.kill) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def kill_all(listed: Callable[[], Collection[int]]) -> None:
    """Kill every process that a listing names, until it names none. Raises RequestError after 20 s."""
    until = time.monotonic() + _KILL_SECONDS
    while pids := listed():
        held = {}
        for pid in pids:
            with suppress(ProcessLookupError):
                held[pid] = os.pidfd_open(pid)  # its number may be another's by then
        try:
            for pid in held.keys() & set(listed()):
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(held[pid], signal.SIGKILL)
        finally:
            for descriptor in held.values():
                os.close(descriptor)
        if time.monotonic() > until:
            todo = "see what they wait for (ps -o pid,stat,wchan,args), then `forerun lab down`"
            raise RequestError("ending the processes of a host", f"{sorted(pids)} do not end", todo)
        time.sleep(0.005)


def die_with_parent() -> None:
    """Ask the kernel to end this process with its parent; exit where its runner is gone already."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    try:
        os.kill(int(os.environ.get(RUNNER, "0")) or os.getpid(), 0)
    except ProcessLookupError:  # it ended before the kernel was asked
        os._exit(1)
    except PermissionError:
        pass


@contextmanager
def loading() -> Iterator[None]:
    """Switch the garbage collector off: it takes a tenth of the time that a worker takes to start."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


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
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return float(line.split()[1]) * 1024
    return None


class PeakMemory:
    """Peak memory of a worker in bytes: torch's of its GPU, or the resident growth of its process."""

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
        rate = None if sent is None or before is None else (sent - before) / wall
        gpu = sum(self._shares) / len(self._shares) if self._shares else None
        cpu = max(cpu_seconds() - self._cpu, 0.0) / wall
        return {"cpu_share": cpu, "network_bytes_per_second": rate, "gpu_share": gpu}
