"""Intervals: what single steps say of the step time, and when they have said enough."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forerun.measure.task import Steps

_Z95 = 1.959964
FEWEST = 6  # the least and the largest of fewer do not hold the median with 95 %


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What n steps say, in seconds; `low` and `high` are None where there are fewer than `FEWEST`."""

    count: int
    median: float
    mean: float
    std: float
    low: float | None
    high: float | None

    @property
    def half_width(self) -> float:
        """Half of the 95 % interval as a share of the median; infinite where there is none."""
        if self.low is None or self.high is None or self.median <= 0:
            return math.inf
        return max(self.high - self.median, self.median - self.low) / self.median


def step_times(seconds: Sequence[float]) -> StepTimes | None:
    """Return median, mean, spread and interval of steps; None of no steps.

    The interval is that of the median by order statistics: it supposes no distribution. Where
    neighbouring steps are alike (a slow machine stays slow for a while) they count for less: the
    variance of the rank is widened by (1 + r) / (1 - r), r their correlation, as for an AR(1)
    series.
    """
    times = np.asarray(seconds, dtype=np.float64)
    n = len(times)
    if n == 0:
        return None
    std = float(times.std(ddof=1)) if n > 1 else 0.0
    low = high = None
    if n >= FEWEST:
        r = min(max(_correlation(times), 0.0), 0.9)
        reach = _Z95 * math.sqrt(n * (1 + r) / (1 - r)) / 2
        ordered = np.sort(times)
        low = float(ordered[max(math.floor(n / 2 - reach), 0)])
        high = float(ordered[min(math.ceil(n / 2 + reach), n) - 1])
    return StepTimes(n, float(np.median(times)), float(times.mean()), std, low, high)


def _correlation(times: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """Return the correlation of neighbouring steps above or below the median; 0 where all are alike."""
    side = np.sign(times - np.median(times))
    power = float((side * side).sum())
    return float((side[1:] * side[:-1]).sum()) / power if power else 0.0


def tight(steps: Steps, seconds: Sequence[float]) -> bool:
    """Whether the interval of counted steps is as tight as was asked."""
    if len(seconds) < steps.least:
        return False
    times = step_times(seconds)
    return times is not None and times.half_width <= steps.half_width
