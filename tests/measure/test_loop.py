"""Precision: tasks of several precisions share a process, and none computes in another's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from forerun.measure.loop import TrainedModule, train
from forerun.measure.probe.worker import measured
from forerun.measure.recorder import Recorder
from forerun.measure.task import Steps, Task


def tf32() -> tuple[bool, bool]:
    """Return whether products and convolutions of float32 round to TF32."""
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


@pytest.fixture(autouse=True)
def as_torch_starts() -> Iterator[None]:
    """Set both switches as torch does, and put them back."""
    before = tf32()
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = False, True
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def test_no_task_computes_in_the_precision_of_another_in_its_process() -> None:
    steps = Steps(warmup=0, least=1, most=1)
    for precision in ("fp32", "tf32", "fp32", "bf16"):
        task = Task("m:f", global_batch=2, precision=precision, steps=steps)
        model = torch.nn.Linear(4, 2)
        train(task, TrainedModule(model, (torch.zeros(2, 4),)), Recorder(steps))
        assert tf32() == (precision == "tf32",) * 2


def test_a_probe_measures_fp32_and_not_tf32() -> None:
    ask = {"device": "cpu", "threads": 1, "dtypes": ["fp32"], "seconds": 0.0, "only": ["add"]}
    measured(torch, ask)
    assert tf32() == (False, False)
