"""forerun suggest --campaign: suggested runs become a campaign that forerun profile carries out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forerun.measure.campaign_file import read_campaign
from tests.cli.conftest import Run
from tests.cli.test_suggest import write

CELLS = {"workload": "mlp", "device": "own-cpu", "node_gbps": 10, "precision": "fp32",
         "optimizer": "sgd", "price_usd_per_hour": ""}  # fmt: skip


@pytest.fixture
def candidates(tmp_path: Path) -> Path:
    """Return jobs on 1 to 4 workers of a machine of one's own."""
    rows = [
        {**CELLS, "devices": n, "global_batch": 16 * n * k, "cpus_per_worker": 0.5,
         "dataset_size": 960 * k}
        for n in (1, 2, 4) for k in (1, 2)
    ]  # fmt: skip
    return write(tmp_path / "jobs.csv", rows)


def suggested(forerun: Run, candidates: Path, out: Path, *more: str) -> Any:
    """Suggest first runs by the terms of ernest, as a campaign."""
    return forerun("suggest", "--candidates", str(candidates), "--predictor", "ernest",
                   "--campaign", str(out), *more)  # fmt: skip


def test_the_campaign_makes_the_runs_that_were_suggested(
    forerun: Run, candidates: Path, tmp_path: Path
) -> None:
    out, table = tmp_path / "next.yaml", tmp_path / "next.csv"
    done = suggested(forerun, candidates, out, "--out", str(table),
                     "--entry", "mlp=examples.lab_models:mlp")  # fmt: skip
    assert done.code == 0, done.err
    assert f"measure them: forerun profile {out}" in done.out
    found = read_campaign(out)
    from forerun.tables import read_table

    wanted = read_table(table)
    assert found.name == "next"
    assert sorted((p.task.workers, p.task.global_batch, p.task.dataset_size) for p in found.points) == (
        sorted(zip(*(wanted.numbers(n) for n in ("devices", "global_batch", "dataset_size")),
                   strict=True)))  # fmt: skip
    point = found.points[0]
    assert point.task.entry == "examples.lab_models:mlp"
    assert (point.task.cpus_per_worker, point.task.gpus_per_worker) == (0.5, 0)
    assert (point.asked["workload"], point.asked["device"]) == ("mlp", "own-cpu")
    assert point.asked["node_gbps"] == 10
    assert "# without it" in out.read_text()
    plan = forerun("profile", str(out), "--dry-run", "--store", str(tmp_path / "s.db"), "--json")
    assert plan.json()["left"] == len(found.points) >= 4


@pytest.mark.parametrize(
    ("cells", "more", "words"),
    [
        ({}, (), "not known what to train for mlp"),
        ({}, ("--entry", "mlp"), "not NAME=WHAT"),
        ({"device": ""}, ("--entry", "mlp=m:f"), "several device: "),
        ({"tp": 2}, ("--entry", "mlp=m:f"), "mlp with tp=2"),
    ],
)
def test_what_no_campaign_can_make_is_refused_with_a_way_out(
    forerun: Run, tmp_path: Path, cells: dict[str, Any], more: tuple[str, ...], words: str
) -> None:
    rows = [{**CELLS, "tp": "", "devices": n, "global_batch": 64, "dataset_size": 960 * k,
             **(cells if n == 4 or "tp" in cells else {})}
            for n in (2, 4, 8) for k in (1, 2)]  # fmt: skip
    out = tmp_path / "next.yaml"
    done = suggested(forerun, write(tmp_path / "jobs.csv", rows), out, *more)
    assert done.code == 2
    assert words in done.err
    assert not out.exists()


def test_an_entry_without_a_campaign_is_refused(forerun: Run, candidates: Path) -> None:
    done = forerun("suggest", "--candidates", str(candidates), "--entry", "mlp=m:f")
    assert done.code == 2
    assert "--campaign NEXT.yaml" in done.err


def test_runs_that_say_their_nodes_answer_candidates_that_leave_them_open(
    forerun: Run, candidates: Path, tmp_path: Path
) -> None:
    """A campaign's rows say on how many nodes they ran: the same candidates are not asked again."""
    rows = [
        {**CELLS, "devices": n, "nodes": n, "global_batch": 16 * n * k, "cpus_per_worker": 0.5,
         "dataset_size": 960 * k, "step_time_s": 0.1 * n + 0.01 * k}
        for n in (1, 2) for k in (1, 2)
    ]  # fmt: skip
    runs = write(tmp_path / "runs.csv", rows)
    done = forerun("suggest", "--candidates", str(candidates), "--runs", str(runs), "--predictor",
                   "ernest", "--json")  # fmt: skip
    assert done.code == 0, done.err
    found = done.json()
    assert {run["row"]["devices"] for run in found["runs"]} == {4}
    assert any("4 candidates left out: run already" in note for note in found["assumptions"])
