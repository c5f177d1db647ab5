"""Judging: every check on a runs table, against what physics expects, as one set of flags.

The policy, by kind, is `flags.POLICY`. `cleaned` blanks what is left out, so that a row whose time
is in doubt still teaches the memory that it measured, and no wrong figure is averaged in.

Batches: global batches that the plan does not multiply to, or that are left blank.

Repeated units: figures that a repeat of the same job shows to be in another unit.

Row problems: rows that teach nothing as they stand, each with its own reason.

Physics: figures that no machine could have: faster than its peak, or more than its memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.domain.forecast import Forecasts, is_none
from forerun.domain.job import STATUSES
from forerun.domain.plan import PROBLEMS, WORLD
from forerun.tables.jobs import Jobs, Runs
from forerun.tables.suspects.flags import FlagKind, Flags, Raised, Texts, joined, numbers_text
from forerun.tables.suspects.repeats import (
    AGREE,
    disagreement_flags,
    jobs_of,
    label_unit_flags,
    repeat_flags,
)
from forerun.tables.suspects.units import (
    FAR,
    LOOSE,
    WHOLE_SHARE,
    ImpliedStep,
    Kin,
    judged,
    kin_of,
    memory_reading,
    own_doubt,
    sizes_of,
    step_readings,
)
from forerun.tables.table import COLUMNS, Table, unknown_columns

# Clocks and data sheets are rounded: so much less than the bound is no contradiction.
SLACK = 0.02
GIB_OVER_GB = 2**30 / 1e9
_WIDE = ("fp64", "fp32", "tf32")


def floor_flags(runs: Runs, forecasts: Forecasts, column: Texts) -> Iterator[Raised]:
    """Yield the flags of steps below their floor.

    Args:
        runs, forecasts: n rows each; figures that are already left out are blank.
        column: (n,) which column tells each row's step.
    """
    seconds, floor = runs.step_seconds(), forecasts.floor_seconds
    with np.errstate(invalid="ignore"):
        below = (seconds < floor * (1.0 - SLACK)) & forecasts.answered
    row = np.flatnonzero(below)
    if not len(row):
        return
    least = numbers_text(floor[row], "s or more: the device's peak rate allows no less")
    yield Raised(
        FlagKind.FLOOR, row, column[row], _as_step(seconds[row], column[row]), least,
        _floor_advice(runs, seconds, floor, row), void=True, out_step=True,
    )  # fmt: skip


def _as_step(seconds: FloatArray, column: Texts) -> Texts:
    texts = numbers_text(seconds, "s a step")
    return np.where(column == "step_time_s", numbers_text(seconds, "s"), texts)


def _floor_advice(
    runs: Runs, seconds: FloatArray, floor: FloatArray, row: NDArray[np.int64]
) -> Texts:
    """Return what to do, (m,): where 16-bit arithmetic could be so fast, that is said."""
    jobs = runs.jobs
    faster = np.ones(len(row))
    workload, cluster = jobs.workload_index[row], jobs.cluster_index[row]
    precision = np.array([w.precision for w in jobs.workloads])[workload]
    for name in _WIDE:
        gain = np.array([_gain(c.device.peak_flops, name) for c in jobs.clusters])[cluster]
        faster = np.where(precision == name, gain, faster)
    possible = seconds[row] >= floor[row] / faster * (1.0 - SLACK)
    check = "check the device, the batch and the figure"
    texts = [
        f"{p} is taken: fill in precision if it was 16-bit" if yes else check
        for p, yes in zip(precision.tolist(), possible.tolist(), strict=True)
    ]
    return np.array(texts, dtype=object)


def _gain(peak_flops: object, name: str) -> float:
    rates = dict(peak_flops) if isinstance(peak_flops, dict) else {}
    wide = max(rates.get(name, 0.0), rates.get("tf32", 0.0) if name == "fp32" else 0.0)
    return max(rates.get("fp16", 0.0), rates.get("bf16", 0.0)) / wide if wide else 1.0


def most_memory_bytes(jobs: Jobs) -> FloatArray:
    """Return how many bytes no peak of a device can pass, (n,): its memory; NaN where not stated.

    Data sheets say GB where cards hold GiB, so that a peak may well lie above the stated figure.
    """
    stated = np.array([c.device.memory_bytes or np.nan for c in jobs.clusters] + [np.nan])
    return np.asarray(stated[jobs.cluster_index] * GIB_OVER_GB)


def capacity_flags(runs: Runs) -> Iterator[Raised]:
    """Yield the flags of peaks beyond the device's memory."""
    found, limit = runs.table.numbers("memory_gb"), most_memory_bytes(runs.jobs) / 1e9
    with np.errstate(invalid="ignore"):
        row = np.flatnonzero(found > limit)
    if len(row):
        yield Raised(
            FlagKind.CAPACITY, row, "memory_gb", numbers_text(found[row], "GB"),
            numbers_text(limit[row], "GB at most: the device has no more"),
            "give the peak of one device, in 1e9 bytes", void=True, out_memory=True,
        )  # fmt: skip


