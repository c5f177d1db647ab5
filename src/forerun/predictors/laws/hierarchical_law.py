"""The law of all-reduce training for n jobs, and what is known of its parameters before any run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.predictors.laws.fitting import (
    ColumnRows,
    Effects,
    LogTerm,
    constant,
    parameter,
    total,
)
from forerun.predictors.laws.law_rows import BESIDE_POWER, CORES_POWER, SHARE_POWER

KNOTS = 6  # of the shape of compute over the micro-batch
# Prior log standard deviations (or of an exponent): of all, workload, app, cluster, and their own. Wide
# where machines differ (rates, compute), narrow where networks of all kinds agree; decision 0015 says on
# which splits they were chosen.
WIDTHS: Mapping[str, tuple[float, float, float, float, float]] = {
    "fixed": (0.0, 1.0, 1.1, 0.7, 0.3),
    "sample": (0.0, 1.0, 1.1, 0.7, 0.25),
    "host_fixed": (0.1, 0.07, 0.07, 0.1, 0.15),
    "host_sample": (0.02, 0.02, 0.02, 0.03, 0.03),
    "single": (0.05, 0.03, 0.03, 0.05, 0.15),
    "share": (0.08, 0.05, 0.03, 0.05, 0.05),
    "cores": (0.2, 0.1, 0.1, 0.1, 0.1),
    "volume": (0.0, 1.0, 0.5, 0.0, 0.2),
    "intra": (0.0, 0.0, 0.0, 0.6, 0.25),
    "intra_growth": (0.2, 0.07, 0.07, 0.15, 0.1),
    "inter": (0.3, 0.0, 0.0, 0.4, 0.25),
    "node_size": (0.1, 0.04, 0.03, 0.1, 0.05),
    "node_count": (0.1, 0.04, 0.03, 0.1, 0.05),
    "two_nodes": (0.05, 0.04, 0.03, 0.4, 0.1),
    "hop": (0.3, 0.1, 0.1, 0.5, 0.1),
    "overlap": (0.2, 0.25, 0.15, 0.1, 0.1),
    **{f"shape_{i}": (0.0, 0.05, 0.03, 0.0, 0.06) for i in range(KNOTS)},
}
PARAMETERS = tuple(WIDTHS)
COUNT = len(PARAMETERS)
AT = {name: i for i, name in enumerate(PARAMETERS)}
MEANS = {
    "intra": -np.log(0.25), "intra_growth": 0.5, "inter": -np.log(0.7), "node_size": 0.25,
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
# Shared effects meet in one matrix, and a table of hundreds of workloads would fill it.
MOST_EFFECTS = 60
# How the in-node ring and the one between nodes join: nearly the slower of the two.
LINK_NORM = 3.0
REFERENCE_NODES = 3.0
LARGEST_LOG_OVERLAP = 2.3


@dataclass(frozen=True)
class LawInputs(ColumnRows):
    """n jobs as the law sees them, each column (n,).

    busy: devices on the busiest node. micro_batch: samples a device goes through at a time (or its share
    of the data). accumulation: micro-batches a step. place: of the micro-batch among those measured, 0
    the smallest, 1 the largest. intra_rate, inter_rate: nominal GB/s of a node's inside and of its wire.
    log_steps: log of the steps that the timed quantity has. log_cores: log of a worker's cores, below 0
    of a part of one; 0 where nothing is stated.
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
    """Return the seconds of n jobs, and of their compute alone.

        compute  T = (a busy^x [single] + b busy^y micro_batch) shape(micro_batch) / (s^u c^v)
        hops     H = h 2(K-1) / s^u                          K devices; s of a core, c cores
        in node  U = V / (I s^u)  2(n-1)/n  e^(q (1 - 2/n))  n = devices on the busiest node
        between  W = V (1/J + 1/(I s^u))  2(K-1)/K  e^(l (1 - 1/L))  (N/3)^m [two]  on N nodes, L = K/N
        step       = (accum - 1) T + ((T + H)^p + (U^r + W^r)^(p/r))^(1/p)

    A ring moves 2(K-1)/K of the gradients V over every link in 2(K-1) messages (Patarasuk and Yuan,
    Bandwidth optimal all-reduce algorithms, 2009); between nodes a byte passes the host's path and the
    wire one after the other. The p-norm of overlap is that of Qiao et al., Pollux (OSDI 2021). A worker
    that is held to a part of a core computes that much slower; its threads make what they can of c whole
    cores (Amdahl, 1967).

    theta: (n, p) parameters of each job, in the order of `PARAMETERS`: logs of seconds, gigabytes and
    efficiencies, and exponents.
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
    inside = host + of("intra_growth", 1.0 - 2.0 / members) + _ring(members)
    between = total(wire, host) + of("node_size", 1.0 - x.nodes / x.devices) + _ring(devices)
    between += of("node_count", np.log(x.nodes / REFERENCE_NODES))
    between += of("two_nodes", (x.nodes == 2).astype(np.float64))
    network = total(inside.where(x.busy > 1), between.where(x.nodes > 1), LINK_NORM)

    busy = total(compute, hops.where(several))  # the processor computes and sends
    overlap = of("overlap").at_most(LARGEST_LOG_OVERLAP)
    step = total(busy, network, total(constant(np.zeros(len(x))), overlap))
    with np.errstate(divide="ignore"):
        step = total(step, compute + np.log(x.accumulation - 1.0))
    return step + x.log_steps, compute + (np.log(x.accumulation) + x.log_steps)


def _ring(members: FloatArray) -> FloatArray:
    """Return the log of 2 (k - 1) / k, what a ring of k moves over each of its links."""
    return np.log(2.0 * (members - 1.0) / members)


def effects_of(workload: IntArray, app: IntArray, cluster: IntArray) -> tuple[Effects, IntArray]:
    """Return the effects of groups, and the position of each cluster's, none where there is one cluster.

    The parameters of one app on one cluster are a sum: all + workload + app + cluster + their own.
    workload, app, cluster: of each group, (g,).
    """
    width: FloatArray = np.array(list(WIDTHS.values())).T
    own = np.repeat(width[4][None], len(app), axis=0)
    shared = [
        (names == name, width[level])
        for level, names in ((1, workload), (2, app)) for name in np.unique(names)
    ]  # fmt: skip
    shared.sort(key=lambda effect: -effect[0].sum())
    for groups, wide in shared[MOST_EFFECTS:]:
        own[groups] = np.hypot(own[groups], wide)
    made = Effects.of(own, shared[:MOST_EFFECTS])
    # Those of all and of a cluster stay apart even where one group has them: others are moved by them.
    clusters = int(cluster.max()) + 1
    of_clusters = (cluster[:, None] == np.arange(clusters))[:, : clusters if clusters > 1 else 0]
    of_all = width[0] if clusters > 1 else np.hypot(width[0], width[3])
    members = np.hstack([np.ones((len(app), 1), dtype=bool), of_clusters, made.members])
    apart = np.vstack([of_all, np.tile(width[3], (of_clusters.shape[1], 1)), made.widths])
    return Effects(members, apart, made.own), 1 + np.arange(of_clusters.shape[1])


def prior_means(start: FloatArray, processor: IntArray, known: BoolArray) -> FloatArray:
    """Return where the parameters of each group start, (g, p).

    start: log seconds of the fixed and of the per-sample compute, log gigabytes of gradients, (g, 3).
    processor: 1 where it computes on a processor, -1 where on another device, else 0, (g,). known:
    whether the gradients are known, (g,).
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
