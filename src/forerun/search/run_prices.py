"""RunPrices: what a short measured run of each candidate costs, in one unit for all of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.domain.forecast import Forecasts
from forerun.predictors.laws.law_rows import SIZES, LawRows
from forerun.tables import Jobs
from forerun.units import SECONDS_PER_HOUR, counted, format_seconds

FloatArray = NDArray[np.float64]

DOLLARS, DEVICE_HOURS, SMALLEST_RUNS = "dollars", "device-hours", "smallest runs"


@dataclass(frozen=True)
class RunPrices:
    """Prices of n runs.

    Attributes:
        amount: in the unit, (n,); NaN where it is not known.
        seconds: that each takes, (n,); NaN where nobody says.
        unit: dollars; device-hours, where no candidate has a price by the hour; or smallest runs,
            where no time is known either: (s / s_min) / m, for size s on m devices (Ernest's rule).
        notes: what was assumed, in sentences.
    """

    amount: FloatArray
    seconds: FloatArray
    unit: str
    notes: tuple[str, ...] = ()


def run_prices(
    jobs: Jobs, forecasts: Forecasts, run_steps: int, startup_seconds: float = 0.0
) -> RunPrices:
    """Return what n runs cost.

    Args:
        jobs: the candidates.
        forecasts: of them; where these are of a step, a run takes `run_steps` of it.
        run_steps: optimizer steps in a run, its warm-up among them.
        startup_seconds: what is paid for before the first step.
    """
    step = forecasts.quantity == "step"
    seconds = forecasts.seconds[:, 1] * (run_steps if step else 1) + startup_seconds
    answered = np.isfinite(seconds)
    long = (
        f"a run is {counted(run_steps, 'step')}"
        if step
        else {"epoch": "a run is one epoch", "run": "a run is the whole job"}[forecasts.quantity]
    )
    if startup_seconds:
        long += f" after {format_seconds(startup_seconds)} of starting up"
    if not answered.any():
        note = "no time is known before the first runs: a price is the work of a machine, in units of the smallest"
        return RunPrices(_relative(jobs, forecasts.quantity), seconds, SMALLEST_RUNS, (note,))
    rate = dollars_per_hour(jobs)
    if (answered & np.isfinite(rate)).any():
        amount = seconds / SECONDS_PER_HOUR * rate
        lacking = int((answered & ~np.isfinite(rate)).sum())
        notes = [f"{long}"]
        if lacking:
            notes.append(f"{counted(lacking, 'candidate')} without a price by the hour left out")
        return RunPrices(amount, seconds, DOLLARS, tuple(notes))
    amount = seconds / SECONDS_PER_HOUR * LawRows(jobs).machines
    note = f"{long}; no candidate has a price by the hour, so that devices x time counts"
    return RunPrices(amount, seconds, DEVICE_HOURS, (note,))


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
