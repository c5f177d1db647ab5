"""CherryPick: Bayesian optimisation of the cost of a run, as its paper describes it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.domain.quantiles import normal_cdf
from forerun.search.landscape import Landscape, ObservedRuns
from forerun.search.searchers import Choice, Choosing, expected_gain
from forerun.search.surrogate import Belief, Kernels, believe
from forerun.units import format_percent

STARTS, LEAST_RUNS, LEAST_GAIN = 3, 6, 0.10
_LENGTHS = tuple(np.geomspace(0.1, 3.0, 8))
_NOISES = (0.03, 0.1, 0.3)


@dataclass(frozen=True)
class CherryPick(Choosing):
    """The searcher of the paper. Where the time is minimised, the same with a price of 1.

    Alipourfard et al., NSDI 2017: a Gaussian process with a Matern 5/2 kernel models the log of the
    cost; reconstructed from the paper, with length and noise by marginal likelihood from a grid.
    """

    name = "cherrypick"

    def choose_among(self, land: Landscape, seen: ObservedRuns, left: BoolArray) -> Choice:
        """Return the next run, or that the expected improvement is too small for one."""
        weights = self.goal.weights(land)
        known = np.flatnonzero(~seen.unknown)
        if len(seen) < STARTS or not len(known):
            why = (
                f"start {len(seen) + 1} of {STARTS}" if len(seen) < STARTS else "no time known yet"
            )
            return Choice(_start(land, left, self.seed), why)
        belief, cost = _fitted(land, seen, known, weights)
        mean, sd = belief.mean[0], np.sqrt(belief.variance[0])
        # P(T <= limit), T = C / price: the same process speaks of both.
        limit = np.log(self.goal.deadline_seconds) + np.log(weights)
        meets = normal_cdf((limit - mean) / sd)
        if not seen.feasible.any():
            at = int(np.argmax(np.where(left, meets, -1.0)))
            return Choice(at, "nothing within the deadline yet: the most likely to meet it")
        best = float(np.min(cost[seen.feasible[known]]))
        gains = np.where(left, expected_gain(best, mean, sd) * meets, -1.0)
        at = int(np.argmax(gains))
        words = f"expected improvement {format_percent(float(gains[at]), 1)} of the best"
        if self.stops and len(seen) >= LEAST_RUNS and gains[at] < LEAST_GAIN:
            return Choice(-1, f"{words}, below {format_percent(LEAST_GAIN)} after {len(seen)} runs")
        return Choice(at, words)

    def band(self, land: Landscape, seen: ObservedRuns) -> tuple[float, float] | None:
        """Return what the process says of the best run so far."""
        weights = self.goal.weights(land)
        first = seen.best(weights)
        if first < 0:
            return None
        return _fitted(land, seen, np.flatnonzero(~seen.unknown), weights)[0].band(seen.at[first])


def _fitted(
    land: Landscape, seen: ObservedRuns, known: IntArray, weights: FloatArray
) -> tuple[Belief, FloatArray]:
    """Return the process of largest evidence for log cost, and the logarithms of the costs."""
    at = seen.at[known]
    cost = np.log(seen.seconds[known]) + np.log(weights[at])
    unit = max(float(np.std(cost)), 1e-3)
    k = land.features.shape[1]
    lengths, noises = (a.ravel() for a in np.meshgrid(_LENGTHS, _NOISES, indexing="ij"))
    count = len(lengths)
    grid = Kernels(
        land.features, np.repeat(lengths[:, None], k, axis=1), np.ones(count), noises,
        np.zeros((count, k)), level_sd=0.0,
    )  # fmt: skip
    none = np.zeros(len(at), dtype=bool)
    belief = believe(grid, at, cost / unit, none, float(cost.mean()) / unit)
    top = [int(np.argmax(belief.weights))]
    best = Belief(
        np.ones(1), belief.mean[top] * unit, belief.variance[top] * unit**2,
        belief.noise[top] * unit**2,
    )  # fmt: skip
    return best, cost


def _start(land: Landscape, left: BoolArray, seed: int) -> int:
    k, runs = land.features.shape[1], int((~left).sum())
    rng = np.random.default_rng(seed)
    steps = np.sqrt([2, 3, 5, 7, 11, 13, 17, 19, 23, 29])
    point = (rng.random(max(k, 1)) + (runs + 1) * np.resize(steps, max(k, 1))) % 1.0
    far = np.sum((land.features - point[:k]) ** 2, axis=1)
    far = far + 1e-9 * rng.random(len(land))  # ties at random
    return int(np.argmin(np.where(left, far, np.inf)))
