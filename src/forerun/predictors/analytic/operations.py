"""Operation costs: the graph costed once for each distinct way of cutting it on one kind of node.

A *key* is what changes the cost of a micro-batch on one device: micro-batch, tp, cp, ep, sequence
parallelism, recomputation and memory format. Keys are few where plans are many.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.domain.graph import (
    BLOCK_INDEX,
    KIND_INDEX,
    PHASE_INDEX,
    SHARD_INDEX,
    Block,
    OpColumns,
    OpKind,
    Phase,
    Shard,
)
from forerun.domain.hardware import Cluster, Device
from forerun.domain.plan import RECOMPUTE
from forerun.domain.workload import ACTIVATION_BYTES, OPERAND_BYTES, Workload
from forerun.predictors.analytic import collectives
from forerun.predictors.analytic.constants import Constants, Framework, by_kind, framework_key

FloatArray = NDArray[np.float64]
MATRIX_KINDS = (
    OpKind.MATMUL, OpKind.CONV, OpKind.CONV_1X1, OpKind.CONV_GROUPED, OpKind.CONV_DEPTHWISE,
    OpKind.ATTENTION, OpKind.RECURRENT,
)  # fmt: skip
CONV_KINDS = (OpKind.CONV, OpKind.CONV_1X1, OpKind.CONV_GROUPED, OpKind.CONV_DEPTHWISE)
_IS_MATRIX = np.zeros(len(KIND_INDEX), dtype=bool)
_IS_MATRIX[[KIND_INDEX[k] for k in MATRIX_KINDS]] = True
_IS_CONV = np.zeros(len(KIND_INDEX), dtype=bool)
_IS_CONV[[KIND_INDEX[k] for k in CONV_KINDS]] = True
_IS_GROUPED = np.zeros(len(KIND_INDEX), dtype=bool)
_IS_GROUPED[[KIND_INDEX[OpKind.CONV_GROUPED], KIND_INDEX[OpKind.CONV_DEPTHWISE]]] = True
_IS_SCORE = np.zeros(len(KIND_INDEX), dtype=bool)
_IS_SCORE[[KIND_INDEX[OpKind.ATTENTION], KIND_INDEX[OpKind.SOFTMAX]]] = True
_IS_CHEAP = np.zeros(len(KIND_INDEX), dtype=bool)
_IS_CHEAP[[KIND_INDEX[OpKind.NORM], KIND_INDEX[OpKind.ELEMENTWISE]]] = True
_FUSED_AWAY = np.zeros(len(KIND_INDEX), dtype=bool)
_FUSED_AWAY[
    [KIND_INDEX[k] for k in (OpKind.ELEMENTWISE, OpKind.NORM, OpKind.BATCH_NORM, OpKind.SOFTMAX)]
] = True
# Winograd's F(2x2, 3x3) does a 3x3 convolution in 16/36 of the multiplications; no smaller
# algorithm is in use, so this bounds the work from below (Lavin and Gray 2015).
WINOGRAD_SHARE = 16.0 / 36.0


@dataclass(frozen=True)
class Keys:
    """k distinct ways of cutting one workload: float columns of shape (k,)."""

    micro_batch: FloatArray
    tp: FloatArray
    cp: FloatArray
    ep: FloatArray
    sequence_parallel: FloatArray
    recompute: NDArray[np.int64]
    channels_last: FloatArray


@dataclass(frozen=True)
class KeyCosts:
    """What one micro-batch costs on one device, for k keys: columns of shape (k,).

    Seconds are summed over all repeated layers (a stage takes its share of them): device work,
    tensor/expert/context communication inside the layers, and the host's excess over both.
    `ends` are the entry and exit blocks together, `end` the larger of the two.
    """

    layer_forward: FloatArray
    layer_backward: FloatArray
    layer_recompute: FloatArray
    layer_tensor_comm: FloatArray
    layer_host: FloatArray
    ends_forward: FloatArray
    ends_backward: FloatArray
    ends_host: FloatArray
    end: FloatArray
    saved_layer: FloatArray
    saved_working: FloatArray
    saved_embed: FloatArray
    saved_head: FloatArray
    boundary: FloatArray

    def stacked(self) -> dict[str, FloatArray]:
        """Return the columns by name."""
        return dict(vars(self))


def effective_rates(
    device: Device, workload: Workload, constants: Constants
) -> tuple[FloatArray, FloatArray]:
    """Return (FLOP/s, bytes/s) that large operations of each class reach, each of shape (kinds,).

    fp32 convolutions run on TF32 units where the device has them, as frameworks do by default
    since 2020; fp32 matrix products do not.
    """
    precision = workload.precision
    matrix = device.flops(precision)
    vector = device.flops("fp32") if precision not in ("fp64",) else device.flops("fp64")
    on_tensor = matrix >= 2.5 * vector
    table = constants.tensor_efficiency if on_tensor else constants.vector_efficiency
    factor = 1.0
    if on_tensor:
        factor = _generation_factor(device, constants) * constants.precision_factor.get(
            precision, 1.0
        )
    rates = np.array(by_kind(table, 0.25)) * np.where(_IS_MATRIX, matrix * factor, vector)
    tf32 = device.peak_flops.get("tf32", 0.0)
    if precision == "fp32" and tf32 > vector:
        conv = np.array(by_kind(constants.tensor_efficiency, 0.25)) * tf32
        rates = np.where(_IS_CONV, np.maximum(rates, conv), rates)
    bandwidth = np.array(by_kind(constants.bandwidth_efficiency, 0.5))
    return rates, bandwidth * device.memory_bytes_per_second


def _generation_factor(device: Device, constants: Constants) -> float:
    generation = device.generation.lower()
    known = constants.generation_factor
    if generation in known:
        return known[generation]
    return next((v for k, v in known.items() if generation.startswith(k)), 0.85)


def cost_keys(workload: Workload, cluster: Cluster, keys: Keys, constants: Constants) -> KeyCosts:
    """Return the cost of one micro-batch for k keys; arrays inside are (k, operations)."""
    columns = workload.graph.columns
    framework = constants.framework(workload.framework)
    times = operation_seconds(workload, cluster.device, keys, constants)
    layer, embed, head = (
        columns.block == BLOCK_INDEX[Block.LAYER],
        columns.block == BLOCK_INDEX[Block.EMBED],
        columns.block == BLOCK_INDEX[Block.HEAD],
    )
    forward = columns.phase == PHASE_INDEX[Phase.FORWARD]
    backward = columns.phase == PHASE_INDEX[Phase.BACKWARD]
    if workload.task == "lora":
        times = times * np.where(_is_weight_gradient(columns), 0.02, 1.0)

    def total(mask: NDArray[np.bool_]) -> FloatArray:
        result: FloatArray = times[:, mask] @ columns.repeat[mask]
        return result

    launches = columns.launches * columns.repeat * framework.host_seconds
    comm_forward, comm_backward = layer_comm(workload, cluster, keys, constants)
    full = keys.recompute == RECOMPUTE.index("full")
    selective = keys.recompute == RECOMPUTE.index("selective")
    score = _selected(workload) & forward & layer
    f, b = total(layer & forward), total(layer & backward)
    again = np.where(full, f, np.where(selective, total(score), 0.0))
    again_comm = np.where(full, comm_forward, 0.0)
    host_f, host_b = launches[layer & forward].sum(), launches[layer & backward].sum()
    host_again = np.where(full, host_f, np.where(selective, launches[score].sum(), 0.0))
    power = constants.layer_power
    device_f, device_b = f + comm_forward, b + again + comm_backward + again_comm
    host = (
        collectives.p_norm(device_f, host_f, power) - device_f
        + collectives.p_norm(device_b, host_b + host_again, power) - device_b
    )  # fmt: skip
    ef, eb, hf, hb = (total(m) for m in (
        embed & forward, embed & backward, head & forward, head & backward))  # fmt: skip
    ends_launch = launches[(embed | head) & (forward | backward)].sum()
    ends = ef + eb + hf + hb
    return KeyCosts(
        layer_forward=f,
        layer_backward=b,
        layer_recompute=again,
        layer_tensor_comm=comm_forward + comm_backward + again_comm,
        layer_host=host,
        ends_forward=ef + hf,
        ends_backward=eb + hb,
        ends_host=collectives.p_norm(ends, ends_launch, power) - ends,
        end=np.maximum(ef + eb, hf + hb),
        **saved_bytes(workload, keys),
    )


def _selected(workload: Workload) -> NDArray[np.bool_]:
    """Return which operations selective recomputation does again, (operations,).

    Where attention scores are kept in memory, the attention core (Korthikanti et al. 2022); where
    a fused kernel keeps none, the cheap operations between the products (norms, activations).
    """
    kinds = workload.graph.columns.kind
    return (_IS_CHEAP if workload.fused_attention else _IS_SCORE)[kinds]


def operation_seconds(
    workload: Workload, device: Device, keys: Keys, constants: Constants
) -> FloatArray:
    """Return device seconds of each operation (one copy of it), shape (k, operations).

    t = max(FLOPs / (peak eff(class) fill), bytes / (bandwidth eff(class))) + launch: a roofline
    whose compute side sinks where the matrix is thin (tile) or too small to fill the device.
    """
    columns = workload.graph.columns
    framework = constants.framework(workload.framework)
    rates, bandwidths = effective_rates(device, workload, constants)
    rates, bandwidths = rates[columns.kind], bandwidths[columns.kind]
    work, moved, weights = _cut(columns, keys, constants)
    per_sample = keys.micro_batch[:, None] / keys.cp[:, None]
    optimizer = columns.phase == PHASE_INDEX[Phase.OPTIMIZER]
    scale = np.where(optimizer, 1.0, per_sample)
    fill = matrix_fill(workload, device, keys, constants)
    compute = columns.flops * scale / work / (rates * fill)
    fusion = np.where(_FUSED_AWAY[columns.kind], framework.fusion, 1.0)
    activation_bytes = ACTIVATION_BYTES[workload.precision]
    weight_bytes = max(OPERAND_BYTES[workload.precision], 1.0)
    traffic = (columns.reads + columns.writes) * activation_bytes * fusion * scale / moved
    traffic = traffic + columns.weights * weight_bytes / weights
    layout = np.where(
        _IS_CONV[columns.kind] & (keys.channels_last[:, None] > 0)
        & (activation_bytes < 4.0), 0.85, 1.0,
    )  # fmt: skip
    seconds: FloatArray = np.maximum(compute, traffic / bandwidths) * layout
    launch = constants.launch_seconds if device.kind != "cpu" else 1e-6
    seconds = seconds + columns.launches * launch
    return np.where(optimizer, 0.0, seconds)


def _cut(
    columns: OpColumns, keys: Keys, constants: Constants
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return what divides FLOPs, activation traffic and weights of each operation, (k, ops)."""
    tp, ep = keys.tp[:, None], keys.ep[:, None]
    tensor = (columns.shard == SHARD_INDEX[Shard.TENSOR]) | (
        columns.shard == SHARD_INDEX[Shard.EXPERT]
    )
    expert = columns.shard == SHARD_INDEX[Shard.EXPERT]
    sequence = columns.shard == SHARD_INDEX[Shard.SEQUENCE]
    by_sequence = np.where(keys.sequence_parallel[:, None] > 0, tp, 1.0)
    activations = np.where(tensor, tp, np.where(sequence, by_sequence, 1.0))
    imbalance = np.where(expert & (ep > 1), constants.expert_imbalance, 1.0)
    weights = np.where(tensor, tp, 1.0) * np.where(expert, ep, 1.0)
    return activations / imbalance, activations / imbalance, weights


