"""Overview: every lab of this machine, whoever made it: listed, counted and removed."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.errors import UnknownNameError
from forerun.measure.lab import removing, state, system
from forerun.measure.lab.names import LabId
from forerun.measure.lab.state import LabState


def labs() -> list[LabState]:
    """Return the labs that are up on this machine, the abandoned ones too, in order of name.

    One that is being made is not up yet, and one whose maker was killed never will be.
    """
    found = (state.read(lab) for lab in state.written())
    whole = (lab for lab in found if lab is not None and not lab.maker)
    return sorted(whole, key=lambda s: str(s.lab))


def remove_labs(names: Sequence[str] = (), of_the_living: bool = False) -> list[LabId]:
    """Remove the named labs; without names, every one that no running program owns.

    Args:
        names: as a person calls them.
        of_the_living: without names: also those of programs that still run.

    Returns:
        What was removed.

    Raises:
        UnknownNameError: a name that no lab has; nothing is removed then.
        RequestError: what the machine lacks, or a process does not end.
    """
    system.require()
    with state.locked():
        every = removing.every()
        known = [lab.name for lab in every]
        for name in names:
            if name not in known:
                raise UnknownNameError("lab", name, known, "see: forerun lab status")
        wanted = [
            lab
            for lab in every
            if (lab.name in names if names else of_the_living or lab.kept or lab.abandoned)
        ]
        return [lab for lab in wanted if removing.remove(lab)]
