"""Throughput and lost time: numbers known by hand and from reports, and what must hold of all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import forerun
from forerun.domain.estimate import (
    CHECKPOINT_SECONDS,
    FAILURE_SIGMA,
    INTERRUPTIONS,
    REPORTED_WALLS,
    SUSTAINED_SIGMA,
    checkpoint_interval,
    failure_seconds,
    lost_time_factor,
    lost_time_sigma,
    sustained_factor,
)
from forerun.domain.job import Job
from forerun.domain.objective import Preemption
from forerun.domain.plan import Plan
from forerun.domain.workload import Length
from forerun.errors import RequestError
from forerun.predictors.analytic import AnalyticPredictor
from forerun.search.score import estimates_for, throughput
from forerun.tables import Jobs
from forerun.testing.samples import tiny_cluster, tiny_jobs, tiny_workload

DAY = 86400.0


def figures(job: Job, step_seconds: float, steps: float = 1000.0, dollars: float = 100.0) -> Any:
    """Return the throughput of one job whose steps take so long, without lost time."""
    step, count, wall = np.array([[step_seconds], [steps], [steps * step_seconds]])
    found = throughput(Jobs.of([job]), step, count, wall, np.array([dollars]))
    return {name: float(column[0]) for name, column in found.items()}


def factor(seconds: float, devices: int, spot: bool = False, goodput: float | None = None) -> float:
    """Return wall time over the steps' time of one run."""
    run, index = np.array([seconds]), np.array([0])
    return float(lost_time_factor(run, [devices], index, np.array([spot]), goodput)[0])


def job_of(name: str, cluster: str, plan: Plan, **changes: Any) -> Job:
    """Return a job of the zoo and the catalogue."""
    advisor = forerun.Advisor()
    return Job(advisor.workload(name, **changes), advisor.cluster(cluster), plan)


LLAMA = Plan(dp=128, tp=8, pp=16, micro_batch=1, global_batch=2048)


def test_the_largest_llama_3_has_the_published_mfu() -> None:
    """16,384 H100 at 16M tokens a step: 400 TFLOP/s a GPU and 41 % (Llama 3, table 4)."""
    job = job_of("llama3.1-405b", "2048x8xh100-sxm-80gb", LLAMA)
    published = 6 * 405e9 * 2048 * 8192 / (16384 * 400e12)  # seconds of a step, at 6N
    found = figures(job, published)
    assert found["mfu"] == pytest.approx(0.41, abs=0.015)
    assert found["flops_per_second_per_device"] == pytest.approx(400e12, rel=0.04)
    assert found["hfu"] == found["mfu"]
    again = figures(Job(job.workload, job.cluster, replace(LLAMA, recompute="full")), published)
    assert again["mfu"] == found["mfu"]
    assert again["hfu"] == pytest.approx(found["mfu"] * 4 / 3, rel=0.01)  # forward once more


def test_every_figure_is_the_arithmetic_of_its_name() -> None:
    workload, cluster = tiny_workload(hidden=256), tiny_cluster(2, 4)
    found = figures(Job(workload, cluster, Plan(dp=8, global_batch=64)), 0.5)
    assert found["samples_per_second"] == 128.0
    assert found["samples_per_second_per_device"] == 16.0
    assert found["tokens_per_second_per_device"] == 16.0 * 128
    assert found["device_hours"] == pytest.approx(8 * 500 / 3600)
    assert found["tokens_per_dollar"] == pytest.approx(64 * 1000 * 128 / 100.0)
    # Four layers of 12 h^2 and a head, each of 2 FLOPs a weight and token, three times.
    flops = 3 * 2 * 128 * (4 * 12 * 256**2 + 256 * 1000)
    assert found["flops_per_second_per_device"] == pytest.approx(16.0 * flops)
    peak = cluster.device.flops(workload.precision)
    assert found["mfu"] == pytest.approx(16.0 * flops / peak)


