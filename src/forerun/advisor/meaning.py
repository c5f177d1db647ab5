"""Meaning: what labels stand for, once runs are given that use them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from forerun.catalog import Catalog
from forerun.domain.workload import Workload
from forerun.errors import RequestError

if TYPE_CHECKING:
    from forerun.advisor.made_runs import MadeRuns
    from forerun.tables import Runs
    from forerun.workloads.own_labels import OwnLabels


def labels_of(told: Runs | None, made: MadeRuns | None, catalog: Catalog) -> OwnLabels:
    """Return the labels of the runs that taught: as they were given, else as a model kept them."""
    from forerun.workloads.own_labels import OwnLabels
    from forerun.workloads.rows import jobs_from_table

    if told is not None:
        return OwnLabels.of(told.jobs)
    return OwnLabels.of(None if made is None else jobs_from_table(made.repeated, catalog))


def meant_workload(labels: OwnLabels, text: str, changes: Mapping[str, Any]) -> Workload | None:
    """Return the runs' own workload that a name stands for; None where it is none of theirs.

    What is no name but a file or a module is always that.

    Raises:
        RequestError: the runs have several of that label, or none of the size that is asked.
    """
    from forerun.workloads import resolve
    from forerun.workloads.own_labels import meant_note

    if not labels.has_own(text) or not resolve.is_name(text):
        return None
    given = resolve.checked_changes(changes)
    found = labels.read({"workload": text.strip(), **given})
    if isinstance(found, str):
        raise RequestError(f"workload {text!r}", found, "ask rows that state it: --table JOBS.csv")
    return found if meant_note(found) else None
