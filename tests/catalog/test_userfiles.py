"""A user's own files: eight numbers are enough, and a wrong one is named by file, line and field."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.catalog import load_catalog
from forerun.errors import RequestError, UnknownNameError

EIGHT = {
    "memory_gb": "48", "memory_gb_per_s": "960", "fp32_tflops": "60", "fp16_tflops": "240",
    "watts": "300", "link_gb_per_s": "0", "host_gb_per_s": "32", "devices_per_node": "8",
}  # fmt: skip
SKYPILOT = (
    "InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,"
    "AvailabilityZone,Price,SpotPrice\n"
)


def device_csv(path: Path, **changed: str) -> Path:
    """Write a file of one device, `my-card`, some of its fields changed."""
    values = {"id": "my-card", **EIGHT, **changed}
    path.write_text(",".join(values) + "\n" + ",".join(values.values()) + "\n")
    return path


def test_eight_numbers_make_a_device(tmp_path: Path) -> None:
    """The rest is derived, with a fact that says so, and the assumed network is told."""
    catalog = load_catalog([device_csv(tmp_path / "mine.csv")])
    device, warnings = catalog.device("My Card")
    assert device.memory_bytes == 48e9
    assert device.flops("bf16") == device.flops("fp16") == 240e12
    assert "derived" in device.facts["peak_flops.bf16"].source
    assert device.node_bytes_per_second == pytest.approx(12.5e9 / 8)
    assert "100 Gbit/s" in warnings[0]
    assert "mine.csv" in device.facts["watts"].source
    cluster = catalog.cluster("2x8xmy-card")
    assert (cluster.intra.kind, cluster.intra.bytes_per_second) == ("pcie", 32e9)


@pytest.mark.parametrize("missing", EIGHT)
def test_each_of_the_eight_is_needed(tmp_path: Path, missing: str) -> None:
    """A missing figure is named with file, line, field and the allowed range."""
    with pytest.raises(RequestError) as caught:
        load_catalog([device_csv(tmp_path / "mine.csv", **{missing: ""})])
    assert f"mine.csv, line 2, field {missing!r}" in str(caught.value)
    assert "at most" in caught.value.next_step


def test_all_missing_figures_are_named_at_once_and_bf16_serves_for_fp16(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="'watts', 'host_gb_per_s': they are missing"):
        load_catalog([device_csv(tmp_path / "mine.csv", watts="", host_gb_per_s="")])
    path = device_csv(tmp_path / "mine.csv", fp16_tflops="", bf16_tflops="120")
    device, _ = load_catalog([path]).device("my-card")
    assert device.flops("fp16") == 120e12
    assert not device.facts["peak_flops.fp16"].verified


@pytest.mark.parametrize(
    "sources", ["{watts: estimate, year: our list}", "watts=estimate;year=our list"]
)
def test_sources_of_single_fields_are_a_mapping_or_text(tmp_path: Path, sources: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"devices: {{t4: {{watts: 60, year: 2019, field_sources: {sources}}}}}\n")
    facts = load_catalog([path]).device("t4")[0].facts
    assert not facts["watts"].verified
    assert facts["year"].source == "our list"


@pytest.mark.parametrize(("stated", "warned"), [("hoper", True), ("Hopper", False), ("", False)])
def test_a_generation_that_is_not_known_is_a_warning(
    tmp_path: Path, stated: str, warned: bool
) -> None:
    """A slip changes the forecast, so that it must be seen."""
    path = device_csv(tmp_path / "mine.csv", generation=stated, node_gb_per_s="9")
    catalog = load_catalog([path])
    assert [w for w in catalog.cluster("8xmy-card").warnings if "mean hopper" in w] == (
        list(catalog.device("my-card")[1]) if warned else []
    )
    assert len(catalog.device("my-card")[1]) == warned


@pytest.mark.parametrize(
    ("field", "value"),
    [("memory_gb", "0"), ("memory_gb", "-1"), ("watts", "nan"), ("fp32_tflops", "inf"),
     ("watts", "0"), ("field_sources", "wats=guess"), ("field_sources", "watts"),
     ("fp16_tflops", "0"), ("devices_per_node", "1.5"), ("devices_per_node", "0"),
     ("link_gb_per_s", "-3"), ("memory_gb_per_s", "fast"), ("memory_gb", "80000000000"),
     ("kind", "toaster"), ("wats", "3")],
)  # fmt: skip
def test_absurd_figures_are_refused(tmp_path: Path, field: str, value: str) -> None:
    """A figure out of its range, or a field that nobody reads, is named with its place."""
    with pytest.raises(RequestError) as caught:
        load_catalog([device_csv(tmp_path / "mine.csv", **{field: value})])
    assert "mine.csv, line 2" in str(caught.value)
    assert field in str(caught.value)


def test_yaml_adds_devices_and_machines(tmp_path: Path) -> None:
    """One YAML file may hold both, and its machine may have its device."""
    path = tmp_path / "mine.yaml"
    fields = "\n".join(f"    {k}: {v}" for k, v in EIGHT.items())
    path.write_text(
        f"devices:\n  my-card:\n{fields}\n    aliases: [mc1, mc-2]\n    source: data sheet\n"
        "instances:\n  mycloud:big.8x: {device: my-card, device_count: 8, region: here, "
        "dollars_per_hour: 9.5, spot_dollars_per_hour: 3, nic_gbit_per_s: 400, "
        "nic_kind: infiniband}\n"
    )
    catalog = load_catalog([path])
    cluster = catalog.cluster("2xmycloud:big.8x")
    assert cluster.device is catalog.device("mc-2")[0]
    assert (cluster.dollars_per_hour, cluster.spot_dollars_per_hour) == (19, 6)
    assert cluster.inter.bytes_per_second == 400e9 / 8 / 8
    assert cluster.device.facts["watts"].source == "data sheet"
    assert catalog.cluster("2x8xmy-card").dollars_per_hour == 19


def test_an_override_keeps_what_it_does_not_mention(tmp_path: Path) -> None:
    """A row under a packaged id changes the fields it gives, each with the user's source."""
    path = tmp_path / "mine.yaml"
    path.write_text("devices:\n  h100-sxm-80gb: {watts: 500, source: our power cap}\n")
    device, _ = load_catalog([path]).device("h100-sxm-80gb")
    packaged, _ = load_catalog().device("h100-sxm-80gb")
    assert (device.watts, packaged.watts) == (500, 700)
    assert device.peak_flops == packaged.peak_flops
    assert device.facts["watts"].source == "our power cap"
    assert device.facts["peak_flops.bf16"] == packaged.facts["peak_flops.bf16"]


