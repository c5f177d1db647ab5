"""State: what hosts of a lab are given, and the file by which other processes find and remove it."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from forerun.errors import RequestError
from forerun.measure.cgroups import ControlGroup
from forerun.measure.processes import started_at

LEAST_CPUS, MOST_MBIT, LEAST_MBIT = 0.01, 100_000.0, 0.1
LEAST_MEMORY_BYTES = 16_000_000
PREFIX = "frlab"
_ID = re.compile(rf"{PREFIX}-(\d+)-(\d+)-([a-z0-9][a-z0-9-]*)")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,22}[a-z0-9])?")
_ADDRESSES = "10.77"  # of which each lab has a /24 of its own
# In memory, so that the files go where namespaces go, at a restart.
FOLDER = Path("/run/forerun-lab")
_MBIT = {"kbit": 1e-3, "mbit": 1.0, "gbit": 1e3}
_BYTES = {"kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_AMOUNT = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)\s*([a-z]*)")


@dataclass(frozen=True, slots=True)
class HostSpec:
    """One host: its cores, link rate in each direction (10^6 bits/s of frames), memory, and its cable.

    Raises RequestError for a share, rate or size that the kernel cannot keep.
    """

    cpus: float = 0.22
    link_mbit: float = 300.0
    memory_bytes: int | None = None
    linked: bool = True

    def __post_init__(self) -> None:
        check_cpus(self.cpus)
        check_rate(self.link_mbit)
        if self.memory_bytes is not None and self.memory_bytes < LEAST_MEMORY_BYTES:
            asked = f"a host with {self.memory_bytes:,} bytes of memory"
            raise RequestError(asked, "a process needs more to start", "give it at least 16MB")

    @property
    def payload_bytes_per_second(self) -> float:
        """What a TCP connection can carry: 1448 of each 1514 bytes of an Ethernet frame."""
        return self.link_mbit * 1e6 / 8 * 1448 / 1514


def check_cpus(cpus: float) -> None:
    """Raise RequestError unless a share of cores can be kept."""
    cores = os.cpu_count() or 1
    if not LEAST_CPUS <= cpus <= cores:
        found = f"a share lies from {LEAST_CPUS:g} to {cores} (the cores of this machine)"
        raise RequestError(f"a host with {cpus:g} cores", found, "choose one, for example 0.22")


def check_rate(link_mbit: float) -> None:
    """Raise RequestError unless a link rate can be kept."""
    if not LEAST_MBIT <= link_mbit <= MOST_MBIT:
        found = f"a rate lies from {LEAST_MBIT:g} to {MOST_MBIT:,.0f} Mbit/s"
        raise RequestError(f"a link of {link_mbit:g} Mbit/s", found, "choose one, e.g. 300mbit")


def parse_rate(text: str, asked: str = "a link rate") -> float:
    """Return a link rate in Mbit/s from text such as `300mbit`, `1gbit` or `300`. Raises RequestError."""
    rate = _amount(text, asked, {**_MBIT, "": 1.0}, "300mbit or 1gbit")
    check_rate(rate)
    return rate


def parse_memory(text: str, asked: str = "memory") -> int:
    """Return bytes from text such as `512MB` or `2GiB`. Raises RequestError."""
    return int(_amount(text, asked, _BYTES, "512MB or 2GB"))


def _amount(text: str, asked: str, units: dict[str, float], examples: str) -> float:
    match = _AMOUNT.fullmatch(text.strip().lower().removesuffix("/s"))
    if match is None or match[2] not in units:
        found = f"not a number with a unit of {', '.join(filter(None, units))}"
        raise RequestError(f"{asked} {text!r}", found, f"write for example {examples}")
    return float(match[1]) * units[match[2]]


@dataclass(frozen=True, slots=True)
class LabId:
    """A lab's name with its owner's pid (0: none, it is kept) and start, in clock ticks since boot."""

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


def parse_id(text: str) -> LabId | None:
    """Return the id that a name holds, or None where it is no lab's."""
    match = _ID.fullmatch(text)
    return LabId(match[3], int(match[1]), int(match[2])) if match else None


def checked_name(name: str) -> str:
    """Return a lab's name. Raises RequestError where it cannot be one."""
    if _NAME.fullmatch(name):
        return name
    found = "a name has 1 to 24 small letters, digits and inner dashes"
    raise RequestError(f"a lab named {name!r}", found, "choose another, for example lab2")


@dataclass(frozen=True)
class LabState:
    """A lab as its file describes it; one that is not whole, seen under `locked()`, has lost its maker."""

    lab: LabId
    subnet: int
    made: str
    hosts: tuple[HostSpec, ...]
    controllers: ControlGroup
    folders: tuple[str, ...] = ()
    is_whole: bool = True

    def address(self, number: int) -> str:
        """Return the address of a host (from 1)."""
        return f"{_ADDRESSES}.{self.subnet}.{number}"

    def group(self, number: int) -> ControlGroup:
        """Return the control group of a host (from 1)."""
        return self.controllers.group(str(self.lab), f"h{number}")

    @property
    def numbers(self) -> range:
        """The numbers of its hosts, from 1."""
        return range(1, len(self.hosts) + 1)


@contextmanager
def locked() -> Iterator[None]:
    """Lock all labs of this machine: one process at a time makes, changes or removes one."""
    FOLDER.mkdir(mode=0o700, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def write(state: LabState) -> None:
    """Write a lab's file, whole or not at all."""
    draft = FOLDER / f"{state.lab}.{os.getpid()}.part"
    fields = {**asdict(state), "lab": str(state.lab)}
    draft.write_text(json.dumps(fields, default=str), encoding="utf-8")
    draft.replace(_file(state.lab))


def read(lab: LabId) -> LabState | None:
    """Return what a lab's file holds; None where there is none, or it is damaged."""
    try:
        fields = json.loads(_file(lab).read_text(encoding="utf-8"))
        found = fields["controllers"]
        parents = {name: Path(path) for name, path in found["folders"].items()}
        return LabState(**{
            **fields, "lab": lab, "hosts": tuple(HostSpec(**host) for host in fields["hosts"]),
            "controllers": ControlGroup(parents, found["versions"]),
            "folders": tuple(fields["folders"]),
        })  # fmt: skip
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None


def forget(lab: LabId) -> None:
    """Remove a lab's files."""
    for path in FOLDER.glob(f"{lab}.*"):
        path.unlink()


def written() -> list[LabId]:
    """Return the labs that have a file, in order of their owners."""
    found = (parse_id(path.stem) for path in sorted(FOLDER.glob(f"{PREFIX}-*.json")))
    return [lab for lab in found if lab is not None]


def _file(lab: LabId) -> Path:
    return FOLDER / f"{lab}.json"


def shares_file(lab: LabId, number: int) -> Path:
    """Return the file that a process locks while it has changed the share of a lab's host."""
    return FOLDER / f"{lab}.{number}.shares"
