"""Measured steps: what a step costs beside its operations on a device that a probe has measured.

The probe timed updates, the keeping of replicas, and all-reduces; buckets of gradients are followed
one by one, as DistributedDataParallel fills and sends them (Li et al. 2020), instead of a share of
the traffic that is taken to stay bare.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.domain.plan import ALL_REDUCE
from forerun.predictors.analytic.buckets import BUCKETS
from forerun.predictors.analytic.measured_facts import REDUCED_BYTES, UPDATE_FIELDS
from forerun.predictors.analytic.rows import Rows


def has_probed(rows: Rows) -> bool:
    """Whether any row stands on a probed device."""
    return "measured" in rows.node


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


def measured_exposed(
    rows: Rows, compute: FloatArray, each: FloatArray, exposed: FloatArray
) -> FloatArray:
    """Return seconds that gradients' all-reduces add to the step, (n,).

    each: bytes of a gradient as it is reduced, (n,); exposed: of rows that this does not speak of.

    A bucket is sent once its last gradient is there and the one before it is through. Meanwhile the
    sending takes the processor from the backward pass. The first one finds a link that has rested
    as long as there was work: what a bucket of tokens then lets pass at once, it has gathered
    meanwhile, so that no step is shorter than its all-reduces one after the other.

    compute: seconds of the step without them, (n,).
    """
    node, key, plan = rows.node, rows.key, rows.plan
    ranks = plan["dp"] * plan["cp"]
    known = is_measured(rows) & (ranks > 1) & (rows.sync == ALL_REDUCE) & (plan["zero_stage"] == 0)
    if not known.any():
        return exposed
    rate = np.where(node["nodes"] > 1, node["inter_rate"], node["intra_rate"])
    # What calibration, or a link stated otherwise, makes of the rate that was measured.
    slower = np.where(known, node["exchange_rate"] / rate, 1.0)
    slower = slower * np.where(known, (ranks - 1.0) / ranks, 1.0)
    devices = np.maximum(node["devices"], 2.0)
    slower = slower / np.where(known, (devices - 1.0) / devices, 1.0)
    backward = (key["layer_backward"] + key["ends_backward"]) * node["slowdown"]
    size = rows.work["params"] / plan["tp"] / plan["pp"] * rows.work["trained_share"] * each
    end = stolen = np.zeros(len(rows))
    for bucket in range(BUCKETS):
        share, ready = key[f"bucket_{bucket}_share"], key[f"bucket_{bucket}_ready"]
        sent = size * share
        taken = _reduce_seconds(node, "reduce", sent) * slower
        if bucket == 0:
            rested = _reduce_seconds(node, "rested", sent) * slower
            taken = np.maximum(rested, taken - compute)
        begun = np.maximum(end, ready * backward + stolen)
        last = ready >= 1.0
        end = np.where(share > 0, begun + taken, end)
        busy = np.minimum(sent * node["exchange_busy"], taken)
        stolen = stolen + np.where((share > 0) & ~last, busy, 0.0)
    added = np.maximum(end, backward + stolen) - backward
    return np.where(known, added, exposed)


def _reduce_seconds(node: dict[str, FloatArray], name: str, size: FloatArray) -> FloatArray:
    """Return seconds of an all-reduce of bytes, (n,): straight lines between logarithms.

    name: `reduce`, of one that follows another, or `rested`, of the first after a while.
    """
    bytes_ = np.log(REDUCED_BYTES)
    seconds = np.log(np.maximum([node[f"{name}_{i}"] for i in range(len(bytes_))], 1e-300))
    asked = np.log(np.maximum(size, REDUCED_BYTES[0]))
    place = np.clip(np.searchsorted(bytes_, asked) - 1, 0, len(bytes_) - 2)
    rows = np.arange(len(size))
    below, above = seconds[place, rows], seconds[place + 1, rows]
    share = (asked - bytes_[place]) / (bytes_[place + 1] - bytes_[place])
    return np.asarray(np.exp(below + share * (above - below)))
