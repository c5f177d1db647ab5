"""One step: stages, pipeline, data-parallel traffic, optimizer and input joined, part by part.

Narayanan et al. 2021 (1F1B and interleaved pipelines), Rajbhandari et al. 2020 (ZeRO's volumes), Li
et al. 2020 (bucketed all-reduce). A part is what its cause adds to the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from forerun.arrays import FloatArray
from forerun.domain.plan import ALL_REDUCE, ONE_PROCESS, RECOMPUTE, step_samples
from forerun.predictors.analytic.communication import (
    Link,
    all_gather,
    all_reduce,
    all_to_all,
    p_norm,
)
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.flat import Rows, remember, total
from forerun.predictors.analytic.measured import measured_exposed, with_measured
from forerun.predictors.analytic.memory import (
    Group,
    gradient_bytes,
    replica_groups,
    sent_bytes,
    shard_ranks,
)
from forerun.predictors.analytic.offload import with_offload
from forerun.predictors.analytic.servers import (
    SERVER_PARTS,
    interval_of,
    staleness_of,
    with_servers,
)


def synchronisation(
    rows: Rows, compute: FloatArray, constants: Constants, slower: float = 1.0
) -> FloatArray:
    """Return seconds that collectives add to `compute`, the rest, (n,), or (1,) where all rows have one value.

    slower: so many times longer does what travels take.
    """
    travels = remember(rows, _travels)
    stage, soft = rows.plan["zero_stage"], rows.software
    cut = stage >= 2
    sent = slower * np.where(cut, travels.sharded, travels.reduced)
    behind = np.minimum(rows.key["layer_backward_span"] / rows.plan["pp"], compute)
    behind = np.where(cut, compute, behind)
    power = np.where(cut, soft["shard_power"], constants.overlap_power)
    hidden = p_norm(behind, sent, power) - behind
    bare = soft["bare_gradients"]
    bare = np.where(stage >= 1, np.maximum(bare, soft["bare_shards"]), bare)
    gathered = constants.gather_exposed * soft["gather_share"] * slower * travels.gathered
    exposed = np.where(cut, hidden, (1.0 - bare) * hidden + bare * sent + gathered)
    if rows.has_probed:
        exposed = slower * measured_exposed(rows, compute, travels.element, exposed / slower)
    if np.any(rows.work["sparse_params"] > 0):
        # Rows of spread embedding tables travel too (Naumov et al. 2020, DLRM).
        group, link = replica_groups(rows)[0], _link(rows, np.ones(len(rows)))
        samples = rows.plan["global_batch"] / np.maximum(group.ranks, 1.0)
        looked_up = samples * rows.work["looked_up"] * rows.work["activation_bytes"]
        seconds = 2.0 * all_to_all(looked_up, group.ranks, group.per_node, link)
        exposed = exposed + slower * np.where(rows.work["sparse_params"] > 0, seconds, 0.0)
    if not np.any(rows.sync != ALL_REDUCE):
        return np.asarray(exposed)
    collective = np.where(rows.sync == ALL_REDUCE, exposed, 0.0)
    size = total(g.params for g in replica_groups(rows)) * gradient_bytes(rows)
    # One process deals its inputs and its weights out to the devices, and gathers the gradients.
    node, many = rows.node, np.maximum(rows.plan["dp"], 1.0)
    rate = np.maximum(node["host_rate"], node["intra_rate"])
    images = rows.plan["global_batch"] * rows.work["image_elements"] * rows.work["activation_bytes"]
    fed = images / constants.pageable_bytes_per_second + images * (1.0 - 1.0 / many) / rate
    fed = fed + np.where(many > 1, 2.0 * size / rate, 0.0)
    return np.asarray(collective + slower * np.where(rows.sync == ONE_PROCESS, fed, 0.0))


class _Travels(NamedTuple):
    """Bytes of a gradient's element, and seconds of collectives once a step and where states are cut, (n,)."""

    element: FloatArray
    reduced: FloatArray
    gathered: FloatArray
    sharded: FloatArray


def _travels(rows: Rows) -> _Travels:
    groups, work = replica_groups(rows), rows.work
    own = rows.software["half_grad_bytes"]
    half = (own > 0) & (work["fp16"] > 0) & (work["transformer"] > 0)
    element = np.where(half, own, gradient_bytes(rows))
    each = element * work["trained_share"]
    pairs = [_buckets(rows, group, each) for group in groups]
    reduced, gathered = (total(columns) for columns in zip(*pairs, strict=True))
    sharded = np.zeros(len(rows))
    if np.any(rows.plan["zero_stage"] >= 2):
        sharded = total(_sharded(rows, group, each) for group in groups)
    return _Travels(element, reduced, gathered, sharded)


