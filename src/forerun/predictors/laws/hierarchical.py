"""Hierarchical: all-reduce physics whose parameters are pooled over apps and clusters.

One law (`hierarchical_law`) for every app on every cluster: what runs of one say of a network and of an
app's shape serves the others, so that one to eight runs on a new cluster are enough to start. An app is a
workload in one framework, precision, sequence length, image size, kind of synchronisation and dataset; a
cluster is a device in one instance type, label and interconnect. Neither must be known to the zoo or the
catalogue: labels serve. A job whose app and cluster were both run, though never together, is answered by
the app's own group on another cluster, moved by the difference of the two clusters' effects. Near
the runs a Gaussian process on the law's residuals corrects it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.domain.forecast import QUANTITIES, Forecasts, is_none
from forerun.domain.hardware import Cluster
from forerun.domain.plan import PS_ASYNC, PS_SYNC, SYNC
from forerun.domain.quantiles import Z95, spread
from forerun.errors import RequestError
from forerun.predictors.laws.fitting import ColumnRows
from forerun.predictors.laws.grouped import article
from forerun.predictors.laws.hierarchical_fit import (
    WIDTHS,
    EffectTree,
    FitRows,
    Posterior,
    effect_tree,
    maximum_posterior,
    prior_means,
)
from forerun.predictors.laws.hierarchical_law import (
    AT,
    COUNT,
    HOST_SHARE,
    LARGEST_LOG_OVERLAP,
    REFERENCE_RATE,
    LawInputs,
    LawTimes,
    evaluate_law,
)
from forerun.predictors.laws.law_rows import (
    GROUP,
    RUN_SETTINGS,
    SETTINGS,
    LawRows,
    ResourceReading,
    Span,
    compact,
    completed,
    measured,
    spans,
)
from forerun.predictors.saved import read_saved
from forerun.tables import Jobs, Runs, sorted_runs
from forerun.units import GIGA

Name = tuple[str, ...]

VERSION = 4
PARTS = ("compute", "communication")
APP = ("workload", "framework", "precision", "seq_len", "image_size", "sync", "dataset",
       *RUN_SETTINGS)  # fmt: skip
CLUSTER = ("device", "instance_type", "cluster", "interconnect")
# Texts of the row itself: a precision that nobody stated is not the usual one of its workload.
_ROW_TEXTS = ("dataset", "cluster", "interconnect", "precision")
# Of an Amazon machine one TCP flow goes at 10 Gb/s at most, inside a placement group (its own
# documentation of instance network bandwidth); a ring has one flow to its neighbour.
FLOW_GB_PER_S = 1.25
_AMAZON = re.compile(r"\b(aws|amazon|ec2)\b", re.IGNORECASE)
_NETWORK = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*g(?:b|bit|bps)", re.IGNORECASE)
# Nominal rates where nothing is known of the machine: PCIe 3.0, and 10 Gb/s Ethernet.
USUAL_INTRA_GB, USUAL_INTER_GB = 16.0, 1.25
_ROUNDING = 1e-9
CHUNK = 16384

LEAST_RUNS = 3
# Compute that is less of the step than this is no measurement of it.
_LEAST_COMPUTE = 0.02
# Spread of residuals where runs are few: as wide as other laws of this kind are off.
PRIOR_SIGMA, PRIOR_RUNS, SMALLEST_SIGMA = 0.07, 8.0, 0.02
# A run that alone determines its law says nothing of how far runs lie from it.
MOST_LEVERAGE = 0.75
_HALF = 0.7  # of a step at the middle batch is fixed, as a log: exp(-0.7)
# The span of micro-batches over which the shape of compute is drawn is no less, as a log.
_LEAST_SPAN = 0.3

# Log standard deviations of an answer by the runs of other settings, and distances.
OTHER_APP_SIGMA, OTHER_CLUSTER_SIGMA = 0.3, 0.3
NEAR, NOT_TOGETHER, OTHER_SETTINGS = 0.1, 0.4, 0.5
# Log standard deviation, and distance, of each doubling of devices, nodes, batch or resources beyond the runs.
GROWTH_SIGMA, GROWTH_DISTANCE = 0.05, 0.2
_UNFITTED = (
    "hierarchical answers from runs alone and was given none; give at least 3 data-parallel runs"
)

# Of the residuals' Gaussian process: standard deviations in units of the noise of one run, of a
# micro-batch, of one placement and of near layouts; their lengths in logs of the micro-batch; and the
# length in doublings of devices, nodes, devices a node, cores and link rate.
NOISE, BATCH, PLACEMENT, LAYOUT = 1.0, 0.75, 1.25, 2.0
BATCH_LENGTH, PLACEMENT_LENGTH, NEAR_LENGTH, LAYOUT_LENGTH = 1.0, 2.0, 1.5, 2.0
LEAST_RESIDUALS = 8
LEAST_GAIN = 0.03  # of the middle residual, by leaving runs out
_OUTLIER = 4.0  # robust standard deviations, beyond which a residual is cut
_MOST_BATCHES = 48
# Logs of micro-batches beyond the runs that are tabulated.
_TABULATED = np.log(2.0) * np.array([1.0, 2.0, 4.0])


@dataclass(frozen=True)
class HierarchicalRows(LawRows):
    """n jobs by app and cluster, and as numbers."""

    apart: bool = False  # resources are numbers here

    @cached_property
    def names(self) -> tuple[list[tuple[Name, Name]], IntArray]:
        """Distinct pairs of app and cluster, and which each job is, (n,)."""
        kinds, kind = self.kinds
        stated = tuple(name for name in _ROW_TEXTS if name in self.labels)
        texts: list[Name] = [()]
        code = np.zeros(len(self.jobs), dtype=np.int64)
        if stated:
            none = np.full(len(self.jobs), -1, dtype=np.int32)
            texts, code = completed([], none, self.labels, stated)
        count = max(len(texts), 1)
        distinct, index = compact(kind * count + code, max(len(kinds), 1) * count)
        pairs = []
        for value in distinct.tolist():
            k, t = divmod(value, count)
            settings = dict.fromkeys((*RUN_SETTINGS, *_ROW_TEXTS), "")  # kinds of steps end earlier
            settings.update(zip((*GROUP, *SETTINGS, *RUN_SETTINGS), kinds[k], strict=False))
            settings.update(zip(stated, texts[t], strict=True))
            pairs.append((tuple(settings[f] for f in APP), tuple(settings[f] for f in CLUSTER)))
        merged = list(dict.fromkeys(pairs))
        place = {pair: i for i, pair in enumerate(merged)}
        return merged, np.array([place[pair] for pair in pairs], dtype=np.int64)[index]

    @cached_property
    def nodes_and_busy(self) -> tuple[FloatArray, FloatArray]:
        """Nodes, and devices on the busiest of them, (n,) each; one node where nothing states it."""
        devices = np.where(self.machines >= 1, self.machines, 1.0)
        nodes, busy = self.placements.nodes, self.placements.most
        nodes = np.where(nodes >= 1, np.minimum(nodes, devices), 1.0)
        busy = np.where(busy >= 1, np.minimum(busy, devices), np.ceil(devices / nodes))
        return nodes, busy

    @cached_property
    def layouts(self) -> tuple[list[str], IntArray]:
        """Distinct placements as text, and which each job has, (n,); blank where none is stated."""
        if "placement" not in self.labels:
            known = ["-".join(map(str, cluster.placement)) for cluster in self.jobs.clusters]
            return [*known, ""], self.jobs.cluster_index.astype(np.int64) % (len(known) + 1)
        texts = self.labels.texts("placement").tolist()
        place = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        return list(place), np.fromiter(map(place.__getitem__, texts), np.int64, len(texts))

    @cached_property
    def rates(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Nominal GB/s inside a node, of a node's network, and the most of one flow, (n,) each."""
        table = np.array([
            *map(_cluster_rates, self.jobs.clusters), (USUAL_INTRA_GB, USUAL_INTER_GB, np.inf)
        ])  # fmt: skip
        intra, inter, flow = table[self.jobs.cluster_index].T
        loose = np.flatnonzero(self.jobs.cluster_index < 0)
        if len(loose) and "interconnect" in self.labels:
            texts = self.labels.texts("interconnect")[loose].tolist()
            found = {text: _NETWORK.search(text) for text in set(texts)}
            rate = {t: float(m.group(1)) / 8.0 if m else USUAL_INTER_GB for t, m in found.items()}
            inter = inter.copy()
            inter[loose] = [rate[text] for text in texts]
        return intra, inter, flow

    @cached_property
    def linked(self) -> BoolArray:
        """Which jobs state what joins their nodes, in a cluster or as text, (n,)."""
        known = self.jobs.cluster_index >= 0
        if "interconnect" not in self.labels:
            return known
        return np.asarray(known | (self.labels.texts("interconnect") != ""), dtype=bool)

    @cached_property
    def own_batch(self) -> FloatArray:
        """Samples of a device's forward-backward, else its share of the data, (n,), or NaN."""
        batch = self.micro_batch
        if self.quantity != "step":
            share = self.size("dataset_size") / self.machines
            batch = np.where(np.isnan(self.log_steps), share, batch)
        return np.where(batch > 0, batch, np.nan)

    @cached_property
    def log_steps(self) -> FloatArray:
        """Log of the steps of one pass through the data, (n,), NaN where not known."""
        if self.quantity == "step":
            return np.zeros(len(self.jobs))
        with np.errstate(invalid="ignore"):
            # The last step of a pass has what is left; as many as it has samples are no step less.
            count = self.size("dataset_size") / self.size("global_batch")
            return np.asarray(np.log(np.ceil(count * (1.0 - _ROUNDING))))

    @cached_property
    def unsuitable(self) -> NDArray[np.object_]:
        """Why a job is no data-parallel all-reduce, (n,) of text or None."""
        reasons = np.full(len(self.jobs), None, dtype=object)
        split = np.ones(len(self.jobs))
        for name in ("tp", "pp", "cp"):
            stated = self.labels.numbers(name)
            split = split * np.where(np.isnan(stated), getattr(self.jobs.plans, name), stated)
        reasons[split > 1] = (
            "it splits the model (tp, pp or cp above 1); this law is of data-parallel training"
        )
        servers = np.isin(self.sync, [PS_SYNC, PS_ASYNC])
        reasons[servers] = "parameter servers follow another law than all-reduce; ask ps-saturation"
        reasons[~(self.machines > 0)] = "the row says no number of devices"
        problems = self.jobs.plan_problem
        if problems is not None:
            illegal = self.states_plan & ~is_none(problems) & is_none(reasons)
            reasons[illegal] = problems[illegal]
        return reasons

    def inputs(
        self, place: FloatArray, batch: FloatArray, log_cores: FloatArray, log_wire: FloatArray
    ) -> LawInputs:
        """Return what the law reads.

        Args:
            place: of each micro-batch among those measured, (n,), see `LawInputs`.
            batch: micro-batches, (n,), 1 where the law of the job has none.
            log_cores, log_wire: of a worker's cores and of the GB/s of its network, (n,), NaN where the
                law of the job reads none.
        """
        nodes, busy = self.nodes_and_busy
        intra, inter, flow = self.rates
        cores = np.nan_to_num(log_cores)
        # A stated rate of a known link is a ratio to it; of an unknown one it means nothing.
        log_wire = np.where(np.isnan(log_wire) & self.linked, self.log_wire, log_wire)
        stated = np.isfinite(log_wire)
        inter = np.where(stated, np.minimum(np.exp(log_wire), flow), inter)
        return LawInputs(
            np.fmax(self.machines, 1.0), nodes, busy, batch, self.accumulation, place, intra, inter,
            np.nan_to_num(self.log_steps), np.minimum(cores, 0.0), np.maximum(cores, 0.0),
            np.where(stated, np.log(inter / REFERENCE_RATE), 0.0),
        )  # fmt: skip

    @cached_property
    def gradients_gb(self) -> FloatArray:
        """Gigabytes of gradients of each job (n,), NaN where its workload is not resolved."""
        known = [
            w.params * (2.0 if w.precision in ("fp16", "bf16") else 4.0) / GIGA or np.nan
            for w in self.jobs.workloads
        ]
        return np.array([*known, np.nan])[self.jobs.workload_index]


