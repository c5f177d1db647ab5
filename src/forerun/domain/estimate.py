"""Estimate: a forecast turned into the whole run's hours, dollars and kilowatt-hours.

Prices and power meet the forecast here and nowhere else, so a price change refits nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from forerun.arrays import FloatArray, row, taken
from forerun.domain.forecast import Forecast
from forerun.domain.objective import Preemption
from forerun.domain.quantiles import Z95
from forerun.units import JOULES_PER_KWH, SECONDS_PER_HOUR

# A run that losses lengthen more than this does not finish in any sense that serves a person.
MOST_WALL_FACTOR = 20.0
_EXPONENT = 100.0  # far beyond any job worth running: keeps exponentials finite


@dataclass(frozen=True)
class Estimates:
    """Whole runs as columns: quantiles (n, 3), NaN where unknown; spot: on spot machines."""

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
        return Estimate(**row(self, i))

    def take(self, index: NDArray[Any]) -> Estimates:
        """Return the rows at the given positions (or where a mask is true)."""
        return taken(self, index)


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

    Infinite beyond `MOST_WALL_FACTOR`. Daly 2006, complete model: E/T = (M/c) e^(R/M) (e^((c+d)/M)
    - 1), with M the mean time between losses of any node, c the interval, d the checkpoint's time
    and R the restart's.
    """
    interval, write = preemption.checkpoint_interval_seconds, preemption.checkpoint_seconds
    rate = _losses_per_second(nodes, preemption)
    x = np.minimum(rate * (interval + write), _EXPONENT)
    y = np.minimum(rate * preemption.restart_seconds, _EXPONENT)
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.exp(y) * np.expm1(x) / (rate * interval)
    factor = np.where(rate > 0, factor, (interval + write) / interval)
    return np.where(factor > MOST_WALL_FACTOR, np.inf, factor)


def preemption_spread(nodes: ArrayLike, preemption: Preemption) -> FloatArray:
    """Return the relative variance of the wall time on spot machines, times the undisturbed seconds.

    Each segment (an interval and its checkpoint) is repeated until it passes: W = (c+d) + sum of K
    lost pieces and restarts, K geometric, so Var W = E[K] Var[Y] + Var[K] E[Y]^2 with Y a lost piece
    (an exponential cut at c+d) and its restart.
    """
    interval = preemption.checkpoint_interval_seconds
    rate = _losses_per_second(nodes, preemption)
    safe = np.where(rate > 0, rate, 1.0)
    # All moments in units of the mean time between losses.
    x = np.clip(safe * (interval + preemption.checkpoint_seconds), 1e-12, _EXPONENT)
    y = np.minimum(safe * preemption.restart_seconds, _EXPONENT)
    lost = np.expm1(x)
    piece = 1.0 - x / lost
    # The differences cancel where losses are rare; there the first terms of their series serve.
    piece_variance = np.where(x < 1e-3, x * x / 12, 1.0 - x * x * np.exp(x) / lost**2)
    restart_variance = np.where(y < 1e-3, y**3 / 3, np.expm1(2 * y) - 2 * y * np.exp(y))
    once = piece + np.expm1(y)
    variance = lost * (piece_variance + restart_variance) + lost * (1.0 + lost) * once**2
    mean = lost * np.exp(y)
    return np.where(rate > 0, variance / mean**2 * interval, 0.0)


def _losses_per_second(nodes: ArrayLike, preemption: Preemption) -> FloatArray:
    nodes = np.asarray(nodes, dtype=np.float64)
    return nodes * preemption.rate_per_node_hour / SECONDS_PER_HOUR


def estimate_runs(
    step_seconds: FloatArray,
    fit_probability: FloatArray,
    steps: ArrayLike,
    *,
    dollars_per_hour: ArrayLike,
    watts: ArrayLike,
    carbon_kg_per_kwh: ArrayLike = np.nan,
    wall_factor: ArrayLike = 1.0,
    wall_spread_seconds: ArrayLike = 0.0,
    spot: ArrayLike = False,
    length_sigma: ArrayLike = 0.0,
) -> Estimates:
    """Return whole runs from step quantiles (n, 3); other arguments are (n,) or scalars.

    length_sigma: log standard deviation of the number of steps. Energy is that of boards at their
    stated power: an upper bound for most jobs.
    """
    n = len(step_seconds)

    def column(values: ArrayLike) -> FloatArray:
        return np.broadcast_to(np.asarray(values, dtype=np.float64), (n,))

    undisturbed = step_seconds * column(steps)[:, None]
    unsure = column(length_sigma)
    if unsure.any():
        undisturbed = _spread_wider(undisturbed, undisturbed[:, 1], unsure)
    run_seconds = undisturbed * column(wall_factor)[:, None]
    scatter = column(wall_spread_seconds)
    if scatter.any():
        run_seconds = _widened(run_seconds, undisturbed, scatter)
    with np.errstate(invalid="ignore"):  # an endless run at no price
        dollars = run_seconds / SECONDS_PER_HOUR * column(dollars_per_hour)[:, None]
    energy = run_seconds * (column(watts) / JOULES_PER_KWH)[:, None]
    return Estimates(
        steps=column(steps),
        run_seconds=run_seconds,
        dollars=dollars,
        kilowatt_hours=energy,
        co2_kg=energy * column(carbon_kg_per_kwh)[:, None],
        fit_probability=fit_probability,
        spot=np.broadcast_to(np.asarray(spot, dtype=bool), (n,)),
    )


def _widened(run: FloatArray, undisturbed: FloatArray, scatter: FloatArray) -> FloatArray:
    """Return run seconds (n, 3), no less than undisturbed, whose band also holds the losses'."""
    with np.errstate(divide="ignore", invalid="ignore"):
        lost = np.sqrt(np.log1p(scatter / undisturbed[:, 1]))
    wide = _spread_wider(undisturbed, run[:, 1], lost)
    np.maximum(wide[:, 0], undisturbed[:, 0], out=wide[:, 0])
    return np.where(np.isfinite(run), wide, run)


def _spread_wider(rows: FloatArray, middle: FloatArray, sigma: FloatArray) -> FloatArray:
    """Return rows (n, 3) about a middle (n,), each half as wide as these and wider by sigma (n,)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        down = np.log(rows[:, 1] / rows[:, 0]) / Z95
        up = np.log(rows[:, 2] / rows[:, 1]) / Z95
        low = middle * np.exp(-Z95 * np.hypot(down, sigma))
        high = middle * np.exp(Z95 * np.hypot(up, sigma))
    return np.stack([low, middle, high], axis=1)


def steps_to_target(
    samples_to_target: FloatArray | None, batch: ArrayLike, otherwise: ArrayLike
) -> tuple[FloatArray, FloatArray]:
    """Return (steps, their log standard deviation), (n,) each, of runs that end at a target.

    samples_to_target: quantiles (n, 3); where it is NaN or None, `otherwise` counts.
    """
    batch = np.asarray(batch, dtype=np.float64)
    plain = np.broadcast_to(np.asarray(otherwise, dtype=np.float64), batch.shape)
    if samples_to_target is None:
        return plain, np.zeros(len(batch))
    known = np.isfinite(samples_to_target[:, 1])
    with np.errstate(divide="ignore", invalid="ignore"):
        sigma = np.log(samples_to_target[:, 2] / samples_to_target[:, 0]) / (2 * Z95)
    steps = np.where(known, np.ceil(samples_to_target[:, 1] / batch), plain)
    return steps, np.where(known, sigma, 0.0)
