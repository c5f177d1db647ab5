"""Linear scaling: perfect from the nearest measured number of devices, and wide beyond it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.errors import RequestError
from forerun.predictors.laws.linear_scaling import LinearScaling
from forerun.testing import PredictorContract
from forerun.testing.samples import tiny_jobs, tiny_runs
from tests.predictors.laws.rows import UnfittedContract, jobs_of, runs_of


class TestLinearScaling(PredictorContract):
    """Fitted to small transformers."""

    def make_predictor(self) -> LinearScaling:
        return LinearScaling().fit(tiny_runs())


class TestUnfittedLinearScaling(UnfittedContract):
    """Without runs it answers nothing, and keeps the rest of the contract."""

    def make_predictor(self) -> LinearScaling:
        return LinearScaling()


def test_one_run_is_enough_and_twice_the_devices_take_half_the_time() -> None:
    law = LinearScaling().fit(runs_of(devices=[2], dataset_size=[1000], time_to_train_s=[80.0]))
    answer = law.predict(jobs_of(devices=[2, 4, 8, 4], dataset_size=[1000, 1000, 1000, 2000]))
    np.testing.assert_allclose(answer.seconds[:, 1], [80, 40, 20, 80])
    assert (np.diff(answer.distance[:3]) > 0).all()


def test_it_starts_from_the_nearest_devices_and_there_from_the_nearest_work() -> None:
    law = LinearScaling().fit(runs_of(
        devices=[1, 8, 8, 8], global_batch=[32, 64, 512, 512], step_time_s=[0.1, 0.2, 0.8, 0.9],
    ))  # fmt: skip
    asked = jobs_of(devices=[1, 2, 3, 16, 16], global_batch=[32, 64, 96, 128, 1024])
    np.testing.assert_allclose(law.predict(asked).seconds[:, 1], [0.1, 0.1, 0.85 / 2, 0.2, 0.85])


@pytest.mark.parametrize(("sync", "expected"), [("allreduce", 1.0), ("ps-async", 0.5)])
def test_a_step_without_a_batch_is_each_device_s_own_unless_workers_wait_for_nobody(
    sync: str, expected: float
) -> None:
    law = LinearScaling().fit(runs_of(devices=[1], sync=sync, step_time_s=[1.0]))
    assert law.predict(jobs_of(devices=[2], sync=sync)).seconds[0, 1] == pytest.approx(expected)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 64), min_size=1, max_size=8), st.integers(1, 512))
def test_answers_are_those_of_a_search_through_all_runs(counts: list[int], asked: int) -> None:
    rng = np.random.default_rng(len(counts))
    devices = np.array(counts, dtype=float)
    seconds = rng.uniform(1, 9, len(counts))
    law = LinearScaling().fit(runs_of(devices=devices, time_to_train_s=seconds))
    away = np.abs(np.log(devices) - np.log(asked))
    near = np.isclose(away, away.min())
    found = law.predict(jobs_of(devices=[asked])).seconds[0, 1] * asked
    choices = [np.median(seconds[devices == d]) * d for d in set(devices[near])]
    assert np.isclose(found, choices, rtol=1e-9).any()


def test_many_laws_answer_as_each_does_alone() -> None:
    names, devices = ["a", "b", "c"] * 4, np.repeat([1.0, 2, 4, 8], 3)
    seconds = np.arange(1.0, 13.0)
    together = LinearScaling().fit(
        runs_of(workload=names, devices=devices, global_batch=32 * devices, step_time_s=seconds)
    )
    asked = jobs_of(workload=names, devices=devices, global_batch=32 * devices)
    np.testing.assert_allclose(together.predict(asked).seconds[:, 1], seconds)


def test_the_law_says_how_far_its_runs_are_from_perfect() -> None:
    law = LinearScaling().fit(
        runs_of(devices=[1, 8], global_batch=[32, 256], step_time_s=[1.0, 1.25])
    )
    (text,) = law.formulas.values()
    assert "of 1, 8" in text
    assert "rate over that on 1 device: 6.40 x on 8 (80 % of perfect)" in text


def test_a_saved_law_answers_as_it_did_and_a_spoilt_one_is_refused() -> None:
    law, jobs = LinearScaling().fit(tiny_runs()), tiny_jobs()
    again = LinearScaling.from_json(law.to_json())
    np.testing.assert_array_equal(again.predict(jobs).seconds, law.predict(jobs).seconds)
    for old, new in (('"points": [', '"points": [3], "old": ['), ("linear-scaling", "ernest")):
        with pytest.raises(RequestError, match="not its JSON"):
            LinearScaling.from_json(law.to_json().replace(old, new))
