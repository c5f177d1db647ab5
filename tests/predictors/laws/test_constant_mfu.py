"""The constant-MFU law passes its exam, is the arithmetic it says, and learns a share of peak."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forerun.domain.graph import Graph, Op, OpKind
from forerun.domain.job import Job
from forerun.domain.plan import Plan
from forerun.errors import RequestError
from forerun.predictors.laws.constant_mfu import PRIOR_MFU, WINOGRAD, ConstantMFU
from forerun.tables import Jobs
from forerun.testing import PredictorContract
from forerun.testing.samples import (
    tiny_cluster,
    tiny_device,
    tiny_jobs,
    tiny_runs,
    tiny_workload,
)  # fmt: skip


class TestConstantMFU(PredictorContract):
    def make_predictor(self) -> ConstantMFU:
        return ConstantMFU()


class TestFittedConstantMFU(PredictorContract):
    def make_predictor(self) -> ConstantMFU:
        return ConstantMFU().fit(tiny_runs(mfu=0.5))


def test_the_median_is_flops_over_devices_times_peak_times_mfu() -> None:
    jobs = tiny_jobs((tiny_cluster(2, 4),), (tiny_workload(),), (64,))
    graph = jobs.workloads[0].graph
    by_hand = (graph.forward_flops + graph.backward_flops) * 64 / (8 * 100e12 * PRIOR_MFU)
    assert ConstantMFU().predict(jobs).seconds[:, 1] == pytest.approx(by_hand)


def test_a_step_of_ps_async_is_one_workers_update() -> None:
    """The four workers' updates take together what one step of all takes."""
    plan = Plan(dp=4, micro_batch=16, global_batch=64)
    job = Job(tiny_workload(), tiny_cluster(1, 4), plan)
    alone = replace(job, plan=replace(plan, sync="ps-async"))
    joint, each = ConstantMFU().predict(Jobs.of([job, alone])).seconds[:, 1]
    assert 4 * each == pytest.approx(joint)


def test_a_fit_finds_the_share_of_peak_that_the_runs_had() -> None:
    """24 runs a device against a pull of 4: the fitted share is that of the runs."""
    runs = tiny_runs(mfu=0.11)
    fitted = ConstantMFU().fit(runs)
    ratio = fitted.predict(runs.jobs).seconds[:, 1] / runs.step_seconds()
    assert ratio == pytest.approx(1.0, rel=1e-6)


def test_a_few_wild_runs_do_not_move_the_fit() -> None:
    runs = tiny_runs(mfu=0.3)
    steps = runs.step_seconds().copy()
    steps[::10] *= 1000
    fitted = ConstantMFU().fit(tiny_runs(mfu=0.3, step_time_s=steps))
    assert fitted.mfu == pytest.approx(0.3, rel=0.01)


def test_a_fitted_device_is_narrower_than_one_that_no_run_speaks_of() -> None:
    fitted = ConstantMFU().fit(tiny_runs(mfu=0.3))
    other = tiny_cluster(1, 4, tiny_device("another-gpu"))
    seen = fitted.predict(tiny_jobs((tiny_cluster(1, 4),)))
    unseen = fitted.predict(tiny_jobs((other,)))
    width = [f.seconds[0, 2] / f.seconds[0, 0] for f in (seen, unseen)]
    assert width[0] < width[1]
    assert seen.distance[0] < unseen.distance[0]


def test_each_framework_keeps_its_own_share() -> None:
    fast, slow = tiny_workload(framework="fast"), tiny_workload(framework="slow")
    jobs = tiny_jobs(workloads=(fast, slow))
    share = np.where(jobs.per_workload("framework") == "fast", 0.5, 0.1)
    runs = tiny_runs(jobs, step_time_s=tiny_runs(jobs, mfu=1.0).step_seconds() / share)
    fitted = ConstantMFU().fit(runs)
    assert fitted.groups["fast", "sample-gpu"][0] > 3 * fitted.groups["slow", "sample-gpu"][0]


def test_a_workload_without_flops_is_declined_by_name() -> None:
    graph = Graph((Op("copy", OpKind.COPY, reads=1.0, writes=1.0),))
    jobs = tiny_jobs(workloads=(tiny_workload("silent", graph=graph),))
    assert "silent" in (ConstantMFU().declines(jobs)[0] or "")


def test_a_precision_that_the_device_lacks_is_declined() -> None:
    device = tiny_device("fp64-only", peak_flops={"fp64": 1e12})
    jobs = tiny_jobs((tiny_cluster(1, 1, device),))
    assert "bf16 rate of fp64-only" in (ConstantMFU().declines(jobs)[0] or "")


def test_runs_without_a_step_time_cannot_teach() -> None:
    with pytest.raises(RequestError, match="none has a step time"):
        ConstantMFU().fit(tiny_runs(step_time_s=np.nan))


def test_the_floor_leaves_room_for_fewer_multiplications_in_convolutions() -> None:
    conv = Graph((Op("conv", OpKind.CONV, flops=1e9, params=10.0),))
    product = Graph((Op("product", OpKind.MATMUL, flops=1e9, params=10.0),))
    jobs = tiny_jobs(
        (tiny_cluster(1, 1),), (tiny_workload(graph=conv), tiny_workload(graph=product)), (4,)
    )
    floor = ConstantMFU().predict(jobs).floor_seconds
    of_conv = jobs.workload_index == 0
    assert floor[~of_conv][0] / floor[of_conv][0] == pytest.approx(WINOGRAD)


def test_an_illegal_plan_is_declined_with_its_reason() -> None:
    jobs = tiny_jobs((tiny_cluster(1, 4),))
    reasons = np.full(len(jobs), None, dtype=object)
    reasons[0] = "4 devices are too few; use more"
    from dataclasses import replace

    bad: Jobs = replace(jobs, plan_problem=reasons)
    declined = ConstantMFU().declines(bad)
    assert declined[0] == "4 devices are too few; use more"
    assert declined[1] is None


def test_a_fitted_law_is_told_as_a_formula_with_its_spread() -> None:
    """Per framework and device, per device, and for any other."""
    told = ConstantMFU().fit(tiny_runs()).formulas
    assert all(
        text.startswith("seconds of a step = model FLOPs x global_batch") for text in told.values()
    )
    assert "any other" in told
    assert len(told) >= 3


def test_a_saved_law_answers_as_it_did_and_a_spoilt_one_is_refused() -> None:
    """Its JSON is its own, and no other law's."""
    law, jobs = ConstantMFU().fit(tiny_runs()), tiny_jobs()
    again = ConstantMFU.from_json(law.to_json())
    assert np.array_equal(again.predict(jobs).seconds, law.predict(jobs).seconds, equal_nan=True)
    for old, new in (
        ('"version": 2', '"version": 7'),
        ("constant-mfu", "ernest"),
        ('"mfu"', '"m"'),
    ):
        with pytest.raises(RequestError):
            ConstantMFU.from_json(law.to_json().replace(old, new))
