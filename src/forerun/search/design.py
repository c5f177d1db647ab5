"""OptimalDesign: which runs inform a law that is linear in its parameters most, for a budget."""

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

ERNEST_BUDGET = 10.0  # in smallest runs, as the paper's
TOLERANCE = 1e-6
_MOST_ROUNDS = 200
# A combination of scaled features this small over all candidates is one that none of them shows.
_RANK = 1e-9
# Part of the optimal design's information that stands in for runs until enough are taken.
_STAND_IN = 1e-4
_SUPPORT = 0.05  # candidates of a smaller share are no start for whole runs
_STARTS, _BETTER = 24, 1e-9
_MOST_PAIRS = 1_000_000  # of runs and candidates, in all exchanges of one start


@dataclass(frozen=True)
class Problem:
    """Minimise trace(W M^-1) or -log det M, M = M0 + sum w_i x_i x_i^T, 0 <= w <= 1, c . w <= budget.

    x: features of the candidates, (n, k). c: their costs, (n,). known: M0. wanted: W, (k, k).
    criterion: A, the trace, or D, the determinant.
    """

    x: FloatArray
    c: FloatArray
    budget: float
    known: FloatArray
    wanted: FloatArray
    criterion: str

    def information(self, share: FloatArray) -> FloatArray:
        """Return M for shares (n,)."""
        return np.asarray(self.known + (self.x.T * share) @ self.x)

    def of_runs(self, runs: Sequence[int]) -> FloatArray:
        """Return M for whole runs, given by their positions."""
        return np.asarray(self.known + self.x[runs].T @ self.x[runs])

    def loss(self, information: FloatArray) -> FloatArray:
        """Return what is minimised, of matrices (..., k, k)."""
        if self.criterion == "D":
            return np.asarray(-np.linalg.slogdet(information)[1])
        products = np.linalg.inv(information) @ self.wanted
        return np.asarray(np.trace(products, axis1=-2, axis2=-1))

    def slope(self, information: FloatArray) -> FloatArray:
        """Return minus the derivative of the loss by the information, (..., k, k)."""
        inverse = np.linalg.inv(information)
        return np.asarray(inverse if self.criterion == "D" else inverse @ self.wanted @ inverse)

    def gains(self, information: FloatArray) -> FloatArray:
        """Return by how much one more run of each candidate lowers the loss, (..., n): rank-one updates."""
        seen = self._squared(np.asarray(np.linalg.inv(information)))
        if self.criterion == "D":
            return np.log1p(seen)
        return np.asarray(self._squared(self.slope(information)) / (1.0 + seen))

    def _squared(self, matrix: FloatArray) -> FloatArray:
        return np.asarray(np.einsum("...nk,nk->...n", self.x @ matrix, self.x))

    def bound(self, information: FloatArray) -> tuple[float, FloatArray]:
        """Return a loss that no design within the budget is below, and the design towards it, (n,).

        For any M', trace(W M'^-1) trace(W M^-1 M' M^-1) >= trace(W M^-1)^2 (Cauchy and Schwarz), and
        log det M^-1 M' <= k log(trace(M^-1 M') / k); the most of either trace is a knapsack.
        """
        loss, slope = float(self.loss(information)), self.slope(information)
        worth, cost = self._squared(slope), np.maximum(self.c, 1e-300)
        order = np.argsort(-worth / cost, kind="stable")
        left = self.budget - np.cumsum(cost[order]) + cost[order]
        ahead = np.empty(len(worth))
        ahead[order] = np.clip(left / cost[order], 0.0, 1.0)
        most = float(np.sum(slope * self.known) + worth @ ahead)
        if self.criterion == "A":
            return loss * min(loss / most, 1.0), ahead
        k = len(information)
        return loss - k * float(np.log(max(most / k, 1.0))), ahead

    def solved(self, tolerance: float) -> tuple[FloatArray, float, float, int]:
        """Return shares (n,), their loss, its bound, and the rounds taken.

        Simplicial decomposition (Von Hohenbalken, Mathematical Programming 13, 1977): each best design
        for a slope is a knapsack, and SLSQP mixes them: 20 ms for 1,500 candidates, minutes at once.
        """
        from scipy.optimize import minimize

        share = np.full(len(self.x), min(1.0, self.budget / max(float(self.c.sum()), 1e-300)))
        if share[0] == 1.0:  # a longer run is never less informative
            loss = float(self.loss(self.information(share)))
            return share, loss, loss, 0
        corners, weights = share[None], np.ones(1)
        # A corner alone may hold too little for a regular matrix.
        least = 1e-14 * np.eye(self.x.shape[1])
        rounds = 0
        while True:
            share = np.minimum(weights @ corners, 1.0)
            information = self.information(share)
            loss = float(self.loss(information))
            bound, ahead = self.bound(information)
            gap = loss / bound - 1.0 if self.criterion == "A" else (loss - bound) / len(information)
            if gap <= tolerance or rounds == _MOST_ROUNDS:
                return share, loss, bound, rounds
            corners = np.vstack([corners, ahead])
            each = np.array([self.information(corner) for corner in corners])

            def mixed(parts: FloatArray, each: FloatArray = each) -> tuple[float, FloatArray]:
                information = np.tensordot(parts, each, 1) + least
                slope = self.slope(information)
                return float(self.loss(information)), -np.tensordot(each, slope, 2)

            found = minimize(
                mixed, np.append(0.9 * weights, 0.1), jac=True, method="SLSQP",
                bounds=[(0.0, 1.0)] * len(corners), options={"ftol": 1e-15, "maxiter": 200},
                constraints=[
                    {"type": "eq", "fun": lambda parts: parts.sum() - 1.0, "jac": np.ones_like}
                ],
            )  # fmt: skip
            kept = found.x > 1e-9
            corners, weights = corners[kept], found.x[kept] / found.x[kept].sum()
            rounds += 1


