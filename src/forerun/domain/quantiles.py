"""Quantiles: a forecast number is a row of quantiles, read as a two-piece log-normal."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from forerun.arrays import FloatArray

LEVELS: tuple[float, float, float] = (0.05, 0.50, 0.95)
Z95 = 1.6448536269514722  # standard normal quantile of 0.95
_HALVINGS = 30  # of the log between the least and the greatest quantile of a mixture


def normal_cdf(z: ArrayLike) -> FloatArray:
    """Return the standard normal distribution function, any shape.

    Source: Abramowitz and Stegun 7.1.26; absolute error below 2e-7, which keeps the million-plan
    path in NumPy.
    """
    x = np.asarray(z, dtype=np.float64) * 0.7071067811865476
    t = 1.0 / (1.0 + 0.3275911 * np.abs(x))
    poly = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (
        -1.453152027 + t * 1.061405429))))  # fmt: skip
    tail = 0.5 * poly * np.exp(-x * x)
    return np.where(x >= 0, 1.0 - tail, tail)


def normal_quantile(p: float) -> float:
    """Return the standard normal quantile of a probability in (0, 1)."""
    from statistics import NormalDist

    return NormalDist().inv_cdf(p)


def spread(
    median: ArrayLike, sigma: ArrayLike, floor: ArrayLike | None = None,
    tails: tuple[ArrayLike, ArrayLike] = (1.0, 1.0),
) -> FloatArray:  # fmt: skip
    """Return rows of quantiles (n, 3) around medians (n,) with log standard deviations (n,).

    No quantile falls below `floor` (n,) where one is given: the physical lower bound. tails: how
    far the 5 % and the 95 % quantile lie, in units of a normal distribution's, each (n,) or one.
    """
    middle = np.asarray(median, dtype=np.float64)
    reach = Z95 * np.asarray(sigma, dtype=np.float64)
    rows = np.empty((*np.broadcast_shapes(middle.shape, reach.shape), 3))
    low, high = (np.asarray(tail, dtype=np.float64) for tail in tails)
    rows[..., 0] = middle * np.exp(-low * reach)
    rows[..., 1] = middle
    rows[..., 2] = middle * np.exp(high * reach)
    if floor is not None:
        np.maximum(rows, np.asarray(floor)[..., None], out=rows)
    return rows


def sure(values: ArrayLike) -> FloatArray:
    """Return a sure number as a row of equal quantiles, (n,) to (n, 3)."""
    return np.repeat(np.asarray(values, dtype=np.float64)[..., None], 3, axis=-1)


def probability_below(rows: FloatArray, limit: ArrayLike) -> FloatArray:
    """Return P(value <= limit) for rows of quantiles (n, 3) and limits (n,) or a scalar."""
    with np.errstate(divide="ignore", invalid="ignore"):
        middle = np.log(rows[..., 1])
        asked = np.log(np.asarray(limit, dtype=np.float64)) - middle
        up, down = np.log(rows[..., 2]) - middle, middle - np.log(rows[..., 0])
        side = np.where(asked >= 0, up, down)
        z = np.where(side > 0, Z95 * asked / np.where(side > 0, side, 1.0), 0.0)
    certain = np.where(asked >= 0, 1.0, 0.0)
    return np.where(np.isnan(asked), np.nan, np.where(side > 0, normal_cdf(z), certain))


def at_probability(rows: FloatArray, probability: float) -> FloatArray:
    """Return the quantile of each row (n, 3) at a probability in (0, 1), shape (n,)."""
    z = normal_quantile(probability)
    edge = rows[..., 2] if z >= 0 else rows[..., 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(rows[..., 1] > 0, edge / rows[..., 1], 1.0)
    result: FloatArray = rows[..., 1] * ratio ** (abs(z) / Z95)
    return result


def mixture_quantiles(rows: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the quantiles (n, 3) of mixtures of k answers, given as rows (k, n, 3), by bisection.

    weights: of each answer, (k,), which add up to 1.
    """
    levels = np.array(LEVELS)[:, None]
    below = np.repeat(np.log(rows[None, ..., 0].min(axis=1)), len(LEVELS), axis=0)  # (3, n)
    above = np.repeat(np.log(rows[None, ..., 2].max(axis=1)), len(LEVELS), axis=0)
    for _ in range(_HALVINGS):
        middle = (below + above) / 2.0
        chances = probability_below(rows[None], np.exp(middle)[:, None])  # (3, k, n)
        short = np.tensordot(chances, weights, axes=(1, 0)) < levels
        below, above = np.where(short, middle, below), np.where(short, above, middle)
    return np.asarray(np.exp((below + above) / 2.0).T)


def as_dict(row: Any) -> dict[str, float]:
    """Return one row of quantiles by name."""
    return {"p05": float(row[0]), "p50": float(row[1]), "p95": float(row[2])}