def _cluster_rates(cluster: Cluster) -> tuple[float, float, float]:
    """Return GB/s inside a node, of a node's network, and the most that one flow can carry."""
    inter = cluster.inter.bytes_per_second * cluster.devices_per_node / GIGA
    name = f"{cluster.provider} {cluster.instance_type}"
    capped = cluster.inter.kind == "ethernet" and _AMAZON.search(name) is not None
    flow = FLOW_GB_PER_S if capped else np.inf
    return cluster.intra.bytes_per_second / GIGA, min(inter, flow), flow


@dataclass(frozen=True)
class RunPoints(ColumnRows):
    """n points of one group, each column (n,): what tells how alike two residuals are.

    cores of a worker, rate in GB/s of the network; placements are positions in a list of texts, -1 for
    none of them.
    """

    log_batch: FloatArray
    devices: FloatArray
    nodes: FloatArray
    busy: FloatArray
    cores: FloatArray
    rate: FloatArray
    placement: IntArray

    def kernel(self, runs: RunPoints) -> FloatArray:
        """Return how alike the residuals of these points and of m runs are, (n, m)."""
        batch = np.abs(self.log_batch[:, None] - runs.log_batch)
        same = (self.placement[:, None] == runs.placement) & (runs.placement >= 0)
        far = np.zeros_like(batch)
        for name in ("devices", "nodes", "busy", "cores", "rate"):
            x, y = getattr(self, name), getattr(runs, name)
            far += (np.log2(x)[:, None] - np.log2(y)) ** 2
            if name in ("devices", "nodes", "busy"):
                same &= x[:, None] == y
        result = BATCH**2 * np.exp(-batch / BATCH_LENGTH)
        result += PLACEMENT**2 * same * np.exp(-batch / PLACEMENT_LENGTH)
        result += LAYOUT**2 * np.exp(-batch / NEAR_LENGTH - np.sqrt(far) / LAYOUT_LENGTH)
        return np.asarray(result)


