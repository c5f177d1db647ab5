"""Absurd figures: no command fails on them (a warning is an error here), and each is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.cli.test_suggest import write

QUICK = ("ernest", "linear-scaling", "ps-saturation", "goodput", "gaussian", "hierarchical",
         "analytic", "residual", "constant-mfu")  # fmt: skip
# Beyond what a run can take, and just within it.
BEYOND, LEAST, MOST = 1e300, 1e-9, 1e12


def rows(device: str = "mygpu", workload: str = "mynet") -> list[dict[str, Any]]:
    return [
        {"workload": workload, "device": device, "devices": d, "global_batch": b,
         "price_usd_per_hour": d, "step_time_s": 0.01 + 2e-3 * b / d + 3e-3 * d}
        for d in (1, 2, 4, 8) for b in (32, 64, 128)
    ]  # fmt: skip


def every_second(figure: float, known: bool, column: str = "step_time_s") -> list[dict[str, Any]]:
    names = ("a100-sxm-80gb", "resnet50") if known else ("mygpu", "mynet")
    return [{**row, **({column: figure} if i % 2 else {})} for i, row in enumerate(rows(*names))]


def answers(forerun: Run, tmp_path: Path, name: str, table: list[dict[str, Any]]) -> list[str]:
    """Return what every command that learns from runs says; none may end as a defect."""
    runs = write(tmp_path / "runs.csv", table)
    asked = [{k: v for k, v in row.items() if k != "step_time_s"} for row in rows()]
    jobs = write(tmp_path / "jobs.csv", [{**row, "global_batch": 256} for row in asked])
    said = []
    for words in (
        ("fit", "--runs", str(runs), "--predictor", name, "--out", str(tmp_path / "m.json")),
        ("predict", "--fit", str(runs), "--predictor", name, "--table", str(jobs)),
        ("suggest", "--candidates", str(jobs), "--runs", str(runs), "--predictor", name),
        ("suggest", "--candidates", str(jobs), "--runs", str(runs), "--predictor", name,
         "--goal", "decision", "--steps", "100"),
        ("evaluate", "--runs", str(runs), "--predictors", name, "--split", "random", "--folds", "2"),
    ):  # fmt: skip
        done = forerun(*words)
        assert done.code in (0, 2, 3), done.err
        said.append(done.out + done.err)
    return said


@pytest.mark.parametrize(
    ("name", "known"),
    [*((name, False) for name in QUICK), ("analytic", True), ("constant-mfu", True)],
)
def test_times_that_no_run_takes_are_left_out_and_named(
    forerun: Run, tmp_path: Path, name: str, known: bool
) -> None:
    said = answers(forerun, tmp_path, name, every_second(BEYOND, known))
    assert "step_time_s=1e+300 is no figure of a run (1e-09 to 1e+12 s)" in said[0]
    assert "runs.csv line 3" in said[0]


@pytest.mark.parametrize("figure", [LEAST, MOST])
@pytest.mark.parametrize("name", QUICK)
def test_times_at_the_bounds_are_answered_or_refused(
    forerun: Run, tmp_path: Path, name: str, figure: float
) -> None:
    answers(forerun, tmp_path, name, every_second(figure, known=False))


@pytest.mark.parametrize("column", ["devices", "global_batch"])
@pytest.mark.parametrize("name", ["goodput", "ernest", "analytic"])
def test_sizes_at_the_bound_are_answered_or_refused(
    forerun: Run, tmp_path: Path, name: str, column: str
) -> None:
    answers(forerun, tmp_path, name, every_second(1e18, known=False, column=column))


def test_what_is_left_learns_as_if_the_absurd_rows_were_not_there(
    forerun: Run, tmp_path: Path
) -> None:
    models = []
    for name, table in (("all", every_second(BEYOND, known=False)), ("sound", rows()[::2])):
        out = tmp_path / f"{name}.json"
        runs = write(tmp_path / f"{name}.csv", table)
        done = forerun("fit", "--runs", str(runs), "--predictor", "ernest", "--out", str(out))
        assert done.code == 0, done.err
        models.append(json.loads(out.read_text())["laws"])
    assert models[0] == models[1]
