"""ConstantMFU: a step takes the model's FLOPs at a constant share of the devices' peak rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.domain.forecast import Forecasts, is_none
from forerun.domain.graph import Graph, OpKind
from forerun.domain.hardware import Device
from forerun.domain.quantiles import Z95, spread
from forerun.errors import RequestError
from forerun.predictors.laws.grouped import interval
from forerun.predictors.saved import SavedPredictor
from forerun.tables import Jobs, Runs, sorted_runs
from forerun.tables.jobs import CUT

# Large language models on data-centre GPUs reach 0.3-0.5 (Chowdhery et al. 2022, table 3);
# anything smaller reaches less, so the band is a factor of 3.5 either way.
PRIOR_MFU = 0.35
PRIOR_SIGMA = 0.76
_NO_RUNS = 1.0  # the distance of a device that no run is on
# A group's median is drawn to its parent's as if the parent were this many more runs.
PARENT_RUNS = 4.0
LEAST_SIGMA = 0.05
# Winograd F(2x2, 3x3) does a convolution with 2.25 times fewer multiplications (Lavin and Gray
# 2016, section 4.1), so that much less than the stated FLOPs is physically possible.
WINOGRAD = 2.25


@dataclass(frozen=True)
class ConstantMFU(SavedPredictor):
    """step_seconds = model FLOPs x samples / (devices x peak x MFU).

    Model FLOPs are without recomputation (Chowdhery et al. 2022, appendix B). Fitted, the MFU is the runs'
    median by framework and device, drawn to that of the device and of all where runs are few.

    mfu, sigma: of a group without runs. groups: (framework or "", device id) to (mfu, sigma).
    """

    mfu: float = PRIOR_MFU
    sigma: float = PRIOR_SIGMA
    groups: Mapping[tuple[str, str], tuple[float, float]] = field(default_factory=dict)

    name = "constant-mfu"
    version = 2

    def fit(self, runs: Runs) -> ConstantMFU:
        """Return a predictor with the MFU of the runs.

        Raises:
            RequestError: no run has a step time, FLOPs and a device with a known peak.
        """
        runs = sorted_runs(runs)
        rows = IdealTimes(runs.jobs)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_mfu = np.log(rows.seconds / runs.step_seconds())
        usable = np.isfinite(log_mfu) & is_none(rows.declined)
        if not usable.any():
            raise RequestError(
                f"fitting {self.name} on {len(runs)} runs",
                "none has a step time, FLOPs and a device of known peak rate",
                "give runs with step_time_s or samples_per_s of workloads with a structure",
            )
        values, keys = log_mfu[usable], np.array(rows.groups)[rows.index[usable]]
        middle, sigma = _centre(values, None)
        groups = {}
        for device in dict.fromkeys(keys[:, 1].tolist()):
            here = keys[:, 1] == device
            parent = _centre(values[here], (middle, sigma))
            groups["", device] = parent
            for framework in dict.fromkeys(keys[here, 0].tolist()):
                mine = here & (keys[:, 0] == framework)
                groups[framework, device] = _centre(values[mine], parent)
        # A device without runs may be further off than the devices among themselves.
        found = {key: (float(np.exp(log)), wide) for key, (log, wide) in groups.items()}
        return ConstantMFU(float(np.exp(middle)), max(sigma, PRIOR_SIGMA / 2), found)

    def predict(self, jobs: Jobs) -> Forecasts:
        """Return step seconds; memory and its parts are not answered (NaN)."""
        rows = IdealTimes(jobs)
        blank = Forecasts.blank(len(jobs), self.name)
        known = is_none(rows.declined)
        table = np.array([(self.mfu, self.sigma, _NO_RUNS)] * max(len(rows.groups), 1))
        for row, (framework, device) in zip(table, rows.groups, strict=False):
            for distance, key in ((0.7, ("", device)), (0.5, (framework, device))):
                if key in self.groups:
                    row[:] = (*self.groups[key], distance)
        mfu, sigma, distance = table[np.where(known, rows.index, 0)].T
        floor = np.where(known, rows.least_seconds, np.nan)
        seconds = np.full((len(jobs), 3), np.nan)
        seconds[known] = spread(rows.seconds[known] / mfu[known], sigma[known], floor[known])
        return replace(
            blank, seconds=seconds, floor_seconds=floor, declined=rows.declined,
            distance=np.where(known, distance, np.nan), unmeasured=known & (distance == _NO_RUNS),
        )  # fmt: skip

    @property
    def formulas(self) -> dict[str, str]:
        """The law of each group as a formula with units and the spread of its runs."""
        named = {
            " on ".join(filter(None, key)) + ("" if key[0] else ", all frameworks"): value
            for key, value in self.groups.items()
        }
        return {
            kind: (
                "seconds of a step = model FLOPs x global_batch / (devices x peak FLOP/s x "
                f"{interval(mfu, *mfu * np.exp(sigma * np.array([-Z95, Z95])))}) (perfect scaling; ps-async: of one worker's samples)"
            )
            for kind, (mfu, sigma) in {**named, "any other": (self.mfu, self.sigma)}.items()
        }


def _centre(values: FloatArray, parent: tuple[float, float] | None) -> tuple[float, float]:
    middle = float(np.median(values))
    # 1.4826 x median absolute deviation is the standard deviation of normal values.
    sigma = 1.4826 * float(np.median(np.abs(values - middle)))
    before, wide = parent if parent is not None else (middle, PRIOR_SIGMA)
    weight = len(values) / (len(values) + PARENT_RUNS)
    return (
        weight * middle + (1 - weight) * before,
        max(LEAST_SIGMA, weight * sigma + (1 - weight) * wide),
    )


class IdealTimes:
    """Seconds of n jobs at the peak rate, and the least that is possible, (n,), NaN where not known.

    groups: framework and device id of each distinct pair. index: the pair of each job, (n,).
    """

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs
        pairs, index = np.unique(
            np.stack([jobs.workload_index, jobs.cluster_index]), axis=1, return_inverse=True
        )
        self.index: IntArray = index.reshape(-1)
        self.groups = [("", "")] * pairs.shape[1]
        per_sample = np.full((pairs.shape[1] + 1, 2), np.nan)
        for i, (w, c) in enumerate(pairs.T):
            if w >= 0 and c >= 0:
                workload, device = jobs.workloads[w], jobs.clusters[c].device
                self.groups[i] = (workload.framework, device.id)
                per_sample[i] = _sample_seconds(workload.graph, device, workload.precision)
        scale = jobs.plans.step_samples / jobs.per_cluster("devices", 1)
        self.seconds, self.least_seconds = per_sample[self.index].T * scale

    @cached_property
    def declined(self) -> NDArray[np.object_]:
        """Why a job has no ideal time, or None, (n,)."""
        jobs, reasons = self.jobs, np.full(len(self.jobs), None, dtype=object)
        reasons[jobs.plans.partitions > 1] = CUT
        for i in np.flatnonzero(~jobs.resolved | np.isnan(self.seconds)).tolist():
            w, c = int(jobs.workload_index[i]), int(jobs.cluster_index[i])
            if problem := jobs.problem(i):
                reasons[i] = problem
            elif w < 0 or c < 0:
                reasons[i] = "the workload or the cluster is not known"
            elif _flops(jobs.workloads[w].graph) <= 0:
                name = jobs.workloads[w].name
                reasons[i] = f"{name} has no FLOPs that are known; give its structure, or gmacs"
            else:
                rate = f"{jobs.workloads[w].precision} rate of {jobs.clusters[c].device.id}"
                reasons[i] = f"the {rate} is not known"
        return reasons


def _flops(graph: Graph) -> float:
    return graph.forward_flops + graph.backward_flops


def _sample_seconds(graph: Graph, device: Device, precision: str) -> tuple[float, float]:
    """Return seconds of one sample at the peak rate, and the least that is possible; NaN if not known."""
    try:
        peak = device.flops(precision)
    except RequestError:
        return np.nan, np.nan
    flops = _flops(graph)
    if not (peak > 0 and flops > 0):
        return np.nan, np.nan
    # fp32 products run in tf32 where the device has it (PyTorch's default for convolutions since 1.7).
    fastest = max(peak, device.peak_flops.get("tf32", 0.0)) if precision == "fp32" else peak
    least = flops - graph.total("flops", kind=OpKind.CONV) * (1 - 1 / WINOGRAD)
    return flops / peak, least / fastest
