"""ResidualPredictor: the analytic predictor, corrected by what it missed where trials allow it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.domain.comparison import log_sigma
from forerun.domain.forecast import Forecasts
from forerun.domain.quantiles import spread
from forerun.predictors.analytic import AnalyticPredictor
from forerun.predictors.analytic.calibration import MAX_ROWS, Learned, fit_runs
from forerun.predictors.analytic.calibration.fitting import thinned
from forerun.predictors.analytic.rows import Layout, fastest_rates, lay_out, taught
from forerun.predictors.analytic.stalls import mixed, stalls_of
from forerun.predictors.analytic.step import step_and_floor
from forerun.predictors.analytic.uncertainty import exposures, step_sigma
from forerun.predictors.residual.correction import Correction
from forerun.predictors.residual.features import features_of
from forerun.predictors.residual.learning import learned_correction
from forerun.predictors.residual.novelty import labels_of
from forerun.predictors.saved import read_saved
from forerun.tables import Jobs, Runs, sorted_runs
from forerun.tables.suspects import cleaned, suspects

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
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
        sigma, priced = self._physics(layout)
        width, low, high = correction.bands(news, unseen, sigma)
        middle = np.maximum(alone.seconds[rows, 1] * np.exp(log), alone.floor_seconds[rows])
        usual = spread(middle, width, alone.floor_seconds[rows], (low, high))
        seconds = mixed(usual, stalls_of(priced, alone.fit_probability[rows]))
        scale, variance = middle / alone.seconds[rows, 1], (width / sigma) ** 2
        alone.seconds[rows[near]] = seconds[near]
        for values in alone.parts.values():
            values[rows[near]] *= scale[near]
        for values in alone.causes.values():
            values[rows[near]] *= variance[near]
        if alone.stalls:
            alone.stalls["sigma"][rows[near]] = log_sigma(usual)[near]

    def _physics(self, layout: Layout) -> tuple[FloatArray, Any]:
        """Return (physics' log standard deviations (n,), rows priced) of jobs laid out."""
        constants = self.physics.constants
        priced, known = layout.rows(constants), taught(layout.jobs, constants)
        parts, _, _ = step_and_floor(priced, fastest_rates(layout.jobs), constants)
        return step_sigma(exposures(priced, parts, known), constants), priced

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
    return jobs.labels is not None and "source" in jobs.labels
