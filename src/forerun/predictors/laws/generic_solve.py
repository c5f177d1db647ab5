"""Constants of the generic expression: coefficients exactly, exponents by descent to the minimum.

For given exponents the expression is linear in its coefficients, so the best of them that are not
negative are found exactly, for every member of a population at once; and the slope of what is left
says how to change the exponents (variable projection: Golub and Pereyra, Inverse Problems 19, 2003).

NNLS of many small problems at once, each given by its Gram matrix: what a population needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.predictors.laws.generic_form import MOST_EXPONENT, Cost

# Of columns scaled to one: below it a coefficient or a gain is rounding.
_TOLERANCE = 1e-11
# Added to the diagonal of a scaled Gram matrix, so that equal columns have one solution.
_RIDGE = 1e-12
_FULL_SWAPS = 3
_MOST_ROUNDS = 60
# The square of a column of zeros counts as this.
_SMALLEST = 1e-150


def nnls_gram(gram: FloatArray, moment: FloatArray) -> FloatArray:
    """Return the x >= 0 that minimises x G x - 2 h x for each of p problems, (p, k).

    For least squares |A x - b|^2 the Gram matrix is A^T A and the moment is A^T b. A column of
    zeros has the coefficient 0.

    Args:
        gram: (p, k, k), positive semi-definite.
        moment: (p, k).
    """
    if moment.shape[1] == 2:
        return _two(gram, moment)
    size = np.sqrt(diagonal(gram))
    size[size == 0] = 1.0
    scaled = gram / (size[:, :, None] * size[:, None, :])
    diagonal(scaled)[...] += _RIDGE
    wanted = moment / size
    reach = np.maximum(np.abs(wanted).max(axis=1, initial=0.0), 1e-300)[:, None]
    wanted /= reach
    # Most problems have no coefficient at 0, so all of them start free.
    solution = np.linalg.solve(scaled, wanted[:, :, None])[:, :, 0]
    some = (solution < -_TOLERANCE).any(axis=1)
    if some.any():
        solution[some] = _pivoted(scaled[some], wanted[some], solution[some])
    result: FloatArray = np.maximum(solution, 0.0) * reach / size
    return result


def _two(gram: FloatArray, moment: FloatArray) -> FloatArray:
    """Return the minimum of two coefficients, (p, 2).

    It is where both slopes are 0, if neither is negative there; else the one that alone gains more.
    """
    lifted = gram.copy()
    size = diagonal(lifted)
    size *= 1.0 + _RIDGE
    size += _SMALLEST
    solution = np.linalg.solve(lifted, moment[:, :, None])[:, :, 0].astype(np.float64)
    some = (solution < 0.0).any(axis=1)
    if some.any():
        alone = np.maximum(moment[some], 0.0)
        gain = alone * alone / size[some]
        best = gain == gain.max(axis=1, keepdims=True)
        best[:, 1] &= ~best[:, 0]
        solution[some] = np.where(best, alone / size[some], 0.0)
    return solution


def diagonal(matrices: FloatArray) -> FloatArray:
    """Return a view of the diagonals, (p, k), of contiguous matrices (p, k, k)."""
    count, k, _ = matrices.shape
    return matrices.reshape(count, k * k)[:, :: k + 1]


def _pivoted(scaled: FloatArray, wanted: FloatArray, solution: FloatArray) -> FloatArray:
    """Return the minimum by changing sides, (p, k), from the solution with every column free."""
    count, k = wanted.shape
    eye = np.eye(k)
    free = np.ones((count, k), dtype=bool)
    gain = np.zeros((count, k))
    fewest = np.full(count, k + 1)
    swaps = np.full(count, _FULL_SWAPS)
    for _ in range(_MOST_ROUNDS):
        wrong = np.where(free, solution < -_TOLERANCE, gain > _TOLERANCE)
        many = wrong.sum(axis=1)
        if not many.any():
            break
        better = many < fewest
        swaps = np.where(better, _FULL_SWAPS, swaps - 1)
        fewest = np.minimum(fewest, many)
        stuck = swaps < 0
        free ^= np.where(stuck[:, None], _last(wrong), wrong) if stuck.any() else wrong
        both = free[:, :, None] & free[:, None, :]
        solution = np.linalg.solve(
            np.where(both, scaled, eye), np.where(free, wanted, 0.0)[:, :, None]
        )[:, :, 0]
        gain = wanted - (scaled @ solution[:, :, None])[:, :, 0]
    return solution


def _last(wrong: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return only the last true of each row."""
    after = np.cumsum(wrong[:, ::-1], axis=1)[:, ::-1]
    result: NDArray[np.bool_] = wrong & (after == 1)
    return result


