"""LabHost: a host of the lab as a runner sees it, with a share that can be set for one run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from forerun.errors import RequestError
from forerun.measure.hosts import Host
from forerun.measure.lab import network, state
from forerun.measure.lab.spec import check_cpus
from forerun.measure.lab.state import LabId, LabState, this_process

COULD_NOT_ENTER = 125  # the exit code of a command that could not be put into its host
_NEAR = 0.01  # quotas are whole microseconds: the kernel's share is a little off


@dataclass(frozen=True, slots=True)
class LabHost(Host):
    """A host of a lab that is up; its user need not hold the lab.

    Attributes:
        lab: the lab's id.
        number: which of its hosts, from 1.
    """

    lab: LabId = field(default_factory=lambda: LabId("lab"))
    number: int = 1

    def hold(self, cpus: float) -> None:
        """Give the host another share of the cores for one run; `release` gives its own back.

        The holder is written down first: where this process is killed, the next user of the lab
        gives the host its own share again.

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
            state.write(found.held([self.number], this_process()))
            found.group(self.number).limit_cpus(cpus)

    def release(self) -> None:
        """Give the host its own share again.

        Nothing happens where the lab is gone, or where another process that lives holds it.
        """
        with state.locked():
            found = state.read(self.lab)
            if found is None or found.is_held(self.number, but_by=this_process()):
                return
            found.group(self.number).limit_cpus(found.hosts[self.number - 1].cpus)
            state.write(found.held([self.number], ""))


def hosts_of(lab: LabState) -> tuple[LabHost, ...]:
    """Return the hosts of a lab."""
    return tuple(
        LabHost(f"h{n}", lab.address(n), network.INTERFACE, prefix(lab, n), lab.lab, n)
        for n in range(1, len(lab.hosts) + 1)
    )


def prefix(lab: LabState, number: int, group: str = "") -> tuple[str, ...]:
    """Return the words that put a command into a host, and into a group within it.

    A shell writes itself into the host's groups and becomes `ip netns exec`, which becomes the
    command, so that a signal reaches it. The groups come first, since `ip netns exec` shows a /sys
    without control groups.

    Args:
        lab: the lab.
        number: the host, from 1.
        group: the name of a group within the host's, which exists; "" for the host's own.
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
        if found is None or found.maker:
            return found
        numbers = range(1, len(found.hosts) + 1)
        free = [n for n in numbers if not found.is_held(n)]
        for number in free:
            own, now = found.hosts[number - 1].cpus, found.group(number).cpus()
            if now is None or abs(now - own) > _NEAR * own:
                found.group(number).limit_cpus(own)
        if len(free) == len(numbers):  # no process has lifted the shares
            found.favour(True)
        restored = found.held(free, "")
        if restored != found:
            state.write(restored)
        return restored


@contextmanager
def full_speed(lab: LabState) -> Iterator[None]:
    """Lift every share of a lab for a while, and write down which process did."""
    numbers = range(1, len(lab.hosts) + 1)
    with state.locked():
        state.write((state.read(lab.lab) or lab).held(numbers, this_process()))
    lab.favour(False)
    for number in numbers:
        lab.group(number).limit_cpus(None)
    try:
        yield
    finally:
        with state.locked():
            found = state.read(lab.lab)
            for number, host in enumerate(found.hosts if found is not None else (), start=1):
                lab.group(number).limit_cpus(host.cpus)
            if found is not None:
                lab.favour(True)
                state.write(found.held(numbers, ""))
