"""The fit of Pollux's seven parameters to many kinds of job at once, and how far they may be off.

The cost is that of Pollux's own code (adaptdl.goodput): root mean squared log errors of passes and
of steps, a pull of gamma to 1 and of the growth with devices to 0, within its bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.predictors.laws.goodput_cost import GoodputCosts, Timings
from forerun.predictors.laws.goodput_step import (
    A_C,
    A_N,
    A_R,
    B_C,
    B_N,
    B_R,
    GAMMA,
    PARAMETERS,
    log_slopes,
    timed,
)
from forerun.predictors.laws.many_minima import minima
from forerun.predictors.laws.one_step import one_step_draws

FloatArray = NDArray[np.float64]

LEAST_SECONDS, LEAST_GAMMA, MOST_GAMMA = 1e-8, 1.0, 10.0
# No part of a step takes many times the longest step.
MOST_SHARE = 10.0
# An unmeasured level of the network is no faster than the measured one within the node.
SLOWER_BETWEEN = 1.1
# Gamma to start from: sums and near-maxima have minima of their own.
STARTS = (1.2, 3.0)
# What is believed of a parameter beside the runs, as a log standard deviation (gamma: as it is).
_PRIOR_SIGMA = np.array([1.5] * 6 + [2.0])


@dataclass(frozen=True)
class Fitted:
    """What a fit found for one kind of job.

    Attributes:
        theta: the seven parameters, (7,).
        draws: of (log of the six times, gamma) about their values, by a bootstrap, (resamples, 7).
        log_errors: log of measured over fitted steps, (n,).
        free: which parameters the runs speak of, (7,).
        converged: whether the search came to rest.
    """

    theta: FloatArray
    draws: FloatArray
    log_errors: FloatArray
    free: NDArray[np.bool_]
    converged: bool


def fitted(timings: Sequence[Timings]) -> list[Fitted]:
    """Return the parameters of each kind of job."""
    begun = [_start(kind) for kind in timings]
    start = np.repeat(np.array([theta for theta, _ in begun]), len(STARTS), axis=0)
    free = np.repeat(np.array([which for _, which in begun]), len(STARTS), axis=0)
    gamma = np.tile(np.log(STARTS), len(timings))
    start[:, GAMMA] = np.where(free[:, GAMMA], gamma, start[:, GAMMA])
    longest = np.repeat([kind.seconds.max() for kind in timings], len(STARTS))
    lower, upper = np.full_like(start, np.log(LEAST_SECONDS)), np.empty_like(start)
    upper[:] = np.log(MOST_SHARE * longest)[:, None]
    lower[:, GAMMA], upper[:, GAMMA] = np.log(LEAST_GAMMA), np.log(MOST_GAMMA)
    lower, upper = np.where(free, lower, start), np.where(free, np.maximum(upper, start), start)
    costs = GoodputCosts.of([kind for kind in timings for _ in STARTS])
    found = minima(costs, start, lower, upper)
    best = found.cost.reshape(-1, len(STARTS)).argmin(axis=1) + np.arange(
        0, len(start), len(STARTS)
    )
    return [
        _result(kind, np.exp(found.theta[i]), free[i], bool(found.converged[i]))
        for kind, i in zip(timings, best.tolist(), strict=True)
    ]


def _result(kind: Timings, theta: FloatArray, free: NDArray[np.bool_], converged: bool) -> Fitted:
    theta = _with_priors(theta, free)
    errors = np.log(kind.seconds) - np.log(timed(theta, kind.steps).step)
    slopes = log_slopes(theta, kind.steps, timed(theta, kind.steps)) * free
    draws = one_step_draws(slopes, errors, _PRIOR_SIGMA)
    return Fitted(theta, draws, errors, free, converged)


def _start(kind: Timings) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Return logs of parameters to start from, (7,), and which of them the runs speak of.

    A parameter without runs stays at its optimistic bound, and with one micro-batch a pass is half
    fixed and half by samples (adaptdl.goodput, `fit_perf_params`).
    """
    steps, seconds, accumulation = kind.steps, kind.seconds, kind.accumulation
    many, between = steps.devices > 1, steps.between > 0
    per_pass = np.where(np.isnan(accumulation), seconds / steps.passes, accumulation) * steps.speed
    pass_seconds = float(np.median(per_pass[~np.isnan(accumulation)])) if (
        np.isfinite(accumulation).any()
    ) else 0.7 * float(per_pass.min())  # fmt: skip
    theta = np.full(len(PARAMETERS), LEAST_SECONDS)
    free = np.ones(len(PARAMETERS), dtype=bool)
    theta[A_C] = 0.5 * pass_seconds
    theta[B_C] = 0.5 * pass_seconds / float(np.median(steps.micro_batch))
    free[A_C] = len(np.unique(steps.micro_batch)) > 1
    for a, b, rows in ((A_N, B_N, many & between), (A_R, B_R, many & ~between)):
        free[a] = rows.any()
        free[b] = len(np.unique(steps.devices[rows])) > 1
        rest = seconds - steps.passes * pass_seconds / steps.speed
        rest = (np.maximum(rest, 0.1 * seconds) * steps.rate)[rows]
        theta[a] = float(np.median(rest)) if free[a] else LEAST_SECONDS
        theta[b] = 0.05 * theta[a] if free[b] else LEAST_SECONDS
    free[GAMMA] = many.any()
    theta[GAMMA] = LEAST_GAMMA
    return np.log(np.maximum(theta, LEAST_SECONDS)), free


def _with_priors(theta: FloatArray, free: NDArray[np.bool_]) -> FloatArray:
    """Return the parameters, an unmeasured network between nodes no faster than that within one."""
    theta = theta.copy()
    for outer, inner in ((A_N, A_R), (B_N, B_R)):
        if not free[outer]:
            theta[outer] = max(theta[outer], SLOWER_BETWEEN * theta[inner])
    return theta
