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
from forerun.predictors.laws.generic_solve import Solved, descend, judge, problems

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MODES = ("fast", "faithful")
SEED = 0
# Strengths of the penalty that validation chooses from. Times are divided by what makes them near 1.
STRENGTHS = (0.0, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
# With fewer different points than this nothing can be held out, and lambda is this.
LEAST_HELD_OUT, USUAL_STRENGTH = 5, 1e-5
FOLDS = 5

# The fast way: rows that the exponents evolve on; members and generations for each exponent; when
# the costs are near enough to lie in one valley. Of one or two exponents so many members lie in
# every valley: more generations than two found no other on 320 made-up laws, of which 4 were missed.
EVOLVED_ROWS = 192
FAST_MEMBERS, FAST_GENERATIONS, FAST_TOLERANCE, FAST_NOTHING = 8, 5, 0.1, 1e-6
FEW_EXPONENTS, FEW_GENERATIONS = 2, 2
# Of the descent: the best members on few rows, and the best of these on all.
STARTS, FINALISTS = 8, 2
# The published way: members for each constant, generations, when the costs have come together.
PLAIN_MEMBERS, PLAIN_GENERATIONS, PLAIN_TOLERANCE, PLAIN_NOTHING = 15, 2000, 1e-6, 1e-12
# The most that a coefficient can be over the longest time.
_MOST_COEFFICIENT = 3.0
# Steps and least gain of descents of which many together say something, and none alone.
ROUGHLY = (8, 1e-3)
NEARLY = (12, 1e-4)


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

    @property
    def constants(self) -> FloatArray:
        """Coefficients, then exponents, (k + d,)."""
        return np.concatenate([self.coefficients, self.exponents])


def fast(cost: Cost) -> Fitted:
    """Return the minimum of a cost whose lambda is given, by evolving the exponents alone."""
    near, tried = nearest([cost])
    ended = descend(cost, near[0][:FINALISTS])
    return _taken(ended, int(np.argmin(ended.costs)), cost.strength, tried)


def nearest(costs: list[Cost]) -> tuple[FloatArray, int]:
    """Return exponents near the minimum of each of g costs, (g, s, d), the best of s first.

    And how often a cost was worked out. The costs are of one form.
    """
    g, d = len(costs), costs[0].rows.exponents
    some = stacked([_thinned(cost) for cost in costs])
    bound = np.full(d, MOST_EXPONENT)
    members = max(FAST_MEMBERS * d, 4)
    generations = FAST_GENERATIONS * d if d > FEW_EXPONENTS else FEW_GENERATIONS
    every = problems(some, np.repeat(np.arange(g), members))
    evolved = evolve(
        judge(every), -bound, bound, members=members, generations=generations,
        tolerance=FAST_TOLERANCE, nothing=FAST_NOTHING, seed=SEED, problems=g,
    )  # fmt: skip
    starts = evolved.population[:, :STARTS]
    size = starts.shape[1]
    ended = descend(
        problems(some, np.repeat(np.arange(g), size)), starts.reshape(g * size, d), *NEARLY
    )
    order = np.argsort(ended.costs.reshape(g, size), axis=1)
    found = ended.exponents.reshape(g, size, d)
    return np.take_along_axis(found, order[:, :, None], axis=1), evolved.evaluations


def stacked(costs: list[Cost]) -> Cost:
    """Return the costs of g sets of runs as g problems; shorter ones get rows that do not count."""
    n = max(len(cost.rows) for cost in costs)

    def padded(values: FloatArray, fill: float) -> FloatArray:
        if len(values) == n:
            return values
        made = np.full((n, *values.shape[1:]), fill)
        made[: len(values)] = values
        return made

    rows = FormRows(*(
        np.stack([padded(getattr(cost.rows, name), 0.0) for cost in costs])
        for name in ("intrinsic", "extrinsic", "flags")
    ))  # fmt: skip
    return Cost(
        rows, np.stack([padded(cost.seconds, 1.0) for cost in costs]),
        np.stack([padded(cost.weights, 0.0) for cost in costs]), costs[0].penalty,
        np.array([float(cost.strength) for cost in costs]),
    )  # fmt: skip


def _taken(solved: Solved, at: int, strength: FloatArray | float, evaluations: int) -> Fitted:
    return Fitted(
        solved.coefficients[at], solved.exponents[at], float(solved.costs[at]), float(strength),
        evaluations, bool(solved.settled[at]),
    )  # fmt: skip


def _thinned(cost: Cost) -> Cost:
    """Return the cost of at most `EVOLVED_ROWS` rows: enough to tell one valley from another."""
    n = len(cost.rows)
    if n <= EVOLVED_ROWS:
        return cost
    return _of_rows(cost, np.sort(np.random.default_rng(SEED).permutation(n)[:EVOLVED_ROWS]))


def _of_rows(cost: Cost, kept: IntArray) -> Cost:
    weights = cost.weights[kept]
    return replace(
        cost, rows=cost.rows.take(kept), seconds=cost.seconds[kept], weights=weights / weights.sum()
    )


def plain(cost: Cost) -> Fitted:
    """Return the minimum of a cost whose lambda is given, by evolving every constant (5.5)."""
    d = cost.rows.exponents
    k = max(cost.rows.intrinsic.shape[1] + cost.rows.flags.shape[1], 1) + 1
    most = _MOST_COEFFICIENT * float(cost.seconds.max())
    low = np.concatenate([np.zeros(k), np.full(d, -MOST_EXPONENT)])
    high = np.concatenate([np.full(k, most), np.full(d, MOST_EXPONENT)])
    evolved = evolve(
        cost.of, low, high, members=PLAIN_MEMBERS * (k + d), generations=PLAIN_GENERATIONS,
        tolerance=PLAIN_TOLERANCE, nothing=PLAIN_NOTHING, seed=SEED,
    )  # fmt: skip
    best = evolved.population[0, 0]
    return Fitted(
        best[:k], best[k:], float(evolved.costs[0, 0]), float(cost.strength), evolved.evaluations,
        bool(evolved.converged[0]),
    )  # fmt: skip


def validated(cost: Cost, points: IntArray) -> Fitted:
    """Return the minimum by plain evolution with the lambda that does best on a part held out.

    Args:
        cost: its lambda is not read.
        points: which distinct point each run was made at, (n,): repeats are held out together.
    """
    fold = folds_of(points)
    if fold is None:
        return plain(replace(cost, strength=USUAL_STRENGTH))
    held, kept = np.flatnonzero(fold == 0), np.flatnonzero(fold != 0)
    part, judging = _of_rows(cost, kept), _of_rows(cost, held)
    fits = [plain(replace(part, strength=strength)) for strength in STRENGTHS]
    missed = [float(judging.of(fit.constants[None])[0]) for fit in fits]
    chosen = plain(replace(cost, strength=STRENGTHS[int(np.argmin(missed))]))
    return replace(chosen, evaluations=chosen.evaluations + sum(f.evaluations for f in fits))


def folds_of(points: IntArray) -> IntArray | None:
    """Return in which of `FOLDS` parts each run is, (n,), None where too few points differ."""
    count = int(points.max()) + 1
    if count < LEAST_HELD_OUT:
        return None
    return np.random.default_rng(SEED).permutation(count)[points] % FOLDS
