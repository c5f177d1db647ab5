"""Constants of the generic expression: coefficients exactly, exponents by descent to the minimum.

For given exponents the expression is linear in its coefficients, so the best of them that are not
negative are found exactly, for every member of a population at once; and the slope of what is left
says how to change the exponents (variable projection: Golub and Pereyra, Inverse Problems 19, 2003).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from forerun.predictors.laws.generic_form import MOST_EXPONENT, Cost
from forerun.predictors.laws.nnls_gram import nnls_gram

FloatArray = NDArray[np.float64]

MOST_STEPS, LEAST_GAIN = 100, 1e-9
# Numbers in the largest array of one pass: enough that calls cost little, few enough for memory.
MOST_NUMBERS = 4_000_000
# Of times near 1: what is missed is a billionth of them, and less than the rounding of their squares.
_NOTHING = 1e-18
_FIRST_DAMPING, _EASIER, _HARDER, _MOST_DAMPING = 1e-3, 0.2, 8.0, 1e6


@dataclass(frozen=True)
class Solved:
    """Constants of p problems.

    Attributes:
        coefficients: (p, k), not negative. exponents: (p, d). costs: (p,).
        settled: of each, whether the descent ended before its steps did, (p,).
    """

    coefficients: FloatArray
    exponents: FloatArray
    costs: FloatArray
    settled: NDArray[np.bool_]

    @property
    def constants(self) -> FloatArray:
        """Coefficients, then exponents, (p, k + d)."""
        return np.concatenate([self.coefficients, self.exponents], axis=1)

    def best(self) -> Solved:
        """Return the problem of the least cost alone, (1, ...)."""
        one = slice(int(np.argmin(self.costs)), int(np.argmin(self.costs)) + 1)
        return Solved(
            self.coefficients[one], self.exponents[one], self.costs[one], self.settled[one]
        )


def inner(cost: Cost, columns: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the best coefficients (p, k) for columns (p, n, k), and what they miss, (p, n).

    With either penalty the problem stays one of non-negative least squares: l2 adds lambda to the
    diagonal of the Gram matrix, l1 takes lambda / 2 from the moment, since no coefficient is negative.
    """
    weights = cost.weights if cost.weights.ndim == 2 else cost.weights[None]
    turned = (columns * weights[:, :, None]).transpose(0, 2, 1)
    seconds = cost.seconds if cost.seconds.ndim == 2 else cost.seconds[None]
    gram, moment = turned @ columns, (turned @ seconds[:, :, None])[:, :, 0]
    strength = np.broadcast_to(np.asarray(cost.strength, dtype=float), len(columns))[:, None]
    if cost.penalty == "l1":
        moment = moment - strength / 2
    else:
        gram = gram + strength[:, :, None] * np.eye(gram.shape[1])
    coefficients = nnls_gram(gram, moment)
    left = cost.seconds - (columns @ coefficients[:, :, None])[:, :, 0]
    return coefficients, left


