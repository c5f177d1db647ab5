"""SuggestDesign: the next runs of a predictor that is linear in its parameters, by optimal design.

Such a predictor has `linear_features(jobs) -> (n, k)`; what it may learn of its parameters follows
from them alone, so that a design needs no run at all.

DesignRuns: whole runs for a budget, from the shares of an optimal design, bettered by exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.errors import RequestError, UnsatisfiedError
from forerun.predictors.laws.law_rows import GROUP, LawRows
from forerun.search.design import ERNEST_BUDGET, column_scaled, optimal_design
from forerun.search.design_solver import Problem
from forerun.search.run_prices import SMALLEST_RUNS
from forerun.search.suggestion import NextRun, Request, Suggestion, affordable
from forerun.tables import Jobs
from forerun.units import counted

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


_RANK = 1e-8


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
        if length > _RANK * max(float(np.linalg.norm(x[:, i])), 1e-300):
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
