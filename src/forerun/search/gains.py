"""Gains: how much a further run is expected to improve on the best so far."""

from __future__ import annotations

import numpy as np

from forerun.arrays import FloatArray
from forerun.domain.quantiles import normal_cdf


def expected_gain(best: float | FloatArray, mean: FloatArray, sd: FloatArray) -> FloatArray:
    """Return the expected improvement of a minimum, E max(best - y, 0), in the unit of y.

    Source: Jones, Schonlau and Welch, Efficient global optimization, 1998, equation 15.
    """
    u = (best - mean) / sd
    density = np.exp(-0.5 * u * u) / np.sqrt(2 * np.pi)
    gain: FloatArray = np.maximum(sd * (u * normal_cdf(u) + density), 0.0)
    return gain


def gain_within(best: float, limit: FloatArray, mean: FloatArray, sd: FloatArray) -> FloatArray:
    """Return E[max(best - y, 0); y < limit]: the expected improvement of what keeps to a limit.

    One y decides both, so the two are no product of an expectation and a probability: where the
    limit lies above the best, whatever improves keeps to it. [derived]

    Args:
        best: the least so far.
        limit: of y, (n,).
        mean, sd: of y, (d, n).
    """
    least = np.minimum(limit, best)
    with np.errstate(invalid="ignore"):
        short = np.where(least < best, (best - least) * normal_cdf((least - mean) / sd), 0.0)
    return expected_gain(least, mean, sd) + short
