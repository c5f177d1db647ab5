"""Repeats: runs of one job that disagree, and runs of one kind whose figures stand in two units."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.tables.jobs import Runs
from forerun.tables.suspects.flags import Finding, FlagKind, numbers_text
from forerun.tables.suspects.units import TIMES, UNITS, medians
from forerun.tables.table import COLUMNS, Lines, Table
from forerun.units import counted

_KIND = ("workload", "device", "framework", "precision", "instance_type", "sync")
_RUN_KIND = ("optimizer", "learning_rate", "target")
_SIZES = (
    "devices", "nodes", "global_batch", "micro_batch", "dataset_size", "seq_len", "image_size",
    "parameter_servers",
)  # fmt: skip
LEAST, ENOUGH = 4, 6  # runs of a kind, to flag it and to leave the wrong ones out
# The least factor that is flagged; how near a unit's it must be; how much of it lies empty.
LEAST_FACTOR, NEAR_UNIT, EMPTY, ALL_EMPTY = np.log(33.0), np.log(1.8), 0.6, 0.7


class Clusters(NamedTuple):
    """Two clusters of m values: upper (m,), the log between them, the log where no value lies."""

    upper: BoolArray
    apart: float
    empty: float


def label_unit_flags(runs: Runs, by_label: BoolArray) -> Iterator[Finding]:
    """Yield the flags of figures in another unit than others of their kind; by_label: (n,) which."""
    ok = by_label & (runs.status == "ok")
    for column in UNITS:
        values = runs.table.numbers(column)
        rows = np.flatnonzero(ok & np.isfinite(values) & (values > 0))
        if column == "memory_gb" or len(rows) < LEAST:
            continue
        sign = -1.0 if column.endswith("per_s") else 1.0  # of the time that a figure implies
        logs = sign * np.log(values[rows])
        kind = (*_KIND, *_RUN_KIND) if column == "time_to_train_s" else _KIND
        _, group = runs.table.take(rows).groups(kind)
        for g in np.flatnonzero(np.bincount(group) >= LEAST):
            here = np.flatnonzero(group == g)
            if np.ptp(logs[here]) < LEAST_FACTOR:
                continue
            found = two_clusters(_sizes(runs, rows[here]), logs[here])
            if found is not None:
                yield from _other_unit(column, values, rows[here], found)


def _sizes(runs: Runs, rows: IntArray) -> FloatArray:
    """Return the logs of the sizes that all of the rows state and that change, (m, k)."""
    columns = [runs.table.numbers(name)[rows] for name in _SIZES]
    stated = [np.log(v) for v in columns if (v > 0).all() and v.min() < v.max()]
    return np.stack(stated, axis=1) if stated else np.zeros((len(rows), 0))


def two_clusters(sizes: FloatArray, logs: FloatArray) -> Clusters | None:
    """Return the two clusters of logs (m,) beside a power law in sizes (logs, (m, k)), or None."""
    m = len(logs)
    one = np.ones((m, 1))
    x = np.hstack([one, sizes]) if m > sizes.shape[1] + 2 else one
    plain = logs - x @ np.linalg.lstsq(x, logs, rcond=None)[0]
    if np.ptp(plain) < LEAST_FACTOR:
        return None
    # The clusters may show in what sizes leave, or in the values themselves: the tighter ones.
    tried = [_settled(x, logs, start) for start in (plain, logs)]
    found = [one for one in tried if one is not None]
    return max(found, key=lambda one: one.empty / one.apart, default=None)


def _settled(x: FloatArray, logs: FloatArray, start: FloatArray) -> Clusters | None:
    ordered = np.sort(start)
    upper = start > ordered[int(np.argmax(np.diff(ordered)))]
    apart, left = 0.0, start
    for _ in range(6):
        fit = np.linalg.lstsq(np.column_stack([x, upper]), logs, rcond=None)[0]
        apart, left = float(fit[-1]), logs - x @ fit[:-1]
        now = left > apart / 2.0
        if (now == upper).all():
            break
        upper = now
    if apart < LEAST_FACTOR or upper.all() or not upper.any():
        return None
    empty = float(left[upper].min() - left[~upper].max())
    return Clusters(upper, apart, empty) if empty >= EMPTY * apart else None


def _other_unit(
    column: str, values: FloatArray, rows: IntArray, found: Clusters
) -> Iterator[Finding]:
    """Yield the flags of one kind's rows that are in another unit, or the fewer where none fits."""
    unit, named = UNITS[column]
    fits = [
        (name, advice, factor) for name, advice, factor, reluctance in named
        if isinstance(factor, float) and not reluctance
        and abs(found.apart - abs(np.log(factor))) < NEAR_UNIT
    ]  # fmt: skip
    if fits:
        name, advice, factor = fits[0]
        upper = factor > 1.0
        advice = f"it looks like {name}: {advice}, or drop the row"
    elif len(rows) < ENOUGH:
        return
    else:
        upper = 2 * int(found.upper.sum()) <= len(rows)
        factor = float(np.exp(found.apart if upper else -found.apart))
        advice = f"no unit that is known is {np.exp(found.apart):.0f} times away: check the figure"
    row = rows[found.upper == upper]
    likely = values[row] * (factor if column.endswith("per_s") else 1.0 / factor)
    sure = bool(fits) and len(rows) >= ENOUGH and found.empty >= ALL_EMPTY * found.apart
    shown = f"as the other {counted(len(rows) - len(row), 'run')} of its kind say"
    words = [f"about {v:.3g} {unit}, {shown}" for v in likely.tolist()]
    yield Finding(
        FlagKind.UNIT, row, column, numbers_text(values[row], unit), np.array(words, dtype=object),
        advice, void=sure, out_step=sure and column in TIMES,
    )  # fmt: skip


