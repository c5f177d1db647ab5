"""NextRuns: which of the candidates to run next, one after another, for a budget or a number of runs.

Each run is picked knowing that those before it were made, whatever they took: two runs that teach
the same are not both picked.

Decision: what a run would be worth: how much surer the answers, how much better the choice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forerun.arrays import FloatArray, IntArray
from forerun.domain.quantiles import normal_cdf, normal_quantile
from forerun.search.beliefs import Beliefs

_NODES = 48  # of the outcome of one run
_SCENARIOS = 128  # of the outcomes of the runs that were picked before
_SEED = 0
_SAME = 1e-6
_MOST_LOG = 600.0  # of an expected objective: what is dearer is as bad
_MOST_CELLS = 4_000_000  # of the outcomes that are looked at together


@dataclass(frozen=True)
class Options:
    """What is chosen among.

    Attributes:
        rows: positions in the beliefs, (m,).
        scale: objective of each for a second of its time: dollars, or seconds of the whole job.
        latest: seconds of time (of a step, as the beliefs have it) at which each misses the
            deadline; infinite for none, (m,).
    """

    rows: IntArray
    scale: FloatArray
    latest: FloatArray

    def expected(self, middle: FloatArray, variance: FloatArray) -> FloatArray:
        """Return the expected objective of each, a late run counted twice.

        Args:
            middle: log of the medians, (..., m).
            variance: of the logs, (m,) or a shape that broadcasts.
        """
        plain = np.exp(np.minimum(middle + variance / 2, _MOST_LOG)) * self.scale
        if not np.isfinite(self.latest).any():
            return np.asarray(plain)
        sigma = np.sqrt(np.maximum(variance, 1e-300))
        with np.errstate(divide="ignore"):
            late = 1.0 - normal_cdf((np.log(self.latest) - middle) / sigma)
        return np.asarray(plain * (1.0 + late))


@dataclass(frozen=True)
class Worth:
    """What a run of each candidate is worth for a choice.

    Attributes:
        value: by how much the expected objective of the choice falls, (c,).
        changes: probability that another, better option is chosen after it, (c,).
    """

    value: FloatArray
    changes: FloatArray


def chosen_now(beliefs: Beliefs, options: Options) -> int:
    """Return which of the options has the least expected objective."""
    rows = options.rows
    variance = np.diag(beliefs.covariance)[rows]
    return int(np.argmin(options.expected(beliefs.middle[rows], variance)))


def accuracy_gains(beliefs: Beliefs, candidates: IntArray, asked: IntArray) -> FloatArray:
    """Return by how much a run of each candidate lowers the mean log variance of the asked, (c,)."""
    return np.asarray((beliefs.shift(candidates, asked) ** 2).mean(axis=1))


def decision_worth(
    beliefs: Beliefs, candidates: IntArray, options: Options, scenarios: FloatArray | None = None
) -> Worth:
    """Return what a run of each candidate is worth for choosing among the options.

    Args:
        beliefs: errors that are left after the runs picked so far.
        candidates: positions in the beliefs, (c,).
        options: what is chosen among.
        scenarios: how far runs picked before may have moved the options' logs, (s, m); none by
            default.
    """
    rows = options.rows
    had = np.zeros((1, len(rows))) if scenarios is None else scenarios
    middle = beliefs.middle[rows] + had
    variance = np.diag(beliefs.covariance)[rows]
    held = options.expected(middle, variance).argmin(axis=1)
    z = _outcomes()
    value, changes = np.zeros(len(candidates)), np.zeros(len(candidates))
    step = max(1, _MOST_CELLS // (middle.size * _NODES))
    for start in range(0, len(candidates), step):
        now = slice(start, start + step)
        shift = beliefs.shift(candidates[now], rows)[:, None, None, :]
        left = np.maximum(variance - shift**2, 0.0)
        # Axes: candidates, scenarios, outcomes of the run, options.
        later = options.expected(middle[:, None, :] + z[:, None] * shift, left)
        # Keeping what is held costs on average what it costs now, so that the difference to it is
        # what learning gains: of the right sign, whatever the rule of integration.
        kept = np.take_along_axis(later, held[None, :, None, None], axis=3)[..., 0]
        value[now] = (kept - later.min(axis=3)).mean(axis=(1, 2))
        # Options that cost the same, because nothing known tells them apart, are no change.
        moved = kept - later.min(axis=3) > _SAME * kept
        changes[now] = moved.mean(axis=(1, 2))
    return Worth(value, changes)


def _outcomes() -> FloatArray:
    """Return standard normal outcomes of one run, all as probable, (nodes,)."""
    z = np.array([normal_quantile((i + 0.5) / _NODES) for i in range(_NODES)])
    return np.asarray(z / np.sqrt(np.mean(z**2)))


def _next_scenarios(
    beliefs: Beliefs, i: int, options: Options, scenarios: FloatArray | None
) -> FloatArray:
    """Return how far the options' logs may have moved once job i was run too, (s, m)."""
    rng = np.random.default_rng([_SEED, 0 if scenarios is None else len(scenarios), i])
    had = np.zeros((_SCENARIOS, len(options.rows))) if scenarios is None else scenarios
    shift = beliefs.shift(np.array([i]), options.rows)[0]
    half = rng.standard_normal(_SCENARIOS // 2)
    drawn = rng.permutation(np.concatenate([half, -half]))
    return np.asarray(had + drawn[:, None] * shift)


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
        scenarios = _next_scenarios(beliefs, row, options, scenarios)
        beliefs = beliefs.after(row)
        left -= float(cost[best])
        open_to[best] = False
        remaining = float(np.diag(beliefs.covariance)[options.rows].mean())
        value, changes = float(worth.value[best]), float(worth.changes[best])
        picks.append(Pick(row, float(cost[best]), value, changes, remaining))
    return picks
