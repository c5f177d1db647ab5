"""Weighing: how wide the band of a new workload or device is, by how many others were judged."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.predictors.choice.questions import DEVICE, INSIDE, WORKLOAD, Questions
from forerun.predictors.choice.trials import Trials
from forerun.predictors.choice.weighing import MOST_A_UNIT, apart_likeness, few_units


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
