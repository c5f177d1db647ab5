"""Memory calibration: what frameworks keep on a device, and how full a device can be.

Log multipliers of peaks are fitted as those of times: one that all frameworks share, and one of each
about it. How high a peak may be is learned from runs that ran out of memory, by a robust probit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.domain.quantiles import Z95, normal_cdf
from forerun.predictors.analytic.calibration.fitting import (
    SPEAKS,
    STEP,
    drifted,
    gauss_newton,
    posterior,
    repeats,
)
from forerun.predictors.analytic.calibration.parameters import Parameter, moved, value_of
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.families import FAMILIES
from forerun.predictors.analytic.layout import Layout, lay_out
from forerun.predictors.analytic.memory import log_slack, peak_bytes
from forerun.predictors.analytic.saving import Learned, settled_by
from forerun.tables import Runs

MEMORY_UNIT = 1e9
# Fields of a framework's profile that are multiplied.
FIELDS = ("states_share", "kept_share", "chosen_share", "logits_share", "bucket_copies",
          "whole_inputs", "inputs_ahead", "workspace_bytes")  # fmt: skip
_USABLE = FAMILIES["framework.usable_share"]
PRIOR_SCALE, PRIOR_COUNT, SMALLEST_SCALE = 0.16, 6.0, 0.03
SHARED_POWER = 0.25  # n rows of one workload on one cluster count as n to the power 1 - this
USUAL_SIGMA, SIGMA_SD = 0.12, 0.5  # median and log standard deviation of the prior of sigma
USUAL_FAILURES, WRONGLY_RAN = 0.03, 0.005
_SHIFTS = np.linspace(-0.4, 0.4, 81)
_SIGMAS = np.exp(np.linspace(np.log(0.03), np.log(0.4), 14))
_FAILING = (0.003, 0.01, 0.03, 0.1, 0.2, 0.3)


def fit_memory(constants: Constants, runs: Runs) -> tuple[Constants, tuple[Learned, ...]]:
    """Return the constants fitted to what runs that physics answers say of memory, and what was learned."""
    measured = runs.table.numbers("memory_gb") * MEMORY_UNIT
    status, learned = runs.status, []
    ran_out = status == "oom"
    ran = ~ran_out & (status != "failed") & (measured > 0)
    if ran.any():
        rows = np.flatnonzero(ran)
        constants, found = _with_peaks(constants, runs.take(rows), measured[rows])
        learned += found
    if ran_out.any():
        rows = np.flatnonzero(ran_out | (status == "ok") | ran)
        constants, found = _with_limits(constants, runs.take(rows), ran_out[rows])
        learned += found
    settled = {**constants.settled, **settled_by(learned)}
    return replace(constants, settled=settled), tuple(learned)


def _with_peaks(
    priors: Constants, runs: Runs, measured: FloatArray
) -> tuple[Constants, list[Learned]]:
    """Return constants fitted to peaks; theta: (fields, 1 + frameworks), the shared shift first."""
    layout = lay_out(runs.jobs, priors)
    rows, names = layout.rows(priors), layout.frameworks
    named = [[Parameter(f"framework.{field}", key) for key in names] for field in FIELDS]
    families = [FAMILIES[f"framework.{field}"] for field in FIELDS]
    settled = [[priors.settled.get(each.name, np.inf) for each in row] for row in named]
    own_sd = drifted(np.array(settled), np.array([[f.sd] for f in families]))
    sd = np.hstack([[[f.shared_sd] for f in families], own_sd])
    members = [np.ones(len(rows)), *(layout.row_framework == i for i in range(len(names)))]
    every = np.arange(sd.size).reshape(sd.shape)[:, 0]
    # A framework without runs has the shared shift.
    place = [1 + names.index(key) if key in names else 0 for key in priors.frameworks]
    moving = [Parameter(f"framework.{field}", key) for field in FIELDS for key in priors.frameworks]

    def trial_of(theta: FloatArray) -> Constants:
        shifts = np.hstack([np.zeros((len(sd), 1)), theta.reshape(sd.shape)[:, 1:]])[:, place]
        return moved(priors, moving, (shifts + theta[every][:, None]).ravel())

    def forecast(theta: FloatArray) -> FloatArray:
        trial = trial_of(theta)
        held = {**rows.key, **layout.held(trial)}
        changed = replace(rows, key=held, software=layout.software(trial))
        return np.asarray(np.log(np.maximum(peak_bytes(changed, trial)[0], 1.0)))

    def jacobian(theta: FloatArray, now: FloatArray) -> FloatArray:
        # A constant is moved once, for every framework: one framework's slope is of its own rows.
        steps = STEP * np.eye(sd.size)[every]
        slopes = [(forecast(theta + step) - now) / STEP for step in steps]
        return np.stack([slope * ours for slope in slopes for ours in members], axis=1)

    def scale(residual: FloatArray, taken: FloatArray | None) -> float:
        return pooled(1.4826 * float(np.median(np.abs(residual))), float(shared.sum()))

    shared, target, prior = _shared(layout), np.log(measured), sd.ravel() ** -2.0
    theta, slopes, found = gauss_newton(
        forecast, jacobian, target, shared, prior, scale, np.zeros(sd.size)
    )
    left = target - forecast(theta)
    covariance = np.linalg.inv(posterior(slopes, left, shared, found, prior))
    fitted = trial_of(theta)
    informs, sources = np.abs(slopes) > SPEAKS, runs.table.texts("source")
    learned = []
    for j, row in zip(every, named, strict=True):
        for i, each in enumerate(row, start=j + 1):
            both = covariance[i, i] + covariance[j, j] + 2.0 * covariance[i, j]
            log_sds = float(both**0.5), math.hypot(sd.flat[i], sd.flat[j])
            values = value_of(fitted, each), value_of(priors, each)
            learned.append(Learned.of(each.name, *values, log_sds, sources[informs[:, i]]))
    profiles = dict(fitted.frameworks)
    for key, ours in _frameworks(layout):
        profile = profiles[key]
        # The log standard deviation whose 90 % band holds nine residuals in ten.
        wide = float(np.quantile(np.abs(left[ours]), 0.9)) / Z95
        sigma = pooled(wide, float(shared[ours].sum()), profile.sigma_memory)
        # Where no run tells how peaks lie to what a device can hold, they lie as peaks do.
        fits = max(profile.sigma_fits, sigma)
        profiles[key] = replace(profile, sigma_memory=sigma, sigma_fits=fits)
    return replace(fitted, frameworks=profiles), learned


def pooled(spread: float, count: float, before: float = PRIOR_SCALE) -> float:
    """Return a spread of so many residuals, shrunk to what it was before where they are few."""
    variance = (count * spread**2 + PRIOR_COUNT * before**2) / (count + PRIOR_COUNT)
    return max(math.sqrt(variance), SMALLEST_SCALE)


def _shared(layout: Layout) -> FloatArray:
    return np.asarray(repeats(layout.jobs) ** -SHARED_POWER)


def _frameworks(layout: Layout) -> Iterator[tuple[str, IntArray]]:
    for i, key in enumerate(layout.frameworks):
        ours = np.flatnonzero(layout.row_framework == i)
        if len(ours):
            yield key, ours


def _with_limits(now: Constants, runs: Runs, ran_out: BoolArray) -> tuple[Constants, list[Learned]]:
    layout = lay_out(runs.jobs, now)
    rows, shared, sources = layout.rows(now), _shared(layout), runs.table.texts("source")
    slack = log_slack(rows, peak_bytes(rows, now)[0], now)
    met = {
        key: ours for key, ours in _frameworks(layout)
        if ran_out[ours].any() and not ran_out[ours].all()
    }  # fmt: skip
    if not met:
        return now, []
    cases = {key: (slack[ours], ran_out[ours], shared[ours]) for key, ours in met.items()}
    general, own = find_limits(cases)
    profiles, learned = {}, []
    for key, profile in now.frameworks.items():
        limit = own.get(key, Limit(0.0, 0.0, profile.sigma_fits))
        usable = profile.usable_share * math.exp(general.shift + limit.shift)
        profiles[key] = replace(profile, usable_share=usable, sigma_fits=limit.sigma)
        if key in met:
            log_sds = limit.joint_sd, math.hypot(_USABLE.sd, _USABLE.shared_sd)
            name = Parameter("framework.usable_share", key).name
            before = profile.usable_share
            learned.append(Learned.of(name, usable, before, log_sds, sources[met[key]]))
    return replace(now, frameworks=profiles), learned


@dataclass(frozen=True, slots=True)
class Limit:
    """A log shift of what is usable, its sd alone and with the shared one, and how sharp the limit is."""

    shift: float
    sd: float
    sigma: float = math.nan
    joint_sd: float = math.nan


def find_limits(
    cases: Mapping[str, tuple[FloatArray, BoolArray, FloatArray]],
) -> tuple[Limit, dict[str, Limit]]:
    """Return the shift that all frameworks share, and that of each about it.

    cases: (log(usable / peak) by the priors, ran out, weight), each (n,).
    """
    alone = {key: _alone(*case) for key, case in cases.items()}
    general_sd, own_sd = _USABLE.shared_sd, _USABLE.sd
    weights = np.array([1.0 / (own_sd**2 + limit.sd**2) for limit in alone.values()])
    shifts = np.array([limit.shift for limit in alone.values()])
    precision = float(weights.sum()) + general_sd**-2.0
    general = Limit(float(weights @ shifts) / precision, precision**-0.5)
    wide, own = math.hypot(own_sd, general_sd), {}
    for key, limit in alone.items():
        trust = own_sd**2 / (own_sd**2 + limit.sd**2)
        # What is left of the shared shift's doubt moves against each framework's own.
        sd = math.hypot(trust**0.5 * limit.sd, trust * general.sd)
        joint = wide * limit.sd / math.hypot(wide, limit.sd)
        own[key] = Limit(trust * (limit.shift - general.shift), sd, limit.sigma, joint)
    return general, own


def _alone(slack: FloatArray, ran_out: BoolArray, weight: FloatArray) -> Limit:
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
