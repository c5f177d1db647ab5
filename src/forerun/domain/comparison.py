"""Comparison: P(A beats B) of two forecasts that share a part of their error.

Two plans of one workload on one kind of device are wrong together: if the device reaches less of
its peak than was thought, both take longer, and which of them is faster stays as it was. So the
error of log(A/B) is much smaller than that of two independent answers,

    Var[log A - log B] = sigma_A^2 + sigma_B^2 - 2 rho sigma_A sigma_B,

with the sigmas read off the two bands, and rho from the causes c of error, of which each answer
states its log variance v_c (they add up to its whole variance V):

    rho = sum_c same_c min(v_Ac, v_Bc) / sqrt(V_A V_B).

A cause is "scope: part of the step", and same_c is 1 where the two jobs have its scope in common
(the device, the links, ...), else 0. The smaller variance of a cause is what the two have in common
of it: what one step has more of the part than the other is an error of its own. This is the
histogram intersection, a positive definite kernel, so that no rho leaves 0 to 1 and correlations
of several answers belong to one distribution. Loadings that are shared whole, in which a cause
leaves (sqrt(v_Ac) - sqrt(v_Bc))^2, were tried and are over-confident where plans differ
(`benchmarks/pair_reliability.py`).

The bands give the widths and the causes only the correlation, so that whoever widens or narrows a
band (calibration, conformal intervals) moves P(A beats B) with it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from forerun.arrays import BoolArray, FloatArray
from forerun.domain.job import Job
from forerun.domain.quantiles import Z95, normal_cdf

# What two jobs may have in common. "setting" is whatever else is peculiar to the place where they
# run, "case" the workload on the device, "plan" the very plan on the very cluster: what is left of it
# is an error that no other plan shares.
SCOPES = ("workload", "framework", "host", "schedule", "device", "link", "setting", "case", "plan")


def scope_of(cause: str) -> str:
    """Return the scope of a cause, e.g. `device` of `device: compute`.

    What is none of `SCOPES` is in common to all answers of a predictor.
    """
    return cause.partition(":")[0]


def scope_labels(job: Job) -> dict[str, Hashable]:
    """Return for each of `SCOPES` a label; jobs of equal labels have that scope in common."""
    cluster, framework = job.cluster, job.workload.framework
    between = cluster.inter.kind if cluster.nodes > 1 else ""
    return {
        "workload": job.workload.name,
        **dict.fromkeys(("framework", "host", "schedule"), framework),
        "device": cluster.device.id,
        "link": (cluster.intra.kind, between),
        "setting": (framework, cluster.device.id),
        "case": (job.workload.name, framework, cluster.device.id),
        "plan": (job.plan, cluster.device.id, cluster.nodes, cluster.placement),
    }


def correlation(
    a: Mapping[str, FloatArray], b: Mapping[str, FloatArray], common: Mapping[str, Any]
) -> FloatArray:
    """Return the correlation of the log errors of two answers, (n,), between 0 and 1.

    Args:
        a, b: log variance of each answer by cause, (n,) each (or shapes that broadcast).
        common: scope to whether the two jobs have it in common, (n,); one that is left out is
            in common.

    An answer that states no causes shares nothing that is known of: 0.
    """
    whole_a, whole_b = sum(a.values(), np.zeros(())), sum(b.values(), np.zeros(()))
    shared = np.zeros(np.broadcast_shapes(np.shape(whole_a), np.shape(whole_b)))
    for cause in a.keys() & b.keys():
        same = np.asarray(common.get(scope_of(cause), True), dtype=bool)
        shared = shared + np.where(same, np.minimum(a[cause], b[cause]), 0.0)
    whole = np.sqrt(np.asarray(whole_a * whole_b))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(whole > 0, np.minimum(shared / whole, 1.0), 0.0))


def log_sigma(rows: FloatArray) -> FloatArray:
    """Return the log standard deviation (n,) of rows of quantiles (n, 3), from their 5-95 % width.

    A number that is endless or unknown has none: NaN.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.log(rows[..., 2] / rows[..., 0]) / (2 * Z95))


def pairs_in_common(labels: Sequence[Mapping[str, Any]]) -> dict[str, BoolArray]:
    """Return for each of `SCOPES` which pairs of n jobs have it in common, (n, n) each.

    Args:
        labels: of each job, by scope, as `scope_labels` gives them.
    """
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

    Both are taken as log-normals of their 5-95 % width. Equal medians give 0.5; NaN where either is
    not known.
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

    Args:
        rho: correlation of the two inner answers (steps).
        inner, outer: rows of quantiles (n, 3) of both, before and after the other errors (the
            losses of spot machines) were added.

    The covariance stays, the widths grow: rho sigma_a sigma_b / (outer sigma_a, outer sigma_b).
    """
    for before, after in zip(inner, outer, strict=True):
        narrow, wide = log_sigma(before), log_sigma(after)
        with np.errstate(divide="ignore", invalid="ignore"):
            rho = rho * np.where(wide > narrow, narrow / wide, 1.0)
    return rho
