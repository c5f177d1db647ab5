"""Tables: rows are answered as the same job alone, as long as they say, or decline by themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from forerun.advisor import Advisor, tabular
from forerun.advisor.tabular import OUTPUT_COLUMNS
from forerun.domain.objective import Preemption
from forerun.domain.workload import Length
from forerun.tables import Table

ROW = {"workload": "resnet50", "device": "a100-sxm-80gb", "devices": 8, "global_batch": 256}
BIG = {"workload": "llama3-8b", "cluster": "4x8xh100-sxm-80gb", "global_batch": 512}


@pytest.fixture(scope="module")
def advisor() -> Advisor:
    """Return an advisor with the packaged catalogue and physics."""
    return Advisor()


def answers(advisor: Advisor, *rows: dict[str, Any], **request: Any) -> list[dict[str, Any]]:
    """Return the answered rows, blanks left out."""
    found = advisor.predict_table(Table.from_rows(rows), **request)
    return [found.row(i) for i in range(len(found))]


def test_a_row_without_a_plan_gets_the_one_that_predict_chooses(advisor: Advisor) -> None:
    row = answers(advisor, BIG)[0]
    alone = advisor.predict("llama3-8b", "4x8xh100-sxm-80gb", global_batch=512)
    assert row["predicted_plan"] == str(alone.job.plan)
    assert row["predicted_step_time_s"] == pytest.approx(alone.step_seconds[1])
    assert row["predicted_time_to_train_s"] == pytest.approx(alone.estimate.run_seconds[1])
    assert "chosen by search" in row["predicted_note"]


def test_a_row_without_a_batch_gets_the_usual_one_and_says_so(advisor: Advisor) -> None:
    row = answers(advisor, {"workload": "resnet50", "cluster": "1x8xa100-sxm-80gb"})[0]
    assert "usual for resnet50" in row["predicted_note"]
    assert row["predicted_step_time_s"] > 0


@pytest.mark.parametrize(
    "cells", [{"tp": 1}, {"micro_batch": 8}, {"zero_stage": 0}, {"step_time_s": 0.1},
              {"status": "oom"}, {"plan": "recompute=none"}],
)  # fmt: skip
def test_a_stated_plan_and_a_measured_run_keep_what_blanks_mean(
    advisor: Advisor, cells: dict[str, Any]
) -> None:
    row = answers(advisor, {**ROW, **cells})[0]
    assert "predicted_plan" not in row
    assert row["predicted_step_time_s"] > 0


def test_a_row_of_which_no_plan_fits_declines_with_the_nearest(advisor: Advisor) -> None:
    row = answers(advisor, {"workload": "llama3-8b", "cluster": "1x1xrtx-4090"})[0]
    assert "the nearest (dp=1 micro_batch=1 recompute=full)" in row["declined"]


def test_each_distinct_job_is_searched_once(
    advisor: Advisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    real = tabular.best_plan
    monkeypatch.setattr(tabular, "best_plan", lambda *a, **k: calls.append(a) or real(*a, **k))  # type: ignore[func-returns-value]
    rows = answers(advisor, *[{**ROW, "global_batch": b} for b in (64, 128, 256, 64, 128, 256)])
    assert len(calls) == 3
    assert all("predicted_plan" in row for row in rows)
    assert all(row["predicted_step_time_s"] > 0 for row in rows)


def test_a_row_is_as_long_as_it_says(advisor: Advisor) -> None:
    rows = answers(
        advisor, {**ROW, "steps": 100}, {**ROW, "samples": 25_600}, {**ROW, "epochs": 2},
        {**ROW, "epochs_to_target": 2}, ROW, {**BIG, "tokens": 512 * 8192 * 7},
    )  # fmt: skip
    steps = [r["predicted_time_to_train_s"] / r["predicted_step_time_s"] for r in rows]
    epoch = 1_281_167 / 256
    assert steps == pytest.approx([100, 100, np.ceil(2 * epoch), np.ceil(2 * epoch),
                                   np.ceil(90 * epoch), 7])  # fmt: skip


def test_a_row_s_own_length_comes_before_the_asked_one_and_that_before_the_target(
    advisor: Advisor,
) -> None:
    rows = answers(advisor, {**ROW, "steps": 100}, {**ROW, "epochs_to_target": 2},
                   length=Length("steps", 7))  # fmt: skip
    steps = [r["predicted_time_to_train_s"] / r["predicted_step_time_s"] for r in rows]
    assert steps == pytest.approx([100, 7])


@pytest.mark.parametrize(
    ("cells", "words"),
    [({"steps": -3}, "steps=-3"), ({"epochs": 0}, "epochs=0"), ({"samples": 1e30}, "samples=1e+30"),
     ({"tokens": 1e9}, "no tokens"), ({"steps": 5, "epochs": 1}, "one length"),
     ({"epochs_to_target": -1}, "epochs_to_target=-1"), ({"steps": float("inf")}, "steps=inf")],
)  # fmt: skip
def test_a_length_that_cannot_be_declines_its_row(
    advisor: Advisor, cells: dict[str, Any], words: str
) -> None:
    wrong, right = answers(advisor, {**ROW, **cells}, ROW)
    assert words in wrong["declined"]
    assert "predicted_step_time_s" not in wrong
    assert "predicted_fit_probability" not in wrong
    assert "declined" not in right


@pytest.mark.parametrize("devices", [0, -1, 1e30])
def test_no_count_of_devices_ends_in_a_warning_of_arithmetic(
    advisor: Advisor, devices: float
) -> None:
    wrong, right = answers(advisor, {**ROW, "devices": devices}, ROW)
    assert "devices" in wrong["declined"]
    assert "declined" not in right


def test_a_row_is_told_what_the_command_line_tells(advisor: Advisor) -> None:
    old = {"device": "v100-sxm2-16gb", "devices": 16, "nodes": 2, "precision": "bf16"}
    link = {"interconnect": "InfiniBand 3200 Gb/s"}
    told, plain = (row["predicted_note"] for row in answers(advisor, {**ROW, **old, **link}, ROW))
    assert "fp16 would be faster" in told
    assert "the price is of " in told
    assert "price" not in plain


def test_one_bad_cell_declines_its_own_row(advisor: Advisor) -> None:
    wrong, right = answers(advisor, {**ROW, "global_batch": "abc"}, ROW)
    assert wrong["declined"] == "global_batch='abc' is not a number; correct it"
    assert right["predicted_step_time_s"] > 0


def test_a_plan_text_is_the_plan_columns(advisor: Advisor) -> None:
    text, cells, both, clash, wrong = answers(
        advisor,
        {**BIG, "plan": "tp=2,pp=2,micro_batch=1,recompute=full"},
        {**BIG, "tp": 2, "pp": 2, "micro_batch": 1, "recompute": "full"},
        {**BIG, "plan": "tp=2,pp=2,micro_batch=1", "recompute": "full", "tp": 2},
        {**BIG, "plan": "tp=2", "tp": 4},
        {**BIG, "plan": "tpp=2"},
    )
    assert text["predicted_step_time_s"] == cells["predicted_step_time_s"]
    assert both["predicted_step_time_s"] == cells["predicted_step_time_s"]
    assert "tp=2" in clash["declined"]
    assert "no such plan field" in wrong["declined"]


def test_a_cluster_text_is_the_cluster_where_no_device_is_named(advisor: Advisor) -> None:
    machine = {"workload": "resnet50", "cluster": "2xaws:p5.48xlarge@us-east-1", "steps": 9}
    rows = answers(
        advisor, machine, {**machine, "devices": 16}, {**machine, "devices": 8},
        {**machine, "cluster": "4x"}, {**ROW, "cluster": "my-own-label"},
    )  # fmt: skip
    alone = advisor.predict("resnet50", machine["cluster"], length=Length("steps", 9))
    assert rows[0]["predicted_cost_usd"] == pytest.approx(alone.estimate.dollars[1])
    assert rows[1]["predicted_cost_usd"] == rows[0]["predicted_cost_usd"]
    assert "correct one of them" in rows[2]["declined"]
    assert "'4x': no such device" in rows[3]["declined"]
    assert "declined" not in rows[4]


def test_a_misspelt_workload_is_offered_its_neighbour(advisor: Advisor) -> None:
    assert (
        "did you mean resnet50" in answers(advisor, {**ROW, "workload": "resnet5O"})[0]["declined"]
    )


def test_an_empty_table_is_answered_by_an_empty_table(advisor: Advisor) -> None:
    pandas = pytest.importorskip("pandas", reason="data frames need pandas")
    frame = pandas.DataFrame([{**ROW, "mine": "x", "framework": "pytorch"}])
    found = advisor.predict_table(frame.iloc[:0])
    assert len(found) == 0
    assert list(found.columns) == [*frame.columns, *OUTPUT_COLUMNS]


def test_a_row_that_lacks_workload_and_cluster_is_told_both_at_once() -> None:
    rows = [
        {"workload": "no-such-net", "device": "no-such-gpu", "devices": 8, "global_batch": 256},
        {"workload": "no-such-net", "device": "a100-sxm-80gb", "devices": 8, "global_batch": 256},
        {"workload": "resnet50", "global_batch": 256},
    ]
    both, one, neither = Advisor().predict_table(Table.from_rows(rows)).texts("declined")
    workload, _, device = both.partition("; and ")
    assert "'no-such-net' is not in the zoo" in workload
    assert "device 'no-such-gpu'" in device
    assert one == workload
    assert neither.startswith("neither the device nor how many is stated; fill device and devices")


def test_what_no_row_states_of_a_whole_run_stays_empty(advisor: Advisor) -> None:
    """No plan, batch or length is made up, and so no step, no epoch, no MFU and no `does not fit`."""
    own = {"workload": "resnet50", "device": "v100-sxm2-16gb", "target": "top1 0.75"}
    runs = [{**own, "devices": n, "time_to_train_s": 2e5 / n + 3e3} for n in (1, 2, 4, 8)]
    fitted = Advisor(predictor="whole-run").fit(Table.from_rows(runs))
    asked = [{**own, "devices": 16}, {**own, "devices": 16, "epochs": 80}, own]
    bare, long, unplaced = answers(fitted, *asked)
    made_up = (
        "predicted_step_time_s",
        "predicted_mfu",
        "predicted_fit_probability",
        "predicted_plan",
    )
    for row in (bare, long, unplaced):
        assert row["predicted_time_to_train_s"] > 0
        assert not {*made_up} & {*row}
    assert "predicted_epoch_time_s" not in bare
    each = long["predicted_time_to_train_s"] / 80
    assert long["predicted_epoch_time_s"] == pytest.approx(each)
    batched = answers(fitted, {**asked[1], "global_batch": 256})[0]
    assert batched["predicted_step_time_s"] == pytest.approx(
        each / np.ceil(1_281_167 / 256), rel=1e-3
    )


def test_memory_of_a_row_without_a_plan_is_not_forecast_where_rows_are_run_as_others_were() -> None:
    from forerun.predictors.analytic import AnalyticPredictor

    class AsRun(AnalyticPredictor):
        as_they_were_run = True

    cells = {
        "workload": "llama3-8b",
        "device": "h100-sxm-80gb",
        "devices": "8",
        "global_batch": "64",
    }
    open_row, stated = cells, {**cells, "zero_stage": "3"}
    found = Advisor(predictor=AsRun()).predict_table(Table.from_rows([open_row, stated]))
    assert not np.isnan(found.numbers("predicted_step_time_s")).any()
    assert np.isnan(found.numbers("predicted_memory_gb")).tolist() == [True, False]
    note = found.texts("predicted_note")[0]
    assert "state no plan" in note
    assert "does not fit" not in note


def test_a_stated_minimum_is_billed_of_a_cluster_that_is_not_known_too() -> None:
    rows = [
        {"workload": "mine", "device": "chip", "devices": n, "global_batch": 64, "steps": 100,
         "step_time_s": 0.1 + 1.0 / n, "price_usd_per_hour": 3.0 * n}
        for n in (1, 2, 3, 4, 6, 8)
    ]  # fmt: skip
    taught = Advisor(predictor="ernest").fit(Table.from_rows(rows))
    asked = {name: value for name, value in rows[3].items() if name != "step_time_s"}
    plain, late = (
        answers(taught, asked, preemption=lost)[0]
        for lost in (None, Preemption(startup_seconds=600.0, least_billed_seconds=7200.0))
    )
    assert plain["predicted_cost_usd"] < 12.0
    assert late["predicted_start_s"] == 600
    assert late["predicted_cost_usd"] == pytest.approx(24.0)
