"""Stopped: runs that were stopped before they ended say how long they would have taken at least."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forerun.domain.quantiles import Z95, normal_cdf
from forerun.tables import Runs

FloatArray = NDArray[np.float64]
# Beyond so many deviations the bound itself is what is known.
_FAR = 4.0


def stopped_seconds(runs: Runs, quantity: str) -> FloatArray:
    """Return the seconds after which runs were stopped (n,), NaN where they were not.

    Only a whole run is stopped: steps and epochs that a stopped run measured are whole.
    """
    if quantity != "run":
        return np.full(len(runs), np.nan)
    seconds = runs.measured("time_to_train_s")
    return np.where(
        (runs.status == "timeout") & (seconds > 0) & np.isfinite(seconds), seconds, np.nan
    )


def expected_seconds(foretold: FloatArray, least: FloatArray) -> FloatArray:
    """Return the log mean of times that are known to be longer than a bound, (n,).

    Tobin (1958), Estimation of relationships for limited dependent variables: of a normal value
    above a bound a deviations off its mean, the mean lies phi(a) / (1 - Phi(a)) deviations off.

    Args:
        foretold: quantiles of seconds without the bound (n, 3).
        least: the bounds, seconds, (n,).
    """
    sigma = np.log(foretold[:, 2] / foretold[:, 1]) / Z95
    off = np.log(least / foretold[:, 1]) / sigma
    near = np.clip(off, -_FAR, _FAR)
    hazard = np.exp(-0.5 * near**2) / np.sqrt(2 * np.pi) / np.maximum(1 - normal_cdf(near), 1e-7)
    beyond = np.where(off > _FAR, off, np.maximum(hazard, off))
    result: FloatArray = foretold[:, 1] * np.exp(sigma * beyond)
    return result
