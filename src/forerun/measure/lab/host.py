"""LabHost: a host of the lab as a runner sees it, with a share that can be set for one run."""

from __future__ import annotations

import fcntl
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO

from forerun.errors import RequestError
from forerun.measure.hosts import Host
from forerun.measure.lab import network, state
from forerun.measure.lab.state import LabId, LabState, check_cpus

COULD_NOT_ENTER = 125  # the exit code of a command that could not be put into its host
_NEAR = 0.01  # quotas are whole microseconds: the kernel's share is a little off
# Labs whose shares this process has changed for a while: its lock, which the kernel drops where the
# process is killed, and which hosts.
_CHANGED: dict[LabId, tuple[IO[str], set[int]]] = {}


@dataclass(frozen=True, slots=True)
class LabHost(Host):
    """A host of a lab that is up; its user need not hold the lab."""

    lab: LabId = field(default_factory=lambda: LabId("lab"))
    number: int = 1

    def hold(self, cpus: float) -> None:
        """Give the host another share of the cores for one run; `release` gives its own back.

        Where this process is killed, the next user of the lab gives the host its own share again.

        Raises:
            RequestError: a share that cannot be kept, or the lab is gone.
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
        """Give the host its own share again.

        Nothing happens where the lab is gone, or where another process has changed its shares.
        """
        with state.locked():
            found = state.read(self.lab)
            if found is not None:
                _restore(found, [self.number])


def _change(lab: LabState, numbers: list[int], cpus: float | None) -> None:
    """Give hosts another share, and lock the lab's shares; the caller holds `state.locked()`."""
    if lab.lab not in _CHANGED:
        file = state.shares_file(lab.lab).open("w")
        fcntl.flock(file, fcntl.LOCK_SH)
        _CHANGED[lab.lab] = file, set()
    _CHANGED[lab.lab][1].update(numbers)
    for number in numbers:
        lab.group(number).limit_cpus(cpus)


def _restore(lab: LabState, numbers: list[int]) -> None:
    """Give hosts their own shares again, unless another process that lives has changed the lab's."""
    file, changed = _CHANGED.pop(lab.lab, (None, set[int]()))
    left = changed - set(numbers)
    if file is not None and left:
        _CHANGED[lab.lab] = file, left
    elif file is not None:
        file.close()
    if not set(numbers) <= changed and _is_changed(lab.lab):
        return
    for number in numbers:
        own, now = lab.hosts[number - 1].cpus, lab.group(number).cpus()
        if now is None or abs(now - own) > _NEAR * own:
            lab.group(number).limit_cpus(own)
    if not left:
        lab.favour(True)


def _is_changed(lab: LabId) -> bool:
    """Whether a process that lives has changed a lab's shares for a while."""
    with state.shares_file(lab).open("w") as file:
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
    """Return the words that put a command into a host, and into a group within it.

    A shell writes itself into the host's groups and becomes `ip netns exec`, which becomes the
    command, so that a signal reaches it. The groups come first, since `ip netns exec` shows a /sys
    without control groups.

    `number` counts hosts from 1; `group` is a group within the host's, which exists, "" the host's own.
    """
    places = [str(place / group) for place in lab.group(number).places]
    script = (
        f"for g in {' '.join(map(shlex.quote, places))}; do"
        f' echo 0 > "$g/cgroup.procs" || exit {COULD_NOT_ENTER}; done;'
        f' exec {shlex.quote(network.tool("ip") or "ip")} netns exec {lab.lab.host(number)} "$@"'
    )
    return ("sh", "-c", script, "forerun-lab")


def restore_shares(lab: LabId) -> LabState | None:
    """Give hosts their own shares again, unless a process that lives has changed them for a while.

    Returns what the lab is now; None where it is gone.
    """
    with state.locked():
        found = state.read(lab)
        if found is not None and found.is_whole:
            _restore(found, found.numbers)
        return found


@contextmanager
def full_speed(lab: LabState) -> Iterator[None]:
    """Lift every share of a lab for a while."""
    with state.locked():
        _change(lab, lab.numbers, None)
    lab.favour(False)
    try:
        yield
    finally:
        restore_shares(lab.lab)