@dataclass(frozen=True)
class ResidualSmoother:
    """What the law leaves of the measured times of one group, smoothed over layout and micro-batch.

    Runs of one placement share its luck, those of one micro-batch an algorithm, those of near layouts a
    network; far from all of them the correction dies away. It is used where leaving each run
    out shows a gain.

    Attributes:
        points: of the runs. residual: log measured over the law's seconds, (n,).
        tables: corrections and supports over `batches` of the layouts predicted so far.
    """

    points: RunPoints
    residual: FloatArray
    tables: dict[tuple[float, ...], tuple[FloatArray, FloatArray]] = field(default_factory=dict)

    @cached_property
    def solved(self) -> tuple[FloatArray, float] | None:
        """Weights of the residuals, and the log sigma of a run beside the others; None for no gain."""
        n = len(self.residual)
        if n < LEAST_RESIDUALS:
            return None
        middle = float(np.median(np.abs(self.residual)))
        cut = np.clip(self.residual, -_OUTLIER * 1.4826 * middle, _OUTLIER * 1.4826 * middle)
        inverse = np.linalg.inv(self.points.kernel(self.points) + NOISE**2 * np.eye(n))
        weights = inverse @ cut
        left_out = weights / np.diag(inverse) + (self.residual - cut)
        if 1.0 - np.median(np.abs(left_out)) / max(middle, 1e-12) < LEAST_GAIN:
            return None
        return weights, float(np.quantile(np.abs(left_out), 0.9)) / Z95

    def corrections(self, jobs: RunPoints) -> tuple[FloatArray, FloatArray]:
        """Return the log correction of n jobs and how near they are to runs, 0 to 1, (n,) each."""
        layout = (jobs.devices, jobs.nodes, jobs.busy, jobs.placement, jobs.cores, jobs.rate)
        code = np.zeros(len(jobs), dtype=np.int64)
        for column in layout:
            if np.any(column != column[0]):
                distinct, one = np.unique(column, return_inverse=True)
                code = np.unique(code * len(distinct) + one.reshape(-1), return_inverse=True)[1]
                code = code.reshape(-1)
        correction, support = np.empty(len(code)), np.empty(len(code))
        order = np.argsort(code, kind="stable")
        for mine in np.split(order, np.cumsum(np.bincount(code))[:-1]):
            shift, near = self._table(tuple(float(column[mine[0]]) for column in layout))
            correction[mine] = np.interp(jobs.log_batch[mine], self.batches, shift)
            support[mine] = np.interp(jobs.log_batch[mine], self.batches, near)
        return correction, support

    @cached_property
    def batches(self) -> FloatArray:
        """Logs of the micro-batches at which corrections are tabulated, ascending."""
        known = np.unique(self.points.log_batch)
        if len(known) > _MOST_BATCHES:
            known = np.quantile(known, np.linspace(0.0, 1.0, _MOST_BATCHES))
        middle = (known[1:] + known[:-1]) / 2.0
        every = [known[0] - _TABULATED, known, middle, known[-1] + _TABULATED]
        return np.unique(np.concatenate(every))

    def _table(self, layout: tuple[float, ...]) -> tuple[FloatArray, FloatArray]:
        if layout not in self.tables:
            assert self.solved is not None
            devices, nodes, busy, place, cores, rate = (
                np.full(len(self.batches), value) for value in layout
            )
            points = RunPoints(self.batches, devices, nodes, busy, cores, rate, place.astype(int))
            like = points.kernel(self.points)
            whole = BATCH**2 + PLACEMENT**2 + LAYOUT**2
            self.tables[layout] = like @ self.solved[0], like.max(axis=1) / whole
        return self.tables[layout]


@dataclass(frozen=True)
class FittedGroup:
    """One group: an app on a cluster, and what its runs spanned.

    Attributes:
        app, cluster: their names. runs: how many were fitted.
        batch: logs of the least and largest micro-batch of the app; None where its runs state none.
        devices, nodes: the most that a run had. own_batch: logs of the span in this group.
        rates: nominal GB/s inside a node and of a node's network.
        sigma: log standard deviation of a run about its forecast.
        cores, wire: logs of the least and most cores of a worker that runs of the app state, and of the
            GB/s that those on the cluster do; None where most state none.
    """

    app: Name
    cluster: Name
    runs: int
    batch: Span | None
    own_batch: Span
    devices: float
    nodes: float
    rates: Span
    sigma: float
    cores: Span | None = None
    wire: Span | None = None


@dataclass(frozen=True)
class Source:
    """What answers a pair of app and cluster: a group, and what is changed of it.

    Attributes:
        group: whose parameters are used. cluster: whose effect replaces its own, -1 for none.
        sigma: log standard deviation that this adds. distance: how far off this is.
    """

    group: int
    cluster: int
    sigma: float
    distance: float


