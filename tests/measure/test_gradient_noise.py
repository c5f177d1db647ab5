"""Workers' noise: what DDP reduces tells it right, in half precision, under torchrun, and for workers that were not there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from forerun.measure import GradientNoise
from forerun.measure.communication import StepTraffic
from forerun.measure.gradients import GradientSquares
from forerun.measure.measurement import Measurement, merged
from forerun.measure.noise import gradient_noise
from forerun.measure.recorder import Recorder
from forerun.measure.task import Steps
from tests.forks import printed

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

# The loss of a sample x is w . x, so its gradient is x: the truth is known. A worker tells it by hand too.
TRUTH = """
import json, sys, torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from forerun.measure import GradientNoise, record

dist.init_process_group("gloo")
torch.set_num_threads(1)
rank, workers, found = dist.get_rank(), dist.get_world_size(), []
mean, spread = torch.full((60,), 0.6), torch.linspace(4.0, 1.0, 60)
kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.AdamW}
for kind, batch, steps in json.loads(sys.argv[1]):
    torch.manual_seed(1 + rank)
    model = nn.Linear(60, 1, bias=False)
    optimizer = kinds[kind](model.parameters(), lr=1e-3)
    ddp, noise = DistributedDataParallel(model), GradientNoise(decay=0.999)
    local = both = 0.0
    with record(samples=batch, noise=noise, norms_every=1) as run:
        run.watch(ddp)
        for step in run.steps(range(steps)):
            samples = mean + spread * torch.randn(batch // workers, 60)
            optimizer.zero_grad()
            loss = ddp(samples).mean()
            (loss * float("nan") if step == 9 and kind == "sgd" else loss).backward()
            optimizer.step()
            own = samples.mean(0)
            local += float(own.square().sum())
            dist.all_reduce(own)
            both += float((own / workers).square().sum())
    sums = torch.tensor([local, both])
    dist.all_reduce(sums)
    found.append({
        "gamma": float(sums[0] / sums[1]), "told": noise.gamma, "state": noise.state(),
        "figures": [noise.sqr, noise.var, noise.phi], "skipped": noise.skipped,
    })
print("FOUND", json.dumps(found), flush=True)
dist.barrier()
dist.destroy_process_group()
"""
MEAN, SPREAD = np.full(60, 0.6), np.linspace(4.0, 1.0, 60)


@cache
def trained(workers: int, *asked: tuple[str, int, int]) -> list[list[dict[str, Any]]]:
    """Return what each worker found of trainings (optimizer, batch, steps)."""
    told = printed(TRUTH, workers, json.dumps(asked))
    return [json.loads(one.partition("FOUND ")[2]) for one in told]


TWO = (("sgd", 32, 100), ("sgd", 128, 100), ("adam", 64, 300))
FOUR = (("sgd", 32, 100), ("sgd", 128, 100))


def test_workers_find_the_true_noise_and_all_of_them_the_same() -> None:
    sqr, var = float((MEAN**2).sum()), float((SPREAD**2).sum())
    for of_worker in (trained(2, *TWO), trained(4, *FOUR)):
        for found in of_worker[0][:2]:
            assert found["figures"] == pytest.approx([sqr, var, var / sqr], rel=0.1)
            assert found["skipped"] == 1, "the step whose gradients are not numbers"
        for other in of_worker[1:]:
            assert [one["figures"] for one in other] == [one["figures"] for one in of_worker[0]]


def test_one_measurement_foretells_the_gamma_that_other_workers_and_batches_have() -> None:
    noise = GradientNoise()
    noise.restore(trained(2, *TWO)[0][0]["state"])  # of 2 workers and 32 samples
    measured = {
        (workers, batch): found["gamma"]
        for workers, asked in ((2, TWO), (4, FOUR))
        for (kind, batch, _), found in zip(asked, trained(workers, *asked)[0], strict=True)
        if kind == "sgd"
    }
    assert len(measured) == 4
    for (workers, batch), gamma in measured.items():
        assert noise.gamma_at(workers, batch) == pytest.approx(gamma, rel=0.1)
    assert max(measured.values()) > 1.5 * min(measured.values()), "they are no constant"


def test_where_adam_trains_what_is_reduced_is_divided_as_its_update_is() -> None:
    moment = MEAN**2 + SPREAD**2 / 64
    sqr, var = float((MEAN**2 / moment).sum()), float((SPREAD**2 / moment).sum())
    assert trained(2, *TWO)[0][2]["figures"] == pytest.approx([sqr, var, var / sqr], rel=0.1)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{tmp_path}/store")
    yield
    dist.destroy_process_group()


def seen_of(
    module: nn.Module, inputs: Any, passes: int = 1
) -> tuple[StepTraffic | None, GradientSquares | None]:
    """Return traffic and squares of one step of DDP."""
    model = nn.parallel.DistributedDataParallel(module)
    recorder = Recorder(workers=2, norms_every=1)
    recorder.reduce_through(model)
    assert recorder.notes == []
    for _ in range(passes):
        model(inputs).sum().backward()
    recorder.gradients.updated(torch.optim.SGD(model.parameters()))
    recorder.communication.end()
    recorder.gradients.end()
    return *recorder.communication.read(), *recorder.gradients.read()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_norms_of_gradients_of_half_precision_are_neither_infinite_nor_coarse(
    alone: None, dtype: torch.dtype
) -> None:
    module = nn.Linear(300, 1, bias=False).to(dtype)
    _, squares = seen_of(module, torch.full((1, 300), 30.0, dtype=dtype))
    assert squares is not None
    assert squares.local == squares.mean == 300 * 30.0**2, "more than 65504, the most in fp16"


def test_a_step_that_reduces_twice_has_no_norms(alone: None) -> None:
    assert seen_of(nn.Linear(4, 1), torch.ones(1, 4))[1] == GradientSquares(5.0, 5.0, 1)
    traffic, squares = seen_of(nn.Linear(4, 1), torch.ones(1, 4), passes=2)
    assert squares is None
    assert traffic is not None
    assert traffic.bytes == 2 * 5 * 4


def test_one_worker_that_is_asked_for_noise_says_why_it_has_none() -> None:
    for asked, made_up in ((10, False), (None, False), (0, False), (10, True)):
        recorder = Recorder(Steps(warmup=0), norms_every=asked)
        if made_up:
            recorder.use_synthetic_data()
        recorder.step()
        told = merged([recorder.record()], 8)
        assert told.grad_sqr is None
        assert ("no optimizer of torch" in told.reason) == (asked == 10 and not made_up)


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
    out = tmp_path / "m.json"
    printed(SCRIPT, 2, str(out))
    measured = Measurement.from_json(json.loads(out.read_text()))
    assert measured.grad_sqr is not None
    assert measured.grad_var is not None
    assert measured.grad_var > 0


UNEQUAL = """
import json, time, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from forerun.measure import GradientNoise, gradients, record

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(dist.get_rank())
products = gradients.Gradients._products
def slow(self, *given):
    self._spent += 1e-3 * dist.get_rank()
    return products(self, *given)
gradients.Gradients._products = slow
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
noise, seen = GradientNoise(), []
with record(samples=32, noise=noise) as run:
    run.watch(model)
    for step in run.steps(range(200)):
        model(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(noise.steps)
print("FOUND", json.dumps([seen, noise.state()]), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def test_workers_that_observe_at_unequal_pace_agree_on_the_steps() -> None:
    told = [json.loads(one.partition("FOUND ")[2]) for one in printed(UNEQUAL, 2)]
    (seen, state), other = told
    assert (seen, state) == tuple(other)
    assert 2 <= state["steps"] < 20, "fewer than a tenth: one worker's observation takes long"
