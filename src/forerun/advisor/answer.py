"""Questions checked and answers given: frozen, with every assumption listed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any, TypedDict

import numpy as np

from forerun import wire
from forerun.catalog.frameworks import cannot_run, framework_note
from forerun.charts import Chart, html_table, waterfall
from forerun.contracts import Predictor
from forerun.domain.estimate import Estimate
from forerun.domain.forecast import Forecast
from forerun.domain.job import Job
from forerun.domain.objective import MARKETS, Limits, Objective, Preemption
from forerun.domain.plan import ALIASES, FIELDS, Plan, parse_plan, plan_value, unknown_field
from forerun.domain.quantiles import Z95
from forerun.domain.recommendation import chances_of, unsure_warning
from forerun.domain.workload import Length, Workload
from forerun.errors import RequestError, UnsatisfiedError, one_of
from forerun.predictors.options import known_by
from forerun.search.batches import filled_batch, usual_batch
from forerun.search.score import estimates_for, on_spot, step_seconds, steps_of, throughput
from forerun.tables import Jobs
from forerun.units import (
    chance_text,
    format_bytes,
    format_dollars,
    format_seconds,
    parse_count,
    parse_dollars,
    parse_duration,
)

ASSUMED_STEPS = 1000
_FEW_SECONDS = 200  # a bare number below it may be meant in hours or days
LARGEST_COUNT = 2**31 - 1
LONGEST = {"steps": 1e12, "samples": 1e18, "tokens": 1e18, "epochs": 1e9}


class JobRequest(TypedDict, total=False):
    """What a question may state beside its own arguments: changes of the workload, and how long the job is.

    Lengths are numbers or text such as `15T`; one of them is given, or none.
    """

    seq_len: int | None
    image_size: int | None
    precision: str | None
    framework: str | None
    optimizer: str | None
    dataset: str | None
    dataset_size: float | None
    task: str | None
    lora_rank: int | None
    lora_targets: str | None
    steps: float | str | None
    samples: float | str | None
    tokens: float | str | None
    epochs: float | str | None


def taken_apart(
    length: Length | None, request: Mapping[str, Any]
) -> tuple[Length | None, dict[str, Any]]:
    """Return how long the job is, and the changes of its workload. Raises RequestError for two lengths."""
    units = {unit: request[unit] for unit in Length.UNITS if request.get(unit) is not None}
    if len(units) + (length is not None) > 1:
        given = [*(["length"] if length is not None else []), *units]
        raise RequestError(" and ".join(given), "a job has one length", "give one of them")
    for unit, count in units.items():
        length = Length(unit, parse_count(count, unit))
    return length, {n: value for n, value in request.items() if n not in Length.UNITS}


def plan_fields(plan: str | Mapping[str, Any] | Plan | None) -> dict[str, Any]:
    """Return the plan fields that the caller fixes.

    Raises:
        RequestError: no such field, or a value of the wrong kind or out of range.
    """
    if isinstance(plan, Plan):
        return plan.as_dict()
    fields: dict[str, Any] = dict(parse_plan(plan)) if isinstance(plan, str) else {}
    for name, value in plan.items() if isinstance(plan, Mapping) else ():
        key = ALIASES.get(str(name).lower(), str(name).lower())
        if key not in FIELDS:
            raise unknown_field(str(name))
        fields[key] = plan_value(key, value)
    Plan(**fields)  # its own checks: ranges and choices
    return fields


def with_count(fields: dict[str, Any], name: str, value: float | str | None) -> dict[str, Any]:
    """Return the fields with a count that was given beside the plan. Raises RequestError."""
    if value is None:
        return fields
    asked = f"a {name.replace('_', ' ')} of {value}"
    value = parse_count(value, name) if isinstance(value, str) else value
    if not 1 <= value <= LARGEST_COUNT or int(value) != value:
        found, todo = "not a whole number above zero", f"give one from 1 to {LARGEST_COUNT:,}"
        raise RequestError(asked, found, todo)
    if fields.get(name, value) != value:
        raise RequestError(asked, f"the plan says {name}={fields[name]}", "give it once")
    return {**fields, name: int(value)}


def batch_for(
    workload: Workload, devices: int, fields: Mapping[str, Any]
) -> tuple[int, tuple[str, ...]]:
    """Return the global batch, samples in a step, and a note where it was not given."""
    if "global_batch" in fields:
        return int(fields["global_batch"]), ()
    usual, why = usual_batch(workload)
    split = math.prod(int(fields.get(name, 1)) for name in ("tp", "pp", "cp", "partitions"))
    micro = int(fields.get("micro_batch", 1))
    replicas = int(fields.get("dp", max(devices // split, 1)))
    most = workload.shape.heads * max(workload.shape.layers, 1)
    if {"tp", "pp"} <= cannot_run(workload.framework).keys() | fields.keys():
        most = 1
    # Where other degrees can take them, devices that outnumber the samples raise no batch.
    batch = filled_batch(usual, replicas * micro)
    if fields.keys() & {"dp", "micro_batch", "sync"} or usual * most < replicas:
        batch = max(batch, replicas * micro)
    if batch == usual:
        return batch, (f"global batch {batch}: {why}",)
    if usual < batch == replicas * micro:
        each = "micro_batch x data-parallel replicas" if micro > 1 else "one sample a device"
        return batch, (
            f"global batch {batch}: {each}; {usual} is {why}, and a larger batch may need more"
            " samples to the same quality",
        )  # fmt: skip
    return batch, (f"global batch {batch}: {usual} ({why}), rounded up to what all devices share",)


def checked_length(length: Length) -> Length:
    """Return a length. Raises RequestError where it is longer than any training."""
    most = LONGEST[length.unit]
    if length.count > most:
        found, advice = f"more than {most:.0e}", "give the length of one training run"
        raise RequestError(f"a job of {length.count:.4g} {length.unit}", found, advice)
    return length


def length_to_meet(
    workload: Workload, length: Length | None, asked: Limits | Objective
) -> tuple[Length, tuple[str, ...]]:
    """Return how long the job is, and a note where assumed. Raises RequestError where limits need it."""
    if length is not None:
        return checked_length(length), ()
    if workload.length is not None:
        return workload.length, ()
    limits = {"deadline": asked.deadline_seconds, "budget": asked.budget_dollars}
    if given := [name for name, limit in limits.items() if limit is not None]:
        raise RequestError(
            f"{workload.name} with a {' and a '.join(given)}",
            "it has no usual length, so that nothing says what must end by then",
            "give --steps, --samples, --tokens or --epochs (in Python: length=)",
        )
    return Length("steps", ASSUMED_STEPS, "assumed"), (
        f"{workload.name} has no usual length, so {ASSUMED_STEPS:,} steps are assumed; give"
        " --steps, --samples, --tokens or --epochs",
    )


def items_of(given: Any) -> tuple[Any, ...]:
    """Return the items of a list, of text with commas, or a lone item; none of None."""
    if isinstance(given, str):
        return tuple(filter(None, map(str.strip, given.split(","))))
    return tuple(given) if isinstance(given, Iterable) else (given,) * (given is not None)


def limits_of(deadline: str | float | None, budget: str | float | None) -> Limits:
    """Return limits from seconds or text such as `24h`, and dollars or text such as `$5,000`."""
    if isinstance(deadline, int | float) and 0 < deadline < _FEW_SECONDS:
        bare = f"{deadline:g}"
        found = f"a number is seconds, and one below {_FEW_SECONDS} may be meant in hours"
        raise RequestError(f"deadline={bare}", found, f"write '{bare}h' or '{bare}s'")
    return Limits(
        parse_duration(deadline, "deadline") if isinstance(deadline, str) else deadline,
        parse_dollars(budget) if isinstance(budget, str) else budget,
    )


Triple = tuple[float, float, float]


@dataclass(frozen=True, repr=False)
class Answer:
    """One job's time, cost and memory.

    Attributes:
        step_seconds: quantiles (p05, p50, p95) of one optimizer step.
        chosen: the plan fields that the search chose. start: see `options.known_by`.
        throughput: see `score.throughput`.
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
    throughput: Mapping[str, float] = field(default_factory=dict)

    @property
    def chance(self) -> dict[str, float]:
        """The probabilities of fitting and of keeping the limits (`recommendation.limit_chances`)."""
        return chances_of(self.estimate, self.limits)

    @property
    def dollars_per_hour(self) -> float | None:
        """The price that the answer counts with, for the whole cluster and servers' machines."""
        return self.job.dollars_per_hour(self.estimate.spot)

    def __repr__(self) -> str:
        return f"Answer({self.job}: step {format_seconds(self.step_seconds[1])}, run {self.estimate.words})"

    def _repr_html_(self) -> str:
        run = self.estimate
        rows = [
            ("step", *map(format_seconds, self.step_seconds)), ("wall", *map(format_seconds, run.wall_seconds)),
            ("cost", *map(format_dollars, run.dollars)), ("memory", *map(format_bytes, self.forecast.peak_bytes)),
        ]  # fmt: skip
        title = f"{self.job}; {chance_text('fits', run.fit_probability)}"
        return html_table(title, rows, ("", "5 %", "median", "95 %"))

    def emit(self, target: str, script: str = "") -> str:
        """Return the launch configuration of a target (`--emit`). Raises RequestError where it cannot run the plan."""
        from forerun.launch import LaunchRequest, emit

        return emit(LaunchRequest(target, self.job, self.estimate, script, "", version("forerun")))

    @property
    def charts(self) -> tuple[Chart, ...]:
        """The parts of the median step, and of the median peak of memory, one behind the other."""
        step, peak = self.forecast.parts, self.forecast.memory_parts
        scale, unit = (1e3, "milliseconds") if sum(step.values()) < 1 else (1.0, "seconds")
        charts = (waterfall("The median step", unit, step, scale),)
        memory = waterfall("The median peak of memory", "gigabytes", peak, 1e-9)
        return (*charts, memory) if peak else charts

    def plot(self, axes: Any = None) -> Any:
        """Draw the parts of the median step on matplotlib axes, and return them. Raises MissingExtraError."""
        return self.charts[0].draw(axes)

    def to_json(self) -> dict[str, Any]:
        """Return the answer in the wire's shape (plain JSON values, null for unknown)."""
        data = {
            "schema": wire.SCHEMA,
            "kind": "prediction",
            **wire.job_summary(self.job),
            "length": {
                **wire.fields_of(self.length, "unit count source"),
                "samples": self.estimate.steps * self.job.plan.step_samples,
            },
            **wire.forecast_to_wire(self.forecast),
            "fits": self.estimate.fit_probability,
            **self.start,
            "step_seconds": wire.quantiles(self.step_seconds),
            **self.throughput,
            **wire.estimate_to_wire(self.estimate),
            "prices": {
                "dollars_per_hour": self.dollars_per_hour,
                "server_machines": self.job.plan.server_machines,
                "market": "spot" if self.estimate.spot else "on-demand",
                "source": self.job.cluster.price_source,
            },
            "chance": self.chance,
            "chosen": self.chosen,
            "notes": self.notes,
            "warnings": self.warnings,
        }
        return dict(wire.clean(data))