def matrix_fill(workload: Workload, device: Device, keys: Keys, constants: Constants) -> FloatArray:
    """Return the share of its best rate that each matrix product reaches by its size, (k, ops).

    Two effects: a dimension d of the product fills a tile by d / (d + tile), and the product's
    output elements fill the device's units by e / (e + wave). Both grow with batch and hidden
    size and are 1 for operations that are no matrix products.
    """
    columns = workload.graph.columns
    m, n, k, groups = (columns.dims[:, i] for i in range(4))
    is_product = (m > 0) & _IS_MATRIX[columns.kind]
    samples = keys.micro_batch[:, None] / keys.cp[:, None]
    attention = columns.kind == KIND_INDEX[OpKind.ATTENTION]
    reduction = _is_weight_gradient(columns)
    tensor = (columns.shard == SHARD_INDEX[Shard.TENSOR]) | (
        columns.shard == SHARD_INDEX[Shard.EXPERT]
    )
    tp = np.where(tensor, keys.tp[:, None], 1.0)
    cut_n = (n > k) & ~attention
    rows = m * np.where(reduction | attention, 1.0, samples)
    cols = n / np.where(cut_n, tp, 1.0)
    inner = k * np.where(reduction, samples, 1.0) / np.where(cut_n | attention, 1.0, tp)
    copies = groups * np.where(attention, samples / tp, 1.0)
    tile = constants.tile
    thin = (rows / (rows + tile)) * (cols / (cols + tile)) * (inner / (inner + tile / 2))
    # Grouped convolutions are thin by nature: their class efficiency already says so.
    thin = np.where(_IS_GROUPED[columns.kind], 1.0, thin)
    wave = device.flops(workload.precision) / constants.wave_flops_per_element
    # A weight gradient's small output is filled by splitting its long reduction.
    elements = rows * cols * copies * np.where(reduction, np.maximum(inner / 512.0, 1.0), 1.0)
    fill: FloatArray = np.where(is_product, thin * elements / (elements + wave), 1.0)
    return np.maximum(fill, 1e-3)


