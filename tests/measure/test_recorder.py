"""Hooks: code that is run unchanged tells its parts on one worker as it does on two."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from torch import nn

from forerun.measure.recorder import Enough, OptimizerHooks, Recorder
from forerun.measure.task import Steps


class Slow(nn.Module):
    """Two linear layers whose forward takes 3 ms more."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.003)
        out: torch.Tensor = self.second(self.first(x))
        return out


class Teaching(nn.Module):
    """A student and a larger teacher that learns nothing; it is never called itself."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = Slow(), nn.Linear(500, 500)


def plain() -> tuple[nn.Module, Callable[[torch.Tensor], torch.Tensor]]:
    model = Slow()
    return model, model


def wrapped() -> tuple[nn.Module, Callable[[torch.Tensor], torch.Tensor]]:
    model = nn.Sequential(Slow())
    return model, model


def held() -> tuple[nn.Module, Callable[[torch.Tensor], torch.Tensor]]:
    holder = Teaching()
    return holder.student, holder.student


@pytest.mark.parametrize("made", [plain, wrapped, held])
def test_a_loop_on_one_worker_that_says_nothing_tells_its_parts(
    made: Callable[[], tuple[nn.Module, Callable[[torch.Tensor], torch.Tensor]]],
) -> None:
    trained, call = made()
    recorder = Recorder(Steps(warmup=1, least=8, most=12))

    def stop() -> None:
        raise Enough(0)

    hooks = OptimizerHooks(recorder, stop)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.01)

    def train() -> None:
        while True:
            loss = call(torch.randn(4, 8)).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()

    with pytest.raises(Enough):
        train()
    hooks.remove()
    parts = recorder.record()["parts"]
    for module in trained.modules():
        assert not module._forward_hooks, "once it is recorded, the model is as it was"
        assert not module._forward_pre_hooks
    assert {"forward", "backward", "optimizer"} <= set(parts)
    assert parts["forward"] >= 0.003
    assert parts["backward"] > 0


def test_a_run_that_ends_before_a_step_is_counted_failed() -> None:
    recorder = Recorder(Steps(warmup=2))
    recorder.step()
    record = recorder.record()
    assert (record["status"], record["reason"]) == (
        "failed", "it ended after 1 steps, and none was counted"
    )  # fmt: skip
