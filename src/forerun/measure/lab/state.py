"""State: a lab's name and one small file, by which another process finds it, and removes it after a crash."""

from __future__ import annotations

import fcntl
import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from forerun.errors import RequestError
from forerun.measure.cgroups import ControlGroup, Controllers
from forerun.measure.lab.spec import HostSpec
from forerun.measure.processes import started_at

PREFIX = "frlab"
_ID = re.compile(rf"{PREFIX}-(\d+)-(\d+)-([a-z0-9][a-z0-9-]*)")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,22}[a-z0-9])?")
_ADDRESSES = "10.77"  # of which each lab has a /24 of its own
_SUBNETS = 256


@dataclass(frozen=True, slots=True)
class LabId:
    """A lab's name with its owner: the process that ends it, or pid 0 where it is kept up.

    All its parts are named by it, so that the owner, living or dead, is read from the name.

    Args:
        name: the user's name for it.
        pid: the owner's process; 0 for a lab that stays until it is taken down.
        start: when the owner started, in clock ticks since boot; a pid is used again, this is not.
    """

    name: str
    pid: int = 0
    start: int = 0

    @classmethod
    def of_this_process(cls, name: str) -> LabId:
        """Return the id of a lab that belongs to the running process."""
        return cls(name, os.getpid(), started_at(os.getpid()) or 0)

    def __str__(self) -> str:
        return f"{PREFIX}-{self.pid}-{self.start}-{self.name}"

    @property
    def switch(self) -> str:
        """The namespace that holds the bridge between the hosts."""
        return f"{self}-sw"

    def host(self, number: int) -> str:
        """Return the namespace of a host, counted from 1."""
        return f"{self}-h{number}"

    @property
    def kept(self) -> bool:
        """Whether it stays up when the process that made it ends."""
        return self.pid == 0

    @property
    def abandoned(self) -> bool:
        """Whether its owner is dead."""
        return not self.kept and started_at(self.pid) != self.start


def this_process() -> str:
    """Return the running process as a text that no later one has: its number and its start."""
    return f"{os.getpid()}-{started_at(os.getpid()) or 0}"


def lives(process: str) -> bool:
    """Whether the process of `this_process` still runs; "" is none."""
    pid, _, start = process.partition("-")
    return pid.isdigit() and started_at(int(pid)) == int(start or 0)


def parse_id(text: str) -> LabId | None:
    """Return the id that a name holds, or None where it is no lab's."""
    match = _ID.fullmatch(text)
    return LabId(match[3], int(match[1]), int(match[2])) if match else None


def owner_of(namespace: str) -> LabId | None:
    """Return the id of the lab that a network namespace belongs to, or None."""
    return parse_id(namespace.rpartition("-")[0])


def checked_name(name: str) -> str:
    """Return a lab's name. Raises RequestError where it cannot be one."""
    if _NAME.fullmatch(name):
        return name
    raise RequestError(
        f"a lab named {name!r}", "a name has 1 to 24 small letters, digits and inner dashes",
        "choose another, for example lab2",
    )  # fmt: skip


def address(subnet: int, number: int) -> str:
    """Return the address of a host (from 1) in the lab that has a subnet (0 to 255)."""
    return f"{_ADDRESSES}.{subnet}.{number}"


@dataclass(frozen=True)
class HostState:
    """What one host has at present.

    Args:
        cpus: its own share of the cores.
        link_mbit: rate of its link, each way.
        memory_bytes: limit of its memory.
        linked: whether its cable is in.
        holder: the process that has given it another share for a while (`this_process`); written
            before the share is changed, so that one that was killed is known by it.
    """

    cpus: float
    link_mbit: float
    memory_bytes: int | None = None
    linked: bool = True
    holder: str = ""

    @classmethod
    def of(cls, spec: HostSpec) -> HostState:
        """Return the state of a host that has just been made."""
        return cls(spec.cpus, spec.link_mbit, spec.memory_bytes)


