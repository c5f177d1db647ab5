"""OptimalDesign: which runs inform a law that is linear in its parameters most, for a budget.

An experiment's worth is read off the information matrix of the runs, M(w) = M0 + sum_i w_i x_i x_i^T,
where x_i are the features of candidate i, w_i between 0 and 1 says how far it is run, and M0 is what
is known already. The A-optimal design minimises trace(W M^-1): with W = 1 the variance of the
parameters, with the mean of t t^T over the features t of other jobs the variance of their
predictions. The D-optimal one maximises det M: the volume of what the parameters may be.

Ernest's design (Venkataraman et al., Ernest, NSDI 2016, section 3.2; the released code) is the
A-optimal one of features divided by their means over the candidates, a budget in units of the
smallest run, and the candidates of more than 0.3 are run.

The optimum is found by simplicial decomposition (Von Hohenbalken, Mathematical Programming 13, 1977):
the best design for the present slope is a fractional knapsack, and SciPy's SLSQP mixes the few that
were found. For 1,500 candidates it takes some 20 ms, SLSQP on all shares at once minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.contracts import LinearPredictor
from forerun.errors import RequestError, UnsatisfiedError
from forerun.predictors.laws.law_rows import GROUP, LawRows
from forerun.search.suggestion import SMALLEST_RUNS, NextRun, Request, Suggestion, affordable
from forerun.tables import Jobs
from forerun.units import counted

CRITERIA = ("A", "D")
# Ernest runs the candidates whose share is above this.
ERNEST_KEEPS = 0.3
ERNEST_BUDGET = 10.0
TOLERANCE = 1e-6
_MOST_ROUNDS = 200
# A combination of scaled features this small over all candidates is one that none of them shows.
_RANK = 1e-9


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

    def information(self, share: FloatArray | BoolArray) -> FloatArray:
        """Return M for shares (n,)."""
        return np.asarray(self.known + (self.x.T * share) @ self.x)

    def loss(self, information: FloatArray) -> float:
        """Return what is minimised: the trace, or minus the log determinant."""
        if self.criterion == "D":
            return -float(np.linalg.slogdet(information)[1])
        return float(np.trace(np.linalg.solve(information, self.wanted)))

    def slope(self, information: FloatArray) -> FloatArray:
        """Return minus the derivative of the loss by the information, (k, k)."""
        inverse = np.linalg.inv(information)
        return np.asarray(inverse if self.criterion == "D" else inverse @ self.wanted @ inverse)

    def bound(self, information: FloatArray) -> tuple[float, FloatArray]:
        """Return a loss that no design within the budget is below, and the design towards it, (n,).

        For any other M', trace(W M'^-1) trace(W M^-1 M' M^-1) >= trace(W M^-1)^2 (Cauchy and
        Schwarz), and log det M^-1 M' <= k log(trace(M^-1 M') / k) (arithmetic and geometric means).
        Either trace is linear in the shares, so that its most is a fractional knapsack.
        """
        loss, slope = self.loss(information), self.slope(information)
        worth = np.einsum("ij,jk,ik->i", self.x, slope, self.x)
        ahead = self._knapsack(worth)
        most = float(np.sum(slope * self.known) + worth @ ahead)
        if self.criterion == "A":
            return loss**2 / max(most, loss), ahead
        k = len(information)
        return loss - k * float(np.log(max(most / k, 1.0))), ahead

    def _knapsack(self, worth: FloatArray) -> FloatArray:
        """Return the shares within the budget that are worth most, (n,)."""
        paid = self.c > 0
        rate = np.divide(worth, self.c, out=np.full(len(worth), np.inf), where=paid)
        order = np.argsort(-rate, kind="stable")
        before = np.cumsum(self.c[order]) - self.c[order]
        share = np.ones(len(worth))
        left = np.maximum(self.budget - before, 0.0)
        np.divide(left, self.c[order], out=share, where=paid[order])
        share[order] = np.minimum(share, 1.0)
        return share


def _solved(problem: Problem, tolerance: float) -> tuple[FloatArray, int]:
    """Return shares whose loss is within a relative tolerance of the best, and the rounds taken."""
    from scipy.optimize import minimize

    share = np.full(len(problem.x), min(1.0, problem.budget / float(problem.c.sum())))
    corners, weights = share[None], np.ones(1)
    # A corner alone may teach too little for a regular matrix.
    least = 1e-14 * np.eye(problem.x.shape[1])
    rounds = 0
    while True:
        share = np.minimum(weights @ corners, 1.0)
        information = problem.information(share)
        loss = problem.loss(information)
        bound, ahead = problem.bound(information)
        gap = loss / bound - 1.0 if problem.criterion == "A" else (loss - bound) / len(information)
        if gap <= tolerance or rounds == _MOST_ROUNDS:
            return share, rounds
        corners = np.vstack([corners, ahead])
        each = np.array([problem.information(corner) for corner in corners])

        def mixed(parts: FloatArray, each: FloatArray = each) -> tuple[float, FloatArray]:
            information = np.tensordot(parts, each, 1) + least
            return problem.loss(information), -np.tensordot(each, problem.slope(information), 2)

        found = minimize(
            mixed, np.append(0.9 * weights, 0.1), jac=True, method="SLSQP",
            bounds=[(0.0, 1.0)] * len(corners), options={"ftol": 1e-15, "maxiter": 200},
            constraints=[{"type": "eq", "fun": lambda parts: parts.sum() - 1.0, "jac": np.ones_like}],
        )  # fmt: skip
        kept = found.x > 1e-9
        corners, weights = corners[kept], found.x[kept] / found.x[kept].sum()
        rounds += 1


def _conditioned(problem: Problem) -> tuple[Problem, float]:
    """Return the same problem in coordinates where all candidates run together give M = 1."""
    scale = np.sqrt(np.diag(problem.information(np.ones(len(problem.x)))))
    x = problem.x / scale
    known = problem.known / np.outer(scale, scale)
    lower = np.linalg.cholesky(known + x.T @ x)

    def turned(matrix: FloatArray) -> FloatArray:
        return np.asarray(np.linalg.solve(lower, np.linalg.solve(lower, matrix).T))

    log_det = 2.0 * float(np.log(scale).sum() + np.log(np.diag(lower)).sum())
    moved = replace(
        problem, x=np.asarray(np.linalg.solve(lower, x.T).T), known=turned(known),
        wanted=turned(problem.wanted / np.outer(scale, scale)),
    )  # fmt: skip
    return moved, log_det


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
    lost = unidentified(x, terms, had)
    if lost:
        raise RequestError(
            f"an optimal design of {k} terms over {len(x)} candidates",
            f"they do not tell apart {', '.join(lost)}",
            "add candidates that differ in what these terms are made of, or use fewer terms",
        )  # fmt: skip
    problem, log_det = _conditioned(Problem(x, c, float(budget), had, want, criterion))
    # More of a run never teaches less, so that what can be paid for whole is the best there is.
    whole = float(c.sum()) <= budget
    share, rounds = (np.ones(len(x)), 0) if whole else _solved(problem, tolerance)
    information = problem.information(share)
    value = problem.loss(information)
    bound = value if whole else problem.bound(information)[0]
    gap = value / bound - 1.0
    if criterion == "D":
        gap, value, bound = (value - bound) / k, log_det - value, log_det - bound
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
    """Return features (n, k) over their means over the candidates; a mean of 0 divides nothing."""
    x = np.asarray(features, dtype=np.float64)
    return np.asarray(x / _means(x))


def _means(x: FloatArray) -> FloatArray:
    means = x.mean(axis=0)
    return np.where(means == 0.0, 1.0, means)


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
    names = _names(terms, x.shape[1])
    information = x.T @ x + (0.0 if known is None else np.asarray(known, dtype=np.float64))
    size = np.sqrt(np.diag(information))
    # A term that is nowhere above zero is a direction of its own without information.
    size = np.where(size > 0.0, size, 1.0)
    values, vectors = np.linalg.eigh(information / np.outer(size, size))
    hidden = np.abs(vectors[:, values < _RANK]).max(axis=1, initial=0.0)
    return [names[i] for i in np.flatnonzero(hidden > 1e-3)]


def _names(terms: Sequence[str], count: int) -> list[str]:
    return list(terms) if len(terms) == count else [f"term {i + 1}" for i in range(count)]


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
_MOST_STARTS = (
    12  # one alone reaches an efficiency of 0.34 where a dozen reach 0.5 (Ernest's example)
)


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
    """Return whole runs within the problem's budget: the design rounded, then the best exchanges.

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
    stand_in = _STAND_IN * problem.information(share)
    base = replace(problem, known=problem.known + stand_in)
    most = len(share) if count is None else count
    order = np.argsort(-np.round(share, 6), kind="stable")
    order = order[share[order] > 0.05]
    halves = order[share[order] < 0.95][:_MOST_STARTS]
    starts: list[list[int]] = [[], _rounded(base, order, most)]
    starts += [
        _rounded(base, np.concatenate([[i, j], order]), most) for i in halves for j in halves
    ][: _MOST_STARTS - 1]
    if len(share) * share.sum() > _MANY:  # each start costs that much; one from the shares will do
        starts = starts[1:2]
    tried = [_exchanged(base, _filled(base, start, most), most) for start in starts]
    chosen = min(tried, key=lambda runs: base.loss(_information(base, runs)))
    only = np.isin(np.arange(len(share)), chosen)
    index = np.array(_filled(base, [], most, only), dtype=np.int64)
    return WholeRuns(index, _value(problem, index), float(problem.c[index].sum()))


