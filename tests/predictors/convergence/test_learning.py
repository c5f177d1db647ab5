"""Learning: when a metric reaches its target, from the part of the curve that is there."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from forerun.errors import RequestError
from forerun.predictors.convergence.learning import arrival

FloatArray = NDArray[np.float64]


def curve(samples: FloatArray, noise: float = 0.0, seed: int = 0) -> FloatArray:
    """Return an accuracy that rises towards 0.95."""
    rng = np.random.default_rng(seed)
    return np.asarray(
        0.95 - 0.85 * (1 + samples / 2000) ** -0.8 + noise * rng.standard_normal(len(samples))
    )


def test_a_target_that_was_met_is_where_it_was_met() -> None:
    found = arrival(np.array([1.0, 2, 3, 4]), np.array([0.1, 0.5, 0.7, 0.6]), 0.6)
    assert found.samples == (3.0, 3.0, 3.0)
    assert found.probability == 1.0


def test_half_the_curve_foresees_the_rest_and_the_band_holds() -> None:
    ahead = np.linspace(1000, 200_000, 4000)
    reached = ahead[np.argmax(curve(ahead) >= 0.85)]
    inside, errors = [], []
    for seed in range(20):
        seen = np.arange(1, 13) * reached / 24
        low, middle, high = arrival(seen, curve(seen, 0.005, seed), 0.85).samples
        inside.append(low <= reached <= high)
        errors.append(abs(middle / reached - 1))
    assert np.mean(inside) >= 0.8
    assert np.median(errors) < 0.25


def test_a_loss_falls_to_its_target() -> None:
    seen = np.arange(1, 15) * 500.0
    low, middle, high = arrival(seen, 1 - curve(seen), 0.3, rises=False).samples
    assert seen[-1] < low <= middle <= high < math.inf


def test_a_target_above_the_curve_is_unlikely() -> None:
    seen = np.arange(1, 30) * 4000.0
    found = arrival(seen, curve(seen), 1.5)
    assert found.probability < 0.2
    assert found.samples[1] == math.inf


def test_few_points_and_broken_figures_are_refused() -> None:
    with pytest.raises(RequestError, match="4 points"):
        arrival(np.array([1.0, 2, 3]), np.array([0.1, 0.2, 0.3]), 0.5)
    with pytest.raises(RequestError, match="not finite"):
        arrival(np.array([1.0, 2, 3, 4]), np.array([0.1, np.nan, 0.3, 0.4]), 0.5)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.floats(-1e6, 1e6), min_size=4, max_size=12), st.floats(-1e6, 1e6), st.booleans(),
    st.integers(0, 10**9), st.integers(1, 10**9),
)  # fmt: skip
def test_any_curve_has_an_arrival_in_order_and_not_before_now(
    values: list[float], target: float, rises: bool, first: int, pace: int
) -> None:
    seen = first + pace * np.arange(len(values), dtype=float)
    found = arrival(seen, np.array(values), target, rises)
    low, middle, high = found.samples
    assert low <= middle <= high
    assert 0 <= found.probability <= 1
    met = np.array(values) >= target if rises else np.array(values) <= target
    assert low > seen[-1] if not met.any() else low == seen[np.argmax(met)]
