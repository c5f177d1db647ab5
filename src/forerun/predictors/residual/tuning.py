"""Tuning: a kernel's amplitudes and rates, by the marginal likelihood of residuals.

Maximum a posteriori by Adam (Kingma and Ba 2015) on some of the runs, with gradients in closed form
(Rasmussen and Williams 2006, equation 5.9). Errors are Student-t: every few rounds each run's noise
is set to what its own residual asks for, so that a few runs of another kind do not make all noisy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.predictors.residual.features import Features
from forerun.predictors.residual.kernel import IS_WORK, Kernel

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


def tuned(features: Features, residual: FloatArray) -> tuple[Kernel, float]:
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
    kernel = Kernel(np.exp(log[:2]), rates, low, high)
    return kernel, max(float(np.exp(log[2])), LEAST_NOISE)


def _term(
    features: Features,
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
