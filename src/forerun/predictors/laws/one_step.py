"""One-step bootstrap: by how much parameters move when errors are drawn anew, without new searches."""

from __future__ import annotations

import numpy as np

from forerun.arrays import FloatArray

RESAMPLES, SEED = 200, 0
# Timers and repeats leave at least this, as a log standard deviation.
LEAST_NOISE = 0.005


def one_step_draws(
    slopes: FloatArray, errors: FloatArray, prior_sigma: FloatArray, noise: float = LEAST_NOISE
) -> FloatArray:
    """Return by how much parameters move about a fit, (RESAMPLES, k).

    Each draw is one Gauss-Newton step from the fit (Shao and Tu, The Jackknife and Bootstrap,
    1995, section 8.1), so that hundreds cost one factorisation. What the runs do not tell is as
    wide as is believed of it beforehand; where pulls or bounds keep the fit from the least
    squares of its errors, it may be off by as much.

    Args:
        slopes: d log(fitted) / d parameter, 0 for a parameter that runs do not speak of, (n, k).
        errors: log of measured over fitted, (n,).
        prior_sigma: standard deviation of what is believed of each parameter, (k,).
        noise: least log standard deviation that errors are taken to have.
    """
    rng = np.random.default_rng(SEED)
    n, k = slopes.shape
    spent = max(n - int(np.count_nonzero(np.abs(slopes).max(axis=0) > 0)), 1)
    seen = float(np.sqrt(np.sum(errors**2) / spent))
    centred = (errors - errors.mean()) * np.sqrt(n / spent)
    if seen < noise:  # errors that chance made smaller than they are
        centred, seen = noise * rng.normal(size=n), noise
    drawn = centred[rng.integers(0, n, (RESAMPLES, n))]
    believed = rng.normal(size=(RESAMPLES, k)) / prior_sigma
    precision = slopes.T @ slopes / seen**2 + np.diag(1 / prior_sigma**2)
    wanted = np.vstack([drawn @ slopes / seen**2 + believed, errors @ slopes / seen**2])
    moved = np.linalg.solve(precision, wanted.T).T
    result: FloatArray = moved[:-1] + rng.normal(size=(RESAMPLES, 1)) * moved[-1]
    return result
