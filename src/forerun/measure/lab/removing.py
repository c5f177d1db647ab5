"""Removing: takes a lab away, or what a crash has left of one; nothing outside its name is touched."""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path

from forerun.errors import RequestError
from forerun.measure.lab import network, state
from forerun.measure.lab.cgroups import folders_named, pids_under
from forerun.measure.lab.killing import kill_all
from forerun.measure.lab.names import PREFIX, LabId, owner_of, parse_id

_PATIENCE_SECONDS = 5.0


def remove(lab: LabId) -> bool:
    """Remove a lab: its processes first, then its namespaces, groups, folders and file.

    Returns:
        Whether there was anything of it. The caller holds `state.locked()`.

    Raises:
        RequestError: a process does not end, or a group cannot be removed.
    """
    spaces = network.namespaces(lab)
    groups = folders_named(str(lab))
    known = state.read(lab)
    for group in groups:
        _lift_quotas(group)
    kill_all(lambda: {pid for group in groups for pid in pids_under(group)})
    for space in spaces:
        kill_all(lambda space=space: network.pids(space))  # type: ignore[misc]
        network.delete(space)
    for group in groups:
        _remove_group(group)
    for folder in known.folders if known else ():
        if Path(folder).name.startswith(PREFIX):
            shutil.rmtree(folder, ignore_errors=True)
    had_file = lab in state.written()
    state.forget(lab)
    return bool(spaces or groups or had_file)


def every() -> list[LabId]:
    """Return all labs of this machine, whole or in part, by file, namespace or group."""
    found = {*state.written()}
    found.update(owner for name in network.namespaces() if (owner := owner_of(name)))
    found.update(lab for folder in folders_named(f"{PREFIX}-*") if (lab := parse_id(folder.name)))
    return sorted(found, key=str)


def sweep() -> list[LabId]:
    """Remove every lab whose owner is dead, or whose maker died over it; return them.

    The caller holds `state.locked()`.
    """
    return [lab for lab in every() if (lab.abandoned or _unfinished(lab)) and remove(lab)]


def _unfinished(lab: LabId) -> bool:
    known = state.read(lab)
    return known is not None and known.unfinished


def _lift_quotas(group: Path) -> None:
    """Let processes end at full speed: those of a small share take seconds to be taken down."""
    for folder in (path for path in group.iterdir() if path.is_dir()):
        for name, text in (("cpu.cfs_quota_us", "-1"), ("cpu.max", "max")):
            with contextlib.suppress(OSError):
                if (folder / name).exists():
                    (folder / name).write_text(text)


def _remove_group(group: Path) -> None:
    """Remove a group and those within it; a process that has just ended may hold it a moment."""
    until = time.monotonic() + _PATIENCE_SECONDS
    while group.exists():
        try:
            for folder in sorted((p for p in group.glob("**/*") if p.is_dir()), reverse=True):
                folder.rmdir()
            group.rmdir()
        except FileNotFoundError:
            continue
        except OSError as error:
            if time.monotonic() > until:
                raise RequestError(
                    f"removing the lab {group.name}", f"{group} is held: {error.strerror}",
                    "end what is in it, then `forerun lab down`",
                ) from error  # fmt: skip
            time.sleep(0.01)