def test_a_price_of_ones_own_replaces_the_packaged_row(tmp_path: Path) -> None:
    """The same provider, type and region is the same machine."""
    path = tmp_path / "deal.csv"
    path.write_text(
        "provider,type,region,device,device_count,dollars_per_hour\n"
        "aws,p5.48xlarge,us-east-1,h100-sxm-80gb,8,20\n"
    )
    cluster = load_catalog([path]).cluster("aws:p5.48xlarge@us-east-1")
    assert cluster.dollars_per_hour == 20
    assert "deal.csv" in cluster.price_source


@pytest.mark.parametrize("price", ["-1", "nan", "1e9", "cheap"])
def test_a_wrong_price_is_named_by_its_place(tmp_path: Path, price: str) -> None:
    """Line and field of a SkyPilot row, in the words of that file's row."""
    path = tmp_path / "own.csv"
    path.write_text(SKYPILOT + "ok,4,16,T4,1,,r,z,0.5,0.1\n" + f"bad,4,16,T4,1,,r,z,{price},\n")
    with pytest.raises(RequestError, match=r"own\.csv, line 3") as caught:
        load_catalog([path])
    assert "at most" in caught.value.next_step


def test_skypilot_files_are_read_as_they_are(tmp_path: Path) -> None:
    """Zones become the cheapest of a region, false rows are left out and counted, labels resolve."""
    (tmp_path / "gcp").mkdir()
    path = tmp_path / "gcp" / "vms.csv"
    path.write_text(
        SKYPILOT + "my-h100,208,1872,H100,8,{'Gpus': []},us-x,us-x-a,50,20\n"
        "my-h100,208,1872,H100,8,{'Gpus': []},us-x,us-x-b,48,0.00\n"
        "a3-highgpu-8g,208,1872,,,,us-x,us-x-a,9.46,2\n,,,H100,8,,us-x,us-x-a,78,17\n"
        "odd,8,32,Radeon MI25,1,,us-x,us-x-a,1,\nplain,8,32,,,,us-x,us-x-a,0.3,\n"
    )
    catalog = load_catalog([path])
    machine, _ = catalog.instance("gcp:my-h100")
    assert (machine.device, machine.dollars_per_hour) == ("h100-sxm-80gb", 48)
    assert machine.spot_dollars_per_hour is None
    assert catalog.instance("gcp:plain")[0].device == "cpu-plain"
    assert any("1 row without InstanceType left out" in w for w in catalog.warnings)
    assert any("host without its accelerators" in w for w in catalog.warnings)
    assert any("'H100' leaves open" in w for w in catalog.warnings)
    with pytest.raises(UnknownNameError, match="Radeon MI25"):
        catalog.cluster("2xgcp:odd")


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.yaml", "devices: [1, 2"), ("a.yaml", "5"), ("a.yaml", "devices: 5"), ("a.yaml", ""),
     ("a.yaml", "gadgets: {}"), ("a.yaml", "devices: {x: 5}"), ("a.csv", ""), ("a.csv", "a,b\n1,2"),
     ("a.csv", "id,memory_gb\nx,1,2,3\n"), ("a.yaml", "devices: {x: {watts: {a: 1}}}"),
     ("a.csv", "provider,type,device\nme,box,unheard-of\n"), ("a.csv", "provider,type\n,box\n"),
     ("a.yaml", "devices: {x: {memory_gb: true}}"), ("a.yaml", "? [1]\n: 2\n")],
)  # fmt: skip
def test_a_broken_file_is_a_request_error(tmp_path: Path, name: str, text: str) -> None:
    """No file, however broken, gives a traceback."""
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(RequestError):
        load_catalog([path])


