"""Buying from the command line: what to rent and what not, start-up, minima and spot markets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forerun.catalog import BYTES_PER_GIB, load_catalog
from forerun.catalog.devices import Instance
from tests.cli.conftest import Run

RECOMMEND = ("recommend", "resnet50", "--max-devices", "8", "--epochs", "1")
RENTED = ("predict", "resnet50", "--cluster", "2xaws:p5.48xlarge@us-east-2", "--epochs", "1")


def test_devices_exclusions_and_hosts_restrict_what_is_recommended(forerun: Run) -> None:
    asked = ("--devices", "h100,a100", "--exclude", "hyperstack,us-east-1", "--min-ram", "200GB",
             "--min-vcpus", "20")  # fmt: skip
    data = forerun(*RECOMMEND, *asked, "--json").json()
    clusters = [o["job"]["cluster"] for o in (*data["front"], *data["alternatives"])]
    assert {c["device"].partition("-")[0] for c in clusters} <= {"h100", "a100"}
    assert not {c["provider"] for c in clusters} & {"hyperstack"}
    assert not {c["region"] for c in clusters} & {"us-east-1"}
    assert clusters
    hosts = _hosts(clusters)
    assert all(h.memory_gib * BYTES_PER_GIB >= 200e9 and h.vcpus >= 20 for h in hosts)
    free = forerun(*RECOMMEND, "--devices", "h100,a100", "--json").json()
    others = [o["job"]["cluster"] for o in (*free["front"], *free["alternatives"])]
    assert any(c["provider"] == "hyperstack" or c["region"] == "us-east-1" for c in others)
    least = forerun(*RECOMMEND, "--devices", "h100,a100", "--min-vcpus", "100", "--json").json()
    many = _hosts([least["best"]["job"]["cluster"]])
    assert min(h.vcpus for h in _hosts(others)) < 100 <= min(h.vcpus for h in many)


def _hosts(clusters: list[dict[str, Any]]) -> list[Instance]:
    """Return the machines of clusters in the wire's shape."""
    catalog = load_catalog()
    return [
        catalog.instance(f"{c['provider']}:{c['instance_type']}", c["region"])[0] for c in clusters
    ]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("--devices", "tpu", "--exclude", "gcp"), "exclude gcp, 0 left"),
        (("--exclude", "hyperstak"), "did you mean hyperstack"),
        (("--devices", "h1000"), "did you mean"),
        (("--min-ram", "lots"), "256GB or 1TiB"),
        (("--min-vcpus", "0"), "--min-vcpus"),
        (("--exclude", "aws", "--clusters", "1x8xh100-sxm-80gb"), "give one of them"),
        (("--exclude", ""), "the list is empty"),
        (("--startup", "soon"), "--startup"),
        (("--least-billed", "-1h"), "--least-billed"),
        (("--clusters", "hyperstack:n3-H100x1", "--spot"), "spot prices are listed for"),
    ],
)
def test_what_cannot_be_bought_is_refused_with_what_to_do(
    forerun: Run, asked: tuple[str, ...], words: str
) -> None:
    done = forerun(*RECOMMEND, *asked)
    assert done.code == 2
    assert words in done.err
    assert "next:" in done.err


def test_a_rented_cluster_shows_its_start_and_ones_own_does_not(forerun: Run) -> None:
    shown, data = forerun(*RENTED).out, forerun(*RENTED, "--json").json()
    assert "until the first step of 2 machines" in shown
    assert "\nwall " in shown
    assert data["wall_seconds"]["p50"] > data["run_seconds"]["p50"] + data["start_seconds"] * 0.999
    hourly = data["prices"]["dollars_per_hour"]
    assert data["dollars"]["p50"] == pytest.approx(data["wall_seconds"]["p50"] / 3600 * hourly)
    own = forerun("predict", "resnet50", "--cluster", "2x8xh100-sxm-80gb", "--epochs", "1")
    assert "\nstart" not in own.out


def test_a_start_and_a_minimum_that_are_stated_hold(forerun: Run) -> None:
    none = forerun(*RENTED, "--startup", "0", "--json").json()
    assert none["start_seconds"] == 0
    assert none["wall_seconds"]["p50"] == pytest.approx(none["run_seconds"]["p50"], rel=0.01)
    done = forerun(*RENTED, "--startup", "0", "--least-billed", "1h")
    assert "60 min are billed at least" in done.out
    assert forerun(*RENTED, "--startup", "20min", "--json").json()["start_seconds"] == 1200
    assert "(as stated)" in forerun(*RENTED, "--startup", "20min").out


def test_a_table_takes_a_start_and_a_minimum(forerun: Run, tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.csv"
    jobs.write_text(
        "workload,cluster,global_batch,epochs\nresnet50,2xaws:p5.48xlarge,512,1\n"
        "resnet50,1x8xh100-sxm-80gb,512,1\n"
    )
    asked = ("predict", "--table", str(jobs), "--json")
    (rented, own), (late, own_late) = (
        forerun(*asked, *given).json()["rows"] for given in ((), ("--startup", "1h"))
    )
    assert rented["predicted_start_s"] > 60
    assert own["predicted_start_s"] == 0
    assert late["predicted_start_s"] == own_late["predicted_start_s"] == 3600
    assert own_late["predicted_wall_time_s"] == pytest.approx(own["predicted_wall_time_s"] + 3600)
    assert own_late["predicted_goodput"] == pytest.approx(own["predicted_goodput"])
    billed = forerun(*asked, "--least-billed", "100h").json()["rows"]
    hourly = own_late["predicted_cost_usd"] / own_late["predicted_wall_time_s"] * 3600
    assert billed[1]["predicted_cost_usd"] == pytest.approx(100 * hourly)


def test_a_plain_device_at_a_clouds_price_says_that_no_start_is_counted(forerun: Run) -> None:
    plain = ("predict", "resnet50", "--cluster", "1x1xh100-sxm-80gb", "--epochs", "1")
    words = "whose start-up is not counted"
    assert words in forerun(*plain).out
    for given in (("--startup", "0"), ("--price", "2")):
        assert words not in forerun(*plain, *given).out
    assert words not in forerun(*RENTED).out


@pytest.mark.parametrize(
    "asked",
    [("predict", "resnet50", "--cluster", "1xhyperstack:n3-H100x1"),
     ("recommend", "resnet50", "--clusters", "hyperstack:n3-H100x1")],
)  # fmt: skip
def test_a_market_without_a_price_names_the_nearest_that_have_one(
    forerun: Run, asked: tuple[str, ...]
) -> None:
    done = forerun(*asked, "--spot")
    assert done.code == 2
    assert "no spot price is known; spot prices are listed for" in done.err
    assert "use --market on-demand, or name one of these machines" in done.err
    machine = done.err.partition("listed for ")[2].partition(" (")[0]
    assert forerun("predict", "resnet50", "--cluster", f"1x{machine}", "--spot").code == 0


def test_tables_show_the_figures_that_decide(forerun: Run) -> None:
    assert "wall at 90 %" in forerun(*RECOMMEND, "--devices", "tpu", "--confidence", "0.9").out
    assert "tables show medians" in forerun(*RECOMMEND, "--devices", "tpu").out


def test_the_words_say_how_long_clusters_take_to_start(forerun: Run) -> None:
    told = forerun(*RECOMMEND, "--devices", "tpu", "--json").json()["assumptions"]
    assert any("until the first step" in words and "60 s are billed" in words for words in told)
    own = forerun("recommend", "resnet50", "--clusters", "1x8xh100-sxm-80gb", "--json").json()
    assert any("taken as your own" in words for words in own["assumptions"])