def test_convolutions_in_fp32_are_held_against_the_tf32_rate_that_they_run_at() -> None:
    plan = Plan(dp=8, micro_batch=32, global_batch=256)
    peaks = {
        name: figures(job_of(name, "1x8xa100-sxm-80gb", plan, precision="fp32"), 1.0)
        for name in ("resnet50", "bert-base")
    }
    assert 19.5e12 <= peaks["bert-base"]["peak_flops_per_second"] < 25e12
    assert 140e12 < peaks["resnet50"]["peak_flops_per_second"] <= 156e12


def test_what_lora_freezes_has_no_gradient_to_count() -> None:
    plan = Plan(dp=8, micro_batch=1, global_batch=8, zero_stage=3)
    whole, lora = (
        figures(job_of("llama3-8b", "1x8xh100-sxm-80gb", plan, task=task, seq_len=512), 1.0)["mfu"]
        for task in ("pretrain", "lora")
    )
    assert lora == pytest.approx(whole * 2 / 3, rel=0.02)


def test_shares_are_shares_in_every_forecast() -> None:
    """Without convolutions MFU is at most 1, HFU no less, goodput in (0, 1], the wall no shorter than the steps."""
    jobs = tiny_jobs()
    jobs = replace(
        jobs, plans=replace(jobs.plans, recompute=np.arange(len(jobs), dtype=np.int32) % 3)
    )
    found = AnalyticPredictor().predict(jobs)
    for spot in (False, True):
        runs = estimates_for(jobs, found, Length("steps", 1e6), spot)
        wall = runs.wall_seconds[:, 1]
        rates = throughput(jobs, found.seconds[:, 1], runs.steps, wall, runs.dollars[:, 1])
        assert ((rates["mfu"] > 0) & (rates["mfu"] <= rates["hfu"]) & (rates["hfu"] <= 1)).all()
        assert (rates["hfu"] > rates["mfu"]).any()
        assert (runs.wall_seconds >= runs.run_seconds).all()
        assert all(0 < runs[i].goodput <= 1 for i in range(len(runs)))


def test_published_long_runs_lose_what_they_say() -> None:
    """Llama 3 405B: 54 days on 16,384 GPUs, more than 90 % of the time effective, a failure in 3.1 h."""
    assert 1 / factor(50 * DAY, 16384) == pytest.approx(0.91, abs=0.02)
    assert 1.5 * 3600 < failure_seconds(16384) < 3.1 * 3600
    assert 1 / factor(30 * DAY, 1024) > 0.96
    rates = [count / (nodes * days) for count, nodes, days in INTERRUPTIONS.values()]
    assert min(rates) < DAY / failure_seconds(8) < max(rates)


def test_the_interval_between_checkpoints_is_young_s() -> None:
    mttf = failure_seconds(1024)
    assert checkpoint_interval(1024) == pytest.approx((2 * CHECKPOINT_SECONDS * mttf) ** 0.5)


def test_a_run_of_minutes_on_one_node_loses_nothing_worth_a_word() -> None:
    assert factor(600.0, 8) == pytest.approx(1.0, abs=1e-4)


@given(st.floats(1.0, 1e8), st.floats(1.0, 4.0), st.integers(1, 2**17), st.booleans())
def test_longer_runs_and_more_devices_lose_no_less(
    seconds: float, longer: float, devices: int, spot: bool
) -> None:
    here = factor(seconds, devices, spot)
    assert here >= 1.0
    assert factor(seconds * longer, devices, spot) >= here * (1 - 1e-9)
    assert factor(seconds, 2 * devices, spot) >= here * (1 - 1e-9)


@pytest.mark.parametrize("devices", [8, 1024, 131072])
def test_the_first_checkpoint_makes_no_jump(devices: int) -> None:
    at = float(checkpoint_interval(devices))
    assert factor(at * 1.0001, devices) == pytest.approx(factor(at * 0.9999, devices), rel=1e-4)


