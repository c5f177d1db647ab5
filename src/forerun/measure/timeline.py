"""Timeline: the parts of a step by a clock of the device: wall clock, or CUDA events on a GPU."""

from __future__ import annotations

import time
from typing import Any, Protocol


class StepClock(Protocol):
    """Marks moments of steps, and later returns the seconds between two of them."""

    def now(self) -> Any:
        """Return a mark of this moment."""

    def seconds(self, first: Any, second: Any) -> float:
        """Return seconds from one mark to another, negative where the second came first."""

    def settle(self) -> None:
        """Wait until every mark has happened."""


class WallClock:
    """Marks are seconds of the process's own clock."""

    now = staticmethod(time.perf_counter)

    def seconds(self, first: float, second: float) -> float:  # noqa: D102
        return second - first

    def settle(self) -> None:  # noqa: D102
        pass


class CudaClock:
    """Marks are events in the device's current stream, so that nothing waits for the device."""

    def __init__(self) -> None:
        import torch

        self._cuda = torch.cuda

    def now(self) -> Any:  # noqa: D102
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, first: Any, second: Any) -> float:  # noqa: D102
        return float(first.elapsed_time(second)) / 1e3

    def settle(self) -> None:  # noqa: D102
        self._cuda.synchronize()


class Timeline:
    """Steps and their parts, as marks; `switch` ends the part that runs and starts another."""

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock
        self._marks: list[tuple[str, Any]] = []
        self._start: Any = None
        self._steps: list[tuple[Any, Any, list[tuple[str, Any]]]] = []

    def begin(self) -> None:
        """Start a step now, unless one runs."""
        if self._start is None:
            self._start = self._clock.now()

    def switch(self, part: str) -> None:
        """Say that from now on the step is in a part; "" is none of them."""
        self._marks.append((part, self._clock.now()))

    def end(self) -> None:
        """End the step now; the next one starts at the same moment."""
        now = self._clock.now()
        if self._start is not None:
            self._steps.append((self._start, now, self._marks))
        self._start, self._marks = now, []

    def pause(self) -> None:
        """Forget the step that runs: what follows belongs to none until `begin`."""
        self._start, self._marks = None, []

    def read(self) -> tuple[list[float], list[dict[str, float]]]:
        """Return seconds and parts of the steps that ended since the last call, in order."""
        if self._steps:
            self._clock.settle()
        steps, self._steps = self._steps, []
        totals = [self._clock.seconds(start, end) for start, end, _ in steps]
        return totals, [self._parts(end, marks) for _, end, marks in steps]

    def _parts(self, end: Any, marks: list[tuple[str, Any]]) -> dict[str, float]:
        parts: dict[str, float] = {}
        moments = [mark for _, mark in marks] + [end]
        for (part, _), start, stop in zip(marks, moments, moments[1:], strict=False):
            if part:
                parts[part] = parts.get(part, 0.0) + self._clock.seconds(start, stop)
        return parts
