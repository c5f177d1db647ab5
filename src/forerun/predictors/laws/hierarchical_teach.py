"""From runs to a fitted model: which rows teach, where the parameters start, how far residuals lie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.domain.forecast import is_none
from forerun.domain.quantiles import Z95
from forerun.errors import RequestError
from forerun.predictors.laws.hierarchical_fit import Posterior, Teaching, fitted
from forerun.predictors.laws.hierarchical_law import AT, LawInputs
from forerun.predictors.laws.hierarchical_model import Known, Model
from forerun.predictors.laws.hierarchical_near import Near
from forerun.predictors.laws.hierarchical_prior import Tree, grown, means
from forerun.predictors.laws.hierarchical_rows import HierarchicalRows, Name
from forerun.predictors.laws.law_rows import ResourceReading as Read
from forerun.predictors.laws.law_rows import Span, spans
from forerun.tables import Runs

LEAST_RUNS = 3
# Compute that is less of the step than this is no measurement of it.
_LEAST_COMPUTE = 0.02
# Spread of residuals where few teach: as wide as other laws of this kind are off.
PRIOR_SIGMA, PRIOR_RUNS, SMALLEST_SIGMA = 0.07, 8.0, 0.02
# A run that its law hangs on alone says nothing of how far runs lie from it.
MOST_LEVERAGE = 0.75
_HALF = 0.7  # of a step at the middle batch is fixed, as a log: exp(-0.7)


def taught(
    runs: Runs, seconds: FloatArray, quantity: str
) -> tuple[Model, Posterior, tuple[str, ...]]:
    """Return what runs teach, of which some have the seconds of the quantity, (n,) or NaN.

    With it come sentences on runs that could not be read.

    Raises:
        RequestError: fewer than `LEAST_RUNS` can teach.
    """
    usable = _usable(runs, seconds, quantity)
    rows = HierarchicalRows(runs.jobs.take(usable), quantity)
    names, pair = rows.names
    apps = list(dict.fromkeys(app for app, _ in names))
    clusters = list(dict.fromkeys(cluster for _, cluster in names))
    app_of = np.array([apps.index(app) for app, _ in names])
    cluster_of = np.array([clusters.index(cluster) for _, cluster in names])
    keep, batched, cores_known, wires_known = _readable(rows, pair, app_of, cluster_of)
    notes = _unplaced(int(np.count_nonzero(~keep & np.isfinite(rows.micro_batch))), len(runs))
    order = np.flatnonzero(keep)[np.argsort(pair[keep], kind="stable")]
    rows = HierarchicalRows(runs.jobs.take(usable[order]), quantity)
    pair, seconds = pair[order], seconds[usable[order]]
    present, group = np.unique(pair, return_inverse=True)
    names = [names[i] for i in present]
    app = np.array([apps.index(a) for a, _ in names])
    cluster = np.array([clusters.index(c) for _, c in names])
    batch = np.where(batched[app[group]], rows.micro_batch, 1.0)
    log_batch = np.log(batch)
    batches = [_span(log_batch[app[group] == i]) if batched[i] else None for i in range(len(apps))]
    cores = Read.of(rows.resources.log_cores, app[group], cores_known)
    wires = Read.of(rows.resources.log_wire, cluster[group], wires_known)
    place = places(log_batch, [batches[i] for i in app], group)
    x = rows.inputs(place, batch, cores.values, wires.values)
    log_seconds = np.log(seconds)
    compute = _compute(runs, usable[order], seconds, x.devices, quantity)
    processor = _processors(rows, group, [cores_known[i] is not None for i in app])
    start, known = _starts(rows, log_seconds - x.log_steps, log_batch, app, group, x, processor)
    teaching = Teaching(x, group, _sessions(rows, group), log_seconds, compute, start)
    workloads = list(dict.fromkeys(a[0] for a in apps))
    workload = np.array([workloads.index(apps[i][0]) for i in app])
    # Clusters are numbered in the order in which the groups name them.
    cluster_at = cluster
    order_of = list(dict.fromkeys(cluster.tolist()))
    cluster = np.array([order_of.index(c) for c in cluster.tolist()])
    tree = grown(workload, app, cluster, known)
    posterior = fitted(teaching, tree)
    sigma = residual_sigma(left_out(posterior, tree, group), group, len(names))
    texts, placement = rows.placements
    groups, near = [], []
    for i, name in enumerate(names):
        mine = group == i
        part = x.take(mine)
        given = cores_known[app[i]], wires_known[cluster_at[i]]
        groups.append(_known(name, batches[app[i]], log_batch[mine], part, sigma[i], *given))
        near.append(_near(part, placement[mine], posterior.residual[mine]))
    model = Model(
        tuple(groups), posterior.theta, posterior.shared, posterior.covariance, posterior.alone,
        posterior.gain, tree.shared, tree.cluster_effect, tuple(texts), tuple(near),
    )  # fmt: skip
    return model, posterior, notes


def _usable(runs: Runs, seconds: FloatArray, quantity: str) -> IntArray:
    """Return positions of the runs with a time that the law is of. Raises as `taught`."""
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
    return usable


def _readable(
    rows: HierarchicalRows, pair: IntArray, app_of: IntArray, cluster_of: IntArray
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], list[Span | None], list[Span | None]]:
    """Return which rows teach, whose apps' batches are read, and spans of cores and wires.

    A batch is read where most runs of an app state one; those that do not are left out then. So are
    those that state no resource where others of their app (cores) or cluster (wire) differ in it.

    Args:
        pair: of app and cluster, of each row. app_of, cluster_of: of each pair.
    """
    app, cluster = app_of[pair], cluster_of[pair]
    apps, clusters = int(app_of.max()) + 1, int(cluster_of.max()) + 1
    stated = np.isfinite(rows.micro_batch)
    batched = 2 * np.bincount(app, stated, apps) >= np.bincount(app, minlength=apps)
    keep = stated | ~batched[app]
    given = rows.resources
    cores, wires = spans(given.log_cores, app, apps), spans(given.log_wire, cluster, clusters)
    keep &= ~Read.of(given.log_cores, app, cores).ambiguous
    keep &= ~Read.of(given.log_wire, cluster, wires).ambiguous
    return keep, batched, cores, wires


def _unplaced(count: int, every: int) -> tuple[str, ...]:
    """Return what is said of runs that state no resource where others differ in it."""
    if not count:
        return ()
    return (
        f"of {every:,} runs {count:,} state no cpus_per_worker or no node_gbps, in which the others differ,"
        " and teach nothing; state them",
    )


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

    Drawn to the usual where few teach: a law of many parameters passes near a few runs. Where all groups
    together lie farther off than is usual, it is drawn to that.
    """
    result = np.empty(groups)
    usual = max(PRIOR_SIGMA, float(np.quantile(np.abs(residual), 0.9)) / Z95)
    for i in range(groups):
        mine = np.abs(residual[group == i])
        wide = float(np.quantile(mine, 0.9)) / Z95
        pooled = (len(mine) * wide**2 + PRIOR_RUNS * usual**2) / (len(mine) + PRIOR_RUNS)
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
    cores: Span | None,
    wire: Span | None,
) -> Known:
    rates = float(np.median(x.intra_rate)), float(np.median(x.inter_rate))
    return Known(
        name[0], name[1], len(x), span, _span(log_batch), float(x.devices.max()),
        float(x.nodes.max()), rates, float(sigma), cores, wire,
    )  # fmt: skip


