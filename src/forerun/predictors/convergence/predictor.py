"""Convergence: samples until a target is reached, by batch; trainings share what they know of the curve's form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray, distinct_rows
from forerun.domain.forecast import Forecasts
from forerun.domain.quantiles import Z95
from forerun.errors import RequestError
from forerun.predictors.convergence.curve import FormPrior, Noise, Points, TargetCurve, covariance
from forerun.predictors.laws.law_rows import LawRows, combined
from forerun.predictors.saved import SavedPredictor
from forerun.tables import Jobs, Runs, sorted_runs
from forerun.tables.measured import samples_to_target
from forerun.units import counted

# What makes a training: other values have another curve. Within one, runs of one optimizer and one rule by which the learning
# rate follows the batch are alike, and so are those of one framework.
_TRAINING, _SETTING, _SOURCE = ("workload", "dataset", "target"), "optimizer", "framework"
_RULE = "learning_rate_rule"
_ROUNDS = 3
_ABOUT_PRIOR = 0.7  # log standard deviation of the noise's parts about their usual values
_PRIOR_COUNT = 3.0  # trainings that the prior of the form counts as
# Batches that count as much as a training that is as expected; how many deviations count at most.
_TRAINING_COUNT, _FAR = 4.0, 4.0
_OWN = 20.0  # runs that count as much as an unstretched band
_A_DOUBLING = 0.15  # log standard deviation for each doubling beyond the runs
_MOST_POINTS = 300  # of one training; more are thinned
NO_TIME = "it says samples until the target, and no time; fit auto to runs that have both"


@dataclass(frozen=True)
class Convergence(SavedPredictor):
    """Samples until a target as a function of the batch, for each training that runs speak of.

    It answers `samples_to_target` alone; every row's seconds are declined.

    Attributes:
        curves: by workload, dataset and target. written: workloads and datasets as runs name them, by what they are
        known by. settings, sources: the texts that their codes mean.
        prior: of the form of a training. noise: shared by all.
        stretches: of each training's bands, so that 90 % of runs at batches left out lie inside.
    """

    curves: Mapping[tuple[str, ...], TargetCurve] = field(default_factory=dict)
    settings: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    prior: FormPrior = field(default_factory=FormPrior.usual)
    noise: Noise = field(default_factory=Noise)
    stretches: Mapping[tuple[str, ...], float] = field(default_factory=dict)
    written: Mapping[str, str] = field(default_factory=dict)

    name = "convergence"
    version = 2
    answers_times: ClassVar[bool] = False

    @staticmethod
    def speaks_of(runs: Runs) -> bool:
        """Whether it can learn from runs: some state their batch and the samples until their target."""
        batch = LawRows(runs.jobs).size("global_batch")
        return bool((np.isfinite(samples_to_target(runs)) & np.isfinite(batch)).any())

    def fit(self, runs: Runs) -> Convergence:
        """Return one that has learned from these runs alone. Raises RequestError where none reached a target."""
        written = _written(runs.jobs)
        runs = sorted_runs(runs)
        read = _Read.of(runs.jobs)
        samples = samples_to_target(runs)
        use = np.flatnonzero(np.isfinite(samples) & np.isfinite(read.batch))
        if not len(use):
            raise RequestError(
                f"fitting {self.name} on {counted(len(runs), 'run')}",
                "none that ended states its batch and the samples until it reached a target",
                "give runs with global_batch and samples_to_target (or epochs_to_target and dataset_size)",
            )  # fmt: skip
        logs = np.log(samples)
        points, cells = {}, {}
        for code in np.unique(read.training[use]):
            mine = use[read.training[use] == code]
            name = read.trainings[code]
            points[name], cells[name] = _points(read, logs, mine)
        pooled = _Pooled.of(points, _repeat_sigma(logs, cells.values()))
        curves = {name: pooled.curve(one) for name, one in points.items()}
        off = {name: _off(curves[name], logs, *cells[name]) for name in curves}
        unruly = {name: _unruly(one) for name, one in off.items()}
        scaled = np.concatenate([one[0] / unruly[name] for name, one in off.items()])
        reach = float(np.quantile(np.abs(scaled), 0.9)) / Z95
        stretch = (len(scaled) * reach + _OWN) / (len(scaled) + _OWN)
        stretches = {name: stretch * one for name, one in unruly.items()}
        return Convergence(
            curves, tuple(read.settings), tuple(read.sources), pooled.prior, pooled.noise,
            stretches, written,
        )  # fmt: skip

    def predict(self, jobs: Jobs) -> Forecasts:
        """Return n forecasts of samples until the target; see `NO_TIME` and `samples`."""
        answer, reasons, doubts = self.samples(jobs)
        declined = np.where(np.isfinite(answer[:, 1]), NO_TIME, reasons).astype(object)
        blank = Forecasts.blank(len(jobs), self.name)
        warnings = tuple(dict.fromkeys(filter(None, doubts)))
        return replace(blank, declined=declined, samples_to_target=answer, warnings=warnings)

    def samples(self, jobs: Jobs) -> tuple[FloatArray, NDArray[np.object_], NDArray[np.object_]]:
        """Return quantiles of samples until the target (n, 3), why a row has none or "", and what is doubtful or "", (n,)."""
        read = _Read.of(jobs, self.settings, self.sources)
        answer = np.full((len(jobs), 3), np.nan)
        reasons, doubts = np.full((2, len(jobs)), "", dtype=object)
        for code, asked in enumerate(read.trainings):
            rows = np.flatnonzero(read.training == code)
            known = self._known(asked)
            if known is None:
                reasons[rows] = (
                    f"no run of {asked[0] or '(blank)'} reached a target; give one with samples_to_target"
                )
                if mine := [name for name in self.curves if name[0] == asked[0]]:
                    words = (self._words(*name[1:]) or "none stated" for name in mine)
                    targets = "; ".join(dict.fromkeys(words))
                    reasons[rows] = (
                        f"runs of {self._words(asked[0])} reached other targets ({targets}); state one in the column target"
                    )
                continue
            reasons[rows] = "the batch is not stated; fill global_batch"
            rows = rows[np.isfinite(read.batch[rows])]
            curve, batches = self.curves[known], self.curves[known].points.batch
            # A search asks for many plans of few batches.
            columns = [
                read.batch[rows], read.setting[rows].astype(float), read.source[rows].astype(float),
            ]  # fmt: skip
            distinct, place = distinct_rows(columns) if len(rows) else (np.zeros((0, 3)), rows)
            mean, variance = curve.predict(_asked(distinct))
            beyond = np.maximum(distinct[:, 0] - batches.max(), batches.min() - distinct[:, 0])
            doublings = np.maximum(beyond, 0.0) / np.log(2.0)
            reach = Z95 * self.stretches[known] * np.sqrt(variance + (_A_DOUBLING * doublings) ** 2)
            found = np.exp(mean[:, None] + reach[:, None] * np.array([-1.0, 0.0, 1.0]))
            answer[rows], doublings, reasons[rows] = found[place], doublings[place], ""
            low, high = np.exp([batches.min(), batches.max()])
            doubts[rows[doublings > 0.1]] = (
                f"samples to the target of {self._words(known[0])} are known at batches of {low:,.0f} to {high:,.0f} alone: outside it is"
                " the curve's continuation"
            )
        return answer, reasons, doubts

    def _known(self, asked: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return the training that is meant: blank words stand for those of the one that is alike."""
        if asked in self.curves:
            return asked
        alike = [
            name for name in self.curves
            if all(a in ("", b) for a, b in zip(asked, name, strict=True))
        ]  # fmt: skip
        return alike[0] if len(alike) == 1 and asked[0] else None

    def _words(self, *name: str) -> str:
        return " ".join(self.written.get(one, one) for one in name if one)

    @property
    def formulas(self) -> dict[str, str]:
        """The curve of each training, in samples."""
        found = {}
        for name, curve in self.curves.items():
            level, critical, power, small = curve.theta.tolist()
            found[self._words(*name)] = (
                f"{np.exp(level):.3g} (1 + (B/{np.exp(critical):,.0f})^{np.exp(power):.2f} + ({np.exp(small):.2g}/B)^0.5)"
            )
        return found


