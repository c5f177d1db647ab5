"""With runs and no predictor named, the runs choose; bad runs are a clear error or a stated warning."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.predictors.choice.rows import grid_rows

ASKED = [
    {k: v for k, v in row.items() if k != "step_time_s"}
    for row in grid_rows(machines=(3, 16), batches=(128,))
]


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three candidates are enough here, and quicker than all."""
    monkeypatch.setattr("forerun.predictors.choice.auto.NAMES", ("analytic", "ernest", "generic"))


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, names)
        writer.writeheader()
        writer.writerows(rows)
    return path


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def ask(forerun: Run, tmp_path: Path, runs: Sequence[Mapping[str, Any]], *more: str,
        asked: Sequence[Mapping[str, Any]] = ASKED) -> Any:  # fmt: skip
    fit, jobs = write(tmp_path / "runs.csv", runs), write(tmp_path / "jobs.csv", asked)
    out = tmp_path / "out.csv"
    done = forerun("predict", "--table", str(jobs), "--fit", str(fit), "--out", str(out), *more)
    return done, (rows_of(out) if out.exists() else [])


def test_the_runs_choose_where_nobody_is_named(forerun: Run, tmp_path: Path) -> None:
    done, rows = ask(forerun, tmp_path, grid_rows())
    assert done.code == 0
    assert "choice of the step's time" in done.out
    assert "beyond the runs in devices" in done.out
    assert {row["predictor"].partition(":")[0] for row in rows} == {"auto"}
    assert all(float(row["predicted_step_time_s"]) > 0 for row in rows)


def test_a_named_predictor_answers_alone(forerun: Run, tmp_path: Path) -> None:
    done, rows = ask(forerun, tmp_path, grid_rows(), "--predictor", "ernest")
    assert {row["predictor"] for row in rows} == {"ernest"}
    assert "choice" not in done.out


def test_json_tells_the_choice(forerun: Run, tmp_path: Path) -> None:
    done, _ = ask(forerun, tmp_path, grid_rows(), "--json")
    found = done.json()
    assert sum(found["answered_by"].values()) == len(ASKED)
    question = found["choice"][0]
    assert set(question) == {"quantity", "question", "judged", "candidates"}
    assert sum(one["weight"] for one in question["candidates"]) == pytest.approx(1.0, abs=0.01)


def test_whole_runs_of_machines_that_nobody_knows_fill_their_columns(
    forerun: Run, tmp_path: Path
) -> None:
    runs = [
        {"workload": "job", "device": "cpu-x", "devices": m, "dataset_size": s,
         "price_usd_per_hour": m, "time_to_train_s": 20 + s / m / 100}
        for m in (1, 2, 4, 8) for s in (1000, 5000, 20000)
    ]  # fmt: skip
    asked = [{k: v for k, v in row.items() if k != "time_to_train_s"} for row in runs[:3]]
    done, rows = ask(forerun, tmp_path, runs, asked=asked)
    assert done.code == 0
    for row, run in zip(rows, runs[:3], strict=True):
        seconds = float(row["predicted_time_to_train_s"])
        assert seconds == pytest.approx(run["time_to_train_s"], rel=0.1)
        assert float(row["predicted_cost_usd"]) == pytest.approx(seconds / 3600, rel=1e-6)
        assert row["predicted_time_to_train_p05_s"] != ""
        assert (row["predicted_step_time_s"], row["declined"]) == ("", "")


def test_runs_that_physics_cannot_read_are_said_to_teach_by_label(
    forerun: Run, tmp_path: Path
) -> None:
    fit = write(tmp_path / "runs.csv", grid_rows())
    out = tmp_path / "model.json"
    done = forerun("fit", "--runs", str(fit), "--predictor", "auto", "--out", str(out))
    assert done.code == 0
    assert (
        "12 of 12 runs learned by label, not by physics (a workload that is not known" in done.out
    )
    assert "law of ernest: my-net on my-gpu" in done.out
    assert "analytic: not among them" in done.out


def test_what_a_law_noticed_is_shown_by_fit_and_by_predict(forerun: Run, tmp_path: Path) -> None:
    alike = [{**row, "global_batch": 32 * row["devices"]} for row in grid_rows()]
    fit, out = write(tmp_path / "runs.csv", alike), str(tmp_path / "model.json")
    words = ("fit", "--runs", str(fit), "--predictor", "ernest", "--out", out)
    noticed = "these runs cannot tell fixed from shared work"
    done = forerun(*words)
    assert done.code == 0, done.err
    assert noticed in done.out
    assert "by label" not in done.out
    again = forerun(*words, "--force", "--json")
    assert any(noticed in note for note in json.loads(again.out)["notes"])
    answered = forerun("predict", "--table", str(fit), "--model", out)
    assert noticed in answered.err


