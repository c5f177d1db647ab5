"""Communication inside layers: tensor, expert and context parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forerun.arrays import FloatArray
from forerun.domain.graph import BLOCK_INDEX, KIND_INDEX, PHASE_INDEX, Block, OpKind, Phase
from forerun.domain.hardware import Cluster
from forerun.domain.workload import ACTIVATION_BYTES, Workload
from forerun.predictors.analytic import collectives
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.keys import Keys


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
    facts: dict[int, tuple[float, ...]] = {}
    for workload in workloads:
        if id(workload) not in facts:
            facts[id(workload)] = _sent(workload)
    columns = np.array([facts[id(w)] for w in workloads]).T
    per_node = [float(c.near_devices) for c in clusters]
    samples = keys.micro_batch / keys.cp
    boundary, width, layers, expert_layers, copies = columns
    return Traffic(samples * boundary, samples * width, layers, expert_layers, copies,
                   np.array(per_node))  # fmt: skip


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

    link: (intra latency, intra rate, inter latency, inter rate), each (I,), see `links.Links`.
    """
    tp, cp, ep = keys.tp, keys.cp, keys.ep
    node, message = sent.per_node, sent.message
    tensor = collectives.all_reduce(message, tp, np.minimum(tp, node), *link)
    tensor = tensor + _ring_latency(keys, node, constants)
    tensor = 2.0 * np.maximum(sent.layers, 1.0) * tensor
    expert = context = np.zeros(len(tp))
    if np.any((sent.expert_layers > 0) & (ep > 1)):
        local = message / np.where(keys.sequence_parallel > 0, tp, 1.0)
        inside = np.clip(np.floor(node / tp), 1, ep)
        one = collectives.dispatch(local, np.maximum(sent.copies, 1.0), ep, inside, *link)
        one = one * constants.expert_imbalance * constants.expert_exposed
        expert = np.where(ep > 1, 2.0 * sent.expert_layers * one, 0.0)
    if np.any(cp > 1):
        inside = np.clip(np.floor(node / tp), 1, cp)
        ring = collectives.all_gather(sent.width / tp * cp, cp, inside, *link) * sent.layers
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
