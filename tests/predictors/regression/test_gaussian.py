"""Gaussian: what runs state, foretold between and near them, with bands that hold and reasons where none."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.optimize

from forerun.catalog import load_catalog
from forerun.errors import RequestError
from forerun.predictors.regression.gaussian import Gaussian, expected_seconds
from forerun.tables import Jobs, Runs, Table
from forerun.tables.files import read_table
from forerun.testing import PredictorContract
from forerun.testing.samples import tiny_runs
from forerun.workloads.rows import jobs_from_table, runs_from_table
from tests.needs import published
from tests.predictors.laws.rows import UnfittedContract

CATALOG = load_catalog()


def table(devices: Any, micro_batch: Any, **columns: Any) -> Table:
    """Return rows of one workload on one machine that no catalogue knows."""
    n = len(devices)
    given: dict[str, Any] = {"workload": "net", "device": "core", "devices": devices,
                             "micro_batch": micro_batch, **columns}  # fmt: skip
    spread = {k: ([v] * n if isinstance(v, str) else list(v)) for k, v in given.items()}
    return Table.from_columns(spread, "sample rows")


def jobs_of(devices: Any, micro_batch: Any, **columns: Any) -> Jobs:
    return jobs_from_table(table(devices, micro_batch, **columns), CATALOG)


def runs_of(devices: Any, micro_batch: Any, **columns: Any) -> Runs:
    return runs_from_table(table(devices, micro_batch, **columns), CATALOG)


def law(devices: Any, micro_batch: Any) -> np.ndarray:
    """Return the seconds of a step that shares nothing and waits a little for each device."""
    return 0.01 + 0.003 * np.asarray(micro_batch) + 0.004 * np.log2(np.asarray(devices) + 1.0)


def scaling_runs(noise: float = 0.0, seed: int = 0, most: int = 16, **columns: Any) -> Runs:
    """Return runs on 1 to `most` devices with four batches each."""
    counts = [k for k in (1, 2, 3, 4, 6, 8, 12, 16) if k <= most]
    devices, micro = np.repeat(counts, 4), np.tile([8, 16, 32, 64], len(counts))
    off = np.exp(np.random.default_rng(seed).normal(0, noise, len(devices)))
    return runs_of(devices, micro, step_time_s=law(devices, micro) * off, **columns)


class TestGaussian(PredictorContract):
    """Fitted to small transformers."""

    def make_predictor(self) -> Gaussian:
        return Gaussian().fit(tiny_runs())


class TestUnfittedGaussian(UnfittedContract):
    """Without runs it answers nothing, and keeps the rest of the contract."""

    def make_predictor(self) -> Gaussian:
        return Gaussian()


def test_between_its_runs_it_is_near_the_truth() -> None:
    model = Gaussian().fit(scaling_runs())
    answer = model.predict(jobs_of([5, 10, 14], [24, 12, 48]))
    assert answer.quantity == "step"
    assert answer.seconds[:, 1] == pytest.approx(law([5, 10, 14], [24, 12, 48]), rel=0.02)


@pytest.mark.parametrize(
    ("column", "quantity"), [("epoch_time_s", "epoch"), ("time_to_train_s", "run")]
)
def test_it_foretells_the_time_that_its_runs_have(column: str, quantity: str) -> None:
    runs = runs_of([1, 2, 4, 8] * 2, [8] * 8, dataset_size=[10] * 4 + [20] * 4,
                   **{column: [80, 40, 20, 10, 160, 80, 40, 20]})  # fmt: skip
    answer = Gaussian().fit(runs).predict(jobs_of([4], [8], dataset_size=[15]))
    assert answer.quantity == quantity
    assert answer.seconds[0, 1] == pytest.approx(30, rel=0.1)


def test_the_band_grows_with_every_doubling_beyond_the_runs() -> None:
    model = Gaussian().fit(scaling_runs(noise=0.02, most=8))
    answer = model.predict(jobs_of([8, 16, 32, 64, 128], [16] * 5))
    widths = np.log(answer.seconds[:, 2] / answer.seconds[:, 0])
    assert (np.diff(widths) > 0).all()
    assert (np.diff(answer.distance) > 0).all()


def test_nine_of_ten_new_runs_lie_within_the_band() -> None:
    inside = []
    for seed in range(6):
        model = Gaussian().fit(scaling_runs(noise=0.08, seed=seed))
        new = scaling_runs(noise=0.08, seed=seed + 100)
        seconds = model.predict(new.jobs).seconds
        facts = new.step_seconds()
        inside.append(np.mean((facts >= seconds[:, 0]) & (facts <= seconds[:, 2])))
    assert 0.82 <= np.mean(inside) <= 0.98


def test_repeats_that_differ_widen_the_band_of_one_reading() -> None:
    devices, micro = np.repeat([1, 2, 4, 8], 10), np.full(40, 8)
    rng = np.random.default_rng(0)
    runs = runs_of(devices, micro, step_time_s=np.exp(rng.normal(0, 0.3, 40)) / devices)
    low, _, high = Gaussian().fit(runs).predict(jobs_of([4], [8])).seconds[0]
    assert 0.6 < np.log(high / low) < 2.0


def test_a_workload_or_device_without_runs_is_declined_by_name() -> None:
    model = Gaussian().fit(scaling_runs())
    other = model.declines(jobs_of([4, 4], [8, 8], workload=["other", "net"],
                                   device=["core", "abacus"]))  # fmt: skip
    assert "no runs of other on core" in str(other[0])
    assert "no runs of net on abacus" in str(other[1])


def test_kinds_with_few_runs_teach_one_another() -> None:
    kinds = [f"net-{i}" for i in range(6)]
    speed = dict(zip(kinds, (1, 2, 3, 5, 8, 13), strict=True))
    name = np.repeat(kinds, 4)
    devices = np.tile([1, 2, 4, 8], 6)
    seconds = np.array([speed[w] for w in name]) * (0.2 + 1 / devices)
    keep = ~((name == "net-3") & (devices > 2))
    runs = runs_of(devices[keep], np.full(keep.sum(), 8), workload=list(name[keep]),
                   step_time_s=seconds[keep])  # fmt: skip
    model = Gaussian(physics=False).fit(runs)
    answer = model.predict(jobs_of([8], [8], workload="net-3"))
    assert answer.seconds[0, 1] == pytest.approx(5 * (0.2 + 1 / 8), rel=0.1)


def test_steps_by_all_reduce_go_by_the_law_of_physics_where_it_speaks() -> None:
    runs = scaling_runs(noise=0.02, most=8)
    plain, based = Gaussian(physics=False).fit(runs), Gaussian().fit(runs)
    assert plain.base is None
    assert based.base is not None
    far = jobs_of([64], [16])
    errors = [
        abs(np.log(m.predict(far).seconds[0, 1] / law([64], [16])[0])) for m in (plain, based)
    ]
    assert errors[1] < max(errors[0], 0.15)
    ended = runs_of([1, 2, 4, 8] * 2, [8] * 8, time_to_train_s=[80, 40, 20, 10] * 2)
    assert Gaussian().fit(ended).base is None


def test_settings_without_runs_are_farther_and_less_sure() -> None:
    model = Gaussian().fit(scaling_runs(noise=0.02, framework="fast"))
    same = model.predict(jobs_of([4], [16], framework="fast"))
    other = model.predict(jobs_of([4], [16], framework="slow"))
    assert other.distance[0] > same.distance[0]
    assert other.seconds[0, 2] > same.seconds[0, 2]


def test_a_number_that_the_runs_went_by_must_be_stated() -> None:
    model = Gaussian().fit(scaling_runs())
    reasons = model.declines(jobs_of([4, np.nan], [np.nan, 8]))
    assert reasons[0] == "the row does not state micro_batch"
    assert "devices" in str(reasons[1])


def test_constant_and_collinear_columns_are_left_out_and_named() -> None:
    devices = np.tile([1, 2, 4, 8], 4)
    runs = runs_of(devices, np.repeat([8, 16, 32, 64], 4), dataset_size=devices * 1000.0,
                   learning_rate=[0.1] * 16, step_time_s=1.0 / devices)  # fmt: skip
    model = Gaussian().fit(runs)
    (block,) = model.blocks.values()
    assert "learning_rate" not in block.design.names
    assert "dataset_size" in block.design.left_out
    text = model.formulas["kinds with few runs"]
    assert "dataset_size" in text.split(";")[-1]
    assert "mixtures of others" in text


def test_runs_without_a_usable_time_teach_nothing() -> None:
    good = runs_of([1, 2, 4, 8, 8, 8, 8], [8] * 7, step_time_s=[8, 4, 2, 1, 0, -1, np.inf])
    assert sum(Gaussian().fit(good).kinds.values()) == 4
    with pytest.raises(RequestError, match=r"3 that ended have a time.*at least 4 runs"):
        Gaussian().fit(good.take(np.arange(1, 7)))
    stopped = runs_of([1, 2, 4, 8], [8] * 4, time_to_train_s=[600] * 4, status=["timeout"] * 4)
    with pytest.raises(RequestError, match="0 that ended have a time"):
        Gaussian().fit(stopped)
    unsaid = runs_of([np.nan] * 5, [8] * 5, step_time_s=[1.0] * 5)
    with pytest.raises(RequestError, match="0 of these state their devices"):
        Gaussian().fit(unsaid)


def test_errors_of_neighbours_go_together_and_the_diagonal_is_the_band() -> None:
    model = Gaussian().fit(scaling_runs(noise=0.05, most=8))
    jobs = jobs_of([32, 36, 1], [16, 16, 16], workload=["net", "net", "net"])
    covariance = model.log_covariance(jobs)
    correlation = covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1])
    assert correlation > 0.5 > covariance[0, 2] / np.sqrt(covariance[0, 0] * covariance[2, 2])
    seconds, (block,) = model.predict(jobs).seconds, model.blocks.values()
    sigma = np.log(seconds[:, 2] / seconds[:, 1]) / 1.6449 / block.tails[1]
    assert np.sqrt(np.diag(covariance)) == pytest.approx(sigma, rel=1e-3)
    assert np.isnan(model.log_covariance(jobs_of([4], [8], workload="other"))).all()


def test_a_saved_predictor_answers_as_it_did() -> None:
    model, jobs = Gaussian().fit(scaling_runs(noise=0.05)), jobs_of([5, 64], [8, 8])
    again = Gaussian.from_json(model.to_json())
    assert again.predict(jobs).seconds == pytest.approx(model.predict(jobs).seconds, rel=1e-6)
    assert again.declines(jobs_of([4], [8], workload="x")) == model.declines(
        jobs_of([4], [8], workload="x")
    )


@pytest.mark.parametrize(
    ("spoil", "found"),
    [(lambda t: t[:-9], "not its JSON"), (lambda t: "[]", "not its JSON"),
     (lambda t: re.sub(r'"version": [0-9]+', '"version": 9', t, count=1), "version is 9"),
     (lambda t: t.replace('"lengths"', '"width"'), "not its JSON")],
)  # fmt: skip
def test_a_spoilt_model_is_refused(spoil: Callable[[str], str], found: str) -> None:
    with pytest.raises(RequestError, match=found):
        Gaussian.from_json(spoil(Gaussian().fit(scaling_runs()).to_json()))


@pytest.mark.parametrize("repeats", [1, 5])
def test_nine_of_ten_new_configurations_lie_within_the_band(repeats: int) -> None:
    """Each configuration is off by something of its own, which its repeats share."""
    inside = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        places, times = rng.permutation(49), np.repeat([repeats, 1], [24, 25])
        devices, micro = (np.array([1, 2, 3, 4, 6, 8, 12])[places // 7],
                          np.array([8, 12, 16, 24, 32, 48, 64])[places % 7])  # fmt: skip
        own = np.exp(rng.normal(0, 0.05, len(places)))
        off = np.repeat(own, times) * np.exp(rng.normal(0, 0.01, times.sum()))
        devices, micro = np.repeat(devices, times), np.repeat(micro, times)
        every = runs_of(devices, micro, step_time_s=law(devices, micro) * off)
        last = np.arange(len(every)) >= 24 * repeats
        seconds = Gaussian().fit(every.take(~last)).predict(every.take(last).jobs).seconds
        facts = every.take(last).step_seconds()
        inside.append(np.mean((facts >= seconds[:, 0]) & (facts <= seconds[:, 2])))
    assert 0.84 <= np.mean(inside) <= 0.99


def test_a_search_that_does_not_converge_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Gaussian().fit(scaling_runs(noise=0.05)).warnings == ()
    real = scipy.optimize.minimize

    def short(*given: Any, **options: Any) -> Any:
        return real(*given, **{**options, "options": {"maxiter": 1}})

    monkeypatch.setattr(scipy.optimize, "minimize", short)
    model = Gaussian().fit(scaling_runs(noise=0.05))
    (said,) = model.warnings
    assert "did not converge; the best found serve" in said
    again = Gaussian.from_json(model.to_json())
    assert again.predict(jobs_of([4], [8])).warnings == model.warnings


@pytest.mark.data
def test_left_out_runs_of_sia_lie_near_and_within_the_band() -> None:
    """2.4 % was measured, and 2.8 % on pollux: readings of one point differ by that themselves."""
    every = runs_from_table(read_table(published("sia")), CATALOG)
    left = np.arange(len(every)) % 5 == 0
    model = Gaussian(most=800, tuned=150).fit(every.take(~left))
    seconds, facts = model.predict(every.take(left).jobs).seconds, every.take(left).step_seconds()
    assert np.median(np.abs(seconds[:, 1] / facts - 1)) < 0.03
    assert 0.85 <= np.mean((facts >= seconds[:, 0]) & (facts <= seconds[:, 2])) <= 0.97


def test_a_run_that_was_stopped_teaches_that_it_takes_longer() -> None:
    """Runs of a rate that nobody saw the end of are not foretold as short as those that ended."""
    devices = np.tile([1, 2, 4, 8, 16], 6)
    rate = np.repeat([1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6], 5)
    truth = (
        40
        * (1e-1 / rate) ** 0.3
        / devices**0.5
        * np.exp(np.random.default_rng(0).normal(0, 0.05, 30))
    )
    status = ["ok" if seconds < 200 else "timeout" for seconds in truth]
    runs = runs_of(devices, np.full(30, 8), learning_rate=rate, status=status,
                   time_to_train_s=np.minimum(truth, 200.0))  # fmt: skip
    late = runs.status == "timeout"
    assert 3 < late.sum() < 20
    said = Gaussian().fit(runs).predict(runs.jobs.take(late)).seconds
    deaf = Gaussian().fit(runs.take(~late)).predict(runs.jobs.take(late)).seconds
    assert (said[:, 1] > 190).all()
    assert np.median(said[:, 1] / deaf[:, 1]) > 0.95
    ended = Gaussian().fit(runs).predict(runs.jobs.take(~late)).seconds[:, 1]
    assert np.median(np.abs(ended / truth[~late] - 1)) < 0.1


def test_a_time_above_a_bound_is_expected_above_both() -> None:
    foretold = np.array([[50.0, 100.0, 200.0]] * 4)
    least = np.array([1e-3, 100.0, 400.0, 1e6])
    expected = expected_seconds(foretold, least)
    assert expected[0] == pytest.approx(100.0, rel=0.01)
    sigma = np.log(2.0) / 1.6449
    assert expected[1] == pytest.approx(100 * np.exp(sigma * np.sqrt(2 / np.pi)), rel=1e-3)
    assert (expected[1:] >= least[1:] * (1 - 1e-9)).all()
    assert (np.diff(expected) > 0).all()


def test_its_words_name_the_mean_the_features_and_what_the_bands_hold() -> None:
    devices, micro = np.tile([1.0, 2, 4, 8], 4), np.repeat([8.0, 16, 32, 64], 4)
    seconds = 0.02 + 0.001 * micro + 0.003 * devices
    model = Gaussian().fit(runs_of(devices, micro, step_time_s=seconds))
    text = model.formulas["kinds with few runs"]
    assert "a line in log devices" in text or "a line in log micro_batch" in text
    assert "a line in," not in text
    assert "log is natural" in text
    assert "bands hold 90 % (5 to 95 %)" in text
    if model.base is not None:
        assert any(name.endswith(", the mean") for name in model.formulas)
