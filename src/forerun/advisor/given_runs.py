"""GivenRuns: the runs that a predictor learns from: where they are read, and what a model file keeps."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from forerun.advisor.models import read_model
from forerun.catalog import Catalog
from forerun.domain.forecast import QUANTITIES
from forerun.domain.workload import Workload
from forerun.errors import RequestError
from forerun.predictors.laws.law_rows import GROUP, RESOURCES, measured
from forerun.tables import COLUMNS, Runs, Table, read_table
from forerun.tables.table import Lines
from forerun.workloads.own_labels import OwnLabels, meant_note

if TYPE_CHECKING:
    from forerun.store.sql_store import SqlStore
    from forerun.tables import Runs


# What a job is known by; a price and where it was published tell no two apart.
IDENTITY = tuple(
    c.name
    for c in COLUMNS.values()
    if c.group in ("workload", "cluster", "plan")
    and c.name not in ("price_usd_per_hour", "interconnect", "family")
)


def runs_of(sources: Sequence[str | Path | Table | Any], catalog: Catalog) -> Runs:
    """Return the runs of several tables as one.

    Args:
        sources: files, tables, data frames, or stores (see `stored.stored_runs`).
        catalog: where their devices are looked up.

    Raises:
        RequestError: none is given, or a table cannot be read.
    """
    from forerun.tables.jobs import join_runs

    return join_runs([_runs_of(source, catalog) for source in sources])


def _runs_of(source: str | Path | Table | Any, catalog: Catalog) -> Runs:
    from forerun.tables.files import from_frame
    from forerun.workloads.rows import runs_from_table

    if isinstance(source, str | Path):
        if is_stored(source):
            return _stored_runs(source, catalog)
        return runs_from_table(read_table(source), catalog)
    return runs_from_table(source if isinstance(source, Table) else from_frame(source), catalog)


MOST_KEPT = 10_000
_KEY = "runs_made"


@dataclass(frozen=True)
class MadeRuns:
    """The distinct configurations that were run, without what was measured.

    Attributes:
        table: those that are kept, in the columns that say what a job is.
        every: how many there were.
        counts: how often each that is kept was run, (n,); None is once.
    """

    table: Table
    every: int
    counts: NDArray[np.int64] | None = None

    @property
    def repeated(self) -> Table:
        """The configurations as often as they were run: what a design counts as made already."""
        if self.counts is None:
            return self.table
        return self.table.take(np.repeat(np.arange(len(self.table)), self.counts))

    @property
    def note(self) -> str:
        """What is said where not all are kept; "" where they are."""
        if len(self.table) == self.every:
            return ""
        return (
            f"{len(self.table):,} of {self.every:,} configurations that were run are kept in the"
            " model: any other may be suggested again, unless --runs says that it was run"
        )

    @staticmethod
    def of(runs: Runs) -> MadeRuns:
        """Return the configurations of runs that have a time or ended otherwise than ok."""
        done = attempted_runs(runs)
        table = runs.jobs.labels if done is None else done.jobs.labels
        if done is None or table is None:
            return MadeRuns(Table({}, 0), 0)
        names = [name for name in IDENTITY if name in table]
        found, group = table.groups(names)
        order = np.argsort(found)
        first, counts = found[order], np.bincount(group, minlength=len(found))[order]
        kept = table.take(first[:MOST_KEPT])
        columns = {name: kept.columns[name] for name in names}
        return MadeRuns(Table(columns, len(kept)), len(first), counts[:MOST_KEPT].astype(np.int64))

    def written_into(self, text: str) -> str:
        """Return a model's JSON with these configurations added."""
        columns = {name: _plain(self.table, name) for name in self.table.columns}
        made = {"rows": len(self.table), "every": self.every, "columns": columns}
        if self.counts is not None and (self.counts > 1).any():
            made["counts"] = self.counts.tolist()
        return json.dumps({**json.loads(text), _KEY: made})

    @staticmethod
    def read_from(text: str, asked: str) -> MadeRuns | None:
        """Return the configurations that a model's JSON holds; None where it was saved without.

        Raises:
            RequestError: they are of another shape; `asked` is what was wanted.
        """
        saved = json.loads(text).get(_KEY)
        if saved is None:
            return None
        try:
            return _made(saved)
        except (KeyError, TypeError, AttributeError, ValueError):
            shape = "the configurations that were run are of another shape"
            raise RequestError(asked, shape, "fit it again") from None


