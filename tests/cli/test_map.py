"""--map: a header of one's own, in every verb that reads tables."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.cli.conftest import Run

RUNS = "Model,n_gpus,device,batch_size,time_per_step_ms,price\n" + "".join(
    f"resnet50,{n},v100-sxm2-16gb,{b},{10 + 2 * b / n + 3 * n:g},{n}\n" for n in (1, 2, 4, 8) for b in (64, 128)
)  # fmt: skip
JOBS = "Model,gpus,device,my batch\nresnet50,4,v100-sxm2-16gb,96\n"
OF_RUNS = ("--map", "n_gpus=devices", "--map", "batch_size=global_batch", "--map", "time_per_step_ms=step_time_s",
           "--map", "price=price_usd_per_hour")  # fmt: skip


@pytest.fixture(autouse=True)
def _tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs.csv").write_text(RUNS)
    Path("jobs.csv").write_text(JOBS)


def test_jobs_and_runs_may_have_headers_of_their_own(forerun: Run) -> None:
    done = forerun("predict", "--table", "jobs.csv", "--fit", "runs.csv", "--predictor", "linear-scaling",
                   "--map", "my batch=global_batch", *OF_RUNS, "--out", "out.csv")  # fmt: skip
    assert done.code == 0, done.err
    row = next(csv.DictReader(Path("out.csv").read_text().splitlines()))
    assert row["global_batch"] == "96"
    assert 0.02 < float(row["predicted_step_time_s"]) < 0.3


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "--runs", "runs.csv", "--predictors", "linear-scaling", "--split", "between:devices"),
        ("fit", "--runs", "runs.csv", "--predictor", "linear-scaling", "--out", "m.json"),
        ("suggest", "--candidates", "runs.csv", "--count", "1"),
        ("search", "--replay", "runs.csv", "--max-runs", "3"),
        ("leaderboard", "--runs", "runs.csv", "--predictors", "linear-scaling", "--splits", "between:devices",
         "--cache", "l.jsonl"),
        ("runs", "import", "runs.csv", "--store", "s.db"),
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_each_verb_reads_them(forerun: Run, words: tuple[str, ...]) -> None:
    done = forerun(*words, *OF_RUNS)
    assert done.code == 0, done.err
    assert "not known, and not read" not in done.out + done.err


def test_what_they_likely_mean_is_named_with_the_map_to_write(forerun: Run) -> None:
    err = forerun("evaluate", "--runs", "runs.csv", "--predictors", "linear-scaling").err
    for text in OF_RUNS[1::2]:
        assert f"--map '{text}'" in err, text


@pytest.mark.parametrize(
    ("text", "found", "next_step"),
    [
        ("gpu count=devices", "there is no column 'gpu count'", "use one of Model, gpus, device, my batch"),
        ("my batch=global_bach", "'global_bach' is no column of the runs table", "did you mean global_batch?"),
        ("my batch", "it is not HEADER=COLUMN", "write e.g. 'my batch=global_batch'"),
        ("my batch=devices", "column 'devices' appears twice", "keep one of them"),
    ],
)  # fmt: skip
def test_a_wrong_map_is_one_message(forerun: Run, text: str, found: str, next_step: str) -> None:
    done = forerun("predict", "--table", "jobs.csv", "--map", text)
    assert done.code == 2
    assert found in done.err
    assert next_step in done.err


def test_a_map_without_a_table_is_refused(forerun: Run) -> None:
    done = forerun("predict", "resnet50", "--cluster", "1x8xa100-sxm-80gb", "--map", "x=devices")
    assert done.code == 2
    assert "it is for tables" in done.err
