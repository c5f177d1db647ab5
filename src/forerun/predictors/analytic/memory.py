"""Memory: the peak of the most-loaded device by cause, and how much of a device can be filled.

The peak is what the framework's allocator reserves (what its log shows); the runtime's context and
the buffers of communicators lie beside it and are taken off what a device can hold.

Source of the activations: Korthikanti et al. 2022 (a transformer layer; up to pp micro-batches are
in flight on stage 0 of 1F1B, times 1 + (pp-1)/(pp vpp) when interleaved).
"""

from __future__ import annotations

import numpy as np

from forerun.arrays import FloatArray
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.rows import Rows
from forerun.predictors.analytic.stages import (
    expert_spread,
    in_flight,
    in_flight_last,
    layer_shares,
    local_params,
)
from forerun.predictors.analytic.states import (
    States,
    gradient_bytes,
    state_bytes,
    table_bytes,
    unsharded_bytes,
)


def peak_bytes(rows: Rows, constants: Constants) -> tuple[FloatArray, dict[str, FloatArray]]:
    """Return the median peak of the most-loaded device (n,) and its parts."""
    plan, key = rows.plan, rows.key
    one_stage, group = plan["pp"] == 1, plan["dp"] * plan["cp"]
    share_first, share_last = layer_shares(rows)
    first, last, expert, _ = local_params(rows)
    states = state_bytes(rows, group)
    head, kept = key["held_head"], key["held_layers"]
    acts_first = in_flight(rows) * (kept * share_first + key["held_embed"])
    acts_last = np.where(one_stage, 1.0, in_flight_last(rows)) * kept * share_last
    expert_states = _expert_states(rows, states)
    load_first = first * states.total + acts_first
    load_last = last * states.total + acts_last
    on_last = load_last + head > load_first + np.where(one_stage, head, 0.0)
    dense = np.where(on_last, last, first)
    tables, table_states = table_bytes(rows)
    activations = np.where(on_last, acts_last, acts_first) + key["held_working"]
    logits = np.where(on_last | one_stage, head, 0.0)
    on_gpu = rows.node["is_gpu"] > 0
    # Whole inputs of layers, which sequence parallelism gathers, are held at once.
    gathered = rows.software["whole_inputs"] * key["held_whole"] + returned_bytes(rows)
    moving = _bucket_bytes(rows, dense) + gathered
    parts = {
        "weights": dense * states.weights + expert * expert_states.weights + tables,
        "gradients": dense * states.gradients + expert * expert_states.gradients,
        "optimizer": dense * states.optimizer + expert * expert_states.optimizer + table_states,
        "activations": activations,
        "logits": logits,
        "buffers": unsharded_bytes(rows) + np.where(on_gpu, moving, 0.0),
        "fragmentation": constants.fragmentation * (activations + logits),
        "framework": np.where(on_gpu, rows.software["workspace_bytes"], 0.0),
    }
    return np.asarray(sum(parts.values(), np.zeros(len(rows)))), parts


def _expert_states(rows: Rows, dense: States) -> States:
    """Return the bytes a parameter of experts, whose replicas are fewer."""
    if not rows.work["layer_expert"].any():
        return dense
    plan = rows.plan
    replicas = plan["dp"] * plan["cp"] * plan["tp"] / expert_spread(rows)
    return state_bytes(rows, np.maximum(replicas, 1.0))


def returned_bytes(rows: Rows) -> FloatArray:
    """Return what the allocator holds beyond need and returns before an allocation fails, (n,).

    A host that no pipeline makes wait runs ahead of its device, and inputs gathered on the
    communication stream are held until that stream has passed them.
    """
    runs_ahead = (rows.plan["pp"] == 1) & (rows.node["is_gpu"] > 0)
    return np.where(runs_ahead, rows.software["inputs_ahead"] * rows.key["held_whole"], 0.0)


def _bucket_bytes(rows: Rows, dense: FloatArray) -> FloatArray:
    """Return gradients under way between replicas: a few buckets, or a copy of all of them."""
    plan = rows.plan
    gradients = dense * gradient_bytes(rows) * rows.work["trained_share"]
    moving = np.minimum(8 * rows.software["bucket_bytes"], gradients)
    copies = rows.software["bucket_copies"]
    if copies.any():
        copied = np.where(plan["zero_stage"] < 2, copies, 0.0) * gradients
        moving = np.maximum(moving, copied)
    return np.where(plan["dp"] * plan["cp"] > 1, moving, 0.0)


def usable_bytes(rows: Rows, constants: Constants) -> FloatArray:
    """Return how high a peak may be before allocation fails, (n,).

    Device memory, less what the allocator cannot reach, the runtime's context, and the buffers of
    one communicator for each kind of parallelism. A CPU's is its host's.
    """
    plan, soft, memory = rows.plan, rows.software, rows.node["memory"]
    groups = (plan["dp"] > 1).astype(float) + (plan["tp"] > 1) + (plan["pp"] > 1) + (plan["cp"] > 1)
    beside = soft["context_bytes"] + groups * constants.group_buffer_bytes
    held = memory * soft["usable_share"] - beside
    host = memory * constants.usable_host - constants.cpu_overhead_share * soft["context_bytes"]
    return np.maximum(np.where(rows.node["is_gpu"] > 0, held, host), 1.0)


def log_slack(rows: Rows, peak_bytes: FloatArray, constants: Constants) -> FloatArray:
    """Return the log of what a device can hold over what median peaks (n,) need of it, (n,)."""
    needed = np.maximum(peak_bytes - returned_bytes(rows), 1.0)
    return np.asarray(np.log(usable_bytes(rows, constants) / needed))
