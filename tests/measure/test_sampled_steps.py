"""Few steps: what a record holds where few steps were counted, and what is left of the observation."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any
from weakref import ref

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from forerun.measure import gradients, record
from forerun.measure.recorder import OptimizerHooks, Recorder

PARAMETERS = 16 * 16 + 16


@pytest.fixture(autouse=True, scope="module")
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def told_of(
    warmup: int, steps: int, norms_every: int | None = None, alone: bool = False
) -> tuple[dict[str, Any], Any]:
    """Return what a recorder of so many steps told, and a reference to the module it watched."""
    module = DistributedDataParallel(nn.Linear(16, 16))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    recorder = Recorder(workers=2, norms_every=norms_every)
    recorder._warmup, recorder._count = warmup, -warmup
    recorder.explicit, recorder.samples = True, 4
    hooks = OptimizerHooks(recorder)
    recorder.watch(module)
    recorder.begin()
    for _ in range(warmup + steps):
        optimizer.zero_grad()
        with module.no_sync() if alone else nullcontext():
            module(torch.randn(4, 16)).square().mean().backward()
        optimizer.step()
        recorder.step()
    told = recorder.record()
    hooks.remove()
    lived = ref(module)
    del module, optimizer
    gc.collect()
    assert recorder.rank == 0, "it is still there, and holds no module"
    return told, lived


@pytest.mark.parametrize(("warmup", "steps"), [(6, 6), (14, 11), (3, 1)])
def test_of_the_fewest_steps_norms_are_taken_in_one(warmup: int, steps: int) -> None:
    told, _ = told_of(warmup, steps)
    assert told["sync_bytes"] == 4 * PARAMETERS
    assert told["local_sqr"] is not None
    assert told["parts"]["sync"] > 0


def test_where_nothing_is_reduced_communication_is_not_told_to_be_nothing() -> None:
    told, _ = told_of(3, 6, alone=True)
    assert told["sync_bytes"] is None
    assert "sync" not in told["parts"]
    assert "the DDP module reduced nothing" in "".join(told["notes"])


def test_a_module_that_was_observed_is_observed_again_by_the_next_recorder() -> None:
    module = DistributedDataParallel(nn.Linear(16, 16))
    for _ in range(2):
        with record() as run:
            run.watch(module)
            for _ in run.steps(range(5)):
                module(torch.randn(4, 16)).square().mean().backward()
        assert run.record()["sync_bytes"] == 4 * PARAMETERS


def test_a_recorder_that_is_done_holds_no_module() -> None:
    _, module = told_of(3, 3)
    assert module() is None


def test_a_module_is_left_as_it_was_where_training_fails() -> None:
    module = DistributedDataParallel(nn.Linear(16, 16))

    def loss() -> Any:
        return module(torch.randn(4, 16)).square().mean()

    runs = []

    def train() -> None:
        with record() as run:
            runs.append(run)
            run.watch(module)
            loss().backward()
            run.step()
            raise ValueError("of the user's")

    with pytest.raises(ValueError, match="of the user's"):
        train()
    assert not module._forward_hooks
    assert not module._forward_pre_hooks
    loss().backward()
    assert not runs[0].communication._buckets, "nobody looks any more"


def test_a_compiled_module_is_looked_at() -> None:
    compiled = torch.compile(module := DistributedDataParallel(nn.Linear(16, 16)), backend="eager")
    with record() as run:
        run.reduce_through(module)
        for _ in range(8):
            compiled(torch.randn(4, 16)).square().mean().backward()
            run.step()
    assert run.record()["sync_bytes"] == 4 * PARAMETERS


def test_what_reading_a_norm_takes_is_no_communication(monkeypatch: pytest.MonkeyPatch) -> None:
    products = gradients.Gradients._products

    def slow(*given: Any) -> Any:
        time.sleep(0.5)
        return products(*given)

    monkeypatch.setattr(gradients.Gradients, "_products", slow)
    told, _ = told_of(0, 1, norms_every=1)
    assert told["local_sqr"] is not None
    assert 0 < told["parts"]["sync"] <= told["comm_seconds"] < 0.5


def test_what_compiled_code_reduces_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module = DistributedDataParallel(nn.Linear(2, 2))
    monkeypatch.setattr(module, "_use_python_reducer", True)
    recorder = Recorder(workers=2)
    recorder.reduce_through(module)
    assert "comm_hook" not in module._get_ddp_logging_data()
    assert recorder.notes == [
        "communication is not measured: compiled code reduces the module's gradients"
    ]
