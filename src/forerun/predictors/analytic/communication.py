"""Communication: links as software meets them, collectives over them, and traffic inside layers.

Collectives take NumPy arrays that broadcast together. `size` is the bytes of the full buffer on one
rank, `ranks` how many take part, bandwidths are effective bytes/s per device and direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from forerun.arrays import FloatArray
from forerun.domain.graph import BLOCK_INDEX, KIND_INDEX, PHASE_INDEX, Block, OpKind, Phase
from forerun.domain.hardware import Cluster
from forerun.domain.workload import ACTIVATION_BYTES, Workload
from forerun.predictors.analytic.constants import Constants, constant_of
from forerun.predictors.analytic.flat import Keys

# (latency, rate) of the links inside nodes, then of those between them.
Link = tuple[FloatArray, FloatArray, FloatArray, FloatArray]


@dataclass(frozen=True)
class Links:
    """The links of c clusters: nominal rates (bytes/s a device), latencies and kinds, each (c,).

    A node's network is stated for each of its devices; where a placement uses only some of them,
    these have all of it.
    """

    kinds: tuple[str, ...]
    intra_kind: NDArray[np.int64]
    inter_kind: NDArray[np.int64]
    intra_latency: FloatArray
    intra_rate: FloatArray
    inter_latency: FloatArray
    inter_rate: FloatArray
    host_rate: FloatArray

    def take(self, index: NDArray[Any]) -> Links:
        """Return the links of the clusters at the given positions."""
        columns = {name: v[index] for name, v in vars(self).items() if name != "kinds"}
        return Links(self.kinds, **columns)

    def effective(self, constants: Constants) -> Link:
        """Return (intra latency, intra rate, inter latency, inter rate) as software meets them."""
        share, slower = (
            np.array([constant_of(family, getattr(constants, family), k) for k in self.kinds])
            for family in ("link_efficiency", "link_latency")
        )
        return (
            self.intra_latency * slower[self.intra_kind], self.intra_rate * share[self.intra_kind],
            self.inter_latency * slower[self.inter_kind], self.inter_rate * share[self.inter_kind],
        )  # fmt: skip

    def host(self, constants: Constants) -> FloatArray:
        """Return bytes/s between device and host; the node's own link where it is not known."""
        pcie = self.host_rate * constants.link_efficiency["pcie"]
        return np.where(pcie > 0, pcie, self.effective(constants)[1])


def links_of(clusters: Sequence[Cluster]) -> Links:
    """Return the links of clusters."""
    kinds = sorted({k for c in clusters for k in (c.intra.kind, c.inter.kind)})
    place = {kind: i for i, kind in enumerate(kinds)}
    rows = [
        (
            c.intra.latency_seconds, c.intra.bytes_per_second, c.inter.latency_seconds,
            c.inter.bytes_per_second
            * max(c.devices_per_node / max(c.placement, default=c.devices_per_node), 1.0),
            c.device.host_bytes_per_second,
        )
        for c in clusters
    ]  # fmt: skip
    numbers = np.array(rows, dtype=np.float64).T
    return Links(
        tuple(kinds),
        np.array([place[c.intra.kind] for c in clusters]),
        np.array([place[c.inter.kind] for c in clusters]),
        *numbers,
    )


def all_reduce(
    size: Any, ranks: Any, per_node: Any, intra_latency: Any, intra_bandwidth: Any,
    inter_latency: Any, inter_bandwidth: Any,
) -> Any:  # fmt: skip
    """Return the seconds of an all-reduce over rings that pass through all nodes.

    Every ring carries 2 (K-1)/K of its share of the buffer over each link (Patarasuk and Yuan
    2009), so that the slower of the links inside nodes and between them binds, and two nodes are
    no faster than many: NCCL has no reduce-scatter inside a node before the network. Small buffers
    climb a tree of nodes (Sanders, Speck and Traeff 2009).

    per_node: ranks of the group in one node, each with its own share of the network.
    """
    nodes = np.ceil(ranks / per_node)
    climb = np.minimum(nodes - 1, np.ceil(np.log2(np.maximum(nodes, 1))))
    latency = 2.0 * ((per_node - 1) * intra_latency + climb * inter_latency)
    return 2.0 * _ring_seconds(size, ranks, per_node, intra_bandwidth, inter_bandwidth) + latency


