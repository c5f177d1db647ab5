"""Quantiles: a forecast number is a row of quantiles, read as a two-piece log-normal.

Two forecasts are compared with what their errors have in common: P(A is better than B).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from forerun.arrays import BoolArray, FloatArray
from forerun.domain.job import Job

LEVELS: tuple[float, float, float] = (0.05, 0.50, 0.95)
Z95 = 1.6448536269514722  # standard normal quantile of 0.95
_FEW_ROWS = 1024
_EXACT = 1e-10  # of a log: a step towards a mixture's quantile that is less is the last
_SQRT_2PI, _STEEPEST = 2.5066282746310002, 1e12  # an answer that is sure has no width


def normal_cdf(z: ArrayLike) -> FloatArray:
    """Return the standard normal distribution function (Abramowitz and Stegun 7.1.26; within 2e-7)."""
    x = np.asarray(z, dtype=np.float64) * 0.7071067811865476
    t = 1.0 / (1.0 + 0.3275911 * np.abs(x))
    tail = t * 1.061405429
    for term in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        tail += term  # in place: large arrays are slower to allocate than to fill
        tail *= t
    tail *= 0.5
    tail *= np.exp(-x * x)
    return np.where(x >= 0, 1.0 - tail, tail)


def normal_quantile(p: float) -> float:
    """Return the standard normal quantile of a probability in (0, 1)."""
    from statistics import NormalDist

    return NormalDist().inv_cdf(p)


def spread(
    median: ArrayLike, sigma: ArrayLike, floor: ArrayLike | None = None,
    tails: tuple[ArrayLike, ArrayLike] = (1.0, 1.0),
) -> FloatArray:  # fmt: skip
    """Return rows of quantiles (n, 3) around medians (n,) with log standard deviations (n,).

    No quantile falls below `floor` (n,). tails: how far the 5 % and the 95 % quantile lie, in units
    of a normal distribution's, each (n,) or one.
    """
    middle = np.asarray(median, dtype=np.float64)
    reach = Z95 * np.asarray(sigma, dtype=np.float64)
    # One quantile after another in memory: what follows works along whole columns.
    rows = np.empty((3, *np.broadcast_shapes(middle.shape, reach.shape)))
    low, high = (np.asarray(tail, dtype=np.float64) for tail in tails)
    rows[0] = middle * np.exp(-low * reach)
    rows[1] = middle
    rows[2] = middle * np.exp(high * reach)
    if floor is not None:
        np.maximum(rows, np.asarray(floor), out=rows)
    return np.moveaxis(rows, 0, -1)


def probability_below(rows: FloatArray, limit: ArrayLike) -> FloatArray:
    """Return P(value <= limit) for rows of quantiles (n, 3) and limits (n,) or a scalar."""
    with np.errstate(divide="ignore", invalid="ignore"):
        low, middle, high = np.moveaxis(np.log(rows), -1, 0)
        asked = np.log(np.asarray(limit, dtype=np.float64)) - middle
        side = np.where(asked >= 0, high - middle, middle - low)
        certain = np.where(asked >= 0, np.inf, asked * np.inf)  # NaN stays
        return normal_cdf(np.where(side > 0, Z95 * asked / side, certain))


def at_probability(rows: FloatArray, probability: float) -> FloatArray:
    """Return the quantile of each row (n, 3) at a probability in (0, 1), shape (n,)."""
    z = normal_quantile(probability)
    edge = rows[..., 2] if z >= 0 else rows[..., 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(rows[..., 1] > 0, edge / rows[..., 1], 1.0)
    result: FloatArray = rows[..., 1] * ratio ** (abs(z) / Z95)
    return result


def mixture_quantiles(rows: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the quantiles (n, 3) of mixtures of k answers, given as rows (k, n, 3), by Newton's steps.

    weights: of each answer, (k,), which add up to 1. Steps that leave the bracket, or do not halve, are bisections.
    """
    if rows.shape[1] > _FEW_ROWS:  # these stay in a core's cache
        parts = np.array_split(rows, rows.shape[1] // _FEW_ROWS + 1, axis=1)
        return np.concatenate([mixture_quantiles(part, weights) for part in parts])
    levels, share = np.array(LEVELS)[:, None], weights[:, None, None]
    with np.errstate(all="ignore"):
        logs = np.log(np.moveaxis(rows, -1, 0))  # (3, k, n)
        middle = logs[1][:, None]
        widths = middle - logs[0][:, None], logs[2][:, None] - middle
        down, up = (np.minimum(Z95 / width, _STEEPEST) for width in widths)
        below, above = logs.min(axis=1), logs.max(axis=1)  # (3, n)
        found, step = (weights[:, None] * logs).sum(axis=1), np.asarray(np.inf)
        while (step > _EXACT).any():
            z = found - middle  # (k, 3, n)
            slope = np.where(z >= 0, up, down)
            z *= slope
            lacks = levels - (share * normal_cdf(z)).sum(axis=0)
            density = (share * slope * np.exp(-0.5 * z * z)).sum(axis=0) / _SQRT_2PI
            below, above = np.where(lacks > 0, found, below), np.where(lacks > 0, above, found)
            after = found + lacks / density
            sound = (after >= below) & (after <= above) & (np.abs(after - found) <= step / 2.0)
            after = np.where(sound, after, (below + above) / 2.0)
            after = np.where(step > _EXACT, after, found)  # each row as it is alone
            step, found = np.abs(after - found), after
    return np.asarray(np.exp(found.T))


# What two jobs may have in common. "setting" is what is peculiar to the place where they run, "case"
# the workload on the device, "plan" the very plan on the very cluster.
SCOPES = ("workload", "framework", "host", "schedule", "device", "link", "setting", "case", "plan")


def scope_of(cause: str) -> str:
    """Return the scope of a cause, e.g. `device` of `device: compute`."""
    return cause.partition(":")[0]


def scope_labels(job: Job) -> dict[str, Hashable]:
    """Return for each of `SCOPES` a label; jobs of equal labels have that scope in common."""
    cluster, framework = job.cluster, job.workload.framework
    between = cluster.inter.kind if cluster.nodes > 1 else ""
    return {
        "workload": job.workload.name,
        **dict.fromkeys(("framework", "host", "schedule"), framework), "device": cluster.device.id,
        "link": (cluster.intra.kind, between), "setting": (framework, cluster.device.id),
        "case": (job.workload.name, framework, cluster.device.id),
        "plan": (job.plan, cluster.device.id, cluster.nodes, cluster.placement),
    }  # fmt: skip


def correlation(
    a: Mapping[str, FloatArray], b: Mapping[str, FloatArray], common: Mapping[str, Any]
) -> FloatArray:
    """Return the correlation of the log errors of two answers, (n,), between 0 and 1.

    a, b: log variance of each by cause. common: of scopes; one that is left out they have.
    """
    whole_a, whole_b = sum(a.values(), np.zeros(())), sum(b.values(), np.zeros(()))
    shared = np.zeros(np.broadcast_shapes(np.shape(whole_a), np.shape(whole_b)))
    for cause in sorted(a.keys() & b.keys()):  # in one order, whatever the process
        same = np.asarray(common.get(scope_of(cause), True), dtype=bool)
        shared = shared + np.where(same, np.minimum(a[cause], b[cause]), 0.0)
    whole = np.sqrt(np.asarray(whole_a * whole_b))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(whole > 0, np.minimum(shared / whole, 1.0), 0.0))


