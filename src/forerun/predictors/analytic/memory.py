"""Memory: the peak that a framework's allocator reserves by cause, and how much a device can hold.

Korthikanti et al. 2022 (activations); Rajbhandari et al. 2020 (2 + 2 + 12 bytes a parameter for Adam
in mixed precision, and what ZeRO divides); Zhao et al. 2023 (FSDP: fp32 shards, 16-bit copies).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from forerun.arrays import BoolArray, FloatArray
from forerun.domain.graph import BLOCK_INDEX, KIND_INDEX, PHASE_INDEX, Block, OpKind, Phase
from forerun.domain.plan import ONE_PROCESS, RECOMPUTE
from forerun.domain.workload import ACTIVATION_BYTES, Workload
from forerun.predictors.analytic.communication import boundary_elements
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.flat import (
    Keys,
    Rows,
    activation_cut,
    cut_by_tensor,
    remember,
    selected,
    total,
)
from forerun.predictors.analytic.offload import PARAMETERS, host_room, kept_parts

# NF4 with double quantization: 4 bits and 0.127 of constants (Dettmers et al. 2023, section 3).
QUANTIZED_BYTES = 4.127 / 8


def saved_bytes(workload: Workload, keys: Keys) -> dict[str, FloatArray]:
    """Return activation bytes kept for backward by one micro-batch, each (k,).

    saved_gate: more, without fusing a gate's activation; saved_chosen: with selective recomputation;
    saved_again: of one layer computed again; saved_alive: gradients alive in it; saved_whole: gathered.
    """
    columns = workload.graph.columns
    size = ACTIVATION_BYTES[workload.precision]
    samples = keys.micro_batch / keys.cp
    cut = activation_cut(columns, keys)
    kept = columns.saved * columns.repeat * size / cut  # (k, operations)
    blocks = {b: columns.block == BLOCK_INDEX[b] for b in Block}
    # A gate multiplies an activated half of its input with the other half.
    gates = (columns.kind == KIND_INDEX[OpKind.ELEMENTWISE]) & cut_by_tensor(columns)
    gates &= (columns.saved > 0) & (columns.reads > 1.5 * columns.writes)
    layer_all, gate, scores = (
        kept[:, blocks[Block.LAYER] & some].sum(axis=1) * samples
        for some in (True, gates, selected(workload, columns))
    )
    layers = max(workload.shape.layers, 1)
    by_sequence = np.where(keys.sequence_parallel > 0, keys.tp, 1.0)
    boundary = samples * boundary_elements(workload) * size / by_sequence
    full = keys.recompute == RECOMPUTE.index("full")
    selective = keys.recompute == RECOMPUTE.index("selective")
    # Norms saved their input, the residual stream: without them the layer's input must be kept.
    residual = boundary * layers if workload.fused_attention else 0.0

    def recomputed(whole: FloatArray, chosen: ArrayLike) -> FloatArray:
        return np.where(full, whole, np.where(selective, chosen, 0.0))

    # While a layer is differentiated, the gradients of its widest output and input are alive.
    forward = columns.phase == PHASE_INDEX[Phase.FORWARD]
    widest = (columns.writes * size / cut) * samples[:, None]
    inner, head = blocks[Block.LAYER] & forward, blocks[Block.HEAD] & forward
    head_alive = widest[:, head].max(axis=1, initial=0.0)
    return {
        "saved_layer": np.where(full | selective, 0.0, layer_all),
        "saved_gate": np.where(full | selective, 0.0, gate),
        "saved_chosen": np.where(selective, layer_all - scores, 0.0),
        "saved_input": recomputed(np.minimum(boundary * layers, layer_all), residual),
        "saved_again": recomputed(layer_all / layers, scores / layers),
        "saved_alive": 2.0 * widest[:, inner].max(axis=1, initial=0.0),
        "saved_whole": np.where(keys.sequence_parallel > 0, boundary * keys.tp, 0.0),
        "saved_embed": kept[:, blocks[Block.EMBED]].sum(axis=1) * samples,
        "saved_head": kept[:, blocks[Block.HEAD]].sum(axis=1) * samples + head_alive,
        "boundary": boundary,
    }


def held_bytes(
    saved: Mapping[str, FloatArray], software: Mapping[str, FloatArray], transformer: BoolArray
) -> dict[str, FloatArray]:
    """Return what frameworks hold of what operations save, each (k,); shares are of transformers alone."""

    def share(name: str) -> FloatArray:
        return np.where(transformer, software[name], 1.0)

    whole = saved["saved_layer"] + software["unfused"] * saved["saved_gate"]
    chosen = share("chosen_share") * saved["saved_chosen"]
    return {
        "held_layers": share("kept_share") * whole + chosen + saved["saved_input"],
        "held_working": saved["saved_alive"] + share("kept_share") * saved["saved_again"],
        "held_embed": saved["saved_embed"],
        "held_head": share("logits_share") * saved["saved_head"],
        "held_whole": saved["saved_whole"], "boundary": saved["boundary"],
    }  # fmt: skip


class Group(NamedTuple):
    """Replicas of some parameters: ranks, how many of them in a node, parameters on one, (n,)."""

    ranks: FloatArray
    per_node: FloatArray
    params: FloatArray


def replica_groups(rows: Rows) -> tuple[Group, ...]:
    """Return the groups that reduce gradients, of dense parameters and experts; ranks are laid tp first."""
    return remember(rows, _replica_groups)


def _replica_groups(rows: Rows) -> tuple[Group, ...]:
    plan, node = rows.plan, rows.node["node_devices"]
    first, last, expert = rows.local_params
    ranks, each = plan["dp"] * plan["cp"], plan["tp"] * plan.get("partitions", 1.0)
    dense = Group(ranks, np.clip(np.floor(node / each), 1.0, ranks), np.maximum(first, last))
    if not np.any(expert > 0):
        return (dense,)
    spread = rows.expert_spread
    copies = np.maximum(ranks * plan["tp"] / spread, 1.0)
    return dense, Group(copies, np.clip(np.floor(node / spread), 1.0, copies), expert)


def shard_ranks(rows: Rows, group: Group) -> FloatArray:
    """Return how many replicas share a parameter's states, (n,): all, under ZeRO-3 perhaps one fabric's."""
    node = rows.node
    joined = node["node_devices"] * node["nodes"] > node["devices"]
    apart = joined & (rows.software["fabric_shards"] > 0) & (rows.plan["zero_stage"] >= 3)
    return np.where(apart, group.per_node, group.ranks)


class States(NamedTuple):
    """Bytes a parameter on one device, each (n,)."""

    weights: FloatArray
    gradients: FloatArray
    optimizer: FloatArray


def state_bytes(rows: Rows, group: Group) -> States:
    """Return bytes a parameter of a group, by the stage of ZeRO."""
    stage, trained = rows.plan["zero_stage"], rows.work["trained_share"]
    share, wide = rows.software["states_share"], np.maximum(rows.work["activation_bytes"], 4.0)
    half = _half(rows)
    # Adapters are kept in fp32, without another copy.
    masters = (
        half & (rows.work["adapted"] == 0) & ~((rows.software["wide_weights"] > 0) & (stage >= 3))
    )
    replicas = shard_ranks(rows, group)
    copies = np.where(rows.sync == ONE_PROCESS, 2.0 * share, share)
    # What is not trained needs no wide copy (Hu et al. 2021, LoRA).
    frozen = np.where(half, 2.0, wide)
    narrow = rows.work["quantized_share"] * (frozen - QUANTIZED_BYTES)
    weights = frozen - narrow + trained * (np.where(masters, 2.0, wide) - frozen)
    optimizer = wide * rows.work["states"] + np.where(masters, 4.0, 0.0)
    optimizer = np.where(rows.served, 0.0, optimizer)  # servers hold it
    return States(
        weights * share / np.where(stage >= 3, replicas, 1.0),
        gradient_bytes(rows) * trained * copies / np.where(stage >= 2, replicas, 1.0),
        optimizer * trained * share / np.where(stage >= 1, replicas, 1.0),
    )


def server_bytes(rows: Rows) -> States:
    """Return what servers of one node hold, states and each worker's dense gradients too, each (n,)."""
    work, plan = rows.work, rows.plan
    workers, servers = np.maximum(plan["dp"], 1.0), np.maximum(plan["parameter_servers"], 1.0)
    here = np.where(plan["servers_with_workers"] > 0, np.ceil(servers / rows.node["nodes"]), 1.0)
    each = np.maximum(work["activation_bytes"], 4.0) * here / servers
    cut = plan.get("parts", 1.0)  # workers that push a part of the model each
    dense = total(group.params for group in replica_groups(rows)) * cut
    states = dense * work["trained_share"] * work["states"]
    tables = work["sparse_params"] * cut
    return States(
        (dense + tables) * each, dense / cut * work["trained_share"] * workers * each,
        (states + tables * np.minimum(work["states"], 1.0)) * each,
    )  # fmt: skip