@dataclass(frozen=True)
class _Read:
    """What n jobs say of their training: codes of its words, and ln of the batch, (n,) each; settings and sources by code."""

    trainings: Sequence[tuple[str, ...]]
    training: IntArray
    settings: Sequence[str]
    setting: IntArray
    sources: Sequence[str]
    source: IntArray
    batch: FloatArray
    noise: FloatArray

    @staticmethod
    def of(jobs: Jobs, settings: Sequence[str] = (), sources: Sequence[str] = ()) -> _Read:
        rows = LawRows(jobs)
        columns = [rows.words(_TRAINING[0]), *(rows.stated(name) for name in _TRAINING[1:])]
        trainings, training = combined(columns)
        pairs, pair = combined([rows.words(_SETTING), rows.stated(_RULE)])
        setting = [" ".join(filter(None, one)) for one in pairs], pair
        source = rows.words(_SOURCE, row_first=True)
        sqr, var = (rows.labels.numbers(name) for name in ("grad_sqr", "grad_var"))
        with np.errstate(divide="ignore", invalid="ignore"):
            noise = np.log(np.where((sqr > 0) & (var > 0), var / sqr, np.nan))
            batch = np.log(rows.size("global_batch"))
        return _Read(
            trainings, training, *_coded(*setting, settings), *_coded(*source, sources), batch,
            noise,
        )  # fmt: skip


