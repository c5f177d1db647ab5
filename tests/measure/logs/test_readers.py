"""Readers: each format becomes the same series; what is cut, damaged or foreign is told."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from forerun.errors import RequestError
from forerun.measure.logs import read_log, read_logs, read_runs
from forerun.measure.logs.tensorboard import crc32c
from tests.measure.logs import made


def test_event_files_are_read_with_their_clock(tmp_path: Path) -> None:
    made.event_file(tmp_path / "events.out.tfevents.1.host", range(1, 41))
    series = read_log(tmp_path)
    assert series.reader == "tensorboard"
    assert series.numbers("step").tolist() == list(range(1, 41))
    assert np.allclose(np.diff(series.numbers("time_s")), 0.5)
    assert series.numbers("loss")[0] == pytest.approx(2.5)
    assert read_runs(tmp_path).row(0)["samples_per_s"] == 100


def test_an_event_file_is_read_up_to_where_it_is_written(tmp_path: Path) -> None:
    """Every cut of a file gives the whole records before it, and never an error or a wrong value."""
    path = made.event_file(tmp_path / "events.out.tfevents.1.host", range(1, 8))
    data = path.read_bytes()
    whole = read_log(path).numbers("loss")
    for cut in range(len(data) - 1, 200, -17):
        path.write_bytes(data[:cut])
        series = read_log(path)
        assert np.array_equal(series.numbers("loss"), whole[: len(series)])
        assert any("not whole (yet)" in note for note in series.notes) or len(series) in (
            1,
            2,
            3,
            4,
            5,
            6,
        )


def test_a_damaged_event_file_says_where(tmp_path: Path) -> None:
    path = made.event_file(tmp_path / "events.out.tfevents.1.host", range(1, 30))
    data = bytearray(path.read_bytes())
    data[-40] ^= 0xFF
    path.write_bytes(bytes(data))
    series = read_log(path)
    assert len(series) == 28
    assert "damaged" in " ".join(series.notes)
    path.write_bytes(b"\x00" * 400)
    with pytest.raises(RequestError, match="begins no TensorBoard record"):
        read_log(path)


def test_two_event_files_of_a_folder_are_two_sessions(tmp_path: Path) -> None:
    made.event_file(tmp_path / "events.out.tfevents.1.host", range(1, 21))
    made.event_file(tmp_path / "events.out.tfevents.2.host", range(15, 40), start=made.START + 100)
    note = read_runs(tmp_path).row(0)["note"]
    assert "1 restart" in note
    assert "6 steps done again" in note


def test_tags_that_count_epochs_are_not_taken_for_steps(tmp_path: Path) -> None:
    path = made.event_file(tmp_path / "events.out.tfevents.1.host", range(100, 1100, 100))
    with path.open("ab") as stream:
        for epoch in range(3):
            stream.write(made.record(made.event(epoch, made.START + 9, val__accuracy=0.5)))
    series = read_log(path)
    assert series.numbers("step").min() == 100
    assert any("val/accuracy" in note for note in series.notes)


def test_scalars_in_tensors_are_read(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1.host"
    path.write_bytes(
        b"".join(
            made.record(made.event(i, made.START + i, tensor=True, loss=i)) for i in range(1, 9)
        )
    )
    assert read_log(path).numbers("loss").tolist() == list(range(1, 9))


def test_the_checksum_is_the_published_one() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_mlflow_s_folder_gives_its_runs(tmp_path: Path) -> None:
    series = read_log(made.mlflow_folder(tmp_path))
    assert (series.reader, series.name, series.status) == ("mlflow", "calm-fox", "ok")
    row = read_runs(tmp_path / "mlruns").row(0)
    assert row["step_time_s"] == pytest.approx(0.5)
    assert row["global_batch"] == 64, "a plain batch_size may be of one device, so it is not taken"


def test_mlflow_s_database_gives_its_runs_and_their_ends(tmp_path: Path) -> None:
    path = made.mlflow_database(tmp_path / "mlflow.db")
    assert [s.status for s in read_logs(path)] == ["ok", "failed"]
    assert read_runs(path).numbers("step_time_s") == pytest.approx([0.5, 0.5])
    with pytest.raises(RequestError, match="2 runs are in it"):
        read_log(path)


def test_mlflow_s_step_that_falls_back_is_a_restart(tmp_path: Path) -> None:
    root = made.mlflow_folder(tmp_path, steps=20)
    loss = root / "1" / "abc123" / "metrics" / "train" / "loss"
    later = [f"{int((made.START + 100 + i * 0.5) * 1000)} 1.0 {i}\n" for i in range(15, 40)]
    loss.write_text(loss.read_text() + "".join(later))
    assert "1 restart" in read_runs(root).row(0)["note"]


@pytest.mark.parametrize("device", [True, False], ids=["kernels", "host"])
def test_a_trace_s_step_is_divided_exactly(tmp_path: Path, device: bool) -> None:
    made.trace(tmp_path / "rank0.pt.trace.json", device=device)
    series = read_log(tmp_path / "rank0.pt.trace.json")
    names = ("input", "forward", "backward", "sync", "optimizer")
    micro = {n: round(float(np.median(series.numbers(f"{n}_time_s"))) * 1e6, 3) for n in names}
    assert micro == {"input": 10, "forward": 20, "backward": 30, "sync": 20, "optimizer": 10}
    row = read_runs(tmp_path / "rank0.pt.trace.json").row(0)
    assert row["step_time_s"] == pytest.approx(100e-6)
    assert row["sync_time_s"] == pytest.approx(20e-6)
    assert row["comm_time_s"] == pytest.approx(30e-6)
    assert row["devices"] == 2
    assert row.get("device") == ("NVIDIA H100 80GB HBM3" if device else None)


def test_the_traces_of_a_folder_are_ranks_of_one_run(tmp_path: Path) -> None:
    for rank in range(2):
        made.trace(tmp_path / f"rank{rank}.pt.trace.json", rank)
    packed = tmp_path / "rank1.pt.trace.json"
    (tmp_path / "rank1.pt.trace.json.gz").write_bytes(gzip.compress(packed.read_bytes()))
    packed.unlink()
    (tmp_path / "rank2.pt.trace.json").write_text('{"traceEvents": [')
    series = read_log(tmp_path)
    assert len(series.paths) == 2
    assert "rank2.pt.trace.json is left out" in " ".join(series.notes)


def test_a_trace_without_steps_says_how_to_have_them(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(
        '{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 2}]}'
    )
    with pytest.raises(RequestError, match="no ProfilerStep# mark"):
        read_log(tmp_path / "t.json")


def test_json_lines_are_read_by_their_usual_keys(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    rows = [
        {"_step": i, "_timestamp": made.START + i / 4, "train/loss": 1 / i, "lr": 1e-3}
        for i in range(1, 40)
    ]
    path.write_text("\n".join(map(json.dumps, rows)) + '\n{"_step": 40, "_ti')
    series = read_log(path)
    assert len(series) == 39
    assert "1 lines are no JSON" in " ".join(series.notes)
    assert read_runs(path).row(0)["step_time_s"] == pytest.approx(0.25)
    assert (
        read_runs(path, target=("loss", 0.1), global_batch=8).row(0)["samples_to_target"] == 12 * 8
    )


def test_units_may_change_from_row_to_row(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    rows = [
        {"step": i, **({"step_time_ms": 250} if i % 2 else {"step_time_s": 0.25})}
        for i in range(1, 30)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert read_runs(path).row(0)["step_time_s"] == pytest.approx(0.25)


def test_the_trainer_s_state_has_no_clock_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    history = [{"epoch": i / 10, "loss": 3.0 / i, "step": i * 10} for i in range(1, 9)]
    path.write_text(json.dumps({"max_steps": 300, "log_history": history}, indent=2))
    series = read_log(path)
    assert series.facts["total_steps"] == 300
    with pytest.raises(RequestError, match="none says when it was"):
        read_runs(path)


def test_the_content_decides_and_a_stranger_is_told_what_is_known(tmp_path: Path) -> None:
    (tmp_path / "empty.log").touch()
    (tmp_path / "noise.bin").write_bytes(bytes(range(256)) * 20)
    (tmp_path / "prose.txt").write_text("Dear reader,\nnothing happens here.\n")
    for name, found in (("empty.log", "it is empty"), ("noise.bin", "no log that is known"),
                        ("prose.txt", "no line has a step .* it begins: Dear reader"),
                        ("gone.log", "no such file")):  # fmt: skip
        with pytest.raises(RequestError, match=found):
            read_logs(tmp_path / name)
    (tmp_path / "void").mkdir()
    with pytest.raises(RequestError, match="nothing in this folder"):
        read_logs(tmp_path / "void")
    with pytest.raises(RequestError, match="no such log reader"):
        read_logs(tmp_path / "prose.txt", reader="texts")
