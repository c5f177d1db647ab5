"""Choice: what following a forecast would have cost, where several plans of one job were measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.domain.objective import Objective
from forerun.domain.plan_columns import NAMES
from forerun.tables import Runs

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

DRAWS = 20  # of each tie
FIT_CONFIDENCE = Objective().fit_confidence

# Rows that agree in these differ only in their plan (or in nothing: then they are repeats).
SAME_JOB = (
    "source", "workload", "framework", "precision", "dataset", "seq_len", "image_size", "task",
    "device", "instance_type", "cluster", "interconnect", "nodes", "devices", "placement",
    "global_batch",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Regret:
    """What the picks cost beyond the best measured plan, as shares (0.1 = 10 % slower).

    Attributes:
        groups: jobs with at least two measured plans, one of which ran.
        picked: groups in which the forecasts named a plan.
        crashed: jobs in which a pick ran out of memory or failed, in any draw of its ties.
        median, mean, worst: over the picks that ran, `DRAWS` draws each; NaN where none did.
    """

    groups: int
    picked: int
    crashed: int
    median: float
    mean: float
    worst: float


def comparable_groups(runs: Runs) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each row's job and each row's plan within the table, as numbers, (n,) each."""
    _, job = runs.table.groups(SAME_JOB)
    code = np.zeros(len(runs), dtype=np.int64)
    for name in NAMES:
        _, inverse = np.unique(getattr(runs.jobs.plans, name), return_inverse=True)
        _, code = np.unique(code * (int(inverse.max(initial=0)) + 1) + inverse, return_inverse=True)
    return job, code.astype(np.int64)


def regret(
    job: NDArray[np.int64],
    plan: NDArray[np.int64],
    forecast: FloatArray,
    fit_probability: FloatArray,
    measured: FloatArray,
    crashed: BoolArray,
    rng: np.random.Generator,
) -> Regret:
    """Return the regret of picking, in each job, the plan with the least forecast time.

    A plan that does not fit with `FIT_CONFIDENCE` is not picked, as in `forerun recommend`, unless
    nothing is said of its memory. Ties are broken
    at random, `DRAWS` times over: neither the order of the rows nor luck may help. Repeats of a
    plan count as one plan with the median time.

    Args:
        job, plan: (n,) from `comparable_groups`.
        forecast, fit_probability: (n,), NaN where not answered.
        measured: (n,) seconds, NaN where there is no time.
        crashed: (n,) ran out of memory or failed.
        rng: breaks ties.
    """
    plans = _plans(job, plan, np.flatnonzero(crashed | ~np.isnan(measured)), measured)
    if not len(plans.first):
        return Regret(0, 0, 0, *(float("nan"),) * 3)
    allowed = ~np.isnan(forecast[plans.first]) & ~(fit_probability[plans.first] < FIT_CONFIDENCE)
    forecasts = np.where(allowed, forecast[plans.first], np.inf)
    least = np.minimum.reduceat(forecasts, plans.starts)
    best = np.fmin.reduceat(plans.seconds, plans.starts)  # NaN where none ran
    size = np.diff(np.r_[plans.starts, len(plans.first)])
    asked = (size >= 2) & ~np.isnan(best)
    picked = asked & np.isfinite(least)
    tied = allowed & (forecasts <= np.repeat(least, size) * (1 + 1e-12))
    costs = plans.seconds / np.repeat(best, size) - 1.0
    draws = _drawn(
        costs, tied & np.repeat(picked, size), np.repeat(np.arange(len(size)), size), rng
    )
    failures = int(np.isnan(draws).any(axis=1).sum())
    values = draws[~np.isnan(draws)]
    groups = int(asked.sum())
    if not len(values):
        return Regret(groups, int(picked.sum()), failures, *(float("nan"),) * 3)
    return Regret(
        groups, int(picked.sum()), failures, float(np.median(values)), float(values.mean()),
        float(values.max()),
    )  # fmt: skip


@dataclass(frozen=True)
class _Plans:
    """Distinct plans of all jobs, sorted by job: a row of each, its median time, and where jobs start.

    The time is NaN where it never ran.
    """

    first: NDArray[np.int64]
    seconds: FloatArray
    starts: NDArray[np.int64]


def _plans(
    job: NDArray[np.int64], plan: NDArray[np.int64], rows: NDArray[np.int64], measured: FloatArray
) -> _Plans:
    by_time = rows[np.lexsort((measured[rows], plan[rows], job[rows]))]  # NaN comes last
    cut = _starts(job[by_time], plan[by_time])
    ran = np.add.reduceat(~np.isnan(measured[by_time]), cut) if len(cut) else cut
    middle = cut + np.stack([np.maximum(ran - 1, 0) // 2, ran // 2])
    # With repeats of an even number the median is the mean of the two in the middle.
    pair = measured[by_time[np.minimum(middle, len(by_time) - 1)]] if len(cut) else middle
    seconds = np.where(ran > 0, np.mean(pair, axis=0), np.nan)
    by_row = rows[np.lexsort((rows, plan[rows], job[rows]))]
    first = by_row[cut]
    return _Plans(first, seconds, _starts(job[first]))


def _starts(*columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first row of each run of equal rows in sorted columns."""
    if not len(columns[0]):
        return np.zeros(0, dtype=np.int64)
    changed = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return np.flatnonzero(np.r_[True, changed])


def _drawn(
    costs: FloatArray, tied: BoolArray, job: NDArray[np.int64], rng: np.random.Generator
) -> FloatArray:
    """Return the costs picked in each draw of each job, (jobs, DRAWS), ties broken by chance."""
    positions = np.flatnonzero(tied)
    starts = _starts(job[positions])
    counts = np.diff(np.r_[starts, len(positions)])
    chosen = np.repeat(positions[starts][:, None], DRAWS, axis=1)
    for i in np.flatnonzero(counts > 1):
        chosen[i] = rng.choice(positions[starts[i] : starts[i] + counts[i]], DRAWS)
    return costs[chosen]