def _buckets(rows: Rows, group: Group, each: FloatArray) -> tuple[FloatArray, FloatArray]:
    sharded, soft, many = rows.plan["zero_stage"] >= 1, rows.software, group.ranks > 1
    size, weights = group.params * each, group.params * sent_bytes(rows)
    bucket = np.maximum(soft["bucket_bytes"], soft["rank_bucket_bytes"] * group.ranks)
    link = _link(rows, np.maximum(size / bucket, 1.0))
    reduce = all_reduce(size, group.ranks, group.per_node, link)
    bucket = np.maximum(bucket, soft["rank_shard_bytes"] * group.ranks)
    # Rings of shards wait for all ranks at each message: nobody sends more than one a layer.
    link = _link(rows, np.clip(size / bucket, 1.0, rows.stage_layers))
    scatter = all_gather(size, group.ranks, group.per_node, link)
    gather = all_gather(weights, group.ranks, group.per_node, link)
    return (
        np.where(many, np.where(sharded, scatter, reduce), 0.0),
        np.where(many & sharded, gather, 0.0),
    )


def _sharded(rows: Rows, group: Group, each: FloatArray) -> FloatArray:
    """Return seconds in which gradients of each micro-batch leave, and weights come.

    ZeRO-2 gathers the weights once a step, in a message a layer. Interleaved stages do pp micro-batches
    in a row before another chunk's turn, whose gradients leave together (Llama Team 2024, section 3.3.2).
    """
    plan, m = rows.plan, rows.micro_batches
    software, kept = rows.software, plan["zero_stage"] == 2
    messages = np.where(kept, 1.0, software["shard_messages"])
    link = _link(rows, rows.stage_layers * messages)
    weights = group.params * sent_bytes(rows)
    ranks = shard_ranks(rows, group)
    gather = all_gather(weights, ranks, group.per_node, link)
    scatter = all_gather(group.params * each, ranks, group.per_node, link)
    full = plan["recompute"] == RECOMPUTE.index("full")
    gathers = np.where(full, software["shard_gathers"], 2.0)
    turns = np.where(kept & (plan["vpp"] > 1), np.ceil(m / plan["pp"]), m)
    moved = turns * scatter + np.where(kept, 1.0, m * gathers) * gather
    copies = all_reduce(group.params * each / ranks, group.ranks / ranks, 1.0, link)
    return np.where(group.ranks > 1, moved + np.where(group.ranks > ranks, copies, 0.0), 0.0)


def _link(rows: Rows, messages: FloatArray) -> Link:
    """Return the links, the latency counted for each of the messages that share a volume."""
    node = rows.node
    return (
        node["intra_latency"] * messages, node["intra_rate"],
        node["inter_latency"] * messages, node["inter_rate"],
    )  # fmt: skip


_SPANNED_NODES_POWER = 0.4
COMPUTED = ("forward", "backward", "recompute")  # parts that hold what parts of layers exchange
PARTS = (
    "forward", "backward", "recompute", "tensor comm", "expert comm", "context comm", "host",
    "imbalance", "pipeline bubble", "pipeline comm", "data comm", "optimizer", *SERVER_PARTS,
    "input", "overhead", "straggler",
)  # fmt: skip


def step_parts(rows: Rows, constants: Constants) -> dict[str, FloatArray]:
    """Return exposed seconds of one optimizer step by cause, (n,) or, of narrow rows, (1,) each; they add up to it."""
    parts = _worker_parts(rows, constants)
    parts |= dict.fromkeys(SERVER_PARTS, np.zeros_like(rows.plan["parameter_servers"]))
    if rows.served.any():
        parts = with_servers(rows, parts, constants)
        # Whatever servers do, the next batch is read beside it.
        waited = np.maximum(parts["input"], _input(rows, parts, constants))
        parts["input"] = np.where(rows.served, waited, parts["input"])
    return {name: parts[name] for name in PARTS}


def staleness(rows: Rows, constants: Constants) -> dict[str, FloatArray]:
    """Return mean, p05, p50 and p95 of each row's staleness, (n,) each; nothing where none has servers."""
    if not rows.served.any():
        return {}
    interval = interval_of(rows, _worker_parts(rows, constants), constants)
    return staleness_of(interval, rows.sync, rows.plan["stale_bound"])


