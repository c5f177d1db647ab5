"""LabHost: a host of the lab as a runner sees it, with a share that can be set for one run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from forerun.errors import RequestError
from forerun.measure.hosts import Host
from forerun.measure.lab import entering, network, state
from forerun.measure.lab.names import LabId, this_process
from forerun.measure.lab.spec import check_cpus
from forerun.measure.lab.state import LabState

_NEAR = 0.01  # quotas are whole microseconds: the kernel's share is a little off


@dataclass(frozen=True, slots=True)
class LabHost(Host):
    """A host of a lab that is up; whoever holds it need not hold the lab.

    Attributes:
        lab: the lab's id.
        number: which of its hosts, from 1.
    """

    lab: LabId = field(default_factory=lambda: LabId("lab"))
    number: int = 1

    def hold(self, cpus: float) -> None:
        """Give the host another share of the cores for one run; `release` gives its own back.

        Who holds it is written down first: where this process is killed, whoever uses the lab
        next gives the host its own share again.

        Raises:
            RequestError: a share that cannot be kept, or the lab is gone.
        """
        check_cpus(cpus)
        with state.locked():
            found = self._state()
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

    def _state(self) -> LabState:
        found = state.read(self.lab)
        if found is None:
            raise RequestError(
                f"host {self.name} of lab {self.lab.name}", "the lab is gone",
                "start one: forerun lab up",
            )  # fmt: skip
        return found


def settle(lab: LabId) -> LabState | None:
    """Give hosts their own shares again, where no process that lives has changed them for a while.

    Returns what the lab is now; None where it is gone.
    """
    with state.locked():
        found = state.read(lab)
        if found is None or found.maker:
            return found
        numbers = range(1, len(found.hosts) + 1)
        free = [n for n in numbers if not found.is_held(n)]
        for number in free:
            own = found.hosts[number - 1].cpus
            now = found.group(number).cpus()
            if now is None or abs(now - own) > _NEAR * own:
                found.group(number).limit_cpus(own)
        if len(free) == len(numbers):  # nobody has lifted the shares
            found.controllers.favour(lab, True)
        settled = found.held(free, "")
        if settled != found:
            state.write(settled)
        return settled


@contextmanager
def lifted(lab: LabState) -> Iterator[None]:
    """Lift every share of a lab for a while, and note who did."""
    numbers = range(1, len(lab.hosts) + 1)
    with state.locked():
        state.write((state.read(lab.lab) or lab).held(numbers, this_process()))
    lab.controllers.favour(lab.lab, False)
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
                lab.controllers.favour(lab.lab, True)
                state.write(found.held(numbers, ""))


def places(lab: LabState) -> tuple[LabHost, ...]:
    """Return the hosts of a lab."""
    return tuple(
        LabHost(
            f"h{n}", lab.address(n), network.INTERFACE, entering.words(lab, n), lab.lab, n
        )
        for n in range(1, len(lab.hosts) + 1)
    )  # fmt: skip
