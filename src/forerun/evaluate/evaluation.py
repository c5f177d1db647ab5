"""Evaluation: how good forecasts were, per predictor, table and group, as frozen rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

ENOUGH_ANSWERED = 0.9
_COUNTS = "Mapping[str, int]"  # as the fields of reasons are annotated
ALL_TABLES = "all tables"


@dataclass(frozen=True)
class Score:
    """One predictor on one table (or all), on one group of its rows (or all: group "").

    Errors are over rows that could be compared and were answered. A figure that does not exist
    (no such rows) is NaN.

    Attributes:
        rows: judged rows.
        comparable: of these, with a measured time, in the predictor's quantity, that is judged.
        answered: of the comparable, with a forecast.
        censored: judged rows that were stopped early; their times are lower bounds.
        censored_below: of these, answered with a 95 % quantile below that bound: wrong for sure.
        censored_answered: of the censored, answered in the quantity that they bound. None of them
            is among `comparable`, and none moves any other figure.
        censored_short: of these, answered with a median below the bound: an error; a median
            above the bound is right.
        censored_mape: percent that the median lacks of the bound, 0 where it is above, mean over
            `censored_answered`; censored_short_ape: the median of the same over `censored_short`.
        mape, median_ape, p90_ape: percent.
        bias_log_ratio: median of log(forecast / measured).
        tau, tau_plans, tau_overall: Kendall's tau-b of seconds per sample, within workloads,
            within jobs of which several plans were measured, and over the whole table.
        coverage, coverage_low, coverage_high: share of measured values inside the 5-95 % band,
            with its 95 % interval.
        width, width_mean: median and mean ratio of the 95 % to the 5 % quantile.
        floor_violations: forecasts below their own physical floor; must be 0.
        floor_clamped: forecasts that lay below it and were raised to it: their physics is wrong.
        suspicious: measured values below the floor: a wrong floor or a wrong row.
        silent: answers of NaN without a reason; must be 0.
        oom_rows, oom_happened, oom_precision, oom_recall, oom_f1: rows where the predictor says
            whether it fits, in tables where some ran out of memory; how many did; the detection.
            Plans that it takes to be impossible are left out.
        refused_rows, refused_f1: the same with these plans and with runs that failed: whether a
            plan runs at all.
        memory_rows, memory_median_ape: rows with measured and forecast peak; percent.
        regret_groups, regret_picked, regret_crashed, regret_median, regret_mean, regret_worst:
            see `scoring.Regret`; shares.
        declined: reason to count, over all judged rows.
        not_comparable: reason to count.
        timed_rows: judged rows with a time in any quantity, whatever the predictor answers.
        quantities: which time the errors are of (step, epoch, run), by rows that were compared.
    """

    predictor: str
    table: str
    group: str
    rows: int
    comparable: int
    answered: int
    censored: int
    censored_below: int
    mape: float
    median_ape: float
    p90_ape: float
    bias_log_ratio: float
    tau: float
    tau_plans: float
    tau_overall: float
    coverage: float
    coverage_low: float
    coverage_high: float
    width: float
    width_mean: float
    floor_violations: int
    suspicious: int
    silent: int
    oom_rows: int
    oom_happened: int
    oom_precision: float
    oom_recall: float
    oom_f1: float
    refused_rows: int
    refused_f1: float
    memory_rows: int
    memory_median_ape: float
    regret_groups: int
    regret_picked: int
    regret_crashed: int
    regret_median: float
    regret_mean: float
    regret_worst: float
    floor_clamped: int = 0
    declined: Mapping[str, int] = field(default_factory=dict)
    not_comparable: Mapping[str, int] = field(default_factory=dict)
    timed_rows: int = 0
    quantities: Mapping[str, int] = field(default_factory=dict)
    censored_answered: int = 0
    censored_short: int = 0
    censored_mape: float = float("nan")
    censored_short_ape: float = float("nan")

    @property
    def share_answered(self) -> float:
        """Answered of the comparable rows; NaN where none is comparable."""
        return self.answered / self.comparable if self.comparable else float("nan")

    @property
    def counts(self) -> bool:
        """Whether at least 90 % of the comparable rows were answered: else no figure counts."""
        return self.share_answered >= ENOUGH_ANSWERED

    @property
    def share_short(self) -> float:
        """Censored rows answered below their bound, of those answered; NaN where there are none."""
        return self.censored_short / self.censored_answered if self.censored_answered else math.nan

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Score:
        """Return the score that `as_dict` wrote; a figure that is None or left out is NaN."""
        given: dict[str, Any] = {}
        for f in fields(Score):
            value = values.get(f.name)
            if f.type == _COUNTS:
                given[f.name] = dict(value or {})
            elif value is not None or f.default is MISSING:
                given[f.name] = float("nan") if value is None else value
        return Score(**given)

    def as_dict(self) -> dict[str, Any]:
        """Return all figures by name, NaN as None."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        plain["share_answered"], plain["counts"] = self.share_answered, self.counts
        for name in ("declined", "not_comparable", "quantities"):
            plain[name] = dict(plain[name])
        return {k: None if isinstance(v, float) and v != v else v for k, v in plain.items()}


