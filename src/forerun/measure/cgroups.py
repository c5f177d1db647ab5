"""Cgroups: the control groups of processes, version 1 or 2: where they are, what they limit and count."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from forerun.errors import RequestError
from forerun.measure.hosts import Host
from forerun.measure.processes import kill_all
from forerun.measure.task import Task

# With the usual 100 ms a host of 0.22 core runs at full speed for 22 ms and then stands still:
# steps of 10 or 90 ms, whose median lies. 5 ms makes median and mean agree.
PERIOD_US = 5000
LEAST_QUOTA_US = 1000  # the kernel refuses less, so a small share has a longer period
_CONTROLLERS = ("cpu", "cpuacct", "memory")
_PREFIX = "forerun-worker-"


@dataclass(frozen=True)
class ControlGroup:
    """A group: the folder and the version (1 or 2) by controller, and what it limits and counts."""

    folders: Mapping[str, Path]
    versions: Mapping[str, int]

    @classmethod
    def found(cls, proc: Path = Path("/proc/self"), pid: int | None = None) -> ControlGroup:
        """Return the group of a process (this one), in which others can be made. Raises RequestError."""
        mounts = [line.split() for line in _lines(proc / "mounts")]
        own = own_groups(proc if pid is None else Path(f"/proc/{pid}"))
        parents = {
            name: _inside(Path(words[1]), own.get(name, "/"))
            for name in _CONTROLLERS for words in mounts
            if words[2] == "cgroup" and name in words[3].split(",")
        }  # fmt: skip
        versions = dict.fromkeys(parents, 1)
        unified = next((Path(w[1]) for w in mounts if w[2] == "cgroup2"), None)
        wanted = {"cpu", "memory"} - parents.keys()
        # A process is in one group of version 2 alone, so one folder has to serve for both.
        for names in (wanted, wanted & {"cpu"}):
            parent = _delegating(unified, own.get("", "/"), names) if unified and names else None
            if parent is not None:
                parents |= dict.fromkeys(names, parent)
                versions |= dict.fromkeys(names, 2)
                break
        if "cpu" not in parents:
            found = "no cpu cgroup is mounted"
            todo = "mount one: mount -t cgroup2 none /sys/fs/cgroup"
            if unified is not None:
                found = f"the cpu controller is not given to the groups under {unified}"
                todo = f"give it: echo '+cpu +memory' > {unified}/cgroup.subtree_control"
            inside = " (in a container: start it with --privileged --cgroupns=host)"
            raise RequestError("a CPU share a host", found, todo + inside)
        return cls(parents, versions)

    def favour(self, favoured: bool) -> None:
        """Let its processes run before all others, since a quota is only a ceiling, or like them."""
        new = self.versions["cpu"] == 2
        usual, most = (100, 10_000) if new else (1024, 262_144)
        file = self.folders["cpu"] / ("cpu.weight" if new else "cpu.shares")
        _write(file, str(most if favoured else usual))

    def group(self, *names: str) -> ControlGroup:
        """Return the group of a name (a path of names) within it, made or not."""
        folders = {name: folder.joinpath(*names) for name, folder in self.folders.items()}
        return replace(self, folders=folders)

    @property
    def places(self) -> tuple[Path, ...]:
        """Its distinct folders: a process is in the group when it is in each."""
        return tuple(dict.fromkeys(self.folders.values()))

    def make(self) -> None:
        """Make its folders. Raises RequestError where the kernel refuses."""
        for name, folder in self.folders.items():
            folder.mkdir(parents=True, exist_ok=True)
            if self.versions[name] == 2:
                _write(folder.parent / "cgroup.subtree_control", f"+{name}")

    def limit_cpus(self, cpus: float | None) -> None:
        """Give it a share of the cores from now on; None lifts the limit."""
        limit_cpus(self.folders["cpu"], cpus)

    def limit_memory(self, memory_bytes: int) -> None:
        """Let the kernel kill one of its processes when all hold more than this. Raises RequestError."""
        folder = self.folders.get("memory")
        if folder is None:
            asked = f"a host with {memory_bytes:,} bytes of memory"
            found = "no memory controller is mounted"
            raise RequestError(asked, found, "leave the limit out, or mount one")
        first, also, text = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", memory_bytes
        if self.versions["memory"] == 2:
            first, also, text = "memory.max", "memory.swap.max", 0
        _write(folder / first, str(memory_bytes))
        if (folder / also).exists():
            _write(folder / also, str(text))

    def cpu_seconds(self) -> float | None:
        """Return the processor time that its processes used so far; None where nothing counts it."""
        if "cpuacct" in self.folders:
            return int((self.folders["cpuacct"] / "cpuacct.usage").read_text()) / 1e9
        if self.versions["cpu"] == 2:
            return _field(self.folders["cpu"] / "cpu.stat", "usage_usec") / 1e6
        return None

    def oom_kills(self) -> int:
        """Return how many of its processes the kernel killed, out of memory."""
        if "memory" not in self.folders:
            return 0
        file = "memory.events" if self.versions["memory"] == 2 else "memory.oom_control"
        return _field(self.folders["memory"] / file, "oom_kill")

    def pids(self) -> list[int]:
        """Return its processes."""
        return sorted({pid for place in self.places for pid in pids_under(place)})

    def kill(self, cpus: float) -> None:
        """End all its processes at once, as a power cut would, and leave it with a share."""
        self.limit_cpus(None)  # a process of a small share takes seconds to be taken down
        kill_all(self.pids)
        self.limit_cpus(cpus)


def own_groups(proc: Path = Path("/proc/self")) -> dict[str, str]:
    """Return a process's group by controller; version 2's has the name ''. Empty without groups."""
    groups: dict[str, str] = {}
    for line in _lines(proc / "cgroup"):
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    return groups


def quota(folder: Path) -> float:
    """Return the cores that a group may have, infinity without a limit. Raises OSError, ValueError."""
    if (folder / "cpu.max").exists():
        most, period = (folder / "cpu.max").read_text(encoding="utf-8").split()
    else:
        files = (folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us")
        most, period = (file.read_text(encoding="utf-8").strip() for file in files)
    return math.inf if most in ("max", "-1") else int(most) / int(period)


def limit_cpus(folder: Path, cpus: float | None) -> None:
    """Limit a group to so many cores; None lifts the limit. Raises RequestError."""
    period, most = period_and_quota_us(cpus) if cpus else (PERIOD_US, 0)
    one = (folder / "cpu.cfs_quota_us").exists()
    # What a period leaves unused, because another process held the core, carries over to the next:
    # without it, a host of 0.45 core was measured to get 0.40 on a busy machine.
    burst = folder / ("cpu.cfs_burst_us" if one else "cpu.max.burst")
    bursts = burst.exists()  # from Linux 5.14
    if bursts:
        _write(burst, "0")  # so that no step between is out of bounds
    if one:
        _write(folder / "cpu.cfs_quota_us", "-1")
        _write(folder / "cpu.cfs_period_us", str(period))
        _write(folder / "cpu.cfs_quota_us", str(most or -1))
    else:
        _write(folder / "cpu.max", f"{most or 'max'} {period}")
    if bursts and most:
        _write(burst, str(most))


def period_and_quota_us(cpus: float) -> tuple[int, int]:
    """Return the period, and what of it a share of the cores may run, in microseconds."""
    period = max(PERIOD_US, round(LEAST_QUOTA_US / cpus))
    return period, max(LEAST_QUOTA_US, round(cpus * period))


def groups_in(folder: Path) -> Iterator[Path]:
    """Yield a group and those within it; `Path.glob` raises where one goes away meanwhile."""
    return (Path(name) for name, _, _ in os.walk(folder))


def pids_under(folder: Path) -> Iterator[int]:
    """Yield the processes of a group and of the groups within it."""
    for group in groups_in(folder):
        try:
            yield from map(int, (group / "cgroup.procs").read_text().split())
        except OSError:  # the group went away meanwhile
            continue


def folders_named(pattern: str) -> list[Path]:
    """Return the groups of a name (`*` stands for any text) in every mounted hierarchy."""
    mounts = [line.split() for line in _lines(Path("/proc/self/mounts"))]
    roots = [Path(words[1]) for words in mounts if words[2] in ("cgroup", "cgroup2")]
    return sorted({path for root in roots for path in groups_in(root) if path.match(pattern)})


def remove_group(group: Path, seconds: float = 5.0) -> None:
    """Remove a group and those within it, once no process holds it. Raises RequestError after a while."""
    until = time.monotonic() + seconds
    while group.exists():
        try:
            for folder in sorted(groups_in(group), reverse=True):
                folder.rmdir()
        except FileNotFoundError:
            continue
        except OSError as error:
            if time.monotonic() > until:
                asked = f"removing the control group {group.name}"
                todo = "end what is in it, then `forerun lab down`"
                raise RequestError(asked, f"{group}: {error.strerror}", todo) from error
            time.sleep(0.01)


def _inside(mount: Path, own: str) -> Path:
    """Return a group's folder; in a container the mount may already be that group."""
    folder = mount / own.lstrip("/")
    return folder if folder.is_dir() else mount


