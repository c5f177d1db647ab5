"""Quantiles: the functions of one row of quantiles are each other's inverse, and keep floors."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.domain.quantiles import (
    LEVELS,
    Z95,
    at_probability,
    normal_cdf,
    normal_quantile,
    probability_below,
    spread,
)

MEDIANS = st.floats(1e-9, 1e15)
SIGMAS = st.floats(0.01, 2.0)
EXACT = NormalDist()


@given(st.floats(-40, 40))
def test_the_normal_distribution_is_right_to_2e_7(z: float) -> None:
    assert float(normal_cdf(z)) == pytest.approx(EXACT.cdf(z), abs=2e-7)


def test_the_normal_distribution_rises_and_is_symmetric() -> None:
    z = np.linspace(-8, 8, 4001)
    p = normal_cdf(z)
    assert np.all(np.diff(p) >= 0)
    np.testing.assert_allclose(p + normal_cdf(-z), 1.0, atol=1e-12)
    assert normal_cdf([-np.inf, np.inf]).tolist() == [0.0, 1.0]
    assert np.isnan(normal_cdf(np.nan))


def test_the_quantile_of_a_probability_is_its_inverse() -> None:
    assert normal_quantile(0.95) == pytest.approx(Z95, abs=1e-12)
    for p in (0.001, 0.3, 0.5, 0.999):
        assert EXACT.cdf(normal_quantile(p)) == pytest.approx(p)


@given(MEDIANS, SIGMAS)
def test_a_spread_row_holds_its_levels(median: float, sigma: float) -> None:
    row = spread([median], [sigma])
    assert np.all(np.diff(row) > 0)
    assert row[0, 1] == median
    for level, value in zip(LEVELS, row[0], strict=True):
        assert float(probability_below(row, value)[0]) == pytest.approx(level, abs=1e-6)
        assert float(at_probability(row, level)[0]) == pytest.approx(value, rel=1e-9)


@given(MEDIANS, SIGMAS, SIGMAS, st.floats(0.001, 0.999))
def test_the_value_at_a_probability_has_that_probability(
    median: float, down: float, up: float, p: float
) -> None:
    row = np.array([[median / np.exp(Z95 * down), median, median * np.exp(Z95 * up)]])
    value = at_probability(row, p)
    assert float(probability_below(row, value)[0]) == pytest.approx(p, abs=1e-6)


@given(MEDIANS, SIGMAS, st.floats(0.01, 100))
def test_no_quantile_of_a_spread_is_below_its_floor(
    median: float, sigma: float, share: float
) -> None:
    row = spread([median], [sigma], [median * share])[0]
    assert np.all(row >= median * share)
    assert np.all(np.diff(row) >= 0)
    free = spread([median], [sigma])[0]
    assert np.all(row[free >= median * share] == free[free >= median * share])


def test_nothing_is_believed_below_a_row_that_stands_on_its_floor() -> None:
    row = spread([10.0], [0.5], [10.0])
    assert probability_below(row, 9.999)[0] == 0.0
    assert probability_below(row, 11.0)[0] > 0.5


@given(MEDIANS, st.floats(0.5, 2))
def test_a_sure_number_is_below_a_limit_or_not(median: float, share: float) -> None:
    row = spread([median], 0.0)
    limit = median * share
    assert probability_below(row, limit)[0] == float(median <= limit)
    assert at_probability(row, 0.1)[0] == at_probability(row, 0.9)[0] == median


def test_limits_of_nothing_and_of_everything_are_certain() -> None:
    row = spread([5.0], [0.3])
    assert probability_below(row, 0.0)[0] == 0.0
    assert probability_below(row, np.inf)[0] == 1.0


def test_what_is_not_known_stays_unknown() -> None:
    row = np.full((1, 3), np.nan)
    assert np.isnan(probability_below(row, 1.0)[0])
    assert np.isnan(at_probability(row, 0.9)[0])
    assert np.isnan(probability_below(spread([5.0], [0.3]), np.nan)[0])
