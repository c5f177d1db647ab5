"""The law of all-reduce training for n jobs: its seconds, what they are made of, and their slopes.

    compute  T = (a busy^x [single] + b busy^y micro_batch) shape(micro_batch) / (s^u c^v)
    hops     H = h 2(K-1) / s^u                                K devices; s of a core, c cores
    in node  U = V / (I s^u)  2(n-1)/n  (n/2)^q                n = devices on the busiest node
    between  W = V (1/J + 1/(I s^u))  2(K-1)/K  L^l (N/3)^m [two]    on N nodes, L = K/N
    step       = (accum - 1) T + ((T + H)^p + (U^r + W^r)^(p/r))^(1/p)

A ring moves 2(K-1)/K of the gradients V over every link in 2(K-1) messages (Patarasuk and Yuan,
Bandwidth optimal all-reduce algorithms, 2009); between nodes a byte passes the host's path and the wire
one after the other, and each message takes time of the processor that computes. The exponents and the
p-norm of overlap are free (Qiao et al., Pollux, OSDI 2021, has p-norms and lines). Powers of L and n
flatten: L^l stands for exp(l (1 - 1/L)).

A worker that is held to a part s of a core computes that much slower, u = 1; of c whole cores its threads
make what they can, v below 1 (Amdahl, 1967). Where nothing is said of either, both are 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forerun.arrays import FloatArray
from forerun.predictors.laws.fitting import ColumnRows

KNOTS = 6  # of the shape of compute over the micro-batch
PARAMETERS = (
    "fixed", "sample", "host_fixed", "host_sample", "single", "share", "cores", "volume", "intra",
    "intra_growth", "inter", "rate", "node_size", "node_count", "two_nodes", "hop", "overlap",
    *(f"shape_{i}" for i in range(KNOTS)),
)  # fmt: skip
COUNT = len(PARAMETERS)
AT = {name: i for i, name in enumerate(PARAMETERS)}
_FIRST_KNOT = AT["shape_0"]
# How the in-node ring and the one between nodes join: nearly the slower of the two.
LINK_NORM = 3.0
# Of the host's path inside a node, what a byte between nodes pays beside the wire.
HOST_SHARE = 1.0
REFERENCE_NODES = 3.0
# GB/s at which stated rates of a wire count as they are; beside it by the power 1 + rate.
REFERENCE_RATE = 1.25
_NOTHING = -60.0  # log seconds of a network that is not used
LARGEST_LOG_OVERLAP = 2.3


@dataclass(frozen=True)
class LawInputs(ColumnRows):
    """n jobs as the law sees them, each column (n,).

    Attributes:
        devices, nodes, busy: K, N, and devices on the busiest node.
        micro_batch: samples a device goes through at a time (or the share of the data it has).
        accumulation: micro-batches a step.
        place: of the micro-batch among those measured, 0 the smallest, 1 the largest.
        intra_rate, inter_rate: nominal gigabytes a second of a node's inside and of its wire.
        log_steps: log of the steps that the timed quantity has; 0 for a step.
        log_share, log_cores: logs of the part of one core that a worker has, 0 at most, and of its whole
            cores, 0 at least; 0 where nothing is said.
        log_rate: log of the stated rate of the wire over `REFERENCE_RATE`; 0 where none is stated.
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
    log_share: FloatArray
    log_cores: FloatArray
    log_rate: FloatArray

    @property
    def cores(self) -> FloatArray:
        """Cores of a worker, (n,), 1 where nothing is said."""
        return np.asarray(np.exp(self.log_share + self.log_cores))


@dataclass(frozen=True)
class LawTimes:
    """Log seconds of the whole and of its compute (n,), and slopes of both to each parameter (n, p).

    Slopes are None where they were not worked out.
    """

    log_seconds: FloatArray
    log_compute: FloatArray
    slopes: FloatArray | None = None
    compute_slopes: FloatArray | None = None


def evaluate_law(theta: FloatArray, x: LawInputs, slopes: bool = False) -> LawTimes:
    """Return the law of n jobs.

    Args:
        theta: (n, p) parameters of each job, in the order of `PARAMETERS`: logs of seconds,
            gigabytes and efficiencies, and exponents.
        x: the jobs.
        slopes: whether to work out the derivatives.
    """
    compute = _Compute(theta, x)
    network = _Network(theta, x)
    power = 1.0 + np.exp(np.minimum(theta[:, AT["overlap"]], LARGEST_LOG_OVERLAP))
    c, w = compute.log_seconds, np.maximum(network.log_seconds, compute.log_seconds + _NOTHING)
    busy = np.logaddexp(c, network.log_hops)  # of the processor: to compute, and to send
    joined = np.logaddexp(power * busy, power * w) / power
    share = np.exp(power * (busy - joined))  # of the processor in the joined step
    extra = x.accumulation - 1.0
    whole = joined
    last = np.ones(len(c))
    if np.any(extra > 0):
        whole = np.logaddexp(joined, c + np.log(np.maximum(extra, 1e-300)))
        last = np.exp(joined - whole)
    seconds, alone = whole + x.log_steps, c + np.log(x.accumulation) + x.log_steps
    if not slopes:
        return LawTimes(seconds, alone)
    own = compute.slopes()
    sending = np.where(x.devices > 1, last * share * np.exp(network.log_hops - busy), 0.0)
    total = (last * share - sending + (1.0 - last))[:, None] * own
    total += (last * (1.0 - share))[:, None] * network.slopes()
    total[:, AT["hop"]] += sending
    total[:, AT["share"]] -= sending * x.log_share
    mixed = share * busy + (1.0 - share) * w - joined
    inside = theta[:, AT["overlap"]] < LARGEST_LOG_OVERLAP
    total[:, AT["overlap"]] += last * inside * mixed * (power - 1.0) / power
    return LawTimes(seconds, alone, total, own)


