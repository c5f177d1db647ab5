"""LabHost: a host of the lab as a runner sees it, with a share that can be set for one run."""

from __future__ import annotations

from dataclasses import dataclass, field

from forerun.errors import RequestError
from forerun.measure.hosts import Host
from forerun.measure.lab import entering, network, state
from forerun.measure.lab.names import LabId
from forerun.measure.lab.spec import check_cpus
from forerun.measure.lab.state import LabState


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

        Raises:
            RequestError: a share that cannot be kept, or the lab is gone.
        """
        check_cpus(cpus)
        self._state().group(self.number).limit_cpus(cpus)

    def release(self) -> None:
        """Give the host its own share again; nothing happens where the lab is gone."""
        found = state.read(self.lab)
        if found is not None:
            found.group(self.number).limit_cpus(found.hosts[self.number - 1].cpus)

    def _state(self) -> LabState:
        found = state.read(self.lab)
        if found is None:
            raise RequestError(
                f"host {self.name} of lab {self.lab.name}", "the lab is gone",
                "start one: forerun lab up",
            )  # fmt: skip
        return found


def places(lab: LabState) -> tuple[LabHost, ...]:
    """Return the hosts of a lab."""
    return tuple(
        LabHost(
            f"h{n}", lab.address(n), network.INTERFACE, entering.words(lab, n), lab.lab, n
        )
        for n in range(1, len(lab.hosts) + 1)
    )  # fmt: skip
