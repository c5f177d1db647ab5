"""Fitting: robust maximum a posteriori of log multipliers, by damped Gauss-Newton.

Residuals are logs of measured over forecast seconds with Student-t errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray, group_medians, taken, thinned
from forerun.errors import RequestError
from forerun.predictors.analytic.calibration.parameters import (
    Parameter,
    moved,
    owners,
    parameters_for,
)
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.flat import Rows
from forerun.predictors.analytic.layout import Layout, lay_out
from forerun.predictors.analytic.step import step_and_floor
from forerun.predictors.analytic.uncertainty import settings_of
from forerun.tables import Jobs, Runs

DEGREES = 4.0  # of freedom of the Student-t errors
# n rows of one workload on one cluster count as n to the power 1 - this.
SHARED_POWER = 0.5
PRIOR_WIDTH = 1.0  # of priors over `parameters`'; what is shipped is fitted with narrower ones
# What earlier runs settled holds for later ones, but for this share of the prior.
DRIFT = 0.4
MAX_ROWS = 1500
# What a run of a workload counts for whose graph is only totals, or a guess.
LOOSE_WEIGHT = 0.25
SPEAKS = 0.01  # a run informs a constant when doubling it moves its forecast by about a hundredth
SMALLEST_SCALE = 0.03  # no model of this kind comes nearer on jobs that it has not seen
PRIOR_SCALE, PRIOR_COUNT = 0.10, 3.0
# Of runs on probed devices: development runs of a lab lie 0.13 and 0.20 (root mean square) from what
# the probe alone foresaw (benchmarks/results/ray-study-2026-11-22).
PROBED_SCALE = 0.20
# What the median of n absolute deviations lacks of a normal spread where n is small (Croux and
# Rousseeuw, 1992, "Time-efficient algorithms for two highly robust estimators of scale").
_DEVIATIONS = dict(enumerate((1.0, 1.196, 1.495, 1.363, 1.206, 1.2, 1.14, 1.129, 1.107), start=1))
_LEAST_LEFT = 0.1
# Of the search: step of differences, rounds, when it ends, trials of ever more damped steps, the
# longest one, and the step that leaves the slopes as they were.
STEP, MAX_ROUNDS, SETTLED, MOST_TRIALS, LONGEST, SAME_SLOPES = 0.02, 10, 0.02, 6, 0.7, 0.15


@dataclass(frozen=True)
class Fit:
    """A finished fit of p parameters to n runs, all in logs.

    prior: the constants before it; theta: (p,); covariance, precision: (p, p); prior_sd: before the fit,
    (p,); scale: sd of each run about the middle of all, (n,); layout: of these runs and maybe others, rows: which
    of them these are, (n,); target, residual: measured, and over forecast at the optimum, (n,); slopes: of
    forecasts, (n, p).
    """

    prior: Constants
    parameters: tuple[Parameter, ...]
    theta: FloatArray
    covariance: FloatArray
    precision: FloatArray
    prior_sd: FloatArray
    scale: FloatArray
    jobs: Jobs
    layout: Layout
    rows: IntArray
    target: FloatArray
    residual: FloatArray
    slopes: FloatArray
    weight: FloatArray

    def priced(self, constants: Constants) -> Rows:
        """Return the runs priced with constants."""
        rows = self.layout.rows(constants)
        return rows if len(rows) == len(self.rows) else taken(rows, self.rows)

    @property
    def sd(self) -> FloatArray:
        """Posterior log standard deviations of the parameters, (p,)."""
        return np.asarray(np.sqrt(np.maximum(np.diag(self.covariance), 0.0)))


def fit_runs(constants: Constants, runs: Runs, most: int = MAX_ROWS) -> Fit:
    """Return the fit of the constants to runs, each with a measured step and a forecastable job.

    most: use no more runs than this, thinned evenly.

    Raises:
        RequestError: there is no such run.
    """
    _refuse_none(len(runs))
    usable = thinned(pairs_of(runs.jobs), most)
    jobs = runs.jobs.take(usable)
    target, layout = np.log(runs.step_seconds()[usable]), lay_out(jobs, constants)
    # Only what moves a forecast is fitted.
    every = parameters_for(jobs)
    start, of_all = np.zeros(len(every)), partial(_log_seconds, layout, constants, every)
    at_start = _jacobian(of_all, every, owners(every, jobs), start, of_all(start))
    moving = np.flatnonzero(at_start.any(axis=0))
    return _found(
        constants, layout, np.arange(len(jobs)), target, tuple(every[i] for i in moving),
        start[moving], at_start[:, moving],
    )  # fmt: skip


def refitted(whole: Fit, part: IntArray) -> Fit:
    """Return the fit to some runs of another: it starts from what that one found, and keeps its slopes.

    Raises:
        RequestError: there are none.
    """
    _refuse_none(len(part))
    slopes = whole.slopes[part]
    moving = np.flatnonzero(slopes.any(axis=0))
    return _found(
        whole.prior, whole.layout, whole.rows[part], whole.target[part],
        tuple(whole.parameters[i] for i in moving), whole.theta[moving], slopes[:, moving],
        same_slopes=True,
    )  # fmt: skip


def _refuse_none(runs: int) -> None:
    if not runs:
        raise RequestError(
            "fitting the analytic model", "no run has a measured step that physics can forecast",
            "give runs with step_time_s or samples_per_s, status ok, of known workloads",
        )  # fmt: skip


def _log_seconds(
    layout: Layout, constants: Constants, parameters: Sequence[Parameter], theta: FloatArray
) -> FloatArray:
    trial = moved(constants, parameters, theta)
    return np.log(step_and_floor(layout.rows(trial), trial)[1])


def _found(
    constants: Constants, layout: Layout, rows: IntArray, target: FloatArray,
    parameters: tuple[Parameter, ...], start: FloatArray, at_start: FloatArray,
    same_slopes: bool = False,
) -> Fit:  # fmt: skip
    jobs = layout.jobs.take(rows)
    own = {family: of[rows] for family, of in owners(parameters, layout.jobs).items()}
    setting = np.unique(settings_of(jobs).astype(str), return_inverse=True)[1]
    probed = np.array([cluster.device.measured is not None for cluster in jobs.clusters])
    usual = np.where(probed[jobs.cluster_index], PROBED_SCALE, PRIOR_SCALE)

    def forecast(theta: FloatArray) -> FloatArray:
        return _log_seconds(layout, constants, parameters, theta)[rows]

    def jacobian(theta: FloatArray, now: FloatArray) -> FloatArray:
        kept = same_slopes or np.array_equal(theta, start)
        return at_start if kept else _jacobian(forecast, parameters, own, theta, now)

    settled = np.array([constants.settled.get(p.name, np.inf) for p in parameters])
    own_sd = PRIOR_WIDTH * drifted(settled, np.array([p.prior_sd for p in parameters]))
    prior = 1.0 / own_sd**2
    trust = np.where(jobs.per_workload("detailed"), 1.0, LOOSE_WEIGHT)
    shared = trust * repeats(jobs) ** -SHARED_POWER
    scaling = partial(scale_of, shared=shared, setting=setting, usual=usual)
    theta, slopes, scale = gauss_newton(forecast, jacobian, target, shared, prior, scaling, start)
    residual = target - forecast(theta)
    precision = posterior(slopes, residual, shared, scale, prior)
    covariance, weight = np.asarray(np.linalg.inv(precision)), _weights(residual, shared, scale)
    # What is left of the way to the optimum, by the slopes: leaving runs out starts from there.
    rest = covariance @ (slopes.T @ (weight * residual) - prior * theta)
    return Fit(
        constants, parameters, theta, covariance, precision, own_sd,
        np.broadcast_to(scale, len(jobs)), jobs, layout, rows, target, residual - slopes @ rest,
        slopes, weight,
    )  # fmt: skip


def drifted(settled: Any, prior_sd: Any) -> FloatArray:
    """Return how far runs may move constants: from their priors, or from what was settled."""
    return np.asarray(np.minimum(np.hypot(settled, DRIFT * prior_sd), prior_sd))


def pairs_of(jobs: Jobs) -> IntArray:
    """Return one number for each (workload, cluster), (n,)."""
    return jobs.workload_index.astype(np.int64) * len(jobs.clusters) + jobs.cluster_index


def repeats(jobs: Jobs) -> FloatArray:
    """Return how many rows have each row's workload and cluster, (n,)."""
    _, inverse, counts = np.unique(pairs_of(jobs), return_inverse=True, return_counts=True)
    return counts[inverse].astype(np.float64)


