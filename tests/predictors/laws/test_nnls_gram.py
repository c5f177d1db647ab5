"""NNLS of many problems at once: each as the solver of one problem finds it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.predictors.laws.generic_solve import nnls_gram
from forerun.predictors.laws.nnls import nnls


@settings(max_examples=60)
@given(st.integers(1, 7), st.integers(0, 12), st.integers(0, 10_000), st.floats(0.1, 3))
def test_every_problem_is_solved_as_alone(k: int, more: int, seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    n = k + more
    matrix = rng.normal(size=(5, n, k)) * 10.0 ** rng.uniform(-scale, scale, k)
    target = rng.normal(size=(5, n))
    gram = np.einsum("pni,pnj->pij", matrix, matrix)
    found = nnls_gram(gram, np.einsum("pni,pn->pi", matrix, target))
    assert (found >= 0).all()
    for i in range(5):
        alone = np.linalg.norm(matrix[i] @ nnls(matrix[i], target[i]) - target[i])
        assert np.linalg.norm(matrix[i] @ found[i] - target[i]) == pytest.approx(
            alone, rel=1e-5, abs=1e-6
        )


def test_equal_columns_and_columns_of_zeros_have_a_solution() -> None:
    matrix = np.array([[1.0, 1.0, 0.0], [2.0, 2.0, 0.0], [3.0, 3.0, 0.0]])
    target = np.array([2.0, 4.0, 6.0])
    (found,) = nnls_gram((matrix.T @ matrix)[None], (matrix.T @ target)[None])
    assert matrix @ found == pytest.approx(target)
    assert found[2] == 0.0


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        ([[1.0, 1.0], [2.0, 2.0]], None),  # equal: either of them, or both
        ([[0.0, 1.0], [0.0, 2.0]], [0.0, 2.0]),
        ([[1.0, 0.0], [2.0, 0.0]], [2.0, 0.0]),
        ([[0.0, 0.0], [0.0, 0.0]], [0.0, 0.0]),
        ([[1.0, -1.0], [2.0, -2.0]], [2.0, 0.0]),  # the second would have to be negative
    ],
)
def test_two_columns_that_are_alike_or_empty(
    matrix: list[list[float]], expected: list[float] | None
) -> None:
    columns, target = np.array(matrix), np.array([2.0, 4.0])
    (found,) = nnls_gram((columns.T @ columns)[None], (columns.T @ target)[None])
    assert (found >= 0).all()
    if expected is None:
        assert columns @ found == pytest.approx(target)
    else:
        assert found == pytest.approx(expected)
