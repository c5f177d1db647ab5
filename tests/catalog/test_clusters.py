"""Cluster texts: read as meant, priced from a named machine, or refused with a reason."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.catalog import load_catalog
from forerun.domain.hardware import Cluster
from forerun.errors import RequestError, UnknownNameError

CATALOG = load_catalog()

TEXTS = {
    "4x8xh100-sxm-80gb": (4, 8, "h100-sxm-80gb"),
    "4 x 8 x h100-sxm-80gb": (4, 8, "h100-sxm-80gb"),
    "4X8XH100-SXM5-80GB": (4, 8, "h100-sxm-80gb"),
    "8xh100-sxm-80gb": (1, 8, "h100-sxm-80gb"),
    "h100-sxm-80gb": (1, 1, "h100-sxm-80gb"),
    "H100:8": (1, 8, "h100-sxm-80gb"),
    "2xH100:8": (2, 8, "h100-sxm-80gb"),
    "4xaws:p5.48xlarge": (4, 8, "h100-sxm-80gb"),
    "4xp5.48xlarge@us-east-1": (4, 8, "h100-sxm-80gb"),
    "p5.48xlarge": (1, 8, "h100-sxm-80gb"),
    "2x1x_L4_28V_124G": (2, 1, "l4"),
    "3xgcp:n1-standard-32+T4x4": (3, 4, "t4"),
    "16xaws:m5.large": (16, 1, "cpu-m5.large"),
    "1xgcp:tpu-v4-32": (1, 16, "tpu-v4"),
}
REFUSED = ("", " ", "x", "4x", "x8", "4x8x", "0x8xt4", "4x0xt4", "-4x8xt4", "1x2x3xt4", "2000000xt4",
           "1001x1000xt4", "t4:0", "t4:-1", "t4:", ":8", "99999999999999999999xt4", "4x8xnothing",
           "4x2xaws:p5.48xlarge", "4xaws:p9.large", "4xaws:p5.48xlarge@mars", "@", "4x@x",
           "2e3x8xt4", "1.5xt4", "4,8,t4", "\u0664xt4", "4x8xt4:2", "x" * 400)  # fmt: skip


@pytest.mark.parametrize(
    "label", ["nvidia-a100-sxm4-80gb", "amd-mi325x", "intel-gaudi-2", "h100-sxm-80gb"]
)
def test_a_label_that_differs_by_maker_or_punctuation_is_said(label: str) -> None:
    found = CATALOG.cluster(f"1x8x{label}")
    said = [text for text in found.warnings if text.startswith(f"device {label!r} is taken as ")]
    assert len(said) == (found.device.id != label)


@pytest.mark.parametrize(("text", "meaning"), TEXTS.items())
def test_each_form_is_read_as_meant(text: str, meaning: tuple[int, int, str]) -> None:
    """Nodes, devices and device of every documented form."""
    cluster = CATALOG.cluster(text)
    assert (cluster.nodes, cluster.devices_per_node, cluster.device.id) == meaning


@pytest.mark.parametrize("text", REFUSED)
def test_malformed_and_absurd_texts_are_refused(text: str) -> None:
    """The answer is an error with all three parts, never a traceback or a guess."""
    with pytest.raises(RequestError) as caught:
        CATALOG.cluster(text)
    assert caught.value.asked
    assert caught.value.found
    assert caught.value.next_step


@pytest.mark.parametrize("text", TEXTS)
def test_a_clusters_name_can_be_read_again(text: str) -> None:
    """The name of a cluster is a text that gives the same cluster."""
    cluster = CATALOG.cluster(text)
    again = CATALOG.cluster(cluster.name)
    assert (again.name, again.dollars_per_hour) == (cluster.name, cluster.dollars_per_hour)


PIECES = st.sampled_from(
    ["4", "8", "0", "-1", "x", "X", ":", "@", " ", "*", "aws", "aws:", "h100", "t4", "p5.48xlarge",
     "us-east-1", "1x_L4_28V_124G", "1e9", "999999999999", "$", "+", "\n", "cpu", "cpu-"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=8).map("".join) | st.text(max_size=40))
def test_any_text_gives_a_cluster_or_a_request_error(text: str) -> None:
    """Whatever is typed, nothing but a RequestError comes back, and no absurd cluster."""
    try:
        cluster = CATALOG.cluster(text)
    except RequestError:
        return
    assert 1 <= cluster.devices <= 1_000_000


@given(st.text(max_size=60) | st.floats().map(str), st.integers(1, 64), st.integers(1, 16))
def test_any_interconnect_text_gives_positive_links(text: str, nodes: int, per_node: int) -> None:
    """Whatever a table's interconnect column holds, both links have a positive rate."""
    cluster = CATALOG.cluster_for("a100-sxm-80gb", nodes, per_node, text)
    assert 0 < cluster.intra.bytes_per_second < math.inf
    assert 0 < cluster.inter.bytes_per_second < math.inf


def test_a_plain_cluster_is_priced_by_a_machine_with_that_many_devices() -> None:
    """The price is that of a named machine times the nodes, on a network that carries the answer."""
    cluster = CATALOG.cluster("4x8xh100-sxm-80gb")
    assert cluster.dollars_per_hour == pytest.approx(4 * 23.6)
    assert "nebius" in cluster.price_source
    assert "as of commit" in cluster.price_source


