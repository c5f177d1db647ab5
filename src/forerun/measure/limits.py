"""Limits: cores that a worker may use: whole ones by affinity, parts of one by a CPU quota."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forerun.errors import RequestError
from forerun.measure.cgroups import Controllers, limit_cpus, remove_group
from forerun.measure.hosts import Host
from forerun.measure.task import Task

_PREFIX = "forerun-worker-"


def usable_cores() -> list[int]:
    """Return the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def cpu_controller(pid: int | None = None) -> Path | None:
    """Return the folder in which a process's CPU quota can be set, None where there is none."""
    with suppress(RequestError):
        folder = Controllers.found(pid=pid).parents["cpu"]
        return folder if os.access(folder, os.W_OK) else None
    return None


def refusal(task: Task, hosts: Sequence[Host] = ()) -> str | None:
    """Return why the cores that a task asks for cannot be held here, None where they can."""
    asked, cores = task.cpus_per_worker, len(usable_cores())
    if asked * task.workers > cores + 1e-9:
        return (
            f"{task.workers} workers of {asked:g} CPUs need {asked * task.workers:g} cores, and"
            f" {cores} may be used here; ask for fewer or add hosts"
        )
    plain = [host for host in hosts if not _holds(host)]
    if not asked or (hosts and not plain):
        return None
    away = next((host.name for host in plain if not host.is_local), None)
    if away is not None:
        return f"host {away} cannot hold a worker to {asked:g} CPUs; leave cpus_per_worker out"
    if float(asked).is_integer():
        binds = hasattr(os, "sched_setaffinity")
        return None if binds else "this system cannot bind processes; leave cpus_per_worker out"
    return None if cpu_controller() is not None else (
        f"{asked:g} CPUs a worker needs a CPU quota, and no cpu controller can be written here;"
        " ask for whole cores, or run as root"
    )  # fmt: skip


def _holds(host: Host) -> bool:
    """Whether a host limits its own processes, as a lab's hosts do."""
    return callable(getattr(host, "hold", None))


@dataclass
class Holding:
    """The cores that the workers of one run are held to: `begin`, `apply` to each, `release`.

    `hosts` are those of the workers by rank; () is this machine for all.
    """

    task: Task
    hosts: Sequence[Host] = ()
    cores: Sequence[int] = field(default_factory=usable_cores)
    groups: list[Path] = field(default_factory=list)
    _held: list[Host] = field(default_factory=list)

    def begin(self) -> None:
        """Let hosts that limit their own processes do so, before workers are started."""
        asked = self.task.cpus_per_worker
        for host in filter(_holds, dict.fromkeys(self.hosts)):
            host.release()  # type: ignore[attr-defined]  # a runner that was killed may have held it
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
            _bind(pid, self.cores[rank * count : (rank + 1) * count])
            return
        controller = cpu_controller(pid)
        if controller is None:
            raise OSError(f"worker {rank} has no cpu controller that can be written")
        group = controller / f"{_PREFIX}{os.getpid()}-{rank}-{time.monotonic_ns()}"
        group.mkdir()
        self.groups.append(group)
        try:
            limit_cpus(group, asked)
        except RequestError as error:
            raise OSError(error.found) from error
        (group / "cgroup.procs").write_text(str(pid))

    def take(self, rank: int, process: Mapping[str, Any]) -> None:
        """Hold a worker that has identified itself. Raises OSError where it is not of this machine."""
        here = identity()
        if any(process[name] != here[name] for name in ("boot", "processes")):
            raise OSError(f"worker {rank} runs on another machine, or among other processes")
        self.apply(rank, int(process["pid"]))

    def release(self) -> None:
        """Remove the control groups and give the hosts their own shares back."""
        for group in self.groups:
            with suppress(RequestError):
                remove_group(group, 1.0)
        self.groups.clear()
        for host in self._held:
            host.release()  # type: ignore[attr-defined]
        self._held.clear()


def identity() -> dict[str, Any]:
    """Return this process's number, and the boot and the process namespace in which it is that."""
    return {
        "pid": os.getpid(),
        "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "processes": str(Path("/proc/self/ns/pid").readlink()),
    }


def wait_until_held(cpus: float, seconds: float = 60.0) -> None:
    """Wait until a `Holding` holds this process to so many cores. Raises TimeoutError."""
    until = time.monotonic() + seconds
    while not is_held(cpus):
        if time.monotonic() > until:
            raise TimeoutError(f"nothing held this worker to {cpus:g} CPUs in {seconds:g} s")
        time.sleep(0.02)


def is_held(cpus: float) -> bool:
    """Whether a `Holding` holds this process to so many cores."""
    if float(cpus).is_integer():
        return all(
            len(os.sched_getaffinity(thread)) == int(cpus) for thread in _threads_of(os.getpid())
        )
    return f"/{_PREFIX}" in Path("/proc/self/cgroup").read_text()


def _bind(pid: int, cores: Sequence[int]) -> None:
    """Bind a process to cores, with the threads that it has already; new ones inherit it."""
    bound: set[int] = set()
    while left := _threads_of(pid) - bound:
        for thread in left:
            with suppress(ProcessLookupError):  # it ended meanwhile
                os.sched_setaffinity(thread, cores)
        bound |= left


def _threads_of(pid: int) -> set[int]:
    return {int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()}


def remove_stale() -> None:
    """Remove control groups of runners that have ended without doing so."""
    controller = cpu_controller()
    for group in controller.glob(f"**/{_PREFIX}*") if controller is not None else ():
        owner = group.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            with suppress(RequestError):
                remove_group(group, 1.0)
