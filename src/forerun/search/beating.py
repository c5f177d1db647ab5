"""Beating: how probable it is that the best option beats each of the others shown."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from forerun.domain.comparison import (
    SCOPES,
    Kinds,
    correlation,
    log_sigma,
    probability_above_zero,
    probability_less,
    scope_labels,
    widened,
)
from forerun.search.score import Scored

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def beaten_by_first(scored: Scored, front: IntArray) -> list[dict[str, float]]:
    """Return for each row (n) the probability that row 0 beats it, by what is compared.

    `time`, `cost` and `energy` of the whole run; `knee` where the front has one. What is not known
    is left out.

    Args:
        scored: rows with details (the causes of their error).
        front: positions of the Pareto front's rows.
    """
    estimates, rho = scored.estimates, run_correlation(scored)
    step, stalls = scored.forecasts.seconds, scored.forecasts.stalls
    best = {name: column[:1] for name, column in stalls.items()}
    table: dict[str, FloatArray] = {
        name: probability_less(
            rows[:1], rows, rho[0], (Kinds.of(best, step[:1], rows[:1]), Kinds.of(stalls, step, rows))
        )
        for name, rows in (
            ("time", estimates.run_seconds), ("cost", estimates.dollars),
            ("energy", estimates.kilowatt_hours),
        )
    }  # fmt: skip
    table["knee"] = knee_beaten(estimates.run_seconds, estimates.dollars, front, rho)
    return [
        {name: float(column[i]) for name, column in table.items() if np.isfinite(column[i])}
        for i in range(len(scored))
    ]


def run_correlation(scored: Scored) -> FloatArray:
    """Return the correlations of the log errors of n runs, (n, n).

    Losses of spot machines are each run's own.
    """
    labels = [scope_labels(scored.jobs[i]) for i in range(len(scored))]
    common = {
        scope: np.array([[a[scope] == b[scope] for b in labels] for a in labels], dtype=bool)
        for scope in SCOPES
    }
    causes: Mapping[str, FloatArray] = scored.forecasts.causes
    down = {name: column[:, None] for name, column in causes.items()}
    across = {name: column[None, :] for name, column in causes.items()}
    rho = np.broadcast_to(correlation(down, across, common), (len(scored), len(scored)))
    step, run = scored.forecasts.seconds, scored.estimates.run_seconds
    return widened(rho, (step[:, None], step[None, :]), (run[:, None], run[None, :]))


def knee_beaten(
    run_seconds: FloatArray, dollars: FloatArray, front: IntArray, rho: FloatArray
) -> FloatArray:
    """Return P(row 0 lies nearer the knee than row j), (n,); NaN where the front has no knee.

    Args:
        run_seconds, dollars: rows of quantiles (n, 3).
        front: positions of the Pareto front's rows.
        rho: correlations of the log errors, (n, n).

    The knee is the least of h = t/T + c/C, T and C being the ranges of time and cost over the front
    (`pareto.knee`). Time and cost of a row have one log error e, so that to first order
    dh_0 - dh_j = sum_k g_k e_k, where k runs over row 0, row j and both ends of the front: an error
    that all rows share moves the ranges too, and nothing else.
    """
    time, cost, sigma = run_seconds[:, 1], dollars[:, 1], log_sigma(run_seconds)
    unknown = np.full(len(time), np.nan)
    if len(front) < 3 or not np.isfinite([time[front], cost[front], sigma[front]]).all():
        return unknown
    fast, cheap = front[np.argmin(time[front])], front[np.argmin(cost[front])]
    time_range, cost_range = time[cheap] - time[fast], cost[fast] - cost[cheap]
    if time_range <= 0 or cost_range <= 0:
        return unknown
    height = time / time_range + cost / cost_range
    slope = -np.diag(height)  # of h_0 - h_j (rows) by each log error (columns)
    slope[:, 0] += height[0]
    longer = (time[0] - time) / time_range
    dearer = (cost[0] - cost) / cost_range
    slope[:, cheap] += dearer * cost[cheap] / cost_range - longer * time[cheap] / time_range
    slope[:, fast] += longer * time[fast] / time_range - dearer * cost[fast] / cost_range
    covariance = rho * sigma[:, None] * sigma[None, :]
    np.fill_diagonal(covariance, sigma**2)
    variance = np.einsum("jk,kl,jl->j", slope, covariance, slope)
    return probability_above_zero(height - height[0], np.sqrt(np.maximum(variance, 0.0)))
