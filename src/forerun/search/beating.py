"""Beating: how probable it is that the best option beats each of the others shown."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

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
    kinds = Kinds.of(stalls, step, estimates.run_seconds)
    table["knee"] = knee_beaten(estimates.run_seconds, estimates.dollars, front, rho, kinds)
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
    run_seconds: FloatArray,
    dollars: FloatArray,
    front: IntArray,
    rho: FloatArray,
    kinds: Kinds | None = None,
) -> FloatArray:
    """Return P(row 0 lies nearer the knee than row j), (n,); NaN where the front has no knee.

    Args:
        run_seconds, dollars: rows of quantiles (n, 3).
        front: positions of the Pareto front's rows.
        rho: correlations of the log errors, (n, n).
        kinds: of the n runs, where some may stall.

    The knee is the least of h = t/T + c/C, T and C being the ranges of time and cost over the front
    (`pareto.knee`). Time and cost of a row have one log error e, so that to first order
    dh_0 - dh_j = sum_k g_k e_k, where k runs over row 0, row j and both ends of the front: an error
    that all rows share moves the ranges too, and nothing else. A stall moves row 0 or row j as far as
    it takes; the ranges stay those of usual runs.
    """
    time, cost = run_seconds[:, 1], dollars[:, 1]
    sigma = log_sigma(run_seconds) if kinds is None else kinds.sigma
    unknown = np.full(len(time), np.nan)
    if len(front) < 3 or not np.isfinite([time[front], cost[front], sigma[front]]).all():
        return unknown
    ends = front[np.argmin(time[front])], front[np.argmin(cost[front])]
    time_range, cost_range = time[ends[1]] - time[ends[0]], cost[ends[0]] - cost[ends[1]]
    if time_range <= 0 or cost_range <= 0:
        return unknown
    points = np.stack([time / time_range, cost / cost_range])
    covariance = rho * sigma[:, None] * sigma[None, :]
    np.fill_diagonal(covariance, sigma**2)
    if kinds is None:
        return _nearer(points[:, 0], points, points[:, ends], ends, covariance)
    total = np.zeros(len(time))
    for late, later in product((0, 1), repeat=2):
        chance = np.abs(1 - late - kinds.chance[0]) * np.abs(1 - later - kinds.chance)
        # What never stalls has no shift that counts, known or not.
        first, rows = (
            np.exp(np.where(kinds.chance > 0, k * kinds.shift, 0.0)) for k in (late, later)
        )
        nearer = _nearer(points[:, 0] * first[0], points * rows, points[:, ends], ends, covariance)
        total = total + np.where(chance > 0, chance * nearer, 0.0)
    return total


def _nearer(
    first: FloatArray,
    rows: FloatArray,
    ends: FloatArray,
    where: tuple[np.int64, np.int64],
    covariance: FloatArray,
) -> FloatArray:
    """Return P(a point's time and cost together are less than those of each row), (n,).

    Args:
        first, rows, ends: time and cost as shares of the front's ranges: (2,) of row 0, (2, n), and
            (2, 2) of the fastest and the cheapest row of the front.
        where: positions of these two.
        covariance: of the log errors of the rows, (n, n).
    """
    fast, cheap = where
    slope = -np.diag(rows.sum(axis=0))  # of h_0 - h_j (rows) by each log error (columns)
    slope[:, 0] += first.sum()
    longer, dearer = first[:, None] - rows
    slope[:, cheap] += dearer * ends[1, 1] - longer * ends[0, 1]
    slope[:, fast] += longer * ends[0, 0] - dearer * ends[1, 0]
    variance = np.einsum("jk,kl,jl->j", slope, covariance, slope)
    middle = rows.sum(axis=0) - first.sum()
    return probability_above_zero(middle, np.sqrt(np.maximum(variance, 0.0)))
