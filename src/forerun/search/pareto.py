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
    points = np.stack(costs, axis=1)
    rows: NDArray[np.int64] = np.flatnonzero(np.isfinite(points).all(axis=1))
    rows = rows[np.lexsort(points[rows].T[::-1])]
    points = points[rows]
    if len(costs) == 2 and len(rows):
        best_before = np.minimum.accumulate(points[:, 1])
        return np.asarray(rows[np.append(True, points[1:, 1] < best_before[:-1])])
    kept: list[int] = []
    for i, point in enumerate(points):
        if not (points[kept] <= point).all(axis=1).any():
            kept.append(i)
    return rows[kept]


def knee(time: FloatArray, cost: FloatArray) -> int:
    """Return the position on a front (n,) where more money stops buying much time.

    The point farthest below the chord between the front's ends, both ranges scaled to one (Satopaa et
    al. 2011, "Finding a Kneedle in a haystack", eq. 2 without smoothing); else the cheapest.
    """
    x_span, y_span = np.ptp(time), np.ptp(cost)
    if len(time) < 3 or x_span <= 0 or y_span <= 0:
        return int(np.argmin(cost))
    height = (time - time.min()) / x_span + (cost - cost.min()) / y_span
    lowest = int(np.argmin(height))
    return lowest if height[lowest] < 1 - 1e-9 else int(np.argmin(cost))
