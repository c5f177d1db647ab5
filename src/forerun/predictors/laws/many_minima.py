"""Minima of many small costs at once: damped Gauss-Newton steps within bounds, for all together.

A table has a hundred kinds of job with a dozen runs each: a hundred searches, one after another,
cost a hundred times the calls of one. Levenberg and Marquardt's damping (Marquardt, An Algorithm
for Least-Squares Estimation of Nonlinear Parameters, 1963), parameters at a bound held while the
cost falls beyond it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray

MOST_ROUNDS = 150
TOLERANCE = 1e-6  # of the cost, in one round
_FIRST_DAMPING, _MOST_DAMPING = 1e-3, 1e8
_EASIER, _HARDER = 0.2, 5.0
# Parameters are logarithms: no round multiplies one by more than e^2.
_MOST_STEP = 2.0


class Costs(Protocol):
    """p costs of k parameters each."""

    def __call__(self, theta: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the costs (p,), their slopes (p, k) and curvatures (p, k, k) at theta (p, k)."""
        ...

    def take(self, index: NDArray[np.int64]) -> Self:
        """Return the costs at the given positions."""
        ...


@dataclass(frozen=True)
class Minima:
    """What was found: parameters (p, k), costs (p,), and which searches came to rest (p,)."""

    theta: FloatArray
    cost: FloatArray
    converged: NDArray[np.bool_]


def minima(costs: Costs, start: FloatArray, lower: FloatArray, upper: FloatArray) -> Minima:
    """Return a local minimum of each cost.

    Args:
        costs: p of them.
        start, lower, upper: parameters to start from and their bounds, (p, k).
    """
    best = np.clip(start, lower, upper)
    found, rest = np.full(len(best), np.inf), np.zeros(len(best), dtype=bool)
    live = np.arange(len(best))
    theta, damping = best.copy(), np.full(len(best), _FIRST_DAMPING)
    cost, slope, bend = costs(theta)
    for _ in range(MOST_ROUNDS):
        if not len(live):
            break
        trial = _stepped(theta, slope, bend, damping, lower[live], upper[live])
        new_cost, new_slope, new_bend = costs(trial)
        better = new_cost < cost
        gain = np.where(better, cost - new_cost, np.inf)
        theta[better], cost[better] = trial[better], new_cost[better]
        slope[better], bend[better] = new_slope[better], new_bend[better]
        damping *= np.where(better, _EASIER, _HARDER)
        done = (gain <= TOLERANCE * cost) | (damping > _MOST_DAMPING)
        best[live], found[live], rest[live] = theta, cost, done
        if done.any():
            stay = np.flatnonzero(~done)
            live, costs = live[stay], costs.take(stay)
            theta, cost, slope, bend = theta[stay], cost[stay], slope[stay], bend[stay]
            damping = damping[stay]
    return Minima(best, found, rest)


def _stepped(
    theta: FloatArray, slope: FloatArray, bend: FloatArray, damping: FloatArray,
    lower: FloatArray, upper: FloatArray,
) -> FloatArray:  # fmt: skip
    """Return the parameters one damped step on, within their bounds, (p, k)."""
    held = ((theta <= lower) & (slope > 0)) | ((theta >= upper) & (slope < 0)) | (lower == upper)
    free = ~held
    curved = bend * free[:, :, None] * free[:, None, :]
    size = np.einsum("pkk->pk", curved)
    # Directions of which a cost says nothing are damped by what it says of the others.
    least = 1e-6 * size.max(axis=1, keepdims=True) + 1e-30
    size += damping[:, None] * np.maximum(size, least) + least + held
    step = np.linalg.solve(curved, (slope * free)[:, :, None])[:, :, 0]
    result: FloatArray = np.clip(theta - np.clip(step, -_MOST_STEP, _MOST_STEP), lower, upper)
    return result
