"""LocalRunner: real processes train, and every way in which they end is a status with its reason."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forerun.measure import Host, Steps, Task
from forerun.measure.hosts import free_port
from forerun.measure.local import LocalRunner
from tests.measure.entries import FEW, QUICK, SCRIPT
from tests.processes import alive


@pytest.fixture
def runner(folder: Path) -> LocalRunner:
    """A runner in a folder that holds the entries."""
    return LocalRunner(folder=folder / "runs")


def test_two_workers_train_modules_one_after_another_and_tell_their_steps(
    runner: LocalRunner, tmp_path: Path
) -> None:
    task = Task("toys:mlp", workers=2, global_batch=32, steps=FEW, optimizer="adam")
    tasks = [
        task,
        task.with_(settings={"width": 128, "depth": 3, "bucket_mb": 0.02, "accumulate": 2}),
        task.with_(entry="toys:words", dataset_size=100, steps=Steps(warmup=1, epochs=3)),
    ]
    plain, deep, epochs = runner.measure_many(tasks)
    assert [m.status for m in (plain, deep, epochs)] == ["ok"] * 3, plain.reason + deep.reason
    for measured in (plain, deep):
        assert measured.step_seconds is not None
        assert measured.interval is not None
        assert measured.interval[0] <= measured.step_seconds <= measured.interval[1]
        assert set(measured.parts) == {"input", "forward", "backward", "sync", "optimizer"}
        assert sum(measured.parts.values()) == pytest.approx(measured.step_mean_seconds, rel=0.3)
        assert measured.parts["sync"] > 0
        assert measured.samples_per_second == pytest.approx(32 / measured.step_mean_seconds)
        assert measured.fingerprint["backend"] == "gloo"
        assert measured.peak_bytes is not None
        assert measured.grad_var is None, "made-up data says nothing of gradients"
    small = 4 * (32 * 64 + 64 + 64 * 64 + 64 + 64 * 4 + 4)
    large = 4 * (32 * 128 + 128 + 3 * (128 * 128 + 128) + 128 * 4 + 4)
    assert plain.sync_bytes == small
    assert deep.sync_bytes == large, "an accumulated step reduces its gradients once"
    assert epochs.epoch_seconds is not None
    assert epochs.step_seconds is not None
    assert epochs.interval is not None
    assert epochs.epoch_seconds >= 3 * epochs.interval[0], "three full batches and a shorter one"
    assert epochs.steps == 9, "of an epoch of 100 samples three batches of 32 are full"
    assert list((tmp_path / "runs").iterdir()) == [], "folders of runs that were ok are removed"
    assert not alive(str(tmp_path / "runs"))


def test_a_port_that_another_has_taken_meanwhile_is_tried_again_elsewhere(
    runner: LocalRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken, drawn = other.getsockname()[1], list[int]()

        def port(host: Host) -> int:
            drawn.append(free_port(host) if drawn else taken)
            return drawn[-1]

        monkeypatch.setattr("forerun.measure.local.free_port", port)
        task = Task("toys:slow", workers=2, global_batch=2, steps=FEW)
        measured = runner.measure(task.with_(settings={"pause": 0.0, **QUICK}))
    assert measured.status == "ok", measured.reason
    assert len(drawn) == 2
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_training_function_runs_unchanged_and_its_gradient_noise_is_right(
    runner: LocalRunner,
) -> None:
    task = Task(
        "toys:regression", workers=2, global_batch=64, settings={"norms_every": 1},
        steps=Steps(warmup=2, least=400, most=400, half_width=0.01, seconds=30),
    )  # fmt: skip
    measured = runner.measure(task)
    assert measured.status == "ok", measured.reason
    assert measured.steps == 400
    assert {"forward", "backward", "sync", "optimizer"} <= set(measured.parts)
    assert measured.sync_bytes == 4 * 9
    # The weights start as torch draws them, the same on both workers; the residual of a sample x
    # is r = (w - 1) x + b, its gradient 2 r (x, 1). By Isserlis: with c = w - 1,
    # G = 2 (c, b), tr Sigma = 4 [(8 + 2) |c|^2 + 8 b^2 + |c|^2 + b^2] - |G|^2.
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    c2 = float((model.weight.detach() - 1).square().sum())
    b2 = float(model.bias.detach().square())
    true_sqr = 4 * (c2 + b2)
    true_var = 4 * (11 * c2 + 9 * b2) - true_sqr
    assert measured.grad_sqr == pytest.approx(true_sqr, rel=0.1)
    assert measured.grad_var == pytest.approx(true_var, rel=0.15)


def test_a_worker_that_is_killed_is_named_with_the_step(
    runner: LocalRunner, tmp_path: Path
) -> None:
    measured = runner.measure(Task("toys:killed", workers=2, global_batch=2, settings=QUICK))
    assert measured.status == "failed"
    assert measured.reason.startswith("worker 1 of 2 was killed by signal 9 (SIGKILL) in step 12 ")
    assert measured.step_seconds is None
    log = Path(measured.reason.partition("(log: ")[2].rstrip(")"))
    assert (log / "worker-1.log").exists(), "the log of a failed run is kept"
    assert not alive(str(tmp_path / "runs"))


def test_the_worker_at_fault_is_told_and_not_the_one_that_waited_for_it(
    runner: LocalRunner,
) -> None:
    measured = runner.measure(Task("toys:waiting", workers=2, global_batch=2, settings=QUICK))
    assert measured.status == "failed"
    assert measured.reason.startswith("worker 0 of 2: ValueError: rank 0 is at fault (toys.py:")


def test_one_failure_does_not_spoil_the_tasks_that_share_its_processes(
    runner: LocalRunner,
) -> None:
    bad = {
        "toys:hoarding": ("oom", "RuntimeError: "),
        "toys:leaving": ("failed", "worker 0 of 1 ended with exit status 3 in step 2"),
    }
    tasks = [Task(entry, steps=FEW, settings=QUICK) for entry in ("toys:slow", *bad, "toys:slow")]
    first, *wrong, last = runner.measure_many(tasks)
    assert (first.status, last.status) == ("ok", "ok")
    for measured, (status, reason) in zip(wrong, bad.values(), strict=True):
        assert measured.status == status, measured.reason
        assert reason in measured.reason


def test_time_limits_and_hangs_end_a_run(runner: LocalRunner, tmp_path: Path) -> None:
    first = Task("toys:slow", settings={"pause": 0.0, **QUICK}, steps=FEW)
    slow = Task(
        "toys:slow", settings={"pause": 0.3, **QUICK}, timeout_seconds=3.0,
        steps=Steps(warmup=2, least=100),
    )  # fmt: skip
    hang = Task("toys:stuck", hang_seconds=1.5, settings=QUICK)
    _, late, _, stuck = runner.measure_many([first, slow, first, hang])
    assert late.status == "timeout"
    assert "ended after its limit of 3 s, in step" in late.reason
    assert late.step_seconds is not None
    assert 0.3 <= late.step_seconds < 1.0, "a lower bound of a step of 0.305 s and more"
    assert stuck.status == "failed"
    assert "no step for 1.5 s: it hangs in step 5" in stuck.reason
    assert stuck.hangs
    assert not alive(str(tmp_path / "runs"))


def test_closing_the_results_ends_every_process_also_those_that_workers_started(
    runner: LocalRunner, tmp_path: Path
) -> None:
    task = Task("toys:with_children", steps=FEW, settings=QUICK)
    results = runner.each([task, task.with_(seed=1), task.with_(seed=2)])
    _, first = next(results)
    assert first.status == "ok", first.reason
    assert alive(str(tmp_path / "runs"))
    results.close()  # type: ignore[attr-defined]
    assert not alive(str(tmp_path / "runs"))


def test_workers_end_when_the_runner_is_killed(runner: LocalRunner, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    code = (
        "from forerun.measure import Task\nfrom forerun.measure.local import LocalRunner\n"
        f"LocalRunner(folder={str(folder)!r}).measure(Task('toys:stuck', workers=2, global_batch=2))"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 60
    while not list(folder.glob("*/0/progress-1")) and time.monotonic() < deadline:
        time.sleep(0.05)
    workers = [pid for pid in alive(str(folder)) if pid != parent.pid]
    assert len(workers) == 2
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    while alive(str(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(str(folder))


def test_a_script_of_three_more_lines_is_measured_and_ends_its_loop_early(
    runner: LocalRunner, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    measured = runner.measure(Task("train.py", ("16",), global_batch=16, steps=FEW))
    assert measured.status == "ok", measured.reason
    assert 6 <= measured.steps <= 12
    assert set(measured.parts) == {"input", "forward", "backward", "optimizer", "sync"}


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (Task("no_such.py"), "there is no script no_such.py"),
        (Task("toys:mlp", gpus_per_worker=2), "a worker drives one GPU"),
        (Task("toys:mlp", workers=64, global_batch=64, cpus_per_worker=2.0), "need 128 cores"),
    ],
)
def test_what_cannot_be_held_is_refused_without_a_start(
    runner: LocalRunner, task: Task, reason: str
) -> None:
    assert reason in (runner.refuses(task) or "")
    measured = runner.measure(task)
    assert (measured.status, measured.seconds) == ("failed", 0.0)
    assert reason in measured.reason
