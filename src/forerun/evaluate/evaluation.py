"""Evaluation: how good forecasts were, per predictor, table and group, as frozen rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from forerun.wire import clean

ENOUGH_ANSWERED = 0.9
ALL_TABLES = "all tables"
_SCORED = ("scores", "by_distance", "by_workload")


@dataclass(frozen=True)
class Score:
    """One predictor on one table (or all), on one group of its rows (or all: group "").

    Errors are in percent, over answered rows with a measured time in the predictor's quantity
    (`comparable`); `timed_rows` have a time in any. A figure that does not exist is NaN.

    Attributes:
        censored*: rows that were stopped; their times are lower bounds, and in no other figure. Of
            these, answered; with a median (short) or 95 % quantile (below) under the bound; percent
            that the median lacks: mean of the answered, median of the short.
        tau, tau_plans, tau_overall: Kendall's tau-b of seconds per sample, within workloads,
            within jobs of which several plans were measured, and over the whole table.
        coverage*: share of measured values inside the 5-95 % band, with its 95 % interval.
        width, width_mean: ratio of the 95 % to the 5 % quantile.
        floor_violations, floor_clamped, suspicious: forecasts below their physical floor (must be
            0) or raised to it, and measured values below it.
        silent: answers of NaN without a reason; must be 0.
        oom_*, refused_*: rows where the predictor states whether it fits, in tables where some ran
            out of memory; `refused` counts impossible plans and failed runs too.
        samples_*: rows that state the samples until their target, those of them answered, median error and share in the band.
        cost_*: rows whose whole run has a time and dollars, those of them answered, median error and Kendall's tau-b over the
            whole table: the forecast is the forecast time at the row's price.
        regret_*: see `scoring.Regret`.
        declined, not_comparable, quantities: rows by reason, or by the time that is judged.
    """

    predictor: str
    table: str
    group: str = ""
    rows: int = 0
    comparable: int = 0
    answered: int = 0
    timed_rows: int = 0
    censored: int = 0
    censored_below: int = 0
    censored_answered: int = 0
    censored_short: int = 0
    censored_mape: float = math.nan
    censored_short_ape: float = math.nan
    mape: float = math.nan
    median_ape: float = math.nan
    p90_ape: float = math.nan
    bias_log_ratio: float = math.nan
    tau: float = math.nan
    tau_plans: float = math.nan
    tau_overall: float = math.nan
    coverage: float = math.nan
    coverage_low: float = math.nan
    coverage_high: float = math.nan
    width: float = math.nan
    width_mean: float = math.nan
    floor_violations: int = 0
    floor_clamped: int = 0
    suspicious: int = 0
    silent: int = 0
    oom_rows: int = 0
    oom_happened: int = 0
    oom_precision: float = math.nan
    oom_recall: float = math.nan
    oom_f1: float = math.nan
    refused_rows: int = 0
    refused_f1: float = math.nan
    memory_rows: int = 0
    memory_median_ape: float = math.nan
    samples_rows: int = 0
    samples_answered: int = 0
    samples_median_ape: float = math.nan
    samples_coverage: float = math.nan
    cost_rows: int = 0
    cost_answered: int = 0
    cost_median_ape: float = math.nan
    cost_tau: float = math.nan
    regret_groups: int = 0
    regret_picked: int = 0
    regret_crashed: int = 0
    regret_median: float = math.nan
    regret_mean: float = math.nan
    regret_worst: float = math.nan
    declined: Mapping[str, int] = field(default_factory=dict)
    not_comparable: Mapping[str, int] = field(default_factory=dict)
    quantities: Mapping[str, int] = field(default_factory=dict)

    @property
    def share_answered(self) -> float:
        """Answered of the comparable rows; NaN where none is comparable."""
        return self.answered / self.comparable if self.comparable else math.nan

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
        """Return the score that `as_dict` wrote; a figure that is None or left out does not exist."""
        names = {f.name for f in fields(Score)}
        return Score(**{k: v for k, v in values.items() if k in names and v is not None})

    def as_dict(self) -> dict[str, Any]:
        """Return all figures by name, NaN as None."""
        found = clean(self)
        return {**found, "share_answered": clean(self.share_answered), "counts": self.counts}


@dataclass(frozen=True)
class Evaluation:
    """Scores of several predictors on several tables, and how they came about.

    Attributes:
        scores: of each predictor on each table, on its groups, and on all tables; then by ranges of
            distance, and by workload of the tables in which some ran out of memory.
        fitted_on, identical: further tables that were fitted, and how many rows of each were left out
            because they hold a measurement of the judged table.
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
        for name in (f.name for f in fields(Evaluation) if f.name in values):
            value = map(Score.from_dict, values[name]) if name in _SCORED else values[name]
            given[name] = value if isinstance(value, Mapping | str | int) else tuple(value)
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

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values for JSON."""
        scores = {name: [s.as_dict() for s in getattr(self, name)] for name in _SCORED}
        return {**clean(replace(self, scores=(), by_distance=(), by_workload=())), **scores}
