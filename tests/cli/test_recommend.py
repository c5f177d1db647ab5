"""forerun recommend: limits are kept, refusals have reasons, and nothing found is exit 3."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

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
    points = [(o["wall_seconds"]["p50"], o["dollars"]["p50"]) for o in front]
    assert points == sorted(points)
    assert all(a[1] > b[1] for a, b in pairwise(points))


def test_the_best_keeps_the_deadline(forerun: Run) -> None:
    free = forerun(*ASK).json()["best"]
    hours = free["wall_seconds"]["p50"] / 3600 / 2
    held = forerun(*ASK, "--deadline", f"{hours:.3f}h").json()["best"]
    assert held["wall_seconds"]["p50"] <= hours * 3600
    assert held["dollars"]["p50"] >= free["dollars"]["p50"]


def test_more_confidence_never_allows_a_slower_choice_to_pass(forerun: Run) -> None:
    free = forerun(*ASK, "--minimize", "time").json()["best"]["wall_seconds"]
    deadline = free["p95"] * 1.2
    ask = (*ASK, "--deadline", f"{deadline:.0f}s")
    sure = forerun(*ask, "--confidence", "0.95").json()["best"]
    even = forerun(*ask, "--confidence", "0.5").json()["best"]
    assert sure["wall_seconds"]["p95"] <= deadline * 1.001
    assert even["wall_seconds"]["p50"] <= deadline * 1.001
    assert even["dollars"]["p50"] <= sure["dollars"]["p50"] * 1.005


def test_least_time_is_no_slower_than_least_cost(forerun: Run) -> None:
    fast = forerun(*ASK, "--minimize", "time").json()["best"]
    cheap = forerun(*ASK, "--minimize", "cost").json()["best"]
    assert fast["wall_seconds"]["p50"] <= cheap["wall_seconds"]["p50"]
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


def test_near_misses_fit_before_they_are_late(forerun: Run) -> None:
    """An hour too late is nearer than a plan that no memory holds."""
    data = forerun("recommend", "llama3-8b", "--clusters", "1x8xh100-sxm-80gb,4x8xv100-sxm-16gb",
                   "--deadline", "1s", "--json").json()  # fmt: skip
    fits = [miss["fits"] >= 0.9 for miss in data["near_misses"]]
    assert fits[0]
    assert fits == sorted(fits, reverse=True)


def test_the_limit_on_devices_is_not_taken_for_a_fact(forerun: Run) -> None:
    """What a larger cluster would meet is said, with the flag that allows it."""
    ask = ("recommend", "llama3-8b", "--clusters", "h100-sxm-80gb", "--max-devices", "8")
    week = forerun(*ask, "--minimize", "time", "--json").json()["best"]["wall_seconds"]["p50"]
    done = forerun(*ask, "--deadline", f"{week / 3:.0f}s", "--json")
    assert done.code == 3
    assert "clusters above --max-devices 8 were not looked at" in done.err
    data = done.json()
    first = data["near_misses"][0]
    assert list(first["misses"]) == ["larger than --max-devices"]
    size = first["job"]["cluster"]["devices"]
    assert f"--max-devices {size}" in data["not_searched"]
    raised = forerun(*ask[:-1], str(size), "--deadline", f"{week / 3:.0f}s", "--json")
    assert raised.code == 0
    assert raised.json()["best"]["job"]["cluster"]["devices"] == size


def test_a_default_batch_that_misses_the_deadline_is_no_fact_either(forerun: Run) -> None:
    ask = ("recommend", "resnet50", "--clusters", "4x8xh100-sxm-80gb", "--deadline", "1h")
    done = forerun(*ask)
    assert done.code == 3
    batch = done.err.partition("with --global-batch ")[2].partition(",")[0]
    assert forerun(*ask, "--global-batch", batch).code == 0
    assert "--global-batch" not in forerun(*ask, "--global-batch", "256").err


def test_a_device_with_its_count_is_one_cluster(forerun: Run) -> None:
    ask = (
        "recommend",
        "resnet50",
        "--clusters",
        "h100:8,a100-sxm-80gb:4",
        "--steps",
        "100",
        "--json",
    )
    found = forerun(*ask).json()
    names = {option["job"]["cluster"]["name"] for option in (found["best"], *found["alternatives"])}
    assert names == {"1x8xh100-sxm-80gb", "1x4xa100-sxm-80gb"}
    wrong = forerun("recommend", "resnet50", "--clusters", "h1000:8")
    assert (wrong.code, "device 'h1000'" in wrong.err) == (2, True)


def test_several_values_without_commas_get_the_advice_to_write_them(forerun: Run) -> None:
    done = forerun("recommend", "resnet50", "--devices", "a100", "h100")
    assert done.code == 2
    assert "with commas, as in A,B; see forerun recommend --help" in done.err


def test_whole_clusters_have_no_larger_ones(forerun: Run) -> None:
    done = forerun("recommend", "llama3-8b", "--clusters", "1x8xh100-sxm-80gb", "--deadline", "1s")
    assert done.code == 3
    assert "--max-devices" not in done.err


def test_without_a_price_the_next_step_is_an_action(forerun: Run) -> None:
    ask = ("recommend", "resnet50", "--clusters", "1x1xrtx-2080-ti")
    done = forerun(*ask)
    assert done.code == 3
    assert "--catalog" in done.err
    assert "--minimize time" in done.err
    assert forerun(*ask, "--minimize", "time").code == 0


def test_a_run_that_spot_losses_never_let_end_is_refused(forerun: Run) -> None:
    done = forerun("recommend", "llama3-8b", "--clusters", "64x8xh100-sxm-80gb", "--spot",
                   "--preemption-rate", "5")  # fmt: skip
    assert done.code == 3
    assert "does not finish at this loss rate" in done.err
    assert "years" not in done.out + done.err


@pytest.mark.parametrize(
    ("cluster", "plan", "why"),
    [("1x1xh100-sxm-80gb", "vpp=2", "pipeline"), ("2x8xh100-sxm-80gb", "dp=3", "16 devices")],
)
def test_a_fixed_field_that_cannot_be_is_a_wrong_request(
    forerun: Run, cluster: str, plan: str, why: str
) -> None:
    done = forerun("recommend", "llama3-8b", "--clusters", cluster, "--plan", plan)
    assert done.code == 2
    assert plan in done.err
    assert why in done.err


def test_the_price_and_what_is_worth_knowing_are_shown(forerun: Run) -> None:
    done = forerun("recommend", "resnet50", "--clusters", "4x8xa100-sxm-80gb", "--json").json()
    best = done["best"]
    assert best["dollars_per_hour"] == best["job"]["cluster"]["dollars_per_hour"]
    assert isinstance(best["warnings"], list)
    text = forerun("recommend", "resnet50", "--clusters", "4x8xa100-sxm-80gb").out
    assert "an hour on demand" in text
    assert all(warning.split()[0] in text for warning in best["warnings"])


def test_either_market_is_no_dearer_than_each(forerun: Run) -> None:
    cost = {
        market: forerun(*ASK, "--market", market).json()["best"]["dollars"]["p50"]
        for market in ("on-demand", "spot", "any")
    }
    assert cost["any"] <= min(cost["on-demand"], cost["spot"]) * 1.005


def test_counts_of_refusals_add_up(forerun: Run) -> None:
    data = forerun(*ASK).json()
    counts = data["counts"]
    assert sum(r["count"] for r in data["refused"]) == counts["considered"] - counts["qualified"]
    assert counts["qualified"] + sum(counts["refused"].values()) == counts["considered"]


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


def test_what_became_of_ones_own_machines_is_said(forerun: Run, tmp_path: Path) -> None:
    """Unpriced and of no known device: each has its line, and none stops the search."""
    path = tmp_path / "mine.csv"
    path.write_text(
        "InstanceType,AcceleratorName,AcceleratorCount,Region,Price\n"
        "dear,V100,8,here,500\nfree,V100,8,here,\nodd,Radeon MI25,1,here,1\n"
    )
    ask = ("recommend", "resnet50", "--catalog", str(path), "--max-devices", "8")
    free, odd = forerun(*ask, "--json").json()["own_machines"]
    assert "free was not considered: it has no price" in free
    assert "Radeon MI25 is no known accelerator" in odd
    named = ("recommend", "resnet50", "--catalog", str(path), "--clusters")
    text = forerun(*named, "1xmine:dear").out
    assert "least cost at 50 % confidence" in text
    assert "\nprices  your file mine.csv\n" in text
    assert forerun(*named, "1xmine:free").out.startswith("resnet50: no price is known")


def test_provision_names_the_best_use_of_machines_its_rivals_and_the_curve(forerun: Run) -> None:
    ask = ("recommend", "vgg16", "--provision", "--machines", "4", "--clusters", "v100-sxm2-32gb")
    data = forerun(*ask, "--json").json()
    kinds = {c["kind"] for c in (data["best"], *data["runners_up"])}
    assert kinds == {"allreduce", "ps-sync", "ps-async", "partitioned"}
    assert all(c["behind"] >= 1 and c["bottleneck"] for c in data["runners_up"])
    assert data["curve"][-1]["run_seconds"] == data["best"]["run_seconds"]
    shown = forerun(*ask).out
    assert "the best of each other kind" in shown
    assert "cut " in shown
    assert ("only the layers named are cut" in shown) == (data["best"]["largest_partition"] > 1)
    for line in ("epoch   ", "run     ", "cost    $", "price   $"):
        assert f"\n{line}" in shown
    assert re.search(r"\nstep    \S+ m?s \(5 to 95 %: \S+ m?s to \S+ m?s\)\n", shown)
    assert data["price_source"] in shown
    other = forerun(*ask, "--predictor", "constant-mfu", "--json").json()
    unsure = {
        c["kind"] for c in (other["best"], *other["runners_up"]) if not c["step_range_seconds"]
    }
    assert unsure == {"partitioned"}, "it declines plans whose layers are cut"
    only = forerun(*ask, "--predictor", "constant-mfu", "--partitions", "4").out
    assert "how sure this is cannot be said: the predictor declines such a plan" in only
    assert forerun("recommend", "vgg16", "--machines", "4").code == 2
    missing = forerun("recommend", "vgg16", "--provision", "--machines", "4")
    assert missing.code == 2
    assert "--clusters is missing" in missing.err
    assert "no choice with more than" not in shown
    small = forerun(*ask[:4], "64", *ask[5:], "--partitions", "1", "--global-batch", "8").out
    assert "no choice with more than 1 machine ends the run sooner" in small
    alone = forerun(*ask[:4], "1", *ask[5:]).out
    assert "1 replica, allreduce, 1 machine\n" in alone
    assert "the best of each other kind" not in alone


def test_provision_takes_parts_of_layers_threads_and_speeds(forerun: Run) -> None:
    ask = ("recommend", "vgg16", "--provision", "--global-batch", "16", "--precision", "fp32")
    ask += ("--clusters", "aws:c5.4xlarge", "--machines", "3", "--plan", "dp=1")
    data = forerun(
        *ask, "--partitions", "features.0=1, classifier*=3", "--threads", "4", "--json"
    ).json()
    found = {layer: parts for layer, parts, _ in data["best"]["partitions"]}
    assert [found.get(name) for name in ("features.0", "classifier.0", "classifier.6")] == [
        None,
        3,
        3,
    ]
    assert data["best"]["threads"] == 4
    even, slow = (
        forerun(*ask, "--partitions", "1", "--speeds", speeds, "--json").json()["best"]
        for speeds in ("1,1,1", "0.5,50%,0.1")
    )
    assert slow["parts"]["backward"] == pytest.approx(2 * even["parts"]["backward"], rel=1e-6)


@pytest.mark.parametrize(
    ("option", "found", "todo"),
    [
        (("--partitions", "classifer.0=2"), "no such layer", "did you mean classifier.0"),
        (("--partitions", "classifier.6=1001"), "1,000 channels", "between 1 and 1,000"),
        (("--partitions", "a=2,a=3"), "each once", "fc6=4"),
        (("--partitions", "a=2,3"), "each once", "fc6=4"),
        (("--partitions", "a=x"), "not a whole number", "256"),
        (("--partitions", "many"), "not a whole number", "256"),
        (("--threads", "2"), "no CPU whose cores are known", "leave threads out"),
        (("--speeds", "1,x"), "not shares", "1,1,0.5"),
        (("--speeds", "1"), "for each", "give 2 shares"),
    ],
)
def test_provision_says_what_parts_threads_and_speeds_may_be(
    forerun: Run, option, found, todo
) -> None:
    ask = ("--provision", "--machines", "2", "--clusters", "v100-sxm2-32gb")
    done = forerun("recommend", "vgg16", *ask, *option)
    assert done.code == 2
    assert found in done.err
    assert todo in done.err
    without = forerun("recommend", "vgg16", *option)
    assert without.code == 2
    assert "give --provision too" in without.err or found in without.err


@pytest.mark.parametrize(
    ("option", "todo"),
    [
        (("--deadline", "24h"), "off the curve"),
        (("--minimize", "cost"), "the least time"),
        (("--confidence", "0.9"), "medians"),
        (("--fit-confidence", "0.9"), "95 %"),
        (("--energy",), "leave it out"),
        (("--html", "report.html"), "use --json"),
        (("--market", "spot"), "on demand"),
        (("--spot",), "on demand"),
        (("--goodput", "0.9"), "on demand"),
        (("--max-devices", "8"), "give --machines"),
        (("--providers", "aws"), "with --clusters"),
    ],
)
def test_provision_refuses_what_it_has_no_use_for(
    forerun: Run, option, todo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where a demo may have left a report there is one already
    done = forerun(
        "recommend", "vgg16", "--provision", "--machines", "2", "--clusters", "v100-sxm2-32gb", *option
    )  # fmt: skip
    assert done.code == 2
    assert f"--provision with {option[0]}" in done.err
    assert todo in done.err
    assert not Path("report.html").exists()
