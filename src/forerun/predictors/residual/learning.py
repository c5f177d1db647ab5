"""Learning: from a finished fit of physics, the correction that trials allow, or none."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from forerun.predictors.analytic.calibration.fitting import Fit
from forerun.predictors.analytic.calibration.parameters import moved
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.rows import fastest_rates, taught
from forerun.predictors.analytic.step import step_and_floor
from forerun.predictors.analytic.uncertainty import exposures, step_sigma
from forerun.predictors.residual.correction import Correction
from forerun.predictors.residual.features import Features, features_of
from forerun.predictors.residual.gate import verdict
from forerun.predictors.residual.novelty import LACKS, OWN, PLAN, SCALE, known_of, labels_of
from forerun.predictors.residual.trials import Learner, Trial, job_codes, trials_of
from forerun.predictors.residual.tuning import student, tuned

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
# Fewer runs than this teach physics alone.
LEAST_RUNS = 24
MOST_ROWS = 1000  # that a correction learns from
# A run that lies farther off than so many scales of its setting is one of another kind (it
# stalled, it waited for data): it is judged, and does not teach.
OUTLYING = 6.0
DEAF = 1e4  # times the variance of the noise, for such a run


def learned_correction(fit: Fit, constants: Constants, seconds: FloatArray) -> Correction | None:
    """Return the correction of a fit, None where no kind of novelty is helped by one.

    Args:
        fit: of n runs.
        constants: as the fit left them.
        seconds: of the steps that were measured, (n,).
    """
    n = len(fit.jobs)
    if n < LEAST_RUNS:
        return None
    features = features_of(fit.layout, constants)
    residual = np.log(seconds / features.median)
    own = _own(fit, constants, features)
    rows = np.sort(np.random.default_rng(0).permutation(n)[:MOST_ROWS])
    mine = features.take(rows)
    usual = np.abs(residual[rows]) <= OUTLYING * fit.scale[rows]
    if usual.sum() < LEAST_RUNS:
        return None
    free = (residual + own.sum(axis=1))[rows]
    kernel, scale = tuned(mine.take(np.flatnonzero(usual)), free[usual])
    covariance = kernel.between(mine, mine)
    noise, inverse = _inverse(covariance, residual[rows], scale, usual)
    labels = labels_of(fit.jobs)
    code = job_codes(features.values)
    learner = Learner(fit, rows, labels, code, residual, own, covariance, inverse, noise)
    trials = trials_of(learner)
    verdicts = {
        kind: verdict(trial, _sigma(fit, constants, kind, trial)) for kind, trial in trials.items()
    }
    if not any(found.speaks for found in verdicts.values()):
        return None
    weights = inverse @ np.column_stack([residual[rows], own[rows]])
    return Correction(
        kernel, mine, weights, np.diag(covariance) + noise, known_of(fit, labels), verdicts
    )


def _own(fit: Fit, constants: Constants, features: Features) -> FloatArray:
    """Return what constants of one workload, layer, device or framework add to the log, (n, 4)."""
    families = [p.family for p in fit.parameters]
    fastest, columns = fastest_rates(fit.jobs), []
    for lack in LACKS:
        ours = np.array([family.startswith(OWN[lack]) for family in families])
        without = moved(constants, fit.parameters, np.where(ours, -fit.theta, 0.0))
        median = step_and_floor(fit.layout.rows(without), fastest, without)[1]
        columns.append(np.log(features.median / median))
    return np.stack(columns, axis=1)


def _inverse(
    covariance: FloatArray, residual: FloatArray, scale: float, usual: NDArray[np.bool_]
) -> tuple[FloatArray, FloatArray]:
    """Return (variances of the noise (m,), the inverse of covariance and noise (m, m))."""
    deaf = np.where(usual, 1.0, DEAF)
    noise = scale**2 * deaf
    inverse = np.linalg.inv(covariance + np.diag(noise))
    weight = student(noise, inverse @ residual, np.diag(inverse), scale)
    noise = scale**2 * np.where(usual, 1.0 / weight, DEAF)
    return noise, np.asarray(np.linalg.inv(covariance + np.diag(noise)))


def _sigma(fit: Fit, constants: Constants, kind: str, trial: Trial) -> FloatArray:
    """Return physics' log standard deviation of the rows of a trial, had they been new, (m,)."""
    rows = fit.layout.rows(constants)
    parts, _, _ = step_and_floor(rows, fastest_rates(fit.jobs), constants)
    known: Mapping[str, FloatArray] = taught(fit.jobs, constants)
    if kind not in (PLAN, SCALE):
        known = {**known, f"{kind}_taught": np.zeros(len(rows))}
    sigma = step_sigma(exposures(rows, parts, known), constants)[trial.row]
    if kind == SCALE:
        sigma = np.hypot(sigma, constants.sigma_scale * trial.doublings)
    return np.asarray(sigma)
