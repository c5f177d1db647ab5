"""Repeated units: figures that a repeat of the same job shows to be in another unit.

Where one run says 23.8 samples/s and another run of the very same job, on 32 devices, 0.74, the
second is of one device: no doubt of physics' own is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from forerun.tables.jobs import Runs
from forerun.tables.suspects.flags import Kind, Raised, Texts, numbers_text
from forerun.tables.suspects.physics import floor_words
from forerun.tables.suspects.readings import Reading
from forerun.tables.suspects.repeats import AGREE, jobs_of
from forerun.tables.suspects.wholes import FAR, LOOSE

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]
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
