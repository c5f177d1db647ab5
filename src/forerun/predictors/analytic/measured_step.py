"""Measured steps: what a step costs beside its operations on a device that a probe has measured.

The probe timed updates, the keeping of replicas, and all-reduces; buckets of gradients are followed
one by one, as DistributedDataParallel fills and sends them (Li et al. 2020), instead of a share of
the traffic that is taken to stay bare.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forerun.domain.plan import ALL_REDUCE
from forerun.predictors.analytic.buckets import BUCKETS
from forerun.predictors.analytic.measured_facts import UPDATE_FIELDS
from forerun.predictors.analytic.rows import Rows

FloatArray = NDArray[np.float64]


def is_measured(rows: Rows) -> NDArray[np.bool_]:
    """Return which rows stand on probed devices, (n,)."""
    return np.asarray(rows.node["measured"] > 0)


def with_measured(rows: Rows, parts: dict[str, FloatArray]) -> dict[str, FloatArray]:
    """Return the parts of a step, each (n,), with those of probed devices as they were measured."""
    known, node, work = is_measured(rows), rows.node, rows.work
    many = rows.plan["dp"] * rows.plan["cp"] > 1
    slow = np.where(known, node["slowdown"], 1.0)
    found = {name: values * slow if name in _COMPUTED else values for name, values in parts.items()}
    tensors = work["tensors"] / rows.plan["tp"] / rows.plan["pp"]
    params = work["params"] / rows.plan["tp"] / rows.plan["pp"]
    updated = params / np.where(rows.plan["zero_stage"] >= 1, rows.plan["dp"], 1.0)
    states = np.clip(work["states"], 0, 2).astype(int)
    step, tensor, parameter = (
        np.choose(states, [node[f"update_{i}_{part}"] for i in range(3)]) for part in UPDATE_FIELDS
    )
    update = (step + tensor * tensors + parameter * updated * work["trained_share"]) * slow
    found["optimizer"] = np.where(known, update, parts["optimizer"])
    replicas = node["replica_step"] + node["replica_tensor"] * tensors
    replicas = replicas + node["replica_parameter"] * params * work["trained_share"]
    fixed = (node["step_fixed"] + np.where(many, replicas, 0.0)) * slow
    found["overhead"] = np.where(known, fixed, parts["overhead"])
    passes = np.maximum(rows.plan["dp"], 1.0) * rows.plan["micro_batch"]
    passes = np.maximum(rows.plan["global_batch"] / passes, 1.0)
    loaded = passes * (node["batch_fixed"] + node["sample"] * rows.plan["micro_batch"]) * slow
    found["input"] = np.where(known, np.maximum(loaded, parts["input"]), parts["input"])
    ranks = np.maximum(rows.node["devices"], 1.0)
    waited = node["jitter"] * np.sqrt(2.0 * np.log(ranks)) * (ranks > 1)
    found["straggler"] = np.where(known, waited, parts["straggler"])
    return found


_COMPUTED = ("forward", "backward", "recompute")


def measured_exposed(rows: Rows, each: FloatArray, exposed: FloatArray) -> FloatArray:
    """Return seconds that gradients' all-reduces add to the step, (n,).

    each: bytes of a gradient as it is reduced, (n,); exposed: of rows that this does not speak of.

    A bucket is sent once its last gradient is there and the one before it is through. Meanwhile the
    sending takes the processor from the backward pass.
    """
    node, key, plan = rows.node, rows.key, rows.plan
    ranks = plan["dp"] * plan["cp"]
    known = is_measured(rows) & (ranks > 1) & (rows.sync == ALL_REDUCE) & (plan["zero_stage"] == 0)
    if not known.any():
        return exposed
    across = node["nodes"] > 1
    latency = np.where(across, node["inter_latency"], node["intra_latency"])
    rate = np.where(across, node["inter_rate"], node["intra_rate"])
    fixed = node["exchange_call"] + 2.0 * (ranks - 1.0) * latency
    backward = (key["layer_backward"] + key["ends_backward"]) * node["slowdown"]
    size = rows.work["params"] / plan["tp"] / plan["pp"] * rows.work["trained_share"] * each
    end = stolen = np.zeros(len(rows))
    for bucket in range(BUCKETS):
        share, ready = key[f"bucket_{bucket}_share"], key[f"bucket_{bucket}_ready"]
        sent = size * share
        taken = fixed + 2.0 * (ranks - 1.0) / ranks * sent / rate
        begun = np.maximum(end, ready * backward + stolen)
        last = ready >= 1.0
        end = np.where(share > 0, begun + taken, end)
        busy = np.minimum(sent * node["exchange_busy"], taken)
        stolen = stolen + np.where((share > 0) & ~last, busy, 0.0)
    added = np.maximum(end, backward + stolen) - backward
    return np.where(known, added, exposed)
