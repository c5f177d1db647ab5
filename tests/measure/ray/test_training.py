"""A Ray trainer of a user's own is measured by one line, and its failures are told by worker and step."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from forerun.errors import RequestError
from forerun.measure import Measurement
from forerun.measure.ray import measured
from forerun.measure.ray.training import _measurement
from forerun.measure.ray.worker import _Board
from forerun.measure.recorder import Recorder
from forerun.measure.worker import failure
from tests.measure.ray.conftest import Head, found_by

ROOT = Path(__file__).resolve().parents[3]

# A loop as Ray's own guides write it; 32 samples a worker. In step 13 its second worker may go.
OWN = """
import os, time
import ray, torch
from ray import train
from ray.train.torch import prepare_model

variables = {name: os.environ[name] for name in ("HOME", "PYTHONPATH", "GLOO_SOCKET_IFNAME")}
ray.init(log_to_driver=False, runtime_env={"env_vars": variables})

def train_loop(config):
    line = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    model = prepare_model(line)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(23):
        if step == 12 and config.get("dies") and train.get_context().get_world_rank() == 1:
            time.sleep(3)
            os.kill(os.getpid(), 9)
        loss = model(torch.randn(32, 64)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    train.report({"loss": loss.item()})
"""
AFTER = """
def fit_and_lose():
    trainer = TorchTrainer(loop, train_loop_config={"dies": True},
                           scaling_config=ScalingConfig(num_workers=2))
    try:
        trainer.fit()
    except Exception as error:
        return loop.measurement(error)

import json
print("FOUND", json.dumps([found.to_json(), fit_and_lose().to_json(), loop.measurement().to_json()]))
"""


def snippet() -> str:
    """Return what the page on campaigns shows of a Ray trainer."""
    page = (ROOT / "docs" / "campaigns.md").read_text()
    return next(
        code for code in re.findall(r"```python\n(.*?)```", page, re.S) if "TorchTrainer" in code
    )


@pytest.mark.slow
def test_what_the_page_shows_measures_a_trainer_of_ones_own(
    able: None, head: Head, tmp_path: Path
) -> None:
    told = found_by(OWN + snippet() + AFTER, head, tmp_path)
    plain, lost, silent = (Measurement.from_json(one) for one in told)
    assert plain.status == "ok", plain.reason
    assert plain.warmup_steps >= 3
    assert plain.steps + plain.warmup_steps == 22, "23 updates are 22 steps"
    assert set(plain.parts) == {"forward", "backward", "optimizer", "sync"}
    assert plain.sync_bytes == 4 * (64 * 256 + 256 + 256 + 1)
    assert plain.step_mean_seconds is not None
    assert plain.samples_per_second == pytest.approx(64 / plain.step_mean_seconds)
    assert plain.grad_var is not None
    assert plain.peak_bytes is not None
    assert plain.fingerprint["ray"]
    assert lost.status == silent.status == "failed"
    assert re.search(r"worker 1 of 2 died without a message .* in step 12$", lost.reason), (
        lost.reason
    )
    # Ray may end worker 0 too before it has sent what it found.
    silences = r"no record came from worker (0, )?1 of 2, last seen in step 12"
    assert re.match(silences, silent.reason), silent.reason


# The loss of a sample x is w . x, so its gradient is x: their mean and their spread are the truth.
NOISE = """
import json, os
from pathlib import Path
import ray, torch
from ray import train
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from forerun.measure import GradientNoise, record

variables = {name: os.environ[name] for name in ("HOME", "PYTHONPATH", "GLOO_SOCKET_IFNAME")}
ray.init(log_to_driver=False, runtime_env={"env_vars": variables})

def train_loop(config):
    torch.manual_seed(train.get_context().get_world_rank())
    model = prepare_model(torch.nn.Linear(60, 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    noise = GradientNoise(decay=0.999)
    with record(samples=64, noise=noise, norms_every=1) as run:
        run.watch(model)
        for step in run.steps(range(600)):
            loss = model(0.3 + 2 * torch.randn(32, 60)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if train.get_context().get_world_rank() == 0:
        told = {"phi": noise.phi, "steps": noise.steps, "gamma": noise.gamma}
        Path(config["out"]).write_text(json.dumps(told))

loop = train_loop
if os.environ.get("MEASURED"):
    from forerun.measure.ray import measured
    loop = measured(train_loop, samples=64)
out = str(Path("noise.json").resolve())
workers = ScalingConfig(num_workers=2)
TorchTrainer(loop, train_loop_config={"out": out}, scaling_config=workers).fit()
print("FOUND", Path(out).read_text())
"""


@pytest.mark.slow
@pytest.mark.parametrize("measured_too", ["", "yes"])
def test_workers_of_a_ray_trainer_find_the_true_gradient_noise(
    able: None, head: Head, tmp_path: Path, measured_too: str
) -> None:
    told = found_by(NOISE, head, tmp_path, MEASURED=measured_too)
    phi = 4 / 0.09
    assert told["steps"] >= 590
    assert told["phi"] == pytest.approx(phi, rel=0.1)
    assert told["gamma"] == pytest.approx(2 * (32 + phi) / (64 + phi), rel=0.1)


def messages(*reported: tuple[str, int, dict[str, Any]]) -> _Board:
    board = _Board()
    for kind, rank, more in reported:
        board.put({"kind": kind, "rank": rank, **more})
    return board


def test_of_a_training_that_began_anew_the_last_attempt_counts() -> None:
    first, second = {"fit": "a", "workers": 2}, {"fit": "b", "workers": 2}
    board = messages(
        ("begun", 0, first), ("begun", 1, first), ("record", 0, {}), ("progress", 1, {"steps": 3}),
        ("progress", 1, {"steps": 4}),
    )  # fmt: skip
    assert [one.get("steps") for one in board.take()] == [None, None, None, 4]
    board.put({"kind": "begun", "rank": 1, **first})
    board.put({"kind": "begun", "rank": 0, **first})
    assert [(one["kind"], one["rank"]) for one in board.take()] == [("begun", 1), ("begun", 0)]
    assert max(one["restarts"] for one in board.take()) == 1
    board.put({"kind": "begun", "rank": 0, **first})
    assert [one["restarts"] for one in board.take()] == [2], "whichever worker began first before"
    board.put({"kind": "begun", "rank": 0, **second})
    assert [one["restarts"] for one in board.take()] == [0], "another fit is no restart"


def test_the_worker_at_fault_is_told_and_not_the_one_that_waited_for_it() -> None:
    recorder = Recorder(rank=0, workers=2)
    for _ in range(8):
        recorder.step()
    ok = recorder.record()
    wrong = failure(1, 2, "failed", "ValueError: odd (own.py:3)")
    waited = failure(0, 2, "failed", "RuntimeError: Connection closed by peer")

    def found(*records: dict[str, Any], error: Exception | None = None) -> Measurement:
        kept = [{"kind": "record", "rank": r["rank"], "record": r, "seconds": 2.0} for r in records]
        return _measurement(kept, 2, error)

    assert found(ok, {**ok, "rank": 1}).steps == 5
    assert found(ok, {**ok, "rank": 1}).seconds == 2.0
    assert found(waited, wrong).reason == "worker 1 of 2: ValueError: odd (own.py:3)"
    assert found(ok, wrong).status == "failed"
    assert "last seen while starting" in found(ok).reason
    unplaced = found(error=RuntimeError("Resources were never there"))
    assert unplaced.reason == "failed: RuntimeError: Resources were never there"


def test_before_a_fit_there_is_nothing_and_it_says_what_to_do() -> None:
    def train_loop(config: dict[str, Any]) -> None:
        raise AssertionError

    with pytest.raises(
        RequestError, match=r"of train_loop: no worker has begun .* call the trainer's fit\(\)"
    ):
        measured(train_loop).measurement()
    with pytest.raises(RequestError, match="Ray's error: ValueError: no room"):
        measured(train_loop).measurement(ValueError("no room"))