@dataclass(frozen=True)
class WhatIf:
    """One change as predicted: medians after it, NaN where it is `refused`, not legal.

    speedup: the run's wall time before over after. beats: P(better than before), in time and in cost.
    """

    change: str
    step_seconds: float = math.nan
    run_seconds: float = math.nan
    wall_seconds: float = math.nan
    dollars: float = math.nan
    peak_bytes: float = math.nan
    fit_probability: float = math.nan
    speedup: float = math.nan
    refused: str | None = None
    chance: Mapping[str, float] = field(default_factory=dict)
    beats: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class Explanation:
    """Where the median step's seconds and the median peak's bytes go, and what would change them.

    limits: strongest first. uncertainty: (what is not known, share of the step's log variance).
    """

    answer: Answer
    parts: tuple[tuple[str, float], ...]
    memory_parts: tuple[tuple[str, float], ...]
    limits: tuple[str, ...]
    what_ifs: tuple[WhatIf, ...]
    uncertainty: tuple[tuple[str, float], ...] = ()

    def __repr__(self) -> str:
        return f"Explanation({self.answer!r}: {'; '.join(self.limits)})"

    def to_json(self) -> dict[str, Any]:
        """Return the explanation in the wire's shape."""
        data = {
            **self.answer.to_json(), "kind": "explanation", "parts": dict(self.parts),
            "memory_parts": dict(self.memory_parts), "limits": self.limits,
            "uncertainty": dict(self.uncertainty), "what_ifs": [vars(w) for w in self.what_ifs],
        }  # fmt: skip
        return dict(wire.clean(data))


