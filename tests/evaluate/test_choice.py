"""Regret: the price of following a forecast, with crashes counted and no help from row order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from forerun.evaluate.scoring import Regret, comparable_groups, regret
from forerun.testing.samples import tiny_cluster, tiny_jobs, tiny_runs, tiny_workload


def judge(
    forecast: list[float],
    measured: list[float],
    fit: list[float] | None = None,
    plan: list[int] | None = None,
    job: list[int] | None = None,
    seed: int = 0,
) -> Regret:
    """Return the regret; a NaN time is a crash."""
    n = len(forecast)
    times = np.array(measured, dtype=float)
    return regret(
        np.array(job or [0] * n), np.array(plan or range(n)), np.array(forecast, dtype=float),
        np.array(fit or [np.nan] * n), times, np.isnan(times), np.random.default_rng(seed),
    )  # fmt: skip


def test_the_best_plan_picked_costs_nothing() -> None:
    found = judge([2.0, 1.0, 3.0], [20.0, 10.0, 30.0])
    assert (found.median, found.crashed, found.picked) == (0.0, 0, 1)


def test_a_worse_plan_costs_what_it_is_slower() -> None:
    assert judge([1.0, 2.0], [15.0, 10.0]).median == pytest.approx(0.5)


def test_a_pick_that_crashes_is_counted_and_has_no_price() -> None:
    found = judge([1.0, 2.0], [np.nan, 10.0])
    assert (found.crashed, found.picked) == (1, 1)
    assert np.isnan(found.median)


def test_a_plan_that_is_expected_not_to_fit_is_not_picked() -> None:
    found = judge([1.0, 2.0], [np.nan, 10.0], fit=[0.1, 0.9])
    assert (found.crashed, found.median) == (0, 0.0)


@pytest.mark.parametrize(("chance", "picked"), [(0.89, 0), (0.9, 1), (float("nan"), 1)])
def test_a_plan_is_picked_as_recommend_would_at_its_usual_confidence(
    chance: float, picked: int
) -> None:
    """A predictor that says nothing of memory is taken at its word on time."""
    assert judge([1.0, 2.0], [10.0, 20.0], fit=[chance, chance]).picked == picked


def test_ties_are_drawn_many_times_so_that_neither_luck_nor_row_order_helps() -> None:
    """Of three tied plans a third of the picks takes each: 0, 1 and 3 times too slow."""
    found = [judge([1.0, 1.0, 1.0], [10.0, 20.0, 40.0], seed=s) for s in range(30)]
    assert {f.worst for f in found} == {3.0}
    assert np.mean([f.mean for f in found]) == pytest.approx(4 / 3, abs=0.2)
    turned = [judge([1.0, 1.0, 1.0], [40.0, 20.0, 10.0], seed=s) for s in range(30)]
    assert np.mean([f.mean for f in turned]) == pytest.approx(4 / 3, abs=0.2)


def test_a_tie_with_a_plan_that_crashes_counts_as_a_crash() -> None:
    found = judge([1.0, 1.0, 2.0], [np.nan, 10.0, 20.0])
    assert (found.crashed, found.picked, found.median) == (1, 1, 0.0)


def test_repeats_of_one_plan_are_no_choice() -> None:
    assert judge([1.0, 1.0], [10.0, 20.0], plan=[0, 0]).groups == 0


def test_repeats_of_a_plan_count_once_with_their_median() -> None:
    found = judge([1.0, 1.0, 1.0, 2.0], [30.0, 20.0, 90.0, 10.0], plan=[0, 0, 0, 1])
    assert found.median == pytest.approx(2.0)


def test_a_job_of_which_nothing_ran_is_left_out() -> None:
    assert judge([1.0, 2.0], [np.nan, np.nan]).groups == 0


def test_a_job_without_forecasts_is_counted_as_not_picked() -> None:
    found = judge([np.nan, np.nan], [1.0, 2.0])
    assert (found.groups, found.picked) == (1, 0)


def test_the_worst_and_the_mean_are_over_jobs() -> None:
    found = judge([1.0, 2.0, 1.0, 2.0], [10.0, 20.0, 30.0, 10.0], job=[0, 0, 1, 1])
    assert (found.groups, found.mean, found.worst) == (2, pytest.approx(1.0), pytest.approx(2.0))


def test_jobs_differ_by_batch_and_devices_and_not_by_plan() -> None:
    jobs = tiny_jobs((tiny_cluster(1, 4), tiny_cluster(2, 4)), (tiny_workload(),))
    job, plan = comparable_groups(tiny_runs(jobs))
    asked: list[Any] = list(zip(jobs.per_cluster("devices"), jobs.plans.global_batch, strict=True))
    assert len(set(job)) == len(set(asked)) == 4
    for number in set(job):
        assert len({asked[i] for i in np.flatnonzero(job == number)}) == 1
        assert len(set(plan[job == number])) == (job == number).sum()
