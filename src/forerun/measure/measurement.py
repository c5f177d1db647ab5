"""Measurement: what a run told: its step and the parts of it, memory, traffic, and how it ended."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from forerun.domain.job import Job
from forerun.domain.run import STATUSES, Run
from forerun.errors import RequestError
from forerun.units import GIGA

PARTS = ("input", "forward", "backward", "sync", "optimizer")

# Field of a Measurement -> (column of the runs table, units of the field in one of the column).
_COLUMNS: Mapping[str, tuple[str, float]] = {
    "step_seconds": ("step_time_s", 1.0),
    "step_mean_seconds": ("step_mean_s", 1.0),
    "step_std_seconds": ("step_std_s", 1.0),
    "steps": ("measured_steps", 1.0),
    "warmup_steps": ("warmup_steps", 1.0),
    "samples_per_second": ("samples_per_s", 1.0),
    "epoch_seconds": ("epoch_time_s", 1.0),
    "peak_bytes": ("memory_gb", GIGA),
    "sync_bytes": ("comm_gb", GIGA),
    "comm_seconds": ("comm_time_s", 1.0),
    "grad_sqr": ("grad_sqr", 1.0),
    "grad_var": ("grad_var", 1.0),
    "cpu_share": ("cpu_share", 1.0),
    "gpu_share": ("gpu_share", 1.0),
    "network_bytes_per_second": ("network_bytes_per_s", 1.0),
    "seconds": ("run_time_s", 1.0),
}
_HANGS = "no step for "  # how a reason begins, where a run was ended since no step came
# Unbiased estimates, which noise may carry below zero: without those their means were too high.
_SIGNED = ("grad_sqr", "grad_var")
_PART_COLUMNS = {part: f"{part}_time_s" for part in PARTS}


@dataclass(frozen=True)
class Measurement:
    """A fact, before it is told which job it belongs to. What was not measured is None.

    Attributes:
        status: ok, oom, failed, or timeout (then times are lower bounds).
        reason: why it is not ok, or what to know of one that is.
        step_seconds: median of one optimizer step, over the counted steps; of the workers' steps
            the slowest's, which for synchronous training are the same.
        step_mean_seconds, step_std_seconds: mean and standard deviation of the same steps.
        interval: 95 % interval of `step_seconds`, (low, high).
        steps: counted steps.
        warmup_steps: steps before them that were left out: as many as were asked, and those after
            that were slower than what followed.
        parts: seconds of a step by part (`PARTS`; sync is exposed communication), mean over
            steps and workers; a part that could not be told apart is missing.
        samples_per_second: of all workers.
        epoch_seconds: one pass over the dataset, the loader's start included.
        peak_bytes: of the most-loaded device; on CPUs the resident memory above that of a worker
            which has loaded its libraries.
        sync_bytes: bytes that a worker hands to collectives in a step.
        comm_seconds: of a step, time in which a collective was under way, hidden or not. This and
            sync_bytes are means over the steps that were looked at: all, where a step takes 40 ms
            for each of its buckets of gradients, else a sample, a twentieth of them at the least. The
            part sync is the share of backward that it was in these.
        grad_sqr, grad_var: squared norm of the true gradient and variance of a sample's gradient,
            unbiased estimates (Pollux), either of which may be below zero; None on one worker,
            which has no second gradient of the same weights, on made-up data, and where `reason`
            says why. Means over a sample of the steps, a tenth of them at the most.
        cpu_share: cores that a worker kept busy, mean over workers.
        gpu_share: share of the time in which its GPU was busy, mean over workers.
        network_bytes_per_second: bytes that a host sent, the busiest host's.
        fingerprint: software and hardware, by name.
        started: UTC, ISO 8601.
        seconds: the whole run, start of its processes included.
    """

    status: str = "ok"
    reason: str = ""
    step_seconds: float | None = None
    step_mean_seconds: float | None = None
    step_std_seconds: float | None = None
    interval: tuple[float, float] | None = None
    steps: int = 0
    warmup_steps: int = 0
    parts: Mapping[str, float] = field(default_factory=dict)
    samples_per_second: float | None = None
    epoch_seconds: float | None = None
    peak_bytes: float | None = None
    sync_bytes: float | None = None
    comm_seconds: float | None = None
    grad_sqr: float | None = None
    grad_var: float | None = None
    cpu_share: float | None = None
    gpu_share: float | None = None
    network_bytes_per_second: float | None = None
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    started: str = ""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise RequestError(
                f"a measurement with status {self.status!r}", "no such status",
                f"use one of {', '.join(STATUSES)}",
            )  # fmt: skip
        unknown = sorted(set(self.parts) - set(PARTS))
        if unknown:
            raise RequestError(
                f"a measurement with parts {', '.join(unknown)}", "no such part of a step",
                f"use {', '.join(PARTS)}",
            )  # fmt: skip

    @property
    def hangs(self) -> bool:
        """Whether it was ended since no step came for its limit of that."""
        return self.status == "failed" and self.reason.startswith(_HANGS)

    def row(self) -> dict[str, Any]:
        """Return its columns of the runs table, without those that were not measured.

        `std_s` is left to whoever joins repeats; `step_std_s` is the spread of single steps.
        """
        cells: dict[str, Any] = {"status": self.status}
        for name, (column, unit) in _COLUMNS.items():
            value = getattr(self, name)
            if value is not None and math.isfinite(value) and (value > 0 or name in _SIGNED):
                cells[column] = value / unit
        for part, seconds in self.parts.items():
            cells[_PART_COLUMNS[part]] = seconds
        if self.interval is not None:
            cells["step_low_s"], cells["step_high_s"] = self.interval
        texts = {"note": self.reason, "started": self.started}
        if self.fingerprint:
            texts["fingerprint"] = json.dumps(self.fingerprint, sort_keys=True)
        return {**cells, "repeats": 1, **{name: text for name, text in texts.items() if text}}

    def run(self, job: Job, origin: str) -> Run:
        """Return the run of a job that this measured."""

        def above_zero(value: float | None) -> float | None:
            return value if value is not None and math.isfinite(value) and value > 0 else None

        return Run(
            job, self.status,
            step_seconds=above_zero(self.step_seconds),
            sync_seconds=above_zero(self.parts.get("sync")),
            epoch_seconds=above_zero(self.epoch_seconds),
            samples_per_second=above_zero(self.samples_per_second),
            peak_bytes=above_zero(self.peak_bytes),
            origin=f"{origin}: {self.reason}" if self.reason else origin,
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data; what is not a finite number is None."""
        data = asdict(self)
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in data.items()
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Measurement:
        """Return the measurement of `to_json`; names that it does not know are left aside."""
        known = {f.name for f in fields(Measurement)}
        given = {name: value for name, value in data.items() if name in known}
        if given.get("interval") is not None:
            low, high = given["interval"]
            given["interval"] = (low, high)
        return Measurement(**given)
