"""Ernest: the published example to its digits, one law a workload and device, and reasons where none."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.catalog import load_catalog
from forerun.errors import RequestError
from forerun.evaluate import evaluate
from forerun.predictors.laws.ernest import Ernest, features
from forerun.tables import Jobs, Runs, Table
from forerun.tables.files import read_table
from forerun.testing import PredictorContract
from forerun.testing.samples import tiny_jobs, tiny_runs
from forerun.workloads.rows import jobs_from_table, runs_from_table
from tests.needs import published
from tests.predictors.laws.rows import UnfittedContract

CATALOG = load_catalog()
# Cores, fraction of the data, seconds: the published example of Ernest's own repository.
GOLDEN = np.array([
    (32, 0.125, 7.945168), (4, 0.015625, 4.720292), (4, 0.021382, 4.876611),
    (12, 0.050164, 6.713765), (12, 0.055921, 6.715194), (12, 0.061678, 6.673972),
    (16, 0.061678, 6.835670),
])  # fmt: skip
FORETOLD = {
    4: 44.6515640, 8: 25.4777295, 12: 19.3634805, 16: 16.4412833, 20: 14.7682298, 24: 13.7061637,
    28: 12.9855393,
}  # fmt: skip


def table(machines: Any, size: Any, **columns: Any) -> Table:
    """Return rows of one workload on one machine that no catalogue knows."""
    n = len(machines)
    given: dict[str, Any] = {"workload": "sgd-job", "device": "core", "devices": machines,
                             "dataset_size": size, **columns}  # fmt: skip
    spread = {k: ([v] * n if isinstance(v, str) else list(v)) for k, v in given.items()}
    return Table.from_columns(spread, "sample rows")


def runs_of(machines: Any, size: Any, **columns: Any) -> Runs:
    return runs_from_table(table(machines, size, **columns), CATALOG)


def jobs_of(machines: Any, size: Any, **columns: Any) -> Jobs:
    return jobs_from_table(table(machines, size, **columns), CATALOG)


def golden_runs(column: str = "time_to_train_s", **more: Any) -> Runs:
    return runs_of(GOLDEN[:, 0], GOLDEN[:, 1], **{column: GOLDEN[:, 2]}, **more)


class TestErnest(PredictorContract):
    """Fitted to small transformers."""

    def make_predictor(self) -> Ernest:
        return Ernest().fit(tiny_runs())


class TestUnfittedErnest(UnfittedContract):
    """Without runs it answers nothing, and keeps the rest of the contract."""

    def make_predictor(self) -> Ernest:
        return Ernest()


@pytest.mark.parametrize(
    ("column", "quantity"),
    [("time_to_train_s", "run"), ("epoch_time_s", "epoch"), ("step_time_s", "step")],
)
def test_the_published_example_is_reproduced(column: str, quantity: str) -> None:
    law = Ernest().fit(golden_runs(column))
    theta = law.laws["sgd-job", "core"].theta
    expected = [1.90012687, 162.19821226, 1.58832362, 0]
    assert theta == pytest.approx(expected, rel=1e-5, abs=1e-12)
    answer = law.predict(jobs_of(list(FORETOLD), np.ones(len(FORETOLD))))
    assert answer.quantity == quantity
    assert answer.seconds[:, 1] == pytest.approx(list(FORETOLD.values()), rel=1e-5)


@settings(max_examples=25)
@given(
    st.lists(st.floats(0.0, 100.0), min_size=4, max_size=4).filter(lambda t: t[0] + t[1] > 0.1),
    st.integers(0, 1000),
)
def test_a_law_without_noise_is_found_and_foretold(theta: list[float], seed: int) -> None:
    rng = np.random.default_rng(seed)
    machines, size = np.tile([1, 2, 4, 8, 16], 3), rng.uniform(0.5, 20.0, 15)
    seconds = features(size, machines) @ np.array(theta)
    law = Ernest().fit(runs_of(machines, size, time_to_train_s=seconds))
    answer = law.predict(jobs_of([3, 32, 64], [7.0, 30.0, 1.0]))
    truth = features([7.0, 30.0, 1.0], [3, 32, 64]) @ np.array(theta)
    assert answer.seconds[:, 1] == pytest.approx(truth, rel=1e-6)


def test_a_step_goes_by_its_global_batch() -> None:
    machines, batch = np.array([1, 2, 4, 8, 1, 2]), np.array([64, 64, 64, 64, 128, 256])
    seconds = 0.01 + 0.002 * batch / machines
    law = Ernest().fit(runs_of(machines, np.full(6, 5e4), global_batch=batch, step_time_s=seconds))
    assert law.laws["sgd-job", "core"].size == "global_batch"
    answer = law.predict(jobs_of([4], [5e4], global_batch=[512]))
    assert answer.seconds[0, 1] == pytest.approx(0.01 + 0.002 * 128, rel=1e-6)
    unsaid = law.predict(jobs_of([4], [5e4]))
    assert unsaid.declined.tolist() == ["the row does not state global_batch"]


def test_runs_that_state_no_size_are_all_of_one() -> None:
    machines = np.array([1, 2, 4, 8])
    none = np.full(4, np.nan)
    law = Ernest().fit(runs_of(machines, none, time_to_train_s=5 + 80 / machines))
    assert law.predict(jobs_of([16], [np.nan])).seconds[0, 1] == pytest.approx(10.0, rel=1e-6)


def test_each_setting_has_its_law_and_another_setting_is_farther() -> None:
    machines = np.tile([1, 2, 4, 8], 2)
    framework = ["slow"] * 4 + ["fast"] * 4
    seconds = 100.0 / machines * np.repeat([2.0, 1.0], 4)
    law = Ernest().fit(runs_of(machines, np.ones(8), framework=framework, time_to_train_s=seconds))
    answer = law.predict(jobs_of([4] * 3, np.ones(3), framework=["slow", "fast", "third"]))
    assert answer.seconds[:2, 1] == pytest.approx([50.0, 25.0], rel=1e-6)
    assert 25.0 < answer.seconds[2, 1] < 50.0
    assert answer.distance[2] > answer.distance[0]
    width = answer.seconds[:, 2] / answer.seconds[:, 0]
    assert width[2] > 1.5 * width[0]


def test_farther_from_the_runs_the_band_and_the_distance_grow() -> None:
    law = Ernest().fit(golden_runs())
    answer = law.predict(jobs_of([12, 32, 64, 128, 512], [0.055, 0.125, 0.25, 0.5, 2.0]))
    width = np.log(answer.seconds[:, 2] / answer.seconds[:, 0])
    assert (np.diff(answer.distance[1:]) > 0).all()
    assert (np.diff(width[1:]) > 0).all()
    assert answer.distance[0] == answer.distance[1] < 0.15


def test_noise_that_leans_to_one_side_makes_a_band_that_does() -> None:
    rng = np.random.default_rng(3)
    machines = np.tile([1, 2, 4, 8, 16], 40)
    seconds = (10 + 200 / machines) * np.exp(rng.exponential(0.2, 200))
    answer = Ernest().fit(
        runs_of(machines, np.ones(200), time_to_train_s=seconds)
    ).predict(jobs_of([4], [1.0]))  # fmt: skip
    low, middle, high = answer.seconds[0]
    assert np.log(high / middle) > 1.3 * np.log(middle / low)


def test_nine_of_ten_new_runs_lie_within_the_band() -> None:
    rng = np.random.default_rng(5)
    inside = []
    for _ in range(40):
        machines = np.tile([1, 2, 4, 8], 5)
        noise = np.exp(rng.normal(0, 0.1, 20))
        law = Ernest().fit(
            runs_of(machines, np.ones(20), time_to_train_s=(5 + 90 / machines) * noise)
        )
        low, _, high = law.predict(jobs_of([2], [1.0])).seconds[0]
        new = 50 * np.exp(rng.normal(0, 0.1, 50))
        inside.append(np.mean((new >= low) & (new <= high)))
    assert 0.85 <= np.mean(inside) <= 0.97


def test_what_it_has_no_runs_of_is_declined_by_name() -> None:
    law = Ernest().fit(golden_runs())
    other = law.declines(jobs_of([4, 4], [1.0, 1.0], workload=["tsp-job", "sgd-job"],
                                 device=["core", "abacus"]))  # fmt: skip
    assert "no runs of tsp-job on core" in str(other[0])
    assert "no runs of sgd-job on abacus" in str(other[1])
    assert "at least 3 runs" in str(other[1])


def test_too_few_runs_are_counted_and_the_kind_that_is_lacking_is_named() -> None:
    names = ["sgd-job"] * 7 + ["rare"] * 2
    both = np.concatenate([GOLDEN, GOLDEN[:2]])
    law = Ernest().fit(runs_of(both[:, 0], both[:, 1], workload=names, time_to_train_s=both[:, 2]))
    (reason,) = law.declines(jobs_of([4], [1.0], workload="rare"))
    assert "no law of rare on core: only 2 different runs; give at least 3" in str(reason)
    with pytest.raises(
        RequestError, match=r"sgd-job on core: only 1 different run; give at least 3 runs"
    ):
        Ernest().fit(runs_of([4] * 5, [1.0] * 5, time_to_train_s=[3.0, 3.1, 3.0, 2.9, 3.0]))


def test_runs_on_one_number_of_devices_do_not_speak_of_another() -> None:
    law = Ernest().fit(runs_of([4] * 4, [1, 2, 3, 4], time_to_train_s=[2.0, 3.0, 4.0, 5.0]))
    same, other = law.declines(jobs_of([4, 8], [6.0, 6.0]))
    assert same is None
    assert "all on one number of devices" in str(other)


def test_runs_that_did_not_end_or_have_no_time_teach_nothing() -> None:
    status = ["ok"] * 7 + ["timeout", "failed", "ok", "ok"]
    more = np.concatenate(
        [GOLDEN, [(64, 1.0, 600.0), (64, 1.0, 1.0), (64, 1.0, 0.0), (8, 1.0, -3)]]
    )
    runs = runs_of(more[:, 0], more[:, 1], time_to_train_s=more[:, 2], status=status)
    assert Ernest().fit(runs).laws["sgd-job", "core"].runs == 7
    with pytest.raises(RequestError, match="none that ended"):
        Ernest().fit(runs.take(np.arange(7, 11)))


def test_a_fit_forgets_the_fit_before_it() -> None:
    first = Ernest().fit(golden_runs())
    second = first.fit(golden_runs(workload="another"))
    assert second.predict(jobs_of([4], [1.0])).declined[0] is not None
    assert first.predict(jobs_of([4], [1.0])).declined[0] is None


def test_the_law_is_told_with_its_units_and_its_limit() -> None:
    (text,) = Ernest().fit(golden_runs()).formulas.values()
    assert text.startswith("seconds of a run = 1.9 [")
    assert "162 [" in text
    assert "] s a sample x dataset_size / machines + 1.59 [" in text
    assert "(7 runs; [ ] hold 90 % (5 to 95 %); log is natural; rate over that on 4" in text
    assert " x on 32 (" in text
    assert " x on 64 (" in text
    assert "at 32 devices " in text


def test_intervals_hold_the_terms_that_made_the_runs() -> None:
    machines = np.tile([1.0, 2, 4, 8, 16], 4)
    held = []
    for seed in range(30):
        noise = np.exp(np.random.default_rng(seed).normal(0, 0.05, 20))
        seconds = (5 + 90 / machines) * noise
        law = Ernest().fit(runs_of(machines, np.ones(20), time_to_train_s=seconds))
        found = law.laws["sgd-job", "core"]
        held.append(abs(found.theta[1] - 90) <= found.half_widths[1])
    assert 0.7 <= np.mean(held) <= 1.0


def test_a_saved_predictor_answers_as_it_did() -> None:
    law, jobs = Ernest().fit(golden_runs()), jobs_of([4, 64], [1.0, 1.0])
    again = Ernest.from_json(law.to_json())
    assert np.array_equal(again.predict(jobs).seconds, law.predict(jobs).seconds)
    assert again.declines(jobs_of([4], [1.0], workload="x")) == law.declines(
        jobs_of([4], [1.0], workload="x")
    )


@pytest.mark.parametrize(
    ("spoil", "found"),
    [(lambda t: t[:-9], "not its JSON"), (lambda t: "[]", "not its JSON"),
     (lambda t: re.sub(r'"version": [0-9]+', '"version": 9', t, count=1), "version is 9"),
     (lambda t: t.replace('"theta"', '"teta"'), "not its JSON")],
)  # fmt: skip
def test_a_spoilt_model_is_refused(spoil: Callable[[str], str], found: str) -> None:
    with pytest.raises(RequestError, match=found):
        Ernest.from_json(spoil(Ernest().fit(golden_runs()).to_json()))


def test_a_million_jobs_are_answered() -> None:
    """Their speed, and that of the fit, is that of benchmarks/laws_speed.py."""
    jobs = tiny_jobs()
    law = Ernest().fit(tiny_runs(jobs.take(np.arange(1000) % len(jobs))))
    many = replace(jobs.take(np.arange(1_000_000) % len(jobs)), labels=None)
    assert law.predict(many).answered.all()


@pytest.mark.data
@pytest.mark.parametrize(("split", "most"), [("above:devices=8", 11.0), ("between:devices", 9.0)])
def test_pollux_between_and_beyond_the_measured_devices(split: str, most: float) -> None:
    """9.4 and 7.2 % were measured; the seven-parameter goodput law errs by 4.5 to 13 % beyond."""
    runs = runs_from_table(read_table(published("pollux")), CATALOG)
    score = evaluate({"pollux": runs}, [Ernest()], split).of("ernest", "pollux")
    assert score.share_answered == 1.0
    assert score.median_ape < most
