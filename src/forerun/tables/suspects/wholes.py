"""Wholes: columns of which every row, or one of two kinds of rows, is in another unit."""

from __future__ import annotations

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.tables.suspects.readings import Reading
from forerun.tables.suspects.siblings import LARGE_GROUP, Kin, medians

FAR = np.log(8.0)  # physics without a run is rarely so far off
LOOSE = np.log(6.0)  # how well a unit must explain a value against physics alone
LARGE = np.log(30.0)  # a factor that no honest row reaches but by a rare misfortune
NOISE = 0.02  # log spread that even repeats have
CLOSE_SIBLINGS = 5
WHOLE_SHARE = 0.8
MOSTLY = 0.6


def whole_shift(
    log_ratio: FloatArray, factors: FloatArray, reading: Reading, kin: Kin, tied: BoolArray
) -> tuple[FloatArray, BoolArray]:
    """Return the log factor (m,) by which a file's whole column is off by a middling guess.

    And whether it stays in doubt: with one number of devices (say) throughout, a slow program
    looks the same.
    """
    shift, doubtful = np.zeros(len(log_ratio)), np.zeros(len(log_ratio), dtype=bool)
    for file in np.unique(kin.file):
        rows = np.flatnonzero((kin.file == file) & ~tied)
        ratio = log_ratio[rows]
        if len(rows) < CLOSE_SIBLINGS:
            continue
        off, width = np.median(np.abs(ratio)), _spread(ratio)
        best = _best_for_all(ratio, factors[:, rows])
        # A clear guess each row tells by itself, but for swapped columns whose rows differ little.
        if best < 0 or (reading.guesses[best].clear and not reading.guesses[best].swapped):
            continue
        factor = np.nan_to_num(factors[best, rows])
        varied = bool(factor.std() > 0.3)
        if not varied and np.median(np.abs(factor)) >= LARGE:  # each row tells that by itself
            continue
        gain = _spread(ratio - factor) / max(width, NOISE)
        if (varied and gain < 0.6) or (not varied and off > np.log(3.0)):
            plain = off > np.log(4.0) and np.median(np.abs(ratio - factor)) < off / 5
            shift[rows], doubtful[rows] = factor, not (varied and (gain < 0.4 or plain))
    return shift, doubtful


def _best_for_all(ratio: FloatArray, factors: FloatArray) -> int:
    """Return the guess that explains nearly all rows of a column, and twice as well as none; or -1.

    A guess that takes nearly all of the rows' spread away counts too, whatever physics' bias: the
    rows differ then just as the guess has it.
    """
    best, least = -1, float(np.median(np.abs(ratio))) / 2
    spread = _spread(ratio)
    for g, factor in enumerate(factors):
        left = np.abs(ratio - factor)
        told = np.abs(factor) > np.log(1.5)
        if np.isnan(left).mean() > 0.2 or not told.any():
            continue
        off = float(np.nanmedian(left))
        if off < least and (left < np.abs(ratio))[told].mean() >= WHOLE_SHARE:
            best, least = g, off
        after = _spread(np.where(np.isnan(factor), ratio, ratio - factor))
        if after < 0.25 * spread and off < np.log(2.5) and best < 0:
            best = g
    return best


def by_two_kinds(
    log_ratio: FloatArray, factors: FloatArray, reading: Reading, kin: Kin
) -> FloatArray:
    """Return the ratios with one of two kinds of rows brought back, where a file holds two.

    About half of its rows stand at a middling guess, the others where they should, few between.
    """
    result = log_ratio.copy()
    for file in np.unique(kin.file):
        here = kin.file == file
        for g, guess in enumerate(reading.guesses):
            rows = np.flatnonzero(here & (np.abs(np.nan_to_num(factors[g])) > np.log(3.0)))
            if guess.clear or len(rows) < LARGE_GROUP:
                continue
            ratio, factor = result[rows], factors[g, rows]
            moved = np.where(np.abs(ratio - factor) < np.abs(ratio), ratio - factor, ratio)
            between = np.abs(ratio / factor - 0.5) < 1.0 / 6.0
            if between.mean() < 0.05 and _spread(moved) < 0.4 * _spread(ratio):
                result[rows] = moved
    return result


def folded(log_ratio: FloatArray, factors: FloatArray, swapped: BoolArray, kin: Kin) -> FloatArray:
    """Return the ratios with those that physics alone finds in another unit brought back.

    Physics less the bias that most of a row's group share, where most of them lie near physics: a
    forecast that is three times off throughout then makes no honest row look eight times slow.
    """
    bias = _common_bias(log_ratio, kin)
    moved, factors = log_ratio - bias, factors - 2.0 * np.where(swapped[:, None], bias, 0.0)
    distance = np.nan_to_num(np.abs(moved - factors), nan=np.inf)
    best = np.argmin(distance, axis=0)
    chosen = (best, np.arange(len(best)))
    far = (np.abs(moved) > FAR) & (distance[chosen] < LOOSE)
    left = moved - np.where(far, factors[chosen], 0.0)
    return bias + np.where(far & swapped[best], -left, left)


def _common_bias(log_ratio: FloatArray, kin: Kin) -> FloatArray:
    """Return the median log ratio of each row's group, or else of its file, (m,).

    0 where many rows of the file are far off, and the file's where many of a group are: what they
    share may be a unit.
    """
    bias = np.zeros(len(log_ratio))
    large = np.bincount(kin.group)[kin.group] >= LARGE_GROUP
    trusted = np.ones(len(log_ratio), dtype=bool)
    for member, use in ((kin.file, trusted), (kin.group, large)):
        near = np.abs(log_ratio - bias) < FAR
        share = np.bincount(member, near)[member] / np.bincount(member)[member]
        trusted = trusted & use & (share > MOSTLY)
        bias = np.where(trusted, medians(log_ratio, member), bias)
    return bias


def like_the_rest(
    guess: IntArray, sure: BoolArray, apart: FloatArray, factors: FloatArray, kin: Kin
) -> IntArray:
    """Return the guess (m,) of rows that are as nearly all of their file are, -1 for the others.

    Where four fifths of a column are surely in one unit, the rest is too, unless it fits better as
    it stands.
    """
    like = np.full(len(guess), -1, dtype=np.int64)
    total = np.bincount(kin.file)
    for g in np.unique(guess[sure]):
        if g >= len(factors):
            continue
        ours = np.bincount(kin.file, sure & (guess == g), minlength=len(total))
        nearly_all = ((ours >= WHOLE_SHARE * total) & (total >= CLOSE_SIBLINGS))[kin.file]
        nearer = np.abs(apart - factors[g]) < np.abs(apart)
        like = np.where(nearly_all & nearer & (guess < 0), g, like)
    return like


def _spread(values: FloatArray) -> float:
    return float(np.median(np.abs(values - np.median(values))))


def position_of(shift: FloatArray, factors: FloatArray) -> IntArray:
    """Return which guess a shift is, (m,)."""
    gap = np.abs(factors - shift)
    return np.asarray(np.argmin(np.nan_to_num(gap, nan=np.inf), axis=0))
