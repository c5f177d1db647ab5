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

from forerun import registry
from forerun.arrays import IntArray
from forerun.catalog import Catalog
from forerun.contracts import Predictor
from forerun.domain.forecast import QUANTITIES
from forerun.domain.workload import Workload
from forerun.errors import RequestError
from forerun.predictors.laws.law_rows import GROUP, RESOURCES, measured
from forerun.tables import COLUMNS, Runs, Table, read_table
from forerun.tables.jobs import join_runs
from forerun.tables.table import Lines
from forerun.workloads.own_labels import OwnLabels, meant_note

if TYPE_CHECKING:
    from forerun.store.sql_store import SqlStore

# What tells jobs apart; a price and where it was published do not.
IDENTITY = tuple(
    c.name
    for c in COLUMNS.values()
    if c.group in ("workload", "cluster", "plan")
    and c.name not in ("price_usd_per_hour", "interconnect", "family")
)
PREFIX = "store:"
_ENDINGS = (".db", ".sqlite", ".sqlite3")
MOST_KEPT = 10_000
_KEY = "runs_made"


def runs_of(sources: Sequence[str | Path | Table | Any], catalog: Catalog) -> Runs:
    """Return the runs of several tables as one.

    Args:
        sources: files, tables, data frames, or stores: `store:` for all runs of the setting
            `store`, `store:CONDITION` for those of which it holds (`store:campaign=night`), or the
            file of a store.
        catalog: where their devices are looked up.

    Raises:
        RequestError: none is given, a table or store cannot be read, or a store has no such run.
        MissingExtraError: the extra `store` is not installed.
    """
    from forerun.tables.files import from_frame
    from forerun.workloads.rows import runs_from_table

    found = []
    for source in sources:
        if isinstance(source, str | Path) and is_stored(source):
            found.append(_stored_runs(str(source), catalog))
            continue
        table = read_table(source) if isinstance(source, str | Path) else source
        table = table if isinstance(table, Table) else from_frame(table)
        found.append(runs_from_table(table, catalog))
    return join_runs(found)


def is_stored(source: str | Path) -> bool:
    """Return whether a source of runs is a store: `store:`, `store:CONDITION`, or a file FILE.db."""
    return str(source).startswith(PREFIX) or Path(source).suffix.lower() in _ENDINGS


def _stored_runs(text: str, catalog: Catalog) -> Runs:
    from forerun.store import open_store

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
    from forerun.workloads.rows import runs_from_table

    found = store.runs(where=where)
    jobs = found.jobs
    whole = (jobs.workload_index >= 0) & (jobs.cluster_index >= 0)
    kept, looked_up = np.flatnonzero(whole), np.flatnonzero(~whole)
    if not len(looked_up):
        # Rows of whole jobs lack no reason.
        resolved = replace(jobs, workload_problem=None, cluster_problem=None).checked()
        return Runs(resolved, found.table)
    rows = runs_from_table(found.table.take(looked_up), catalog)
    if not len(kept):
        return rows
    joined = join_runs([Runs(jobs.take(kept).checked(), found.table.take(kept)), rows])
    return joined.take(np.argsort(np.concatenate([kept, looked_up])))


def attempted_runs(runs: Runs) -> Runs | None:
    """Return the runs that have a time, or that ended otherwise than ok; None where none does.

    A row whose time cannot be read was perhaps run, and is worth running again.
    """
    timed = np.any([np.isfinite(measured(runs, name)) for name in QUANTITIES], axis=0)
    rows = np.flatnonzero(timed | ~np.isin(runs.status, ("", "ok")))
    return runs.take(rows) if len(rows) else None


