"""Judging: every check on a runs table, against what physics expects, as one set of flags."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.catalog.frameworks import framework_slip
from forerun.domain.forecast import Forecasts, is_none
from forerun.domain.job import STATUSES
from forerun.domain.plan import PROBLEMS, WORLD
from forerun.tables.jobs import CUT, Jobs, Runs
from forerun.tables.suspects.flags import (
    FlagKind,
    Flags,
    RaisedFlags,
    Texts,
    finding,
    joined,
    numbers_text,
)
from forerun.tables.suspects.units import (
    FAR,
    LOOSE,
    TIMES,
    UNITS,
    WHOLE_SHARE,
    Kin,
    Reading,
    judged,
    medians,
    readings,
)
from forerun.tables.table import COLUMNS, Lines, Table, unknown_columns
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


def label_unit_flags(runs: Runs, by_label: BoolArray) -> Iterator[RaisedFlags]:
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
) -> Iterator[RaisedFlags]:
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
    yield RaisedFlags(
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
    names = (*_SAME_JOB, *table.own.factors)
    columns = ((name, table.columns[name]) for name in names if name in table)
    varying = [name for name, c in columns if len(c) and bool((c != c[0]).any())]
    return np.asarray(table.groups(varying)[1], dtype=np.int64)


def repeat_flags(runs: Runs, job: IntArray, aside: BoolArray) -> Iterator[RaisedFlags]:
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
    off, several = np.abs(logs - medians(logs, group)), np.bincount(group)[group] > 1
    usual = 1.4826 * float(np.median(off[several])) if several.sum() >= _ENOUGH else 0.0
    limit = np.maximum(min(max(APART, SPREADS * usual), MOST), SPREADS * own)
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
    yield RaisedFlags(
        FlagKind.REPEATS, row, "step_time_s", numbers_text(seconds[row], "s a step"),
        np.array([odd[r] for r in row.tolist()], dtype=object),
        "say in a column (framework, precision, note) what differs, or drop what is wrong; all"
        " are kept",
    )  # fmt: skip


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
    wanted = f"what most runs of the job say, but its {total} runs say {times[0]:.4g} to {times[-1]:.4g} s"
    wanted += " and no most of them agree"
    if most > 1 and last < start + most:
        agree = slice(start, last + most)
        wanted = f"near {np.median(times[agree]):.4g} s, as {last + most - start} of the {total} runs of the job say"
        rows = np.delete(rows, agree)
    return dict.fromkeys(rows.tolist(), wanted)


SLACK = 0.02  # clocks and data sheets are rounded
GIB_OVER_GB = 2**30 / 1e9
AGREE = float(np.log(1.1))  # columns of one row, or repeats, that say the same
_FIGURES = (*TIMES, "epoch_time_s", "time_to_train_s", "memory_gb")
_WIDE = ("fp64", "fp32", "tf32")
# The same fault seen with dp stated, and with dp to be derived from the devices.
_NOT_MULTIPLIED = (
    PROBLEMS[WORLD].partition("{")[0],
    "x partitions=",
    "devices are not divisible by",
)


@np.errstate(divide="ignore", invalid="ignore")
def suspects(runs: Runs, forecasts: Forecasts) -> Flags:
    """Return what looks wrong in n runs, whose forecasts are those of physics.

    Rows that physics declines are flagged with its reason, and compared only with one another.
    """
    n, is_cut = len(runs), runs.jobs.plans.partitions > 1
    if is_cut.any():  # no fit learns from these
        jobs, reasons = runs.jobs, np.full(n, None, dtype=object)
        reasons[:] = jobs.plan_problem
        reasons[is_cut] = CUT
        runs = replace(runs, jobs=replace(jobs, plan_problem=reasons))
        seconds, peaks = (
            np.where(is_cut[:, None], np.nan, v) for v in (forecasts.seconds, forecasts.peak_bytes)
        )
        forecasts = replace(forecasts, seconds=seconds, peak_bytes=peaks)
    expected, peak = np.log(forecasts.seconds[:, 1]), np.log(forecasts.peak_bytes[:, 1])
    floor = np.log(forecasts.floor_seconds)
    columns = readings(runs, expected)
    times = [r for r in columns if r.column in TIMES]
    kin, job, none = Kin.of(runs), jobs_of(runs.table), np.zeros(n, dtype=bool)
    found, wholes = list[RaisedFlags](), [
        f"framework {label!r} is not known, and is taken for a framework of its own: did you mean {near}?"
        for label in sorted({w.framework for w in runs.jobs.workloads if w.framework})
        if (near := framework_slip(label))
    ]  # fmt: skip
    for reading, other in permutations(times, 2):
        found += _against(
            reading, other.log_implied, expected, floor, _rows(found, n), out=False,
            source=partial(", as {} says".format, other.column),
        )  # fmt: skip
    # How many other time columns of each row agree with a column.
    ties = {r.column: np.sum([none, *(np.abs(o.log_implied - r.log_implied) < AGREE
                                      for o in times if o is not r)], axis=0)
            for r in columns}  # fmt: skip
    tied = np.any([none, *(ties[r.column] > 0 for r in times)], axis=0)
    for reading in columns:
        if reading.column != "memory_gb":
            found += _by_repeats(runs, reading, job, expected, floor, _rows(found, n) | tied)
    # The logs by which bands reach below and above their medians, beyond what is usual of the file.
    bands = np.nan_to_num(np.diff(np.log(forecasts.seconds.T), axis=0), posinf=0.0, neginf=0.0)
    doubt = np.stack([np.maximum(band - medians(band, kin.file), 0.0) for band in bands])
    of_time = expected, floor, doubt, _rows(found, n)
    of_memory = peak, np.full(n, -np.inf), np.zeros((2, n)), none
    for reading in columns:
        by = of_memory if reading.column == "memory_gb" else of_time
        found += _by_units(runs, reading, by, kin, ties[reading.column], wholes)
    found += label_unit_flags(runs, ~np.isfinite(expected) & ~_rows(found, n))
    other_unit, places = _rows(found, n), runs.table.places()
    raised = [*problem_flags(runs, forecasts), *found, *disagreement_flags(times, other_unit)]
    clean = cleaned(runs, joined(raised, places))
    raised += [*floor_flags(clean, forecasts), *capacity_flags(clean)]
    raised += repeat_flags(cleaned(runs, joined(raised, places)), job, other_unit)
    raised += [*batch_flags(runs), *placement_flags(runs)]
    own = runs.table.own
    unread = unknown_columns(n for n in runs.table.columns if n not in own.factors)
    return replace(joined(raised, places, wholes), unread=unread, own=own)


def cleaned(runs: Runs, flags: Flags) -> Runs:
    """Return the runs with every figure blank that a flag leaves out; rows and order stay.

    Rows whose workload or device physics does not know keep their figures: predictors that
    learn by label may fit them.
    """
    table, named = runs.table, flags.column.astype(str)
    changed: dict[str, NDArray[np.float64]] = {}
    whole = flags.rows_with(flags.void & flags.out_step)
    for column in _FIGURES:
        rows = flags.rows_with(flags.void & (named == column))
        if column in TIMES:
            rows |= whole
        if column in table and rows.any():
            changed[column] = np.where(rows, np.nan, table.numbers(column))
    return replace(runs, table=table.with_columns(**changed)) if changed else runs


def _rows(raised: Sequence[RaisedFlags], n: int) -> BoolArray:
    marked = np.zeros(n, dtype=bool)
    for one in raised:
        marked[one.row] = True
    return marked


def _unit_flags(
    reading: Reading, row: IntArray, unit: IntArray, sure: BoolArray, likely: FloatArray,
    floor: FloatArray, out: bool = True, source: Callable[[int], str] = lambda _: "",
) -> Iterator[RaisedFlags]:  # fmt: skip
    """Yield the flags of m rows that are in a unit of the reading's; `likely` and `floor` are logs.

    Without `out` a row stays in the fit of time: it has another figure.
    """
    named = [(u.name, u.advice) for u in reading.units]
    named.append(("no unit that is known", "check the figure, the workload and the batch"))
    sign = -1.0 if reading.column.endswith("per_s") else 1.0
    for g in np.unique(unit[unit >= 0]).tolist():
        at, certain, name = row[unit == g], sure[unit == g], named[g]
        value = reading.values[at] * np.exp(sign * (likely[unit == g] - reading.log_implied[at]))
        least = np.where(reading.log_implied[at] < floor[at], np.exp(floor[at]), 0.0)
        expected = [
            f"about {v:.3g} {reading.unit}{source(i)}"
            + (f" (no step under {s:.3g} s is possible at the device's peak)" if s else "")
            for i, v, s in zip(at.tolist(), value.tolist(), least.tolist(), strict=True)
        ]
        yield RaisedFlags(
            FlagKind.UNIT, at, reading.column, numbers_text(reading.values[at], reading.unit),
            np.array(expected, dtype=object), f"it looks like {name[0]}: {name[1]}", void=certain,
            out_step=certain & (out and reading.column in TIMES),
            out_memory=certain & (reading.column == "memory_gb"),
        )  # fmt: skip


def _by_repeats(
    runs: Runs, reading: Reading, job: IntArray, expected: FloatArray, floor: FloatArray,
    left: BoolArray,
) -> Iterator[RaisedFlags]:  # fmt: skip
    """Yield the flags of figures that are, in another unit, those of the repeat nearest to physics."""
    off = np.where(left, np.nan, np.abs(reading.log_implied - expected))
    order = np.lexsort((off, job))
    _, first, index = np.unique(job[order], return_index=True, return_inverse=True)
    nearest = np.empty(len(job), dtype=np.int64)
    nearest[order] = order[first][index]
    places = runs.table.places()
    return _against(
        reading, reading.log_implied[nearest], expected, floor, left, FAR,
        source=lambda row: f", which {places.text(nearest[row])} says of the same job",
    )  # fmt: skip


def _against(
    reading: Reading, other: FloatArray, expected: FloatArray, floor: FloatArray, left: BoolArray,
    least: float = AGREE, out: bool = True, source: Callable[[int], str] = lambda _: "",
) -> Iterator[RaisedFlags]:  # fmt: skip
    """Yield the flags of figures that are, in another unit, another figure of the same job (logs, (n,)).

    Rows of `left` stay aside; figures must be `least` apart, and the wrong one so far off physics.
    """
    off, bias = reading.log_implied - expected, other - expected
    # What is swapped turns round what the other figure is off physics.
    factors = np.stack([u.log_factor - 2.0 * bias * u.swapped for u in reading.units])
    error = np.nan_to_num(np.abs(off - bias - factors), nan=np.inf)
    wrong = (np.minimum(np.abs(off - bias), np.abs(off)) > least) & (np.abs(bias) < LOOSE)
    wrong &= (error.min(axis=0) < AGREE) & (np.abs(bias) < np.abs(off)) & ~left
    row = np.flatnonzero(wrong)
    yield from _unit_flags(
        reading, row, np.argmin(error, axis=0)[row], np.ones(len(row), dtype=bool), other[row],
        floor, out, source,
    )  # fmt: skip


def _by_units(
    runs: Runs, reading: Reading, by: tuple[FloatArray, FloatArray, FloatArray, BoolArray],
    kin: Kin, ties: IntArray, wholes: list[str],
) -> Iterator[RaisedFlags]:  # fmt: skip
    """Yield the flags of one column's units, and add what is found of the column as a whole."""
    expected, floor, doubt, left = by
    ratio = reading.log_implied - expected
    rows = np.flatnonzero(np.isfinite(ratio) & ~left)
    if not len(rows):
        return
    factors = np.stack([unit.log_factor[rows] for unit in reading.units])
    # A corrected value may not lie below the floor either.
    factors[reading.log_implied[rows] - factors < floor[rows] - np.log(1.25)] = np.nan
    beyond: FloatArray = np.where(ratio < 0, doubt[0], doubt[1])[rows]
    found = judged(ratio[rows], factors, reading.units, kin.take(rows), ties[rows], beyond)
    places = runs.table.places()
    there = np.bincount(places.file[rows], minlength=len(places.files))
    for g, unit in enumerate(reading.units):
        ours = np.bincount(places.file[rows[found.unit == g]], minlength=len(places.files))
        wholes += [
            f"{places.files[f] or 'the table'}: the whole column {reading.column} looks like"
            f" {unit.name} ({ours[f]:,} of {there[f]:,} rows)"
            for f in np.flatnonzero((ours >= WHOLE_SHARE * there) & (there >= 3))
        ]
    yield from _unit_flags(
        reading, rows, found.unit, found.sure, expected[rows] + found.centre, floor
    )


