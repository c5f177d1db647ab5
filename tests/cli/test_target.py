"""Time to a target: runs that reached one teach how long others train, in fit, predict, recommend and tables."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Run

HEAD = "workload,device,devices,nodes,devices_per_node,precision,target,global_batch,step_time_s,samples_to_target"
BATCHES = (
    (512, 0.045, 44.8e6),
    (1024, 0.075, 45e6),
    (2048, 0.14, 46e6),
    (4096, 0.27, 49e6),
    (16384, 1.05, 62e6),
)
JOB = ("--precision", "bf16", "--model", "M.json")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forerun: Run) -> str:
    """Fit auto to five runs, and stand beside its file."""
    monkeypatch.chdir(tmp_path)
    rows = [
        f"resnet50,a100-sxm-80gb,8,1,8,bf16,top-1 75.9 %,{b},{t},{s:.0f}" for b, t, s in BATCHES
    ]
    Path("R.csv").write_text("\n".join((HEAD, *rows)) + "\n")
    done = forerun("fit", "--runs", "R.csv", "--predictor", "auto", "--out", "M.json")
    assert done.code == 0, done.err
    return str(done.out)


def test_runs_to_a_target_say_how_long_others_train(model: str, forerun: Run) -> None:
    assert "samples until the target of resnet50 top-1 75.9 %" in model
    asked = (
        "predict",
        "resnet50",
        "--cluster",
        "1x8xa100-sxm-80gb",
        "--global-batch",
        "2048",
        *JOB,
    )
    text = forerun(*asked).out
    assert "length    until its target: 22," in text
    assert "of the band's variance" in text
    assert "90 epochs" in forerun(*asked, "--epochs", "90").out
    best = forerun("recommend", "resnet50", "--clusters", "1x8xa100-sxm-80gb", "--global-batch", "1024,4096,16384",
                   "--minimize", "time", *JOB, "--json").json()["best"]  # fmt: skip
    assert best["job"]["plan"]["global_batch"] == 4096
    assert "yes" in next(
        x
        for x in forerun("support", "resnet50", "--model", "M.json").out.splitlines()
        if "target" in x
    )


def test_a_table_has_the_samples_of_each_batch_and_says_where_it_continues(
    model: str, forerun: Run
) -> None:
    rows = [f"resnet50,a100-sxm-80gb,8,1,8,bf16,,{batch},," for batch in (3000, 65536)]
    Path("A.csv").write_text("\n".join((HEAD, *rows)) + "\n")
    assert forerun("predict", "--table", "A.csv", "--model", "M.json", "--out", "B.csv").code == 0
    near, far = csv.DictReader(Path("B.csv").read_text().splitlines())
    assert 46e6 < float(near["predicted_samples_to_target"]) < 49e6
    assert near["predicted_note"] == ""
    assert "known at batches of 512 to 16,384 alone" in far["predicted_note"]
    steps = float(near["predicted_samples_to_target"]) / 3000
    assert float(near["predicted_time_to_train_s"]) == pytest.approx(
        steps * float(near["predicted_step_time_s"]), rel=0.01
    )


def test_an_evaluation_of_samples_opens_with_samples(model: str, forerun: Run) -> None:
    """What answers no time is not introduced by the times that it left unanswered."""
    del model  # its table is there
    asked = ("evaluate", "--runs", "R.csv", "--split", "leave-one-out:global_batch")
    lines = forerun(*asked, "--predictors", "convergence").out.splitlines()
    assert re.match(
        r"convergence: 5 rows state samples until their target, 100 % of these answered; median error"
        r" [\d.]+ %\. It answers no times\.", lines[1],
    )  # fmt: skip
    assert lines[3] == "Samples until the target"
    both = forerun(*asked, "--predictors", "convergence,auto").out
    assert re.search(r"auto: 5 rows state samples .* Times: 5 rows, 5 of them comparable", both)
