"""Estimate: a forecast turned into the whole run's hours, dollars and kilowatt-hours.

Prices and power meet the forecast here and nowhere else, so a price change refits nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from forerun.arrays import BoolArray, ColumnRows, FloatArray, row
from forerun.domain.forecast import Forecast
from forerun.domain.hardware import Cluster
from forerun.domain.objective import Preemption
from forerun.domain.quantiles import Z95
from forerun.units import (
    JOULES_PER_KWH,
    SECONDS_PER_DAY,
    SECONDS_PER_HOUR,
    chance_text,
    format_dollars,
    format_seconds,
)

# A run that losses lengthen more than this does not finish in any sense that serves a person.
MOST_WALL_FACTOR = 20.0
_EXPONENT = 100.0  # far beyond any job worth running: keeps exponentials finite

# Published interruptions by failures: (how many, on nodes of eight GPUs, in days).
INTERRUPTIONS: Mapping[str, tuple[float, float, float]] = {
    "Llama 3 405B, 16,384 H100 (Grattafiori et al. 2024, section 3.3.4)": (419, 2048, 54),
    "OPT-175B, 992 A100: 35 restarts by hand and 70 automatic (Zhang et al. 2022, section 2.5)":
        (105, 124, 60),
    "BLOOM, 384 A100: one or two a week (Le Scao et al. 2022, section 3.2.4)": (1.5, 48, 7),
    "Meta's RSC-1, 6.50 a 1,000 node-days (Kokolis et al. 2024)": (6.50, 1000, 1),
    "Meta's RSC-2, 2.34 a 1,000 node-days (the same)": (2.34, 1000, 1),
}  # fmt: skip


def _next_sigma(logs: FloatArray) -> float:
    """Return the sigma of a normal whose 90 % band is Student's for a further value (Abramowitz and Stegun 26.7.5)."""
    free, z = len(logs) - 1, Z95
    t = z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    return float(logs.std(ddof=1) * np.sqrt(1 + 1 / len(logs)) * t / z)


_LOG_RATES = np.log([count / (8 * nodes * days) for count, nodes, days in INTERRUPTIONS.values()])
FAILURES_PER_DEVICE_DAY = float(np.exp(_LOG_RATES.mean()))
# By how much another place's rate may differ, as a log standard deviation; so may the time lost to failures.
FAILURE_SIGMA = _next_sigma(_LOG_RATES)
# Training waits some seconds for a checkpoint to leave the devices (MegaScale, Jiang et al. 2024,
# section 4.4), and starts again within minutes (five in Kokolis et al. 2024).
CHECKPOINT_SECONDS, RESTART_SECONDS = 10.0, 300.0
_LEAST_BETWEEN = RESTART_SECONDS / 50  # of seconds between failures: no run ends long before
# Seconds until a machine that was asked for answers (Mao and Humphrey 2012, average start-up times; written
# from memory, unverified). A job then starts as it restarts.
BOOTS: Mapping[str, float] = {
    "EC2, Linux": 96.9, "Rackspace, Linux": 44.2, "Azure, worker role": 406.2,
}  # fmt: skip
_LOG_STARTS = np.log([boot + RESTART_SECONDS for boot in BOOTS.values()])
START_SECONDS, START_SIGMA = float(np.exp(_LOG_STARTS.mean())), _next_sigma(_LOG_STARTS)
# Joining 2,048 GPUs took 361 s with an asynchronous store, as PyTorch has today (MegaScale, Jiang et al.
# 2024, section 3.5).
START_SECONDS_PER_NODE = 361.0 / 256
# Share of the steps' time. A forward pass is a third of a step: 1.3 % for ImageNet's 50,000 images after
# each epoch, 3.3 and 0.3 % for the defaults of Megatron-LM and GPT-NeoX. Not within the first hour.
EVALUATION_SHARE, FIRST_EVALUATION_SECONDS = 0.01, 3600.0
# In device-seconds; the least of `REPORTED_WALLS` took seven times as many.
_SMALL_JOB = 1000.0 * SECONDS_PER_DAY
# Reports that state both: wall time over that of all tokens at the rate of steps, and devices. It holds
# phases of smaller batches and shorter sequences, slow nodes, waits and repeated steps; hardware FLOPs
# count where a rate may include what is recomputed.
REPORTED_WALLS: Mapping[str, tuple[float, int]] = {
    "Nemotron-4 15B: 13 days, 0.64 s a step (Parmar et al. 2024, table 2)": (1.04, 2304),
    "BLOOM: 118 days, 150 TFLOP/s (Le Scao et al. 2022; Luccioni et al. 2022)": (1.11, 384),
    "Llama 3.1 405B: 30.84 M hours, 400 TFLOP/s (Grattafiori et al. 2024)": (1.17, 16384),
    "GLM-130B: 60 days, 32.5 % MFU (Zeng et al. 2022)": (1.29, 768),
    "PaLM 540B: 8.4 M hours, 46.2 % MFU (Chowdhery et al. 2022)": (1.52, 6144),
    "GPT-NeoX-20B: 1,830 hours, 117 TFLOP/s (Black et al. 2022)": (0.96, 96),
    "OPT-175B: 809,472 hours, 147 TFLOP/s (Zhang et al. 2022)": (1.02, 992),
}  # fmt: skip


