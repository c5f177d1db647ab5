"""Which machines a recommendation looks at: devices, exclusions, memory and vCPUs of the host."""

from __future__ import annotations

import pytest

from forerun.advisor import Advisor
from forerun.advisor.recommending import MachineChoice, candidate_clusters, devices_named
from forerun.catalog import BYTES_PER_GIB, load_catalog
from forerun.errors import RequestError, UnknownNameError

CATALOG = load_catalog()


def found(market: str = "on-demand", region: str | None = None, **choice: object):
    """Return the candidates of one choice, of at most eight devices."""
    return candidate_clusters(CATALOG, None, 8, region, MachineChoice(**choice), market)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "some", "other"),
    [
        ("h100", {"h100-sxm-80gb", "h100-pcie-80gb"}, "h200-sxm-141gb"),
        ("H100-SXM-80GB", {"h100-sxm-80gb"}, "h100-pcie-80gb"),
        ("tpu", {"tpu-v5e", "tpu-v6e"}, "a10"),
        ("amd", {"mi300x"}, "a10"),
        ("hopper", {"h100-sxm-80gb", "h200-sxm-141gb"}, "a10"),
        ("gpu", {"a10", "mi300x"}, "tpu-v5e"),
        ("Tesla V100", {"v100-sxm2-16gb"}, "a10"),
    ],
)
def test_a_device_is_named_by_kind_maker_generation_family_or_label(
    name: str, some: set[str], other: str
) -> None:
    devices = devices_named(CATALOG, name)
    assert some <= devices
    assert other not in devices


def test_devices_restrict_the_candidates() -> None:
    assert {c.device.id.partition("-")[0] for c in found(devices=("h100", "mi300x"))} == {
        "h100", "mi300x"
    }  # fmt: skip


def test_machines_without_an_accelerator_are_looked_at_where_they_are_asked_for() -> None:
    machines = found(devices=("cpu",))
    assert machines
    assert {c.device.kind for c in machines} == {"cpu"}
    both = {c.device.kind for c in found(devices=("cpu", "tpu"))}
    assert both == {"cpu", "tpu"}


@pytest.mark.parametrize("name", ["hyperstack", "h100", "us-east-1", "aws:p5.48xlarge", "NVIDIA"])
def test_what_is_excluded_is_not_looked_at(name: str) -> None:
    plain, usual = name.lower(), found()
    left = found(exclude=(name,))
    out = set() if plain in ("hyperstack", "us-east-1", "aws:p5.48xlarge") else devices_named(
        CATALOG, name
    )  # fmt: skip
    hit = lambda c: (  # noqa: E731
        plain in (c.provider, c.region, f"{c.provider}:{c.instance_type}".lower()) or c.device.id in out
    )  # fmt: skip
    assert any(map(hit, usual))
    assert left
    assert not any(map(hit, left))


def test_the_next_cheapest_takes_the_place_of_what_is_excluded() -> None:
    """An exclusion removes a machine, not its device."""
    eights = [c for c in found(devices=("h100-sxm-80gb",)) if c.devices == c.devices_per_node == 8]
    first = min(eights, key=lambda c: c.dollars_per_hour)
    left = found(devices=("h100-sxm-80gb",), exclude=(f"{first.provider}:{first.instance_type}",))
    second = min(c.dollars_per_hour for c in left if c.devices == c.devices_per_node == 8)
    assert second > first.dollars_per_hour


def test_hosts_have_the_memory_and_the_vcpus_asked_for() -> None:
    machines = found(min_ram=1e12, min_vcpus=128)
    assert machines
    assert all(c.host_memory_bytes >= 1e12 for c in machines)
    assert all(c.vcpus_per_device * c.devices_per_node >= 128 for c in machines)
    # What is not stated is not enough: TPU machines state neither.
    assert not [c for c in found(min_vcpus=1) if c.device.kind == "tpu"]
    stated = next(i for i in CATALOG.instances if i.memory_gib and i.dollars_per_hour)
    exactly = stated.memory_gib * BYTES_PER_GIB
    assert any(
        c.host_memory_bytes == exactly for c in found(min_ram=exactly, devices=(stated.device,))
    )


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"devices": ("tpu",), "exclude": ("gcp",)}, "devices tpu, 18 left; exclude gcp, 0 left"),
        ({"min_ram": 2e13}, "min ram 20 TB, 0 left"),
        ({"min_vcpus": 1e4}, "min vcpus 10000, 0 left"),
        (
            {"providers": ("hyperstack",), "market": "spot"},
            "with a spot price: providers hyperstack, 0",
        ),
    ],
)
def test_what_leaves_nothing_is_named(choice: dict, words: str) -> None:
    with pytest.raises(RequestError, match="relax one of these") as caught:
        found(**choice)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("choice", "near"),
    [
        ({"devices": ("h1000",)}, "h100"),
        ({"exclude": ("hyperstak",)}, "hyperstack"),
        ({"exclude": ("us-east-9",)}, "us-east-1"),
        ({"exclude": ("aws:p5.48xlargee",)}, "p5.48xlarge"),
        ({"providers": ("awss",)}, "aws"),
    ],
)
def test_an_unknown_name_has_suggestions(choice: dict, near: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        found(**choice)
    assert near in str(caught.value)


@pytest.mark.parametrize("choice", [{"exclude": ("aws",)}, {"devices": ("gpu",)}, {"min_ram": 1e9}])
def test_named_clusters_have_no_choice(choice: dict) -> None:
    with pytest.raises(RequestError, match="give one of them"):
        candidate_clusters(CATALOG, ["1x8xh100-sxm-80gb"], 8, choice=MachineChoice(**choice))


def test_named_clusters_without_a_spot_price_are_refused_with_the_nearest_that_have_one() -> None:
    with pytest.raises(RequestError, match="no spot price is known") as caught:
        candidate_clusters(CATALOG, ["hyperstack:n3-H100-SXM5x8"], 8, market="spot")
    assert "with 1 h100-sxm-80gb" in caught.value.found
    with pytest.raises(RequestError) as other:
        candidate_clusters(CATALOG, ["hyperstack:n3-H100x1"], 8, market="spot")
    assert "h100-pcie" not in other.value.found  # none is listed: those of its generation are
    assert "h100-sxm-80gb" in other.value.found
    either = candidate_clusters(
        CATALOG, ["hyperstack:n3-H100x1", "aws:p5.48xlarge"], 8, market="spot"
    )
    assert len({c.provider for c in either}) == 2


def test_a_number_of_ram_is_gigabytes() -> None:
    asked = {"epochs": 1, "max_devices": 8, "devices": ["h100"]}
    number, text = (Advisor().recommend("resnet50", min_ram=ram, **asked) for ram in (512, "512GB"))
    assert number.alternatives
    assert all(o.job.cluster.host_memory_bytes >= 512e9 for o in number.alternatives)
    assert [o.job for o in number.alternatives] == [o.job for o in text.alternatives]
