"""The page of five published jobs: chosen by rule, asked as they were run, and shown as they came out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forerun.testing.samples import tiny_runs
from tests.evaluate.test_ablation_docs import script
from tests.needs import published

ROOT = Path(__file__).resolve().parents[2]
BENCH, PAGE = script("benchmarks/five_jobs.py"), script("docs/jobs_page.py")
HEADLINES = script("benchmarks/headline_jobs.py")
JOBS: list[dict[str, Any]] = BENCH.jobs()
KEPT: dict[str, Any] = json.loads((ROOT / "benchmarks/results/jobs.json").read_text())
SAID = {"p05": 1.0, "p50": 2.0, "p95": 4.0}


def test_the_page_is_what_its_script_writes() -> None:
    written = subprocess.run(
        [sys.executable, "docs/jobs_page.py"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout  # fmt: skip
    assert (ROOT / "docs" / "jobs.md").read_text() == written, "run `make docs`"


def test_there_are_five_jobs_of_five_tables_with_results_of_their_commands() -> None:
    assert len({job["table"] for job in JOBS}) == len(JOBS) == len(KEPT["jobs"]) == 5
    for job, kept in zip(JOBS, KEPT["jobs"], strict=True):
        assert kept["table"] == job["table"]
        assert kept["command"].split()[1:] == BENCH.words_of(job), "run benchmarks/five_jobs.py"
        assert kept["where"] == job.get("where", [])


def test_no_job_was_taught_by_its_own_table() -> None:
    for kept in KEPT["jobs"]:
        assert kept["table"] not in kept["teachers"]
        assert len(kept["teachers"]) >= 15
        assert max(kept["teachers"].values()) <= KEPT["made"]["runs_each"]


@pytest.mark.data
@pytest.mark.parametrize("number", range(5))
def test_each_job_is_the_middle_row_of_its_table(number: int) -> None:
    folder = published()
    kept = KEPT["jobs"][number]
    _, rows = BENCH.candidates(JOBS[number], folder)
    row = BENCH.middle(rows)
    assert len(rows) == kept["candidates"]
    assert row.table.row(0)["ref"] == kept["ref"]
    truth = BENCH.measured(row)["step_seconds"]
    assert truth == pytest.approx(kept["measured"]["step_seconds"], rel=1e-4)
    order = [w.graph.forward_flops for w in rows.jobs.workloads]
    sizes = np.array(order)[rows.jobs.workload_index] * rows.jobs.plans.global_batch
    assert (np.diff(sizes) >= 0).all()


def test_the_middle_of_an_even_number_is_the_lower_one() -> None:
    runs = tiny_runs()
    four = runs.take(np.arange(4))
    assert BENCH.middle(four).table.row(0) == four.table.row(1)
    three = runs.take(np.arange(3))
    assert BENCH.middle(three).table.row(0) == three.table.row(1)


def test_a_command_that_departs_from_its_row_is_told() -> None:
    plan = {**dict.fromkeys(BENCH.PLAN, 1), "recompute": "none", "sequence_parallel": True}
    answer = {
        "plan": plan, "workload": {"precision": "bf16", "optimizer": "adamw", "seq_len": 2048},
        "cluster": {"device": "h100-sxm-80gb", "devices": 8},
    }  # fmt: skip
    row = {"tp": 1.0, "devices": 8.0, "precision": "bf16", "sequence_parallel": "True", "pp": ""}
    assert BENCH.differences(row, answer) == []
    found = BENCH.differences({**row, "tp": 2.0, "precision": "fp8"}, answer)
    assert [text.split()[0] for text in found] == ["tp", "precision"]
    assert BENCH.differences({**row, "sequence_parallel": "False"}, answer) == ["sequence_parallel"]


@pytest.mark.parametrize(
    ("truth", "shown", "within"),
    [(2.0, "#", True), (1.0, "o", True), (3.9, "o", True), (5.0, "o", False), (0.5, "o", False)],
)
def test_a_band_is_drawn_around_its_measurement(truth: float, shown: str, within: bool) -> None:
    text = PAGE.band(SAID, truth)
    middle = (PAGE.WIDTH - 1) // 2
    assert text.ljust(PAGE.WIDTH)[middle] in "|#"
    assert shown in text
    assert PAGE.inside(SAID, truth) is within
    assert (text.find("[") <= middle <= text.find("]")) or truth == 1.0 or not within
    assert len(text) <= PAGE.WIDTH


def test_a_band_beyond_the_picture_ends_at_its_edge() -> None:
    text = PAGE.band({"p05": 10.0, "p50": 20.0, "p95": 100.0}, 1.0)
    assert len(text) == PAGE.WIDTH


def test_errors_have_a_sign_and_what_was_not_published_says_so() -> None:
    assert PAGE.error(SAID, 1.6) == "+25.0 %"
    assert PAGE.error(SAID, 2.5) == "-20.0 %"
    assert "not published" in PAGE._row("cost", SAID, None, str)


def test_a_command_stands_on_a_line_an_option() -> None:
    text = PAGE.command("forerun predict x --cluster 1x8xt4 --steps 10")
    assert text == "```\nforerun predict x \\\n    --cluster 1x8xt4 \\\n    --steps 10\n```"


def test_every_published_training_has_its_answer_and_its_half() -> None:
    jobs, kept = PAGE.read("headline_jobs.yaml", "headline_jobs.json")
    assert len(jobs) >= 20
    for job, one in zip(jobs, kept["jobs"], strict=True):
        assert (one["name"], one["half"]) == (job["name"], HEADLINES.half_of(job))
        assert job["source"]
        assert 0 < one["forecast"]["run_seconds"]["p50"] <= one["forecast"]["wall_seconds"]["p50"]
    halves = [one["half"] for one in kept["jobs"]]
    assert min(halves.count("seen"), halves.count("blind")) >= 10