def disagreement_flags(times: Sequence[Reading], flagged: BoolArray) -> Iterator[RaisedFlags]:
    """Yield the flags of rows whose time columns imply unlike steps; flagged (n,) are left aside."""
    for reading in times[1:]:
        first = times[0]
        apart = np.abs(reading.log_implied - first.log_implied) > AGREE
        yield finding(
            FlagKind.COLUMNS, apart & ~flagged, first.column,
            (np.exp(first.log_implied), "s a step"),
            (np.exp(reading.log_implied), f"s a step, which {reading.column} implies"),
            f"correct one of them; {first.column} is used",
        )  # fmt: skip


def floor_flags(runs: Runs, forecasts: Forecasts) -> Iterator[RaisedFlags]:
    """Yield the flags of steps that are faster than the device's peak rate allows."""
    seconds, floor = runs.step_seconds(), forecasts.floor_seconds
    row = np.flatnonzero((seconds < floor * (1.0 - SLACK)) & forecasts.answered)
    stated = np.isfinite([runs.table.numbers(column)[row] for column in TIMES])
    columns = np.array([*TIMES, ""], dtype=object)[
        np.where(stated.any(axis=0), stated.argmax(axis=0), -1)
    ]
    advice = ["check the device, the batch and the figure"
              + f"; {p} is taken: fill in precision if it was 16-bit" * (p in _WIDE)
              for p in runs.jobs.take(row).per_workload("precision").tolist()]  # fmt: skip
    yield RaisedFlags(
        FlagKind.FLOOR, row, columns, numbers_text(seconds[row], "s a step"),
        numbers_text(floor[row], "s or more: the device's peak rate allows no less"),
        np.array(advice, dtype=object), void=True, out_step=True,
    )  # fmt: skip


