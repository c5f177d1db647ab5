"""Kernel: how alike two jobs are to a correction, from 1 for the same work to 0 for another.

k(x, y) = a_work^2 s_x s_y exp(-|x - y|_work) + a_whole^2 exp(-|x - y|_all), with |.| the sum of
absolute differences of features, each times a rate of its own, and s the part of the step that is
work. The first term says that what a micro-batch takes is off by the same factor wherever it is
done; the second takes up the rest. Exponentials of absolute differences (the product of Ornstein and
Uhlenbeck's kernels) suit what libraries do: it is rough, it jumps, and it is the same again at the
same shape. Source of the method: Rasmussen and Williams, Gaussian Processes for Machine Learning,
2006, chapters 2, 4 and 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.predictors.residual.features import NAMES, WORK, Features

Float32Array = NDArray[np.float32]
IS_WORK = np.arange(len(NAMES)) < len(WORK)
# Beyond the range of what was measured, widened by this share of it, likeness falls by a factor e
# with every doubling.
MARGIN = 1.0 / 3.0
# Rows that are compared at a time: their columns stay in the cache.
CHUNK = 512


@dataclass(frozen=True)
class Kernel:
    """How alike jobs are.

    Attributes:
        amplitudes: log standard deviations of the two terms, (2,).
        rates: of each feature, 1 over the length at which likeness falls to 1/e, (2, d); 0 for
            those that do not matter.
        low, high: the range of the features that were measured, (d,).
    """

    amplitudes: FloatArray
    rates: FloatArray
    low: FloatArray
    high: FloatArray

    def between(self, a: Features, b: Features) -> FloatArray:
        """Return the covariances of n jobs and m measured ones, (n, m)."""
        rows = [np.arange(s, min(s + CHUNK, len(a))) for s in range(0, len(a), CHUNK)]
        found = [self.some(a, chunk, b) for chunk in rows]
        return np.concatenate(found) if found else np.zeros((0, len(b)))

    def some(self, a: Features, rows: IntArray, b: Features) -> FloatArray:
        """Return the covariances of some of the jobs with m measured ones, (rows, m)."""
        values, work = a.values[rows], self.rates * IS_WORK
        cells, cell = distinct(values[:, IS_WORK])
        alike = np.exp(-_distances(values[cells], b.values, work[0]))[cell]
        far = _distances(values[cells], b.values, work[1])[cell]
        far += _distances(values, b.values, self.rates[1] * ~IS_WORK)
        near, fully = self._inside(values)
        first = np.outer(near * a.share[rows], b.share) * alike
        return np.asarray(
            self.amplitudes[0] ** 2 * first
            + self.amplitudes[1] ** 2 * fully[:, None] * np.exp(-far)
        )

    def own(self, a: Features) -> FloatArray:
        """Return the variance of n jobs' corrections before anything is measured, (n,)."""
        return np.asarray(self.amplitudes[0] ** 2 * a.share**2 + self.amplitudes[1] ** 2)

    def _inside(self, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return what is left of the likeness of jobs outside the range, (n,) for each term."""
        margin = MARGIN * (self.high - self.low)
        out = np.maximum(self.low - margin - values, values - self.high - margin)
        out = np.maximum(out, 0.0)
        work = out[:, IS_WORK].sum(axis=1)
        return np.exp(-work), np.exp(-work - out[:, ~IS_WORK].sum(axis=1))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {name: getattr(self, name).tolist() for name in self.__dataclass_fields__}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Kernel:
        """Return what `to_dict` wrote."""
        return Kernel(**{name: np.array(v, dtype=np.float64) for name, v in values.items()})


def _distances(a: FloatArray, b: FloatArray, rates: FloatArray) -> Float32Array:
    """Return the weighted sums of absolute differences, (n, m)."""
    total = np.zeros((len(a), len(b)), dtype=np.float32)
    part = np.empty_like(total)
    for i in np.flatnonzero(rates):
        left, right = (
            (rates[i] * a[:, i]).astype(np.float32),
            (rates[i] * b[:, i]).astype(np.float32),
        )
        np.subtract(left[:, None], right[None, :], out=part)
        np.abs(part, out=part)
        total += part
    return total


def distinct(values: FloatArray) -> tuple[IntArray, IntArray]:
    """Return (a row of each distinct kind, each row's place among these) of values (n, d)."""
    code = values @ np.random.default_rng(0).uniform(1.0, 2.0, values.shape[1])
    _, first, place = np.unique(code, return_index=True, return_inverse=True)
    if not np.array_equal(values[first][place], values):  # two kinds of row, one code
        return np.arange(len(values)), np.arange(len(values))
    return first.astype(np.int64), place.reshape(-1).astype(np.int64)
