"""Floors: the least time that physics allows, whatever the software."""

from __future__ import annotations

import numpy as np

from forerun.domain.graph import KIND_INDEX, OpKind
from forerun.domain.hardware import Device
from forerun.domain.workload import Workload
from forerun.predictors.analytic.clocks import most_clock_share
from forerun.predictors.analytic.keys import IS_MATRIX, is_weight_gradient

# Winograd's F(4x4, 3x3) does a 3x3 convolution in 36/144 of the multiplications, the smallest share
# of the algorithms in vendor libraries (Lavin and Gray 2015).
WINOGRAD_SHARE = 36.0 / 144.0


def floor_flops_per_sample(workload: Workload) -> float:
    """Return a lower bound of the FLOPs of one sample, forward and backward.

    Dense 3x3 convolutions may be done by Winograd's algorithm; everything else as stated.
    """
    columns = workload.graph.columns
    share = np.where(columns.kind == KIND_INDEX[OpKind.CONV], WINOGRAD_SHARE, 1.0)
    share = np.where(IS_MATRIX[columns.kind], share, 0.0)
    if workload.task == "lora":
        share = np.where(is_weight_gradient(columns), 0.0, share)
    if not workload.detailed:
        share = share * WINOGRAD_SHARE
    return float((columns.flops * columns.repeat * share).sum())


def fastest_rate(device: Device, workload: Workload) -> float:
    """Return the highest FLOP/s that the precision could possibly run at on this device.

    fp32 work may run on TF32 units; 16-bit mixed precision never passes the 16-bit rate. A board
    may clock higher than its data sheet states.
    """
    rate = device.flops(workload.precision)
    if workload.precision == "fp32":
        rate = max(rate, device.peak_flops.get("tf32", 0.0))
    rate = max(rate, device.flops("fp32") if workload.precision != "fp64" else 0.0)
    return rate * most_clock_share(device)
