"""forerun train: a real training, killed and resumed; what is asked wrongly is refused with a way out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forerun.measure.elastic.checkpoint import newest_checkpoint, read_checkpoint
from tests.cli.conftest import Run
from tests.measure.elastic.conftest import folder as folder
from tests.measure.elastic.toys import check_ids
from tests.processes import alive

JOB = """
entry: elastic_toys:train
settings: {pause: 0.01}
workers: [1, 2]
global_batch: [9, 18]
epochs: 40
checkpoint: 0.5s
price_usd_per_worker_hour: 0.04
"""


def start(path: Path) -> subprocess.Popen[str]:
    """Start the training of a job file."""
    words = [sys.executable, "-m", "forerun", "train", str(path), "--elastic"]
    return subprocess.Popen(
        words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def test_a_killed_or_interrupted_driver_goes_on_where_it_was(folder: Path, forerun: Run) -> None:
    path = folder / "job.yaml"
    path.write_text(JOB)
    for number in (signal.SIGKILL, signal.SIGINT):
        process = start(path)
        assert process.stderr is not None
        assert "trains with" in process.stderr.readline()
        time.sleep(1.5)
        process.send_signal(number)
        process.wait(30)
        process.stderr.close()
        until = time.monotonic() + 10
        while alive(str(folder / "job-training")) and time.monotonic() < until:
            time.sleep(0.1)
        assert not alive(str(folder / "job-training")), "workers die with their driver"
        assert process.returncode == (-9 if number == signal.SIGKILL else 130)
    done = forerun("train", str(path), "--elastic", "--out", "runs.csv", "--json")
    assert done.code == 0, done.err
    body = done.json()
    assert body["ended"] == "40 epochs are done"
    state = read_checkpoint(newest_checkpoint(folder / "job-training" / "states") or Path())
    assert check_ids(folder, 0, state["steps"]) == state["position"] == body["position"]
    rows = (folder / "runs.csv").read_text().splitlines()
    assert len(rows) == 1 + len(body["configurations"]) >= 4
    assert body["dollars"] == pytest.approx(body["seconds"] / 3600 * 0.06, rel=0.4)


def test_a_target_out_of_reach_ends_with_exit_3(folder: Path, forerun: Run) -> None:
    text = (
        JOB.replace(":train", ":reporting")
        + "target: {metric: share, at_least: 1e6}\nwithin: 12s\n"
    )
    (folder / "job.yaml").write_text(text.replace("[1, 2]", "1").replace("[9, 18]", "9").replace("epochs: 40", "seed: 1"))  # fmt: skip
    done = forerun("train", "job.yaml")
    assert done.code == 3
    assert "the time (12 s) is used; it is" in done.err
    assert "9" in done.out


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (("epochs: 40", ""), "nothing ends the training"),
        (("[1, 2]", "[1, two]"), "is no whole number from 1, nor a list"),
        (("[9, 18]", "[]"), "is no whole number from 1, nor a list"),
        (("[1, 2]", "[64]"), "it is less than the workers"),
        (("epochs: 40", "target: {metric: a}"), "a metric and one bound"),
        (("price_usd_per_worker_hour: 0.04", "minimize: cost"), "a worker has no price"),
        (("epochs", "epoch"), "no such field"),
        (("0.5s", "soon"), "is not a duration"),
        (("epochs: 40", "epochs: 4\nsearch: none"), "something must be known before"),
        (("entry: elastic_toys:train", "seed: 1"), "it has none"),
    ],
)  # fmt: skip
def test_a_wrong_job_is_refused_by_its_line(
    folder: Path, forerun: Run, change: tuple[str, str], found: str
) -> None:
    (folder / "job.yaml").write_text(JOB.replace(*change))
    done = forerun("train", "job.yaml", "--elastic")
    assert done.code == 2
    assert found in done.err
    assert "line" in done.err


def test_several_configurations_need_elastic_and_other_files_are_named(
    folder: Path, forerun: Run
) -> None:
    (folder / "job.yaml").write_text(JOB)
    done = forerun("train", "job.yaml")
    assert (done.code, "only --elastic chooses" in done.err) == (2, True)
    done = forerun("train", "job.yaml", "--elastic", "--lab", "none-such")
    assert done.code == 2
    assert "none-such" in done.err
    (folder / "campaign.yaml").write_text("workloads: {}\n")
    assert "try: forerun profile" in forerun("train", "campaign.yaml").err
    assert "try: forerun train" in forerun("profile", "job.yaml").err
