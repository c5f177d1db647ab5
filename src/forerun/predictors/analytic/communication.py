"""Communication: links as software meets them, collectives over them, and traffic inside layers.

`size` are the bytes of the full buffer on one rank, `per_node` how many of the `ranks` are in one node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from forerun.arrays import FloatArray, IntArray
from forerun.domain.graph import BLOCK_INDEX, KIND_INDEX, PHASE_INDEX, Block, OpKind, Phase
from forerun.domain.hardware import Cluster
from forerun.domain.workload import ACTIVATION_BYTES, Workload
from forerun.predictors.analytic.constants import Constants, constant_of, link_key
from forerun.predictors.analytic.flat import Keys, remember

# Latency and rate (effective bytes/s a device and direction) inside nodes, then between them.
Link = tuple[Any, ...]
TCP_POWER = 4.0  # of the norm that joins what TCP carries to the rate of its wire
LINK_FIELDS = ("intra_latency", "intra_rate", "inter_latency", "inter_rate")


@dataclass(frozen=True)
class Links:
    """Nominal links of c clusters: kind, latency and rate inside and between nodes, (2, c) each.

    sharing: devices that share a node's network, (c,).
    """

    kinds: tuple[str, ...]
    kind: IntArray
    latency: FloatArray
    rate: FloatArray
    host_rate: FloatArray
    sharing: FloatArray

    def effective(self, constants: Constants) -> dict[str, FloatArray]:
        """Return `LINK_FIELDS` and `host_rate` as software meets them, (c,) each."""
        share, slower = (
            np.array(
                [constant_of(family, getattr(constants, family), link_key(k)) for k in self.kinds]
            )
            for family in ("link_efficiency", "link_latency")
        )
        latency, rate = self.latency * slower[self.kind], self.rate * share[self.kind]
        if "ethernet" in self.kinds:
            tcp = constants.tcp_bytes_per_second / self.sharing
            plain = self.kind[1] == self.kinds.index("ethernet")
            rate[1] = np.where(plain, 1.0 / p_norm(1.0 / rate[1], 1.0 / tcp, TCP_POWER), rate[1])
        link = zip(LINK_FIELDS, (latency[0], rate[0], latency[1], rate[1]), strict=True)
        pcie = self.host_rate * constants.link_efficiency["pcie"]
        return {**dict(link), "host_rate": np.where(pcie > 0, pcie, rate[0])}


def links_of(clusters: Sequence[Cluster]) -> Links:
    """Return the links of clusters; devices that an uneven placement uses share a node's network."""
    pairs = [(c.intra, c.inter) for c in clusters]
    kinds = sorted({link.kind for pair in pairs for link in pair})
    fullest = np.array([max(c.placement, default=c.devices_per_node) for c in clusters])
    whole = np.array([c.devices_per_node for c in clusters])
    rate = np.array([[link.bytes_per_second for link in pair] for pair in pairs]).T
    rate[1] *= np.maximum(whole / fullest, 1.0)
    return Links(
        tuple(kinds), np.array([[kinds.index(link.kind) for link in pair] for pair in pairs]).T,
        np.array([[link.latency_seconds for link in pair] for pair in pairs]).T, rate,
        np.array([c.device.host_bytes_per_second for c in clusters], dtype=np.float64),
        np.minimum(whole, fullest).astype(np.float64),
    )  # fmt: skip


def all_reduce(size: Any, ranks: Any, per_node: Any, link: Link) -> Any:
    """Return the seconds of an all-reduce over rings that pass through all nodes.

    Each link carries 2 (K-1)/K of the buffer (Patarasuk and Yuan 2009); latency climbs a tree of nodes
    (Sanders, Speck and Traeff 2009).
    """
    intra_latency, _, inter_latency, _ = link
    nodes = np.ceil(ranks / per_node)
    climb = np.minimum(nodes - 1, np.ceil(np.log2(np.maximum(nodes, 1))))
    latency = 2.0 * ((per_node - 1) * intra_latency + climb * inter_latency)
    return 2.0 * _ring_seconds(size, ranks, per_node, link) + latency


def all_gather(size: Any, ranks: Any, per_node: Any, link: Link) -> Any:
    """Return the seconds of an all-gather or reduce-scatter over the same rings, without a tree."""
    intra_latency, _, inter_latency, _ = link
    nodes = np.ceil(ranks / per_node)
    latency = (ranks - nodes) * intra_latency + (nodes - 1) * inter_latency
    return _ring_seconds(size, ranks, per_node, link) + latency


def _ring_seconds(size: Any, ranks: Any, per_node: Any, link: Link) -> Any:
    moved = (ranks - 1) / ranks * size
    between = np.where(np.asarray(ranks) > per_node, moved / (per_node * link[3]), 0.0)
    return np.maximum(moved / link[1], between)


def all_to_all(size: Any, ranks: Any, per_node: Any, link: Link) -> Any:
    """Return an all-to-all in which each rank holds `size` bytes and sends 1/K to each other."""
    inside = (per_node - 1) / ranks * size / link[1]
    between = (ranks - per_node) / ranks * size / link[3]
    return np.maximum(inside, between) + _hops(np.asarray(ranks) > per_node, ranks, link)


