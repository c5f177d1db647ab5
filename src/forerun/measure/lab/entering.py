"""Entering: the words before a command that make it run on a host, within its limits."""

from __future__ import annotations

import shlex

from forerun.measure.lab.state import LabState
from forerun.measure.lab.system import tool

COULD_NOT_ENTER = 125  # the exit code of a command that could not be put into its host


def words(lab: LabState, number: int, group: str = "") -> tuple[str, ...]:
    """Return the words that put a command into a host, and into a group within it.

    A shell writes itself into the host's groups and becomes `ip netns exec`, which becomes the
    command: the process that is started is the one that runs, and a signal reaches it. The groups
    come first, since `ip netns exec` shows a /sys of the host alone, without control groups.

    Args:
        lab: the lab.
        number: the host, from 1.
        group: the name of a group within the host's, which exists; "" for the host's own.
    """
    places = [str(place / group) for place in lab.group(number).places]
    script = (
        f"for g in {' '.join(map(shlex.quote, places))}; do"
        f' echo 0 > "$g/cgroup.procs" || exit {COULD_NOT_ENTER}; done;'
        f' exec {shlex.quote(tool("ip") or "ip")} netns exec {lab.lab.host(number)} "$@"'
    )
    return ("sh", "-c", script, "forerun-lab")
