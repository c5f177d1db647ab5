"""ResidualPredictor: the analytic predictor, corrected by what it missed where trials allow it.

Learning: from a finished fit of physics, the correction that trials allow, or none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.domain.forecast import Forecasts
from forerun.domain.quantiles import spread
from forerun.predictors.analytic import AnalyticPredictor
from forerun.predictors.analytic.calibration import MAX_ROWS, Learned, fit_runs
from forerun.predictors.analytic.calibration.fitting import Fit, thinned
from forerun.predictors.analytic.calibration.parameters import moved
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.rows import Layout, fastest_rates, lay_out, taught
from forerun.predictors.analytic.step import step_and_floor
from forerun.predictors.analytic.uncertainty import exposures, step_sigma
from forerun.predictors.residual.correction import Correction
from forerun.predictors.residual.features import Features, features_of
from forerun.predictors.residual.gate import verdict
from forerun.predictors.residual.novelty import LACKS, OWN, PLAN, SCALE, known_of, labels_of
from forerun.predictors.residual.trials import Learner, Trial, job_codes, trials_of
from forerun.predictors.residual.tuning import student, tuned
from forerun.predictors.saved import read_saved
from forerun.tables import Jobs, Runs, sorted_runs
from forerun.tables.suspects import cleaned, suspects

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


# Rows in one pass: long enough that calls cost little, short enough for memory.
CHUNK = 65536
VERSION = 1


class ResidualPredictor:
    """Physics with a learned correction of its log error.

    `fit` calibrates physics, and learns from what is left how far the forecasts of like jobs are
    off. Left-out groups of the runs then tell for which kinds of novelty (a new plan, workload,
    device, framework or setting, more devices) the correction helps; elsewhere, and far from all
    that was measured, the answer is that of physics, to the last digit. A second fit starts from
    the constants of the first, and learns the correction anew from its own runs.

    Args:
        physics: the analytic predictor by default, by its priors.
        correction: None where physics answers alone.
    """

    name = "residual"

    def __init__(
        self, physics: AnalyticPredictor | None = None, correction: Correction | None = None
    ) -> None:
        self.physics = physics or AnalyticPredictor()
        self.correction = correction
        self._kept: dict[Any, Any] = {}

    @staticmethod
    def shipped() -> ResidualPredictor:
        """Return the predictor with the shipped constants. Raises as `AnalyticPredictor.shipped`."""
        return ResidualPredictor(AnalyticPredictor.shipped())

    @staticmethod
    def shipped_made() -> Mapping[str, Any] | None:
        """Return how the shipped constants were made. Raises as `AnalyticPredictor.shipped_made`."""
        return AnalyticPredictor.shipped_made()

    @staticmethod
    def shipped_rows() -> Mapping[str, str]:
        """Return what taught the shipped constants. Raises as `AnalyticPredictor.shipped_rows`."""
        return AnalyticPredictor.shipped_rows()

    @property
    def learned(self) -> tuple[Learned, ...]:
        """What runs said of each constant of physics."""
        return self.physics.learned

    @property
    def start(self) -> str:
        """Which constants fits started from."""
        return self.physics.start

    @property
    def fitted_runs(self) -> int:
        """How many runs have taught it since."""
        return self.physics.fitted_runs

    def fit(self, runs: Runs) -> ResidualPredictor:
        """Return a predictor that has learned from the runs; this one does not change.

        Raises:
            RequestError: no run has both a measured step and a forecast.
        """
        runs = sorted_runs(runs)
        fitted = self.physics.fit(runs)
        runs = cleaned(runs, suspects(runs, self.physics.predict(runs.jobs, detail=False)))
        told = np.array([reason is None for reason in self.physics.declines(runs.jobs)], dtype=bool)
        runs = runs.take(np.flatnonzero(told & np.isfinite(runs.step_seconds())))
        fit = fit_runs(self.physics.constants, runs, self._kept, MAX_ROWS)
        used = thinned(np.arange(len(runs)), runs.jobs, MAX_ROWS)
        seconds = runs.step_seconds()[used]
        return ResidualPredictor(fitted, learned_correction(fit, fitted.constants, seconds))

    def declines(self, jobs: Jobs) -> list[str | None]:
        """Return for each job why it cannot be answered, or None."""
        return self.physics.declines(jobs)

    def predict(self, jobs: Jobs, detail: bool = True) -> Forecasts:
        """Return step seconds and peak bytes for n jobs; memory is that of physics.

        Args:
            jobs: the questions; rows that are declined carry their reason and NaN.
            detail: also return the parts of step and peak.
        """
        alone = replace(self.physics.predict(jobs, detail), predictor=self.name)
        rows = np.flatnonzero(alone.answered)
        if self.correction is None or not len(rows):
            return alone
        labels = labels_of(jobs.take(rows))
        speaks, _ = self.correction.speaks_of(labels, _labelled(jobs))
        rows = rows[speaks]
        for start in range(0, len(rows), CHUNK):
            self._correct(self.correction, alone, jobs, rows[start : start + CHUNK])
        return alone

    def _correct(
        self, correction: Correction, alone: Forecasts, jobs: Jobs, rows: IntArray
    ) -> None:
        """Put corrected answers into some rows of physics' own, which are this call's alone."""
        asked, constants = jobs.take(rows), self.physics.constants
        layout = lay_out(asked, constants, self._kept)
        labels = labels_of(asked)
        log, unseen = correction.logs(features_of(layout, constants), labels)
        near = np.flatnonzero(unseen < 1.0)
        if not len(near):
            return
        news = correction.known.news(labels, _labelled(jobs))
        sigma = self._sigma(layout)
        width, low, high = correction.bands(news, unseen, sigma)
        middle = np.maximum(alone.seconds[rows, 1] * np.exp(log), alone.floor_seconds[rows])
        seconds = spread(middle, width, alone.floor_seconds[rows], (low, high))
        scale, variance = middle / alone.seconds[rows, 1], (width / sigma) ** 2
        alone.seconds[rows[near]] = seconds[near]
        for values in alone.parts.values():
            values[rows[near]] *= scale[near]
        for values in alone.causes.values():
            values[rows[near]] *= variance[near]

    def _sigma(self, layout: Layout) -> FloatArray:
        """Return physics' log standard deviations of jobs laid out, (n,)."""
        constants = self.physics.constants
        priced, known = layout.rows(constants), taught(layout.jobs, constants)
        parts, _, _ = step_and_floor(priced, fastest_rates(layout.jobs), constants)
        return step_sigma(exposures(priced, parts, known), constants)

    def to_json(self) -> str:
        """Return physics' constants and the correction as JSON text."""
        learned = None if self.correction is None else self.correction.to_dict()
        physics = json.loads(self.physics.to_json())
        return json.dumps({
            "predictor": self.name, "version": VERSION, "physics": physics, "correction": learned,
        })  # fmt: skip

    @staticmethod
    def from_json(text: str) -> ResidualPredictor:
        """Return a saved predictor.

        Raises:
            RequestError: not this predictor's JSON, or of another version.
        """

        def made(saved: Mapping[str, Any]) -> ResidualPredictor:
            physics = AnalyticPredictor.from_json(json.dumps(saved["physics"]))
            learned = saved["correction"]
            return ResidualPredictor(
                physics, None if learned is None else Correction.from_dict(learned)
            )

        return read_saved(text, "a residual model", VERSION, made)


def _labelled(jobs: Jobs) -> bool:
    return jobs.labels is not None and "cluster" in jobs.labels
