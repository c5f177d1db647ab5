"""forerun suggest: the next runs with price and reason, or that none would change the choice."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.conftest import Run

# Ernest's own example: shares of the data on machines of four cores, in 256 partitions.
GRID = [
    (round(float(s) * 1e6), m)
    for s in np.linspace(4 / 256, 32 / 256, 20)
    for m in range(1, 9)
    if round(float(s) * 256) >= 4 * m
]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    rows = [{"workload": "sort", "device": "vm", "devices": m, "dataset_size": s} for s, m in GRID]
    return write(tmp_path / "jobs.csv", rows)


def seconds(size: float, machines: float) -> float:
    return float(2 + 1e-3 * size / machines + 1.5 * np.log(machines))


@pytest.fixture
def some_runs(tmp_path: Path) -> Path:
    rows = [
        {"workload": "sort", "device": "vm", "devices": m, "dataset_size": s,
         "epoch_time_s": seconds(s, m) * (1.01 if i % 2 else 0.99)}
        for i, (s, m) in enumerate(GRID[::14])
    ]  # fmt: skip
    return write(tmp_path / "runs.csv", rows)


def test_a_law_is_designed_for_before_any_run(forerun: Run, grid: Path) -> None:
    done = forerun(
        "suggest", "--candidates", str(grid), "--predictor", "ernest", "--budget", "10", "--json"
    )
    assert done.code == 0, done.err
    found = done.json()
    assert found["goal"] == "design"
    assert found["price_unit"] == "smallest runs"
    assert len(found["runs"]) >= 4
    assert found["price"] == pytest.approx(sum(r["price"] for r in found["runs"]))
    assert found["price"] <= 10 * (1 + 1e-9)
    assert found["design_efficiency"] > 0.5
    assert len({r["row"]["devices"] for r in found["runs"]}) >= 3
    assert all("without it" in r["reason"] for r in found["runs"])


def test_the_runs_of_a_design_are_as_good_as_ernest_s_rule_at_least(
    forerun: Run, grid: Path
) -> None:
    """The published rule keeps seven of these candidates, whose whole runs cost less than 10."""
    from forerun.predictors.laws.ernest import features
    from forerun.search.design import column_scaled, ernest_design

    size, machines = np.array(GRID, dtype=float).T
    x = column_scaled(features(size, machines))
    kept = ernest_design(size, machines).kept()
    done = forerun(
        "suggest", "--candidates", str(grid), "--predictor", "ernest", "--criterion", "A", "--json"
    )
    mine = [
        GRID.index((round(r["row"]["dataset_size"]), round(r["row"]["devices"])))
        for r in done.json()["runs"]
    ]
    trace = [float(np.trace(np.linalg.inv(x[rows].T @ x[rows]))) for rows in (mine, kept)]
    assert trace[0] < trace[1]


def test_runs_that_were_made_are_left_out_and_count(
    forerun: Run, grid: Path, some_runs: Path
) -> None:
    done = forerun(
        "suggest", "--candidates", str(grid), "--runs", str(some_runs), "--predictor", "ernest", "--count", "2",
        "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    found = done.json()
    made = {tuple(map(float, r)) for r in GRID[::14]}
    assert len(found["runs"]) == 2
    assert not {(r["row"]["dataset_size"], r["row"]["devices"]) for r in found["runs"]} & made
    assert any("run already" in note for note in found["assumptions"])
    assert found["price_unit"] == "device-hours"
    first = found["runs"][0]
    row = first["row"]
    hours = (180 + seconds(row["dataset_size"], row["devices"])) / 3600 * row["devices"]
    assert first["price"] == pytest.approx(hours, rel=0.1)


def test_every_candidate_made_already_is_no_answer(forerun: Run, some_runs: Path) -> None:
    done = forerun(
        "suggest", "--candidates", str(some_runs), "--runs", str(some_runs), "--predictor", "ernest"
    )
    assert done.code == 3
    assert "run already" in done.err


def test_a_budget_below_the_cheapest_candidate_names_it(forerun: Run, grid: Path) -> None:
    done = forerun(
        "suggest", "--candidates", str(grid), "--predictor", "ernest", "--budget", "0.01"
    )
    assert done.code == 3
    assert "the cheapest candidate" in done.err
    assert "raise the budget to" in done.err


def test_terms_that_the_candidates_cannot_tell_are_named_with_what_would(
    forerun: Run, tmp_path: Path
) -> None:
    rows = [{"workload": "sort", "device": "vm", "devices": 8, "dataset_size": s}
            for s in (1e5, 2e5, 3e5, 4e5)]  # fmt: skip
    done = forerun(
        "suggest",
        "--candidates",
        str(write(tmp_path / "same.csv", rows)),
        "--predictor",
        "ernest",
        "--json",
    )
    assert done.code == 0, done.err
    said = " ".join(done.json()["assumptions"])
    assert "cannot separate tree reduction, all to one from the other terms" in said
    assert "another number of devices" in said


def test_too_few_runs_are_no_obstacle_to_a_design(
    forerun: Run, grid: Path, some_runs: Path
) -> None:
    few = some_runs.with_name("few.csv")
    few.write_text("\n".join(some_runs.read_text().splitlines()[:3]) + "\n")
    done = forerun(
        "suggest", "--candidates", str(grid), "--runs", str(few), "--predictor", "ernest", "--json"
    )
    assert done.code == 0, done.err
    assert any("not fitted yet" in note for note in done.json()["assumptions"])


def test_prices_by_the_hour_make_dollars(forerun: Run, some_runs: Path, tmp_path: Path) -> None:
    rows = [{"workload": "sort", "device": "vm", "devices": m, "dataset_size": s,
             "price_usd_per_hour": 36.0 * m} for s, m in GRID]  # fmt: skip
    done = forerun(
        "suggest", "--candidates", str(write(tmp_path / "priced.csv", rows)), "--runs", str(some_runs),
        "--predictor", "ernest", "--budget", "50", "--json",
    )  # fmt: skip
    found = done.json()
    assert (done.code, found["price_unit"]) == (0, "dollars")
    assert 0 < found["price"] <= 50
    for one in found["runs"]:
        assert one["price"] == pytest.approx(one["seconds"] * 36 * one["row"]["devices"] / 3600)


def test_the_next_runs_are_written_as_rows_of_a_table(
    forerun: Run, grid: Path, tmp_path: Path
) -> None:
    out = tmp_path / "next.csv"
    done = forerun("suggest", "--candidates", str(grid), "--predictor", "ernest", "--out", str(out))
    assert done.code == 0, done.err
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert rows
    assert {"workload", "devices", "dataset_size", "suggested_price", "suggested_reason"} <= set(
        rows[0]
    )
    assert [float(r["suggested_order"]) for r in rows] == list(range(1, len(rows) + 1))


def test_a_recommendation_is_settled_by_runs_that_are_worth_their_price(forerun: Run) -> None:
    done = forerun(
        "suggest", "resnet50", "--clusters", "1x8xa100-sxm-80gb,4x8xv100-sxm2-16gb", "--count", "2",
        "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    found = done.json()
    assert (found["goal"], found["price_unit"]) == ("decision", "dollars")
    assert found["chosen_now"]
    for one in found["runs"]:
        assert one["gain"] > one["price"] > 0
        assert 0.01 <= one["changes_choice"] <= 1
        assert "changes the choice in" in one["reason"]


def test_no_run_is_suggested_where_none_would_change_the_choice(forerun: Run) -> None:
    """By time, an H100 is surely before a K80."""
    done = forerun(
        "suggest", "resnet50", "--clusters", "1x1xh100-sxm-80gb,1x1xk80", "--minimize", "time",
        "--global-batch", "32", "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    found = done.json()
    assert found["runs"] == []
    assert "no run would change the choice" in found["stop"]


def test_one_option_leaves_nothing_to_settle(forerun: Run) -> None:
    done = forerun("suggest", "resnet50", "--clusters", "1x1xh100-sxm-80gb")
    assert done.code == 0
    assert "one option only" in done.out


def test_an_accuracy_of_physics_names_what_a_run_tells(forerun: Run) -> None:
    done = forerun(
        "suggest", "resnet50", "--clusters", "4x8xv100-sxm2-16gb", "--goal", "accuracy", "--json"
    )
    found = done.json()
    assert done.code == 0, done.err
    assert len(found["runs"]) == 1
    assert found["runs"][0]["log_error_after"] < found["log_error_now"]
    assert found["runs"][0]["tells"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "neither of WORKLOAD and --candidates"),
        (("resnet50", "--candidates", "JOBS"), "both of WORKLOAD and --candidates"),
        (("--candidates", "JOBS", "--clusters", "1x1xk80"), "--candidates with --clusters"),
        (("resnet50", "--asked", "JOBS"), "WORKLOAD with --asked"),
        (("--candidates", "JOBS", "--predictor", "generic"), "answers"),
        (("--candidates", "JOBS", "--goal", "decision", "--predictor", "ernest"), "answers"),
        (("--candidates", "MISSING"), "there is no such file"),
    ],
)
def test_wrong_requests_are_told(
    forerun: Run, grid: Path, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    paths = {"JOBS": str(grid), "MISSING": str(tmp_path / "missing.csv")}
    done = forerun("suggest", *(paths.get(word, word) for word in words))
    assert done.code == 2, done.out + done.err
    assert said in done.err


def test_candidates_that_state_no_devices_are_told(forerun: Run, tmp_path: Path) -> None:
    rows = [{"workload": "sort", "device": "vm", "dataset_size": 1000}]
    done = forerun(
        "suggest", "--candidates", str(write(tmp_path / "bare.csv", rows)), "--predictor", "ernest"
    )
    assert done.code == 2
    assert "no candidate states what its law is made of" in done.err


def test_a_choice_is_among_jobs_of_one_workload(forerun: Run, tmp_path: Path) -> None:
    rows = [{"workload": name, "device": "v100-sxm2-16gb", "devices": 8, "global_batch": 256}
            for name in ("resnet50", "resnet18")]  # fmt: skip
    words = (
        "suggest",
        "--candidates",
        str(write(tmp_path / "two.csv", rows)),
        "--goal",
        "decision",
    )
    done = forerun(*words)
    assert done.code == 2
    assert "2 workloads: resnet18" in done.err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("workload,devices\n", "no rows"),
        ("a,b\n1,2\n3,4\n", "the table of candidates has no column of a job (a, b)"),
    ],
)
def test_a_table_without_a_job_has_no_next_run(
    forerun: Run, tmp_path: Path, text: str, words: str
) -> None:
    table = tmp_path / "table.csv"
    table.write_text(text)
    done = forerun("suggest", "--candidates", str(table))
    assert done.code == 2
    assert words in done.err


def test_a_job_that_is_run_often_makes_more_runs_worth_their_price(
    forerun: Run, tmp_path: Path
) -> None:
    rows = [
        {"workload": "sort", "device": device, "devices": m, "dataset_size": 40_000, "epochs": 3,
         "price_usd_per_hour": price * m}
        for device, price in (("vm", 30.0), ("box", 31.0)) for m in (1, 2, 4, 8)
    ]  # fmt: skip
    noise = [1.2, 0.8, 1.1, 0.9, 1.15, 0.85]
    runs = [
        {**rows[0], "device": device, "devices": m, "dataset_size": s,
         "epoch_time_s": seconds(s, m) * noise[(i + j) % 6]}
        for j, device in enumerate(("vm", "box"))
        for i, (s, m) in enumerate([(2e4, 1), (8e4, 1), (2e4, 2), (8e4, 2), (2e4, 4), (8e4, 4)])
    ]  # fmt: skip
    words = ("suggest", "--candidates", str(write(tmp_path / "jobs.csv", rows)), "--runs",
             str(write(tmp_path / "runs.csv", runs)), "--predictor", "ernest", "--goal", "decision",
             "--json")  # fmt: skip
    once, often = forerun(*words).json(), forerun(*words, "--times", "100000").json()
    assert once["runs"] == []
    assert "worth its price" in once["stop"]
    assert len(often["runs"]) == 1
    assert often["runs"][0]["gain"] * 100_000 > often["runs"][0]["price"]


def test_rows_without_a_plan_get_one_and_those_that_do_not_fit_are_left_out(
    forerun: Run, tmp_path: Path
) -> None:
    rows = [
        {"workload": "llama3-70b", "device": "h100-sxm-80gb", "nodes": n, "devices": 8 * n,
         "price_usd_per_hour": 25.0 * n}
        for n in (1, 8)
    ] + [{"workload": "llama3-70b", "device": "v100-sxm2-16gb", "nodes": 1, "devices": 1,
          "price_usd_per_hour": 3.0}]  # fmt: skip
    done = forerun(
        "suggest", "--candidates", str(write(tmp_path / "j.csv", rows)), "--count", "3", "--json"
    )
    found = done.json()
    assert done.code == 0, done.err
    assert [r["row"]["nodes"] for r in found["runs"]] == [8]
    assert "tp=" in found["runs"][0]["row"]["suggested_plan"]
    assert any("memory" in note for note in found["assumptions"])


@pytest.mark.parametrize("count", [1, 2, 4])
def test_no_more_runs_than_the_count_whatever_the_kinds(
    forerun: Run, tmp_path: Path, count: int
) -> None:
    rows = [
        {"workload": name, "device": "g", "devices": d, "global_batch": 64, "price_usd_per_hour": d}
        for name in ("a", "b", "c") for d in (1, 2, 4)
    ]  # fmt: skip
    table = write(tmp_path / "three.csv", rows)
    done = forerun(
        "suggest", "--candidates", str(table), "--predictor", "ernest", "--count", str(count),
        "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    found = done.json()
    assert 0 < len(found["runs"]) <= count
    left = [
        note for note in found["assumptions"] if "left out: each needs a run of its own" in note
    ]
    assert len(left) == (count < 3)
