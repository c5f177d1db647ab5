"""Micro-benchmarks: every one of them runs, does what its size says, and takes some time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from forerun.measure.probe import worker
from forerun.measure.probe.clock import CallTimer
from forerun.measure.probe.grids import CLASSES, FIRST, Grid, grids
from forerun.measure.probe.worker import (
    Measurements,
    framework_costs,
    loader_costs,
    message_costs,
    optimizer_costs,
    timed,
)

QUICK = CallTimer(batch_seconds=1e-5, repeats=1)
GRIDS = grids(torch, "cpu", torch.float32)
NAMES = [grid.name for grid in GRIDS]


@pytest.mark.parametrize("grid", GRIDS, ids=NAMES)
def test_each_operation_runs_at_its_smallest_size(grid: Grid) -> None:
    sizes = [int(axis[0]) for axis in grid.axes]
    assert CallTimer(batch_seconds=1e-5, repeats=1).time(grid.make(*sizes)) > 0


@pytest.mark.parametrize("grid", GRIDS, ids=NAMES)
def test_sizes_increase_along_each_axis(grid: Grid) -> None:
    assert all(a < b for axis in grid.axes for a, b in itertools.pairwise(axis))
    assert len(grid.points) == math.prod(len(axis) for axis in grid.axes)


def test_names_are_told_apart_and_what_comes_first_is_there() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert set(CLASSES.values()) <= set(NAMES)
    assert tuple(NAMES[: len(FIRST)]) == FIRST


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith(("matmul", "conv"))])
def test_a_larger_product_takes_longer(name: str) -> None:
    grid = GRIDS[NAMES.index(name)]
    # A hundred times the work at least.
    small = grid.points[0]
    more = [p for p in grid.points if math.prod(p) >= 100 * math.prod(small)]
    large = min(more, key=math.prod) if more else max(grid.points, key=math.prod)
    calls = [grid.make(*map(int, p)) for p in (small, large)]
    # A neighbour only adds to a time: the least of some, taken in turn, is the call's own.
    timer = CallTimer(batch_seconds=2e-4, repeats=3)
    few, many = np.min([[timer.time(call) for call in calls] for _ in range(25)], axis=0)
    assert many > few


@pytest.mark.parametrize("role", ["forward", "dgrad", "wgrad"])
def test_a_convolution_is_the_matrix_product_that_its_size_says(role: str) -> None:
    """The output of the call has as many elements as the product's two outer sides."""
    grid = next(g for g in GRIDS if g.name == f"conv.{role}")
    rows, columns, depth = (int(axis[1]) for axis in grid.axes)
    made = grid.make(rows, columns, depth)()
    if role == "forward":
        assert made.numel() == rows * columns
    elif role == "dgrad":  # the image: columns are channels times the kernel's area
        assert made[0].numel() * 9 == rows * columns
    else:
        assert made[1].numel() == rows * columns


def test_what_costs_too_much_is_scaled_from_its_smaller_neighbour() -> None:
    grid = Grid("g", ((1.0, 4.0), (10.0, 20.0)), lambda a, b: lambda: None,
                lambda a, b: 1e12 if a > 1 else 0.0)  # fmt: skip
    curve = timed(grid, QUICK)
    assert curve is not None
    few, _, left_out, most = curve["seconds"]
    assert (left_out, most) == pytest.approx((4 * few, 2 * left_out))


def test_what_there_was_no_time_for_is_named_and_has_no_figures() -> None:
    found = Measurements()
    found.add("fp32", GRIDS[:2], CallTimer(until=0.0))
    assert (found.curves, found.left_out) == ({}, [f"fp32/{name}" for name in NAMES[:2]])


def test_the_framework_costs_something_and_little() -> None:
    clock = CallTimer(batch_seconds=2e-4, repeats=3)
    costs = {**framework_costs(torch, "cpu", clock), **loader_costs(torch, clock)}
    assert all(0.0 <= seconds < 0.05 for seconds in costs.values())
    assert costs["backward_call_seconds"] + costs["step_seconds"] > 0


