"""Meaning: what labels stand for, once runs are given that use them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forerun.advisor.sibling_cells import SiblingCells
from forerun.catalog import Catalog
from forerun.domain.workload import Workload
from forerun.errors import RequestError
from forerun.workloads.own_labels import OwnLabels, meant_note

if TYPE_CHECKING:
    from forerun.advisor.made_runs import MadeRuns
    from forerun.tables import Runs


@dataclass(frozen=True)
class Meanings:
    """What rows mean that say less than the runs of their kind.

    Attributes:
        labels: the workloads that labels stand for.
        cells: what workers were given.
    """

    labels: OwnLabels
    cells: SiblingCells

    @staticmethod
    def of(told: Runs | None, made: MadeRuns | None, catalog: Catalog) -> Meanings:
        """Return what the runs that taught tell: as they were given, else as a model kept them."""
        runs = None if told is None else told.jobs.labels
        if runs is None and made is not None:
            runs = made.table
        return Meanings(_labels_of(told, made, catalog), SiblingCells.of(runs))


def _labels_of(told: Runs | None, made: MadeRuns | None, catalog: Catalog) -> OwnLabels:
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

    if not labels.has_own(text) or not resolve.is_name(text):
        return None
    given = resolve.checked_changes(changes)
    found = labels.read({"workload": text.strip(), **given})
    if isinstance(found, str):
        raise RequestError(f"workload {text!r}", found, "ask rows that state it: --table JOBS.csv")
    return found if meant_note(found) else None
