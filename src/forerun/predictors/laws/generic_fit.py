"""Fitting the generic expression: the published way by plain evolution, and a fast way to the same.

The published way (5.5) evolves every constant within bounds, and takes lambda by validation. The
fast way evolves the exponents alone, on few rows, with the coefficients solved exactly inside, and
descends from the best of them on all rows; both minimise the same cost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from forerun.predictors.laws.generic_evolve import evolve
from forerun.predictors.laws.generic_form import MOST_EXPONENT, Cost, FormRows
from forerun.predictors.laws.generic_solve import LEAST_GAIN, MOST_STEPS, Solved, descend, judged

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MODES = ("fast", "faithful")
SEED = 0
# Strengths of the penalty that validation chooses from. Times are divided by what makes them near 1.
STRENGTHS = (0.0, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
# With fewer different points than this nothing can be held out, and lambda is this.
LEAST_HELD_OUT, USUAL_STRENGTH = 5, 1e-5
FOLDS = 5

# Repeats on one machine differ by 1-2 %, so that no fit is surer than that.
REPEAT_SIGMA = 0.02

# The fast way: rows that the exponents evolve on; members and generations for each exponent; when
# the costs are near enough to lie in one valley.
EVOLVED_ROWS = 192
FAST_MEMBERS, FAST_GENERATIONS, FAST_TOLERANCE, FAST_NOTHING = 8, 5, 0.1, 1e-6
# Of the descent: the best members on few rows, and the best of these on all.
STARTS, FINALISTS = 8, 2
# The published way: members for each constant, generations, when the costs have come together.
PLAIN_MEMBERS, PLAIN_GENERATIONS, PLAIN_TOLERANCE, PLAIN_NOTHING = 15, 2000, 1e-6, 1e-12
# The most that a coefficient can be over the longest time.
_MOST_COEFFICIENT = 3.0
# Steps and least gain of descents of which many together say something, and none alone.
ROUGHLY = (8, 1e-3)
NEARLY = (20, 1e-4)


@dataclass(frozen=True)
class Fitted:
    """Constants of one set of runs.

    Attributes:
        coefficients: (k,). exponents: (d,). cost: (5.4) of them.
        strength: lambda. evaluations: how often the cost was worked out, over all members.
        converged: whether the search ended by itself; if not, this is the best that it found.
    """

    coefficients: FloatArray
    exponents: FloatArray
    cost: float
    strength: float
    evaluations: int
    converged: bool

    @property
    def free(self) -> int:
        """How many constants the runs were spent on: those that are not 0, and the exponents."""
        return int(np.count_nonzero(self.coefficients)) + len(self.exponents)


def fast(cost: Cost, exactly: tuple[int, float] = (MOST_STEPS, LEAST_GAIN)) -> Fitted:
    """Return the minimum of a cost whose lambda is given, by evolving the exponents alone."""
    d = cost.rows.intrinsic.shape[1] + cost.rows.extrinsic.shape[1]
    some = _thinned(cost)
    bound = np.full(d, MOST_EXPONENT)
    evolved = evolve(
        lambda members: judged(some, members), -bound, bound, members=FAST_MEMBERS * d,
        generations=FAST_GENERATIONS * d, tolerance=FAST_TOLERANCE, nothing=FAST_NOTHING, seed=SEED,
    )  # fmt: skip
    near = descend(some, evolved.population[:STARTS], *NEARLY)
    ended = descend(cost, near.exponents[np.argsort(near.costs)[:FINALISTS]], *exactly)
    return _taken(ended, cost, evolved.evaluations)


def _taken(solved: Solved, cost: Cost, evaluations: int) -> Fitted:
    best = solved.best()
    return Fitted(
        best.coefficients[0], best.exponents[0], float(best.costs[0]), float(cost.strength),
        evaluations, bool(best.settled[0]),
    )  # fmt: skip


def _thinned(cost: Cost) -> Cost:
    """Return the cost of at most `EVOLVED_ROWS` rows: enough to tell one valley from another."""
    n = len(cost.rows)
    if n <= EVOLVED_ROWS:
        return cost
    kept = np.sort(np.random.default_rng(SEED).permutation(n)[:EVOLVED_ROWS])
    weights = cost.weights[kept]
    return replace(
        cost, rows=cost.rows.take(kept), seconds=cost.seconds[kept], weights=weights / weights.sum()
    )


def plain(cost: Cost) -> Fitted:
    """Return the minimum of a cost whose lambda is given, by evolving every constant (5.5)."""
    d = cost.rows.intrinsic.shape[1] + cost.rows.extrinsic.shape[1]
    k = max(cost.rows.intrinsic.shape[1] + cost.rows.flags.shape[1], 1) + 1
    most = _MOST_COEFFICIENT * float(cost.seconds.max())
    low = np.concatenate([np.zeros(k), np.full(d, -MOST_EXPONENT)])
    high = np.concatenate([np.full(k, most), np.full(d, MOST_EXPONENT)])
    evolved = evolve(
        cost.of, low, high, members=PLAIN_MEMBERS * (k + d), generations=PLAIN_GENERATIONS,
        tolerance=PLAIN_TOLERANCE, nothing=PLAIN_NOTHING, seed=SEED,
    )  # fmt: skip
    best = evolved.population[0]
    return Fitted(
        best[:k], best[k:], float(evolved.costs[0]), float(cost.strength), evolved.evaluations,
        evolved.converged,
    )  # fmt: skip


def validated(cost: Cost, points: IntArray, mode: str) -> Fitted:
    """Return the minimum of a cost with the lambda that does best on runs held out.

    The fast way holds out each of `FOLDS` parts of the points in turn, the published way one part.

    Args:
        cost: its lambda is not read.
        points: which distinct point each run was made at, (n,): repeats are held out together.
        mode: `fast` or `faithful`.
    """
    count = int(points.max()) + 1
    solve = fast if mode == "fast" else plain
    if count < LEAST_HELD_OUT:
        return solve(replace(cost, strength=USUAL_STRENGTH))
    order = np.random.default_rng(SEED).permutation(count)
    fold = order[points] % min(FOLDS, count)
    if mode == "fast":
        first = fast(replace(cost, strength=STRENGTHS[1]), NEARLY)
        errors = _fold_errors(cost, fold, first)
        strength = STRENGTHS[int(np.argmin(errors))]
        return _taken(
            descend(replace(cost, strength=strength), first.exponents[None]),
            replace(cost, strength=strength), first.evaluations,
        )  # fmt: skip
    held = fold == 0
    fits = [plain(replace(_without(cost, held), strength=s)) for s in STRENGTHS]
    missed = [_held_error(cost, held, fit.coefficients, fit.exponents) for fit in fits]
    chosen = plain(replace(cost, strength=STRENGTHS[int(np.argmin(missed))]))
    return replace(chosen, evaluations=chosen.evaluations + sum(f.evaluations for f in fits))


def _without(cost: Cost, held: NDArray[np.bool_]) -> Cost:
    kept = np.flatnonzero(~held)
    weights = cost.weights[kept]
    return replace(
        cost, rows=cost.rows.take(kept), seconds=cost.seconds[kept], weights=weights / weights.sum()
    )


def _held_error(
    cost: Cost, held: NDArray[np.bool_], coefficients: FloatArray, exponents: FloatArray
) -> float:
    rows: FormRows = cost.rows.take(np.flatnonzero(held))
    fitted = rows.columns(exponents[None])[0] @ coefficients
    weights = cost.weights[held]
    return float(np.sum(weights * (fitted - cost.seconds[held]) ** 2) / weights.sum())


def _fold_errors(cost: Cost, fold: IntArray, first: Fitted) -> FloatArray:
    """Return the weighted mean square missed of runs held out, for each lambda; all fits at once."""
    folds = int(fold.max()) + 1
    strengths = np.repeat(STRENGTHS, folds)
    which = np.tile(np.arange(folds), len(STRENGTHS))
    kept = cost.weights[None] * (fold[None] != which[:, None])
    fits = descend(
        replace(cost, weights=kept / kept.sum(axis=1, keepdims=True), strength=strengths),
        np.tile(first.exponents, (len(which), 1)),
        *ROUGHLY,
    )
    errors = np.zeros(len(STRENGTHS))
    for i in range(len(which)):
        held = fold == which[i]
        missed = _held_error(cost, held, fits.coefficients[i], fits.exponents[i])
        errors[i // folds] += missed * float(cost.weights[held].sum())
    return errors


def refitted(cost: Cost, fitted: Fitted) -> Fitted:
    """Return the minimum of a changed cost beside that of the one before, at the same lambda."""
    cost = replace(cost, strength=fitted.strength)
    again = _taken(descend(cost, fitted.exponents[None]), cost, fitted.evaluations)
    return replace(again, converged=again.converged and fitted.converged)


def resampled(cost: Cost, fitted: Fitted, logs: FloatArray, resamples: int) -> Solved:
    """Return fits of the fitted times with what they missed drawn anew, from the fit of all.

    Args:
        cost: of the runs.
        fitted: its minimum.
        logs: of measured over fitted, (n,): errors of timers and shared machines are ratios.
        resamples: how many.
    """
    n = len(logs)
    rng = np.random.default_rng(SEED)
    # Runs lie nearer to the law that they made than to the one that made them.
    wider = np.sqrt(n / max(n - fitted.free, 1))
    drawn = wider * (logs - logs.mean())[rng.integers(0, n, (resamples, n))]
    drawn = drawn + rng.normal(0.0, REPEAT_SIGMA, (resamples, n))
    middle = cost.rows.columns(fitted.exponents[None])[0] @ fitted.coefficients
    again = replace(cost, seconds=middle * np.exp(drawn), strength=fitted.strength)
    return descend(again, np.tile(fitted.exponents, (resamples, 1)), *ROUGHLY)
