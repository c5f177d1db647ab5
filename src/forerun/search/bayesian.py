"""Bayesian: a search by what scaling laws expect of a time, what runs cost, and which surely fail."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.domain.quantiles import normal_cdf, normal_quantile
from forerun.search.landscape import Landscape, ObservedRuns
from forerun.search.searchers import Choice, Choosing, gain_within
from forerun.search.surrogate import Belief, Kernels, believe
from forerun.units import chance_text, format_percent

# The constants below were chosen on variations of the measured tables and on made-up ones, never on
# the cost under the deadline that benchmarks/search_replay.py reports.
DRAWS = 24
LENGTH, AMPLITUDE, NOISE, SCALE = (1.0, 0.7), 1.0, 0.15, 0.8
# Every second draw is rough: a fast corner may owe it to a machine, workers and a rate together.
ROUGH = np.arange(DRAWS) % 2 == 1
# Time is expected to fall as a power of the price, between none (machines that do not help) and
# nearly perfect scaling: each draw has a power of its own, and the runs say which holds.
STEEPEST, GOLDEN = 0.8, 0.6180339887498949
# Of the chance that a run fails: the length of each axis, its own part and the joint one, the noise,
# and the label expected before any run, where 1 is a run that gave a time and -1 one that failed.
LABEL_LENGTH, LABEL_OWN, LABEL_JOINT, LABEL_NOISE, EXPECTED_LABEL = 1.0, 3.0, 0.5, 0.1, 0.5
# Gains are divided by the expected money to this power: 0 counts runs alone, 1 dollars alone.
THRIFT = 0.5
LEAST_GAIN, LEAST_RUNS = 0.005, 10


@dataclass(frozen=True)
class Bayesian(Choosing):
    """The searcher of this package.

    It models the time, with hyper-parameters drawn from priors and weighted by evidence; a stopped run
    is a lower bound. The expected gain is divided by a power of the run's own expected cost.
    """

    name = "bayesian"

    def choose_among(self, land: Landscape, seen: ObservedRuns, left: BoolArray) -> Choice:
        """Return the next run, or that too little is expected of any."""
        weights = self.goal.weights(land)
        timed = np.flatnonzero(~seen.unknown)
        if not len(timed):
            rng = np.random.default_rng((self.seed, len(seen)))
            return Choice(int(rng.choice(np.flatnonzero(left))), "the first, drawn at random")
        log_limit = np.log(self.goal.deadline_seconds)
        belief = self._believed(land, seen, timed)
        sd = np.sqrt(belief.variance + belief.noise[:, None])  # of what a run would show
        finishes = _finishes(land, seen)
        money = np.ones(len(land))  # what a run is expected to cost, stopped at the deadline
        if np.isfinite(land.dollars_per_second).all():
            lasting = np.exp(np.minimum(belief.mean + belief.variance / 2, log_limit))
            money = belief.mixed(lasting * land.dollars_per_second)
        first = seen.best(weights)
        if first < 0:
            chance = belief.mixed(normal_cdf((log_limit - belief.mean) / sd)) * finishes
            at = int(np.argmax(np.where(left, chance / money**THRIFT, -1.0)))
            words = chance_text("meets the deadline", float(chance[at]))
            return Choice(at, f"nothing feasible yet: {words} for its price")
        best = float(np.log(seen.seconds[first] * weights[seen.at[first]]))
        log_weights = np.log(weights)
        gain = gain_within(best, log_limit + log_weights, belief.mean + log_weights, sd)
        gain = np.where(left, belief.mixed(gain) * finishes, -1.0)
        most = max(float(gain.max()), 0.0)
        if self.stops and len(seen) >= LEAST_RUNS and most < LEAST_GAIN:
            words = f"the gain expected of any run is {format_percent(most, 2)} of the best at most"
            return Choice(
                -1, f"{words}, below {format_percent(LEAST_GAIN, 1)} after {len(seen)} runs"
            )
        at = int(np.argmax(np.where(left, gain / money**THRIFT, -1.0)))
        return Choice(at, f"expected gain {format_percent(float(gain[at]), 1)} of the best")

    def band(self, land: Landscape, seen: ObservedRuns) -> tuple[float, float] | None:
        """Return what the process says of the best run so far."""
        weights = self.goal.weights(land)
        first = seen.best(weights)
        if first < 0:
            return None
        belief = self._believed(land, seen, np.flatnonzero(~seen.unknown))
        return belief.band(seen.at[first], float(np.log(weights[seen.at[first]])))

    def _believed(self, land: Landscape, seen: ObservedRuns, timed: IntArray) -> Belief:
        limit = np.log(self.goal.deadline_seconds)
        level = limit if np.isfinite(limit) else np.median(np.log(seen.seconds[timed]))
        return _believed(land, seen, timed, float(level))


def _believed(land: Landscape, seen: ObservedRuns, timed: IntArray, level: float) -> Belief:
    """Return what runs tell of log t, for kernels from log-normal priors and a Kronecker sequence."""
    k = land.features.shape[1]
    ratio = 2.0  # the generalised golden ratio, whose powers are the steps
    for _ in range(40):
        ratio = (1.0 + ratio) ** (1.0 / (2 * k + 3))
    steps = ratio ** -np.arange(1.0, 2 * k + 3)
    u = np.clip((0.5 + np.outer(np.arange(1, DRAWS + 1), steps)) % 1.0, 1e-4, 1 - 1e-4)
    z = np.array([normal_quantile(v) for v in u.ravel().tolist()]).reshape(u.shape)
    trend: FloatArray | None = None
    if np.isfinite(price := np.log(land.dollars_per_hour)).all():
        # Before any run log t is expected to fall with the price, (d, n), unequally steep.
        draws = (0.5 + GOLDEN * np.arange(1, DRAWS + 1)) % 1.0
        trend = -STEEPEST * draws[:, None] * (price - price.mean())[None]
    kernels = Kernels(
        land.features, lengths=LENGTH[0] * np.exp(LENGTH[1] * z[:, :k]),
        amplitude=AMPLITUDE * np.exp(0.5 * z[:, 2 * k]),
        noise=NOISE * np.exp(0.7 * z[:, 2 * k + 1]), scales=SCALE * np.exp(0.5 * z[:, k : 2 * k]),
        trend=trend, rough=ROUGH,
    )  # fmt: skip
    bound = ~seen.feasible[timed]
    return believe(kernels, seen.at[timed], np.log(seen.seconds[timed]), bound, level)


def _finishes(land: Landscape, seen: ObservedRuns) -> FloatArray:
    """Return P(a run does not fail), by least squares classification (Rasmussen and Williams, 6.5)."""
    if not seen.unknown.any():
        return np.ones(len(land))
    k = land.features.shape[1]
    own = np.full((1, k), LABEL_OWN / max(np.sqrt(k), 1.0))
    kernels = Kernels(
        land.features, np.full((1, k), LABEL_LENGTH), np.array([LABEL_JOINT]),
        np.array([LABEL_NOISE]), own, level_sd=0.0,
    )  # fmt: skip
    none = np.zeros(len(seen), dtype=bool)
    labels = np.where(seen.unknown, -1.0, 1.0)
    belief = believe(kernels, seen.at, labels, none, EXPECTED_LABEL)
    return normal_cdf(belief.mean[0] / np.sqrt(belief.variance[0] + belief.noise[0]))
