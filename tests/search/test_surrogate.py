"""The surrogate: measured values are interpolated, lower bounds agree with sampling, gains keep limits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.predictors.gaussian_process import hazard, matern
from forerun.search.searchers import expected_gain, gain_within
from forerun.search.surrogate import Kernels, believe

LINE = np.linspace(0, 1, 5)[:, None]


def kernels(noise: float = 0.2) -> Kernels:
    """Return one draw over five points of a line."""
    return Kernels(
        LINE, np.array([[0.5]]), np.array([1.0]), np.array([noise]), np.array([[0.5]]),
        level_sd=1.0,
    )  # fmt: skip


def test_measured_values_are_met_where_there_is_little_noise() -> None:
    at, values = np.array([0, 2, 4]), np.array([1.0, 3.0, 2.0])
    belief = believe(kernels(1e-3), at, values, np.zeros(3, dtype=bool), 2.0)
    assert belief.mean[0, at] == pytest.approx(values, abs=1e-3)
    assert (belief.variance[0, at] < 1e-5).all()
    assert (belief.variance[0, [1, 3]] > 1e-3).all()


def test_lower_bounds_agree_with_a_million_weighted_draws() -> None:
    """Importance sampling of the same model: two of three runs are lower bounds."""
    at, values = np.array([0, 1, 2]), np.array([0.3, 0.8, 0.5])
    bound = np.array([False, True, True])
    belief = believe(kernels(), at, values, bound, 0.0)
    covariance = kernels().against(np.arange(5))[0]
    f = np.random.default_rng(0).multivariate_normal(np.zeros(5), covariance, 200_000)
    from statistics import NormalDist

    tail = np.interp((f - np.array([0.3, 0.8, 0.5, 0, 0])) / 0.2, *_table(NormalDist()))
    weight = np.exp(-0.5 * ((0.3 - f[:, 0]) / 0.2) ** 2) * tail[:, 1] * tail[:, 2]
    mean = weight @ f / weight.sum()
    variance = weight @ (f - mean) ** 2 / weight.sum()
    assert belief.mean[0] == pytest.approx(mean, abs=0.03)
    assert belief.variance[0] == pytest.approx(variance, rel=0.05)


def _table(normal: object) -> tuple[np.ndarray, np.ndarray]:
    z = np.linspace(-12, 12, 4001)
    return z, np.array([normal.cdf(v) for v in z])  # type: ignore[attr-defined]


def test_a_bound_raises_what_is_believed_and_a_far_one_says_nothing() -> None:
    at, values = np.array([0, 2]), np.array([0.0, 1.0])
    none = believe(kernels(), at[:1], values[:1], np.zeros(1, dtype=bool), 0.0).mean[0]
    high = believe(kernels(), at, values, np.array([False, True]), 0.0).mean[0]
    low = believe(kernels(), at, np.array([0.0, -9.0]), np.array([False, True]), 0.0).mean[0]
    assert high[2] > none[2] + 0.5
    assert low == pytest.approx(none, abs=0.01)


@settings(max_examples=60, deadline=None)
@given(best=st.floats(-2, 2), limit=st.floats(-3, 3), mean=st.floats(-3, 3), sd=st.floats(0.05, 2))
def test_the_gain_within_a_limit_is_what_sampling_says(
    best: float, limit: float, mean: float, sd: float
) -> None:
    y = mean + sd * np.linspace(-8, 8, 40_001)
    density = np.exp(-0.5 * ((y - mean) / sd) ** 2) / sd / np.sqrt(2 * np.pi)
    expected = np.sum(np.maximum(best - y, 0) * (y < limit) * density) * (y[1] - y[0])
    found = gain_within(best, np.array([limit]), np.array([[mean]]), np.array([[sd]]))[0, 0]
    assert found == pytest.approx(expected, abs=1e-3 + 1e-3 * sd)
    without = expected_gain(best, np.array([mean]), np.array([sd]))[0]
    assert found <= without + 1e-9


def test_the_hazard_meets_its_continued_fraction() -> None:
    """Mill's ratio at known places (Abramowitz and Stegun, table 26.2, by hand)."""
    assert hazard(np.array([0.0]))[0] == pytest.approx(np.sqrt(2 / np.pi), rel=1e-5)
    below, above = hazard(np.array([3.0])), hazard(np.array([3.0001]))
    assert below[0] == pytest.approx(above[0], rel=1e-3)
    assert hazard(np.array([30.0]))[0] == pytest.approx(30.033, rel=1e-4)
    assert (np.diff(hazard(np.linspace(-6, 12, 200))) > 0).all()


def test_the_correlation_is_one_at_no_distance_and_falls() -> None:
    values = matern(np.sqrt(np.linspace(0, 9, 50)))
    assert values[0] == 1
    assert (np.diff(values) < 0).all()
    assert matern(np.array([1.0]))[0] == pytest.approx((1 + 5**0.5 + 5 / 3) * np.exp(-(5**0.5)))


def test_a_rough_draw_says_less_of_neighbours_and_as_much_of_what_was_run() -> None:
    """Exp(-|x - x'| / length) of four points a quarter apart, by hand; other draws keep Matern."""
    both = Kernels(
        LINE, np.full((2, 1), 0.5), np.ones(2), np.full(2, 1e-3), np.zeros((2, 1)), level_sd=0.0,
        rough=np.array([False, True]),
    )  # fmt: skip
    across = both.against(np.array([0]))[:, :, 0]
    assert across[0] == pytest.approx(matern(LINE[:, 0] / 0.5))
    assert across[1] == pytest.approx(np.exp(-LINE[:, 0] / 0.5))
    belief = believe(both, np.array([0]), np.array([1.0]), np.zeros(1, dtype=bool), 0.0)
    assert belief.mean[:, 0] == pytest.approx(1.0, abs=1e-3)
    assert belief.variance[1, 1] > belief.variance[0, 1]
