"""A cluster that is rented starts up, and is billed for a minute at least; one's own does neither."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forerun.domain.estimate import START_SECONDS, START_SIGMA, startup_seconds
from forerun.domain.job import Job
from forerun.domain.objective import Objective, Preemption
from forerun.domain.plan import Plan
from forerun.domain.quantiles import Z95, log_sigma
from forerun.domain.workload import Length
from forerun.errors import RequestError
from forerun.predictors.analytic import AnalyticPredictor
from forerun.search.recommending import recommend
from forerun.search.score import estimates_for
from forerun.tables import Jobs
from forerun.testing.samples import tiny_cluster, tiny_device, tiny_workload

WORKLOAD = tiny_workload()


def estimated(nodes: int, steps: float, least: float = 60.0, **lost: float):
    """Return the run of so many steps on a rented cluster of the sample."""
    cluster = replace(tiny_cluster(nodes, 1), rented=least > 0, least_billed_seconds=least)
    jobs = Jobs.of([Job(WORKLOAD, cluster, Plan(dp=nodes, micro_batch=8, global_batch=8 * nodes))])
    forecasts = AnalyticPredictor().predict(jobs)
    return cluster, estimates_for(
        jobs, forecasts, Length("steps", steps), False, Preemption(**lost)
    )[0]


def test_the_wall_and_the_cost_hold_the_start_of_a_rented_cluster() -> None:
    cluster, run = estimated(2, 100)
    _, own = estimated(2, 100, least=0.0)
    assert own.start_seconds == 0
    assert run.start_seconds == pytest.approx(float(startup_seconds(2)))
    assert run.wall_seconds[1] == pytest.approx(own.wall_seconds[1] + run.start_seconds)
    assert run.dollars[1] == pytest.approx(run.wall_seconds[1] / 3600 * cluster.dollars_per_hour)
    assert run.run_seconds == own.run_seconds
    assert run.kilowatt_hours == own.kilowatt_hours
    assert run.goodput == pytest.approx(own.goodput)


def test_the_band_of_the_start_is_that_of_published_times() -> None:
    """Of a run that takes no time the wall is as uncertain as the start; of a long one as its steps."""
    _, short = estimated(1, 1)
    rows = np.array([short.wall_seconds])
    assert short.wall_seconds[1] == pytest.approx(START_SECONDS, rel=1e-3)
    assert log_sigma(rows)[0] == pytest.approx(START_SIGMA, rel=0.02)
    _, long = estimated(1, 1e9)
    _, own = estimated(1, 1e9, least=0.0)
    np.testing.assert_allclose(long.wall_seconds, own.wall_seconds, rtol=1e-3)
    assert np.exp(Z95 * START_SIGMA) > 2


def test_a_stated_start_holds_for_all_clusters_and_is_sure() -> None:
    for least in (0.0, 60.0):
        _, run = estimated(4, 100, least=least, startup_seconds=300.0)
        _, own = estimated(4, 100, least=0.0)
        np.testing.assert_allclose(run.wall_seconds, np.array(own.wall_seconds) + 300.0, rtol=1e-9)
    _, none = estimated(4, 100, startup_seconds=0.0)
    assert none.wall_seconds == own.wall_seconds


def test_more_machines_take_longer_to_start() -> None:
    starts = startup_seconds([1, 8, 64, 512])
    assert (np.diff(starts) > 0).all()
    assert starts[0] == pytest.approx(START_SECONDS)


def test_what_is_billed_at_least_is_paid() -> None:
    cluster, run = estimated(1, 100, least=3600.0, startup_seconds=0.0)
    assert run.wall_seconds[2] < 3600
    assert run.dollars == pytest.approx((cluster.dollars_per_hour,) * 3)
    _, stated = estimated(1, 100, startup_seconds=0.0, least_billed_seconds=7200.0)
    assert stated.dollars[1] == pytest.approx(2 * cluster.dollars_per_hour)


def test_no_front_ends_in_many_devices_for_seconds() -> None:
    """Devices of one's own may be many for a moment; rented ones are not worth their start."""
    slow = tiny_device(peak_flops={"bf16": 2e11, "fp32": 2e11})
    ends = []
    for least in (0.0, 60.0):
        clusters = [
            replace(tiny_cluster(n, 4, slow), rented=least > 0, least_billed_seconds=least)
            for n in (1, 4, 16, 64)
        ]
        front = recommend(
            WORKLOAD, clusters, Objective(aim="time"), Length("samples", 2e5), AnalyticPredictor(),
            global_batches=[256], fixed={"recompute": "none", "zero_stage": 0, "tp": 1, "pp": 1, "cp": 1},
        ).front  # fmt: skip
        ends.append(front[0])
    own, rented = ends
    assert own.job.cluster.nodes == 64
    assert own.estimate.wall_seconds[1] < 60
    assert rented.job.cluster.nodes < 64
    assert rented.estimate.wall_seconds[1] > START_SECONDS


@pytest.mark.parametrize("wrong", [-1.0, float("inf"), float("nan")])
@pytest.mark.parametrize("name", ["startup_seconds", "least_billed_seconds"])
def test_a_start_is_no_less_than_nothing(name: str, wrong: float) -> None:
    with pytest.raises(RequestError, match=name.replace("_", " ")):
        Preemption(**{name: wrong})
