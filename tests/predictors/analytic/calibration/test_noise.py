"""Noise: what parameters take up of few runs is not taken for runs that repeat well."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.predictors.analytic.calibration.fitting import PRIOR_SCALE, leverage, scale_of

ONE = np.zeros(3, dtype=np.int64)  # setting
USUAL = np.full(3, PRIOR_SCALE)


def test_runs_that_parameters_pass_through_say_nothing_of_noise() -> None:
    slopes, prior = np.eye(3), np.full(3, 1e-6)
    taken = leverage(slopes, np.ones(3), prior)
    assert taken == pytest.approx(np.ones(3), abs=1e-5)
    assert scale_of(np.zeros(3), np.ones(3), ONE, USUAL, taken) == pytest.approx(
        np.full(3, PRIOR_SCALE), 1e-3
    )
    free = leverage(slopes, np.ones(3), np.full(3, 1e6))
    assert free == pytest.approx(np.zeros(3), abs=1e-5)
    assert scale_of(np.zeros(3), np.ones(3), ONE, USUAL, free)[0] < 0.8 * PRIOR_SCALE


def test_three_runs_scatter_as_widely_in_the_mean_as_they_were_drawn() -> None:
    """The median deviation of three from their own median is two thirds of what it ought to be."""
    drawn = np.random.default_rng(0).normal(0.0, 0.3, (3000, 3))
    found = [scale_of(one, np.full(3, 1e9), ONE, USUAL, None)[0] for one in drawn]
    assert np.mean(found) == pytest.approx(0.3, rel=0.05)


def test_fitted_residuals_are_widened_by_what_the_fit_took_of_them() -> None:
    rng, setting = np.random.default_rng(1), np.zeros(40, dtype=np.int64)
    found = []
    for _ in range(200):
        slopes, y = rng.normal(size=(40, 20)), rng.normal(0.0, 0.3, 40)
        left = y - slopes @ np.linalg.lstsq(slopes, y, rcond=None)[0]
        taken = leverage(slopes, np.ones(40), np.full(20, 1e-9))
        found.append(scale_of(left, np.full(40, 1e9), setting, np.full(40, PRIOR_SCALE), taken)[0])
    assert np.mean(found) == pytest.approx(0.3, rel=0.05)