@dataclass(frozen=True)
class OptimalDesign:
    """How far each of n candidates is run, 0 to 1; value: the trace for A, log det M for D.

    bound: what no design passes. gap: relative for A, for D the log by which det M^(1/k) may rise.
    """

    share: FloatArray
    value: float
    bound: float
    gap: float
    rounds: int

    def kept(self) -> IntArray:
        """Return the candidates that Ernest runs: those of a share above 0.3."""
        return np.flatnonzero(self.share > 0.3)


def optimal_design(problem: Problem, tolerance: float = TOLERANCE) -> OptimalDesign:
    """Return the best design for the budget; all candidates together must tell the terms apart."""
    # In coordinates where all candidates together give M = 1.
    whole = problem.information(np.ones(len(problem.x)))
    scale = np.sqrt(np.diag(whole))
    turn = np.linalg.inv(np.linalg.cholesky(whole / np.outer(scale, scale))) / scale
    known, wanted = (turn @ matrix @ turn.T for matrix in (problem.known, problem.wanted))
    conditioned = replace(problem, x=problem.x @ turn.T, known=known, wanted=wanted)
    share, value, bound, rounds = conditioned.solved(tolerance)
    gap = value / bound - 1.0
    if problem.criterion == "D":
        gap = (value - bound) / problem.x.shape[1]
        log_det = -float(problem.loss(problem.information(share)))
        value, bound = log_det, log_det + (value - bound)
    return OptimalDesign(share, value, bound, max(gap, 0.0), rounds)


def ernest_design(
    scale: ArrayLike, machines: ArrayLike, budget: float = ERNEST_BUDGET, criterion: str = "A"
) -> OptimalDesign:
    """Return Ernest's design over candidates of a share of the data on some machines, (n,) each.

    Venkataraman et al., Ernest, NSDI 2016, section 3.2; a candidate costs (s / s_min) / m.
    """
    from forerun.predictors.laws.ernest import features

    s, m = np.asarray(scale, dtype=np.float64), np.asarray(machines, dtype=np.float64)
    x, k = column_scaled(features(s, m)), 4
    return optimal_design(
        Problem(x, s / s.min() / m, budget, np.zeros((k, k)), np.eye(k), criterion)
    )


def column_scaled(features: ArrayLike) -> FloatArray:
    """Return features (n, k) over their means over the candidates; a mean of 0 divides nothing."""
    x = np.asarray(features, dtype=np.float64)
    means = x.mean(axis=0)
    return np.asarray(x / np.where(means == 0.0, 1.0, means))