@dataclass(frozen=True)
class LabState:
    """A lab as its file describes it: before its first part is made, and after each change.

    Args:
        lab: its id.
        subnet: the third number of its addresses, its own among all labs.
        made: when, UTC, ISO 8601.
        hosts: in their order; the first is number 1.
        controllers: where its groups are: those of its maker, which seldom is the reader.
        folders: temporary folders that are removed with it.
        maker: the process that is making it; "" once it is whole, and only then is it up.
    """

    lab: LabId
    subnet: int
    made: str
    hosts: tuple[HostState, ...]
    controllers: Controllers
    folders: tuple[str, ...] = ()
    maker: str = ""

    def address(self, number: int) -> str:
        """Return the address of a host (from 1)."""
        return address(self.subnet, number)

    def group(self, number: int) -> ControlGroup:
        """Return the control group of a host (from 1)."""
        return self.controllers.group(str(self.lab), f"h{number}")

    def favour(self, favoured: bool) -> None:
        """Let its hosts run before everything else of the machine, or like it."""
        self.controllers.favour(str(self.lab), favoured)

    @property
    def unfinished(self) -> bool:
        """Whether its maker died before it was whole."""
        return bool(self.maker) and not lives(self.maker)

    def is_held(self, number: int, but_by: str = "") -> bool:
        """Whether a process that lives, other than the one named, has changed a host's share."""
        holder = self.hosts[number - 1].holder
        return holder != but_by and lives(holder)

    def held(self, numbers: Sequence[int], holder: str) -> LabState:
        """Return it with some hosts (from 1) held by a process, or by none: ""."""
        hosts = [
            replace(host, holder=holder) if number in numbers else host
            for number, host in enumerate(self.hosts, start=1)
        ]
        return replace(self, hosts=tuple(hosts))

    def with_host(self, number: int, host: HostState) -> LabState:
        """Return it with another state of one host (from 1)."""
        hosts = list(self.hosts)
        hosts[number - 1] = host
        return replace(self, hosts=tuple(hosts))


def folder() -> Path:
    """Return where the files lie: in memory, so that they go where namespaces go, at a restart."""
    run = Path("/run")
    root = run if os.access(run, os.W_OK) else Path(tempfile.gettempdir())
    return root / "forerun-lab"


@contextmanager
def locked() -> Iterator[None]:
    """Lock all labs of this machine: one process at a time makes, changes or removes one."""
    where = folder()
    where.mkdir(mode=0o700, exist_ok=True)
    if where.stat().st_uid != os.geteuid():
        raise RequestError(
            "the lab's files", f"{where} belongs to another user", "remove it, or run as that user"
        )
    with (where / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def write(state: LabState) -> None:
    """Write a lab's file, whole or not at all."""
    target = _file(state.lab)
    draft = target.with_suffix(f".{os.getpid()}.part")
    fields = {
        "lab": str(state.lab), "subnet": state.subnet, "made": state.made,
        "hosts": [asdict(host) for host in state.hosts], "folders": state.folders,
        "parents": {name: str(path) for name, path in state.controllers.parents.items()},
        "versions": dict(state.controllers.versions), "maker": state.maker,
    }  # fmt: skip
    draft.write_text(json.dumps(fields), encoding="utf-8")
    draft.replace(target)


def read(lab: LabId) -> LabState | None:
    """Return what a lab's file holds; None where there is none, or a power cut left half of it."""
    try:
        fields = json.loads(_file(lab).read_text(encoding="utf-8"))
        hosts = tuple(HostState(**host) for host in fields["hosts"])
        parents = {name: Path(path) for name, path in fields["parents"].items()}
        return LabState(
            lab, int(fields["subnet"]), str(fields["made"]), hosts,
            Controllers(parents, fields["versions"]), tuple(fields["folders"]),
            str(fields["maker"]),
        )  # fmt: skip
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None


def forget(lab: LabId) -> None:
    """Remove a lab's file."""
    _file(lab).unlink(missing_ok=True)


def written() -> list[LabId]:
    """Return the labs that have a file."""
    found = (parse_id(path.stem) for path in sorted(folder().glob(f"{PREFIX}-*.json")))
    return [lab for lab in found if lab is not None]


def free_subnet() -> int:
    """Return a subnet that no lab has. Raises RequestError where all are taken."""
    taken = {state.subnet for lab in written() if (state := read(lab)) is not None}
    free = next((n for n in range(_SUBNETS) if n not in taken), None)
    if free is None:
        raise RequestError(
            "one more lab", f"{_SUBNETS} labs are up", "remove some: forerun lab down"
        )
    return free


def _file(lab: LabId) -> Path:
    return folder() / f"{lab}.json"
