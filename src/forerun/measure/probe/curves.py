"""Curves: every point of a grid timed, in the time that there is."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from forerun.measure.probe.clock import Clock
from forerun.measure.probe.products import MOST_FLOPS, Grid


@dataclass
class Measurements:
    """Curves as plain values ({axes, seconds, spread}) by name, and what there was no time for."""

    curves: dict[str, dict[str, Any]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def add(self, prefix: str, grids: Iterable[Grid], clock: Clock) -> None:
        """Time grids, in their order, as `prefix/name`."""
        for grid in grids:
            curve = None if clock.is_over else timed(grid, clock)
            if curve is None:
                self.left_out.append(f"{prefix}/{grid.name}")
            else:
                self.curves[f"{prefix}/{grid.name}"] = curve


def timed(grid: Grid, clock: Clock) -> dict[str, Any] | None:
    """Return the curve of a grid, None where time ran out before its end.

    A point with more than `MOST_FLOPS` is not run: it is as much slower than its smaller neighbour
    as it is larger.
    """
    seconds: dict[tuple[float, ...], float] = {}
    spreads = []
    for point in grid.points:
        if grid.flops(*point) > MOST_FLOPS:
            seconds[point] = _scaled(point, grid, seconds)
            continue
        if clock.is_over:
            return None
        found = clock.time(grid.make(*(_whole(v) for v in point)))
        seconds[point] = max(found.seconds / grid.per(*point), 1e-13)
        spreads.append(found.spread)
    return {
        "axes": [list(axis) for axis in grid.axes],
        "seconds": [seconds[point] for point in grid.points],
        "spread": sorted(spreads)[len(spreads) // 2],
    }


def _whole(value: float) -> float:
    return int(value) if value == math.floor(value) else value


def _scaled(point: tuple[float, ...], grid: Grid, seconds: dict[tuple[float, ...], float]) -> float:
    """Return a point's time from the neighbour below it on the axis where it is largest."""
    ranks = [axis.index(v) for axis, v in zip(grid.axes, point, strict=True)]
    place = max(range(len(point)), key=lambda i: (ranks[i] > 0, grid.axes[i][ranks[i]]))
    below = grid.axes[place][ranks[place] - 1]
    neighbour = (*point[:place], below, *point[place + 1 :])
    return seconds[neighbour] * point[place] / below
