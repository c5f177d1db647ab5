"""RayGroup: what the Ray study's experiments taught of one group of runs, with bands about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.domain.quantiles import Z95
from forerun.predictors.regression.augment import Columns, Features
from forerun.predictors.regression.automl import run_experiments
from forerun.predictors.regression.automl_settings import Settings
from forerun.predictors.regression.experiment import Experiment, Fitted
from forerun.predictors.regression.journal import Journal
from forerun.predictors.regression.models import model_dict, model_of
from forerun.predictors.regression.questions import RANGES
from forerun.predictors.regression.tails import student95

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]

# Readings on one machine differ by 1-2 %: no band is surer than that.
LEAST_REACH = 0.02 * Z95
_MOST_LOG = 2.3
_MANY = 60  # configurations, whose quantiles need no Student's t beside them


@dataclass(frozen=True)
class RayGroup:
    """The winner of one group.

    Attributes:
        features: of the runs.
        winner: fitted on all of them.
        experiments: all, the best first.
        levels: of each text column, the classes that had runs.
        ranges: least and most of each number that the features read.
        reach: how far below and above lie 5 % and 95 % of configurations left out, logs.
        far: who answers for more devices than any run had; `far_by`: its place in `experiments`.
        growth: log standard deviation that a doubling beyond the runs adds.
        runs: how many taught it.
    """

    features: Features
    winner: Fitted
    experiments: tuple[Experiment, ...]
    levels: Mapping[str, tuple[str, ...]]
    ranges: Mapping[str, tuple[float, float]]
    reach: tuple[float, float]
    far: Fitted
    far_by: int
    growth: float
    runs: int

    @property
    def best(self) -> Experiment:
        """The experiment that was chosen."""
        return self.experiments[0]

    @property
    def unsettled(self) -> tuple[str, ...]:
        """Techniques that answer though their fit did not converge."""
        answering = {self.best.technique: self.winner}
        if self.far_by:
            answering.setdefault(self.experiments[self.far_by].technique, self.far)
        return tuple(name for name, one in answering.items() if not one.converged)

    def answers(self, columns: Columns) -> tuple[FloatArray, FloatArray]:
        """Return quantiles of seconds (n, 3) and doublings beyond the runs (n,).

        A row whose median is not above 0 has quantiles that are not either.
        """
        x = self.features.matrix(columns)
        middle = self.winner.predict(x)
        beyond = self.beyond(columns)
        out = columns.numbers["devices"] > self.ranges["devices"][1]
        if self.far_by and out.any():
            middle[out] = self.far.predict(x[out])
        far = (Z95 * self.growth * beyond) ** 2
        low, high = (np.sqrt(side**2 + far) for side in self.reach)
        seconds = np.stack([middle * np.exp(-low), middle, middle * np.exp(high)], axis=1)
        return np.where(middle[:, None] > 0, seconds, np.nan), beyond

    def beyond(self, columns: Columns) -> FloatArray:
        """Return by how many doublings rows lie beyond the runs, added up, (n,)."""
        total = np.zeros(len(columns))
        for name, (low, high) in self.ranges.items():
            if name in RANGES:
                values = columns.numbers[name]
                total += np.maximum(np.log2(values / high), 0.0)
                total += np.maximum(np.log2(low / values), 0.0)
        return total

    def lacking(self, numbers: Mapping[str, FloatArray]) -> Mapping[str, BoolArray]:
        """Return by number which jobs do not state it and would have to, each (n,)."""
        return {name: np.isnan(numbers[name]) for name in self.ranges}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "terms": [[list(factor) for factor in term] for term in self.features.terms],
            "winner": _fitted_dict(self.winner), "far": _fitted_dict(self.far),
            "far_by": self.far_by, "growth": self.growth,
            "experiments": [
                {"technique": e.technique, "parameters": dict(e.parameters),
                 "scores": {k: dict(v) for k, v in e.scores.items()}}
                for e in self.experiments
            ],
            "levels": {name: list(texts) for name, texts in self.levels.items()},
            "ranges": dict(self.ranges), "reach": list(self.reach), "runs": self.runs,
        }  # fmt: skip

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> RayGroup:
        """Return what `to_dict` wrote. Raises KeyError, TypeError or ValueError where it is not."""
        terms = tuple(
            tuple((str(how), str(name), str(text)) for how, name, text in term)
            for term in values["terms"]
        )
        experiments = tuple(
            Experiment(str(e["technique"]), e["parameters"], e["scores"])
            for e in values["experiments"]
        )
        low, high = map(float, values["reach"])
        winner, far = (_fitted_of(values[name], len(terms)) for name in ("winner", "far"))
        return RayGroup(
            Features(terms), winner, experiments,
            {name: tuple(texts) for name, texts in values["levels"].items()},
            {name: (float(a), float(b)) for name, (a, b) in values["ranges"].items()},
            (low, high), far, int(values["far_by"]), float(values["growth"]), int(values["runs"]),
        )  # fmt: skip


def fitted_group(
    columns: Columns,
    seconds: FloatArray,
    settings: Settings,
    sizes: Sequence[str],
    journal: Journal,
) -> RayGroup:
    """Return what the experiments on n runs came to. Raises as `run_experiments` does."""
    outcome = run_experiments(columns, seconds, settings, sizes, journal)
    read = {name for term in outcome.features.terms for _, name, _ in term}
    return RayGroup(
        features=outcome.features,
        winner=outcome.winner,
        experiments=outcome.experiments,
        levels={name: tuple(sorted(set(v.tolist()))) for name, v in columns.texts.items()},
        ranges={
            name: (float(v.min()), float(v.max()))
            for name, v in columns.numbers.items()
            if name in read or name in RANGES
        },
        reach=_reach(outcome.apart, seconds, columns.configurations),
        far=outcome.far,
        far_by=outcome.experiments.index(outcome.far_by),
        growth=outcome.growth,
        runs=len(seconds),
    )


def _reach(apart: FloatArray, seconds: FloatArray, of: IntArray) -> tuple[float, float]:
    """Return how far configurations that the winner had not seen lie below and above it, as logs.

    The quantiles are those that hold for the next configuration (cross-conformal prediction: Vovk
    2015). m configurations have no 95 % quantile below m = 19, and one hangs on a few of them for
    some time after: the reach is no less than that of Student's t with as many.

    Args:
        apart: what the winner said of each run without its configuration, seconds, (n,).
        seconds: what was measured, (n,).
        of: the configuration of each run, numbered from 0, (n,).
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(seconds) - np.log(np.maximum(apart, 1e-300))
    logs = np.clip(np.nan_to_num(logs, nan=_MOST_LOG), -_MOST_LOG, _MOST_LOG)
    repeats = np.bincount(of)
    m = len(repeats)
    each = 1.0 / (m * repeats[of])  # a configuration counts once, however often it was measured
    level = min(0.95 * (m + 1) / m, 1.0)
    spread = float(np.sqrt(np.sum(each * logs**2)))
    least = max(student95(m - 1) * np.sqrt(1 + 1 / m) * spread, LEAST_REACH)
    if m > _MANY:
        least = LEAST_REACH
    low, high = (_quantile(sign * logs, each, level) for sign in (-1.0, 1.0))
    return max(low, least), max(high, least)


def _quantile(values: FloatArray, weights: FloatArray, level: float) -> float:
    """Return the least value at and below which such a share of the weights lies."""
    order = np.argsort(values, kind="stable")
    place = int(np.searchsorted(np.cumsum(weights[order]), level * (1 - 1e-12)))
    return float(values[order[min(place, len(values) - 1)]])


def _fitted_dict(fitted: Fitted) -> dict[str, Any]:
    return {"model": model_dict(fitted.model), "places": list(fitted.places)}


def _fitted_of(values: Mapping[str, Any], features: int) -> Fitted:
    places = tuple(int(i) for i in values["places"])
    if places and max(places) >= features:
        raise ValueError("a place beyond the features")
    return Fitted(model_of(values["model"]), places)