def _is_weight_gradient(columns: OpColumns) -> NDArray[np.bool_]:
    """Backward operations with dims and no activation output (see `workloads.backward`)."""
    return np.asarray(
        (columns.phase == PHASE_INDEX[Phase.BACKWARD])
        & (columns.dims[:, 0] > 0)
        & (columns.writes == 0)
    )


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


def saved_bytes(workload: Workload, keys: Keys) -> dict[str, FloatArray]:
    """Return activation bytes kept for backward by one micro-batch, each (k,).

    saved_layer: all layers together; saved_working: what one layer holds while it is recomputed
    and differentiated; saved_head: what the exit keeps, and its widest gradient; boundary: the input of one layer, which full recomputation keeps and a pipeline sends.
    """
    columns = workload.graph.columns
    size = ACTIVATION_BYTES[workload.precision]
    samples = keys.micro_batch / keys.cp
    tp = keys.tp[:, None]
    tensor = (columns.shard == SHARD_INDEX[Shard.TENSOR]) | (
        columns.shard == SHARD_INDEX[Shard.EXPERT]
    )
    sequence = columns.shard == SHARD_INDEX[Shard.SEQUENCE]
    cut = np.where(tensor, tp, np.where(sequence & (keys.sequence_parallel[:, None] > 0), tp, 1.0))
    kept = columns.saved * columns.repeat * size / cut  # (k, operations)
    blocks = {b: columns.block == BLOCK_INDEX[b] for b in Block}
    layer_all = kept[:, blocks[Block.LAYER]].sum(axis=1) * samples
    score = blocks[Block.LAYER] & _selected(workload)
    scores = kept[:, score].sum(axis=1) * samples
    layers = max(workload.shape.layers, 1)
    by_sequence = np.where(keys.sequence_parallel > 0, keys.tp, 1.0)
    boundary = samples * workload.seq_len * workload.shape.hidden * size / by_sequence
    if workload.shape.hidden == 0 or workload.seq_len == 0:
        # No stated hidden size: the mean layer output stands for the boundary.
        boundary = samples * workload.graph.activations * size / max(layers * 8, 8)
    full = keys.recompute == RECOMPUTE.index("full")
    selective = keys.recompute == RECOMPUTE.index("selective")
    stored = np.where(
        full, np.minimum(boundary * layers, layer_all),
        np.where(selective, layer_all - scores, layer_all),
    )  # fmt: skip
    working = np.where(full, layer_all / layers, np.where(selective, scores / layers, 0.0))
    # While a layer is differentiated, the gradients of its widest output and input are alive, and
    # with sequence parallelism its input is gathered whole.
    forward = columns.phase == PHASE_INDEX[Phase.FORWARD]
    widest = (columns.writes * size / cut) * samples[:, None]
    inner, head = blocks[Block.LAYER] & forward, blocks[Block.HEAD] & forward
    alive = widest[:, inner].max(axis=1, initial=0.0)
    gathered = np.where(keys.sequence_parallel > 0, boundary * keys.tp, 0.0)
    working = working + 2.0 * alive + gathered
    head_alive = widest[:, head].max(axis=1, initial=0.0)
    return {
        "saved_layer": stored,
        "saved_working": working,
        "saved_embed": kept[:, blocks[Block.EMBED]].sum(axis=1) * samples,
        "saved_head": kept[:, blocks[Block.HEAD]].sum(axis=1) * samples + head_alive,
        "boundary": boundary,
    }


