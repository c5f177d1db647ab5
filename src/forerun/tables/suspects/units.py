"""Units: figures that are right in another unit than their column's.

A value is judged three times. Against physics alone: more than `FAR` off, and a unit explains it.
Against its siblings, whose bias is taken off (a wrong row among them is first brought to the unit
that physics suggests, so that it does not move them). And against the rows between: where honest
rows reach half-way out, the row is the end of a slow tail and no error of units.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.tables.suspects.readings import Reading
from forerun.tables.suspects.siblings import LARGE_GROUP, Kin, around, scale, tails
from forerun.tables.suspects.wholes import (
    CLOSE_SIBLINGS,
    LARGE,
    NOISE,
    by_two_kinds,
    folded,
    like_the_rest,
    position_of,
    whole_shift,
)

WINDOW = np.log(2.5)  # how well a unit must explain a value, beside siblings
ABSURD, NEAR_ABSURD = (
    np.log(150.0),
    np.log(12.0),
)  # no program is so slow, and how near is near then
MANY_SPREADS, SURE_SPREADS = 5.0, 8.0
# How many times likelier than an honest row of heavy tails a unit must be: to be said, to leave out.
LIKELIER, FAR_LIKELIER = 5.0, 20.0


@dataclass(frozen=True)
class Verdicts:
    """What is wrong with the units of a reading's m rows.

    Attributes:
        guess: (m,) position among the guesses, -1 where the unit is as it should be, and their
            number where none explains a value that cannot be.
        sure: (m,) whether it is beyond doubt.
        centre: (m,) log by which siblings (or else physics) expect the value off physics.
    """

    guess: IntArray
    sure: BoolArray
    centre: FloatArray


def judged(
    log_ratio: FloatArray,
    factors: FloatArray,
    reading: Reading,
    kin: Kin,
    ties: IntArray,
    doubt: FloatArray,
) -> Verdicts:
    """Return the verdicts on m rows.

    Args:
        log_ratio: (m,) log of the implied over the forecast value.
        factors: (g, m) log factors of the guesses, NaN where one cannot be.
        reading: whose guesses these are.
        kin: of the m rows.
        ties: (m,) how many other measured columns of the row say the same.
        doubt: (m,) log by which the forecast's own band reaches further towards the row than such
            bands usually do.
    """
    tied = ties > 0
    shift, doubtful = whole_shift(log_ratio, factors, reading, kin, tied)
    moved = log_ratio - shift
    swapped = np.array([g.swapped for g in reading.guesses])
    honest = by_two_kinds(folded(moved, factors, swapped, kin), factors, reading, kin)
    # What the first look finds wrong is brought back too, so that the second sees sharper.
    for _ in range(2):
        centre, spread, count = around(honest, kin)
        look = _look(moved, centre, factors, reading)
        usual = scale(honest - centre, kin)
        absurd = np.abs(look.apart) > ABSURD
        window = np.where(absurd & look.clear, NEAR_ABSURD, WINDOW)
        large = (look.size >= LARGE) & (look.error < window)
        middling = _middling(look, usual, spread, count) & (shift == 0)
        # Two columns that were swapped agree all the same, three no longer.
        free = np.where(look.swapped, ties < 2, ~tied | (large & look.clear))
        odds = _log_odds(look, _width(usual, spread), doubt)
        likely = odds > np.log(LIKELIER)
        accepted = _stand_alone(look, (large | middling) & free & likely, kin, usual)
        honest = np.where(accepted, look.mended, honest)
    whole = (shift != 0) & (np.abs(look.apart) < np.abs(look.apart + shift)) & ~accepted
    certain = odds > np.log(FAR_LIKELIER)
    sure = accepted & certain & _beyond_doubt(look, large, usual, spread, count)
    guess = np.where(accepted, look.best, -1)
    guess, sure = (
        np.where(whole, position_of(shift, factors), guess),
        np.where(whole, ~doubtful, sure),
    )
    like = like_the_rest(guess, sure, look.apart, look.factors, kin)
    guess, sure = np.where(like >= 0, like, guess), sure | (like >= 0)
    lost = (guess < 0) & (absurd | (np.abs(log_ratio) > ABSURD))
    return Verdicts(np.where(lost, len(factors), guess), sure | lost, centre)


@dataclass(frozen=True)
class _Look:
    """m rows beside their siblings, each with the guess that explains it best.

    Attributes:
        apart: (m,) log by which a row stands apart. factors: (g, m) where each guess would be.
        best: (m,) the nearest guess; clear, swapped: what it says of itself.
        size, error: (m,) of its log factor, and how far the row is from it.
        mended: (m,) the log ratio that the row would have in its column's unit.
    """

    apart: FloatArray
    factors: FloatArray
    best: IntArray
    clear: BoolArray
    swapped: BoolArray
    size: FloatArray
    error: FloatArray
    mended: FloatArray


def _look(moved: FloatArray, centre: FloatArray, factors: FloatArray, reading: Reading) -> _Look:
    apart = moved - centre
    # What is swapped turns the bias round, and so is off by it twice.
    swapped = np.array([g.swapped for g in reading.guesses])
    factors = factors - 2.0 * np.where(swapped[:, None], centre, 0.0)
    reluctance = np.array([g.reluctance for g in reading.guesses])
    distance = np.nan_to_num(np.abs(apart - factors) + reluctance[:, None], nan=np.inf)
    best = np.argmin(distance, axis=0)
    chosen = (best, np.arange(len(best)))
    error = distance[chosen]
    factor = np.where(np.isfinite(error), factors[chosen], 0.0)
    left = apart - factor
    mended = centre + np.where(swapped[best], -left, left)
    clear = np.array([g.clear for g in reading.guesses])[best]
    return _Look(apart, factors, best, clear, swapped[best], np.abs(factor), error, mended)


def _width(usual: FloatArray, spread: FloatArray) -> FloatArray:
    """Return how far an honest row may stand apart, (m,): as rows usually do, more where siblings do."""
    near = np.where(np.isnan(spread), usual, spread / 2.0)
    return np.asarray(np.maximum(usual, near) + NOISE)


def _log_odds(look: _Look, width: FloatArray, doubt: FloatArray) -> FloatArray:
    """Return the log by which a guess makes a row likelier than its siblings' tails do, (m,).

    Siblings are taken to spread as Student's t of two degrees of freedom, whose tails are those of
    a cluster in trouble. What the forecast says of its own doubt, a row stands apart less.
    """
    apart = np.maximum(np.abs(look.apart) - doubt, 0.0)
    honest, mistaken = ((d / width) ** 2 / 2.0 for d in (apart, np.minimum(look.error, apart)))
    return np.asarray(1.5 * (np.log1p(honest) - np.log1p(mistaken)))


def _middling(look: _Look, usual: FloatArray, spread: FloatArray, count: IntArray) -> BoolArray:
    """Return which rows stand apart from close siblings by a factor below `LARGE`, (m,)."""
    explained = look.error < np.minimum(WINDOW, look.size / 3.0)
    outside = np.abs(look.apart) > np.maximum(MANY_SPREADS * _width(usual, spread), np.log(1.5))
    compared = (count >= CLOSE_SIBLINGS) | (look.size >= np.log(4.0))
    return np.asarray((look.size < LARGE) & explained & outside & compared)


def _beyond_doubt(
    look: _Look, large: BoolArray, usual: FloatArray, spread: FloatArray, count: IntArray
) -> BoolArray:
    # Sixty times too slow is what a bad network does too: without siblings it stays a doubt.
    alone = (count < 3) & (look.apart > 0) & (look.size < np.log(100.0))
    proven = large & ((look.clear & ~alone) | (count >= 3))
    far = np.maximum(SURE_SPREADS * _width(usual, spread), np.log(3.0))
    return np.asarray(proven | (~large & (np.abs(look.apart) > far)))


def _stand_alone(look: _Look, accepted: BoolArray, kin: Kin, usual: FloatArray) -> BoolArray:
    """Return which rows stand by themselves, and are not the end of a tail, (m,).

    Those that no clear factor explains, or a small one of swapped columns, must lie beyond the tail
    of their group. And fewer rows may lie on the way to a guess than at it, counted among rows whose
    factor is of the same size: of the row's own group where that is large, else of its file.
    """
    slow = look.apart > 0
    beyond = [tails(np.maximum(sign * look.apart, 0.0), kin, ~accepted) for sign in (1.0, -1.0)]
    plain = look.clear & ~(look.swapped & (look.size < LARGE))
    result = accepted & (plain | (np.abs(look.apart) > np.where(slow, beyond[0], beyond[1])))
    big = np.bincount(kin.group)[kin.group] >= LARGE_GROUP
    for g in np.unique(look.best[accepted]):
        mine = accepted & (look.best == g)
        factor = np.nan_to_num(look.factors[g])
        size, reach = np.abs(factor), look.apart * np.sign(factor)
        width = np.minimum(WINDOW, size / 3.0)
        inner = np.maximum(np.maximum(size - 3.0 * width, 0.4 * size), 4.0 * usual)
        between = (reach >= inner) & (reach < size - width) & ~mine
        step = np.round(size / np.log(2.0)).astype(np.int64)
        for member, use in ((kin.group, big), (kin.file, ~big)):
            _, alike = np.unique(member * (int(step.max()) + 1) + step, return_inverse=True)
            there, way = np.bincount(alike, mine), np.bincount(alike, between)
            result &= ~(mine & use) | (way <= there)[alike]
    return np.asarray(result)