def test_a_price_is_scaled_where_no_machine_has_that_number_and_says_so() -> None:
    """Three of a device that is only rented in ones and eights cost three eighths, or three ones."""
    cluster = CATALOG.cluster("3xa40")
    assert cluster.dollars_per_hour == pytest.approx(3.7504 * 3 / 8)
    assert "scaled" in cluster.price_source
    assert any("scaled" in warning for warning in cluster.warnings)


def test_marketplace_offers_price_only_what_nobody_lists() -> None:
    """A list price comes before one private offer, however cheap; the offer is named as one."""
    assert "vast" not in CATALOG.cluster("1xh200-sxm-141gb").price_source
    assert "marketplace" in CATALOG.cluster("1xrtx-4090").price_source


def test_a_device_that_nobody_prices_has_no_price() -> None:
    """No price is None, with no source; it is never a guess."""
    cluster = CATALOG.cluster("4xtitan-v")
    assert (cluster.dollars_per_hour, cluster.price_source) == (None, "")


def test_a_region_restricts_the_price_and_an_unpriced_one_is_said() -> None:
    """A region gives that region's price and grid; where none is known, a warning says so."""
    there = CATALOG.cluster("8xh100-sxm-80gb", region="eu-north-1")
    assert "eu-north-1" in there.price_source
    assert there.carbon_kg_per_kwh is not None
    nowhere = CATALOG.cluster("8xb200-sxm-180gb", region="CANADA-1")
    assert nowhere.dollars_per_hour is None
    assert "CANADA-1" in nowhere.warnings[-1]


def test_a_region_that_nobody_has_is_refused_as_it_is_of_a_machine() -> None:
    """A slip in a region's name is an error, whether the cluster is of machines or of devices."""
    for text in ("8xh100-sxm-80gb", "4xaws:p5.48xlarge"):
        with pytest.raises(UnknownNameError, match="mars"):
            CATALOG.cluster(text, region="mars")


@pytest.mark.parametrize("price", [-1.0, math.nan, math.inf, 1e12])
def test_an_absurd_price_is_refused(price: float) -> None:
    """A price of one's own is a finite number of dollars, not below zero."""
    with pytest.raises(RequestError, match="price of cluster"):
        CATALOG.cluster("8xt4", price=price)


def test_a_price_of_ones_own_replaces_the_catalogues() -> None:
    """The price given is for the whole cluster, and its source says that it was given."""
    cluster = CATALOG.cluster("2xaws:p5.48xlarge", price=12.5)
    assert (cluster.dollars_per_hour, cluster.spot_dollars_per_hour) == (12.5, None)
    assert "given" in cluster.price_source


def test_an_instance_brings_its_network_shared_by_its_devices() -> None:
    """3,200 Gbit/s of EFA over eight devices are 50 GB/s each; 50 Gbit/s over four T4s 1.56."""
    p5: Cluster = CATALOG.cluster("2xaws:p5.48xlarge")
    assert (p5.inter.kind, p5.inter.bytes_per_second) == ("efa", 50e9)
    assert (p5.intra.kind, p5.intra.bytes_per_second) == ("nvlink", 450e9)
    t4 = CATALOG.cluster("4xaws:g4dn.12xlarge")
    assert t4.inter.bytes_per_second == pytest.approx(50e9 / 8 / 4)
    assert t4.intra.kind == "pcie"


def test_a_rack_of_gb200_is_one_fabric_and_two_racks_are_not() -> None:
    """Up to 72 devices NVLink joins the nodes; beyond, the network does."""
    assert CATALOG.cluster("18x4xgb200").inter.kind == "nvlink"
    assert CATALOG.cluster("19x4xgb200").inter.bytes_per_second == 50e9


def test_tpu_slices_are_joined_by_their_hosts_network() -> None:
    """Inside a slice there is ICI; between slices that are rented apart there is not."""
    slices = CATALOG.cluster("2xgcp:tpu-v4-32")
    assert (slices.intra.kind, slices.inter.kind) == ("ici", "roce")


def test_processes_of_a_cpu_host_talk_through_memory() -> None:
    """A CPU machine's inner link is its memory, its outer one Ethernet."""
    cluster = CATALOG.cluster("4xaws:m5.2xlarge")
    assert (cluster.intra.kind, cluster.inter.kind) == ("memory", "ethernet")
    assert cluster.host_watts == 0


def test_uneven_placements_are_kept_and_checked() -> None:
    """A placement counts the devices; one that does not fit the nodes is refused."""
    assert CATALOG.cluster_for("t4", 3, 4, placement=(1, 3, 4)).devices == 8
    with pytest.raises(RequestError, match="placement"):
        CATALOG.cluster_for("t4", 2, 4, placement=(1, 3, 4))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("64xh100-sxm-80gb", "8x8xh100-sxm-80gb"), ("20xh100-sxm-80gb", "3x8xh100-sxm-80gb"),
        ("8xh100-sxm-80gb", ""), ("8x8xh100-sxm-80gb", ""), ("72xgb200", ""), ("256xtpu-v4", ""),
    ],
)  # fmt: skip
def test_one_node_of_more_devices_than_any_machine_has_is_named(text: str, meant: str) -> None:
    said = [w for w in load_catalog().cluster(text).warnings if "is one node of" in w]
    assert len(said) == bool(meant)
    assert all(w.endswith(f"nodes are {meant}") for w in said)