def sent_bytes(rows: Rows) -> FloatArray:
    """Return bytes of one weight as ZeRO-3 gathers it, (n,)."""
    wide = rows.work["activation_bytes"]
    return np.asarray(wide - rows.work["quantized_share"] * (wide - QUANTIZED_BYTES))


def _half(rows: Rows) -> BoolArray:
    """Return which rows train a transformer in 16 bits or less: others autocast, all in fp32."""
    return np.asarray((rows.work["mixed"] > 0) & (rows.work["transformer"] > 0))


def gradient_bytes(rows: Rows) -> FloatArray:
    """Return bytes of one gradient element as it is kept and reduced, (n,)."""
    full = np.maximum(rows.work["activation_bytes"], 4.0)
    return np.where(_half(rows), rows.software["grad_bytes"], full)


def _unsharded_bytes(rows: Rows) -> FloatArray:
    """Return what ZeRO-3 holds whole: the layer at work, the next one, and their gradients."""
    plan, work = rows.plan, rows.work
    ends = (work["embed_tensor"] + work["head_tensor"]) / plan["tp"]
    ends = (ends + work["embed_whole"] + work["head_whole"]) / plan["pp"]
    gathered = (2.0 * rows.one_layer + ends) * sent_bytes(rows)
    whole = (rows.one_layer + ends) * gradient_bytes(rows) * work["trained_share"]
    shared = plan["dp"] * plan["cp"] > 1
    sharded = plan["zero_stage"] >= 3
    if rows.offloads:
        sharded = sharded | (plan["offload"] >= PARAMETERS)
    return np.where(sharded, gathered + np.where(shared, whole, 0.0), 0.0)


