"""Repeats: runs of one configuration become one row: medians, and the spread between repeats."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.tables import COLUMNS, Table, configurations


def joined(table: Table) -> Table:
    """Return one row for each configuration (m,): of what was measured the median over its runs.

    Runs that are not ok take no part where others are; a configuration none of whose runs is ok
    keeps the first, with its status. `repeats` counts the runs, and `std_s` is the standard
    deviation of step_time_s between them, blank for one alone.
    """
    if not len(table):
        return table
    groups = configurations(table)[1]
    status = table.texts("status")
    ok = (status == "ok") | (status == "")
    first = _first(groups, ok)
    counted = np.flatnonzero(ok | ~np.isin(groups, groups[ok]))
    columns: dict[str, NDArray[Any]] = {}
    for name, column in table.columns.items():
        columns[name] = column[first]
        known = COLUMNS.get(name)
        if known is not None and known.group == "measured" and column.dtype != object:
            columns[name] = _by_group(column[counted], groups[counted], len(first), np.median)
    seconds = table.numbers("step_time_s")[counted]
    columns["repeats"] = np.bincount(groups[counted], minlength=len(first)).astype(np.float64)
    columns["std_s"] = _by_group(seconds, groups[counted], len(first), _spread)
    return Table(columns, len(first))


def _first(groups: NDArray[np.int64], ok: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return each group's first row that is ok, else its first."""
    order = np.lexsort((np.arange(len(groups)), ~ok, groups))
    return order[np.r_[True, np.diff(groups[order]) != 0]].astype(np.int64)


def _by_group(values: FloatArray, groups: NDArray[np.int64], count: int, of: Any) -> FloatArray:
    """Return a figure of the numbers of each group (count,), NaN where it has none."""
    found = np.full(count, np.nan)
    known = np.isfinite(values)
    for group in np.unique(groups[known]):
        found[group] = of(values[known & (groups == group)])
    return found


def _spread(values: FloatArray) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else np.nan
