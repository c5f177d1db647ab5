"""NextRuns: which of the candidates to run next, one after another, for a budget or a number of runs.

Each run is picked knowing that those before it were made, whatever they took: two runs that teach
the same are not both picked.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from forerun.arrays import FloatArray, IntArray
from forerun.search.beliefs import Beliefs
from forerun.search.decision import (
    Options,
    accuracy_gains,
    decision_worth,
    next_scenarios,
)

# A run that takes less than this part of the mean log variance away teaches nothing to speak of;
# one that changes the choice less often than this is not worth a look.
LEAST_GAIN, LEAST_CHANGE = 0.005, 0.01


@dataclass(frozen=True)
class Pick:
    """One run to make.

    Attributes:
        row: its position in the beliefs.
        price: in the unit of the prices.
        gain: by how much it lowers the mean log variance of the asked jobs; or the expected
            objective of the choice.
        changes: probability that the choice changes with it; NaN where accuracy was asked for.
        left: mean log variance of the asked jobs after it, and those before it.
    """

    row: int
    price: float
    gain: float
    changes: float
    left: float


def answered(beliefs: Beliefs, rows: IntArray) -> IntArray:
    """Return those of the rows that the predictor answers; nothing is known of the others."""
    return np.asarray(rows[np.isfinite(beliefs.middle[rows])])


def most_accurate(
    beliefs: Beliefs,
    candidates: IntArray,
    asked: IntArray,
    prices: FloatArray | None = None,
    budget: float = np.inf,
    count: int | None = None,
    enough: float = 0.0,
) -> list[Pick]:
    """Return the runs that make the answers of the asked jobs surest.

    With a budget, the better of two ways to spend it is taken: what teaches most for its price each
    time, and what teaches most each time (Leskovec et al., KDD 2007: one of them comes within
    (1 - 1/e) / 2 of the best where gains fall as runs are made). Without one, what teaches most for
    its price; without prices, what teaches most.

    Args:
        beliefs: of candidates and asked jobs alike.
        candidates, asked: positions in the beliefs, (c,) and (t,).
        prices: of the candidates, positive, (c,).
        budget: what all of them may cost.
        count: the most runs; 1 without a budget, else as many as it pays for.
        enough: mean log variance of the asked jobs at which no further run is made.
    """
    most = (1 if np.isinf(budget) else len(candidates)) if count is None else count
    cost = np.ones(len(candidates)) if prices is None else prices
    per_price, plain = (
        _accurate(beliefs, candidates, asked, cost, budget, most, enough, priced)
        for priced in (True, False)
    )
    if np.isinf(budget) or not plain or not per_price:
        return per_price
    if max(picks[-1].left for picks in (per_price, plain)) <= enough:  # both will do
        return min((per_price, plain), key=lambda picks: sum(pick.price for pick in picks))
    return max((per_price, plain), key=lambda picks: sum(pick.gain for pick in picks))


def _accurate(
    beliefs: Beliefs, candidates: IntArray, asked: IntArray, cost: FloatArray, budget: float,
    most: int, enough: float, priced: bool,
) -> list[Pick]:  # fmt: skip
    picks: list[Pick] = []
    asked = answered(beliefs, asked)
    first = float(np.diag(beliefs.covariance)[asked].mean()) if len(asked) else np.nan
    left, open_to = budget, np.isfinite(beliefs.middle[candidates])
    remaining = first
    while len(picks) < most and len(asked) and remaining > enough:
        gains = accuracy_gains(beliefs, candidates, asked)
        fits = open_to & (cost <= left * (1 + 1e-12)) & (gains > LEAST_GAIN * first)
        if not fits.any():
            break
        best = int(np.argmax(np.where(fits, gains / cost if priced else gains, -np.inf)))
        beliefs = beliefs.after(int(candidates[best]))
        left -= float(cost[best])
        open_to[best] = False
        remaining = float(np.diag(beliefs.covariance)[asked].mean())
        row, price = int(candidates[best]), float(cost[best])
        picks.append(Pick(row, price, float(gains[best]), np.nan, remaining))
    return picks


def within_quotas(
    beliefs: Beliefs,
    candidates: IntArray,
    asked: IntArray,
    labels: Sequence[Hashable],
    quota: Mapping[Hashable, int],
) -> list[Pick]:
    """Return the runs that make the answers of the asked jobs surest, so many of each kind.

    What a campaign may ask: of each app two runs on one node and one on several.

    Args:
        beliefs, candidates, asked: as `most_accurate`.
        labels: the kind of each candidate, (c,).
        quota: how many of each kind; a kind that is left out is not run.
    """
    left = dict(quota)
    asked = answered(beliefs, asked)
    open_to = np.array([left.get(label, 0) > 0 for label in labels], dtype=bool)
    open_to &= np.isfinite(beliefs.middle[candidates]) & (len(asked) > 0)
    picks: list[Pick] = []
    while open_to.any():
        gains = accuracy_gains(beliefs, candidates, asked)
        best = int(np.argmax(np.where(open_to, gains, -np.inf)))
        beliefs = beliefs.after(int(candidates[best]))
        remaining = float(np.diag(beliefs.covariance)[asked].mean())
        picks.append(Pick(int(candidates[best]), 1.0, float(gains[best]), np.nan, remaining))
        open_to[best] = False
        left[labels[best]] -= 1
        if not left[labels[best]]:
            open_to &= np.array([label != labels[best] for label in labels], dtype=bool)
    return picks


def most_decisive(
    beliefs: Beliefs,
    candidates: IntArray,
    options: Options,
    prices: FloatArray | None = None,
    budget: float = np.inf,
    count: int | None = None,
    net: bool = False,
    times: float = 1.0,
) -> list[Pick]:
    """Return the runs after which the best choice among the options costs least; often none.

    Args:
        beliefs: of candidates and options alike.
        candidates: positions in the beliefs, (c,).
        options: what is chosen among.
        prices: of the candidates, positive, (c,).
        budget: what all of them may cost.
        count: the most runs; 1 without a budget, else as many as it pays for.
        net: prices are in the unit of the objective, so that a run must be worth its price.
        times: how often the chosen job will be run; what a better choice saves, it saves each time.
    """
    most = (1 if np.isinf(budget) else len(candidates)) if count is None else count
    cost = np.ones(len(candidates)) if prices is None else prices
    left, open_to = budget, np.isfinite(beliefs.middle[candidates])
    picks: list[Pick] = []
    scenarios: FloatArray | None = None
    while len(picks) < most:
        worth = decision_worth(beliefs, candidates, options, scenarios)
        fits = open_to & (cost <= left * (1 + 1e-12)) & (worth.changes >= LEAST_CHANGE)
        fits &= (worth.value * times > cost) if net else (worth.value > 0)
        if not fits.any():
            break
        merit = worth.value * times - cost if net else worth.value / cost
        best = int(np.argmax(np.where(fits, merit, -np.inf)))
        row = int(candidates[best])
        scenarios = next_scenarios(beliefs, row, options, scenarios)
        beliefs = beliefs.after(row)
        left -= float(cost[best])
        open_to[best] = False
        remaining = float(np.diag(beliefs.covariance)[options.rows].mean())
        value, changes = float(worth.value[best]), float(worth.changes[best])
        picks.append(Pick(row, float(cost[best]), value, changes, remaining))
    return picks