def _written(jobs: Jobs) -> dict[str, str]:
    """Return the workloads and datasets of n jobs as their rows first name them, by what they are known by."""
    rows, found = LawRows(jobs), dict[str, str]()
    for name, (known, index) in (
        (_TRAINING[0], rows.words(_TRAINING[0])),
        (_TRAINING[1], rows.stated(_TRAINING[1])),
    ):
        for text, i in zip(jobs.cells.texts(name).tolist(), index.tolist(), strict=True):
            found.setdefault(known[i], text or known[i])
    return found


def _coded(
    texts: Sequence[str], index: IntArray, known: Sequence[str]
) -> tuple[Sequence[str], IntArray]:
    """Return texts, the known ones first, and the place among them of each of n rows, (n,)."""
    every = tuple(dict.fromkeys([*known, *texts]))
    place = {text: i for i, text in enumerate(every)}
    return every, np.array([place[text] for text in texts], dtype=np.int64)[index]


def _points(
    read: _Read, logs: FloatArray, mine: IntArray
) -> tuple[Points, tuple[IntArray, IntArray]]:
    """Return the points of a training's runs: a configuration each; and the runs, and which point each is of."""
    keys = np.stack([read.batch[mine], read.setting[mine], read.source[mine]], axis=1)
    rows, cell = np.unique(keys, axis=0, return_inverse=True)
    cell = cell.reshape(-1)
    if len(rows) > _MOST_POINTS:
        kept = np.unique(np.linspace(0, len(rows) - 1, _MOST_POINTS).astype(np.int64))
        inside = np.isin(cell, kept)
        mine, cell, rows = mine[inside], np.searchsorted(kept, cell[inside]), rows[kept]
    each = [mine[cell == i] for i in range(len(rows))]
    middle = np.array([np.median(logs[part]) for part in each])
    known = read.noise[mine][np.isfinite(read.noise[mine])]
    noise = float(np.median(known)) if len(known) else None
    count = np.array([float(len(part)) for part in each])
    codes = rows[:, 1:].astype(np.int64)
    return Points(rows[:, 0], codes[:, 0], codes[:, 1], middle, count, noise), (mine, cell)


def _asked(rows: FloatArray) -> Points:
    """Return points to forecast from rows of ln B, setting and source, (n, 3)."""
    none, codes = np.zeros(len(rows)), rows[:, 1:].astype(np.int64)
    return Points(rows[:, 0], codes[:, 0], codes[:, 1], none, none + 1.0)


def _repeat_sigma(logs: FloatArray, cells: Iterable[tuple[IntArray, IntArray]]) -> float:
    """Return the log standard deviation of runs of one configuration: robust, and the usual one where few repeat."""
    off, free = [], 0
    for mine, cell in cells:
        for i in np.unique(cell):
            part = logs[mine[cell == i]]
            if len(part) > 1:
                off.append(part - np.median(part))
                free += len(part) - 1
    usual = Noise().run
    if not off:
        return usual
    every = np.concatenate(off)
    sigma = float(np.sqrt(np.mean(np.minimum(np.abs(every), 3 * usual) ** 2) * len(every) / free))
    return float(np.sqrt((free * sigma**2 + 5 * usual**2) / (free + 5)))


def _off(
    curve: TargetCurve, logs: FloatArray, mine: IntArray, cell: IntArray
) -> tuple[FloatArray, IntArray]:
    """Return how many deviations each run (n,) lies off where its batch is left out, and which batch that is."""
    batch = np.unique(curve.points.batch, return_inverse=True)[1]
    off, variance = curve.left_out(batch)
    own = curve.own_variance
    # A point that weighs little is no less certain to be judged.
    variance = variance - own / curve.weights + own
    run = curve.noise.run**2 * (1.0 - 1.0 / curve.points.runs)
    missed = logs[mine] - curve.points.samples[cell] + off[cell]
    return np.asarray(missed / np.sqrt(variance + run)[cell]), batch[cell]


