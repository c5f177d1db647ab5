"""GivenRuns: the runs that a predictor is fitted to: where they are read, what a model file keeps."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from forerun import registry
from forerun.catalog import Catalog, load_catalog
from forerun.contracts import Predictor
from forerun.domain.forecast import QUANTITIES
from forerun.errors import RequestError
from forerun.paths import refuse_url
from forerun.predictors.laws.law_rows import GROUP, RESOURCES, measured
from forerun.settings import load_settings
from forerun.tables import COLUMNS, Runs, Table, read_table
from forerun.tables.datasets import Dataset, dataset
from forerun.tables.jobs import join_runs
from forerun.tables.own_columns import read_as, runs_read_as, with_own_columns
from forerun.tables.table import Lines, OwnColumns

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
_KEY, _DIGEST = "runs_made", "digest"


def runs_of(
    sources: Sequence[str | Path | Table | Any], catalog: Catalog, own_columns: str = ""
) -> Runs:
    """Return the runs of Runs, files, tables, data frames, stores (`store:CONDITION`, FILE.db) and datasets by name as one.

    own_columns: see `with_own_columns`; "" is the setting.

    Raises:
        RequestError: none is given, a table or store cannot be read, a store has no such run, or no
            table has a column of one's own that is wished for.
    """
    from forerun.tables.files import from_frame
    from forerun.workloads.rows import runs_from_table

    found = []
    for source in sources:
        if isinstance(source, Runs):
            found.append(source)
            continue
        if isinstance(source, str | Path) and is_stored(source):
            found.append(_stored_runs(str(source), catalog))
            continue
        if isinstance(source, str | Path) and (shipped := dataset(source)) is not None:
            found.append(_shipped_runs(shipped))
            continue
        table = read_table(source) if isinstance(source, str | Path) else source
        table = table if isinstance(table, Table) else from_frame(table)
        found.append(runs_from_table(table, catalog))
    runs, wish = join_runs(found), own_columns or load_settings().text("own_columns")
    # A setting holds for runs of many kinds; a wish of this call is one about these.
    return runs_read_as(runs, with_own_columns(runs.table, wish, bool(own_columns)).own)


def is_stored(source: str | Path) -> bool:
    """Return whether a source of runs is a store: `store:`, `store:CONDITION`, or a file FILE.db."""
    return str(source).startswith(PREFIX) or Path(source).suffix.lower() in _ENDINGS


def _shipped_runs(shipped: Dataset) -> Runs:
    """Return the runs of a dataset: its labels mean its own networks, and its device is its own."""
    from forerun.workloads.rows import runs_from_table

    known, catalog = shipped.workloads, load_catalog([shipped.catalog])
    return runs_from_table(read_table(shipped.table), catalog, lambda row: known[row["workload"]])


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
    """Return a store's runs for which the conditions hold, oldest first; names are looked up."""
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


def configurations_of(runs: Runs) -> Table:
    """Return the jobs of runs that have a time or ended otherwise than ok, as often as they were run."""
    done = attempted_runs(runs)
    if done is None or done.jobs.labels is None:
        return Table({}, 0)
    table = done.jobs.labels
    names = [name for name in (*IDENTITY, *table.own.factors) if name in table]
    return Table({name: table.columns[name] for name in names}, len(table), own=table.own)


def model_text(predictor: Predictor, made: Table | None = None) -> str:
    """Return a fitted predictor and its jobs as JSON. Raises RequestError if it has no such form."""
    to_json = getattr(predictor, "to_json", None)
    if to_json is None:
        raise RequestError(
            f"saving the predictor {predictor.name!r}", "it has no JSON form",
            "use one that has, or fit it anew each time with --fit",
        )  # fmt: skip
    content = json.loads(to_json())
    if made is not None:
        columns = {
            name: [None if value != value else value for value in cells.tolist()]
            for name, cells in made.columns.items()
        }
        content[_KEY] = {"rows": len(made), "columns": columns, "own": list(made.own.factors),
                         "own_words": list(made.own.words)}  # fmt: skip
    return json.dumps({**content, _DIGEST: _digest(content)})