MOST_STEPS, LEAST_GAIN = 100, 1e-9
# Numbers in the largest array of one pass: enough that calls cost little, few enough for memory.
MOST_NUMBERS = 4_000_000
# Of times near 1: what is missed is a billionth of them, and less than the rounding of their squares.
_NOTHING = 1e-18
# A step that promises less than this share of the least gain is not taken.
_FLAT = 1e-3
# Of so many descents those that have ended stay among the others: to part them takes longer.
_FEW = 64
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
    """Return the best coefficients (p, k) for columns (p, n, k), and what they miss, (p, n)."""
    coefficients = nnls_gram(*_squares(cost, columns))
    left = cost.seconds - (columns @ coefficients[:, :, None])[:, :, 0]
    return coefficients, left


def _squares(cost: Cost, columns: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return Gram matrix (p, k, k) and moment (p, k) of the coefficients' non-negative least squares.

    It is that with either penalty: l2 adds lambda to the diagonal of the Gram matrix, l1 takes
    lambda / 2 from the moment, since no coefficient is negative.
    """
    gram, moment = normal_equations(cost, columns, cost.seconds)
    strength = np.reshape(cost.strength, (-1, 1))
    if cost.penalty == "l1":
        moment -= strength / 2
    else:
        diagonal(gram)[...] += strength
    return gram, moment


def judge(cost: Cost) -> Callable[[FloatArray], FloatArray]:
    """Return what tells the least cost with each member's exponents (p, d), (p,).

    The best x that is not negative has x (h - G x) = 0, so that its cost is that of no coefficient
    less h x: right to the rounding of the squares of the times.
    """
    nothing = np.broadcast_to(np.sum(cost.weights * cost.seconds**2, axis=-1), len(cost.seconds))
    size = max(MOST_NUMBERS // max(len(cost.rows) * 8, 1), 1)
    parts = [slice(at, at + size) for at in range(0, len(cost.seconds), size)]
    costs = [(problems(cost, part), part) for part in parts]

    def judged(exponents: FloatArray) -> FloatArray:
        found = np.empty(len(exponents))
        for now, part in costs:
            gram, moment = _squares(now, now.rows.columns(exponents[part]))
            found[part] = np.einsum("pk,pk->p", nnls_gram(gram, moment), moment)
        return np.maximum(nothing - found, 0.0) + cost.penalised(exponents)

    return judged


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
    if len(parts) == 1:
        return parts[0]
    joined = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("coefficients", "exponents", "costs", "settled")
    }
    return Solved(**joined)


@dataclass(frozen=True)
class _Place:
    """Where p descents have come: columns (p, n, k) and what follows from the exponents (p, d)."""

    columns: FloatArray
    coefficients: FloatArray
    exponents: FloatArray
    left: FloatArray
    costs: FloatArray

    def take(self, index: NDArray[Any]) -> _Place:
        """Return some of the descents."""
        return _Place(
            self.columns[index], self.coefficients[index], self.exponents[index],
            self.left[index], self.costs[index],
        )  # fmt: skip

    def moved(self, other: _Place, better: NDArray[np.bool_]) -> _Place:
        """Return the other place where it is better, (p,)."""
        if better.all():
            return other
        for name in ("columns", "coefficients", "exponents", "left", "costs"):
            getattr(self, name)[better] = getattr(other, name)[better]
        return self


def _place(cost: Cost, exponents: FloatArray) -> _Place:
    columns = cost.rows.columns(exponents)
    coefficients, left = inner(cost, columns)
    costs = _total(cost, left, np.concatenate([coefficients, exponents], axis=1))
    return _Place(columns, coefficients, exponents, left, costs)


def _descended(cost: Cost, exponents: FloatArray, steps: int, least: float) -> Solved:
    place = _place(cost, exponents.copy())
    damping = np.full(len(exponents), _FIRST_DAMPING)
    ended = Solved(place.coefficients.copy(), exponents.copy(), place.costs.copy(),
                   np.zeros(len(exponents), dtype=bool))  # fmt: skip
    at = np.arange(len(exponents))  # the descents that go on
    done = (place.costs <= _NOTHING) | (exponents.shape[1] == 0)
    for _ in range(steps):
        if done.all():
            break
        if len(at) > _FEW and done.any():
            _keep(ended, at[done], place.take(done), True)
            going = np.flatnonzero(~done)
            at, place, damping = at[going], place.take(going), damping[going]
            cost = problems(cost, going)
            done = done[going]
        step, promised = _step(cost, place, damping)
        done |= (promised <= _FLAT * least * place.costs) & (damping <= _FIRST_DAMPING)
        if done.all():
            break
        trial = place.exponents + step
        trial = np.minimum(np.maximum(trial, -MOST_EXPONENT), MOST_EXPONENT)
        reached = _place(cost, trial)
        better = (reached.costs < place.costs) & ~done
        small = better & (place.costs - reached.costs <= least * place.costs)
        place = place.moved(reached, better)
        damping *= np.where(better, _EASIER, _HARDER)
        done |= small | (damping > _MOST_DAMPING) | (place.costs <= _NOTHING)
    _keep(ended, at, place, done)
    return ended


def _keep(ended: Solved, at: NDArray[np.int64], place: _Place, settled: Any) -> None:
    """Write where some descents have come, in place."""
    ended.coefficients[at], ended.exponents[at] = place.coefficients, place.exponents
    ended.costs[at], ended.settled[at] = place.costs, settled


def problems(cost: Cost, index: slice | NDArray[np.int64]) -> Cost:
    """Return the cost of some problems alone, where they differ in anything."""
    weights = cost.weights[index] if cost.weights.ndim == 2 else cost.weights
    seconds = cost.seconds[index] if cost.seconds.ndim == 2 else cost.seconds
    strength = cost.strength
    strength = strength if np.ndim(strength) == 0 else np.asarray(strength)[index]
    rows = cost.rows.take(index) if cost.rows.flags.ndim == 3 else cost.rows
    return replace(cost, rows=rows, weights=weights, seconds=seconds, strength=strength)


def _step(cost: Cost, place: _Place, damping: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the damped step of the exponents (p, d), and what it promises to gain, (p,).

    The coefficients are free to follow.
    """
    coefficients, exponents = place.coefficients, place.exponents
    k = coefficients.shape[1]
    slopes = cost.rows.slopes(place.columns, coefficients)
    every = np.concatenate([place.columns, slopes], axis=2)
    matrix, pull = normal_equations(cost, every, place.left)
    pull[:, :k] = 0.0  # the coefficients are at their best already
    spread = diagonal(matrix)
    strength = np.reshape(cost.strength, (-1, 1))
    if cost.penalty == "l1":
        pull[:, k:] = _kinked(pull[:, k:], exponents, strength / 2)
    else:
        spread += strength
        pull[:, k:] -= strength * exponents
    free = np.concatenate([coefficients > 0, _free(exponents, pull[:, k:])], axis=1)
    spread += damping[:, None] * spread + 1e-14
    if not free.all():
        matrix = np.where(free[:, :, None] & free[:, None, :], matrix, np.eye(free.shape[1]))
        pull = np.where(free, pull, 0.0)
    solved = np.linalg.solve(matrix, pull[:, :, None])[:, k:, 0]
    step: FloatArray = np.minimum(np.maximum(solved, -1.0), 1.0)
    if cost.penalty == "l1":
        step = np.where((exponents != 0) & ((exponents + step) * exponents < 0), -exponents, step)
    # Of the squares as the slopes see them; the damping only adds to it.
    return step, np.einsum("pd,pd->p", solved, pull[:, k:])


def _free(exponents: FloatArray, pull: FloatArray) -> NDArray[np.bool_]:
    """Return which exponents may move, (p, d): none beyond its bound, none that a kink holds."""
    outward = (np.abs(exponents) >= MOST_EXPONENT) & (pull * exponents > 0)
    free: NDArray[np.bool_] = ~(outward | ((exponents == 0) & (pull == 0)))
    return free


def _kinked(pull: FloatArray, exponents: FloatArray, half: FloatArray) -> FloatArray:
    """Return the pull on exponents (p, d) with that of l1, which holds those at 0 up to `half`."""
    held = np.sign(pull) * np.maximum(np.abs(pull) - half, 0.0)
    return np.where(exponents == 0, held, pull - half * np.sign(exponents))


def normal_equations(
    cost: Cost, every: FloatArray, left: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the weighted Gram matrix (p, m, m) of columns (p, n, m), and their moment (p, m).

    The moment is that with `left`, (p, n) or (n,).
    """
    turned = (every * cost.weights[..., None]).transpose(0, 2, 1)
    return turned @ every, (turned @ left[..., None])[:, :, 0]
