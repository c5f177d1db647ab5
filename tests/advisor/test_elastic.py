"""Elastic training: it observes, decides and writes down why; memory that runs out is learned; limits end it."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forerun.advisor.elastic import OBSERVED_STEPS, ElasticTraining
from forerun.errors import RequestError
from forerun.measure.elastic.job import MetricTarget
from tests.measure.elastic.conftest import folder as folder
from tests.measure.elastic.toys import check_ids, job


def trail(path: Path) -> list[dict[str, Any]]:
    """Return the lines that a training wrote down."""
    return [json.loads(line) for line in (path / "trail.jsonl").read_text().splitlines()]


def test_it_observes_decides_and_stops_at_the_target(folder: Path) -> None:
    target = MetricTarget("share", 1.0, at_least=True)
    asked = job("reporting", global_batch=(6, 30), reference_batch=6, target=target,
                dollars_per_worker_hour=1.0, settings={"pause": 0.002})  # fmt: skip
    training = ElasticTraining(asked, "training")
    assert training.run().endswith(", at least 1")
    done = training.progress
    assert training.is_target_met
    assert done.position >= 6000
    assert set(done.observed) == {(1, 6), (1, 30), (2, 6), (2, 30)}
    assert all(len(seconds) >= OBSERVED_STEPS for seconds in done.seconds_of.values())
    lines = trail(folder / "training")
    groups = [(line["workers"], line["global_batch"]) for line in lines if line["is"] == "group"]
    # A group begins with fewer where a worker still starts, and is formed again once it is there.
    assert [*dict.fromkeys(groups)][:4] == [(1, 6), (1, 30), (2, 6), (2, 30)]
    decisions = [line for line in lines if line["is"] == "decision"]
    assert decisions[0]["why"] == "every point of the search is observed"
    assert decisions[0]["chosen"]["step_seconds"] > 0
    assert len(decisions[0]["observed"]) == 4
    assert decisions[0]["current"]["workers"] == 2
    assert lines[-1]["is"] == "ended"
    assert 0 < done.dollars <= 2.0 * done.seconds / 3600
    assert max(done.pauses) < 10

    table = training.table()
    assert len(table) == 4
    assert set(table.texts("status")) == {"ok"}
    assert (table.numbers("step_time_s") > 0.002).all()

    again = ElasticTraining(asked, "training")
    assert again.run().startswith("share is"), "the same command has nothing left to do"
    other = ElasticTraining(job("reporting", global_batch=(6, 30), search="none", earlier="training",
                                epochs=5), "other")  # fmt: skip
    assert other.run() == "5 epochs are done"
    first = trail(folder / "other")[0]
    assert (first["is"], first["why"]) == ("decision", "what was observed before")


def test_a_target_that_was_met_stays_met_whatever_is_reported_on_the_way_to_the_end() -> None:
    target = MetricTarget("loss", 0.1, at_least=False)
    training = ElasticTraining(job("train", target=target), "nowhere")
    training.progress.metrics = [[10.0, 0.3], [20.0, 0.11]]
    assert not training.is_target_met
    training.progress.metrics += [[30.0, 0.099], [40.0, 0.102]]
    assert training.is_target_met
    assert training._is_done() == "loss is 0.099, at most 0.1"


def test_a_training_at_one_configuration_says_how_many_samples_its_target_took() -> None:
    training = ElasticTraining(job(target=MetricTarget("loss", 0.1, at_least=False)), "nowhere")
    done = training.progress
    done.position, done.met_position = 6048, 6000
    done.metrics, done.seconds_of = [[10.0, 0.2]], {(1, 12): deque([0.1] * 30)}
    assert "samples_to_target" not in training.table()
    done.metrics.append([20.0, 0.09])
    table = training.table()
    assert table.numbers("samples_to_target").tolist() == [6000]
    assert table.texts("target").tolist() == ["loss at most 0.1"]
    done.seconds_of[2, 12] = deque([0.1] * 30)
    assert "samples_to_target" not in training.table(), "of which batch would they be?"


@pytest.mark.parametrize("beside", [1.0, 4.0])  # of what steps alone take: evaluations take more
def test_when_it_ends_is_foreseen_with_a_band(beside: float) -> None:
    """0.1 comes after 2,300 samples: 400 more, in steps of 12 that take 0.1 s, and what comes between them."""
    bands, target = [], MetricTarget("loss", 0.1, at_least=False)
    a_hundred = beside * 0.1 * 100 / 12
    for seed in range(10):
        training = ElasticTraining(
            job(target=target, global_batch=(12,), within_seconds=100.0, epochs=1e6), "nowhere"
        )
        done, rng = training.progress, np.random.default_rng(seed)
        assert training.seconds_left() is None, "nothing was observed"
        steps = 0.1 * np.exp(rng.normal(0, 0.1, 50))
        done.seconds_of = {training._current: deque(steps.tolist())}
        assert training.seconds_left() is None, "no curve is known"
        noise, band = rng.normal(0, 5e-3, 20).tolist(), None
        for i in range(1, 20):
            done.metrics.append([100.0 * i, math.exp(-0.1 * i) + noise[i]])
            done.effective, done.position, done.phi = 100.0 * i, 100 * i, 1e9
            done.seconds += a_hundred * math.exp(rng.normal(0, 0.1))
            band = training.seconds_left() if i > 15 else None
        bands.append(band or (math.nan,) * 3)
    assert sum(low <= 4 * a_hundred <= high for low, _, high in bands) >= 8
    assert all(0 < low < middle < high < 12 * a_hundred for low, middle, high in bands)
    assert training.seconds_left() is None, "nothing was learned since"
    done.effective, done.position, done.seconds = 2000.0, 2000, training.job.within_seconds - 0.5
    assert training.seconds_left() == pytest.approx((0.5, 0.5, 0.5), abs=0.49)


def test_a_target_out_of_reach_leaves_its_limits_in_the_band() -> None:
    """A loss that stays at 0.05, less noisy the lower it is, never comes to 0.001: time or epochs end the training."""
    asked = job(target=MetricTarget("loss", 0.001, at_least=False), global_batch=(12,), within_seconds=100.0, epochs=1e6)  # fmt: skip
    training = ElasticTraining(asked, "nowhere")
    done, rng, bands = training.progress, np.random.default_rng(0), []
    done.seconds_of = {training._current: deque([0.1] * 50)}
    for i in range(1, 80):
        loss = 0.05 + math.exp(-0.1 * i)
        done.metrics.append([100.0 * i, loss * (1 + 0.1 * rng.standard_normal())])
        done.effective, done.position, done.phi, done.seconds = 100.0 * i, 100 * i, 1e9, float(i)
        if i % 8 == 0:
            bands.append((100.0 - i, training.seconds_left()))
    known = [(left, band) for left, band in bands if band is not None]
    assert len(known) > 6
    assert all(band[2] >= 0.99 * left for left, band in known[3:]), known
    assert known[-1][1][1] == pytest.approx(known[-1][0])


def test_a_training_that_only_time_or_money_ends_takes_what_is_left_of_it() -> None:
    training = ElasticTraining(job(epochs=math.inf, within_seconds=60.0), "nowhere")
    training.progress.seconds = 20.0
    assert training.seconds_left() == pytest.approx((40.0, 40.0, 40.0))
    paid = {"dollars_per_worker_hour": 3600.0, "budget_dollars": 30.0}
    training = ElasticTraining(job(epochs=math.inf, within_seconds=60.0, **paid), "nowhere")
    assert training.seconds_left() == pytest.approx((30.0 / training._current[0],) * 3)


def test_memory_that_runs_out_is_learned_and_never_tried_again(folder: Path) -> None:
    words: list[str] = []
    asked = job("greedy", workers=(1, 2), global_batch=(8, 48), reference_batch=8, epochs=30,
                settings={"most": 10})  # fmt: skip

    def heed(line: str) -> None:
        words.append(line)
        training.seconds_left()  # as a task of the service asks, also while memory runs out

    training = ElasticTraining(asked, "training", heed)
    assert training.run() == "30 epochs are done"
    assert training.progress.refused == 24.0 or training.progress.refused == 48.0
    told = [line for line in words if "ran out of memory" in line]
    assert 1 <= len(told) <= 2
    assert {b for _, b in training.progress.observed} == {8}
    assert training.progress.position >= 30 * 90


def test_steps_without_finite_gradients_are_skipped_counted_and_said(folder: Path) -> None:
    words: list[str] = []
    training = ElasticTraining(job("infinite", workers=(2,), epochs=8), "training", words.append)
    assert training.run() == "8 epochs are done"
    assert training.progress.skipped == 3
    assert sum("is skipped: NaN or infinite gradients" in line for line in words) == 3
    assert training.progress.steps == 60


def test_limits_end_a_training_and_a_target_out_of_reach_is_said_early(folder: Path) -> None:
    words: list[str] = []
    target = MetricTarget("share", 1e6, at_least=True)
    asked = job("reporting", workers=(1,), target=target, within_seconds=20.0,
                settings={"pause": 0.002})  # fmt: skip
    training = ElasticTraining(asked, "training", words.append)
    assert training.run() == "the time (20 s) is used"
    assert not training.is_target_met
    assert any("the target will hardly be met" in line for line in words)
    assert training.progress.seconds < 40
    with pytest.raises(RequestError, match=r"run\.report gave share"):
        ElasticTraining(job("reporting", workers=(1,), target=MetricTarget("loss", 0.1, at_least=False)),
                        "another").run()  # fmt: skip


def test_lost_workers_are_replaced_without_a_decision(folder: Path) -> None:
    asked = job(workers=(2,), epochs=120, settings={"pause": 0.01})
    words: list[str] = []

    def kill() -> None:
        members = training.workers._members
        os.kill(next(m.process.pid for m in members if m.rank == 1), signal.SIGKILL)

    def tell(said: str) -> None:
        words.append(said)
        if len(words) == 1:
            threading.Timer(1.0, kill).start()

    training = ElasticTraining(asked, "training", tell)
    assert training.run() == "120 epochs are done"
    groups = [line["workers"] for line in trail(folder / "training") if line["is"] == "group"]
    assert groups[:3] == [2, 1, 2]
    assert any("SIGKILL); another one starts" in line for line in words)
    assert check_ids(folder, 0, training.progress.steps) == training.progress.position
    assert math.isfinite(training.progress.phi)
