"""Physics: figures that no machine could have: faster than its peak, or more than its memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.domain.forecast import Forecasts
from forerun.tables.jobs import Jobs, Runs
from forerun.tables.suspects.flags import Kind, Raised, Texts, numbers_text

# Clocks and data sheets are rounded: so much less than the bound is no contradiction.
SLACK = 0.02
GIB_OVER_GB = 2**30 / 1e9
_WIDE = ("fp64", "fp32", "tf32")


def floor_flags(runs: Runs, forecasts: Forecasts, column: Texts) -> Iterator[Raised]:
    """Yield the flags of steps below their floor.

    Args:
        runs, forecasts: n rows each; figures that are already left out are blank.
        column: (n,) which column tells each row's step.
    """
    seconds, floor = runs.step_seconds(), forecasts.floor_seconds
    with np.errstate(invalid="ignore"):
        below = (seconds < floor * (1.0 - SLACK)) & forecasts.answered
    row = np.flatnonzero(below)
    if not len(row):
        return
    least = numbers_text(floor[row], "s or more: the device's peak rate allows no less")
    yield Raised(
        Kind.FLOOR, row, column[row], _as_step(seconds[row], column[row]), least,
        _floor_advice(runs, seconds, floor, row), void=True, out_step=True,
    )  # fmt: skip


def _as_step(seconds: FloatArray, column: Texts) -> Texts:
    texts = numbers_text(seconds, "s a step")
    return np.where(column == "step_time_s", numbers_text(seconds, "s"), texts)


def _floor_advice(
    runs: Runs, seconds: FloatArray, floor: FloatArray, row: NDArray[np.int64]
) -> Texts:
    """Return what to do, (m,): where 16-bit arithmetic could be so fast, that is said."""
    jobs = runs.jobs
    faster = np.ones(len(row))
    workload, cluster = jobs.workload_index[row], jobs.cluster_index[row]
    precision = np.array([w.precision for w in jobs.workloads])[workload]
    for name in _WIDE:
        gain = np.array([_gain(c.device.peak_flops, name) for c in jobs.clusters])[cluster]
        faster = np.where(precision == name, gain, faster)
    possible = seconds[row] >= floor[row] / faster * (1.0 - SLACK)
    check = "check the device, the batch and the figure"
    texts = [
        f"{p} is taken: fill in precision if it was 16-bit" if yes else check
        for p, yes in zip(precision.tolist(), possible.tolist(), strict=True)
    ]
    return np.array(texts, dtype=object)


def _gain(peak_flops: object, name: str) -> float:
    rates = dict(peak_flops) if isinstance(peak_flops, dict) else {}
    wide = max(rates.get(name, 0.0), rates.get("tf32", 0.0) if name == "fp32" else 0.0)
    return max(rates.get("fp16", 0.0), rates.get("bf16", 0.0)) / wide if wide else 1.0


def most_memory_bytes(jobs: Jobs) -> FloatArray:
    """Return how many bytes no peak of a device can pass, (n,): its memory; NaN where not stated.

    Data sheets say GB where cards hold GiB, so that a peak may well lie above the stated figure.
    """
    stated = np.array([c.device.memory_bytes or np.nan for c in jobs.clusters] + [np.nan])
    return np.asarray(stated[jobs.cluster_index] * GIB_OVER_GB)


def capacity_flags(runs: Runs) -> Iterator[Raised]:
    """Yield the flags of peaks beyond the device's memory."""
    found, limit = runs.table.numbers("memory_gb"), most_memory_bytes(runs.jobs) / 1e9
    with np.errstate(invalid="ignore"):
        row = np.flatnonzero(found > limit)
    if len(row):
        yield Raised(
            Kind.CAPACITY, row, "memory_gb", numbers_text(found[row], "GB"),
            numbers_text(limit[row], "GB at most: the device has no more"),
            "give the peak of one device, in 1e9 bytes", void=True, out_memory=True,
        )  # fmt: skip


def floor_words(log_implied: FloatArray, log_floor: FloatArray) -> Texts:
    """Return what adds to an expected value that a step below its floor cannot be, (m,); else ""."""
    least = np.where(log_implied < log_floor, np.exp(log_floor), 0.0)
    texts = [
        f" (no step under {s:.3g} s is possible at the device's peak)" if s else "" for s in least
    ]
    return np.array(texts, dtype=object)
