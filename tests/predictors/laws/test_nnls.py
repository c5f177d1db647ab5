"""Non-negative least squares: the conditions of an optimum hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.predictors.laws.fitting import non_negative

# Seeds, so that a failure is a case anybody can make again; rows, columns and decades of scale.
CASES = st.tuples(
    st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 5), st.integers(0, 9)
)  # fmt: skip


@given(CASES)
def test_the_solution_meets_the_conditions_of_an_optimum(drawn: tuple[int, int, int, int]) -> None:
    """Also where columns differ by decades."""
    seed, n, k, decades = drawn
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(n, k)) * 10.0 ** rng.uniform(-decades, decades, k)
    target = rng.normal(size=n) * 10.0 ** rng.uniform(-3, 3)
    (x,) = non_negative(matrix, target[:, None])
    lengths = np.linalg.norm(matrix, axis=0)
    gain = (matrix / lengths).T @ (target - matrix @ x) / np.linalg.norm(target)
    assert (x >= 0).all()
    assert (gain <= 1e-8).all(), "a coefficient of zero would gain by growing"
    assert np.abs(gain[x > 0]).max(initial=0.0) <= 1e-8, "a positive coefficient is not at rest"


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        ([[1.0, 1.0], [2.0, 2.0]], None),  # equal: either of them, or both
        ([[1.0, 1.0, 0.0], [2.0, 2.0, 0.0]], None),
        ([[0.0, 1.0], [0.0, 2.0]], [0.0, 2.0]),
        ([[1.0, 0.0], [2.0, 0.0]], [2.0, 0.0]),
        ([[0.0, 0.0], [0.0, 0.0]], [0.0, 0.0]),
        ([[1.0, -1.0], [2.0, -2.0]], [2.0, 0.0]),  # the second would have to be negative
    ],
)
def test_columns_that_are_equal_or_empty_do_no_harm(
    matrix: list[list[float]], expected: list[float] | None
) -> None:
    columns, target = np.array(matrix), np.array([2.0, 4.0])
    (found,) = non_negative(columns, target[:, None])
    assert (found >= 0).all()
    if expected is None:
        assert columns @ found == pytest.approx(target)
    else:
        assert found == pytest.approx(expected)