def _worker_parts(rows: Rows, constants: Constants) -> dict[str, FloatArray]:
    """Return the parts of a worker's step, each (n,), where no parameter server has any."""
    parts = _pipeline_parts(rows, constants)
    compute = total(parts.values())
    parts["data comm"] = exposed = synchronisation(rows, compute, constants)
    parts["optimizer"] = _optimizer(rows)
    waited = _input(rows, parts, constants)  # where servers take a part, it is not known here
    parts["input"] = np.where(rows.served, 0.0, waited)
    on_cpu = rows.node["is_gpu"] == 0
    share = np.where(on_cpu, constants.cpu_overhead_share, 1.0)
    parts["overhead"] = rows.software["step_seconds"] * share
    spread = np.log2(np.maximum(rows.node["nodes"], 1.0))
    parts["straggler"] = constants.straggler_share * spread * (compute + exposed)
    if rows.has_probed:
        parts = with_measured(rows, parts)
    if not rows.offloads:
        return parts
    updated = _held(rows, 1) * rows.work["trained_share"]
    sent = _held(rows, 3) * sent_bytes(rows)
    return with_offload(rows, parts, updated, updated * gradient_bytes(rows), sent)


def step_and_floor(
    rows: Rows, constants: Constants
) -> tuple[dict[str, FloatArray], FloatArray, FloatArray]:
    """Return (parts of the step, median seconds, floor seconds) of n rows, each (n,)."""
    parts = step_parts(rows, constants)
    if "setting_scale" in rows.node:
        parts = {name: seconds * rows.node["setting_scale"] for name, seconds in parts.items()}
    if "exchanged" in rows.key:  # of replicas that are cut (`partition.cut_rows`)
        moved = {name: parts[name] * rows.key["exchanged"] for name in COMPUTED}
        parts |= {name: parts[name] - seconds for name, seconds in moved.items()}
        parts["tensor comm"] = parts["tensor comm"] + total(moved.values())
    samples = step_samples(rows.plan["global_batch"], rows.plan["dp"], rows.sync)
    floor = rows.work["floor_flops"] * samples / (rows.node["most_flops"] * rows.node["devices"])
    return parts, np.maximum(total(parts.values()), floor), floor


def _pipeline_parts(rows: Rows, constants: Constants) -> dict[str, FloatArray]:
    """Micro-batches, m of them, through the fullest stage, plus the bubble and the transfers.

    1F1B with stages of unequal times t: T = sum t + (m - 1) t_max, which is m t_mean, the imbalance
    (m - 1)(t_max - t_mean) and the bubble (pp - 1) t_mean; vpp chunks a stage divide the bubble.
    """
    key, plan = rows.key, rows.plan
    m, pp, vpp = rows.micro_batches, plan["pp"], plan["vpp"]
    device = (
        key["layer_forward"] + key["layer_backward"] + key["layer_recompute"]
        + key["layer_tensor_comm"] + key["layer_expert_comm"] + key["layer_context_comm"]
    )  # fmt: skip
    wait = _wait_floor(rows)
    if wait.any():
        with_wait = p_norm(device, key["layer_launches"] + wait, constants.layer_power)
        wait = np.where(wait > 0, np.maximum(with_wait - device - key["layer_host"], 0.0), 0.0)
    host = key["layer_host"] + wait
    layer = device + host
    ends = key["ends_forward"] + key["ends_backward"] + key["ends_host"]
    mean = (layer + ends) / pp
    share_first, share_last = rows.layer_shares
    first = share_first * layer + key["first_end"]
    last = share_last * layer + key["last_end"]
    fullest, left = np.maximum(first, last), rows.software["bubble_share"]
    if (left < 1.0).any():  # two streams from both ends give a device an early and a late stage
        fullest = np.where(left < 1.0, (first + last) / 2.0, fullest)
    largest = np.where(pp > 1, np.maximum(fullest, mean), mean)
    passes = m / pp
    # While a pipeline fills and drains, tensor groups do not wait for it: `wait` is not in the bubble.
    sent = _point_to_point(rows, constants)
    waiting = passes * (host + key["ends_host"])
    if np.any(rows.sync == ONE_PROCESS):
        waiting = np.where(rows.sync == ONE_PROCESS, _replicas(rows, constants), waiting)
    return {
        "forward": passes * (key["layer_forward"] + key["ends_forward"]),
        "backward": passes * (key["layer_backward"] + key["ends_backward"]),
        "recompute": passes * key["layer_recompute"],
        "tensor comm": passes * key["layer_tensor_comm"],
        "expert comm": passes * key["layer_expert_comm"],
        "context comm": passes * key["layer_context_comm"], "host": waiting,
        "imbalance": (m - 1.0 / vpp) * (largest - mean),
        "pipeline bubble": np.where(pp > 1, left * (pp - 1.0) / vpp * (mean - wait / pp), 0.0),
        "pipeline comm": np.where(pp > 1, (m + (pp - 1.0) / vpp) * sent, 0.0),
    }  # fmt: skip


