"""One step: stages, pipeline, data-parallel traffic, optimizer and input joined, part by part.

The formulas follow Narayanan et al. 2021 (1F1B and interleaved pipelines), Rajbhandari et al. 2020
(ZeRO's volumes) and Li et al. 2020 (bucketed all-reduce hidden behind backward). Each part is what
the step grows by when that cause is added, so the parts add up to the step.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forerun.domain.plan import SYNC
from forerun.predictors.analytic import collectives
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.memory import (
    gradient_bytes,
    layer_share,
    local_params,
    micro_batches,
)
from forerun.predictors.analytic.rows import Rows

FloatArray = NDArray[np.float64]
PARTS = ("forward", "backward", "recompute", "tensor comm", "host", "imbalance", "pipeline bubble",
         "pipeline comm", "data comm", "optimizer", "parameter server", "input", "overhead",
         "straggler")  # fmt: skip


def step_parts(rows: Rows, step_overhead: FloatArray, grad_bytes: FloatArray,
               constants: Constants) -> dict[str, FloatArray]:  # fmt: skip
    """Return exposed seconds of one optimizer step by cause, each (n,); they add up to it."""
    parts = _pipeline_parts(rows, constants)
    compute = sum(parts.values(), np.zeros(len(rows)))
    exposed, server = _synchronisation(rows, np.asarray(compute), grad_bytes, constants)
    parts["data comm"] = exposed
    parts["optimizer"] = _optimizer(rows)
    parts["parameter server"] = server
    busy = compute + exposed + parts["optimizer"] + server
    parts["input"] = np.maximum(_input(rows, constants) - busy, 0.0)
    parts["overhead"] = step_overhead * np.where(rows.node["is_gpu"] > 0, 1.0, 0.3)
    spread = np.log2(np.maximum(rows.node["nodes"], 1.0))
    parts["straggler"] = constants.straggler_share * spread * np.asarray(compute)
    return _asynchronous(rows, {name: parts[name] for name in PARTS})


def _pipeline_parts(rows: Rows, constants: Constants) -> dict[str, FloatArray]:
    """M micro-batches through the fullest stage, plus the bubble and the transfers.

    1F1B: T = m t_max + (pp-1)/vpp t_mean, with t the time of a micro-batch on a stage.
    """
    key, plan = rows.key, rows.plan
    m, pp, vpp = micro_batches(rows), plan["pp"], plan["vpp"]
    layer = (
        key["layer_forward"] + key["layer_backward"] + key["layer_recompute"]
        + key["layer_tensor_comm"] + key["layer_host"]
    )  # fmt: skip
    ends = key["ends_forward"] + key["ends_backward"] + key["ends_host"]
    mean = (layer + ends) / pp
    largest = np.where(pp > 1, layer_share(rows) * layer + key["end"], mean)
    largest = np.maximum(largest, mean)
    passes = m / pp
    sent = _point_to_point(rows, constants)
    contention = np.where(
        rows.sync == SYNC.index("dataparallel"),
        constants.dataparallel_contention * (rows.node["devices"] - 1.0), 0.0,
    )  # fmt: skip
    host = passes * (key["layer_host"] + key["ends_host"])
    return {
        "forward": passes * (key["layer_forward"] + key["ends_forward"]),
        "backward": passes * (key["layer_backward"] + key["ends_backward"]),
        "recompute": passes * key["layer_recompute"],
        "tensor comm": passes * key["layer_tensor_comm"],
        "host": host + m * mean * contention,
        "imbalance": m * (largest - mean),
        "pipeline bubble": np.where(pp > 1, (pp - 1.0) / vpp * mean, 0.0),
        "pipeline comm": np.where(pp > 1, (m + (pp - 1.0) / vpp) * sent, 0.0),
    }


def _point_to_point(rows: Rows, constants: Constants) -> FloatArray:
    """Return exposed seconds of a micro-batch's transfers at one stage.

    Activations forward, gradients backward, once for each model chunk; the tp ranks each send
    their part.
    """
    plan, node = rows.plan, rows.node
    inside = plan["tp"] * plan["cp"] * plan["dp"] * 2.0 <= node["node_devices"]
    whole = plan["tp"] * plan["cp"] * plan["dp"] * plan["pp"] <= node["node_devices"]
    local = inside & whole
    latency = np.where(local, node["intra_latency"], node["inter_latency"])
    rate = np.where(local, node["intra_rate"], node["inter_rate"])
    parts = np.where(plan["sequence_parallel"] > 0, 1.0, plan["tp"])
    one = latency + rows.key["boundary"] / parts / rate
    return constants.point_to_point_exposed * 2.0 * plan["vpp"] * one


def _group(rows: Rows) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return (ranks of a data-parallel group, ranks of it in one node, parameters it reduces).

    Ranks are laid tp first, then cp, dp and pp.
    """
    plan, node = rows.plan, rows.node
    ranks = plan["dp"] * plan["cp"]
    per_node = np.clip(np.floor(node["node_devices"] / plan["tp"]), 1.0, ranks)
    first, last, expert, _ = local_params(rows)
    return ranks, per_node, np.maximum(first, last) + expert