def floor_words(log_implied: FloatArray, log_floor: FloatArray) -> Texts:
    """Return what adds to an expected value that a step below its floor cannot be, (m,); else ""."""
    least = np.where(log_implied < log_floor, np.exp(log_floor), 0.0)
    texts = [
        f" (no step under {s:.3g} s is possible at the device's peak)" if s else "" for s in least
    ]
    return np.array(texts, dtype=object)


_TIMES = ("step_time_s", "samples_per_s", "tokens_per_s")
_POSITIVE = (
    "step_time_s",
    "samples_per_s",
    "tokens_per_s",
    "epoch_time_s",
    "time_to_train_s",
    "memory_gb",
)
# The same fault seen with dp stated, and with dp to be derived from the devices.
_NOT_MULTIPLIED = (PROBLEMS[WORLD].partition("{")[0], "not divisible by tp x pp x cp")


def problem_flags(runs: Runs, forecasts: Forecasts) -> Iterator[Raised]:
    """Yield the flags of rows that are no job, or hold no figure to learn from."""
    jobs, n = runs.jobs, len(runs)
    unread = np.zeros(n, dtype=bool)
    if runs.table.problems is not None:
        unread = ~is_none(runs.table.problems)
        yield _reasons(FlagKind.CELL, runs.table.problems, unread, "")
    for kind, reasons, column in (
        (FlagKind.WORKLOAD, jobs.workload_problem, "workload"),
        (FlagKind.CLUSTER, jobs.cluster_problem, "device"),
        (FlagKind.PLAN, jobs.plan_problem, "plan"),
    ):
        if reasons is None:
            continue
        rows = ~is_none(reasons) & ~unread
        uneven = rows & _uneven_plan(reasons) if kind is FlagKind.PLAN else np.zeros(n, dtype=bool)
        yield _reasons(FlagKind.DEVICES, reasons, uneven, column)
        yield _reasons(kind, reasons, rows & ~uneven, column)
    silent = jobs.resolved & ~forecasts.answered
    yield _reasons(FlagKind.WORKLOAD, forecasts.declined, silent, "workload")
    yield from _statuses(runs)
    yield from _figures(runs, unread)


def placement_flags(runs: Runs) -> Iterator[Raised]:
    """Yield the flags of rows whose devices lie unevenly on their nodes, nobody says how."""
    table = runs.table
    devices, nodes = table.numbers("devices"), table.numbers("nodes")
    with np.errstate(invalid="ignore", divide="ignore"):
        left = np.mod(devices, nodes)
    row = np.flatnonzero(runs.jobs.resolved & (left > 0) & (table.texts("placement") == ""))
    yield Raised(
        FlagKind.PLACEMENT, row, "devices", numbers_text(devices[row]),
        numbers_text(nodes[row], "nodes to divide it, else where they lie"),
        "correct one of the counts, or give a placement (as 8-8-7-7); it is kept",
    )  # fmt: skip


def _reasons(kind: FlagKind, reasons: Texts, rows: BoolArray, column: str) -> Raised:
    """Return the flags of rows by their reasons, each distinct reason read once."""
    row = np.flatnonzero(rows)
    distinct, position = np.unique(reasons[row].astype(str), return_inverse=True)
    read = [_read(reason, column) for reason in distinct.tolist()]
    columns, found, advice = (
        np.array([r[i] for r in read] + [""], dtype=object)[position] for i in range(3)
    )
    return Raised(
        kind, row, columns, found, "", advice, void=kind in (FlagKind.CELL, FlagKind.DEVICES),
        out_step=True, out_memory=True,
    )  # fmt: skip


