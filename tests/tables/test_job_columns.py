"""Whole jobs as columns: what a runs table says of a job, and that it is read back as the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forerun.catalog import load_catalog
from forerun.domain.job import Job
from forerun.domain.plan import Plan
from forerun.errors import RequestError
from forerun.tables import Jobs, Table
from forerun.tables.jobs import described, job_columns
from forerun.testing.samples import tiny_jobs
from forerun.workloads.resolve import ZooReader
from forerun.workloads.rows import jobs_from_table


def test_the_columns_name_the_job() -> None:
    jobs = tiny_jobs()
    row = job_columns(jobs).row(5)
    job = jobs[5]
    assert row["workload"] == job.workload.name
    assert row["device"] == "sample-gpu"
    assert row["devices"] == job.cluster.devices
    assert row["params"] == job.workload.params
    assert row["price_usd_per_hour"] == job.cluster.dollars_per_hour
    assert row["sync"] == "allreduce"
    assert row["sequence_parallel"] == "false"
    assert (row["tp"], row["pp"], row["micro_batch"]) == (
        job.plan.tp, job.plan.pp, job.plan.micro_batch,
    )  # fmt: skip


@pytest.mark.parametrize("cluster", ["2x8xa100-sxm-80gb", "1xaws:p4d.24xlarge"])
def test_a_job_of_known_names_is_read_back_from_its_columns(cluster: str) -> None:
    catalog = load_catalog()
    workload = ZooReader().read("resnet50")
    where = catalog.cluster(cluster)
    plan = Plan(dp=where.devices, micro_batch=8, global_batch=16 * where.devices)
    job = Job(workload, where, plan)
    back = jobs_from_table(job_columns(Jobs.of([job])), catalog)
    assert back.problem(0) is None
    assert back[0].plan == plan
    assert back[0].cluster.device == where.device
    assert back[0].cluster.devices == where.devices
    assert back[0].workload.graph == workload.graph


def test_a_row_without_a_workload_has_no_columns() -> None:
    jobs = tiny_jobs()
    index = jobs.workload_index.copy()
    index[3] = -1
    with pytest.raises(RequestError, match="job 3"):
        job_columns(replace(jobs, workload_index=index))


def test_no_jobs_are_no_rows() -> None:
    assert len(job_columns(tiny_jobs().take(np.array([], dtype=int)))) == 0


def test_rows_of_which_no_job_is_whole_stay_as_they_are() -> None:
    """A workload that was traced, on a device that no catalogue knows."""
    table = Table.from_columns({"workload": ["mine"], "device": ["lab-300"], "devices": [2.0]})
    jobs = tiny_jobs().take(np.arange(1))
    jobs = replace(jobs, cluster_index=np.array([-1], dtype=np.int32))
    assert described(table, jobs) is table
