"""Estimating: one job's forecast becomes the whole run's seconds, dollars and kilowatt-hours."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from forerun.advisor.answer import Answer, Triple
from forerun.advisor.measured_under import measured_under
from forerun.contracts import Predictor
from forerun.domain.estimate import (
    Estimate,
    estimate_runs,
    preemption_factor,
    preemption_spread,
    steps_to_target,
)
from forerun.domain.forecast import Forecast
from forerun.domain.job import Job
from forerun.domain.objective import MARKETS, Limits, Preemption
from forerun.domain.workload import Length
from forerun.errors import RequestError, UnsatisfiedError, one_of
from forerun.tables import Jobs
from forerun.units import chance_text, format_probability, format_seconds

_NAN3 = (float("nan"),) * 3
_OFTEN_LATE = 0.1  # chance of a second kind of run that is worth a word
# Probabilities of fitting, below which a job is said not to fit, and probably not to.
HOPELESS, MAY_FIT = 0.05, 0.5
# An exposed part with less than this share of the step limits nothing.
_SMALL_SHARE = 0.01


def forecast_of(predictor: Predictor, job: Job) -> Forecast:
    """Return the forecast of one job.

    Raises:
        UnsatisfiedError: the predictor declines it.
    """
    forecast = predictor.predict(Jobs.of([job]))[0]
    if forecast.declined is not None:
        raise UnsatisfiedError(
            f"{job.workload.name} on {job.cluster.name} with {job.plan}",
            f"{forecast.predictor} declines: {forecast.declined}",
            "name another predictor, or change what it cannot speak of",
        )
    return forecast


def step_of(forecast: Forecast, job: Job, steps: float) -> Triple:
    """Return quantiles of one step's seconds, whatever the forecast times; NaN where unknown."""
    if forecast.quantity == "step":
        return forecast.seconds
    if forecast.quantity == "run":
        count = steps
    else:
        count = job.workload.dataset_size / job.plan.global_batch
    if not count > 0:
        return _NAN3
    low, middle, high = (seconds / count for seconds in forecast.seconds)
    return (low, middle, high)


def steps_of(job: Job, length: Length) -> float:
    """Return optimizer steps, the last one counted whole; steps that are asked for stay as asked.

    Raises:
        RequestError: the workload cannot be counted in that unit.
    """
    steps = job.workload.steps(length, job.plan.global_batch)
    return steps if length.unit == "steps" else math.ceil(steps)


def run_length(forecast: Forecast, job: Job, length: Length) -> tuple[float, float]:
    """Return optimizer steps and their log standard deviation.

    Where nobody gave the length and the predictor says how many samples the target takes, the run
    is as long as that, and as uncertain. Raises as `steps_of`.
    """
    steps = steps_of(job, length)
    target = forecast.samples_to_target
    if length.source == "given" or target is None:
        return steps, 0.0
    found, sigma = steps_to_target(np.array([target]), [float(job.plan.global_batch)], steps)
    return float(found[0]), float(sigma[0])


def estimate_of(
    forecast: Forecast, job: Job, length: Length, market: str, preemption: Preemption | None = None
) -> Estimate:
    """Return the whole run at on-demand or spot prices, or at the cheaper of the two.

    Raises:
        RequestError: an unknown market, spot where the cluster has no spot price, or a length
            that this workload cannot have.
    """
    if market not in MARKETS:
        raise RequestError(f"prices {market!r}", "no such market", one_of(market, MARKETS))
    cluster = job.cluster
    steps, length_sigma = run_length(forecast, job, length)
    step = np.array([step_of(forecast, job, steps)])
    if market == "spot" and cluster.spot_dollars_per_hour is None:
        raise RequestError(
            f"spot prices of {cluster.name}", "no spot price is known",
            "use --market on-demand, or give --price",
        )  # fmt: skip

    late = forecast.late()

    def at(spot: bool) -> Estimate:
        price = cluster.spot_dollars_per_hour if spot else cluster.dollars_per_hour
        lost = preemption or Preemption()
        factor = preemption_factor(cluster.nodes, lost) if spot else 1.0
        spread = preemption_spread(cluster.nodes, lost) if spot else 0.0
        carbon = cluster.carbon_kg_per_kwh
        rows = estimate_runs(
            step, np.array([forecast.fit_probability]), steps,
            dollars_per_hour=np.nan if price is None else price, watts=cluster.watts,
            carbon_kg_per_kwh=np.nan if carbon is None else carbon, wall_factor=factor,
            wall_spread_seconds=spread, spot=spot, length_sigma=length_sigma,
            late=None if late is None else np.array([late]),
        )  # fmt: skip
        return replace(rows[0], forecast=forecast)

    if market == "on-demand" or cluster.spot_dollars_per_hour is None:
        return at(spot=False)
    if market == "spot":
        return at(spot=True)
    plain, cheap = at(spot=False), at(spot=True)
    return plain if plain.dollars[1] <= cheap.dollars[1] else cheap


def answer_of(
    predictor: Predictor,
    job: Job,
    length: tuple[Length, tuple[str, ...]],
    market: str = "on-demand",
    preemption: Preemption | None = None,
    chosen: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
    limits: Limits | None = None,
) -> Answer:
    """Return the answer for one job; `length` comes with the note on who said it.

    Raises:
        RequestError: see `estimate_of`.
        UnsatisfiedError: the predictor declines.
    """
    steps_of(job, length[0])  # a wrong length is said before the work
    forecast = forecast_of(predictor, job)
    estimate = estimate_of(forecast, job, length[0], market, preemption)
    said = list(length[1])
    if estimate.spot:
        said.append("spot prices: time and cost include expected losses and checkpoints")
    steps, unsure = run_length(forecast, job, length[0])
    if unsure:
        said.append(f"the run ends at its target, after about {steps:,.0f} steps")
    if forecast.parts.get("input", 0.0) > _SMALL_SHARE * forecast.seconds[1]:
        cores = job.cluster.vcpus_per_device
        said.append(f"limited by input: {cores:.3g} vCPUs a device read and decode it")
    under = measured_under(predictor, job, forecast)
    if under:
        said.append(under)
    warnings = list(dict.fromkeys((*job.warnings, *forecast.warnings)))
    if estimate.fit_probability < MAY_FIT:
        surely = "" if estimate.fit_probability < HOPELESS else "probably "
        warnings.append(
            f"it {surely}does not fit in the {job.cluster.device.memory_bytes / 1e9:.0f} GB of each"
            f" {job.cluster.device.id} ({chance_text('fits', estimate.fit_probability)})"
        )
    late = forecast.late()
    if late is not None and late[0] > _OFTEN_LATE:
        warnings.append(
            f"runs of this plan stall with a probability of {format_probability(late[0])}: a step then"
            f" takes {format_seconds(late[1] * forecast.seconds[1])}"
        )
    if job.cluster.dollars_per_hour is None and not estimate.spot:
        warnings.append(f"no price is known for {job.cluster.name}; give --price")
    return Answer(
        job=job, forecast=forecast, estimate=estimate, length=length[0],
        step_seconds=step_of(forecast, job, estimate.steps), chosen=chosen,
        notes=(*said, *notes), warnings=tuple(warnings), limits=limits or Limits(),
        preemption=preemption,
    )  # fmt: skip
