"""State: one small file a lab, so that another process finds it, and removes it after a crash."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from forerun.errors import RequestError
from forerun.measure.lab import network
from forerun.measure.lab.cgroups import Controllers, HostGroup
from forerun.measure.lab.names import PREFIX, LabId, lives, parse_id
from forerun.measure.lab.spec import HostSpec

_SUBNETS = 256


@dataclass(frozen=True)
class HostState:
    """What one host has at present.

    Args:
        cpus: its own share of the cores.
        link_mbit: rate of its link, each way.
        memory_bytes: limit of its memory.
        linked: whether its cable is in.
        holder: the process that has given it another share for a while (`names.this_process`);
            written before the share is changed, so that one that was killed is known by it.
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
    """A lab as it is written down: before its first part is made, and after each change.

    Args:
        lab: its id.
        subnet: the third number of its addresses, its own among all labs.
        made: when, UTC, ISO 8601.
        hosts: in their order; the first is number 1.
        controllers: where its groups are: those of whoever made it, who is seldom who reads.
        folders: temporary folders that go with it.
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
        return network.address(self.subnet, number)

    def group(self, number: int) -> HostGroup:
        """Return the control group of a host (from 1)."""
        return self.controllers.group(self.lab, f"h{number}")

    @property
    def unfinished(self) -> bool:
        """Whether whoever was making it died over it."""
        return bool(self.maker) and not lives(self.maker)

    def is_held(self, number: int, but_by: str = "") -> bool:
        """Whether a process that lives, other than the one named, has changed a host's share."""
        holder = self.hosts[number - 1].holder
        return holder != but_by and lives(holder)

    def held(self, numbers: Sequence[int], holder: str) -> LabState:
        """Return it with some hosts (from 1) held by a process, or by none: ""."""
        hosts = list(self.hosts)
        for number in numbers:
            hosts[number - 1] = replace(hosts[number - 1], holder=holder)
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
    """Hold all labs of this machine still: one process at a time makes, changes or removes one."""
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
    """Return what a lab's file says; None where there is none, or a power cut left half of it."""
    try:
        fields = json.loads(_file(lab).read_text(encoding="utf-8"))
        hosts = tuple(HostState(**host) for host in fields["hosts"])
        parents = {name: Path(path) for name, path in fields["parents"].items()}
        return LabState(
            lab, int(fields["subnet"]), str(fields["made"]), hosts,
            Controllers(parents, fields["versions"]), tuple(fields["folders"]),
            str(fields.get("maker", "")),
        )  # fmt: skip
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None


def forget(lab: LabId) -> None:
    """Remove a lab's file."""
    _file(lab).unlink(missing_ok=True)


def written() -> list[LabId]:
    """Return the labs that have a file."""
    if not folder().is_dir():
        return []
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
