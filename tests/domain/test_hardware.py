"""Devices, links and clusters: a rate is stated or its stand-in is a cautious neighbour."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from forerun.domain.hardware import Cluster, Device, Link
from forerun.domain.workload import PRECISIONS
from forerun.errors import RequestError

WIRE = Link("ethernet", 1e-5, 1e9)


def device(**rates: float) -> Device:
    """Return a device with the given rates and nothing remarkable."""
    return Device(
        "d", "D", "v", "gpu", "g", 2020, 1e9, 1e11, rates, 300.0, 0.0, 1e10, 1e9, 8
    )  # fmt: skip


def cluster(**changes: Any) -> Cluster:
    """Return 2 nodes of 4 devices, changed."""
    fields: dict[str, Any] = {
        "name": "c", "device": device(fp32=1e13), "nodes": 2, "devices_per_node": 4,
        "intra": WIRE, "inter": WIRE,
    }  # fmt: skip
    return Cluster(**{**fields, **changes})


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_stated_rate_is_the_rate(precision: str) -> None:
    rates = {name: 1e12 * (i + 1) for i, name in enumerate(PRECISIONS)}
    assert device(**rates).flops(precision) == rates[precision]


@pytest.mark.parametrize(
    ("precision", "rates", "rate"),
    [
        # Narrow formats without units of their own run at 16 bits.
        ("fp8", {"bf16": 4e14, "fp16": 3e14, "fp32": 2e13}, 4e14),
        ("fp8", {"fp16": 3e14, "fp32": 2e13}, 3e14),
        ("fp4", {"fp8": 8e14, "bf16": 4e14}, 8e14),
        ("fp4", {"bf16": 4e14}, 4e14),
        # Volta and older have no bf16 units: it is computed in fp32, not at fp16's tensor rate.
        ("bf16", {"fp16": 125e12, "fp32": 15.7e12}, 15.7e12),
        ("tf32", {"fp16": 125e12, "fp32": 15.7e12}, 15.7e12),
        ("fp16", {"bf16": 9e13, "fp32": 1e13}, 9e13),
        ("fp16", {"fp32": 1e13}, 1e13),
        # A machine that states 16-bit rates alone runs 32-bit matrices in 16 bits.
        ("fp32", {"bf16": 9e13}, 9e13),
        ("fp64", {"fp32": 3.2e13}, 1e12),
        ("fp64", {"fp64": 2e12, "fp32": 3.2e13}, 2e12),
    ],
)
def test_a_missing_rate_is_its_neighbours(
    precision: str, rates: dict[str, float], rate: float
) -> None:
    assert device(**rates).flops(precision) == pytest.approx(rate)


def test_a_missing_fp64_rate_is_never_faster_than_fp32() -> None:
    for rates in ({"fp32": 1e13}, {"bf16": 1e14}, {"fp16": 1e14, "fp32": 1e13}):
        assert device(**rates).flops("fp64") < device(**rates).flops("fp32")


@pytest.mark.parametrize("precision", ["int8", "", "FP32"])
def test_an_unknown_precision_is_refused_with_the_stated_ones(precision: str) -> None:
    with pytest.raises(RequestError, match="its rates are fp32, fp16"):
        device(fp32=1e13, fp16=2e13).flops(precision)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_device_without_any_rate_answers_for_none(precision: str) -> None:
    with pytest.raises(RequestError, match="add the rate"):
        device().flops(precision)


def test_wide_precisions_are_never_taken_for_narrow_ones() -> None:
    with pytest.raises(RequestError):
        device(fp8=1e15, fp4=2e15).flops("bf16")
    with pytest.raises(RequestError):
        device(fp64=1e12).flops("fp32")


@pytest.mark.parametrize(
    ("kind", "generation", "precision", "has"),
    [("gpu", "ampere", "bf16", True), ("gpu", "ampere", "tf32", True),
     ("gpu", "ampere", "fp32", False), ("gpu", "ada", "fp16", True),
     ("gpu", "turing", "fp16", True), ("gpu", "turing", "bf16", False),
     ("gpu", "pascal", "fp16", False), ("gpu", "cdna2", "fp32", True),
     ("gpu", "hopper", "fp64", False), ("tpu", "tpuv4", "fp32", True),
     ("cpu", "zen4", "bf16", False)],
)  # fmt: skip
def test_matrix_units_are_told_by_generation_and_precision(
    kind: str, generation: str, precision: str, has: bool
) -> None:
    """The ratio of rates does not tell: a consumer card's units are as slow as its vector ones."""
    made = replace(device(fp32=1e13, fp16=1e13), kind=kind, generation=generation)
    assert made.has_matrix_unit(precision) is has


@pytest.mark.parametrize(
    ("latency", "rate"), [(-1e-9, 1.0), (0.0, 0.0), (0.0, -1.0), (math.nan, 1.0), (0.0, math.nan)]
)
def test_a_link_has_a_positive_rate_and_no_negative_latency(latency: float, rate: float) -> None:
    with pytest.raises(RequestError, match="positive rate"):
        Link("ethernet", latency, rate)


@pytest.mark.parametrize("change", [{"nodes": 0}, {"nodes": -1}, {"devices_per_node": 0}])
def test_a_cluster_has_a_node_and_a_device(change: dict[str, int]) -> None:
    with pytest.raises(RequestError, match="at least one node"):
        cluster(**change)


def test_a_placement_names_every_node() -> None:
    with pytest.raises(RequestError, match="one count for each node"):
        cluster(placement=(4, 4, 2))


@pytest.mark.parametrize("placement", [(5, -1), (0, 0), (-4, -4)])
def test_a_placement_counts_devices(placement: tuple[int, ...]) -> None:
    with pytest.raises(RequestError, match="zero or more devices"):
        cluster(placement=placement)


@pytest.mark.parametrize("price", [-1.0, math.nan, math.inf])
@pytest.mark.parametrize("field", ["dollars_per_hour", "spot_dollars_per_hour"])
def test_a_price_is_finite_and_not_negative(field: str, price: float) -> None:
    with pytest.raises(RequestError, match="leave it out where it is not known"):
        cluster(**{field: price})


def test_devices_and_watts_count_what_is_used() -> None:
    assert cluster().devices == 8
    assert cluster(placement=(4, 3)).devices == 7
    assert cluster(placement=(4, 3), host_watts=100.0).watts == 7 * 300 + 2 * 100


def test_equal_devices_hash_alike_though_their_rates_are_a_mapping() -> None:
    assert hash(device(fp32=1e13)) == hash(device(fp32=1e13))
    assert device(fp32=1e13) != device(fp32=2e13)
