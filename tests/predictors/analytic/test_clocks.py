"""Clocks: boards on desks run at their chip's clock, boards in racks at the stated one at most."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.catalog import load_catalog
from forerun.domain.hardware import Device
from forerun.predictors.analytic import operations
from forerun.predictors.analytic.operations import (
    clock_share,
    most_clock_share,
    power_share,
    stated_ghz,
)

DEVICES = {d.id: d for d in load_catalog().devices.values()}
STATED = {**operations.DESK_GHZ, **operations.RACK_GHZ}


@pytest.mark.parametrize("name", sorted(STATED))
def test_stated_clock_and_rate_agree_on_whole_multiprocessors(name: str) -> None:
    """The stated fp32 rate is cores x 2 x clock, with 64 or 128 cores a multiprocessor."""
    device = DEVICES[name]
    cores = device.flops("fp32") / (2e9 * STATED[name])
    assert cores == pytest.approx(64 * round(cores / 64), rel=0.012)


def test_boards_with_a_clock_are_of_generations_that_are_known() -> None:
    assert {DEVICES[name].generation for name in STATED} <= set(operations.CHIPS)
    assert not set(operations.DESK_GHZ) & set(operations.RACK_GHZ)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("rtx-2060-max-q", 1.15, 1.40),  # a laptop part, stated far below its chip
        ("rtx-2080ti", 1.10, 1.25),
        ("titan-rtx", 1.00, 1.06),  # stated near its chip's clock
        ("t4", 0.75, 0.95),  # 70 W do not feed 2,560 cores at 1.59 GHz
    ],
)
def test_sustained_clocks_of_known_boards(name: str, low: float, high: float) -> None:
    assert low < clock_share(DEVICES[name], "fp32") < high


@pytest.mark.parametrize("precision", ["fp64", "fp32", "fp16"])
def test_no_board_in_a_rack_passes_its_stated_clock(precision: str) -> None:
    for name in operations.RACK_GHZ:
        assert clock_share(DEVICES[name], precision) <= 1.0
        assert most_clock_share(DEVICES[name]) == 1.0


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("a100-sxm-80gb", 1.0), ("h100-sxm-80gb", 1.0), ("v100-sxm3-32gb", 1.0),
        ("a100-pcie-40gb", 0.83),  # 250 of 400 W for the same peak
        ("h100-sxm-96gb-hbm2e", 0.87),  # 500 of 700 W
        ("h100-pcie-80gb", 0.84), ("b200-sxm-180gb", 1.0), ("rtx-3090", 1.0), ("mi300x", 1.0),
    ],
)  # fmt: skip
def test_less_power_for_the_same_peak_leaves_less_of_it(name: str, share: float) -> None:
    """Boards whose clock is stated, and generations of one kind of board, have no such share."""
    assert power_share(DEVICES[name]) == pytest.approx(share, abs=0.005)


@pytest.mark.parametrize("name", sorted(DEVICES))
def test_a_clock_never_passes_the_one_that_floors_allow(name: str) -> None:
    device = DEVICES[name]
    for precision in ("fp64", "fp32", "fp16"):
        assert 0.0 < clock_share(device, precision) <= most_clock_share(device) + 1e-12


def test_boards_without_a_clock_run_as_stated() -> None:
    device = DEVICES["a100-sxm-80gb"]
    assert not stated_ghz(device)
    assert clock_share(device, "fp16") == most_clock_share(device) == 1.0


@given(st.floats(30.0, 500.0), st.floats(1.0, 3.0))
def test_more_power_never_slows_a_board(watts: float, more: float) -> None:
    device: Device = replace(DEVICES["rtx-2080ti"], watts=watts)
    better = replace(device, watts=watts * more)
    assert clock_share(device, "fp32") <= clock_share(better, "fp32")


def test_arithmetic_of_few_units_meets_no_power_limit() -> None:
    weak = replace(DEVICES["rtx-2080ti"], watts=60.0)
    assert clock_share(weak, "fp64") > clock_share(weak, "fp32")
    assert clock_share(weak, "fp64") == pytest.approx(1.85 / 1.545)
    # A Titan V computes fp64 at half its fp32 rate: that heats it.
    titan = replace(DEVICES["titan-v"], watts=60.0)
    assert np.isclose(clock_share(titan, "fp64"), clock_share(titan, "fp32"))
