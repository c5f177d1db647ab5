"""Gaussian: log times as Gaussian processes of what runs state, one for each kind with many runs.

The mean of a step by all-reduce is the hierarchical law; of other times it is a line in the logs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray, group_medians
from forerun.domain.forecast import Forecasts, is_none
from forerun.domain.plan import SYNC
from forerun.domain.quantiles import Z95, spread
from forerun.errors import RequestError
from forerun.predictors.gaussian_process import GaussianProcess, fitted_gp, hazard
from forerun.predictors.laws.grouped import article
from forerun.predictors.laws.hierarchical import Hierarchical
from forerun.predictors.laws.law_rows import Kind
from forerun.predictors.regression.job_features import (
    POOL,
    RANGES,
    Categories,
    JobFeatures,
    declined,
    distinct_forecasts,
    doublings_beyond,
    kind_words,
    needed,
    served,
    timed,
)
from forerun.predictors.saved import SavedPredictor
from forerun.tables import Jobs, Runs, Table, sorted_runs

# A feature is a mixture of others where less than this share of its variance is its own.
COLLINEAR = 1e-6
# Derived of the numbers, beside their logarithms: work that devices share, and whether a network
# lies between them.
_SHARE, _SEVERAL = "1/devices", "several nodes"
_MISSING = "no "


@dataclass(frozen=True)
class FeatureDesign:
    """Features of one block.

    names: of numbers (their logarithm) and derived ones. fills: logarithm that stands where a number is not
    stated, for those that some runs do not state either; these have a feature that says so. reach: least
    and most of each measured number. left_out: mixtures of those before them.
    """

    names: tuple[str, ...]
    fills: Mapping[str, float]
    reach: Mapping[str, tuple[float, float]]
    left_out: tuple[str, ...] = ()

    @staticmethod
    def of(numbers: Mapping[str, FloatArray]) -> FeatureDesign:
        """Return the features of n runs: numbers that change, are mostly stated and are no mixture of others."""
        names: list[str] = []
        fills: dict[str, float] = {}
        reach: dict[str, tuple[float, float]] = {}
        for name, values in numbers.items():
            stated = values[np.isfinite(values)]
            if 2 * len(stated) < len(values) or not len(stated):
                continue
            if name in RANGES:
                reach[name] = (float(stated.min()), float(stated.max()))
            if len(stated) < len(values):
                fills[name] = float(np.median(np.log(stated)))
                names.append(_MISSING + name)
            if stated.min() < stated.max():
                names += [name, *{"devices": [_SHARE], "nodes": [_SEVERAL]}.get(name, [])]
        x = FeatureDesign(tuple(names), fills, reach).matrix(numbers)
        x = x - x.mean(axis=0)
        kept: list[str] = []
        basis = np.zeros((len(x), 0))
        for name, column in zip(names, x.T, strict=True):
            own = column - basis @ (basis.T @ column)
            own = own - basis @ (basis.T @ own)  # once more, against rounding
            if own @ own > COLLINEAR * max(float(column @ column), 1e-12):
                kept.append(name)
                basis = np.column_stack([basis, own / np.sqrt(own @ own)])
        left_out = tuple(name for name in names if name not in kept)
        return FeatureDesign(tuple(kept), fills, reach, left_out)

    def matrix(self, numbers: Mapping[str, FloatArray]) -> FloatArray:
        """Return the features of n jobs, (n, d); NaN where a number is lacking."""
        x = np.empty((len(numbers["devices"]), len(self.names)))
        for i, name in enumerate(self.names):
            if name.startswith(_MISSING):
                x[:, i] = np.isnan(numbers[name.removeprefix(_MISSING)])
            elif name == _SHARE:
                x[:, i] = 1.0 / numbers["devices"]
            elif name == _SEVERAL:
                x[:, i] = np.where(np.isnan(numbers["nodes"]), np.nan, numbers["nodes"] > 1)
            else:
                x[:, i] = np.log(numbers[name])
            x[:, i] = np.where(np.isnan(x[:, i]), self.fills.get(name, np.nan), x[:, i])
        return x

    def lacking(self, numbers: Mapping[str, FloatArray]) -> Mapping[str, BoolArray]:
        """Return by number which jobs do not state it and would have to, each (n,)."""
        made = (_SHARE, _SEVERAL, *(_MISSING + name for name in self.fills), *self.fills)
        required = [name for name in self.names if name not in made]
        return {name: np.isnan(numbers[name]) for name in required}


MOST_POINTS = 1500  # of a process; more runs are thinned by whole sessions
TUNED_POINTS = 300  # that its hyper-parameters are tuned on
# Log standard deviation that a doubling beyond the measured range adds: as the nearer half of the
# runs errs about the farther half, within these bounds.
LEAST_GROWTH, USUAL_GROWTH, MOST_GROWTH = 0.03, 0.12, 0.7
# Readings on one machine differ by 1-2 %: no band is surer than that.
LEAST_SIGMA = 0.015
LEAST_TAIL, MOST_TAIL = 0.6, 3.0
# Readings a point from which on the readings themselves say how large the noise is.
REPEATED = 1.2
_ENOUGH = 8  # points, for anything to be judged by leaving some out


@dataclass(frozen=True)
class GaussianBlock:
    """A process of log seconds.

    classes: of each category by name, their numbers. tails: how far the 5 % and the 95 % of left-out
    readings lie, over what a normal distribution says. growth: log standard deviation that a doubling
    beyond the measured ranges adds. least: log standard deviation that no band is surer than.
    """

    design: FeatureDesign
    classes: Mapping[str, Mapping[str, int]]
    gp: GaussianProcess
    tails: tuple[float, float]
    growth: float
    least: float
    runs: int

    def answers(self, features: JobFeatures) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return log median, log standard deviation of a reading, and doublings beyond, (n,) each."""
        middle, sd = self.gp.predict(self.design.matrix(features.numbers), self.labels(features))
        beyond = doublings_beyond(self.design.reach, features.numbers)
        one = np.maximum(sd**2 + self.gp.noise_sd**2, self.least**2)
        return middle, np.sqrt(one + (self.growth * beyond) ** 2), beyond

    def covariance(self, features: JobFeatures) -> FloatArray:
        """Return the covariance of the errors of log seconds of n jobs, (n, n)."""
        _, shared = self.gp.joint(self.design.matrix(features.numbers), self.labels(features))
        beyond = self.growth * doublings_beyond(self.design.reach, features.numbers)
        # What is beyond the measured is wrong alike: errors out there share their cause.
        own = np.maximum(self.gp.noise_sd**2, self.least**2 - np.diag(shared))
        result: FloatArray = shared + np.outer(beyond, beyond) + np.diag(own)
        return result

    def labels(self, features: JobFeatures) -> IntArray:
        """Return the number of each job's class in each category, (n, c), -1 where it is new."""
        labels = np.empty((len(features.jobs), len(self.classes)), dtype=np.int64)
        for i, (name, known) in enumerate(self.classes.items()):
            texts, index = features.categories[name]
            labels[:, i] = np.array([known.get(text, -1) for text in texts])[index]
        return labels

    def words(self, quantity: str, mean: str) -> str:
        """Return what the process goes by, the features that matter most first; mean: its own."""
        plain = (_SHARE, _SEVERAL)
        names = [
            name if name in plain or name.startswith(_MISSING) else f"log {name}"
            for name in self.design.names
        ]
        order = np.argsort(self.gp.lengths)
        lengths = ", ".join(f"{names[i]} {self.gp.lengths[i]:.2g}" for i in order)
        process = (
            f" + a line in {', '.join(names[i] for i in order)} + a Matern 5/2 process of the same, with"
            f" length scales {lengths} in standard deviations of the runs"
        )
        classes = ", ".join(name for name, known in self.classes.items() if len(known) > 1)
        own = f" + an error of its own for each {classes}" if classes else ""
        same = f"; left out, as mixtures of others: {', '.join(self.design.left_out)}"
        return (
            f"log seconds of {article(quantity)} = {mean}a level{process if names else ''}{own}; it"
            f" keeps {len(self.gp.x)} points, so it is no formula to compute by hand; log is natural,"
            f" a reading is off by {100 * self.gp.noise_sd:.1f} % (one standard deviation), bands hold"
            f" 90 % (5 to 95 %) ({self.runs} runs{same if self.design.left_out else ''})"
        )


