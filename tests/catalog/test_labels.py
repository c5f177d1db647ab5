"""Labels: what people call a device means one device, says what it left open, or is unknown."""

from __future__ import annotations

import csv

import pytest

from forerun.catalog import load_catalog
from forerun.catalog.devices import open_labels, packaged_rows, squeeze
from forerun.errors import UnknownNameError
from tests.needs import published

CATALOG = load_catalog()

# What drivers, clouds and other tools call them.
NAMES = {
    "NVIDIA H100 80GB HBM3": "h100-sxm-80gb",
    "H100-SXM5-80GB": "h100-sxm-80gb",
    "nvidia/a100-sxm4-80gb": "a100-sxm-80gb",
    "google/tpu-v5p": "tpu-v5p",
    "intel-gaudi-2": "gaudi2",
    "amd-mi325x": "mi325x",
    "aws/trainium2": "trainium2",
    "NVIDIA A100-SXM4-80GB": "a100-sxm-80gb",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb",
    "Tesla V100-SXM2-16GB": "v100-sxm2-16gb",
    "Tesla T4": "t4",
    "Tesla P100-PCIE-16GB": "p100-pcie-16gb",
    "NVIDIA GeForce RTX 3090": "rtx-3090",
    "GTX 1080 Ti": "gtx-1080ti",
    "NVIDIA RTX 6000 Ada Generation": "rtx-6000-ada",
    "ada-a6000": "rtx-6000-ada",
    "AMD Instinct MI300X": "mi300x",
    "B300-SXM-288GB": "b300-sxm-270gb",
    "NVIDIA H100 NVL": "h100-nvl-94gb",
    "tpuv2": "tpu-v2",
    "Ascend-910": "ascend910",
    "P4-8GB": "p4",
    "RTX_A6000": "rtx-a6000",
}
UNKNOWN = ("h100-sxm-81gb", "a100-sxm-160gb", "rtx-9090", "v1000", "gtx", "", "  ", "4", "a-1", "sxm",
           "h100-sxm-80gbx", "t44", "mi300", "\x00", "x" * 500)  # fmt: skip


@pytest.mark.parametrize(("label", "device_id"), NAMES.items())
def test_usual_names_mean_their_device(label: str, device_id: str) -> None:
    """Names of drivers and clouds resolve without a warning."""
    device, warnings = CATALOG.device(label)
    assert (device.id, warnings) == (device_id, ())


@pytest.mark.parametrize("label", ["v100", "a100", "h100", "p100", "tpu", "A100-80GB", "rtx-5000"])
def test_an_open_label_takes_the_default_of_its_family_and_says_so(label: str) -> None:
    """A label without form or memory warns, naming itself and what was taken."""
    device, warnings = CATALOG.device(label)
    assert len(warnings) == 1
    assert label in warnings[0]
    assert device.id in warnings[0]


def test_every_open_label_leads_to_a_device_of_the_catalogue() -> None:
    """No default points nowhere, and no open label hides a device of that very name."""
    ids = {squeeze(device_id) for device_id in packaged_rows()}
    aliases = {squeeze(a) for d in CATALOG.devices.values() for a in d.aliases}
    for label, (device_id, left_open) in open_labels().items():
        assert device_id in packaged_rows()
        assert label not in ids | aliases
        assert left_open


def test_no_label_means_two_devices() -> None:
    """Ids and aliases, however they are spelled, are all different."""
    owner: dict[str, str] = {}
    for device in CATALOG.devices.values():
        for label in (device.id, *device.aliases):
            assert owner.setdefault(squeeze(label), device.id) == device.id, label
            assert CATALOG.device(label)[0].id == device.id


@pytest.mark.parametrize("label", UNKNOWN)
def test_an_unknown_label_is_unknown(label: str) -> None:
    """A label that nothing answers to is an error that offers names, and never another device."""
    with pytest.raises(UnknownNameError, match="no such device"):
        CATALOG.device(label)


def test_the_nearest_names_are_offered() -> None:
    """A typing slip is met with the name that was meant."""
    with pytest.raises(UnknownNameError) as caught:
        CATALOG.device("h100-smx-80gb")
    assert "h100-sxm-80gb" in caught.value.nearest


def test_a_machine_without_accelerators_is_a_device() -> None:
    """`cpu-INSTANCE` is that machine, scaled from one vCPU, with its own memory."""
    small, _ = CATALOG.device("cpu-t2.medium")
    large, _ = CATALOG.device("cpu-t2.2xlarge")
    assert large.flops("fp32") == 4 * small.flops("fp32")
    assert large.memory_bytes == 32 * 2**30
    assert "vCPU" in large.facts["peak_flops.fp32"].source


@pytest.mark.data
def test_every_device_of_the_runs_tables_resolves() -> None:
    """Each device id in the measured runs is known to the catalogue."""
    tables = sorted(published().glob("*.csv"))
    assert tables
    for table in tables:
        with table.open(newline="", encoding="utf-8") as file:
            labels = {row.get("device") or "" for row in csv.DictReader(file)}
        for label in labels - {"", "nan"}:
            assert CATALOG.device(label)[0].id
