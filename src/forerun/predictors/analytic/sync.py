"""Synchronisation of replicas: collectives of gradients and parameters, parameter servers.

Volumes: Rajbhandari et al. 2020 (ZeRO), Li et al. 2020 (bucketed all-reduce hidden behind
backward). Experts have fewer replicas than the rest of a model, on other ranks, so their gradients
travel in collectives of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.domain.plan import ALL_REDUCE, ONE_PROCESS, PS_ASYNC, PS_SYNC, RECOMPUTE
from forerun.predictors.analytic import collectives
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.measured_step import has_probed, measured_exposed
from forerun.predictors.analytic.rows import Rows
from forerun.predictors.analytic.stages import (
    expert_spread,
    micro_batches,
    stage_params,
    stage_shares,
)
from forerun.predictors.analytic.states import gradient_bytes

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Group:
    """Replicas of some parameters: how many ranks, how many of them in a node, parameters on one.

    Ranks are laid tp first, then cp, dp and pp.
    """

    ranks: FloatArray
    per_node: FloatArray
    params: FloatArray


def replica_groups(rows: Rows) -> tuple[Group, ...]:
    """Return the groups that reduce gradients: the dense parameters', and the experts'."""
    return rows.once("replica_groups", _replica_groups)


def _replica_groups(rows: Rows) -> tuple[Group, ...]:
    plan, node = rows.plan, rows.node["node_devices"]
    shares = stage_shares(rows)
    first, last = stage_params(rows, *shares)
    expert = rows.work["layer_expert"] / expert_spread(rows) * shares[0]
    ranks = plan["dp"] * plan["cp"]
    dense = Group(ranks, np.clip(np.floor(node / plan["tp"]), 1.0, ranks), np.maximum(first, last))
    if not np.any(expert > 0):
        return (dense,)
    spread = expert_spread(rows)
    copies = np.maximum(ranks * plan["tp"] / spread, 1.0)
    return dense, Group(copies, np.clip(np.floor(node / spread), 1.0, copies), expert)


def synchronisation(
    rows: Rows, compute: FloatArray, constants: Constants
) -> tuple[FloatArray, FloatArray]:
    """Return seconds that (collectives, parameter servers) add to the step, each (n,).

    compute: seconds of the step without them.
    """
    plan = rows.plan
    window = np.minimum(rows.key["layer_backward_span"] / plan["pp"], compute)
    each = _reduced_bytes(rows) * rows.work["trained_share"]
    traffic = [_traffic(rows, group, each, constants) for group in replica_groups(rows)]
    exposed = _exposed(rows, compute, window, traffic, constants)
    if has_probed(rows):
        exposed = measured_exposed(rows, compute, _reduced_bytes(rows), exposed)
    if np.any(rows.work["sparse_params"] > 0):
        exposed = exposed + _lookups(rows, replica_groups(rows)[0])
    collective = np.where(rows.sync == ALL_REDUCE, exposed, 0.0)
    if not np.any(rows.sync != ALL_REDUCE):
        return collective, np.zeros(len(rows))
    params = sum((g.params for g in replica_groups(rows)), np.zeros(len(rows)))
    size = params * gradient_bytes(rows)
    one_process = np.where(
        rows.sync == ONE_PROCESS, _one_process(rows, np.asarray(size), constants), 0.0
    )
    return collective + one_process, _servers(rows, compute, np.asarray(size), constants)


@dataclass(frozen=True)
class Traffic:
    """Seconds of a group's collectives, each (n,).

    hidden: those that backward may hide, in one round (a step, or a micro-batch in stage 2).
    after: those that follow the update. sharded: all of stage 3, in one step.
    """

    hidden: FloatArray
    after: FloatArray
    sharded: FloatArray


def _traffic(rows: Rows, group: Group, each: FloatArray, constants: Constants) -> Traffic:
    """Return what a group of replicas sends; `each` is the bytes of one gradient, (n,).

    Stage 0 all-reduces gradients once a step. Stage 1 reduce-scatters them and gathers parameters
    after the update. Stage 2 keeps gradients sharded, so it reduce-scatters in every micro-batch.
    Stage 3 also gathers parameters in every forward and backward. Each bucket pays its latency, in
    stage 3 each message of a layer.
    """
    stage = rows.plan["zero_stage"]
    size, weights = group.params * each, group.params * rows.work["activation_bytes"]
    soft, many = rows.software, group.ranks > 1
    bucket = np.maximum(soft["bucket_bytes"], soft["rank_bucket_bytes"] * group.ranks)
    link = _link(rows, np.maximum(size / bucket, 1.0))
    reduce = collectives.all_reduce(size, group.ranks, group.per_node, *link)
    bucket = np.maximum(bucket, soft["rank_shard_bytes"] * group.ranks)
    link = _link(rows, np.maximum(size / bucket, 1.0))
    scatter = collectives.all_gather(size, group.ranks, group.per_node, *link)
    gather = collectives.all_gather(weights, group.ranks, group.per_node, *link)
    hidden = np.where(many, np.where(stage >= 1, scatter, reduce), 0.0)
    after = np.where(
        many & (stage >= 1), constants.gather_exposed * soft["gather_share"] * gather, 0.0
    )
    sharded = np.zeros(len(rows))
    if np.any(stage >= 3):
        sharded = np.where(many, _sharded(rows, group, size, weights), 0.0)
    return Traffic(hidden, after, sharded)


def _sharded(rows: Rows, group: Group, size: FloatArray, weights: FloatArray) -> FloatArray:
    """Return seconds of one step's collectives in stage 3: gathers of `weights`, scatter of `size`.

    Frameworks gather a layer's parameters in one message or several, and those that let them go
    between recomputation and backward gather them once more.
    """
    software = rows.software
    messages = np.maximum(rows.work["layers"], 1.0) * software["shard_messages"]
    link = _link(rows, messages)
    gather = collectives.all_gather(weights, group.ranks, group.per_node, *link)
    scatter = collectives.all_gather(size, group.ranks, group.per_node, *link)
    full = rows.plan["recompute"] == RECOMPUTE.index("full")
    gathers = np.where(full, software["shard_gathers"], 2.0)
    return np.asarray(micro_batches(rows) * (gathers * gather + scatter))


def _reduced_bytes(rows: Rows) -> FloatArray:
    """Return bytes of one gradient element as it is reduced, (n,)."""
    own = rows.software["half_grad_bytes"]
    half = (own > 0) & (rows.work["fp16"] > 0) & (rows.work["transformer"] > 0)
    return np.where(half, own, gradient_bytes(rows))


def _exposed(
    rows: Rows, compute: FloatArray, window: FloatArray, traffic: Sequence[Traffic],
    constants: Constants,
) -> FloatArray:  # fmt: skip
    """Return seconds that all groups' collectives, one after another, add to the step, (n,)."""
    stage = rows.plan["zero_stage"]
    rounds = np.where(stage == 2, micro_batches(rows), 1.0)
    one = np.asarray(sum((t.hidden for t in traffic), np.zeros(len(rows))))
    behind = window * rounds
    joined = collectives.p_norm(behind, one * rounds, constants.overlap_power)
    bare = rows.software["bare_gradients"]
    bare = np.where(stage >= 1, np.maximum(bare, rows.software["bare_shards"]), bare)
    result = (1.0 - bare) * (joined - behind) + bare * one * rounds
    result = result + sum((t.after for t in traffic), np.zeros(len(rows)))
    if np.any(stage >= 3):
        moved = np.asarray(sum((t.sharded for t in traffic), np.zeros(len(rows))))
        fsdp = collectives.p_norm(compute, moved, rows.software["shard_power"]) - compute
        result = np.where(stage >= 3, fsdp, result)
    return result


