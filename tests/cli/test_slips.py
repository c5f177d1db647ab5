"""Slips of the pen are met with what was likely meant, and everything missing is asked for at once."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from forerun.errors import likely_name, one_of
from tests.cli.conftest import Run

JOB = ("predict", "resnet50", "--cluster", "1x8xa100-sxm-80gb")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("predict", "resnet5O", "--cluster", "1x8xa100-sxm-80gb"), "resnet50"),
        (("predict", "resnet50", "--cluster", "1x8xa100-sxm-80g"), "a100-sxm-80gb"),
        (("predict", "resnet50", "--cluster", "1xaws:p5.48xlrge"), "aws:p5.48xlarge"),
        (("predict", "resnet50", "--cluster", "1xaws:p5.48xlarge@us-esat-1"), "us-east-1"),
        ((*JOB, "--plan", "tpp=2"), "tp"),
        ((*JOB, "--plan", "tensor_parallell=2"), "tp"),
        ((*JOB, "--plan", "recompute=ful"), "full"),
        ((*JOB, "--precision", "bf17"), "bf16"),
        ((*JOB, "--optimizer", "adamm"), "adam"),
        ((*JOB, "--task", "pretran"), "pretrain"),
        ((*JOB, "--market", "spott"), "spot"),
        ((*JOB, "--start", "shiped"), "shipped"),
        ((*JOB, "--predictor", "analitic"), "analytic"),
        ((*JOB, "--framework", "tensorflw"), "tensorflow"),
        (("recommend", "resnet50", "--minimize", "tme"), "time"),
        (("recommend", "resnet50", "--region", "us-esat-1"), "us-east-1"),
        (("recommend", "resnet50", "--providers", "nebbius"), "nebius"),
        (("recomend", "resnet50"), "recommend"),
        (("runs", "lst"), "list"),
    ],
)
def test_a_slip_is_met_with_what_was_meant(
    forerun: Run, words: tuple[str, ...], meant: str
) -> None:
    done = forerun(*words)
    assert done.code == 2
    offer = done.err.partition("did you mean ")[2].partition("?")[0]
    assert meant in offer.split(", "), done.err
    assert done.err.lower().count("did you mean") == 1


@pytest.mark.parametrize(
    ("words", "missing", "in_hand"),
    [
        (("predict",), ["WORKLOAD", "--cluster"], []),
        (("predict", "resnet50"), ["--cluster"], ["WORKLOAD"]),
        (("predict", "--cluster", "1x8xa100-sxm-80gb"), ["WORKLOAD"], ["--cluster"]),
        (("explain",), ["WORKLOAD", "--cluster"], []),
        (("explain", "resnet50"), ["--cluster"], ["WORKLOAD"]),
        (("recommend",), ["WORKLOAD"], []),
        (("fit",), ["--runs", "--out"], []),
        (("fit", "--out", "m.json"), ["--runs"], ["--out"]),
        (("evaluate",), ["--runs"], []),
    ],
)
def test_all_that_is_missing_is_asked_for_at_once_in_the_order_of_the_help(
    forerun: Run, words: tuple[str, ...], missing: list[str], in_hand: list[str]
) -> None:
    done = forerun(*words)
    assert done.code == 2
    found = done.err.splitlines()[1]
    assert found.strip() == f"found: no {' and no '.join(missing)} given"
    asked = done.err.splitlines()[2]
    assert [asked.index(name) for name in missing] == sorted(asked.index(n) for n in missing)
    assert not [name for name in in_hand if f"give {name}" in asked]


def test_what_looks_like_nothing_is_not_guessed_at() -> None:
    assert likely_name("zebra", ("time", "cost")) == ""
    assert one_of("zebra", ("time", "cost")) == "use one of time, cost"
    assert one_of("tme", ("time", "cost")) == "did you mean time? use one of time, cost"


def test_the_versions_name_the_constants(forerun: Run) -> None:
    constants = forerun("version", "--json").json()["versions"]["constants"]
    date, commit = constants.split(", commit ")
    assert len(date) == len("2026-11-21")
    assert commit


CAMPAIGN = "workloads: {m: {entry: 'a:b', global_batch: 8}}\n"
CATALOGUE = "devices: {mine: {memory_gb: 16}}\n"


@pytest.mark.parametrize(
    ("command", "name", "text", "words"),
    [
        (["runs", "import"], "camp.yaml", CAMPAIGN,
         "it is a campaign, not a table of runs or a log\n next: try: forerun profile camp.yaml"),
        (["runs", "import"], "mine.yml", CATALOGUE,
         "it is a catalogue of devices, not a table of runs or a log\n next: try: forerun predict ..."
         " --catalog mine.yml"),
        (["runs", "import"], "train.py", "print(1)\n", "it is a script"),
        (["profile"], "runs.csv", "workload,step_time_s\na,1\n",
         "it is a table of runs, not a campaign\n next: try: forerun runs import runs.csv"),
        (["profile"], "train.py", "print(1)\n",
         "it is a script, not a campaign\n next: try: forerun profile CAMPAIGN.yaml, where workloads"
         " has NAME: {entry: train.py}"),
        (["profile"], "mine.yaml", CATALOGUE, "it is a catalogue of devices, not a campaign"),
        (["eta"], "camp.yaml", CAMPAIGN, "it is a campaign, not a log"),
    ],
)  # fmt: skip
def test_a_file_of_another_kind_is_told_with_the_command_that_takes_it(
    forerun: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    command: list[str], name: str, text: str, words: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORERUN_STORE", "kept.db")
    Path(name).write_text(text)
    done = forerun(*command, name)
    assert done.code == 2
    assert words in done.err
    assert not Path("kept.db").exists()


def test_a_store_is_no_table_and_another_program_s_database_is_no_store(
    forerun: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs.csv").write_text("workload,step_time_s\na,1\n")
    assert forerun("runs", "import", "runs.csv", "--store", "kept.db").code == 0
    done = forerun("runs", "import", "kept.db", "--store", "other.db")
    assert "it is a store, not a table of runs or a log" in done.err
    with closing(sqlite3.connect("theirs.db")) as database:
        database.execute("CREATE TABLE things (name TEXT)")
    assert "it is a store" not in forerun("runs", "import", "theirs.db", "--store", "o.db").err
