"""Communication inside layers: tensor, expert and context parallelism."""

from __future__ import annotations

import numpy as np

from forerun.domain.hardware import Cluster
from forerun.domain.workload import ACTIVATION_BYTES, Workload
from forerun.predictors.analytic import collectives
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.keys import FloatArray, Keys


def layer_comm(
    workload: Workload, cluster: Cluster, keys: Keys, constants: Constants
) -> tuple[FloatArray, FloatArray]:
    """Return seconds of communication inside all layers, forward and backward, each (k,).

    Tensor parallel: two all-reduces of the layer's activations each way (or all-gather and
    reduce-scatter of the same volume with sequence parallelism; Shoeybi et al. 2019, Korthikanti
    et al. 2022). Experts: two all-to-alls each way (Lepikhin et al. 2020). Context: keys and
    values travel the ring, hidden behind attention (Liu et al. 2023).
    """
    shape = workload.shape
    link = links_of(cluster, constants)
    size = ACTIVATION_BYTES[workload.precision]
    tokens = keys.micro_batch * max(workload.seq_len, 1) / keys.cp
    message = tokens * shape.hidden * size
    tp, cp, ep = keys.tp, keys.cp, keys.ep
    node = float(max(cluster.placement, default=cluster.devices_per_node))
    per_node = np.minimum(tp, node)
    one = collectives.all_reduce(message, tp, per_node, *link)
    forward = backward = 2.0 * shape.layers * one
    if shape.experts and np.any(ep > 1):
        sent = message / np.where(keys.sequence_parallel > 0, tp, 1.0)
        inside = np.clip(np.floor(node / tp), 1, ep)
        one = collectives.dispatch(sent, shape.experts_per_token, ep, inside, *link)
        one = one * constants.expert_imbalance * constants.expert_exposed
        layers = shape.moe_layers or shape.layers
        forward = forward + np.where(ep > 1, 2.0 * layers * one, 0.0)
        backward = backward + np.where(ep > 1, 2.0 * layers * one, 0.0)
    if np.any(cp > 1):
        ratio = (shape.kv_heads or shape.heads) / max(shape.heads, 1)
        kv = 2.0 * message * ratio / tp
        inside = np.clip(np.floor(node / tp), 1, cp)
        ring = collectives.all_gather(kv * cp, cp, inside, *link) * shape.layers
        exposed = np.where(cp > 1, 0.5 * ring, 0.0)
        forward = forward + exposed
        backward = backward + 2.0 * exposed
    return forward, backward


def links_of(cluster: Cluster, constants: Constants) -> tuple[float, float, float, float]:
    """Return (intra latency, intra rate, inter latency, inter rate) with effective rates."""
    eff = constants.link_efficiency
    intra, inter = cluster.intra, cluster.inter
    return (
        intra.latency_seconds, intra.bytes_per_second * eff.get(intra.kind, eff["unknown"]),
        inter.latency_seconds, inter.bytes_per_second * eff.get(inter.kind, eff["unknown"]),
    )  # fmt: skip
