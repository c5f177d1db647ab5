"""Jobs and Runs: interned, checked and taken row by row; a step's time is derived where it can be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.domain.job import Job, job_problem
from forerun.domain.plan import Plan, PlanColumns
from forerun.errors import RequestError
from forerun.tables import Jobs, Runs, Table
from forerun.testing.samples import tiny_cluster, tiny_jobs, tiny_workload

MODELS = (tiny_workload("a"), tiny_workload("b", layers=6))
CLUSTERS = (tiny_cluster(1, 4), tiny_cluster(2, 4))
PICKS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), max_size=8)


def job(model: int, cluster: int) -> Job:
    """Return a legal job of the samples."""
    devices = CLUSTERS[cluster].devices
    return Job(MODELS[model], CLUSTERS[cluster], Plan(dp=devices, global_batch=64))


@given(PICKS)
def test_jobs_survive_the_journey_through_columns(picks: list[tuple[int, int]]) -> None:
    wanted = [job(*pick) for pick in picks]
    jobs = Jobs.of(wanted)
    assert list(jobs) == wanted
    assert len(jobs) == len(wanted)
    assert len(jobs.workloads) == len({model for model, _ in picks})
    assert len(jobs.clusters) == len({cluster for _, cluster in picks})
    assert jobs.resolved.all()


@given(PICKS, st.data())
def test_taking_by_mask_or_position_takes_those_jobs(
    picks: list[tuple[int, int]], data: st.DataObject
) -> None:
    keep = data.draw(st.lists(st.booleans(), min_size=len(picks), max_size=len(picks)))
    jobs = Jobs.of([job(*pick) for pick in picks])
    wanted = [job(*pick) for pick, kept in zip(picks, keep, strict=True) if kept]
    for index in (np.array(keep, dtype=bool), np.flatnonzero(keep)):
        assert list(jobs.take(index)) == wanted


def test_columns_of_workload_and_cluster_are_gathered_by_row() -> None:
    jobs = Jobs.of([job(0, 1), job(1, 0), job(0, 0)])
    assert jobs.per_workload("name").tolist() == ["a", "b", "a"]
    assert jobs.per_workload("shape.layers").tolist() == [4, 6, 4]
    assert jobs.per_cluster("devices").tolist() == [8, 4, 4]
    assert jobs.per_cluster("device.watts").tolist() == [300.0] * 3
    unpriced = replace(CLUSTERS[0], dollars_per_hour=None)
    alone = Jobs.grid(MODELS[0], unpriced, PlanColumns.of([Plan(dp=4, global_batch=4)]))
    assert np.isnan(alone.per_cluster("dollars_per_hour")[0])


def test_checking_many_jobs_says_what_checking_one_says() -> None:
    plans = [Plan(dp=d, tp=t, pp=p, global_batch=g)
             for d in (1, 2, 4) for t in (1, 2, 4) for p in (1, 2, 8) for g in (1, 64)]  # fmt: skip
    jobs = Jobs.grid(MODELS[0], CLUSTERS[0], PlanColumns.of(plans)).checked()
    wanted = [job_problem(MODELS[0], CLUSTERS[0], plan) for plan in plans]
    assert jobs.plan_problem is not None
    assert jobs.plan_problem.tolist() == wanted
    assert jobs.resolved.tolist() == [problem is None for problem in wanted]
    assert any(wanted)
    assert not all(wanted)


def unresolved() -> Jobs:
    """Return four rows: sound, without workload, without cluster, and with a known bad plan."""
    reasons = np.full(4, None, dtype=object)

    def at(i: int, text: str) -> np.ndarray[Any, Any]:
        out = reasons.copy()
        out[i] = text
        return out

    return Jobs(
        MODELS[:1], CLUSTERS[:1], np.array([0, -1, 0, 0], np.int32),
        np.array([0, 0, -1, 0], np.int32), PlanColumns.build(4, dp=[4, 1, 1, 3], global_batch=64),
        workload_problem=at(1, "no such model"), cluster_problem=at(2, "no such device"),
        plan_problem=at(3, "said before"),
    )  # fmt: skip


def test_each_aspect_of_a_row_keeps_its_own_reason() -> None:
    jobs = unresolved().checked()
    assert [jobs.problem(i) for i in range(4)] == [
        None, "no such model", "no such device", "said before",
    ]  # fmt: skip
    assert jobs.resolved.tolist() == [True, False, False, False]
    assert jobs[0].plan.dp == 4
    with pytest.raises(RequestError, match="job 1: no such model; correct the row"):
        jobs[1]
    part = jobs.take(np.array([2, 0]))
    assert [part.problem(i) for i in range(2)] == ["no such device", None]


def test_checking_leaves_the_jobs_it_was_asked_of_alone() -> None:
    jobs = unresolved()
    jobs.plan_problem[3] = None  # type: ignore[index]
    checked = jobs.checked()
    assert jobs.plan_problem is not None
    assert jobs.plan_problem[3] is None
    assert "cluster has 4" in str(checked.problem(3))


def test_no_jobs_are_checked_without_complaint() -> None:
    assert len(Jobs.of([]).checked()) == 0


def runs(**columns: list[Any]) -> Runs:
    """Return runs with the given table columns."""
    n = len(next(iter(columns.values())))
    jobs = Jobs.of([job(0, 0)] * n)
    return Runs(jobs, Table.from_columns(columns))


@pytest.mark.parametrize(
    ("row", "seconds"),
    [
        ({"step_time_s": 0.5}, 0.5),
        ({"step_time_s": 0.5, "global_batch": 64, "samples_per_s": 1}, 0.5),
        ({"global_batch": 64, "samples_per_s": 128}, 0.5),
        ({"global_batch": 64, "seq_len": 100, "tokens_per_s": 12800}, 0.5),
        ({"global_batch": 64, "samples_per_s": 128, "seq_len": 9, "tokens_per_s": 9}, 0.5),
        ({"step_time_s": 0.5, "status": "ok"}, 0.5),
        ({"step_time_s": 0.5, "status": " OK "}, 0.5),
        ({"step_time_s": 0.5, "status": "oom"}, None),
        ({"step_time_s": 0.5, "status": "timeout"}, None),
        ({"samples_per_s": 128}, None),
        ({"global_batch": 64}, None),
        ({"global_batch": 64, "tokens_per_s": 128}, None),
        ({"global_batch": 64, "samples_per_s": 0}, None),
        ({"global_batch": 0, "samples_per_s": 0}, None),
        ({"step_time_s": 0}, None),
        ({"step_time_s": -1}, None),
        ({"step_time_s": "inf"}, None),
    ],
)
def test_a_step_is_measured_or_derived_or_not_known(
    row: dict[str, Any], seconds: float | None
) -> None:
    (found,) = runs(**{name: [value] for name, value in row.items()}).step_seconds()
    assert np.isnan(found) if seconds is None else found == seconds


def test_rows_are_derived_one_by_one() -> None:
    found = runs(
        step_time_s=[0.5, None, None, 0.5], global_batch=[1, 64, None, 64],
        samples_per_s=[None, 64, 64, None], status=["", "ok", "ok", "failed"],
    ).step_seconds()  # fmt: skip
    np.testing.assert_array_equal(found, [0.5, 1.0, np.nan, np.nan])


def test_a_blank_status_is_ok_and_case_does_not_matter() -> None:
    asked = runs(status=["", "ok", "OOM", " Failed"], nodes=[1, 1, 1, 1])
    assert asked.status.tolist() == ["ok", "ok", "oom", "failed"]
    assert asked.take(np.array([2])).status.tolist() == ["oom"]
    assert asked.table.texts("status").tolist() == ["", "ok", "OOM", " Failed"]


def test_measured_columns_are_nan_where_nothing_was_measured() -> None:
    asked = runs(memory_gb=[3, None])
    np.testing.assert_array_equal(asked.table.numbers("memory_gb"), [3, np.nan])
    assert np.isnan(asked.table.numbers("epoch_time_s")).all()


def test_deriving_does_not_change_the_table() -> None:
    asked = runs(step_time_s=[None], global_batch=[64], samples_per_s=[128])
    asked.step_seconds()
    assert np.isnan(asked.table.numbers("step_time_s")[0])


def test_every_sample_job_is_legal() -> None:
    jobs = tiny_jobs()
    assert jobs.checked().resolved.all()


def test_a_rate_of_operations_tells_the_step() -> None:
    """TFLOP/s a device count the model's FLOPs, and the second forward of full recomputation."""
    model = MODELS[0]
    flops = model.graph.forward_flops + model.graph.backward_flops
    plans = [Plan(dp=4, global_batch=64, recompute=how) for how in ("none", "full")]
    asked = Jobs.of([Job(model, CLUSTERS[0], plan) for plan in plans])
    cells = {"tflops_per_device": 10.0, "devices": 4, "global_batch": 64, "status": "ok"}
    runs = Runs(asked, Table.from_rows([cells, cells]))
    once, again = runs.step_seconds()
    assert once == pytest.approx(flops * 64 / 4e13)
    assert again == pytest.approx((flops + model.graph.forward_flops) * 64 / 4e13)
