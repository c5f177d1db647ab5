"""Stages: how layers, parameters and micro-batches are laid on the devices of a pipeline."""

from __future__ import annotations

import numpy as np

from forerun.arrays import FloatArray
from forerun.predictors.analytic.rows import Rows


def layer_shares(rows: Rows) -> tuple[FloatArray, FloatArray]:
    """Return the fullest (first) and the last stage's share of the layers, each (n,), 1 without pp.

    Spread evenly, ceil(L / (pp vpp)) vpp / L, or, where the framework counts the head among the work
    (`counts_head`): with T = L + head / layer, the first stage gets ceil(T / pp) layers, the last
    what then remains.
    """
    return rows.once("layer_shares", _layer_shares)


def _layer_shares(rows: Rows) -> tuple[FloatArray, FloatArray]:
    work, pp, vpp = rows.work, rows.plan["pp"], rows.plan["vpp"]
    layers = np.maximum(work["layers"], 1.0)
    even = np.minimum(np.ceil(layers / (pp * vpp)) * vpp / layers, 1.0)
    counted = (rows.software["counts_head"] > 0) & (pp > 1) & (vpp == 1)
    if not counted.any():
        return even, even
    one = (work["layer_tensor"] + work["layer_whole"] + work["layer_expert"]) / layers
    head = work["head_tensor"] + work["head_whole"] + work["head_copied"]
    total = layers + head / np.maximum(one, 1.0)
    first = np.minimum(np.ceil(total / pp), layers) / layers
    last = 1.0 - np.minimum(np.ceil(total * (pp - 1.0) / pp), layers) / layers
    return np.where(counted, first, even), np.where(counted, last, even)


def micro_batches(rows: Rows) -> FloatArray:
    """Return forward-backward passes of a device in one step, at least 1."""
    return rows.once("micro_batches", _micro_batches)


def _micro_batches(rows: Rows) -> FloatArray:
    plan = rows.plan
    return np.maximum(plan["global_batch"] / (plan["micro_batch"] * plan["dp"]), 1.0)


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


def local_params(rows: Rows) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return parameters on the fullest device before ZeRO, each (n,).

    (dense on the first stage, dense on the last stage, experts on any, of one layer): experts
    are divided by ep and have dp x cp / ep replicas, the rest dp x cp.
    """
    return rows.once("local_params", _local_params)


def _local_params(rows: Rows) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    plan, work, (share, share_last) = rows.plan, rows.work, layer_shares(rows)
    tp, one_stage = plan["tp"], plan["pp"] == 1
    layers = work["layer_tensor"] / tp + work["layer_whole"]
    embed = work["embed_tensor"] / tp + work["embed_whole"]
    head = work["head_tensor"] / tp + work["head_whole"]
    first = layers * share + embed + np.where(one_stage, head, 0.0)
    last = layers * share_last + head + np.where(one_stage, embed, work["head_copied"] / tp)
    expert = work["layer_expert"] / expert_spread(rows)
    return first, last, expert * share, one_layer(rows)


def one_layer(rows: Rows) -> FloatArray:
    """Return parameters of one layer on a device before ZeRO, (n,)."""
    work, tp = rows.work, rows.plan["tp"]
    expert = work["layer_expert"] / expert_spread(rows)
    whole: FloatArray = work["layer_tensor"] / tp + work["layer_whole"] + expert
    return whole / np.maximum(work["layers"], 1.0)


def expert_spread(rows: Rows) -> FloatArray:
    """Return over how many ranks one copy of the experts is cut.

    ep x tp, or all dp x cp x tp ranks of a stage where that is less: experts spread over tensor
    ranks too are then not cut by them.
    """
    plan = rows.plan
    return np.minimum(plan["ep"] * plan["tp"], plan["dp"] * plan["cp"] * plan["tp"])
