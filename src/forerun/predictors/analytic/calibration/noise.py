"""Noise: how far runs scatter about a fit, learned from what its parameters leave of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forerun.tables import Jobs

FloatArray = NDArray[np.float64]
SMALLEST_SCALE = 0.03  # no model of this kind comes nearer on jobs that it has not seen
PRIOR_SCALE, PRIOR_COUNT = 0.10, 3.0
# Of runs on probed devices: no constant of their operations was ever fitted, and the processors of
# small hosts wander by a tenth within minutes. Development runs of a lab lie 0.13 and 0.20 (root mean
# square) from what the probe alone foresaw (benchmarks/results/ray-study-2026-11-22).
PROBED_SCALE = 0.20
# What the median of n absolute deviations lacks of a normal spread where n is small (Croux and
# Rousseeuw, 1992, "Time-efficient algorithms for two highly robust estimators of scale").
_DEVIATIONS = dict(enumerate((1.0, 1.196, 1.495, 1.363, 1.206, 1.2, 1.14, 1.129, 1.107), start=1))
_LEAST_LEFT = 0.1


def leverage(slopes: FloatArray, weight: FloatArray, prior: FloatArray) -> FloatArray:
    """Return which share of each run the parameters take up, (n,): 0 to 1, a ridge's hat matrix."""
    precision = (slopes.T * weight) @ slopes + np.diag(prior)
    return np.asarray(weight * (slopes * np.linalg.solve(precision, slopes.T).T).sum(axis=1))


def usual_scale(jobs: Jobs) -> FloatArray:
    """Return the log standard deviation that runs are taken to have before any is seen, (n,)."""
    probed = np.array([cluster.device.measured is not None for cluster in jobs.clusters])
    return np.where(probed[jobs.cluster_index], PROBED_SCALE, PRIOR_SCALE)


def scale_of(
    residual: FloatArray, shared: FloatArray, setting: NDArray[np.int64], usual: FloatArray,
    taken: FloatArray | None,
) -> FloatArray:  # fmt: skip
    """Return each row's robust residual scale, (n,): its setting's, drawn to a prior where few.

    One laboratory repeats to a percent, another shares its network with strangers. What the
    parameters took of a run is no sign that runs repeat: three runs that a few parameters pass through
    say nothing of noise.

    usual: the scale that each run is taken to have before any is seen, (n,).
    taken: leverage of each run, (n,), see `leverage`; None before the fit.
    """
    middle = float(np.median(residual)) if taken is None else 0.0
    scales = np.empty(int(setting.max()) + 1)
    for i in range(len(scales)):
        ours = setting == i
        spread = 1.4826 * float(np.median(np.abs(residual[ours] - middle)))
        if taken is None:
            left, number = 1.0, int(ours.sum())
            spread *= _DEVIATIONS.get(number, number / (number - 0.8))
        else:
            left = max(1.0 - float(taken[ours].mean()), 0.0)
            spread /= max(left, _LEAST_LEFT) ** 0.5
        count = left * float(shared[ours].sum())
        pooled = (count * spread**2 + PRIOR_COUNT * float((usual[ours] ** 2).mean())) / (
            count + PRIOR_COUNT
        )
        scales[i] = max(float(np.sqrt(pooled)), SMALLEST_SCALE)
    return scales[setting]
