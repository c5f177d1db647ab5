"""Sampling: which steps are looked at closely, so that looking costs a small share of all steps' time."""

from __future__ import annotations

from collections import deque
from statistics import median

# Steps that are all looked at, since nothing is known of their cost yet; warm-up, as a rule.
FIRST = 3
_GOLDEN = 0.6180339887498949  # the share of a circle by which turns spread most evenly
_REMEMBERED = 9  # steps whose time says how long one takes


class Pace:
    """How long a step takes: the median of the last few."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=_REMEMBERED)

    def add(self, seconds: float) -> None:
        """Take note of a step."""
        self._last.append(seconds)

    def seconds(self) -> float:
        """Return seconds of a step, 0 before the first."""
        return median(self._last) if self._last else 0.0


class Sample:
    """A sample of steps, of which each costs something: spread evenly, and the same on every worker.

    Step i is in it where the fractional part of i times the golden ratio lies below the sample's
    share: such steps keep no time with anything that comes round every so many steps, and a
    smaller sample is part of a larger one, so that workers who disagree a little on what a step
    takes look at the same steps nearly always. Step 0 is in every sample.

    Args:
        budget: the share of all steps' time that looking may take.
        least, most: shares of steps that are looked at, whatever it costs.
    """

    def __init__(self, budget: float, least: float, most: float = 1.0) -> None:
        self._budget, self._least, self._most = budget, least, most
        self.share = most

    def settle(self, step_seconds: float, look_seconds: float) -> None:
        """Choose the share by what a step takes, and what a look at it takes more.

        Args:
            step_seconds: of a step; 0 where not known.
            look_seconds: what a look adds to it.
        """
        if step_seconds > 0 and look_seconds > 0:
            wanted = self._budget * step_seconds / look_seconds
            self.share = min(max(wanted, self._least), self._most)

    def has(self, step: int) -> bool:
        """Whether a step, counted from 0, is looked at."""
        return step * _GOLDEN % 1.0 < self.share