def judged(cost: Cost, exponents: FloatArray) -> FloatArray:
    """Return the least cost with each member's exponents (p, d), (p,)."""
    costs = np.empty(len(exponents))
    step = max(MOST_NUMBERS // max(len(cost.rows) * 8, 1), 1)
    for start in range(0, len(exponents), step):
        some = exponents[start : start + step]
        now = problems(cost, slice(start, start + step))
        coefficients, left = inner(now, now.rows.columns(some))
        constants = np.concatenate([coefficients, some], axis=1)
        costs[start : start + step] = _total(now, left, constants)
    return costs


def _total(cost: Cost, left: FloatArray, constants: FloatArray) -> FloatArray:
    missed: FloatArray = np.sum(cost.weights * left**2, axis=1)
    return missed + cost.penalised(constants)


def descend(
    cost: Cost, exponents: FloatArray, steps: int = MOST_STEPS, gain: float = LEAST_GAIN
) -> Solved:
    """Return the minimum beside each start, by Levenberg's and Marquardt's damped steps.

    Args:
        cost: of one problem, or of p.
        exponents: where each descent starts, (p, d).
        steps: at most.
        gain: the last step is one that gains less than this share of the cost.
    """
    size = max(MOST_NUMBERS // max(len(cost.rows) * 8, 1), 1)
    parts = []
    for start in range(0, len(exponents), size):
        some = slice(start, start + size)
        parts.append(_descended(problems(cost, some), exponents[some], steps, gain))
    joined = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("coefficients", "exponents", "costs", "settled")
    }
    return Solved(**joined)


def _descended(cost: Cost, exponents: FloatArray, steps: int, least: float) -> Solved:
    count = len(exponents)
    columns = cost.rows.columns(exponents)
    coefficients, left = inner(cost, columns)
    costs = _total(cost, left, np.concatenate([coefficients, exponents], axis=1))
    damping = np.full(count, _FIRST_DAMPING)
    settled = (costs <= _NOTHING) | (exponents.shape[1] == 0)
    for _ in range(steps):
        if settled.all():
            break
        open_ = np.flatnonzero(~settled)
        now = problems(cost, open_)
        step = _step(
            now, columns[open_], coefficients[open_], exponents[open_], left[open_], damping[open_]
        )
        trial = np.clip(exponents[open_] + step, -MOST_EXPONENT, MOST_EXPONENT)
        trial_columns = now.rows.columns(trial)
        found, missed = inner(now, trial_columns)
        reached = _total(now, missed, np.concatenate([found, trial], axis=1))
        better = reached < costs[open_]
        gain = costs[open_] - reached
        small = better & (gain <= least * costs[open_])
        won = open_[better]
        columns[won], coefficients[won] = trial_columns[better], found[better]
        exponents = exponents.copy()
        exponents[won], left[won], costs[won] = trial[better], missed[better], reached[better]
        damping[open_] *= np.where(better, _EASIER, _HARDER)
        settled[open_] = small | (damping[open_] > _MOST_DAMPING) | (costs[open_] <= _NOTHING)
    return Solved(coefficients, exponents, costs, settled)


def problems(cost: Cost, index: slice | NDArray[np.int64]) -> Cost:
    """Return the cost of some problems alone, where they differ in anything."""
    weights = cost.weights[index] if cost.weights.ndim == 2 else cost.weights
    seconds = cost.seconds[index] if cost.seconds.ndim == 2 else cost.seconds
    strength = cost.strength
    strength = strength if np.ndim(strength) == 0 else np.asarray(strength)[index]
    rows = cost.rows.take(index) if cost.rows.flags.ndim == 3 else cost.rows
    return replace(cost, rows=rows, weights=weights, seconds=seconds, strength=strength)


def _step(
    cost: Cost, columns: FloatArray, coefficients: FloatArray, exponents: FloatArray,
    left: FloatArray, damping: FloatArray,
) -> FloatArray:  # fmt: skip
    """Return the damped step of the exponents (p, d), the coefficients free to follow."""
    k, d = coefficients.shape[1], exponents.shape[1]
    slopes = cost.rows.slopes(columns, coefficients)
    every = np.concatenate([columns, slopes], axis=2)
    matrix, pull = normal_equations(cost, every, left)
    strength = np.broadcast_to(np.asarray(cost.strength, dtype=float), len(columns))[:, None]
    if cost.penalty == "l1":
        pull[:, k:] = _kinked(pull[:, k:], exponents, strength / 2)
    else:
        matrix += strength[:, :, None] * np.eye(k + d)
        pull[:, k:] -= strength * exponents
    pull[:, :k] = 0.0  # the coefficients are at their best already
    outward = (np.abs(exponents) >= MOST_EXPONENT) & (pull[:, k:] * exponents > 0)
    at_kink = (exponents == 0) & (pull[:, k:] == 0)
    free = np.concatenate([coefficients > 0, ~outward & ~at_kink], axis=1)
    diagonal = np.einsum("pii->pi", matrix)
    eye = np.eye(k + d)
    matrix = np.where(free[:, :, None] & free[:, None, :], matrix, eye)
    held = np.where(free, damping[:, None] * diagonal + 1e-14, 1.0)
    matrix = matrix + held[:, :, None] * eye
    solved = np.linalg.solve(matrix, np.where(free, pull, 0.0)[:, :, None])[:, k:, 0]
    step: FloatArray = np.clip(solved, -1.0, 1.0)
    if cost.penalty == "l1":
        step = np.where((exponents != 0) & ((exponents + step) * exponents < 0), -exponents, step)
    return step


def _kinked(pull: FloatArray, exponents: FloatArray, half: FloatArray) -> FloatArray:
    """Return the pull on exponents (p, d) with that of l1, which holds those at 0 up to `half`."""
    held = np.sign(pull) * np.maximum(np.abs(pull) - half, 0.0)
    return np.where(exponents == 0, held, pull - half * np.sign(exponents))


def normal_equations(
    cost: Cost, every: FloatArray, left: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the weighted Gram matrix (p, m, m) of columns (p, n, m), and their moment with `left`."""
    weights = cost.weights if cost.weights.ndim == 2 else cost.weights[None]
    turned = (every * weights[:, :, None]).transpose(0, 2, 1)
    return turned @ every, (turned @ left[:, :, None])[:, :, 0]