def floor_flops_per_sample(workload: Workload) -> float:
    """Return a lower bound of the FLOPs of one sample, forward and backward.

    Dense 3x3 convolutions may be done by Winograd's algorithm; everything else as stated.
    """
    columns = workload.graph.columns
    share = np.where(columns.kind == KIND_INDEX[OpKind.CONV], WINOGRAD_SHARE, 1.0)
    share = np.where(_IS_MATRIX[columns.kind], share, 0.0)
    if workload.task == "lora":
        share = np.where(_is_weight_gradient(columns), 0.0, share)
    if not workload.detailed:
        share = share * WINOGRAD_SHARE
    return float((columns.flops * columns.repeat * share).sum())


def fastest_rate(device: Device, workload: Workload) -> float:
    """Return the highest FLOP/s that the precision could possibly run at on this device.

    fp32 work may run on TF32 units; 16-bit mixed precision never passes the 16-bit rate.
    """
    rate = device.flops(workload.precision)
    if workload.precision == "fp32":
        rate = max(rate, device.peak_flops.get("tf32", 0.0))
    return max(rate, device.flops("fp32") if workload.precision != "fp64" else 0.0)


def profile(workload: Workload, constants: Constants) -> tuple[str, Framework]:
    """Return the name and profile of the workload's framework."""
    key = framework_key(workload.framework)
    return key, constants.frameworks[key]
