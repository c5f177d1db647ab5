"""RayML: the AutoML of Filippini and Ardagna's Ray study, with a model for each kind with enough runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.domain.forecast import Forecasts, is_none
from forerun.errors import RequestError
from forerun.predictors.laws.grouped import article
from forerun.predictors.laws.law_rows import GROUP, SIZES, Kind
from forerun.predictors.options import PredictorOption
from forerun.predictors.regression.augment import Columns
from forerun.predictors.regression.experiments import (
    BEYOND,
    FITS,
    SEARCHES,
    AutoMLSettings,
    RayGroup,
    run_experiments,
)
from forerun.predictors.regression.job_features import (
    POOL,
    JobFeatures,
    declined,
    distinct_forecasts,
    kind_words,
    needed,
    served,
    timed,
)
from forerun.predictors.regression.techniques import DEFAULTS, Linear, Regression, Trees
from forerun.predictors.saved import SavedPredictor
from forerun.tables import Jobs, Runs, sorted_runs

# Fewer runs leave nothing to choose by, once rows are set aside twice.
LEAST_RUNS = 8
OWN_RUNS = 24  # that give a kind a model of its own
MOST_OWN = 16  # kinds that have one, those with the most runs
MOST_CLASSES = 30  # of one-hot columns that are multiplied: more products than runs fit nothing
NEAR, A_DOUBLING = 0.1, 0.2
# What a light one tries: a model that goes on beyond the runs, and one that bends.
_LIGHT = ("Ridge", "NNLS", "DecisionTree")


@dataclass(frozen=True)
class RayML(SavedPredictor):
    """Augmented features, several techniques, the least error on rows set aside, fitted again.

    groups: by kind of job; the kinds with few runs share that under the empty kind, with one-hot columns.
    counts: which kinds had runs, and how many.
    """

    settings: AutoMLSettings = field(default_factory=AutoMLSettings)
    quantity: str = "step"
    groups: Mapping[Kind, RayGroup] = field(default_factory=dict)
    counts: Mapping[Kind, int] = field(default_factory=dict)

    name = "ray-ml"
    version = 5
    options = (
        PredictorOption("search", "defaults", "how hyper-parameters are searched", SEARCHES),
        PredictorOption(
            "beyond", "farthest", "who answers for more devices than any run had", BEYOND
        ),
        PredictorOption("techniques", tuple(DEFAULTS), "regressions that compete", tuple(DEFAULTS)),
        PredictorOption("seed", 0, "of every draw"),
    )

    @classmethod
    def with_options(cls, **options: Any) -> RayML:
        """Return a predictor with some options set. Raises RequestError for a value that is no choice."""
        return cls(AutoMLSettings(**options))

    def light(self, runs: Runs) -> Callable[[IntArray], RayML]:
        """Return what fits parts of the runs, by position: three fast techniques on simple features."""
        less = RayML(replace(self.settings, degree=1, techniques=_LIGHT, search="defaults"))
        return lambda part: less.fit(runs.take(part))

    def fit(self, runs: Runs) -> RayML:
        """Return a predictor with the winners of these runs alone.

        Raises:
            RequestError: too few runs have a time and state their devices, or nothing changes.
            MissingExtraError: scikit-learn or XGBoost is not installed.
        """
        runs = sorted_runs(runs)
        quantity, seconds = timed(self.name, runs, LEAST_RUNS)
        rows = np.flatnonzero(np.isfinite(seconds))
        seconds, features = seconds[rows], JobFeatures(runs.jobs.take(rows))
        names, index = features.kinds
        tally = np.bincount(index, minlength=len(names))
        large = [i for i in np.argsort(-tally, kind="stable") if tally[i] >= OWN_RUNS][:MOST_OWN]
        parts: dict[Kind, IntArray] = {names[i]: np.flatnonzero(index == i) for i in sorted(large)}
        parts[POOL] = np.flatnonzero(~np.isin(index, large))
        columns, groups = _columns(features), {}
        for kind, some in parts.items():
            group = self._group(columns.take(some), seconds[some], quantity)
            if group is not None:
                groups[kind] = group
        if not groups:
            raise RequestError(
                f"fitting {self.name} on {len(runs)} runs",
                f"no kind of job has {LEAST_RUNS} runs of which a number changes",
                f"give {needed(LEAST_RUNS)}",
            )
        counts = dict(zip(names, tally.tolist(), strict=True))
        return RayML(self.settings, quantity, groups, counts)

    def _group(self, columns: Columns, seconds: FloatArray, quantity: str) -> RayGroup | None:
        """Return the winner of some of the runs, None where they are too few or all alike."""
        if len(seconds) < LEAST_RUNS:
            return None
        # Columns that all rows state, and classes that differ.
        numbers = {name: v for name, v in columns.numbers.items() if np.isfinite(v).all()}
        texts = {name: v for name, v in columns.texts.items() if len(set(v.tolist())) > 1}
        if not texts and all(v.min() == v.max() for v in numbers.values()):
            return None
        settings = self.settings
        if sum(len(set(v.tolist())) for v in texts.values()) > MOST_CLASSES:
            settings = replace(settings, degree=1)
        return run_experiments(Columns(numbers, texts), seconds, settings, SIZES[quantity])

    def predict(self, jobs: Jobs) -> Forecasts:
        """Return seconds of n jobs; memory is not answered (NaN)."""
        return distinct_forecasts(jobs, self._answers)

    def _answers(self, jobs: Jobs) -> Forecasts:
        """Return the forecasts of jobs that differ."""
        made = replace(Forecasts.blank(len(jobs), self.name, self.quantity), warnings=self.warnings)
        features = JobFeatures(jobs)
        chosen, _ = served(features, self.counts, self.groups)
        columns, fits = _columns(features), list(self.groups.values())
        reasons = declined(
            features, chosen, self._why_none, [fit.lacking(features.numbers) for fit in fits]
        )
        for place, fit in enumerate(fits):
            for name, levels in fit.levels.items():
                new = (chosen == place) & ~np.isin(columns.texts[name].astype(str), list(levels))
                what = "was in these settings" if name == "settings" else f"had this {name}"
                reasons[new & is_none(reasons)] = f"no run {what}; give some"
            rows = np.flatnonzero(is_none(reasons) & (chosen == place))
            if len(rows):
                made.seconds[rows], beyond = fit.answers(columns.take(rows))
                made.distance[rows] = NEAR + A_DOUBLING * beyond
        nothing = is_none(reasons) & ~(made.seconds[:, 0] > 0)
        reasons[nothing] = "the regression of its runs gives no time above 0 here"
        made.seconds[nothing], made.distance[nothing] = np.nan, np.nan
        return replace(made, declined=reasons)

    def _why_none(self, kind: Kind) -> str:
        if not self.groups:
            return (
                f"{self.name} answers from runs alone and was given none; give {needed(LEAST_RUNS)}"
            )
        return f"{self.name} has too few runs of {kind_words(kind)}; give {needed(LEAST_RUNS)}"

    @property
    def report(self) -> list[dict[str, Any]]:
        """Every experiment: kind, technique, parameters, whether it won, and MAPE (percent), RMSE
        (seconds) and R2 on training, hp_selection and validation rows, and which share of its fits
        converged."""  # noqa: D205, D209
        return [
            {"kind": kind_words(kind), "technique": e.technique, "parameters": dict(e.parameters),
             "won": i == 0, **{f"{part}_{name}": value for part, figures in e.scores.items()
                               for name, value in figures.items()}}
            for kind, group in self.groups.items()
            for i, e in enumerate(group.experiments)
        ]  # fmt: skip

    @property
    def warnings(self) -> tuple[str, ...]:
        """Which answers are of a fit that did not converge."""
        return tuple(
            f"{kind_words(kind)}: the fit of {technique} did not converge; the best found serves"
            for kind, group in self.groups.items()
            for technique, model in group.answering.items()
            if not model.converged
        )

    @property
    def formulas(self) -> dict[str, str]:
        """What won for each kind, as a formula where it is linear, and how it did."""
        return {kind_words(kind): _words(one, self.quantity) for kind, one in self.groups.items()}


def _columns(features: JobFeatures) -> Columns:
    """Return all numbers and classes of jobs."""
    names, index = features.kinds

    def column(texts: list[str]) -> NDArray[np.object_]:
        return np.asarray(np.array([*texts, ""], dtype=object)[index])

    texts = {name: column([kind[i] for kind in names]) for i, name in enumerate(GROUP)}
    texts["settings"] = column(["|".join(filter(None, kind[len(GROUP) :])) for kind in names])
    return Columns(features.numbers, texts)


def _words(group: RayGroup, quantity: str) -> str:
    """Return what answers questions of a group: a formula where it is linear; and how it was judged."""
    best, names = group.experiments[0], group.features.names
    given = "".join(f", {name} {value}" for name, value in best.parameters.items())
    errors = ", ".join(
        f"{part.replace('_', '-')} {figures['mape']:.1f} %"
        for part, figures in best.scores.items() if part != FITS
    )  # fmt: skip
    ended = "" if group.winner.converged else "; its fit did not converge: the best found serves"
    text = f"seconds of {article(quantity)} {_formula(group.winner, names)}"
    if group.far_by:
        other, most = group.experiments[group.far_by].technique, group.ranges["devices"][1]
        text += f"; beyond {most:g} devices ({other}) {_formula(group.far, names)}"
    low, high = np.exp(group.reach)
    return (
        f"{text} ({best.technique}{given}; {group.runs} runs; MAPE {errors}; 90 % of runs (5 to 95 %)"
        f" lie between 1/{low:.2f} and {high:.2f} times it; ln is natural{ended})"
    )


def _formula(one: Regression, names: Sequence[str]) -> str:
    """Return a sum whose figures are long enough to be computed again, or what serves instead."""
    mine, model = [names[i] for i in one.places], one.model
    if isinstance(model, Linear):
        weights = one.unit * model.weights / one.scale
        intercept = one.middle + one.unit * model.intercept - float(weights @ one.centre)
        terms = [
            f" {'-' if weight < 0 else '+'} {abs(weight):.6g} x {name}"
            for weight, name in zip(weights.tolist(), mine, strict=True) if weight
        ]  # fmt: skip
        return f"= {intercept:.6g}{''.join(terms)}"
    if isinstance(model, Trees):
        splits = np.bincount(model.feature[model.left >= 0], minlength=len(mine))
        mine = [mine[i] for i in np.argsort(-splits, kind="stable")[:5] if splits[i]]
        return f"by trees ({len(model.roots)}), no formula, which split by {', '.join(mine)}"
    return f"by a network, no formula, of {', '.join(mine)}"