class _Compute:
    """log seconds of one micro-batch and their slopes."""

    def __init__(self, theta: FloatArray, x: LawInputs) -> None:
        self.crowd = np.log(x.busy)
        self.alone = (x.devices == 1).astype(np.float64)
        fixed = (
            theta[:, AT["fixed"]]
            + theta[:, AT["host_fixed"]] * self.crowd
            + theta[:, AT["single"]] * self.alone
        )
        sample = (
            theta[:, AT["sample"]]
            + theta[:, AT["host_sample"]] * self.crowd
            + np.log(x.micro_batch)
        )
        both = np.logaddexp(fixed, sample)
        self.fixed_share = np.exp(fixed - both)
        at = np.clip(x.place, 0.0, 1.0) * (KNOTS - 1)
        self.low = np.minimum(at.astype(np.int64), KNOTS - 2)
        self.up = at - self.low
        rows = np.arange(len(at))
        shape = theta[rows, _FIRST_KNOT + self.low] * (1.0 - self.up)
        shape += theta[rows, _FIRST_KNOT + self.low + 1] * self.up
        self.log_share, self.log_cores = x.log_share, x.log_cores
        speed = theta[:, AT["share"]] * x.log_share + theta[:, AT["cores"]] * x.log_cores
        self.log_seconds = both + shape - speed

    def slopes(self) -> FloatArray:
        n = len(self.log_seconds)
        result = np.zeros((n, COUNT))
        result[:, AT["fixed"]] = self.fixed_share
        result[:, AT["host_fixed"]] = self.fixed_share * self.crowd
        result[:, AT["single"]] = self.fixed_share * self.alone
        result[:, AT["sample"]] = 1.0 - self.fixed_share
        result[:, AT["host_sample"]] = (1.0 - self.fixed_share) * self.crowd
        result[:, AT["share"]] = -self.log_share
        result[:, AT["cores"]] = -self.log_cores
        rows = np.arange(n)
        result[rows, _FIRST_KNOT + self.low] = 1.0 - self.up
        result[rows, _FIRST_KNOT + self.low + 1] = self.up
        return result


class _Network:
    """log seconds of an all-reduce and their slopes, and of its messages; `_NOTHING` on one device."""

    def __init__(self, theta: FloatArray, x: LawInputs) -> None:
        crowd = np.maximum(x.busy, 2.0)
        self.growth = 1.0 - 2.0 / crowd
        volume = theta[:, AT["volume"]]
        self.log_share, self.log_rate = x.log_share, x.log_rate
        slowed = theta[:, AT["share"]] * x.log_share
        host = volume + theta[:, AT["intra"]] - np.log(x.intra_rate) - slowed
        wire = volume + theta[:, AT["inter"]] - np.log(x.inter_rate)
        wire = wire - theta[:, AT["rate"]] * x.log_rate
        hops = theta[:, AT["hop"]] + np.log(2.0 * (np.maximum(x.devices, 2.0) - 1.0)) - slowed
        self.log_hops = np.where(x.devices > 1, hops, _NOTHING)
        inside = host + theta[:, AT["intra_growth"]] * self.growth + _ring(crowd)
        path = np.logaddexp(wire, host + np.log(HOST_SHARE))
        self.wire_share = np.exp(wire - path)
        self.size = 1.0 - x.nodes / x.devices
        self.count = np.log(x.nodes / REFERENCE_NODES)
        self.two = (x.nodes == 2).astype(np.float64)
        between = path + _ring(np.maximum(x.devices, 2.0)) + theta[:, AT["node_size"]] * self.size
        between += theta[:, AT["node_count"]] * self.count + theta[:, AT["two_nodes"]] * self.two
        self.many = x.nodes > 1
        inside = np.where(x.busy > 1, inside, _NOTHING)
        between = np.where(self.many, between, _NOTHING)
        self.log_seconds = np.logaddexp(LINK_NORM * inside, LINK_NORM * between) / LINK_NORM
        self.inside_share = np.exp(LINK_NORM * (inside - self.log_seconds))

    def slopes(self) -> FloatArray:
        result = np.zeros((len(self.log_seconds), COUNT))
        out = 1.0 - self.inside_share
        host = self.inside_share + out * (1.0 - self.wire_share)
        result[:, AT["volume"]] = 1.0
        result[:, AT["intra"]] = host
        result[:, AT["share"]] = -host * self.log_share
        result[:, AT["intra_growth"]] = self.inside_share * self.growth
        result[:, AT["inter"]] = out * self.wire_share
        result[:, AT["rate"]] = -out * self.wire_share * self.log_rate
        out = out * self.many
        result[:, AT["node_size"]] = out * self.size
        result[:, AT["node_count"]] = out * self.count
        result[:, AT["two_nodes"]] = out * self.two
        return result


def _ring(members: FloatArray) -> FloatArray:
    """Return the log of 2 (k - 1) / k, what a ring of k moves over each of its links."""
    return np.log(2.0 * (members - 1.0) / members)
