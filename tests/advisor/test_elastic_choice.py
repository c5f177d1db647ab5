"""Elastic choice: forecasts from extreme points, and the best configuration by time, cost, knee and limits."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forerun.advisor.elastic_choice import (
    Outlook,
    forecast_steps,
    known_curve,
    outlook,
    search_points,
)
from forerun.errors import RequestError
from forerun.measure.elastic.job import MetricTarget, TrainingJob
from forerun.tables import Table, write_table

JOB = TrainingJob(
    "module:train", (1, 2, 4, 8), (32, 64, 128, 256), 32, target=MetricTarget("accuracy", 0.9, True),
    dollars_per_worker_hour=3600.0,
)  # fmt: skip


def law(one: tuple[int, int]) -> float:
    """Return the seconds of a step: a pass, and a reduction that grows with the workers."""
    k, b = one
    return 0.004 + 0.001 * b / k + (0.01 + 0.002 * (k - 2)) * (k > 1)


def test_a_partial_search_observes_the_extremes_and_a_full_one_everything() -> None:
    extremes = [(1, 32), (1, 256), (8, 32), (8, 256)]
    assert search_points(replace(JOB, law="scavenger")) == extremes
    assert search_points(JOB) == sorted([*extremes, (2, 64)])
    assert len(search_points(replace(JOB, search="full"))) == 16
    assert search_points(replace(JOB, search="none")) == []
    alone = search_points(replace(JOB, workers=(1,), global_batch=(16, 32, 64, 128)))
    assert len(alone) == 3
    assert {(1, 16), (1, 128)} < set(alone)
    few = replace(JOB, workers=(64,), global_batch=(32, 128))
    assert search_points(few) == [(64, 128)], "a worker has a sample in each step"


def test_pollux_law_forecasts_what_was_not_observed_from_the_extremes() -> None:
    observed = {one: law(one) for one in search_points(JOB)}
    found = forecast_steps("goodput", observed, JOB.configurations)
    truth = np.array([law(one) for one in JOB.configurations])
    assert np.abs(found[:, 1] / truth - 1).max() < 0.3
    assert np.median(np.abs(found[:, 1] / truth - 1)) < 0.1
    for i, one in enumerate(JOB.configurations):
        if one in observed:
            assert set(found[i]) == {observed[one]}


def test_scavenger_s_law_is_compute_by_batch_and_sync_by_workers() -> None:
    observed = {(k, b): 0.002 * b / k + 0.003 * k for k, b in search_points(JOB)}
    found = forecast_steps("scavenger", observed, [(2, 64), (4, 128)])
    assert found[:, 1] == pytest.approx([0.002 * 32 + 0.006, 0.002 * 32 + 0.012])


def test_too_few_observations_leave_the_others_unknown() -> None:
    found = forecast_steps("goodput", {(1, 32): 0.1}, [(1, 32), (2, 32)])
    assert found[0, 1] == 0.1
    assert np.isnan(found[1]).all()


def seen(aim: str, phi: float, job: TrainingJob = JOB, samples: float = math.nan) -> tuple[int, int]:  # fmt: skip
    """Return the best configuration where all are measured."""
    times = {one: law(one) for one in job.configurations}
    found = outlook(job, times, phi, samples, job.configurations)
    return found.configurations[found.best(aim, math.inf, math.inf)]


def test_noise_makes_large_batches_and_many_workers_worth_it() -> None:
    """By brute force over the same arithmetic, each aim's best is the least of all."""
    for aim, phi in (("time", 20.0), ("time", 2000.0), ("cost", 20.0), ("cost", 2000.0)):
        worth = {
            (k, b): law((k, b)) * (phi + b) / (phi + 32) / b * (k if aim == "cost" else 1)
            for k, b in JOB.configurations
        }
        assert seen(aim, phi) == min(worth, key=worth.__getitem__)
    assert seen("time", 2000.0)[1] == 256
    assert seen("time", 0.0)[1] == 32
    assert seen("cost", 2000.0)[0] == 1
    # Without a target every sample counts alike.
    assert seen("time", 0.0, replace(JOB, target=None, epochs=3))[1] == 256


