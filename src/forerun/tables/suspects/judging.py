"""Judging: every check on a runs table, against what physics expects, as one set of flags.

The policy, by kind, is `flags.POLICY`. `cleaned` blanks what is left out, so that a row whose time
is in doubt still teaches the memory that it measured, and no wrong figure is averaged in.

Batches: global batches that the plan does not multiply to, or that are left blank.

Repeated units: figures that a repeat of the same job shows to be in another unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.domain.forecast import Forecasts
from forerun.tables.jobs import Runs
from forerun.tables.schema import unknown_columns
from forerun.tables.suspects.flags import Flags, Kind, Raised, Texts, joined, numbers_text
from forerun.tables.suspects.label_units import label_unit_flags
from forerun.tables.suspects.physics import capacity_flags, floor_flags, floor_words
from forerun.tables.suspects.readings import Reading, memory_reading, sizes_of, step_readings
from forerun.tables.suspects.repeats import AGREE, disagreement_flags, jobs_of, repeat_flags
from forerun.tables.suspects.row_problems import placement_flags, problem_flags
from forerun.tables.suspects.siblings import Kin, kin_of, own_doubt
from forerun.tables.suspects.units import judged
from forerun.tables.suspects.wholes import FAR, LOOSE, WHOLE_SHARE
from forerun.tables.table import Table

_TIMES = ("step_time_s", "samples_per_s", "tokens_per_s")


def repeated_unit_flags(
    runs: Runs, readings: Sequence[Reading], physics: tuple[FloatArray, FloatArray], left: BoolArray
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


def _best(reading: Reading, rows: IntArray, gap: FloatArray, bias: FloatArray) -> IntArray:
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
    runs: Runs, reading: Reading, g: int, row: IntArray, likely: IntArray, more: Texts
) -> Raised:
    guess, places = reading.guesses[g], runs.table.places()
    says = zip(reading.values[likely].tolist(), likely.tolist(), strict=True)
    expected = [
        f"about {value:.3g} {reading.unit}, which {places.text(r)} says of the same job"
        for value, r in says
    ]
    return Raised(
        Kind.UNIT, row, reading.column, numbers_text(reading.values[row], reading.unit),
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
        Kind.ACCUMULATION, row, "grad_accum", numbers_text(passes[row]),
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
        Kind.ACCUMULATION, row, "global_batch",
        numbers_text(runs.jobs.plans.global_batch[row].astype(np.float64), "samples"),
        np.array(expected, dtype=object),
        "correct one of them; the last micro-batch is taken as smaller",
    )  # fmt: skip


def _assumed(inner: FloatArray, row: NDArray[np.int64]) -> Raised:
    """Return the flags of blank batches that are taken as one pass of every device."""
    return Raised(
        Kind.BATCH, row, "global_batch", "blank",
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


def _by_pairs(times: Sequence[Reading], expected: FloatArray) -> list[Raised]:
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
                        Kind.UNIT, row, reading.column,
                        numbers_text(reading.values[row], reading.unit),
                        numbers_text(says, f"s a step, as {other.column} says"),
                        f"it looks like {guess.unit}: {guess.advice}", void=True,
                    )
                )  # fmt: skip
    return found


@dataclass(frozen=True)
class _Ask:
    """A reading with what it is judged by, columns (n,); bands (2, n), logs below and above."""

    reading: Reading
    times: Sequence[Reading]
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
                Kind.UNIT, row, reading.column, numbers_text(reading.values[row], reading.unit),
                _near(ask, row, verdicts.centre[mine]),
                f"it looks like {unit}: {advice}", void=sure,
                out_step=sure & (reading.column in _TIMES), out_memory=sure & memory,
            )
        )  # fmt: skip
    return found


def _units(reading: Reading) -> list[tuple[str, str]]:
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


def _ties(times: Sequence[Reading], reading: Reading, n: int) -> NDArray[np.int64]:
    """Return how many other time columns of each row agree with this one, (n,)."""
    ties = np.zeros(n, dtype=np.int64)
    for other in times:
        if other is not reading:
            with np.errstate(invalid="ignore"):
                ties += np.abs(other.log_implied - reading.log_implied) < AGREE
    return ties


def _whole(
    runs: Runs, reading: Reading, unit: str, row: NDArray[np.int64], judged_rows: NDArray[np.int64]
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
