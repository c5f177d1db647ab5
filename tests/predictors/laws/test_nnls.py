"""Non-negative least squares: the conditions of an optimum hold, one problem at a time and many at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.predictors.laws.ernest import non_negative
from forerun.predictors.laws.generic_fit import nnls_gram

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


@settings(max_examples=60)
@given(st.integers(1, 7), st.integers(0, 12), st.integers(0, 10_000), st.floats(0.1, 3))
def test_many_problems_at_once_are_each_solved_as_alone(
    k: int, more: int, seed: int, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    n = k + more
    matrix = rng.normal(size=(5, n, k)) * 10.0 ** rng.uniform(-scale, scale, k)
    target = rng.normal(size=(5, n))
    gram = np.einsum("pni,pnj->pij", matrix, matrix)
    found = nnls_gram(gram, np.einsum("pni,pn->pi", matrix, target))
    assert (found >= 0).all()
    for i in range(5):
        (alone,) = non_negative(matrix[i], target[i][:, None])
        assert np.linalg.norm(matrix[i] @ found[i] - target[i]) == pytest.approx(
            np.linalg.norm(matrix[i] @ alone - target[i]), rel=1e-5, abs=1e-6
        )


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
    for (found,) in (
        non_negative(columns, target[:, None]),
        nnls_gram((columns.T @ columns)[None], (columns.T @ target)[None]),
    ):
        assert (found >= 0).all()
        if expected is None:
            assert columns @ found == pytest.approx(target)
        else:
            assert found == pytest.approx(expected)
