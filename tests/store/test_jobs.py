"""A run that came with its job gives it back whole; one that came as a row says what it lacks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forerun.domain.job import Run
from forerun.errors import RequestError, UnknownNameError
from forerun.store import open_store
from forerun.store.sql_store import SqlStore
from forerun.tables import Table
from forerun.testing.samples import tiny_cluster, tiny_jobs, tiny_workload


def some_runs() -> list[Run]:
    return [Run(job, step_seconds=0.5 + i) for i, job in enumerate(tiny_jobs())]


def test_whole_jobs_come_back_equal(place: str) -> None:
    runs = some_runs()
    with open_store(place) as store:
        store.add(runs)
    with open_store(place) as store:  # nothing is remembered
        assert list(store.runs().jobs) == [run.job for run in runs]


def test_a_workload_is_stored_once_however_often_it_is_made(store: SqlStore) -> None:
    for _ in range(3):
        store.add([Run(job) for job in tiny_jobs((tiny_cluster(),), (tiny_workload(),))])
    found = store.runs()
    assert len(found.jobs.workloads) == len(found.jobs.clusters) == 1
    other = tiny_jobs((tiny_cluster(dollars_per_hour=9.0),), (tiny_workload(),))
    store.add([Run(other[0])])
    assert {c.dollars_per_hour for c in store.runs().jobs.clusters} == {16.0, 9.0}


def test_columns_of_the_job_can_be_asked_for(store: SqlStore) -> None:
    store.add(some_runs())
    found = store.runs(workload="tiny-wide", devices=8, where=["micro_batch<=1"], tp=2)
    assert len(found)
    for job in found.jobs:
        assert (job.workload.name, job.cluster.devices, job.plan.tp) == ("tiny-wide", 8, 2)
        assert job.plan.micro_batch == 1


def test_rows_without_jobs_say_so_among_those_that_have_them(store: SqlStore) -> None:
    store.add_table(Table.from_columns({"workload": ["gpt2"], "tp": [2], "recompute": ["full"]}))
    store.add(some_runs()[:1])
    found = store.runs()
    assert found.jobs.resolved.tolist() == [False, True]
    assert "no whole job" in str(found.jobs.problem(0))
    assert found.jobs.problem(1) is None
    assert found.jobs.plans[0].tp == 2
    assert found.jobs.plans[0].recompute == "full"
    assert found.jobs.labels is not None
    assert found.jobs.labels.texts("workload").tolist() == ["gpt2", "tiny-transformer"]


def test_a_measurement_with_columns_of_its_own_keeps_its_job(store: SqlStore) -> None:
    jobs = tiny_jobs()
    table = Table(
        {"forward_s": np.arange(len(jobs)) / 3, "step_time_s": np.ones(len(jobs))}, len(jobs)
    )
    store.add_table(table, jobs)
    assert list(store.runs().jobs) == list(jobs)
    part = replace(jobs, workload_index=np.where(np.arange(len(jobs)) < 2, -1, jobs.workload_index))
    store.add_table(table, part, campaign="half")
    assert store.runs(campaign="half").jobs.resolved.tolist() == [False] * 2 + [True] * (
        len(jobs) - 2
    )


def test_one_run_is_had_by_its_key_with_its_provenance(store: SqlStore) -> None:
    runs = some_runs()
    keys = store.add(
        runs, campaign="c", started="2026-01-02T03:04:05Z", fingerprint={"cpu": "x", "n": 2}
    )
    found = store.get(keys[3])
    assert found == store.get(keys[3][:10])
    assert found.job == runs[3].job
    assert found.row["step_time_s"] == 3.5
    assert (found.campaign, found.point, found.started) == ("c", "", "2026-01-02T03:04:05Z")
    assert found.fingerprint == {"cpu": "x", "n": 2}
    assert found.added.endswith("Z")
    with pytest.raises(UnknownNameError, match="no such run"):
        store.get("ffffffffff")


def test_the_beginning_of_two_keys_is_neither(store: SqlStore) -> None:
    two = Table.from_columns({"workload": ["a", "b"]})
    store.add_table(two, keys=["campaign/point/1", "campaign/point/2"])
    with pytest.raises(RequestError, match="several keys begin so"):
        store.get("campaign/point/")
    assert store.get("campaign/point/2").row["workload"] == "b"


@pytest.mark.parametrize("broken", [object(), None, "run"])
def test_what_is_no_run_is_told(store: SqlStore, broken: object) -> None:
    with pytest.raises(RequestError, match="it is no Run"):
        store.add([some_runs()[0], broken])  # type: ignore[list-item]
    with pytest.raises(RequestError, match="no such status"):
        store.add([replace(some_runs()[0], status="fine")])
    assert store.count() == 0
