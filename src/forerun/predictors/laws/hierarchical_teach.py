"""From runs to a fitted model: which rows teach, where the parameters start, how far residuals lie."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from forerun.domain.forecast import is_none
from forerun.domain.quantiles import Z95
from forerun.errors import RequestError
from forerun.predictors.laws.hierarchical_fit import Posterior, Teaching, fitted
from forerun.predictors.laws.hierarchical_law import LawInputs
from forerun.predictors.laws.hierarchical_model import Known, Model
from forerun.predictors.laws.hierarchical_near import Near
from forerun.predictors.laws.hierarchical_prior import Tree, grown, means
from forerun.predictors.laws.hierarchical_rows import HierarchicalRows, Name
from forerun.tables import Runs

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

LEAST_RUNS = 3
# Compute that is less of the step than this is no measurement of it.
_LEAST_COMPUTE = 0.02
# Spread of residuals where few teach: as wide as other laws of this kind are off.
PRIOR_SIGMA, PRIOR_RUNS, SMALLEST_SIGMA = 0.07, 8.0, 0.02
# A run that its law hangs on alone says nothing of how far runs lie from it.
MOST_LEVERAGE = 0.75
_HALF = 0.7  # of a step at the middle batch is fixed, as a log: exp(-0.7)


def taught(runs: Runs, seconds: FloatArray, quantity: str) -> tuple[Model, Posterior, Teaching]:
    """Return what runs teach, of which some have the seconds of the quantity, (n,) or NaN.

    Raises:
        RequestError: fewer than `LEAST_RUNS` can teach.
    """
    rows = HierarchicalRows(runs.jobs, quantity)
    usable = np.flatnonzero(np.isfinite(seconds) & is_none(rows.sided))
    asked = f"fitting hierarchical on {len(runs)} runs"
    if len(usable) < LEAST_RUNS:
        found = f"{len(usable)} of them are data-parallel all-reduce runs with a time"
        refused = Counter(rows.sided[np.isfinite(seconds) & ~is_none(rows.sided)].tolist())
        if refused:
            found += "; of the others " + "; ".join(
                f"{count:,}: {reason}" for reason, count in refused.most_common(2)
            )
        raise RequestError(
            asked, found,
            f"give at least {LEAST_RUNS}, best with the smallest and the largest batch on one "
            "device and one on several nodes",
        )  # fmt: skip
    rows = HierarchicalRows(runs.jobs.take(usable), quantity)
    names, pair = rows.names
    apps = list(dict.fromkeys(app for app, _ in names))
    clusters = list(dict.fromkeys(cluster for _, cluster in names))
    app_of = np.array([apps.index(app) for app, _ in names])
    # A batch is read where most runs of an app state one; those that do not are left out then.
    stated = np.isfinite(rows.micro_batch)
    share = np.bincount(app_of[pair], stated, len(apps)) / np.bincount(
        app_of[pair], minlength=len(apps)
    )
    batched = share >= 0.5
    keep = stated | ~batched[app_of[pair]]
    order = np.flatnonzero(keep)[np.argsort(pair[keep], kind="stable")]
    rows = HierarchicalRows(runs.jobs.take(usable[order]), quantity)
    pair, seconds = pair[order], seconds[usable[order]]
    present, group = np.unique(pair, return_inverse=True)
    names = [names[i] for i in present]
    app = np.array([apps.index(a) for a, _ in names])
    cluster = np.array([clusters.index(c) for _, c in names])
    batch = np.where(batched[app[group]], rows.micro_batch, 1.0)
    log_batch = np.log(batch)
    spans = [_span(log_batch[app[group] == i]) if batched[i] else None for i in range(len(apps))]
    x = rows.inputs(places(log_batch, [spans[i] for i in app], group), batch)
    log_seconds = np.log(seconds)
    compute = _compute(runs, usable[order], seconds, x.devices, quantity)
    start, known = _starts(
        rows, log_seconds - x.log_steps, log_batch, app[group], x.devices, quantity
    )
    teaching = Teaching(x, group, _sessions(rows, group), log_seconds, compute, start[app])
    workloads = list(dict.fromkeys(a[0] for a in apps))
    workload = np.array([workloads.index(apps[i][0]) for i in app])
    # Clusters are numbered in the order in which the groups name them.
    order_of = list(dict.fromkeys(cluster.tolist()))
    cluster = np.array([order_of.index(c) for c in cluster.tolist()])
    tree = grown(workload, app, cluster, known)
    posterior = fitted(teaching, tree)
    sigma = residual_sigma(left_out(posterior, tree, group), group, len(names))
    groups = tuple(
        _known(names[i], spans[app[i]], log_batch[group == i], x.take(group == i), sigma[i])
        for i in range(len(names))
    )
    texts, placement = rows.placements
    near = tuple(
        _near(x.take(group == i), placement[group == i], posterior.residual[group == i])
        for i in range(len(names))
    )
    model = Model(
        groups, posterior.theta, posterior.shared, posterior.covariance, posterior.alone,
        posterior.gain, tree.shared, tree.cluster_effect, tuple(texts), near,
    )  # fmt: skip
    return model, posterior, teaching


def places(
    log_batch: FloatArray, spans: list[tuple[float, float] | None], group: IntArray
) -> FloatArray:
    """Return where each micro-batch lies in the span of its group's app, 0 to 1 within it."""
    low = np.array([s[0] if s else 0.0 for s in spans])
    width = np.array([max(s[1] - s[0], 0.3) if s else 1.0 for s in spans])
    return np.asarray((log_batch - low[group]) / width[group])


