"""GivenRuns: the runs that a predictor learns from: where they are read, and what a model file keeps."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from forerun import registry
from forerun.catalog import Catalog
from forerun.contracts import Predictor
from forerun.domain.forecast import QUANTITIES
from forerun.errors import RequestError
from forerun.predictors.laws.law_rows import GROUP, RESOURCES, measured
from forerun.tables import COLUMNS, Runs, Table, read_table
from forerun.tables.jobs import join_runs
from forerun.tables.table import Lines

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
    whole = (found.jobs.workload_index >= 0) & (found.jobs.cluster_index >= 0)
    kept, looked_up = np.flatnonzero(whole), np.flatnonzero(~whole)
    # Rows of whole jobs lack no reason.
    jobs = replace(found.jobs.take(kept), workload_problem=None, cluster_problem=None).checked()
    runs = Runs(jobs, found.table.take(kept))
    if not len(looked_up):
        return runs
    rows = runs_from_table(found.table.take(looked_up), catalog)
    order = np.argsort(np.concatenate([kept, looked_up]))
    return join_runs([runs, rows]).take(order) if len(kept) else rows


def attempted_runs(runs: Runs) -> Runs | None:
    """Return the runs that have a time, or that ended otherwise than ok; None where none does."""
    timed = np.any([np.isfinite(measured(runs, name)) for name in QUANTITIES], axis=0)
    rows = np.flatnonzero(timed | ~np.isin(runs.status, ("", "ok")))
    return runs.take(rows) if len(rows) else None


@dataclass(frozen=True)
class MadeRuns:
    """The configurations that were run, as often as they were; `every`: how many distinct ones."""

    table: Table
    every: int

    @property
    def note(self) -> str:
        """The note where not all are kept; "" where they are."""
        if len(self.table) >= self.every:
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
            return MadeRuns(Table({}, 0), 0)
        table = done.jobs.labels
        names = [name for name in IDENTITY if name in table]
        first = np.sort(table.groups(names)[0])
        again = np.setdiff1d(np.arange(len(table)), first)
        kept = table.take(np.concatenate([first, again])[:MOST_KEPT])
        return MadeRuns(Table({name: kept.columns[name] for name in names}, len(kept)), len(first))

    def written(self) -> dict[str, Any]:
        """Return plain values for a model's JSON."""
        columns = {
            name: [None if value != value else value for value in cells.tolist()]
            for name, cells in self.table.columns.items()
        }
        return {"rows": len(self.table), "every": self.every, "columns": columns}

    @staticmethod
    def read(saved: Mapping[str, Any]) -> MadeRuns:
        """Return what `written` gave. Raises KeyError, TypeError or ValueError for another shape."""
        columns = {n: cells for n, cells in dict(saved["columns"]).items() if n in IDENTITY}
        rows = int(saved["rows"])
        if any(len(cells) != rows for cells in columns.values()):
            raise ValueError("columns of unequal length")
        table = Table({}, 0)
        if columns:
            table = Table.from_columns(columns, "the configurations that were run")
        return MadeRuns(table, int(saved["every"]))


def model_text(predictor: Predictor, made: MadeRuns | None = None) -> str:
    """Return a fitted predictor, and which jobs taught it, as JSON text. Raises RequestError if it has none."""
    to_json = getattr(predictor, "to_json", None)
    if to_json is None:
        raise RequestError(
            f"saving the predictor {predictor.name!r}", "it has no JSON form",
            "use one that has, or fit it anew each time with --fit",
        )  # fmt: skip
    text = str(to_json())
    return text if made is None else json.dumps({**json.loads(text), _KEY: made.written()})


def load_model(path: Path) -> tuple[Predictor, MadeRuns | None]:
    """Return the predictor of a model file, and which jobs taught it, None where it was saved without.

    Raises:
        RequestError: the file is no model, or its configurations are of another shape.
    """
    title = f"reading the model {path}"
    try:
        text = path.read_text(encoding="utf-8")
        content: dict[str, Any] = dict(json.loads(text))
        name, saved = str(content["predictor"]), content.get(_KEY)
    except OSError as error:
        raise RequestError(title, str(error.strerror), "check the path") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise RequestError(
            title, "it is not a whole model that `forerun fit` wrote", "fit it again"
        ) from None
    try:
        made = None if saved is None else MadeRuns.read(saved)
    except (KeyError, TypeError, AttributeError, ValueError):
        shape = "the configurations that were run are of another shape"
        raise RequestError(title, shape, "fit it again") from None
    kind = registry.load("predictors", name)
    if not hasattr(kind, "from_json"):
        raise RequestError(title, f"{name} cannot be loaded from a file", "fit it anew with --fit")
    try:
        return kind.from_json(text), made
    except RequestError as error:
        raise RequestError(title, error.found, error.next_step) from None


_MACHINE = ("device", "instance_type", "cluster")  # the first that a row states names its machine


def fill_resources(table: Table, runs: Table | None) -> tuple[Table, NDArray[np.object_]]:
    """Return rows whose blank resources are those of all runs of their kind, and a note on each.

    A kind is a workload on a machine. A resource stays blank where the runs differ, or do not
    state it.

    Args:
        table: n rows to forecast.
        runs: rows that were run.
    """
    notes = np.full(len(table), "", dtype=object)
    filled: dict[str, NDArray[np.float64]] = {}
    if runs is None:
        return table, notes
    asked, had = _kinds(table), _kinds(runs)
    for column in RESOURCES:
        known: dict[tuple[str, str], set[float]] = {}
        for kind, value in zip(had, runs.numbers(column).tolist(), strict=True):
            known.setdefault(kind, set()).add(value if np.isfinite(value) else np.inf)
        cells = table.numbers(column).copy()
        for row, kind in enumerate(asked):
            values = known.get(kind, set())
            if np.isnan(cells[row]) and len(values) == 1 and np.isfinite(min(values)):
                cells[row] = min(values)
                note = f"{column} {cells[row]:g} assumed, as all runs of its kind have it"
                notes[row] = "; ".join(filter(None, (notes[row], note)))
                filled[column] = cells
    return (table.with_columns(**filled) if filled else table), notes


def _kinds(table: Table) -> list[tuple[str, str]]:
    """Return the workload and the machine of each row, as they are written."""
    columns = [table.texts(name).tolist() for name in (GROUP[0], *_MACHINE)]
    return [
        (workload.strip().lower(), next(filter(None, machines), "").strip().lower())
        for workload, *machines in zip(*columns, strict=True)
    ]