@dataclass(frozen=True)
class MadeRuns:
    """The distinct configurations that were run, without what was measured.

    Attributes:
        table: those that are kept, in the columns that say what a job is.
        every: how many there were.
        counts: how often each that is kept was run, (n,).
    """

    table: Table
    every: int
    counts: IntArray

    @property
    def repeated(self) -> Table:
        """The configurations as often as they were run: what a design counts as made already."""
        return self.table.take(np.repeat(np.arange(len(self.table)), self.counts))

    @property
    def note(self) -> str:
        """The note where not all are kept; "" where they are."""
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
        if done is None or done.jobs.labels is None:
            return MadeRuns(Table({}, 0), 0, np.zeros(0, dtype=np.int64))
        table = done.jobs.labels
        names = [name for name in IDENTITY if name in table]
        found, group = table.groups(names)
        order = np.argsort(found)
        counts = np.bincount(group, minlength=len(found))[order]
        kept = table.take(found[order][:MOST_KEPT])
        columns = {name: kept.columns[name] for name in names}
        return MadeRuns(Table(columns, len(kept)), len(found), counts[:MOST_KEPT])

    def written(self) -> dict[str, Any]:
        """Return plain values for a model's JSON."""
        columns = {
            name: [None if value != value else value for value in cells.tolist()]
            for name, cells in self.table.columns.items()
        }
        made = {"rows": len(self.table), "every": self.every, "columns": columns}
        return {**made, "counts": self.counts.tolist()} if (self.counts > 1).any() else made

    @staticmethod
    def read(saved: Mapping[str, Any]) -> MadeRuns:
        """Return what `written` gave. Raises KeyError, TypeError or ValueError for another shape."""
        columns, rows = dict(saved["columns"]), int(saved["rows"])
        known = {str(name): values for name, values in columns.items() if name in IDENTITY}
        counts = np.array(saved.get("counts", [1] * rows), dtype=np.int64)
        if {*map(len, known.values()), len(counts)} != {rows} or (counts < 1).any():
            raise ValueError("columns of unequal length")
        table = (
            Table.from_columns(known, "the configurations that were run") if known else Table({}, 0)
        )
        return MadeRuns(table, int(saved["every"]), counts)


def model_text(predictor: Predictor, made: MadeRuns | None = None) -> str:
    """Return a fitted predictor, and which jobs taught it, as JSON text.

    Raises:
        RequestError: it has no such form.
    """
    to_json = getattr(predictor, "to_json", None)
    if to_json is None:
        raise RequestError(
            f"saving the predictor {predictor.name!r}", "it has no JSON form",
            "use one that has, or fit it anew each time with --fit",
        )  # fmt: skip
    text = str(to_json())
    return text if made is None else json.dumps({**json.loads(text), _KEY: made.written()})


def load_model(path: Path) -> Predictor:
    """Return the predictor of a model file. Raises RequestError where it is none."""
    title = f"reading the model {path}"
    text, content = _read_model(path)
    kind = registry.load("predictors", str(content["predictor"]))
    if not hasattr(kind, "from_json"):
        raise RequestError(
            title, f"{content['predictor']} cannot be loaded from a file", "fit it anew with --fit"
        )
    try:
        loaded: Predictor = kind.from_json(text)
    except RequestError as error:
        raise RequestError(title, error.found, error.next_step) from None
    return loaded


def made_of(path: Path) -> MadeRuns | None:
    """Return which jobs taught the model of a file; None where it was saved without.

    Raises:
        RequestError: the file is no model, or its configurations are of another shape.
    """
    saved = _read_model(path)[1].get(_KEY)
    try:
        return None if saved is None else MadeRuns.read(saved)
    except (KeyError, TypeError, AttributeError, ValueError):
        shape = "the configurations that were run are of another shape"
        raise RequestError(f"reading the model {path}", shape, "fit it again") from None


