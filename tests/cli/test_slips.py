"""Slips of the pen are met with what was likely meant, and everything missing is asked for at once."""

from __future__ import annotations

import pytest

from forerun.errors import likely_name, one_of
from tests.cli.conftest import Run

JOB = ("predict", "resnet50", "--cluster", "1x8xa100-sxm-80gb")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("predict", "resnet5O", "--cluster", "1x8xa100-sxm-80gb"), "resnet50"),
        (("predict", "resnet50", "--cluster", "1x8xa100-sxm-80g"), "a100-sxm-80gb"),
        (("predict", "resnet50", "--cluster", "1xaws:p5.48xlrge"), "aws:p5.48xlarge"),
        (("predict", "resnet50", "--cluster", "1xaws:p5.48xlarge@us-esat-1"), "us-east-1"),
        ((*JOB, "--plan", "tpp=2"), "tp"),
        ((*JOB, "--plan", "tensor_parallell=2"), "tp"),
        ((*JOB, "--plan", "recompute=ful"), "full"),
        ((*JOB, "--precision", "bf17"), "bf16"),
        ((*JOB, "--optimizer", "adamm"), "adam"),
        ((*JOB, "--task", "pretran"), "pretrain"),
        ((*JOB, "--market", "spott"), "spot"),
        ((*JOB, "--start", "shiped"), "shipped"),
        ((*JOB, "--predictor", "analitic"), "analytic"),
        ((*JOB, "--framework", "tensorflw"), "tensorflow"),
        (("recommend", "resnet50", "--minimize", "tme"), "time"),
        (("recommend", "resnet50", "--region", "us-esat-1"), "us-east-1"),
        (("recommend", "resnet50", "--providers", "nebbius"), "nebius"),
        (("recomend", "resnet50"), "recommend"),
    ],
)
def test_a_slip_is_met_with_what_was_meant(
    forerun: Run, words: tuple[str, ...], meant: str
) -> None:
    done = forerun(*words)
    assert done.code == 2
    offer = done.err.partition("did you mean ")[2].partition("?")[0]
    assert meant in offer.split(", "), done.err


@pytest.mark.parametrize(
    ("words", "missing", "in_hand"),
    [
        (("predict",), ["WORKLOAD", "--cluster"], []),
        (("predict", "resnet50"), ["--cluster"], ["WORKLOAD"]),
        (("predict", "--cluster", "1x8xa100-sxm-80gb"), ["WORKLOAD"], ["--cluster"]),
        (("explain",), ["WORKLOAD", "--cluster"], []),
        (("explain", "resnet50"), ["--cluster"], ["WORKLOAD"]),
        (("recommend",), ["WORKLOAD"], []),
        (("fit",), ["--runs", "--out"], []),
        (("fit", "--out", "m.json"), ["--runs"], ["--out"]),
        (("evaluate",), ["--runs"], []),
    ],
)
def test_all_that_is_missing_is_asked_for_at_once_in_the_order_of_the_help(
    forerun: Run, words: tuple[str, ...], missing: list[str], in_hand: list[str]
) -> None:
    done = forerun(*words)
    assert done.code == 2
    found = done.err.splitlines()[1]
    assert found.strip() == f"found: no {' and no '.join(missing)} given"
    asked = done.err.splitlines()[2]
    assert [asked.index(name) for name in missing] == sorted(asked.index(n) for n in missing)
    assert not [name for name in in_hand if f"give {name}" in asked]


def test_what_looks_like_nothing_is_not_guessed_at() -> None:
    assert likely_name("zebra", ("time", "cost")) == ""
    assert one_of("zebra", ("time", "cost")) == "use one of time, cost"
    assert one_of("tme", ("time", "cost")) == "did you mean time? use one of time, cost"


def test_the_versions_name_the_constants(forerun: Run) -> None:
    constants = forerun("version", "--json").json()["versions"]["constants"]
    date, commit = constants.split(", commit ")
    assert len(date) == len("2026-11-21")
    assert commit
