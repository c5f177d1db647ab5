"""forerun recommend: limits are kept, refusals have reasons, and nothing found is exit 3."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.cli.conftest import Run

ASK = ("recommend", "resnet50", "--clusters", "a100-sxm-80gb,2x8xv100-sxm-16gb", "--json")


def test_json_has_every_promised_name(forerun: Run) -> None:
    data = forerun(*ASK).json()
    assert {"best", "front", "refused", "near_misses", "assumptions", "prices_as_of",
            "counts"} <= set(data)  # fmt: skip
    assert set(data["counts"]) >= {"considered", "legal", "fitting", "qualified"}
    assert all({"job", "reason", "count"} <= set(refusal) for refusal in data["refused"])


def test_no_option_on_the_front_beats_another_in_time_and_cost(forerun: Run) -> None:
    front = forerun(*ASK).json()["front"]
    points = [(o["run_seconds"]["p50"], o["dollars"]["p50"]) for o in front]
    assert points == sorted(points)
    assert all(a[1] > b[1] for a, b in pairwise(points))


def test_the_best_keeps_the_deadline(forerun: Run) -> None:
    free = forerun(*ASK).json()["best"]
    hours = free["run_seconds"]["p50"] / 3600 / 2
    held = forerun(*ASK, "--deadline", f"{hours:.3f}h").json()["best"]
    assert held["run_seconds"]["p50"] <= hours * 3600
    assert held["dollars"]["p50"] >= free["dollars"]["p50"]


def test_more_confidence_never_allows_a_slower_choice_to_pass(forerun: Run) -> None:
    sure = forerun(*ASK, "--deadline", "4h", "--confidence", "0.95").json()["best"]
    assert sure["run_seconds"]["p95"] <= 4 * 3600 * 1.001


def test_least_time_is_no_slower_than_least_cost(forerun: Run) -> None:
    fast = forerun(*ASK, "--minimize", "time").json()["best"]
    cheap = forerun(*ASK, "--minimize", "cost").json()["best"]
    assert fast["run_seconds"]["p50"] <= cheap["run_seconds"]["p50"]
    assert cheap["dollars"]["p50"] <= fast["dollars"]["p50"]


def test_what_nothing_satisfies_exits_3_with_the_nearest_misses(forerun: Run) -> None:
    done = forerun(*ASK, "--deadline", "1s")
    assert done.code == 3
    data = done.json()
    assert data["best"] is None
    assert data["near_misses"]
    assert all(miss["misses"] for miss in data["near_misses"])
    assert done.err.count("error:") == 1
    assert "nearest" in done.err


def test_a_bare_device_is_searched_over_its_number_of_nodes(forerun: Run) -> None:
    done = forerun("recommend", "resnet50", "--clusters", "a100-sxm-80gb", "--max-devices", "32",
                   "--minimize", "time", "--json")  # fmt: skip
    sizes = {option["job"]["cluster"]["devices"] for option in done.json()["front"]}
    assert len(sizes) > 1
    assert max(sizes) <= 32


def test_a_plan_that_is_fixed_stays(forerun: Run) -> None:
    data = forerun("recommend", "llama3-8b", "--clusters", "4x8xh100-sxm-80gb", "--plan", "tp=4",
                   "--json").json()  # fmt: skip
    assert {option["job"]["plan"]["tp"] for option in data["front"]} == {4}


def test_several_global_batches_may_be_searched(forerun: Run) -> None:
    data = forerun(*ASK, "--global-batch", "256,1024", "--minimize", "time").json()
    assert data["best"]["job"]["plan"]["global_batch"] in (256, 1024)
    assert any("256, 1024" in said for said in data["assumptions"])


@pytest.mark.parametrize("market", ["--spot", "--energy"])
def test_spot_and_energy_are_answered(forerun: Run, market: str) -> None:
    done = forerun(*ASK, market)
    assert done.code == 0
    assert done.json()["best"]["market"] == ("spot" if market == "--spot" else "on-demand")


def test_words_name_the_choice_the_front_and_the_prices(forerun: Run) -> None:
    done = forerun(*ASK[:-1])
    assert done.code == 0
    for text in ("Pareto front", "assumptions", "prices", "plans considered"):
        assert text in done.out
    assert "\x1b[" not in done.out


def test_providers_restrict_the_default_candidates(forerun: Run) -> None:
    data = forerun("recommend", "resnet50", "--providers", "aws", "--max-devices", "8",
                   "--json").json()  # fmt: skip
    assert {option["job"]["cluster"]["provider"] for option in data["front"]} == {"aws"}