def example(samples: float) -> Outlook:
    """Return three configurations of 1, 0.6 and 0.5 s, and 1, 1.2 and 2 dollars, a sample."""
    columns = np.array([1.0, 0.6, 0.5]), np.array([1.0, 1.2, 2.0])
    return Outlook(((1, 8), (2, 8), (4, 8)), np.ones((3, 3)), *columns, samples)


def test_limits_the_knee_and_small_gains_decide() -> None:
    found, free = example(100.0), (math.inf, math.inf)
    assert found.best("time", *free) == 2
    assert found.best("cost", *free) == 0
    assert found.best("knee", *free) == 1
    assert found.best("cost", 70.0, math.inf) == 1, "the cheapest that ends in time"
    assert found.best("time", math.inf, 150.0) == 1, "the fastest within the money"
    assert found.best("time", 1.0, math.inf) == 2, "none keeps the limit"
    assert found.best("time", *free, (2, 8), 1.0) == 2
    assert found.best("time", *free, (2, 8), 30.0) == 1, "a move would take longer than it gains"
    near = replace(found, sample_seconds=np.array([1.0, 0.51, 0.5]))
    assert near.best("time", *free, (2, 8), 0.0) == 1
    with pytest.raises(ValueError, match="no step time"):
        replace(found, sample_seconds=np.full(3, np.nan)).best("time", *free)
    here = found.at((2, 8))
    assert here is not None
    assert (here["remaining_seconds"], here["remaining_dollars"]) == (60.0, 120.0)


def known_table(path: Path, **columns: Any) -> str:
    """Write runs that reached a target: a batch of 256 needs a tenth more samples than one of 16."""
    batch = [16, 32, 64, 128, 256]
    samples = [10_000 * (1 + b / 2400) for b in batch]
    rows = {
        "workload": [JOB.entry] * 5,
        "global_batch": batch,
        "samples_to_target": samples,
        **columns,
    }
    write_table(Table.from_columns({name: rows[name] for name in rows}), path)
    return str(path)


def test_known_runs_say_what_a_batch_is_worth_where_the_noise_says_otherwise(
    tmp_path: Path,
) -> None:
    target = MetricTarget("loss", 0.1, at_least=False)
    job = replace(JOB, workers=(1,), global_batch=(16, 256), reference_batch=16, target=target)
    steps = {(1, 16): 0.016, (1, 256): 0.20}
    alone = outlook(job, steps, 20.0, 1e5, job.configurations)
    assert alone.configurations[alone.best("time", np.inf, np.inf)] == (1, 16)
    known = replace(job, known=known_table(tmp_path / "known.csv"))
    curve, doubts = known_curve(known)
    assert not doubts
    told = outlook(job, steps, 20.0, 1e5, job.configurations, curve)
    assert told.configurations[told.best("time", np.inf, np.inf)] == (1, 256)
    worth = told.step_seconds[:, 1] / (np.array([16, 256]) * told.sample_seconds)
    assert worth == pytest.approx([1.0, (1 + 16 / 2400) / (1 + 256 / 2400)], rel=0.03)
    assert known_curve(job)[0] is None
    at_256 = outlook(job, steps, 20.0, 1e5, job.configurations, curve, 256)
    assert at_256.samples == pytest.approx(1e5 * worth[1] * (20 + 256) / (20 + 16), rel=0.01)


@pytest.mark.parametrize(
    "columns",
    [{"workload": ["a", "b", "a", "b", "a"]}, {"learning_rate_rule": ["linear"] * 5}, {"samples_to_target": [None] * 5}, {"global_batch": [None] * 5}],
)  # fmt: skip
def test_known_runs_of_other_trainings_are_refused(tmp_path: Path, columns: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="none of them is of this workload"):
        known_curve(replace(JOB, known=known_table(tmp_path / "known.csv", **columns)))
    with pytest.raises(RequestError):
        known_curve(replace(JOB, known=str(tmp_path / "nowhere.csv")))


def test_batches_of_one_number_of_workers_are_forecast() -> None:
    observed = {(4, b): law((4, b)) for b in (32, 128, 512)}
    asked = [(4, 64), (4, 256)]
    found = forecast_steps("goodput", observed, asked)
    assert found[:, 1] == pytest.approx([law(one) for one in asked], rel=0.1)