@dataclass(frozen=True)
class Estimates(ColumnRows):
    """Whole runs as columns: quantiles (n, 3), NaN where unknown; spot: on spot machines.

    run_seconds: of the steps alone; wall_seconds: with lost time and start-up. Dollars are of the wall, or of
    the least that is billed; energy is of the wall behind the start-up. start_seconds: of the median wall, (n,).
    """

    steps: FloatArray
    run_seconds: FloatArray
    wall_seconds: FloatArray
    dollars: FloatArray
    kilowatt_hours: FloatArray
    co2_kg: FloatArray
    fit_probability: FloatArray
    spot: NDArray[np.bool_]
    start_seconds: FloatArray

    def __getitem__(self, i: int) -> Estimate:
        return Estimate(**row(self, i))

    @property
    def scattered_seconds(self) -> FloatArray:
        """Quantiles (n, 3) that hold the errors of each run's own: spot losses, not rates that all share."""
        return np.where(self.spot[:, None], self.wall_seconds, self.run_seconds)


@dataclass(frozen=True)
class Estimate:
    """One whole run: quantiles (p05, p50, p95) as in `Estimates`."""

    steps: float
    run_seconds: tuple[float, float, float]
    wall_seconds: tuple[float, float, float]
    dollars: tuple[float, float, float]
    kilowatt_hours: tuple[float, float, float]
    co2_kg: tuple[float, float, float]
    fit_probability: float
    spot: bool = False
    start_seconds: float = 0.0
    forecast: Forecast | None = None

    @property
    def goodput(self) -> float:
        """The share of the median wall time behind the start-up that is steps."""
        return self.run_seconds[1] / (self.wall_seconds[1] - self.start_seconds)

    @property
    def words(self) -> str:
        """Wall time and cost, as medians, and the probability of fitting."""
        wall, cost = format_seconds(self.wall_seconds[1]), format_dollars(self.dollars[1])
        return f"{wall}, {cost}, {chance_text('fits', self.fit_probability)}"


def startup_seconds(nodes: ArrayLike) -> FloatArray:
    """Return the seconds from asking for so many machines to a job's first step, at published times."""
    return START_SECONDS + START_SECONDS_PER_NODE * (np.asarray(nodes, dtype=np.float64) - 1.0)


def startup_of(cluster: Cluster, lost: Preemption) -> tuple[float, float]:
    """Return the seconds that a cluster takes to its first step, and those that are billed at least."""
    published = float(startup_seconds(cluster.nodes)) if cluster.rented else 0.0
    start, least = lost.startup_seconds, lost.least_billed_seconds
    return (
        published if start is None else start,
        cluster.least_billed_seconds if least is None else least,
    )


