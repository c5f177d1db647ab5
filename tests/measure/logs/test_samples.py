"""Samples: files that TensorBoard, MLflow and tqdm themselves wrote are read as they were meant."""

from __future__ import annotations

import math
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from forerun.measure.logs import JobLength, eta_of, read_log, read_logs
from forerun.measure.logs.series import EVALUATION

SAMPLES = Path(__file__).parent / "samples"
EVENTS = SAMPLES / "tensorboard"


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's two stores of the same runs, unpacked."""
    folder = tmp_path_factory.mktemp("mlflow")
    with tarfile.open(SAMPLES / "mlflow.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def evaluated(series_event: np.ndarray) -> np.ndarray:
    return np.flatnonzero(np.nan_to_num(series_event).astype(int) & EVALUATION)


def test_a_run_that_was_started_again_with_purge_step_is_two_sessions() -> None:
    series = read_log(EVENTS / "resumed")
    eta = eta_of(series, JobLength(steps=200))
    assert (len(series), eta.done, eta.redone) == (70, 120, 20)
    assert eta.away_seconds > 1.1, "it was left alone for so long"
    assert series.numbers("loss")[:2] == pytest.approx([1.0, 0.6])
    assert series.numbers("lr")[:70] == pytest.approx(1e-3), "new-style scalars are tensors"
    assert series.numbers("precise")[-1] == pytest.approx(1 / 3)


def test_scores_of_an_evaluation_tell_that_the_interval_after_them_holds_one() -> None:
    """`eval_loss` was written after the row of steps 20, 40, 60 ..., which have the time before it."""
    series = read_log(EVENTS / "resumed")
    assert series.numbers("step")[evaluated(series.numbers("event"))].tolist() == [
        22, 42, 62, 82, 102,
    ]  # fmt: skip


def test_what_a_writer_puts_below_its_own_folder_is_of_its_run() -> None:
    tuned = read_log(EVENTS / "tuned")
    assert tuned.numbers("step").tolist() == list(range(1, 11)), "a last score is no new session"
    grouped = read_log(EVENTS / "grouped")
    assert grouped.name == "grouped"
    assert grouped.numbers("loss_train/loss")[:2] == pytest.approx([1.0, 1 / 6])
    assert not len(evaluated(grouped.numbers("event"))), "a score with every row tells nothing"
    assert [s.name for s in read_logs(EVENTS)] == [
        "grouped", "resumed", "simple", "tensors", "tuned",
    ]  # fmt: skip


def test_tensorboard_s_own_writers_are_read() -> None:
    simple = read_log(EVENTS / "simple")
    assert simple.numbers("step").tolist() == list(range(1, 41))
    assert np.isnan(simple.numbers("samples_per_s")).sum() == 1
    tensors = read_log(EVENTS / "tensors")
    assert tensors.numbers("step_time_s") == pytest.approx(0.05)
    assert eta_of(tensors, JobLength(steps=100)).done == 58


@pytest.mark.parametrize("run", ["resumed", "simple", "tensors"])
def test_every_cut_of_an_event_file_is_its_beginning(run: str, tmp_path: Path) -> None:
    file = sorted((EVENTS / run).iterdir())[0]
    shutil.copy(file, tmp_path)
    whole, data = read_log(tmp_path), file.read_bytes()
    for cut in range(len(data) - 1, 600, -331):
        (tmp_path / file.name).write_bytes(data[:cut])
        series = read_log(tmp_path)
        assert np.array_equal(
            series.numbers("loss"), whole.numbers("loss")[: len(series)], equal_nan=True
        )


@pytest.mark.parametrize("store", ["mlflow.db", "mlruns"])
def test_both_stores_of_mlflow_give_the_runs_in_order_without_deleted_ones(
    mlflow: Path, store: str
) -> None:
    runs = read_logs(mlflow / store)
    assert [s.name for s in runs] == ["calm-fox", "sad-owl", "parent", "going"]
    assert [s.status for s in runs] == ["ok", "failed", "ok", "ok"]
    fox = runs[0]
    assert dict(fox.facts) == {"global_batch": 64, "total_steps": 200, "optimizer": "adamw"}
    assert "has finished" in " ".join(fox.notes)
    assert "has finished" not in " ".join(runs[-1].notes)
    eta = eta_of(fox)
    assert (eta.done, eta.total, eta.redone) == (80, 200, 20)
    assert fox.numbers("step")[evaluated(fox.numbers("event"))].tolist() == [22, 42]


def test_a_deleted_run_is_read_where_it_is_named(mlflow: Path) -> None:
    folders = [p.parent for p in mlflow.glob("mlruns/*/*/meta.yaml")]
    gone = next(f for f in folders if "lifecycle_stage: deleted" in (f / "meta.yaml").read_text())
    assert read_log(gone).name == "deleted"


def test_tqdm_s_bar_of_each_epoch_counts_on() -> None:
    series = read_log(SAMPLES / "tqdm.txt")
    assert series.facts["steps_per_epoch"] == 60
    assert math.isnan(series.fact("total_steps")), "a bar's length is an epoch's, not the job's"
    eta = eta_of(series, JobLength(epochs=3))
    assert (eta.done, eta.total) == (120, 180)
    assert eta.outlook.step_seconds == pytest.approx(0.042, abs=0.01)


def test_traces_of_two_ranks_show_the_communication_between_them() -> None:
    series = read_log(SAMPLES / "kineto")
    assert series.facts["devices"] == 2
    assert series.numbers("step").tolist() == [3, 4, 5]
    names = ("input", "forward", "backward", "optimizer", "sync")
    assert all(np.median(series.numbers(f"{name}_time_s")) > 0 for name in names)
    exposed, step = series.numbers("sync_time_s"), series.numbers("step_time_s")
    assert np.all((exposed > 0.3 * step) & (exposed < step)), "gloo on a busy machine is most of it"
