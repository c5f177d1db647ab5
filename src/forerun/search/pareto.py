"""Pareto fronts of costs to be minimised, and the knee of a front."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray


def pareto_front(*costs: FloatArray) -> NDArray[np.int64]:
    """Return the positions of points that no other point beats, sorted by the first cost.

    Of points that are equal in every cost the first is kept; rows with NaN are left out. Two costs
    (n,) take O(n log n); a third is compared only among the few that remain near the front.
    """
    rows = np.flatnonzero(np.all([np.isfinite(c) for c in costs], axis=0))
    if not len(rows):
        return rows
    columns = [c[rows] for c in costs]
    order = np.lexsort(tuple(reversed(columns)))
    columns = [c[order] for c in columns]
    if len(columns) == 2:
        best_before = np.minimum.accumulate(columns[1])
        keep = np.ones(len(order), dtype=bool)
        keep[1:] = columns[1][1:] < best_before[:-1]
        return rows[order[keep]]
    return rows[order[_three(np.stack(columns, axis=1))]]


def _three(points: FloatArray) -> NDArray[np.int64]:
    """Return positions of the front of points sorted by their first column, (n, d)."""
    kept: list[int] = []
    front = np.empty((0, points.shape[1]))
    for i, point in enumerate(points):
        if len(front) and np.any(np.all(front <= point, axis=1)):
            continue
        kept.append(i)
        front = np.vstack([front, point])
    return np.array(kept, dtype=np.int64)


def knee(time: FloatArray, cost: FloatArray) -> int:
    """Return the position on a front (n,) where more money stops buying much time.

    The point farthest below the chord between the front's two ends, in the unit square to which
    both ranges are scaled (Satopaa et al. 2011, "Finding a Kneedle in a haystack", eq. 2 without
    smoothing), on linear axes, as a person spends hours and dollars. Where no point lies below it
    there is no knee, and the cheapest is returned.
    """
    x_span, y_span = np.ptp(time), np.ptp(cost)
    if len(time) < 3 or x_span <= 0 or y_span <= 0:
        return int(np.argmin(cost))
    height = (time - time.min()) / x_span + (cost - cost.min()) / y_span
    lowest = int(np.argmin(height))
    return lowest if height[lowest] < 1 - 1e-9 else int(np.argmin(cost))
