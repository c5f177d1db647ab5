"""RunPrices: what a short measured run of each candidate costs, in one unit for all of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forerun.arrays import FloatArray
from forerun.domain.forecast import Forecasts
from forerun.predictors.laws.law_rows import SIZES, LawRows
from forerun.tables import Jobs
from forerun.units import SECONDS_PER_HOUR, counted, format_seconds

DOLLARS, DEVICE_HOURS, SMALLEST_RUNS = "dollars", "device-hours", "smallest runs"
# A short run of slow steps has fewer of them, but enough to time.
LEAST_STEPS = 20
# A step of the middle candidate, where nobody says what any takes.
ASSUMED_SECONDS = 1.0


@dataclass(frozen=True)
class RunPrices:
    """Prices of n runs.

    Attributes:
        amount: in the unit, (n,); NaN where it is not known.
        seconds: that each takes, (n,); NaN where nobody says.
        unit: dollars; device-hours, where no candidate has a price by the hour; or smallest runs,
            where no time is known either: (s / s_min) / m, for size s on m devices (Ernest's rule).
        notes: what was assumed, in sentences.
        steps: optimizer steps of each run, (n,); NaN where it is an epoch or the whole job.
        assumed: no time is known, and prices rest on one that the notes state.
    """

    amount: FloatArray
    seconds: FloatArray
    unit: str
    notes: tuple[str, ...] = ()
    steps: FloatArray | None = None
    assumed: bool = False


def run_prices(
    jobs: Jobs,
    forecasts: Forecasts,
    run_steps: int,
    startup_seconds: float = 0.0,
    most_seconds: float = np.inf,
) -> RunPrices:
    """Return what n runs cost.

    Args:
        jobs: the candidates.
        forecasts: of them; where these are of a step, a run takes `run_steps` of it.
        run_steps: optimizer steps in a run, its warm-up among them.
        startup_seconds: what is paid for before the first step.
        most_seconds: of steps in a run, which has fewer of slow ones, `LEAST_STEPS` at least.
    """
    step = forecasts.quantity == "step"
    steps = _steps(forecasts, run_steps, most_seconds)
    seconds = forecasts.seconds[:, 1] * np.where(np.isnan(steps), 1, steps) + startup_seconds
    answered = np.isfinite(seconds)
    fewer = bool((steps < run_steps).any())
    long = (
        f"a run is {counted(run_steps, 'step')}"
        + (
            f", fewer where they are slow ({format_seconds(most_seconds)} of them, but at least {LEAST_STEPS}),"
            if fewer
            else ""
        )
        if step
        else {"epoch": "a run is one epoch", "run": "a run is the whole job"}[forecasts.quantity]
    )
    if startup_seconds:
        long += f" after {format_seconds(startup_seconds)} of starting up"
    rate = dollars_per_hour(jobs)
    if not answered.any() and np.isfinite(rate).any():
        return _assumed(jobs, forecasts.quantity, rate, run_steps, startup_seconds)
    if not answered.any():
        note = "no time is known before the first runs: a price is the work of a machine, in units of the smallest"
        return RunPrices(_relative(jobs, forecasts.quantity), seconds, SMALLEST_RUNS, (note,))
    if (answered & np.isfinite(rate)).any():
        amount = seconds / SECONDS_PER_HOUR * rate
        lacking = int((answered & ~np.isfinite(rate)).sum())
        notes = [f"{long}"]
        if lacking:
            notes.append(f"{counted(lacking, 'candidate')} without a price by the hour left out")
        return RunPrices(amount, seconds, DOLLARS, tuple(notes), steps)
    amount = seconds / SECONDS_PER_HOUR * LawRows(jobs).machines
    note = f"{long}; no candidate has a price by the hour, so that devices x time counts"
    return RunPrices(amount, seconds, DEVICE_HOURS, (note,), steps)


def _steps(forecasts: Forecasts, run_steps: int, most_seconds: float) -> FloatArray:
    """Return the steps of each run, (n,); NaN where a forecast is of no step."""
    steps = np.full(len(forecasts.seconds), float(run_steps))
    if forecasts.quantity != "step":
        return np.full(len(steps), np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        fit = np.floor(most_seconds / forecasts.seconds[:, 1])
    short = np.fmin(run_steps, np.fmax(fit, LEAST_STEPS))
    return np.asarray(np.where(np.isfinite(fit), short, steps))


def _assumed(
    jobs: Jobs, quantity: str, rate: FloatArray, run_steps: int, startup_seconds: float
) -> RunPrices:
    """Return dollars of n runs of which no time is known: steps go by the work of a device."""
    work = _relative(jobs, quantity)
    priced = work[np.isfinite(rate) & np.isfinite(work)]
    step = ASSUMED_SECONDS * work / (np.median(priced) if len(priced) else 1.0)
    seconds = step * run_steps + startup_seconds
    note = (
        f"no time is known before the first runs: that a step of the middle candidate takes"
        f" {format_seconds(ASSUMED_SECONDS)}, and others by their size per device, is assumed for"
        f" prices; a run is {counted(run_steps, 'step')} (--run-steps)"
        + (f" after {format_seconds(startup_seconds)} of starting up" if startup_seconds else "")
    )
    steps = np.full(len(jobs), float(run_steps))
    return RunPrices(seconds / SECONDS_PER_HOUR * rate, seconds, DOLLARS, (note,), steps, True)


def dollars_per_hour(jobs: Jobs) -> FloatArray:
    """Return the price of each job's cluster, (n,): as its row says, else as the catalogue does."""
    known = [np.nan if c.dollars_per_hour is None else c.dollars_per_hour for c in jobs.clusters]
    rate = np.array([*known, np.nan], dtype=np.float64)[jobs.cluster_index]
    if jobs.labels is None:
        return rate
    stated = jobs.labels.numbers("price_usd_per_hour")
    return np.where(np.isfinite(stated), stated, rate)


def _relative(jobs: Jobs, quantity: str) -> FloatArray:
    """Return the work of a machine in units of the smallest, (n,)."""
    rows = LawRows(jobs)
    size = np.full(len(jobs), np.nan)
    for name in (*SIZES[quantity], ""):
        size = np.where(np.isnan(size), rows.size(name), size)
    work = size / np.where(rows.machines > 0, rows.machines, np.nan)
    least = np.nanmin(size) if np.isfinite(size).any() else 1.0
    return np.asarray(work / least)