def _information(problem: Problem, runs: Sequence[int]) -> FloatArray:
    x = problem.x[runs]
    return np.asarray(problem.known + x.T @ x)


def _gains(problem: Problem, information: FloatArray) -> FloatArray:
    """Return by how much one more run of each candidate lowers the loss, (n,): rank-one updates."""
    x, inverse = problem.x, np.linalg.inv(information)
    seen = np.einsum("ij,jk,ik->i", x, inverse, x)
    if problem.criterion == "D":
        return np.asarray(np.log1p(seen))
    return np.asarray(np.einsum("ij,jk,ik->i", x, problem.slope(information), x) / (1.0 + seen))


def _payable(problem: Problem, runs: Sequence[int]) -> BoolArray:
    """Return which candidates can be paid for beside the runs, (n,)."""
    left = problem.budget * (1 + 1e-12) - float(problem.c[runs].sum())
    payable: BoolArray = problem.c <= left
    payable[runs] = False
    return payable


def _rounded(problem: Problem, order: IntArray, most: int) -> list[int]:
    """Return the candidates that can be paid for, taken in an order."""
    runs: list[int] = []
    for i in dict.fromkeys(order.tolist()):
        if len(runs) < most and _payable(problem, runs)[i]:
            runs.append(i)
    return runs