@dataclass(frozen=True)
class HierarchicalModel:
    """Parameters and covariance of g groups; see `hierarchical_fit.Posterior` and `EffectTree`.

    placements: the texts of the placements that runs had. smoothers: of the residuals of each group.
    """

    groups: tuple[FittedGroup, ...]
    theta: FloatArray
    shared: FloatArray
    covariance: FloatArray
    alone: FloatArray
    gain: FloatArray
    members: BoolArray
    cluster_effect: IntArray
    placements: tuple[str, ...]
    smoothers: tuple[ResidualSmoother, ...]

    @cached_property
    def clusters(self) -> tuple[Name, ...]:
        """Distinct clusters, in the order of `cluster_effect`."""
        return tuple(dict.fromkeys(group.cluster for group in self.groups))

    def source(self, app: Name, cluster: Name) -> Source | str:
        """Return what answers a pair, or why nothing does."""
        apps = list(dict.fromkeys(g.app for g in self.groups if g.app[0] == app[0]))
        if not apps:
            return f"no run is of {app[0] or 'a workload without a name'}"
        here = [c for c in self.clusters if c[0] == cluster[0]]
        if not here:
            return (
                f"no run is on {cluster[0] or 'a device without a name'}; one short run of any "
                "workload there would do"
            )
        own, place = _most_alike(app, apps), _most_alike(cluster, here)
        sigma = float(np.hypot(
            OTHER_APP_SIGMA * _contradicts(app, own),
            OTHER_CLUSTER_SIGMA * _contradicts(cluster, place),
        ))  # fmt: skip
        distance = OTHER_SETTINGS if sigma else NEAR
        mine = [i for i, group in enumerate(self.groups) if group.app == own]
        for i in mine:
            if self.groups[i].cluster == place:
                return Source(i, -1, sigma, distance)
        best = max(mine, key=lambda i: self.groups[i].runs)
        return Source(best, self.clusters.index(place), sigma, distance + NOT_TOGETHER)

    def wire(self, source: Source) -> Span | None:
        """Return the rates that runs on the answering cluster state, see `FittedGroup`."""
        if source.cluster < 0:
            return self.groups[source.group].wire
        place = self.clusters[source.cluster]
        return next(group.wire for group in self.groups if group.cluster == place)

    def effects(self, source: Source) -> BoolArray:
        """Return the shared effects of which the answer's parameters are the sum, (b,)."""
        effects: BoolArray = self.members[source.group].copy()
        if source.cluster >= 0:
            effects[self.cluster_effect] = False
            effects[self.cluster_effect[source.cluster]] = True
        return effects

    def parameters(self, source: Source) -> FloatArray:
        """Return the parameters that answer, (p,)."""
        change = self.effects(source).astype(int) - self.members[source.group]
        return np.asarray(self.theta[source.group] + change @ self.shared)

    def spread(self, source: Source) -> FloatArray:
        """Return how the answer's parameters follow the shared effects, (p, b p)."""
        new, old = self.effects(source), self.members[source.group]
        result = (
            np.eye(COUNT)[:, None] * new[:, None] - self.gain[source.group][:, None] * old[:, None]
        )
        return np.asarray(result.reshape(COUNT, -1))

    def uncertainty(self, source: Source) -> FloatArray:
        """Return the covariance of the parameters that answer, (p, p)."""
        spread = self.spread(source)
        felt = np.flatnonzero(np.any(spread != 0.0, axis=0))
        part = spread[:, felt]
        shared = self.covariance[np.ix_(felt, felt)]
        result = np.asarray(self.alone[source.group] + part @ shared @ part.T)
        if source.cluster >= 0:
            result += 2.0 * np.diag(np.array([width[-1] for width in WIDTHS.values()]) ** 2)
        return result


def _most_alike(wanted: Name, known: Sequence[Name]) -> Name:
    """Return the name that agrees in most fields; blanks agree a little less than equals."""

    def agreement(name: Name) -> float:
        pairs = zip(wanted, name, strict=True)
        return sum(1.0 if a == b else 0.5 if not a or not b else 0.0 for a, b in pairs)

    return max(known, key=agreement)


def _contradicts(wanted: Name, found: Name) -> bool:
    return any(a and b and a != b for a, b in zip(wanted, found, strict=True))


def fitted_model(
    runs: Runs, seconds: FloatArray, quantity: str
) -> tuple[HierarchicalModel, list[str]]:
    """Return the model of runs, of which some have the seconds of the quantity, (n,) or NaN.

    With it come sentences on runs that could not be read.

    Raises:
        RequestError: fewer than `LEAST_RUNS` can be used.
    """
    usable = _usable(runs, seconds, quantity)
    rows = HierarchicalRows(runs.jobs.take(usable), quantity)
    names, pair = rows.names
    apps = list(dict.fromkeys(app for app, _ in names))
    clusters = list(dict.fromkeys(cluster for _, cluster in names))
    app_of = np.array([apps.index(app) for app, _ in names])
    cluster_of = np.array([clusters.index(cluster) for _, cluster in names])
    keep, batched, cores_known, wires_known = _readable(rows, app_of[pair], cluster_of[pair])
    notes = []
    if unread := int(np.count_nonzero(~keep & np.isfinite(rows.own_batch))):
        notes.append(
            f"of {len(runs):,} runs {unread:,} state no cpus_per_worker or no node_gbps, in which the "
            "others differ, and are left out; state them"
        )
    order = np.flatnonzero(keep)[np.argsort(pair[keep], kind="stable")]
    rows = HierarchicalRows(runs.jobs.take(usable[order]), quantity)
    present, group = np.unique(pair[order], return_inverse=True)
    app, cluster = app_of[present], cluster_of[present]
    batch = np.where(batched[app[group]], rows.own_batch, 1.0)
    log_batch = np.log(batch)
    batches = [
        (float(log_batch[app[group] == i].min()), float(log_batch[app[group] == i].max()))
        if batched[i] and (app[group] == i).any() else None
        for i in range(len(apps))
    ]  # fmt: skip
    cores = ResourceReading.of(rows.log_cores, app[group], cores_known).values
    wires = ResourceReading.of(rows.log_wire, cluster[group], wires_known).values
    place = batch_places(log_batch, [batches[i] for i in app], group)
    x = rows.inputs(place, batch, cores, wires)
    log_seconds = np.log(seconds[usable[order]])
    processor = rows.processors[np.unique(group, return_index=True)[1]]
    # Cores that are stated of an unknown device are what computes.
    states_cores = np.array([cores_known[i] is not None for i in app])
    processor = np.where((processor == 0) & states_cores, 1, processor)
    start, known = _starts(rows, log_seconds - x.log_steps, log_batch, app, group, x, processor)
    compute = _log_compute(runs, usable[order], np.exp(log_seconds), x.devices, quantity)
    fit_rows = FitRows(x, group, _sessions(rows, group), log_seconds, compute, start)
    workloads = [apps[i][0] for i in app]
    # Clusters are numbered in the order in which the groups name them.
    numbers = list(dict.fromkeys(cluster.tolist()))
    tree = effect_tree(
        np.array([workloads.index(name) for name in workloads]), app,
        np.array([numbers.index(i) for i in cluster]), known,
    )  # fmt: skip
    posterior = maximum_posterior(fit_rows, tree)
    sigma = residual_sigma(left_out(posterior, tree, group), group, len(present))
    texts, placement = rows.layouts
    parts = [np.flatnonzero(group == i) for i in range(len(present))]
    groups = [
        _group(names[at], x.take(mine), batches[app[i]], float(sigma[i]),
               (cores_known[app[i]], wires_known[cluster[i]]))
        for i, (at, mine) in enumerate(zip(present, parts, strict=True))
    ]  # fmt: skip
    smoothers = [
        ResidualSmoother(_points(x.take(mine), placement[mine]), posterior.residual[mine])
        for mine in parts
    ]
    model = HierarchicalModel(
        tuple(groups), posterior.theta, posterior.shared, posterior.covariance, posterior.alone,
        posterior.gain, tree.members, tree.cluster_effect, tuple(texts), tuple(smoothers),
    )  # fmt: skip
    if not posterior.converged:
        rounds = posterior.rounds
        notes.append(f"the fit had not settled after {rounds} rounds; the best found is used")
    return model, notes


