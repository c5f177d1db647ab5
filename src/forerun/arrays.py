"""NumPy arrays by what they hold: the columns on every hot path."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


def total(columns: Iterable[FloatArray]) -> FloatArray:
    """Return the sum of columns, (n,) each."""
    return np.asarray(reduce(np.add, columns))
