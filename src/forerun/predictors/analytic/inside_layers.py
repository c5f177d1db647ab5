"""Communication inside layers: tensor, expert and context parallelism."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forerun.domain.graph import BLOCK_INDEX, KIND_INDEX, PHASE_INDEX, Block, OpKind, Phase
from forerun.domain.hardware import Cluster
from forerun.domain.workload import ACTIVATION_BYTES, Workload
from forerun.predictors.analytic import collectives
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.keys import FloatArray, Keys


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
        return self.tensor + self.expert + 2.0 * self.context


def layer_comm(workload: Workload, cluster: Cluster, keys: Keys, constants: Constants) -> LayerComm:
    """Return the communication inside all layers for k keys.

    Tensor parallel: two all-reduces of the layer's activations each way (or all-gather and
    reduce-scatter of the same volume with sequence parallelism; Shoeybi et al. 2019, Korthikanti
    et al. 2022). Experts: two all-to-alls each way (Lepikhin et al. 2020). Context: keys and
    values travel the ring, in part hidden behind attention (Liu et al. 2023).
    """
    shape = workload.shape
    link = links_of(cluster, constants)
    size = ACTIVATION_BYTES[workload.precision]
    samples = keys.micro_batch / keys.cp
    message = samples * boundary_elements(workload) * size
    tp, cp, ep = keys.tp, keys.cp, keys.ep
    nothing = np.zeros(len(tp))
    node = float(max(cluster.placement, default=cluster.devices_per_node))
    tensor = collectives.all_reduce(message, tp, np.minimum(tp, node), *link)
    tensor = 2.0 * max(shape.layers, 1) * tensor
    expert = context = nothing
    if shape.experts and np.any(ep > 1):
        sent = message / np.where(keys.sequence_parallel > 0, tp, 1.0)
        inside = np.clip(np.floor(node / tp), 1, ep)
        one = collectives.dispatch(sent, shape.experts_per_token, ep, inside, *link)
        one = one * constants.expert_imbalance * constants.expert_exposed
        layers = shape.moe_layers or shape.layers
        expert = np.where(ep > 1, 2.0 * layers * one, 0.0)
    if np.any(cp > 1):
        head_size = shape.head_size or shape.hidden / max(shape.heads, 1)
        width = (shape.kv_heads or shape.heads) * head_size
        kv = 2.0 * samples * workload.seq_len * width * size / tp
        inside = np.clip(np.floor(node / tp), 1, cp)
        ring = collectives.all_gather(kv * cp, cp, inside, *link) * shape.layers
        context = np.where(cp > 1, constants.context_exposed * ring, 0.0)
    return LayerComm(np.asarray(tensor), np.asarray(expert), np.asarray(context))


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


def links_of(cluster: Cluster, constants: Constants) -> tuple[float, float, float, float]:
    """Return (intra latency, intra rate, inter latency, inter rate) with effective rates.

    A node's network is stated for each of its devices; where a placement uses only some of them,
    these have all of it.
    """
    eff = constants.link_efficiency
    intra, inter = cluster.intra, cluster.inter
    sharing = cluster.devices_per_node / max(cluster.placement, default=cluster.devices_per_node)
    inter_rate = inter.bytes_per_second * eff.get(inter.kind, eff["unknown"]) * max(sharing, 1.0)
    return (
        intra.latency_seconds, intra.bytes_per_second * eff.get(intra.kind, eff["unknown"]),
        inter.latency_seconds, inter_rate,
    )  # fmt: skip