# (name, runs, exit code, words that must be said on either stream or in the rows' reasons)
BAD: list[tuple[str, list[dict[str, Any]], int, str]] = [
    ("one run", grid_rows()[:1], 3, "at least 3 runs"),
    ("two runs", grid_rows()[:2], 3, "at least 3 runs"),
    ("one number of devices and batch", [grid_rows()[0]] * 6, 3, "only 1 different run"),
    ("no time above zero", [{**r, "step_time_s": 0} for r in grid_rows()], 2,
     "a figure that is not above zero"),
    ("some times not above zero",
     [{**r, "step_time_s": -1} if i < 3 else r for i, r in enumerate(grid_rows())], 0,
     "3 of 12 runs are flagged; 9 have a time to fit"),
    ("all runs stopped",
     [{**r, "step_time_s": "", "time_to_train_s": 600, "status": "timeout"} for r in grid_rows()],
     2, "12 were stopped, which are lower bounds alone"),
    ("units mixed in one column",
     [{**r, "step_time_s": r["step_time_s"] * (1000 if i % 4 == 0 else 1)}
      for i, r in enumerate([*grid_rows(), *grid_rows()])], 0,
     "it looks like ms: divide by 1000, or drop the row; left out"),
    ("a word for a number", [{**r, "step_time_s": "fast"} for r in grid_rows()], 2,
     "'fast' in the number column"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "runs", "code", "said"), BAD, ids=[bad[0] for bad in BAD])
def test_bad_runs_are_a_clear_error_or_a_stated_warning(
    forerun: Run, tmp_path: Path, name: str, runs: list[dict[str, Any]], code: int, said: str
) -> None:
    done, rows = ask(forerun, tmp_path, runs)
    told = done.out + done.err + " ".join(row["declined"] for row in rows)
    assert done.code == code, told
    assert said in told
    assert "Traceback" not in told


def test_features_that_move_together_are_answered_along_their_line(
    forerun: Run, tmp_path: Path
) -> None:
    """Weak scaling alone leaves size and machines confounded; jobs of the same kind are answered."""
    rows = grid_rows(batches=(1,))
    runs = [{**row, "global_batch": 32 * row["devices"]} for row in rows]
    asked = [{**ASKED[0], "devices": 16, "nodes": 1, "global_batch": 512}]
    done, answered = ask(forerun, tmp_path, runs, asked=asked)
    assert done.code == 0
    assert float(answered[0]["predicted_step_time_s"]) == pytest.approx(0.083, rel=0.3)


def test_a_model_of_another_version_is_a_clear_error_and_nothing_is_overwritten(
    forerun: Run, tmp_path: Path
) -> None:
    fit = write(tmp_path / "runs.csv", grid_rows())
    out = tmp_path / "model.json"
    words = ("fit", "--runs", str(fit), "--predictor", "auto", "--out", str(out))
    assert forerun(*words).code == 0
    before = out.read_text()
    refused = forerun(*words)
    assert refused.code == 2
    assert "the file is there already" in refused.err
    assert out.read_text() == before
    jobs = write(tmp_path / "jobs.csv", ASKED)
    assert forerun("predict", "--table", str(jobs), "--model", str(out)).code == 0
    out.write_text(json.dumps({**json.loads(before), "version": 99}))
    done = forerun("predict", "--table", str(jobs), "--model", str(out))
    assert done.code == 2
    assert "its version is 99, this is" in done.err


def test_fit_json_has_formulas_and_the_choice(forerun: Run, tmp_path: Path) -> None:
    fit = write(tmp_path / "runs.csv", grid_rows())
    done = forerun("fit", "--runs", str(fit), "--predictor", "auto", "--out",
                   str(tmp_path / "m.json"), "--json")  # fmt: skip
    found = done.json()
    assert any(name.startswith("ernest: my-net") for name in found["formulas"])
    assert found["choice"]
    assert found["not_saved"] == []
    assert found["runs"]["rows_that_teach_time"] == 12


@pytest.mark.parametrize("name", ["ernest", "goodput", "generic", "linear-scaling"])
def test_a_law_without_runs_says_what_it_needs(forerun: Run, name: str) -> None:
    done = forerun("predict", "resnet50", "--cluster", "1x8xa100-sxm-80gb", "--predictor", name)
    assert done.code == 3
    assert f"{name} declines: {name} answers from runs alone and was given none" in done.err
    assert "--fit RUNS.csv" in done.err


@pytest.mark.parametrize(
    ("change", "lead"),
    [
        ({"workload": "mynet"}, "no run of mynet among the {n} runs: they are of my-net;"),
        ({"device": "no-gpu"}, "no run of my-net on no-gpu among the {n} runs: my-net ran"
                               " on my-gpu;"),
    ],
)  # fmt: skip
def test_of_labels_that_no_run_had_what_runs_lack_is_said_first(
    forerun: Run, tmp_path: Path, change: dict[str, str], lead: str
) -> None:
    runs = grid_rows()
    _, rows = ask(forerun, tmp_path, runs, asked=[{**row, **change} for row in ASKED])
    for row in rows:
        assert row["declined"].startswith(lead.format(n=len(runs)))
        said, _, physics = row["declined"].partition("; and physics does not know it: ")
        assert "give" in said
        assert "not in the zoo" in physics


def test_of_a_plan_that_physics_refuses_its_reason_is_said_first(
    forerun: Run, tmp_path: Path
) -> None:
    illegal = {"workload": "gpt2", "device": "a100-sxm-80gb", "devices": 3, "tp": 5, "dp": 1,
               "global_batch": 8, "micro_batch": 8}  # fmt: skip
    _, rows = ask(forerun, tmp_path, grid_rows(), asked=[illegal])
    assert rows[0]["declined"]
    assert not rows[0]["declined"].startswith("no run of")
