"""Bounds: how large and how small a figure of a column can be, whatever was run.

A figure beyond them is a slip, and logarithms, squares and ratios of it are no numbers at all.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# A nanosecond is a few ticks of a clock, and 10^12 s are thirty thousand years.
_LEAST_SECONDS, _MOST_SECONDS = 1e-9, 1e12
_LEAST_RATE, _MOST = 1e-12, 1e18
_TIMES = ("step_time_s", "epoch_time_s", "time_to_train_s")
_RATES = ("samples_per_s", "tokens_per_s", "tflops_per_device")


def limits(name: str) -> tuple[float, float]:
    """Return the least above zero and the most that a figure of a number column can be."""
    if name in _TIMES:
        return _LEAST_SECONDS, _MOST_SECONDS
    return (_LEAST_RATE if name in _RATES else 0.0), _MOST


def beyond(name: str, values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which finite figures of a column no run can have, (n,)."""
    least, most = limits(name)
    size = np.abs(values)
    return np.asarray(np.isfinite(values) & (size > 0) & ((size < least) | (size > most)))


def words(name: str) -> str:
    """Return the bounds of a column in words."""
    least, most = limits(name)
    unit = " s" if name in _TIMES else ""
    return f"{least:g} to {most:g}{unit}" if least else f"{most:g}{unit} at most"