def most_memory_bytes(jobs: Jobs) -> FloatArray:
    """Return how many bytes no peak of a device can pass, (n,): its memory in GiB; NaN where not stated."""
    stated = jobs.per_cluster("device.memory_bytes", np.nan)
    return np.where(stated > 0, stated, np.nan) * GIB_OVER_GB


def capacity_flags(runs: Runs) -> Iterator[RaisedFlags]:
    """Yield the flags of peaks beyond the device's memory."""
    found, limit = runs.table.numbers("memory_gb"), most_memory_bytes(runs.jobs) / 1e9
    yield finding(
        FlagKind.CAPACITY, found > limit, "memory_gb", (found, "GB"),
        (limit, "GB at most: the device has no more"),
        "give the peak of one device, in 1e9 bytes", void=True, out_memory=True,
    )  # fmt: skip


def problem_flags(runs: Runs, forecasts: Forecasts) -> Iterator[RaisedFlags]:
    """Yield the flags of rows that are no job, or hold no figure to learn from."""
    jobs, unread = runs.jobs, runs.table.problems
    unread = np.full(len(runs), None, dtype=object) if unread is None else unread
    readable = is_none(unread)
    yield _reasons(FlagKind.CELL, unread, ~readable, "")
    for kind, reasons, column in (
        (FlagKind.WORKLOAD, jobs.workload_problem, "workload"),
        (FlagKind.CLUSTER, jobs.cluster_problem, "device"),
        (FlagKind.PLAN, jobs.plan_problem, "plan"),
    ):
        if reasons is None:
            continue
        rows = ~is_none(reasons) & readable
        uneven = np.zeros(len(runs), dtype=bool)
        if kind is FlagKind.PLAN:
            rows &= np.asarray(reasons != CUT, dtype=bool)
            uneven[:] = [r is not None and any(w in r for w in _NOT_MULTIPLIED) for r in reasons]
        yield _reasons(FlagKind.DEVICES, reasons, rows & uneven, column)
        yield _reasons(kind, reasons, rows & ~uneven, column)
    silent = jobs.resolved & ~forecasts.answered
    yield _reasons(FlagKind.WORKLOAD, forecasts.declined, silent, "workload")
    status = runs.status
    unknown = np.flatnonzero(~np.isin(status.astype(str), STATUSES))
    yield RaisedFlags(
        FlagKind.STATUS, unknown, "status", status[unknown], "one of ok oom failed timeout",
        "write one of them", out_step=True,
    )  # fmt: skip
    for word, found, advice in (
        ("oom", "it ran out of memory: no time to learn", "it shows where memory ends"),
        ("failed", "it failed: no time to learn", "nothing, or correct its status"),
        ("timeout", "it was stopped: its time is a lower bound", "nothing, or give its step time"),
    ):
        yield finding(FlagKind.ENDED, status == word, "status", found, "", advice, out_step=True)
    yield finding(
        FlagKind.CUT, readable & (jobs.plans.partitions > 1), "partitions",
        "its layers are cut over devices, and no fit learns from such a run", "",
        "nothing, or correct partitions", out_step=True,
    )  # fmt: skip
    yield from _figures(runs, ~readable)


