"""Repeats: rows of one job that disagree, and columns of one row that do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from forerun.tables.jobs import Runs
from forerun.tables.schema import COLUMNS
from forerun.tables.suspects.flags import Kind, Raised, numbers_text
from forerun.tables.suspects.readings import Reading
from forerun.tables.table import Table

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

# Repeats on one machine differ by 1-2 %, on another of its kind by up to 6 %; rows further apart
# than this were not the same job, whatever their columns say.
APART = np.log(1.3)
SPREADS, MOST = 6.0, np.log(2.0)
_ENOUGH = 20  # repeated rows, before their spread is taken for the table's noise
AGREE = np.log(1.1)
_NOT_THE_JOB = {"family", "learning_rate", "price_usd_per_hour", "params", "gmacs", "mactivations"}
_SAME_JOB = (
    *(c.name for c in COLUMNS.values()
      if c.group in ("workload", "cluster", "plan") and c.name not in _NOT_THE_JOB),
    "note",
)  # fmt: skip


def repeat_flags(runs: Runs) -> Iterator[Raised]:
    """Yield the flags of repeats that differ by more than noise; blank steps are left aside.

    Noise is six times the spread of the table's own repeats, between `APART` and `MOST`, and six
    times the row's own where std_s says it. Of two rows both are flagged, of more those off the
    median.
    """
    seconds = runs.step_seconds()
    rows = np.flatnonzero(np.isfinite(seconds))
    if len(rows) < 2:
        return
    part = runs.table.take(rows)
    _, group = part.groups([name for name in _SAME_JOB if _varies(part, name)])
    logs = np.log(seconds[rows])
    order = np.lexsort((logs, group))
    sorted_logs, counts = logs[order], np.bincount(group)
    start = np.cumsum(counts) - counts
    middle = (sorted_logs[start + (counts - 1) // 2] + sorted_logs[start + counts // 2]) / 2.0
    off = np.abs(logs - middle[group])
    several = counts[group] > 1
    if not several.any():
        return
    usual = 1.4826 * float(np.median(off[several])) if several.sum() >= _ENOUGH else 0.0
    own = runs.table.numbers("std_s")[rows] / seconds[rows]
    noise = min(max(APART, SPREADS * usual), MOST)
    limit = np.maximum(noise, SPREADS * np.nan_to_num(own))
    low, high = order[start], order[start + counts - 1]
    reach = (logs[high] - logs[low])[group]
    flagged = np.flatnonzero(several & (reach > limit) & (off > limit / 2))
    farthest = np.where(logs > middle[group], low[group], high[group])[flagged]
    row, other = rows[flagged], rows[farthest]
    places = runs.table.places()
    expected = [
        f"near {seconds[o]:.4g} s, which {places.text(o)} says of the same job"
        for o in other.tolist()
    ]
    yield Raised(
        Kind.REPEATS, row, "step_time_s", numbers_text(seconds[row], "s a step"),
        np.array(expected, dtype=object),
        "say in a column (framework, precision, note) what differs, or drop one; both are kept",
    )  # fmt: skip


def _varies(table: Table, name: str) -> bool:
    """Return whether a column tells rows apart: most do not, and sorting them would cost."""
    column = table.columns.get(name)
    return column is not None and bool((column != column[0]).any())


def disagreement_flags(readings: Sequence[Reading], flagged: BoolArray) -> Iterator[Raised]:
    """Yield the flags of rows whose time columns imply unlike steps; flagged (n,) are left aside."""
    for reading in readings[1:]:
        first = readings[0]
        gap = np.abs(reading.log_implied - first.log_implied)
        with np.errstate(invalid="ignore"):
            row = np.flatnonzero((gap > AGREE) & ~flagged)
        expected = numbers_text(
            np.exp(reading.log_implied[row]), f"s a step, which {reading.column} implies"
        )
        yield Raised(
            Kind.COLUMNS, row, first.column,
            numbers_text(np.exp(first.log_implied[row]), "s a step"), expected,
            f"correct one of them; {first.column} is used",
        )  # fmt: skip
