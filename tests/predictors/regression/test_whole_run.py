"""WholeRun: seconds until a target by device, dataset and workload, from runs that time no step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from forerun.domain.quantiles import Z95
from forerun.errors import RequestError
from forerun.evaluate import evaluate
from forerun.predictors.choice import Auto
from forerun.predictors.regression.whole_run import WholeRun
from forerun.tables import Jobs, Runs
from forerun.tables.files import read_table
from forerun.testing import PredictorContract
from forerun.workloads.rows import runs_from_table
from tests.needs import published
from tests.predictors.laws.rows import CATALOG, UnfittedContract, jobs_of, runs_of

# Hours on one k80, of made-up nets; how many times faster the others are.
HOURS = {"net-a": 4.0, "net-b": 1.0, "net-c": 0.1, "net-d": 12.0}
FASTER = {"k80": 1.0, "p100": 3.0, "v100": 5.0}
SCALING = 0.8  # power of the devices


def seconds(workload: str, device: str, devices: float) -> float:
    """Return the seconds of a whole run by known effects."""
    return 3600 * HOURS[workload] / FASTER[device] / devices**SCALING


def grid(
    noise: float = 0.03, seed: int = 0, skip: tuple[tuple[str, str, int], ...] = ()
) -> dict[str, list[Any]]:
    """Return columns of runs of every net on 1, 2 and 4 of every device, less some."""
    rng = np.random.default_rng(seed)
    keys = [(w, d, n) for w in HOURS for d in FASTER for n in (1, 2, 4) if (w, d, n) not in skip]
    times = [seconds(*key) * float(np.exp(noise * rng.standard_normal())) for key in keys]
    columns = dict(
        zip(("workload", "device", "devices"), map(list, zip(*keys, strict=True)), strict=True)
    )
    return {**columns, "dataset": ["images"] * len(keys), "time_to_train_s": times}


def asked(*keys: tuple[str, str, float], **columns: Any) -> Jobs:
    """Return jobs of nets on a number of devices."""
    workload, device, devices = map(list, zip(*keys, strict=True))
    return jobs_of(
        workload=workload, device=device, devices=devices, **{"dataset": "images", **columns}
    )


class TestWholeRun(PredictorContract):
    """Fitted to whole runs of made-up nets."""

    def make_predictor(self) -> WholeRun:
        return WholeRun().fit(self.make_runs())

    def make_runs(self) -> Runs:
        return runs_of(**grid())

    def make_jobs(self) -> Jobs:
        return asked(
            ("net-a", "k80", 1), ("net-b", "v100", 4), ("net-e", "p100", 2), ("net-c", "t4", 1)
        )


class TestUnfittedWholeRun(UnfittedContract):
    """Without runs it answers nothing, and keeps the rest of the contract."""

    def make_predictor(self) -> WholeRun:
        return WholeRun()

    def make_runs(self) -> Runs:
        return runs_of(**grid())


def test_known_effects_are_found_again_where_a_configuration_is_left_out() -> None:
    skip = (("net-a", "v100", 4), ("net-d", "k80", 1), ("net-c", "p100", 2))
    answer = WholeRun().fit(runs_of(**grid(skip=skip))).predict(asked(*skip))
    assert answer.quantity == "run"
    assert answer.seconds[:, 1] == pytest.approx([seconds(*key) for key in skip], rel=0.12)


def test_bands_hold_nine_in_ten_of_new_runs() -> None:
    hits = []
    for seed in range(4):
        skip = (("net-a", "p100", 2), ("net-d", "v100", 1), ("net-b", "k80", 4))
        answer = WholeRun().fit(runs_of(**grid(0.1, seed, skip))).predict(asked(*skip)).seconds
        rng = np.random.default_rng(100 + seed)
        real = np.array([[seconds(*key)] for key in skip]) * np.exp(
            0.1 * rng.standard_normal((3, 20))
        )
        hits.append((real >= answer[:, :1]) & (real <= answer[:, 2:]))
    assert 0.82 <= np.mean(hits) <= 1.0


def test_a_workload_without_runs_is_answered_by_its_dataset_with_a_band_as_wide_as_workloads_differ() -> (
    None
):
    answer = (
        WholeRun().fit(runs_of(**grid())).predict(asked(("net-a", "p100", 1), ("net-z", "p100", 1)))
    )
    width = answer.seconds[:, 2] / answer.seconds[:, 0]
    assert width[0] < 1.5
    assert width[1] > 20
    assert answer.distance[0] < answer.distance[1]


def test_neither_workload_nor_dataset_is_declined_with_what_to_give() -> None:
    model = WholeRun().fit(runs_of(**grid()))
    answer = model.predict(asked(("net-z", "p100", 1), dataset="speech"))
    assert answer.declined[0] == (
        "no run of net-z or on its dataset, and a whole run can be of any length; give one"
    )
    assert np.isnan(answer.seconds).all()


def test_one_workload_says_nothing_of_another() -> None:
    runs = runs_of(
        workload="net", dataset="images", device="v100", devices=[1, 2, 4, 8],
        time_to_train_s=[800.0, 400, 210, 110],
    )  # fmt: skip
    model = WholeRun().fit(runs)
    answer = model.predict(
        jobs_of(workload=["net", "net", "other"], dataset=["images", "speech", "images"],
                device="v100", devices=[2, 2, 2])
    )  # fmt: skip
    assert list(answer.answered) == [True, True, False]
    width = answer.seconds[:2, 2] / answer.seconds[:2, 0]
    assert width[1] > 1.5 * width[0]


def test_where_runs_scale_more_devices_are_never_slower() -> None:
    model = WholeRun().fit(runs_of(**grid()))
    for device in FASTER:
        middle = model.predict(asked(*(("net-a", device, n) for n in (1, 2, 3, 4, 6)))).seconds[
            :, 1
        ]
        assert (np.diff(middle) < 0).all()


def test_few_runs_go_by_the_speed_of_devices_in_the_catalogue() -> None:
    runs = runs_of(
        workload="net", dataset="images", device="k80", devices=[1, 1, 2, 2],
        time_to_train_s=[8000.0, 8200, 4100, 4300],
    )  # fmt: skip
    middle = WholeRun().fit(runs).predict(
        jobs_of(workload="net", dataset="images", device=["k80", "v100"], devices=[1, 1])
    ).seconds[:, 1]  # fmt: skip
    assert 4 < middle[0] / middle[1] < 12


def test_all_times_doubled_double_the_forecasts() -> None:
    columns, jobs = grid(), asked(("net-a", "k80", 1), ("net-c", "v100", 3), ("net-z", "p100", 1))
    once = WholeRun().fit(runs_of(**columns)).predict(jobs).seconds
    columns["time_to_train_s"] = [2 * one for one in columns["time_to_train_s"]]
    twice = WholeRun().fit(runs_of(**columns)).predict(jobs).seconds
    assert twice == pytest.approx(2 * once, rel=1e-3)


def test_a_device_nobody_knows_and_devices_that_are_not_stated_are_answered_with_wider_bands() -> (
    None
):
    model = WholeRun().fit(runs_of(**grid()))
    answer = model.predict(
        asked(("net-a", "p100", 1), ("net-a", "no-such-chip", 1), ("net-a", "", np.nan))
    )
    assert answer.answered.all()
    width = answer.seconds[:, 2] / answer.seconds[:, 0]
    assert width[0] < width[1] < np.inf
    # As far as devices times speed differ among the runs; tails are 0.6 of a normal distribution's at least.
    assert 2 * 0.6 * Z95 * model.work[1] < np.log(width[2]) < np.inf


def test_it_is_saved_and_read_back_the_same() -> None:
    model, jobs = TestWholeRun().make_predictor(), TestWholeRun().make_jobs()
    again = WholeRun.from_json(model.to_json())
    assert np.array_equal(again.predict(jobs).seconds, model.predict(jobs).seconds)


def test_runs_without_whole_times_are_refused_with_what_to_give() -> None:
    with pytest.raises(RequestError, match="time_to_train_s"):
        WholeRun().fit(runs_of(devices=[1, 2, 4, 8], step_time_s=[4.0, 2, 1, 0.5]))


def test_evaluate_judges_cost_beside_time_at_the_price_of_each_row() -> None:
    columns = grid()
    price = [{"k80": 0.9, "p100": 1.5, "v100": 3.0}[d] * n
             for d, n in zip(columns["device"], columns["devices"], strict=True)]  # fmt: skip
    rows = runs_of(**columns, price_usd_per_hour=price, ref=[str(i) for i in range(len(price))])
    once = evaluate({"made up": rows}, [WholeRun()], "random").of("whole-run")
    assert (once.cost_rows, once.cost_answered) == (36, 36)
    assert once.cost_tau > 0.9
    assert once.cost_median_ape == pytest.approx(once.median_ape)
    double = replace(rows, table=rows.table.with_columns(price_usd_per_hour=2 * np.array(price)))
    assert (
        evaluate({"made up": double}, [WholeRun()], "random").of("whole-run").cost_tau
        == once.cost_tau
    )
    # Dollars that a row states come before its price times its time, and are judged at that price.
    paid = np.array(price) * rows.table.numbers("time_to_train_s") / 3600
    billed = replace(rows, table=rows.table.with_columns(cost_usd=2 * paid))
    found = evaluate({"made up": billed}, [WholeRun()], "random").of("whole-run")
    assert found.cost_tau == once.cost_tau
    assert 40 < found.cost_median_ape < 60


def test_auto_answers_whole_runs_of_a_workload_that_nobody_ran() -> None:
    answer = (
        Auto().fit(runs_of(**grid())).predict(asked(("net-z", "p100", 2), ("net-a", "p100", 2)))
    )
    assert answer.by is not None
    assert answer.by[0].startswith("auto: whole-run")
    assert answer.answered.all()


def test_published_times_and_costs_to_accuracy_are_ranked_with_each_left_out_in_turn() -> None:
    runs = runs_from_table(read_table(published("dawnbench")), CATALOG)
    score = evaluate({"dawnbench": runs}, [WholeRun()], "leave-one-out:ref").of("whole-run")
    assert score.share_answered == 1.0
    assert score.tau_overall > 0.8
    assert score.cost_rows == score.cost_answered == 27
    assert score.cost_tau > 0.7
    assert score.median_ape < 20
    assert 0.88 <= score.coverage <= 1.0


@pytest.mark.parametrize("blank", ["device", "devices"])
def test_runs_that_state_no_speed_are_no_measure_of_it(blank: str) -> None:
    """Times are then relative to nothing, also for jobs whose device is known."""
    columns = grid(noise=0.0)
    columns[blank] = ["mystery"] * len(columns["device"]) if blank == "device" else [None] * len(columns["device"])  # fmt: skip
    times = np.array(columns["time_to_train_s"])
    found = WholeRun().fit(runs_of(**columns)).predict(asked(("net-a", "v100", 2)))
    assert found.declined[0] is None
    assert times.min() / 3 < found.seconds[0, 1] < times.max() * 3
