"""Measured curves: exact where they were measured, straight between, never faster than a call."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.domain.measured import Curve, Exchange, Measured, Update
from forerun.errors import RequestError

GRID = Curve(((8.0, 64.0), (10.0, 100.0, 1000.0)), (1e-6, 2e-6, 9e-6, 3e-6, 8e-6, 5e-5))


def test_a_curve_returns_what_was_measured_at_each_of_its_points() -> None:
    found = [GRID.at(rows, width) for rows in GRID.axes[0] for width in GRID.axes[1]]
    assert np.array(found) == pytest.approx(GRID.seconds, rel=1e-12)


def test_between_two_points_a_curve_is_straight_in_logarithms() -> None:
    assert GRID.at(8.0, math.sqrt(10.0 * 100.0)) == pytest.approx(math.sqrt(1e-6 * 2e-6))


def test_beyond_the_largest_size_time_is_proportional_and_below_the_smallest_it_is_that_one() -> (
    None
):
    assert GRID.at(64.0, 5000.0) == pytest.approx(5 * 5e-5)
    assert GRID.at(640.0, 5000.0) == pytest.approx(50 * 5e-5)
    assert GRID.at(1.0, 1.0) == pytest.approx(1e-6)


@given(st.lists(st.floats(1.0, 1e6), min_size=1, max_size=20))
def test_many_sizes_at_once_are_as_one_by_one(sizes: list[float]) -> None:
    together = GRID.at(np.full(len(sizes), 20.0), np.array(sizes))
    assert together == pytest.approx([float(GRID.at(20.0, size)) for size in sizes])


@pytest.mark.parametrize(
    ("axes", "seconds"),
    [
        ((), ()),
        (((1.0, 2.0),), (1e-6,)),
        (((2.0, 1.0),), (1e-6, 2e-6)),
        (((1.0, 2.0),), (1e-6, 0.0)),
        (((1.0, 2.0),), (1e-6, float("nan"))),
        (((0.0, 2.0),), (1e-6, 2e-6)),
    ],
)
def test_what_is_no_curve_is_refused(
    axes: tuple[tuple[float, ...], ...], seconds: tuple[float, ...]
) -> None:
    with pytest.raises(RequestError, match="forerun probe"):
        Curve(axes, seconds)


LINK = Exchange(
    1e-4, 1e7, all_reduces={2: Curve(((4.0, 1e6),), (1e-3, 0.1))},
    rested={2: Curve(((4.0, 1e5),), (1e-3, 0.01))},
)  # fmt: skip
PLAIN_LINK = Measured({}, links={"inter": LINK}).to_dict()["links"]["inter"]


def full() -> Measured:
    return Measured(
        {"fp32/matmul.forward": GRID, "fp32/elementwise": Curve(((1.0,),), (1e-6,), 0.1)},
        forward_call_seconds=2e-6,
        updates={"sgd": Update(1e-5, 1e-6, 1e-10)},
        together=(1.0, 1.5),
        links={"inter": LINK},
        about={"date": "2026-11-22"},
    )


def test_figures_come_back_from_their_plain_form() -> None:
    assert Measured.from_dict(full().to_dict()) == full()
    assert Measured.from_dict(full().to_dict()).about == {"date": "2026-11-22"}


@pytest.mark.parametrize(
    "change",
    [
        {"curves": {"a": {"axes": [[1, 2]]}}},
        {"step_seconds": -1.0},
        {"step_seconds": "fast"},
        {"together": [1.0, -2.0]},
        {"links": {"inter": {"latency_seconds": 1e-4}}},
        {"links": {"inter": {**PLAIN_LINK, "all_reduces": {}}}},
        {"links": {"inter": {**PLAIN_LINK, "rested": {"1": PLAIN_LINK["all_reduces"]["2"]}}}},
        {"updates": {"sgd": {"step_seconds": 1.0, "speed": 2.0}}},
        {"nonsense": 1.0},
    ],
)
def test_figures_that_no_probe_writes_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(RequestError, match="forerun probe"):
        Measured.from_dict({**full().to_dict(), **change})


def test_a_precision_that_was_not_measured_is_served_by_fp32() -> None:
    measured = full()
    names = ("gelu", "elementwise")
    assert measured.curve("bf16", names) is measured.curves["fp32/elementwise"]
    assert measured.curve("fp32", ("convolution",)) is None


def test_processes_together_slow_one_another_as_measured_and_further_ones_as_the_last() -> None:
    assert full().slowdown(1, 1) == 1.0
    assert full().slowdown(2, 7) == 1.5
    assert full().slowdown(4, 1) == pytest.approx(2.5)


def test_a_ring_among_more_processes_has_more_steps_and_hardly_more_volume() -> None:
    link = full().links["inter"]
    assert link.all_reduce_seconds(1e6, 1) == 0.0
    assert link.all_reduce_seconds(1e6, 2) == pytest.approx(0.1)
    assert link.all_reduce_seconds(4.0, 8) == pytest.approx(7e-3)
    assert link.all_reduce_seconds(1e6, 8) == pytest.approx(7e-3 + 0.099 * 7 / 4)
    assert Exchange(1e-3, 1e7).all_reduce_seconds(1e7, 2) == pytest.approx(1.002)


def test_a_link_s_bucket_is_spared_once_however_large_the_buffer_and_however_many_take_part() -> (
    None
):
    at_1e5 = float(LINK.all_reduces[2].at(1e5)) - 0.01
    assert LINK.spared_seconds(1e5, 2) == pytest.approx(at_1e5)
    assert LINK.spared_seconds(1e9, 16) == pytest.approx(at_1e5)
    assert LINK.spared_seconds(1e5, 1) == 0.0
    assert Exchange(1e-4, 1e7).spared_seconds(1e5, 2) == 0.0
