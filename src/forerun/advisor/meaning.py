"""Meaning: what labels stand for, once runs are given that use them.

SiblingCells: what a worker is given, where a row leaves out what all runs of its kind have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forerun.catalog import Catalog
from forerun.domain.workload import Workload
from forerun.errors import RequestError
from forerun.workloads.own_labels import OwnLabels, meant_note

if TYPE_CHECKING:
    from forerun.advisor.made_runs import MadeRuns
    from forerun.tables import Runs

import re
from collections.abc import Sequence
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from forerun.predictors.laws.law_rows import GROUP, RESOURCES
from forerun.tables import Table

_PLACES = ("instance_type", "cluster")  # where a row names its machine otherwise than by device
_SHOWN = 4
_LACKING = re.compile(r"^the row says no (\w+)$")


@dataclass(frozen=True)
class SiblingCells:
    """The values that runs have, by workload and machine, of what their workers were given.

    Attributes:
        values: by (workload, machine, column), in order of size.
    """

    values: Mapping[tuple[str, str, str], Sequence[float]] = field(default_factory=dict)

    @staticmethod
    def of(runs: Table | None) -> SiblingCells:
        """Return them of n rows that were run."""
        found: dict[tuple[str, str, str], set[float]] = {}
        if runs is None:
            return SiblingCells()
        kinds, group = _kinds(runs)
        for column in filter(runs.columns.__contains__, RESOURCES):
            for at, value in zip(group.tolist(), runs.numbers(column).tolist(), strict=True):
                found.setdefault((*kinds[at], column), set()).add(value)
        # A run that does not say it leaves it open what its kind has.
        return SiblingCells({
            key: sorted(values) for key, values in found.items()
            if all(np.isfinite(value) for value in values)
        })  # fmt: skip

    def filled(self, table: Table) -> tuple[Table, NDArray[np.object_]]:
        """Return rows with blanks filled in where all runs of their kind have one value, and notes.

        Args:
            table: n rows that are asked.

        Returns:
            The rows, and what is said of each, (n,), "" where nothing was filled in.
        """
        notes = np.full(len(table), "", dtype=object)
        columns: dict[str, NDArray[np.float64]] = {}
        kinds, group = _kinds(table) if self.values else ([], np.zeros(0, dtype=np.int64))
        for column in RESOURCES:
            known = [self.values.get((*kind, column), ()) for kind in kinds]
            one = np.array([v[0] if len(v) == 1 else np.nan for v in known], dtype=np.float64)
            cells = table.numbers(column)
            rows = np.isnan(cells) & np.isfinite(one[group]) if kinds else np.zeros(0, dtype=bool)
            if not rows.any():
                continue
            columns[column] = np.where(rows, one[group], cells)
            said = np.array(
                [f"{column} {v:g} assumed, as all runs of its kind have it" for v in one]
            )
            joint = np.where(notes[rows] == "", "", "; ").astype(object)
            notes[rows] = notes[rows] + joint + said.astype(object)[group][rows]
        return (table.with_columns(**columns) if columns else table), notes

    def explained(self, reasons: NDArray[np.object_], table: Table) -> NDArray[np.object_]:
        """Return reasons why rows are declined (n,), with what runs have of what a row lacks."""
        if not self.values or not (reasons != "").any():
            return reasons
        told, (kinds, group) = reasons.copy(), _kinds(table)
        for row in np.flatnonzero(reasons != "").tolist():
            lacking = _LACKING.match(str(reasons[row]))
            known = self.values.get((*kinds[group[row]], lacking.group(1)), ()) if lacking else ()
            if known:
                told[row] = (
                    f"{reasons[row]}; the given runs of its kind have {_several(known)}: fill it in"
                )
        return told


def _kinds(table: Table) -> tuple[list[tuple[str, str]], NDArray[np.int64]]:
    """Return the distinct workloads and machines, as they are written, and each row's, (n,)."""
    first, group = table.groups((*GROUP, *_PLACES))
    columns = [table.texts(name)[first].tolist() for name in (*GROUP, *_PLACES)]
    kinds = [
        (workload.strip().lower(), next((m for m in machines if m), "").strip().lower())
        for workload, *machines in zip(*columns, strict=True)
    ]
    return kinds, group


def _several(values: Sequence[float]) -> str:
    shown = ", ".join(f"{value:g}" for value in values[:_SHOWN])
    return shown + (" ..." if len(values) > _SHOWN else "")


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
