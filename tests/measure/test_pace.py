"""Pace: the band of what is left holds what comes, before and after pieces have ended."""

from __future__ import annotations

import math

import numpy as np
import pytest

from forerun.measure.pace import Pace


@pytest.mark.parametrize("prior", [0.4, math.nan])
@pytest.mark.parametrize("done", [0, 1, 2, 5, 20])
def test_nine_in_ten_simulated_campaigns_end_within_their_bands(prior: float, done: int) -> None:
    """Forecasts are off by a factor that all runs share, and by one of each run's own."""
    if math.isnan(prior) and done < 2:
        return
    rng, spread = np.random.default_rng(done), 0.4 / math.sqrt(2)
    inside, below = [], []
    for _ in range(250):
        forecasts = np.exp(rng.normal(2.0, 0.7, done + int(rng.integers(1, 30))))
        off = np.exp(rng.normal(0.0, spread) + rng.normal(0.0, spread, len(forecasts)))
        took, pace = forecasts * off, Pace(prior)
        for one, forecast in zip(took[:done], forecasts[:done], strict=True):
            pace.count(one, forecast)
        left = forecasts[done:]
        band = pace.left(left.sum(), (left**2).sum() / left.sum() ** 2)
        assert band is not None
        assert band[0] <= band[1] <= band[2]
        truth = took[done:].sum()
        inside.append(band[0] <= truth <= band[2])
        below.append(truth < band[1])
    assert 0.86 <= np.mean(inside) <= 0.98
    assert 0.40 <= np.mean(below) <= 0.60


def test_the_band_narrows_as_pieces_end_alike() -> None:
    widths, rng = [], np.random.default_rng(1)
    for count in (1, 4, 16, 64):
        pace = Pace(0.5)
        for log in rng.normal(0.7, 0.1, count):
            pace.count(math.exp(log))
        low, middle, high = pace.left(100.0, 0.01) or (math.nan,) * 3
        widths.append(math.log(high / low))
    assert widths == sorted(widths, reverse=True)
    assert middle == pytest.approx(100 * math.exp(0.7), rel=0.1)


def test_nothing_is_said_before_anything_is_known() -> None:
    pace = Pace()
    assert pace.left(10.0) is None
    pace.count(2.0)
    assert pace.left(10.0) is None
    pace.count(2.0)
    assert pace.left(10.0) == pytest.approx((20.0, 20.0, 20.0))


def test_no_more_is_foreseen_than_can_be() -> None:
    pace = Pace(1.0)
    assert pace.left(100.0, most=110.0)[2] == 110.0  # type: ignore[index]
    assert pace.left(0.0) == (0.0, 0.0, 0.0)
    assert pace.left(100.0, most=-1.0) == (0.0, 0.0, 0.0)
    for took in (1e-300, 1e300, 0.0):
        pace.count(took)
    assert np.isfinite(pace.left(100.0)).all()


def test_a_number_of_pieces_that_is_not_known_widens_the_band() -> None:
    pace = Pace()
    for took in (9.0, 10.0, 11.0, 10.0):
        pace.count(took)
    exact, some = pace.left(10.0, 0.1), pace.left(np.arange(11.0), 0.1)
    assert exact is not None
    assert some is not None
    assert some[0] < 10.0 < exact[0] < some[2]