def peak_bytes(rows: Rows, constants: Constants) -> tuple[FloatArray, dict[str, FloatArray]]:
    """Return the median peak of the most-loaded device (n,) and its parts."""
    parts = _parts(rows, constants)
    if rows.offloads:
        parts = kept_parts(rows, parts)
    return total(parts.values()), parts


def _parts(rows: Rows, constants: Constants) -> dict[str, FloatArray]:
    """Return the parts of the peak, (n,) each, with what is offloaded."""
    plan, key = rows.plan, rows.key
    one_stage, groups = plan["pp"] == 1, replica_groups(rows)
    share_first, share_last = rows.layer_shares
    first, last, expert = rows.local_params
    states, expert_states = (state_bytes(rows, group) for group in (groups[0], groups[-1]))
    head, kept = key["held_head"], key["held_layers"]
    acts_first = rows.in_flight * (kept * share_first + key["held_embed"])
    # The last stage holds one micro-batch, or a few chunks of it when interleaved.
    chunks = np.minimum(rows.in_flight, 1.0 + (plan["pp"] - 1.0) / plan["vpp"])
    acts_last = np.where(one_stage | (plan["vpp"] <= 1), 1.0, chunks) * kept * share_last
    load_first, load_last = first * sum(states) + acts_first, last * sum(states) + acts_last
    on_last = load_last + head > load_first + np.where(one_stage, head, 0.0)
    dense = np.where(on_last, last, first)
    tables = rows.work["sparse_params"] * 4.0 / groups[0].ranks  # spread over replicas
    table_states = tables * np.minimum(rows.work["states"], 1.0)
    more = States(tables, np.zeros(len(rows)), table_states)
    if (through := rows.served).any():
        # A module keeps whole tables; where tensors are servers', what a pass looks up.
        whole, own = rows.work["sparse_params"] * 4.0, rows.software["push_overlap"]
        looked_up = np.minimum(plan["micro_batch"] * rows.work["looked_up"] * 4.0, whole)
        tables = np.where(through, own * looked_up + (1.0 - own) * whole, tables)
        beside = through & (plan["servers_with_workers"] > 0) & (rows.node["is_gpu"] == 0)
        share = np.where(beside, 1.0 / rows.node["node_devices"], 0.0)
        weights, gradients, optimizer = (share * held for held in server_bytes(rows))
        more = States(tables + weights, gradients, np.where(through, optimizer, more.optimizer))
    activations = np.where(on_last, acts_last, acts_first) + key["held_working"]
    logits = np.where(on_last | one_stage, head, 0.0)
    on_gpu = rows.node["is_gpu"] > 0
    # Whole inputs of layers, which sequence parallelism gathers, are held at once.
    gathered = rows.software["whole_inputs"] * key["held_whole"] + returned_bytes(rows)
    # Gradients under way between replicas: a few buckets, a chunk's, or a copy of all of them.
    gradients = dense * gradient_bytes(rows) * rows.work["trained_share"]
    moving = np.minimum(8 * rows.software["bucket_bytes"], gradients)
    in_chunks = (plan["zero_stage"] == 2) & (plan["vpp"] > 1)
    moving = np.maximum(moving, np.where(in_chunks, gradients / plan["vpp"], 0.0))
    copied = np.where(plan["zero_stage"] < 2, rows.software["bucket_copies"], 0.0) * gradients
    moving = np.where(plan["dp"] * plan["cp"] > 1, np.maximum(moving, copied), 0.0) + gathered
    return {
        "weights": dense * states.weights + expert * expert_states.weights + more.weights,
        "gradients": dense * states.gradients + expert * expert_states.gradients + more.gradients,
        "optimizer": dense * states.optimizer + expert * expert_states.optimizer + more.optimizer,
        "activations": activations, "logits": logits,
        "buffers": _unsharded_bytes(rows) + np.where(on_gpu, moving, 0.0),
        "fragmentation": constants.fragmentation * (activations + logits),
        "framework": np.where(on_gpu, rows.software["workspace_bytes"], 0.0),
    }  # fmt: skip


