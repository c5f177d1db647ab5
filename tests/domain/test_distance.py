"""Distance in words: the number has a meaning, and what would make it less is said first."""

from __future__ import annotations

import math

import pytest

from forerun.domain.forecast import meaning, nearer

PHYSICS = {"workload": 0.25, "device": 0.25, "framework": 0.25, "place": 0.25}


@pytest.mark.parametrize(
    ("distance", "words"),
    [
        (0.1, "beside measured runs"),
        (0.3, "partly measured"),
        (0.7, "hardly measured"),
        (1.0, "nothing measured"),
        (1.8, "far from all that was measured"),
    ],
)
def test_a_number_alone_has_its_words(distance: float, words: str) -> None:
    assert meaning(distance, {}).startswith(words)


def test_what_was_never_measured_is_named() -> None:
    parts = {"workload": 0.05, "device": 0.25, "framework": 0.05}
    assert meaning(sum(parts.values()), parts) == ("partly measured, no run on this device")
    here = {**parts, "place": 0.25}
    assert meaning(sum(here.values()), here).endswith("on this device or where it will run")
    assert meaning(1.0, PHYSICS) == "physics only, nothing measured"
    there = {**PHYSICS, "framework": 0.1}
    assert meaning(1.0, there) == (
        "physics only, no run of this workload or on this device or where it will run"
    )


def test_what_lies_beyond_physics_is_said() -> None:
    parts = {**PHYSICS, "structure": 1.0, "scale": 0.2}
    assert meaning(2.2, parts) == (
        "physics only, nothing measured; the workload is known by totals only"
    )
    far = {"device": 1.2}
    assert meaning(1.2, far).startswith("physics only, and farther than")
    assert "more devices than any run had" in meaning(0.4, {"workload": 0.1, "scale": 0.3})


def test_what_would_bring_it_nearer_comes_most_first_with_its_amount() -> None:
    assert nearer(1.25, {**PHYSICS, "scale": 0.25}) == (
        "measured runs of this workload on this device with this framework where it will run"
        " (by up to 1.00)",
        "runs on as many devices (by up to 0.25)",
    )
    assert nearer(0.35, {"device": 0.33, "workload": 0.01}) == (
        "measured runs on this device (by up to 0.33)",
    )


def test_beside_a_measured_run_nothing_is_lacking() -> None:
    assert nearer(0.02, dict.fromkeys(PHYSICS, 0.01)) == ()
    assert nearer(0.1, {}) == ()
    assert nearer(0.7, {}) == ("measured runs of this workload on this device",)


def test_an_unknown_distance_has_no_words() -> None:
    assert meaning(math.nan, {}) == ""
    assert nearer(math.nan, {}) == ()
