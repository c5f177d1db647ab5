"""Hierarchical: all-reduce physics whose parameters are pooled over apps and clusters.

What runs of one say of a network and of an app's shape serves the others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import cast
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from forerun import packaged
from forerun.arrays import BoolArray, ColumnRows, FloatArray, IntArray
from forerun.domain.forecast import Forecasts, is_none
from forerun.domain.hardware import Cluster
from forerun.domain.plan import SERVER_SYNCS, SYNC
from forerun.domain.quantiles import Z95, spread
from forerun.errors import RequestError
from forerun.predictors.laws.fitting import (
    NOT_CONVERGED,
    Effects,
    LogTerm,
    Observations,
    Posterior,
    constant,
    fitted,
    parameter,
    total,
)
from forerun.predictors.laws.grouped import article
from forerun.predictors.laws.law_rows import (
    BESIDE_POWER,
    CORES_POWER,
    RUN_SETTINGS,
    SHARE_POWER,
    Kind,
    LawRows,
    ResourceReading,
    Span,
    combined,
    most_timed,
    spans,
)
from forerun.predictors.saved import SavedPredictor
from forerun.tables import Jobs, Runs, sorted_runs
from forerun.units import GIGA, counted

KNOTS = 6  # of the shape of compute over the micro-batch, as many as there are widths
# Prior log standard deviations (or of an exponent): of all, workload, app, cluster, and their own. Wide
# where machines differ (rates, compute), narrow where networks of all kinds agree; decision 0015 says on
# which splits they were chosen.
WIDTHS = {
    row.pop("parameter"): tuple(map(float, row.values()))
    for row in packaged.table(__file__, "hierarchical_widths.csv")
}
PARAMETERS = tuple(WIDTHS)
COUNT = len(PARAMETERS)
AT = {name: i for i, name in enumerate(PARAMETERS)}
MEANS = {
    "intra": 1.9, "intra_growth": 0.5, "inter": -np.log(0.7), "node_size": 0.25,
    "node_count": 0.1, "two_nodes": 0.1, "overlap": 0.7,
}  # fmt: skip
# Of what computes on a processor (1), is not known (0), and computes on another device (-1): powers of a
# part of a core and of whole cores, and seconds that a core takes for one message (NCCL's are tens of
# microseconds, those of gloo on TCP half a millisecond). Where messages take that long, they are what grows
# with the nodes.
BY_PROCESSOR: Mapping[int, Mapping[str, float]] = {
    1: {"share": 1.0, "cores": 0.85, "hop": float(np.log(5e-4)), "node_count": 0.0, "two_nodes": 0.0},
    0: {"share": SHARE_POWER, "cores": CORES_POWER, "hop": float(np.log(5e-5))},
    -1: {"share": BESIDE_POWER, "cores": BESIDE_POWER, "hop": float(np.log(5e-5))},
}  # fmt: skip
# PyTorch reduces gradients in buckets: the first of 1 MiB, the others of 25 (its documentation of
# DistributedDataParallel). The last one starts when nothing is left to compute. On devices that leave
# sending to others this was no gain (decision 20), so that it applies to processors alone.
ONE_BUCKET_GB, ONE_BUCKET_OVERLAP = 26 * 2**20 / 1e9, -0.7
UNKNOWN_VOLUME = 1.0  # of a workload, where nothing is known of its size
# Shared effects meet in one matrix, and a table of hundreds of workloads would fill it.
MOST_EFFECTS = 60
# How the in-node ring and the one between nodes join: nearly the slower of the two.
LINK_NORM = 3.0
REFERENCE_NODES = 3.0
LARGEST_LOG_OVERLAP = 2.3


@dataclass(frozen=True)
class LawInputs(ColumnRows):
    """n jobs as the law sees them, each column (n,).

    busy: devices on the busiest node. micro_batch: samples of a device at a time (or its share of the data).
    place: of it among those measured, 0 to 1. intra_rate, inter_rate: nominal GB/s. log_steps: of what is
    timed. log_cores: of a worker, below 0 of a part of one.
    """

    devices: FloatArray
    nodes: FloatArray
    busy: FloatArray
    micro_batch: FloatArray
    accumulation: FloatArray
    place: FloatArray
    intra_rate: FloatArray
    inter_rate: FloatArray
    log_steps: FloatArray
    log_cores: FloatArray


def step_seconds(theta: FloatArray, x: LawInputs) -> tuple[LogTerm, LogTerm]:
    """Return the seconds of n jobs, and of their compute alone; theta: `PARAMETERS` of each, (n, p).

        compute  T = (a busy^x [single] + b busy^y micro_batch) shape(micro_batch) / (s^u c^v)
        hops     H = h 2(K-1) / s^u                          K devices; s of a core, c cores
        in node  U = V / (I s^u)  2(n-1)/n  e^(q (1 - 2/n))  n = devices on the busiest node
        between  W = V (1/J + 1/(I s^u))  2(K-1)/K  e^(l (1 - 1/L))  (N/3)^m [two]  on N nodes, L = K/N
        step       = (accum - 1) T + ((T + H)^p + (U^r + W^r)^(p/r))^(1/p)

    A ring moves 2(K-1)/K of the gradients V over every link in 2(K-1) messages (Patarasuk and Yuan,
    Bandwidth optimal all-reduce algorithms, 2009); between nodes a byte passes the host's path and then the
    wire. The p-norm of overlap is that of Qiao et al., Pollux (OSDI 2021), c^v Amdahl's (1967).
    """

    def of(name: str, times: FloatArray | float = 1.0) -> LogTerm:
        return parameter(theta, AT[name], times)

    slowed = of("share", -np.minimum(x.log_cores, 0.0))
    crowd, alone = np.log(x.busy), (x.devices == 1).astype(np.float64)
    fixed = of("fixed") + of("host_fixed", crowd) + of("single", alone)
    sample = of("sample") + of("host_sample", crowd) + np.log(x.micro_batch)
    compute = total(fixed, sample) + slowed - of("cores", np.maximum(x.log_cores, 0.0))
    at = np.clip(x.place, 0.0, 1.0) * (KNOTS - 1)
    for i in range(KNOTS):  # a broken line between the knots
        compute += of(f"shape_{i}", np.maximum(1.0 - np.abs(at - i), 0.0))

    members, devices = np.maximum(x.busy, 2.0), np.maximum(x.devices, 2.0)
    hops = of("hop") + np.log(2.0 * (devices - 1.0)) + slowed
    host = of("volume") + of("intra") - np.log(x.intra_rate) + slowed
    wire = of("volume") + of("inter") - np.log(x.inter_rate)
    several = x.devices > 1
    inside = host + of("intra_growth", 1.0 - 2.0 / members) + ring_share(members)
    between = total(wire, host) + of("node_size", 1.0 - x.nodes / x.devices) + ring_share(devices)
    between += of("node_count", np.log(x.nodes / REFERENCE_NODES))
    between += of("two_nodes", (x.nodes == 2).astype(np.float64))
    network = total(inside.where(x.busy > 1), between.where(x.nodes > 1), LINK_NORM)

    busy = total(compute, hops.where(several))  # the processor computes and sends
    overlap = of("overlap").at_most(LARGEST_LOG_OVERLAP)
    step = total(busy, network, total(constant(np.zeros(len(x))), overlap))
    with np.errstate(divide="ignore"):
        step = total(step, compute + np.log(x.accumulation - 1.0))
    return step + x.log_steps, compute + (np.log(x.accumulation) + x.log_steps)


def ring_share(members: FloatArray) -> FloatArray:
    """Return the log of 2 (k - 1) / k, what a ring of k moves over each of its links."""
    return np.log(2.0 * (members - 1.0) / members)


def effects_of(
    workload: IntArray, app: IntArray, cluster: IntArray, known: BoolArray
) -> tuple[Effects, IntArray]:
    """Return the effects of g groups, and the position of each cluster's, none where there is one cluster.

    The parameters of one app on one cluster are a sum: all + workload + app + cluster + their own.
    known: whether the gradients of a group are, (g,).
    """
    width: FloatArray = np.array(list(WIDTHS.values())).T
    own = np.repeat(width[4][None], len(app), axis=0)
    shared = [
        (names == name, width[level].copy())
        for level, names in ((1, workload), (2, app)) for name in np.unique(names)
    ]  # fmt: skip
    for groups, wide in shared:
        if not known[groups].all():
            wide[AT["volume"]] = UNKNOWN_VOLUME
    made = Effects.of(own, shared, MOST_EFFECTS)
    # Those of all and of a cluster stay apart even where one group has them: others are moved by them.
    clusters = int(cluster.max()) + 1
    of_clusters = (cluster[:, None] == np.arange(clusters))[:, : clusters if clusters > 1 else 0]
    of_all = width[0] if clusters > 1 else np.hypot(width[0], width[3])
    members = np.hstack([np.ones((len(app), 1), dtype=bool), of_clusters, made.members])
    apart = np.vstack([of_all, np.tile(width[3], (of_clusters.shape[1], 1)), made.widths])
    return Effects(members, apart, made.own), 1 + np.arange(of_clusters.shape[1])


def prior_means(start: FloatArray, processor: IntArray, known: BoolArray) -> FloatArray:
    """Return where the parameters of each group start, (g, p).

    start: log seconds of fixed and per-sample compute, log gigabytes of gradients, (g, 3). processor: 1
    where it computes on one, -1 on another device, else 0. known: whether the gradients are known.
    """
    table = np.zeros((len(start), COUNT))
    for name, value in MEANS.items():
        table[:, AT[name]] = value
    for kind, changes in BY_PROCESSOR.items():
        for name, value in changes.items():
            table[processor == kind, AT[name]] = value
    table[:, [AT["fixed"], AT["sample"], AT["volume"]]] = start
    small = known & (start[:, 2] < np.log(ONE_BUCKET_GB)) & (processor == 1)
    table[small, AT["overlap"]] = ONE_BUCKET_OVERLAP
    return table


PARTS = ("compute", "communication")
# What makes an app, and a cluster; neither must be known to the zoo or the catalogue.
APP = ("workload", "framework", "precision", "seq_len", "image_size", "sync", "dataset")
CLUSTER = ("device", "instance_type", "cluster", "interconnect")
_NETWORK = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*g(?:b|bit|bps)", re.IGNORECASE)
# Nominal rates where nothing is known of the machine: PCIe 3.0, and 10 Gb/s Ethernet.
USUAL_INTRA_GB, USUAL_INTER_GB = 16.0, 1.25
# Of an Amazon machine one TCP flow goes at 10 Gb/s at most, inside a placement group (its own
# documentation of instance network bandwidth); a ring has one flow to its neighbour.
AMAZON_FLOW_GB = 1.25
_AMAZON = re.compile(r"\b(aws|amazon|ec2)\b", re.IGNORECASE)
_ROUNDING = 1e-9
CHUNK = 16384

LEAST_RUNS = 3
# Spread of residuals where runs are few: as wide as other laws of this kind are off.
PRIOR_SIGMA, PRIOR_RUNS, SMALLEST_SIGMA = 0.07, 8.0, 0.02
NEW_RUN = 1.06  # how much farther from a law new runs lie than those that made it
_HALF = 0.7  # of a step at the middle batch is fixed, as a log: exp(-0.7)
# The span of micro-batches over which the shape of compute is drawn is no less, as a log.
_LEAST_SPAN = 0.3
# Micro-batches measured in one session on one placement share its luck: this much of their errors.
SESSION_SHARE = 0.5

# Log standard deviations of an answer by the runs of other settings, and distances.
OTHER_APP_SIGMA, OTHER_CLUSTER_SIGMA = 0.3, 0.3
NEAR, NOT_TOGETHER, OTHER_SETTINGS = 0.1, 0.4, 0.5
# Log standard deviation, and distance, of each doubling of devices, nodes, batch or resources beyond the runs.
GROWTH_SIGMA, GROWTH_DISTANCE = 0.05, 0.2
NO_BATCH = "the row does not state a batch, or how many samples its run takes, and the runs of its workload do"
_UNFITTED = (
    "hierarchical answers from runs alone and was given none; give at least 3 data-parallel runs"
)

# Of the residuals' Gaussian process: standard deviations in units of the noise of one run, of a
# micro-batch, of one placement and of near layouts; their lengths in logs of the micro-batch; and the
# length in doublings of devices, nodes, devices a node, cores and link rate. Equal micro-batches run the
# same kernels, however far their layouts lie apart.
NOISE, BATCH, PLACEMENT, LAYOUT, SAME_BATCH = 1.0, 0.75, 1.25, 2.0, 0.75
BATCH_LENGTH, PLACEMENT_LENGTH, NEAR_LENGTH, LAYOUT_LENGTH = 1.0, 2.0, 1.5, 2.0
LEAST_RESIDUALS = 8
LEAST_GAIN = 0.03  # of the middle residual, by leaving runs out
_OUTLIER = 4.0  # robust standard deviations, beyond which a residual is cut


@dataclass(frozen=True)
class HierarchicalRows(LawRows):
    """n jobs by app and cluster, and as numbers."""

    apart: bool = False  # resources are numbers here

    @cached_property
    def apps(self) -> tuple[list[Kind], IntArray]:
        """Distinct apps, and which each job is of, (n,)."""
        # A precision that nobody stated is not the usual one of its workload.
        of_rows = {"dataset", *RUN_SETTINGS, *({"precision"} & self.labels.columns.keys())}
        names = (*APP, *(RUN_SETTINGS if self.quantity == "run" else ()))
        return combined([self.stated(n) if n in of_rows else self.words(n) for n in names])

    @cached_property
    def clusters(self) -> tuple[list[Kind], IntArray]:
        """Distinct clusters, and which each job is on, (n,)."""
        known = ("device", "instance_type")
        return combined([self.words(n) if n in known else self.stated(n) for n in CLUSTER])

    @cached_property
    def nodes_and_busy(self) -> tuple[FloatArray, FloatArray]:
        """Nodes, and devices on the busiest of them, (n,) each; one node where nothing states it."""
        devices = np.fmax(self.machines, 1.0)
        nodes, busy = self.placements.nodes, self.placements.most
        nodes = np.where(nodes >= 1, np.minimum(nodes, devices), 1.0)
        return nodes, np.where(busy >= 1, np.minimum(busy, devices), np.ceil(devices / nodes))

    @cached_property
    def placement_code(self) -> FloatArray:
        """A number for the placement of each job as its row states it, (n,)."""
        texts, index = self.stated("placement")
        return np.array([float(crc32(text.encode())) for text in texts])[index]

    @cached_property
    def linked(self) -> BoolArray:
        """Which jobs state what joins their nodes, in a cluster or as text, (n,)."""
        texts, index = self.stated("interconnect")
        stated = np.array([text != "" for text in texts], dtype=bool)[index]
        return np.asarray(stated | (self.jobs.cluster_index >= 0), dtype=bool)

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
        """Log of the steps of one pass through the data, or of a run that states its samples, (n,), or NaN."""
        if self.quantity == "step":
            return np.zeros(len(self.jobs))
        samples = self.size("dataset_size")
        if self.quantity == "run":
            samples = np.where(np.isnan(samples), self.size("samples_to_target"), samples)
        with np.errstate(invalid="ignore"):
            # The last step of a pass has what is left; as many as it has samples are no step less.
            count = samples / self.size("global_batch")
            return np.asarray(np.log(np.ceil(count * (1.0 - _ROUNDING))))

    @cached_property
    def unsuitable(self) -> NDArray[np.object_]:
        """Why a job is no data-parallel all-reduce, (n,) of text or None."""
        reasons = np.full(len(self.jobs), None, dtype=object)
        for name in ("tp", "pp", "cp"):
            stated = self.labels.numbers(name)
            split = np.where(np.isnan(stated), getattr(self.jobs.plans, name), stated)
            reasons[split > 1] = (
                "it splits the model (tp, pp or cp above 1); this law is of data-parallel training"
            )
        servers = np.isin(self.sync, SERVER_SYNCS)
        reasons[servers] = "parameter servers follow another law than all-reduce; ask ps-saturation"
        reasons[np.isnan(self.machines)] = "the row does not state the number of devices"
        return np.where(is_none(reasons), self.problems, reasons)

    def inputs(
        self, batch: FloatArray, batches: Sequence[Span | None], of: IntArray,
        log_cores: FloatArray, log_wire: FloatArray,
    ) -> LawInputs:  # fmt: skip
        """Return what the law reads.

        batch: 1 where the law has none. batches: spans of their logs, `of` which each job has. log_cores,
        log_wire: NaN where they are not read.
        """
        low, high = np.array([*(span or (0.0, 1.0) for span in batches), (0.0, 1.0)])[of].T
        # Where runs state no batch, a row that does has no steps of its own.
        stepped = np.array([*(span is not None for span in batches), False])[of]
        place = (np.log(batch) - low) / np.maximum(high - low, _LEAST_SPAN)
        # What a device alone in its node sends goes to the host, whatever would join it to others.
        rates = [
            (c.intra.bytes_per_second / GIGA, c.device.host_bytes_per_second / GIGA, _node_rate(c))
            for c in self.jobs.clusters
        ]
        usual, known = (USUAL_INTRA_GB, USUAL_INTRA_GB, USUAL_INTER_GB), self.jobs.cluster_index
        intra, host, inter = np.array([*rates, usual])[known].T
        intra = np.where(self.nodes_and_busy[1] > 1, intra, host)
        texts, index = self.stated("interconnect")
        found = [_NETWORK.search(text) for text in texts]
        labels = np.array([float(m.group(1)) / 8.0 if m else USUAL_INTER_GB for m in found])
        inter = np.where(known < 0, labels[index], inter)
        # A stated rate of a known link is a ratio to it; of an unknown one it means nothing.
        log_wire = np.where(np.isnan(log_wire) & self.linked, self.log_wire, log_wire)
        return LawInputs(
            np.fmax(self.machines, 1.0), *self.nodes_and_busy, batch, self.accumulation, place, intra,
            np.where(np.isnan(log_wire), inter, np.exp(log_wire)),
            np.where(stepped, np.nan_to_num(self.log_steps), 0.0), np.nan_to_num(log_cores),
        )  # fmt: skip


def _node_rate(cluster: Cluster) -> float:
    """Return the GB/s of a node's network that one ring can have."""
    rate = cluster.inter.bytes_per_second * cluster.devices_per_node / GIGA
    name = f"{cluster.provider} {cluster.instance_type} {cluster.name}"
    capped = cluster.inter.kind == "ethernet" and _AMAZON.search(name)
    return min(rate, AMAZON_FLOW_GB) if capped else rate


