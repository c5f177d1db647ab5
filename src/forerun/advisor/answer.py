"""Answers: what the advisor gives back: frozen, with everything that was assumed said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from forerun import wire
from forerun.domain.chances import chances_of
from forerun.domain.estimate import Estimate
from forerun.domain.forecast import Forecast
from forerun.domain.job import Job
from forerun.domain.objective import Limits, Preemption
from forerun.domain.workload import Length

Triple = tuple[float, float, float]


@dataclass(frozen=True)
class Answer:
    """One job's time, cost and memory.

    Attributes:
        job: what was asked, with the plan in full.
        forecast: the predictor's answer for one step.
        estimate: the whole run: seconds, dollars, kWh, kg of CO2.
        length: how long the job is, and who says so.
        step_seconds: quantiles (p05, p50, p95) of one optimizer step.
        chosen: the plan fields that the search chose, because nobody fixed them.
        limits: the deadline and the budget that were asked about.
        preemption: how spot machines were said to be lost; None for the usual way.
        notes: what was assumed. warnings: what may make the answer wrong.
        start: which constants answered, see `predictors.starts.known_by`; empty where the
            predictor does not say.
    """

    job: Job
    forecast: Forecast
    estimate: Estimate
    length: Length
    step_seconds: Triple
    chosen: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    preemption: Preemption | None = None
    start: Mapping[str, Any] = field(default_factory=dict)

    @property
    def chance(self) -> dict[str, float]:
        """The probabilities of fitting in memory and of keeping the limits (`domain.chances`)."""
        return chances_of(self.estimate, self.limits)

    @property
    def samples_per_second(self) -> float:
        """Samples of the whole cluster in a second, at the median step."""
        return self.job.plan.global_batch / self.step_seconds[1]

    @property
    def dollars_per_hour(self) -> float | None:
        """The price that the answer counts with, for the whole cluster."""
        cluster = self.job.cluster
        return cluster.spot_dollars_per_hour if self.estimate.spot else cluster.dollars_per_hour

    def to_json(self) -> dict[str, Any]:
        """Return the answer in the wire's shape (plain JSON values, null for unknown)."""
        cluster = self.job.cluster
        data = {
            "schema": wire.SCHEMA,
            "kind": "prediction",
            **wire.job_summary(self.job),
            "length": {
                "unit": self.length.unit,
                "count": self.length.count,
                "source": self.length.source,
                "samples": self.estimate.steps * self.job.plan.global_batch,
            },
            **wire.forecast_to_wire(self.forecast),
            **self.start,
            "step_seconds": wire.quantiles(self.step_seconds),
            "samples_per_second": self.samples_per_second,
            **wire.estimate_to_wire(self.estimate),
            "prices": {
                "dollars_per_hour": self.dollars_per_hour,
                "market": "spot" if self.estimate.spot else "on-demand",
                "source": cluster.price_source,
            },
            "chance": self.chance,
            "chosen": self.chosen,
            "notes": self.notes,
            "warnings": self.warnings,
        }
        return dict(wire.clean(data))


@dataclass(frozen=True)
class WhatIf:
    """One change, evaluated by the predictor.

    Attributes:
        change: what is changed, in words.
        step_seconds, run_seconds, dollars, peak_bytes: medians after the change; NaN where it is
            not legal.
        fit_probability: that it fits in memory.
        chance: as `Answer.chance`, after the change.
        beats: probability that the change is better than the present job, in time and in cost.
        speedup: the whole run's time before over after (above 1 is faster).
        refused: why the change is not legal, or None.
    """

    change: str
    step_seconds: float
    run_seconds: float
    dollars: float
    peak_bytes: float
    fit_probability: float
    speedup: float
    refused: str | None = None
    chance: Mapping[str, float] = field(default_factory=dict)
    beats: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Explanation:
    """Where the step's time and memory go, and what would change them.

    Attributes:
        answer: the prediction that is explained.
        parts: (name, seconds), largest first; they add up to the median step.
        memory_parts: (name, bytes), largest first; they add up to the median peak.
        limits: what limits the step, in words, strongest first.
        what_ifs: each change with its effect.
        uncertainty: (what is not known, share of the step's log variance), largest first; empty
            where the predictor does not say.
    """

    answer: Answer
    parts: tuple[tuple[str, float], ...]
    memory_parts: tuple[tuple[str, float], ...]
    limits: tuple[str, ...]
    what_ifs: tuple[WhatIf, ...]
    uncertainty: tuple[tuple[str, float], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the explanation in the wire's shape."""
        data = self.answer.to_json()
        data["kind"] = "explanation"
        data["parts"] = dict(self.parts)
        data["memory_parts"] = dict(self.memory_parts)
        data["limits"] = self.limits
        data["uncertainty"] = dict(self.uncertainty)
        data["what_ifs"] = [vars(w) for w in self.what_ifs]
        return dict(wire.clean(data))


@dataclass(frozen=True)
class Support:
    """What is covered for a workload, said before anything runs.

    Attributes:
        covered: (question, yes | partly | no, remark).
    """

    workload: str
    facts: tuple[tuple[str, str], ...]
    covered: tuple[tuple[str, str, str], ...]
    notes: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """Return the coverage in the wire's shape."""
        return {
            "schema": wire.SCHEMA,
            "kind": "support",
            "workload": self.workload,
            "facts": dict(self.facts),
            "covered": [
                {"question": q, "answer": a, "remark": r} for q, a, r in self.covered
            ],
            "notes": list(self.notes),
        }  # fmt: skip
