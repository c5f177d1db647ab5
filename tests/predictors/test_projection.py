"""Projection: samples until a target from a metric's values, with a band that noise widens."""

from __future__ import annotations

import math

import numpy as np
import pytest

from forerun.predictors.projection import samples_until

SAMPLES = np.array([1e3, 2e3, 4e3, 8e3, 16e3, 32e3])


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_metric_that_follows_the_logarithm_is_continued(sign: float) -> None:
    values = sign * 0.1 * np.log(SAMPLES)
    found = samples_until(SAMPLES, values, sign * 0.1 * math.log(64e3))
    assert found == pytest.approx((64e3,) * 3, rel=1e-6)


def test_noise_makes_the_band_wide_and_keeps_the_middle_inside() -> None:
    noise = np.random.default_rng(0).normal(0, 0.01, len(SAMPLES))
    low, middle, high = samples_until(SAMPLES, 0.1 * np.log(SAMPLES) + noise, 0.1 * math.log(128e3))
    assert low < middle < high
    assert low < 128e3 < high


def test_what_comes_no_nearer_never_arrives_and_few_values_say_nothing() -> None:
    assert samples_until(SAMPLES, -np.log(SAMPLES), 3.0)[1:] == (math.inf, math.inf)
    low, middle, high = samples_until([10.0, 20.0], [0.1, 0.2], 0.9)
    assert (low, high) == (20.0, math.inf)
    assert math.isnan(middle)
    assert samples_until([], [], 0.9)[0] == 0.0
