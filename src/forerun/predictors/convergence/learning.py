"""Learning: when a training that is under way will reach its target, from the metric so far, with a band."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from forerun.arrays import FloatArray
from forerun.errors import RequestError

LEAST = 4  # points that a curve needs
_DRAWS = 400
_AHEAD = 100.0  # how many times the samples so far are looked ahead
_GRID = 400
_TINY = 1e-12
_MOST_LOG = 30.0  # of a number that is still one of a curve

# Shapes from 0 at no samples to 1 at infinity, of samples over their scale (Domhan et al., IJCAI 2015: power law, exponential).
Shape = Callable[[FloatArray, Any], FloatArray]
SHAPES: dict[str, Shape] = {
    "power": lambda x, p: -np.expm1(-np.minimum(p * np.log1p(x), _MOST_LOG)),
    "exponential": lambda x, p: (
        -np.expm1(-np.exp(np.minimum(p * np.log(np.maximum(x, _TINY)), _MOST_LOG)))
    ),
}


@dataclass(frozen=True)
class Arrival:
    """Quantiles of the samples at which the target is reached (3,), infinite where it is not; and that it ever is."""

    samples: tuple[float, float, float]
    probability: float


def arrival(samples: FloatArray, metric: FloatArray, target: float, rises: bool = True) -> Arrival:
    """Return when a metric (n,), measured after so many samples (n,), reaches a target.

    Each shape is fitted by least squares; draws of its parameters and of the next points' errors cross the target early or
    late, and shapes weigh by their likelihood (BIC).

    Raises:
        RequestError: fewer than `LEAST` points, or a figure that is not finite.
    """
    samples, metric = (np.asarray(v, dtype=np.float64) for v in (samples, metric))
    asked = f"when a metric of {len(metric)} points reaches {target:g}"
    if len(metric) < LEAST:
        raise RequestError(
            asked, f"{LEAST} points at least show a curve", "wait for more evaluations"
        )
    if not (
        np.isfinite(samples).all() and np.isfinite(metric).all() and (np.diff(samples) > 0).all()
    ):
        raise RequestError(
            asked, "a figure is not finite, or samples do not grow", "correct the points"
        )
    sign = 1.0 if rises else -1.0
    value, goal = sign * metric, sign * target
    met = np.flatnonzero(value >= goal)
    if len(met):
        at = float(samples[met[0]])
        return Arrival((at, at, at), 1.0)
    ahead = np.geomspace(samples[-1] * 1.001, samples[-1] * _AHEAD, _GRID)
    # The best of several evaluations reaches it first: as many as fall between two points ahead.
    pace = (samples[-1] - samples[0]) / (len(samples) - 1)
    tries = np.maximum(np.diff(ahead, prepend=samples[-1]) / pace, 1.0)
    lift = np.sqrt(2.0 * np.log(np.minimum(tries, 50.0)))
    crossings, weights = [], []
    for number, shape in enumerate(SHAPES.values()):
        found, rng = _fit(shape, samples, value), np.random.default_rng(number)
        root = np.linalg.cholesky(found.spread + 1e-12 * np.eye(len(found.theta)))
        draws = found.theta + rng.standard_normal((_DRAWS, len(found.theta))) @ root.T
        values = _curve(shape, draws.T[:, :, None], ahead)
        values += found.sigma * (lift + np.where(tries < 2, rng.standard_normal(values.shape), 0.0))
        # Where draws first reach the goal, infinite where they do not within the look ahead.
        reached = values >= goal
        crossings.append(np.where(reached.any(axis=1), ahead[np.argmax(reached, axis=1)], np.inf))
        weights.append(-0.5 * found.bic)
    share = np.exp(np.array(weights) - max(weights))
    share /= share.sum()
    every = np.concatenate(crossings)
    weight = np.repeat(share / _DRAWS, _DRAWS)
    order = np.argsort(every)
    places = np.searchsorted(np.cumsum(weight[order]), (0.05, 0.5, 0.95))
    low, middle, high = every[order][np.minimum(places, len(every) - 1)].tolist()
    return Arrival((low, middle, high), float(min(weight[np.isfinite(every)].sum(), 1.0)))


@dataclass(frozen=True)
class _Fitted:
    """Parameters (first value, ln rise, ln scale, ln p), their covariance, the error of a point to come, and BIC."""

    theta: FloatArray
    spread: FloatArray
    sigma: float
    bic: float


def _curve(shape: Shape, theta: FloatArray, samples: FloatArray) -> FloatArray:
    """Return the metric of curves theta (4,), or (4, draws, 1) for (draws, n), after samples (n,)."""
    first, (rise, scale, power) = theta[0], np.exp(np.clip(theta[1:], -_MOST_LOG, _MOST_LOG))
    return np.asarray(first + rise * shape(samples / scale, power))


def _fit(shape: Shape, samples: FloatArray, value: FloatArray) -> _Fitted:
    from scipy.optimize import least_squares

    span = max(float(np.ptp(value)), 1e-9 * max(float(np.abs(value).max()), 1e-12))
    # Priors keep parameters that few points do not show: the rise is of the order of what was seen, p of 1.
    centre = np.array(
        [value[0] - 0.5 * span, np.log(2.0 * span), np.log(max(np.median(samples), _TINY)), 0.0]
    )
    wide = np.array([2.0 * span, 1.0, 2.0, 0.5])
    noise = max(float(np.std(np.diff(value))) / 2.0**0.5, 1e-3 * span)

    def errors(theta: FloatArray) -> FloatArray:
        off = (value - _curve(shape, theta, samples)) / noise
        return np.concatenate([off, (theta - centre) / wide])

    found = min(
        (least_squares(errors, centre + np.array([0.0, 0.0, shift, 0.0]), method="lm") for shift in (-2.0, 0.0, 2.0)),
        key=lambda one: float(one.cost),
    )  # fmt: skip
    off = value - _curve(shape, found.x, samples)
    sigma = float(np.sqrt(np.sum(off**2) / max(len(value) - 2, 1)))
    sigma = max(sigma, 1e-3 * span)
    spread = np.linalg.inv(found.jac.T @ found.jac) * max((sigma / noise) ** 2, 1e-6)
    bic = len(value) * np.log(sigma**2)
    # Points to come err as the latest do, as far as these tell: a loss is less noisy the lower it is.
    late = off[len(off) // 2 :]
    ahead = np.sqrt((np.sum(late**2) + LEAST * sigma**2) / (len(late) + LEAST))
    return _Fitted(found.x, spread, max(float(ahead), 1e-3 * span), float(bic))
