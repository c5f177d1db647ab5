"""Warm-up: how much of a beginning is slower than what follows it, in steps and in lines of a log."""

from __future__ import annotations

import numpy as np

from forerun.arrays import FloatArray

WINDOW = 21  # entries whose median is the level that follows
_ABOVE = 0.15  # the level that follows, in logs
_MOST = 20  # entries at a beginning
_SPREADS = 3.0  # of single steps: noise alone is no warm-up
_FEWEST = 6  # steps; of fewer nothing is said


def longest(count: int) -> int:
    """Return how many of so many entries may be warm-up at most: a third of them, and 20."""
    return min(_MOST, max(1, count // 3))


def slow_beginning(
    times: FloatArray, most: int, otherwise: float, above: float = _ABOVE
) -> tuple[int, float]:
    """Return how many entries at the beginning are slow, and the level that follows them.

    Args:
        times: (n,), in order, each above 0.
        most: that may be slow.
        otherwise: the level, where fewer than two entries follow.
        above: in logs, how far above the level an entry is slow.
    """
    after = times[most : most + WINDOW]
    level = float(np.median(after)) if len(after) >= 2 else otherwise
    count = 0
    while count < min(most, len(times)) and np.log(times[count] / level) > above:
        count += 1
    return count, level


def warm_steps(seconds: FloatArray) -> int:
    """Return how many of the first steps are still warm-up: slower than those that follow.

    A step is, if it lies 16 % and three spreads (of the logs, by their median deviation) above the
    steps after; the first that does not ends the warm-up. Of fewer than 6 steps none is told.
    """
    times = np.asarray(seconds, dtype=np.float64)
    if len(times) < _FEWEST or times.min() <= 0:
        return 0
    most = longest(len(times))
    logs = np.log(times[most : most + WINDOW])
    spread = 1.4826 * float(np.median(np.abs(logs - np.median(logs))))
    middle = float(np.median(times))
    return slow_beginning(times, most, middle, max(_ABOVE, _SPREADS * spread))[0]
