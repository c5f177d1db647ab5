"""ResidualKernel: how alike two jobs are to a correction, from 1 for the same work to 0 for another.

k(x, y) = a_work^2 s_x s_y exp(-|x - y|_work) + a_whole^2 exp(-|x - y|_all), with |.| the sum of
absolute differences of features, each times a rate of its own, and s the part of the step that is
work. The first term says that what a micro-batch takes is off by the same factor wherever it is
done; the second takes up the rest. Exponentials of absolute differences (the product of Ornstein and
Uhlenbeck's kernels) suit what libraries do: it is rough, it jumps, and it is the same again at the
same shape. Source of the method: Rasmussen and Williams, Gaussian Processes for Machine Learning,
2006, chapters 2, 4 and 5.

Tuning: a kernel's amplitudes and rates, by the marginal likelihood of residuals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.predictors.residual.features import NAMES, WORK, PhysicsFeatures

Float32Array = NDArray[np.float32]
IS_WORK = np.arange(len(NAMES)) < len(WORK)
# Beyond the range of what was measured, widened by this share of it, likeness falls by a factor e
# with every doubling.
MARGIN = 1.0 / 3.0
# Rows that are compared at a time: their columns stay in the cache.
CHUNK = 512


@dataclass(frozen=True)
class ResidualKernel:
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

    def between(self, a: PhysicsFeatures, b: PhysicsFeatures) -> FloatArray:
        """Return the covariances of n jobs and m measured ones, (n, m)."""
        rows = [np.arange(s, min(s + CHUNK, len(a))) for s in range(0, len(a), CHUNK)]
        found = [self.some(a, chunk, b) for chunk in rows]
        return np.concatenate(found) if found else np.zeros((0, len(b)))

    def some(self, a: PhysicsFeatures, rows: IntArray, b: PhysicsFeatures) -> FloatArray:
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

    def own(self, a: PhysicsFeatures) -> FloatArray:
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
    def from_dict(values: dict[str, Any]) -> ResidualKernel:
        """Return what `to_dict` wrote."""
        return ResidualKernel(**{name: np.array(v, dtype=np.float64) for name, v in values.items()})


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


MOST_ROWS = 250
ROUNDS, PACE = 45, 0.13
REWEIGH_EVERY = 5
DEGREES = 4.0  # of freedom of the Student-t errors
# Priors, medians with log standard deviations: amplitudes, noise, and the lengths of the two terms
# in doublings. What is rare to be known is that two of a feature's doublings do not matter.
AMPLITUDE, NOISE, LENGTHS = 0.06, 0.03, (4.0, 6.0)
SCALE_SD, LENGTH_SD = 1.0, 1.5
LEAST_NOISE = 0.005  # nobody's clock repeats better
# A feature whose whole range matters less than this is left out.
LEAST_EFFECT = 0.02
# A feature that varies less than this is taken as constant.
LEAST_RANGE = 0.15


@dataclass(frozen=True)
class _Term:
    """One term of the kernel on n rows: differences of pairs (d, pairs), their factor (pairs,)."""

    columns: NDArray[np.int64]
    differences: NDArray[np.float32]
    factor: FloatArray
    own: FloatArray


def tuned(features: PhysicsFeatures, residual: FloatArray) -> tuple[ResidualKernel, float]:
    """Return (the kernel, the log standard deviation of the noise) of n measured runs.

    residual: log measured over forecast seconds, (n,).
    """
    low, high = features.values.min(axis=0), features.values.max(axis=0)
    rows = np.random.default_rng(0).permutation(len(residual))[:MOST_ROWS]
    varied = np.flatnonzero(high - low > LEAST_RANGE)
    upper = np.triu_indices(len(rows), 1)
    terms = [
        _term(features, rows, varied[IS_WORK[varied]], upper, features.share[rows]),
        _term(features, rows, varied, upper, np.ones(len(rows))),
    ]
    log = _maximum(terms, residual[rows], upper)
    rates = np.zeros((2, len(low)))
    place = 3
    for i, term in enumerate(terms):
        rates[i, term.columns] = np.exp(-log[place : place + len(term.columns)])
        place += len(term.columns)
    rates[rates * (high - low) < LEAST_EFFECT] = 0.0
    kernel = ResidualKernel(np.exp(log[:2]), rates, low, high)
    return kernel, max(float(np.exp(log[2])), LEAST_NOISE)


def _term(
    features: PhysicsFeatures,
    rows: NDArray[np.int64],
    columns: NDArray[np.int64],
    upper: tuple[NDArray[np.int64], NDArray[np.int64]],
    share: FloatArray,
) -> _Term:
    values = features.values[np.ix_(rows, columns)].T.astype(np.float32)
    differences = np.abs(values[:, upper[0]] - values[:, upper[1]])
    return _Term(columns, differences, share[upper[0]] * share[upper[1]], share**2)


def _maximum(
    terms: list[_Term], target: FloatArray, upper: tuple[NDArray[np.int64], NDArray[np.int64]]
) -> FloatArray:
    """Return the logs of amplitudes (2), noise (1) and lengths of both terms at the maximum."""
    counts = [len(term.columns) for term in terms]
    prior = np.log([AMPLITUDE, AMPLITUDE, NOISE])
    lengths = [np.full(n, np.log(length)) for n, length in zip(counts, LENGTHS, strict=True)]
    prior = np.concatenate([prior, *lengths])
    sd = np.r_[np.full(3, SCALE_SD), np.full(sum(counts), LENGTH_SD)]
    log, weight = prior.copy(), np.ones(len(target))
    first, second = np.zeros_like(log), np.zeros_like(log)
    for turn in range(1, ROUNDS + 1):
        noise = np.exp(2.0 * log[2]) / weight
        parts = _covariances(terms, log)
        inverse = np.asarray(np.linalg.inv(_joined(terms, parts, noise, log, upper)))
        weights = inverse @ target
        if turn % REWEIGH_EVERY == 0:
            weight = student(noise, weights, np.diag(inverse), float(np.exp(log[2])))
        slope = _slope(terms, parts, noise, log, inverse, weights, upper)
        slope += (log - prior) / sd**2
        first, second = 0.9 * first + 0.1 * slope, 0.99 * second + 0.01 * slope**2
        step = first / (1.0 - 0.9**turn) / (np.sqrt(second / (1.0 - 0.99**turn)) + 1e-9)
        log = log - PACE * step
    return log


def student(
    noise: FloatArray, weights: FloatArray, inverse: FloatArray, scale: float
) -> FloatArray:
    """Return what each run counts for under Student-t errors, (n,): less the farther off it is.

    One round of expectation maximisation, from the run's expected squared error.

    noise: variances, weights: inverse covariance times the residuals, inverse: its diagonal, (n,).
    """
    squared = (noise * weights) ** 2 + noise - noise**2 * inverse
    return np.asarray((DEGREES + 1.0) / (DEGREES + squared / scale**2))


def _covariances(terms: list[_Term], log: FloatArray) -> list[FloatArray]:
    """Return the covariances of pairs of rows under each term, (pairs,)."""
    found, place = [], 3
    for i, term in enumerate(terms):
        rates = np.exp(-log[place : place + len(term.columns)]).astype(np.float32)
        place += len(term.columns)
        alike = np.exp(-(rates @ term.differences)).astype(np.float64)
        found.append(np.exp(2.0 * log[i]) * term.factor * alike)
    return found


def _joined(
    terms: list[_Term], parts: list[FloatArray], noise: FloatArray, log: FloatArray,
    upper: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> FloatArray:  # fmt: skip
    joined = np.zeros((len(noise), len(noise)))
    joined[upper] = parts[0] + parts[1]
    joined += joined.T
    own = sum(np.exp(2.0 * log[i]) * term.own for i, term in enumerate(terms))
    joined[np.diag_indices_from(joined)] = own + noise
    return joined


def _slope(
    terms: list[_Term], parts: list[FloatArray], noise: FloatArray, log: FloatArray,
    inverse: FloatArray, weights: FloatArray, upper: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> FloatArray:  # fmt: skip
    """Return the slope of the negative log likelihood by each log, as `_maximum` orders them."""
    pull = inverse[upper] - weights[upper[0]] * weights[upper[1]]  # twice, for both halves
    diagonal = 0.5 * (np.diag(inverse) - weights**2)
    amplitude, lengths = [], []
    place = 3
    for i, (term, part) in enumerate(zip(terms, parts, strict=True)):
        both = pull * part
        own = float(diagonal @ term.own) * np.exp(2.0 * log[i])
        amplitude.append(2.0 * (float(both.sum()) + own))
        rates = np.exp(-log[place : place + len(term.columns)])
        place += len(term.columns)
        lengths.append(rates * (term.differences @ both.astype(np.float32)))
    return np.concatenate([amplitude, [2.0 * float(diagonal @ noise)], *lengths])
