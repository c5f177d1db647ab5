"""Offload: optimizer, gradients, weights or activations in host memory or on NVMe, and what moving them takes.

Ren et al. 2021 (ZeRO-Offload: gradients leave behind backward, the CPU updates, weights return) and
Rajbhandari et al. 2021 (ZeRO-Infinity: weights come for each pass, states wait on NVMe).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from forerun.arrays import FloatArray
from forerun.domain.plan import NVME_BYTES_PER_SECOND, OFFLOAD, USUAL_HOST
from forerun.predictors.analytic.flat import Rows, total

_OPTIMIZER, PARAMETERS, _NVME = (
    OFFLOAD.index(word) for word in ("optimizer", "parameters", "nvme")
)
# Gradients that wait for their copy to the host, in numbers (DeepSpeed's `reduce_bucket_size`).
_BUCKET = 5e8
# Bytes a second that Adam's update on a host of two sockets moves: a billion parameters, 28 bytes each,
# in 0.22 s (Ren et al. 2021, table 4).
_HOST_ADAM = 28e9 / 0.22
_LAYERS = 2.0  # whose activations are on the device, the one at work and the next


def kept_parts(rows: Rows, parts: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Return the parts of the peak that stay on the device, (n,) each; a layer's weights are among buffers."""
    level, out = rows.plan["offload"], rows.plan["offload_activations"] > 0
    waiting = np.minimum(parts["gradients"], _BUCKET * rows.work["activation_bytes"])
    share = np.where(out, np.minimum(_LAYERS / rows.stage_layers, 1.0), 1.0)
    activations = share * parts["activations"]
    whole = np.maximum(parts["activations"] + parts["logits"], 1.0)
    alive = (activations + parts["logits"]) / whole
    return {
        **parts, "optimizer": np.where(level >= _OPTIMIZER, 0.0, parts["optimizer"]),
        "gradients": np.where(level >= _OPTIMIZER, waiting, parts["gradients"]),
        "weights": np.where(level >= PARAMETERS, 0.0, parts["weights"]), "activations": activations,
        "fragmentation": alive * parts["fragmentation"],
    }  # fmt: skip


def host_room(rows: Rows, parts: Mapping[str, FloatArray]) -> FloatArray:
    """Return a host's memory over what it holds of its devices', (n,), but for what is on NVMe.

    A host whose memory is not stated is assumed to have twice its devices'.
    """
    kept = kept_parts(rows, parts)
    states = total(parts[name] - kept[name] for name in ("optimizer", "gradients", "weights"))
    states = np.where(rows.plan["offload"] == _NVME, 0.0, states)
    held = (states + parts["activations"] - kept["activations"]) * rows.node["node_devices"]
    usual = USUAL_HOST * rows.node["memory"] * rows.node["node_devices"]
    host = np.where(np.isfinite(rows.node["host_memory"]), rows.node["host_memory"], usual)
    return host / np.maximum(held, 1.0)


def with_offload(
    rows: Rows, parts: Mapping[str, FloatArray], params: FloatArray, gradients: FloatArray,
    weights: FloatArray,
) -> dict[str, FloatArray]:  # fmt: skip
    """Return the parts of a step, seconds (n,) each, where states, weights or activations are elsewhere.

    params: that a device updates; gradients: bytes of theirs; weights: bytes of those that it holds, (n,) each.
    """
    level, work = rows.plan["offload"], rows.work
    many, link = rows.node["node_devices"], rows.node["host_rate"]
    drives = NVME_BYTES_PER_SECOND / many
    moved = params * work["optimizer_bytes_per_param"]
    states = params * 4.0 * (work["states"] + 1.0)  # and the weights that are updated
    update = moved * many / _HOST_ADAM + params * work["activation_bytes"] / link
    update = update + np.maximum(gradients / link - parts["backward"], 0.0)
    update = update + np.where(level == _NVME, 2.0 * states / drives, 0.0)
    # Weights come for forward and again for backward, behind what is computed.
    rate = np.where(level == _NVME, np.minimum(link, drives), link)
    passes = 2.0 * rows.micro_batches
    sent = np.where(level >= PARAMETERS, passes * weights / rate, 0.0)
    out = rows.plan["offload_activations"] > 0
    kept = passes * rows.key["held_layers"] * rows.layer_shares[0] / link
    sent = sent + np.where(out, kept, 0.0)
    compute = parts["forward"] + parts["backward"] + parts["recompute"]
    return {
        **parts, "optimizer": np.where(level >= _OPTIMIZER, update, parts["optimizer"]),
        "data comm": parts["data comm"] + np.maximum(sent - compute, 0.0),
    }  # fmt: skip