def _digest(content: Mapping[str, Any]) -> str:
    # Of all that makes forecasts; a version that is another has its own words.
    body = {
        name: value for name, value in content.items() if name not in (_DIGEST, _KEY, "version")
    }
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def load_model(path: Path) -> tuple[Predictor, Table | None]:
    """Return the predictor of a model file, and its jobs, if kept. Raises RequestError if it is none."""
    title = f"reading the model {path}"
    try:
        text = path.read_text(encoding="utf-8")
        content: dict[str, Any] = dict(json.loads(text))
        name, saved = str(content["predictor"]), content.get(_KEY)
        changed = content.get(_DIGEST) != _digest(content)
    except OSError as error:
        refuse_url(path)
        raise RequestError(title, str(error.strerror), "check the path") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise RequestError(
            title, "it is not a whole model that `forerun fit` wrote", "fit it again"
        ) from None
    if changed:  # no figure of it is used: any of them could be absurd
        found = "it is not as `forerun fit` wrote it: its digest is another, or missing"
        raise RequestError(title, found, "fit it again")
    try:
        made = None if saved is None else _configurations(saved)
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


def _configurations(saved: Mapping[str, Any]) -> Table:
    factors, words = (tuple(map(str, saved.get(key, ()))) for key in ("own", "own_words"))
    own = OwnColumns(factors, words=words)
    known = {*IDENTITY, *own.factors}
    columns = {name: cells for name, cells in dict(saved["columns"]).items() if name in known}
    if any(len(cells) != int(saved["rows"]) for cells in columns.values()):
        raise ValueError("columns of unequal length")
    if not columns:
        return Table({}, 0)
    return read_as(Table.from_columns(columns, "the configurations that were run"), own)


_MACHINE = ("device", "instance_type", "cluster")  # the first that a row states names its machine


def fill_resources(table: Table, runs: Table | None) -> tuple[Table, NDArray[np.object_]]:
    """Return rows whose blank resources are those of all runs of their kind, and a note on each.

    A kind is a workload on a machine. A resource stays blank, with a note, where the runs differ.
    """
    notes = np.full(len(table), "", dtype=object)
    if runs is None:
        return table, notes
    kinds, index = np.unique([*_kinds(runs), *_kinds(table)], axis=0, return_inverse=True)
    had, asked = np.split(index.reshape(-1), [len(runs)])
    filled: dict[str, NDArray[np.float64]] = {}
    for column in RESOURCES:
        values, cells = runs.numbers(column), table.numbers(column)
        low, high = np.full(len(kinds), np.inf), np.full(len(kinds), -np.inf)
        stated = np.isfinite(values)  # a run that omits it agrees with none
        np.minimum.at(low, had, np.where(stated, values, -np.inf))
        np.maximum.at(high, had, np.where(stated, values, np.inf))
        words = np.array([
            f"; {column} {a:g} assumed, as all runs of its kind have it" if a == b
            else f"; runs of its kind have {column} {a:g} to {b:g}: fill it in"
            for a, b in zip(low, high, strict=True)
        ], dtype=object)  # fmt: skip
        blank = np.isnan(cells) & np.isfinite(low)[asked]
        notes[blank] += words[asked[blank]]
        rows = blank & (low == high)[asked]
        if rows.any():
            filled[column] = np.where(rows, low[asked], cells)
    notes = np.array([note.removeprefix("; ") for note in notes], dtype=object)
    return (table.with_columns(**filled) if filled else table), notes


def _kinds(table: Table) -> NDArray[np.str_]:
    machine = table.texts(_MACHINE[0])
    for name in _MACHINE[1:]:
        machine = np.where(machine == "", table.texts(name), machine)
    pairs = np.stack([table.texts(GROUP[0]), machine], axis=1).astype(str)
    return np.char.lower(np.char.strip(pairs))