def all_gather(
    size: Any, ranks: Any, per_node: Any, intra_latency: Any, intra_bandwidth: Any,
    inter_latency: Any, inter_bandwidth: Any,
) -> Any:  # fmt: skip
    """Return the seconds of an all-gather or reduce-scatter over the same rings.

    `size` is the bytes of the complete buffer; the volume is half of an all-reduce's. K ranks on M
    nodes take K - M hops inside nodes and M - 1 between them: there is no tree.
    """
    nodes = np.ceil(ranks / per_node)
    latency = (ranks - nodes) * intra_latency + (nodes - 1) * inter_latency
    return _ring_seconds(size, ranks, per_node, intra_bandwidth, inter_bandwidth) + latency


def _ring_seconds(size: Any, ranks: Any, per_node: Any, intra: Any, inter: Any) -> Any:
    """Return the seconds in which (K-1)/K of a buffer passes the slowest link of its rings."""
    moved = (ranks - 1) / ranks * size
    inside = moved / intra
    between = np.where(np.asarray(ranks) > per_node, moved / (per_node * inter), 0.0)
    return np.maximum(inside, between)


def all_to_all(
    size: Any, ranks: Any, per_node: Any, intra_latency: Any, intra_bandwidth: Any,
    inter_latency: Any, inter_bandwidth: Any,
) -> Any:  # fmt: skip
    """Return an all-to-all in which each rank holds `size` bytes and sends 1/K to each other."""
    inside = (per_node - 1) / ranks * size / intra_bandwidth
    between = (ranks - per_node) / ranks * size / inter_bandwidth
    latency = np.where(
        np.asarray(ranks) > np.asarray(per_node), inter_latency,
        np.where(np.asarray(ranks) > 1, intra_latency, 0.0),
    )  # fmt: skip
    return np.maximum(inside, between) + latency * np.log2(np.maximum(ranks, 1))


def dispatch(
    size: Any, copies: Any, ranks: Any, per_node: Any, intra_latency: Any, intra_bandwidth: Any,
    inter_latency: Any, inter_bandwidth: Any,
) -> Any:  # fmt: skip
    """Return the seconds in which each rank's tokens reach their experts.

    `size` is the bytes of one rank's tokens, each sent to `copies` experts spread evenly over the
    ranks. A token crosses to a node once, however many of its experts are there (the expected
    number of distinct nodes), and is copied inside it.
    """
    nodes = np.ceil(ranks / per_node)
    distinct = nodes * (1.0 - (1.0 - 1.0 / nodes) ** copies)
    between = size * distinct * (nodes - 1) / nodes / inter_bandwidth
    inside = size * copies * (per_node - 1) / per_node / intra_bandwidth
    latency = np.where(nodes > 1, inter_latency, np.where(np.asarray(ranks) > 1, intra_latency, 0))
    return np.maximum(inside, between) + latency * np.log2(np.maximum(ranks, 1))


