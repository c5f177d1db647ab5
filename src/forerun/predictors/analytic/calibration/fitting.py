"""Fitting: robust maximum a posteriori of the log multipliers, by Gauss-Newton.

Residuals are logs of measured over forecast seconds. Each carries a Student-t error (real clusters
are erratic), and the rows of one workload on one cluster share what they teach, so that a table of
a thousand rows of one job does not count as a thousand independent facts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.errors import RequestError
from forerun.predictors.analytic.calibration.parameters import (
    Parameter,
    moved,
    owners,
    parameters_for,
)
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.rows import Layout, fastest_rates, lay_out
from forerun.predictors.analytic.step import step_and_floor
from forerun.tables import Jobs, Runs

FloatArray = NDArray[np.float64]
STEP = 0.02
MAX_ROUNDS = 6
MAX_ROWS = 1500
MAX_PAIRS = 1500
# n rows of one workload on one cluster count as n to the power 1 - this: their plans differ, and
# their clock, host and mistakes are the same.
SHARED_POWER = 0.25
SETTLED = 0.02
SAME_SLOPES = 0.15  # a shorter step leaves the slopes as they were
DEGREES = 4.0  # of freedom of the Student-t errors
SMALLEST_SCALE = 0.01  # nobody's clock repeats better
DRIFT = 0.4
PRIOR_SCALE, PRIOR_COUNT = 0.10, 3.0


@dataclass(frozen=True)
class Fit:
    """A finished fit: p parameters with their posterior, and the spread of what is left.

    theta, sd: (p,) log multipliers and posterior standard deviations; covariance (p, p).
    scale: log standard deviation of a run about its forecast. jobs: the n runs that taught, layout
    the same laid out. residual: log measured over forecast at the optimum, (n,), slopes: what each parameter does
    to the log forecasts, (n, p), weight: what each run counted for, (n,).
    """

    parameters: tuple[Parameter, ...]
    theta: FloatArray
    covariance: FloatArray
    scale: float
    jobs: Jobs
    layout: Layout
    residual: FloatArray
    slopes: FloatArray
    weight: FloatArray

    @property
    def sd(self) -> FloatArray:
        """Posterior standard deviations, (p,)."""
        return np.asarray(np.sqrt(np.maximum(np.diag(self.covariance), 0.0)))


def fit_runs(constants: Constants, runs: Runs, kept: dict[Any, Any]) -> Fit:
    """Return the fit of the constants to runs with a measured step.

    Args:
        constants: the priors.
        runs: facts, each with a measured step and a job that physics can speak of.
        kept: see `rows.lay_out`.

    Raises:
        RequestError: there is no such run.
    """
    if not len(runs):
        raise RequestError(
            "fitting the analytic model",
            "no run has a measured step that physics can speak of",
            "give runs with step_time_s or samples_per_s, status ok, of known workloads",
        )
    usable = thinned(np.arange(len(runs)), runs.jobs)
    jobs = runs.jobs.take(usable)
    target = np.log(runs.step_seconds()[usable])
    parameters = parameters_for(jobs)
    own = owners(parameters, jobs)
    layout, fastest = lay_out(jobs, constants, kept), fastest_rates(jobs)

    def forecast(theta: FloatArray) -> FloatArray:
        trial = moved(constants, parameters, theta)
        return np.asarray(np.log(step_and_floor(layout.rows(trial), fastest, trial)[1]))

    def jacobian(theta: FloatArray, now: FloatArray) -> FloatArray:
        return _jacobian(forecast, parameters, own, theta, now)

    prior = 1.0 / _prior_sd(parameters, constants) ** 2
    shared = _shared_weight(jobs)
    theta, slopes, scale = _gauss_newton(forecast, jacobian, target, shared, prior)
    residual = target - forecast(theta)
    weight = _weights(residual, shared, scale)
    covariance = np.asarray(np.linalg.inv((slopes.T * weight) @ slopes + np.diag(prior)))
    # What is left of the way to the optimum, by the slopes: leaving runs out starts from there.
    rest = covariance @ (slopes.T @ (weight * residual) - prior * theta)
    residual = residual - slopes @ rest
    return Fit(parameters, theta, covariance, scale, jobs, layout, residual, slopes, weight)


def _prior_sd(parameters: Sequence[Parameter], constants: Constants) -> FloatArray:
    """Return how far runs may move each constant, (p,): from its prior, or from earlier runs.

    What earlier runs settled holds for these too, but for `DRIFT` of the prior: another build of
    the software, another host.
    """
    first = np.array([p.prior_sd for p in parameters])
    settled = np.array([constants.settled.get(p.name, np.inf) for p in parameters])
    return np.asarray(np.minimum(np.hypot(settled, DRIFT * first), first))


def _shared_weight(jobs: Jobs) -> FloatArray:
    """Return each row's weight, (n,), see `SHARED_POWER`."""
    pair = jobs.workload_index.astype(np.int64) * len(jobs.clusters) + jobs.cluster_index
    _, inverse, counts = np.unique(pair, return_inverse=True, return_counts=True)
    return np.asarray(counts[inverse] ** -SHARED_POWER)


