"""Curves: every point of a grid timed, in the time that there is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from forerun.measure.failing import status_of
from forerun.measure.probe.clock import Clock
from forerun.measure.probe.products import Grid


class LaunchesOnlyError(RuntimeError):
    """Every call took about as long as its launch: nothing is known of the operation itself."""


@dataclass
class Measurements:
    """Curves as plain values ({axes, seconds, spread}) by name, and what there is none of.

    left_out: names that there was no time for. refused: why the device could not do others. told:
    called with the name of what is timed next.
    """

    curves: dict[str, dict[str, Any]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    told: Callable[[str], None] = lambda name: None

    def add(self, prefix: str, grids: Iterable[Grid], clock: Clock) -> None:
        """Time grids, in their order, as `prefix/name`."""
        for grid in grids:
            name = f"{prefix}/{grid.name}"
            self.told(name)
            try:
                curve = None if clock.is_over else timed(grid, clock)
            except RuntimeError as error:  # as torch has it for what a device or a precision lacks
                self.refused[name] = " ".join(str(error).split())[:200]
                continue
            if curve is None:
                self.left_out.append(name)
            else:
                self.curves[name] = curve


def timed(grid: Grid, clock: Clock) -> dict[str, Any] | None:
    """Return the curve of a grid, None where time ran out before its end.

    A point with more than the grid's `most_flops`, or with more than the device's memory, is not
    run: it is as much slower than its smaller neighbour as it is larger.

    Raises:
        LaunchesOnlyError: of a grid with `least_seconds` no call took as long.
        RuntimeError: the device cannot do it.
    """
    seconds: dict[tuple[float, ...], float] = {}
    calls: dict[tuple[float, ...], float] = {}
    spreads = []
    for point in grid.points:
        if grid.flops(*point) > grid.most_flops:
            seconds[point] = _scaled(point, grid, seconds)
            continue
        if clock.is_over:
            return None
        try:
            found = clock.time(grid.make(*(_whole(v) for v in point)))
        except RuntimeError as error:
            if status_of(error) != "oom" or not seconds:
                raise
            seconds[point] = _scaled(point, grid, seconds)
            continue
        seconds[point] = max(found.seconds / grid.per(*point), 1e-13)
        calls[point] = found.seconds
        spreads.append(found.spread)
    axes = [list(axis) for axis in grid.axes]
    if grid.least_seconds:
        axes = [[p[0] for p in grid.points if calls.get(p, 0.0) >= grid.least_seconds]]
        if not axes[0]:
            raise LaunchesOnlyError(
                f"its longest call takes {max(calls.values()):.3g} s, and a launch alone a third of"
                f" {grid.least_seconds:.3g} s"
            )
    return {
        "axes": axes,
        "seconds": [seconds[point] for point in itertools.product(*axes)],
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
