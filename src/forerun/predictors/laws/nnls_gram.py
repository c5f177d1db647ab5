"""NNLS of many small problems at once, each given by its Gram matrix: what a population needs.

Block principal pivoting (Portugal, Judice and Vicente, 1994; Kim and Park, SIAM J. Sci. Comput. 33,
2011): whole sets of coefficients change sides until each is positive or has no gain, which is the
exact minimum; a problem that keeps trading sides changes one coefficient at a time, which ends.
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


def nnls_gram(gram: FloatArray, moment: FloatArray) -> FloatArray:
    """Return the x >= 0 that minimises x G x - 2 h x for each of p problems, (p, k).

    For least squares |A x - b|^2 the Gram matrix is A^T A and the moment is A^T b. A column of
    zeros has the coefficient 0.

    Args:
        gram: (p, k, k), positive semi-definite.
        moment: (p, k).
    """
    count, k = moment.shape
    size = np.sqrt(np.einsum("pii->pi", gram))
    size = np.where(size > 0, size, 1.0)
    eye = np.eye(k)
    scaled = gram / (size[:, :, None] * size[:, None, :]) + _RIDGE * eye
    wanted = moment / size
    reach = np.maximum(np.abs(wanted).max(axis=1, initial=0.0), 1e-300)[:, None]
    wanted = wanted / reach
    # Most problems have no coefficient at 0, so all of them start free.
    free = np.ones((count, k), dtype=bool)
    solution = np.linalg.solve(scaled, wanted[:, :, None])[:, :, 0]
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
        gain = wanted - np.einsum("pij,pj->pi", scaled, solution)
    result: FloatArray = np.maximum(solution, 0.0) * reach / size
    return result


def _last(wrong: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return only the last true of each row."""
    after = np.cumsum(wrong[:, ::-1], axis=1)[:, ::-1]
    result: NDArray[np.bool_] = wrong & (after == 1)
    return result
