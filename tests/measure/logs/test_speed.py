"""Speed: flicker noise has its Allan variance, and its band holds what such noise does."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.measure.logs.steady import SpeedBlocks, blocks_of, flicker_variance

DRAWS = 2000


def flicker(n: int, rng: np.random.Generator) -> np.ndarray:
    """Return noise (n,) with a spectrum of 1/f, of Allan deviation about 1, by its Fourier terms."""
    frequencies = np.fft.rfftfreq(8 * n)[1:]
    size = np.sqrt(1 / frequencies) * np.exp(2j * np.pi * rng.random(len(frequencies)))
    noise = np.fft.irfft(np.r_[0, size], 8 * n)[:n]
    return np.asarray(noise / np.sqrt(0.5 * np.mean(np.diff(noise) ** 2)))


def stretch(logs: np.ndarray, each: float = 1.0) -> SpeedBlocks:
    return blocks_of(np.full(len(logs), each), each * np.exp(logs))[0]


@pytest.mark.parametrize("length", [0.01, 1.0, 1e6])
def test_means_of_neighbouring_blocks_of_any_length_differ_as_the_allan_variance_says(
    length: float,
) -> None:
    """Half the mean square of their difference is the Allan variance: 1, in these units."""
    assert flicker_variance(length, length) == pytest.approx(2.0)
    assert flicker_variance(length, 9 * length) > 2.0, "a longer rest wanders further"


@pytest.mark.parametrize("seen", [20, 100])
def test_the_band_holds_the_mean_of_the_rest_of_flicker_noise(seen: int) -> None:
    held = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        logs = 0.1 * flicker(4 * seen, rng)
        draws = stretch(logs[:seen]).mean_of_rest([], 3.0 * seen, rng, DRAWS)
        low, high = np.quantile(draws, [0.05, 0.95])
        held.append(low <= logs[seen:].mean() <= high)
    assert 0.83 <= np.mean(held) <= 1.0


def test_many_independent_steps_make_the_mean_sure_and_flicker_does_not() -> None:
    rng = np.random.default_rng(1)
    white = stretch(0.1 * rng.standard_normal(120)).mean_of_rest([], 120.0, rng, DRAWS)
    pink = stretch(0.1 * flicker(120, rng)).mean_of_rest([], 120.0, rng, DRAWS)
    assert np.std(white) < 0.35 * np.std(pink)


def test_the_unit_of_steps_does_not_matter() -> None:
    logs = 0.1 * flicker(60, np.random.default_rng(2))
    one, other = (
        stretch(logs, each).mean_of_rest([], 50 * each, np.random.default_rng(0), DRAWS)
        for each in (1e-3, 1e4)
    )
    assert np.allclose(one, other, atol=1e-6)


def test_a_change_of_level_is_told_from_drift_and_moves_the_mean() -> None:
    rng = np.random.default_rng(3)
    logs = np.r_[np.zeros(40), np.full(20, 0.5)] + 0.03 * rng.standard_normal(60)
    seen = stretch(logs)
    assert seen.changes() == [40]
    assert np.median(seen.mean_of_rest([40], 60.0, rng, DRAWS)) == pytest.approx(0.5, abs=0.03)


def test_a_wander_is_no_change_of_level() -> None:
    changes = [
        len(stretch(0.1 * flicker(60, np.random.default_rng(seed))).changes()) for seed in range(10)
    ]
    assert np.mean(np.array(changes) > 0) <= 0.2