def host_seconds(rows: Rows) -> FloatArray:
    """Return what the host of a device takes for one micro-batch where nothing hides it, (n,) or (1,)."""
    key = rows.key
    many = np.where(rows.sync == ONE_PROCESS, np.maximum(rows.plan["dp"], 1.0), 1.0)
    return key["host_forward"] * many + key["host_backward"] + _wait_floor(rows)


def _wait_floor(rows: Rows) -> FloatArray:
    """Return the least that all layers of a micro-batch take where tensor groups meet pipelines, (n,) or (1,)."""
    plan, each = rows.plan, rows.software["tensor_pipeline_seconds"]
    if not each.any():
        return np.zeros(1)
    meets = (plan["pp"] > 1) & (plan["tp"] > 1) & (rows.node["nodes"] > 1)
    spanned = np.maximum(plan["tp"] / rows.node["node_devices"], 1.0)
    wait_floor = rows.work["layers"] * plan["tp"] * each * spanned**_SPANNED_NODES_POWER
    return np.where(meets, wait_floor, 0.0)


def _replicas(rows: Rows, constants: Constants) -> FloatArray:
    key, many = rows.key, np.maximum(rows.plan["dp"], 1.0)
    device = total(
        key[f"{block}_{phase}"] for block in ("layer", "ends") for phase in ("forward", "backward")
    )
    host = key["host_forward"] * many + key["host_backward"]
    joined = p_norm(device, host, constants.layer_power) - device
    slower = constants.dataparallel_contention * np.log2(many) * device
    copies = np.where(many > 1, constants.replicate_share * key["host_forward"], 0.0)
    return np.asarray(rows.micro_batches * (joined + slower + copies))


def _point_to_point(rows: Rows, constants: Constants) -> FloatArray:
    plan, node = rows.plan, rows.node
    local = plan["tp"] * plan["cp"] * plan["dp"] * plan["pp"] <= node["node_devices"]
    latency = np.where(local, node["intra_latency"], node["inter_latency"])
    rate = np.where(local, node["intra_rate"], node["inter_rate"])
    cut = rows.software["scatter_gather"]
    part = np.where(plan["sequence_parallel"] > 0, 1.0, 1.0 - cut + cut / plan["tp"])
    one = latency + rows.key["boundary"] * part / rate
    return constants.point_to_point_exposed * 2.0 * plan["vpp"] * one


def _optimizer(rows: Rows) -> FloatArray:
    moved = _held(rows, 1) * rows.work["optimizer_bytes_per_param"] * rows.work["trained_share"]
    return moved / rows.node["memory_rate"]


def _held(rows: Rows, stage: int) -> FloatArray:
    """Return parameters on one device that are divided from a stage of ZeRO on, (n,)."""
    sharded = rows.plan["zero_stage"] >= stage
    return total(
        g.params / np.where(sharded, shard_ranks(rows, g), 1.0) for g in replica_groups(rows)
    )


def _input(rows: Rows, parts: Mapping[str, FloatArray], constants: Constants) -> FloatArray:
    """Return seconds of a step in which its devices wait for the next batch, (n,)."""
    work, node, plan = rows.work, rows.node, rows.plan
    per_device = step_samples(plan["global_batch"], plan["dp"], rows.sync) / node["devices"]
    # Each part reads its replica's whole batch; servers count a batch for each.
    if "partitions" in plan:
        per_device = per_device * plan["partitions"] / plan["parts"]
    decode = work["input_bytes"] * work["real_input"] * constants.decode_seconds_per_byte
    cores = np.maximum(node["vcpus"], 1e-9)
    read = np.where(node["vcpus"] > 0, per_device * decode / cores, 0.0)
    busy = total(v for n, v in parts.items() if n not in ("input", "overhead", "straggler"))
    return np.maximum(read - busy, 0.0)
