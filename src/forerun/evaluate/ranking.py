"""Rank agreement: Kendall's tau, pooled over groups within which an order means something."""

from __future__ import annotations

from typing import Any

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
    n = len(forecast)
    labels = np.zeros(n, dtype=np.int64) if groups is None else groups
    order = np.lexsort((measured, forecast, labels))
    group, x, y = labels[order], forecast[order], measured[order]
    pairs = _equal_pairs(group)
    tied_x, both = _equal_pairs(group, x), _equal_pairs(group, x, y)
    by_y = np.lexsort((measured, labels))
    tied_y = _equal_pairs(labels[by_y], measured[by_y])
    # Ranks by group and then y: no pair of two groups is ever in the wrong order, and as ties in x
    # are sorted by y, an inversion is a discordant pair and nothing else.
    rank = np.empty(n, dtype=np.int64)
    rank[by_y] = np.cumsum(_new(labels[by_y], measured[by_y]))
    difference = pairs - tied_x - tied_y + both - 2 * _inversions(rank[order])[0]
    scale = np.sqrt(max(pairs - tied_x, 0.0) * max(pairs - tied_y, 0.0))
    return float(difference / scale) if scale > 0 else float("nan")


def _new(*columns: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where any of the sorted columns differs from the row before, (n,)."""
    if not len(columns[0]):
        return np.zeros(0, dtype=bool)
    changed = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return np.concatenate([np.array([True]), changed])


def _equal_pairs(*columns: NDArray[Any]) -> float:
    """Return how many pairs of rows are equal in all of the sorted columns."""
    counts = np.diff(np.r_[np.flatnonzero(_new(*columns)), len(columns[0])])
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
