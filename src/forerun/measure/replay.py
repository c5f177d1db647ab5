"""ReplayRunner: a measured table as the black box: a job that it holds is answered by its rows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from forerun.domain.job import Job, Run
from forerun.tables import Runs
from forerun.units import GIGA

# Figure of a run -> (column of the runs table, units of the figure in one of the column).
_FIGURES: Mapping[str, tuple[str, float]] = {
    "step_seconds": ("step_time_s", 1.0), "sync_seconds": ("sync_time_s", 1.0),
    "epoch_seconds": ("epoch_time_s", 1.0), "time_to_train_seconds": ("time_to_train_s", 1.0),
    "samples_per_second": ("samples_per_s", 1.0), "peak_bytes": ("memory_gb", GIGA),
    "samples_to_target": ("samples_to_target", 1.0),
}  # fmt: skip


class ReplayRunner:
    """Answers jobs from runs that were made before; the median where there are repeats.

    Args:
        runs: with their jobs resolved.
    """

    name = "replay"

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    def run(self, job: Job) -> Run:
        """Return the run of a job; one that the table does not hold failed, with the reason."""
        jobs = self._runs.jobs
        workloads = [i for i, workload in enumerate(jobs.workloads) if workload == job.workload]
        clusters = [i for i, cluster in enumerate(jobs.clusters) if cluster == job.cluster]
        likely = np.isin(jobs.workload_index, workloads) & np.isin(jobs.cluster_index, clusters)
        rows = [int(i) for i in np.flatnonzero(likely) if jobs.plans[int(i)] == job.plan]
        if not rows:
            return Run(job, "failed", origin="replay: the table holds no run of this job")
        table = self._runs.table.take(np.array(rows))
        status = [text.strip().lower() or "ok" for text in table.texts("status")]
        sources = dict.fromkeys(text for text in table.texts("source") if text)
        origin = f"replay: {'; '.join(sources) or 'measured runs'}"
        if "ok" not in status:
            return Run(job, status[0], origin=origin)
        ok = table.take(np.array([one == "ok" for one in status]))
        figures = {}
        for name, (column, unit) in _FIGURES.items():
            values = ok.numbers(column)
            if np.isfinite(values).any():
                figures[name] = float(np.nanmedian(values)) * unit
        return Run(job, "ok", origin=origin, **figures)
