"""Block: one Gaussian process of log seconds for runs that teach one another, with honest bands.

Design: which numbers of a block of runs become features, and how questions are told in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.domain.quantiles import Z95
from forerun.predictors.regression.matern import GaussianProcess, fitted_gp
from forerun.predictors.regression.questions import RANGES

# A feature is a mixture of others where less than this share of its variance is its own.
COLLINEAR = 1e-6
# Derived of the numbers, beside their logarithms: work that devices share, and whether a network
# lies between them.
_SHARE, _SPREAD = "1/devices", "several nodes"
DERIVED = (_SHARE, _SPREAD)
_MISSING = "no "


@dataclass(frozen=True)
class Design:
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
    def from_dict(values: Mapping[str, Any]) -> Design:
        """Return what `to_dict` wrote. Raises KeyError, TypeError or ValueError where it is not."""
        reach = {name: (float(a), float(b)) for name, (a, b) in values["reach"].items()}
        fills = {str(name): float(v) for name, v in values["fills"].items()}
        return Design(tuple(values["names"]), fills, reach, tuple(values["left_out"]))


def designed(numbers: Mapping[str, FloatArray]) -> Design:
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
    every = Design(tuple(names), fills, reach)
    kept, left_out = _independent(every, numbers)
    return Design(kept, fills, reach, left_out)


def _feature(name: str, numbers: Mapping[str, FloatArray]) -> FloatArray:
    if name == _SHARE:
        return 1.0 / numbers["devices"]
    if name == _SPREAD:
        nodes = numbers["nodes"]
        return np.where(np.isnan(nodes), np.nan, (nodes > 1).astype(np.float64))
    return np.log(numbers[name])


def _independent(
    design: Design, numbers: Mapping[str, FloatArray]
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
class Block:
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

    design: Design
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
    def from_dict(values: Mapping[str, Any]) -> Block:
        """Return what `to_dict` wrote. Raises KeyError, TypeError or ValueError where it is not."""
        low, high = map(float, values["tails"])
        classes = {
            str(name): {str(k): int(v) for k, v in known.items()}
            for name, known in values["classes"].items()
        }
        return Block(
            Design.from_dict(values["design"]), classes, GaussianProcess.from_dict(values["gp"]),
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
) -> Block:
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
    return Block(design, kept, gp, _tails(gp, point, off, least), growth, least, len(seconds))


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


def _growth(gp: GaussianProcess, design: Design, x: FloatArray) -> float:
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