def fitted_block(
    features: JobFeatures, seconds: FloatArray, *, most: int = MOST_POINTS,
    tuned: int = TUNED_POINTS,
) -> GaussianBlock:  # fmt: skip
    """Return the block of n runs of positive seconds (n,); most, tuned: points that are kept, and tuned on."""
    categories: Categories = features.categories  # the last is the session
    labels = np.stack([index for _, index in categories.values()], axis=1)
    rows = _thinned(labels[:, -1], most)
    numbers = {name: values[rows] for name, values in features.numbers.items()}
    design, logs = FeatureDesign.of(numbers), np.log(seconds[rows])
    # Points, classes and medians of their readings, and the point of each reading.
    x, labels = design.matrix(numbers), labels[rows]
    both = np.concatenate([x, labels.astype(np.float64)], axis=1)
    _, first, group = np.unique(both, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)  # as they came
    point = np.argsort(order)[group.reshape(-1)]
    y = group_medians(logs, point, len(first)).mean(axis=0)
    x, labels = x[first[order]], labels[first[order]]
    off = logs - y[point]
    # A category of one class, or of as many as there are points, has nothing to tell apart.
    used = [c for c in range(labels.shape[1]) if 1 < len(np.unique(labels[:, c])) < len(y)]
    # The repeats of a point say how large the noise is; one far off counts as three deviations.
    moved = np.abs(off[off != 0])
    most_off = 3 * 1.4826 * float(np.median(moved)) if len(moved) else 0.0
    within = float(len(off) - len(y)), float(np.sum(np.minimum(moved, most_off) ** 2))
    gp = fitted_gp(
        x, y, mean="linear", labels=labels[:, used], noise_ratio=1 / np.sqrt(np.bincount(point)),
        tuned_on=_thinned(labels[:, -1], tuned), within=within,
    )  # fmt: skip
    least = LEAST_SIGMA
    if len(y) >= _ENOUGH:
        gp = gp.doubted()
        if len(point) <= REPEATED * len(y):
            # Without repeats a process cannot tell noise from what a single session did: what was
            # measured once is no surer than a left-out reading usually is.
            least = max(float(np.median(gp.left_out()[1])), LEAST_SIGMA)
    names = list(categories)
    classes = {names[c]: {t: i for i, t in enumerate(categories[names[c]][0])} for c in used}
    tails, growth = _tails(gp, point, off, least), _growth(gp, design, x)
    return GaussianBlock(design, classes, gp, tails, growth, least, len(seconds))


