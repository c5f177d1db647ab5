"""Memory: the peak of the most-loaded device by cause, and how sure that is.

Source of the parts: Rajbhandari et al. 2020 (ZeRO: 2 + 2 + 12 bytes a parameter for Adam in mixed
precision), Korthikanti et al. 2022 (activations of a transformer layer; up to pp micro-batches are
in flight on stage 0 of 1F1B, times 1 + (pp-1)/(pp vpp) when interleaved).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forerun.domain.plan import SYNC
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.rows import Rows

FloatArray = NDArray[np.float64]
PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "buffers",
         "fragmentation", "framework")  # fmt: skip


def local_params(rows: Rows) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return parameters on the fullest device before ZeRO, each (n,).

    (dense on the first stage, dense on the last stage, experts on any, of one layer): experts
    are divided by ep and have dp x cp / ep replicas, the rest dp x cp.
    """
    return rows.once("local_params", _local_params)


def layer_share(rows: Rows) -> FloatArray:
    """Return the fullest stage's share of the layers: ceil(L / (pp vpp)) vpp / L, 1 without pp."""
    return rows.once("layer_share", _layer_share)


def micro_batches(rows: Rows) -> FloatArray:
    """Return forward-backward passes of a device in one step, at least 1."""
    return rows.once("micro_batches", _micro_batches)


def _local_params(rows: Rows) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    plan, work = rows.plan, rows.work
    tp = plan["tp"]
    spread = expert_spread(rows)
    share = layer_share(rows)
    layer = (work["layer_tensor"] / tp + work["layer_whole"]) * share
    expert = work["layer_expert"] / spread * share
    embed = work["embed_tensor"] / tp + work["embed_whole"]
    head = work["head_tensor"] / tp + work["head_whole"]
    one_stage = plan["pp"] == 1
    first = layer + embed + np.where(one_stage, head, 0.0)
    last = layer + head + np.where(one_stage, embed, work["head_copied"] / tp)
    one_layer = (
        (work["layer_tensor"] / tp + work["layer_whole"] + work["layer_expert"] / spread)
        / np.maximum(work["layers"], 1.0)
    )  # fmt: skip
    return first, last, expert, one_layer


def expert_spread(rows: Rows) -> FloatArray:
    """Return over how many ranks one copy of the experts is cut.

    ep x tp, or all dp x cp x tp ranks of a stage where that is less: experts spread over tensor
    ranks too are then not cut by them.
    """
    plan = rows.plan
    return np.minimum(plan["ep"] * plan["tp"], plan["dp"] * plan["cp"] * plan["tp"])


def _layer_share(rows: Rows) -> FloatArray:
    stages = rows.plan["pp"] * rows.plan["vpp"]
    layers = np.maximum(rows.work["layers"], 1.0)
    share = np.ceil(layers / stages) * rows.plan["vpp"] / layers
    return np.where(stages > 1, np.minimum(share, 1.0), 1.0)


def peak_bytes(rows: Rows, constants: Constants) -> tuple[FloatArray, dict[str, FloatArray]]:
    """Return the median peak of the most-loaded device (n,) and its parts."""
    first, last, expert, one_layer = local_params(rows)
    plan, key = rows.plan, rows.key
    flight = in_flight(rows)
    share = layer_share(rows)
    one_stage = plan["pp"] == 1
    stored = key["saved_layer"] * share
    embed, head = key["saved_embed"], key["saved_head"]
    acts_first = flight * (stored + embed) + key["saved_working"]
    flight_last = np.where(one_stage, 1.0, in_flight_last(rows))
    acts_last = flight_last * stored + key["saved_working"]
    state_per = state_bytes_per_param(rows)
    load_first = (first + expert) * state_per + acts_first + np.where(one_stage, head, 0.0)
    load_last = (last + expert) * state_per + acts_last + head
    on_last = load_last > load_first
    dense = np.where(on_last, last, first)
    parts = _states(rows, dense, expert, one_layer)
    activations = np.where(on_last, acts_last, acts_first)
    logits = np.where(on_last | one_stage, head, 0.0)
    parts["activations"] = activations
    parts["logits"] = logits
    groups = (plan["dp"] > 1).astype(float) + (plan["tp"] > 1) + (plan["pp"] > 1) + (plan["cp"] > 1)
    buckets = np.minimum(8 * constants.bucket_bytes, dense * rows.software["grad_bytes"])
    traveling = groups * constants.group_buffer_bytes + buckets
    parts["buffers"] = parts["buffers"] + np.where(rows.node["is_gpu"] > 0, traveling, 0.0)
    parts["fragmentation"] = constants.fragmentation * (activations + logits)
    on_gpu = rows.node["is_gpu"] > 0
    parts["framework"] = rows.software["context_bytes"] * np.where(
        on_gpu, 1.0, constants.cpu_overhead_share
    )
    parts = {name: parts[name] for name in PARTS}
    total = sum(parts.values(), np.zeros(len(rows)))
    return np.asarray(total), parts


