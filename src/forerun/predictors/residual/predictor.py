"""ResidualPredictor: the analytic predictor, corrected by what it missed where trials allow it.

Learning: from a finished fit of physics, the correction that trials allow, or none.

Correction: a Gaussian process on what physics missed, for the jobs that it may speak of.

Gate: for which kinds of novelty the correction speaks, and how sure it then is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.domain.forecast import Forecasts
from forerun.domain.quantiles import Z95, spread
from forerun.predictors.analytic import AnalyticPredictor
from forerun.predictors.analytic.calibration import MAX_ROWS, Learned, fit_runs
from forerun.predictors.analytic.calibration.fitting import Fit, thinned
from forerun.predictors.analytic.calibration.parameters import moved
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.layout import Layout, lay_out
from forerun.predictors.analytic.step import step_and_floor
from forerun.predictors.analytic.uncertainty import evidence, exposures, step_sigma
from forerun.predictors.residual.features import PhysicsFeatures, features_of
from forerun.predictors.residual.kernel import CHUNK, ResidualKernel, student, tuned
from forerun.predictors.residual.trials import (
    KINDS,
    LACKS,
    OWN,
    PLAN,
    SCALE,
    Labels,
    Learner,
    MeasuredKinds,
    Trial,
    job_codes,
    known_of,
    labels_of,
    trials_of,
)
from forerun.predictors.saved import read_saved
from forerun.tables import Jobs, Runs, sorted_runs
from forerun.tables.suspects import cleaned, suspects

LEAST_UNITS = 4
T_NEEDED = 2.4
LEAST_GAIN = 0.05
# One run counts as no more than wrong by all of its time: runs of another kind decide nothing.
MOST_ERROR = 1.0
DEGREES = 4.0
# The 95 % quantile of Student-t errors with four degrees of freedom, in units of their scale.
T_QUANTILE = 2.132
# Priors of the two parts of a band: medians, and their log standard deviation.
LEAST_SIGMA, OF_PHYSICS, PRIOR_SD = 0.02, 1.0, 0.7
_LEAST = np.geomspace(0.003, 0.3, 24)
_SHARES = np.geomspace(0.2, 4.0, 20)
# What the rows of one unit count for at most, in independent facts.
MOST_FACTS = 4.0
TAIL_COUNT = 6.0  # so many facts weigh as much as the prior that tails are normal


@dataclass(frozen=True)
class Band:
    """How sure a corrected forecast is: variance least^2 + share^2 unseen sigma^2.

    sigma: physics' own log standard deviation; unseen: see `Trial`. low, high: how far the 5 % and
    the 95 % quantile lie, in units of a normal distribution's.
    """

    least: float
    share: float
    low: float
    high: float


@dataclass(frozen=True)
class GateVerdict:
    """What trials of one kind of novelty say.

    units: how many; before, after: mean absolute error, as a share of the measured time, of physics
    and of the corrected forecast; t: gain over its standard error; speaks: whether the correction
    is used; band: of what it then says.
    """

    units: int
    before: float
    after: float
    t: float
    speaks: bool
    band: Band

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> GateVerdict:
        """Return what `to_dict` wrote."""
        return GateVerdict(**{**values, "band": Band(**values["band"])})


def verdict(trial: Trial, sigma: FloatArray) -> GateVerdict:
    """Return what a trial says; sigma: of physics about each of its rows, were they new, (m,)."""
    before, after = _error(trial.before), _error(trial.after)
    counts = np.bincount(trial.unit).astype(np.float64)
    gains = np.bincount(trial.unit, before - after) / counts
    units = len(counts)
    spread = float(gains.std(ddof=1)) / units**0.5 if units > 1 else np.inf
    t = float(gains.mean()) / max(spread, 1e-9)
    mean_before, mean_after = float(before.mean()), float(after.mean())
    enough = mean_before - mean_after >= LEAST_GAIN * mean_before
    speaks = bool(units >= LEAST_UNITS and t >= T_NEEDED and enough)
    weight = (np.minimum(counts, MOST_FACTS) / counts)[trial.unit]
    band = band_of(trial.after, trial.unseen, sigma, weight)
    return GateVerdict(units, mean_before, mean_after, min(t, 1e6), speaks, band)


def _error(log_ratio: FloatArray) -> FloatArray:
    """Return absolute errors as shares of the measured time, (m,)."""
    return np.minimum(np.abs(np.expm1(-np.clip(log_ratio, -5.0, 5.0))), MOST_ERROR)


def band_of(error: FloatArray, unseen: FloatArray, sigma: FloatArray, weight: FloatArray) -> Band:
    """Return the band that log errors ask for, all (m,): maximum a posteriori on a grid."""
    unit = Z95 / T_QUANTILE  # the scale of Student-t errors whose 90 % band is a normal one's
    spread = (unseen * sigma**2)[None, :]
    best, least, share = -np.inf, LEAST_SIGMA, OF_PHYSICS
    for candidate in _LEAST:
        variance = (candidate**2 + _SHARES[:, None] ** 2 * spread) * unit**2
        log_t = -0.5 * np.log(variance) - 0.5 * (DEGREES + 1.0) * np.log1p(
            error[None, :] ** 2 / (DEGREES * variance)
        )
        prior = np.log(candidate / LEAST_SIGMA) ** 2 + np.log(_SHARES / OF_PHYSICS) ** 2
        score = log_t @ weight - 0.5 * prior / PRIOR_SD**2
        at = int(score.argmax())
        if score[at] > best:
            best, least, share = float(score[at]), float(candidate), float(_SHARES[at])
    z = error / np.sqrt(least**2 + share**2 * unseen * sigma**2)
    return Band(least, share, *_tails(z, weight))


def _tails(z: FloatArray, weight: FloatArray) -> tuple[float, float]:
    """Return how many times Z95 lies (below, above) the middle at the 5 % and 95 % quantiles."""
    order = np.argsort(z)
    height = (np.cumsum(weight[order]) - 0.5 * weight[order]) / weight.sum()
    trust = weight.sum() / (weight.sum() + TAIL_COUNT)

    def tail(level: float, sign: float) -> float:
        quantile = sign * float(np.interp(level, height, z[order])) / Z95
        return float(np.clip(1.0 + trust * (quantile - 1.0), 0.6, 4.0))

    return tail(0.05, -1.0), tail(0.95, 1.0)


# Of a correction's variance, what measured runs must explain for it to speak at all.
LEAST_EXPLAINED = 0.02


@dataclass(frozen=True)
class Correction:
    """What was learned from m runs.

    Attributes:
        kernel: how alike jobs are.
        features: of the runs.
        weights: what each run adds to a correction for the likeness to it, (m, 1 + 4): the first
            for all jobs, the others for those that have to do without constants of their own.
        total: variance of each run's correction and its noise, (m,).
        known: what was measured.
        verdicts: by kind of novelty.
    """

    kernel: ResidualKernel
    features: PhysicsFeatures
    weights: FloatArray
    total: FloatArray
    known: MeasuredKinds
    verdicts: Mapping[str, GateVerdict]

    def speaks_of(self, labels: Labels, labelled: bool) -> tuple[BoolArray, dict[str, BoolArray]]:
        """Return which of n jobs trials allow it to correct, (n,), and the novelty of all."""
        news = self.known.news(labels, labelled)
        silent = np.zeros(len(labels), dtype=bool)
        for kind, rows in news.items():
            if kind not in self.verdicts or not self.verdicts[kind].speaks:
                silent |= rows
        return ~silent, news

    def logs(self, features: PhysicsFeatures, labels: Labels) -> tuple[FloatArray, FloatArray]:
        """Return (what to add to the log of the forecast, the part of its variance unseen), (n,).

        Where nothing alike was measured it is 0, and all is unseen.
        """
        lacks = np.concatenate([np.ones((len(labels), 1)), self.known.lacks(labels)], axis=1)
        log, explained = np.zeros(len(features)), np.zeros(len(features))
        for start in range(0, len(features), CHUNK):
            rows = np.arange(start, min(start + CHUNK, len(features)))
            shared = self.kernel.some(features, rows, self.features)
            log[rows] = ((shared @ self.weights) * lacks[rows]).sum(axis=1)
            explained[rows] = (shared**2 / self.total).max(axis=1)
        explained = np.clip(explained / self.kernel.own(features), 0.0, 1.0)
        far = explained < LEAST_EXPLAINED
        return np.where(far, 0.0, log), np.where(far, 1.0, 1.0 - explained)

    def bands(
        self, news: Mapping[str, BoolArray], unseen: FloatArray, sigma: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return (log standard deviations, lower and upper tails) of corrected forecasts, (n,).

        The widest of what is new about a job counts. sigma: physics' own, (n,).
        """
        width, low, high = np.zeros(len(unseen)), np.ones(len(unseen)), np.ones(len(unseen))
        for kind in KINDS:
            if kind not in self.verdicts or kind not in news:
                continue
            band = self.verdicts[kind].band
            mine = np.sqrt(band.least**2 + band.share**2 * unseen * sigma**2)
            wider = news[kind] & (mine > width)
            width = np.where(wider, mine, width)
            low, high = np.where(wider, band.low, low), np.where(wider, band.high, high)
        return width, low, high

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; features with the seven digits that they are compared in."""
        return {
            "kernel": self.kernel.to_dict(),
            "features": [[float(f"{v:.9g}") for v in row] for row in self.features.values],
            "share": self.features.share.tolist(),
            "median": self.features.median.tolist(),
            "weights": self.weights.tolist(),
            "total": self.total.tolist(),
            "known": self.known.to_dict(),
            "verdicts": {kind: found.to_dict() for kind, found in self.verdicts.items()},
        }

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Correction:
        """Return what `to_dict` wrote."""

        def column(name: str) -> FloatArray:
            return np.array(values[name], dtype=np.float64)

        return Correction(
            kernel=ResidualKernel.from_dict(values["kernel"]),
            features=PhysicsFeatures(column("features"), column("share"), column("median")),
            weights=column("weights"),
            total=column("total"),
            known=MeasuredKinds.from_dict(values["known"]),
            verdicts={k: GateVerdict.from_dict(v) for k, v in values["verdicts"].items()},
        )


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


def _own(fit: Fit, constants: Constants, features: PhysicsFeatures) -> FloatArray:
    """Return what constants of one workload, layer, device or framework add to the log, (n, 4)."""
    families = [p.family for p in fit.parameters]
    columns = []
    for lack in LACKS:
        ours = np.array([family.startswith(OWN[lack]) for family in families])
        without = moved(constants, fit.parameters, np.where(ours, -fit.theta, 0.0))
        median = step_and_floor(fit.layout.rows(without), without)[1]
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
    parts, _, _ = step_and_floor(rows, constants)
    known: Mapping[str, FloatArray] = evidence(fit.jobs, constants)
    if kind not in (PLAN, SCALE):
        known = {**known, f"{kind}_evidence": np.zeros(len(rows))}
    sigma = step_sigma(exposures(rows, parts, known), constants)[trial.row]
    if kind == SCALE:
        sigma = np.hypot(sigma, constants.sigma_scale * trial.doublings)
    return np.asarray(sigma)


# Rows in one pass: long enough that calls cost little, short enough for memory.
JOBS_AT_ONCE = 65536
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
        for start in range(0, len(rows), JOBS_AT_ONCE):
            self._correct(self.correction, alone, jobs, rows[start : start + JOBS_AT_ONCE])
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
        priced, known = layout.rows(constants), evidence(layout.jobs, constants)
        parts, _, _ = step_and_floor(priced, constants)
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
