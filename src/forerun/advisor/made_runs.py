"""MadeRuns: which jobs taught a model, kept in its file whatever kind of model it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.advisor.suggesting_tables import IDENTITY
from forerun.domain.forecast import QUANTITIES
from forerun.errors import RequestError
from forerun.predictors.laws.law_rows import measured
from forerun.tables import COLUMNS, Runs, Table

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
        done = told_runs(runs)
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


def told_runs(runs: Runs) -> Runs | None:
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
