"""States: bytes of weights, gradients and optimizer, and what ZeRO leaves of them on a device.

Source: Rajbhandari et al. 2020 (2 + 2 + 12 bytes a parameter for Adam in mixed precision; what each
stage divides), Zhao et al. 2023 (FSDP: fp32 shards, 16-bit copies while gathered).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forerun.arrays import BoolArray, FloatArray
from forerun.domain.plan import ONE_PROCESS
from forerun.predictors.analytic.rows import Rows
from forerun.predictors.analytic.stages import one_layer


@dataclass(frozen=True)
class States:
    """Bytes a parameter of weights, gradients and optimizer on one device, each (n,)."""

    weights: FloatArray
    gradients: FloatArray
    optimizer: FloatArray

    @property
    def total(self) -> FloatArray:
        """All of them together, (n,)."""
        return self.weights + self.gradients + self.optimizer


def state_bytes(rows: Rows, replicas: FloatArray) -> States:
    """Return bytes a parameter after ZeRO; `replicas` share it, (n,).

    Stage 1 divides the optimizer, 2 the gradients too, 3 the weights too.
    """
    stage, trained = rows.plan["zero_stage"], rows.work["trained_share"]
    share = rows.software["states_share"]
    copies = np.where(rows.sync == ONE_PROCESS, 2.0 * share, share)
    return States(
        weight_bytes(rows) * share / np.where(stage >= 3, replicas, 1.0),
        gradient_bytes(rows) * trained * copies / np.where(stage >= 2, replicas, 1.0),
        optimizer_bytes(rows) * trained * share / np.where(stage >= 1, replicas, 1.0),
    )


def _half(rows: Rows) -> BoolArray:
    """Which rows train a transformer in 16 bits or less: others autocast, all in fp32."""
    return rows.once(
        "half", lambda r: np.asarray((r.work["mixed"] > 0) & (r.work["transformer"] > 0))
    )


def _wide(rows: Rows) -> FloatArray:
    """Return bytes of a number of full width."""
    return rows.once("wide", lambda r: np.maximum(r.work["activation_bytes"], 4.0))


def _masters(rows: Rows) -> BoolArray:
    """Which rows keep 16-bit weights beside fp32 masters: not where the shards are the masters."""
    shards = (rows.software["wide_weights"] > 0) & (rows.plan["zero_stage"] >= 3)
    return np.asarray(_half(rows) & ~shards)


def weight_bytes(rows: Rows) -> FloatArray:
    """Return bytes of one weight as it is kept."""
    return np.where(_masters(rows), 2.0, _wide(rows))


def gradient_bytes(rows: Rows) -> FloatArray:
    """Return bytes of one gradient element as it is kept and reduced."""
    return np.where(_half(rows), rows.software["grad_bytes"], _wide(rows))


def optimizer_bytes(rows: Rows) -> FloatArray:
    """Return optimizer bytes of one parameter: fp32 states, and a master copy of 16-bit weights."""
    return _wide(rows) * rows.work["states"] + np.where(_masters(rows), 4.0, 0.0)


def table_bytes(rows: Rows) -> tuple[FloatArray, FloatArray]:
    """Return (weights, optimizer) bytes of sparse tables, spread over all replicas."""
    each = rows.work["sparse_params"] * 4.0 / (rows.plan["dp"] * rows.plan["cp"])
    return each, each * np.minimum(rows.work["states"], 1.0)


def unsharded_bytes(rows: Rows) -> FloatArray:
    """Return what ZeRO-3 holds whole: the layer at work, the next one, and their gradients.

    Entry and exit form the outermost unit: gathered throughout, their gradients whole at first.
    """
    plan, work = rows.plan, rows.work
    alone = plan["zero_stage"] >= 3
    if not alone.any():
        return np.zeros(len(rows))
    ends = (work["embed_tensor"] + work["head_tensor"]) / plan["tp"]
    ends = (ends + work["embed_whole"] + work["head_whole"]) / plan["pp"]
    layer = one_layer(rows)
    gathered = (2.0 * layer + ends) * work["activation_bytes"]
    shared = plan["dp"] * plan["cp"] > 1
    whole = (layer + ends) * gradient_bytes(rows) * work["trained_share"]
    return np.where(alone, gathered + np.where(shared, whole, 0.0), 0.0)