def gauss_newton(
    forecast: Callable[[FloatArray], FloatArray],
    jacobian: Callable[[FloatArray, FloatArray], FloatArray], target: FloatArray,
    shared: FloatArray, prior: FloatArray, scale_of: Callable[..., Any], start: FloatArray,
) -> tuple[FloatArray, FloatArray, Any]:  # fmt: skip
    """Return (theta (p,), slopes (n, p) beside it, scale of the residuals), by Levenberg-Marquardt from start.

    shared: what each run counts for, (n,). prior: precision about 0, (p,). scale_of: of residuals, leverage.
    """
    theta = start
    now = forecast(theta)
    scale = scale_of(target - now, taken=None)
    slopes = np.zeros((len(target), len(prior)))
    far, damping = True, 0.0
    for _ in range(MAX_ROUNDS):
        residual = target - now
        if far:
            slopes = jacobian(theta, now)
        hessian = posterior(slopes, residual, shared, scale, prior)
        gradient = slopes.T @ (_weights(residual, shared, scale) * residual) - prior * theta
        before, here = theta, _cost(residual, shared, prior, theta, scale)
        for _ in range(MOST_TRIALS):
            damped = hessian + damping * np.diag(np.diag(hessian))
            trial = theta + np.clip(np.linalg.solve(damped, gradient), -LONGEST, LONGEST)
            there = forecast(trial)
            if _cost(target - there, shared, prior, trial, scale) < here:
                theta, now, damping = trial, there, damping / 4.0
                break
            damping = max(4.0 * damping, 0.05)
        weight = _weights(target - now, shared, scale)
        scale = scale_of(target - now, taken=leverage(slopes, weight, prior))
        went = float(np.abs(theta - before).max())
        if went < SETTLED and not (went == 0.0 and not far):
            break
        far = went > SAME_SLOPES or went == 0.0
    return theta, slopes, scale