# Repeats on one machine differ by 1-2 %, on another of its kind by up to 6 %.
APART = np.log(1.3)
SPREADS, MOST = 6.0, np.log(2.0)
_ENOUGH = 20  # repeated rows, before their spread is taken for the table's noise
_NOT_THE_JOB = {"family", "learning_rate", "price_usd_per_hour", "params", "gmacs", "mactivations"}
_SAME_JOB = (
    *(c.name for c in COLUMNS.values()
      if c.group in ("workload", "cluster", "plan") and c.name not in _NOT_THE_JOB),
    "note",
)  # fmt: skip


def jobs_of(table: Table) -> IntArray:
    """Return a number for each row's job, (n,): rows that repeat one another share it."""
    # Most columns do not vary, and sorting them would cost.
    columns = ((name, table.columns[name]) for name in _SAME_JOB if name in table)
    varying = [name for name, c in columns if len(c) and bool((c != c[0]).any())]
    return np.asarray(table.groups(varying)[1], dtype=np.int64)


def repeat_flags(runs: Runs, job: IntArray, aside: BoolArray) -> Iterator[Finding]:
    """Yield the flags of repeats that differ by more than noise; aside: (n,) rows flagged already.

    Noise is six times the spread of the table's own repeats, between `APART` and `MOST`, or of the job's
    where std_s states it. Where most of a job's runs agree within it, only the others are flagged.
    """
    seconds = runs.step_seconds()
    rows = np.flatnonzero(np.isfinite(seconds) & ~aside)
    if len(rows) < 2:
        return
    logs = np.log(seconds[rows])
    own = np.nan_to_num(runs.table.numbers("std_s")[rows] / seconds[rows])
    _, group = np.unique(job[rows], return_inverse=True)
    limit = np.maximum(_noise(logs, group), SPREADS * own)
    order = np.lexsort((logs, group))
    first = np.r_[0, np.cumsum(np.bincount(group))]
    apart = logs[order[first[1:] - 1]] - logs[order[first[:-1]]]
    places = runs.table.places()
    odd: dict[int, str] = {}
    limits = np.maximum.reduceat(limit[order], first[:-1])
    for g in np.flatnonzero(apart > limits):
        members = order[first[g] : first[g + 1]]
        odd |= _contradictions(rows[members], seconds, float(limits[g]), places)
    row = np.array(sorted(odd), dtype=np.int64)
    yield Finding(
        FlagKind.REPEATS, row, "step_time_s", numbers_text(seconds[row], "s a step"),
        np.array([odd[r] for r in row.tolist()], dtype=object),
        "say in a column (framework, precision, note) what differs, or drop what is wrong; all"
        " are kept",
    )  # fmt: skip


def _noise(logs: FloatArray, group: IntArray) -> float:
    """Return the log by which repeats of a table may differ."""
    off, several = np.abs(logs - medians(logs, group)), np.bincount(group)[group] > 1
    usual = 1.4826 * float(np.median(off[several])) if several.sum() >= _ENOUGH else 0.0
    return float(min(max(APART, SPREADS * usual), MOST))


def _contradictions(
    rows: IntArray, seconds: FloatArray, limit: float, places: Lines
) -> dict[int, str]:
    """Return the runs of one job, ordered by seconds, that contradict it, with what was expected."""
    times, total = seconds[rows], len(rows)
    if total == 2:
        words = [
            f"near {seconds[o]:.4g} s, which {places.text(o)} says of the same job" for o in rows
        ]
        return dict(zip(rows.tolist(), words[::-1], strict=True))
    logs = np.log(times)
    inside = np.searchsorted(logs, logs + limit, side="right") - np.arange(total)
    most = int(inside.max())
    start, last = np.flatnonzero(inside == most)[[0, -1]]
    said = f"what most runs of the job say, but its {total} runs say {times[0]:.4g} to {times[-1]:.4g} s"
    said += " and no most of them agree"
    if most > 1 and last < start + most:
        agree = slice(start, last + most)
        said = f"near {np.median(times[agree]):.4g} s, as {last + most - start} of the {total} runs of the job say"
        rows = np.delete(rows, agree)
    return dict.fromkeys(rows.tolist(), said)