def _directions(information: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return eigenvalues, ascending, and vectors of the information on terms of unit size."""
    size = np.sqrt(np.diag(information))
    # A term that is nowhere above zero is a direction of its own without information.
    size = np.where(size > 0.0, size, 1.0)
    values, vectors = np.linalg.eigh(information / np.outer(size, size))
    return values, vectors


def whole_runs(
    problem: Problem, share: FloatArray, count: int | None = None
) -> tuple[list[int], float]:
    """Return whole runs within the budget and count, and the criterion, infinite while terms are open.

    The best of many local optima of exchanges, from the greedy design and the optimal one's shares (n,).

    Raises:
        UnsatisfiedError: the cheapest candidate costs more than the budget.
    """
    if float(problem.c.min()) > problem.budget:
        raise UnsatisfiedError(
            f"runs for at most {problem.budget:g}",
            f"the cheapest candidate costs {problem.c.min():g}",
            "raise the budget, or add cheaper candidates (fewer devices, a smaller size)",
        )  # fmt: skip
    base = replace(problem, known=problem.known + _STAND_IN * problem.information(share))
    most = len(share) if count is None else count
    support = np.flatnonzero(share > _SUPPORT)
    rng, many = np.random.default_rng(0), len(share) * share.sum() > _MOST_PAIRS / _STARTS
    starts = [[], *(rng.permutation(support).tolist() for _ in range(1 if many else _STARTS))]
    tried = [_exchanged(base, _filled(base, start, most), most) for start in starts]
    chosen = np.array(min(tried, key=lambda runs: float(base.loss(base.of_runs(runs)))))
    among = replace(base, x=base.x[chosen], c=base.c[chosen])
    index = chosen[_filled(among, [], most)].tolist()
    information = problem.of_runs(index)
    is_open = _directions(information)[0][0] <= _RANK
    loss = np.inf if is_open else float(problem.loss(information))
    return index, -loss if problem.criterion == "D" else loss


def _filled(problem: Problem, first: Sequence[int], most: int) -> list[int]:
    """Return those of the first that can be paid for in turn, then more by what each gains for its price."""
    runs: list[int] = []
    left = problem.budget * (1 + 1e-12)
    for i in first:
        if len(runs) < most and problem.c[i] <= left:
            runs.append(i)
            left -= float(problem.c[i])
    cost = np.maximum(problem.c, 1e-6 * problem.c.max())
    while len(runs) < most:
        payable: BoolArray = np.asarray(problem.c <= left)
        payable[runs] = False
        if not payable.any():
            break
        rate = problem.gains(problem.of_runs(runs)) / cost
        runs.append(int(np.argmax(np.where(payable, rate, -np.inf))))
        left -= float(problem.c[runs[-1]])
    return runs


def _exchanged(problem: Problem, runs: list[int], most: int) -> list[int]:
    for _ in range(_MOST_PAIRS // max(len(problem.c) * len(runs), 1)):
        information, x = problem.of_runs(runs), problem.x[runs]
        rest = information - x[:, :, None] * x[:, None, :]
        after = problem.loss(rest)[:, None] - problem.gains(rest)
        left = problem.budget * (1 + 1e-12) - problem.c[runs].sum() + problem.c[runs]
        after[problem.c > left[:, None]] = np.inf
        after[:, runs] = np.inf
        leaving, entering = np.unravel_index(int(np.argmin(after)), after.shape)
        loss = float(problem.loss(information))
        if after[leaving, entering] >= loss - _BETTER * max(abs(loss), 1.0):
            break
        kept = runs[:leaving] + runs[leaving + 1 :]
        runs = _filled(problem, [*kept, int(entering)], most)
    return runs


def suggest_by_design(request: Request, criterion: str = "V") -> Suggestion:
    """Return the runs that inform a linear law most, for the budget, beside those that were made.

    Kinds of jobs share the budget evenly. Criteria: V, the mean variance of the wanted answers; A, the
    sum of the variances of the parameters (Ernest's own); D, the volume of what they may be.

    Raises:
        RequestError, UnsatisfiedError: as `affordable`; no candidate has its features.
    """
    predictor = request.predictor
    assert isinstance(predictor, LinearPredictor), "no design without linear features"
    if request.prices.unit == SMALLEST_RUNS and np.isinf(request.budget):
        request = replace(request, budget=ERNEST_BUDGET)
    features = predictor.linear_features(request.jobs)
    stated: BoolArray = np.asarray(np.isfinite(features).all(axis=1))
    if not stated[request.candidates].any():
        raise RequestError(
            f"a design for {predictor.name}", "no candidate states what its law is made of",
            "fill the columns of size and devices",
        )  # fmt: skip
    request = affordable(request.only(stated[request.candidates]))
    kinds = _kinds(request.jobs)
    groups: dict[tuple[str, ...], list[int]] = {}
    for row in request.candidates.tolist():
        groups.setdefault(kinds[row], []).append(row)
    notes, count, budget = list(request.prices.notes), request.count, request.budget
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
    for i, kind in enumerate(groups):
        most = None if count is None else (count + len(groups) - 1 - i) // len(groups)
        mine = np.array([k == kind for k in kinds])
        found, how_good, texts = _designed(
            request, features, mine, budget / len(groups), most, criterion
        )
        runs += found
        efficiency.append(how_good)
        notes += [f"{' on '.join(kind)}: {text}" if len(groups) > 1 else text for text in texts]
    if len(groups) > 1:
        notes.append(f"{len(groups)} kinds of jobs share the budget evenly")
    return Suggestion(
        tuple(runs), "design", request.prices.unit,
        f"the {criterion}-optimal design of the law of {predictor.name}", tuple(notes),
        efficiency=float(np.mean(efficiency)),
    )  # fmt: skip


def _kinds(jobs: Jobs) -> list[tuple[str, ...]]:
    kinds, index = LawRows(jobs).kinds
    return [kinds[i][: len(GROUP)] for i in index.tolist()]


def _designed(
    request: Request, features: FloatArray, mine: BoolArray, budget: float, most: int | None,
    criterion: str,
) -> tuple[list[NextRun], float, list[str]]:  # fmt: skip
    """Return the runs of one kind of jobs, how near they come to the bound, and what to note."""
    places = np.flatnonzero(mine[request.candidates])
    rows = request.candidates[places]
    means = features[rows].mean(axis=0)
    means[means == 0.0] = 1.0
    x, made = features[rows] / means, np.zeros((0, features.shape[1]))
    done = request.runs.jobs if request.runs is not None else request.made
    if done is not None and len(done):
        own = _kinds(request.jobs.take(rows[:1]))[0]
        part = done.take(np.flatnonzero([kind == own for kind in _kinds(done)]))
        assert isinstance(request.predictor, LinearPredictor)
        made = request.predictor.linear_features(part).reshape(-1, x.shape[1]) / means
        made = made[np.isfinite(made).all(axis=1)]
    known = made.T @ made
    names = getattr(request.predictor, "terms", ())
    if len(names) != x.shape[1]:
        names = [f"term {i + 1}" for i in range(x.shape[1])]
    information = known + x.T @ x
    kept: list[int] = []
    for i in range(len(information)):
        if _directions(information[np.ix_([*kept, i], [*kept, i])])[0][0] > _RANK:
            kept.append(i)
    notes = []
    if len(kept) < len(names):
        lost = ", ".join(name for i, name in enumerate(names) if i not in kept)
        notes.append(
            f"the candidates cannot separate {lost} from the other terms; runs of another"
            " number of devices, or size (global batch or dataset), would"
        )
    wish = features[request.wanted[mine[request.wanted]]] / means
    wish = wish[np.isfinite(wish).all(axis=1)][:, kept]
    wanted = wish.T @ wish / len(wish) if criterion == "V" and len(wish) else np.eye(len(kept))
    names = [names[i] for i in kept]
    problem = Problem(
        x[:, kept], request.prices.amount[places], budget, known[np.ix_(kept, kept)], wanted,
        "D" if criterion == "D" else "A",
    )  # fmt: skip
    design = optimal_design(problem)
    index, value = whole_runs(problem, design.share, most)
    efficiency = 0.0
    if not np.isfinite(value):
        notes.append(
            f"{counted(len(index), 'run')} within the budget leave the law open;"
            f" {counted(len(names), 'term')} need as many runs that differ"
        )
    elif problem.criterion == "D":
        efficiency = float(np.exp((value - design.bound) / len(names)))
    else:
        efficiency = design.bound / value
    information = problem.of_runs(index)
    runs = [
        NextRun(
            int(rows[i]), float(problem.c[i]),
            term=_worst_without(information, problem.x[i], names),
        )
        for i in index
    ]  # fmt: skip
    return runs, min(efficiency, 1.0), notes


def _worst_without(
    information: FloatArray, x: FloatArray, names: Sequence[str]
) -> tuple[str, float]:
    """Return the term whose variance rises most without a run, and how many times; inf where open."""
    rest = information - np.outer(x, x)
    values, vectors = _directions(rest)
    if values[0] <= _RANK:
        return names[int(np.argmax(np.abs(vectors[:, 0])))], np.inf
    ratio = np.diag(np.linalg.inv(rest)) / np.diag(np.linalg.inv(information))
    return names[int(np.argmax(ratio))], float(ratio.max())