def _link(rows: Rows) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    node = rows.node
    return (node["intra_latency"], node["intra_rate"], node["inter_latency"], node["inter_rate"])


def _synchronisation(
    rows: Rows, compute: FloatArray, grad_bytes: FloatArray, constants: Constants
) -> tuple[FloatArray, FloatArray]:
    """Return seconds that (collectives, parameter servers) add to the step, each (n,)."""
    plan = rows.plan
    ranks, per_node, params = _group(rows)
    each = gradient_bytes(rows, grad_bytes)
    size = params * each * rows.work["trained_share"]
    link = _link(rows)
    # Stages 0-2 move the same volume: reduce-scatter of gradients + all-gather of parameters.
    reduce = collectives.all_reduce(size, ranks, per_node, *link)
    m = micro_batches(rows)
    last_backward = np.minimum(
        (rows.key["layer_backward"] + rows.key["layer_recompute"]) / plan["pp"], compute
    )
    hidden = collectives.p_norm(last_backward, reduce, constants.overlap_power) - last_backward
    ddp = hidden + constants.bucket_share * reduce
    result = ddp
    if np.any(rows.work["sparse_params"] > 0):
        result = result + _lookups(rows, ranks, per_node)
    if np.any(plan["zero_stage"] >= 3):
        weights = params * rows.work["activation_bytes"]
        gather = collectives.all_gather(weights, ranks, per_node, *link)
        scatter = collectives.all_gather(size, ranks, per_node, *link)
        traffic = m * (2.0 * gather + scatter)
        fsdp = collectives.p_norm(compute, traffic, constants.shard_power) - compute
        result = np.where(plan["zero_stage"] >= 3, fsdp, result)
    collective = np.where((ranks > 1) & (rows.sync == SYNC.index("allreduce")), result, 0.0)
    if not np.any(rows.sync > 0):
        return collective, np.zeros(len(rows))
    one_process = np.where(
        rows.sync == SYNC.index("dataparallel"),
        2.0 * (plan["dp"] - 1.0) * size / rows.node["host_rate"], 0.0,
    )  # fmt: skip
    return collective + one_process, _servers(rows, compute, size, constants)


def _lookups(rows: Rows, ranks: FloatArray, per_node: FloatArray) -> FloatArray:
    """Return seconds in which rows of spread embedding tables reach their samples and back.

    One all-to-all forward and one backward (Naumov et al. 2020, DLRM's hybrid parallelism).
    """
    samples = rows.plan["global_batch"] / np.maximum(ranks, 1.0)
    size = samples * rows.work["looked_up"] * rows.work["activation_bytes"]
    return np.asarray(2.0 * collectives.all_to_all(size, ranks, per_node, *_link(rows)))


def _servers(rows: Rows, compute: FloatArray, size: FloatArray, constants: Constants) -> FloatArray:
    """Return seconds that parameter servers add (equation 2.8 of KDD 2015, as a roofline).

    Synchronous, for W bytes and R workers: T_ps = max(2 W / bw, R 2 W / (N_ps bw)) + latency.
    Asynchronous: a worker's turn takes its compute and its own exchange, R workers take turns
    side by side, and the servers carry one update in 2 W / (N_ps bw) at best.
    """
    node = rows.node
    across = node["nodes"] > 1
    rate = np.where(across, node["inter_rate"], node["intra_rate"])
    latency = np.where(across, node["inter_latency"], node["intra_latency"])
    servers = np.maximum(rows.plan["servers"], 1.0)
    workers = np.maximum(rows.plan["dp"], 1.0)
    alone = 2.0 * size / rate + 2.0 * latency
    service = 2.0 * size / (servers * rate)
    together = np.maximum(alone, workers * service)
    added = np.where(rows.sync == SYNC.index("ps-sync"), together, 0.0)
    turn = (compute + alone) / workers
    joined = collectives.p_norm(turn, service, constants.server_power)
    # `_asynchronous` divides every other part by the workers; this is what the servers add.
    is_async = rows.sync == SYNC.index("ps-async")
    return np.where(is_async, joined - compute / workers, added)


def _asynchronous(rows: Rows, parts: dict[str, FloatArray]) -> dict[str, FloatArray]:
    """An asynchronous step is one worker's update: the cluster makes one every 1/K of its time."""
    asynchronous = rows.sync == SYNC.index("ps-async")
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
    _, _, params = _group(rows)
    cut = np.where(plan["zero_stage"] >= 1, plan["dp"] * plan["cp"], 1.0)
    moved = params * work["optimizer_bytes_per_param"] * work["trained_share"] / cut
    return moved / rows.node["memory_rate"]


def _input(rows: Rows, constants: Constants) -> FloatArray:
    """Return seconds in which the host's cores decode a device's samples; 0 where not known."""
    work, node = rows.work, rows.node
    per_device = rows.plan["global_batch"] / rows.plan["dp"]
    decode = work["input_bytes"] * work["real_input"] * constants.decode_seconds_per_byte
    cores = np.maximum(node["vcpus"], 1e-9)
    return np.where(node["vcpus"] > 0, per_device * decode / cores, 0.0)
