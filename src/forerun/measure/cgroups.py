"""Cgroups: the control groups of processes, version 1 or 2: where they are, what they limit and count."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from forerun.errors import RequestError
from forerun.measure.processes import kill_all

# With the usual 100 ms a host of 0.22 core runs at full speed for 22 ms and then stands still:
# steps of 10 or 90 ms, whose median lies. 5 ms makes median and mean agree.
PERIOD_US = 5000
LEAST_QUOTA_US = 1000  # the kernel refuses less, so a small share has a longer period
_WEIGHTS = {"cpu.shares": (1024, 262_144), "cpu.weight": (100, 10_000)}  # usual and greatest
_CONTROLLERS = ("cpu", "cpuacct", "memory")


@dataclass(frozen=True)
class Controllers:
    """Where this process may make groups.

    Args:
        parents: the folder by controller (cpu, cpuacct, memory); on version 2 one folder serves
            all. What limits the caller's own group limits the new ones too: they lie inside it.
        versions: 1 or 2 by controller.
    """

    parents: Mapping[str, Path]
    versions: Mapping[str, int]

    @classmethod
    def found(cls, proc: Path = Path("/proc/self"), pid: int | None = None) -> Controllers:
        """Return the controllers of this machine, for groups inside that of a process (this one).

        Raises RequestError where none limits the processor.
        """
        mounts = [line.split() for line in _lines(proc / "mounts")]
        own = own_groups(proc if pid is None else Path(f"/proc/{pid}"))
        parents: dict[str, Path] = {}
        versions: dict[str, int] = {}
        for name in _CONTROLLERS:
            for words in mounts:
                if words[2] == "cgroup" and name in words[3].split(","):
                    parents[name] = _inside(Path(words[1]), own.get(name, "/"))
                    versions[name] = 1
        unified = next((Path(w[1]) for w in mounts if w[2] == "cgroup2"), None)
        wanted = {"cpu", "memory"} - parents.keys()
        # A process is in one group of version 2 alone, so one folder has to serve for both.
        for names in (wanted, wanted & {"cpu"}):
            parent = _delegating(unified, own.get("", "/"), names) if unified and names else None
            if parent is not None:
                parents.update(dict.fromkeys(names, parent))
                versions.update(dict.fromkeys(names, 2))
                break
        if "cpu" in parents:
            return cls(parents, versions)
        if unified is None:
            raise RequestError(
                "a CPU share a host", "no cpu cgroup is mounted",
                "mount one (mount -t cgroup2 none /sys/fs/cgroup), or start the container with"
                " --privileged",
            )  # fmt: skip
        raise RequestError(
            "a CPU share a host", f"the cpu controller is not given to the groups under {unified}",
            f"give it to them: echo '+cpu +memory' > {unified}/cgroup.subtree_control (in a"
            " container: start it with --privileged --cgroupns=host)",
        )  # fmt: skip

    def favour(self, name: str, favoured: bool) -> None:
        """Let the processes of a group run before everything else of the machine, or like it.

        A quota is only a ceiling: on a busy machine a host would get less than its share. What
        hosts take from others is bounded by their quotas, so it is off where those are lifted.
        """
        file = "cpu.weight" if self.versions["cpu"] == 2 else "cpu.shares"
        usual, most = _WEIGHTS[file]
        _write(self.parents["cpu"] / name / file, str(most if favoured else usual))

    def group(self, *names: str) -> ControlGroup:
        """Return the group of a name (a path of names), made or not."""
        folders = {name: parent.joinpath(*names) for name, parent in self.parents.items()}
        return ControlGroup(folders, dict(self.versions))


@dataclass(frozen=True)
class ControlGroup:
    """A group: a folder by controller, and what it limits and counts."""

    folders: Mapping[str, Path]
    versions: Mapping[str, int]

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
        """Give it a share of the cores from now on; None lifts the limit.

        What a period leaves unused, because another process held the core, carries over to the
        next (burst): without it, a host of 0.45 core was measured to get 0.40 on a busy machine.
        """
        limit_cpus(self.folders["cpu"], cpus)

    def cpus(self) -> float | None:
        """Return its share of the cores, None where it has no limit."""
        cores = quota(self.folders["cpu"])
        return None if math.isinf(cores) else cores

    def limit_memory(self, memory_bytes: int) -> None:
        """Let the kernel kill one of its processes when all of them hold more than this.

        Raises RequestError where no memory controller, or the kernel refuses.
        """
        folder = self.folders.get("memory")
        if folder is None:
            raise RequestError(
                f"a host with {memory_bytes:,} bytes of memory",
                "no memory controller is mounted", "leave the limit out, or mount one",
            )  # fmt: skip
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
    """Return the cores that a group may have; infinity where it has no limit.

    Raises OSError, ValueError where the folder is no group of the processor.
    """
    if (folder / "cpu.max").exists():
        most, period = (folder / "cpu.max").read_text(encoding="utf-8").split()
    else:
        most, period = (
            (folder / f"cpu.cfs_{name}_us").read_text(encoding="utf-8").strip()
            for name in ("quota", "period")
        )
    return math.inf if most in ("max", "-1") else int(most) / int(period)


def limit_cpus(folder: Path, cpus: float | None) -> None:
    """Limit a group to so many cores; None lifts the limit. Raises RequestError."""
    period, most = period_and_quota_us(cpus) if cpus else (PERIOD_US, 0)
    one = (folder / "cpu.cfs_quota_us").exists()
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


def pids_under(folder: Path) -> Iterator[int]:
    """Yield the processes of a group and of the groups within it."""
    for file in folder.glob("**/cgroup.procs"):
        try:
            yield from map(int, file.read_text().split())
        except OSError:  # the group went away meanwhile
            continue


def folders_named(pattern: str) -> list[Path]:
    """Return the groups of a name (`*` stands for any text) in every mounted hierarchy."""
    mounts = [line.split() for line in _lines(Path("/proc/self/mounts"))]
    roots = [Path(words[1]) for words in mounts if words[2] in ("cgroup", "cgroup2")]
    return sorted({path for root in roots for path in root.glob(f"**/{pattern}") if path.is_dir()})


def remove_group(group: Path, seconds: float = 5.0) -> None:
    """Remove a group and those within it; a process that has just ended may hold it a moment.

    Raises RequestError where something holds it for longer.
    """
    until = time.monotonic() + seconds
    while group.exists():
        try:
            for folder in sorted((p for p in group.glob("**/*") if p.is_dir()), reverse=True):
                folder.rmdir()
            group.rmdir()
        except FileNotFoundError:
            continue
        except OSError as error:
            if time.monotonic() > until:
                raise RequestError(
                    f"removing the control group {group.name}", f"{group}: {error.strerror}",
                    "end what is in it, then `forerun lab down`",
                ) from error  # fmt: skip
            time.sleep(0.01)


def _inside(mount: Path, own: str) -> Path:
    """Return a group's folder; in a container the mount may already be that group."""
    folder = mount / own.lstrip("/")
    return folder if folder.is_dir() else mount


def _delegating(mount: Path, own: str, controllers: set[str]) -> Path | None:
    """Return the nearest group at or above one's own whose children have some controllers.

    A group of version 2 that holds processes cannot also divide a controller among children
    ("no internal processes"), so one's own group seldom qualifies and its slice does.
    """
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
        raise RequestError(
            "the limits of a host", f"writing {text!r} to {path} failed: {error.strerror}",
            "see whether a limit around this process is lower, then `forerun lab down`",
        ) from error  # fmt: skip
