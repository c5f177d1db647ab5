"""NNLS of many small problems at once, each given by its Gram matrix: what a population needs.

Two coefficients take one step. More are solved by block principal pivoting (Portugal, Judice and
Vicente, 1994; Kim and Park, SIAM J. Sci. Comput. 33, 2011): whole sets of coefficients change sides
until each is positive or has no gain, which is the exact minimum; a problem that keeps trading
sides changes one coefficient at a time, which ends.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

# Of columns scaled to one: below it a coefficient or a gain is rounding.
_TOLERANCE = 1e-11
# Added to the diagonal of a scaled Gram matrix, so that equal columns have one solution.
_RIDGE = 1e-12
_FULL_SWAPS = 3
_MOST_ROUNDS = 60
# The square of a column of zeros counts as this.
_SMALLEST = 1e-150


def nnls_gram(gram: FloatArray, moment: FloatArray) -> FloatArray:
    """Return the x >= 0 that minimises x G x - 2 h x for each of p problems, (p, k).

    For least squares |A x - b|^2 the Gram matrix is A^T A and the moment is A^T b. A column of
    zeros has the coefficient 0.

    Args:
        gram: (p, k, k), positive semi-definite.
        moment: (p, k).
    """
    if moment.shape[1] == 2:
        return _two(gram, moment)
    size = np.sqrt(diagonal(gram))
    size[size == 0] = 1.0
    scaled = gram / (size[:, :, None] * size[:, None, :])
    diagonal(scaled)[...] += _RIDGE
    wanted = moment / size
    reach = np.maximum(np.abs(wanted).max(axis=1, initial=0.0), 1e-300)[:, None]
    wanted /= reach
    # Most problems have no coefficient at 0, so all of them start free.
    solution = np.linalg.solve(scaled, wanted[:, :, None])[:, :, 0]
    some = (solution < -_TOLERANCE).any(axis=1)
    if some.any():
        solution[some] = _pivoted(scaled[some], wanted[some], solution[some])
    result: FloatArray = np.maximum(solution, 0.0) * reach / size
    return result


def _two(gram: FloatArray, moment: FloatArray) -> FloatArray:
    """Return the minimum of two coefficients, (p, 2).

    It is where both slopes are 0, if neither is negative there; else the one that alone gains more.
    """
    lifted = gram.copy()
    size = diagonal(lifted)
    size *= 1.0 + _RIDGE
    size += _SMALLEST
    solution = np.linalg.solve(lifted, moment[:, :, None])[:, :, 0].astype(np.float64)
    some = (solution < 0.0).any(axis=1)
    if some.any():
        alone = np.maximum(moment[some], 0.0)
        gain = alone * alone / size[some]
        best = gain == gain.max(axis=1, keepdims=True)
        best[:, 1] &= ~best[:, 0]
        solution[some] = np.where(best, alone / size[some], 0.0)
    return solution


def diagonal(matrices: FloatArray) -> FloatArray:
    """Return a view of the diagonals, (p, k), of contiguous matrices (p, k, k)."""
    count, k, _ = matrices.shape
    return matrices.reshape(count, k * k)[:, :: k + 1]


def _pivoted(scaled: FloatArray, wanted: FloatArray, solution: FloatArray) -> FloatArray:
    """Return the minimum by changing sides, (p, k), from the solution with every column free."""
    count, k = wanted.shape
    eye = np.eye(k)
    free = np.ones((count, k), dtype=bool)
    gain = np.zeros((count, k))
    fewest = np.full(count, k + 1)
    swaps = np.full(count, _FULL_SWAPS)
    for _ in range(_MOST_ROUNDS):
        wrong = np.where(free, solution < -_TOLERANCE, gain > _TOLERANCE)
        many = wrong.sum(axis=1)
        if not many.any():
            break
        better = many < fewest
        swaps = np.where(better, _FULL_SWAPS, swaps - 1)
        fewest = np.minimum(fewest, many)
        stuck = swaps < 0
        free ^= np.where(stuck[:, None], _last(wrong), wrong) if stuck.any() else wrong
        both = free[:, :, None] & free[:, None, :]
        solution = np.linalg.solve(
            np.where(both, scaled, eye), np.where(free, wanted, 0.0)[:, :, None]
        )[:, :, 0]
        gain = wanted - (scaled @ solution[:, :, None])[:, :, 0]
    return solution


def _last(wrong: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return only the last true of each row."""
    after = np.cumsum(wrong[:, ::-1], axis=1)[:, ::-1]
    result: NDArray[np.bool_] = wrong & (after == 1)
    return result
