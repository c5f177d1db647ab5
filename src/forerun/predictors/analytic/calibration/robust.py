"""Robust maximum a posteriori of log multipliers of peaks, by iterated reweighting."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Forecast = Callable[[FloatArray], FloatArray]
DEGREES = 4.0  # of freedom of the Student-t errors
PRIOR_SCALE, PRIOR_COUNT, SMALLEST_SCALE = 0.16, 6.0, 0.03
MAX_ROUNDS, SETTLED = 8, 0.01


def maximum(
    forecast: Forecast, jacobian: Callable[[FloatArray, FloatArray], FloatArray],
    target: FloatArray, shared: FloatArray, prior: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray]:  # fmt: skip
    """Return (theta (p,), posterior precision (p, p), forecast (n,)) by iterated reweighting."""
    theta, precision = np.zeros(len(prior)), np.diag(prior)
    now = forecast(theta)
    for _ in range(MAX_ROUNDS):
        residual = target - now
        scale = pooled(1.4826 * float(np.median(np.abs(residual))), float(shared.sum()))
        weight = shared * (DEGREES + 1) / (DEGREES + (residual / scale) ** 2) / scale**2
        slopes = jacobian(theta, now)
        precision = (slopes.T * weight) @ slopes + np.diag(prior)
        step = np.linalg.solve(precision, slopes.T @ (weight * residual) - prior * theta)
        here = _cost(residual, shared, prior, theta, scale)
        for size in (1.0, 0.5, 0.25, 0.0):
            trial = theta + size * np.clip(step, -0.3, 0.3)
            there = forecast(trial)
            if _cost(target - there, shared, prior, trial, scale) < here:
                break
        moved = float(np.abs(trial - theta).max())
        theta, now = trial, there
        if moved < SETTLED:
            break
    return theta, precision, now


def _cost(
    residual: FloatArray, shared: FloatArray, prior: FloatArray, theta: FloatArray, scale: float
) -> float:
    """Negative log posterior but for a constant."""
    tails = (DEGREES + 1) / 2 * np.log1p((residual / scale) ** 2 / DEGREES)
    return float((shared * tails).sum() + 0.5 * (prior * theta**2).sum())


def pooled(spread: float, count: float, before: float = PRIOR_SCALE) -> float:
    """Return a spread of so many residuals, shrunk to what it was before where they are few."""
    pooled = (count * spread**2 + PRIOR_COUNT * before**2) / (count + PRIOR_COUNT)
    return max(float(np.sqrt(pooled)), SMALLEST_SCALE)
