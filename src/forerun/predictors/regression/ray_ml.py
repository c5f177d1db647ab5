"""RayML: the Ray study's AutoML as a predictor: a model for each kind of job with enough runs.

Filippini and Ardagna, performance models for distributed deep-learning training jobs on Ray: they
learn from profiling runs of an application how its time follows workers, data and resources. Kinds
with few runs share one model, in which workload, device and settings are one-hot columns.

Ray words: the winner of a group of runs as a formula, or what it is where it is none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.domain.forecast import QUANTITIES, Forecasts, is_none
from forerun.errors import RequestError
from forerun.predictors.laws.grouped import article
from forerun.predictors.laws.law_rows import GROUP, SIZES, Kind, measured
from forerun.predictors.options import Option
from forerun.predictors.regression.augment import Columns, Recipe
from forerun.predictors.regression.experiments import (
    BEYOND,
    FITS,
    SEARCHES,
    SELECTIONS,
    AutoMLSettings,
    Fitted,
    Journal,
    RayGroup,
    fitted_group,
)
from forerun.predictors.regression.job_features import (
    POOL,
    JobFeatures,
    distinct_jobs,
    kind_words,
    served,
)
from forerun.predictors.regression.models import (
    DenseNetwork,
    FittedModel,
    Linear,
    Scaled,
    SupportVectors,
    Trees,
)
from forerun.predictors.regression.techniques import DEFAULTS
from forerun.predictors.saved import read_saved
from forerun.tables import Jobs, Runs, sorted_runs

_MOST = 5  # features of trees that are named


def told(group: RayGroup, quantity: str) -> str:
    """Return what answers questions of a group: a formula where it is linear; and how it was judged."""
    best = group.best
    given = ", ".join(f"{k} {v}" for k, v in best.parameters.items())
    errors = ", ".join(
        f"{part.replace('_', '-')} {figures['mape']:.1f} %"
        for part, figures in best.scores.items() if part != FITS
    )  # fmt: skip
    ended = "" if group.winner.converged else "; its fit did not converge: the best found serves"
    lead = f"seconds of {article(quantity)} "
    text = lead + _what(group.winner, group.features.names)
    if group.far_by:
        other = group.experiments[group.far_by].technique
        most = group.ranges["devices"][1]
        text += f"; beyond {most:g} devices ({other}) {_what(group.far, group.features.names)}"
    low, high = (np.exp(side) for side in group.reach)
    return (
        f"{text} ({best.technique}{f': {given}' if given else ''}; {group.runs} runs; "
        f"MAPE {errors}; 90 % of runs (5 to 95 %) lie between 1/{low:.2f} and {high:.2f} times it; "
        f"ln is natural{ended})"
    )


def _what(fitted: Fitted, names: Sequence[str]) -> str:
    mine = [names[i] for i in fitted.places]
    line = _line(fitted.model)
    if line is not None:
        return f"= {_sum(*line, mine)}"
    return f"go by {_shape(fitted.model, mine)}"


def _line(model: FittedModel) -> tuple[float, FloatArray] | None:
    """Return intercept and weights of the features as they are, None of what is not linear."""
    if isinstance(model, Linear):
        return model.intercept, model.weights
    if not isinstance(model, Scaled):
        return None
    inner = _line(model.model)
    if inner is None:
        return None
    weights = inner[1] / model.scale
    start = inner[0] - float(weights @ model.centre)
    return model.middle + model.unit * start, model.unit * weights


def _sum(intercept: float, weights: FloatArray, names: Sequence[str]) -> str:
    """Return a sum whose figures are long enough to be computed again."""
    text = f"{intercept:.6g}"
    for weight, name in zip(weights.tolist(), names, strict=True):
        if weight:
            text += f" {'-' if weight < 0 else '+'} {abs(weight):.6g} x {name}"
    return text


def _shape(model: FittedModel, names: Sequence[str]) -> str:
    if isinstance(model, Scaled):
        return _shape(model.model, names)
    if isinstance(model, Trees):
        splits = np.bincount(model.feature[model.left >= 0], minlength=len(names))
        order = [i for i in np.argsort(-splits, kind="stable")[:_MOST] if splits[i]]
        total = max(int(splits.sum()), 1)
        most = ", ".join(f"{names[i]} {100 * splits[i] / total:.0f} %" for i in order)
        many = len(model.roots)
        what = f"a table of {many} tree{'s' if many > 1 else ''}, which is no formula"
        return f"{what}; its splits are by {most or 'nothing'}"
    if isinstance(model, SupportVectors):
        runs = f"{len(model.support)} runs"
        return f"likeness to {runs} ({model.form} kernel), no formula, of {', '.join(names)}"
    if isinstance(model, DenseNetwork):
        return f"a network of {len(model.weights)} layers, no formula, of {', '.join(names)}"
    return f"a {model.kind} model of {', '.join(names)}"


VERSION = 2
# Fewer runs leave nothing to choose by, once rows are set aside twice.
LEAST_RUNS = 8
OWN_RUNS = 24  # that give a kind a model of its own
MOST_OWN = 16  # kinds that have one, those with the most runs
MOST_CLASSES = 30  # of a text column that becomes one-hot columns
NEAR, A_DOUBLING = 0.1, 0.2
_NEEDED = f"at least {LEAST_RUNS} runs with a time and devices"
# What a light one tries: a model that goes on beyond the runs, and one that bends.
_LIGHT = ("Ridge", "NNLS", "DecisionTree")


@dataclass(frozen=True)
class RayML:
    """Augmented features, several techniques, the least error on rows set aside, fitted again.

    Attributes:
        settings: what is tried, and how it is judged.
        journal: the file that keeps finished experiments, so that starting again repeats none.
        quantity: what it predicts: the time that most of its runs have.
        groups: by kind of job; that of the kinds with few runs under the empty kind.
        counts: which kinds had runs, and how many.
    """

    settings: AutoMLSettings = field(default_factory=AutoMLSettings)
    journal: Path | None = None
    quantity: str = "step"
    groups: Mapping[Kind, RayGroup] = field(default_factory=dict)
    counts: Mapping[Kind, int] = field(default_factory=dict)

    name = "ray-ml"
    options = (
        Option("search", "defaults", "how hyper-parameters are searched", SEARCHES),
        Option("beyond", "farthest", "who answers for more devices than any run had", BEYOND),
        Option("selection", "", "how features are selected; blank takes all", SELECTIONS),
        Option("techniques", tuple(DEFAULTS), "regressions that compete", tuple(DEFAULTS)),
        Option("normalise", True, "whether features and times are standardised"),
        Option("trials", 10, "of search=tpe, for each technique"),
        Option("seed", 0, "of every draw"),
    )

    @classmethod
    def with_options(cls, **options: Any) -> RayML:
        """Return a predictor with some options set. Raises RequestError for a value that is no choice."""
        return cls(AutoMLSettings(**options).checked())

    def light(self) -> RayML:
        """Return one that tries three fast techniques on simple features, to be fitted often."""
        recipe = replace(self.settings.recipe, degree=1)
        return RayML(replace(self.settings, recipe=recipe, techniques=_LIGHT, search="defaults",
                             selection=""))  # fmt: skip

    def fit(self, runs: Runs) -> RayML:
        """Return a predictor with the winners of these runs alone.

        Raises:
            RequestError: too few runs have a time and state their devices, or nothing changes.
            MissingExtraError: scikit-learn, XGBoost or Optuna is not installed.
        """
        runs = sorted_runs(runs)
        times = {quantity: measured(runs, quantity) for quantity in QUANTITIES}
        quantity = max(QUANTITIES, key=lambda name: int(np.isfinite(times[name]).sum()))
        usable = np.isfinite(times[quantity])
        timed = int(usable.sum())
        usable &= np.isfinite(JobFeatures(runs.jobs).numbers["devices"])
        rows = np.flatnonzero(usable)
        if len(rows) < LEAST_RUNS:
            raise RequestError(
                f"fitting {self.name} on {len(runs)} runs",
                f"{timed} that ended have a time, and {len(rows)} of these state their devices",
                f"give {_NEEDED}",
            )  # fmt: skip
        asked = JobFeatures(runs.jobs.take(rows))
        names, index = asked.kinds
        seconds = times[quantity][rows]
        journal = Journal(self.journal)
        groups = {}
        for kind, some in _grouped(names, index).items():
            group = self._group(asked, some, seconds[some], quantity, journal)
            if group is not None:
                groups[kind] = group
        if not groups:
            raise RequestError(
                f"fitting {self.name} on {len(runs)} runs",
                f"no kind of job has {LEAST_RUNS} runs of which a number changes", f"give {_NEEDED}",
            )  # fmt: skip
        tally = np.bincount(index, minlength=len(names))
        counts = {name: int(count) for name, count in zip(names, tally, strict=True)}
        return RayML(self.settings, self.journal, quantity, groups, counts)

    def _group(
        self,
        asked: JobFeatures,
        rows: IntArray,
        seconds: FloatArray,
        quantity: str,
        journal: Journal,
    ) -> RayGroup | None:
        """Return the winner of some of the runs, None where they are too few or all alike."""
        if len(rows) < LEAST_RUNS:
            return None
        columns = _told(_columns(asked).take(rows))
        changes = any(v.min() < v.max() for v in columns.numbers.values())
        if not changes and not columns.texts:
            return None
        settings = self.settings
        if len(columns.texts):
            # Products of many classes are more features than runs.
            settings = replace(settings, recipe=_smaller(settings.recipe, columns))
        return fitted_group(columns, seconds, settings, SIZES[quantity], journal)

    def declines(self, jobs: Jobs) -> list[str | None]:
        """Return why a job has no answer: no runs like it, a number unstated, or no time above 0."""
        return list(self.predict(jobs).declined)

    def predict(self, jobs: Jobs) -> Forecasts:
        """Return seconds of n jobs; memory is not answered (NaN)."""
        first, place = distinct_jobs(jobs)
        if len(first) == len(jobs):
            return self._answers(jobs)
        return self._answers(jobs.take(first)).take(place)

    def _answers(self, jobs: Jobs) -> Forecasts:
        """Return the forecasts of jobs that differ."""
        blank = replace(
            Forecasts.blank(len(jobs), self.name, self.quantity), warnings=self.warnings
        )
        asked = JobFeatures(jobs)
        chosen = self._chosen(asked)
        declined = self._declined(asked, chosen)
        columns = _columns(asked)
        for number, group in enumerate(self.groups.values()):
            rows = np.flatnonzero(is_none(declined) & (chosen == number))
            if not len(rows):
                continue
            blank.seconds[rows], beyond = group.answers(columns.take(rows))
            blank.distance[rows] = NEAR + A_DOUBLING * beyond
        nothing = is_none(declined) & ~(blank.seconds[:, 0] > 0)
        declined[nothing] = "the regression of its runs gives no time above 0 here"
        blank.seconds[nothing], blank.distance[nothing] = np.nan, np.nan
        return replace(blank, declined=declined)

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
            for technique in group.unsettled
        )

    @property
    def formulas(self) -> dict[str, str]:
        """What won for each kind, as a formula where it is linear, and how it did."""
        return {kind_words(kind): told(group, self.quantity) for kind, group in self.groups.items()}

    def _chosen(self, asked: JobFeatures) -> IntArray:
        """Return which group answers each job, (n,), -1 where none does."""
        return served(asked.kinds, self.counts, self.groups)[0]

    def _declined(self, asked: JobFeatures, chosen: IntArray) -> NDArray[np.object_]:
        """Return why each job has no answer, or None, (n,)."""
        reasons = np.full(len(chosen), None, dtype=object)
        names, index = asked.kinds
        none = np.array([self._why_none(kind) for kind in names] + [""], dtype=object)
        reasons[chosen < 0] = none[index[chosen < 0]]
        texts = _columns(asked).texts
        for number, group in enumerate(self.groups.values()):
            mine = chosen == number
            for name, levels in group.levels.items():
                new = mine & ~np.isin(texts[name].astype(str), list(levels))
                what = "was in these settings" if name == "settings" else f"had this {name}"
                reasons[new] = f"no run {what}; give some"
            for name, lacks in group.lacking(asked.numbers).items():
                reasons[mine & lacks] = f"the row says no {name}"
        reasons[np.isnan(asked.numbers["devices"])] = "the row says no number of devices"
        problems = asked.problems
        return np.where(is_none(problems), reasons, problems)

    def _why_none(self, kind: Kind) -> str:
        workload, device = (text or "(blank)" for text in kind[: len(GROUP)])
        if not self.groups:
            return f"{self.name} answers from runs alone and was given none; give {_NEEDED}"
        return f"{self.name} has too few runs of {workload} on {device}; give {_NEEDED}"

    def to_json(self) -> str:
        """Return the winners as JSON text: numbers and names, nothing that is executed."""
        groups = [{"kind": kind, **group.to_dict()} for kind, group in self.groups.items()]
        counts = [[*kind, count] for kind, count in self.counts.items()]
        return json.dumps({
            "predictor": self.name, "version": VERSION, "quantity": self.quantity,
            "settings": self.settings.to_dict(), "groups": groups, "counts": counts,
        })  # fmt: skip

    @staticmethod
    def from_json(text: str) -> RayML:
        """Return a saved predictor; it answers without scikit-learn and XGBoost.

        Fitted again it tries what it tried before; the journal, a file of one machine, is not kept.

        Raises:
            RequestError: not this predictor's JSON, or of another version.
        """

        def made(saved: Mapping[str, Any]) -> RayML:
            groups = {tuple(entry["kind"]): RayGroup.from_dict(entry) for entry in saved["groups"]}
            counts = {tuple(kind): int(count) for *kind, count in saved["counts"]}
            # Files of before settings were kept are of what was usual, as far as they say.
            settings = AutoMLSettings.from_dict(saved.get("settings", {}))
            return RayML(settings, None, str(saved["quantity"]), groups, counts)

        return read_saved(text, "a ray-ml model", VERSION, made)


def _columns(asked: JobFeatures) -> Columns:
    """Return all numbers and classes of jobs."""
    names, index = asked.kinds
    texts = {name: np.array([k[i] for k in names] + [""], dtype=object)[index]
             for i, name in enumerate(GROUP)}  # fmt: skip
    rest = ["|".join(text for text in k[len(GROUP) :] if text) for k in names]
    texts["settings"] = np.array([*rest, ""], dtype=object)[index]
    return Columns(asked.numbers, texts)


def _told(columns: Columns) -> Columns:
    """Return the columns that all rows state, and the classes that differ."""
    numbers = {name: v for name, v in columns.numbers.items() if np.isfinite(v).all()}
    texts = {name: v for name, v in columns.texts.items() if len(set(v.tolist())) > 1}
    return Columns(numbers, texts)


def _smaller(recipe: Recipe, columns: Columns) -> Recipe:
    """Return the recipe without products where its classes are many."""
    classes = sum(len(set(v.tolist())) for v in columns.texts.values())
    return replace(recipe, degree=1) if classes > MOST_CLASSES else recipe


def _grouped(names: list[Kind], index: IntArray) -> dict[Kind, IntArray]:
    """Return the rows of the kinds that have many, and of all others together."""
    counts = np.bincount(index, minlength=len(names))
    large = [i for i in np.argsort(-counts, kind="stable") if counts[i] >= OWN_RUNS][:MOST_OWN]
    found = {names[i]: np.flatnonzero(index == i) for i in sorted(large)}
    rest = np.flatnonzero(~np.isin(index, large))
    return {**found, POOL: rest} if len(rest) else found