@dataclass(frozen=True)
class Support:
    """What is covered for a workload; `covered`: (question, yes | partly | no, remark)."""

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


# Probabilities of fitting, below which a job is said not to fit, and probably not to.
HOPELESS, MAY_FIT = 0.05, 0.5
# An exposed part with less than this share of the step limits nothing.
_SMALL_SHARE = 0.01


def checked_market(market: str) -> str:
    """Return a market. Raises RequestError where there is no such one."""
    if market not in MARKETS:
        raise RequestError(f"prices {market!r}", "no such market", one_of(market, MARKETS))
    return market


def answer_of(
    predictor: Predictor, job: Job, length: tuple[Length, tuple[str, ...]],
    market: str = "on-demand", preemption: Preemption | None = None, chosen: tuple[str, ...] = (),
    notes: tuple[str, ...] = (), limits: Limits | None = None,
) -> Answer:  # fmt: skip
    """Return the answer for one job; `length` comes with the note on where it is from.

    Raises:
        RequestError: a length that cannot be.
        UnsatisfiedError: the predictor declines.
    """
    cluster, lost = job.cluster, preemption or Preemption()
    job.workload.steps(length[0], job.plan.global_batch)  # a wrong length is found before the work
    jobs = Jobs.of([job])
    forecasts = predictor.predict(jobs)
    forecast = forecasts[0]
    if forecast.declined is not None:
        raise UnsatisfiedError(
            f"{job.workload.name} on {cluster.name} with {job.plan}",
            f"{forecast.predictor} declines: {forecast.declined}",
            "name another predictor, or change what it cannot speak of",
        )
    spot = on_spot(jobs.clusters, market, lost)
    estimate = replace(estimates_for(jobs, forecasts, length[0], spot, lost)[0], forecast=forecast)
    remarks = [*job.workload.facts, *length[1]]
    if estimate.spot:
        remarks.append("spot prices: time and cost include expected losses and checkpoints")
    steps, unsure = steps_of(jobs, forecasts, length[0])
    if sigma := float(unsure[0]):  # the log standard deviation of the steps until the target
        low, high = steps[0] * np.exp(np.array([-1.0, 1.0]) * Z95 * sigma)
        speed = np.log(forecast.seconds[2] / forecast.seconds[0]) / (2 * Z95)
        share = sigma**2 / (sigma**2 + speed**2)
        remarks.append(
            f"the run ends at its target, after about {steps[0]:,.0f} steps (5 to 95 %: {low:,.0f} to {high:,.0f});"
            f" of the band's variance {share:.0%} is convergence and {1 - share:.0%} speed"
        )
    if forecast.parts.get("input", 0.0) > _SMALL_SHARE * forecast.seconds[1]:
        cores = cluster.vcpus_per_device
        remarks.append(f"limited by input: {cores:.3g} vCPUs a device read and decode it")
    remarks += filter(
        None, [frameworks_note(job, forecast), framework_note(job.workload.framework)]
    )
    warnings = [*job.warnings, *forecast.warnings]
    if estimate.fit_probability < MAY_FIT:
        surely = "" if estimate.fit_probability < HOPELESS else "probably "
        warnings.append(
            f"it {surely}does not fit in the {cluster.device.memory_bytes / 1e9:.0f} GB of each"
            f" {cluster.device.id} ({chance_text('fits', estimate.fit_probability)})"
        )
    bounds = limits or Limits()
    warnings += filter(
        None, [unsure_warning(cluster.device.id, forecast, chances_of(estimate, bounds))]
    )
    if cluster.dollars_per_hour is None and not estimate.spot:
        warnings.append(f"no price is known for {cluster.name}; give --price")
    low, middle, high = step_seconds(jobs, forecasts, steps)[0].tolist()
    run = (steps[0], estimate.wall_seconds[1], estimate.dollars[1])
    figures = throughput(jobs, np.array([middle]), *(np.array([value]) for value in run))
    return Answer(
        job=job, forecast=forecast, estimate=estimate, length=length[0],
        step_seconds=(low, middle, high), chosen=chosen, notes=(*remarks, *notes),
        warnings=tuple(dict.fromkeys(warnings)), limits=bounds,
        preemption=preemption, start=known_by(predictor),
        throughput={name: float(column[0]) for name, column in figures.items()},
    )  # fmt: skip


def frameworks_note(job: Job, forecast: Forecast) -> str:
    """Return what stating a framework would narrow, "" where the answer knows the framework."""
    medians = {name: s for name, s in forecast.frameworks.items() if math.isfinite(s)}
    if not medians:
        return ""
    named, shown = job.workload.framework, sorted(medians.items(), key=lambda item: -item[1])
    why = f"framework {named!r} is not known" if named else "no framework is stated"
    times = ", ".join(f"{name} {format_seconds(s)}" for name, s in shown)
    return (
        f"{why}, so the band covers the usual ones (median steps: {times});"
        " state --framework (framework= in Python) to narrow it"
    )