def _reasons(kind: FlagKind, reasons: Texts, rows: BoolArray, column: str) -> RaisedFlags:
    """Return the flags of rows by their reasons, each distinct reason read once."""
    row = np.flatnonzero(rows)
    distinct, position = np.unique(reasons[row].astype(str), return_inverse=True)
    read = [_read(reason, column) for reason in distinct.tolist()]
    columns, found, advice = np.array([*read, ("", "", "")], dtype=object)[position].T
    return RaisedFlags(
        kind, row, columns, found, "", advice, void=kind in (FlagKind.CELL, FlagKind.DEVICES),
        out_step=True, out_memory=True,
    )  # fmt: skip


def _read(reason: str, column: str) -> tuple[str, str, str]:
    """Return (column, what was found, what to do) of a reason, which says `found; what to do`."""
    found, mark, advice = reason.rpartition("; ")
    if not mark:
        found, advice = reason, "correct the row"
    named = next((w for w in re.findall(r"[a-z_]+", reason) if w in COLUMNS), column)
    blank = column == "plan" and advice.startswith(f"fill {named}")
    return (named if not column or named in found or blank else column), found, advice


def _figures(runs: Runs, unread: BoolArray) -> Iterator[RaisedFlags]:
    """Yield the flags of figures that are not above zero, and of rows without a step time."""
    ok = runs.status == "ok"
    wrong = unread | (runs.table.numbers("partitions") > 1)
    for column in _FIGURES:
        values = runs.table.numbers(column)
        bad = ok & ~np.isnan(values) & ~((values > 0) & np.isfinite(values))
        wrong |= bad
        yield finding(
            FlagKind.CELL, bad, column, (values, ""), "a number above zero",
            "correct it, or leave it blank", void=True, out_step=column in TIMES,
            out_memory=column == "memory_gb",
        )  # fmt: skip
    yield finding(
        FlagKind.UNMEASURED, ok & np.isnan(runs.step_seconds()) & ~wrong, "step_time_s",
        "no step time: neither step_time_s nor a rate with global_batch", "",
        "fill in step_time_s, and its time is used", out_step=True,
    )  # fmt: skip


