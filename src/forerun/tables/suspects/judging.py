"""Judging: every check on a runs table, against what physics expects, as one set of flags."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.domain.forecast import Forecasts, is_none
from forerun.domain.job import STATUSES
from forerun.domain.plan import PROBLEMS, WORLD
from forerun.tables.jobs import Jobs, Runs
from forerun.tables.suspects.flags import (
    Finding,
    FlagKind,
    Flags,
    Texts,
    finding,
    joined,
    numbers_text,
)
from forerun.tables.suspects.repeats import jobs_of, label_unit_flags, repeat_flags
from forerun.tables.suspects.units import (
    FAR,
    LOOSE,
    TIMES,
    WHOLE_SHARE,
    Kin,
    Reading,
    judged,
    medians,
    readings,
)
from forerun.tables.table import COLUMNS, Table, unknown_columns

SLACK = 0.02  # clocks and data sheets are rounded
GIB_OVER_GB = 2**30 / 1e9
AGREE = float(np.log(1.1))  # columns of one row, or repeats, that say the same
_FIGURES = (*TIMES, "epoch_time_s", "time_to_train_s", "memory_gb")
_WIDE = ("fp64", "fp32", "tf32")
# The same fault seen with dp stated, and with dp to be derived from the devices.
_NOT_MULTIPLIED = (PROBLEMS[WORLD].partition("{")[0], "not divisible by tp x pp x cp")


@np.errstate(divide="ignore", invalid="ignore")
def suspects(runs: Runs, forecasts: Forecasts) -> Flags:
    """Return what looks wrong in n runs, whose forecasts are those of physics.

    Rows that physics declines are flagged with its reason, and compared only with one another.
    """
    n = len(runs)
    expected, peak = np.log(forecasts.seconds[:, 1]), np.log(forecasts.peak_bytes[:, 1])
    floor = np.log(forecasts.floor_seconds)
    columns = readings(runs, expected)
    times = [r for r in columns if r.column in TIMES]
    kin, job, none = Kin.of(runs), jobs_of(runs.table), np.zeros(n, dtype=bool)
    found, wholes = list[Finding](), list[str]()
    for reading, other in permutations(times, 2):
        found += _against(
            reading, other.log_implied, expected, floor, _rows(found, n), out=False,
            source=_column_says(other.column),
        )  # fmt: skip
    ties = {r.column: _ties(times, r) for r in columns}
    tied = np.any([none, *(ties[r.column] > 0 for r in times)], axis=0)
    for reading in columns:
        if reading.column != "memory_gb":
            found += _by_repeats(runs, reading, job, expected, floor, _rows(found, n) | tied)
    of_time = expected, floor, _doubt(forecasts, kin), _rows(found, n)
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
    return replace(joined(raised, places, wholes), unread=unknown_columns(runs.table.columns))


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


def _column_says(column: str) -> Callable[[int], str]:
    return lambda _: f", as {column} says"


def _rows(raised: Sequence[Finding], n: int) -> BoolArray:
    marked = np.zeros(n, dtype=bool)
    for one in raised:
        marked[one.row] = True
    return marked


def _doubt(forecasts: Forecasts, kin: Kin) -> FloatArray:
    """Return the logs by which bands reach below and above their medians beyond the usual, (2, n)."""
    low, middle, high = np.log(forecasts.seconds.T)
    bands = np.nan_to_num([middle - low, high - middle], nan=0.0, posinf=0.0, neginf=0.0)
    return np.stack([np.maximum(band - medians(band, kin.file), 0.0) for band in bands])


def _ties(times: Sequence[Reading], reading: Reading) -> IntArray:
    """Return how many other time columns of each row agree with this one, (n,)."""
    agree = [
        np.abs(other.log_implied - reading.log_implied) < AGREE
        for other in times if other is not reading
    ]  # fmt: skip
    return np.asarray(np.sum([np.zeros(len(reading.values), dtype=bool), *agree], axis=0))


def _unit_flags(
    reading: Reading, row: IntArray, unit: IntArray, sure: BoolArray, likely: FloatArray,
    floor: FloatArray, out: bool = True, source: Callable[[int], str] = lambda _: "",
) -> Iterator[Finding]:  # fmt: skip
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
        yield Finding(
            FlagKind.UNIT, at, reading.column, numbers_text(reading.values[at], reading.unit),
            np.array(expected, dtype=object), f"it looks like {name[0]}: {name[1]}", void=certain,
            out_step=certain & (out and reading.column in TIMES),
            out_memory=certain & (reading.column == "memory_gb"),
        )  # fmt: skip


def _by_repeats(
    runs: Runs, reading: Reading, job: IntArray, expected: FloatArray, floor: FloatArray,
    left: BoolArray,
) -> Iterator[Finding]:  # fmt: skip
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
) -> Iterator[Finding]:  # fmt: skip
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
) -> Iterator[Finding]:  # fmt: skip
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


def disagreement_flags(times: Sequence[Reading], flagged: BoolArray) -> Iterator[Finding]:
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


def floor_flags(runs: Runs, forecasts: Forecasts) -> Iterator[Finding]:
    """Yield the flags of steps that are faster than the device's peak rate allows."""
    seconds, floor = runs.step_seconds(), forecasts.floor_seconds
    row = np.flatnonzero((seconds < floor * (1.0 - SLACK)) & forecasts.answered)
    stated = np.isfinite([runs.table.numbers(column)[row] for column in TIMES])
    columns = np.array([*TIMES, ""], dtype=object)[
        np.where(stated.any(axis=0), stated.argmax(axis=0), -1)
    ]
    advice = np.full(len(row), "check the device, the batch and the figure", dtype=object)
    for i, w in enumerate(runs.jobs.workload_index[row]):
        precision = runs.jobs.workloads[w].precision
        if precision in _WIDE:
            advice[i] += f"; {precision} is taken: fill in precision if it was 16-bit"
    yield Finding(
        FlagKind.FLOOR, row, columns, numbers_text(seconds[row], "s a step"),
        numbers_text(floor[row], "s or more: the device's peak rate allows no less"),
        advice, void=True, out_step=True,
    )  # fmt: skip