def posterior(
    slopes: FloatArray, residual: FloatArray, shared: FloatArray, scale: Any, prior: FloatArray
) -> FloatArray:
    """Return the precision of the parameters, (p, p)."""
    weight = _weights(residual, shared, scale)
    return np.asarray((slopes.T * weight) @ slopes + np.diag(prior))


def _weights(residual: FloatArray, shared: FloatArray, scale: Any) -> FloatArray:
    # Runs that all lie off alike are no outliers. The median's own pull is quadratic in `_cost`, and is
    # taken at these weights, which come near.
    apart = residual - np.median(residual)
    return np.asarray(shared * (DEGREES + 1) / (DEGREES + (apart / scale) ** 2) / scale**2)


def _cost(
    residual: FloatArray, shared: FloatArray, prior: FloatArray, theta: FloatArray, scale: Any
) -> float:
    middle = np.median(residual)
    tails = (DEGREES + 1) / 2 * np.log1p(((residual - middle) / scale) ** 2 / DEGREES)
    together = 0.5 * (DEGREES + 1) / DEGREES * (middle / scale) ** 2
    return float((shared * (tails + together)).sum() + 0.5 * (prior * theta**2).sum())


def leverage(slopes: FloatArray, weight: FloatArray, prior: FloatArray) -> FloatArray:
    """Return which share of each run the parameters take up, (n,): 0 to 1, a ridge's hat matrix."""
    precision = (slopes.T * weight) @ slopes + np.diag(prior)
    return np.asarray(weight * (slopes * np.linalg.solve(precision, slopes.T).T).sum(axis=1))


def scale_of(
    residual: FloatArray, shared: FloatArray, setting: IntArray, usual: FloatArray,
    taken: FloatArray | None,
) -> FloatArray:  # fmt: skip
    """Return each row's robust residual scale, (n,), drawn to `usual` where few; taken: `leverage`."""
    number = np.bincount(setting)
    off = np.abs(residual - np.median(residual))
    spread = 1.4826 * group_medians(off, setting, len(number)).mean(axis=0)
    left = np.ones(len(number))
    if taken is None:
        spread *= [_DEVIATIONS.get(n, n / (n - 0.8)) for n in number.tolist()]
    else:
        left = np.maximum(1.0 - np.bincount(setting, taken) / number, 0.0)
        spread /= np.sqrt(np.maximum(left, _LEAST_LEFT))
    count, prior = left * np.bincount(setting, shared), np.bincount(setting, usual**2) / number
    pooled = (count * spread**2 + PRIOR_COUNT * prior) / (count + PRIOR_COUNT)
    return np.asarray(np.maximum(np.sqrt(pooled), SMALLEST_SCALE)[setting])


def _jacobian(
    forecast: Callable[[FloatArray], FloatArray], parameters: Sequence[Parameter],
    own: Mapping[str, NDArray[np.int64]], theta: FloatArray, now: FloatArray,
) -> FloatArray:  # fmt: skip
    """Return d forecast / d theta by forward differences, (n, p); families of `own` move at once."""
    columns = np.zeros((len(now), len(parameters)))

    def slope(which: FloatArray) -> FloatArray:
        return (forecast(theta + STEP * which) - now) / STEP

    for family, position in own.items():
        ours = np.array([p.family == family for p in parameters], dtype=float)
        rows = np.flatnonzero(position >= 0)
        if len(rows):
            columns[rows, position[rows]] = slope(ours)[rows]
    for i, parameter in enumerate(parameters):
        if parameter.family not in own:
            columns[:, i] = slope(np.eye(len(theta))[i])
    return columns
