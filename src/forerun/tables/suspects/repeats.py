"""Repeats: rows of one job that disagree, and columns of one row that do.

Label units: times in two units among runs of one kind that physics does not know.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.tables.jobs import Runs
from forerun.tables.suspects.flags import FlagKind, Raised, Texts, numbers_text
from forerun.tables.suspects.units import ImpliedStep, medians
from forerun.tables.table import COLUMNS, Lines, Table

Guesses = tuple[tuple[float, bool, str, str], ...]

_KIND = ("workload", "device", "framework", "precision", "instance_type", "sync")
_RUN_KIND = ("optimizer", "learning_rate", "target")
_SIZES = (
    "devices", "nodes", "global_batch", "micro_batch", "dataset_size", "seq_len", "image_size",
    "parameter_servers",
)  # fmt: skip
# The factor between the two clusters; whether the upper one is in the other unit; what that is.
_OF_TIMES = (
    (1e3, True, "ms", "divide by 1000"),
    (1e6, True, "us", "divide by 1e6"),
    (60.0, False, "minutes", "multiply by 60"),
    (3600.0, False, "hours", "multiply by 3600"),
)
_OF_RATES = (
    (1e3, False, "thousands a second", "multiply by 1000"),
    (60.0, True, "a figure per minute", "divide by 60"),
    (3600.0, True, "a figure per hour", "divide by 3600"),
)
_COLUMNS = {
    "step_time_s": ("s", _OF_TIMES), "samples_per_s": ("samples/s", _OF_RATES),
    "tokens_per_s": ("tokens/s", _OF_RATES), "epoch_time_s": ("s", _OF_TIMES),
    "time_to_train_s": ("s", _OF_TIMES),
}  # fmt: skip
_STEPS = ("step_time_s", "samples_per_s", "tokens_per_s")

LEAST, ENOUGH = 4, 6  # runs of a kind, to say it and to leave the wrong ones out
# The least factor that is said; how near a unit's it must be; how much of it lies empty.
LEAST_FACTOR, NEAR_UNIT, EMPTY, ALL_EMPTY = np.log(33.0), np.log(1.8), 0.6, 0.7
_ROUNDS = 6


@dataclass(frozen=True)
class Clusters:
    """Two clusters of m values.

    Attributes:
        upper: which lie in the upper one, (m,).
        apart: log factor between the two at like sizes.
        empty: log factor over which no value lies.
    """

    upper: BoolArray
    apart: float
    empty: float


def label_unit_flags(runs: Runs, by_label: BoolArray) -> Iterator[Raised]:
    """Yield the flags of figures in another unit than others of their kind.

    Args:
        runs: n of them.
        by_label: which are not known to physics and not flagged for another unit already, (n,).
    """
    ok = by_label & (runs.status == "ok")
    for column, (unit, guesses) in _COLUMNS.items():
        values = runs.table.numbers(column)
        with np.errstate(invalid="ignore"):
            rows = np.flatnonzero(ok & np.isfinite(values) & (values > 0))
        for some in _wide_groups(runs, rows, column, np.log(values[rows])):
            found = two_clusters(_sizes(runs, some), np.log(values[some]))
            if found is not None and (len(some) >= ENOUGH or _named(guesses, found)):
                yield _raised(column, unit, guesses, values, some, found)


def _wide_groups(runs: Runs, rows: IntArray, column: str, logs: FloatArray) -> Iterator[IntArray]:
    """Yield the rows of each kind whose figures span as much as a unit does."""
    if len(rows) < LEAST or np.ptp(logs) < LEAST_FACTOR:
        return
    more = _RUN_KIND if column == "time_to_train_s" else ()
    first, group = runs.table.take(rows).groups([*_KIND, *more])
    low, high = np.full(len(first), np.inf), np.full(len(first), -np.inf)
    np.minimum.at(low, group, logs)
    np.maximum.at(high, group, logs)
    wide = (high - low >= LEAST_FACTOR) & (np.bincount(group) >= LEAST)
    for g in np.flatnonzero(wide):
        yield rows[group == g]


def _sizes(runs: Runs, rows: IntArray) -> FloatArray:
    """Return the logs of the sizes that all of the rows state and that change, (m, k)."""
    columns = [runs.table.numbers(name)[rows] for name in _SIZES]
    told = [np.log(v) for v in columns if (v > 0).all() and v.min() < v.max()]
    return np.stack(told, axis=1) if told else np.zeros((len(rows), 0))


def two_clusters(sizes: FloatArray, logs: FloatArray) -> Clusters | None:
    """Return the two clusters that m values fall into beside what sizes explain, None where they do not.

    Args:
        sizes: logs of what may explain a value, by a power law in each, (m, k).
        logs: of the values, (m,).
    """
    m = len(logs)
    one = np.ones((m, 1))
    x = np.hstack([one, sizes]) if m > sizes.shape[1] + 2 else one
    plain = logs - x @ np.linalg.lstsq(x, logs, rcond=None)[0]
    if np.ptp(plain) < LEAST_FACTOR:
        return None
    # Where sizes alone leave no doubt of the clusters, or where the values do: the tighter one.
    tried = [_settled(x, logs, start) for start in (plain, logs)]
    found = [one for one in tried if one is not None]
    return max(found, key=lambda one: one.empty / one.apart, default=None)


def _settled(x: FloatArray, logs: FloatArray, start: FloatArray) -> Clusters | None:
    ordered = np.sort(start)
    upper = start > ordered[int(np.argmax(np.diff(ordered)))]
    apart, left = 0.0, start
    for _ in range(_ROUNDS):
        both = np.column_stack([x, upper])
        fit = np.linalg.lstsq(both, logs, rcond=None)[0]
        apart, left = float(fit[-1]), logs - x @ fit[:-1]
        now = left > apart / 2.0
        if (now == upper).all():
            break
        upper = now
    if apart < LEAST_FACTOR or upper.all() or not upper.any():
        return None
    empty = float(left[upper].min() - left[~upper].max())
    return Clusters(upper, apart, empty) if empty >= EMPTY * apart else None


def _named(guesses: Guesses, found: Clusters) -> Guesses:
    """Return the units that two clusters may differ by: one, or none."""
    return tuple(g for g in guesses if abs(found.apart - np.log(g[0])) < NEAR_UNIT)


def _raised(
    column: str, unit: str, guesses: Guesses, values: FloatArray,
    rows: IntArray, found: Clusters,
) -> Raised:  # fmt: skip
    """Return the flags of one kind's rows that are in another unit, or the fewer where none fits."""
    named = _named(guesses, found)
    if named:
        factor, upper, what, mend = named[0]
        wrong = found.upper if upper else ~found.upper
        advice = f"it looks like {what}: {mend}, or drop the row"
    else:
        factor, fewer = float(np.exp(found.apart)), 2 * found.upper.sum() <= len(rows)
        wrong = found.upper if fewer else ~found.upper
        advice = f"no unit that is known is {factor:.0f} times away: check the figure"
    row = rows[wrong]
    likely = values[row] * np.where(found.upper[wrong], 1.0 / factor, factor)
    sure = bool(named) and len(rows) >= ENOUGH and found.empty >= ALL_EMPTY * found.apart
    return Raised(
        FlagKind.UNIT, row, column, numbers_text(values[row], unit),
        _like(likely, unit, len(rows) - len(row)), advice, void=sure,
        out_step=sure and column in _STEPS,
    )  # fmt: skip


def _like(likely: FloatArray, unit: str, others: int) -> Texts:
    said = f"as the other {others} runs of its kind say" if others > 1 else "as the other run says"
    return np.array([f"about {v:.3g} {unit}, {said}" for v in likely.tolist()], dtype=object)


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
        FlagKind.REPEATS, row, "step_time_s", numbers_text(seconds[row], "s a step"),
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


def disagreement_flags(readings: Sequence[ImpliedStep], flagged: BoolArray) -> Iterator[Raised]:
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
            FlagKind.COLUMNS, row, first.column,
            numbers_text(np.exp(first.log_implied[row]), "s a step"), expected,
            f"correct one of them; {first.column} is used",
        )  # fmt: skip
