"""Gaussian: log times as Gaussian processes of what runs state, one for each kind with many runs.

A mean, and what a Matern 5/2 kernel learns of its errors (Rasmussen and Williams, Gaussian Processes
for Machine Learning, 2006). The mean of a step by all-reduce is the hierarchical law, which keeps its
shape beyond the runs; of other times it is a line in the logarithms of devices, batch and data. Runs
of one session, the same devices laid in the same way, share an error of their own.

Stopped: runs that were stopped before they ended say how long they would have taken at least.

Physics: the law whose errors a process learns, where there is one.

JobSubset: numbers and classes of jobs, or of some of them, as blocks of runs read them.

GaussianBlock: one Gaussian process of log seconds for runs that teach one another, with honest bands.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.domain.forecast import QUANTITIES, Forecasts, is_none
from forerun.domain.plan import SYNC
from forerun.domain.quantiles import Z95, normal_cdf, spread
from forerun.errors import RequestError
from forerun.predictors.laws.hierarchical import Hierarchical
from forerun.predictors.laws.law_rows import GROUP, Kind, measured
from forerun.predictors.regression.gaussian_process import GaussianProcess, fitted_gp
from forerun.predictors.regression.job_features import (
    POOL,
    RANGES,
    JobFeatures,
    distinct_jobs,
    kind_words,
    served,
)
from forerun.predictors.saved import read_saved
from forerun.tables import Jobs, Runs, Table, sorted_runs

# A feature is a mixture of others where less than this share of its variance is its own.
COLLINEAR = 1e-6
# Derived of the numbers, beside their logarithms: work that devices share, and whether a network
# lies between them.
_SHARE, _SPREAD = "1/devices", "several nodes"
DERIVED = (_SHARE, _SPREAD)
_MISSING = "no "


@dataclass(frozen=True)
class FeatureDesign:
    """Features of one block.

    Attributes:
        names: of the features: a number (its logarithm), or a derived one.
        fills: logarithm that stands where a number is not stated, for those where some runs do not
            state it either; these have a feature that says so.
        reach: least and most of each number whose range was measured.
        left_out: features left out because they are mixtures of those before them.
    """

    names: tuple[str, ...]
    fills: Mapping[str, float]
    reach: Mapping[str, tuple[float, float]]
    left_out: tuple[str, ...] = ()

    def matrix(self, numbers: Mapping[str, FloatArray]) -> FloatArray:
        """Return the features of n jobs, (n, d); NaN where a number is lacking."""
        n = len(numbers["devices"])
        columns = [self._column(name, numbers) for name in self.names]
        return np.stack(columns, axis=1) if columns else np.zeros((n, 0))

    def _column(self, name: str, numbers: Mapping[str, FloatArray]) -> FloatArray:
        if name.startswith(_MISSING):
            return np.isnan(numbers[name.removeprefix(_MISSING)]).astype(np.float64)
        values = _feature(name, numbers)
        return np.where(np.isnan(values), self.fills.get(name, np.nan), values)

    def lacking(self, numbers: Mapping[str, FloatArray]) -> Mapping[str, BoolArray]:
        """Return by number which jobs do not state it and would have to, each (n,)."""
        needed = [name for name in self.names if name in numbers and name not in self.fills]
        return {name: np.isnan(numbers[name]) for name in needed}

    def beyond(self, numbers: Mapping[str, FloatArray]) -> FloatArray:
        """Return by how many doublings jobs lie beyond the measured ranges, added up, (n,)."""
        total = np.zeros(len(numbers["devices"]))
        for name, (low, high) in self.reach.items():
            values = numbers[name]
            values = np.where(np.isnan(values), low, values)
            total += np.maximum(np.log2(values / high), 0.0)
            total += np.maximum(np.log2(low / values), 0.0)
        return total

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> FeatureDesign:
        """Return what `to_dict` wrote. Raises KeyError, TypeError or ValueError where it is not."""
        reach = {name: (float(a), float(b)) for name, (a, b) in values["reach"].items()}
        fills = {str(name): float(v) for name, v in values["fills"].items()}
        return FeatureDesign(tuple(values["names"]), fills, reach, tuple(values["left_out"]))


def designed(numbers: Mapping[str, FloatArray]) -> FeatureDesign:
    """Return the features of a block of n runs: numbers that change and are no mixture of others.

    A number that fewer than half of the runs state is left out.
    """
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
            names.append(name)
            if name == "devices":
                names.append(_SHARE)
            if name == "nodes":
                names.append(_SPREAD)
    every = FeatureDesign(tuple(names), fills, reach)
    kept, left_out = _independent(every, numbers)
    return FeatureDesign(kept, fills, reach, left_out)


def _feature(name: str, numbers: Mapping[str, FloatArray]) -> FloatArray:
    if name == _SHARE:
        return 1.0 / numbers["devices"]
    if name == _SPREAD:
        nodes = numbers["nodes"]
        return np.where(np.isnan(nodes), np.nan, (nodes > 1).astype(np.float64))
    return np.log(numbers[name])


def _independent(
    design: FeatureDesign, numbers: Mapping[str, FloatArray]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the features that are no mixture of those before them, and the others."""
    x = design.matrix(numbers)
    x = x - x.mean(axis=0) if len(x) else x
    basis = np.zeros((len(x), 0))
    kept, left_out = [], []
    for name, column in zip(design.names, x.T, strict=True):
        own = column - basis @ (basis.T @ column)
        own = own - basis @ (basis.T @ own)  # once more, against rounding
        if own @ own <= COLLINEAR * max(float(column @ column), 1e-12):
            left_out.append(name)
            continue
        kept.append(name)
        basis = np.column_stack([basis, own / np.sqrt(own @ own)])
    return tuple(kept), tuple(left_out)


