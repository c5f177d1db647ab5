"""Stored: runs of the store, as those of a file: whole jobs as they were, other rows looked up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from forerun.catalog import Catalog
from forerun.errors import RequestError
from forerun.tables import Runs
from forerun.tables.lines import Lines

if TYPE_CHECKING:
    from forerun.store.sql_store import SqlStore

PREFIX = "store:"
_ENDINGS = (".db", ".sqlite", ".sqlite3")


def is_stored(source: str | Path) -> bool:
    """Return whether a source of runs is a store: `store:`, `store:CONDITION`, or a file FILE.db."""
    text = str(source)
    return text.startswith(PREFIX) or Path(text).suffix.lower() in _ENDINGS


def stored_runs(source: str | Path, catalog: Catalog) -> Runs:
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
    from forerun.evaluate import join_runs
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