def failure_seconds(devices: ArrayLike) -> FloatArray:
    """Return the mean time between failures of a job on so many devices, at published rates."""
    return SECONDS_PER_DAY / (FAILURES_PER_DEVICE_DAY * np.asarray(devices, dtype=np.float64))


def checkpoint_interval(devices: ArrayLike) -> FloatArray:
    """Return the seconds between checkpoints that lose least (Young 1974): sqrt(2 x write x MTTF)."""
    return np.sqrt(2 * CHECKPOINT_SECONDS * failure_seconds(devices))


def lost_time_factor(
    run_seconds: FloatArray, devices: ArrayLike, index: NDArray[Any], spot: BoolArray, goodput: float | None
) -> FloatArray:  # fmt: skip
    """Return wall time over steps' time, (n,), of failures, restarts, checkpoints and evaluation.

    devices: of clusters (m,); index: of each run's cluster (n,). goodput: the share of the wall that is
    steps, where it is stated. On spot machines failures are among the losses that `preemption_factor` counts.
    """
    if goodput is not None:
        return np.full(len(run_seconds), 1.0 / goodput)
    each = np.maximum(failure_seconds(devices), _LEAST_BETWEEN)
    interval = checkpoint_interval(devices)
    restarts = each * np.exp(RESTART_SECONDS / each)
    # Daly 2006 (see `preemption_factor`); behind the last interval nothing is written.
    whole = restarts * np.expm1((interval + CHECKPOINT_SECONDS) / each)
    slope, last = whole / interval, whole - restarts * np.expm1(interval / each)
    wall = slope[index] * run_seconds - last[index]
    short = run_seconds < interval[index]
    if short.any():  # one stretch without a checkpoint
        here = index[short]
        wall[short] = restarts[here] * np.expm1(run_seconds[short] / each[here])
    wall = np.where(spot, run_seconds, wall)
    wall += EVALUATION_SHARE * np.maximum(run_seconds - FIRST_EVALUATION_SECONDS, 0.0)
    factor = np.maximum(wall / run_seconds, 1.0)
    return np.where(factor > MOST_WALL_FACTOR, np.inf, factor)


def sustained_factor(run_seconds: FloatArray, devices: ArrayLike) -> FloatArray:
    """Return wall time over steps' and lost time, (n,), of large jobs: what reports say beyond failures.

    devices: of each run, (n,). Nothing for the first device-days, so that it hangs on the job's size, not on how
    many devices share it; no report of a small job states it.
    """
    spent = run_seconds * np.asarray(devices, dtype=np.float64)
    return 1.0 + SUSTAINED_SHARE * np.maximum(1.0 - _SMALL_JOB / np.maximum(spent, 1.0), 0.0)


def _sustained_share() -> tuple[float, float]:
    """Return `REPORTED_WALLS` over what failures explain in a month: geometric mean less 1, and another's log sigma."""
    walls, devices = np.array([*REPORTED_WALLS.values()]).T
    n, month = len(walls), 30.0 * SECONDS_PER_DAY
    lost = lost_time_factor(np.full(n, month), devices, np.arange(n), np.zeros(n, dtype=bool), None)
    left = np.log(walls / lost)
    return float(np.expm1(left.mean())), _next_sigma(left)


SUSTAINED_SHARE, SUSTAINED_SIGMA = _sustained_share()


