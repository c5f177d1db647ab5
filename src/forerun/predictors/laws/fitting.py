"""The fitting loop of laws: many small searches at once by damped Gauss-Newton steps, and their bootstrap.

A table has a hundred kinds of job with a dozen runs each. Levenberg and Marquardt's damping (Marquardt,
An Algorithm for Least-Squares Estimation of Nonlinear Parameters, 1963) runs for all kinds together;
a parameter at a bound is held while the cost falls beyond it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, Self

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray

MOST_ROUNDS = 150
TOLERANCE = 1e-6  # of the cost, in one round
_FIRST_DAMPING, _MOST_DAMPING = 1e-3, 1e8
_EASIER, _HARDER = 0.2, 5.0
# Of so few searches those that are done stay among the others: to part them takes longer.
_FEW = 64
# A step that promises less than this share of the tolerance is not taken.
_FLAT = 1e-3
RESAMPLES, SEED = 200, 0
# Timers and repeats leave at least this, as a log standard deviation.
LEAST_NOISE = 0.005


class ColumnRows:
    """n rows of a dataclass whose fields are columns, (n,) or (n, ...)."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))  # type: ignore[arg-type]

    def take(self, index: Any) -> Self:
        """Return the rows at the given positions."""
        return type(self)(*(getattr(self, f.name)[index] for f in fields(self)))  # type: ignore[arg-type]

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the rows of all parts, in order."""
        names = [f.name for f in fields(cls)]  # type: ignore[arg-type]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


@dataclass(frozen=True)
class Segments:
    """n rows of p kinds, one kind after another.

    Attributes:
        lengths: rows of each kind, at least one, (p,).
    """

    lengths: IntArray

    @property
    def first(self) -> IntArray:
        """Row at which each kind begins, (p,)."""
        return np.cumsum(self.lengths) - self.lengths

    @property
    def owner(self) -> IntArray:
        """Which kind each row is of, (n,)."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    def sums(self, values: FloatArray) -> FloatArray:
        """Return the sum of each kind's rows, (p, ...)."""
        return np.asarray(np.add.reduceat(values, self.first))

    def take(self, index: IntArray) -> tuple[Segments, IntArray]:
        """Return some kinds, and the positions of their rows."""
        kept = Segments(self.lengths[index])
        rows = np.repeat(self.first[index] - kept.first, kept.lengths)
        return kept, rows + np.arange(len(rows))