def test_a_message_to_a_server_takes_longer_the_more_it_holds() -> None:
    found = message_costs(torch, CallTimer(batch_seconds=5e-4, repeats=3))
    assert 0 < found["message_seconds"] < 0.05
    assert 0 < found["message_byte_seconds"] < 1e-6


class _Work(TorchDispatchMode):
    """What a call asks of a device whose operations take 1 us each and 0.1 ns an element."""

    seconds = 0.0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
        self.seconds += 1e-6 * max(len(tensors), 1) + 1e-10 * sum(t.numel() for t in tensors)
        return func(*args, **(kwargs or {}))


class _SteadyTimer(CallTimer):
    def time(self, call: Callable[[], object]) -> float:
        call()  # the first step makes the states
        with _Work() as work:
            call()
        return work.seconds


def test_adam_takes_longer_than_plain_descent() -> None:
    """On a clock that counts work: two timings of some microseconds on a busy machine may swap."""
    costs = optimizer_costs(torch, "cpu", _SteadyTimer(), ("sgd", "adamw"))
    step, tensor, parameter = zip(*(costs[name] for name in ("sgd", "adamw")), strict=True)
    assert parameter[1] > parameter[0] > 0
    assert step[1] + tensor[1] > step[0] + tensor[0]


@pytest.mark.gpu
def test_a_cuda_device_is_timed_by_its_events() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here: the probe's code for it was not run")
    x = torch.randn(2048, 2048, device="cuda")
    seconds = CallTimer("cuda").time(lambda: x.mm(x))
    assert 1e-6 < seconds < 0.1


def test_threads_beside_one_another_are_never_faster_and_what_is_measured_is_read_back() -> None:
    from forerun.domain.measured import Curve, Measured
    from forerun.measure.probe.collectives import co_running

    assert co_running(torch, 1.5) is None, "a core and a half runs no two threads"
    found = co_running(torch, 2.0)
    assert found is not None
    assert found["axes"][1] == [1.0, 2.0]
    alone, both = np.array(found["seconds"]).reshape(-1, 2).T
    assert (alone == 1.0).all()
    assert (both >= 1.0).all()
    curve = Curve((tuple(found["axes"][0]), (1.0, 2.0)), (1.0, 1.0) * 4 + (1.0, 1.5))
    measured = Measured.from_dict(Measured({}, co_running=curve).to_dict())
    assert measured.co_running == curve
    in_cache, in_memory = measured.thread_slowdown([1e3, 1e12], 2.0)
    assert (in_cache, in_memory) == pytest.approx((1.0, 1.5))
    assert measured.thread_slowdown([1e3, 1e12], 4.0) == pytest.approx([1.0, 1.5**2])
    assert (Measured({}).thread_slowdown([1e3, 1e12], 4.0) == 1.0).all()


def test_time_that_is_left_goes_into_further_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([1.0, 5.0, 3.0])
    now = iter(range(0, 1000, 10))
    passes: list[float] = []

    def once(*given: Any) -> dict[str, Any]:
        given[3].spreads.append(0.1)
        passes.append(next(found))
        return {"curves": {"add": {"axes": [[1.0]], "seconds": [passes[-1]]}}, "seconds": 10.0}

    monkeypatch.setattr(worker, "_gone_through", once)
    monkeypatch.setattr(worker, "cpu_access", lambda *_: {"cpu_share": 0.2, "allowed_cores": 0.2})
    monkeypatch.setattr(worker, "is_busy", lambda _: False)
    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=lambda: float(next(now))))
    request = {"device": "cpu", "threads": 2, "seconds": 35, "dtypes": ["fp32"]}
    made = worker.measured(torch, request)
    assert passes == [1.0, 5.0, 3.0]
    assert made["curves"]["add"]["seconds"] == [3.0]


def test_the_middle_of_passes_is_that_of_each_number() -> None:
    passes = [
        {"a": [1.0, 2.0], "only": {"x": "refused"}, "none": []},
        {"a": [3.0, 8.0], "only": {}, "none": []},
        {"a": [2.0, 4.0], "none": ["late"]},
    ]
    assert worker.middle_of(passes) == {"a": [2.0, 4.0], "only": {"x": "refused"}, "none": []}
