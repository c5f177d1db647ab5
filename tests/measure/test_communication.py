"""Communication: DDP reduces the same to the bit while it is observed, and its record is right."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import forerun
from tests.forks import printed

# Two workers train the same model on data of their own, plain, and looked at in some way.
SCRIPT = '''
import json, sys
from pathlib import Path
import torch
import torch.distributed as dist
from torch import nn
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel
from forerun.measure import GradientNoise
from forerun.measure.recorder import OptimizerHooks
from forerun.measure.recorder import Recorder
from forerun.measure.task import Steps

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, STEPS, WARMUP = dist.get_rank(), 8, 2


class Forked(nn.Module):
    """Three layers, of which one is used in every other step alone."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.seldom = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 4)
        self.calls = 0

    def forward(self, inputs):
        self.calls += 1
        hidden = torch.tanh(self.first(inputs))
        seldom = self.seldom(hidden) if self.calls % 2 and self.forked else 0.0
        return self.second(hidden) + seldom


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.last = nn.Embedding(9, 4, sparse=True), nn.Linear(4, 1)

    def forward(self, inputs):
        return self.last(self.embed(inputs.abs().long() % 9))


def half(state, bucket):
    buffer = bucket.buffer().mul_(0.5)
    return state.allreduce([buffer]).get_future().then(lambda future: future.value()[0])


