"""The files that `forerun runs import` reads: which rows of them are runs, and what is said of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forerun.cli.kinds import TABLES
from forerun.cli.mistaken import check_kind
from forerun.errors import RequestError
from forerun.store import Added
from forerun.tables import COLUMNS, Table, read_table
from forerun.units import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class FileRuns:
    """The runs of one file.

    Attributes:
        name: of the file.
        rows: how many it has. runs: those that are runs.
        no_run: how many have no measured figure.
        unread: how many runs have a cell that could not be read; it is kept as it is written.
        first: the first such cell, in words.
    """

    name: str
    rows: int
    runs: Table
    no_run: int
    unread: int
    first: str

    def words(self, added: Added) -> str:
        """Return what became of its rows."""
        parts = [counted(added.new, "new run")]
        if added.known:
            parts.append(f"{added.known:,} known already")
        if self.no_run:
            parts.append(f"{counted(self.no_run, 'row')} without a measured figure left out")
        if self.unread:
            parts.append(
                f"{self.unread:,} with a cell that is kept but not understood: {self.first}"
            )
        return ", ".join(parts)


def target_of(text: str) -> tuple[str, float] | None:
    """Return METRIC=VALUE as a metric and the value at which training is done; None for "".

    Raises:
        RequestError: it is of another form.
    """
    if not text:
        return None
    name, sign, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not sign or not name.strip() or not math.isfinite(number):
        raise RequestError(f"--target {text}", "it is not METRIC=VALUE", "write e.g. loss=2.0")
    return name.strip(), number


def tables_of(
    paths: Sequence[Path], given: Mapping[str, str], reader: str, pattern: str,
    target: tuple[str, float] | None = None,
) -> list[FileRuns]:  # fmt: skip
    """Return the runs of each file; a folder stands for the tables in it, else for its logs.

    Raises:
        RequestError: a file cannot be read, no row of it is a run, or a table is given a target.
    """
    found: list[FileRuns] = []
    for path in dict.fromkeys(paths):
        if not reader and not pattern:
            check_kind(path, f"importing {path}", "a table of runs or a log", "table")
        inside = sorted(path.glob("*.csv")) if path.is_dir() else []
        log = reader or pattern or (path.exists() and path.suffix.lower() not in TABLES)
        if target is not None and (inside or not log) and not reader:
            raise RequestError(
                f"importing {path} with --target", "it is a table, whose rows say that themselves",
                "fill its columns target and samples_to_target, or leave --target out",
            )  # fmt: skip
        if inside and not reader:
            found += [_runs(str(p), _stated(read_table(p), given)) for p in inside]
        elif log:
            from forerun.measure.logs import read_runs

            said: dict[str, Any] = dict(given)
            table = read_runs(path, reader=reader, pattern=pattern, target=target, **said)
            found.append(_runs(str(path), table))
        else:
            found.append(_runs(str(path), _stated(read_table(path), given)))
    return found


def _stated(table: Table, given: Mapping[str, str]) -> Table:
    """Return the table with columns that a person stated for all of its rows."""
    if not given:
        return table
    stated = Table.from_columns({n: [v] * len(table) for n, v in given.items()}, "--with")
    return table.with_columns(**stated.columns)


def _runs(name: str, table: Table) -> FileRuns:
    measured = _measured(table)
    if not measured.any():
        raise RequestError(
            f"importing {name}", "no row has a measured figure, so none is a run",
            "fill step_time_s, another measured column, or status; see docs/tables.md",
        )  # fmt: skip
    runs = table.take(np.flatnonzero(measured))
    problems = () if runs.problems is None else runs.problems
    bad = [i for i, problem in enumerate(problems) if problem is not None]
    first = f"{runs.places().text(bad[0])}, {problems[bad[0]]}" if bad else ""
    return FileRuns(name, len(table), runs, int((~measured).sum()), len(bad), first)


def _measured(table: Table) -> NDArray[np.bool_]:
    """Return which rows have a measured cell, (n,), also one that could not be read."""
    found = np.zeros(len(table), dtype=bool)
    for name, column in table.columns.items():
        if name in COLUMNS and COLUMNS[name].group == "measured":
            found |= ~np.isnan(column) if column.dtype != object else column != ""
            if name in table.unread:
                found |= table.unread[name] != ""
    return found
