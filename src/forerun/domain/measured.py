"""Measured: what micro-benchmarks found a device to do, as curves over the size of an operation."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.errors import RequestError

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """Seconds of one call of an operation on a grid of sizes.

    Attributes:
        axes: for each size of the operation, increasing values at which it was measured.
        seconds: on the grid of the axes, in C order (the last axis runs fastest).
    """

    axes: tuple[tuple[float, ...], ...]
    seconds: tuple[float, ...]

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

    @cached_property
    def _logs(self) -> FloatArray:
        return np.log(np.asarray(self.seconds)).reshape([len(a) for a in self.axes])

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


@dataclass(frozen=True)
class Update:
    """What an optimizer's step costs: seconds, more for each parameter tensor and each parameter."""

    step_seconds: float
    tensor_seconds: float
    parameter_seconds: float


@dataclass(frozen=True)
class Exchange:
    """All-reduces as a process meets them over one kind of link.

    latency_seconds: of one step of the collective; bytes_per_second: as a ring carries a buffer, a
    process and direction; busy_seconds_per_byte: of the device's own time, which a gradient's
    exchange takes from the backward pass (where the CPU computes, it also sends); call_seconds: the
    same of one call whatever its size.
    """

    latency_seconds: float
    bytes_per_second: float
    busy_seconds_per_byte: float = 0.0
    call_seconds: float = 0.0


@dataclass(frozen=True)
class Measured:
    """What a probe measured of one device with one framework.

    Attributes:
        curves: seconds of operations by `precision/operation`: a matrix product's role
            (`matmul.forward`, `.dgrad`, `.wgrad`; sizes: rows, columns, depth), a convolution's,
            attention (sizes: FLOPs, elements), and what only moves elements, by the framework's
            name of it (`gelu_backward`) or by its class (`elementwise`); size: elements.
        forward_call_seconds, backward_call_seconds: of the framework for each operation of a step,
            beside the operation's own call.
        gradient_seconds: of the framework to keep one parameter tensor's gradient.
        step_seconds: of a step beside all of its operations.
        updates: by optimizer.
        replica_seconds: what keeping replicas costs in a step beside their all-reduces:
            (seconds a step, seconds a parameter tensor, seconds a parameter).
        together: how much slower one of n devices computes while n compute at once, from n = 1.
        links: `intra` and `inter`, where they were measured.
        jitter: standard deviation of a step's time over it.
        framework: whose calls they are, as `constants.framework_key` names it.
    """

    curves: Mapping[str, Curve]
    forward_call_seconds: float = 0.0
    backward_call_seconds: float = 0.0
    gradient_seconds: float = 0.0
    step_seconds: float = 0.0
    updates: Mapping[str, Update] = field(default_factory=dict)
    replica_seconds: tuple[float, float, float] = (0.0, 0.0, 0.0)
    together: tuple[float, ...] = (1.0,)
    links: Mapping[str, Exchange] = field(default_factory=dict)
    jitter: float = 0.0
    framework: str = "pytorch"

    def curve(self, precision: str, names: Sequence[str]) -> Curve | None:
        """Return the first curve among names in this precision, else in fp32; None if there is none."""
        for number in (precision, "fp32"):
            for name in names:
                found = self.curves.get(f"{number}/{name}")
                if found is not None:
                    return found
        return None

    def slowdown(self, devices: float) -> float:
        """Return how much slower a device is when so many compute at once; straight lines between."""
        counts = np.arange(1, len(self.together) + 1)
        return float(np.interp(devices, counts, self.together))