def _uneven_plan(reasons: Texts) -> BoolArray:
    """Return which rows have a plan that does not multiply to the devices, (n,)."""
    distinct, position = np.unique(reasons.astype(str), return_inverse=True)
    uneven = [any(words in reason for words in _NOT_MULTIPLIED) for reason in distinct.tolist()]
    return np.array(uneven, dtype=bool)[position]


def _read(reason: str, column: str) -> tuple[str, str, str]:
    """Return (column, what was found, what to do) of a reason, which says `found; what to do`."""
    found, mark, advice = reason.rpartition("; ")
    if not mark:
        found, advice = reason, "mend the row"
    named = next((w for w in re.findall(r"[a-z_]+", reason) if w in COLUMNS), column)
    blank = column == "plan" and advice.startswith(f"fill {named}")
    return (named if not column or named in found or blank else column), found, advice


def _statuses(runs: Runs) -> Iterator[Raised]:
    status = runs.status
    unknown = np.flatnonzero(~np.isin(status.astype(str), STATUSES))
    yield Raised(
        FlagKind.STATUS, unknown, "status", status[unknown], "one of ok oom failed timeout",
        "write one of them", out_step=True,
    )  # fmt: skip
    for word, said, advice in (
        ("oom", "it ran out of memory: no time to learn", "it teaches where memory ends"),
        ("failed", "it failed: no time to learn", "nothing, or mend its status"),
        ("timeout", "it was stopped: its time is a lower bound", "nothing, or give its step time"),
    ):
        ended = np.flatnonzero(status == word)
        yield Raised(FlagKind.ENDED, ended, "status", said, "", advice, out_step=True)


def _figures(runs: Runs, unread: BoolArray) -> Iterator[Raised]:
    ok = runs.status == "ok"
    table = runs.table
    wrong = unread.copy()
    for column in _POSITIVE:
        values = table.numbers(column)
        bad = ok & ~np.isnan(values) & ~((values > 0) & np.isfinite(values))
        wrong |= bad
        row = np.flatnonzero(bad)
        times = column in _TIMES
        yield Raised(
            FlagKind.CELL, row, column, numbers_text(values[row]), "a number above zero",
            "correct it, or leave it blank", void=True, out_step=times,
            out_memory=column == "memory_gb",
        )  # fmt: skip
    row = np.flatnonzero(ok & np.isnan(runs.step_seconds()) & ~wrong)
    yield Raised(
        FlagKind.UNMEASURED, row, "step_time_s", "no step time: neither step_time_s nor a rate with"
        " global_batch", "", "fill in step_time_s to teach time", out_step=True,
    )  # fmt: skip


def repeated_unit_flags(
    runs: Runs,
    readings: Sequence[ImpliedStep],
    physics: tuple[FloatArray, FloatArray],
    left: BoolArray,
) -> Iterator[Raised]:
    """Yield the flags of figures that are a repeat's own in another unit.

    Such a figure lies far off physics and off the repeat that is nearest to physics, and from
    that by what a unit is worth.

    Args:
        runs: n of them.
        readings: of their time columns.
        physics: (n,) logs of the step seconds that it expects, and of the least that can be.
        left: (n,) rows that are left aside.
    """
    expected, floor = physics
    for reading in readings if len(runs) > 1 else ():
        off = reading.log_implied - expected
        rows = np.flatnonzero(np.isfinite(off) & ~left)
        if len(rows) < 2:
            continue
        likely = rows[_nearest(np.abs(off[rows]), jobs_of(runs.table.take(rows)))]
        gap = off[rows] - off[likely]
        far = (np.minimum(np.abs(gap), np.abs(off[rows])) > FAR) & (np.abs(off[likely]) < LOOSE)
        guess = _best(reading, rows, gap, off[likely])
        for g in np.unique(guess[far & (guess >= 0)]).tolist():
            mine = far & (guess == g)
            words = floor_words(reading.log_implied[rows[mine]], floor[rows[mine]])
            yield _raised(runs, reading, g, rows[mine], likely[mine], words)


def _nearest(distance: FloatArray, job: IntArray) -> IntArray:
    """Return the position of the row of each row's job that is nearest, (m,)."""
    order = np.lexsort((distance, job))
    counts = np.bincount(job)
    return np.asarray(order[np.cumsum(counts) - counts][job])


