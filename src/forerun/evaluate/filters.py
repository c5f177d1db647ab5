"""Filters: which rows of a table take part, and which of their times are taught and judged."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forerun.arrays import BoolArray
from forerun.errors import RequestError
from forerun.evaluate.derived import with_derived
from forerun.tables import Runs
from forerun.tables.conditions import Condition, unknown_column
from forerun.tables.measured import measured_seconds

SLOWER = "in the slower half of its group (--faster-half)"


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
