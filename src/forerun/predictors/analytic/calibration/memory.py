"""Memory calibration: what frameworks keep on a device, from runs with a measured peak.

Robust maximum a posteriori of log multipliers with Student-t errors, as for times. Levels nest: a
general multiplier that all frameworks share, and one of each framework about it, so that a
framework without runs borrows from those with. How full a device can be is then asked of the runs
that ran out of memory (`limits`).

Robust maximum a posteriori of log multipliers of peaks, by iterated reweighting.

Limits: how high a forecast peak may be before runs run out of memory, by a robust probit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.domain.quantiles import Z95, normal_cdf
from forerun.predictors.analytic.calibration.fitting import DRIFT
from forerun.predictors.analytic.constants import Constants, Framework
from forerun.predictors.analytic.layout import Layout, lay_out
from forerun.predictors.analytic.memory import log_slack, peak_bytes
from forerun.predictors.analytic.saving import Learned
from forerun.tables import Runs
from forerun.tables.suspects import most_memory_bytes

# Log standard deviations of the usable share: of all frameworks together, of one about them.
USABLE_SD = (0.04, 0.06)
USUAL_SIGMA, SIGMA_SD = 0.12, 0.5  # median and log standard deviation of the prior of sigma
USUAL_FAILURES, WRONGLY_RAN = 0.03, 0.005
_SHIFTS = np.linspace(-0.4, 0.4, 81)
_SIGMAS = np.exp(np.linspace(np.log(0.03), np.log(0.4), 14))
_FAILING = (0.003, 0.01, 0.03, 0.1, 0.2, 0.3)


@dataclass(frozen=True, slots=True)
class Limit:
    """A log shift of what is usable, its standard deviation, and how sharp the limit is.

    joint_sd: of a framework's shift and the shared one together.
    """

    shift: float
    sd: float
    sigma: float = float("nan")
    joint_sd: float = float("nan")


def find_limits(
    cases: Mapping[str, tuple[FloatArray, NDArray[np.bool_], FloatArray]],
) -> tuple[Limit, dict[str, Limit]]:
    """Return the shift that all frameworks share, and that of each about it.

    cases: framework to (log(usable / peak) by the priors, ran out of memory, weight), each (n,).
    """
    alone = {key: _alone(*case) for key, case in cases.items()}
    general_sd, own_sd = USABLE_SD
    weights = np.array([1.0 / (own_sd**2 + limit.sd**2) for limit in alone.values()])
    shifts = np.array([limit.shift for limit in alone.values()])
    precision = float(weights.sum()) + general_sd**-2.0
    general = Limit(float(weights @ shifts) / precision, precision**-0.5)
    own = {}
    for key, limit in alone.items():
        trust = own_sd**2 / (own_sd**2 + limit.sd**2)
        # What is left of the shared shift's doubt moves against each framework's own.
        sd = np.hypot(np.sqrt(trust) * limit.sd, trust * general.sd)
        wide = np.hypot(own_sd, general_sd)
        joint = wide * limit.sd / np.hypot(wide, limit.sd)
        shift = trust * (limit.shift - general.shift)
        own[key] = Limit(shift, float(sd), limit.sigma, float(joint))
    return general, own


def _alone(slack: FloatArray, ran_out: NDArray[np.bool_], weight: FloatArray) -> Limit:
    """Return a framework's limit by its own runs, with a prior of sigma and of failures only."""
    fits = normal_cdf((slack + _SHIFTS[:, None, None]) / _SIGMAS[:, None])  # (shifts, sigmas, n)
    prior = -0.5 * (np.log(_SIGMAS / USUAL_SIGMA) / SIGMA_SD) ** 2
    logs = []
    for failing in _FAILING:
        ran = WRONGLY_RAN + (1.0 - failing - WRONGLY_RAN) * fits
        log = np.log(np.where(ran_out, 1.0 - ran, ran)) @ weight
        logs.append(log + prior - 0.5 * np.log(failing / USUAL_FAILURES) ** 2)
    chance = np.exp(np.array(logs) - np.max(logs)).sum(axis=0)
    by_shift, by_sigma = chance.sum(axis=1) / chance.sum(), chance.sum(axis=0) / chance.sum()
    shift = float(by_shift @ _SHIFTS)
    sd = float(np.sqrt(by_shift @ (_SHIFTS - shift) ** 2))
    return Limit(shift, max(sd, 0.005), float(np.exp(by_sigma @ np.log(_SIGMAS))))


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


