"""NNLS: least squares whose coefficients cannot be negative, exactly, for a few columns.

`nnls` is the active-set method of Lawson and Hanson (Solving Least Squares Problems, 1974,
chapter 23). `nnls_many` solves many right-hand sides of one small matrix by trying every set of
positive coefficients, all right-hand sides at once: that is what a bootstrap needs.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from forerun.arrays import FloatArray
from forerun.errors import RequestError

MOST_ENUMERATED = 8  # columns: 255 sets of them
# Relative to the size of the columns and the right-hand side, both scaled to one.
_TOLERANCE = 1e-12
_MOST_ROUNDS = 20


def nnls(matrix: ArrayLike, target: ArrayLike) -> FloatArray:
    """Return the x >= 0 that minimises |matrix x - target|, shape (k,).

    Columns are scaled to unit length first, so that a column of 1e9 and one of 1e-3 are judged
    alike; a column of zeros has the coefficient 0.

    Args:
        matrix: (n, k).
        target: (n,).

    Raises:
        RequestError: shapes do not agree, or a number is not finite.
    """
    columns, wanted = _checked(matrix, target)
    columns, lengths = _scaled(columns)
    size = float(np.linalg.norm(wanted))
    solution = np.zeros(columns.shape[1])
    if size == 0.0 or not columns.size:
        return solution
    wanted = wanted / size
    free = np.zeros(len(solution), dtype=bool)
    refused = np.zeros(len(solution), dtype=bool)
    for _ in range(_MOST_ROUNDS * len(solution)):  # each gains; rounding alone can want more
        gain = columns.T @ (wanted - columns @ solution)
        gain[free | refused] = 0.0
        best = int(np.argmax(gain))
        if gain[best] <= _TOLERANCE:
            break
        free[best] = True
        stepped = _stepped(columns, wanted, solution, free)
        # A column that is a mixture of the free ones leaves at once: it can gain nothing.
        refused[best] = not free[best]
        if not refused[best]:
            refused[:] = False
        solution = stepped
    result: FloatArray = solution * size / lengths
    return result


def _stepped(
    columns: FloatArray, wanted: FloatArray, solution: FloatArray, free: NDArray[np.bool_]
) -> FloatArray:
    """Return the least-squares solution of the free columns, freeing fewer until none is negative.

    `free` is changed in place (steps 6 to 11 of the algorithm).
    """
    while True:
        trial = np.zeros_like(solution)
        trial[free] = np.linalg.lstsq(columns[:, free], wanted, rcond=None)[0]
        low = free & (trial <= 0.0)
        if not low.any():
            return trial
        reach = np.full(len(solution), np.inf)
        reach[low] = solution[low] / (solution[low] - trial[low] + 1e-300)
        first = int(np.argmin(reach))
        solution = solution + reach[first] * (trial - solution)
        free &= ~(low & (solution <= _TOLERANCE))
        free[first] = False
        solution[~free] = 0.0
        if not free.any():
            return solution


def nnls_many(matrix: ArrayLike, targets: ArrayLike) -> FloatArray:
    """Return for each right-hand side the x >= 0 that minimises |matrix x - target|, (k, m).

    The minimum is the least-squares solution of some set of columns, so every set is solved and
    the best solution without a negative coefficient is taken.

    Args:
        matrix: (n, k), k at most `MOST_ENUMERATED`.
        targets: (n, m).

    Raises:
        RequestError: shapes do not agree, too many columns, or a number is not finite.
    """
    columns, wanted = _checked(matrix, targets)
    columns, lengths = _scaled(columns)
    k = columns.shape[1]
    if k > MOST_ENUMERATED:
        raise RequestError(
            "least squares over every set of columns", f"{k} columns",
            f"give at most {MOST_ENUMERATED}, or use nnls",
        )  # fmt: skip
    best = np.zeros((k, wanted.shape[1]))
    error = np.sum(wanted**2, axis=0)
    for chosen in (list(c) for size in range(1, k + 1) for c in combinations(range(k), size)):
        part = columns[:, chosen]
        trial = np.linalg.pinv(part) @ wanted
        left = np.sum((wanted - part @ trial) ** 2, axis=0)
        better = (trial >= 0.0).all(axis=0) & (left < error)
        error[better] = left[better]
        best[:, better] = 0.0
        best[chosen] = np.where(better, trial, best[chosen])
    return best / lengths[:, None]


def _checked(matrix: ArrayLike, target: ArrayLike) -> tuple[FloatArray, FloatArray]:
    columns = np.asarray(matrix, dtype=np.float64)
    wanted = np.asarray(target, dtype=np.float64)
    asked = "non-negative least squares"
    if columns.ndim != 2 or not wanted.ndim or len(wanted) != len(columns):
        found = f"a matrix of shape {columns.shape} and a right-hand side of {wanted.shape}"
        raise RequestError(asked, found, "give as many right-hand numbers as the matrix has rows")
    if not (np.isfinite(columns).all() and np.isfinite(wanted).all()):
        raise RequestError(asked, "numbers that are not finite", "leave those rows out")
    return columns, wanted


def _scaled(columns: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return columns of unit length and their lengths (1 for a column of zeros)."""
    largest = np.max(np.abs(columns), axis=0, initial=0.0)
    largest[largest == 0.0] = 1.0
    within = columns / largest
    lengths = np.linalg.norm(within, axis=0)
    lengths[lengths == 0.0] = 1.0
    return within / lengths, lengths * largest