def _link(
    rows: Rows, messages: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return the links, the latency counted once for each of the messages that share a volume."""
    node = rows.node
    return (
        node["intra_latency"] * messages, node["intra_rate"],
        node["inter_latency"] * messages, node["inter_rate"],
    )  # fmt: skip


def _lookups(rows: Rows, group: Group) -> FloatArray:
    """Return seconds in which rows of spread embedding tables reach their samples and back.

    One all-to-all forward and one backward (Naumov et al. 2020, DLRM's hybrid parallelism).
    """
    samples = rows.plan["global_batch"] / np.maximum(group.ranks, 1.0)
    size = samples * rows.work["looked_up"] * rows.work["activation_bytes"]
    link = _link(rows, np.ones(len(rows)))
    return np.asarray(2.0 * collectives.all_to_all(size, group.ranks, group.per_node, *link))


def _one_process(rows: Rows, size: FloatArray, constants: Constants) -> FloatArray:
    """Return seconds in which one process feeds devices, broadcasts weights and reduces gradients.

    Weights and gradients travel in pieces along a chain of devices, so that their number hardly
    matters. Images are copied from pageable memory to the first device while all wait, and from
    there scattered.
    """
    node, many = rows.node, np.maximum(rows.plan["dp"], 1.0)
    rate = np.maximum(node["host_rate"], node["intra_rate"])
    images = rows.plan["global_batch"] * rows.work["image_elements"] * rows.work["activation_bytes"]
    fed = images / constants.pageable_bytes_per_second + images * (1.0 - 1.0 / many) / rate
    return np.asarray(fed + np.where(many > 1, 2.0 * size / rate, 0.0))


def _servers(rows: Rows, compute: FloatArray, size: FloatArray, constants: Constants) -> FloatArray:
    """Return seconds that parameter servers add (equation 2.8 of KDD 2015, as a roofline).

    Synchronous, for W bytes and R workers: T_ps = max(2 W / bw, R 2 W / (N_ps bw)) + latency.
    Asynchronous: a worker's turn takes its compute and its own exchange, R workers take turns
    side by side, and the servers carry one update in 2 W / (N_ps bw) at best. A server has the
    whole network of its node.
    """
    node = rows.node
    across = node["nodes"] > 1
    rate = np.where(across, node["inter_rate"], node["intra_rate"])
    serving = np.where(across, rate * node["node_devices"], rate)
    latency = np.where(across, node["inter_latency"], node["intra_latency"])
    servers = np.maximum(rows.plan["servers"], 1.0)
    workers = np.maximum(rows.plan["dp"], 1.0)
    alone = 2.0 * size / rate + 2.0 * latency
    service = 2.0 * size / (servers * serving)
    together = np.maximum(alone, workers * service)
    added = np.where(rows.sync == PS_SYNC, together, 0.0)
    turn = (compute + alone) / workers
    joined = collectives.p_norm(turn, service, constants.server_power)
    # Every other part of an asynchronous step is divided by the workers; this is the rest.
    is_async = rows.sync == PS_ASYNC
    return np.where(is_async, joined - compute / workers, added)
