"""Choice: what following a forecast would have cost, where several plans of one job were measured."""

from __future__ import annotations

from collections.abc import Sequence
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
    useful = crashed | ~np.isnan(measured)
    order = np.flatnonzero(useful)[np.argsort(job[useful], kind="stable")]
    cuts = np.flatnonzero(np.diff(job[order])) + 1
    groups = picked = failures = 0
    costs: list[FloatArray] = []
    for rows in np.split(order, cuts) if len(order) else ():
        plans = _plans(rows, plan, measured)
        times = np.array([time for _, time in plans])
        if len(plans) < 2 or np.isnan(times).all():
            continue
        groups += 1
        firsts = np.array([first for first, _ in plans])
        choices = _picks(forecast[firsts], fit_probability[firsts], rng)
        if not len(choices):
            continue
        picked += 1
        ran = times[choices][~np.isnan(times[choices])]
        failures += len(ran) < len(choices)
        costs.append(ran / np.nanmin(times) - 1.0)
    values = np.concatenate(costs) if costs else np.empty(0)
    if not len(values):
        return Regret(groups, picked, failures, *(float("nan"),) * 3)
    return Regret(
        groups, picked, failures, float(np.median(values)), float(values.mean()),
        float(values.max()),
    )  # fmt: skip


def _plans(
    rows: NDArray[np.int64], plan: NDArray[np.int64], measured: FloatArray
) -> Sequence[tuple[int, float]]:
    """Return one row of each distinct plan and the plan's median time, NaN where it never ran."""
    result = []
    for code in np.unique(plan[rows]):
        same = rows[plan[rows] == code]
        times = measured[same]
        times = times[~np.isnan(times)]
        result.append((int(same[0]), float(np.median(times)) if len(times) else float("nan")))
    return result


def _picks(
    forecast: FloatArray, fit_probability: FloatArray, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return the position picked in each draw (DRAWS,), empty where none is to be picked."""
    allowed = ~np.isnan(forecast) & ~(fit_probability < FIT_CONFIDENCE)
    if not allowed.any():
        return np.empty(0, dtype=np.int64)
    least = np.where(allowed, forecast, np.inf).min()
    tied = np.flatnonzero(allowed & (forecast <= least * (1 + 1e-12)))
    return rng.choice(tied, DRAWS) if len(tied) > 1 else np.repeat(tied, DRAWS)