def placement_flags(runs: Runs) -> Iterator[RaisedFlags]:
    """Yield the flags of rows whose devices lie unevenly on their nodes, with no placement."""
    devices, nodes = runs.table.numbers("devices"), runs.table.numbers("nodes")
    uneven = runs.jobs.resolved & (np.mod(devices, nodes) > 0)
    yield finding(
        FlagKind.PLACEMENT, uneven & (runs.table.texts("placement") == ""), "devices",
        (devices, ""), (nodes, "nodes to divide it, else where they lie"),
        "correct one of the counts, or give a placement (as 8-8-7-7); it is kept",
    )  # fmt: skip


def batch_flags(runs: Runs) -> Iterator[RaisedFlags]:
    """Yield the flags of batches that do not multiply out, and of those that are assumed."""
    jobs, plans = runs.jobs, runs.jobs.plans
    # `runs_from_table` fills a blank batch in; the labels are the cells as they were given.
    given = runs.table if jobs.labels is None else jobs.labels
    # Which rows state a count, in a cell of its own or in that of the plan.
    batch, micro, passes = (
        ~np.isnan(given.numbers(n)) | np.array([n in text for text in given.texts("plan")], bool)
        for n in ("global_batch", "micro_batch", "grad_accum")
    )
    inner = plans.micro_batch.astype(np.float64) * plans.dp
    accumulated, implied = runs.table.numbers("grad_accum"), plans.global_batch / inner
    unlike = ~np.isnan(accumulated) & (accumulated != implied)
    yield finding(
        FlagKind.ACCUMULATION, jobs.resolved & micro & batch & passes & unlike, "grad_accum",
        (accumulated, ""), (implied, "= global_batch / (micro_batch x dp)"),
        "correct one of them; the batch columns are used, not grad_accum",
    )  # fmt: skip
    uneven = plans.global_batch % np.maximum(inner, 1.0) != 0
    # A stated accumulation has its own flag.
    uneven &= jobs.resolved & batch & ~(micro & ~np.isnan(accumulated))
    for by_micro, divisor, name in ((True, inner, "micro_batch x dp"), (False, plans.dp, "dp")):
        one = finding(
            FlagKind.ACCUMULATION, uneven & (micro == by_micro), "global_batch",
            (plans.global_batch, "samples"), (divisor, f"= {name}"),
            "correct one of them; the last micro-batch is taken as smaller",
        )  # fmt: skip
        yield replace(one, expected="a multiple of " + one.expected)
    yield finding(
        FlagKind.BATCH, jobs.resolved & micro & ~batch & ~passes, "global_batch", "blank",
        (inner, "= micro_batch x dp, which is taken"), "fill it in, or grad_accum",
    )  # fmt: skip
