"""Stopping: what a run that was stopped says of its step time is true as often as it says."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest

from forerun.measure.measurement import merged
from forerun.measure.recorder import Agreement, Recorder
from forerun.measure.step_times import correlated_steps, step_times, warm_steps
from forerun.measure.task import Steps

RUNS = 300


def alike_steps(
    rng: np.random.Generator, phi: float, spread: float, count: int = 200
) -> list[float]:
    """Return seconds of steps whose logs are an AR(1) series of median 0."""
    noise = rng.normal(size=count) * np.sqrt(1 - phi * phi)
    logs = [rng.normal()]
    for one in noise[1:]:
        logs.append(phi * logs[-1] + one)
    return np.exp(spread * np.array(logs)).tolist()


def stopped(steps: Steps, seconds: list[float]) -> tuple[list[float], Agreement, list[int]]:
    """Return the steps that an agreement counts, itself, and where it looked."""
    agreement, looks = Agreement(steps, 1), []
    for count in range(1, len(seconds) + 1):
        if agreement.due(count):
            looks.append(count)
            if agreement.decide(count, seconds[:count]):
                assert agreement.warm is not None
                return seconds[agreement.warm : count], agreement, looks
    return seconds, agreement, looks


@pytest.mark.parametrize(("phi", "least"), [(0.0, 0.93), (0.6, 0.92), (0.8, 0.87)])
def test_the_interval_holds_the_median_where_the_run_was_stopped(phi: float, least: float) -> None:
    rng = np.random.default_rng(5)
    steps, held, short = Steps(seconds=1e6), 0, 0
    for _ in range(RUNS):
        counted, agreement, _ = stopped(steps, alike_steps(rng, phi, 0.04))
        times = step_times(counted)
        assert times is not None
        assert times.low is not None
        assert times.high is not None
        held += times.low <= 1.0 <= times.high
        short += not agreement.reason
    assert held >= least * RUNS
    assert short >= 0.5 * RUNS, "most were stopped because they were sure"


def test_steps_that_do_not_vary_stop_at_the_least_and_looks_grow_apart() -> None:
    counted, _, looks = stopped(Steps(), [1.0] * 200)
    assert (len(counted), looks) == (20, [1, 14, 20])
    noisy = alike_steps(np.random.default_rng(0), 0.9, 0.5)
    _, agreement, looks = stopped(Steps(seconds=1e6, half_width=0.001), noisy)
    assert "interval wider" in agreement.reason
    assert all(after >= 1.4 * before for before, after in pairwise(looks[1:-1]))


def test_one_narrow_look_is_not_enough() -> None:
    agreement = Agreement(Steps(), 1)
    assert not agreement.decide(14, [1.0, 1.5] * 7)
    assert not agreement.decide(20, [1.0] * 20), "narrow, and for the first time"
    assert agreement.decide(30, [1.0] * 30)
    assert agreement.reason == ""


def test_steps_alike_are_worth_fewer_and_slow_changes_fewer_still() -> None:
    rng = np.random.default_rng(0)
    worth = [
        np.median([correlated_steps(np.array(alike_steps(rng, phi, 0.1))) for _ in range(15)])
        for phi in (0.0, 0.6, 0.95)
    ]
    assert 1.0 <= worth[0] < 1.6
    assert 2.2 < worth[1] < 6
    assert worth[2] > 10
    assert correlated_steps(np.ones(30)) == 1.0


def test_an_interval_that_would_need_more_steps_is_never_narrow() -> None:
    steady = step_times([1.0, 1.001] * 3 + [1.002] * 2)
    assert steady is not None
    assert steady.clipped


@pytest.mark.parametrize(
    ("slow", "found"), [([], 0), ([9.0], 1), ([9.0, 2.0, 1.5], 3), ([1.05], 0), ([1.0, 9.0], 0)]
)
def test_the_beginning_that_is_slower_than_what_follows_is_warm_up(
    slow: list[float], found: int
) -> None:
    rng = np.random.default_rng(1)
    steady = np.exp(0.01 * rng.normal(size=40))
    assert warm_steps(np.r_[slow, steady]) == found


def test_noise_is_no_warm_up_and_of_few_steps_none_is_told() -> None:
    rng = np.random.default_rng(2)
    wild = [warm_steps(np.exp(0.5 * rng.normal(size=40))) for _ in range(200)]
    assert np.mean(wild) < 0.05
    assert warm_steps(np.array([9.0, 1.0, 1.0, 1.0, 1.0])) == 0


def test_warm_up_is_left_out_of_all_that_a_run_tells_and_counted() -> None:
    recorder = Recorder(Steps(warmup=2, least=12, most=30, half_width=0.5))
    recorder.explicit = True
    recorder.begin()
    slept: list[float] = []  # a busy machine sleeps longer than it is asked
    while True:
        recorder.switch("forward")
        begun = time.perf_counter()
        time.sleep(0.02 if len(slept) < 5 else 0.002)
        slept.append(time.perf_counter() - begun)
        if recorder.step():
            break
    record = recorder.record()
    measured = merged([record])
    assert measured.warmup_steps >= 5
    assert measured.steps + measured.warmup_steps == len(slept)
    assert measured.steps >= 12
    counted = np.array(slept[measured.warmup_steps :])
    assert (np.array(record["seconds"]) >= counted).all(), "each is of its own step"
    assert np.median(record["seconds"] - counted) < 0.001
    assert measured.parts["forward"] == pytest.approx(counted.mean(), rel=0.5)
