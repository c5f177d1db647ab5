"""Probing a GPU, on machines without one: sizes, and arithmetic on a stand-in for CUDA's events.

No GPU is here to measure: these tests say nothing of how a real one behaves.
"""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch

from forerun.errors import RequestError, UnsatisfiedError
from forerun.measure import local_host
from forerun.measure.hosts import Host
from forerun.measure.loop import use_tf32
from forerun.measure.probe.clock import Call, CallTimer
from forerun.measure.probe.findings import device_entry
from forerun.measure.probe.grids import CPU, Grid, GridSizes, cuda_sizes, grids
from forerun.measure.probe.probing import probe
from forerun.measure.probe.worker import Measurements, timed
from tests.measure.cuda import Stream

LAUNCH_SECONDS = 5e-6
BYTES_PER_SECOND = 3e12


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    return Stream().installed(monkeypatch)


def kernel(stream: Stream, seconds: float) -> Call:
    return partial(stream.run, seconds, LAUNCH_SECONDS)


def test_a_long_kernel_is_timed_and_not_what_came_before_it(stream: Stream) -> None:
    stream.run(10.0)  # somebody's work that is still under way
    assert CallTimer("cuda").time(kernel(stream, 1e-3)) == pytest.approx(1e-3, rel=0.01)


def test_a_short_kernel_takes_as_long_as_its_launch(stream: Stream) -> None:
    found = CallTimer("cuda").time(kernel(stream, 1e-7))
    assert found == pytest.approx(LAUNCH_SECONDS, rel=0.05)


def test_on_a_gpu_the_processor_s_work_is_timed_by_the_wall_clock() -> None:
    clock = CallTimer("cuda", threads=1, spreads=[])
    host = clock.on_host()
    assert (host.device, host.until) == ("cpu", clock.until)
    assert host.threads > 1, "a loader's processes do not use this process's own time"
    host.time(lambda: None)
    assert clock.spreads, "its repeats are counted with the others"


def memory_of(stream: Stream, sizes: GridSizes) -> Grid:
    """A GPU's memory of 3 TB/s, gone through in one kernel a footprint."""
    return Grid(
        "memory", (sizes.footprints,), lambda f: kernel(stream, f / BYTES_PER_SECOND),
        per=lambda f: f / 8.0,
    )  # fmt: skip


def test_no_footprint_is_so_small_that_its_time_is_that_of_its_launch(
    stream: Stream,
) -> None:
    curve = timed(memory_of(stream, cuda_sizes(80e9, 4)), CallTimer("cuda"))
    assert curve is not None
    assert curve["axes"] == [[64e6, 256e6, 1e9, 4e9]], "4 and 16 MB take less than three launches"
    rates = [8.0 / seconds for seconds in curve["seconds"]]
    assert rates == pytest.approx([BYTES_PER_SECOND] * 4, rel=0.25)
    assert rates[-1] == pytest.approx(BYTES_PER_SECOND, rel=0.01)


def test_what_was_refused_is_the_reason_why_there_is_no_device() -> None:
    told = {"curves": {}, "refused": {"fp32/memory": "no kernel"}, "left_out": [], "seconds": 1.0}
    with pytest.raises(UnsatisfiedError, match=r"memory was not timed: no kernel"):
        device_entry(told, "x", ["fp32"], "here")


@pytest.mark.parametrize("element_bytes", [2, 4, 8])
@pytest.mark.parametrize("free", [6e9, 22e9, 139e9])
def test_a_gpu_s_sizes_are_large_enough_for_it_and_fit_it(free: float, element_bytes: int) -> None:
    sizes = cuda_sizes(free, element_bytes)
    most = 2.0 * sizes.rows[-1] * sizes.sides[-1] ** 2
    assert most >= 1e12
    assert (most <= sizes.most_flops) == (element_bytes < 8)
    if element_bytes < 8:  # else it is not run
        assert 3 * element_bytes * sizes.sides[-1] ** 2 <= free / 4
    assert max(sizes.footprints) == min(4e9, free / 4)
    assert 4 * element_bytes * max(sizes.counts) <= free / 4
    assert sizes.chunk == 0
    for name, values in vars(sizes).items():
        if isinstance(values, tuple) and name != "images":
            assert all(a < b for a, b in itertools.pairwise(values)), name


def test_the_grids_of_a_gpu_are_made_of_its_sizes() -> None:
    sizes = cuda_sizes(80e9, 2)
    found = {g.name: g for g in grids(torch, "cpu", torch.bfloat16, sizes)}
    forward = found["matmul.forward"]
    assert forward.flops(*forward.points[-1]) >= 1e12
    products = ("matmul", "conv", "attention")
    assert {found[name].most_flops for name in found if name.startswith(products)} == {
        sizes.most_flops
    }
    for grid in found.values():
        assert all(a < b for axis in grid.axes for a, b in itertools.pairwise(axis)), grid.name
    assert {g.most_flops for g in grids(torch, "cpu", torch.float32)} == {CPU.most_flops}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_footprint_of_a_gpu_is_gone_through_in_one_call(dtype: torch.dtype) -> None:
    sizes = cuda_sizes(80e9, dtype.itemsize)
    grid = grids(torch, "cpu", dtype, sizes)[0]
    assert grid.name == "memory"
    [written] = grid.make(4_000_000)()
    assert written.numel() == grid.per(4e6)
    assert 2 * written.numel() * dtype.itemsize == 4_000_000, "half of it read, half written"


def test_what_does_not_fit_the_memory_is_scaled_from_its_smaller_neighbour() -> None:
    def make(n: int) -> Call:
        if n > 10:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        return lambda: sum(range(2000))

    curve = timed(Grid("g", ((5.0, 10.0, 40.0),), make), CallTimer(batch_seconds=1e-4, repeats=1))
    assert curve is not None
    assert curve["seconds"][2] == pytest.approx(4 * curve["seconds"][1])


def test_what_a_precision_lacks_is_named_and_the_rest_is_timed() -> None:
    def lacking(n: int) -> Call:
        raise RuntimeError("\"gelu_cpu\" not implemented for 'Half'")

    found, clock = Measurements(), CallTimer(batch_seconds=1e-5, repeats=1)
    found.add(
        "fp16", [Grid("gelu", ((1.0,),), lacking), Grid("add", ((1.0,),), lambda n: int)], clock
    )
    assert list(found.curves) == ["fp16/add"]
    assert "not implemented" in found.refused["fp16/gelu"]
    assert found.left_out == []


def test_products_in_fp32_are_not_rounded_to_tf32() -> None:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        use_tf32(False)
        assert not torch.backends.cuda.matmul.allow_tf32
        assert not torch.backends.cudnn.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def test_links_between_gpus_are_refused_in_words() -> None:
    here = local_host()
    two = [here, Host("second", here.address, here.interface)]
    for given in ({"hosts": two}, {"beside": 2}):
        with pytest.raises(RequestError, match="links between CUDA devices"):
            probe(device="cuda", **given)  # type: ignore[arg-type]
