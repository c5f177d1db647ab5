"""Pareto fronts and knees against slow oracles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from forerun.search.recommending import knee, pareto_front

COSTS = hnp.arrays(np.float64, st.tuples(st.integers(1, 40), st.integers(2, 3)),
                   elements=st.integers(0, 8).map(float))  # fmt: skip


def dominated(point: np.ndarray, others: np.ndarray) -> bool:
    """Whether some other point is no worse everywhere and better somewhere."""
    return bool(np.any(np.all(others <= point, axis=1) & np.any(others < point, axis=1)))


@given(COSTS)
def test_the_front_is_what_nothing_beats(points: np.ndarray) -> None:
    """No front point is dominated, and every other point is dominated by or equal to one."""
    front = pareto_front(*points.T)
    chosen = points[front]
    assert len(front)
    assert not any(dominated(point, points) for point in chosen)
    assert len(np.unique(chosen, axis=0)) == len(chosen)
    for point in points:
        assert np.any(np.all(chosen <= point, axis=1))


@given(COSTS)
def test_the_front_is_sorted_by_its_first_cost(points: np.ndarray) -> None:
    """The fastest stands first."""
    assert np.all(np.diff(points[pareto_front(*points.T), 0]) >= 0)


def test_rows_without_a_figure_are_left_out() -> None:
    """A job without a price cannot stand on a front of time and cost."""
    front = pareto_front(np.array([1.0, 2.0, 3.0]), np.array([np.nan, 5.0, 6.0]))
    assert front.tolist() == [1]
    assert pareto_front(np.array([np.nan]), np.array([1.0])).tolist() == []


def test_the_knee_is_where_more_money_stops_buying_time() -> None:
    """Halving the time for 5 % more twice, then paying double for 5 %: the knee is the corner."""
    time = np.array([95.0, 100.0, 200.0, 400.0])
    cost = np.array([220.0, 110.0, 105.0, 100.0])
    assert knee(time, cost) == 1


FRONTS = (
    # hours, dollars, and the positions between which a person would see the bend
    ((5.3, 5.86, 9.85, 18.9, 36.7, 72, 141), (40690, 16495, 13864, 13029, 12920, 12682, 12504),
     (2, 3)),
    ((5.72, 6.39, 10.47, 19.97, 37.56, 72.9, 142.89, 281.2, 644.42),
     (43917, 17993, 14735, 14058, 13223, 12830, 12574, 12373, 9876), (2, 4)),
    ((1, 2, 4, 8, 16), (1000, 500, 250, 240, 235), (1, 2)),  # linear scaling, then none
    ((1, 1.1, 1.2, 10), (900, 800, 100, 99), (2, 2)),
    ((1, 9, 10), (101, 100.5, 1), (2, 2)),  # bent outwards: only the ends are worth it
)  # fmt: skip


@pytest.mark.parametrize(("hours", "dollars", "between"), FRONTS)
def test_the_knee_of_a_real_front_is_at_its_bend(
    hours: tuple[float, ...], dollars: tuple[float, ...], between: tuple[int, int]
) -> None:
    """It is neither the fastest and dearest point nor on the long cheap tail."""
    position = knee(np.array(hours, float), np.array(dollars, float))
    assert between[0] <= position <= between[1]


@given(st.floats(1e-3, 1e6), st.floats(1e-3, 1e6))
def test_the_knee_does_not_depend_on_units(hour: float, dollar: float) -> None:
    """Seconds or days, cents or thousands: the same point."""
    hours, dollars, _ = FRONTS[0]
    scaled = knee(np.array(hours) * hour, np.array(dollars) * dollar)
    assert scaled == knee(np.array(hours), np.array(dollars, float))


def test_the_knee_of_a_short_front_is_its_cheapest() -> None:
    """Two points have no bend."""
    assert knee(np.array([1.0, 2.0]), np.array([9.0, 3.0])) == 1
