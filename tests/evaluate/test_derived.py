"""A table may say its devices as nodes x devices_per_node, or as a cluster, and be split by them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from forerun.catalog import load_catalog
from forerun.cli import main
from forerun.evaluate.splits import with_derived
from forerun.tables import Table
from forerun.workloads.rows import runs_from_table

COUNTS = [(1, 4), (1, 8), (2, 8), (4, 8)]
SAYING = {
    "counts": ("device,nodes,devices_per_node", "a100-sxm-80gb,{n},{d}"),
    "cluster": ("cluster", "{n}x{d}xa100-sxm-80gb"),
    "devices": ("device,nodes,devices", "a100-sxm-80gb,{n},{all}"),
}


Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """Run `forerun evaluate` in this process; return its exit code, stdout and stderr."""

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["evaluate", *words], standalone_mode=False)
        return code, *capsys.readouterr()

    return run


def table(path: Path, saying: str) -> str:
    header, cells = SAYING[saying]
    lines = [
        f"resnet50,{cells.format(n=n, d=d, all=n * d)},{64 * n * d},{0.08 + 0.001 * n * d}"
        for n, d in COUNTS
    ]
    path.write_text("\n".join((f"workload,{header},global_batch,step_time_s", *lines)) + "\n")
    return str(path)


@pytest.mark.parametrize(
    "words",
    [("--split", "above:devices=8"), ("--split", "larger-clusters"), ("--where", "devices>8"),
     ("--group-by", "nodes"), ("--split", "leave-out:devices")],
)  # fmt: skip
def test_however_devices_are_said_the_same_rows_are_judged(
    ask: Ask, tmp_path: Path, words: tuple[str, ...]
) -> None:
    judged = {}
    for saying in SAYING:
        asked = ("--start", "priors", *words, "--json", "--runs", table(tmp_path / "r.csv", saying))
        scores = json.loads(ask(*asked)[1])["scores"]
        judged[saying] = [(score["group"], score["rows"]) for score in scores]
    assert judged["devices"]
    assert judged == dict.fromkeys(SAYING, judged["devices"])


def test_what_a_table_says_itself_stays_as_it_is() -> None:
    rows = [{"workload": "resnet50", "cluster": "2x8xa100-sxm-80gb", "nodes": None,
             "global_batch": 512}]  # fmt: skip
    runs = runs_from_table(Table.from_rows(rows), load_catalog())
    found = with_derived(runs, ["devices", "nodes", "note"]).table
    assert found.numbers("devices").tolist() == [16]
    assert "note" not in found
    assert with_derived(runs, ["global_batch"]) is runs


def test_a_row_whose_cluster_is_not_known_is_blank() -> None:
    rows = [{"workload": "resnet50", "cluster": f"2x8x{d}", "global_batch": 512}
            for d in ("a100-sxm-80gb", "no-such-gpu")]  # fmt: skip
    runs = runs_from_table(Table.from_rows(rows), load_catalog())
    devices = with_derived(runs, ["devices", "device"]).table
    np.testing.assert_array_equal(devices.numbers("devices"), [16, np.nan])
    assert devices.texts("device").tolist() == ["a100-sxm-80gb", ""]


def test_a_table_that_says_no_devices_is_refused_with_what_to_fill_in(
    ask: Ask,
    tmp_path: Path,
) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("workload,global_batch,step_time_s\nresnet50,256,0.08\n")
    code, _, err = ask("--runs", str(path), "--split", "above:devices=8")
    assert code == 2
    assert "there is no column 'devices', and no cluster to read it from" in err
    assert "nodes with devices_per_node, or cluster" in err