@dataclass(frozen=True)
class Evaluation:
    """Scores of several predictors on several tables, and how they came about.

    Attributes:
        scores: of each predictor on each table, on its groups, and on all tables.
        by_distance: the same by how far a question lies from what was measured; the group is a
            range of distances.
        by_workload: the same for each workload of the tables in which some ran out of memory.
        folds: by table.
        fitted_on: tables that taught besides the judged ones.
        identical: by judged table and training_rows table, the rows left out of the latter because
            they tell of a measurement that is judged.
        faster_half: columns, see `splits.slower_half`.
        start: what the predictors knew before they were fitted.
        notes: by table, what must be known of how it was divided (see `notes`).
    """

    scores: tuple[Score, ...]
    split: str
    seed: int
    predictors: tuple[str, ...]
    tables: tuple[str, ...]
    fitted_on: tuple[str, ...] = ()
    group_by: str = ""
    by_distance: tuple[Score, ...] = ()
    by_workload: tuple[Score, ...] = ()
    folds: Mapping[str, int] = field(default_factory=dict)
    faster_half: tuple[str, ...] = ()
    identical: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    start: str = ""
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Score]:
        return iter(self.scores)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Evaluation:
        """Return the evaluation that `as_dict` wrote."""
        given: dict[str, Any] = {}
        for name in ("scores", "by_distance", "by_workload"):
            given[name] = tuple(Score.from_dict(s) for s in values[name])
        for name in ("predictors", "tables", "fitted_on", "faster_half"):
            given[name] = tuple(values[name])
        for name in ("split", "seed", "group_by", "folds", "identical", "start"):
            given[name] = values[name]
        given["notes"] = values.get("notes", {})
        return Evaluation(**given)

    def of(self, predictor: str, table: str = ALL_TABLES, group: str = "") -> Score:
        """Return one score; the default is the predictor's total. Raises KeyError."""
        for score in self.scores:
            if (score.predictor, score.table, score.group) == (predictor, table, group):
                return score
        raise KeyError((predictor, table, group))

    def totals(self) -> tuple[Score, ...]:
        """Return the scores over whole tables (no groups), without the sums over all tables."""
        return tuple(s for s in self.scores if s.group == "" and s.table != ALL_TABLES)

    @property
    def answered(self) -> int:
        """Answered rows, over all predictors and tables."""
        return sum(s.answered for s in self.totals())

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values for JSON."""
        return {
            "split": self.split, "seed": self.seed, "start": self.start,
            "group_by": self.group_by, "faster_half": list(self.faster_half),
            "predictors": list(self.predictors), "tables": list(self.tables),
            "folds": dict(self.folds), "fitted_on": list(self.fitted_on),
            "identical": {k: dict(v) for k, v in self.identical.items()},
            "notes": {k: list(v) for k, v in self.notes.items()},
            "scores": [s.as_dict() for s in self.scores],
            "by_distance": [s.as_dict() for s in self.by_distance],
            "by_workload": [s.as_dict() for s in self.by_workload],
        }  # fmt: skip
