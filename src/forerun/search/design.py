"""OptimalDesign: which runs teach a law that is linear in its parameters most, for a budget.

An experiment's worth is read off the information matrix of the runs, M(w) = M0 + sum_i w_i x_i x_i^T,
where x_i are the features of candidate i, w_i between 0 and 1 says how far it is run, and M0 is what
is known already. The A-optimal design minimises trace(W M^-1): with W = 1 the variance of the
parameters, with the mean of t t^T over the features t of jobs that are asked, the variance of their
predictions. The D-optimal one maximises det M: the volume of what the parameters may be.

Ernest's design (Venkataraman et al., Ernest, NSDI 2016, section 3.2; the released code) is the
A-optimal one of features divided by their means over the candidates, a budget in units of the
smallest run, and the candidates of more than 0.3 are run.

The optimum is found by a primal-dual interior point whose Newton step costs n k^4, as the Hessian over
n shares has rank k (k + 1) / 2 at most: 10 ms for Ernest's design of 100 candidates, where SciPy's SLSQP
takes 126 ms of the same processor and grows with n^3 (the suggestion looks at 1,500).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.errors import RequestError, UnsatisfiedError
from forerun.predictors.laws.law_rows import GROUP, LawRows
from forerun.search.suggestion import SMALLEST_RUNS, NextRun, Request, Suggestion, affordable
from forerun.tables import Jobs
from forerun.units import counted

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
    """The criterion at one w: its value, slope (n,) and the factor U (n, q) of its Hessian U U^T."""

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
    """Return the same problem in coordinates where all candidates run together give M = 1."""
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
    """Return the criterion and its derivatives at shares (n,)."""
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
    """Return shares whose gap is within the tolerance, and the rounds that it took."""
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
    """Return the state after the longest step that stays inside what is allowed and goes down."""
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


CRITERIA = ("A", "D")
# Ernest runs the candidates whose share is above this.
ERNEST_KEEPS = 0.3
ERNEST_BUDGET = 10.0
TOLERANCE = 1e-6
# A combination of scaled features this small over all candidates is one that none of them shows.
_RANK = 1e-9


@dataclass(frozen=True)
class OptimalDesign:
    """How far each of n candidates is run.

    Attributes:
        share: between 0 and 1, (n,).
        value: the criterion: trace(W M^-1) for A, log det M for D.
        bound: no design within the budget has a lower trace, or a higher log det, than this.
        gap: how far the value may be from the best: relative to the bound for A; for D by how much
            the determinant's k-th root may be larger, as a log.
        cost: of the shares.
    """

    criterion: str
    share: FloatArray
    value: float
    bound: float
    gap: float
    cost: float
    rounds: int

    def kept(self, above: float = ERNEST_KEEPS) -> IntArray:
        """Return the candidates whose share is above a threshold, in their order, (m,)."""
        return np.flatnonzero(self.share > above)


def optimal_design(
    features: ArrayLike,
    costs: ArrayLike,
    budget: float,
    criterion: str = "A",
    *,
    known: ArrayLike | None = None,
    wanted: ArrayLike | None = None,
    tolerance: float = TOLERANCE,
    terms: Sequence[str] = (),
) -> OptimalDesign:
    """Return the best design for a budget, with a bound that proves how good it is.

    Args:
        features: of the candidates, (n, k).
        costs: of each candidate, in the unit of the budget, not negative, (n,).
        budget: what all of them together may cost.
        criterion: A or D.
        known: information that is there already, M0, (k, k): the sum of x x^T over runs made.
        wanted: W of the A criterion, (k, k) and positive semidefinite; the identity by default.
        tolerance: the gap at which the search for the best ends.
        terms: names of the features, for messages.

    Raises:
        RequestError: shapes do not agree, a number is wrong, there is no candidate, or the
            candidates do not tell the terms apart.
        UnsatisfiedError: the budget is not above zero while every candidate costs something.
    """
    x, c = _checked(features, costs, budget, criterion)
    k = x.shape[1]
    had = np.zeros((k, k)) if known is None else np.asarray(known, dtype=np.float64)
    want = np.eye(k) if wanted is None else np.asarray(wanted, dtype=np.float64)
    if had.shape != (k, k) or want.shape != (k, k):
        found = f"{k} features, known of shape {had.shape} and wanted of shape {want.shape}"
        raise RequestError("an optimal design", found, f"give matrices of {k} x {k}")
    lost = unidentified(x, terms, had)
    if lost:
        raise RequestError(
            f"an optimal design of {k} terms over {len(x)} candidates",
            f"they do not tell apart {', '.join(lost)}",
            "add candidates that differ in what these terms are made of, or use fewer terms",
        )  # fmt: skip
    share, value, bound, rounds = solved(
        Problem(x, c, float(budget), had, want, criterion), tolerance
    )
    gap = value / bound - 1.0 if criterion == "A" else (bound - value) / k
    return OptimalDesign(criterion, share, value, bound, max(gap, 0.0), float(share @ c), rounds)


def ernest_design(
    scale: ArrayLike, machines: ArrayLike, budget: float = ERNEST_BUDGET, criterion: str = "A"
) -> OptimalDesign:
    """Return Ernest's design over candidates of a share of the data on some machines.

    Features are divided by their means, and a candidate costs (s / s_min) / m, where s_min is the
    least share of all (`ExperimentDesign` of the released code).

    Args:
        scale: the part of the input that a candidate processes, positive, (n,).
        machines: (n,).
        budget: in units of the smallest share on one machine.

    Raises:
        RequestError, UnsatisfiedError: as `optimal_design`.
    """
    from forerun.predictors.laws.ernest import TERMS, features

    s, m = np.asarray(scale, dtype=np.float64), np.asarray(machines, dtype=np.float64)
    if not len(s) or not (s > 0).all() or not (m > 0).all():
        raise RequestError(
            "Ernest's design", "no candidates, or a share or machines not above zero",
            "give candidates of a positive share on one machine or more",
        )  # fmt: skip
    x = column_scaled(features(s, m))
    return optimal_design(x, s / s.min() / m, budget, criterion, terms=TERMS)


def column_scaled(features: ArrayLike) -> FloatArray:
    """Return features divided by their means over the candidates, (n, k); a mean of 0 divides nothing."""
    x = np.asarray(features, dtype=np.float64)
    means = x.mean(axis=0) if len(x) else np.ones(x.shape[1])
    scaled: FloatArray = x / np.where(means == 0.0, 1.0, means)
    return scaled


def unidentified(
    features: ArrayLike, terms: Sequence[str] = (), known: ArrayLike | None = None
) -> list[str]:
    """Return the names of the terms that no weighting of the candidates tells apart; often none.

    Args:
        features: (n, k).
        terms: names of the features; "term 1" ... by default.
        known: information that is there already, (k, k).
    """
    x = np.asarray(features, dtype=np.float64)
    k = x.shape[1]
    names = list(terms) or [f"term {i + 1}" for i in range(k)]
    information = x.T @ x + (0.0 if known is None else np.asarray(known, dtype=np.float64))
    size = np.sqrt(np.diag(information))
    dead = [names[i] for i in np.flatnonzero(size == 0.0)]
    live = np.flatnonzero(size > 0.0)
    if not len(live):
        return dead
    values, vectors = np.linalg.eigh(
        information[np.ix_(live, live)] / np.outer(size[live], size[live])
    )
    hidden = vectors[:, values < _RANK]
    mixed = np.flatnonzero(np.abs(hidden).max(axis=1, initial=0.0) > 1e-3)
    return [*dead, *(names[live[i]] for i in mixed)]


def _checked(
    features: ArrayLike, costs: ArrayLike, budget: float, criterion: str
) -> tuple[FloatArray, FloatArray]:
    x, c = np.asarray(features, dtype=np.float64), np.asarray(costs, dtype=np.float64)
    asked = "an optimal design"
    if criterion not in CRITERIA:
        raise RequestError(f"{asked} by {criterion!r}", "no such criterion", "use A or D")
    if x.ndim != 2 or c.shape != (len(x),):
        found = f"features of shape {x.shape} and costs of shape {c.shape}"
        raise RequestError(asked, found, "give (n, k) features and (n,) costs")
    if not x.size:
        raise RequestError(asked, "no candidates", "give at least as many as the law has terms")
    if not (np.isfinite(x).all() and np.isfinite(c).all() and (c >= 0).all()):
        raise RequestError(
            asked, "features that are not finite, or costs that are negative or not finite",
            "leave those candidates out",
        )  # fmt: skip
    if not np.isfinite(budget) or (budget <= 0 and not (c == 0).all()):
        raise UnsatisfiedError(
            f"{asked} for {budget:g}", f"the cheapest candidate costs {c.min():g}",
            "raise the budget",
        )  # fmt: skip
    return x, c


# Part of the optimal design's information that stands in for runs until enough are taken.
_STAND_IN = 1e-4
_MOST_EXCHANGES = 60
_MANY = 1_000_000  # candidates times runs that are looked at together
_BETTER = 1e-9
# Of the starts: one alone reaches an efficiency of 0.34 where a dozen reach 0.5 (Ernest's budget of 10).
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


_TOLD_APART = 1e-8


def suggest_by_design(request: Request, criterion: str = "V") -> Suggestion:
    """Return the runs that teach a linear law most, for the budget.

    Features are divided by their means over the candidates, as in Ernest. Runs that were made count.
    Kinds of jobs that have laws of their own share the budget evenly.

    Args:
        request: what is asked.
        criterion: V, the mean variance of the answers to the asked jobs; A, the sum of the
            variances of the parameters (Ernest's own); D, the volume of what they may be.

    Raises:
        RequestError, UnsatisfiedError: as `affordable`; no candidate has its features.
    """
    if request.prices.unit == SMALLEST_RUNS and np.isinf(request.budget):
        request = replace(request, budget=ERNEST_BUDGET)
    features = np.asarray(request.predictor.linear_features(request.jobs))  # type: ignore[attr-defined]
    stated = np.isfinite(features).all(axis=1)
    if stated[request.candidates].any():
        request = affordable(request)
    ready = stated[request.candidates]
    if not ready.any():
        raise RequestError(
            f"a design for {request.predictor.name}", "no candidate states what its law is made of",
            "fill the columns of size and devices",
        )  # fmt: skip
    kinds, of = _kinds(request.jobs)
    groups = np.unique(of[request.candidates[ready]])
    notes, efficiency = list(request.prices.notes), []
    if np.isinf(request.budget):
        count = features.shape[1] * len(groups) if request.count is None else request.count
        budget = count * float(np.median(request.prices.amount))
        notes.append(
            f"no budget was given: {counted(count, 'run')} for {count} times the median candidate's price"
        )
        request = replace(request, budget=budget, count=count)
    if request.count is not None and request.count < len(groups):
        left = len(groups) - request.count
        notes.append(
            f"{counted(left, 'kind')} of jobs left out: each needs a run of its own; give --count "
            f"{len(groups)} or more"
        )
        # Those of which most is asked come first.
        asked = np.bincount(of[request.candidates[ready]])[groups]
        groups = groups[np.argsort(-asked, kind="stable")[: request.count]]
    budget, shares = request.budget / len(groups), _shared(request, len(groups))
    done: list[NextRun] = []
    for group, most in zip(groups, shares, strict=True):
        places = np.flatnonzero(ready & (of[request.candidates] == group))
        runs, said, how_good = _of_kind(
            request, features, places, of == group, budget, most, criterion
        )
        done += runs
        lead = f"{' on '.join(kinds[group])}: " if len(groups) > 1 else ""
        notes += [f"{lead}{text}" for text in said]
        efficiency.append(how_good)
    if len(groups) > 1:
        notes.append(f"{len(groups)} kinds of jobs share the budget evenly")
    source = f"the {criterion}-optimal design of the law of {request.predictor.name}"
    return Suggestion(
        tuple(done), "design", request.prices.unit, source, tuple(notes),
        efficiency=float(np.mean(efficiency)),
    )  # fmt: skip


def _kinds(jobs: Jobs) -> tuple[list[tuple[str, ...]], IntArray]:
    kinds, index = LawRows(jobs).kinds
    pairs = list(dict.fromkeys(kind[: len(GROUP)] for kind in kinds))
    place = {pair: i for i, pair in enumerate(pairs)}
    return pairs, np.array([place[kind[: len(GROUP)]] for kind in kinds], dtype=np.int64)[index]


def _shared(request: Request, groups: int) -> list[int | None]:
    """Return how many runs each kind may have at most: the count, shared as evenly as it goes."""
    if request.count is None:
        return [None] * groups
    each, rest = divmod(request.count, groups)
    return [each + (i < rest) for i in range(groups)]


def _of_kind(
    request: Request, features: FloatArray, places: IntArray, members: NDArray[np.bool_],
    budget: float, count: int | None, criterion: str,
) -> tuple[list[NextRun], list[str], float]:  # fmt: skip
    """Return the runs of one kind of jobs, what is said of them, and how good they are, 0 to 1."""
    rows = request.candidates[places]
    x, cost = features[rows], request.prices.amount[places]
    had = _made(request, members)
    scaled = column_scaled(x)
    means = np.where(x.mean(axis=0) == 0.0, 1.0, x.mean(axis=0))
    names = _terms(request, x.shape[1])
    kept, said = _independent(np.vstack([scaled, had / means]), names, request.jobs.take(rows))
    scaled, before = scaled[:, kept], (had / means)[:, kept]
    target = np.eye(len(kept))
    wish = features[request.asked[members[request.asked]]]
    wish = (wish / means)[np.isfinite(wish).all(axis=1)][:, kept]
    if criterion == "V" and len(wish):
        target = wish.T @ wish / len(wish)
    criterion = "D" if criterion == "D" else "A"
    known = before.T @ before
    design = optimal_design(
        scaled, cost, budget, criterion, known=known, wanted=target, terms=[names[i] for i in kept]
    )
    problem = Problem(scaled, cost, budget, known, target, criterion)
    whole = whole_runs(problem, design.share, count)
    information = known + scaled[whole.index].T @ scaled[whole.index]
    if not np.isfinite(whole.value):
        said.append(
            f"{counted(len(whole.index), 'run')} within the budget leave the law open;"
            f" {counted(len(kept), 'term')} need as many runs that differ"
        )
        efficiency = 0.0
    elif criterion == "D":
        efficiency = float(np.exp((whole.value - design.bound) / len(kept)))
    else:
        efficiency = design.bound / whole.value
    runs = []
    for i in whole.index:
        seconds = float(request.prices.seconds[places[i]])
        worst = _worst_without(information, scaled[i], [names[k] for k in kept])
        runs.append(NextRun(int(rows[i]), float(cost[i]), seconds, term=worst))
    return runs, said, min(efficiency, 1.0)


def _made(request: Request, members: NDArray[np.bool_]) -> FloatArray:
    """Return the features of the runs that were made of a kind of jobs, (r, k)."""
    width = request.predictor.linear_features(request.jobs.take(np.zeros(0, dtype=int))).shape[1]  # type: ignore[attr-defined]
    done = request.runs.jobs if request.runs is not None else request.made
    if done is None or not len(done):
        return np.zeros((0, width))
    kinds, of = _kinds(done)
    mine, where = _kinds(request.jobs)
    kind = mine[int(where[np.flatnonzero(members)[0]])]
    rows = np.flatnonzero(np.array([k == kind for k in kinds] + [False])[of])
    made = np.asarray(request.predictor.linear_features(done.take(rows)))  # type: ignore[attr-defined]
    return np.asarray(made[np.isfinite(made).all(axis=1)].reshape(-1, width))


def _terms(request: Request, count: int) -> list[str]:
    names = getattr(request.predictor, "terms", ())
    return list(names) if len(names) == count else [f"term {i + 1}" for i in range(count)]


def _independent(x: FloatArray, names: Sequence[str], jobs: Jobs) -> tuple[list[int], list[str]]:
    """Return the terms that the rows tell apart, the first of each mixture, and what is said."""
    kept: list[int] = []
    basis = np.zeros((len(x), 0))
    for i in range(x.shape[1]):
        column = x[:, i] - basis @ (basis.T @ x[:, i])
        column = column - basis @ (basis.T @ column)
        length = float(np.linalg.norm(column))
        if length > _TOLD_APART * max(float(np.linalg.norm(x[:, i])), 1e-300):
            kept.append(i)
            basis = np.column_stack([basis, column / length])
    lost = [names[i] for i in range(x.shape[1]) if i not in kept]
    if not lost:
        return kept, []
    return kept, [
        f"the candidates do not tell {', '.join(lost)} from the other terms; {_hint(jobs)}"
    ]


def _hint(jobs: Jobs) -> str:
    """Return which kind of candidate would tell a law's terms apart."""
    rows = LawRows(jobs)
    machines = np.unique(rows.machines[np.isfinite(rows.machines)])
    if len(machines) < 2:
        have = (
            f"{machines[0]:g} device{'s' if machines[0] != 1 else ''}"
            if len(machines)
            else "no stated devices"
        )
        return f"all have {have}: runs on another number of devices would"
    if len(machines) < 3:
        return "they have two numbers of devices only: runs on a third would, or of another size"
    return "runs of another size (global batch or dataset) would"


def _worst_without(
    information: FloatArray, x: FloatArray, names: Sequence[str]
) -> tuple[str, float]:
    """Return the term whose variance rises most without a run, and how many times; inf where open."""
    rest = information - np.outer(x, x)
    size = np.sqrt(np.maximum(np.diag(information), 1e-300))
    scaled = np.outer(size, size)
    values, vectors = np.linalg.eigh(rest / scaled)
    if values[0] <= 1e-9:
        return names[int(np.argmax(np.abs(vectors[:, 0])))], np.inf
    ratio = np.diag(np.linalg.inv(rest / scaled)) / np.diag(np.linalg.inv(information / scaled))
    return names[int(np.argmax(ratio))], float(ratio.max())