def _thinned(session: IntArray, most: int) -> IntArray:
    """Return positions of at most so many rows, whole sessions drawn at random, in order."""
    if len(session) <= most:
        return np.arange(len(session))
    turn = np.random.default_rng(0).permutation(int(session.max()) + 1)[session]
    order = np.lexsort((np.random.default_rng(1).permutation(len(session)), turn))
    return np.sort(order[:most])


def _tails(
    gp: GaussianProcess, point: IntArray, off: FloatArray, least: float
) -> tuple[float, float]:
    """Return how far left-out readings reach below and above, over what a normal one does.

    Readings are left out, and whole sessions where there are several; the wider counts. Of few readings the
    quantile holds for the next one (split conformal prediction: Vovk, Gammerman and Shafer 2005). point: of
    each of m readings, (m,); off: each less the median of its point, (m,).
    """
    n = len(gp.x)
    if n < _ENOUGH:
        return 1.5, 1.5
    level = min(0.95 * (n + 1) / n, 1.0)
    # The process says how sure it is of the middle of the readings; a question is about one.
    own = gp.unit**2 * gp.scales.noise_variance(gp.ratio)
    pairs = []
    for groups in (None, gp.labels[:, -1]) if gp.labels.shape[1] else (None,):
        errors, sd = gp.left_out(groups)
        one = np.maximum(np.sqrt(np.maximum(sd**2 - own, 0.0) + gp.noise_sd**2), least)
        z = (errors[point] + off) / one[point]
        pairs.append((-np.quantile(z, 1 - level), np.quantile(z, level)))
    # The hyper-parameters were fitted to all readings: those left out look nearer than new ones.
    free = max(n - len(gp.lengths) - 3 - 2 * gp.labels.shape[1], 1)
    wider = float(np.sqrt(n / free)) * (1.0 + 1.0 / free)
    low, high = np.clip(wider * np.max(pairs, axis=0) / Z95, LEAST_TAIL, MOST_TAIL)
    return float(low), float(high)