def test_bytes_that_are_no_text_and_missing_files_are_request_errors(tmp_path: Path) -> None:
    """A file that cannot be read is named."""
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00id")
    none = "there is no such file"
    for name, found in {
        "b.csv": "b.csv", "none.csv": none, "none.yaml": none, ".": "it is a folder",
    }.items():  # fmt: skip
        with pytest.raises(RequestError, match=found):
            load_catalog([tmp_path / name])


def test_an_alias_that_is_taken_is_refused(tmp_path: Path) -> None:
    """No user's alias can turn one device into another."""
    with pytest.raises(RequestError, match="already means h100-sxm-80gb"):
        load_catalog([device_csv(tmp_path / "mine.csv", aliases="h100-sxm-80gb")])


def test_a_stated_network_of_a_machine_is_not_called_assumed(tmp_path: Path) -> None:
    mine = device_csv(tmp_path / "mine.csv")
    machines = tmp_path / "machines.csv"
    machines.write_text(
        "provider,type,device,device_count,nic_gbit_per_s\nacme,zeta.8x,my-card,8,400\n"
        "acme,eta.8x,my-card,8,\n"
    )
    catalog = load_catalog([mine, machines])
    assert not any("assumed" in said for said in catalog.cluster("4xacme:zeta.8x").warnings)
    assert any("assumed" in said for said in catalog.cluster("4xacme:eta.8x").warnings)
    assert any("assumed" in said for said in catalog.cluster("4x8xmy-card").warnings)
    assert not any("assumed" in said for said in catalog.cluster("1x8xmy-card").warnings)
