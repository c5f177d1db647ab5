"""Many kinds of runs fitted at once, the fast way: as many numbers in a call as one kind has, and more.

The exponents of each kind evolve and come near the minimum; errors become shares of what that
foretells; lambda is chosen by runs held out; then each kind descends to its minimum, and the
bootstrap from there.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from forerun.predictors.laws.generic_fit import (
    FOLDS,
    ROUGHLY,
    SEED,
    STRENGTHS,
    USUAL_STRENGTH,
    Fitted,
    folds_of,
    nearest,
    stacked,
)
from forerun.predictors.laws.generic_form import Cost
from forerun.predictors.laws.generic_solve import Solved, descend, problems

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# Repeats on one machine differ by 1-2 %, so that no fit is surer than that.
REPEAT_SIGMA = 0.02
# A standard deviation over the median distance of a normal error; how many of them are far.
_OF_MEDIAN, _FAR, _ROUNDS = 1.48, 1.5, 2
_LEAST_MIDDLE = 0.1  # of the measured time, where weights go by the fitted one


def fitted_many(costs: list[Cost], points: list[IntArray], relative: bool) -> list[Fitted]:
    """Return the minimum of each cost, lambda by runs held out.

    Args:
        costs: of one form; their lambda is not read.
        points: for each, which distinct point a run was made at, (n,).
        relative: whether weights become those of shares of the fitted times.
    """
    near, tried = nearest([replace(cost, strength=STRENGTHS[1]) for cost in costs])
    exponents = near[:, 0]
    every = stacked(costs)
    if relative:
        solved = descend(every, exponents, 0)
        for _ in range(_ROUNDS):
            every = replace(every, weights=_shares(every, _middle(every, solved)))
            solved = descend(every, solved.exponents, *ROUGHLY)
        exponents = solved.exponents
    strength = _strengths(every, exponents, points)
    ended = descend(replace(every, strength=strength), exponents)
    return [
        Fitted(
            ended.coefficients[i], ended.exponents[i], float(ended.costs[i]), float(strength[i]),
            tried, bool(ended.settled[i]),
        )
        for i in range(len(costs))
    ]  # fmt: skip


def _shares(every: Cost, middle: FloatArray) -> FloatArray:
    """Return weights of errors as shares of the fitted times, (p, n), less for the farthest runs.

    Shares of the measured time lean to the runs that were lucky, shares of the fitted do not; and
    a run much farther off than most counts by its distance instead of the square (Huber, 1964).
    """
    counted = every.weights > 0
    middle = np.maximum(middle, _LEAST_MIDDLE * every.seconds)
    missed = np.where(counted, np.abs(every.seconds / middle - 1.0), np.nan)
    usual = np.maximum(_OF_MEDIAN * np.nanmedian(missed, axis=1, keepdims=True), REPEAT_SIGMA)
    trust = np.minimum(1.0, _FAR * usual / np.maximum(np.nan_to_num(missed), 1e-12))
    weights = trust * middle**-2.0 * counted
    shares: FloatArray = weights / weights.sum(axis=1, keepdims=True)
    return shares


def _middle(cost: Cost, solved: Solved) -> FloatArray:
    """Return the times of p problems, (p, n)."""
    columns = cost.rows.columns(solved.exponents)
    times: FloatArray = (columns @ solved.coefficients[:, :, None])[:, :, 0]
    return times


def _strengths(every: Cost, exponents: FloatArray, points: list[IntArray]) -> FloatArray:
    """Return the lambda of each of g problems that does best on runs held out, (g,)."""
    strength = np.full(len(points), USUAL_STRENGTH)
    fold = np.full(every.weights.shape, -1)
    for i, of in enumerate(points):
        parts = folds_of(of)
        if parts is not None:
            fold[i, : len(parts)] = parts
    able = np.flatnonzero((fold >= 0).any(axis=1))
    if not len(able):
        return strength
    tries = len(STRENGTHS) * FOLDS
    at = np.repeat(able, tries)
    lambdas = np.tile(np.repeat(STRENGTHS, FOLDS), len(able))
    held = fold[at] == np.tile(np.arange(FOLDS), len(at) // FOLDS)[:, None]
    cost = problems(every, at)
    weights = cost.weights * ~held
    kept = weights / weights.sum(axis=1, keepdims=True)
    fits = descend(replace(cost, weights=kept, strength=lambdas), exponents[at], *ROUGHLY)
    missed = np.sum(cost.weights * held * (_middle(cost, fits) - cost.seconds) ** 2, axis=1)
    errors = missed.reshape(len(able), len(STRENGTHS), FOLDS).sum(axis=2)
    strength[able] = np.array(STRENGTHS)[np.argmin(errors, axis=1)]
    return strength


def resampled(
    costs: list[Cost], fits: list[Fitted], logs: list[FloatArray], resamples: int
) -> FloatArray:
    """Return constants of the fitted times with what they missed drawn anew, (g, resamples, m).

    Args:
        costs: of g sets of runs, of one form.
        fits: their minima.
        logs: of measured over fitted, (n,) each: errors of timers and shared machines are ratios.
        resamples: how many of each.
    """
    rng = np.random.default_rng(SEED)
    every = stacked([
        replace(cost, strength=fitted.strength) for cost, fitted in zip(costs, fits, strict=True)
    ])  # fmt: skip
    seconds = np.repeat(every.seconds[:, None], resamples, axis=1)
    for i, (cost, fitted, log) in enumerate(zip(costs, fits, logs, strict=True)):
        n = len(log)
        # Runs lie nearer to the law that they made than to the one that made them.
        wider = np.sqrt(n / max(n - fitted.free, 1))
        drawn = wider * (log - log.mean())[rng.integers(0, n, (resamples, n))]
        drawn = drawn + rng.normal(0.0, REPEAT_SIGMA, (resamples, n))
        seconds[i, :, :n] = middle_of(cost, fitted) * np.exp(drawn)
    again = problems(every, np.repeat(np.arange(len(costs)), resamples))
    starts = np.repeat(np.stack([fitted.exponents for fitted in fits]), resamples, axis=0)
    found = descend(
        replace(again, seconds=seconds.reshape(len(starts), -1)), starts, *ROUGHLY
    ).constants
    return found.reshape(len(costs), resamples, -1)


def middle_of(cost: Cost, fitted: Fitted) -> FloatArray:
    """Return the fitted times of the runs of one cost, (n,)."""
    times: FloatArray = cost.rows.columns(fitted.exponents[None])[0] @ fitted.coefficients
    return times
