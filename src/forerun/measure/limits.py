"""Limits: cores that a worker may use: whole ones by affinity, parts of one by a CPU quota.

Quotas: which control groups this process is in, and what the kernel holds a group to, version 1 or 2.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forerun.measure.hosts import Host
from forerun.measure.task import Task


def own_groups(proc: Path = Path("/proc/self")) -> dict[str, str]:
    """Return this process's group by controller; version 2's has the name ''. None where there are no groups."""
    groups: dict[str, str] = {}
    try:
        lines = (proc / "cgroup").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return groups
    for line in lines:
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    return groups


def quota(folder: Path) -> float:
    """Return the cores that a group may have; infinity where it has no limit.

    Raises:
        OSError, ValueError: the folder is no group of the processor.
    """
    if (folder / "cpu.max").exists():
        most, period = (folder / "cpu.max").read_text(encoding="utf-8").split()
    else:
        most, period = (
            (folder / f"cpu.cfs_{name}_us").read_text(encoding="utf-8").strip()
            for name in ("quota", "period")
        )
    return math.inf if most in ("max", "-1") else int(most) / int(period)


PERIOD_US = (
    5000  # with the usual 100 ms a worker would run in bursts, and single steps tell nothing
)
_LEAST_QUOTA_US = 1000  # the kernel's own least
_PREFIX = "forerun-worker-"


def usable_cores() -> list[int]:
    """Return the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def refusal(task: Task, hosts: Sequence[Host] = ()) -> str | None:
    """Return why the cores that a task asks for cannot be held here, None where they can."""
    asked = task.cpus_per_worker
    if not asked:
        return None
    cores = len(usable_cores())
    if asked * task.workers > cores + 1e-9:
        return (
            f"{task.workers} workers of {asked:g} CPUs need {asked * task.workers:g} cores, and"
            f" {cores} may be used here; ask for fewer or add hosts"
        )
    own = [host for host in hosts if not _holds(host)]
    away = next((host.name for host in own if not host.is_local), None)
    if away is not None:
        return f"host {away} cannot hold a worker to {asked:g} CPUs; leave cpus_per_worker out"
    if hosts and not own:
        return None
    if float(asked).is_integer():
        if not hasattr(os, "sched_setaffinity"):
            return "this system cannot bind a process to cores; leave cpus_per_worker out"
        return None
    return None if cpu_controller(os.getpid()) is not None else (
        f"{asked:g} CPUs a worker needs a CPU quota, and no cpu controller can be written here;"
        " ask for whole cores, or run as root"
    )  # fmt: skip


def _holds(host: Host) -> bool:
    """Whether a host holds what runs on it to a number of CPUs by itself, as a lab's hosts do."""
    return callable(getattr(host, "hold", None))


@dataclass
class Holding:
    """The cores that the workers of one run are held to: `begin`, `apply` to each, `release`.

    Attributes:
        task: what it asks for each worker.
        hosts: of the workers by rank; () is this machine for all.
    """

    task: Task
    hosts: Sequence[Host] = ()
    cores: Sequence[int] = field(default_factory=usable_cores)
    groups: list[Path] = field(default_factory=list)
    _held: list[Host] = field(default_factory=list)

    def begin(self) -> None:
        """Let hosts that hold by themselves do so, before their workers are started.

        Each gets its own share first: a runner that was killed may have left it at another.
        """
        asked = self.task.cpus_per_worker
        for host in filter(_holds, dict.fromkeys(self.hosts)):
            host.release()  # type: ignore[attr-defined]
            if asked:
                self._held.append(host)
                host.hold(asked * sum(other == host for other in self.hosts))  # type: ignore[attr-defined]

    def apply(self, rank: int, pid: int) -> None:
        """Hold a worker that has just been started. Raises OSError where the system refuses."""
        asked = self.task.cpus_per_worker
        if not asked or (self.hosts and _holds(self.hosts[rank])):
            return
        if float(asked).is_integer():
            count = int(asked)
            bind(pid, self.cores[rank * count : (rank + 1) * count])
            return
        controller = cpu_controller(pid)
        if controller is None:
            raise OSError(f"worker {rank} has no cpu controller that can be written")
        group = controller / f"{_PREFIX}{os.getpid()}-{rank}-{time.monotonic_ns()}"
        group.mkdir()
        self.groups.append(group)
        set_quota(group, asked)
        (group / "cgroup.procs").write_text(str(pid))

    def take(self, rank: int, who: Mapping[str, Any]) -> None:
        """Hold a worker that told who it is (`itself`). Raises OSError where it is not of this machine."""
        here = itself()
        if any(who[name] != here[name] for name in ("boot", "processes")):
            raise OSError(f"worker {rank} runs on another machine, or among other processes")
        self.apply(rank, int(who["pid"]))

    def release(self) -> None:
        """Remove the control groups and give the hosts their own shares back; workers have ended."""
        for group in self.groups:
            _remove(group)
        self.groups.clear()
        for host in self._held:
            host.release()  # type: ignore[attr-defined]
        self._held.clear()


