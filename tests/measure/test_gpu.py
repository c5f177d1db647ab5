"""What is told of a GPU, on machines without one: the arithmetic, on small stand-ins for CUDA and NVML.

No GPU is here to measure: these tests say nothing of how a real one behaves.
"""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from forerun.measure.communication import CudaClock, Timeline
from forerun.measure.processes import GPU, Usage, cpu_seconds, own_gpu
from tests.measure.cuda import Stream


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    """CUDA's events, on a stream of this test."""
    return Stream().installed(monkeypatch)


def test_a_step_on_a_gpu_is_timed_by_what_the_device_does_and_not_by_its_launches(
    stream: Stream,
) -> None:
    timeline = Timeline(CudaClock())
    timeline.begin()
    for scale in (1.0, 2.0):
        for part, seconds in (("forward", 0.010), ("backward", 0.020), ("", 0.002)):
            timeline.switch(part)
            stream.host += 1e-5  # the host has launched it, and goes on at once
            stream.run(scale * seconds)
        timeline.end()
    assert stream.waits == 0, "nothing waits for the device between steps"
    totals, parts = timeline.read()
    assert stream.waits == 1
    assert totals == pytest.approx([0.032, 0.064], abs=1e-4)
    assert parts[0] == pytest.approx({"forward": 0.010, "backward": 0.020}, abs=1e-4)
    assert parts[1] == pytest.approx({"forward": 0.020, "backward": 0.040}, abs=1e-4)


def test_a_gap_in_which_the_device_waits_for_its_host_is_part_of_the_step(stream: Stream) -> None:
    clock = CudaClock()
    first = clock.now()
    stream.run(0.001)
    stream.synchronize()
    stream.host += 0.5  # say, for data
    stream.run(0.001)
    last = clock.now()
    clock.settle()
    assert clock.seconds(first, last) == pytest.approx(0.502)
    assert clock.seconds(last, first) == pytest.approx(-0.502)


def test_a_gpu_s_busy_share_is_that_of_the_worker_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = {
        0: iter([100] * 5),
        1: iter([20, RuntimeError("busy"), 40, ImportError("no NVML"), 90]),
    }

    def utilization(index: int) -> int:
        if isinstance(share := next(shares[index]), Exception):
            raise share
        return share  # type: ignore[return-value]

    monkeypatch.setattr(torch.cuda, "utilization", utilization)
    usage = Usage(gpu=1)
    assert usage.rates()["gpu_share"] is None, "nothing was seen yet"
    for _ in range(5):  # the second reading fails and is none; without NVML no more is read
        usage.sample()
    assert usage.rates()["gpu_share"] == pytest.approx(0.3)


def test_a_worker_s_gpu_is_what_its_runner_says_or_its_local_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in (GPU, "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert own_gpu() == 0
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert own_gpu() == 2
    monkeypatch.setenv(GPU, "0")
    assert own_gpu() == 0, "where Ray shows a worker its own GPU alone, that is number 0"


def test_in_ray_train_the_gpu_is_the_one_that_it_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    from forerun.measure.ray.worker import own_ray_gpu

    for device, number in ((torch.device("cuda", 3), 3), (torch.device("cpu"), None)):
        module = SimpleNamespace(get_device=lambda device=device: device)
        monkeypatch.setitem(sys.modules, "ray.train.torch", module)
        assert own_ray_gpu() == number


BUSY = "import time\nwhile time.process_time() < 0.5: pass\nprint('done', flush=True)\ninput()"


def test_processor_time_of_children_is_counted_while_they_run_and_after() -> None:
    usage, before = Usage(), cpu_seconds()
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])"
    child = subprocess.Popen(
        [sys.executable, "-c", nested], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "done\n"
    own = time.process_time()
    while_it_runs = cpu_seconds()
    assert while_it_runs - before >= 0.45
    child.communicate("\n")
    after = cpu_seconds()
    assert after >= while_it_runs - 0.05, "what has ended is not forgotten"
    assert after - before < 3.0 + (time.process_time() - own), "and not counted twice"
    share = usage.rates()["cpu_share"]
    assert share is not None
    assert share > 0.02