def _processors(
    rows: HierarchicalRows, group: IntArray, given: Sequence[bool]
) -> NDArray[np.int64]:
    """Return of each group 1 where it computes on a processor, -1 where on something else, else 0.

    given: which groups state their cores: on an unknown device that is what computes.
    """
    known = rows.resources.processors[np.unique(group, return_index=True)[1]]
    return np.where((known == 0) & np.array(given, dtype=bool), 1, known)


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
    group: IntArray, x: LawInputs, processor: IntArray,
) -> tuple[FloatArray, NDArray[np.bool_]]:  # fmt: skip
    """Return where each group's parameters start, (g, p), and whose gradients are known, (apps,).

    app, processor: of each group, (g,); see `_processors`.
    """
    count = int(app.max()) + 1
    start, volume = np.empty((count, 2)), np.empty(count)
    known = np.zeros(count, dtype=bool)
    gradients = rows.gradients_gb
    whole = np.isfinite(rows.log_steps_known)
    alone = means(np.zeros((len(app), 2)), np.full(len(app), np.nan), processor)[group]
    speed = alone[:, AT["share"]] * x.log_share + alone[:, AT["cores"]] * x.log_cores
    of = app[group]
    for i in range(count):
        mine = np.flatnonzero(of == i)
        few = mine[x.devices[mine] == x.devices[mine].min()]
        base = float(np.median((log_step + speed)[few])) - _HALF
        start[i] = base, base - float(np.median(log_batch[few]))
        size = gradients[mine[0]] if whole[mine].all() else np.nan
        known[i] = bool(np.isfinite(size))
        volume[i] = np.log(size) if known[i] else base + _HALF
    small = np.where(known, volume, np.nan)
    return means(start[app], volume[app], processor, small[app]), known


def _sessions(rows: HierarchicalRows, group: IntArray) -> IntArray:
    """Return which rows share a group and a placement, (n,): they were measured together."""
    nodes, busy = rows.nodes_and_busy
    given = (rows.resources.log_cores, rows.resources.log_wire)
    columns = (
        group, np.nan_to_num(rows.law_rows.machines), nodes, busy, rows.placements[1],
        *(np.nan_to_num(one) for one in given),
    )  # fmt: skip
    keys = np.stack([np.asarray(c, dtype=np.float64) for c in columns], axis=1)
    return np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)


def _near(x: LawInputs, placement: IntArray, residual: FloatArray) -> Near:
    sizes = (x.devices, x.nodes, x.busy, x.cores, x.inter_rate)
    return Near(np.log(x.micro_batch), *sizes, placement, residual)