@given(st.floats(0.01, 1.0), st.floats(1.0, 1e8))
def test_a_stated_goodput_is_the_share_of_steps(share: float, seconds: float) -> None:
    assert factor(seconds, 4096, goodput=share) == pytest.approx(1 / share)


@pytest.mark.parametrize("share", [0.0, -0.5, 1.01, 0.001, float("nan")])
def test_a_goodput_that_cannot_be_is_refused(share: float) -> None:
    with pytest.raises(RequestError, match="goodput"):
        Preemption(goodput=share)


def test_a_law_of_whole_runs_has_their_losses_in_it() -> None:
    jobs = tiny_jobs().take(np.arange(3))
    found = replace(AnalyticPredictor().predict(jobs), quantity="run")
    runs = estimates_for(jobs, found, Length("steps", 1e6), False)
    np.testing.assert_array_equal(runs.wall_seconds, runs.run_seconds)


def test_cost_and_deadline_follow_the_wall() -> None:
    """The same job at half the goodput costs twice as much, and its steps take as long."""
    ask = {"plan": "dp=8,micro_batch=32", "length": Length("epochs", 90), "price": 10.0}
    whole, half = (
        forerun.predict("resnet50", "1x8xa100-sxm-80gb", goodput=g, deadline="6h", **ask)
        for g in (1.0, 0.5)
    )
    assert half.estimate.run_seconds == whole.estimate.run_seconds
    assert half.estimate.dollars[1] == pytest.approx(2 * whole.estimate.dollars[1])
    assert half.chance["deadline"] < whole.chance["deadline"]
    assert half.throughput["samples_per_dollar"] == pytest.approx(
        whole.throughput["samples_per_dollar"] / 2
    )
    assert half.throughput["mfu"] == whole.throughput["mfu"]


def test_large_jobs_take_longer_than_their_rate_says() -> None:
    """A tenth, by the reports that state both; nothing in 1,000 device-days, never a jump, on any number of devices."""
    days = np.array([1.0, 1000.0, 1001.0, 1e5, 1e7])
    found = sustained_factor(days * DAY, 1)
    assert found[:2] == pytest.approx([1.0, 1.0])
    assert found[2] == pytest.approx(1.0, abs=1e-3)
    assert 1.08 < found[3] < found[4] < 1.12
    np.testing.assert_allclose(sustained_factor(days * DAY / 64, 64), found)


def test_another_report_may_lie_farther_off_than_these_lie_from_one_another() -> None:
    """The sigma makes a normal band as wide as Student's for one more of n reports, whose mean is theirs."""
    rates = np.log([n / (8 * nodes * days) for n, nodes, days in INTERRUPTIONS.values()])
    walls, devices = np.array([*REPORTED_WALLS.values()]).T
    month, none = np.full(len(walls), 30 * DAY), np.zeros(len(walls), dtype=bool)
    beyond = np.log(walls / lost_time_factor(month, devices, np.arange(len(walls)), none, None))
    for logs, sigma, wider in ((rates, FAILURE_SIGMA, 1.4), (beyond, SUSTAINED_SIGMA, 1.25)):
        n, usual = len(logs), logs.std(ddof=1)
        band = usual * np.sqrt(1 + 1 / n) * stats.t.ppf(0.95, n - 1)
        assert sigma == pytest.approx(band / stats.norm.ppf(0.95), rel=0.01)
        assert sigma > wider * usual


def test_how_long_the_wall_takes_is_uncertain_after_the_first_hour() -> None:
    """By how far reports differ, in small jobs too, and by more where more is lost to failures."""
    hours = np.array([0.5, 1.0, 2.0, 1e4])
    found = lost_time_sigma(hours * 3600.0, np.ones(4))
    assert found[:2].tolist() == [0.0, 0.0]
    assert 0.05 < found[2] < found[3]
    assert found[3] == pytest.approx(SUSTAINED_SIGMA, rel=1e-3)
    assert (lost_time_sigma(hours * 3600.0, np.full(4, 1.2)) > found).all()