# Categories by name: the distinct classes, and which of them each job is of, (n,).
Categories = Mapping[str, tuple[Sequence[str], IntArray]]

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

    Attributes:
        design: its features.
        classes: of each category by name, their numbers.
        gp: the process.
        tails: how far the 5 % and the 95 % of left-out readings lie, over what a normal
            distribution says.
        growth: log standard deviation that a doubling beyond the measured ranges adds.
        least: log standard deviation of a reading that no band is surer than.
        runs: how many taught it.
    """

    design: FeatureDesign
    classes: Mapping[str, Mapping[str, int]]
    gp: GaussianProcess
    tails: tuple[float, float]
    growth: float
    least: float
    runs: int

    def answers(
        self, numbers: Mapping[str, FloatArray], categories: Categories
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return log median, log standard deviation of a reading, and doublings beyond, (n,) each.

        Args:
            numbers: of n jobs, by name.
            categories: that the jobs are told apart by.
        """
        middle, sd = self.gp.predict(self.design.matrix(numbers), self.labels(categories))
        beyond = self.design.beyond(numbers)
        one = np.maximum(sd**2 + self.gp.noise_sd**2, self.least**2)
        return middle, np.sqrt(one + (self.growth * beyond) ** 2), beyond

    def covariance(self, numbers: Mapping[str, FloatArray], categories: Categories) -> FloatArray:
        """Return the covariance of the errors of log seconds of n jobs, (n, n)."""
        _, shared = self.gp.joint(self.design.matrix(numbers), self.labels(categories))
        beyond = self.growth * self.design.beyond(numbers)
        # What is beyond the measured is wrong alike: errors out there share their cause.
        own = np.maximum(self.gp.noise_sd**2, self.least**2 - np.diag(shared))
        result: FloatArray = shared + np.outer(beyond, beyond) + np.diag(own)
        return result

    def labels(self, categories: Categories) -> IntArray:
        """Return the number of each job's class in each category, (n, c), -1 where it is new."""
        columns = []
        for name, known in self.classes.items():
            texts, index = categories[name]
            columns.append(np.array([known.get(text, -1) for text in texts])[index])
        n = len(next(iter(categories.values()))[1])
        return np.stack(columns, axis=1) if columns else np.zeros((n, 0), dtype=np.int64)

    def words(self, quantity: str, based: bool) -> str:
        """Return what the process goes by, the features that matter most first.

        based: whether it learns the errors of the hierarchical law.
        """
        order = np.argsort(self.gp.lengths)
        names = [_term(self.design.names[i]) for i in order]
        lengths = ", ".join(
            f"{name} {self.gp.lengths[i]:.2g}" for name, i in zip(names, order, strict=True)
        )
        what = f"log seconds of {'an' if quantity == 'epoch' else 'a'} {quantity}"
        over = "the log of the hierarchical law (the mean) + " if based else ""
        text = f"{what} = {over}a level"
        if names:
            text += (
                f" + a line in {', '.join(names)} + a Matern 5/2 process of the same, their length "
                f"scales {lengths} in standard deviations of the runs (the shortest bend most)"
            )
        classes = [name for name, known in self.classes.items() if len(known) > 1]
        if classes:
            text += f" + an error of its own for each {', '.join(classes)}"
        left = self.design.left_out
        same = f"; {', '.join(left)} told nothing that others do not" if left else ""
        return (
            f"{text}; it keeps {len(self.gp.x)} points, so it is no formula to compute by hand; "
            f"log is natural, a reading is off by {100 * self.gp.noise_sd:.1f} % (one standard "
            f"deviation), bands hold 90 % (5 to 95 %) ({self.runs} runs{same})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "design": self.design.to_dict(), "classes": {name: dict(known) for name, known in self.classes.items()},
            "gp": self.gp.to_dict(), "tails": list(self.tails), "growth": self.growth,
            "least": self.least, "runs": self.runs,
        }  # fmt: skip

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> GaussianBlock:
        """Return what `to_dict` wrote. Raises KeyError, TypeError or ValueError where it is not."""
        low, high = map(float, values["tails"])
        classes = {
            str(name): {str(k): int(v) for k, v in known.items()}
            for name, known in values["classes"].items()
        }
        return GaussianBlock(
            FeatureDesign.from_dict(values["design"]), classes, GaussianProcess.from_dict(values["gp"]),
            (low, high), float(values["growth"]), float(values["least"]), int(values["runs"]),
        )  # fmt: skip


