"""The device tables: enough of them, sound, sourced, and equal to the sources they name."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest

from forerun.catalog import load_catalog
from forerun.catalog.devices import packaged_rows, schema
from forerun.catalog.rows import known_sources
from forerun.domain.hardware import Device

DEVICES = load_catalog().devices

# Dense figures of the aiconfigurator system files: bf16 TFLOP/s, memory GB/s, watts, in-node GB/s.
AICONFIGURATOR = {
    "a100-pcie-80gb": (312, 1935, 300, 32),
    "a100-sxm-80gb": (312, 2039, 400, 300),
    "a30": (165, 933, 165, 32),
    "b200-sxm-180gb": (2250, 7700, 1000, 900),
    "b300-sxm-270gb": (2250, 7750, 1100, 900),
    "gb200": (2500, 8000, 1200, 900),
    "gb300": (2500, 8000, 1400, 900),
    "h100-pcie-80gb": (756.5, 2000, 350, 64),
    "h100-sxm-80gb": (989, 3350, 700, 450),
    "h200-sxm-141gb": (989, 4800, 700, 450),
    "l4": (121, 300, 72, 32),
    "l40s": (362.05, 864, 350, 32),
    "rtx-pro-6000": (467.8, 1792, 600, 64),
}


def test_at_least_65_devices_are_known() -> None:
    """The catalogue holds at least 65 devices, of every kind."""
    assert len(DEVICES) >= 65
    assert {d.kind for d in DEVICES.values()} == {"gpu", "tpu", "accelerator", "cpu"}


@pytest.mark.parametrize("device", DEVICES.values(), ids=str)
def test_every_figure_has_a_source(device: Device) -> None:
    """Each field, and each precision's rate, has a fact whose source is in words."""
    wanted = {f.name for f in fields(Device)} - {"facts"}
    wanted |= {f"peak_flops.{precision}" for precision in device.peak_flops}
    assert wanted <= set(device.facts)
    assert all(len(fact.source) > 5 for fact in device.facts.values())


def test_sources_are_known_keys_and_fields_are_columns() -> None:
    """The packaged tables name their sources by key, and override only columns that exist."""
    for row in packaged_rows().values():
        assert row.get("source") in known_sources(), row.get("id")
        for pair in filter(None, row.get("field_sources").split(";")):
            column, _, key = pair.partition("=")
            assert column in schema("device")[0], (row.get("id"), column)
            assert key in known_sources(), (row.get("id"), key)


def test_what_is_written_from_memory_or_estimated_is_not_verified() -> None:
    """A source that says unverified, estimate, derived or assumed is never marked as checked."""
    for fact in known_sources().values():
        words = ("unverified", "estimate", "derived", "assumed", "memory")
        assert fact.verified is not any(word in fact.source for word in words)


@pytest.mark.parametrize("device_id", AICONFIGURATOR)
def test_figures_equal_the_source_that_they_name(device_id: str) -> None:
    """Rates, bandwidth, power and links equal those of the named system files."""
    tflops, memory, watts, link = AICONFIGURATOR[device_id]
    device = DEVICES[device_id]
    assert device.flops("bf16") == pytest.approx(tflops * 1e12)
    assert device.memory_bytes_per_second == pytest.approx(memory * 1e9)
    assert device.watts == watts
    in_node = device.link_bytes_per_second or device.host_bytes_per_second
    assert in_node == pytest.approx(link * 1e9)


@pytest.mark.parametrize("device", DEVICES.values(), ids=str)
def test_figures_lie_where_hardware_lies(device: Device) -> None:
    """Units are right: a slip of a thousand in any figure would leave these ranges."""
    assert 0.5e9 <= device.memory_bytes <= 600e9
    assert 4e9 <= device.memory_bytes_per_second <= 70e12
    assert 1e10 <= device.peak_flops["fp32"] <= 3e15
    assert 5 <= device.watts <= 1500
    assert 0 <= device.link_bytes_per_second <= 1e12
    assert 1e9 <= device.host_bytes_per_second <= 1e12
    assert 0.1e9 <= device.node_bytes_per_second <= 1e12
    assert 2010 <= device.year <= 2026
    assert all(math.isfinite(rate) and rate > 0 for rate in device.peak_flops.values())


@pytest.mark.parametrize("device", DEVICES.values(), ids=str)
def test_rates_are_dense_and_in_order(device: Device) -> None:
    """Narrower numbers are never slower, and fp8 is not the sparse figure."""
    assert device.flops("fp16") >= device.flops("fp32") * 0.99
    if "fp8" in device.peak_flops:
        assert device.flops("bf16") * 0.95 <= device.flops("fp8") <= device.flops("bf16") * 2.1
    if "fp64" in device.peak_flops:
        assert device.flops("fp64") <= device.flops("fp32") * 1.01


def test_consumer_cards_have_the_fp32_accumulation_rate() -> None:
    """GeForce tensor rates are half of those of the professional card on the same silicon."""
    consumer, professional = DEVICES["rtx-2080ti"], DEVICES["titan-rtx"]
    per_fp32 = consumer.flops("fp16") / consumer.flops("fp32")
    assert per_fp32 == pytest.approx(4, rel=0.05)
    assert professional.flops("fp16") / professional.flops("fp32") == pytest.approx(8, rel=0.05)
    assert DEVICES["rtx-3090"].flops("fp16") == pytest.approx(71e12, rel=0.02)
    assert DEVICES["rtx-4090"].flops("bf16") == pytest.approx(165e12, rel=0.02)


def test_cards_before_ampere_have_no_fast_bf16() -> None:
    """On Volta and Turing, bf16 runs at the fp32 rate, and the fact says that it is derived."""
    for device_id in ("v100-sxm2-16gb", "t4", "titan-rtx"):
        device = DEVICES[device_id]
        assert device.flops("bf16") == device.flops("fp32")
        assert "derived" in device.facts["peak_flops.bf16"].source


def test_no_row_has_a_field_that_nobody_reads() -> None:
    """Every column of the packaged tables is one that the reader knows."""
    for row in packaged_rows().values():
        row.check_names(schema("device")[0], "device")
