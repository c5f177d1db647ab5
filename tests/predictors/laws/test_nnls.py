"""Non-negative least squares: the conditions of an optimum hold, and every way finds the same one."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import RequestError
from forerun.predictors.laws.nnls import nnls, nnls_many

# Seeds, so that a failure is a case anybody can make again; rows, columns and decades of scale.
CASES = st.tuples(
    st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 5), st.integers(0, 9)
)  # fmt: skip


def case(drawn: tuple[int, int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return a matrix (n, k) whose columns differ by decades, and a right-hand side (n,)."""
    seed, n, k, decades = drawn
    rng = np.random.default_rng(seed)
    scale = 10.0 ** rng.uniform(-decades, decades, k)
    return rng.normal(size=(n, k)) * scale, rng.normal(size=n) * 10.0 ** rng.uniform(-3, 3)


def brute_force(matrix: np.ndarray, target: np.ndarray) -> float:
    """Return the least squared error over every set of columns, by plain least squares."""
    scaled = matrix / np.linalg.norm(matrix, axis=0)
    best = float(target @ target)
    for size in range(1, matrix.shape[1] + 1):
        for chosen in combinations(range(matrix.shape[1]), size):
            part = scaled[:, chosen]
            x = np.linalg.lstsq(part, target, rcond=None)[0]
            if (x >= 0).all():
                best = min(best, float(np.sum((target - part @ x) ** 2)))
    return best


@given(CASES)
def test_the_solution_meets_the_conditions_of_an_optimum(drawn: tuple[int, int, int, int]) -> None:
    matrix, target = case(drawn)
    x = nnls(matrix, target)
    lengths = np.linalg.norm(matrix, axis=0)
    gain = (matrix / lengths).T @ (target - matrix @ x) / np.linalg.norm(target)
    assert (x >= 0).all()
    assert (gain <= 1e-8).all(), "a coefficient of zero would gain by growing"
    assert np.abs(gain[x > 0]).max(initial=0.0) <= 1e-8, "a positive coefficient is not at rest"


@given(CASES)
def test_no_set_of_columns_does_better(drawn: tuple[int, int, int, int]) -> None:
    matrix, target = case(drawn)
    least, size = brute_force(matrix, target), float(target @ target)
    for x in (nnls(matrix, target), nnls_many(matrix, target[:, None])[:, 0]):
        assert np.sum((target - matrix @ x) ** 2) == pytest.approx(
            least, rel=1e-7, abs=1e-12 * size
        )


@given(CASES)
def test_many_right_hand_sides_at_once_are_each_alone(drawn: tuple[int, int, int, int]) -> None:
    seed, n, k, decades = drawn
    matrix, _ = case((seed, n + k, k, decades))  # columns that are no mixtures: one solution
    targets = np.random.default_rng(seed).normal(size=(n + k, 4))
    many, lengths = nnls_many(matrix, targets), np.linalg.norm(matrix, axis=0)
    for j in range(4):
        alone = nnls(matrix, targets[:, j])
        assert many[:, j] * lengths == pytest.approx(alone * lengths, rel=1e-5, abs=1e-7)


@given(CASES)
def test_a_positive_truth_without_noise_is_found(drawn: tuple[int, int, int, int]) -> None:
    seed, n, k, decades = drawn
    matrix, _ = case((seed, n + 2 * k, k, decades))
    truth = np.random.default_rng(seed).uniform(0, 1, k) / np.linalg.norm(matrix, axis=0)
    assert nnls(matrix, matrix @ truth) == pytest.approx(truth, rel=1e-5, abs=1e-9 * truth.max())


def test_columns_that_are_mixtures_or_zero_do_no_harm() -> None:
    one = np.arange(1.0, 6.0)
    matrix = np.stack([one, 2 * one, np.zeros(5), one**2, one + one**2], axis=1)
    target = 3 * one + 0.5 * one**2
    for x in (nnls(matrix, target), nnls_many(matrix, target[:, None])[:, 0]):
        assert matrix @ x == pytest.approx(target, rel=1e-9)
        assert (x >= 0).all()
        assert x[2] == 0


def test_nothing_to_explain_is_explained_by_nothing() -> None:
    assert nnls(np.ones((3, 2)), np.zeros(3)).tolist() == [0, 0]
    assert nnls(np.ones((3, 2)), -np.ones(3)).tolist() == [0, 0]
    assert nnls(np.ones((3, 0)), np.ones(3)).shape == (0,)


@pytest.mark.parametrize(
    ("matrix", "target", "found"),
    [(np.ones((3, 2)), np.ones(2), "shape"), (np.ones(3), np.ones(3), "shape"),
     (np.full((3, 2), np.nan), np.ones(3), "not finite")],
)  # fmt: skip
def test_what_cannot_be_solved_is_said(matrix: object, target: object, found: str) -> None:
    with pytest.raises(RequestError, match=found):
        nnls(matrix, target)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="9 columns"):
        nnls_many(np.ones((3, 9)), np.ones((3, 1)))
