"""forerun evaluate: files in, scores out, the exit code means it, and no row is its own teacher."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from forerun.cli import main
from forerun.tables import Table, read_table, write_table
from forerun.tables.table import iter_rows

ROW = {
    "workload": "a-gpt", "layers": 24, "hidden": 1024, "heads": 16, "vocab": 50304,
    "seq_len": 1024, "precision": "fp16", "framework": "Megatron-LM", "device": "a100-sxm-80gb",
    "micro_batch": 1,
}  # fmt: skip


def call(*words: Any) -> Result:
    return CliRunner().invoke(main, ["evaluate", *map(str, words)])


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    rows = [
        {**ROW, "devices": d, "tp": t, "global_batch": b, "step_time_s": b / d * 0.1 * (1 + t / 8)}
        for d in (1, 2, 4, 8)
        for t in (1, 2, 4, 8)
        for b in (8, 16)
        if t <= d
    ]
    write_table(Table.from_rows(rows), tmp_path / "mine.csv")
    return tmp_path / "mine.csv"


def test_json_holds_the_scores_of_each_predictor(runs: Path) -> None:
    done = call("--runs", runs, "--predictors", "constant-mfu,analytic", "--start", "priors",
                "--json")  # fmt: skip
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert data["kind"] == "evaluation"
    assert {s["predictor"] for s in data["scores"]} == {"constant-mfu", "analytic"}
    assert all(s["share_answered"] == 1.0 for s in data["scores"])


def test_the_screen_shows_the_table_and_the_leaderboard(runs: Path) -> None:
    done = call("--runs", runs, "--predictors", "constant-mfu,analytic", "--start", "priors",
                "--group-by", "devices")  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "mine" in done.stdout
    assert "place" in done.stdout


def test_several_files_may_follow_one_option(runs: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_text(runs.read_text())
    done = call("--runs", runs, other, "--predictors", "constant-mfu", "--json")
    assert json.loads(done.stdout)["tables"] == ["mine", "other"]


def test_a_folder_stands_for_its_tables(runs: Path) -> None:
    done = call("--runs", runs.parent, "--predictors", "constant-mfu", "--json")
    assert json.loads(done.stdout)["tables"] == ["mine"]


def test_a_fit_on_other_runs_changes_the_answer(runs: Path, tmp_path: Path) -> None:
    other = tmp_path / "teach.csv"
    rows = [{**ROW, "devices": 4, "tp": 1, "global_batch": 4, "step_time_s": 0.1 * t / 100}
            for t in range(110, 130)]  # fmt: skip
    write_table(Table.from_rows(rows), other)
    plain = call("--runs", runs, "--predictors", "constant-mfu", "--json")
    taught = call("--runs", runs, "--fit", other, "--predictors", "constant-mfu", "--json")
    first, second = (json.loads(d.stdout)["scores"][0]["mape"] for d in (plain, taught))
    assert second < first


def test_a_copy_of_the_judged_file_teaches_nothing(runs: Path, tmp_path: Path) -> None:
    other = tmp_path / "copy.csv"
    other.write_text(runs.read_text())
    done = call("--runs", runs, "--fit", other, "--predictors", "constant-mfu")
    assert done.exit_code == 2
    assert "all of its rows stand in mine too" in done.stderr


def test_rows_that_stand_in_two_tables_are_left_out_of_the_fit_and_counted(
    runs: Path, tmp_path: Path
) -> None:
    other = tmp_path / "more.csv"
    extra = {**ROW, "devices": 4, "tp": 1, "global_batch": 4, "step_time_s": 0.15}
    more = Table.from_rows([*iter_rows(read_table(runs)), extra])
    write_table(more, other)
    done = call("--runs", runs, "--fit", other, "--predictors", "constant-mfu", "--json")
    assert json.loads(done.stdout)["identical"] == {"mine": {"more": len(more) - 1}}
    shown = call("--runs", runs, "--fit", other, "--predictors", "constant-mfu").stdout
    assert f"{len(more) - 1} of more" in shown


def test_a_folder_to_fit_on_is_taken_without_the_judged_tables(runs: Path) -> None:
    assert call("--runs", runs, "--fit", runs.parent).exit_code == 2
    rows = [{**ROW, "devices": 4, "tp": 1, "global_batch": 4, "step_time_s": 0.15}]
    write_table(Table.from_rows(rows), runs.parent / "other.csv")
    done = call("--runs", runs, "--fit", runs.parent, "--predictors", "constant-mfu", "--json")
    assert json.loads(done.stdout)["fitted_on"] == ["other"]


def test_the_trap_of_interpolation_is_on_the_screen_and_in_the_help(runs: Path) -> None:
    done = call("--runs", runs, "--predictors", "constant-mfu", "--split", "interpolation:workers")
    assert "workers is the column devices" in done.stdout
    assert "(devices 1) below all fitted rows: extrapolation" in done.stdout
    assert "extrapolation" in call("--help").stdout


def test_seed_folds_split_and_start_are_said(runs: Path) -> None:
    done = call("--runs", runs, "--predictors", "constant-mfu", "--split", "random", "--folds", 3,
                "--seed", 7)  # fmt: skip
    assert "split random, 3 folds, seed 7, start from priors" in done.stdout


def test_only_the_rows_of_a_condition_take_part(runs: Path) -> None:
    done = call("--runs", runs, "--predictors", "constant-mfu", "--where", "tp<=2",
                "--where", "devices=4,8", "--json")  # fmt: skip
    assert json.loads(done.stdout)["scores"][0]["rows"] == 8


def test_the_slower_half_is_not_judged_by_its_time_and_said(runs: Path) -> None:
    done = call(
        "--runs", runs, "--predictors", "constant-mfu", "--faster-half", "devices", "--json"
    )
    score = json.loads(done.stdout)["scores"][0]
    assert score["comparable"] == 12
    assert sum(score["not_comparable"].values()) == score["rows"] - 12 == 8
    assert score["regret_groups"] == 6


def test_the_band_is_scored_by_distance(runs: Path) -> None:
    done = call("--runs", runs, "--predictors", "constant-mfu", "--json")
    (near,) = json.loads(done.stdout)["by_distance"]
    assert (near["group"], near["rows"]) == ("0.75-1.00", 20)


def test_a_judged_file_may_not_teach(runs: Path) -> None:
    done = call("--runs", runs, "--fit", runs, "--predictors", "constant-mfu")
    assert done.exit_code == 2
    assert "judged on rows that it was fitted to" in done.stderr


def test_nothing_answered_is_exit_3_with_the_reasons_shown(tmp_path: Path) -> None:
    write_table(
        Table.from_rows([{"workload": "no-such-net", "device": "t4", "step_time_s": 1.0}]),
        tmp_path / "odd.csv",
    )
    done = call("--runs", tmp_path / "odd.csv", "--predictors", "constant-mfu")
    assert done.exit_code == 3
    assert "no-such-net" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("--predictors", "oracle"),
        ("--split", "sideways"), ("--split", "leave-out:nothing"),
        ("--group-by", "nothing"),
        ("--where", "tp"), ("--where", "tp<many"), ("--where", "tp=99"), ("--where", "nothing=1"),
        ("--where", "tp=two"), ("--faster-half", "nothing"), ("--start", "shipped"),
        ("--start", "sideways"), ("--folds", "1"), ("--folds", "3"),
        ("--split", "from:workload=nothing"), ("--split", "above:workload=4"),
        ("--split", "between:global_batch"), ("--split", "leave-out:workload"),
        ("--split", "few-shot:device=99"), ("--split", "extrapolation:devices=8,tp=8"),
    ],
)  # fmt: skip
def test_a_mistake_is_exit_2_and_not_a_traceback(runs: Path, words: tuple[str, ...]) -> None:
    done = call("--runs", runs, "--predictors", "constant-mfu", *words)
    assert done.exit_code == 2, done.output
    assert "next:" in done.stderr


def test_a_table_without_measurements_cannot_judge(tmp_path: Path) -> None:
    write_table(Table.from_rows([{**ROW, "devices": 4, "status": "ok"}]), tmp_path / "jobs.csv")
    done = call("--runs", tmp_path / "jobs.csv", "--predictors", "constant-mfu")
    assert done.exit_code == 2
    assert "none of its rows has anything measured" in done.stderr


def test_a_law_that_was_given_no_runs_is_told_how_to_get_some() -> None:
    done = call("--runs", "examples/ernest_runs.csv", "--predictors", "ernest")
    assert done.exit_code == 3
    assert "nan" not in done.output
    assert "the split `whole` without --fit gives predictors no runs to learn from" in done.stderr
    assert "--split random (or between:devices), or --fit OTHER.csv" in done.stderr