def returned_bytes(rows: Rows) -> FloatArray:
    """Return what the allocator holds beyond need and returns before an allocation fails, (n,)."""
    runs_ahead = (rows.plan["pp"] == 1) & (rows.node["is_gpu"] > 0)
    return np.where(runs_ahead, rows.software["inputs_ahead"] * rows.key["held_whole"], 0.0)


def usable_bytes(rows: Rows, constants: Constants) -> FloatArray:
    """Return how high a peak may be before allocation fails, (n,): a CPU's is its host's."""
    plan, soft, memory = rows.plan, rows.software, rows.node["memory"]
    groups = (plan["dp"] > 1).astype(float) + (plan["tp"] > 1) + (plan["pp"] > 1) + (plan["cp"] > 1)
    beside = soft["context_bytes"] + groups * constants.group_buffer_bytes
    held = memory * soft["usable_share"] - beside
    host = memory * constants.usable_host - constants.cpu_overhead_share * soft["context_bytes"]
    return np.maximum(np.where(rows.node["is_gpu"] > 0, held, host), 1.0)


def log_slack(rows: Rows, peak_bytes: FloatArray, constants: Constants) -> FloatArray:
    """Return the log of what a device, or its servers' host, can hold over what it needs, (n,)."""
    needed = np.maximum(peak_bytes - returned_bytes(rows), 1.0)
    if (rows.work["paged"] > 0).any():  # states leave where memory is short
        parts = _parts(rows, constants)
        held = kept_parts(rows, parts) if rows.offloads else parts
        needed = needed - rows.work["paged"] * held["optimizer"]
    room = usable_bytes(rows, constants) / needed
    if rows.offloads:
        hosts = constants.usable_host * host_room(rows, _parts(rows, constants))
        room = np.minimum(room, hosts)
    if rows.served.any():
        # Servers' host memory over their need; it bounds nothing where it is in a worker's peak.
        servers = rows.node["host_memory"] * constants.usable_host / total(server_bytes(rows))
        inside = (rows.plan["servers_with_workers"] > 0) & (rows.node["is_gpu"] == 0)
        room = np.minimum(room, np.where(rows.served & ~inside, servers, np.inf))
    return np.asarray(np.log(room))
