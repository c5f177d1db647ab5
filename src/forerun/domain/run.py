"""Run: a job carried out, with what was measured and where the figure comes from."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.domain.job import Job

STATUSES = ("ok", "oom", "failed", "timeout")


@dataclass(frozen=True)
class Run:
    """A fact. A field that was not measured is None.

    Attributes:
        job: what was run.
        status: ok, oom (out of memory), failed, or timeout (times are lower bounds).
        step_seconds, sync_seconds, epoch_seconds, time_to_train_seconds: measured times.
        samples_per_second: of the whole cluster.
        peak_bytes: of the most-loaded device.
        samples_to_target: samples seen until the target metric.
        origin: source and reference of the figure.
    """

    job: Job
    status: str = "ok"
    step_seconds: float | None = None
    sync_seconds: float | None = None
    epoch_seconds: float | None = None
    time_to_train_seconds: float | None = None
    samples_per_second: float | None = None
    peak_bytes: float | None = None
    samples_to_target: float | None = None
    origin: str = ""