def p_norm(a: ArrayLike, b: ArrayLike, power: float | FloatArray) -> FloatArray:
    """Return (a^p + b^p)^(1/p): 1 adds up, infinity overlaps perfectly. Grows with a and b."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    high, low = np.maximum(a, b), np.minimum(a, b)
    ratio = low / np.maximum(high, 1e-300)
    result: FloatArray = high * (1.0 + ratio**power) ** (1.0 / power)
    return result


@dataclass(frozen=True)
class LayerComm:
    """Seconds of communication of all layers in the forward phase, each (k,).

    Backward repeats tensor and expert traffic and moves twice the keys and values (they come
    again, and their gradients go home).
    """

    tensor: FloatArray
    expert: FloatArray
    context: FloatArray

    @property
    def forward(self) -> FloatArray:
        """All of it, forward."""
        return self.tensor + self.expert + self.context

    @property
    def backward(self) -> FloatArray:
        """All of it, backward."""
        return self.forward + self.context


@dataclass(frozen=True)
class Traffic:
    """What I instances send inside their layers, columns of shape (I,) that no constant moves.

    message: bytes of a micro-batch's activations between layers; width: bytes of its keys and
    values before tp cuts them; layers, expert_layers; copies: experts that a token reaches;
    per_node: devices that the link inside a node joins.
    """

    message: FloatArray
    width: FloatArray
    layers: FloatArray
    expert_layers: FloatArray
    copies: FloatArray
    per_node: FloatArray


def traffic_of(workloads: Sequence[Workload], clusters: Sequence[Cluster], keys: Keys) -> Traffic:
    """Return what instances send, for their workloads, clusters and keys."""
    each = {id(w): w for w in workloads}
    facts = {i: _sent(w) for i, w in each.items()}
    boundary, width, layers, expert_layers, copies = np.array([facts[id(w)] for w in workloads]).T
    samples = keys.micro_batch / keys.cp
    per_node = np.array([float(c.near_devices) for c in clusters])
    return Traffic(samples * boundary, samples * width, layers, expert_layers, copies, per_node)


def _sent(workload: Workload) -> tuple[float, ...]:
    """(bytes of a sample between layers, of its keys and values, layers, moe layers, copies)."""
    shape, size = workload.shape, float(ACTIVATION_BYTES[workload.precision])
    head_size = shape.head_size or shape.hidden / max(shape.heads, 1)
    width = (shape.kv_heads or shape.heads) * head_size
    expert_layers = float(shape.moe_layers or shape.layers) if shape.experts else 0.0
    return (
        boundary_elements(workload) * size, 2.0 * workload.seq_len * width * size,
        float(shape.layers), expert_layers, float(shape.experts_per_token),
    )  # fmt: skip


def layer_comm(
    sent: Traffic, keys: Keys, link: tuple[FloatArray, ...], constants: Constants
) -> LayerComm:
    """Return the communication inside all layers for I instances.

    Tensor parallel: two all-reduces of the layer's activations each way (or all-gather and
    reduce-scatter of the same volume with sequence parallelism; Shoeybi et al. 2019, Korthikanti
    et al. 2022). Experts: two all-to-alls each way (Lepikhin et al. 2020). Context: keys and
    values travel the ring, in part hidden behind attention (Liu et al. 2023).

    link: (intra latency, intra rate, inter latency, inter rate), each (I,), see `Links`.
    """
    tp, cp, ep = keys.tp, keys.cp, keys.ep
    node, message = sent.per_node, sent.message
    tensor = all_reduce(message, tp, np.minimum(tp, node), *link)
    tensor = tensor + _ring_latency(keys, node, constants)
    tensor = 2.0 * np.maximum(sent.layers, 1.0) * tensor
    expert = context = np.zeros(len(tp))
    if np.any((sent.expert_layers > 0) & (ep > 1)):
        local = message / np.where(keys.sequence_parallel > 0, tp, 1.0)
        inside = np.clip(np.floor(node / tp), 1, ep)
        one = dispatch(local, np.maximum(sent.copies, 1.0), ep, inside, *link)
        one = one * constants.expert_imbalance * constants.expert_exposed
        expert = np.where(ep > 1, 2.0 * sent.expert_layers * one, 0.0)
    if np.any(cp > 1):
        inside = np.clip(np.floor(node / tp), 1, cp)
        ring = all_gather(sent.width / tp * cp, cp, inside, *link) * sent.layers
        context = np.where(cp > 1, constants.context_exposed * ring, 0.0)
    return LayerComm(np.asarray(tensor), np.asarray(expert), np.asarray(context))


def _ring_latency(keys: Keys, node: FloatArray, constants: Constants) -> FloatArray:
    """Return what one all-gather and reduce-scatter wait beyond an all-reduce, (I,), seconds.

    Where a group that splits the sequence spans nodes: libraries have no tree and no hierarchy for
    these collectives, each of a ring's K - 1 hops waits for the network, and nothing hides it.
    """
    across = (keys.tp > node) & (keys.sequence_parallel > 0)
    return np.where(across, 2.0 * (keys.tp - 1.0) * constants.tensor_hop_seconds, 0.0)


def boundary_elements(workload: Workload) -> float:
    """Return the elements of one sample that stand between two layers.

    Tokens x hidden where both are known; else what the widest norm of a layer writes (an image
    transformer's tokens); else the mean output of a layer's operations.
    """
    if workload.seq_len > 0 and workload.shape.hidden > 0:
        return float(workload.seq_len * workload.shape.hidden)
    columns = workload.graph.columns
    norms = (
        (columns.kind == KIND_INDEX[OpKind.NORM])
        & (columns.block == BLOCK_INDEX[Block.LAYER])
        & (columns.phase == PHASE_INDEX[Phase.FORWARD])
    )
    widest = float(columns.writes[norms].max(initial=0.0))
    layers = max(workload.shape.layers, 1)
    return widest or workload.graph.activations / (8.0 * layers)
