"""Columns of a user's own at every door: what was decided is printed, can be set, and is kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from forerun.measure.campaign_file import read_campaign
from forerun.tables.files import read_table, write_table
from tests.cli.conftest import Run
from tests.tables.test_own_columns import ACTIVATIONS, FILTERS, rows

SAID = "part of a configuration, of columns of your own: kernel, filters, activation (or is mactivations meant?)"


@pytest.fixture
def runs(tmp_path: Path) -> str:
    path = tmp_path / "runs.csv"
    write_table(rows(load=(0.1, 0.2, 0.3)), path)
    return str(path)


def test_fit_says_what_was_decided_and_how_to_change_it(
    forerun: Run, runs: str, tmp_path: Path
) -> None:
    ask = (
        "fit",
        "--runs",
        runs,
        "--predictor",
        "generic",
        "--force",
        "--out",
        str(tmp_path / "m.json"),
    )
    out = forerun(*ask).out
    assert "'load' (it is a figure)" in out
    assert f"{SAID} (--own-columns changes this)" in out
    assert "contradict" not in out
    one = forerun(*ask, "--own-columns", "kernel", "--json").json()["runs"]
    assert one["own_columns"] == ["kernel"]
    assert one["own_columns_left_out"]["filters"] == "it is not among those that were named"
    assert "contradict" in forerun(*ask, "--own-columns", "none").out
    wrong = forerun(*ask, "--own-columns", "kernl")
    assert wrong.code == 2
    assert "kernl is no column of these runs" in wrong.err
    assert "did you mean kernel?" in wrong.err


def test_a_model_file_keeps_them_and_answers_a_row_that_states_them(
    forerun: Run, runs: str, tmp_path: Path
) -> None:
    model, jobs, out = (str(tmp_path / name) for name in ("m.json", "jobs.csv", "out.csv"))
    table = rows()
    write_table(table.take(np.arange(5, len(table), 7)), jobs)
    for name in ("generic", "ernest"):
        ask = ("--predictor", name, "--out", model, "--force")
        assert forerun("fit", "--runs", runs, *ask).code == 0
        done = forerun("predict", "--table", jobs, "--model", model, "--out", out)
        assert "not known" not in done.err
        answered = read_table(out)
        assert not any(answered.texts("declined"))
        error = answered.numbers("predicted_step_time_s") / answered.numbers("step_time_s") - 1
        assert np.abs(error).max() < 0.1


def test_evaluate_and_search_take_configurations_apart(forerun: Run, runs: str) -> None:
    ask = (
        "evaluate",
        "--runs",
        runs,
        "--predictors",
        "generic",
        "--split",
        "leave-out:kernel",
        "--json",
    )
    score = forerun(*ask).json()["scores"][0]
    assert score["share_answered"] == 1.0
    assert score["median_ape"] < 3
    found = forerun(
        "search", "--replay", runs, "--minimize", "time", "--searcher", "grid", "--json"
    ).json()
    assert found["configurations"] == len(rows())


def test_suggested_runs_state_them_as_settings_and_none_twice(
    forerun: Run, runs: str, tmp_path: Path
) -> None:
    table, to = rows(), tmp_path / "next.yaml"
    jobs, made = str(tmp_path / "jobs.csv"), str(tmp_path / "made.csv")
    done = np.flatnonzero(table.numbers("devices") * table.numbers("kernel") < 12)
    noise = np.exp(0.1 * np.random.default_rng(0).normal(size=len(table)))
    noisy = table.with_columns(step_time_s=table.numbers("step_time_s") * noise)
    write_table(noisy.take(done), made)
    write_table(table.with_columns(step_time_s=np.full(len(table), np.nan)), jobs)
    asked = forerun(
        "suggest", "--candidates", jobs, "--runs", made, "--predictor", "gaussian", "--count", "2",
        "--campaign", str(to), "--entry", "cnn=benchmarks.own_columns:network",
    )  # fmt: skip
    assert asked.code == 0, asked.err
    assert f"{len(done)} candidates left out: run already" in asked.out
    for point in read_campaign(to).points:
        kernel, filters = (point.task.settings[name] for name in ("kernel", "filters"))
        assert isinstance(kernel, int)
        assert kernel * point.task.workers >= 12
        assert filters in FILTERS
        assert point.task.settings["activation"] in ACTIVATIONS