def _filled(
    problem: Problem, runs: Sequence[int], most: int, only: BoolArray | None = None
) -> list[int]:
    """Return the runs and more by what each gains for its price, while any (of `only`) can be paid."""
    runs = list(runs)
    least = float(problem.c[problem.c > 0].min(initial=1.0)) * 1e-6
    while len(runs) < most:
        open_to = _payable(problem, runs) & (True if only is None else only)
        if not open_to.any():
            break
        rate = _gains(problem, _information(problem, runs)) / np.maximum(problem.c, least)
        runs.append(int(np.argmax(np.where(open_to, rate, -np.inf))))
    return runs


def _exchanged(problem: Problem, runs: list[int], most: int) -> list[int]:
    """Return the choice after exchanges of one run for another, the best each time."""
    loss = problem.loss(_information(problem, runs))
    rounds = min(_MOST_EXCHANGES, _MANY // max(len(problem.c) * len(runs), 1))
    for _ in range(rounds):
        best, least = runs, loss
        for i in range(len(runs)):
            rest = runs[:i] + runs[i + 1 :]
            information = _information(problem, rest)
            open_to = _payable(problem, rest)
            open_to[runs[i]] = False
            gains = np.where(open_to, _gains(problem, information), -np.inf)
            entering = int(np.argmax(gains))
            reached = problem.loss(information) - float(gains[entering])
            if reached < least:
                best, least = [*rest, entering], reached
        if least >= loss - _BETTER * max(abs(loss), 1.0):
            break
        runs = _filled(problem, best, most)
        loss = problem.loss(_information(problem, runs))
    return runs


def _value(problem: Problem, index: IntArray) -> float:
    """Return the criterion of runs and what is known, without any stand-in."""
    information = _information(problem, index.tolist())
    size = np.sqrt(np.maximum(np.diag(information), 1e-300))
    regular = np.linalg.matrix_rank(information / np.outer(size, size), tol=1e-10) == len(size)
    loss = problem.loss(information) if regular else np.inf
    return -loss if problem.criterion == "D" else loss


def suggest_by_design(request: Request, criterion: str = "V") -> Suggestion:
    """Return the runs that inform a linear law most, for the budget.

    Features are divided by their means over the candidates, as in Ernest. Runs that were made count.
    Kinds of jobs that have laws of their own share the budget evenly.

    Args:
        request: the candidates, their prices and the budget.
        criterion: V, the mean variance of the answers to the wanted jobs; A, the sum of the
            variances of the parameters (Ernest's own); D, the volume of what they may be.

    Raises:
        RequestError, UnsatisfiedError: as `affordable`; no candidate has its features.
    """
    name = request.predictor.name
    if request.prices.unit == SMALLEST_RUNS and np.isinf(request.budget):
        request = replace(request, budget=ERNEST_BUDGET)
    features = _features(request, request.jobs)
    stated: BoolArray = np.asarray(np.isfinite(features).all(axis=1))
    if stated[request.candidates].any():
        request = affordable(request)
    rows = request.candidates[stated[request.candidates]]
    if not len(rows):
        raise RequestError(
            f"a design for {name}", "no candidate states what its law is made of",
            "fill the columns of size and devices",
        )  # fmt: skip
    kinds = _kinds(request.jobs)
    groups: dict[tuple[str, ...], list[int]] = {}
    for row in rows.tolist():
        groups.setdefault(kinds[row], []).append(row)
    notes, count = list(request.prices.notes), request.count
    budget = request.budget
    if np.isinf(budget):
        count = features.shape[1] * len(groups) if count is None else count
        budget = count * float(np.median(request.prices.amount))
        notes.append(f"no budget was given: {counted(count, 'run')} at the median price")
    if count is not None and count < len(groups):
        notes.append(
            f"{counted(len(groups) - count, 'kind')} of jobs left out: each needs a run of its own;"
            f" give --count {len(groups)} or more"
        )
        most_first = sorted(groups, key=lambda kind: -len(groups[kind]))
        groups = {kind: groups[kind] for kind in most_first[:count]}
    runs: list[NextRun] = []
    efficiency = []
    for i, (kind, members) in enumerate(groups.items()):
        most = None if count is None else (count + len(groups) - 1 - i) // len(groups)
        problem, kept, said = _problem_of(
            request, features, kinds, kind, members, budget / len(groups), criterion
        )
        found, how_good = _designed(request, problem, kept, members, most, said)
        runs += found
        efficiency.append(how_good)
        notes += [f"{' on '.join(kind)}: {text}" if len(groups) > 1 else text for text in said]
    if len(groups) > 1:
        notes.append(f"{len(groups)} kinds of jobs share the budget evenly")
    return Suggestion(
        tuple(runs), "design", request.prices.unit, f"the {criterion}-optimal design of the law of {name}",
        tuple(notes), efficiency=float(np.mean(efficiency)),
    )  # fmt: skip


def _features(request: Request, jobs: Jobs) -> FloatArray:
    assert isinstance(request.predictor, LinearPredictor), "no design without linear features"
    return request.predictor.linear_features(jobs)


def _kinds(jobs: Jobs) -> list[tuple[str, ...]]:
    """Return the workload and device of each job."""
    kinds, index = LawRows(jobs).kinds
    return [kinds[i][: len(GROUP)] for i in index.tolist()]


def _problem_of(
    request: Request, features: FloatArray, kinds: Sequence[tuple[str, ...]], kind: tuple[str, ...],
    rows: list[int], budget: float, criterion: str,
) -> tuple[Problem, list[str], list[str]]:  # fmt: skip
    """Return the design's problem for one kind of jobs, its terms, and what to note."""
    means = _means(features[rows])
    x, made = features[rows] / means, np.zeros((0, features.shape[1]))
    done = request.runs.jobs if request.runs is not None else request.made
    if done is not None and len(done):
        mine = np.flatnonzero([k == kind for k in _kinds(done)])
        made = _features(request, done.take(mine)).reshape(-1, features.shape[1]) / means
        made = made[np.isfinite(made).all(axis=1)]
    names = _names(getattr(request.predictor, "terms", ()), x.shape[1])
    every = np.vstack([x, made])
    unit = every / np.maximum(np.linalg.norm(every, axis=0), 1e-300)
    kept: list[int] = []  # of terms that cannot be told apart, the first
    for i in range(x.shape[1]):
        if np.linalg.matrix_rank(unit[:, [*kept, i]], tol=np.sqrt(_RANK)) > len(kept):
            kept.append(i)
    lost = [name for i, name in enumerate(names) if i not in kept]
    said = []
    if lost:
        hint = _hint(request.jobs.take(np.array(rows)))
        said = [f"the candidates cannot separate {', '.join(lost)} from the other terms; {hint}"]
    x, made = x[:, kept], made[:, kept]
    wanted = np.eye(len(kept))
    wish = features[[row for row in request.wanted.tolist() if kinds[row] == kind]] / means
    wish = wish[np.isfinite(wish).all(axis=1)][:, kept]
    if criterion == "V" and len(wish):
        wanted = wish.T @ wish / len(wish)
    place = np.searchsorted(request.candidates, rows)
    cost = request.prices.amount[place]
    shown = "D" if criterion == "D" else "A"
    problem = Problem(x, cost, budget, made.T @ made, wanted, shown)
    return problem, [names[i] for i in kept], said


def _designed(
    request: Request, problem: Problem, names: list[str], rows: list[int], most: int | None,
    said: list[str],
) -> tuple[list[NextRun], float]:  # fmt: skip
    """Return the runs of one kind of jobs, and how near they come to the bound, 0 to 1."""
    design = optimal_design(
        problem.x, problem.c, problem.budget, problem.criterion, known=problem.known,
        wanted=problem.wanted, terms=names,
    )  # fmt: skip
    whole = whole_runs(problem, design.share, most)
    information = _information(problem, whole.index.tolist())
    if not np.isfinite(whole.value):
        said.append(
            f"{counted(len(whole.index), 'run')} within the budget leave the law open;"
            f" {counted(len(names), 'term')} need as many runs that differ"
        )
        efficiency = 0.0
    elif problem.criterion == "D":
        efficiency = float(np.exp((whole.value - design.bound) / len(names)))
    else:
        efficiency = design.bound / whole.value
    seconds = request.prices.seconds[np.searchsorted(request.candidates, rows)]
    runs = [
        NextRun(
            rows[i], float(problem.c[i]), float(seconds[i]),
            term=_worst_without(information, problem.x[i], names),
        )
        for i in whole.index.tolist()
    ]  # fmt: skip
    return runs, min(efficiency, 1.0)


def _hint(jobs: Jobs) -> str:
    """Return which kind of candidate would tell a law's terms apart."""
    machines = LawRows(jobs).machines
    have = len(np.unique(machines[np.isfinite(machines)]))
    if have < 2:
        return "runs on another number of devices would"
    if have < 3:
        return "runs on a third number of devices would, or of another size"
    return "runs of another size (global batch or dataset) would"


def _worst_without(
    information: FloatArray, x: FloatArray, names: Sequence[str]
) -> tuple[str, float]:
    """Return the term whose variance rises most without a run, and how many times; inf where open."""
    size = np.sqrt(np.maximum(np.diag(information), 1e-300))
    scaled, rest = (m / np.outer(size, size) for m in (information, information - np.outer(x, x)))
    values, vectors = np.linalg.eigh(rest)
    if values[0] <= 1e-9:
        return names[int(np.argmax(np.abs(vectors[:, 0])))], np.inf
    ratio = np.diag(np.linalg.inv(rest)) / np.diag(np.linalg.inv(scaled))
    return names[int(np.argmax(ratio))], float(ratio.max())
