"""Names: what a lab's parts are called, so that its owner, living or dead, is read from the name."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from forerun.errors import RequestError

PREFIX = "frlab"
_ID = re.compile(rf"{PREFIX}-(\d+)-(\d+)-([a-z0-9][a-z0-9-]*)")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,22}[a-z0-9])?")
_STATE_FIELD, _START_FIELD = 0, 19  # of /proc/PID/stat behind the command's name


@dataclass(frozen=True, slots=True)
class LabId:
    """A lab's name with its owner: the process that ends it, or pid 0 where it is kept up.

    Args:
        name: what a person calls it.
        pid: the owner's process; 0 for a lab that stays until somebody takes it down.
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


def started_at(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None for a dead or zombie one."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[_STATE_FIELD] in "ZX" else int(fields[_START_FIELD])