def left_out(posterior: Posterior, tree: Tree, group: IntArray) -> FloatArray:
    """Return how far each run would lie from a law fitted without it, (n,), by its leverage."""
    result = posterior.residual.copy()
    for i in range(len(posterior.theta)):
        mine = group == i
        slopes = posterior.slopes[mine]
        known = posterior.uncertainty(tree, i)
        pull = posterior.weight[mine] * np.einsum("ni,ni->n", slopes @ known, slopes)
        result[mine] /= 1.0 - np.clip(pull, 0.0, MOST_LEVERAGE)
    return result


def residual_sigma(residual: FloatArray, group: IntArray, groups: int) -> FloatArray:
    """Return the log standard deviation that holds 90 % of a group's residuals, (g,).

    Drawn to the usual where few teach: a law of many parameters passes near a few runs.
    """
    result = np.empty(groups)
    for i in range(groups):
        mine = np.abs(residual[group == i])
        wide = float(np.quantile(mine, 0.9)) / Z95
        pooled = (len(mine) * wide**2 + PRIOR_RUNS * PRIOR_SIGMA**2) / (len(mine) + PRIOR_RUNS)
        result[i] = max(float(np.sqrt(pooled)), SMALLEST_SIGMA)
    return result


def _span(log_batch: FloatArray) -> tuple[float, float]:
    return float(log_batch.min()), float(log_batch.max())


def _known(
    name: tuple[Name, Name],
    span: tuple[float, float] | None,
    log_batch: FloatArray,
    x: LawInputs,
    sigma: float,
) -> Known:
    rates = float(np.median(x.intra_rate)), float(np.median(x.inter_rate))
    return Known(
        name[0], name[1], len(x), span, _span(log_batch), float(x.devices.max()),
        float(x.nodes.max()), rates, float(sigma),
    )  # fmt: skip


def _compute(
    runs: Runs, rows: IntArray, seconds: FloatArray, devices: FloatArray, quantity: str
) -> FloatArray:
    """Return the log of measured compute alone (n,): the step less its exposed synchronisation."""
    blank = np.full(len(rows), np.nan)
    if quantity != "step":
        return blank
    sync = runs.measured("sync_time_s")[rows]
    with np.errstate(invalid="ignore", divide="ignore"):
        alone = seconds - sync
        sound = (sync >= 0) & (alone > _LEAST_COMPUTE * seconds) & (devices > 1)
        return np.where(sound, np.log(np.where(sound, alone, 1.0)), np.nan)


def _starts(
    rows: HierarchicalRows, log_step: FloatArray, log_batch: FloatArray, app: IntArray,
    devices: FloatArray, quantity: str,
) -> tuple[FloatArray, NDArray[np.bool_]]:  # fmt: skip
    """Return where each app's parameters start, (a, p), and whose gradients are known, (a,)."""
    count = int(app.max()) + 1
    start, volume = np.empty((count, 2)), np.empty(count)
    known = np.zeros(count, dtype=bool)
    gradients = rows.gradients_gb
    for i in range(count):
        mine = np.flatnonzero(app == i)
        few = mine[devices[mine] == devices[mine].min()]
        base = float(np.median(log_step[few])) - _HALF
        start[i] = base, base - float(np.median(log_batch[few]))
        size = gradients[mine[0]] if quantity == "step" else np.nan
        known[i] = bool(np.isfinite(size))
        volume[i] = np.log(size) if known[i] else base + _HALF
    return means(start, volume), known


def _sessions(rows: HierarchicalRows, group: IntArray) -> IntArray:
    """Return which rows share a group and a placement, (n,): they were measured together."""
    nodes, busy = rows.nodes_and_busy
    columns = (group, np.nan_to_num(rows.law_rows.machines), nodes, busy, rows.placements[1])
    keys = np.stack([np.asarray(c, dtype=np.float64) for c in columns], axis=1)
    return np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)


def _near(x: LawInputs, placement: IntArray, residual: FloatArray) -> Near:
    return Near(np.log(x.micro_batch), x.devices, x.nodes, x.busy, placement, residual)
