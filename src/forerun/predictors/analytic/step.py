"""One step: stages, pipeline, data-parallel traffic, optimizer and input joined, part by part.

The formulas follow Narayanan et al. 2021 (1F1B and interleaved pipelines), Rajbhandari et al. 2020
(ZeRO's volumes) and Li et al. 2020 (bucketed all-reduce hidden behind backward). Each part is what
the step grows by when that cause is added, so the parts add up to the step.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forerun.domain.plan import ONE_PROCESS, PS_ASYNC
from forerun.predictors.analytic import collectives
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.measured_step import has_probed, with_measured
from forerun.predictors.analytic.rows import Rows
from forerun.predictors.analytic.stages import expert_spread, micro_batches, stage_shares
from forerun.predictors.analytic.sync import replica_groups, synchronisation

FloatArray = NDArray[np.float64]
PARTS = (
    "forward", "backward", "recompute", "tensor comm", "expert comm", "context comm", "host",
    "imbalance", "pipeline bubble", "pipeline comm", "data comm", "optimizer", "parameter server",
    "input", "overhead", "straggler",
)  # fmt: skip


def step_parts(rows: Rows, constants: Constants) -> dict[str, FloatArray]:
    """Return exposed seconds of one optimizer step by cause, each (n,); they add up to it."""
    parts = _pipeline_parts(rows, constants)
    compute = sum(parts.values(), np.zeros(len(rows)))
    exposed, server = synchronisation(rows, np.asarray(compute), constants)
    parts["data comm"] = exposed
    parts["optimizer"] = _optimizer(rows)
    parts["parameter server"] = server
    busy = compute + exposed + parts["optimizer"] + server
    parts["input"] = np.maximum(_input(rows, constants) - busy, 0.0)
    on_cpu = rows.node["is_gpu"] == 0
    parts["overhead"] = rows.software["step_seconds"] * np.where(
        on_cpu, constants.cpu_overhead_share, 1.0
    )
    spread = np.log2(np.maximum(rows.node["nodes"], 1.0))
    parts["straggler"] = constants.straggler_share * spread * np.asarray(compute + exposed)
    if has_probed(rows):
        parts = with_measured(rows, parts)
    return _asynchronous(rows, {name: parts[name] for name in PARTS})


def step_and_floor(
    rows: Rows, fastest: FloatArray, constants: Constants
) -> tuple[dict[str, FloatArray], FloatArray, FloatArray]:
    """Return (parts of the step, median seconds, floor seconds) of n rows, each (n,).

    fastest: FLOP/s that a row's device cannot pass, (n,).
    """
    parts = step_parts(rows, constants)
    samples = np.where(rows.sync == PS_ASYNC, rows.plan["global_batch"] / rows.plan["dp"],
                       rows.plan["global_batch"])  # fmt: skip
    floor = rows.work["floor_flops"] * samples / (fastest * rows.node["devices"])
    step = np.asarray(sum(parts.values(), np.zeros(len(rows))))
    return parts, np.maximum(step, floor), floor


def _pipeline_parts(rows: Rows, constants: Constants) -> dict[str, FloatArray]:
    """Micro-batches, m of them, through the fullest stage, plus the bubble and the transfers.

    1F1B with stages of unequal times t: T = sum t + (m - 1) t_max, which is m t_mean, the imbalance
    (m - 1)(t_max - t_mean) and the bubble (pp - 1) t_mean; vpp chunks a stage divide the bubble.
    While a pipeline fills and drains, neighbours do not alternate and nothing is lost where tensor
    groups and pipelines meet.
    """
    key, plan = rows.key, rows.plan
    m, pp, vpp = micro_batches(rows), plan["pp"], plan["vpp"]
    device = (
        key["layer_forward"] + key["layer_backward"] + key["layer_recompute"]
        + key["layer_tensor_comm"] + key["layer_expert_comm"] + key["layer_context_comm"]
    )  # fmt: skip
    adding, adding_ends = _accumulation(rows)
    lost = _meeting(rows, device, constants)
    host = key["layer_host"] + lost
    layer = device + host + adding
    ends = key["ends_forward"] + key["ends_backward"] + key["ends_host"] + adding_ends
    mean = (layer + ends) / pp
    share_first, share_last = stage_shares(rows)
    first = share_first * layer + key["first_end"]
    last = share_last * layer + key["last_end"]
    largest = np.where(pp > 1, np.maximum(np.maximum(first, last), mean), mean)
    passes = m / pp
    sent = _point_to_point(rows, constants)
    backward = key["layer_backward"] + key["ends_backward"] + adding + adding_ends
    waiting = passes * (host + key["ends_host"])
    if np.any(rows.sync == ONE_PROCESS):
        waiting = np.where(rows.sync == ONE_PROCESS, _replicas(rows, constants), waiting)
    return {
        "forward": passes * (key["layer_forward"] + key["ends_forward"]),
        "backward": passes * backward,
        "recompute": passes * key["layer_recompute"],
        "tensor comm": passes * key["layer_tensor_comm"],
        "expert comm": passes * key["layer_expert_comm"],
        "context comm": passes * key["layer_context_comm"],
        "host": waiting,
        "imbalance": (m - 1.0 / vpp) * (largest - mean),
        "pipeline bubble": np.where(pp > 1, (pp - 1.0) / vpp * (mean - lost / pp), 0.0),
        "pipeline comm": np.where(pp > 1, (m + (pp - 1.0) / vpp) * sent, 0.0),
    }


def _accumulation(rows: Rows) -> tuple[FloatArray, FloatArray]:
    """Return seconds in which one micro-batch's gradients join their buffers: (layers, ends)."""
    work, tp = rows.work, rows.plan["tp"]
    each = rows.software["accumulate_bytes"] * work["trained_share"] / rows.node["memory_rate"]
    layers = work["layer_tensor"] / tp + work["layer_whole"]
    layers = layers + work["layer_expert"] / expert_spread(rows)
    ends = (work["embed_tensor"] + work["head_tensor"]) / tp
    return each * layers, each * (ends + work["embed_whole"] + work["head_whole"])


