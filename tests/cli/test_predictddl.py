"""PredictDDL on the command line: it trains by one command over several tables, and refuses what it cannot use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Done, Run

pytest.importorskip("sklearn")
LAB = "architectures-lab"
PLAIN = "predictddl:regression=linear:features=quantities"
NAMES = ("resnet18", "resnet34", "resnet50", "vgg11", "alexnet", "mobilenet_v2")
TIMES = [
    f"{name},,,a100-sxm-80gb,1,{devices},{batch * devices},{0.01 * (i + 1) * batch / 16 + 0.001 * devices}"
    for i, name in enumerate(NAMES) for devices in (1, 4) for batch in (16, 64)
]  # fmt: skip
UNKNOWN = ["my-net,2e7,4.1,a100-sxm-80gb,1,1,32,0.05", "resnet18,,,no-such-device,1,1,32,0.05",
           "resnet18,,,a100-sxm-80gb,1,1,32,"]  # fmt: skip


def write(path: Path, rows: list[str]) -> str:
    path.write_text(
        "workload,params,gmacs,device,nodes,devices,global_batch,step_time_s\n"
        + "\n".join(rows)
        + "\n"
    )
    return str(path)


@pytest.fixture
def table(tmp_path: Path) -> str:
    return write(tmp_path / "runs.csv", TIMES)


@pytest.fixture
def model(forerun: Run, table: str, tmp_path: Path) -> str:
    path = str(tmp_path / "model.json")
    spec = "predictddl:regression=linear:features=embedding"
    assert forerun("fit", "--runs", table, "--predictor", spec, "--out", path).code == 0
    return path


def refused(done: Done, *words: str) -> None:
    """Check that a command said what was asked, what was found and what to do, and no more."""
    assert done.code in (2, 3), done.out + done.err
    assert done.err.startswith("error: ")
    assert " found: " in done.err
    assert " next: " in done.err
    assert "Traceback" not in done.err
    for word in words:
        assert word in done.err


def test_one_command_trains_over_tables_and_says_what_it_left_out(
    forerun: Run, tmp_path: Path
) -> None:
    mixed = write(tmp_path / "mixed.csv", TIMES + UNKNOWN)
    out = tmp_path / "model.json"
    done = forerun(
        "fit", "--runs", mixed, "--runs", LAB, "--predictor", PLAIN, "--out", str(out), "--json"
    )
    assert done.code == 0, done.err
    notes = done.json()["notes"]
    assert notes[0] == "learned from 398 runs"
    assert notes[1] == "1 run left out, with no step time"
    assert notes[2].startswith(
        "1 run left out, with no workload or device that is known, as the first: device "
    )
    assert notes[3].startswith(
        "1 run left out, with no graph that can be embedded, as the first: only totals of "
    )
    assert len(notes) == 4
    asked = forerun("predict", "resnet101", "--cluster", f"4x1x{LAB}", "--catalog", LAB, "--image-size", "32",
                    "--global-batch", "16", "--model", str(out))  # fmt: skip
    assert asked.code == 0, asked.err
    assert "closest   resnet50_" in asked.out


def test_an_encoder_is_trained_over_tables_and_its_progress_said(
    forerun: Run, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr("forerun.predictors.graphs.predictddl.STEPS", 2)
    out = tmp_path / "model.json"
    spec = "predictddl:regression=linear:features=embedding:encoder=residual"
    done = forerun("fit", "--runs", table, "--runs", LAB, "--predictor", spec, "--out", str(out))
    assert done.code == 0, done.err
    said = [line for line in done.err.splitlines() if line.startswith("training an encoder: ")]
    assert len(said) == 3, "one for all networks, one for each half that a half is judged by"
    assert all(line.startswith("training an encoder: step 2 of 2, loss ") for line in said)
    assert json.loads(out.read_text())["model"]["encoder"]
