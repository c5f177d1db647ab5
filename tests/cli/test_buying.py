"""Buying from the command line: what to rent and what not, start-up, minima and spot markets."""

from __future__ import annotations

import pytest

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


def test_a_table_states_no_start(forerun: Run) -> None:
    done = forerun("predict", "--table", "x.csv", "--startup", "1h")
    assert done.code == 2
    assert "--startup" in done.err


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