def _term(name: str) -> str:
    """Return a feature in words: numbers count by their logarithm, what was derived as it is."""
    return name if name in DERIVED or name.startswith("no ") else f"log {name}"


def fitted_block(
    numbers: Mapping[str, FloatArray],
    categories: Categories,
    seconds: FloatArray,
    *,
    starts: int = 1,
    most: int = MOST_POINTS,
    tuned: int = TUNED_POINTS,
) -> GaussianBlock:
    """Return the block of n runs.

    Args:
        numbers: of the runs, by name, each (n,).
        categories: that the runs are told apart by; the last is the session.
        seconds: positive and finite, (n,).
        starts: of the search of the hyper-parameters.
        most, tuned: points that are kept, and that the hyper-parameters are tuned on.
    """
    labels = np.stack([index for _, index in categories.values()], axis=1)
    rows = _thinned(labels[:, -1], most)
    design = designed({name: values[rows] for name, values in numbers.items()})
    x = design.matrix({name: values[rows] for name, values in numbers.items()})
    logs = np.log(seconds[rows])
    x, labels, y, point = _merged(x, labels[rows], logs)
    counts, off = np.bincount(point).astype(np.float64), logs - y[point]
    # A category of one class, or of as many as there are points, has nothing to tell apart.
    told = [c for c in range(labels.shape[1]) if 1 < len(np.unique(labels[:, c])) < len(y)]
    gp = fitted_gp(
        x, y, mean="linear", labels=labels[:, told], noise_ratio=1 / np.sqrt(counts),
        starts=starts, tuned_on=_thinned(labels[:, -1], tuned),
        within=_within(off, len(y)),
    )  # fmt: skip
    if len(y) >= _ENOUGH:
        gp = gp.doubted()
    names = list(categories)
    kept = {names[c]: _numbered(categories[names[c]][0]) for c in told}
    growth = _growth(gp, design, x)
    least = _least(gp, point)
    return GaussianBlock(
        design, kept, gp, _tails(gp, point, off, least), growth, least, len(seconds)
    )


def _numbered(texts: Sequence[str]) -> dict[str, int]:
    return {text: i for i, text in enumerate(texts)}


def _thinned(session: IntArray, most: int) -> IntArray:
    """Return positions of at most so many rows, whole sessions drawn at random, in order."""
    if len(session) <= most:
        return np.arange(len(session))
    count = int(session.max()) + 1
    turn = np.random.default_rng(0).permutation(count)[session]
    order = np.lexsort((np.random.default_rng(1).permutation(len(session)), turn))
    return np.sort(order[:most])