TextArray = NDArray[np.object_]
MEMORY_UNIT = 1e9
# Log standard deviations of the priors: of all frameworks together, and of one about them.
PRIOR_SD: Mapping[str, tuple[float, float]] = {
    "states_share": (0.03, 0.05), "kept_share": (0.10, 0.12), "chosen_share": (0.10, 0.15),
    "logits_share": (0.10, 0.25), "bucket_copies": (0.20, 0.30), "whole_inputs": (0.30, 0.50),
    "inputs_ahead": (0.30, 0.50),
    "workspace_bytes": (0.30, 0.50),
}  # fmt: skip
EVERY = "*"  # the key of a multiplier that all frameworks share
SHARED_POWER = 0.25  # n rows of one workload on one cluster count as n to the power 1 - this
STEP = 0.02
SPEAKS = 0.01  # a run speaks of a constant when doubling it moves its peak by about a hundredth
UNITS = {"bucket_copies": "copies", "whole_inputs": "tensors", "inputs_ahead": "tensors",
         "workspace_bytes": "bytes"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class MemoryParameter:
    """A log multiplier of a constant of `constants.Framework`: of one framework, or of `EVERY`."""

    constant: str
    framework: str

    @property
    def name(self) -> str:
        """As it is printed: `framework.kept_share[nanotron]`."""
        return f"framework.{self.constant}[{self.framework or 'other'}]"

    @property
    def prior_sd(self) -> float:
        """Log standard deviation of the prior."""
        pair = USABLE_SD if self.constant == "usable_share" else PRIOR_SD[self.constant]
        return pair[0] if self.framework == EVERY else pair[1]


@dataclass(frozen=True)
class MemoryFit:
    """What runs taught of memory: p log multipliers and the spread of what is left.

    Attributes:
        parameters, theta, sd: the log multipliers and their posterior standard deviations (p,);
            what no run speaks of is absent or stays at 0 with the width of its prior.
        learned: each framework's constants with intervals and the runs that spoke of them.
        sigma_memory, sigma_fits: framework to log standard deviation of a peak, and of a peak
            against what a device can hold; frameworks that no run speaks of are absent.
        peaks, ran, ran_out: runs used: with a measured peak, that ran, that ran out of memory
            (the last two only of frameworks with both).
        impossible: runs left out because their peak is more than their device holds.
    """

    parameters: tuple[MemoryParameter, ...] = ()
    theta: FloatArray = field(default_factory=lambda: np.zeros(0))
    sd: FloatArray = field(default_factory=lambda: np.zeros(0))
    learned: tuple[Learned, ...] = ()
    sigma_memory: Mapping[str, float] = field(default_factory=dict)
    sigma_fits: Mapping[str, float] = field(default_factory=dict)
    peaks: int = 0
    ran: int = 0
    ran_out: int = 0
    impossible: int = 0

    def unidentified(self) -> tuple[str, ...]:
        """Return the names of constants of which the runs say no more than the prior did."""
        return tuple(entry.name for entry in self.learned if not entry.identified)

    def applied(self, constants: Constants) -> Constants:
        """Return the constants with the multipliers and spreads in the frameworks' profiles."""
        moved = _moved(constants, self.parameters, self.theta)
        profiles = dict(moved.frameworks)
        for key, sigma in self.sigma_memory.items():
            # Where no run tells how peaks lie to what a device can hold, they lie as peaks do.
            known = self.sigma_fits.get(key, max(profiles[key].sigma_fits, sigma))
            profiles[key] = replace(profiles[key], sigma_memory=sigma, sigma_fits=known)
        for key, sigma in self.sigma_fits.items():
            profiles[key] = replace(profiles[key], sigma_fits=sigma)
        found = {entry.name: entry.log_sd for entry in self.learned if entry.identified}
        return replace(moved, frameworks=profiles, settled={**constants.settled, **found})


def fit_memory(constants: Constants, runs: Runs, kept: dict[Any, Any]) -> MemoryFit:
    """Return the fit of the memory constants to runs; the priors stay where none speaks of memory.

    Args:
        constants: the priors.
        runs: facts whose jobs physics can speak of, those that ran out of memory among them.
        kept: see `rows.lay_out`.
    """
    measured = runs.table.numbers("memory_gb") * MEMORY_UNIT
    status = runs.status
    ran_out = status == "oom"
    ran = ~ran_out & (status != "failed") & (measured > 0)
    possible = ran & ~(measured > most_memory_bytes(runs.jobs))
    fit = MemoryFit(impossible=int((ran & ~possible).sum()))
    if possible.any():
        taught = runs.take(np.flatnonzero(possible))
        fit = _fit_peaks(fit, constants, taught, measured[possible], kept)
    if not ran_out.any():
        return fit
    told = np.flatnonzero(ran_out | (status == "ok") | ran)
    return _with_limits(fit, constants, runs.take(told), ran_out[told], kept)


def _fit_peaks(
    fit: MemoryFit, constants: Constants, runs: Runs, measured: FloatArray, kept: dict[Any, Any]
) -> MemoryFit:
    layout = lay_out(runs.jobs, constants, kept)
    rows, target = layout.rows(constants), np.log(measured)
    parameters = tuple(_parameters(layout.frameworks))

    def forecast(theta: FloatArray) -> FloatArray:
        trial = _moved(constants, parameters, theta)
        held = {**rows.key, **layout.held(trial)}
        moved = replace(rows, key=held, software=layout.software(trial))
        return np.asarray(np.log(np.maximum(peak_bytes(moved, trial)[0], 1.0)))

    def jacobian(theta: FloatArray, now: FloatArray) -> FloatArray:
        return _jacobian(forecast, parameters, layout, theta, now)

    shared = _shared_weight(layout)
    prior = np.array([_prior_sd(p, constants) for p in parameters]) ** -2.0
    theta, precision, now = maximum(forecast, jacobian, target, shared, prior)
    covariance = np.linalg.inv(precision)
    sd = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    left = target - now
    spreads = {
        key: _spread(left[ours], shared[ours], constants.frameworks[key].sigma_memory)
        for key, ours in _frameworks(layout)
    }
    spoke = np.abs(jacobian(theta, now)) > SPEAKS
    sources, place = runs.table.texts("source"), {p: i for i, p in enumerate(parameters)}
    learned = []
    for parameter, i in place.items():
        if parameter.framework != EVERY:
            j = place[MemoryParameter(parameter.constant, EVERY)]
            joint = covariance[i, i] + covariance[j, j] + 2.0 * covariance[i, j]
            shift, ours = theta[i] + theta[j], sources[spoke[:, i]]
            learned.append(_learned(parameter, constants, shift, joint**0.5, ours))
    return replace(
        fit, parameters=parameters, theta=theta, sd=sd, learned=tuple(learned),
        sigma_memory=spreads, peaks=len(runs),
    )  # fmt: skip


def _learned(
    parameter: MemoryParameter, prior: Constants, shift: float, sd: float, sources: TextArray
) -> Learned:
    """Return a framework's constant as it is printed; sources: of the runs that spoke of it."""
    before = getattr(prior.frameworks[parameter.framework], parameter.constant)
    value, reach = before * float(np.exp(shift)), float(np.exp(Z95 * sd))
    pair: Sequence[float] = USABLE_SD
    if parameter.constant != "usable_share":
        levels = (parameter, MemoryParameter(parameter.constant, EVERY))
        pair = [_prior_sd(level, prior) for level in levels]
    return Learned(
        parameter.name, UNITS.get(parameter.constant, "share"), value, value / reach, value * reach,
        before, float(sd), math.hypot(*pair), len(sources),
        tuple(sorted({str(s) for s in sources} - {""})),
    )  # fmt: skip


def _parameters(frameworks: Sequence[str]) -> Iterator[MemoryParameter]:
    for name in PRIOR_SD:
        yield MemoryParameter(name, EVERY)
        for key in frameworks:
            yield MemoryParameter(name, key)


def _frameworks(layout: Layout) -> Iterator[tuple[str, IntArray]]:
    """Yield each framework of the layout's jobs and the positions of its rows."""
    for i, key in enumerate(layout.frameworks):
        ours = np.flatnonzero(layout.row_framework == i)
        if len(ours):
            yield key, ours


def _moved(
    constants: Constants, parameters: Sequence[MemoryParameter], theta: FloatArray
) -> Constants:
    """Return the constants with their frameworks' profiles multiplied by exp(theta)."""
    profiles = {key: vars(profile).copy() for key, profile in constants.frameworks.items()}
    for parameter, factor in zip(parameters, np.exp(theta), strict=True):
        every = parameter.framework == EVERY
        for values in profiles.values() if every else (profiles[parameter.framework],):
            values[parameter.constant] *= float(factor)
    made = {key: Framework(**values) for key, values in profiles.items()}
    return replace(constants, frameworks=made)


def _jacobian(
    forecast: Forecast, parameters: Sequence[MemoryParameter], layout: Layout,
    theta: FloatArray, now: FloatArray,
) -> FloatArray:  # fmt: skip
    """Return d forecast / d theta, (n, p).

    A constant is asked once, for every framework: one framework's slope is that of its own rows.
    """
    columns = np.zeros((len(now), len(theta)))
    place = {p: i for i, p in enumerate(parameters)}
    for parameter, i in place.items():
        if parameter.framework != EVERY:
            continue
        shifted = theta.copy()
        shifted[i] += STEP
        columns[:, i] = (forecast(shifted) - now) / STEP
        for key, ours in _frameworks(layout):
            columns[ours, place[MemoryParameter(parameter.constant, key)]] = columns[ours, i]
    return columns


def _shared_weight(layout: Layout) -> FloatArray:
    jobs = layout.jobs
    pair = jobs.workload_index.astype(np.int64) * len(jobs.clusters) + jobs.cluster_index
    _, inverse, counts = np.unique(pair, return_inverse=True, return_counts=True)
    return np.asarray(counts[inverse] ** -SHARED_POWER)


def _prior_sd(parameter: MemoryParameter, constants: Constants) -> float:
    """Return how far a multiplier may lie from where it stands.

    What earlier runs settled holds, but for a share of the prior: other versions differ.
    """
    settled = constants.settled.get(parameter.name, np.inf)
    return float(min(np.hypot(settled, DRIFT * parameter.prior_sd), parameter.prior_sd))


def _spread(residual: FloatArray, shared: FloatArray, before: float) -> float:
    """Return the log standard deviation whose 90 % band holds nine residuals in ten.

    before: the same by earlier runs or by priors, where it is shrunk to.
    """
    wide = float(np.quantile(np.abs(residual), 0.9)) / Z95
    return pooled(wide, float(shared.sum()), before)


def _with_limits(
    fit: MemoryFit, constants: Constants, runs: Runs, ran_out: NDArray[np.bool_],
    kept: dict[Any, Any],
) -> MemoryFit:  # fmt: skip
    """Return the fit with what devices could hold, of frameworks that met their limit."""
    layout = lay_out(runs.jobs, constants, kept)
    now = fit.applied(constants)
    rows = layout.rows(now)
    slack = log_slack(rows, peak_bytes(rows, now)[0], now)
    shared = _shared_weight(layout)
    cases = {key: (slack[ours], ran_out[ours], shared[ours]) for key, ours in _frameworks(layout)}
    cases = {key: case for key, case in cases.items() if case[1].any() and not case[1].all()}
    if not cases:
        return fit
    general, own = find_limits(cases)
    found = [(EVERY, general), *own.items()]
    sources = runs.table.texts("source")
    learned = tuple(
        _learned(
            MemoryParameter("usable_share", key), constants, general.shift + limit.shift,
            limit.joint_sd, sources[layout.row_framework == layout.frameworks.index(key)],
        )
        for key, limit in own.items()
    )  # fmt: skip
    out = np.concatenate([case[1] for case in cases.values()])
    return replace(
        fit,
        parameters=fit.parameters + tuple(MemoryParameter("usable_share", k) for k, _ in found),
        theta=np.r_[fit.theta, [limit.shift for _, limit in found]],
        sd=np.r_[fit.sd, [limit.sd for _, limit in found]],
        learned=fit.learned + learned,
        sigma_fits={key: limit.sigma for key, limit in own.items()},
        ran=int((~out).sum()),
        ran_out=int(out.sum()),
    )


__all__ = ["EVERY", "Limit", "MemoryFit", "MemoryParameter", "fit_memory"]
