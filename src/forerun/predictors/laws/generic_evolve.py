"""Plain differential evolution within bounds: rand/1/bin, a whole generation at once.

Storn and Price, Differential Evolution, Journal of Global Optimization 11 (1997): each member is
challenged by one made of three others, and the better of the two stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

# The differences are scaled by a factor drawn anew each generation (dither), crossover is high:
# the constants of a power law are far from independent of one another.
_SCALE = (0.5, 0.9)
_CROSSOVER = 0.9


@dataclass(frozen=True)
class Evolved:
    """What evolution ended with.

    Attributes:
        population: (p, d), the best member first.
        costs: (p,), ascending.
        generations: how many were made.
        converged: whether the costs came together before the generations ran out.
    """

    population: FloatArray
    costs: FloatArray
    generations: int
    converged: bool

    @property
    def evaluations(self) -> int:
        """How many members were judged."""
        return len(self.costs) * (self.generations + 1)


def evolve(
    cost: Callable[[FloatArray], FloatArray], low: FloatArray, high: FloatArray, *,
    members: int, generations: int, tolerance: float, nothing: float, seed: int,
) -> Evolved:  # fmt: skip
    """Return the population that evolution ends with.

    Args:
        cost: of members (p, d), their costs (p,); lower is better, none is negative.
        low, high: bounds of each coordinate, (d,).
        members: of a generation, at least 4.
        generations: at most.
        tolerance: it has converged when the costs lie within this share of their mean.
        nothing: or when all of them are below this.
        seed: of the random numbers.
    """
    rng = np.random.default_rng(seed)
    dimensions = len(low)
    members = max(members, 4)
    population = low + (high - low) * _spread(members, dimensions, rng)
    costs = cost(population)
    made, converged = 0, False
    while made < generations and not converged:
        made += 1
        trial = _challengers(population, low, high, rng)
        judged = cost(trial)
        won = judged <= costs
        population = np.where(won[:, None], trial, population)
        costs = np.where(won, judged, costs)
        apart = float(costs.max() - costs.min())
        converged = apart <= tolerance * float(costs.mean()) or float(costs.max()) <= nothing
    order = np.argsort(costs, kind="stable")
    return Evolved(population[order], costs[order], made, converged)


def _spread(members: int, dimensions: int, rng: np.random.Generator) -> FloatArray:
    """Return members in [0, 1) of which each has a slice of every coordinate for itself, (p, d)."""
    slices = rng.permuted(np.tile(np.arange(members), (dimensions, 1)), axis=1).T
    return (slices + rng.random((members, dimensions))) / members


def _challengers(
    population: FloatArray, low: FloatArray, high: FloatArray, rng: np.random.Generator
) -> FloatArray:
    """Return one challenger for each member, (p, d), within the bounds."""
    members, dimensions = population.shape
    lots = rng.random((members, members))
    np.fill_diagonal(lots, np.inf)  # the three are not the member itself
    three = np.argpartition(lots, 2, axis=1)[:, :3]
    first, second, third = (population[three[:, i]] for i in range(3))
    mutant = first + rng.uniform(*_SCALE) * (second - third)
    # Beyond a bound: anywhere between the bound and the member that was to be changed.
    part = rng.random((members, dimensions))
    mutant = np.where(mutant < low, low + part * (first - low), mutant)
    mutant = np.where(mutant > high, high + part * (first - high), mutant)
    crossed = rng.random((members, dimensions)) < _CROSSOVER
    crossed[np.arange(members), rng.integers(0, dimensions, members)] = True
    return np.where(crossed, mutant, population)