def in_flight(rows: Rows) -> FloatArray:
    """Return micro-batches whose activations stage 0 holds at once under 1F1B."""
    plan = rows.plan
    pp, vpp = plan["pp"], plan["vpp"]
    factor = np.where(vpp > 1, 1.0 + (pp - 1.0) / (pp * vpp), 1.0)
    return np.minimum(micro_batches(rows), pp) * factor


def in_flight_last(rows: Rows) -> FloatArray:
    """Return the same for the last stage: one, or a few chunks of it when interleaved."""
    plan = rows.plan
    pp, vpp = plan["pp"], plan["vpp"]
    return np.where(vpp > 1, np.minimum(in_flight(rows), 1.0 + (pp - 1.0) / vpp), 1.0)


def _micro_batches(rows: Rows) -> FloatArray:
    plan = rows.plan
    return np.maximum(plan["global_batch"] / (plan["micro_batch"] * plan["dp"]), 1.0)


def _weight_bytes(rows: Rows) -> FloatArray:
    """16-bit transformers keep 16-bit weights beside fp32 masters; autocast keeps fp32 ones."""
    half = (rows.work["mixed"] > 0) & (rows.work["transformer"] > 0)
    return np.where(half, 2.0, np.maximum(rows.work["activation_bytes"], 4.0))


def gradient_bytes(rows: Rows) -> FloatArray:
    """Return bytes of one gradient element as it is kept and reduced."""
    half = (rows.work["mixed"] > 0) & (rows.work["transformer"] > 0)
    return np.where(
        half, rows.software["grad_bytes"], np.maximum(rows.work["activation_bytes"], 4.0)
    )


def optimizer_bytes(rows: Rows) -> FloatArray:
    """Return optimizer bytes of one parameter: fp32 states, and a master copy of 16-bit weights."""
    half = (rows.work["mixed"] > 0) & (rows.work["transformer"] > 0)
    wide = np.maximum(rows.work["activation_bytes"], 4.0)
    return wide * rows.work["states"] + np.where(half, 4.0, 0.0)


def state_bytes_per_param(rows: Rows) -> FloatArray:
    """Return weights + gradients + optimizer bytes of a dense parameter after ZeRO, (n,)."""
    plan, trained = rows.plan, rows.work["trained_share"]
    group, stage = plan["dp"] * plan["cp"], plan["zero_stage"]
    return (
        _weight_bytes(rows) / np.where(stage >= 3, group, 1.0)
        + trained * gradient_bytes(rows) / np.where(stage >= 2, group, 1.0)
        + trained * optimizer_bytes(rows) / np.where(stage >= 1, group, 1.0)
    )


def _states(
    rows: Rows, dense: FloatArray, expert: FloatArray, one_layer: FloatArray
) -> dict[str, FloatArray]:  # fmt: skip
    plan, trained = rows.plan, rows.work["trained_share"]
    group, stage = plan["dp"] * plan["cp"], plan["zero_stage"]
    experts_group = np.maximum(group * plan["tp"] / expert_spread(rows), 1.0)

    def sharded(bytes_each: FloatArray, from_stage: int) -> FloatArray:
        cut = stage >= from_stage
        return bytes_each * (
            dense / np.where(cut, group, 1.0) + expert / np.where(cut, experts_group, 1.0)
        )

    weight = _weight_bytes(rows)
    # ZeRO-3 gathers the layer at work and the next one ahead of it.
    # Entry and exit form the outermost unit: gathered throughout, their gradients whole at first.
    ends = rows.work["embed_tensor"] + rows.work["head_tensor"]
    ends = (ends / plan["tp"] + rows.work["embed_whole"] + rows.work["head_whole"]) / plan["pp"]
    alone = stage >= 3
    gathered = np.where(alone, (2.0 * one_layer + ends) * rows.work["activation_bytes"], 0.0)
    weights = sharded(weight, 3)
    each = gradient_bytes(rows)
    unsharded = np.where(alone & (group > 1), (one_layer + ends) * each, 0.0)
    copies = np.where(rows.sync == SYNC.index("dataparallel"), 1.0, 0.0)
    tables = rows.work["sparse_params"] * 4.0 / np.maximum(group, 1.0)
    return {
        "weights": weights + tables,
        "buffers": gathered + trained * unsharded,
        "gradients": trained * sharded(each, 2)
        * (1.0 + copies),
        "optimizer": trained * sharded(optimizer_bytes(rows), 1)
        + tables * np.minimum(rows.work["states"], 1.0),
    }  # fmt: skip