def _merged(
    x: FloatArray, labels: IntArray, y: FloatArray
) -> tuple[FloatArray, IntArray, FloatArray, IntArray]:
    """Return points, classes and medians of their readings, and the point of each reading."""
    both = np.concatenate([x, labels.astype(np.float64)], axis=1)
    _, first, group = np.unique(both, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)  # as they came
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    point = place[group.reshape(-1)]
    by_point = np.lexsort((y, point))
    counts = np.bincount(point)
    ends = np.cumsum(counts)
    low, high = ends - counts + (counts - 1) // 2, ends - counts + counts // 2
    middle = (y[by_point][low] + y[by_point][high]) / 2
    return x[first[order]], labels[first[order]], middle, point


def _within(off: FloatArray, points: int) -> tuple[float, float]:
    """Return degrees of freedom and sum of squares of readings about their points' medians.

    A reading far off the others counts as one at three deviations: it is of another kind.
    """
    moved = np.abs(off[off != 0])
    most = 3 * 1.4826 * float(np.median(moved)) if len(moved) else 0.0
    return float(len(off) - points), float(np.sum(np.minimum(moved, most) ** 2))


def _least(gp: GaussianProcess, point: IntArray) -> float:
    """Return the log standard deviation that the band of one reading has at least.

    Without repeats a process cannot tell noise from what a single session did: what was measured
    once is no surer than a left-out reading usually is.
    """
    n = len(gp.x)
    if len(point) > REPEATED * n or n < _ENOUGH:
        return LEAST_SIGMA
    return max(float(np.median(gp.left_out()[1])), LEAST_SIGMA)


def _tails(
    gp: GaussianProcess, point: IntArray, off: FloatArray, least: float
) -> tuple[float, float]:
    """Return how far left-out readings reach below and above, over what a normal one does.

    Readings are left out, and whole sessions where there are several: a question may be about a
    new one. The wider counts. Of few
    readings the quantile is that which holds for the next one (split conformal prediction: Vovk,
    Gammerman and Shafer 2005).

    Args:
        gp: of n points.
        point: of each of m readings, (m,).
        off: each reading less the median of its point, (m,).
        least: standard deviation that the band has at least.
    """
    n = len(gp.x)
    if n < _ENOUGH:
        return 1.5, 1.5
    level = min(0.95 * (n + 1) / n, 1.0)
    # The process says how sure it is of the middle of the readings; a question is about one.
    own = gp.unit**2 * gp.scales.noise_variance(gp.ratio)
    category = gp.labels.shape[1] - 1
    ways = [gp.left_out()] + ([gp.classes_left_out(category)] if category >= 0 else [])
    pairs = []
    for errors, sd in ways:
        one = np.sqrt(np.maximum(sd**2 - own, 0.0) + gp.noise_sd**2)
        one = np.maximum(one, least)
        z = (errors[point] + off) / one[point]
        pairs.append((-np.quantile(z, 1 - level), np.quantile(z, level)))
    # All readings had their say in the hyper-parameters: those left out look nearer than new ones.
    free = max(n - len(gp.lengths) - 3 - 2 * gp.labels.shape[1], 1)
    wider = float(np.sqrt(n / free)) * (1.0 + 1.0 / free)
    low, high = np.clip(wider * np.max(pairs, axis=0) / Z95, LEAST_TAIL, MOST_TAIL)
    return float(low), float(high)


