"""Fitting the generic expression: the published way by plain evolution, and a fast way to the same.

The published way (5.5) evolves every constant within bounds, and takes lambda by validation. The
fast way evolves the exponents alone, on few rows, with the coefficients solved exactly inside, and
descends from the best of them on all rows; both minimise the same cost.

Plain differential evolution within bounds: rand/1/bin, a whole generation at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.predictors.laws.generic_form import MOST_EXPONENT, Cost, FormRows
from forerun.predictors.laws.generic_solve import Solved, descend, judge, problems

# The differences are scaled by a factor drawn anew each generation (dither), crossover is high:
# the constants of a power law are far from independent of one another.
_SCALE = (0.5, 0.9)
_CROSSOVER = 0.9


@dataclass(frozen=True)
class Evolved:
    """What evolution ended with, of g problems.

    Attributes:
        population: (g, p, d), the best member of a problem first.
        costs: (g, p), ascending.
        generations: how many were made.
        converged: whether the costs came together before the generations ran out, (g,).
    """

    population: FloatArray
    costs: FloatArray
    generations: int
    converged: NDArray[np.bool_]

    @property
    def evaluations(self) -> int:
        """How many members of a problem were judged."""
        return int(self.costs.shape[1]) * (self.generations + 1)


def evolve(
    cost: Callable[[FloatArray], FloatArray], low: FloatArray, high: FloatArray, *,
    members: int, generations: int, tolerance: float, nothing: float, seed: int,
    problems: int = 1,
) -> Evolved:  # fmt: skip
    """Return the populations that evolution ends with.

    Args:
        cost: of the members of g problems one after another, (g p, d), their costs (g p,); lower
            is better, none is negative.
        low, high: bounds of each coordinate, (d,).
        members: of a generation, at least 4.
        generations: at most.
        tolerance: it has converged when the costs lie within this share of their mean.
        nothing: or when all of them are below this.
        seed: of the random numbers.
        problems: g.
    """
    rng = np.random.default_rng(seed)
    shape = (problems, max(members, 4), len(low))
    spread = _spread(shape[1], shape[2], rng)
    population = np.broadcast_to(low + (high - low) * spread, shape)

    def judged(members: FloatArray) -> FloatArray:
        return cost(members.reshape(shape[0] * shape[1], shape[2])).reshape(shape[:2])

    costs = judged(population)
    made, converged = 0, np.zeros(problems, dtype=bool)
    while made < generations and not converged.all():
        made += 1
        order = rng.permutation(shape[1])
        population, costs = population[:, order], costs[:, order]
        trial = _challengers(population, low, high, rng)
        tried = judged(trial)
        won = tried <= costs
        population = np.where(won[:, :, None], trial, population)
        costs = np.where(won, tried, costs)
        most = costs.max(axis=1)
        apart = most - costs.min(axis=1)
        converged = (apart <= tolerance * costs.mean(axis=1)) | (most <= nothing)
    order = np.argsort(costs, axis=1, kind="stable")
    return Evolved(
        np.take_along_axis(population, order[:, :, None], axis=1),
        np.take_along_axis(costs, order, axis=1), made, converged,
    )  # fmt: skip


def _spread(members: int, dimensions: int, rng: np.random.Generator) -> FloatArray:
    """Return members in [0, 1) of which each has a slice of every coordinate for itself, (p, d)."""
    slices = rng.permuted(np.tile(np.arange(members), (dimensions, 1)), axis=1).T
    return (slices + rng.random((members, dimensions))) / members


def _challengers(
    population: FloatArray, low: FloatArray, high: FloatArray, rng: np.random.Generator
) -> FloatArray:
    """Return one challenger for each member, (g, p, d), within the bounds.

    Each is made of the three members after it, of a population in random order, as a ring: so do
    Storn's and Price's own programs for arrays (DeMat).
    """
    members = population.shape[1]
    ring = np.concatenate([population, population[:, :3]], axis=1)
    first, second, third = (ring[:, i : i + members] for i in (1, 2, 3))
    mutant = first + rng.uniform(*_SCALE) * (second - third)
    part, lots = rng.random((2, *population.shape))
    # Beyond a bound: anywhere between the bound and the member that was to be changed.
    within = np.minimum(np.maximum(mutant, low), high)
    mutant = np.where(within == mutant, mutant, within + part * (first - within))
    # One coordinate of the mutant is taken at the least.
    crossed = lots <= np.maximum(lots.min(axis=2, keepdims=True, initial=1.0), _CROSSOVER)
    return np.where(crossed, mutant, population)


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
