"""ReplayRunner: a measured table as the black box: a job that it holds is answered by its rows."""

from __future__ import annotations

import numpy as np

from forerun.domain.job import Job, Run
from forerun.tables import RUN_COLUMNS, Runs


class ReplayRunner:
    """Answers jobs from runs that were made before; the median where there are repeats."""

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
        for name, (column, unit) in RUN_COLUMNS.items():
            values = ok.numbers(column)
            if np.isfinite(values).any():
                figures[name] = float(np.nanmedian(values)) * unit
        return Run(job, "ok", origin=origin, **figures)
