"""Chances: how probable it is that a whole run fits in memory and keeps its limits."""

from __future__ import annotations

import numpy as np

from forerun.arrays import FloatArray
from forerun.domain.estimate import Estimate
from forerun.domain.objective import Limits
from forerun.domain.quantiles import probability_below

FITS, DEADLINE, BUDGET, ALL = "fits", "deadline", "budget", "all"


def limit_chances(
    run_seconds: FloatArray,
    dollars: FloatArray,
    fit_probability: FloatArray,
    limits: Limits,
) -> dict[str, FloatArray]:
    """Return the probabilities (n,) of fitting, of meeting each limit that there is, and of `all`.

    Args:
        run_seconds, dollars: rows of quantiles (n, 3).
        fit_probability: (n,).
        limits: the deadline and the budget.

    The dollars are the seconds at a price, so that the deadline and the budget are two limits on
    one number, and the probability of meeting both is that of the tighter. Memory is taken as
    independent of time. NaN where a figure is not known; `all` is left out where there is no limit.
    """
    chances = {FITS: np.asarray(fit_probability, dtype=np.float64)}
    if limits.deadline_seconds is not None:
        chances[DEADLINE] = probability_below(run_seconds, limits.deadline_seconds)
    if limits.budget_dollars is not None:
        chances[BUDGET] = probability_below(dollars, limits.budget_dollars)
    kept = [chances[name] for name in (DEADLINE, BUDGET) if name in chances]
    if kept:
        chances[ALL] = chances[FITS] * np.min(kept, axis=0)
    return chances


def chances_of(estimate: Estimate, limits: Limits) -> dict[str, float]:
    """Return `limit_chances` of one run."""
    columns = limit_chances(
        np.array([estimate.run_seconds]), np.array([estimate.dollars]),
        np.array([estimate.fit_probability]), limits,
    )  # fmt: skip
    return {name: float(column[0]) for name, column in columns.items()}
