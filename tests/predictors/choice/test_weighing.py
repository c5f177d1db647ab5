"""Weighing: how wide the band of a new workload or device is, by how many others were judged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forerun.predictors.choice.chosen import Chosen
from forerun.predictors.choice.questions import BOTH, DEVICE, INSIDE, WORKLOAD, Questions
from forerun.predictors.choice.trials import Trials
from forerun.predictors.choice.weighing import (
    MOST_A_UNIT,
    MOST_STRETCH,
    apart_likeness,
    few_units,
)


def trials(kind: int, units: int, each: int) -> Trials:
    """Return trials of questions of one kind: so many units, each judged so often."""
    rows = units * each
    blank = np.zeros(rows)
    asked = Questions(
        np.full(rows, kind, dtype=np.int8), blank, blank, np.zeros(rows, dtype=np.int64), ("",)
    )
    unit = np.repeat(np.arange(units), each)
    return Trials(
        ("a", "b"), asked, np.full((rows, 2), 0.1), np.full((rows, 2, 2), 0.1), np.arange(rows),
        (), {}, (rows, rows), unit=unit,
    )  # fmt: skip


@pytest.mark.parametrize("kind", [WORKLOAD, DEVICE])
def test_many_runs_of_one_new_thing_count_as_a_few(kind: int) -> None:
    judged = trials(kind, 4, 100)
    weight, units = apart_likeness(judged, judged.questions, 0)
    assert units == 4
    assert np.bincount(judged.unit, weights=weight).tolist() == pytest.approx([MOST_A_UNIT] * 4)


def test_among_the_runs_every_run_counts() -> None:
    judged = trials(INSIDE, 4, 100)
    weight, units = apart_likeness(judged, judged.questions, 0)
    assert units == 0
    assert weight.sum() > 4 * MOST_A_UNIT


def test_a_band_for_the_next_new_one_shrinks_with_how_many_were_judged_and_never_below_its_own() -> (
    None
):
    grown = [few_units(units) for units in range(1, 60)]
    assert grown == sorted(grown, reverse=True)
    assert 1.0 < grown[-1] < 1.05
    # The interval of one more draw after four: t of 3 degrees, 2.353, times sqrt(1 + 1/4), of 1.645.
    assert few_units(4) == pytest.approx(2.353 * 1.25**0.5 / 1.645, rel=0.01)
    assert few_units(0) == 1.0  # nothing was judged: the prior stands as it is


def stretches(judged: Trials) -> dict[int, float]:
    """Return by how much bands of each kind of new question are stretched, by trials of errors twice the band."""
    chosen = Chosen("step", None, None, judged)  # type: ignore[arg-type]
    ratio = np.full(len(judged), 2.0)
    found = {}
    for kind in (DEVICE, WORKLOAD, BOTH):
        asked = replace(judged.questions.take(np.array([0])), kind=np.array([kind], dtype=np.int8))
        found[kind] = chosen._stretch(asked, 0, ratio, 0.5)
    return found


@pytest.mark.parametrize("kind", [WORKLOAD, DEVICE])
def test_what_nobody_judged_is_told_no_more_narrowly_than_what_was(kind: int) -> None:
    found = stretches(trials(kind, 3, 10))
    assert found[BOTH] >= max(found.values())
    assert min(found.values()) >= found[kind] > 2.0


def test_no_band_is_stretched_past_any_use() -> None:
    assert max(stretches(trials(WORKLOAD, 1, 2)).values()) <= MOST_STRETCH