def _readable(
    rows: HierarchicalRows, app: IntArray, cluster: IntArray
) -> tuple[BoolArray, BoolArray, list[Span | None], list[Span | None]]:
    """Return which rows are read, whose apps' batches are, and spans of cores and networks.

    A batch is read where most runs of an app state one; those that do not are left out then. So are
    those that state no resource where others of their app (cores) or cluster (network) differ in it.
    """
    stated = np.isfinite(rows.own_batch)
    batched = 2 * np.bincount(app, stated) >= np.bincount(app)
    cores = spans(rows.log_cores, app, int(app.max()) + 1)
    wires = spans(rows.log_wire, cluster, int(cluster.max()) + 1)
    keep = stated | ~batched[app]
    keep &= ~ResourceReading.of(rows.log_cores, app, cores).ambiguous
    keep &= ~ResourceReading.of(rows.log_wire, cluster, wires).ambiguous
    return keep, batched, cores, wires


def _group(
    name: tuple[Name, Name], x: LawInputs, batch: Span | None, sigma: float,
    resources: tuple[Span | None, Span | None],
) -> FittedGroup:  # fmt: skip
    log_batch = np.log(x.micro_batch)
    return FittedGroup(
        name[0], name[1], len(x), batch, (float(log_batch.min()), float(log_batch.max())),
        float(x.devices.max()), float(x.nodes.max()),
        (float(np.median(x.intra_rate)), float(np.median(x.inter_rate))), sigma, *resources,
    )  # fmt: skip


def _usable(runs: Runs, seconds: FloatArray, quantity: str) -> IntArray:
    """Return positions of the runs with a time that the law is of. Raises as `fitted_model`."""
    reasons = HierarchicalRows(runs.jobs, quantity).unsuitable
    usable = np.flatnonzero(np.isfinite(seconds) & is_none(reasons))
    if len(usable) >= LEAST_RUNS:
        return usable
    found = f"{len(usable)} of them are data-parallel all-reduce runs with a time"
    refused = Counter(reasons[np.isfinite(seconds) & ~is_none(reasons)].tolist()).most_common(2)
    if refused:
        found += "; of the others " + "; ".join(f"{count:,}: {why}" for why, count in refused)
    raise RequestError(
        f"fitting hierarchical on {len(runs)} runs", found,
        f"give at least {LEAST_RUNS}, best with the smallest and the largest batch on one "
        "device and one on several nodes",
    )  # fmt: skip


def batch_places(
    log_batch: FloatArray, spans: Sequence[Span | None], group: IntArray
) -> FloatArray:
    """Return where each micro-batch lies in the span of its group's app, 0 to 1 within it."""
    low = np.array([*(s[0] if s else 0.0 for s in spans), 0.0])
    width = np.array([*(max(s[1] - s[0], _LEAST_SPAN) if s else 1.0 for s in spans), 1.0])
    return np.asarray((log_batch - low[group]) / width[group])


def left_out(posterior: Posterior, tree: EffectTree, group: IntArray) -> FloatArray:
    """Return how far each run would lie from a law fitted without it, (n,), by its leverage."""
    result = posterior.residual.copy()
    for i in range(len(posterior.theta)):
        mine = group == i
        slopes, known = posterior.slopes[mine], posterior.uncertainty(tree.members, i)
        pull = posterior.weight[mine] * np.einsum("ni,ni->n", slopes @ known, slopes)
        result[mine] /= 1.0 - np.clip(pull, 0.0, MOST_LEVERAGE)
    return result


def residual_sigma(residual: FloatArray, group: IntArray, groups: int) -> FloatArray:
    """Return the log standard deviation that holds 90 % of a group's residuals, (g,).

    Drawn to the usual where runs are few: a law of many parameters passes near a few runs. Where all
    groups together lie farther off than is usual, it is drawn to that.
    """
    result = np.empty(groups)
    usual = max(PRIOR_SIGMA, float(np.quantile(np.abs(residual), 0.9)) / Z95)
    for i in range(groups):
        mine = np.abs(residual[group == i])
        wide = float(np.quantile(mine, 0.9)) / Z95
        pooled = (len(mine) * wide**2 + PRIOR_RUNS * usual**2) / (len(mine) + PRIOR_RUNS)
        result[i] = max(float(np.sqrt(pooled)), SMALLEST_SIGMA)
    return result


def _log_compute(
    runs: Runs, rows: IntArray, seconds: FloatArray, devices: FloatArray, quantity: str
) -> FloatArray:
    """Return the log of measured compute alone (n,): the step less its exposed synchronisation."""
    if quantity != "step":
        return np.full(len(rows), np.nan)
    sync = runs.measured("sync_time_s")[rows]
    with np.errstate(invalid="ignore"):
        alone = seconds - sync
        sound = (sync >= 0) & (alone > _LEAST_COMPUTE * seconds) & (devices > 1)
    return np.where(sound, np.log(np.where(sound, alone, 1.0)), np.nan)


def _starts(
    rows: HierarchicalRows, log_step: FloatArray, log_batch: FloatArray, app: IntArray,
    group: IntArray, x: LawInputs, processor: IntArray,
) -> tuple[FloatArray, BoolArray]:  # fmt: skip
    """Return where each group's parameters start, (g, p), and whose gradients are known, (apps,).

    app, processor: of each group, (g,); see `prior_means`.
    """
    count, of = int(app.max()) + 1, app[group]
    start, volume = np.zeros((count, 2)), np.zeros(count)
    known = np.zeros(count, dtype=bool)
    alone = prior_means(np.zeros((len(app), 2)), np.full(len(app), np.nan), processor)[group]
    speed = alone[:, AT["share"]] * x.log_share + alone[:, AT["cores"]] * x.log_cores
    for i in np.unique(of):
        mine = np.flatnonzero(of == i)
        few = mine[x.devices[mine] == x.devices[mine].min()]
        base = float(np.median((log_step + speed)[few])) - _HALF
        start[i] = base, base - float(np.median(log_batch[few]))
        size = rows.gradients_gb[mine[0]] if np.isfinite(rows.log_steps[mine]).all() else np.nan
        known[i] = np.isfinite(size)
        volume[i] = np.log(size) if known[i] else base + _HALF
    small = np.where(known, volume, np.nan)
    return prior_means(start[app], volume[app], processor, small[app]), known


