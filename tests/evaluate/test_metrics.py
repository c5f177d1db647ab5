"""Metrics are what their names say, against values worked out by hand or by brute force."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.evaluate import scoring as metrics
from forerun.evaluate.scoring import kendall_tau

VALUES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=40)


def brute_tau(x: list[int], y: list[int]) -> float:
    """Kendall's tau-b from its definition."""
    difference = tied_x = tied_y = pairs = 0
    for i, j in combinations(range(len(x)), 2):
        a, b = np.sign(x[i] - x[j]), np.sign(y[i] - y[j])
        difference += a * b
        tied_x, tied_y, pairs = tied_x + (a == 0), tied_y + (b == 0), pairs + 1
    scale = math.sqrt((pairs - tied_x) * (pairs - tied_y))
    return difference / scale if scale else math.nan


@given(VALUES)
def test_tau_is_its_definition(points: list[tuple[int, int]]) -> None:
    x, y = [p[0] for p in points], [p[1] for p in points]
    found = kendall_tau(np.array(x, dtype=float), np.array(y, dtype=float))
    assert found == pytest.approx(brute_tau(x, y), nan_ok=True)


def test_tau_of_many_rows_is_that_of_all_their_pairs() -> None:
    """Beyond the block that is counted at once, merging counts the same."""
    rng = np.random.default_rng(1)
    x, y = rng.integers(0, 50, 500), rng.integers(0, 50, 500)
    assert kendall_tau(x.astype(float), y.astype(float)) == pytest.approx(
        brute_tau(x.tolist(), y.tolist())
    )


def test_tau_compares_only_within_groups() -> None:
    """Two groups in the right order each, and far apart the wrong way round."""
    forecast = np.array([1.0, 2.0, 3.0, 0.1, 0.2, 0.3])
    measured = np.array([1.0, 2.0, 3.0, 10.0, 20.0, 30.0])
    groups = np.array([0, 0, 0, 1, 1, 1])
    assert kendall_tau(forecast, measured, groups) == 1.0
    assert kendall_tau(forecast, measured) < 1.0


def test_tau_of_a_million_pairs_and_more_takes_no_time() -> None:
    x = np.arange(200_000, dtype=float)
    assert kendall_tau(x, -x) == -1.0


def test_percentage_errors_are_of_the_measured_value() -> None:
    errors = metrics.absolute_percentage_errors(np.array([1.0, 3.0]), np.array([2.0, 2.0]))
    assert errors.tolist() == [50.0, 50.0]


def test_bias_is_below_zero_for_optimists_and_symmetric() -> None:
    measured = np.array([2.0, 2.0, 2.0])
    low, high = metrics.bias(measured / 2, measured), metrics.bias(measured * 2, measured)
    assert low == pytest.approx(-math.log(2))
    assert low == pytest.approx(-high)


def test_inside_counts_both_edges() -> None:
    rows = np.array([[1.0, 2.0, 3.0]] * 4)
    assert metrics.inside(rows, np.array([0.9, 1.0, 3.0, 3.1])).tolist() == [
        False, True, True, False,
    ]  # fmt: skip


def test_the_interval_of_a_share_is_wilsons() -> None:
    """8 of 10: 0.490 to 0.943, as tables of Wilson's interval have it."""
    low, high = metrics.share_interval(8, 10)
    assert (round(low, 3), round(high, 3)) == (0.490, 0.943)


@given(st.integers(1, 500), st.integers(0, 500))
def test_the_interval_holds_the_share_and_stays_in_0_to_1(rows: int, hits: int) -> None:
    hits = min(hits, rows)
    low, high = metrics.share_interval(hits, rows)
    assert 0 <= low <= hits / rows + 1e-12
    assert hits / rows - 1e-12 <= high <= 1


def test_widths_are_the_ratios_of_the_edges() -> None:
    assert metrics.band_widths(np.array([[1.0, 1.0, 2.0], [2.0, 3.0, 6.0]])).tolist() == [2.0, 3.0]


def test_detection_counts_hits_against_names_and_against_truth() -> None:
    foreseen = np.array([True, True, True, False, False])
    happened = np.array([True, True, False, True, False])
    found = metrics.detection(foreseen, happened)
    assert (found.precision, found.recall) == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert found.f1 == pytest.approx(2 / 3)
    assert (found.rows, found.happened) == (5, 3)


def test_a_detector_that_names_nothing_scores_zero() -> None:
    happened = np.array([True, False])
    assert metrics.detection(np.array([False, False]), happened).f1 == 0.0


def test_metrics_of_no_rows_are_nan() -> None:
    none = np.empty(0)
    values = (
        metrics.mean(none), metrics.quantile(none, 0.5), metrics.bias(none, none),
        metrics.mean(metrics.band_widths(np.empty((0, 3)))), metrics.share_interval(0, 0)[0], kendall_tau(none, none),
    )  # fmt: skip
    assert all(math.isnan(v) for v in values)