def _meeting(rows: Rows, device: FloatArray, constants: Constants) -> FloatArray:
    """Return seconds that all layers wait for the host where tensor groups and pipelines meet.

    device: seconds of all layers on the device. The host's loss grows with the tensor group and not
    with the micro-batch, so it is a floor under the layer, as its launches are.
    """
    plan, each = rows.plan, rows.software["tensor_pipeline_seconds"]
    meets = (plan["pp"] > 1) & (plan["tp"] > 1) & (rows.node["nodes"] > 1) & (each > 0)
    result = np.zeros(len(rows))
    if not meets.any():
        return result
    device, launches = device[meets], rows.key["layer_launches"][meets]
    spanned = np.maximum(plan["tp"] / rows.node["node_devices"], 1.0)
    lost = rows.work["layers"] * plan["tp"] * each * spanned**constants.tensor_pipeline_reach
    lost = lost[meets]
    power = constants.layer_power
    with_loss = collectives.p_norm(device, launches + lost, power)
    result[meets] = with_loss - collectives.p_norm(device, launches, power)
    return result


def _replicas(rows: Rows, constants: Constants) -> FloatArray:
    """Return the seconds that the host adds to a step of one process on N devices, (n,).

    The replicas' forwards are launched by threads that share one interpreter lock, and so one after
    another; backwards by a thread a device. Before and after, the process copies modules, scatters
    and gathers, while the devices wait.
    """
    key, many = rows.key, np.maximum(rows.plan["dp"], 1.0)
    device = sum((key[f"{block}_{phase}"] for block in ("layer", "ends")
                  for phase in ("forward", "backward")), np.zeros(len(rows)))  # fmt: skip
    host = key["host_forward"] * many + key["host_backward"]
    joined = collectives.p_norm(device, host, constants.layer_power) - device
    slower = constants.dataparallel_contention * np.log2(many) * device
    copies = np.where(many > 1, constants.replicate_share * key["host_forward"], 0.0)
    return np.asarray(micro_batches(rows) * (joined + slower + copies))


def _point_to_point(rows: Rows, constants: Constants) -> FloatArray:
    """Return exposed seconds of a micro-batch's transfers at one stage.

    Activations forward, gradients backward, once for each model chunk; the tp ranks each send
    their part where sequences are split or the framework scatters and gathers (Narayanan et al.
    2021, section 4.1), else all of it.
    """
    plan, node = rows.plan, rows.node
    local = plan["tp"] * plan["cp"] * plan["dp"] * plan["pp"] <= node["node_devices"]
    latency = np.where(local, node["intra_latency"], node["inter_latency"])
    rate = np.where(local, node["intra_rate"], node["inter_rate"])
    cut = rows.software["scatter_gather"]
    part = np.where(plan["sequence_parallel"] > 0, 1.0, 1.0 - cut + cut / plan["tp"])
    one = latency + rows.key["boundary"] * part / rate
    return constants.point_to_point_exposed * 2.0 * plan["vpp"] * one


def _asynchronous(rows: Rows, parts: dict[str, FloatArray]) -> dict[str, FloatArray]:
    """An asynchronous step is one worker's update: the cluster makes one every 1/K of its time."""
    asynchronous = rows.sync == PS_ASYNC
    if not asynchronous.any():
        return parts
    share = np.where(asynchronous, 1.0 / np.maximum(rows.plan["dp"], 1.0), 1.0)
    return {
        name: values if name == "parameter server" else values * share
        for name, values in parts.items()
    }


def _optimizer(rows: Rows) -> FloatArray:
    """Return seconds to update the fullest device's parameters, bound by memory bandwidth."""
    plan, work = rows.plan, rows.work
    params = np.zeros(len(rows))
    for group in replica_groups(rows):
        params = params + group.params / np.where(plan["zero_stage"] >= 1, group.ranks, 1.0)
    moved = params * work["optimizer_bytes_per_param"] * work["trained_share"]
    return moved / rows.node["memory_rate"]


def _input(rows: Rows, constants: Constants) -> FloatArray:
    """Return seconds in which the host's cores decode a device's samples; 0 where not known."""
    work, node = rows.work, rows.node
    per_device = rows.plan["global_batch"] / node["devices"]
    decode = work["input_bytes"] * work["real_input"] * constants.decode_seconds_per_byte
    cores = np.maximum(node["vcpus"], 1e-9)
    return np.where(node["vcpus"] > 0, per_device * decode / cores, 0.0)