def _unruly(off: tuple[FloatArray, IntArray]) -> float:
    """Return how much farther than expected a training's batches lie off, each as often as the others."""
    square = np.minimum(off[0] ** 2, _FAR**2)
    batches = [square[off[1] == one].mean() for one in np.unique(off[1])]
    return float(np.sqrt((_TRAINING_COUNT + sum(batches)) / (_TRAINING_COUNT + len(batches))))


def _weights(named: Iterable[tuple[str, ...]]) -> FloatArray:
    """Return what each training counts: several targets of one workload are hardly several trainings."""
    workloads = [name[0] for name in named]
    count = Counter(workloads)
    return np.array([1.0 / count[one] for one in workloads])


@dataclass(frozen=True)
class _Pooled:
    """What trainings share: noise, and what they say of one another's form."""

    noise: Noise
    prior: FormPrior

    @staticmethod
    def of(points: Mapping[tuple[str, ...], Points], run_sigma: float) -> _Pooled:
        """Return what makes the points of all trainings likeliest (empirical Bayes)."""
        from scipy.optimize import minimize

        usual = Noise(run=run_sigma)
        now = _Pooled(usual, FormPrior.usual())
        for _ in range(_ROUNDS):
            curves = [now.curve(one) for one in points.values()]

            def unlikely(logs: FloatArray, curves: list[TargetCurve] = curves) -> float:
                noise = Noise.of(logs, run_sigma)
                far = 0.5 * float(np.sum(((logs - usual.logs) / _ABOUT_PRIOR) ** 2))
                return far + sum(_unlikely(one, noise) for one in curves)

            found = minimize(unlikely, now.noise.logs, method="L-BFGS-B", options={"maxiter": 30})
            now = _Pooled(Noise.of(found.x, run_sigma), _form_prior(curves, _weights(points)))
        return now

    def curve(self, points: Points) -> TargetCurve:
        """Return the curve of one training."""
        return TargetCurve.of(points, self.noise, self.prior)


def _form_prior(curves: Sequence[TargetCurve], weights: FloatArray) -> FormPrior:
    """Return what curves say of the form of a further training; weights: of each."""
    usual = FormPrior.usual()

    def pooled(
        values: FloatArray, spreads: FloatArray, mean: Any, sigma: Any, w: FloatArray
    ) -> Any:
        total = _PRIOR_COUNT + w.sum()
        middle = (_PRIOR_COUNT * mean + w @ values) / total
        square = _PRIOR_COUNT * sigma**2 + w @ ((values - middle) ** 2 + spreads)
        return middle, np.sqrt(square / total)

    forms = np.array([c.theta[1:] for c in curves])
    spreads = np.array([np.diag(c.spread)[1:] for c in curves])
    middles = np.array([[c.points.middle, 0.0, c.points.middle] for c in curves])
    mean, sigma = pooled(forms - middles, spreads, usual.mean, usual.sigma, weights)
    places = np.array([np.var(np.unique(c.points.batch)) for c in curves])
    several = weights * (places > 0)
    place = (_PRIOR_COUNT * usual.place**2 + several @ places) / (_PRIOR_COUNT + several.sum())
    known = np.flatnonzero([c.points.noise is not None for c in curves])
    told = np.array([forms[i, 0] - float(curves[i].points.noise or 0.0) for i in known.tolist()])
    offset, unsure = pooled(
        told, spreads[known, 0], usual.offset, usual.offset_sigma, weights[known]
    )
    return FormPrior(mean, sigma, float(np.sqrt(place)), float(offset), float(unsure))


def _unlikely(curve: TargetCurve, noise: Noise) -> float:
    """Return minus the log likelihood of a curve's points with other noise, level and form taken as linear."""
    points = curve.points
    left, slopes = curve.residuals(points)
    left = left + slopes @ (curve.theta - curve.centre)
    own = (noise.cell**2 + noise.run**2 / points.runs) / curve.weights
    total = covariance(points, points, noise) + np.diag(own) + slopes * curve.before**2 @ slopes.T
    root = np.linalg.cholesky(total)
    return float(0.5 * np.sum(np.linalg.solve(root, left) ** 2) + np.log(np.diag(root)).sum())
