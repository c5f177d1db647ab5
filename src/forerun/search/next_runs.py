"""NextRuns: which of the candidates to run next, one after another, for a budget or a number of runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

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
# A run that takes less than this part of the mean log variance away teaches nothing to speak of;
# one that changes the choice less often than this is not worth a look.
LEAST_GAIN, LEAST_CHANGE = 0.005, 0.01


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
        """Return the expected objective for logs (..., m) and variances, a late run counted twice."""
        plain = np.exp(np.minimum(middle + variance / 2, _MOST_LOG)) * self.scale
        if not np.isfinite(self.latest).any():
            return np.asarray(plain)
        sigma = np.sqrt(np.maximum(variance, 1e-300))
        with np.errstate(divide="ignore"):
            late = 1.0 - normal_cdf((np.log(self.latest) - middle) / sigma)
        return np.asarray(plain * (1.0 + late))


class Worth(NamedTuple):
    """By how much a run of each of c candidates lowers the objective, and how likely it changes the choice."""

    value: FloatArray
    changes: FloatArray


class Pick(NamedTuple):
    """One run to make; `left` is the mean log variance after it, `before` what is believed before it."""

    row: int
    price: float
    gain: float
    changes: float
    left: float
    before: Beliefs


def chosen_now(beliefs: Beliefs, options: Options) -> int:
    """Return which of the options has the least expected objective."""
    rows = options.rows
    variance = np.diag(beliefs.covariance)[rows]
    return int(np.argmin(options.expected(beliefs.middle[rows], variance)))


def accuracy_gains(beliefs: Beliefs, candidates: IntArray, wanted: IntArray) -> FloatArray:
    """Return by how much a run of each candidate lowers the mean log variance of the wanted, (c,)."""
    return np.asarray((beliefs.shift(candidates, wanted) ** 2).mean(axis=1))


def decision_worth(
    beliefs: Beliefs, candidates: IntArray, options: Options, before: Beliefs | None = None
) -> Worth:
    """Return what a run of each candidate is worth, after the runs picked since `before`."""
    rows = options.rows
    variance = np.diag(beliefs.covariance)[rows]
    middle = beliefs.middle[rows] + _scenarios(beliefs, before, rows)
    held = options.expected(middle, variance).argmin(axis=1)
    z = np.array([normal_quantile((i + 0.5) / _NODES) for i in range(_NODES)])
    z /= np.sqrt(np.mean(z**2))
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
        gain = kept - later.min(axis=3)
        value[now] = gain.mean(axis=(1, 2))
        # Options that cost the same, because nothing known tells them apart, are no change.
        changes[now] = (gain > _SAME * kept).mean(axis=(1, 2))
    return Worth(value, changes)


def _scenarios(beliefs: Beliefs, before: Beliefs | None, rows: IntArray) -> FloatArray:
    """Return how far the runs picked since may have moved the options' logs, (s, m)."""
    if before is None or before is beliefs:
        return np.zeros((1, len(rows)))
    learned = (before.covariance - beliefs.covariance)[np.ix_(rows, rows)]
    values, vectors = np.linalg.eigh(learned)
    half = np.random.default_rng(_SEED).standard_normal((_SCENARIOS // 2, len(rows)))
    drawn = (half * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    return np.concatenate([drawn, -drawn])


# Of beliefs: the gain and the change of each candidate (c,), and its merit, -inf where not worth it.
_Appraisal = Callable[[Beliefs], tuple[FloatArray, FloatArray, FloatArray]]


def _picked(
    beliefs: Beliefs, candidates: IntArray, wanted: IntArray, cost: FloatArray, budget: float,
    count: int | None, appraised: _Appraisal, enough: float = -np.inf,
) -> list[Pick]:  # fmt: skip
    """Return the candidates of most merit, one after another, each after those before it."""
    most = count if count is not None else 1 if np.isinf(budget) else len(candidates)
    picks: list[Pick] = []
    open_to = np.isfinite(beliefs.middle[candidates])
    left = float(np.diag(beliefs.covariance)[wanted].mean())
    while len(picks) < most and left > enough:
        gain, changes, merit = appraised(beliefs)
        merit = np.where(open_to & (cost <= budget * (1 + 1e-12)), merit, -np.inf)
        best = int(np.argmax(merit))
        if np.isneginf(merit[best]):
            break
        row, price, before = int(candidates[best]), float(cost[best]), beliefs
        beliefs = beliefs.after(row)
        budget -= price
        open_to[best] = False
        left = float(np.diag(beliefs.covariance)[wanted].mean())
        picks.append(Pick(row, price, float(gain[best]), float(changes[best]), left, before))
    return picks


def answered(beliefs: Beliefs, rows: IntArray) -> IntArray:
    """Return those of the rows that the predictor answers; nothing is known of the others."""
    return np.asarray(rows[np.isfinite(beliefs.middle[rows])])


def most_accurate(
    beliefs: Beliefs,
    candidates: IntArray,
    wanted: IntArray,
    prices: FloatArray | None = None,
    budget: float = np.inf,
    count: int | None = None,
    enough: float = 0.0,
) -> list[Pick]:
    """Return the runs that make the answers of the wanted jobs surest.

    With a budget, the better of two ways to spend it is taken: what teaches most for its price each
    time, and what teaches most each time (Leskovec et al., KDD 2007: one of them comes within
    (1 - 1/e) / 2 of the best where gains fall as runs are made). Without one, what teaches most for
    its price; without prices, what teaches most.

    Args:
        beliefs: of all jobs.
        candidates, wanted: positions in the beliefs, (c,) and (t,).
        prices: of the candidates, positive, (c,). budget: what all of them may cost.
        count: the most runs; 1 without a budget, else as many as it pays for.
        enough: mean log variance of the wanted jobs at which no further run is made.
    """
    wanted = answered(beliefs, wanted)
    if not len(wanted):
        return []
    cost = np.ones(len(candidates)) if prices is None else prices
    least = LEAST_GAIN * float(np.diag(beliefs.covariance)[wanted].mean())

    def by(price: FloatArray) -> list[Pick]:
        def appraised(now: Beliefs) -> tuple[FloatArray, FloatArray, FloatArray]:
            gains = accuracy_gains(now, candidates, wanted)
            merit = np.where(gains > least, gains / price, -np.inf)
            return gains, np.full(len(gains), np.nan), merit

        return _picked(beliefs, candidates, wanted, cost, budget, count, appraised, enough)

    per_price = by(cost)
    if np.isinf(budget) or not per_price:
        return per_price
    plain = by(np.ones(len(cost)))
    if max(picks[-1].left for picks in (per_price, plain)) <= enough:  # both will do
        return min((per_price, plain), key=lambda picks: sum(pick.price for pick in picks))
    return max((per_price, plain), key=lambda picks: sum(pick.gain for pick in picks))


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
        beliefs, candidates, options, prices, budget, count: as `most_accurate`.
        net: prices are in the unit of the objective, so that a run must be worth its price.
        times: how often the chosen job will be run; what a better choice saves, it saves each time.
    """
    cost = np.ones(len(candidates)) if prices is None else prices

    def appraised(now: Beliefs) -> tuple[FloatArray, FloatArray, FloatArray]:
        worth = decision_worth(now, candidates, options, beliefs)
        saved = worth.value * times - cost if net else worth.value
        good = (worth.changes >= LEAST_CHANGE) & (saved > 0)
        merit = np.where(good, saved if net else saved / cost, -np.inf)
        return worth.value, worth.changes, merit

    return _picked(beliefs, candidates, options.rows, cost, budget, count, appraised)