def attempted_runs(runs: Runs) -> Runs | None:
    """Return the runs that have a time, or that ended otherwise than ok; None where none does.

    A row whose time cannot be read was perhaps run, and is worth running again.
    """
    timed = np.any([np.isfinite(measured(runs, name)) for name in QUANTITIES], axis=0)
    rows = np.flatnonzero(timed | ~np.isin(runs.status, ("", "ok")))
    return runs.take(rows) if len(rows) else None


def _plain(table: Table, name: str) -> list[Any]:
    if COLUMNS[name].kind == "number":
        return [None if value != value else value for value in table.numbers(name).tolist()]
    return list(table.texts(name))


def _made(saved: Mapping[str, Any]) -> MadeRuns:
    columns, rows = saved["columns"], int(saved["rows"])
    known = {str(name): values for name, values in columns.items() if name in IDENTITY}
    if any(len(values) != rows for values in known.values()):
        raise ValueError("columns of unequal length")
    table = Table.from_columns(known, "the configurations that were run") if known else Table({}, 0)
    counts = np.array(saved.get("counts", [1] * rows), dtype=np.int64)
    if counts.shape != (rows,) or (counts < 1).any():
        raise ValueError("counts of other configurations")
    return MadeRuns(table, int(saved["every"]), counts)


PREFIX = "store:"
_ENDINGS = (".db", ".sqlite", ".sqlite3")


def is_stored(source: str | Path) -> bool:
    """Return whether a source of runs is a store: `store:`, `store:CONDITION`, or a file FILE.db."""
    text = str(source)
    return text.startswith(PREFIX) or Path(text).suffix.lower() in _ENDINGS


def _stored_runs(source: str | Path, catalog: Catalog) -> Runs:
    """Return the runs that a source names.

    Args:
        source: `store:` for all runs of the setting `store`, `store:CONDITION` for those of which
            it holds (`store:campaign=night`), or the file of a store.
        catalog: where devices of rows are looked up.

    Raises:
        RequestError: the store cannot be read, or has no such run.
        MissingExtraError: the extra `store` is not installed.
    """
    from forerun.store import open_store

    text = str(source)
    condition = text.removeprefix(PREFIX).strip() if text.startswith(PREFIX) else ""
    with open_store("" if text.startswith(PREFIX) else text, new=False) as store:
        runs = runs_in(store, catalog, (condition,) if condition else ())
    if not len(runs):
        raise RequestError(
            f"runs of {text}", "the store has none" + (" such" if condition else ""),
            "see `forerun runs list`",
        )  # fmt: skip
    # A complaint about one of them says which it is.
    places = Lines.of_file(text, np.arange(1, len(runs) + 1), "run")
    return Runs(runs.jobs, replace(runs.table, lines=places))


def runs_in(store: SqlStore, catalog: Catalog, where: tuple[str, ...] = ()) -> Runs:
    """Return the runs of a store for which the conditions hold, oldest first.

    A run that was stored with its job keeps it; of others, names are looked up in zoo and
    catalogue, and a row that cannot be a job carries its reason.
    """
    from forerun.tables.jobs import join_runs
    from forerun.workloads.rows import runs_from_table

    found = store.runs(where=where)
    jobs = found.jobs
    whole = (jobs.workload_index >= 0) & (jobs.cluster_index >= 0)
    kept, looked_up = np.flatnonzero(whole), np.flatnonzero(~whole)
    if not len(looked_up):
        # Rows of whole jobs lack no reason: who reads them need not look for one.
        resolved = replace(jobs, workload_problem=None, cluster_problem=None).checked()
        return Runs(resolved, found.table)
    rows = runs_from_table(found.table.take(looked_up), catalog)
    if not len(kept):
        return rows
    joined = join_runs([Runs(jobs.take(kept).checked(), found.table.take(kept)), rows])
    back = np.argsort(np.concatenate([kept, looked_up]))
    return joined.take(back)


def made_of(path: Path) -> MadeRuns | None:
    """Return which jobs taught the model of a file; None where it was saved without.

    Raises:
        RequestError: the file is no model.
    """
    return MadeRuns.read_from(read_model(path)[0], f"reading the model {path}")


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