def lost_time_sigma(run_seconds: FloatArray, lost: FloatArray) -> FloatArray:
    """Return the log standard deviation of wall time over steps' time, (n,); lost: of `lost_time_factor`.

    What is beyond failures is as uncertain in small jobs, whose reports do not state it; not within the first hour.
    """
    begun = 1.0 - FIRST_EVALUATION_SECONDS / np.maximum(run_seconds, FIRST_EVALUATION_SECONDS)
    return np.asarray(np.hypot(FAILURE_SIGMA * (1.0 - 1.0 / lost), SUSTAINED_SIGMA * begun))


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
    step_seconds: FloatArray, fit_probability: FloatArray, steps: ArrayLike, *,
    dollars_per_hour: ArrayLike, watts: ArrayLike, carbon_kg_per_kwh: ArrayLike = np.nan,
    wall_factor: ArrayLike = 1.0, lost_sigma: ArrayLike = 0.0, wall_spread_seconds: ArrayLike = 0.0,
    spot: ArrayLike = False, length_sigma: ArrayLike = 0.0, start_seconds: ArrayLike = 0.0,
    start_sigma: float = 0.0, least_billed_seconds: ArrayLike = 0.0,
) -> Estimates:  # fmt: skip
    """Return whole runs from step quantiles (n, 3); other arguments are (n,) or scalars.

    length_sigma: log standard deviation of the number of steps; lost_sigma: of wall time over steps' time;
    start_sigma: of the start-up. Errors of steps, of lost time and of the start-up are independent.
    Energy is that of boards at their stated power: an upper bound for most jobs.
    """
    n = len(step_seconds)

    def column(values: ArrayLike) -> FloatArray:
        return np.broadcast_to(np.asarray(values, dtype=np.float64), (n,))

    run_seconds = step_seconds * column(steps)[:, None]
    unsure = column(length_sigma)
    if unsure.any():
        run_seconds = _spread_wider(run_seconds, run_seconds[:, 1], unsure)
    scatter, lost = column(wall_spread_seconds), column(lost_sigma)
    wall_seconds = run_seconds * column(wall_factor)[:, None]
    if scatter.any() or lost.any():
        # The band holds the losses' too, and none is less than the undisturbed run.
        with np.errstate(divide="ignore", invalid="ignore"):
            sigma = np.sqrt(np.log1p(scatter / run_seconds[:, 1]) + lost**2)
        wide = _spread_wider(run_seconds, wall_seconds[:, 1], sigma)
        np.maximum(wide[:, 0], run_seconds[:, 0], out=wide[:, 0])
        wall_seconds = np.where(np.isfinite(wall_seconds), wide, wall_seconds)
    energy = wall_seconds * (column(watts) / JOULES_PER_KWH)[:, None]
    if (start := column(start_seconds)).any():
        low = start * (1.0 - np.exp(-Z95 * start_sigma))
        high = start * (np.exp(Z95 * start_sigma) - 1.0)
        middle = wall_seconds[:, 1] + start
        with np.errstate(invalid="ignore"):  # an endless run stays one
            below = middle - np.hypot(wall_seconds[:, 1] - wall_seconds[:, 0], low)
            above = middle + np.hypot(wall_seconds[:, 2] - wall_seconds[:, 1], high)
        later = np.stack([below, middle, above]).T
        wall_seconds = np.where(np.isfinite(wall_seconds), later, wall_seconds)
    with np.errstate(invalid="ignore"):  # an endless run at no price
        billed = np.maximum(wall_seconds, column(least_billed_seconds)[:, None])
        dollars = billed / SECONDS_PER_HOUR * column(dollars_per_hour)[:, None]
    return Estimates(
        steps=column(steps), run_seconds=run_seconds, wall_seconds=wall_seconds, dollars=dollars,
        kilowatt_hours=energy, co2_kg=energy * column(carbon_kg_per_kwh)[:, None],
        fit_probability=fit_probability, spot=np.broadcast_to(np.asarray(spot, dtype=bool), (n,)),
        start_seconds=start,
    )  # fmt: skip


def _spread_wider(rows: FloatArray, middle: FloatArray, sigma: FloatArray) -> FloatArray:
    """Return rows (n, 3) about a middle (n,), each half as wide as these and wider by sigma (n,)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        down = np.log(rows[:, 1] / rows[:, 0]) / Z95
        up = np.log(rows[:, 2] / rows[:, 1]) / Z95
        low = middle * np.exp(-Z95 * np.hypot(down, sigma))
        high = middle * np.exp(Z95 * np.hypot(up, sigma))
    return np.stack([low, middle, high]).T


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