def _sessions(rows: HierarchicalRows, group: IntArray) -> IntArray:
    """Return which rows share a group and a placement, (n,): they were measured together."""
    columns = (
        group, rows.machines, *rows.nodes_and_busy, rows.layouts[1], rows.log_cores, rows.log_wire,
    )  # fmt: skip
    keys = np.stack([np.nan_to_num(np.asarray(c, dtype=np.float64)) for c in columns], axis=1)
    return np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)


def _points(x: LawInputs, placement: IntArray) -> RunPoints:
    log_batch = np.log(x.micro_batch)
    return RunPoints(log_batch, x.devices, x.nodes, x.busy, x.cores, x.inter_rate, placement)


@dataclass(frozen=True)
class JobPart:
    """Some of the jobs that one group answers: their positions and what the law reads of them."""

    source: Source
    rows: IntArray
    x: LawInputs


@dataclass(frozen=True)
class Prediction:
    """n jobs and a fitted model: what answers each, and the law's answer, part by part."""

    model: HierarchicalModel
    rows: HierarchicalRows

    @cached_property
    def sources(self) -> tuple[list[Source | str], IntArray]:
        """What answers each distinct pair of app and cluster, and which each job is, (n,)."""
        names, index = self.rows.names
        return [self.model.source(app, cluster) for app, cluster in names], index

    @cached_property
    def declined(self) -> NDArray[np.object_]:
        """Why each job has no answer, or None, (n,)."""
        found, index = self.sources
        reasons = np.array([one if isinstance(one, str) else None for one in found] + [None])
        result = reasons.astype(object)[index].copy()
        result[is_none(result)] = self.rows.unsuitable[is_none(result)]
        groups = self.model.groups
        nodes = self.rows.nodes_and_busy[0]
        for missing, words in (
            (
                self._batched & np.isnan(self.rows.own_batch),
                "the row says no batch, and the runs of its workload do",
            ),
            (
                all(group.devices <= 1 for group in groups) & (self.rows.machines > 1),
                "its runs are all on one device, and this is more; run it on two",
            ),
            (
                all(group.nodes <= 1 for group in groups) & (nodes > 1) & ~self.rows.linked,
                "no run is on several nodes and nothing says how they are linked; run it on two, or "
                "state the interconnect",
            ),
        ):
            result[is_none(result) & missing] = words
        return result

    @cached_property
    def groups(self) -> IntArray:
        """Which group answers each job, (n,), -1 for none."""
        found, index = self.sources
        return np.array([-1 if isinstance(s, str) else s.group for s in found] + [-1])[index]

    @property
    def _batched(self) -> BoolArray:
        flags = [group.batch is not None for group in self.model.groups]
        return np.array([*flags, False])[self.groups]

    def parts(self) -> Iterator[JobPart]:
        """Yield the answered jobs, each part answered by one group."""
        found, index = self.sources
        rows = np.flatnonzero(is_none(self.declined))
        if not len(rows):
            return
        # Of 16 bits they are sorted by radix, many times faster.
        small = index[rows].astype(np.uint16 if len(found) < 65536 else np.int64)
        rows = rows[np.argsort(small, kind="stable")]
        edges = np.flatnonzero(np.r_[True, index[rows][1:] != index[rows][:-1]])
        for start, end in pairwise([*edges.tolist(), len(rows)]):
            source = found[index[rows[start]]]
            assert isinstance(source, Source)
            for low in range(start, end, CHUNK):
                mine = rows[low : min(low + CHUNK, end)]
                yield JobPart(source, mine, self.inputs.take(mine))

    @cached_property
    def inputs(self) -> LawInputs:
        """What the law reads of all jobs; rows that are declined hold ones."""
        batch = np.where(self._batched, self.rows.own_batch, 1.0)
        batch = np.where(np.isnan(batch), 1.0, batch)
        place = batch_places(np.log(batch), [g.batch for g in self.model.groups], self.groups)
        return self.rows.inputs(place, batch, self._cores.values, self._wire.values)

    @cached_property
    def _cores(self) -> ResourceReading:
        """The cores of each job's workers, as the runs of its group state them."""
        known = [group.cores for group in self.model.groups]
        return ResourceReading.of(self.rows.log_cores, self.groups, known)

    @cached_property
    def _wire(self) -> ResourceReading:
        """The network rate of each job, as the runs on its cluster state it."""
        found, index = self.sources
        known = [None if isinstance(s, str) else self.model.wire(s) for s in found]
        return ResourceReading.of(self.rows.log_wire, index, known)

    @cached_property
    def _unsure(self) -> FloatArray:
        """Log standard deviation of resources that rows do not state, or no run did, (n,)."""
        several = self.rows.machines > 1
        return np.hypot(self._cores.unsure, np.where(several, self._wire.unsure, 0.0))

    def times(self, part: JobPart) -> tuple[LawTimes, FloatArray]:
        """Return the law's answer to a part, with slopes, and its log standard deviations (n,).

        Near the runs the answer is corrected by what they left, see `ResidualSmoother`.
        """
        group, x = self.model.groups[part.source.group], part.x
        theta = np.broadcast_to(self.model.parameters(part.source), (len(part.rows), COUNT))
        out = evaluate_law(theta, x, slopes=True)
        assert out.slopes is not None
        known = np.einsum("ni,ni->n", out.slopes @ self.model.uncertainty(part.source), out.slopes)
        spread = np.full(len(part.rows), group.sigma**2)
        smoother = self.model.smoothers[part.source.group]
        if part.source.cluster < 0 and part.source.sigma == 0.0 and smoother.solved is not None:
            shift, support = smoother.corrections(_points(x, self._placement[part.rows]))
            out = replace(out, log_seconds=out.log_seconds + shift)
            spread = spread + support**2 * (smoother.solved[1] ** 2 - spread)
        variance = known + spread + part.source.sigma**2 + (GROWTH_SIGMA * self.beyond(part)) ** 2
        variance += self._unsure[part.rows] ** 2
        return out, np.sqrt(np.maximum(variance, 0.0))

    @cached_property
    def _placement(self) -> IntArray:
        """Which of the model's placements each job has, (n,), -1 for none of them."""
        texts, index = self.rows.layouts
        place = {text: i for i, text in enumerate(self.model.placements)}
        return np.array([place.get(text, -1) for text in texts], dtype=np.int64)[index]

    def beyond(self, part: JobPart) -> FloatArray:
        """Return how many doublings of numbers the jobs are beyond the runs, (n,)."""
        group = self.model.groups[part.source.group]
        batch = np.log(part.x.micro_batch)
        low, high = group.own_batch
        away = np.maximum(np.log(part.x.devices / group.devices), 0.0)
        away += np.maximum(np.log(part.x.nodes / group.nodes), 0.0)
        away += np.maximum(batch - high, 0.0) + np.maximum(low - batch, 0.0)
        away += self._cores.beyond[part.rows] + self._wire.beyond[part.rows]
        return np.asarray(away / np.log(2.0))

    def distance(self, part: JobPart) -> FloatArray:
        """Return how far the jobs of a part are from the runs, (n,)."""
        away = part.source.distance + GROWTH_DISTANCE * self.beyond(part)
        return np.where(self._unsure[part.rows] > 0, np.maximum(away, OTHER_SETTINGS), away)


