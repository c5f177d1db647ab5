"""Quotas: which control groups this process is in, and what the kernel holds a group to, version 1 or 2."""

from __future__ import annotations

import math
from pathlib import Path


def own_groups(proc: Path = Path("/proc/self")) -> dict[str, str]:
    """Return this process's group by controller; version 2's has the name ''. None where there are no groups."""
    groups: dict[str, str] = {}
    try:
        lines = (proc / "cgroup").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return groups
    for line in lines:
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    return groups


def quota(folder: Path) -> float:
    """Return the cores that a group may have; infinity where it has no limit.

    Raises:
        OSError, ValueError: the folder is no group of the processor.
    """
    if (folder / "cpu.max").exists():
        most, period = (folder / "cpu.max").read_text(encoding="utf-8").split()
    else:
        most, period = (
            (folder / f"cpu.cfs_{name}_us").read_text(encoding="utf-8").strip()
            for name in ("quota", "period")
        )
    return math.inf if most in ("max", "-1") else int(most) / int(period)
