"""Chances at the command line: of each limit, of each rival, and how far the answer is sure."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Run

CLUSTERS = ("--clusters", "h100-sxm-80gb,a100-sxm-80gb", "--max-devices", "64")
ASK = ("recommend", "llama3-8b", *CLUSTERS, "--framework", "torchtitan")
PREDICT = ("predict", "llama3-8b", "--cluster", "4x8xh100-sxm-80gb")
EXPLAIN = ("explain", "llama3-8b", "--cluster", "4x8xh100-sxm-80gb", "--plan", "tp=2")
LIMITS = ("--deadline", "16d", "--budget", "40000")


def test_every_option_has_its_chances(forerun: Run) -> None:
    data = forerun(*ASK, *LIMITS, "--json").json()
    rows = [data["best"], data["runner_up"], data["next_layout"], *data["front"],
            *data["alternatives"]]  # fmt: skip
    for option in filter(None, rows):
        chance = option["chance"]
        assert set(chance) == {"fits", "deadline", "budget", "all"}
        assert chance["all"] <= min(chance.values()) + 1e-9
        assert chance["deadline"] >= 0.5 - 1e-6
        assert {"time", "cost"} <= set(option["beaten_by_best"])
    assert data["next_layout"]["beaten_by_best"]["cost"] >= 0.48


def test_without_limits_there_is_the_chance_of_fitting_alone(forerun: Run) -> None:
    best = forerun(*ASK, "--json").json()["best"]
    assert list(best["chance"]) == ["fits"]
    assert best["chance"]["fits"] == best["fits"]


def test_words_tell_limits_rivals_and_distance(forerun: Run) -> None:
    done = forerun(*ASK, *LIMITS)
    assert re.search(r"^limits    P\(within 16\.0 days\) [=<>] \d\.\d\d; P\(for at most \$40,000\)",
                     done.out, re.M)  # fmt: skip
    assert re.search(r"^beats     .*the next best layout here: P\(best is cheaper\) [=<>] \d", done.out,
                     re.M)  # fmt: skip
    assert re.search(r"^source    predictor analytic( \([a-z ]+\))?, distance \d\.\d\d from what was measured: \w",
                     done.out, re.M)  # fmt: skip
    assert re.search(
        r"^nearer    the distance falls with measured runs .*\(by up to \d\.\d\d\)", done.out, re.M
    )
    head = next(line for line in done.out.splitlines() if line.lstrip().startswith("cluster"))
    assert ("in time" in head, "in budget" in head, "best cheaper" in head) == (True, True, True)


@pytest.mark.parametrize(
    ("aim", "words"),
    [("time", "best faster"), ("energy", "best thriftier"), ("knee", "best nearer the knee")],
)
def test_the_best_is_compared_in_what_was_asked(forerun: Run, aim: str, words: str) -> None:
    assert words in forerun(*ASK, "--minimize", aim).out


def test_near_misses_show_how_near(forerun: Run) -> None:
    ask = (*ASK, "--deadline", "1d", "--confidence", "0.9")
    done = forerun(*ask)
    assert done.code == 3
    assert "in time" in done.out
    assert re.search(r"P\(in time\) [=<] \d+ %", done.out)
    data = forerun(*ask, "--json").json()
    larger, *near = data["near_misses"]
    assert "larger than --max-devices" in larger["misses"]
    assert all(0 <= miss["chance"]["deadline"] < 0.9 for miss in near)
    assert not any(miss["beaten_by_best"] for miss in data["near_misses"])


def test_more_confidence_is_a_chance_that_is_reached(forerun: Run) -> None:
    for confidence in ("0.5", "0.8", "0.95"):
        done = forerun(*ASK, "--deadline", "40d", "--confidence", confidence, "--json")
        best = done.json()["best"]
        assert best["chance"]["all"] >= float(confidence) - 1e-6


def test_the_page_has_the_chances_of_each_option(forerun: Run, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    data = forerun(*ASK, *LIMITS, "--html", str(path), "--json").json()
    text = path.read_text()
    for header in ("P(fits)", "P(in time)", "P(in budget)", "P(best is cheaper)"):
        assert f'<th scope="col">{header}</th>' in text
    assert text.count("<tr data-index") == len(data["front"])  # the best stands on it once
    assert "P(within 16.0 days)" in text
    assert "from what was measured" in text
    assert "the next best layout here" in text


@pytest.mark.parametrize("command", [PREDICT, EXPLAIN])
def test_one_job_has_its_chances(forerun: Run, command: tuple[str, ...]) -> None:
    data = forerun(*command, *LIMITS, "--json").json()
    assert set(data["chance"]) == {"fits", "deadline", "budget", "all"}
    assert data["distance_means"]
    assert sum(data["distance_parts"].values()) == pytest.approx(data["distance"])
    assert data["nearer"]
    out = forerun(*command, *LIMITS).out
    assert "limits    P(within 16.0 days)" in out
    assert list(forerun(*command, "--json").json()["chance"]) == ["fits"]


def test_a_deadline_of_nothing_is_refused(forerun: Run) -> None:
    assert forerun(*PREDICT, "--deadline", "0h").code == 2
    assert forerun("predict", "--table", "x.csv", "--deadline", "1h").code == 2


def test_a_change_is_told_with_the_chance_that_it_is_faster(forerun: Run) -> None:
    data = forerun(*EXPLAIN, *LIMITS, "--json").json()
    legal = [w for w in data["what_ifs"] if w["refused"] is None]
    for what_if in legal:
        faster = what_if["beats"]["time"]
        assert (faster >= 0.5) == (what_if["speedup"] >= 1) or faster == pytest.approx(
            0.5, abs=1e-6
        )
        assert set(what_if["chance"]) == {"fits", "deadline", "budget", "all"}
    arithmetic = next(w for w in legal if w["change"].startswith("arithmetic"))
    assert arithmetic["beats"]["time"] > 0.999
    assert "P(faster)" in forerun(*EXPLAIN).out


def test_what_makes_it_uncertain_adds_up(forerun: Run) -> None:
    data = forerun(*EXPLAIN, "--json").json()
    assert sum(data["uncertainty"].values()) == pytest.approx(1.0)
    assert "what makes it uncertain" in forerun(*EXPLAIN).out


def test_a_predictor_without_causes_is_shown_without_them(forerun: Run) -> None:
    done = forerun(*EXPLAIN, "--predictor", "constant-mfu", "--plan",
                   "dp=32,tp=1,pp=1,cp=1,ep=1,vpp=1,micro_batch=1,zero_stage=2,recompute=none,"
                   "sequence_parallel=false")  # fmt: skip
    assert done.code == 0
    assert "what makes it uncertain" not in done.out
    assert "distance 1.00" in done.out


def test_losses_are_those_that_were_asked_of_in_every_change(forerun: Run) -> None:
    """A machine that doubles its links is lost as often as before."""
    data = forerun(*EXPLAIN, "--spot", "--preemption-rate", "0.5", "--json").json()
    links = next(w for w in data["what_ifs"] if w["change"].startswith("the network"))
    assert links["speedup"] == pytest.approx(1.0, abs=0.1)
