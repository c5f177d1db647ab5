"""support, fit, evaluate and the listings; settings in force; tables for people."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forerun.cli.showing import plain_lines
from tests.cli.conftest import Run

ON_A100 = ("--cluster", "1x8xa100-sxm-80gb")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Return measured runs of one network, each taking twice what a good guess would say."""
    path = tmp_path / "runs.csv"
    lines = ["workload,device,nodes,devices,global_batch,step_time_s,status"]
    lines += [f"resnet50,a100-sxm-80gb,1,{n},{64 * n},{0.08 + 0.001 * n},ok" for n in (1, 2, 4, 8)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_support_says_what_is_covered(forerun: Run) -> None:
    data = forerun("support", "llama3-8b", "--json").json()
    answers = {row["question"]: row["answer"] for row in data["covered"]}
    assert answers["step time"] == "yes"
    assert answers["tensor parallel (tp)"] == "yes"
    assert answers["expert parallel (ep)"] == "no"
    assert "llama3-8b" in forerun("support", "llama3-8b").out


def test_support_says_what_the_framework_does_not_run(forerun: Run) -> None:
    data = forerun("support", "llama3-8b", "--framework", "hf trainer", "--json").json()
    covered = {row["question"]: row for row in data["covered"]}
    for split in ("tensor parallel (tp)", "pipeline parallel (pp, vpp)", "context parallel (cp)"):
        assert covered[split]["answer"] == "no"
        assert covered[split]["remark"].startswith("not with hf trainer: ")
    assert any("timed as pytorch" in note for note in data["notes"])


def test_fit_writes_a_model_that_predict_uses(forerun: Run, runs: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.json"
    assert forerun("fit", "--runs", str(runs), "--out", str(model)).code == 0
    assert json.loads(model.read_text())["predictor"] == "analytic"
    ask = ("predict", "resnet50", *ON_A100, "--global-batch", "512", "--json")
    plain = forerun(*ask).json()["step_seconds"]["p50"]
    by_model = forerun(*ask, "--model", str(model)).json()["step_seconds"]["p50"]
    taught = (*ask, "--fit", str(runs), "--predictor", "analytic")
    by_runs = forerun(*taught).json()["step_seconds"]["p50"]
    assert by_model == pytest.approx(by_runs)
    assert abs(by_model - 0.088) < abs(plain - 0.088)


def test_a_choice_that_is_saved_answers_as_the_runs_do(
    forerun: Run, runs: Path, tmp_path: Path
) -> None:
    """Where runs are given and nobody is named they choose; `fit --predictor auto` keeps that."""
    model = tmp_path / "model.json"
    assert forerun("fit", "--runs", str(runs), "--out", str(model), "--predictor", "auto").code == 0
    ask = ("predict", "resnet50", *ON_A100, "--global-batch", "512", "--json")
    by_model = forerun(*ask, "--model", str(model)).json()["step_seconds"]["p50"]
    by_runs = forerun(*ask, "--fit", str(runs)).json()["step_seconds"]["p50"]
    assert by_model == pytest.approx(by_runs)


def test_several_tables_may_follow_one_option(forerun: Run, runs: Path, tmp_path: Path) -> None:
    more = tmp_path / "more.csv"
    more.write_text(runs.read_text())
    ask = ("--global-batch", "512", *ON_A100, "--json")
    twice = forerun("predict", "resnet50", "--fit", str(runs), "--fit", str(more), *ask).json()
    once = forerun("predict", "--fit", str(runs), str(more), "resnet50", *ask).json()
    assert once["step_seconds"] == twice["step_seconds"]
    model = tmp_path / "both.json"
    done = forerun("fit", "--runs", str(runs), str(more), "--out", str(model))
    assert "2 tables," in done.out


def test_fit_replaces_a_file_only_when_told(forerun: Run, runs: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.json"
    model.write_text("mine")
    ask = ("fit", "--runs", str(runs), "--out", str(model))
    done = forerun(*ask)
    assert done.code == 2
    assert "--force" in done.err
    assert model.read_text() == "mine"
    assert forerun(*ask, "--force").code == 0


def test_evaluate_scores_each_table(forerun: Run, runs: Path) -> None:
    data = forerun("evaluate", "--runs", str(runs), "--json").json()
    assert {score["table"] for score in data["scores"]} >= {"runs"}
    assert data["scores"][0]["answered"] == 4
    assert "median %" in forerun("evaluate", "--runs", str(runs)).out


def test_evaluate_where_nothing_is_answered_exits_3(forerun: Run, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("workload,step_time_s\nno-such-net,1\n")
    assert forerun("evaluate", "--runs", str(path)).code == 3


@pytest.mark.parametrize(
    ("name", "search"),
    [("workloads", "resnet"), ("devices", "h100"), ("instances", "p5.48")],
)
def test_a_listing_holds_what_is_searched_for(forerun: Run, name: str, search: str) -> None:
    every = forerun(name, "--json").json()[name]
    some = forerun(name, search, "--json").json()[name]
    assert 0 < len(some) < len(every)
    assert all(search in json.dumps(row).lower() for row in some)
    assert len(forerun(name, search).out.splitlines()) == len(some) + 1


def test_predictors_systems_and_version_are_listed(forerun: Run) -> None:
    assert "analytic" in forerun("predictors").out
    assert forerun("systems").code == 0
    assert forerun("version").out.startswith("forerun ")
    assert forerun("--version").out.split() == forerun("version").out.split()[:2]
    assert "python" in forerun("version", "--json").json()["versions"]


def test_your_own_device_is_predicted_and_listed(forerun: Run, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "devices:\n  - {id: mine-1, memory_gb: 48, memory_gb_per_s: 1000, fp32_tflops: 40,"
        " fp16_tflops: 160, watts: 300, link_gb_per_s: 0, host_gb_per_s: 25,"
        " devices_per_node: 8}\n"
    )
    done = forerun("predict", "resnet50", "--cluster", "1x8xmine-1", "--catalog", str(path))
    assert done.code == 0, done.err
    ask = ("devices", "mine-1", "--catalog", str(path))
    assert "peak_flops.fp32, peak_flops.fp16: your file mine.yaml" in forerun(*ask).out
    sources = forerun(*ask, "--json").json()["devices"][0]["sources"]
    assert sources["watts"] == {"source": "your file mine.yaml", "verified": True}


def test_a_setting_of_the_environment_is_in_force_and_a_flag_beats_it(
    forerun: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = ("predict", "resnet50", "--cluster", "2xaws:p5.48xlarge@us-east-1", "--json")
    monkeypatch.setenv("FORERUN_MARKET", "spot")
    assert forerun(*ask).json()["market"] == "spot"
    assert forerun(*ask, "--market", "on-demand").json()["market"] == "on-demand"
    monkeypatch.setenv("FORERUN_MARKET", "black")
    assert forerun(*ask).code == 2


def test_colour_is_written_only_where_it_is_asked_for(
    forerun: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = ("predict", "resnet50", *ON_A100)
    assert "\x1b[" not in forerun(*ask).out
    monkeypatch.setenv("FORERUN_COLOR", "always")
    assert "\x1b[" in forerun(*ask).out


def test_a_defect_is_said_in_one_message_and_shown_only_for_debugging(
    forerun: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forerun.advisor import Advisor

    def break_down(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Advisor, "predict", break_down)
    done = forerun("predict", "resnet50", *ON_A100)
    assert done.code == 1
    assert "ZeroDivisionError" in done.err
    assert "Traceback" not in done.err
    monkeypatch.setenv("FORERUN_DEBUG", "1")
    assert "Traceback" in forerun("predict", "resnet50", *ON_A100).err


def test_an_interrupt_exits_130(forerun: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from forerun.advisor import Advisor

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Advisor, "predict", interrupt)
    assert forerun("predict", "resnet50", *ON_A100).code == 130


def test_plain_tables_are_aligned_and_end_without_blanks() -> None:
    lines = plain_lines(
        ("name", "n", ""), [("a", "1", ""), ("bcd ef", "22", "")], (False, True, False)
    )
    assert lines == ["name     n", "a        1", "bcd ef  22"]
