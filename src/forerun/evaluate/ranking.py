"""Rank agreement: Kendall's tau, pooled over groups within which an order means something."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
_BLOCK = 64  # up to here counting all pairs at once is faster than merging


def kendall_tau(
    forecast: FloatArray, measured: FloatArray, groups: NDArray[np.int64] | None = None
) -> float:
    """Return tau-b over the pairs within each group; NaN where no pair is ordered on both sides.

    tau-b = (C - D) / sqrt((P - Tx)(P - Ty)) with C, D the concordant and discordant pairs, P all
    pairs and Tx, Ty the pairs tied in either; each is summed over the groups.
    Source: Kendall 1945; the count in O(n log n) is Knight 1966.

    Args:
        forecast, measured: (n,).
        groups: (n,) labels; None is one group.
    """
    labels = np.zeros(len(forecast), dtype=np.int64) if groups is None else groups
    order = np.argsort(labels, kind="stable")
    cuts = np.flatnonzero(np.diff(labels[order])) + 1
    sums = np.zeros(4)
    for rows in np.split(order, cuts) if len(order) else ():
        sums += _pair_counts(forecast[rows], measured[rows])
    difference, pairs, tied_x, tied_y = sums
    scale = np.sqrt(max(pairs - tied_x, 0.0) * max(pairs - tied_y, 0.0))
    return float(difference / scale) if scale > 0 else float("nan")


def _pair_counts(x: FloatArray, y: FloatArray) -> Sequence[float]:
    """Return concordant minus discordant pairs, all pairs, and pairs tied in x and in y."""
    n = len(x)
    order = np.lexsort((y, x))
    x, y = x[order], y[order]
    pairs = n * (n - 1) / 2
    tied_x, tied_y = _tied(x), _tied(np.sort(y))
    both = _tied_both(x, y)
    swaps = _inversions(np.unique(y, return_inverse=True)[1].astype(np.int64))[0]
    # Ties in x are sorted by y, so that an inversion is a discordant pair and nothing else.
    return (pairs - tied_x - tied_y + both - 2 * swaps, pairs, tied_x, tied_y)


def _tied(ordered: FloatArray) -> float:
    if not len(ordered):
        return 0.0
    counts = np.diff(np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1], True]))
    return float((counts * (counts - 1) / 2).sum())


def _tied_both(x: FloatArray, y: FloatArray) -> float:
    if not len(x):
        return 0.0
    new = (x[1:] != x[:-1]) | (y[1:] != y[:-1])
    counts = np.diff(np.flatnonzero(np.r_[True, new, True]))
    return float((counts * (counts - 1) / 2).sum())


def _inversions(values: NDArray[np.int64]) -> tuple[float, NDArray[np.int64]]:
    """Return pairs that stand in the wrong order, and the values sorted."""
    n = len(values)
    if n <= _BLOCK:
        wrong = np.triu(values[:, None] > values[None, :], k=1).sum()
        return float(wrong), np.sort(values)
    left_count, left = _inversions(values[: n // 2])
    right_count, right = _inversions(values[n // 2 :])
    across = len(left) - np.searchsorted(left, right, side="right")
    return left_count + right_count + float(across.sum()), np.sort(np.concatenate([left, right]))