def _best(reading: ImpliedStep, rows: IntArray, gap: FloatArray, bias: FloatArray) -> IntArray:
    """Return the guess that a gap (m,) is worth, -1 where it is none's."""
    # What is swapped turns round what the repeat is off physics.
    left = np.stack([
        np.abs(gap - (g.log_factor[rows] - (2.0 * bias if g.swapped else 0.0)))
        for g in reading.guesses
    ])  # fmt: skip
    left = np.nan_to_num(left, nan=np.inf)
    best = np.argmin(left, axis=0)
    return np.where(left[best, np.arange(len(best))] < AGREE, best, -1)


def _raised(
    runs: Runs, reading: ImpliedStep, g: int, row: IntArray, likely: IntArray, more: Texts
) -> Raised:
    guess, places = reading.guesses[g], runs.table.places()
    says = zip(reading.values[likely].tolist(), likely.tolist(), strict=True)
    expected = [
        f"about {value:.3g} {reading.unit}, which {places.text(r)} says of the same job"
        for value, r in says
    ]
    return Raised(
        FlagKind.UNIT, row, reading.column, numbers_text(reading.values[row], reading.unit),
        np.array(expected, dtype=object) + more, f"it looks like {guess.unit}: {guess.advice}",
        void=True, out_step=reading.column in _TIMES,
    )  # fmt: skip


def batch_flags(runs: Runs) -> Iterator[Raised]:
    """Yield the flags of batches that do not multiply out, and of those that are assumed.

    Rows whose job cannot be read are left aside: they have their own reason.
    """
    jobs = runs.jobs
    # `runs_from_table` fills a blank batch in; the labels are the cells as they were given.
    given = runs.table if jobs.labels is None else jobs.labels
    batch, micro, passes = (
        _stated(given, name) for name in ("global_batch", "micro_batch", "grad_accum")
    )
    resolved, plans = jobs.resolved, jobs.plans
    inner = plans.micro_batch.astype(np.float64) * plans.dp
    whole = plans.global_batch % np.maximum(inner, 1.0) == 0
    yield _accumulations(runs, inner, resolved & micro & batch & passes)
    yield _uneven(runs, np.where(micro, inner, plans.dp), micro, resolved & batch & ~whole)
    yield _assumed(inner, np.flatnonzero(resolved & micro & ~batch & ~passes))


def _stated(given: Table, name: str) -> BoolArray:
    """Return which rows state a count, in a cell of its own or in that of the plan, (n,)."""
    texts, position = np.unique(given.texts("plan").astype(str), return_inverse=True)
    named = np.array([name in text for text in texts.tolist()], dtype=bool)[position]
    return np.asarray(named | ~np.isnan(given.numbers(name)))


def _accumulations(runs: Runs, inner: FloatArray, stated: BoolArray) -> Raised:
    """Return the flags of accumulations that are not global_batch / (micro_batch x dp)."""
    passes, implied = runs.table.numbers("grad_accum"), runs.jobs.plans.global_batch / inner
    row = np.flatnonzero(stated & ~np.isnan(passes) & (passes != implied))
    return Raised(
        FlagKind.ACCUMULATION, row, "grad_accum", numbers_text(passes[row]),
        numbers_text(implied[row], "= global_batch / (micro_batch x dp)"),
        "correct one of them; the batch columns are used, not grad_accum",
    )  # fmt: skip


def _uneven(runs: Runs, inner: FloatArray, micro: BoolArray, uneven: BoolArray) -> Raised:
    """Return the flags of batches that are no multiple of micro_batch x dp, or of dp alone."""
    # A stated accumulation has its own flag.
    row = np.flatnonzero(uneven & ~(micro & ~np.isnan(runs.table.numbers("grad_accum"))))
    expected = [
        f"a multiple of {size:.10g} = {'micro_batch x dp' if by_micro else 'dp'}"
        for size, by_micro in zip(inner[row].tolist(), micro[row].tolist(), strict=True)
    ]
    return Raised(
        FlagKind.ACCUMULATION, row, "global_batch",
        numbers_text(runs.jobs.plans.global_batch[row].astype(np.float64), "samples"),
        np.array(expected, dtype=object),
        "correct one of them; the last micro-batch is taken as smaller",
    )  # fmt: skip


def _assumed(inner: FloatArray, row: NDArray[np.int64]) -> Raised:
    """Return the flags of blank batches that are taken as one pass of every device."""
    return Raised(
        FlagKind.BATCH, row, "global_batch", "blank",
        numbers_text(inner[row], "= micro_batch x dp, which is taken"),
        "fill it in, or grad_accum",
    )  # fmt: skip