def _read_model(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the text of a model file, and its content, which names a predictor."""
    title = f"reading the model {path}"
    try:
        text = path.read_text(encoding="utf-8")
        content: dict[str, Any] = dict(json.loads(text))
        return text, {**content, "predictor": content["predictor"]}
    except OSError as error:
        raise RequestError(title, str(error.strerror), "check the path") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise RequestError(
            title, "it is not a whole model that `forerun fit` wrote", "fit it again"
        ) from None


_MACHINE = ("device", "instance_type", "cluster")  # the first that a row states names its machine
_SHOWN = 4
_LACKING = re.compile(r"^the row does not state (\w+)$")


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
        kinds, kind = _kinds(runs)
        for column in filter(runs.columns.__contains__, RESOURCES):
            pairs = np.stack([kind, runs.numbers(column)], axis=1)
            for k, value in np.unique(pairs, axis=0).tolist():
                found.setdefault((*kinds[int(k)], column), set()).add(value)
        # A run that does not state it leaves it open what its kind has.
        return SiblingCells({
            key: sorted(values) for key, values in found.items() if np.isfinite([*values]).all()
        })  # fmt: skip

    def filled(self, table: Table) -> tuple[Table, NDArray[np.object_]]:
        """Return rows with blanks filled in where all runs of their kind have one value, and notes.

        Args:
            table: n rows to forecast.

        Returns:
            The rows, and a note on each, (n,), "" where nothing was filled in.
        """
        notes = np.full(len(table), "", dtype=object)
        columns: dict[str, NDArray[np.float64]] = {}
        if not self.values:
            return table, notes
        kinds, kind = _kinds(table)
        for column in RESOURCES:
            known = [self.values.get((*one, column), ()) for one in kinds]
            only = np.array([v[0] if len(v) == 1 else np.nan for v in known], dtype=np.float64)[
                kind
            ]
            cells = table.numbers(column)
            for row in np.flatnonzero(np.isnan(cells) & np.isfinite(only)).tolist():
                columns.setdefault(column, cells.copy())[row] = only[row]
                note = f"{column} {only[row]:g} assumed, as all runs of its kind have it"
                notes[row] = "; ".join(filter(None, (notes[row], note)))
        return (table.with_columns(**columns) if columns else table), notes

    def explained(self, reasons: NDArray[np.object_], table: Table) -> NDArray[np.object_]:
        """Return reasons why rows are declined (n,), with what runs have of what a row lacks."""
        if not self.values or not (reasons != "").any():
            return reasons
        found, (kinds, kind) = reasons.copy(), _kinds(table)
        for row in np.flatnonzero(reasons != "").tolist():
            lacking = _LACKING.match(str(reasons[row]))
            known = self.values.get((*kinds[kind[row]], lacking.group(1)), ()) if lacking else ()
            if known:
                more = " ..." if len(known) > _SHOWN else ""
                have = ", ".join(f"{value:g}" for value in known[:_SHOWN]) + more
                found[row] = f"{reasons[row]}; the given runs of its kind have {have}: fill it in"
        return found


def _kinds(table: Table) -> tuple[list[tuple[str, str]], NDArray[np.int64]]:
    """Return the distinct workloads and machines, as they are written, and which each row has."""
    names = (GROUP[0], *_MACHINE)
    first, kind = table.groups(names)
    columns = [table.texts(name)[first].tolist() for name in names]
    return [
        (workload.strip().lower(), next(filter(None, machines), "").strip().lower())
        for workload, *machines in zip(*columns, strict=True)
    ], kind


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
    def of(runs: Runs | None, made: MadeRuns | None, catalog: Catalog) -> Meanings:
        """Return what the runs behind a predictor show: as they were given, else as a model kept them."""
        from forerun.workloads.rows import jobs_from_table

        if runs is not None:
            return Meanings(OwnLabels.of(runs.jobs), SiblingCells.of(runs.jobs.labels))
        if made is None:
            return Meanings(OwnLabels.of(None), SiblingCells())
        jobs = jobs_from_table(made.repeated, catalog)
        return Meanings(OwnLabels.of(jobs), SiblingCells.of(made.table))

    def workload(self, text: str, changes: Mapping[str, Any]) -> Workload | None:
        """Return the runs' own workload that a name stands for; None where it is none of theirs.

        What is no name but a file or a module is always that.

        Raises:
            RequestError: the runs have several of that label, or none of the size that is asked.
        """
        from forerun.workloads import resolve

        if not self.labels.has_own(text) or not resolve.is_name(text):
            return None
        given = resolve.checked_changes(changes)
        found = self.labels.read({"workload": text.strip(), **given})
        if isinstance(found, str):
            raise RequestError(
                f"workload {text!r}", found, "ask rows that state it: --table JOBS.csv"
            )
        return found if meant_note(found) else None
