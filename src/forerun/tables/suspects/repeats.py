"""Repeats: rows of one job that disagree, and columns of one row that do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.tables.jobs import Runs
from forerun.tables.lines import Lines
from forerun.tables.schema import COLUMNS
from forerun.tables.suspects.flags import Kind, Raised, numbers_text
from forerun.tables.suspects.readings import Reading
from forerun.tables.suspects.siblings import medians
from forerun.tables.table import Table

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


def repeat_flags(runs: Runs, aside: BoolArray) -> Iterator[Raised]:
    """Yield the flags of repeats that differ by more than noise; blank steps are left aside.

    Noise is six times the spread of the table's own repeats, between `APART` and `MOST`, and six
    times the row's own where std_s says it. Where the most of a job's runs agree within it, the
    others are flagged; where no most does (of two rows, always), all are.

    Args:
        runs: n of them.
        aside: (n,) rows that say nothing, for they are flagged already.
    """
    seconds = runs.step_seconds()
    rows = np.flatnonzero(np.isfinite(seconds) & ~aside)
    if len(rows) < 2:
        return
    group = jobs_of(runs.table.take(rows))
    logs = np.log(seconds[rows])
    own = np.nan_to_num(runs.table.numbers("std_s")[rows] / seconds[rows])
    agreed = _agreed(logs, group, np.maximum(_noise(logs, group), SPREADS * own))
    odd = np.flatnonzero(agreed.odd)
    row = rows[odd]
    places = runs.table.places()
    yield Raised(
        Kind.REPEATS, row, "step_time_s", numbers_text(seconds[row], "s a step"),
        np.array([agreed.words(i, rows, seconds, places) for i in odd.tolist()], dtype=object),
        "say in a column (framework, precision, note) what differs, or drop what is wrong; all"
        " are kept",
    )  # fmt: skip


def jobs_of(table: Table) -> IntArray:
    """Return a number for each row's job, (n,): rows that repeat one another share it."""
    _, group = table.groups([name for name in _SAME_JOB if _varies(table, name)])
    return np.asarray(group, dtype=np.int64)


def _noise(logs: FloatArray, group: IntArray) -> float:
    """Return the log by which repeats of a table may differ."""
    off, several = np.abs(logs - medians(logs, group)), np.bincount(group)[group] > 1
    usual = 1.4826 * float(np.median(off[several])) if several.sum() >= _ENOUGH else 0.0
    return float(min(max(APART, SPREADS * usual), MOST))


@dataclass(frozen=True)
class _Agreed:
    """What m runs say of their jobs.

    Attributes:
        odd: (m,) which contradict the others of their job.
        order, start, total: (m,) rows by job and time, where a row's job starts there, and how
            many runs it has.
        first, count: (m,) where those that agree start in that order, and how many they are; the
            count is 0 where no most agrees.
    """

    odd: BoolArray
    order: IntArray
    start: IntArray
    total: IntArray
    first: IntArray
    count: IntArray

    def words(self, i: int, rows: IntArray, seconds: FloatArray, places: Lines) -> str:
        """Return what run i was expected to be; rows (m,) are the runs' places in seconds."""
        low, total, count = int(self.start[i]), int(self.total[i]), int(self.count[i])
        ordered = rows[self.order]
        if total == 2:
            other = next(r for r in ordered[low : low + 2].tolist() if r != rows[i])
            return f"near {seconds[other]:.4g} s, which {places.text(other)} says of the same job"
        if count:
            first = int(self.first[i])
            most = float(np.median(seconds[ordered[first : first + count]]))
            return f"near {most:.4g} s, as {count} of the {total} runs of the job say"
        least, largest = seconds[ordered[low]], seconds[ordered[low + total - 1]]
        return (
            f"what most runs of the job say, but its {total} runs say {least:.4g} to"
            f" {largest:.4g} s and no most of them agree"
        )


def _agreed(logs: FloatArray, group: IntArray, limit: FloatArray) -> _Agreed:
    """Return which runs of each job agree: the most of them that lie within a limit (m,), in logs."""
    order = np.lexsort((logs, group))
    counts = np.bincount(group)
    start = np.cumsum(counts) - counts
    ordered, job = logs[order], group[order]
    reach = ordered[start + counts - 1] - ordered[start]
    wide = np.minimum(limit[order], reach[job])
    # One line on which the jobs lie apart, so that one search finds every window's end.
    line = ordered - ordered[start][job] + (2.0 * float(reach.max()) + 1.0) * job
    at = np.arange(len(line))
    inside = np.searchsorted(line, line + wide, side="right") - at
    best = inside == np.maximum.reduceat(inside, start)[job]
    first = np.minimum.reduceat(np.where(best, at, len(at)), start)
    last = np.maximum.reduceat(np.where(best, at, -1), start)
    most = (inside[first] > 1) & (last < first + inside[first])
    end = last + inside[last]
    among = (at >= first[job]) & (at < end[job])
    apart = reach[job] > limit[order]
    odd = np.zeros(len(logs), dtype=bool)
    odd[order] = apart & ~(most[job] & among)
    count = np.where(most, end - first, 0)
    return _Agreed(odd, order, start[group], counts[group], first[group], count[group])


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