def suspects(runs: Runs, forecasts: Forecasts) -> Flags:
    """Return what looks wrong in n runs.

    Args:
        runs: facts, as they were given.
        forecasts: what physics expects of the same n jobs (step seconds, peak bytes, floors);
            rows that it declines are flagged with its reason, and only against one another.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        expected, peak = np.log(forecasts.seconds[:, 1]), np.log(forecasts.peak_bytes[:, 1])
        floor = np.log(forecasts.floor_seconds)
    sizes = sizes_of(runs, expected)
    readings = step_readings(runs, sizes)
    times = [r for r in readings if r.column in _TIMES]
    kin, wholes = kin_of(runs), list[str]()
    bands, no_band = _bands(forecasts), np.zeros((2, len(runs)))
    raised = list(problem_flags(runs, forecasts))
    found = _by_pairs(times, expected)
    ties = np.max([_ties(times, r, len(runs)) for r in times], axis=0) if times else no_band[0]
    found += repeated_unit_flags(
        runs, readings, (expected, floor), _rows(found, len(runs)) | (ties > 0)
    )
    wrong = _rows(found, len(runs))
    for reading in readings:
        ask = _Ask(reading, times, expected, bands, floor, kin, wrong)
        found += _by_units(runs, ask, wholes)
    found += label_unit_flags(runs, ~np.isfinite(expected) & ~_rows(found, len(runs)))
    memory = memory_reading(runs)
    if memory is not None:
        unbound = np.full(len(runs), -np.inf)
        found += _by_units(
            runs, _Ask(memory, (), peak, no_band, unbound, kin, wrong & False), wholes
        )
    raised += found
    raised += disagreement_flags(times, _rows(found, len(runs)))
    places = runs.table.places()
    clean = cleaned(runs, joined(raised, places))
    raised += [*floor_flags(clean, forecasts, _column_used(clean)), *capacity_flags(clean)]
    raised += repeat_flags(cleaned(runs, joined(raised, places)), _rows(found, len(runs)))
    raised += [*batch_flags(runs), *placement_flags(runs)]
    return replace(joined(raised, places, wholes), unread=unknown_columns(runs.table.columns))


def cleaned(runs: Runs, flags: Flags) -> Runs:
    """Return the runs with every figure blank that a flag leaves out; rows and order stay.

    Rows whose workload or device physics does not know keep their figures: they may teach whoever
    learns by label.
    """
    table, named = runs.table, flags.column.astype(str)
    changed: dict[str, NDArray[np.float64]] = {}
    whole = flags.rows_with(flags.void & flags.out_step)
    for column in (*_TIMES, "epoch_time_s", "time_to_train_s", "memory_gb"):
        rows = flags.rows_with(flags.void & (named == column))
        if column in _TIMES:
            rows |= whole
        if column in table and rows.any():
            changed[column] = np.where(rows, np.nan, table.numbers(column))
    return replace(runs, table=table.with_columns(**changed)) if changed else runs


def _bands(forecasts: Forecasts) -> FloatArray:
    """Return the logs by which the forecasts' p05 and p95 lie off their medians, (2, n)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        low, middle, high = np.log(forecasts.seconds.T)
        bands = np.stack([middle - low, high - middle])
    return np.where(np.isfinite(bands), bands, 0.0)


def _rows(raised: Sequence[Raised], n: int) -> BoolArray:
    marked = np.zeros(n, dtype=bool)
    for one in raised:
        marked[one.row] = True
    return marked


def _column_used(runs: Runs) -> Texts:
    """Return which column tells each row's step, (n,)."""
    used = np.full(len(runs), "", dtype=object)
    for column in reversed(_TIMES):
        used[np.isfinite(runs.table.numbers(column))] = column
    return used


def _by_pairs(times: Sequence[ImpliedStep], expected: FloatArray) -> list[Raised]:
    """Return the flags of columns that another column of their row shows to be in another unit."""
    found: list[Raised] = []
    for reading in times:
        for other in times:
            gap = reading.log_implied - other.log_implied
            nearer = np.abs(other.log_implied - expected) < np.abs(reading.log_implied - expected)
            for guess in reading.guesses if reading is not other else ():
                with np.errstate(invalid="ignore"):
                    match = (np.abs(gap - guess.log_factor) < AGREE) & (np.abs(gap) > np.log(1.5))
                row = np.flatnonzero(match & nearer & ~_rows(found, len(match)))
                says = np.exp(other.log_implied[row])
                found.append(
                    Raised(
                        FlagKind.UNIT, row, reading.column,
                        numbers_text(reading.values[row], reading.unit),
                        numbers_text(says, f"s a step, as {other.column} says"),
                        f"it looks like {guess.unit}: {guess.advice}", void=True,
                    )
                )  # fmt: skip
    return found


