"""forerun suggest: who is asked, what a saved law still knows, and what a price and a run are."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.cli.test_suggest import write

PRICE = 2.5


def step(devices: float, batch: float) -> float:
    """A law of Ernest's terms, exactly."""
    return 0.01 + 2e-3 * batch / devices + 3e-3 * devices


def jobs(devices: tuple[int, ...], batches: tuple[int, ...]) -> list[dict[str, Any]]:
    return [
        {"workload": "mynet", "device": "mygpu", "devices": d, "global_batch": b}
        for d in devices for b in batches
    ]  # fmt: skip


def timed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "step_time_s": step(row["devices"], row["global_batch"])} for row in rows]


@pytest.fixture
def candidates(tmp_path: Path) -> Path:
    rows = jobs((1, 2, 4, 8, 16), (64, 256))
    return write(
        tmp_path / "jobs.csv", [{**r, "price_usd_per_hour": PRICE * r["devices"]} for r in rows]
    )


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write(tmp_path / "good.csv", timed(jobs((1, 2, 4, 8), (32, 64, 128))))


def predicted_error(forerun: Run, runs: Path, asked: Path) -> float:
    """Return the root mean square half band of `predict --fit`, as a log standard deviation."""
    import numpy as np

    done = forerun("predict", "--fit", str(runs), "--table", str(asked))
    lines = [line for line in done.out.splitlines() if line.count(",") > 8]
    rows = list(csv.DictReader(lines))
    low, high = (
        np.array([float(r[f"predicted_step_time_{q}_s"]) for r in rows]) for q in ("p05", "p95")
    )
    sigma = np.log(high / low) / (2 * 1.645)
    return float(np.sqrt(np.mean(sigma**2)))


@pytest.mark.parametrize("count", [1, 2])
def test_few_runs_of_a_workload_of_one_s_own_get_next_runs(
    forerun: Run, candidates: Path, tmp_path: Path, count: int
) -> None:
    few = write(tmp_path / "few.csv", timed(jobs((2, 4), (64,)))[:count])
    done = forerun(
        "suggest", "--candidates", str(candidates), "--runs", str(few), "--budget", "20", "--json"
    )
    assert done.code == 0, done.err
    found = done.json()
    assert (found["predictor"], found["price_unit"]) == ("auto", "dollars")
    assert 0 < found["price"] <= 20
    made = {(r["devices"], r["global_batch"]) for r in timed(jobs((2, 4), (64,)))[:count]}
    assert not made & {(r["row"]["devices"], r["row"]["global_batch"]) for r in found["runs"]}
    assert found["runs"][-1]["log_error_after"] < found["log_error_now"]


def test_the_error_now_is_that_of_predict_with_the_same_runs(
    forerun: Run, candidates: Path, good: Path, tmp_path: Path
) -> None:
    done = forerun(
        "suggest", "--candidates", str(candidates), "--runs", str(good), "--budget", "20", "--json"
    )
    assert done.code == 0, done.err
    found = done.json()
    still_open = [r for r in csv.DictReader(candidates.read_text().splitlines())
                  if not (float(r["devices"]) <= 8 and r["global_batch"] == "64")]  # fmt: skip
    asked = write(tmp_path / "open.csv", still_open)
    assert found["log_error_now"] == pytest.approx(predicted_error(forerun, good, asked), rel=0.15)
    assert found["log_error_now"] < 0.11  # bands of twelve judged runs
    assert found["runs"][-1]["log_error_after"] < found["log_error_now"]
    assert "errors go together as those of ernest" in found["source"]


def test_jobs_that_nobody_answers_get_first_runs_and_what_it_takes(
    forerun: Run, candidates: Path, tmp_path: Path
) -> None:
    """Runs of another workload teach nothing of these, and no run at all does neither."""
    other = [{**row, "workload": "theirs", "device": "box"} for row in timed(jobs((1, 2), (32,)))]
    for words in (("--runs", str(write(tmp_path / "other.csv", other))), ()):
        done = forerun("suggest", "--candidates", str(candidates), *words, "--json")
        assert done.code == 0, done.err
        found = done.json()
        assert (found["goal"], len(found["runs"])) == ("design", 4)
        said = " ".join(found["assumptions"])
        assert "does not answer yet" in said
        assert "at least 3 runs that differ in devices or in size" in said
        assert len({r["row"]["devices"] for r in found["runs"]}) >= 3


