"""DesignRuns: whole runs for a budget, from the shares of an optimal design, bettered by exchange.

The optimal design has shares between 0 and 1, and nobody can make 0.4 of a run. Runs are taken one
by one by what they add for their price, and then exchanged, one for one, while that betters the
criterion (Fedorov, Theory of Optimal Experiments, 1972). The design's bound says how far from the
best the result can be.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.errors import UnsatisfiedError
from forerun.search.design_solver import Problem

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

# Part of the optimal design's information that stands in for runs until enough are taken.
_STAND_IN = 1e-4
_MOST_EXCHANGES = 60
_MANY = 1_000_000  # candidates times runs that are looked at together
_BETTER = 1e-9
_LEAST_SHARE, _MOST_STARTS = 0.05, 12


@dataclass(frozen=True)
class WholeRuns:
    """Runs to make, in the order of what each adds for its price.

    Attributes:
        index: positions of the candidates, (m,).
        value: the criterion with all of them: trace(W M^-1), infinite while terms are open; or log
            det M, minus infinity then.
        cost: of all of them.
    """

    index: IntArray
    value: float
    cost: float


def whole_runs(problem: Problem, share: FloatArray, count: int | None = None) -> WholeRuns:
    """Return whole runs within the problem's budget.

    Args:
        problem: the candidates, their costs, and what is known.
        share: of the optimal design, (n,).
        count: the most runs to take; as many as can be paid for by default.

    Raises:
        UnsatisfiedError: the cheapest candidate costs more than the budget.
    """
    if float(problem.c.min()) > problem.budget:
        raise UnsatisfiedError(
            f"runs for at most {problem.budget:g}",
            f"the cheapest candidate costs {problem.c.min():g}",
            "raise the budget, or add cheaper candidates (fewer devices, a smaller size)",
        )  # fmt: skip
    x = problem.x
    guess = (x.T * share) @ x
    base = problem.known + _STAND_IN * (guess + problem.known)
    most = len(x) if count is None else count
    nothing = np.zeros(len(x), dtype=bool)
    starts = [nothing, *(_rounded(problem, order, most) for order in _orders(share))]
    if len(x) * share.sum() > _MANY:  # each start costs that much; one from the shares will do
        starts = starts[1:2]
    tried = [_exchanged(problem, base, _taken(problem, base, s, most), most) for s in starts]
    chosen = min(tried, key=lambda mask: _loss(problem, _with(problem, base, mask)))
    order = _by_gain(problem, base, np.flatnonzero(chosen))
    return WholeRuns(order, _value(problem, order), float(problem.c[order].sum()))


def _loss(problem: Problem, information: FloatArray) -> float:
    """Return what is minimised: the trace, or minus the log determinant."""
    if problem.criterion == "D":
        return -float(np.linalg.slogdet(information)[1])
    return float(np.trace(np.linalg.solve(information, problem.wanted)))


def _gains(problem: Problem, information: FloatArray) -> FloatArray:
    """Return by how much one more run of each candidate lowers the loss, (n,): rank-one updates."""
    inverse = np.linalg.inv(information)
    seen = np.einsum("ij,jk,ik->i", problem.x, inverse, problem.x)
    if problem.criterion == "D":
        return np.asarray(np.log1p(seen))
    moved = inverse @ problem.wanted @ inverse
    return np.asarray(np.einsum("ij,jk,ik->i", problem.x, moved, problem.x) / (1.0 + seen))


def _with(problem: Problem, base: FloatArray, chosen: BoolArray) -> FloatArray:
    x = problem.x[chosen]
    return np.asarray(base + x.T @ x)


def _orders(share: FloatArray) -> list[IntArray]:
    """Return orders in which candidates of a design are taken: by share, each open one first."""
    split = np.round(share, 6)
    order = np.argsort(-split, kind="stable")
    order = order[split[order] > _LEAST_SHARE]
    halves = order[split[order] < 1.0 - _LEAST_SHARE][:_MOST_STARTS]
    pairs = [(i, j) for i in halves for j in halves]
    firsts = [order[:0], *(np.array(list(dict.fromkeys(pair))) for pair in pairs)][:_MOST_STARTS]
    return [np.concatenate([first, order[~np.isin(order, first)]]) for first in firsts]


def _rounded(problem: Problem, order: IntArray, most: int) -> BoolArray:
    """Return the candidates that can be paid for, taken in an order, (n,)."""
    chosen = np.zeros(len(problem.x), dtype=bool)
    left = problem.budget * (1 + 1e-12)
    for i in order:
        if problem.c[i] <= left and chosen.sum() < most:
            chosen[i] = True
            left -= float(problem.c[i])
    return chosen


def _taken(problem: Problem, base: FloatArray, chosen: BoolArray, most: int) -> BoolArray:
    """Return the choice with runs added by what they gain for their price, while any can be paid."""
    chosen = chosen.copy()
    least = float(problem.c[problem.c > 0].min(initial=1.0)) * 1e-6
    while chosen.sum() < most:
        left = problem.budget * (1 + 1e-12) - float(problem.c[chosen].sum())
        open_to = ~chosen & (problem.c <= left)
        if not open_to.any():
            break
        rate = _gains(problem, _with(problem, base, chosen)) / np.maximum(problem.c, least)
        chosen[int(np.argmax(np.where(open_to, rate, -np.inf)))] = True
    return chosen


def _exchanged(problem: Problem, base: FloatArray, chosen: BoolArray, most: int) -> BoolArray:
    """Return the choice after exchanges of one run for another, the best each time."""
    loss = _loss(problem, _with(problem, base, chosen))
    rounds = min(_MOST_EXCHANGES, int(_MANY // max(len(chosen) * chosen.sum(), 1)))
    for _ in range(rounds):
        best: tuple[float, BoolArray] = (loss, chosen)
        for out in np.flatnonzero(chosen):
            trial = chosen.copy()
            trial[out] = False
            information = _with(problem, base, trial)
            left = problem.budget * (1 + 1e-12) - float(problem.c[trial].sum())
            gains = np.where(~chosen & (problem.c <= left), _gains(problem, information), -np.inf)
            entering = int(np.argmax(gains))
            reached = _loss(problem, information) - float(gains[entering])
            if np.isfinite(gains[entering]) and reached < best[0]:
                trial[entering] = True
                best = (reached, trial)
        if best[0] >= loss - _BETTER * max(abs(loss), 1.0):
            break
        chosen = _taken(problem, base, best[1], most)
        loss = _loss(problem, _with(problem, base, chosen))
    return chosen


def _by_gain(problem: Problem, base: FloatArray, index: IntArray) -> IntArray:
    """Return positions in the order in which each adds most for its price to those before it."""
    order: list[int] = []
    left = set(index.tolist())
    least = float(problem.c[problem.c > 0].min(initial=1.0)) * 1e-6
    while left:
        taken = np.zeros(len(problem.x), dtype=bool)
        taken[order] = True
        rate = _gains(problem, _with(problem, base, taken)) / np.maximum(problem.c, least)
        order.append(max(sorted(left), key=lambda i: float(rate[i])))
        left.remove(order[-1])
    return np.array(order, dtype=np.int64)


def _value(problem: Problem, index: IntArray) -> float:
    """Return the criterion of runs and what is known, without any stand-in."""
    x = problem.x[index]
    information = problem.known + x.T @ x
    k = len(information)
    size = np.sqrt(np.maximum(np.diag(information), 1e-300))
    if np.linalg.matrix_rank(information / np.outer(size, size), tol=1e-10) < k:
        return -np.inf if problem.criterion == "D" else np.inf
    loss = _loss(problem, information)
    return -loss if problem.criterion == "D" else loss