def most_memory_bytes(jobs: Jobs) -> FloatArray:
    """Return how many bytes no peak of a device can pass, (n,): its memory in GiB; NaN where not stated."""
    stated = np.array([c.device.memory_bytes or np.nan for c in jobs.clusters] + [np.nan])
    return np.asarray(stated[jobs.cluster_index] * GIB_OVER_GB)


def capacity_flags(runs: Runs) -> Iterator[Finding]:
    """Yield the flags of peaks beyond the device's memory."""
    found, limit = runs.table.numbers("memory_gb"), most_memory_bytes(runs.jobs) / 1e9
    yield finding(
        FlagKind.CAPACITY, found > limit, "memory_gb", (found, "GB"),
        (limit, "GB at most: the device has no more"),
        "give the peak of one device, in 1e9 bytes", void=True, out_memory=True,
    )  # fmt: skip


def problem_flags(runs: Runs, forecasts: Forecasts) -> Iterator[Finding]:
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
            uneven[:] = [r is not None and any(w in r for w in _NOT_MULTIPLIED) for r in reasons]
        yield _reasons(FlagKind.DEVICES, reasons, rows & uneven, column)
        yield _reasons(kind, reasons, rows & ~uneven, column)
    silent = jobs.resolved & ~forecasts.answered
    yield _reasons(FlagKind.WORKLOAD, forecasts.declined, silent, "workload")
    yield from _statuses(runs)
    yield from _figures(runs, ~readable)


def _reasons(kind: FlagKind, reasons: Texts, rows: BoolArray, column: str) -> Finding:
    """Return the flags of rows by their reasons, each distinct reason read once."""
    row = np.flatnonzero(rows)
    distinct, position = np.unique(reasons[row].astype(str), return_inverse=True)
    read = [_read(reason, column) for reason in distinct.tolist()]
    columns, found, advice = np.array([*read, ("", "", "")], dtype=object)[position].T
    return Finding(
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


def _statuses(runs: Runs) -> Iterator[Finding]:
    status = runs.status
    unknown = np.flatnonzero(~np.isin(status.astype(str), STATUSES))
    yield Finding(
        FlagKind.STATUS, unknown, "status", status[unknown], "one of ok oom failed timeout",
        "write one of them", out_step=True,
    )  # fmt: skip
    for word, found, advice in (
        ("oom", "it ran out of memory: no time to learn", "it shows where memory ends"),
        ("failed", "it failed: no time to learn", "nothing, or correct its status"),
        ("timeout", "it was stopped: its time is a lower bound", "nothing, or give its step time"),
    ):
        yield finding(FlagKind.ENDED, status == word, "status", found, "", advice, out_step=True)


def _figures(runs: Runs, unread: BoolArray) -> Iterator[Finding]:
    """Yield the flags of figures that are not above zero, and of rows without a step time."""
    ok = runs.status == "ok"
    wrong = unread.copy()
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


def placement_flags(runs: Runs) -> Iterator[Finding]:
    """Yield the flags of rows whose devices lie unevenly on their nodes, with no placement."""
    devices, nodes = runs.table.numbers("devices"), runs.table.numbers("nodes")
    uneven = runs.jobs.resolved & (np.mod(devices, nodes) > 0)
    yield finding(
        FlagKind.PLACEMENT, uneven & (runs.table.texts("placement") == ""), "devices",
        (devices, ""), (nodes, "nodes to divide it, else where they lie"),
        "correct one of the counts, or give a placement (as 8-8-7-7); it is kept",
    )  # fmt: skip


def batch_flags(runs: Runs) -> Iterator[Finding]:
    """Yield the flags of batches that do not multiply out, and of those that are assumed."""
    jobs, plans = runs.jobs, runs.jobs.plans
    # `runs_from_table` fills a blank batch in; the labels are the cells as they were given.
    given = runs.table if jobs.labels is None else jobs.labels
    batch, micro, passes = (
        _stated(given, n) for n in ("global_batch", "micro_batch", "grad_accum")
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


def _stated(given: Table, name: str) -> BoolArray:
    """Return which rows state a count, in a cell of its own or in that of the plan, (n,)."""
    in_plan = np.array([name in text for text in given.texts("plan")], dtype=bool)
    return np.asarray(in_plan | ~np.isnan(given.numbers(name)))
