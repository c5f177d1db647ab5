"""Curves: seconds of an operation over its sizes, as micro-benchmarks found them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from forerun.arrays import FloatArray
from forerun.errors import RequestError


@dataclass(frozen=True)
class Curve:
    """Seconds of one call of an operation on a grid of sizes.

    Attributes:
        axes: for each size of the operation, increasing values at which it was measured.
        seconds: on the grid of the axes, in C order (the last axis runs fastest).
        spread: range of repeats over their median, the middle one of all points.
    """

    axes: tuple[tuple[float, ...], ...]
    seconds: tuple[float, ...]
    spread: float = field(default=0.0, compare=False)

    def __post_init__(self) -> None:
        count = int(np.prod([len(axis) for axis in self.axes]))
        rising = all(
            all(a < b for a, b in itertools.pairwise(axis)) and axis[0] > 0 for axis in self.axes
        )
        sound = np.isfinite(self.seconds).all() and min(self.seconds, default=0.0) > 0
        if not self.axes or not rising or len(self.seconds) != count or not sound:
            raise RequestError(
                f"a curve of {len(self.seconds)} seconds over {[len(a) for a in self.axes]} sizes",
                "it needs a positive time at each point of its sizes, and sizes that increase",
                "measure again (forerun probe), or correct the curve",
            )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        axes = [list(axis) for axis in self.axes]
        return {"axes": axes, "seconds": list(self.seconds), "spread": self.spread}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Curve:
        """Return what `to_dict` wrote. Raises KeyError, TypeError, ValueError or RequestError."""
        axes = tuple(tuple(map(float, axis)) for axis in data["axes"])
        return Curve(axes, tuple(map(float, data["seconds"])), float(data.get("spread", 0.0)))

    @cached_property
    def _logs(self) -> FloatArray:
        logs: FloatArray = np.log(np.asarray(self.seconds, dtype=np.float64))
        return logs.reshape([len(a) for a in self.axes])

    def at(self, *sizes: Any) -> FloatArray:
        """Return seconds at sizes, arrays of one shape: straight lines between logarithms.

        Beyond the largest size that was measured, time is proportional to it; below the smallest,
        it is that of the smallest: a call is never faster than the smallest one.
        """
        found: FloatArray = np.zeros(np.broadcast_shapes(*(np.shape(s) for s in sizes)))
        lower, share = [], []
        for axis, size in zip(self.axes, sizes, strict=True):
            logs, asked = np.log(axis), np.log(np.maximum(size, 1e-300))
            found = found + np.maximum(asked - logs[-1], 0.0)
            place = np.clip(
                np.searchsorted(logs, asked, side="right") - 1, 0, max(len(axis) - 2, 0)
            )
            step = logs[np.minimum(place + 1, len(axis) - 1)] - logs[place]
            with np.errstate(invalid="ignore", divide="ignore"):
                part = np.where(step > 0, (asked - logs[place]) / step, 0.0)
            lower.append(place)
            share.append(np.clip(part, 0.0, 1.0))
        for corner in itertools.product((0, 1), repeat=len(self.axes)):
            weight: Any = 1.0
            index = []
            for up, place, part, axis in zip(corner, lower, share, self.axes, strict=True):
                weight = weight * (part if up else 1.0 - part)
                index.append(np.minimum(place + up, len(axis) - 1))
            found = found + weight * self._logs[tuple(index)]
        return np.exp(found)


def sound_numbers(values: Mapping[Any, Any]) -> dict[str, float]:
    """Return values as numbers. Raises ValueError for what is negative or not finite."""
    numbers = {str(name): float(value) for name, value in values.items()}
    for name, number in numbers.items():
        if not (np.isfinite(number) and number >= 0):
            raise ValueError(f"{name} is {number}")
    return numbers