def training(norms_every=None, kind="plain", passes=1, **given):
    """Return (gradients of every step, own and mean squared norms, what was recorded)."""
    torch.manual_seed(0)
    model = Words() if kind == "sparse" else Forked()
    model.forked = "find_unused_parameters" in given
    if not model.forked and kind != "sparse":
        del model.seldom
    ddp = DistributedDataParallel(model, bucket_cap_mb=1e-4, **given)
    if kind == "hooked":
        ddp.register_comm_hook(ddp.process_group, half)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    scaler = GradScaler("cpu", init_scale=2.0**12, enabled="scaled" in kind)
    recorder = hooks = None
    if norms_every != "plain":
        noise = GradientNoise() if kind == "noise" else None
        recorder = Recorder(Steps(warmup=WARMUP, least=STEPS), rank, 2, norms_every=norms_every, noise=noise)
        recorder.explicit, recorder.samples = True, 64
        hooks = OptimizerHooks(recorder)
        recorder.watch(ddp)
        recorder.begin()
    torch.manual_seed(1 + rank)
    seen, local, mean = [], [], []
    for step in range(WARMUP + STEPS):
        for _ in range(passes):
            if kind != "summed" or step % 2 == 0:
                optimizer.zero_grad()
            inputs = 3 * torch.randn(32, 8)
            loss = ddp(inputs).square().mean()
            if kind == "scaled, overflowing" and step == 5:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
        scale = scaler.get_scale()
        grads = [p.grad.to_dense().flatten() for p in ddp.parameters() if p.grad is not None]
        seen.append(torch.cat(grads).clone())
        mean.append(float((seen[-1] / scale).square().sum()))
        if kind in ("plain", "scaled", "noise") and passes == 1 and not given:  # by hand, without DDP
            own = torch.autograd.grad(model(inputs).square().mean(), list(model.parameters()))
            local.append(float(sum(g.square().sum() for g in own)))
        if kind != "summed" or step % 2:
            if kind == "scaled, then clipped":
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(ddp.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
        if recorder is not None:
            recorder.step()
    told = None
    if recorder is not None:
        told = recorder.record()
        if hooks is not None:
            hooks.remove()
        ddp.zero_grad()
        ddp(torch.ones(1, 8)).sum().backward()
        told["left"] = not recorder.communication._buckets
        local, mean = local[told["warmup_steps"]:], mean[told["warmup_steps"]:]
    return seen, local, mean, told


def same(first, second):
    return len(first) == len(second) and all(map(torch.equal, first, second))


found = {"same": {}}
for name, given in {
    "plain": {}, "views": {"gradient_as_bucket_view": True},
    "unused": {"find_unused_parameters": True}, "static": {"static_graph": True},
}.items():
    plain, *_ = training("plain", **given)
    for every in (None, 1):
        looked, local, mean, told = training(every, **given)
        found["same"][f"{name} {every}"] = same(plain, looked)
        if name == "plain" and every == 1:
            found["norms"] = {"local": local, "mean": mean, "told": told}
plain, *_ = training("plain")
looked, _, _, found["timed"] = training(0)
found["same"]["timed"] = same(plain, looked)
looked, local, mean, told = training(1, "noise")
found["same"]["noise"] = same(plain, looked)
found["noise"] = {"local": local, "mean": mean, "told": told}
for kind in ("sparse", "summed", "hooked", "scaled", "scaled, then clipped", "scaled, overflowing"):
    _, local, mean, told = training(1, kind)
    found[kind] = {"local": local, "mean": mean, "told": told}
_, _, _, found["twice"] = training(1, passes=2)
if sys.argv[1:]:
    Path(sys.argv[1], f"{rank}.json").write_text(json.dumps(found))
dist.barrier()
dist.destroy_process_group()
'''


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each of two workers found."""
    folder = tmp_path_factory.mktemp("looking")
    printed(SCRIPT, 2, str(folder))
    return [json.loads((folder / f"{i}.json").read_text()) for i in range(2)]


# Ends while a thread of the process group, which the interpreter lets run seldom, holds a callback.
ENDING = """
import sys, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from forerun.measure import communication

dist.init_process_group("gloo")
module = DistributedDataParallel(nn.Linear(8, 8))
observed = communication.Communication(communication.WallClock(), lambda bucket: None)
assert observed.attach(module) == ""
sys.setswitchinterval(5)
for _ in range(5000):
    module(torch.ones(2, 8)).sum().backward()
    if dist.get_rank() == 0 and len(communication._CALLBACKS):
        sys.exit(7)
"""


def test_a_process_ends_well_while_its_process_group_holds_callbacks() -> None:
    given = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1",
             "PYTHONPATH": str(Path(forerun.__file__).parents[1]), "GLOO_SOCKET_IFNAME": "lo",
             "MASTER_PORT": str(25000 + os.getpid() % 5000)}  # fmt: skip
    words = [sys.executable, "-W", "ignore", "-c", ENDING]
    other = subprocess.Popen(words, env={**given, "RANK": "1"}, stderr=subprocess.DEVNULL)
    try:
        ended = subprocess.run(words, env={**given, "RANK": "0"}, timeout=300, check=False)
    finally:
        other.kill()
        other.wait()
    assert ended.returncode == 7, "not aborted (-6)"


def mean_of(values: list[float]) -> float:
    return sum(values) / len(values)


def test_gradients_are_the_same_to_the_bit(found: list[Any]) -> None:
    for worker in found:
        assert len(worker["same"]) == 10
        assert all(worker["same"].values()), worker["same"]
        assert worker["norms"]["told"]["left"], "once it is recorded, DDP is as it was"


def test_norms_are_those_of_the_worker_and_of_the_mean(found: list[Any]) -> None:
    for worker in found:
        told = worker["norms"]["told"]
        assert told["local_sqr"] == pytest.approx(mean_of(worker["norms"]["local"]), rel=1e-3)
        assert told["mean_sqr"] == pytest.approx(mean_of(worker["norms"]["mean"]), rel=1e-4)
        assert told["sync_bytes"] == 4 * (8 * 16 + 16 + 16 * 4 + 4)
        assert told["notes"] == []
    assert found[0]["norms"]["told"]["local_sqr"] != found[1]["norms"]["told"]["local_sqr"]


def test_where_a_noise_is_fed_the_norm_is_that_of_all_workers(found: list[Any]) -> None:
    by_hand = mean_of([mean_of(worker["noise"]["local"]) for worker in found])
    for worker in found:
        told = worker["noise"]["told"]
        assert told["local_sqr"] == pytest.approx(by_hand, rel=1e-3)
        assert told["mean_sqr"] == pytest.approx(mean_of(worker["noise"]["mean"]), rel=1e-4)


def test_volume_and_time_of_communication_are_told_without_norms(found: list[Any]) -> None:
    for worker in found:
        told = worker["timed"]
        assert told["sync_bytes"] == 4 * (8 * 16 + 16 + 16 * 4 + 4)
        assert told["local_sqr"] is told["mean_sqr"] is None
        assert told["parts"]["sync"] > 0
        assert told["comm_seconds"] > 0
        assert told["notes"] == []


@pytest.mark.parametrize("kind", ["scaled", "scaled, then clipped"])
def test_norms_are_of_the_loss_before_a_scaler_scaled_it(found: list[Any], kind: str) -> None:
    for worker in found:
        told = worker[kind]["told"]
        assert told["mean_sqr"] == pytest.approx(mean_of(worker[kind]["mean"]), rel=1e-4)
        if worker[kind]["local"]:
            assert told["local_sqr"] == pytest.approx(mean_of(worker[kind]["local"]), rel=1e-3)


def test_a_step_whose_scaled_gradients_overflow_is_left_out(found: list[Any]) -> None:
    for worker in found:
        told = worker["scaled, overflowing"]["told"]
        by_hand = worker["scaled, overflowing"]["mean"]
        (at,) = [i for i, one in enumerate(by_hand) if not math.isfinite(one)]
        # The scaler left that step's update out: the next one has no whole step before it.
        assert told["mean_sqr"] == pytest.approx(
            mean_of(by_hand[:at] + by_hand[at + 2 :]), rel=1e-4
        )
        assert told["notes"] == []


def test_what_is_reduced_twice_a_step_is_told_and_has_no_norms(found: list[Any]) -> None:
    for worker in found:
        told = worker["twice"]
        assert told["sync_bytes"] == 2 * worker["timed"]["sync_bytes"]
        assert told["local_sqr"] is told["mean_sqr"] is None
        assert "reduced 2 times a step" in "".join(told["notes"])


def test_gradients_that_no_optimizer_took_have_no_norms(found: list[Any]) -> None:
    for worker in found:
        told = worker["summed"]["told"]
        assert told["sync_bytes"] == worker["timed"]["sync_bytes"]
        assert told["local_sqr"] is told["mean_sqr"] is None, "steps sum what they reduce"
        assert "no optimizer of torch used" in "".join(told["notes"])


def test_sparse_gradients_are_reduced_and_counted_by_what_they_hold(found: list[Any]) -> None:
    for worker in found:
        told = worker["sparse"]["told"]
        assert told["sync_bytes"] > 0
        assert told["mean_sqr"] is None
        assert told["notes"] == ["gradient noise is not measured: some gradients are sparse"]


def test_a_module_with_a_hook_of_its_own_keeps_it_and_that_is_told(found: list[Any]) -> None:
    for worker in found:
        told = worker["hooked"]["told"]
        assert told["status"] == "ok"
        assert told["sync_bytes"] is None
        assert "sync" not in told["parts"]
        assert told["notes"] == [
            "communication is not measured: the module has a hook of its own",
            "gradient noise is not measured: no DistributedDataParallel module is observed",
        ]
