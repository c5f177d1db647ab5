"""Filters: which rows of a table take part, and which of their times are taught and judged."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.errors import RequestError
from forerun.evaluate.derived import absent, with_derived
from forerun.evaluate.measured import measured_seconds
from forerun.tables import Runs, Table

BoolArray = NDArray[np.bool_]

SLOWER = "in the slower half of its group (--faster-half)"
_SIGNS: Mapping[str, np.ufunc] = {
    "<=": np.less_equal, ">=": np.greater_equal, "<": np.less, ">": np.greater,
}  # fmt: skip
_CONDITION = re.compile(r"\s*([^<>=!]+?)\s*(<=|>=|!=|=|<|>)\s*([^<>=!\s].*?)\s*")


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on rows: `COLUMN=VALUE,...`, `COLUMN!=VALUE,...` or `COLUMN<=NUMBER` and so on."""

    column: str
    sign: str
    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.column}{self.sign}{','.join(self.values)}"

    def holds(self, table: Table) -> BoolArray:
        """Return for which rows it holds, (n,); never where the column is blank.

        Raises:
            RequestError: no such column, or it is compared by number and holds none.
        """
        if self.column not in table:
            raise unknown_column(f"--where {self}", self.column, table)
        numeric = table.columns[self.column].dtype != object
        if self.sign in _SIGNS or numeric:
            return self._compared(table.numbers(self.column))
        texts = table.texts(self.column).astype(str)
        found = np.isin(texts, list(self.values))
        return np.asarray((found if self.sign == "=" else ~found) & (texts != ""))

    def _compared(self, cells: NDArray[np.float64]) -> BoolArray:
        try:
            values = np.array([float(v) for v in self.values])
        except ValueError:
            raise RequestError(
                f"--where {self}", f"{self.column} holds numbers", "compare it with a number"
            ) from None
        if self.sign in _SIGNS:
            return np.asarray(_SIGNS[self.sign](cells, values[0]), dtype=bool)
        found = np.isin(cells, values)
        return (found if self.sign == "=" else ~found) & ~np.isnan(cells)


def parse_condition(text: str) -> Condition:
    """Return the condition of a text such as `tp<=8` or `device=t4,v100`.

    Raises:
        RequestError: it is none, or compares by size with a text or with several numbers.
    """
    match = _CONDITION.fullmatch(text)
    step = "write COLUMN=VALUE,..., COLUMN!=VALUE,..., COLUMN<=NUMBER, <, >= or >"
    if match is None:
        raise RequestError(f"--where {text}", "it is no condition", step)
    column, sign, right = match.groups()
    values = tuple(v.strip() for v in right.split(",") if v.strip())
    if not values or (sign in _SIGNS and (len(values) > 1 or not _is_number(values[0]))):
        raise RequestError(f"--where {text}", f"{right!r} is not a number", step)
    return Condition(column, sign, values)


def rows_where(runs: Runs, conditions: Sequence[Condition], name: str) -> Runs:
    """Return the rows for which all conditions hold. Raises RequestError where there is none."""
    if not conditions:
        return runs
    runs = with_derived(runs, [c.column for c in conditions])
    keep = np.all([c.holds(runs.table) for c in conditions], axis=0)
    if not keep.any():
        raise RequestError(
            f"--where {' --where '.join(map(str, conditions))}", f"no row of {name} is left",
            "loosen the conditions, or leave the table out",
        )  # fmt: skip
    return runs.take(np.flatnonzero(keep))


def slower_half(runs: Runs, columns: Sequence[str]) -> BoolArray:
    """Return the measured rows that are slower than the median of their group, (n,).

    Rows of a group share the values of the columns; they are compared by measured seconds a
    sample. A group keeps at least half of its rows, and equals stay together. Rows without a
    time are in neither half. The halves are chosen by what was measured, as in the published
    figures that this filter is to be compared with: it says how good forecasts are among the
    plans that are worth having, and no forecast can know beforehand which these are.

    Raises:
        RequestError: a column is missing, or no row has a step time.
    """
    asked = f"--faster-half {','.join(columns)}"
    for column in columns:
        if column not in runs.table:
            raise unknown_column(asked, column, runs.table)
    batch = runs.table.numbers("global_batch")
    seconds = measured_seconds(runs, "step").seconds / np.where(batch > 0, batch, 1.0)
    timed = np.flatnonzero(~np.isnan(seconds))
    if not len(timed):
        raise RequestError(asked, "no row has a step time", "leave it out for these runs")
    group = runs.table.groups(columns)[1]
    order = timed[np.lexsort((seconds[timed], group[timed]))]
    starts = np.flatnonzero(np.r_[True, group[order][1:] != group[order][:-1]])
    counts = np.diff(np.r_[starts, len(order)])
    middle = np.full(int(group.max()) + 1, np.nan)
    middle[group[order[starts]]] = seconds[order[starts + (counts + 1) // 2 - 1]]
    return np.asarray(seconds > middle[group])


def unknown_column(asked: str, column: str, table: Table) -> RequestError:
    """Return the error that a table has no such column, with what to do."""
    return RequestError(asked, *absent(column, table))


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False