def itself() -> dict[str, Any]:
    """Return who this process is: its number, and the boot and the process space in which it is that."""
    return {
        "pid": os.getpid(),
        "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "processes": str(Path("/proc/self/ns/pid").readlink()),
    }


def wait_until_held(cpus: float, seconds: float = 60.0) -> None:
    """Wait until this process is held to so many cores. Raises TimeoutError after so many seconds."""
    until = time.monotonic() + seconds
    while not is_held(cpus):
        if time.monotonic() > until:
            raise TimeoutError(f"nobody held this worker to {cpus:g} CPUs in {seconds:g} s")
        time.sleep(0.02)


def is_held(cpus: float) -> bool:
    """Whether this process is held as a `Holding` does it."""
    if float(cpus).is_integer():
        return all(
            len(os.sched_getaffinity(thread)) == int(cpus) for thread in threads_of(os.getpid())
        )
    return f"/{_PREFIX}" in Path("/proc/self/cgroup").read_text()


def bind(pid: int, cores: Sequence[int]) -> None:
    """Bind a process to cores, with the threads that it has already; new ones inherit it."""
    bound: set[int] = set()
    while left := threads_of(pid) - bound:
        for thread in left:
            with suppress(ProcessLookupError):  # it ended meanwhile
                os.sched_setaffinity(thread, cores)
        bound |= left


def threads_of(pid: int) -> set[int]:
    """Return a process's threads by number, itself among them."""
    try:
        return {int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()}
    except FileNotFoundError:
        raise ProcessLookupError(f"there is no process {pid}") from None


def set_quota(group: Path, cpus: float) -> None:
    """Limit a control group to so many cores, in periods short enough for single steps to show it."""
    period = max(PERIOD_US, math.ceil(_LEAST_QUOTA_US / cpus))
    quota = round(cpus * period)
    if (group / "cpu.max").exists():
        (group / "cpu.max").write_text(f"{quota} {period}")
    else:
        (group / "cpu.cfs_period_us").write_text(str(period))
        (group / "cpu.cfs_quota_us").write_text(str(quota))
    # What a period leaves unused carries over: on a busy machine the share would not be reached.
    for burst in (group / "cpu.max.burst", group / "cpu.cfs_burst_us"):
        if burst.exists():
            burst.write_text(str(quota))


def cpu_controller(pid: int) -> Path | None:
    """Return the folder under which a process's CPU quota can be set, None where there is none.

    With cgroup v1 it is the process's own group, so that a host's limit goes on holding; with v2,
    where a group holds either processes or groups, it is the top.
    """
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return None
    found: Path | None = None
    for line in lines:
        _, names, path = line.split(":", 2)
        if "cpu" in names.split(","):
            found = _mounted("cgroup", "cpu", path)
            break
        if not names and found is None:
            top = _mounted("cgroup2", "", "/")
            if top is not None and _lists_cpu(top / "cgroup.subtree_control"):
                found = top
    return found if found is not None and os.access(found, os.W_OK) else None


def _lists_cpu(path: Path) -> bool:
    with suppress(OSError):
        return "cpu" in path.read_text().split()
    return False


def _mounted(kind: str, option: str, path: str) -> Path | None:
    """Return the folder of a control group where its file system is mounted."""
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            left, _, right = line.partition(" - ")
            words, fields = left.split(), right.split()
            if fields[0] == kind and (not option or option in fields[2].split(",")):
                folder = Path(words[4]) / path.lstrip("/")
                return folder if folder.is_dir() else None
    return None


def _remove(group: Path) -> None:
    """Remove a control group, waiting shortly until the kernel has seen its processes end."""
    for _ in range(50):
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.02)
        else:
            return


def remove_stale() -> None:
    """Remove control groups of runners that have ended without doing so."""
    controller = cpu_controller(os.getpid())
    if controller is None:
        return
    for group in controller.glob(f"**/{_PREFIX}*"):
        owner = group.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            _remove(group)