def _growth(gp: GaussianProcess, design: FeatureDesign, x: FloatArray) -> float:
    """Return what a doubling adds: runs on more than the middle number of devices, from the rest."""
    if "devices" not in design.names or len(x) < 2 * _ENOUGH:
        return USUAL_GROWTH
    devices = x[:, design.names.index("devices")]
    distinct = np.unique(devices)
    bound = distinct[(len(distinct) - 1) // 2]
    near, far = np.flatnonzero(devices <= bound), np.flatnonzero(devices > bound)
    if len(distinct) < 3 or len(near) < _ENOUGH:
        return USUAL_GROWTH
    part = gp.given(gp.x[near], gp.labels[near], gp.values[near], gp.ratio[near])
    middle, sd = part.predict(x[far], gp.labels[far])
    errors = gp.middle + gp.unit * gp.values[far] - middle
    left = (errors / Z95) ** 2 - sd**2 - gp.noise_sd**2
    per_doubling = np.sqrt(np.maximum(left, 0.0)) / ((devices[far] - bound) / np.log(2.0))
    return float(np.clip(np.quantile(per_doubling, 0.9), LEAST_GROWTH, MOST_GROWTH))


# With so many readings a configuration, and no more configurations, the law follows each of them.
MANY, FOLDS = 60, 5


def physics_of(
    features: JobFeatures, seconds: FloatArray, quantity: str
) -> tuple[Hierarchical | None, FloatArray]:
    """Return the hierarchical law of n runs, and its seconds of each, NaN where none: steps by all-reduce only.

    A law that had repeats of a few configurations follows each of them, and errs less there than at any
    new one: there its seconds are those without the runs of the configuration.
    """
    median = np.full(len(seconds), np.nan)
    rows = np.flatnonzero(features.rows.sync == SYNC.index("allreduce"))
    if quantity != "step" or not len(rows):
        return None, median
    runs = Runs(
        features.over_own.take(rows), Table({"step_time_s": seconds[rows]}, len(rows)), ordered=True
    )
    try:
        law = Hierarchical().fit(runs)
    except RequestError:
        return None, median  # too few of them: a line in the logs serves instead
    median[rows] = law.predict(runs.jobs).seconds[:, 1]
    columns = [features.kinds[1], features.sessions[1], *features.numbers.values()]
    table = np.nan_to_num(np.stack(columns, axis=1)[rows], nan=-1.0)
    distinct, of = np.unique(table, axis=0, return_inverse=True)
    if FOLDS <= len(distinct) < MANY and len(rows) > REPEATED * len(distinct):
        part = (np.random.default_rng(0).permutation(len(distinct)) % FOLDS)[of.reshape(-1)]
        for fold in range(FOLDS):
            judged = np.flatnonzero(part == fold)
            try:
                apart = Hierarchical().fit(runs.take(np.flatnonzero(part != fold)))
            except RequestError:
                continue  # these keep what the law of all says
            found = apart.predict(runs.jobs.take(judged)).seconds[:, 1]
            median[rows[judged]] = np.where(np.isfinite(found), found, median[rows[judged]])
    return law, median


def expected_seconds(forecast: FloatArray, least: FloatArray) -> FloatArray:
    """Return the log mean of times longer than `least`, (n,), of quantiles without that bound, (n, 3).

    Tobin (1958), Estimation of relationships for limited dependent variables: of a normal value above a
    bound a deviations off its mean, the mean lies phi(a) / (1 - Phi(a)) deviations off.
    """
    sigma = np.log(forecast[:, 2] / forecast[:, 1]) / Z95
    off = np.log(least / forecast[:, 1]) / sigma
    result: FloatArray = forecast[:, 1] * np.exp(sigma * hazard(off))
    return result


LEAST_RUNS = 4
# A kind with so many runs has a process of its own; the others share one process.
OWN_RUNS = 60
# Beside its own runs a job is this near; in settings without runs this much farther, and as much
# again for each doubling beyond the runs.
NEAR, OTHER_SETTINGS, A_DOUBLING = 0.1, 0.3, 0.2
ROUNDS = 2  # of what stopped runs are expected to take


@dataclass(frozen=True)
class Gaussian(SavedPredictor):
    """log seconds ~ level + slopes . features + Matern 5/2 process + session + noise.

    blocks: processes by kind of job; that of the kinds with few runs under the empty kind. kinds: which had
    runs, and how many. base: the law of physics whose errors the processes of the kinds in `based` learn.
    most, tuned: points of a process, and points that its hyper-parameters are tuned on.
    """

    quantity: str = "step"
    blocks: Mapping[Kind, GaussianBlock] = field(default_factory=dict)
    kinds: Mapping[Kind, int] = field(default_factory=dict)
    base: Hierarchical | None = None
    based: frozenset[Kind] = frozenset()
    physics: bool = True
    most: int = MOST_POINTS
    tuned: int = TUNED_POINTS

    name = "gaussian"
    version = 5

    def light(self, runs: Runs) -> Callable[[IntArray], Gaussian]:
        """Return what fits parts of the runs, by position, on fewer points, for choosing among predictors."""
        less = Gaussian(physics=self.physics, most=min(self.most, 400), tuned=min(self.tuned, 150))
        return lambda part: less.fit(runs.take(part))

    def fit(self, runs: Runs) -> Gaussian:
        """Return a predictor with the processes of these runs alone.

        A stopped run counts with the time that is expected of it, given that it was not over.

        Raises:
            RequestError: fewer than four runs have a time of one quantity and state their devices.
        """
        runs = sorted_runs(runs)
        quantity, seconds = timed(self.name, runs, LEAST_RUNS)
        fitted = self._fitted(runs.jobs, seconds, quantity)
        # Steps and epochs that a stopped run measured are whole; only the run itself is not.
        limit = runs.table.numbers("time_to_train_s")
        stopped = (runs.status == "timeout") & (limit > 0) & np.isfinite(limit)
        stopped &= np.isfinite(JobFeatures(runs.jobs).numbers["devices"])
        if quantity != "run" or not stopped.any():
            return fitted
        forecast = fitted.predict(runs.jobs).seconds
        late = np.flatnonzero(stopped & (limit > forecast[:, 1]))
        for _ in range(ROUNDS if len(late) else 0):
            seconds[late] = expected_seconds(forecast[late], limit[late])
            fitted = self._fitted(runs.jobs, seconds, quantity)
            forecast = fitted.predict(runs.jobs).seconds
        return fitted

    def _fitted(self, jobs: Jobs, seconds: FloatArray, quantity: str) -> Gaussian:
        """Return the processes of the jobs that have a time; seconds: NaN for the others."""
        rows = np.flatnonzero(np.isfinite(seconds))
        jobs, seconds = jobs.take(rows), seconds[rows]
        features = JobFeatures(jobs)
        names, index = features.kinds
        counts = np.bincount(index, minlength=len(names))
        parts = {names[i]: np.flatnonzero(index == i) for i in np.flatnonzero(counts >= OWN_RUNS)}
        rest = np.flatnonzero(counts[index] < OWN_RUNS)
        parts |= {POOL: rest} if len(rest) else {}
        base, median = physics_of(features, seconds, quantity if self.physics else "")
        blocks, based = {}, set()
        for kind, some in parts.items():
            part, over = JobFeatures(jobs.take(some)), np.ones(len(some))
            # On one number of devices the law has nothing to say that a line does not.
            if np.isfinite(median[some]).all() and len(np.unique(part.numbers["devices"])) > 1:
                based.add(kind)
                over = median[some]
            blocks[kind] = fitted_block(
                part, seconds[some] / over, most=self.most, tuned=self.tuned
            )
        return replace(
            self, quantity=quantity, blocks=blocks, kinds=dict(zip(names, counts.tolist(), strict=True)),
            base=base if based else None, based=frozenset(based),
        )  # fmt: skip

    def predict(self, jobs: Jobs) -> Forecasts:
        """Return seconds of n jobs; memory is not answered (NaN)."""
        return distinct_forecasts(jobs, self._answers)

    def _answers(self, jobs: Jobs) -> Forecasts:
        """Return the forecasts of jobs that differ."""
        made = Forecasts.blank(len(jobs), self.name, self.quantity)
        features = JobFeatures(jobs)
        chosen, known = served(features, self.kinds, self.blocks)
        reasons = self._declined(features, chosen)
        for place, (kind, block) in enumerate(self.blocks.items()):
            rows = np.flatnonzero(is_none(reasons) & (chosen == place))
            if not len(rows):
                continue
            middle, sigma, beyond = self._block_answers(kind, JobFeatures(jobs.take(rows)))
            away = np.where(known[rows], NEAR, OTHER_SETTINGS)
            # Other settings of the same workload and device: no run says how much they change.
            wide = np.where(known[rows] | (kind == POOL), 0.0, OTHER_SETTINGS)
            made.seconds[rows] = spread(np.exp(middle), np.hypot(sigma, wide), tails=block.tails)
            made.distance[rows] = away + A_DOUBLING * beyond
        return replace(made, declined=reasons, warnings=self.warnings)

    def _block_answers(
        self, kind: Kind, features: JobFeatures
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return log median, log standard deviation of a reading, and doublings beyond, (n,) each."""
        block = self.blocks[kind]
        middle, sigma, beyond = block.answers(features)
        if self.base is None or kind not in self.based:
            return middle, sigma, beyond
        law = self.base.predict(features.over_own).seconds
        # The law was fitted to the same runs, so that its errors at others are larger than theirs:
        # no band is surer than its own, but for one that takes what differs in own columns for noise.
        if features.rows.labels.own.factors:
            return middle + np.log(law[:, 1]), sigma, beyond
        reach = np.log(law[:, 2] / law[:, 0]) / (2 * Z95 * float(np.mean(block.tails)))
        return middle + np.log(law[:, 1]), np.maximum(sigma, reach), beyond

    def log_covariance(self, jobs: Jobs) -> FloatArray:
        """Return the covariance of the errors of log seconds of single readings, (n, n); NaN if declined."""
        features = JobFeatures(jobs)
        chosen, _ = served(features, self.kinds, self.blocks)
        ready = is_none(self._declined(features, chosen))
        total = np.where(ready[:, None] & ready[None, :], 0.0, np.nan)
        for place, (kind, block) in enumerate(self.blocks.items()):
            rows = np.flatnonzero(ready & (chosen == place))
            if not len(rows):
                continue
            part = JobFeatures(jobs.take(rows))
            shared = block.covariance(part)
            _, sigma, _ = self._block_answers(kind, part)
            wider = np.maximum(sigma / np.sqrt(np.diag(shared)), 1.0)
            total[np.ix_(rows, rows)] = shared * np.outer(wider, wider)
        return total

    @property
    def warnings(self) -> tuple[str, ...]:
        """Which processes go by hyper-parameters whose search did not converge."""
        return tuple(
            f"{kind_words(kind)}: its hyper-parameters did not converge; the best found serve"
            for kind, block in self.blocks.items()
            if not block.gp.converged
        )

    @property
    def formulas(self) -> dict[str, str]:
        """What each process goes by, the features that matter most first, and the law of its mean."""
        law = {} if self.base is None else self.base.formulas
        means = dict.fromkeys(self.based, "log of the hierarchical law (the mean) + ")
        return {
            kind_words(kind): block.words(self.quantity, means.get(kind, ""))
            for kind, block in self.blocks.items()
        } | {f"{kind}, the mean": text for kind, text in law.items()}

    def _declined(self, features: JobFeatures, chosen: IntArray) -> Any:
        """Return why each job has no answer, or None, (n,)."""
        lacking = [block.design.lacking(features.numbers) for block in self.blocks.values()]
        return declined(features, chosen, self._why_none, lacking)

    def _why_none(self, kind: Kind) -> str:
        if not self.blocks:
            return (
                f"{self.name} answers from runs alone and was given none; give {needed(LEAST_RUNS)}"
            )
        return f"{self.name} has no runs of {kind_words(kind)}; give runs of it"
