"""The Gaussian process: it passes through what it saw, knows what it did not, and is told by evidence."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.predictors.gaussian_process import Evidence, GaussianProcess, fitted_gp
from forerun.predictors.saved import plain, restored


def wave(n: int, noise: float = 0.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return points (n, 2) of which the first feature alone matters, and values (n,)."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 1, (n, 2))
    return x, np.sin(6 * x[:, 0]) + noise * rng.normal(size=n)


@settings(max_examples=20)
@given(st.integers(3, 20), st.integers(1, 4), st.integers(0, 1000))
def test_the_gradient_is_that_of_the_evidence(n: int, d: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    c = seed % 3
    x, y, theta = rng.normal(size=(n, d)), rng.normal(size=n), rng.normal(0, 0.4, d + 2 + 2 * c)
    labels = rng.integers(0, 3, (n, c))
    ratio, within = rng.uniform(0.5, 2, n), (float(seed % 4), 0.3)
    problem = Evidence(x, labels, y, ratio, ("linear", "zero")[seed % 2], within, seed % 4 < 2)
    _, gradient = problem.negative(theta)
    for i in range(len(theta)):
        step = np.eye(len(theta))[i] * 1e-5
        slope = (problem.negative(theta + step)[0] - problem.negative(theta - step)[0]) / 2e-5
        assert gradient[i] == pytest.approx(slope, rel=1e-4, abs=1e-5)


def test_a_smooth_function_is_foretold_between_its_points() -> None:
    x, y = wave(40)
    gp = fitted_gp(x, y)
    new, truth = wave(200, seed=1)
    mean, sd = gp.predict(new)
    assert np.median(np.abs(mean - truth)) < 0.01
    assert gp.lengths[1] > 3 * gp.lengths[0]  # the second feature does not matter
    assert (sd > 0).all()


def test_the_band_holds_nine_of_ten_new_readings_and_the_noise_is_found() -> None:
    x, y = wave(80, noise=0.1)
    gp = fitted_gp(x, y)
    new, readings = wave(500, noise=0.1, seed=2)
    mean, sd = gp.predict(new)
    reach = 1.645 * np.sqrt(sd**2 + gp.noise_sd**2)
    assert 0.84 <= np.mean(np.abs(readings - mean) <= reach) <= 0.96
    assert gp.noise_sd == pytest.approx(0.1, rel=0.3)


def test_far_away_it_is_unsure_and_a_linear_mean_goes_on() -> None:
    x = np.linspace(0, 1, 20)[:, None]
    y = 3 + 5 * x[:, 0]
    (flat,), (unsure,) = fitted_gp(x, y).predict([[1e4]])
    (line,), _ = fitted_gp(x, y, mean="linear").predict([[30.0]])
    _, (near,) = fitted_gp(x, y).predict([[0.5]])
    assert line == pytest.approx(153, rel=0.05)
    assert abs(flat - 5.5) < 50
    assert unsure > 20 * near


def test_left_out_values_are_foretold_as_a_process_without_them_would() -> None:
    x, y = wave(15, noise=0.05)
    gp = fitted_gp(x, y)
    errors, sd = gp.left_out()
    covariance = gp.root @ gp.root.T
    keep = np.arange(1, 15)
    solved = np.linalg.solve(covariance[np.ix_(keep, keep)], covariance[keep, 0])
    standard = (y - gp.middle) / gp.unit
    assert errors[0] == pytest.approx(gp.unit * (standard[0] - solved @ standard[1:]), rel=1e-6)
    variance = covariance[0, 0] - solved @ covariance[keep, 0]
    assert sd[0] == pytest.approx(gp.unit * np.sqrt(variance), rel=1e-6)


def test_the_joint_mean_and_covariance_are_those_of_the_points_alone() -> None:
    x, y = wave(12)
    gp = fitted_gp(x, y)
    new = np.random.default_rng(3).uniform(0, 2, (4, 2))
    mean, covariance = gp.joint(new)
    assert mean == pytest.approx(gp.predict(new)[0])
    assert np.sqrt(np.diag(covariance)) == pytest.approx(gp.predict(new)[1], rel=1e-3, abs=1e-4)
    assert np.linalg.eigvalsh(covariance).min() > -1e-9


def test_a_reading_not_to_be_believed_moves_nothing() -> None:
    x, y = wave(30)
    wrong = y.copy()
    wrong[4] += 50
    ratio = np.ones(30)
    ratio[4] = 1e4
    mean, _ = fitted_gp(x, wrong, noise_ratio=ratio).predict(x)
    assert np.abs(mean - y)[np.arange(30) != 4].max() < 0.2


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_points_constant_features_and_equal_values_are_no_failure(n: int) -> None:
    x = np.stack([np.arange(n), np.full(n, 7.0), np.arange(n)], axis=1)
    mean, sd = fitted_gp(x, np.full(n, 2.0), mean="linear").predict(x)
    assert mean == pytest.approx(np.full(n, 2.0), abs=0.3)
    assert np.isfinite(sd).all()


def test_a_saved_process_foretells_as_it_did() -> None:
    x, y = wave(20, noise=0.02)
    gp = fitted_gp(x, y, mean="linear")
    again = restored(GaussianProcess, json.loads(json.dumps(plain(gp))))
    for mine, theirs in zip(gp.predict(x + 0.3), again.predict(x + 0.3), strict=True):
        assert theirs == pytest.approx(mine, rel=1e-6, abs=1e-9)


def in_sessions(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return 12 sessions of 6 points of a wave, each session off by a factor of its own."""
    x, y = wave(72, noise=0.02, seed=seed)
    session = np.repeat(np.arange(12), 6)
    return x, y + np.random.default_rng(7).normal(0, 0.3, 12)[session], session[:, None]


def test_a_class_has_an_offset_and_another_class_is_as_unsure_as_classes_differ() -> None:
    x, y, session = in_sessions()
    gp = fitted_gp(x, y, labels=session)
    same, sure = gp.predict(x[:6], session[:6])
    _, unsure = gp.predict(x[:6], np.full((6, 1), -1))
    assert np.abs(same - y[:6]).max() < 0.1
    assert 0.15 < np.median(unsure) < 0.6
    assert np.median(sure) < 0.06


def test_a_class_is_left_out_as_a_process_without_it_would_foretell() -> None:
    x, y, session = in_sessions()
    gp = fitted_gp(x, y, labels=session)
    errors, sd = gp.left_out(gp.labels[:, 0])
    rest = np.arange(72) >= 6
    without = gp.given(gp.x[rest], gp.labels[rest], gp.values[rest], gp.ratio[rest])
    mean, spread = without.predict(x[:6], np.full((6, 1), -1))
    assert errors[:6] == pytest.approx(y[:6] - mean, rel=1e-6)
    noise = gp.unit**2 * gp.scales.noise_variance(np.ones(6))
    assert sd[:6] == pytest.approx(np.sqrt(spread**2 + noise), rel=1e-6)


def test_a_reading_far_off_is_doubted() -> None:
    x, y = wave(60, noise=0.1)
    wrong = y.copy()
    wrong[4] += 3
    gp = fitted_gp(x, wrong)
    doubted = gp.doubted()
    rest = np.arange(60) != 4
    truth = np.sin(6 * x[:, 0])
    assert np.abs(doubted.predict(x)[0] - truth).max() < np.abs(gp.predict(x)[0] - truth).max()
    assert doubted.ratio[4] > 3 * np.median(doubted.ratio[rest])
    assert doubted.values == pytest.approx(gp.values)
