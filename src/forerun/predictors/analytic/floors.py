"""Floors: the least time that physics allows, whatever the software."""

from __future__ import annotations

import numpy as np

from forerun.arrays import BoolArray
from forerun.domain.graph import KIND_INDEX, PHASE_INDEX, OpColumns, OpKind, Phase
from forerun.domain.hardware import Device
from forerun.domain.workload import Workload
from forerun.predictors.analytic.clocks import most_clock_share
from forerun.predictors.analytic.keys import IS_MATRIX, is_weight_gradient

# Of a convolution's multiplications Winograd's F(4x4, 3x3) does 36 of 144 and F(4x4, 5x5) 64 of 400,
# the smallest shares of his algorithms in vendor libraries, which take these two kernels at stride 1
# (Lavin and Gray 2015; cuDNN's WINOGRAD_NONFUSED).
WINOGRAD_SHARE = 36.0 / 144.0
WIDE_WINOGRAD_SHARE = 64.0 / 400.0
# Of a 5 x 5 kernel: pixels, and how many are read for each that is written: fewer where the stride is
# more than 1, more where images lose their edges (3 x 3 kernels that look alike read 25/9).
_WIDE, _LEAST_READ, _MOST_READ = 25.0, 0.95, 2.7


def floor_flops_per_sample(workload: Workload) -> float:
    """Return a lower bound of the FLOPs of one sample, forward and backward.

    Dense convolutions may be done by Winograd's algorithm; everything else as stated.
    """
    columns = workload.graph.columns
    least = np.where(_is_wide(columns), WIDE_WINOGRAD_SHARE, WINOGRAD_SHARE)
    share = np.where(columns.kind == KIND_INDEX[OpKind.CONV], least, 1.0)
    share = np.where(IS_MATRIX[columns.kind], share, 0.0)
    if workload.task == "lora":
        share = np.where(is_weight_gradient(columns), 0.0, share)
    if not workload.detailed:
        share = share * WINOGRAD_SHARE
    return float((columns.flops * columns.repeat * share).sum())


def _is_wide(columns: OpColumns) -> BoolArray:
    """Return which operations may be convolutions with 5 x 5 kernels at stride 1, (operations,)."""
    m, n, k, _ = columns.dims.T
    gradient = is_weight_gradient(columns)
    data = (columns.phase == PHASE_INDEX[Phase.BACKWARD]) & ~gradient
    depth = np.where(gradient, m, np.where(data, n, k))
    pixels = np.where(gradient, k, m)
    source = np.where(
        gradient, columns.reads - k * n, np.where(data, columns.writes, columns.reads)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        read = _WIDE * source / (depth * pixels)
    return np.asarray((depth % _WIDE == 0) & (read > _LEAST_READ) & (read < _MOST_READ))


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
