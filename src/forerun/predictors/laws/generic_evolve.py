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
