"""Text: whole logs of usual programs become runs; how they end is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from forerun.errors import RequestError
from forerun.measure.logs import read_log, read_runs
from tests.measure.logs import made


def test_a_log_s_time_is_divided_into_steady_steps_and_the_rest(tmp_path: Path) -> None:
    steps = list(range(10, 1001, 10))
    seconds = [0.5] * 100
    seconds[1] = seconds[2] = 2.0  # warm-up
    for i in (24, 49, 74, 99):
        seconds[i] = 1.5  # an evaluation of 10 s
    made.plain(
        tmp_path / "a.log", steps, seconds, more=dict.fromkeys((250, 500, 750, 1000), "evaluating")
    )
    row = read_runs(tmp_path / "a.log", global_batch=32, devices=2).row(0)
    assert row["step_time_s"] == pytest.approx(0.5, rel=1e-3)
    assert row["samples_per_s"] == pytest.approx(64, rel=1e-3)
    assert "4 evaluations left out, 40 s in all" in row["note"]
    assert "warm-up (20 steps) left out" in row["note"]


def test_torchtitan_s_rate_is_of_a_device_until_their_number_is_given(tmp_path: Path) -> None:
    path = tmp_path / "t.log"
    path.write_text("".join(
        f"[titan] {made.stamp(made.START + i)} - root - INFO - \x1b[31mstep: {i}  \x1b[32mloss: 8.1234"
        "  \x1b[33mmemory: 20.50GiB(21.60%)  \x1b[34mtps: 4,000  \x1b[36mmfu: 40.12%\x1b[39m\n"
        for i in range(1, 30)
    ))  # fmt: skip
    row = read_runs(path).row(0)
    assert "tokens_per_s" not in row
    assert "give the number of devices" in row["note"]
    assert row["memory_gb"] == pytest.approx(20.5 * 1.024**3)
    assert read_runs(path, devices=8).row(0)["tokens_per_s"] == 32_000


def test_megatron_s_arguments_are_facts(tmp_path: Path) -> None:
    path = tmp_path / "m.log"
    lines = [
        "using world size: 16, data-parallel size: 4",
        "  tensor_model_parallel_size ...... 4",
        "  seq_length ...................... 2048",
        "  train_iters ..................... 500",
    ]
    lines += [
        f" iteration {i:8d}/     500 | consumed samples: {i * 256:12d} | elapsed time per iteration (ms):"
        f" {1000 if i > 1 else 9000}.0 | learning rate: 1.5E-07 | global batch size:   256 | lm loss: 1.04E+01 |"
        for i in range(1, 40)
    ]  # fmt: skip
    path.write_text("\n".join(lines))
    row = read_runs(path).row(0)
    assert row["step_time_s"] == pytest.approx(1.0)
    assert (row["devices"], row["tp"], row["seq_len"], row["global_batch"]) == (16, 4, 2048, 256)


@pytest.mark.parametrize("quote", ["", "'"], ids=["numbers", "texts"])
def test_huggingface_s_dictionaries_are_steps_of_their_epochs(tmp_path: Path, quote: str) -> None:
    path = tmp_path / "hf.log"
    head = ["***** Running training *****", "  Num examples = 6,400", "  Num Epochs = 2",
            "  Total train batch size (w. parallel, distributed & accumulation) = 64",
            "  Total optimization steps = 200"]  # fmt: skip
    rows = [
        f"\r{i // 2}%|#  | {i}/200 [00:{i // 4:02d}<01:00,  4.00it/s]\r"
        f"{{'loss': {quote}{5 / i:.4f}{quote}, 'grad_norm': {quote}1.0{quote},"
        f" 'learning_rate': {quote}5e-05{quote}, 'epoch': {quote}{i / 100:.2f}{quote}}}"
        for i in range(4, 121, 4)
    ]
    path.write_text("\n".join((*head, *rows)))
    series = read_log(path)
    assert series.facts["total_steps"] == 200
    row = read_runs(path).row(0)
    assert row["global_batch"] == 64
    assert row["step_time_s"] == pytest.approx(0.25, rel=0.01)


def test_keras_bars_of_each_epoch_go_on(tmp_path: Path) -> None:
    path = tmp_path / "k.log"
    lines = []
    for epoch in range(1, 4):
        lines.append(f"Epoch {epoch}/5")
        lines += [
            f"{n}/100 [====>.....] - ETA: 1s - 20ms/step - loss: {3 / n:.4f}"
            for n in range(10, 101, 10)
        ]
    path.write_text("\r".join(lines))
    series = read_log(path)
    assert series.numbers("step")[-1] == 300
    assert series.facts["total_epochs"] == 5
    assert np.all(np.diff(series.numbers("step")) > 0)


def test_a_bar_for_each_epoch_counts_on_and_an_evaluation_s_bar_does_not_count(
    tmp_path: Path,
) -> None:
    path = tmp_path / "b.log"
    lines = []
    for _ in range(3):
        lines += [
            f"{n}%|### | {n}/100 [00:{n // 4:02d}<00:10,  4.0it/s]" for n in range(10, 101, 10)
        ]
        lines += [f"{n * 10}%|### | {n}/10 [00:01<00:01,  9.0it/s]" for n in range(1, 11)]
    path.write_text("\n".join(lines))
    series = read_log(path)
    assert series.numbers("step")[-1] == 300
    assert series.facts["steps_per_epoch"] == 100


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("Traceback (most recent call last):\n  File \"t.py\", line 3\nRuntimeError: boom", "failed"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "oom"),
        ("Traceback (most recent call last):\n  x\ntorch.cuda.OutOfMemoryError: CUDA out of memory", "oom"),
        ("slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-01-01 DUE TO TIME LIMIT ***", "timeout"),
        ("bash: line 1:  1234 Killed                  python train.py", "failed"),
        ("Training finished.", "ok"),
    ],
)  # fmt: skip
def test_how_a_log_ends_is_the_run_s_status(tmp_path: Path, ending: str, status: str) -> None:
    path = tmp_path / "e.log"
    made.plain(path, range(1, 30))
    path.write_text(path.read_text() + ending + "\n")
    assert read_runs(path).row(0)["status"] == status


def test_an_error_after_which_steps_follow_is_no_end(tmp_path: Path) -> None:
    path = tmp_path / "e.log"
    last = made.plain(path, range(1, 30))
    path.write_text(path.read_text() + "RuntimeError: lost a worker, retrying\n")
    made.plain(path, range(30, 40), start=last + 1, append=True)
    assert read_log(path).status == "ok"


def test_an_out_of_memory_before_the_first_step_is_a_run_too(tmp_path: Path) -> None:
    path = tmp_path / "e.log"
    path.write_text("loading\ntorch.OutOfMemoryError: CUDA out of memory.\n")
    row = read_runs(path, workload="gpt2-xl", global_batch=64).row(0)
    assert (row["status"], row["workload"], row["global_batch"]) == ("oom", "gpt2-xl", 64)


def test_what_is_given_wins_over_the_log_and_the_rest_stays_blank(tmp_path: Path) -> None:
    made.plain(tmp_path / "a.log", range(1, 50))
    row = read_runs(tmp_path / "a.log").row(0)
    assert not {"devices", "device", "global_batch", "samples_per_s"} & set(row)
    given = read_runs(tmp_path / "a.log", workload="resnet50", cluster="1x8xv100-sxm2-16gb").row(0)
    assert given["cluster"] == "1x8xv100-sxm2-16gb"


def test_given_columns_may_be_words_and_have_other_names(tmp_path: Path) -> None:
    made.plain(tmp_path / "a.log", range(1, 50))
    row = read_runs(tmp_path / "a.log", gpus="8", global_batch="64").row(0)
    assert (row["devices"], row["global_batch"]) == (8, 64)
    with pytest.raises(RequestError, match="'many' in the number column"):
        read_runs(tmp_path / "a.log", global_batch="many")


def test_a_target_is_found_where_the_metric_stays_there(tmp_path: Path) -> None:
    made.plain(tmp_path / "a.log", range(10, 1001, 10))
    row = read_runs(tmp_path / "a.log", global_batch=4, target=("loss", 1.0)).row(0)
    exact = 200 * np.log(3 / 0.8)
    assert row["target"] == "loss <= 1"
    assert row["samples_to_target"] == pytest.approx(exact * 4, rel=0.1)
    assert "was not reached" in read_runs(tmp_path / "a.log", target=("loss", 0.1)).row(0)["note"]
    with pytest.raises(RequestError, match="has no 'accuracy'"):
        read_runs(tmp_path / "a.log", target=("accuracy", 0.9))
