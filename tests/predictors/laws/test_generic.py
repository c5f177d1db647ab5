"""Generic: it finds the constants that made the runs, both ways alike, and says what it leaves out."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.errors import RequestError
from forerun.evaluate import evaluate
from forerun.predictors.laws import generic
from forerun.predictors.laws.generic import (
    Generic,
    GenericCost,
    GenericForm,
    GenericLaw,
    descend,
    fitted_costs,
)
from forerun.tables import Runs
from forerun.tables.files import read_table
from forerun.testing import PredictorContract
from forerun.testing.samples import tiny_jobs, tiny_runs
from forerun.workloads.rows import runs_from_table
from tests.needs import published
from tests.predictors.laws.rows import CATALOG, UnfittedContract, jobs_of, runs_of

DEVICES, BATCH = (axis.ravel().astype(float) for axis in np.meshgrid([1, 2, 4, 8], [32, 64, 128]))


def power_runs(devices: float = -0.8, batch: float = 0.6, fixed: float = 0.05, **more: Any) -> Runs:
    """Return runs of which every step takes 0.2 s at 4 devices and a batch of 64, and `fixed` s."""
    seconds = 0.2 * (DEVICES / 4) ** devices * (BATCH / 64) ** batch + fixed
    return runs_of(devices=DEVICES, global_batch=BATCH, step_time_s=seconds, **more)


def only(law: Generic) -> GenericLaw:
    return next(iter(law.laws.values()))


class TestGeneric(PredictorContract):
    """Fitted to small transformers."""

    def make_predictor(self) -> Generic:
        return Generic().fit(tiny_runs())


class TestUnfittedGeneric(UnfittedContract):
    """Without runs it answers nothing, and keeps the rest of the contract."""

    def make_predictor(self) -> Generic:
        return Generic()


@settings(max_examples=15)
@given(st.floats(-1.2, -0.2), st.floats(0.2, 1.5), st.floats(0.0, 0.3))
def test_constants_that_made_the_runs_are_found(devices: float, batch: float, fixed: float) -> None:
    law = Generic().fit(power_runs(devices, batch, fixed))
    assert only(law).exponents == pytest.approx([devices, batch], rel=0.01)
    answer = law.predict(jobs_of(devices=[16.0, 3.0], global_batch=[256, 96]))
    truth = 0.2 * np.array([4, 0.75]) ** devices * np.array([4, 1.5]) ** batch + fixed
    assert answer.seconds[:, 1] == pytest.approx(truth, rel=0.01)
    assert sum(answer.parts.values()) == pytest.approx(answer.seconds[:, 1])


def test_intrinsic_numbers_and_words_add_up() -> None:
    rng = np.random.default_rng(0)
    n = 60
    layers, word = rng.integers(10, 100, n).astype(float), rng.integers(0, 2, n)
    devices = rng.choice([1.0, 2, 4, 8], n)
    seconds = (3e-4 * layers**1.3 + np.array([0.02, 0.2])[word]) / devices**0.9 + 0.01
    law = Generic().fit(runs_of(
        devices=devices, layers=layers, optimizer=[("sgd", "adam")[w] for w in word],
        step_time_s=seconds,
    ))  # fmt: skip
    assert only(law).exponents == pytest.approx([1.3, -0.9], rel=0.01)
    asked = {"devices": [16.0], "layers": [50]}
    answer = law.predict(jobs_of(**asked, optimizer="adam"))
    truth = (3e-4 * 50**1.3 + 0.2) / 16**0.9 + 0.01
    assert answer.seconds[0, 1] == pytest.approx(truth, rel=0.01)
    (text,) = {f for name, f in law.formulas.items()}
    assert "s if optimizer = adam" in text
    assert "x (layers / " in text
    (reason,) = law.declines(jobs_of(**asked, optimizer="lamb"))
    assert "no run of it has such optimizer" in str(reason)
    (reason,) = law.declines(jobs_of(devices=[16.0], optimizer="adam"))
    assert "does not state layers" in str(reason)


def made(rows: int, seed: int, noise: float) -> GenericCost:
    """Return the cost of runs of five linear constants and three exponents."""
    rng = np.random.default_rng(seed)
    form = GenericForm(
        {"layers": 50.0},
        {"optimizer": {"a": 0.0, "b": 1.0, "c": 2.0}},
        {"devices": 4.0, "b": 128.0},
    )
    given = {"layers": rng.uniform(10, 150, rows), "devices": rng.choice([1.0, 2, 4, 8, 16], rows),
             "b": rng.choice([32.0, 64, 128, 256], rows)}  # fmt: skip
    rows_of = form.rows({**given, "optimizer": rng.integers(0, 3, rows).astype(float)})
    seconds = rows_of.columns(np.array([[1.3, -0.83, 0.7]]))[0] @ [0.4, 0.1, 0.25, 0.05, 0.08]
    seconds = seconds * np.exp(rng.normal(0, noise, rows))
    weights = np.full((1, rows), 1.0 / rows)
    return GenericCost(rows_of, (seconds / seconds.mean())[None], weights, "l2", np.array([1e-4]))


@pytest.mark.parametrize("penalty", ["l1", "l2"])
def test_the_fast_way_ends_no_higher_than_plain_evolution(penalty: str) -> None:
    cost = replace(made(40, 2, 0.05), penalty=penalty)
    slow, quick = generic.plain(cost), generic.fast(cost)
    assert slow.converged
    assert quick.converged
    assert quick.costs[0] <= slow.costs[0] * (1 + 1e-9)
    assert cost.of(quick.constants) == pytest.approx(quick.costs, rel=1e-9)


@settings(max_examples=20)
@given(st.integers(0, 1000), st.sampled_from(["l1", "l2"]))
def test_no_step_from_where_the_descent_ends_is_lower(seed: int, penalty: str) -> None:
    cost = replace(made(30, seed, 0.1), penalty=penalty, strength=np.array([1e-3]))
    ended = descend(cost, np.array([[0.2] * 5 + [1.0, -0.5, 0.5]]))
    rng = np.random.default_rng(seed)
    steps = ended.constants * np.exp(rng.normal(0, 0.01, (200, 8)))
    assert (cost.of(steps) >= ended.costs[0] * (1 - 1e-4)).all()


def test_the_published_way_finds_what_the_fast_way_does() -> None:
    runs = power_runs()
    slow = Generic(mode="faithful", errors="absolute").fit(runs)
    quick = Generic(errors="absolute").fit(runs)
    assert only(slow).exponents == pytest.approx(only(quick).exponents, rel=0.01)
    assert only(slow).exponents == pytest.approx([-0.8, 0.6], rel=0.01)


def test_a_search_that_does_not_end_keeps_its_best_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(generic, "PLAIN_GENERATIONS", 5)
    law = Generic(mode="faithful").fit(power_runs())
    answer = law.predict(jobs_of(devices=[4.0], global_batch=[64]))
    assert any("did not converge" in warning for warning in answer.warnings)
    assert answer.seconds[0, 1] == pytest.approx(0.25, rel=0.5)


def test_a_strong_penalty_draws_the_constants_in() -> None:
    cost = made(40, 2, 0.05)
    free, drawn = (generic.fast(replace(cost, strength=np.array([s]))) for s in (0.0, 1.0))
    assert np.abs(drawn.constants[0, 5:]).sum() < 0.5 * np.abs(free.constants[0, 5:]).sum()


def test_lambda_is_small_for_many_clean_runs_and_larger_for_few_noisy_ones() -> None:
    clean = made(80, 1, 0.0)
    assert fitted_costs([clean], [np.arange(80)], relative=True).strength == [0.0]
    noisy = fitted_costs([made(9, seed, 0.6) for seed in range(12)], [np.arange(9)] * 12, True)
    assert np.median(noisy.strength) >= 1e-3


def test_a_few_runs_that_went_wrong_do_not_move_the_law() -> None:
    """A tenth of the runs took four times as long: the others are foretold as without them."""
    rng = np.random.default_rng(2)
    devices, batch = rng.choice([1.0, 2, 4, 8], 60), rng.choice([32.0, 64, 128], 60)
    seconds = (0.2 * (devices / 4) ** -0.8 * (batch / 64) ** 0.6) * np.exp(rng.normal(0, 0.02, 60))
    seconds[:6] *= 4.0
    law = Generic().fit(runs_of(devices=devices, global_batch=batch, step_time_s=seconds))
    answer = law.predict(jobs_of(devices=[8.0, 2.0], global_batch=[128, 32]))
    truth = 0.2 * np.array([2, 0.5]) ** -0.8 * np.array([2, 0.5]) ** 0.6
    assert answer.seconds[:, 1] == pytest.approx(truth, rel=0.06)


def test_kinds_that_are_fitted_at_once_have_the_laws_that_they_have_alone() -> None:
    costs = [made(n, n, 0.1) for n in (9, 12, 16)]
    points = [np.arange(cost.seconds.shape[1]) for cost in costs]
    together = fitted_costs(costs, points, relative=True)
    for i, (cost, of) in enumerate(zip(costs, points, strict=True)):
        alone = fitted_costs([cost], [of], relative=True)
        assert together.costs[i] == pytest.approx(alone.costs[0], rel=1e-3)
        assert together.strength[i] == alone.strength[0]


def test_columns_that_go_together_are_left_out_by_name() -> None:
    law = Generic().fit(power_runs(micro_batch=BATCH / DEVICES, nodes=np.ones(12)))
    assert list(only(law).form.scaling) == ["devices", "global_batch"]
    assert only(law).left_out == {"micro_batch": "goes with devices and global_batch"}
    assert any("cannot tell apart: micro_batch" in note for note in law.notes)
    (text,) = set(law.formulas.values())
    assert "left out: micro_batch (goes with devices and global_batch)" in text


def test_a_batch_that_grows_with_the_devices_is_told_as_weak_scaling() -> None:
    devices = np.array([1.0, 2, 4, 8])
    runs = runs_of(devices=devices, global_batch=32 * devices, step_time_s=0.1 * devices**0.05)
    law = Generic().fit(runs)
    assert list(only(law).form.scaling) == ["devices"]
    # 8^-0.05 of perfect: what the runs themselves say.
    said = law.limit(only(law))
    assert said.startswith("rate over that on 1 device: 7.21 x on 8 (90 % of perfect)")


def test_a_column_that_some_runs_leave_blank_is_left_out_by_name() -> None:
    rate = np.where(DEVICES < 8, 0.1, np.nan)
    law = Generic().fit(power_runs(learning_rate=rate))
    assert only(law).left_out == {"learning_rate": "blank in 3 of 12 runs"}


def test_few_runs_leave_no_room_for_more_columns() -> None:
    law = Generic().fit(runs_of(
        devices=[1.0, 2, 4], global_batch=[32, 64, 64], step_time_s=[0.3, 0.4, 0.2],
    ))  # fmt: skip
    assert only(law).left_out == {"global_batch": "only 3 different runs"}
    with pytest.raises(RequestError, match=r"only 2 different runs.*at least 3 runs that differ"):
        Generic().fit(runs_of(devices=[1.0, 2, 2], step_time_s=[0.3, 0.2, 0.2]))


def test_what_no_run_changes_is_not_answered_for_another_value() -> None:
    law = Generic().fit(power_runs(seq_len=np.full(12, 128.0), optimizer="sgd"))
    asked = {"devices": [4.0, 4.0], "global_batch": [64, 64]}
    same, other = law.declines(jobs_of(**asked, optimizer=["sgd", "adam"]))
    assert same is None
    assert "runs all have optimizer sgd" in str(other)
    fixed = Generic().fit(runs_of(
        devices=[1.0, 2, 4, 8], global_batch=[64] * 4, step_time_s=[0.4, 0.2, 0.1, 0.05]
    ))  # fmt: skip
    assert "the same in all runs: global_batch 64" in fixed.limit(only(fixed))
    _, reason = fixed.declines(jobs_of(devices=[2.0, 2.0], global_batch=[64, 128]))
    assert "runs all have global_batch 64" in str(reason)


def test_runs_on_one_number_of_devices_do_not_speak_of_another() -> None:
    law = Generic().fit(runs_of(
        devices=[4.0] * 4, global_batch=[32, 64, 128, 256], step_time_s=[0.1, 0.2, 0.4, 0.8]
    ))  # fmt: skip
    same, other = law.declines(jobs_of(devices=[4.0, 8.0], global_batch=[512, 512]))
    assert same is None
    assert "all on one number of devices" in str(other)
    assert "all runs are on 4 devices, so nothing is known of scaling" in law.limit(only(law))


def test_farther_from_the_runs_the_band_and_the_distance_grow() -> None:
    law = Generic().fit(power_runs())
    answer = law.predict(jobs_of(devices=[4.0, 16, 64, 256], global_batch=[64] * 4))
    width = np.log(answer.seconds[:, 2] / answer.seconds[:, 0])
    assert (np.diff(width) > 0).all()
    assert (np.diff(answer.distance) > 0).all()


def test_nine_of_ten_new_runs_lie_within_the_band() -> None:
    rng = np.random.default_rng(5)
    inside = []
    machines = np.tile([1.0, 2, 4, 8], 5)
    for _ in range(25):
        noise = np.exp(rng.normal(0, 0.1, 20))
        law = Generic().fit(runs_of(devices=machines, step_time_s=(5 + 90 / machines) * noise))
        low, _, high = law.predict(jobs_of(devices=[2.0])).seconds[0]
        new = 50 * np.exp(rng.normal(0, 0.1, 50))
        inside.append(np.mean((new >= low) & (new <= high)))
    assert 0.82 <= np.mean(inside) <= 0.97


def test_the_intervals_of_the_exponents_hold_the_truth_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(7)
    seconds = 0.2 * (DEVICES / 4) ** -0.8 * (BATCH / 64) ** 0.6
    held = []
    for _ in range(25):
        noisy = seconds * np.exp(rng.normal(0, 0.05, 12))
        law = only(Generic().fit(runs_of(devices=DEVICES, global_batch=BATCH, step_time_s=noisy)))
        reach = 1.6448536 * np.sqrt(np.diag(law.covariance))[-2:]
        low, high = law.exponents - reach, law.exponents + reach
        held.append((low <= [-0.8, 0.6]) & (high >= [-0.8, 0.6]))
    assert 0.7 <= np.mean(held) <= 1.0


def test_the_law_is_told_with_its_units_its_references_and_what_limits_it() -> None:
    (text,) = set(Generic().fit(power_runs()).formulas.values())
    assert text.startswith("seconds of a step = 0.2 s x (devices / 4)^-0.80 [-0.8")
    assert "x (global_batch / 64)^0.60 [" in text
    assert "] + 0.05 s (12 runs; [ ] hold 90 % (5 to 95 %); rate over that on 1 device: " in text
    assert "at 8 devices 70 % of the time is scaled work" in text


def test_the_verdict_on_scaling_counts_the_constant_of_the_law() -> None:
    seconds = 0.01 + 0.002 * BATCH / DEVICES + 0.003 * DEVICES
    law = Generic().fit(runs_of(devices=DEVICES, global_batch=BATCH, step_time_s=seconds))
    said = law.limit(only(law))
    asked = jobs_of(devices=[1, 8, 16], global_batch=[64, 64, 64])
    one, eight, more = law.predict(asked).seconds[:, 1]
    assert f"{one / eight:.2f} x on 8 ({100 * one / eight / 8:.0f} % of perfect)" in said
    assert f"{one / more:.2f} x on 16 ({100 * one / more / 16:.0f} % of perfect)" in said


def test_an_epoch_goes_by_the_size_of_its_dataset() -> None:
    size = np.tile([1e4, 3e4, 9e4], 4)
    seconds = 0.01 * size**0.9 / DEVICES**0.7
    law = Generic().fit(runs_of(devices=DEVICES, dataset_size=size, epoch_time_s=seconds))
    assert law.quantity == "epoch"
    answer = law.predict(jobs_of(devices=[4.0], dataset_size=[2e5]))
    assert answer.seconds[0, 1] == pytest.approx(0.01 * 2e5**0.9 / 4**0.7, rel=0.01)


def test_a_saved_predictor_answers_as_it_did() -> None:
    law = Generic(penalty="l1").fit(power_runs(optimizer="sgd"))
    again = Generic.from_json(law.to_json())
    jobs = jobs_of(devices=[4.0, 64], global_batch=[64, 32], optimizer=["sgd", "adam"])
    assert np.array_equal(again.predict(jobs).seconds, law.predict(jobs).seconds, equal_nan=True)
    assert again.declines(jobs) == law.declines(jobs)
    assert again.penalty == "l1"
    assert set(again.formulas.values()) == set(law.formulas.values())


@pytest.mark.parametrize(
    ("spoil", "found"),
    [(lambda t: t[:-9], "not its JSON"), (lambda t: "[]", "not its JSON"),
     (lambda t: re.sub(r'"version": [0-9]+', '"version": 99', t, count=1), "version is 99"),
     (lambda t: t.replace('"theta": [', '"theta": [1.0, '), "not its JSON"),
     (lambda t: t.replace('"scaling"', '"scalding"'), "not its JSON")],
)  # fmt: skip
def test_a_spoilt_model_is_refused(spoil: Callable[[str], str], found: str) -> None:
    with pytest.raises(RequestError, match=found):
        Generic.from_json(spoil(Generic().fit(power_runs()).to_json()))


def test_settings_that_do_not_exist_are_refused() -> None:
    for settings_ in ({"mode": "slow"}, {"penalty": "l3"}, {"errors": "square"}):
        with pytest.raises(RequestError, match="it knows"):
            Generic(**settings_)


def test_a_million_jobs_are_answered() -> None:
    """Their speed, and that of the fit, is that of benchmarks/laws_speed.py."""
    jobs = tiny_jobs()
    law = Generic().fit(tiny_runs(jobs.take(np.arange(1000) % len(jobs))))
    many = replace(jobs.take(np.arange(1_000_000) % len(jobs)), labels=None)
    assert law.predict(many).answered.all()


@pytest.mark.data
@pytest.mark.parametrize(
    ("split", "most"), [("above:devices=8", 10.5), ("interpolation:devices", 7.0)]
)
def test_pollux_between_and_beyond_the_measured_devices(split: str, most: float) -> None:
    """8.6 and 5.1 % were measured: a power law has no term for synchronisation that adds up."""
    runs = runs_from_table(read_table(published("pollux")), CATALOG)
    score = evaluate({"pollux": runs}, [Generic()], split).of("generic", "pollux")
    assert score.share_answered == 1.0
    assert score.median_ape < most
