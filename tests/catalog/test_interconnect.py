"""Interconnect texts of runs tables become links, in bytes a second, device and direction."""

from __future__ import annotations

import csv

import pytest

from forerun.catalog import load_catalog
from forerun.predictors.analytic import AnalyticPredictor, Constants
from forerun.predictors.analytic.communication import LINK_FIELDS, all_reduce, links_of
from tests.needs import published

CATALOG = load_catalog()

IN_NODE = [
    ("A100 80G NVLink", "a100-sxm-80gb", "nvlink", 300),
    ("NVLINK 3.0 600GB/s", "a100-sxm-80gb", "nvlink", 300),
    ("18xNVLink 25GB/s + 4xNVSwitch", "h100-sxm-80gb", "nvlink", 450),
    ("12xNVLink 25GB/s + 6xNVSwitch", "a100-sxm-80gb", "nvlink", 300),
    ("6x 25GT/s NVLink", "v100-sxm2-16gb", "nvlink", 150),
    ("NVLink", "v100-sxm2-16gb", "nvlink", 150),
    ("NVLINK 3.0, 200GB/s", "a30", "nvlink", 100),
    ("PCIe, Gen4", "h100-pcie-80gb", "pcie", 32),
    ("PCIe 5.0", "a100-pcie-80gb", "pcie", 32),
    ("PCIe", "a30", "pcie", 32),
    ("UPI", "v100-sxm3-32gb", "nvlink", 150),
    ("NVLINK BRIDGE", "a30", "pcie", 32),
    ("24x 100Gb/s Ethernet", "gaudi2", "infiniband", 262.5),
    ("TPU", "tpu-v4", "ici", 300),
]
BETWEEN = [
    ("50 Gb/s Ethernet", "t4", 4, "ethernet", 50 / 8 / 4),
    ("InfiniBand 100Gb/s", "v100-sxm2-16gb", 8, "infiniband", 100 / 8 / 8),
    ("RoCE 1600 Gb/s per node", "a100-sxm-40gb", 8, "infiniband", 25),
    ("400Gb/s RDMA per GPU", "h100-sxm-80gb", 8, "infiniband", 50),
    ("8x 200Gb/s InfiniBand", "a100-sxm-80gb", 8, "infiniband", 25),
    ("NVLink 600GB/s + 200 Gb/s InfiniBand", "a100-sxm-80gb", 8, "infiniband", 200 / 8 / 8),
    ("100GbE", "t4", 1, "roce", 12.5),
    ("100 Gb/s TCP over Ethernet", "t4", 1, "ethernet", 12.5),
    ("400 Gb/s", "h100-sxm-80gb", 8, "roce", 6.25),
    ("25 gbps ethernet", "t4", 1, "ethernet", 25 / 8),
    ("12.5 GB/s Ethernet", "t4", 1, "roce", 12.5),
    ("EFA 400 Gbps", "a100-sxm-40gb", 8, "efa", 6.25),
    ("24x 100Gb/s Ethernet", "gaudi2", 8, "infiniband", 37.5),
    ("10 gigabit ethernet", "t4", 1, "ethernet", 10 / 8),
    ("400G", "h100-sxm-80gb", 8, "roce", 6.25),
    ("100G Ethernet", "t4", 1, "roce", 12.5),
    ("NDR", "h100-sxm-80gb", 8, "infiniband", 6.25),
    ("8x NDR", "h100-sxm-80gb", 8, "infiniband", 50),
    ("InfiniBand NDR 400", "h100-sxm-80gb", 8, "infiniband", 6.25),
    ("InfiniBand HDR", "a100-sxm-80gb", 8, "infiniband", 200 / 8 / 8),
    ("HDR100 per GPU", "a100-sxm-80gb", 8, "infiniband", 12.5),
    ("EFA 3200", "h100-sxm-80gb", 8, "efa", 50),
    ("NVLink + NDR InfiniBand per GPU", "h100-sxm-80gb", 8, "infiniband", 50),
    ("ethernet", "h100-sxm-80gb", 8, "ethernet", 25 / 8 / 8),
    ("-5 Gb/s", "h100-sxm-80gb", 8, "infiniband", 50),
    # Numbers of products are no rates.
    ("Slingshot 11", "a100-sxm-80gb", 8, "infiniband", 25),
    ("InfiniBand (DGX A100)", "a100-sxm-80gb", 8, "infiniband", 25),
    ("gigabit ethernet", "a100-sxm-80gb", 8, "ethernet", 1 / 8 / 8),
]


@pytest.mark.parametrize(("text", "device", "kind", "gb_per_s"), IN_NODE)
def test_the_link_inside_a_node(text: str, device: str, kind: str, gb_per_s: float) -> None:
    """Vendors' sums of both directions are halved; counts of links are multiplied out."""
    intra = CATALOG.cluster_for(device, 1, 8, text).intra
    assert intra.kind == kind
    assert intra.bytes_per_second == pytest.approx(gb_per_s * 1e9)