def _growth(gp: GaussianProcess, design: FeatureDesign, x: FloatArray) -> float:
    """Return what a doubling adds: runs on more than the middle number of devices, from the rest."""
    if "devices" not in design.names or len(x) < 2 * _ENOUGH:
        return USUAL_GROWTH
    place = design.names.index("devices")
    distinct = np.unique(x[:, place])
    if len(distinct) < 3:
        return USUAL_GROWTH
    bound = distinct[(len(distinct) - 1) // 2]
    near, far = np.flatnonzero(x[:, place] <= bound), np.flatnonzero(x[:, place] > bound)
    if len(near) < _ENOUGH:
        return USUAL_GROWTH
    y = gp.values
    part = gp.given(gp.x[near], gp.labels[near], y[near], gp.ratio[near])
    given = gp.x[far] * gp.scale + gp.centre
    middle, sd = part.predict(given, gp.labels[far])
    errors = gp.middle + gp.unit * y[far] - middle
    doublings = (x[far, place] - bound) / np.log(2.0)
    left = (errors / Z95) ** 2 - sd**2 - gp.noise_sd**2
    needed = np.sqrt(np.maximum(left, 0.0)) / doublings
    return float(np.clip(np.quantile(needed, 0.9), LEAST_GROWTH, MOST_GROWTH))


@dataclass(frozen=True)
class JobSubset:
    """Numbers and classes of n jobs, or of some of them."""

    questions: JobFeatures
    some: IntArray | None = None

    def take(self, rows: IntArray) -> JobSubset:
        """Return some of the jobs."""
        return JobSubset(self.questions, rows if self.some is None else self.some[rows])

    @cached_property
    def numbers(self) -> Mapping[str, FloatArray]:
        """Positive numbers by name, each (n,), NaN where nothing says one."""
        every = self.questions.numbers
        return every if self.some is None else {k: v[self.some] for k, v in every.items()}

    @property
    def kinds(self) -> tuple[list[Kind], IntArray]:
        """Distinct kinds, and which each job is, (n,)."""
        names, index = self.questions.kinds
        return names, index if self.some is None else index[self.some]

    @cached_property
    def categories(self) -> Categories:
        """Workload, device, kind, and session within a kind."""
        names, kind = self.kinds
        texts, index = self.questions.sessions
        session = index if self.some is None else index[self.some]
        both, place = np.unique(kind * max(len(texts), 1) + session, return_inverse=True)
        pairs = [divmod(value, max(len(texts), 1)) for value in both.tolist()]
        found: dict[str, tuple[list[str], IntArray]] = {}
        for column, name in enumerate(GROUP):
            found[name] = _renumbered([k[column] for k in names], kind)
        found["kind"] = _renumbered(["|".join(k) for k in names], kind)
        words = ["|".join((*names[one], texts[other])) for one, other in pairs]
        found["session"] = _renumbered(words, place.reshape(-1).astype(np.int64))
        return found


def _renumbered(texts: list[str], index: IntArray) -> tuple[list[str], IntArray]:
    """Return the distinct texts that occur, and which each row has, (n,)."""
    used = np.unique(index)
    merged = list(dict.fromkeys(texts[i] for i in used.tolist()))
    order = {text: i for i, text in enumerate(merged)}
    place = np.full(len(texts), -1, dtype=np.int64)
    place[used] = [order[texts[i]] for i in used.tolist()]
    return merged, place[index]


# With so many readings a configuration, and no more configurations, the law follows each of them.
MANY, FOLDS = 60, 5


def physics_of(
    asked: JobFeatures, seconds: FloatArray, quantity: str
) -> tuple[Hierarchical | None, FloatArray]:
    """Return the hierarchical law of n runs, and seconds that it says of each, NaN where none.

    It speaks of steps by all-reduce; of other quantities, or too few runs, there is no law.
    """
    said = np.full(len(seconds), np.nan)
    rows = np.flatnonzero(asked.rows.sync == SYNC.index("allreduce"))
    if quantity != "step" or not len(rows):
        return None, said
    jobs = asked.jobs.take(rows)
    runs = Runs(jobs, Table({"step_time_s": seconds[rows]}, len(rows)), ordered=True)
    try:
        law = Hierarchical().fit(runs)
    except RequestError:
        return None, said  # too few of them: a line in the logs serves instead
    said[rows] = law.predict(jobs).seconds[:, 1]
    told = [asked.kinds[1], asked.sessions[1], *asked.numbers.values()]
    table = np.nan_to_num(np.stack(told, axis=1)[rows], nan=-1.0)
    of = np.unique(table, axis=0, return_inverse=True)[1].reshape(-1)
    points = int(of.max()) + 1
    if FOLDS <= points < MANY and len(rows) > REPEATED * points:
        apart = _apart(runs, of, points)
        known = np.isfinite(apart)
        said[rows[known]] = apart[known]
    return law, said


def _apart(runs: Runs, of: IntArray, points: int) -> FloatArray:
    """Return what the law says of each run without the runs of its configuration, seconds, (n,).

    A law that had repeats of a few configurations follows each of them: beside it their errors look
    as small as those of readings, which no new configuration's are.
    """
    said = np.full(len(runs), np.nan)
    part = (np.random.default_rng(0).permutation(points) % FOLDS)[of]
    for fold in range(FOLDS):
        judged = np.flatnonzero(part == fold)
        try:
            law = Hierarchical().fit(runs.take(np.flatnonzero(part != fold)))
        except RequestError:
            continue  # these keep what the law of all says
        said[judged] = law.predict(runs.jobs.take(judged)).seconds[:, 1]
    return said


# Beyond so many deviations the bound itself is what is known.
_FAR = 4.0


def stopped_seconds(runs: Runs, quantity: str) -> FloatArray:
    """Return the seconds after which runs were stopped (n,), NaN where they were not.

    Only a whole run is stopped: steps and epochs that a stopped run measured are whole.
    """
    if quantity != "run":
        return np.full(len(runs), np.nan)
    seconds = runs.measured("time_to_train_s")
    return np.where(
        (runs.status == "timeout") & (seconds > 0) & np.isfinite(seconds), seconds, np.nan
    )


def expected_seconds(foretold: FloatArray, least: FloatArray) -> FloatArray:
    """Return the log mean of times that are known to be longer than a bound, (n,).

    Tobin (1958), Estimation of relationships for limited dependent variables: of a normal value
    above a bound a deviations off its mean, the mean lies phi(a) / (1 - Phi(a)) deviations off.

    Args:
        foretold: quantiles of seconds without the bound (n, 3).
        least: the bounds, seconds, (n,).
    """
    sigma = np.log(foretold[:, 2] / foretold[:, 1]) / Z95
    off = np.log(least / foretold[:, 1]) / sigma
    near = np.clip(off, -_FAR, _FAR)
    hazard = np.exp(-0.5 * near**2) / np.sqrt(2 * np.pi) / np.maximum(1 - normal_cdf(near), 1e-7)
    beyond = np.where(off > _FAR, off, np.maximum(hazard, off))
    result: FloatArray = foretold[:, 1] * np.exp(sigma * beyond)
    return result


VERSION = 2
LEAST_RUNS = 4
# A kind with so many runs has a process of its own; the others teach one another in one process.
OWN_RUNS = 60
# Beside its own runs a job is this near; in settings without runs this much farther, and as much
# again for each doubling beyond the runs.
NEAR, OTHER_SETTINGS, A_DOUBLING = 0.1, 0.3, 0.2
ROUNDS = 2  # of what stopped runs are expected to take
_TIMES = "step_time_s, samples_per_s, epoch_time_s or time_to_train_s"
_NEEDED = f"at least {LEAST_RUNS} runs with a time"


@dataclass(frozen=True)
class Gaussian:
    """log seconds ~ level + slopes . features + Matern 5/2 process + session + noise.

    Attributes:
        quantity: what it predicts: the time that most of its runs have.
        blocks: processes by kind of job; that of the kinds with few runs under the empty kind.
        kinds: which kinds of job had runs, and how many.
        base: the law of physics whose errors the processes learn, where it speaks; None where no
            block goes by it.
        based: kinds whose block learns the errors of the base.
        physics: whether such a law is looked for.
        starts: of the search of hyper-parameters, for each process.
        most, tuned: points of a process, and points that its hyper-parameters are tuned on.
    """

    quantity: str = "step"
    blocks: Mapping[Kind, GaussianBlock] = field(default_factory=dict)
    kinds: Mapping[Kind, int] = field(default_factory=dict)
    base: Hierarchical | None = None
    based: frozenset[Kind] = frozenset()
    physics: bool = True
    starts: int = 1
    most: int = MOST_POINTS
    tuned: int = TUNED_POINTS

    name = "gaussian"

    def light(self) -> Gaussian:
        """Return one that learns from fewer points, for choosing among predictors."""
        return Gaussian(
            physics=self.physics, starts=1, most=min(self.most, 400), tuned=min(self.tuned, 150)
        )

    def fit(self, runs: Runs) -> Gaussian:
        """Return a predictor with the processes of these runs alone.

        Raises:
            RequestError: fewer than four runs have a time of one quantity and state their devices.
        """
        runs = sorted_runs(runs)
        times = {quantity: measured(runs, quantity) for quantity in QUANTITIES}
        quantity = max(QUANTITIES, key=lambda name: int(np.isfinite(times[name]).sum()))
        usable = np.isfinite(times[quantity])
        timed = int(usable.sum())
        stated = np.isfinite(JobFeatures(runs.jobs).numbers["devices"])
        rows = np.flatnonzero(usable & stated)
        if len(rows) < LEAST_RUNS:
            raise RequestError(
                f"fitting {self.name} on {len(runs)} runs",
                f"{timed} that ended have a time, and {len(rows)} of these state their devices",
                f"give {_NEEDED} ({_TIMES}) and devices",
            )  # fmt: skip
        fitted = self._fitted(JobFeatures(runs.jobs.take(rows)), times[quantity][rows], quantity)
        bounds = np.where(stated, stopped_seconds(runs, quantity), np.nan)
        seconds = np.where(usable & stated, times[quantity], np.nan)
        return self._with_stopped(fitted, runs, seconds, bounds)

    def _with_stopped(
        self, fitted: Gaussian, runs: Runs, seconds: FloatArray, bounds: FloatArray
    ) -> Gaussian:
        """Return the predictor that also learned from runs stopped after what it foretold of them.

        Such a run counts with the time that is to be expected of it, given that it was not over.
        """
        said = fitted.predict(runs.jobs).seconds
        late = np.flatnonzero(bounds > said[:, 1])
        rows = np.sort(np.concatenate([np.flatnonzero(np.isfinite(seconds)), late]))
        for _ in range(ROUNDS if len(late) else 0):
            known = seconds.copy()
            known[late] = expected_seconds(said[late], bounds[late])
            asked = JobFeatures(runs.jobs.take(rows))
            fitted = self._fitted(asked, known[rows], fitted.quantity)
            said = fitted.predict(runs.jobs).seconds
        return fitted

    def _fitted(self, asked: JobFeatures, seconds: FloatArray, quantity: str) -> Gaussian:
        names, index = asked.kinds
        counts = np.bincount(index, minlength=len(names))
        own = {name: np.flatnonzero(index == i) for i, name in enumerate(names)
               if counts[i] >= OWN_RUNS}  # fmt: skip
        rest = np.flatnonzero(counts[index] < OWN_RUNS)
        if len(rest):
            own[POOL] = rest
        asked_of = JobSubset(asked)
        base, said = physics_of(asked, seconds, quantity if self.physics else "")
        devices = asked.numbers["devices"]
        # On one number of devices the law has nothing to say that a line does not.
        based = frozenset(
            kind for kind, rows in own.items()
            if np.isfinite(said[rows]).all() and len(np.unique(devices[rows])) > 1
        )  # fmt: skip
        blocks = {}
        for kind, rows in own.items():
            part = asked_of.take(rows)
            over = said[rows] if kind in based else 1.0
            blocks[kind] = fitted_block(
                part.numbers, part.categories, seconds[rows] / over,
                starts=self.starts, most=self.most, tuned=self.tuned,
            )  # fmt: skip
        kinds = {name: int(count) for name, count in zip(names, counts, strict=True)}
        return replace(
            self, quantity=quantity, blocks=blocks, kinds=kinds, base=base if based else None,
            based=based,
        )  # fmt: skip

    def declines(self, jobs: Jobs) -> list[str | None]:
        """Return why a job has no answer: no runs of its workload and device, a number unstated."""
        return list(self.predict(jobs).declined)

    def predict(self, jobs: Jobs) -> Forecasts:
        """Return seconds of n jobs; memory is not answered (NaN)."""
        first, place = distinct_jobs(jobs)
        if len(first) == len(jobs):
            return self._answers(jobs)
        return self._answers(jobs.take(first)).take(place)

    def _answers(self, jobs: Jobs) -> Forecasts:
        """Return the forecasts of jobs that differ."""
        blank = Forecasts.blank(len(jobs), self.name, self.quantity)
        asked = JobSubset(JobFeatures(jobs))
        chosen, same = self._chosen(asked)
        declined = self._declined(asked, chosen)
        ready = is_none(declined)
        for place, (kind, block) in enumerate(self.blocks.items()):
            rows = np.flatnonzero(ready & (chosen == place))
            if not len(rows):
                continue
            part = asked.take(rows)
            middle, sigma, beyond = self._block_answers(kind, part, jobs.take(rows))
            away = np.where(same[rows], NEAR, OTHER_SETTINGS)
            # Other settings of the same workload and device: no run says how much they change.
            wide = np.where(same[rows] | (kind == POOL), 0.0, OTHER_SETTINGS)
            total = np.sqrt(sigma**2 + wide**2)
            blank.seconds[rows] = spread(np.exp(middle), total, tails=block.tails)
            blank.distance[rows] = away + A_DOUBLING * beyond
        return replace(blank, declined=declined, warnings=self.warnings)

    def _block_answers(
        self, kind: Kind, part: JobSubset, jobs: Jobs
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return log median, log standard deviation of a reading, and doublings beyond, (n,) each."""
        block = self.blocks[kind]
        middle, sigma, beyond = block.answers(part.numbers, part.categories)
        if self.base is None or kind not in self.based:
            return middle, sigma, beyond
        law = self.base.predict(jobs).seconds
        # The law was fitted to the same runs, so that its errors at others are larger than theirs:
        # no band is surer than its own.
        reach = np.log(law[:, 2] / law[:, 0]) / (2 * Z95 * float(np.mean(block.tails)))
        return middle + np.log(law[:, 1]), np.maximum(sigma, reach), beyond

    def log_covariance(self, jobs: Jobs) -> FloatArray:
        """Return the covariance of the errors of log seconds of n jobs, (n, n); NaN if declined.

        The diagonal is the variance of one reading; beside it is what the errors of two jobs share.
        """
        asked = JobSubset(JobFeatures(jobs))
        chosen, _ = self._chosen(asked)
        ready = is_none(self._declined(asked, chosen))
        total = np.where(ready[:, None] & ready[None, :], 0.0, np.nan)
        for place, (kind, block) in enumerate(self.blocks.items()):
            rows = np.flatnonzero(ready & (chosen == place))
            if not len(rows):
                continue
            part = asked.take(rows)
            shared = block.covariance(part.numbers, part.categories)
            _, sigma, _ = self._block_answers(kind, part, jobs.take(rows))
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
        base = {} if self.base is None else self.base.formulas
        return {
            kind_words(kind): block.words(self.quantity, kind in self.based)
            for kind, block in self.blocks.items()
        } | {f"{kind}, the mean": text for kind, text in base.items()}

    def _chosen(self, asked: JobSubset) -> tuple[IntArray, NDArray[np.bool_]]:
        """Return which block answers each job, -1 where none does, and whether its kind had runs."""
        return served(asked.kinds, self.kinds, self.blocks)

    def _declined(self, asked: JobSubset, chosen: IntArray) -> NDArray[np.object_]:
        """Return why each job has no answer, or None, (n,)."""
        reasons = np.full(len(chosen), None, dtype=object)
        names, index = asked.kinds
        none = np.array([self._why_none(kind) for kind in names] + [""], dtype=object)
        reasons[chosen < 0] = none[index[chosen < 0]]
        for place, block in enumerate(self.blocks.values()):
            mine = chosen == place
            for name, lacks in block.design.lacking(asked.numbers).items():
                reasons[mine & lacks] = f"the row says no {name}"
        reasons[np.isnan(asked.numbers["devices"])] = "the row says no number of devices"
        problems = asked.questions.problems
        return np.where(is_none(problems), reasons, problems)

    def _why_none(self, kind: Kind) -> str:
        workload, device = (text or "(blank)" for text in kind[: len(GROUP)])
        if not self.blocks:
            return f"{self.name} answers from runs alone and was given none; give {_NEEDED}"
        return f"{self.name} has no runs of {workload} on {device}; give runs of it"

    def to_json(self) -> str:
        """Return the processes as JSON text."""
        blocks = [{"kind": kind, **block.to_dict()} for kind, block in self.blocks.items()]
        kinds = [[*kind, count] for kind, count in self.kinds.items()]
        return json.dumps({
            "predictor": self.name, "version": VERSION, "quantity": self.quantity,
            "blocks": blocks, "kinds": kinds, "based": sorted(self.based),
            "base": None if self.base is None else self.base.to_json(), "physics": self.physics, "starts": self.starts, "most": self.most,
            "tuned": self.tuned,
        })  # fmt: skip

    @staticmethod
    def from_json(text: str) -> Gaussian:
        """Return a saved predictor.

        Raises:
            RequestError: not this predictor's JSON, or of another version.
        """

        def made(saved: Mapping[str, Any]) -> Gaussian:
            blocks = {
                tuple(entry.pop("kind")): GaussianBlock.from_dict(entry)
                for entry in saved["blocks"]
            }
            kinds = {tuple(kind): int(count) for *kind, count in saved["kinds"]}
            base = None if saved["base"] is None else Hierarchical.from_json(saved["base"])
            return Gaussian(
                str(saved["quantity"]), blocks, kinds, base,
                frozenset(tuple(kind) for kind in saved["based"]), bool(saved["physics"]),
                int(saved["starts"]), int(saved["most"]), int(saved["tuned"]),
            )  # fmt: skip

        return read_saved(text, "a gaussian model", VERSION, made)