@dataclass(frozen=True)
class GroupCorrection:
    """A Gaussian process of what the law leaves of the times of one group.

    Runs of one placement share its luck, those of one micro-batch an algorithm, near layouts a network.
    """

    points: FloatArray
    weights: FloatArray
    sigma: float

    @staticmethod
    def of(points: FloatArray, residual: FloatArray) -> GroupCorrection | None:
        """Return the correction by residuals (n,), None where leaving runs out shows no gain."""
        n = len(residual)
        if n < LEAST_RESIDUALS:
            return None
        middle = float(np.median(np.abs(residual)))
        cut = np.clip(residual, -_OUTLIER * 1.4826 * middle, _OUTLIER * 1.4826 * middle)
        like = _alike(points, points) + _same_batch(points, points)
        inverse = np.linalg.inv(like + NOISE**2 * np.eye(n))
        weights = inverse @ cut
        left_out = weights / np.diag(inverse) + (residual - cut)
        if 1.0 - np.median(np.abs(left_out)) / max(middle, 1e-12) < LEAST_GAIN:
            return None
        return GroupCorrection(points, weights, float(np.quantile(np.abs(left_out), 0.9)) / Z95)

    def at(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the log correction of n jobs and how near they are to runs, 0 to 1, (n,) each."""
        # Many jobs are at few points: equal ones have equal sums.
        mixed = points @ np.sqrt([2.0, 3.0, 5.0, 7.0, 11.0, 13.0, 17.0])
        _, first, place = np.unique(mixed, return_index=True, return_inverse=True)
        like = _alike(points[first], self.points)
        near = like.max(axis=1) / (BATCH**2 + PLACEMENT**2 + LAYOUT**2)
        like += _same_batch(points[first], self.points)
        return (like @ self.weights)[place], near[place]


def _points(x: LawInputs, placement: FloatArray) -> FloatArray:
    """Return log micro-batch, the placement's code, and doublings of layout, link rate and cores, (n, 7)."""
    layout = np.log2([x.devices, x.nodes, x.busy, x.inter_rate])
    return np.stack([np.log(x.micro_batch), placement, *layout, x.log_cores / np.log(2.0)], axis=1)


def _alike(some: FloatArray, others: FloatArray) -> FloatArray:
    batch = np.abs(some[:, None, 0] - others[:, 0])
    steps = [some[:, None, i] - others[:, i] for i in range(1, some.shape[1])]
    same = np.logical_and.reduce([step == 0.0 for step in steps[:4]])
    far = np.sqrt(sum(step**2 for step in steps[1:]))
    result = BATCH**2 * np.exp(-batch / BATCH_LENGTH)
    result += PLACEMENT**2 * same * np.exp(-batch / PLACEMENT_LENGTH)
    result += LAYOUT**2 * np.exp(-batch / NEAR_LENGTH - far / LAYOUT_LENGTH)
    return np.asarray(result)


def _same_batch(some: FloatArray, others: FloatArray) -> FloatArray:
    return np.asarray(SAME_BATCH**2 * (some[:, None, 0] == others[:, 0]))


@dataclass(frozen=True)
class FittedGroup:
    """One group: an app on a cluster, and what its runs spanned; spans are logs of the least and the most.

    batch, cores: of the app, wire: of the cluster, None where most runs state none. own_batch: of the group.
    devices, nodes, busy: the most of a run. rates: nominal GB/s. sigma: log standard deviation of a run.
    """

    app: Kind
    cluster: Kind
    runs: int
    batch: Span | None
    own_batch: Span
    devices: float
    nodes: float
    busy: float
    rates: Span
    sigma: float
    cores: Span | None
    wire: Span | None
    correction: GroupCorrection | None


@dataclass(frozen=True)
class Source:
    """What answers a pair: a group, a cluster whose effect replaces its own, log sd and distance."""

    group: int
    cluster: int = -1
    sigma: float = 0.0
    distance: float = 0.0
    wire: Span | None = None


@dataclass(frozen=True)
class HierarchicalModel:
    """Groups, their parameters, and the position of each cluster's effect; none where there is one cluster."""

    groups: tuple[FittedGroup, ...]
    posterior: Posterior
    cluster_effect: IntArray

    def __post_init__(self) -> None:
        if self.posterior.theta.shape != (len(self.groups), COUNT):
            raise ValueError(f"a group has {COUNT} parameters")

    @cached_property
    def clusters(self) -> tuple[Kind, ...]:
        """Distinct clusters, in the order of `cluster_effect`."""
        return tuple(dict.fromkeys(group.cluster for group in self.groups))

    @cached_property
    def _of_app(self) -> dict[Kind, list[int]]:
        """Positions of each app's groups."""
        found: dict[Kind, list[int]] = {}
        for i, group in enumerate(self.groups):
            found.setdefault(group.app, []).append(i)
        return found

    def source(self, app: Kind, cluster: Kind) -> Source | str:
        """Return what answers a pair, or why nothing does.

        Where they were never run together, it is the app elsewhere, moved by the clusters' difference.
        """
        apps = [known for known in self._of_app if known[0] == app[0]]
        if not apps:
            return f"no run is of {app[0] or 'a workload without a name'}"
        here = [c for c in self.clusters if c[0] == cluster[0]]
        if not here:
            return (
                f"no run is on {cluster[0] or 'a device without a name'}; one short run of any "
                "workload there would do"
            )
        own, place = most_alike(app, apps), most_alike(cluster, here)
        sigma = float(np.hypot(
            OTHER_APP_SIGMA * contradicts(app, own),
            OTHER_CLUSTER_SIGMA * contradicts(cluster, place),
        ))  # fmt: skip
        distance = OTHER_SETTINGS if sigma else NEAR
        mine = self._of_app[own]
        for i in mine:
            if self.groups[i].cluster == place:
                return Source(i, -1, sigma, distance, self.groups[i].wire)
        best = max(mine, key=lambda i: self.groups[i].runs)
        wire = next(group.wire for group in self.groups if group.cluster == place)
        at = self.clusters.index(place)
        return Source(best, at, sigma, distance + NOT_TOGETHER, wire)

    def effects(self, source: Source) -> BoolArray:
        """Return the shared effects of which the answer's parameters are the sum, (b,)."""
        effects: BoolArray = self.posterior.effects.members[source.group].copy()
        if source.cluster >= 0:
            effects[self.cluster_effect] = False
            effects[self.cluster_effect[source.cluster]] = True
        return effects

    def parameters(self, source: Source) -> FloatArray:
        """Return the parameters that answer, (p,)."""
        found = self.posterior
        change = self.effects(source).astype(int) - found.effects.members[source.group]
        return np.asarray(found.theta[source.group] + change @ found.shared)

    def variances(self, source: Source, slopes: FloatArray) -> FloatArray:
        """Return the variance of log seconds that follow the parameters by slopes (n, p), (n,)."""
        variance = self.posterior.variances(slopes, source.group, self.effects(source))
        if source.cluster >= 0:
            variance += 2.0 * slopes**2 @ np.array([width[-1] for width in WIDTHS.values()]) ** 2
        return variance


def most_alike(wanted: Kind, known: Sequence[Kind]) -> Kind:
    """Return the name that agrees in most fields; blanks agree a little less than equals."""

    def agreement(name: Kind) -> float:
        pairs = zip(wanted, name, strict=True)
        return sum(1.0 if a == b else 0.5 if not a or not b else 0.0 for a, b in pairs)

    return max(known, key=agreement)


def contradicts(wanted: Kind, found: Kind) -> bool:
    """Return whether two names state different things in some field."""
    return any(a and b and a != b for a, b in zip(wanted, found, strict=True))


def fitted_model(
    runs: Runs, times: FloatArray, quantity: str
) -> tuple[HierarchicalModel, list[str]]:
    """Return the model of runs with seconds (n,) or NaN, and notes on those left out. Raises RequestError."""
    usable = usable_runs("hierarchical", runs, times, quantity)
    rows = HierarchicalRows(runs.jobs.take(usable), quantity)
    (apps, app), (clusters, cluster) = rows.apps, rows.clusters
    # A batch is read where most runs of an app state one, a resource where most of an app (cores) or a
    # cluster (network) do. Runs that do not state what is read, or what differs, are left out.
    stated = np.isfinite(rows.own_batch)
    batched = 2 * np.bincount(app, stated, len(apps)) >= np.bincount(app, minlength=len(apps))
    known_cores = spans(rows.log_cores, app, len(apps))
    known_wires = spans(rows.log_wire, cluster, len(clusters))
    keep = stated | ~batched[app]
    keep &= ~ResourceReading.of(rows.log_cores, app, known_cores).ambiguous
    keep &= ~ResourceReading.of(rows.log_wire, cluster, known_wires).ambiguous
    notes = []
    if unread := int(np.count_nonzero(~keep & stated)):
        notes.append(
            f"of {len(runs):,} runs {unread:,} state no cpus_per_worker or no node_gbps, in which the "
            "others differ, and are left out; state them"
        )
    usable, app, cluster = usable[keep], app[keep], cluster[keep]
    times, rows = times[usable], HierarchicalRows(runs.jobs.take(usable), quantity)
    present, group = np.unique(cluster * len(apps) + app, return_inverse=True)
    of_cluster, of_app = np.divmod(present, len(apps))
    batch = np.where(batched[app], rows.own_batch, 1.0)
    batches = [
        span if batched[i] else None for i, span in enumerate(spans(np.log(batch), app, len(apps)))
    ]
    cores = ResourceReading.of(rows.log_cores, app, known_cores).values
    wires = ResourceReading.of(rows.log_wire, cluster, known_wires).values
    x = rows.inputs(batch, batches, app, cores, wires)
    first = np.unique(group, return_index=True)[1]
    # Cores that are stated of an unknown device are what computes.
    reads_cores = np.array([known_cores[i] is not None for i in of_app])
    processor = np.where((rows.processors[first] == 0) & reads_cores, 1, rows.processors[first])
    start, known = _starts(rows, x, np.log(times), app, len(apps))
    effects, cluster_effect = effects_of(
        np.unique([apps[i][0] for i in of_app], return_inverse=True)[1], of_app,
        np.unique(of_cluster, return_inverse=True)[1], known[of_app],
    )  # fmt: skip
    placed = np.stack(
        [group, x.devices, x.nodes, x.busy, rows.placement_code, cores, wires], axis=1
    )
    session = np.unique(np.nan_to_num(placed), axis=0, return_inverse=True)[1].reshape(-1)
    weight = np.reciprocal(1.0 + SESSION_SHARE * (np.bincount(session)[session] - 1.0))
    means = prior_means(start[of_app], processor, known[of_app])
    observed = Observations(x, group, np.log(times), means, weight)
    posterior = _posterior(observed, effects)
    sigma = residual_sigma(NEW_RUN * posterior.residual, group)
    points, log_batch = _points(x, rows.placement_code), np.log(batch)
    groups = []
    for i, (a, c) in enumerate(zip(of_app.tolist(), of_cluster.tolist(), strict=True)):
        mine = np.flatnonzero(group == i)
        groups.append(FittedGroup(
            apps[a], clusters[c], len(mine), batches[a],
            (float(log_batch[mine].min()), float(log_batch[mine].max())),
            float(x.devices[mine].max()), float(x.nodes[mine].max()), float(x.busy[mine].max()),
            (float(np.median(x.intra_rate[mine])), float(np.median(x.inter_rate[mine]))),
            float(sigma[i]), known_cores[a], known_wires[c],
            GroupCorrection.of(points[mine], posterior.residual[mine]),
        ))  # fmt: skip
    if not posterior.converged:
        notes.append(NOT_CONVERGED)
    kept = replace(posterior, residual=np.zeros(0))  # what is left of the runs is not saved
    return HierarchicalModel(tuple(groups), kept, cluster_effect), notes


# The latest fits by what they were made of: a regression over the law fits it to the same runs.
_LATEST: dict[bytes, Posterior] = {}
MOST_LATEST = 24  # a choice among predictors has fewer folds


def _posterior(observed: Observations, effects: Effects) -> Posterior:
    x, *rest = vars(observed).values()
    columns = [*vars(x).values(), *rest, *vars(effects).values()]
    key = blake2b(b"".join(str(c.shape).encode() + c.tobytes() for c in columns)).digest()
    found = _LATEST.get(key)
    if found is None:
        found = fitted(lambda theta, x: step_seconds(theta, x)[0], observed, effects)
        while len(_LATEST) >= MOST_LATEST:
            del _LATEST[next(iter(_LATEST))]
        _LATEST[key] = found
    return found


def usable_runs(name: str, runs: Runs, times: FloatArray, quantity: str) -> IntArray:
    """Return which of n runs of seconds (n,), or NaN, a law can be fitted to. Raises RequestError."""
    timed = np.isfinite(times)
    reasons = HierarchicalRows(runs.jobs, quantity).unsuitable
    usable = np.flatnonzero(timed & is_none(reasons))
    if len(usable) < LEAST_RUNS:
        found = f"{len(usable)} of them are data-parallel all-reduce runs with a time"
        refused = Counter(reasons[timed & ~is_none(reasons)].tolist()).most_common(2)
        raise RequestError(
            f"fitting {name} on {len(runs)} runs",
            "; ".join([found, *(f"{count:,} others: {why}" for why, count in refused)]),
            f"give at least {LEAST_RUNS}, best with the smallest and the largest batch on one "
            "device and one on several nodes",
        )
    return usable


def _starts(
    rows: HierarchicalRows, x: LawInputs, log_seconds: FloatArray, app: IntArray, apps: int
) -> tuple[FloatArray, BoolArray]:
    start, known = np.zeros((apps, 3)), np.zeros(apps, dtype=bool)
    log_step = log_seconds - x.log_steps + np.nan_to_num(rows.log_speed)
    sizes = [
        w.params * (2.0 if w.precision in ("fp16", "bf16") else 4.0) / GIGA or np.nan
        for w in rows.jobs.workloads
    ]
    gradients_gb = np.array([*sizes, np.nan])[rows.jobs.workload_index]
    for i in np.unique(app):
        mine = np.flatnonzero(app == i)
        few = mine[x.devices[mine] == x.devices[mine].min()]
        base = float(np.median(log_step[few])) - _HALF
        size = gradients_gb[mine[0]] if np.isfinite(rows.log_steps[mine]).all() else np.nan
        known[i] = np.isfinite(size)
        volume = np.log(size) if known[i] else base + _HALF
        start[i] = base, base - float(np.median(np.log(x.micro_batch[few]))), volume
    return start, known


def residual_sigma(residual: FloatArray, group: IntArray) -> FloatArray:
    """Return the log standard deviation that holds 90 % of a group's residuals, (g,), drawn to the usual."""
    usual = max(PRIOR_SIGMA, float(np.quantile(np.abs(residual), 0.9)) / Z95)
    sizes, count = np.abs(residual), np.bincount(group)
    sizes, start = sizes[np.lexsort((sizes, group))], np.cumsum(count) - count
    below, part = np.divmod(0.9 * (count - 1.0), 1.0)
    at = start + below.astype(np.int64)
    above = np.minimum(at + 1, start + count - 1)
    wide = (sizes[at] + part * (sizes[above] - sizes[at])) / Z95
    pooled = (count * wide**2 + PRIOR_RUNS * usual**2) / (count + PRIOR_RUNS)
    return np.asarray(np.maximum(np.sqrt(pooled), SMALLEST_SIGMA))


class Prediction:
    """n jobs and a fitted model: what answers each, and the law's answer.

    sources: of each distinct pair of app and cluster, or why nothing. index: the pair of each job, groups:
    its group or -1, (n,). unsure: log sd of unstated resources. outside: logs beyond the runs.
    """

    def __init__(self, model: HierarchicalModel, rows: HierarchicalRows) -> None:
        self.model, self.rows = model, rows
        (apps, app), (clusters, cluster) = rows.apps, rows.clusters
        pairs, self.index = np.unique(app * len(clusters) + cluster, return_inverse=True)
        self.sources = [
            model.source(apps[a], clusters[c])
            for a, c in (divmod(pair, len(clusters)) for pair in pairs.tolist())
        ]
        found = [-1 if isinstance(s, str) else s.group for s in self.sources]
        self.groups = np.array(found, dtype=np.int64)[self.index]
        batched = np.array([g.batch is not None for g in model.groups] + [False])[self.groups]
        self.declined = self._declined(batched & np.isnan(rows.own_batch))
        cores = ResourceReading.of(rows.log_cores, self.groups, [g.cores for g in model.groups])
        wires = [None if isinstance(s, str) else s.wire for s in self.sources]
        wire = ResourceReading.of(rows.log_wire, self.index, wires)
        self.unsure = np.hypot(cores.unsure, np.where(rows.machines > 1, wire.unsure, 0.0))
        self.outside = cores.beyond + wire.beyond
        batch = np.where(batched & ~np.isnan(rows.own_batch), rows.own_batch, 1.0)
        batches = [g.batch for g in model.groups]
        self.x = rows.inputs(batch, batches, self.groups, cores.values, wire.values)

    def _declined(self, unbatched: BoolArray) -> NDArray[np.object_]:
        reasons = np.array([s if isinstance(s, str) else None for s in self.sources], dtype=object)
        result = reasons[self.index]
        groups, rows = self.model.groups, self.rows
        alone = all(group.devices <= 1 for group in groups)
        together = all(group.nodes <= 1 for group in groups)
        open_rows = is_none(result)
        result[open_rows] = rows.unsuitable[open_rows]
        for missing, words in (
            (unbatched, NO_BATCH),
            (alone & (rows.machines > 1), "its runs are all on one device, and this is more; run it on two"),
            (
                together & (rows.nodes_and_busy[0] > 1) & ~rows.linked,
                "no run is on several nodes and nothing says how they are linked; run it on two, or "
                "state the interconnect",
            ),
        ):  # fmt: skip
            result[is_none(result) & missing] = words
        return result

    def parts(self) -> Iterator[IntArray]:
        """Yield the answered jobs, some at a time, those of one source beside one another."""
        rows = np.flatnonzero(is_none(self.declined))
        rows = rows[np.argsort(self.index[rows], kind="stable")]
        for low in range(0, len(rows), CHUNK):
            yield rows[low : low + CHUNK]

    def by_source(self, rows: IntArray) -> list[tuple[Source, IntArray]]:
        """Return what answers jobs of `parts`, and the positions of those that it answers."""
        of = self.index[rows]
        here = np.split(np.arange(len(rows)), np.flatnonzero(np.diff(of)) + 1)
        return [(cast("Source", self.sources[of[mine[0]]]), mine) for mine in here]

    def times(self, rows: IntArray) -> tuple[LogTerm, LogTerm, FloatArray, FloatArray]:
        """Return log seconds of jobs and of their compute, log standard deviations and distances, (n,)."""
        x, model, sources = self.x.take(rows), self.model, self.by_source(rows)
        counts = [len(mine) for _, mine in sources]
        theta = np.array([model.parameters(source) for source, _ in sources])
        out, compute = step_seconds(np.repeat(theta, counts, axis=0), x)
        groups = [model.groups[source.group] for source, _ in sources]
        table = [
            (group.devices, group.nodes, *group.own_batch, group.sigma**2, source.sigma**2, source.distance)
            for group, (source, _) in zip(groups, sources, strict=True)
        ]  # fmt: skip
        devices, nodes, low, high, run, other, distance = np.repeat(table, counts, axis=0).T
        slopes, variance, shift = out.matrix(COUNT), np.empty(len(rows)), np.zeros(len(rows))
        points = _points(x, self.rows.placement_code[rows])
        for group, (source, mine) in zip(groups, sources, strict=True):
            variance[mine] = model.variances(source, slopes[mine])
            correction = group.correction
            if source.cluster < 0 and source.sigma == 0.0 and correction is not None:
                shift[mine], near = correction.at(points[mine])
                run[mine] += near**2 * (correction.sigma**2 - run[mine])
        batch = np.log(x.micro_batch)
        beyond = np.maximum(np.log(x.devices / devices), 0.0) + self.outside[rows]
        beyond += np.maximum(np.log(x.nodes / nodes), 0.0)
        beyond += np.maximum(np.maximum(batch - high, low - batch), 0.0)
        doublings, unsure = beyond / np.log(2.0), self.unsure[rows]
        variance += run + other + GROWTH_SIGMA**2 * doublings + unsure**2
        distance = distance + GROWTH_DISTANCE * doublings
        distance = np.where(unsure > 0, np.maximum(distance, OTHER_SETTINGS), distance)
        return out + shift, compute, np.sqrt(np.maximum(variance, 0.0)), distance


@dataclass(frozen=True)
class Hierarchical(SavedPredictor):
    """The fitted law of the time that most runs have; see `step_seconds` for its equation."""

    quantity: str = "step"
    model: HierarchicalModel | None = None
    warnings: tuple[str, ...] = field(default=())

    name = "hierarchical"
    version = 9

    def fit(self, runs: Runs) -> Hierarchical:
        """Return a predictor with the law of these runs alone.

        Raises:
            RequestError: fewer than `LEAST_RUNS` runs can be used.
        """
        runs = sorted_runs(runs)
        quantity, seconds = most_timed(runs)
        model, notes = fitted_model(runs, seconds, quantity)
        return Hierarchical(quantity, model, tuple(notes))

    def predict(self, jobs: Jobs) -> Forecasts:
        """Return seconds of n jobs, compute and communication as parts; memory is not answered."""
        blank = Forecasts.blank(len(jobs), self.name, self.quantity)
        parts = np.full((len(PARTS), len(jobs)), np.nan)
        declined: NDArray[np.object_] = np.full(len(jobs), _UNFITTED, dtype=object)
        if self.model is not None:
            prediction = Prediction(self.model, HierarchicalRows(jobs, self.quantity))
            declined = prediction.declined
            for rows in prediction.parts():
                out, compute, sigma, blank.distance[rows] = prediction.times(rows)
                middle = np.exp(out.log)
                blank.seconds[rows] = spread(middle, sigma)
                alone = np.minimum(np.exp(compute.log), middle)
                parts[:, rows] = alone, middle - alone
        named = dict(zip(PARTS, parts, strict=True))
        return replace(blank, declined=declined, parts=named, warnings=self.warnings)

    def log_covariance(self, jobs: Jobs) -> FloatArray:
        """Return the covariance of the errors of log seconds of n jobs, (n, n); NaN where declined."""
        result = np.full((len(jobs), len(jobs)), np.nan)
        if self.model is None:
            return result
        model, found = self.model, self.model.posterior
        prediction = Prediction(model, HierarchicalRows(jobs, self.quantity))
        pulls, own = np.zeros((len(jobs), found.shared.size)), np.zeros(result.shape)
        slopes, variance = np.zeros((len(jobs), COUNT)), np.zeros(len(jobs))
        for part in prediction.parts():
            out, _, sigma, _ = prediction.times(part)
            slopes[part], variance[part] = out.matrix(COUNT), sigma**2
            for source, mine in prediction.by_source(part):
                rows, effects = part[mine], model.effects(source)
                pulls[rows] = found.pulls(slopes[rows], source.group, effects)
        rows = np.flatnonzero(is_none(prediction.declined))
        for i in np.unique(prediction.groups[rows]):
            mine = rows[prediction.groups[rows] == i]
            own[np.ix_(mine, mine)] = slopes[mine] @ found.alone[i] @ slopes[mine].T
        both = pulls[rows] @ found.moved_with(pulls[rows]) + own[np.ix_(rows, rows)]
        np.fill_diagonal(both, variance[rows])
        result[np.ix_(rows, rows)] = both
        return result

    @property
    def formulas(self) -> dict[str, str]:
        """The law of each app on each cluster with units and intervals, and what limits it."""
        model = self.model
        return {} if model is None else {
            f"{_words(group.app)} on {_words(group.cluster)}": (
                f"{_formula(model, i, self.quantity)} ({group.runs} runs; intervals hold 90 % "
                f"(5 to 95 %), exp and log natural; {_limit(model, i)})"
            )
            for i, group in enumerate(model.groups)
        }  # fmt: skip


def _words(name: Kind) -> str:
    more = ", ".join(text for text in name[1:] if text not in ("", SYNC[0]))
    return (name[0] or "(blank)") + (f" ({more})" if more else "")


def _formula(model: HierarchicalModel, i: int, quantity: str) -> str:
    group = model.groups[i]
    theta, covariance = model.posterior.theta[i], model.posterior.uncertainty(i)

    def ends(*names: str) -> FloatArray:
        at = [AT[name] for name in names]
        reach = Z95 * float(np.sqrt(max(covariance[np.ix_(at, at)].sum(), 0.0)))
        return np.asarray(theta[at].sum() + reach * np.array([0.0, -1.0, 1.0]))

    def seconds(*names: str, over: float = 1.0, of: str = "") -> str:
        middle, low, high = np.exp(ends(*names)) / over
        return f"{middle:.3g} s{of} ({low:.3g} to {high:.3g})"

    def power(name: str) -> str:
        middle, low, high = ends(name)
        return f"({middle:.2g}, {low:.2g} to {high:.2g})"

    compute = seconds("fixed")
    if group.batch is not None:
        # Where no batch is known, an epoch or a run goes by a device's share of the data.
        share = "micro_batch" if quantity == "step" else "micro_batch (or dataset_size / devices)"
        compute += f" + {seconds('sample', of=' a sample')} x {share}"
    if group.cores is not None:
        compute = (
            f"({compute}) / ((part of a core)^{power('share')} x (cores above 1)^{power('cores')})"
        )
    text = f"seconds of {article(quantity)}: compute = {compute}"
    if group.devices <= 1:
        return text
    assumed = " (assumed: no run of it)"
    joined = 1.0 + np.exp(min(theta[AT["overlap"]], LARGEST_LOG_OVERLAP))
    return "; ".join([
        text,
        f"in a node of n = {seconds('volume', 'intra', over=group.rates[0])} x 2(n-1)/n x "
        f"exp({theta[AT['intra_growth']]:.2g} (1 - 2/n)){assumed * (group.busy <= 1)}",
        f"messages = {seconds('hop')} x 2(K-1)",
        f"between N nodes of L = ({seconds('volume', 'inter', over=group.rates[1])} + the in-node figure) x "
        f"2(K-1)/K x exp({power('node_size')} (1 - 1/L)) x (N/3)^{power('node_count')} x "
        f"{np.exp(theta[AT['two_nodes']]):.2g} on two nodes{assumed * (group.nodes <= 1)}",
        f"joined as ((compute + messages)^p + network^p)^(1/p), p = {joined:.2g}",
    ])  # fmt: skip


def _limit(model: HierarchicalModel, i: int) -> str:
    group, theta = model.groups[i], model.posterior.theta[i]
    if group.devices <= 1:
        return "its runs are on one device and say nothing of scaling"
    # The job of the most devices and nodes that a run had, at the smallest batch.
    batch = group.own_batch[0] if group.batch else 0.0
    low, high = group.batch or (0.0, 1.0)
    cores = 0.0 if group.cores is None else sum(group.cores) / 2.0
    columns = (
        group.devices, group.nodes, np.ceil(group.devices / group.nodes), np.exp(batch), 1.0,
        (batch - low) / max(high - low, _LEAST_SPAN), *group.rates, 0.0, cores,
    )  # fmt: skip
    out, compute = step_seconds(theta[None], LawInputs(*np.array(columns)[:, None]))
    share = 100.0 * float(1.0 - np.exp(compute.log - out.log)[0])
    times = {
        "the wire between nodes": theta[AT["inter"]] - np.log(group.rates[1]),
        "the path through the host": theta[AT["intra"]] - np.log(group.rates[0]),
        "the time that each message takes": theta[AT["hop"]] - theta[AT["volume"]]
            + np.log(group.devices) - theta[AT["share"]] * min(cores, 0.0),
    }  # fmt: skip
    mostly = f", mostly {max(times, key=lambda name: times[name])}" * (group.nodes > 1)
    return (
        f"at {group.devices:g} devices on {counted(int(group.nodes), 'node')} {share:.0f} % of the "
        f"time is exposed communication{mostly}"
    )
