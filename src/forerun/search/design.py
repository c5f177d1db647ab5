"""Design: which runs teach a law that is linear in its parameters most, for a budget.

An experiment's worth is read off the information matrix of the runs, M(w) = M0 + sum_i w_i x_i x_i^T,
where x_i are the features of candidate i, w_i between 0 and 1 says how far it is run, and M0 is what
is known already. The A-optimal design minimises trace(W M^-1): with W = 1 the variance of the
parameters, with the mean of t t^T over the features t of jobs that are asked, the variance of their
predictions. The D-optimal one maximises det M: the volume of what the parameters may be.

Ernest's design (Venkataraman et al., Ernest, NSDI 2016, section 3.2; the released code) is the
A-optimal one of features divided by their means over the candidates, a budget in units of the
smallest run, and the candidates of more than 0.3 are run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from forerun.arrays import FloatArray, IntArray
from forerun.errors import RequestError, UnsatisfiedError
from forerun.search.design_solver import Problem, solved

CRITERIA = ("A", "D")
# Ernest runs the candidates whose share is above this.
ERNEST_KEEPS = 0.3
ERNEST_BUDGET = 10.0
TOLERANCE = 1e-6
# A combination of scaled features this small over all candidates is one that none of them shows.
_RANK = 1e-9


@dataclass(frozen=True)
class Design:
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
) -> Design:
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
    return Design(criterion, share, value, bound, max(gap, 0.0), float(share @ c), rounds)


def ernest_design(
    scale: ArrayLike, machines: ArrayLike, budget: float = ERNEST_BUDGET, criterion: str = "A"
) -> Design:
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
    from forerun.predictors.laws.ernest_law import TERMS, features

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
