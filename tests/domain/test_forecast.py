"""Forecasts: rows come out as they went in, and a fit is a probability."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.domain.forecast import Forecasts, is_none
from forerun.domain.quantiles import probability_below, spread


@given(st.floats(1e6, 1e12), st.floats(0.01, 1), st.floats(1e6, 1e12))
def test_a_job_fits_more_surely_in_more_memory(peak: float, sigma: float, memory: float) -> None:
    rows = spread([peak], [sigma])
    small, large = probability_below(rows, memory)[0], probability_below(rows, 2 * memory)[0]
    assert 0 <= small <= large <= 1
    assert (small >= 0.5 - 1e-9) == (peak <= memory) or peak == pytest.approx(memory)


def test_a_peak_at_the_95th_percentile_fits_with_95_per_cent() -> None:
    rows = np.array([[50e9, 60e9, 80e9]] * 3)
    memory = np.array([50e9, 60e9, 80e9])
    assert probability_below(rows, memory) == pytest.approx([0.05, 0.5, 0.95], abs=1e-6)


def test_a_sure_peak_fits_or_does_not() -> None:
    assert probability_below(spread([80e9, 80.1e9], 0.0), 80e9).tolist() == [1.0, 0.0]


def test_blank_forecasts_answer_nothing_and_lend_no_memory_to_one_another() -> None:
    blank = Forecasts.blank(3, "p", "run")
    assert len(blank) == 3
    assert blank.quantity == "run"
    assert np.isnan(blank.seconds).all()
    assert blank.answered.tolist() == [True, True, True]
    blank.distance[0] = 1.0
    assert np.isnan(blank.fit_probability[0])
    blank.declined[1] = "no such device"
    assert blank.answered.tolist() == [True, False, True]


def test_a_row_and_a_part_say_what_the_columns_say() -> None:
    full = Forecasts.blank(2, "p")
    full.seconds[:] = [[1, 2, 3], [4, 5, 6]]
    full = Forecasts(**{**vars(full), "parts": {"forward": np.array([2.0, 5.0])},
                        "samples_to_target": np.array([[7.0, 8, 9], [1, 2, 3]])})  # fmt: skip
    assert full[1].seconds == (4.0, 5.0, 6.0)
    assert full[1].parts == {"forward": 5.0}
    last = full.take(np.array([1]))
    assert last[0].seconds == full[1].seconds
    assert last[0].samples_to_target == (1.0, 2.0, 3.0)
    assert len(full.take(np.array([False, False]))) == 0


def test_none_is_told_from_blank_and_nan() -> None:
    assert is_none(np.array([None, "", "x", np.nan], dtype=object)).tolist() == [
        True, False, False, False,
    ]  # fmt: skip