@dataclass(frozen=True)
class Hierarchical:
    """The fitted law; see `hierarchical_law` for its equation.

    Attributes:
        quantity: what it predicts: the time that most of its runs have.
        model: parameters and their covariance, None before it was fitted.
        warnings: what a reader of its forecasts should know.
    """

    quantity: str = "step"
    model: HierarchicalModel | None = None
    warnings: tuple[str, ...] = field(default=())

    name = "hierarchical"

    def fit(self, runs: Runs) -> Hierarchical:
        """Return a predictor with the law of these runs alone.

        Raises:
            RequestError: fewer than `LEAST_RUNS` runs can be used.
        """
        runs = sorted_runs(runs)
        seconds = {quantity: measured(runs, quantity) for quantity in QUANTITIES}
        quantity = max(QUANTITIES, key=lambda name: int(np.isfinite(seconds[name]).sum()))
        model, notes = fitted_model(runs, seconds[quantity], quantity)
        return Hierarchical(quantity, model, tuple(notes))

    def declines(self, jobs: Jobs) -> list[str | None]:
        """Return why a job has no answer, or None."""
        if self.model is None:
            return [_UNFITTED] * len(jobs)
        return list(self._prediction(jobs, self.model).declined)

    def predict(self, jobs: Jobs) -> Forecasts:
        """Return seconds of n jobs, compute and communication as parts; memory is not answered."""
        blank = Forecasts.blank(len(jobs), self.name, self.quantity)
        parts = np.full((len(PARTS), len(jobs)), np.nan)
        declined: NDArray[np.object_] = np.full(len(jobs), _UNFITTED, dtype=object)
        if self.model is not None:
            prediction = self._prediction(jobs, self.model)
            declined = prediction.declined
            for part in prediction.parts():
                out, sigma = prediction.times(part)
                middle = np.exp(out.log_seconds)
                blank.seconds[part.rows] = spread(middle, sigma)
                alone = np.minimum(np.exp(out.log_compute), middle)
                parts[:, part.rows] = alone, middle - alone
                blank.distance[part.rows] = prediction.distance(part)
        named = dict(zip(PARTS, parts, strict=True))
        return replace(blank, declined=declined, parts=named, warnings=self.warnings)

    def log_covariance(self, jobs: Jobs) -> FloatArray:
        """Return the covariance of the errors of log seconds of n jobs, (n, n).

        The diagonal is the whole log variance of a run about its forecast; off it stands what two
        jobs share: the parameters. Declined rows are NaN.
        """
        result = np.full((len(jobs), len(jobs)), np.nan)
        if self.model is None:
            return result
        prediction = self._prediction(jobs, self.model)
        rows = np.flatnonzero(is_none(prediction.declined))
        pulls, own = np.zeros((len(jobs), len(self.model.covariance))), np.zeros(result.shape)
        slopes = np.zeros((len(jobs), COUNT))
        variance = np.zeros(len(jobs))
        for part in prediction.parts():
            out, sigma = prediction.times(part)
            assert out.slopes is not None
            slopes[part.rows] = out.slopes
            pulls[part.rows] = out.slopes @ self.model.spread(part.source)
            variance[part.rows] = sigma**2
        for i in np.unique(prediction.groups[rows]):
            mine = rows[prediction.groups[rows] == i]
            own[np.ix_(mine, mine)] = slopes[mine] @ self.model.alone[i] @ slopes[mine].T
        both = pulls[rows] @ self.model.covariance @ pulls[rows].T + own[np.ix_(rows, rows)]
        np.fill_diagonal(both, variance[rows])
        result[np.ix_(rows, rows)] = both
        return result

    @property
    def formulas(self) -> dict[str, str]:
        """The law of each app on each cluster with units and intervals, and what limits it."""
        return {} if self.model is None else _formulas(self.model, self.quantity)

    def _prediction(self, jobs: Jobs, model: HierarchicalModel) -> Prediction:
        return Prediction(model, HierarchicalRows(jobs, self.quantity))

    def to_json(self) -> str:
        """Return the law as JSON text."""
        saved: dict[str, Any] = {
            "predictor": self.name, "version": VERSION, "quantity": self.quantity,
            "warnings": self.warnings, "model": None,
        }  # fmt: skip
        if self.model is not None:
            saved["model"] = {
                **{name: getattr(self.model, name).tolist() for name in _ARRAYS},
                "groups": [asdict(group) for group in self.model.groups],
                "placements": self.model.placements,
                "smoothers": [
                    {**{name: values.tolist() for name, values in vars(one.points).items()},
                     "residual": one.residual.tolist()}
                    for one in self.model.smoothers
                ],
            }  # fmt: skip
        return json.dumps(saved)

    @staticmethod
    def from_json(text: str) -> Hierarchical:
        """Return a saved predictor.

        Raises:
            RequestError: not this predictor's JSON, or of another version.
        """

        def made(saved: Mapping[str, Any]) -> Hierarchical:
            model = None if saved["model"] is None else _restored_model(saved["model"])
            return Hierarchical(str(saved["quantity"]), model, tuple(saved["warnings"]))

        return read_saved(text, "a hierarchical law", VERSION, made)


_ARRAYS = {
    "theta": float, "shared": float, "covariance": float, "alone": float, "gain": float,
    "members": bool, "cluster_effect": np.int64,
}  # fmt: skip