def _delegating(mount: Path, own: str, controllers: set[str]) -> Path | None:
    """Return the nearest group whose children have controllers (version 2: one without processes)."""
    folder = _inside(mount, own)
    while True:
        control = folder / "cgroup.subtree_control"
        if control.exists() and controllers <= set(control.read_text().split()):
            return folder
        if folder == mount:
            return None
        folder = folder.parent


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def _field(path: Path, name: str) -> int:
    return next((int(x.split()[1]) for x in _lines(path) if x.split()[0] == name), 0)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        found = f"writing {text!r} to {path} failed: {error.strerror}"
        todo = "see whether a limit around this process is lower, then `forerun lab down`"
        raise RequestError("the limits of a host", found, todo) from error


def usable_cores() -> list[int]:
    """Return the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def cpu_controller(pid: int | None = None) -> Path | None:
    """Return the folder in which a process's CPU quota can be set, None where there is none."""
    with suppress(RequestError):
        folder = ControlGroup.found(pid=pid).folders["cpu"]
        return folder if os.access(folder, os.W_OK) else None
    return None


def refusal(task: Task, hosts: Sequence[Host] = ()) -> str | None:
    """Return why the cores that a task asks for cannot be held here, None where they can."""
    asked, cores = task.cpus_per_worker, len(usable_cores())
    many = task.workers + task.servers
    if (whole := asked * many) > cores + 1e-9:
        need = f"{many} {'processes' if task.servers else 'workers'} of {asked:g} CPUs need {whole:g} cores"
        return f"{need}, and {cores} may be used here; ask for fewer or add hosts"
    plain = [host for host in hosts if not _holds(host)]
    if not asked or (hosts and not plain):
        return None
    if away := next((host.name for host in plain if not host.is_local), None):
        return f"host {away} cannot hold a worker to {asked:g} CPUs; leave cpus_per_worker out"
    if float(asked).is_integer():
        binds = hasattr(os, "sched_setaffinity")
        return None if binds else "this system cannot bind processes; leave cpus_per_worker out"
    found = f"{asked:g} CPUs a worker needs a CPU quota, and no cpu controller can be written here"
    return f"{found}; ask for whole cores, or run as root" if cpu_controller() is None else None


