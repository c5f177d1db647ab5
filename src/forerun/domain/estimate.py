"""Estimate: a forecast turned into the whole run's hours, dollars and kilowatt-hours.

Prices and power meet the forecast here and nowhere else, so a price change refits nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from forerun.domain.forecast import Forecast
from forerun.domain.objective import Preemption
from forerun.units import JOULES_PER_KWH, SECONDS_PER_HOUR

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Estimates:
    """Whole runs as columns: quantiles (n, 3) of seconds, dollars and kWh; NaN where unknown.

    `spot` is true where the dollars and seconds are those of spot machines.
    """

    steps: FloatArray
    run_seconds: FloatArray
    dollars: FloatArray
    kilowatt_hours: FloatArray
    co2_kg: FloatArray
    fit_probability: FloatArray
    spot: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, i: int) -> Estimate:
        def row(values: FloatArray) -> tuple[float, float, float]:
            return (float(values[i, 0]), float(values[i, 1]), float(values[i, 2]))

        return Estimate(
            steps=float(self.steps[i]),
            run_seconds=row(self.run_seconds),
            dollars=row(self.dollars),
            kilowatt_hours=row(self.kilowatt_hours),
            co2_kg=row(self.co2_kg),
            fit_probability=float(self.fit_probability[i]),
            spot=bool(self.spot[i]),
        )

    def take(self, index: NDArray[Any]) -> Estimates:
        """Return the rows at the given positions (or where a mask is true)."""
        return Estimates(**{k: v[index] for k, v in vars(self).items()})


@dataclass(frozen=True)
class Estimate:
    """One whole run: quantiles (p05, p50, p95) of seconds, dollars, kWh and kg of CO2."""

    steps: float
    run_seconds: tuple[float, float, float]
    dollars: tuple[float, float, float]
    kilowatt_hours: tuple[float, float, float]
    co2_kg: tuple[float, float, float]
    fit_probability: float
    spot: bool = False
    forecast: Forecast | None = None


def preemption_factor(nodes: ArrayLike, preemption: Preemption) -> FloatArray:
    """Return expected wall time over undisturbed time on spot machines, shape of `nodes`.

    Any node's loss stops the job. Source: Daly 2006, "A higher order estimate of the optimum
    checkpoint interval", complete model: E/T = (M/c) e^(R/M) (e^((c+d)/M) - 1), with M the mean
    time between losses, c the interval, d the checkpoint's time and R the restart's.
    """
    nodes = np.asarray(nodes, dtype=np.float64)
    interval, write = preemption.checkpoint_interval_seconds, preemption.checkpoint_seconds
    losses_per_second = nodes * preemption.rate_per_node_hour / SECONDS_PER_HOUR
    # Capped far beyond any job worth running, so that days and dollars stay finite numbers.
    x = np.minimum(losses_per_second * (interval + write), 300.0)
    y = np.minimum(losses_per_second * preemption.restart_seconds, 100.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.exp(y) * np.expm1(x) / (losses_per_second * interval)
    return np.where(losses_per_second > 0, factor, (interval + write) / interval)


def estimate_runs(
    step_seconds: FloatArray,
    fit_probability: FloatArray,
    steps: ArrayLike,
    *,
    dollars_per_hour: ArrayLike,
    watts: ArrayLike,
    carbon_kg_per_kwh: ArrayLike = np.nan,
    wall_factor: ArrayLike = 1.0,
    spot: ArrayLike = False,
) -> Estimates:
    """Return whole runs from step quantiles (n, 3); other arguments are (n,) or scalars.

    wall_factor is `preemption_factor` for spot machines, 1 otherwise. Energy assumes boards at
    their stated power throughout: an upper bound for most jobs.
    """
    n = len(step_seconds)

    def column(values: ArrayLike) -> FloatArray:
        return np.broadcast_to(np.asarray(values, dtype=np.float64), (n,))

    run_seconds = step_seconds * (column(steps) * column(wall_factor))[:, None]
    hours = run_seconds / SECONDS_PER_HOUR
    energy = run_seconds * (column(watts) / JOULES_PER_KWH)[:, None]
    return Estimates(
        steps=column(steps),
        run_seconds=run_seconds,
        dollars=hours * column(dollars_per_hour)[:, None],
        kilowatt_hours=energy,
        co2_kg=energy * column(carbon_kg_per_kwh)[:, None],
        fit_probability=fit_probability,
        spot=np.broadcast_to(np.asarray(spot, dtype=bool), (n,)),
    )
