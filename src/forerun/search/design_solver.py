"""DesignSolver: optimal designs by a primal-dual interior point on a k x k information matrix.

The Hessian of either criterion over n shares has rank k (k + 1) / 2 at most, so that a Newton step
costs n times the square of that, and not n cubed. Every round yields a design within the budget and
a bound that no such design can pass, so the answer carries its own proof.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray

_MOST_ROUNDS, _MOST_HALVINGS = 150, 30
# How near to the edge of what is allowed a step may go, and by how much the barrier falls.
_TO_EDGE, _LEAST_FALL, _EDGE = 0.99, 1e-3, 1e-14


@dataclass(frozen=True)
class Problem:
    """Minimise trace(W M^-1) or -log det M, M = M0 + sum w_i x_i x_i^T, 0 <= w <= 1, c . w <= budget.

    Attributes:
        x: (n, k). c: (n,), not negative. known: M0, (k, k). wanted: W, (k, k). criterion: A or D.
    """

    x: FloatArray
    c: FloatArray
    budget: float
    known: FloatArray
    wanted: FloatArray
    criterion: str


@dataclass(frozen=True)
class _Point:
    """The criterion at one w: its value, slope (n,) and the factor U (n, q) of its Hessian U U^T.

    worth: -slope. fixed: what the known information adds to sum_i w_i worth_i.
    """

    value: float
    worth: FloatArray
    factor: FloatArray
    fixed: float


def solved(problem: Problem, tolerance: float) -> tuple[FloatArray, float, float, int]:
    """Return shares (n,), value, bound and rounds of the design that is best to a tolerance.

    The bound is a lower one of the trace, or an upper one of log det M.

    Args:
        problem: whose candidates and known information together give a regular matrix.
        tolerance: of the gap, relative for A, and per feature as a log for D.
    """
    conditioned, log_det = _conditioned(problem)
    free = float(problem.c.sum()) <= problem.budget
    share, rounds = (np.ones(len(problem.x)), 0) if free else _interior(conditioned, tolerance)
    point = _point(conditioned, share)
    # More of a run never teaches less, so that what can be paid for whole is the best there is.
    bound = point.value if free else _bound(conditioned, point)
    if problem.criterion == "D":
        return share, log_det - point.value, log_det - bound, rounds
    return share, point.value, bound, rounds


def _conditioned(problem: Problem) -> tuple[Problem, float]:
    """Return the same problem in coordinates where all candidates run together give M = 1.

    The criterion A is unchanged by it; log det M falls by the second number.
    """
    x: FloatArray = problem.x
    scale: FloatArray = np.sqrt(np.diag(problem.known + x.T @ x))
    x = np.asarray(x / scale)
    known: FloatArray = problem.known / np.outer(scale, scale)
    lower = np.linalg.cholesky(known + x.T @ x)
    wanted = _congruent(lower, problem.wanted / np.outer(scale, scale))
    log_det = 2.0 * float(np.log(scale).sum() + np.log(np.diag(lower)).sum())
    moved = Problem(
        np.linalg.solve(lower, x.T).T, problem.c, problem.budget, _congruent(lower, known), wanted,
        problem.criterion,
    )  # fmt: skip
    return moved, log_det


def _congruent(lower: NDArray[Any], matrix: FloatArray) -> FloatArray:
    """Return L^-1 A L^-T."""
    half = np.linalg.solve(lower, matrix)
    return np.asarray(np.linalg.solve(lower, half.T))


def _point(problem: Problem, share: FloatArray) -> _Point:
    """Return the criterion and its derivatives at shares (n,).

    With M^-1 = T T^T and M^-1 W M^-1 = T diag(v) T^T (both at once: the eigenvectors of the pencil
    of W and M) and y = T^T x, the slope of trace(W M^-1) by w_i is -sum_a v_a y_ia^2, and its Hessian
    2 (y_i . y_j) (sum_a v_a y_ia y_ja): a sum over pairs a <= b of products of y_a y_b.
    """
    x = problem.x
    lower = np.linalg.cholesky(problem.known + (x.T * share) @ x)
    a, b = np.triu_indices(x.shape[1])
    if problem.criterion == "D":
        y = np.linalg.solve(lower, x.T).T
        factor = y[:, a] * y[:, b] * np.where(a == b, 1.0, np.sqrt(2.0))
        value = -2.0 * float(np.log(np.diag(lower)).sum())
        fixed = float(np.trace(_congruent(lower, problem.known)))
        return _Point(value, (y**2).sum(axis=1), factor, fixed)
    v, turned = np.linalg.eigh(np.asarray(_congruent(lower, problem.wanted)))
    v = np.maximum(v, 0.0)
    y = np.linalg.solve(lower, x.T).T @ turned
    factor = y[:, a] * y[:, b] * np.sqrt(np.where(a == b, 2.0 * v[a], 2.0 * (v[a] + v[b])))
    had = turned.T @ _congruent(lower, problem.known) @ turned
    return _Point(float(v.sum()), y**2 @ v, factor, float(v @ np.diag(had)))


def _bound(problem: Problem, point: _Point) -> float:
    """Return a value that no design within the budget is below (of the minimised criterion).

    For any other M', trace(W M'^-1) trace(W M^-1 M' M^-1) >= trace(W M^-1)^2 (Cauchy and Schwarz),
    and log det M^-1 M' <= k log(trace(M^-1 M') / k) (arithmetic and geometric means). Either trace is
    linear in the shares, so that its most within the budget is a fractional knapsack.
    """
    most = point.fixed + _knapsack(point.worth, problem.c, problem.budget)
    if problem.criterion == "D":
        k = problem.x.shape[1]
        return float(point.value - k * np.log(max(most / k, 1.0)))
    return float(point.value**2 / max(most, point.value))


def _knapsack(worth: FloatArray, cost: FloatArray, budget: float) -> float:
    """Return the most that shares between 0 and 1 within the budget are worth."""
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.where(cost > 0, worth / np.where(cost > 0, cost, 1.0), np.inf)
    order = np.argsort(-rate, kind="stable")
    spent = np.cumsum(cost[order])
    before = spent - cost[order]
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.where(cost[order] > 0, (budget - before) / cost[order], 1.0)
    return float(np.clip(part, 0.0, 1.0) @ worth[order])


def _interior(problem: Problem, tolerance: float) -> tuple[FloatArray, int]:
    """Return shares whose gap is within the tolerance, and the rounds that it took.

    The budget is always spent: a run more never teaches less. The state is (w, z, u, v): shares,
    the prices of w >= 0 and of w <= 1, and that of the budget.
    """
    cost = problem.c / problem.budget
    n = len(cost)
    w = np.full(n, 1.0 / float(cost.sum()))
    point = _point(problem, w)
    level = float(point.worth @ w) / n
    dearer = float(point.worth @ w) * cost - point.worth
    z, u = level / w + np.maximum(dearer, 0.0), level / (1.0 - w) + np.maximum(-dearer, 0.0)
    best, best_gap = w, np.inf
    for rounds in range(_MOST_ROUNDS):
        gap = _gap(problem, point)
        if gap < best_gap:
            best, best_gap = w, gap
        if gap <= tolerance:
            return w, rounds
        try:
            step, barrier = _steps(point, cost, w, z, u)
        except np.linalg.LinAlgError:  # rounding leaves nothing to gain
            break
        w, z, u, point = _moved(problem, (w, z, u), step, barrier)
    return best, rounds


def _gap(problem: Problem, point: _Point) -> float:
    bound = _bound(problem, point)
    if problem.criterion == "D":
        return float((point.value - bound) / problem.x.shape[1])
    return float(point.value / bound - 1.0)


def _steps(
    point: _Point, cost: FloatArray, w: FloatArray, z: FloatArray, u: FloatArray
) -> tuple[tuple[FloatArray, FloatArray, FloatArray], float]:
    """Return the steps of w, z and u, (n,) each, and the barrier that they aim at.

    Mehrotra's predictor and corrector (SIAM J. Optim. 2, 1992): a step without a barrier says how
    far it may fall, and what the products z w and u (1 - w) gain by second order.
    """
    room = 1.0 - w
    solve = _kkt(point, cost, z / w + u / room)
    level = float(z @ w + u @ room) / (2 * len(w))

    def step(
        aim_low: FloatArray, aim_high: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        dw = solve(point.worth + aim_low / w - aim_high / room)
        return dw, aim_low / w - z - z / w * dw, aim_high / room - u + u / room * dw

    nothing = np.zeros_like(w)
    dw, dz, du = step(nothing, nothing)
    reach = min(_longest(w, dw), _longest(room, -dw))
    dual = min(_longest(z, dz), _longest(u, du))
    ahead = (z + dual * dz) @ (w + reach * dw) + (u + dual * du) @ (room - reach * dw)
    fall = min(float(ahead) / (2 * len(w)) / level, 1.0) ** 3
    barrier = max(fall, _LEAST_FALL) * level
    far = reach * dual
    return step(barrier - far * dw * dz, barrier + far * dw * du), barrier


def _kkt(
    point: _Point, cost: FloatArray, diagonal: FloatArray
) -> Callable[[FloatArray], FloatArray]:
    """Return what solves (U U^T + diag(d)) dw + cost v = right with cost . dw = 0, by Woodbury."""
    root = np.sqrt(diagonal)
    factor = point.factor / root[:, None]
    small = np.eye(factor.shape[1]) + factor.T @ factor

    def inverse(right: FloatArray) -> FloatArray:
        plain = right / root
        return np.asarray((plain - factor @ np.linalg.solve(small, factor.T @ plain)) / root)

    priced = inverse(cost)
    whole = float(cost @ priced)

    def solve(right: FloatArray) -> FloatArray:
        dw = inverse(right)
        return np.asarray(dw - float(cost @ dw) / whole * priced)

    return solve


def _moved(
    problem: Problem,
    state: tuple[FloatArray, FloatArray, FloatArray],
    step: tuple[FloatArray, FloatArray, FloatArray],
    barrier: float,
) -> tuple[FloatArray, FloatArray, FloatArray, _Point]:
    """Return the state after the longest step that stays inside what is allowed and goes down.

    Down: of the criterion with the logarithmic barrier, on which the step of w is a descent.
    """
    (w, z, u), (dw, dz, du) = state, step
    reach = min(_longest(w, dw), _longest(1.0 - w, -dw))
    dual = min(_longest(z, dz), _longest(u, du))
    before = _merit(problem, w, barrier)
    for _ in range(_MOST_HALVINGS):
        after = _merit(problem, _inside(w + reach * dw), barrier)
        if after <= before + 1e-12 * abs(before):
            break
        reach /= 2
    moved = _inside(w + reach * dw)
    return moved, z + dual * dz, u + dual * du, _point(problem, moved)


def _inside(w: FloatArray) -> FloatArray:
    """Return shares that rounding has not put on the edge."""
    return np.clip(w, _EDGE, 1.0 - _EDGE)


def _merit(problem: Problem, w: FloatArray, barrier: float) -> float:
    """Return the criterion with its barrier; infinite where rounding leaves no regular matrix."""
    try:
        lower = np.linalg.cholesky(problem.known + (problem.x.T * w) @ problem.x)
    except np.linalg.LinAlgError:
        return np.inf
    inside = barrier * float(np.log(w).sum() + np.log1p(-w).sum())
    if problem.criterion == "D":
        return -2.0 * float(np.log(np.diag(lower)).sum()) - inside
    return float(np.trace(_congruent(lower, problem.wanted))) - inside


def _longest(value: FloatArray, step: FloatArray) -> float:
    """Return how much of a step keeps positive values positive, 1 at most."""
    falling = step < 0
    if not falling.any():
        return 1.0
    return float(min(1.0, _TO_EDGE * np.min(-value[falling] / step[falling])))
