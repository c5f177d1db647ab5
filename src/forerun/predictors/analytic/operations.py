"""Operation costs: the graph costed once for each distinct way of cutting it on one kind of node.

A *key* is what changes the cost of a micro-batch on one device: micro-batch, tp, cp, ep, sequence
parallelism, recomputation and memory format. Keys are few where plans are many.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

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
from forerun.predictors.analytic.activations import selected
from forerun.predictors.analytic.constants import Constants, by_kind
from forerun.predictors.analytic.inside_layers import layer_comm
from forerun.predictors.analytic.keys import (
    IS_CONV,
    IS_FUSED_AWAY,
    IS_GROUPED,
    IS_MATRIX,
    BoolArray,
    FloatArray,
    KeyCosts,
    Keys,
    activation_cut,
    cut_by_tensor,
    is_weight_gradient,
)

_ATTENTION = KIND_INDEX[OpKind.ATTENTION]


def effective_rates(
    device: Device, workload: Workload, constants: Constants
) -> tuple[FloatArray, FloatArray]:
    """Return (FLOP/s, bytes/s) that large operations of each class reach, each of shape (kinds,).

    fp32 convolutions run on TF32 units where the device has them, as frameworks do by default
    since 2020; fp32 matrix products do not.
    """
    precision = device.computed_as(workload.precision)
    on_unit = device.has_matrix_unit(precision)
    vector = device.flops("fp64" if precision == "fp64" else "fp32")
    framework = constants.framework(workload.framework)
    table = constants.tensor_efficiency if on_unit else constants.vector_efficiency
    matrix = device.flops(precision) * (
        _generation_factor(device, constants) * constants.precision_factor.get(precision, 1.0)
        if on_unit
        else constants.vector_share.get(device.generation, 1.0)
    )
    rates = np.array(by_kind(table, 0.25)) * np.where(IS_MATRIX, matrix, vector)
    if precision in ("fp8", "fp4"):  # recipes keep attention in 16 bits
        half = device.flops("bf16") * _generation_factor(device, constants)
        rates[_ATTENTION] = constants.tensor_efficiency[OpKind.ATTENTION] * half
    tf32 = device.peak_flops.get("tf32", 0.0)
    if precision == "fp32" and tf32 > vector:
        conv = np.array(by_kind(constants.tensor_efficiency, 0.25)) * tf32
        rates = np.where(IS_CONV, np.maximum(rates, conv), rates)
    if device.kind == "gpu" and device.watts < constants.low_power_watts:
        rates = rates * constants.low_power_share
    own = constants.device_compute.get(device.id, 1.0) * framework.compute
    rates = rates * np.where(IS_MATRIX, own, 1.0)
    bandwidth = np.array(by_kind(constants.bandwidth_efficiency, 0.5)) * framework.bandwidth
    bandwidth = bandwidth * constants.device_bandwidth.get(device.id, 1.0)
    return rates, bandwidth * device.memory_bytes_per_second


def _generation_factor(device: Device, constants: Constants) -> float:
    generation = device.generation.lower()
    known = constants.generation_factor
    if generation in known:
        return known[generation]
    return next((v for k, v in known.items() if generation.startswith(k)), 0.85)


def cost_keys(
    workload: Workload, cluster: Cluster, keys: Keys, constants: Constants,
    saved: Mapping[str, FloatArray],
) -> KeyCosts:  # fmt: skip
    """Return the cost of one micro-batch for k keys; arrays inside are (k, operations).

    saved: what `activations.saved_bytes` says of the same keys.
    """
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
    times = times * constants.workload_scale.get(workload.name, 1.0)
    if workload.task == "lora":
        share = constants.lora_gradient_share
        times = times * np.where(is_weight_gradient(columns), share, 1.0)

    def total(mask: BoolArray) -> FloatArray:
        result: FloatArray = times[:, mask] @ columns.repeat[mask]
        return result

    launches = columns.launches * columns.repeat * framework.host_seconds
    comm = layer_comm(workload, cluster, keys, constants)
    comm_forward, comm_backward = comm.forward, comm.backward
    full = keys.recompute == RECOMPUTE.index("full")
    selective = keys.recompute == RECOMPUTE.index("selective")
    score = selected(workload) & forward & layer
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
        layer_tensor_comm=comm.tensor * (2.0 + full),
        layer_expert_comm=comm.expert * (2.0 + full),
        layer_context_comm=comm.context * (3.0 + full),
        layer_host=host,
        ends_forward=ef + hf,
        ends_backward=eb + hb,
        ends_host=collectives.p_norm(ends, ends_launch, power) - ends,
        end=np.maximum(ef + eb, hf + hb),
        **saved,
    )


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
    work, weights = _cut(columns, keys, constants)
    per_sample = keys.micro_batch[:, None] / keys.cp[:, None]
    optimizer = columns.phase == PHASE_INDEX[Phase.OPTIMIZER]
    scale = np.where(optimizer, 1.0, per_sample)
    fill = matrix_fill(workload, device, keys, constants)
    compute = columns.flops * scale / work / (rates * fill)
    fusion = np.where(IS_FUSED_AWAY[columns.kind], framework.fusion, 1.0)
    activation_bytes = ACTIVATION_BYTES[workload.precision]
    weight_bytes = max(OPERAND_BYTES[workload.precision], 1.0)
    traffic = (columns.reads + columns.writes) * activation_bytes * fusion * scale / work
    traffic = traffic + columns.weights * weight_bytes / weights
    layout = np.where(
        IS_CONV[columns.kind] & (keys.channels_last[:, None] > 0)
        & (activation_bytes < 4.0), constants.channels_last_share, 1.0,
    )  # fmt: skip
    seconds: FloatArray = np.maximum(compute, traffic / bandwidths) * layout
    on_cpu = device.kind == "cpu"
    launch = constants.cpu_launch_seconds if on_cpu else constants.launch_seconds
    seconds = seconds + columns.launches * launch
    return np.where(optimizer, 0.0, seconds)


def _cut(columns: OpColumns, keys: Keys, constants: Constants) -> tuple[FloatArray, FloatArray]:
    """Return what divides (FLOPs and activation traffic, weights) of each operation, (k, ops)."""
    ep = keys.ep[:, None]
    expert = columns.shard == SHARD_INDEX[Shard.EXPERT]
    imbalance = np.where(expert & (ep > 1), constants.expert_imbalance, 1.0)
    weights = np.where(cut_by_tensor(columns), keys.tp[:, None], 1.0) * np.where(expert, ep, 1.0)
    return activation_cut(columns, keys) / imbalance, weights


def matrix_fill(workload: Workload, device: Device, keys: Keys, constants: Constants) -> FloatArray:
    """Return the share of its best rate that each matrix product reaches by its size, (k, ops).

    1 / fill = 1 + tile/m + tile/n + tile/2k + wave/elements: what is lost at the edges of tiles, at
    the start of the reduction and in the last wave of output over the device's units. The losses
    add, so that time never falls when a product grows. 1 for what is no matrix product.
    """
    columns = workload.graph.columns
    m, n, k, groups = (columns.dims[:, i] for i in range(4))
    is_product = (m > 0) & IS_MATRIX[columns.kind]
    samples = keys.micro_batch[:, None] / keys.cp[:, None]
    attention = columns.kind == KIND_INDEX[OpKind.ATTENTION]
    reduction = is_weight_gradient(columns)
    tp = np.where(cut_by_tensor(columns), keys.tp[:, None], 1.0)
    # tp cuts the larger of a weight matrix's sides; in a weight gradient those are m and n.
    cut_n = np.where(reduction, n >= m, n > k) & ~attention
    cut_other = ~cut_n & ~attention
    rows = m * np.where(reduction | attention, 1.0, samples)
    rows = rows / np.where(cut_other & reduction, tp, 1.0)
    cols = n / np.where(cut_n, tp, 1.0)
    inner = k * np.where(reduction, samples, 1.0) / np.where(cut_other & ~reduction, tp, 1.0)
    copies = groups * np.where(attention, samples / tp, 1.0)
    # Grouped convolutions are thin by nature: their class efficiency already says so.
    tile = np.where(IS_GROUPED[columns.kind], 0.0, constants.tile)
    # A weight gradient's small output is filled by splitting its long reduction.
    split = np.where(reduction, np.maximum(inner / constants.split_reduction, 1.0), 1.0)
    elements = rows * cols * copies * split
    wave = device.flops(workload.precision) / constants.wave_flops_per_element
    with np.errstate(divide="ignore", invalid="ignore"):
        lost = tile / rows + tile / cols + tile / (2.0 * inner) + wave / elements
    fill: FloatArray = np.where(is_product, 1.0 / (1.0 + lost), 1.0)
    return np.maximum(fill, 1e-4)