class Costs(Protocol):
    """p costs of k parameters each."""

    def __call__(self, theta: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the costs (p,), their slopes (p, k) and curvatures (p, k, k) at theta (p, k)."""
        ...

    def take(self, index: IntArray) -> Self:
        """Return the costs at the given positions."""
        ...


@dataclass(frozen=True)
class Minima:
    """What was found: parameters (p, k), costs (p,), and which searches converged (p,)."""

    theta: FloatArray
    cost: FloatArray
    converged: BoolArray


def minima(
    costs: Costs, start: FloatArray, lower: FloatArray, upper: FloatArray, *,
    rounds: int = MOST_ROUNDS, tolerance: float = TOLERANCE, nothing: float = 0.0,
    most_step: float = 2.0,
) -> Minima:  # fmt: skip
    """Return a local minimum of each cost.

    SciPy's L-BFGS-B, one search after another, takes 15.4 s for the 294 searches of goodput on the
    100 kinds of benchmarks/laws_speed.py, where this takes 0.45 s.

    Args:
        costs: p of them.
        start, lower, upper: parameters to start from and their bounds, (p, k).
        rounds: at most. tolerance: the last round gains less than this share of the cost.
        nothing: a cost at or below this is a minimum.
        most_step: the largest change of a parameter in a round (of a logarithm: times e^2).
    """
    best = np.clip(start, lower, upper)
    theta, damping = best.copy(), np.full(len(best), _FIRST_DAMPING)
    cost, slope, curvature = costs(theta)
    live, found, converged = np.arange(len(best)), cost.copy(), np.zeros(len(best), dtype=bool)
    done = converged.copy()
    for _ in range(rounds):
        low, high = lower[live], upper[live]
        step, promised = _step(theta, slope, curvature, damping, low, high)
        done |= (promised <= _FLAT * tolerance * cost) & (damping <= _FIRST_DAMPING)
        done |= cost <= nothing
        if not done.all():
            trial = np.clip(theta - np.clip(step, -most_step, most_step), low, high)
            tried = costs(trial)
            better = (tried[0] < cost) & ~done
            gained = np.where(better, cost - tried[0], promised)
            done |= gained <= tolerance * cost
            for old, new in zip((theta, cost, slope, curvature), (trial, *tried), strict=True):
                old[better] = new[better]
            damping *= np.where(better, _EASIER, _HARDER)
            done |= damping > _MOST_DAMPING
        best[live], found[live], converged[live] = theta, cost, done
        if done.all():
            break
        if done.any() and len(live) > _FEW:
            stay = np.flatnonzero(~done)
            live, costs, damping = live[stay], costs.take(stay), damping[stay]
            theta, cost, slope, curvature = theta[stay], cost[stay], slope[stay], curvature[stay]
            done = done[stay]
    return Minima(best, found, converged)


def _step(
    theta: FloatArray, slope: FloatArray, curvature: FloatArray, damping: FloatArray,
    lower: FloatArray, upper: FloatArray,
) -> tuple[FloatArray, FloatArray]:  # fmt: skip
    """Return the damped step to subtract, (p, k), and what it promises to gain, (p,)."""
    held = ((theta <= lower) & (slope > 0)) | ((theta >= upper) & (slope < 0)) | (lower == upper)
    free = ~held
    curved = curvature * free[:, :, None] * free[:, None, :]
    size = np.einsum("pkk->pk", curved)  # a view
    # Directions in which a cost is flat are damped by its curvature in the others.
    least = 1e-6 * size.max(axis=1, keepdims=True, initial=0.0) + 1e-30
    size += damping[:, None] * np.maximum(size, least) + least + held
    pull = slope * free
    step = np.linalg.solve(curved, pull[:, :, None])[:, :, 0]
    return step, np.einsum("pk,pk->p", step, pull) / 2


def one_step_bootstrap(
    slopes: FloatArray, errors: FloatArray, prior_sigma: FloatArray, noise: float = LEAST_NOISE
) -> FloatArray:
    """Return by how much parameters move about a fit with other errors, (RESAMPLES, k).

    Each draw is one Gauss-Newton step from the fit (Shao and Tu, The Jackknife and Bootstrap,
    1995, section 8.1), so that hundreds cost one factorisation. What the runs do not determine is
    as wide as its prior; where priors or bounds keep the fit from the least squares of its errors,
    it may be off by as much.

    Args:
        slopes: d log(fitted) / d parameter, 0 for a parameter without runs, (n, k).
        errors: log of measured over fitted, (n,).
        prior_sigma: standard deviation of the prior of each parameter, (k,).
        noise: least log standard deviation that errors are taken to have.
    """
    rng = np.random.default_rng(SEED)
    n, k = slopes.shape
    free = max(n - int(np.count_nonzero(np.abs(slopes).max(axis=0) > 0)), 1)
    sigma = float(np.sqrt(np.sum(errors**2) / free))
    centred = (errors - errors.mean()) * np.sqrt(n / free)
    if sigma < noise:  # errors that chance made smaller than they are
        centred, sigma = noise * rng.normal(size=n), noise
    drawn = centred[rng.integers(0, n, (RESAMPLES, n))]
    prior = rng.normal(size=(RESAMPLES, k)) / prior_sigma
    precision = slopes.T @ slopes / sigma**2 + np.diag(1 / prior_sigma**2)
    wanted = np.vstack([drawn @ slopes / sigma**2 + prior, errors @ slopes / sigma**2])
    moved = np.linalg.solve(precision, wanted.T).T
    result: FloatArray = moved[:-1] + rng.normal(size=(RESAMPLES, 1)) * moved[-1]
    return result