def _restored_model(saved: Mapping[str, Any]) -> HierarchicalModel:
    groups = []
    for entry in saved["groups"]:
        fields: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}
        groups.append(FittedGroup(**fields))
    arrays: dict[str, Any] = {name: np.array(saved[name], dtype=of) for name, of in _ARRAYS.items()}
    if arrays["theta"].shape != (len(groups), COUNT):
        raise ValueError(f"a group has {COUNT} parameters")
    smoothers = []
    for entry in saved["smoothers"]:
        columns = {name: np.array(values) for name, values in entry.items() if name != "residual"}
        smoothers.append(ResidualSmoother(RunPoints(**columns), np.array(entry["residual"])))
    return HierarchicalModel(
        tuple(groups), placements=tuple(saved["placements"]), smoothers=tuple(smoothers), **arrays
    )


def _formulas(model: HierarchicalModel, quantity: str) -> dict[str, str]:
    """Return for each app on each cluster its law and what limits its scaling."""
    result: dict[str, str] = {}
    # Rows that say nothing of parameter servers reduce among all: it is named where apps differ.
    sync = APP.index("sync")
    silent = {group.app[sync] for group in model.groups} <= {"", SYNC[0]}
    for i, group in enumerate(model.groups):
        app = (*group.app[:sync], "", *group.app[sync + 1 :]) if silent else group.app
        lead = " on ".join(
            (name[0] or "(blank)") + (f" ({more})" if (more := ", ".join(filter(None, name[1:]))) else "")
            for name in (app, group.cluster)
        )  # fmt: skip
        reading = (
            "intervals hold 90 % (5 to 95 %), +- is one standard deviation, exp and log natural"
        )
        law = _formula(model, i, quantity)
        result[lead] = f"{law} ({group.runs} runs; {reading}; {_limit(model, i)})"
    return result


def _formula(model: HierarchicalModel, i: int, quantity: str) -> str:
    group, theta, points = model.groups[i], model.theta[i], model.smoothers[i].points
    covariance = model.uncertainty(Source(i, -1, 0.0, 0.0))
    sigma = np.sqrt(np.maximum(np.diag(covariance), 0.0))

    def term(*names: str, offset: float = 0.0, unit: str = "s") -> str:
        """Return exp(sum of parameters) with its 90 % interval."""
        at = [AT[name] for name in names]
        middle = float(np.exp(theta[at].sum() + offset))
        wide = Z95 * float(np.sqrt(max(covariance[np.ix_(at, at)].sum(), 0.0)))
        return f"{middle:.3g} {unit} ({middle * np.exp(-wide):.3g} to {middle * np.exp(wide):.3g})"

    compute, part = term("fixed"), "(part of a core)"
    if group.batch is not None:
        # Where no batch is known, an epoch or a run goes by a device's share of the data.
        share = "micro_batch" if quantity == "step" else "micro_batch (or dataset_size / devices)"
        compute = f"{compute} + {term('sample', unit='s a sample')} x {share}"
    slower = ""
    if group.cores is not None:
        speeds = [
            f"{text}^({theta[AT[name]]:.2g} +- {sigma[AT[name]]:.1g})"
            for name, text, measured in (
                ("share", part, group.cores[0] < 0), ("cores", "cores", group.cores[1] > 0),
            )
            if measured
        ]  # fmt: skip
        compute = f"({compute}) / {' x '.join(speeds) or '1 (one core)'}"
        slower = f" / {part}^{theta[AT['share']]:.2g}"
    lines = [f"seconds of {article(quantity)}: compute = {compute}"]
    if group.devices > 1:
        assumed = " (assumed: no run of it)"
        inside = term("volume", "intra", offset=-float(np.log(group.rates[0])))
        rate = -np.log(group.rates[1]) - theta[AT["rate"]] * _log_rate(group)
        size, count = AT["node_size"], AT["node_count"]
        power = 1.0 + np.exp(min(theta[AT["overlap"]], LARGEST_LOG_OVERLAP))
        lines += [
            f"in a node of n = {inside} x 2(n-1)/n x exp({theta[AT['intra_growth']]:.2g} (1 - 2/n))"
            f"{assumed * bool(points.busy.max() <= 1)}",
            f"messages = {term('hop')} x 2(K-1){slower}",
            f"between N nodes of L = ({term('volume', 'inter', offset=rate)} + the in-node figure) x "
            f"2(K-1)/K x exp({theta[size]:.2g} +- {sigma[size]:.1g} (1 - 1/L)) x "
            f"(N/3)^({theta[count]:.2g} +- {sigma[count]:.1g}) x {np.exp(theta[AT['two_nodes']]):.2g} "
            f"on two nodes{assumed * bool(points.nodes.max() <= 1)}",
            f"joined as ((compute + messages)^p + network^p)^(1/p), p = {power:.2g}",
        ]
    return "; ".join(lines)


def _limit(model: HierarchicalModel, i: int) -> str:
    """Return what keeps more devices from being faster, at the most that were measured."""
    group, theta = model.groups[i], model.theta[i]
    if group.devices <= 1:
        return "its runs are on one device and say nothing of scaling"
    # The job of the most devices and nodes that a run had, at the smallest batch.
    log_batch = group.own_batch[0] if group.batch else 0.0
    place = float(batch_places(np.array([log_batch]), [group.batch], np.zeros(1, dtype=int))[0])
    middle = 0.0 if group.cores is None else sum(group.cores) / 2.0
    columns = (
        group.devices, group.nodes, np.ceil(group.devices / group.nodes), np.exp(log_batch), 1.0,
        place, *group.rates, 0.0, min(middle, 0.0), max(middle, 0.0), _log_rate(group),
    )  # fmt: skip
    out = evaluate_law(theta[None], LawInputs(*(np.array([float(value)]) for value in columns)))
    share = 100.0 * float(1.0 - np.exp(out.log_compute - out.log_seconds)[0])
    nodes = f"{group.nodes:g} nodes" if group.nodes > 1 else "one node"
    where = f"at {group.devices:g} devices on {nodes} {share:.0f} % of the time is exposed communication"
    if share < 10.0:
        return f"{where}: it scales"
    if group.nodes <= 1:
        return f"{where} inside the node"
    volume = np.exp(theta[AT["volume"]])
    times = {
        "the wire between nodes": volume * np.exp(theta[AT["inter"]]) / group.rates[1],
        "the path through the host": volume
        * HOST_SHARE
        * np.exp(theta[AT["intra"]])
        / group.rates[0],
        "the time that each message takes": group.devices
        * np.exp(theta[AT["hop"]] - theta[AT["share"]] * min(middle, 0.0)),
    }
    return f"{where}, mostly {max(times, key=lambda name: times[name])}"


def _log_rate(group: FittedGroup) -> float:
    """Return the log of the runs' network rate over that of reference, 0 where they state none."""
    return 0.0 if group.wire is None else float(np.log(group.rates[1] / REFERENCE_RATE))