def dispatch(
    size: Any, copies: Any, ranks: Any, per_node: Any, link: Link, groups: Any = np.inf
) -> Any:
    """Return the seconds in which each rank's tokens, `size` bytes, reach `copies` experts each.

    A token crosses to a node once, and is copied inside it; routing may limit it to so many `groups` of
    experts, and so to as many nodes (DeepSeek-AI 2024, node-limited routing).
    """
    nodes = np.ceil(ranks / per_node)
    reached = np.minimum(nodes, groups)
    distinct = reached * (1.0 - (1.0 - 1.0 / reached) ** copies)
    between = size * distinct * (nodes - 1) / nodes / link[3]
    inside = size * copies * (per_node - 1) / per_node / link[1]
    return np.maximum(inside, between) + _hops(nodes > 1, ranks, link)


def _hops(leaves_node: Any, ranks: Any, link: Link) -> Any:
    latency = np.where(leaves_node, link[2], np.where(np.asarray(ranks) > 1, link[0], 0.0))
    return latency * np.log2(np.maximum(ranks, 1))


def p_norm(a: ArrayLike, b: ArrayLike, power: float | FloatArray) -> FloatArray:
    """Return (a^p + b^p)^(1/p): 1 adds up, infinity overlaps perfectly. Grows with a and b."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    high, low = np.maximum(a, b), np.minimum(a, b)
    ratio = low / np.maximum(high, 1e-300)
    result: FloatArray = high * (1.0 + ratio**power) ** (1.0 / power)
    return result


# Forward seconds in all layers of (tensor, expert, context) parallelism, each (k,).
LayerComm = tuple[FloatArray, FloatArray, FloatArray]
# What I instances send inside their layers, columns (I,) as `traffic_of` makes them.
Traffic = Mapping[str, FloatArray]


def traffic_of(workloads: Sequence[Workload], clusters: Sequence[Cluster], keys: Keys) -> Traffic:
    """Return what instances send, for their workloads, clusters and keys."""
    facts = np.array([remember(workload, _sent) for workload in workloads])
    boundary, width, layers, experts, copies, groups = facts.T
    samples = keys.micro_batch / keys.cp
    per_node = np.array([float(c.near_devices) for c in clusters])
    return {
        # Bytes of a micro-batch's activations between layers; of keys and values before tp cuts them.
        "message": samples * boundary,
        "width": samples * width,
        "layers": layers,
        "expert_layers": experts,
        "copies": copies,  # experts that a token reaches, in so many groups of them at most
        "groups": groups,
        "per_node": per_node,
    }


def _sent(workload: Workload) -> tuple[float, ...]:
    shape, size = workload.shape, float(ACTIVATION_BYTES[workload.precision])
    head_size = shape.head_size or shape.hidden / max(shape.heads, 1)
    width = (shape.kv_heads or shape.heads) * head_size
    return (
        boundary_elements(workload) * size, 2.0 * workload.seq_len * width * size,
        float(shape.layers), float(shape.moe_layers or shape.layers) if shape.experts else 0.0,
        float(shape.experts_per_token), float(shape.expert_groups or np.inf),
    )  # fmt: skip


def layer_comm(sent: Traffic, keys: Keys, link: Link, constants: Constants) -> LayerComm:
    """Return the forward communication inside all layers of I instances.

    Shoeybi et al. 2019, Korthikanti et al. 2022 (tensor), Lepikhin et al. 2020 (experts), Liu et al. 2023.
    """
    tp, cp, ep = keys.tp, keys.cp, keys.ep
    node, message = sent["per_node"], sent["message"]
    tensor = all_reduce(message, tp, np.minimum(tp, node), link)
    # Libraries have no tree for a split sequence: each of K - 1 hops waits for the network.
    across = (tp > node) & (keys.sequence_parallel > 0)
    hops = np.where(across, 2.0 * (tp - 1.0) * constants.tensor_hop_seconds, 0.0)
    tensor = 2.0 * np.maximum(sent["layers"], 1.0) * (tensor + hops)
    local = message / np.where(keys.sequence_parallel > 0, tp, 1.0)
    copies, shared = np.maximum(sent["copies"], 1.0), np.clip(node // tp, 1, ep)
    one = dispatch(local, copies, ep, shared, link, sent["groups"])
    one = one * constants.expert_imbalance * constants.expert_exposed
    expert = np.where(ep > 1, 2.0 * sent["expert_layers"] * one, 0.0)
    ring = all_gather(sent["width"] / tp * cp, cp, np.clip(node // tp, 1, cp), link)
    context = np.where(cp > 1, constants.context_exposed * ring * sent["layers"], 0.0)
    return np.asarray(tensor), expert, context


def boundary_elements(workload: Workload) -> float:
    """Return the elements of one sample between two layers, estimated where dimensions are unknown."""
    if workload.seq_len > 0 and workload.shape.hidden > 0:
        return float(workload.seq_len * workload.shape.hidden)
    columns = workload.graph.columns
    # The widest norm of a layer writes an image transformer's tokens.
    norms = (
        (columns.kind == KIND_INDEX[OpKind.NORM])
        & (columns.block == BLOCK_INDEX[Block.LAYER])
        & (columns.phase == PHASE_INDEX[Phase.FORWARD])
    )
    widest = float(columns.writes[norms].max(initial=0.0))
    layers = max(workload.shape.layers, 1)
    return widest or workload.graph.activations / (8.0 * layers)