def thinned(rows: NDArray[np.int64], jobs: Jobs) -> NDArray[np.int64]:
    """Return at most `MAX_ROWS` of the rows, (m,): turn by turn from every (workload, cluster).

    More rows of what has been seen, and more than `MAX_PAIRS` of these, add hours and little else.
    """
    rng = np.random.default_rng(0)
    part = jobs.take(rows)
    pair = part.workload_index.astype(np.int64) * len(jobs.clusters) + part.cluster_index
    pairs = np.unique(pair)
    if len(pairs) > MAX_PAIRS:
        keep = np.isin(pair, rng.choice(pairs, MAX_PAIRS, replace=False))
        rows, pair = rows[keep], pair[keep]
    if len(rows) <= MAX_ROWS:
        return rows
    shuffled = rng.permutation(len(rows))
    order = shuffled[np.argsort(pair[shuffled], kind="stable")]
    sorted_pair = pair[order]
    starts = np.flatnonzero(np.r_[True, sorted_pair[1:] != sorted_pair[:-1]])
    turn = np.arange(len(order)) - np.repeat(starts, np.diff(np.r_[starts, len(order)]))
    return np.sort(rows[order[np.argsort(turn, kind="stable")[:MAX_ROWS]]])


def _gauss_newton(
    forecast: Callable[[FloatArray], FloatArray],
    jacobian: Callable[[FloatArray, FloatArray], FloatArray],
    target: FloatArray,
    shared: FloatArray,
    prior: FloatArray,
) -> tuple[FloatArray, FloatArray, float]:
    """Return (theta (p,), slopes (n, p) beside it, residual scale)."""
    theta = np.zeros(len(prior))
    now = forecast(theta)
    scale = _scale(target - now, shared, first=True)
    slopes = np.zeros((len(target), len(prior)))
    far = True
    for _ in range(MAX_ROUNDS):
        residual = target - now
        weight = _weights(residual, shared, scale)
        if far:
            slopes = jacobian(theta, now)
        hessian = (slopes.T * weight) @ slopes + np.diag(prior)
        step = np.linalg.solve(hessian, slopes.T @ (weight * residual) - prior * theta)
        before = theta
        theta, now = _line_search(
            forecast, target, shared, prior, theta, np.clip(step, -0.7, 0.7), scale, now
        )
        scale = _scale(target - now, shared)
        went = float(np.abs(theta - before).max())
        if went < SETTLED:
            break
        far = went > SAME_SLOPES
    return theta, slopes, scale


def _weights(residual: FloatArray, shared: FloatArray, scale: float) -> FloatArray:
    """Return what each run counts for, (n,): less the farther off it is."""
    return shared * (DEGREES + 1) / (DEGREES + (residual / scale) ** 2) / scale**2


def _line_search(
    forecast: Callable[[FloatArray], FloatArray],
    target: FloatArray,
    shared: FloatArray,
    prior: FloatArray,
    theta: FloatArray,
    step: FloatArray,
    scale: float,
    now: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Return the first of ever smaller steps that lowers the cost, or the place where one is."""
    here = _cost(target - now, shared, prior, theta, scale)
    for size in (1.0, 0.5, 0.25, 0.1):
        trial = theta + size * step
        there = forecast(trial)
        if _cost(target - there, shared, prior, trial, scale) < here:
            return trial, there
    return theta, now


def _cost(
    residual: FloatArray, shared: FloatArray, prior: FloatArray, theta: FloatArray, scale: float
) -> float:
    """Negative log posterior but for a constant."""
    tails = (DEGREES + 1) / 2 * np.log1p((residual / scale) ** 2 / DEGREES)
    return float((shared * tails).sum() + 0.5 * (prior * theta**2).sum())


def _jacobian(
    forecast: Callable[[FloatArray], FloatArray],
    parameters: Sequence[Parameter],
    own: Mapping[str, NDArray[np.int64]],
    theta: FloatArray,
    now: FloatArray,
) -> FloatArray:
    """Return d forecast / d theta by forward differences, (n, p).

    own: see `parameters.owners`; such families are asked once, all their members together.
    """
    columns = np.zeros((len(now), len(theta)))
    for family, position in own.items():
        ours = np.array([p.family == family for p in parameters])
        slope = (forecast(theta + STEP * ours) - now) / STEP
        rows = np.flatnonzero(position >= 0)
        columns[rows, position[rows]] = slope[rows]
    for i, parameter in enumerate(parameters):
        if parameter.family in own:
            continue
        shifted = theta.copy()
        shifted[i] += STEP
        columns[:, i] = (forecast(shifted) - now) / STEP
    return columns


def _scale(residual: FloatArray, shared: FloatArray, first: bool = False) -> float:
    """Return the robust residual scale, shrunk to its prior where rows are few."""
    middle = float(np.median(residual)) if first else 0.0
    spread = 1.4826 * float(np.median(np.abs(residual - middle)))
    count = float(shared.sum())
    pooled = (count * spread**2 + PRIOR_COUNT * PRIOR_SCALE**2) / (count + PRIOR_COUNT)
    return max(float(np.sqrt(pooled)), SMALLEST_SCALE)
