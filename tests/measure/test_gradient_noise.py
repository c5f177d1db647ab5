"""Noise: norms of gradients are right in half precision, under torchrun, and where steps accumulate."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

import forerun
from forerun.measure.communication import Communication, StepTraffic, WallClock, gradient_noise
from forerun.measure.measurement import Measurement, merged
from forerun.measure.recorder import Recorder
from forerun.measure.task import Steps

SCRIPT = """
import sys, torch
from torch.nn.parallel import DistributedDataParallel
from forerun.measure import record
torch.distributed.init_process_group("gloo")
torch.manual_seed(torch.distributed.get_rank())
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
with record(samples=32, out=sys.argv[1], norms_every=1) as r:
    r.watch(model)
    for _ in r.steps(range(200)):
        inputs = torch.randn(16, 8)
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{tmp_path}/store")
    yield
    dist.destroy_process_group()


def traffic(module: nn.Module, inputs: Any, passes: int = 1) -> StepTraffic:
    """Return the traffic of one step of DDP."""
    model = nn.parallel.DistributedDataParallel(module)
    communication = Communication(WallClock(), norms_every=1)
    assert communication.attach(model) == ""
    for _ in range(passes):
        model(inputs).sum().backward()
    communication.updated(torch.optim.SGD(model.parameters()))
    communication.end()
    (seen,) = communication.read()
    assert seen is not None
    return seen


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_norms_of_gradients_of_half_precision_are_neither_infinite_nor_coarse(
    alone: None, dtype: torch.dtype
) -> None:
    seen = traffic(nn.Linear(300, 1, bias=False).to(dtype), torch.full((1, 300), 30.0, dtype=dtype))
    assert seen.local_sqr == seen.mean_sqr == 300 * 30.0**2, "more than 65504, the most in fp16"


def test_a_step_that_reduces_twice_has_no_norms(alone: None) -> None:
    assert traffic(nn.Linear(4, 1), torch.ones(1, 4)).local_sqr == 5.0
    twice = traffic(nn.Linear(4, 1), torch.ones(1, 4), passes=2)
    assert (twice.local_sqr, twice.mean_sqr) == (None, None)
    assert twice.bytes == 2 * 5 * 4


def test_one_worker_that_is_asked_for_noise_says_why_it_has_none() -> None:
    for asked, made_up in ((10, False), (None, False), (0, False), (10, True)):
        recorder = Recorder(Steps(warmup=0), norms_every=asked)
        if made_up:
            recorder.use_synthetic_data()
        recorder.step()
        told = merged([recorder.record()], 8)
        assert told.grad_sqr is None
        assert ("one worker has one gradient" in told.reason) == (asked == 10 and not made_up)


def test_estimates_below_zero_are_kept_since_means_are_too_high_without_them() -> None:
    rng = np.random.default_rng(0)
    sqr, var, workers, batch = 0.01, 40.0, 2, 16
    rows = []
    for _ in range(400):
        noise = rng.normal(size=(workers, 20)) * np.sqrt(var / 20 * workers / batch)
        own = noise + np.sqrt(sqr / 20)
        local, mean = float((own**2).sum(1).mean()), float((own.mean(0) ** 2).sum())
        told = gradient_noise(local, mean, workers, batch)
        rows.append(Measurement(grad_sqr=told[0], grad_var=told[1]).row())
    assert all({"grad_sqr", "grad_var"} <= set(row) for row in rows)
    kept = np.array([row["grad_sqr"] for row in rows])
    assert (kept < 0).any()
    assert abs(kept.mean() - sqr) < 3 * kept.std() / np.sqrt(len(kept))


def test_one_file_under_torchrun_knows_of_all_workers(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    out = tmp_path / "m.json"
    given = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1",
             "PYTHONPATH": str(Path(forerun.__file__).parents[1]), "GLOO_SOCKET_IFNAME": "lo",
             "MASTER_PORT": str(25000 + os.getpid() % 5000)}  # fmt: skip
    words = [sys.executable, str(tmp_path / "train.py"), str(out)]
    workers = [subprocess.Popen(words, env={**given, "RANK": str(i)}) for i in range(2)]
    assert [worker.wait(300) for worker in workers] == [0, 0]
    measured = Measurement.from_json(json.loads(out.read_text()))
    assert measured.grad_sqr is not None
    assert measured.grad_var is not None
    assert measured.grad_var > 0
