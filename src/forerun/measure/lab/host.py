"""LabHost: a host of the lab as a runner sees it, with a share that can be set for one run."""

from __future__ import annotations

import fcntl
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO

from forerun.errors import RequestError
from forerun.measure.hosts import Host
from forerun.measure.lab import network, state
from forerun.measure.lab.state import LabId, LabState, check_cpus

COULD_NOT_ENTER = 125  # the exit code of a command that could not be put into its host
_FAVOUR = 0  # in place of a host's number: that a lab's hosts run before everything else
# What this process has changed for a while, with locked files: the kernel unlocks a killed process's.
_CHANGED: dict[tuple[LabId, int], IO[str]] = {}


@dataclass(frozen=True, slots=True)
class LabHost(Host):
    """A host of a lab that is up; its user need not hold the lab."""

    lab: LabId = field(default_factory=lambda: LabId("lab"))
    number: int = 1

    def hold(self, cpus: float) -> None:
        """Give the host another share of the cores for one run; `release` gives its own back.

        Raises RequestError for a share that cannot be kept, or where the lab is gone.
        """
        check_cpus(cpus)
        with state.locked():
            found = state.read(self.lab)
            if found is None:
                raise RequestError(
                    f"host {self.name} of lab {self.lab.name}", "the lab is gone",
                    "start one: forerun lab up",
                )  # fmt: skip
            _change(found, [self.number], cpus)

    def release(self) -> None:
        """Give the host its own share again, unless the lab is gone or another process changed it."""
        restore_shares(self.lab, [self.number])


def _change(lab: LabState, numbers: Sequence[int], cpus: float | None) -> None:
    """Give hosts another share, each with a lock; the caller holds `state.locked()`."""
    for number in numbers:
        if (lab.lab, number) not in _CHANGED:
            file = state.shares_file(lab.lab, number).open("w")
            fcntl.flock(file, fcntl.LOCK_SH)
            _CHANGED[lab.lab, number] = file
        _set(lab, number, cpus)


def _set(lab: LabState, number: int, cpus: float | None) -> None:
    if number == _FAVOUR:
        lab.favour(cpus is not None)
    else:
        lab.group(number).limit_cpus(cpus)


def _is_changed(lab: LabId, number: int) -> bool:
    """Whether a process that lives, this one too, has changed a host's share for a while."""
    with state.shares_file(lab, number).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def hosts_of(lab: LabState) -> tuple[LabHost, ...]:
    """Return the hosts of a lab."""
    return tuple(
        LabHost(f"h{n}", lab.address(n), network.INTERFACE, prefix(lab, n), lab.lab, n)
        for n in lab.numbers
    )


def prefix(lab: LabState, number: int, group: str = "") -> tuple[str, ...]:
    """Return the words that put a command into a host (from 1), and into a group within its own.

    A shell becomes `ip netns exec`, which becomes the command, so that a signal reaches it. The groups
    come first, since `ip netns exec` shows a /sys without control groups.
    """
    places = [str(place / group) for place in lab.group(number).places]
    script = (
        f"for g in {' '.join(map(shlex.quote, places))}; do"
        f' echo 0 > "$g/cgroup.procs" || exit {COULD_NOT_ENTER}; done;'
        f' exec {shlex.quote(network.tool("ip") or "ip")} netns exec {lab.lab.host(number)} "$@"'
    )
    return ("sh", "-c", script, "forerun-lab")


def restore_shares(lab: LabId, numbers: Sequence[int] = ()) -> LabState | None:
    """Give hosts their own shares again, unless a process that lives has changed them for a while.

    This process's own changes of `numbers` are undone; without any, all that dead processes left.
    Returns what the lab is now, None where it is gone.
    """
    with state.locked():
        for number in numbers:
            if file := _CHANGED.pop((lab, number), None):
                fcntl.flock(file, fcntl.LOCK_UN)  # a forked child may have it open
                file.close()
        found = state.read(lab)
        if found is not None and found.is_whole:
            for number in {_FAVOUR, *(numbers or found.numbers)}:
                if not _is_changed(lab, number):
                    _set(found, number, found.hosts[number - 1].cpus if number else 1.0)
        return found


@contextmanager
def full_speed(lab: LabState) -> Iterator[None]:
    """Lift every share of a lab for a while."""
    changed = (_FAVOUR, *lab.numbers)
    with state.locked():
        _change(lab, changed, None)
    try:
        yield
    finally:
        restore_shares(lab.lab, changed)