def test_rows_without_a_time_are_no_runs_that_were_made(
    forerun: Run, candidates: Path, tmp_path: Path
) -> None:
    zero = [{**row, "step_time_s": 0} for row in jobs((1, 2, 4), (64, 256))]
    done = forerun(
        "suggest", "--candidates", str(candidates), "--runs", str(write(tmp_path / "zero.csv", zero)),
        "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    said = " ".join(done.json()["assumptions"])
    assert "run already" not in said
    assert "give runs that ended ok" in said


def test_a_named_predictor_with_too_few_runs_says_what_it_takes_and_which_first(
    forerun: Run, candidates: Path, tmp_path: Path
) -> None:
    one = write(tmp_path / "one.csv", timed(jobs((2,), (64,))))
    done = forerun(
        "suggest", "--candidates", str(candidates), "--runs", str(one), "--predictor", "goodput",
        "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert done.json()["runs"]
    assert "goodput does not answer yet" in " ".join(done.json()["assumptions"])


def saved(forerun: Run, runs: Path, name: str) -> Path:
    """Return the file of a predictor that has learned from runs."""
    model = runs.with_name(f"{name}.json")
    assert forerun("fit", "--runs", str(runs), "--predictor", name, "--out", str(model)).code == 0
    return model


def without_its_runs(model: Path) -> Path:
    """Make a model file one that keeps no jobs, as the first ones did."""
    content = json.loads(model.read_text())
    assert content.pop("runs_made")["rows"] == 12
    model.write_text(json.dumps(content))
    return model


def asked_of(forerun: Run, candidates: Path, *words: str) -> dict[str, Any]:
    done = forerun("suggest", "--candidates", str(candidates), *words, "--json")
    assert done.code == 0, done.err
    found: dict[str, Any] = done.json()
    return found


def places(found: dict[str, Any]) -> set[tuple[float, float]]:
    return {(r["row"]["devices"], r["row"]["global_batch"]) for r in found["runs"]}


@pytest.mark.parametrize("name", ["ernest", "auto", "goodput", "gaussian", "hierarchical"])
def test_a_saved_model_knows_which_jobs_were_run(
    forerun: Run, candidates: Path, good: Path, name: str
) -> None:
    model = saved(forerun, good, name)
    found = asked_of(forerun, candidates, "--model", str(model), "--count", "2")
    assert len(found["runs"]) == 2
    made = {(d, 64) for d in (1, 2, 4, 8)}  # those of the candidates that are among the runs
    assert not places(found) & made
    said = " ".join(found["assumptions"])
    assert "4 candidates left out: run already" in said
    assert "--runs" not in said


@pytest.mark.parametrize("criterion", ["V", "A", "D"])
def test_a_saved_law_is_designed_for_as_its_runs_are(
    forerun: Run, candidates: Path, tmp_path: Path, criterion: str
) -> None:
    """Repeats count too: what was run forty times is known better than what was run once."""
    words = ("--count", "2", "--criterion", criterion)
    rows = timed(jobs((1, 2, 4, 8), (32, 64, 128)))
    good = write(tmp_path / "repeated.csv", [*rows, *(rows[-2:] * 40)])
    model = saved(forerun, good, "ernest")
    by_model = asked_of(forerun, candidates, "--model", str(model), *words)
    by_runs = asked_of(
        forerun, candidates, "--runs", str(good), "--predictor", "ernest", *words
    )  # fmt: skip
    assert by_model["goal"] == by_runs["goal"] == "design"
    assert by_model["source"].startswith(f"the {criterion}-optimal design")
    assert by_model["runs"] == by_runs["runs"]


@pytest.mark.parametrize("name", ["ernest", "auto"])
def test_a_model_saved_without_its_jobs_brings_what_it_learned_and_asks_for_them(
    forerun: Run, candidates: Path, good: Path, name: str
) -> None:
    model = without_its_runs(saved(forerun, good, name))
    found = asked_of(forerun, candidates, "--model", str(model), "--count", "2")
    assert found["goal"] == "accuracy"
    assert found["log_error_now"] < 0.1  # twelve exact runs
    said = " ".join(found["assumptions"])
    assert "give them with --runs too" in said
    # Far from what was run, on more devices or a larger batch, there is most to learn.
    assert any(r["row"]["devices"] == 16 or r["row"]["global_batch"] == 256 for r in found["runs"])


def test_runs_beside_a_saved_model_add_to_the_jobs_that_were_run(
    forerun: Run, candidates: Path, good: Path, tmp_path: Path
) -> None:
    model = saved(forerun, good, "ernest")
    more = write(tmp_path / "more.csv", timed(jobs((1, 2, 16), (256,))))
    found = asked_of(
        forerun, candidates, "--model", str(model), "--runs", str(more), "--count", "3"
    )  # fmt: skip
    assert places(found) <= {(4, 256), (8, 256), (16, 64)}
    assert "7 candidates left out: run already" in " ".join(found["assumptions"])


def test_jobs_of_another_shape_in_a_model_are_told(
    forerun: Run, candidates: Path, good: Path
) -> None:
    model = saved(forerun, good, "ernest")
    content = json.loads(model.read_text())
    for broken in ([], {"rows": 3, "every": 3, "columns": {"devices": [1.0]}}):
        model.write_text(json.dumps({**content, "runs_made": broken}))
        done = forerun("suggest", "--candidates", str(candidates), "--model", str(model))
        assert done.code == 2
        assert "the configurations that were run are of another shape" in done.err


def test_a_criterion_where_no_design_is_made_is_refused(
    forerun: Run, candidates: Path, good: Path
) -> None:
    table = ("--candidates", str(candidates), "--criterion", "A")
    old = without_its_runs(saved(forerun, good, "ernest"))
    for words, why in (
        ((*table, "--model", str(old)), "saved without the jobs of the runs it was fitted to"),
        ((*table, "--runs", str(good)), "auto offers no linear features to design by"),
        ((*table, "--runs", str(good), "--goal", "decision"), "--goal accuracy"),
        (("resnet50", "--clusters", "1x8xh100-sxm-80gb", "--criterion", "D"), "give --candidates"),
    ):
        done = forerun("suggest", *words)
        assert done.code == 2, done.out
        assert "it applies to optimal designs, and" in done.err
        assert why in done.err


def test_dollars_are_counted_at_a_stated_time_before_any_run(
    forerun: Run, candidates: Path
) -> None:
    words = ("suggest", "--candidates", str(candidates), "--predictor", "ernest", "--budget", "3")
    found = forerun(*words, "--json").json()
    assert found["price_unit"] == "dollars"
    assert 0 < found["price"] <= 3
    for one in found["runs"]:
        assert one["price"] == pytest.approx(one["seconds"] / 3600 * PRICE * one["row"]["devices"])
    said = " ".join(found["assumptions"])
    assert "a step is assumed to take 1 s" in said
    longer = forerun(*words, "--run-steps", "200", "--json").json()
    assert longer["runs"][0]["seconds"] > 200 * 0.05 + 180


def test_a_budget_in_another_unit_is_said(forerun: Run, tmp_path: Path) -> None:
    bare = write(tmp_path / "bare.csv", jobs((1, 2, 4, 8), (64, 256)))
    done = forerun(
        "suggest", "--candidates", str(bare), "--predictor", "ernest", "--budget", "5", "--json"
    )
    assert done.json()["price_unit"] == "smallest runs"
    said = " ".join(done.json()["assumptions"])
    assert "the budget of 5 counts smallest runs, not dollars" in said


def test_slow_steps_make_short_runs(forerun: Run) -> None:
    words = ("suggest", "llama3-8b", "--clusters", "aws:p4d.24xlarge,aws:p5.48xlarge",
             "--max-devices", "64", "--budget", "500", "--times", "5", "--json")  # fmt: skip
    done = forerun(*words)
    assert done.code == 0, done.err
    found = done.json()
    for one in found["runs"]:
        stepped = one["seconds"] - 180
        assert 20 <= one["steps"] <= 100
        assert stepped <= 600 * 1.001 or one["steps"] == 20
    assert "at least 20" in " ".join(found["assumptions"])
    asked = forerun(*words[:-1], "--run-steps", "30", "--json").json()
    assert {one["steps"] for one in asked["runs"]} == {30}


def test_a_reason_names_what_is_settled_of_the_job_chosen_now(forerun: Run) -> None:
    done = forerun(
        "suggest", "resnet50", "--clusters", "1x8xa100-sxm-80gb,2x8xv100-sxm2-16gb", "--count", "2",
        "--times", "20", "--json",
    )  # fmt: skip
    found = done.json()
    assert found["runs"]
    for one in found["runs"]:
        assert 0 <= one["settles_of_chosen"] <= 1
        assert "the job chosen now" in one["reason"]
        assert one["log_error_after"] <= found["log_error_now"] + 1e-12