@pytest.mark.parametrize(("text", "device", "per_node", "kind", "gb_per_s"), BETWEEN)
def test_the_link_between_nodes(
    text: str, device: str, per_node: int, kind: str, gb_per_s: float
) -> None:
    """A node's rate in bits is shared by its devices, unless the text says per GPU."""
    inter = CATALOG.cluster_for(device, 2, per_node, text).inter
    assert inter.kind == kind
    assert inter.bytes_per_second == pytest.approx(gb_per_s * 1e9)


@pytest.mark.parametrize("text", [
    "custom", "TODO", "carrier pigeon", "NVLINK BRIDGE", "Ethernet", "-5 Gb/s", "NDR", "EFA 3200",
    "InfiniBand 400 Gb/s", "InfiniBand",
])  # fmt: skip
def test_what_a_text_does_not_say_is_told(text: str) -> None:
    """The device's usual link serves then, and a warning names the text."""
    warnings = CATALOG.cluster_for("a30", 2, 8, text).warnings
    assert any(text in warning for warning in warnings)


def test_a_blank_text_means_the_usual_links_without_a_word() -> None:
    """Most tables have no interconnect column; that is no reason for a warning."""
    cluster = CATALOG.cluster_for("a100-sxm-80gb", 2, 8)
    assert cluster.warnings == ()
    assert (cluster.intra.bytes_per_second, cluster.inter.bytes_per_second) == (300e9, 25e9)


@pytest.mark.data
def test_every_interconnect_of_the_runs_tables_is_understood() -> None:
    """No text in the measured runs is left as not understood."""
    seen: set[tuple[str, str]] = set()
    for table in sorted(published().glob("*.csv")):
        with table.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                seen.add((row.get("device") or "", row.get("interconnect") or ""))
    assert len({text for _, text in seen}) > 10
    for device, text in seen:
        if device and device != "nan":
            cluster = CATALOG.cluster_for(device, 2, 8, text, price=0.0)
            assert not any("not understood" in warning for warning in cluster.warnings), text


@pytest.mark.parametrize("nodes", [2, 16])
@pytest.mark.parametrize(("gbit", "protocol", "least", "most"), [
    (10, "Ethernet", 1.3, 3.0), (25, "Ethernet", 1.3, 3.0), (25, "", 1.3, 3.0),
    (100, "", 1.0, 3.0), (100, "Ethernet", 1.0, 3.0), (200, "", 1.0, 3.0), (400, "", 1.0, 3.0),
    (400, "InfiniBand", 1.0, 3.0), (400, "RoCE", 1.0, 3.0), (3200, "EFA", 1.0, 3.0),
])  # fmt: skip
def test_collectives_stay_near_what_a_ring_needs(
    gbit: int, protocol: str, least: float, most: float, nodes: int
) -> None:
    """100 MB reduced over nodes of 8: TCP leaves a share of narrow wires idle, fast ones are RDMA."""
    cluster = CATALOG.cluster_for("h100-sxm-80gb", nodes, 8, f"{gbit} Gb/s {protocol}".strip())
    ranks, size = 8 * nodes, 100e6
    ring = 2 * (ranks - 1) / ranks * size / (gbit * 1e9 / 8)
    for constants in (Constants(), AnalyticPredictor.shipped().constants):
        found = links_of([cluster]).effective(constants)
        link = tuple(found[name][0] for name in LINK_FIELDS)
        assert least <= all_reduce(size, ranks, 8, link) / ring <= most


def test_small_cloud_machines_reduce_at_what_tcp_carries() -> None:
    """8 g5.xlarge, 10 Gb/s each: 100 MB of gradients take some 0.2 s, and the ring alone 0.14."""
    cluster = CATALOG.cluster("8xaws:g5.xlarge")
    found = links_of([cluster]).effective(AnalyticPredictor.shipped().constants)
    link = tuple(found[name][0] for name in LINK_FIELDS)
    assert 0.15 < all_reduce(100e6, 8, 1, link) < 0.3


@pytest.mark.parametrize("rate", [100, 400])
def test_rdma_is_as_fast_whatever_its_wire_is_called(rate: int) -> None:
    """Also once constants are fitted: two runs over Ethernet do not make it faster than InfiniBand."""
    words = (
        f"{rate} Gb/s",
        f"{rate} Gb/s Ethernet",
        f"{rate} Gb/s InfiniBand",
        f"RoCE {rate} Gb/s",
    )
    clusters = [load_catalog().cluster_for("h100-sxm-80gb", 4, 8, text) for text in words]
    found = links_of(clusters).effective(AnalyticPredictor.shipped().constants)
    for name in LINK_FIELDS:
        assert len(set(found[name].tolist())) == 1
