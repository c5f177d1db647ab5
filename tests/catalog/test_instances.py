"""The machines of the clouds: enough of them, priced from a named commit, and found by name."""

from __future__ import annotations

import csv
import importlib.util
import re
from pathlib import Path

import pytest

from forerun.catalog import least_billed_seconds, load_catalog
from forerun.catalog.rows import DATA, known_sources, read_csv
from forerun.domain.estimate import startup_of, startup_seconds
from forerun.domain.objective import Preemption
from forerun.errors import RequestError, UnknownNameError

CATALOG = load_catalog()
PRICED = [i for i in CATALOG.instances if i.dollars_per_hour is not None]
SCRIPT = Path(__file__).parents[2] / "scripts" / "build_instances.py"


def test_at_least_100_priced_types_over_seven_clouds() -> None:
    """The packaged prices cover at least 100 machine types of at least 7 providers."""
    assert len({i.name for i in PRICED}) >= 100
    assert len({i.provider for i in PRICED}) >= 7
    assert len({i.region for i in PRICED}) >= 20


def test_every_price_names_its_source() -> None:
    """A price says which file at which commit it was read from, or a source with its date."""
    date = re.compile(r"20[0-9]{2}-[0-9]{2}")
    dated = {fact.source for fact in known_sources().values() if date.search(fact.source)}
    for instance in PRICED:
        if instance.source not in dated:
            assert "as of commit" in instance.source or "Lynceus" in instance.source
            assert not date.search(instance.source)


def test_prices_are_positive_and_spot_is_below_on_demand() -> None:
    """No price is zero or absurd, and a spot price is a real one."""
    for i in CATALOG.instances:
        for dollars in (i.dollars_per_hour, i.spot_dollars_per_hour):
            assert dollars is None or 0 < dollars < 1000
        if i.dollars_per_hour is not None and i.spot_dollars_per_hour is not None:
            assert i.spot_dollars_per_hour < i.dollars_per_hour


def test_doubtful_rows_are_left_out() -> None:
    """What its source calls doubtful is not in the catalogue."""
    assert not any("DOUBTFUL" in i.note for i in CATALOG.instances)
    assert "mithril" not in {i.provider for i in CATALOG.instances}


def test_each_machine_has_a_known_device_and_a_network() -> None:
    """Every machine's device resolves without a warning, and its network has a rate and a fact."""
    for instance in CATALOG.instances:
        device, warnings = CATALOG.device(instance.device)
        assert (device.id, warnings) == (instance.device, ())
        assert instance.device_count >= 1
        assert 0.1e9 <= instance.nic_bytes_per_second / instance.device_count <= 200e9
        assert not instance.nic_fact.verified


def test_a_machine_is_found_with_and_without_its_provider() -> None:
    """`aws:p5.48xlarge` and `p5.48xlarge` are one machine; a region is kept."""
    long, _ = CATALOG.instance("aws:P5.48xlarge@eu-north-1")
    short, warnings = CATALOG.instance("p5.48xlarge")
    assert (long.region, long.device, long.device_count) == ("eu-north-1", "h100-sxm-80gb", 8)
    assert short.dollars_per_hour == 55.04
    assert "cheapest" in warnings[0]
    assert short.region in warnings[0]


def test_a_type_of_several_providers_is_refused() -> None:
    """A type that two providers rent under one name needs the provider."""
    shared = load_catalog([_write("a.csv", "one"), _write("b.csv", "two")])
    with pytest.raises(RequestError, match="one, two have a machine"):
        shared.instance("box")
    assert shared.instance("two:box")[0].provider == "two"


@pytest.mark.parametrize("text", ["aws:p9.large", "p5.48xlarge@mars", "", "@", "aws:"])
def test_an_unknown_machine_or_region_is_refused(text: str) -> None:
    """The error offers near names."""
    with pytest.raises(UnknownNameError):
        CATALOG.instance(text)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _write(name: str, provider: str) -> Path:
    path = Path(name)
    path.write_text(f"provider,type,device,dollars_per_hour\n{provider},box,t4,1\n")
    return path


def test_the_packaged_table_can_be_built_again(tmp_path: Path) -> None:
    """The builder reads a price table, drops doubtful rows and false spot prices, adds networks."""
    spec = importlib.util.spec_from_file_location("build_instances", SCRIPT)
    assert spec
    assert spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    head = ("provider,instance_type,accelerator,accelerator_count,vcpus,memory_gib,region,"
            "on_demand_usd_per_hour,spot_usd_per_hour,source,source_commit,note\n")  # fmt: skip
    rows = ("aws,p5.48xlarge,H100-SXM5-80GB,8,192,2048,us-east-1,55.04,19.25,f,abc,\n"
            "x,same,T4-16GB,1,4,16,r,1,1,f,abc,\nx,bad,T4-16GB,1,4,16,r,1,1,f,abc,DOUBTFUL: no\n"
            "x,plain,none (CPU),0,4,16,r,0.2,,f,abc,\n")  # fmt: skip
    prices = tmp_path / "prices.csv"
    prices.write_text(head + rows)
    built = {row["type"]: row for row in script.build([prices])}
    assert built["p5.48xlarge"]["nic_gbit_per_s"] == "3200"
    assert built["same"]["spot_dollars_per_hour"] == ""
    assert built["plain"]["device"] == "cpu-plain"
    assert "bad" not in built
    with (tmp_path / "out.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, script.COLUMNS)
        writer.writeheader()
        writer.writerows(built.values())
    assert load_catalog([tmp_path / "out.csv"]).instance("x:plain")[0].dollars_per_hour == 0.2


def test_every_cloud_bills_something_at_least_and_names_its_source() -> None:
    """So that each of its machines is known to be rented; bare metal of OCI is billed by the hour."""
    assert all(least_billed_seconds(i.provider, i.type) > 0 for i in CATALOG.instances)
    assert {row.get("source") for row in read_csv(DATA / "billing.csv")} <= set(known_sources())
    assert least_billed_seconds("oci", "BM.GPU.H100.8") == 3600
    assert least_billed_seconds("oci", "VM.GPU.A10.1") == 60
    assert least_billed_seconds("mine", "box") == 60  # the usual, of a cloud that is not listed
    assert CATALOG.cluster("2xaws:p5.48xlarge").least_billed_seconds == 60
    assert CATALOG.cluster("2xaws:p5.48xlarge").rented
    assert CATALOG.cluster("2x8xh100-sxm-80gb").least_billed_seconds == 0
    assert not CATALOG.cluster("2x8xh100-sxm-80gb").rented


@pytest.mark.parametrize(("price", "rented"), [("1", True), ("", False)])
def test_a_machine_of_ones_own_catalogue_is_rented_where_it_has_a_price(
    price: str, rented: bool
) -> None:
    own = Path("own.csv")
    own.write_text(f"provider,type,device,dollars_per_hour\nmycloud,box,t4,{price}\n")
    cluster = load_catalog([own]).cluster("2xmycloud:box")
    assert cluster.rented == rented
    assert startup_of(cluster, Preemption()) == (
        (float(startup_seconds(2)), 60.0) if rented else (0.0, 0.0)
    )
