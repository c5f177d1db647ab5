"""Chances: of fitting, of each limit, and of all of them together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.domain.forecast import MOST_SURE
from forerun.domain.objective import Limits
from forerun.domain.quantiles import at_probability, probability_below, spread
from forerun.domain.recommendation import limit_chances

RUN = spread([3600.0, 7200.0], [0.3, 0.5])
FITS = np.array([0.9, 0.4])


def test_without_a_limit_there_is_the_chance_of_fitting_alone() -> None:
    found = limit_chances(RUN, RUN, FITS, Limits())
    assert list(found) == ["fits"]
    assert found["fits"].tolist() == FITS.tolist()


@given(st.floats(100, 1e5), st.floats(1, 1e4), st.floats(0.1, 100))
def test_all_is_the_tighter_limit_and_the_memory(deadline, budget, price) -> None:
    """Money is time at a price, so that the two limits are one."""
    found = limit_chances(RUN, RUN * price, FITS, Limits(deadline, budget))
    tighter = np.minimum(deadline, budget / price)
    np.testing.assert_allclose(found["all"], FITS * probability_below(RUN, tighter), atol=1e-6)


def test_a_limit_at_a_quantile_is_met_with_its_probability() -> None:
    limit = float(at_probability(RUN[:1], 0.8)[0])
    assert limit_chances(RUN[:1], RUN[:1], FITS[:1], Limits(limit))["deadline"][0] == pytest.approx(
        0.8, abs=1e-6
    )


def test_what_has_no_price_keeps_no_budget_that_is_known() -> None:
    nothing = np.full((2, 3), np.nan)
    found = limit_chances(RUN, nothing, FITS, Limits(7200.0, 10.0))
    assert np.isnan(found["budget"]).all()
    assert np.isnan(found["all"]).all()
    assert np.isfinite(found["deadline"]).all()


def test_what_never_ends_misses_its_deadline() -> None:
    endless = np.full((1, 3), np.inf)
    assert limit_chances(endless, endless, FITS[:1], Limits(1e9))["deadline"][0] == 0.0


def test_no_chance_on_a_device_without_a_run_is_above_99_in_100() -> None:
    """The doubt is one: of all together no less is left than of each."""
    sure, limits = np.array([0.9999, 0.5]), Limits(1e7, 1e7)
    known = limit_chances(RUN, RUN, sure, limits, np.array([False, False]))
    assert known["all"][0] > 0.999
    found = limit_chances(RUN, RUN, sure, limits, np.array([True, True]))
    assert {name: column[0] for name, column in found.items()} == dict.fromkeys(known, MOST_SURE)
    assert found["fits"][1] == found["all"][1] == 0.5