@dataclass(frozen=True)
class _Ask:
    """A reading with what it is judged by, columns (n,); bands (2, n), logs below and above."""

    reading: ImpliedStep
    times: Sequence[ImpliedStep]
    expected: FloatArray
    bands: FloatArray
    floor: FloatArray
    kin: Kin
    left: BoolArray


def _by_units(runs: Runs, ask: _Ask, wholes: list[str]) -> list[Raised]:
    """Return the flags of one column's units, and add what is said of the column as a whole."""
    reading = ask.reading
    ratio = reading.log_implied - ask.expected
    rows = np.flatnonzero(np.isfinite(ratio) & ~ask.left)
    if not len(rows):
        return []
    factors = np.stack([guess.log_factor[rows] for guess in reading.guesses])
    # A mended value may not lie below the floor either.
    with np.errstate(invalid="ignore"):
        factors[reading.log_implied[rows] - factors < ask.floor[rows] - np.log(1.25)] = np.nan
    kin = ask.kin.take(rows)
    doubt = own_doubt(ratio[rows], ask.bands[:, rows], kin)
    verdicts = judged(
        ratio[rows], factors, reading, kin, _ties(ask.times, reading, len(runs))[rows], doubt
    )
    found: list[Raised] = []
    memory = reading.column == "memory_gb"
    for g, (unit, advice) in enumerate(_units(reading)):
        mine = np.flatnonzero(verdicts.guess == g)
        if not len(mine):
            continue
        row, sure = rows[mine], verdicts.sure[mine]
        wholes += _whole(runs, reading, unit, row, rows)
        found.append(
            Raised(
                FlagKind.UNIT, row, reading.column, numbers_text(reading.values[row], reading.unit),
                _near(ask, row, verdicts.centre[mine]),
                f"it looks like {unit}: {advice}", void=sure,
                out_step=sure & (reading.column in _TIMES), out_memory=sure & memory,
            )
        )  # fmt: skip
    return found


def _units(reading: ImpliedStep) -> list[tuple[str, str]]:
    """Return the unit and advice of each guess, and of the case that none explains a value."""
    found = [(guess.unit, guess.advice) for guess in reading.guesses]
    return [*found, ("no unit that is known", "check the figure, the workload and the batch")]


def _near(ask: _Ask, row: NDArray[np.int64], centre: FloatArray) -> Texts:
    """Return what was expected of the column itself, as its siblings or physics have it."""
    reading = ask.reading
    likely = ask.expected[row] + centre
    off = reading.log_implied[row] - likely
    sign = -1.0 if reading.column.endswith("per_s") else 1.0
    value = reading.values[row] * np.exp(-sign * off)
    known = [f"about {v:.3g} {reading.unit}" for v in value.tolist()]
    more = floor_words(reading.log_implied[row], ask.floor[row])
    return np.asarray(np.array(known, dtype=object) + more)


def _ties(times: Sequence[ImpliedStep], reading: ImpliedStep, n: int) -> NDArray[np.int64]:
    """Return how many other time columns of each row agree with this one, (n,)."""
    ties = np.zeros(n, dtype=np.int64)
    for other in times:
        if other is not reading:
            with np.errstate(invalid="ignore"):
                ties += np.abs(other.log_implied - reading.log_implied) < AGREE
    return ties


def _whole(
    runs: Runs,
    reading: ImpliedStep,
    unit: str,
    row: NDArray[np.int64],
    judged_rows: NDArray[np.int64],
) -> Iterator[str]:
    """Yield what is said of files in which nearly every row has the column in another unit."""
    places = runs.table.places()
    there = np.bincount(places.file[judged_rows], minlength=len(places.files))
    ours = np.bincount(places.file[row], minlength=len(places.files))
    for file in np.flatnonzero((ours >= WHOLE_SHARE * there) & (there >= 3)):
        name = places.files[file] or "the table"
        yield (
            f"{name}: the whole column {reading.column} looks like {unit}"
            f" ({ours[file]:,} of {there[file]:,} rows)"
        )