def log_sigma(rows: FloatArray) -> FloatArray:
    """Return the log standard deviation (n,) of rows of quantiles (n, 3), from their 5-95 % width."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.log(rows[..., 2] / rows[..., 0]) / (2 * Z95))


def pairs_in_common(labels: Sequence[Mapping[str, Any]]) -> dict[str, BoolArray]:
    """Return for each of `SCOPES` which pairs of n jobs have it in common; labels: `scope_labels`."""
    common: dict[str, BoolArray] = {}
    for scope in SCOPES:
        place: dict[object, int] = {}
        code = np.array([place.setdefault(each[scope], len(place)) for each in labels], dtype=int)
        common[scope] = code[:, None] == code[None, :]
    return common


def correlation_matrix(
    causes: Mapping[str, FloatArray], common: Mapping[str, BoolArray]
) -> FloatArray:
    """Return the correlations (n, n) of the log errors of n answers with log variances (n,) by cause."""
    down = {name: column[:, None] for name, column in causes.items()}
    across = {name: column[None, :] for name, column in causes.items()}
    n = len(common["plan"])
    return np.array(np.broadcast_to(correlation(down, across, common), (n, n)))


def ratio_sigma(a: FloatArray, b: FloatArray, rho: ArrayLike = 0.0) -> FloatArray:
    """Return the log standard deviation of A/B (n,) for rows of quantiles (n, 3)."""
    first, second = log_sigma(a), log_sigma(b)
    variance = first**2 + second**2 - 2 * np.asarray(rho, dtype=np.float64) * first * second
    return np.sqrt(np.maximum(variance, 0.0))


def probability_less(a: FloatArray, b: FloatArray, rho: ArrayLike = 0.0) -> FloatArray:
    """Return P(A < B), (n,), for rows of quantiles (n, 3) whose log errors have correlation rho.

    Both are taken as log-normals of their 5-95 % width; NaN where either is not known.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        gap = np.log(b[..., 1]) - np.log(a[..., 1])
    return probability_above_zero(gap, ratio_sigma(a, b, rho))


def probability_above_zero(middle: FloatArray, sigma: FloatArray) -> FloatArray:
    """Return P(X > 0) of normals (n,): 1 or 0 where sigma is 0, 0.5 where the middle is 0 too."""
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(sigma > 0, middle / np.where(sigma > 0, sigma, 1.0), np.sign(middle) * 40.0)
    return np.where(np.isnan(sigma), np.nan, normal_cdf(z))


def widened(
    rho: FloatArray, inner: Sequence[FloatArray], outer: Sequence[FloatArray]
) -> FloatArray:
    """Return the correlation (n,) of two answers whose bands also hold errors of their own.

    rho: of the inner answers. inner, outer: quantiles (n, 3) of both, before and after these errors.
    """
    for before, after in zip(inner, outer, strict=True):
        narrow, wide = log_sigma(before), log_sigma(after)
        with np.errstate(divide="ignore", invalid="ignore"):
            rho = rho * np.where(wide > narrow, narrow / wide, 1.0)
    return rho


def run_correlation(
    jobs: Sequence[Job], causes: Mapping[str, FloatArray], step: FloatArray, run: FloatArray
) -> FloatArray:
    """Return the correlations (n, n) of the log errors of n runs.

    causes: log variance of each answer by cause, (n,). step, run: quantiles (n, 3) of what is forecast,
    and with the errors of each run's own.
    """
    rho = correlation_matrix(causes, pairs_in_common([scope_labels(job) for job in jobs]))
    return widened(rho, (step[:, None], step[None, :]), (run[:, None], run[None, :]))