def _holds(host: Host) -> bool:
    return callable(getattr(host, "hold", None))


@dataclass
class Holding:
    """The cores of one run's workers, which lie on `hosts` by rank: `begin`, `apply` to each, `release`."""

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
            cores = self.cores[rank * count : (rank + 1) * count]
            bound: set[int] = set()  # of its threads; new ones inherit it
            while left := _threads_of(pid) - bound:
                for thread in left:
                    with suppress(ProcessLookupError):  # it ended meanwhile
                        os.sched_setaffinity(thread, cores)
                bound |= left
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
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return {
        "pid": os.getpid(), "boot": boot, "processes": str(Path("/proc/self/ns/pid").readlink()),
    }  # fmt: skip


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
        return {len(os.sched_getaffinity(each)) for each in _threads_of(os.getpid())} == {int(cpus)}
    return f"/{_PREFIX}" in Path("/proc/self/cgroup").read_text()


def _threads_of(pid: int) -> set[int]:
    return {int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()}


def remove_stale() -> None:
    """Remove control groups of runners that have ended without doing so."""
    controller = cpu_controller()
    for group in groups_in(controller) if controller is not None else ():
        owner = group.name.removeprefix(_PREFIX).partition("-")[0]
        ours = group.name.startswith(_PREFIX) and owner.isdigit()
        if ours and not Path(f"/proc/{owner}").exists():
            with suppress(RequestError):
                remove_group(group, 1.0)
