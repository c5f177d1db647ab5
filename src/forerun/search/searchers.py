"""Choosing: how every searcher is asked: a landscape and what was seen of it in, the next run out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from forerun.arrays import BoolArray, FloatArray
from forerun.domain.quantiles import normal_cdf
from forerun.search.landscape import Goal, Landscape, ObservedRuns, landscape_of, seen_of
from forerun.tables import Jobs, Runs


def expected_gain(best: float | FloatArray, mean: FloatArray, sd: FloatArray) -> FloatArray:
    """Return the expected improvement of a minimum, E max(best - y, 0), in the unit of y.

    Source: Jones, Schonlau and Welch, Efficient global optimization, 1998, equation 15.
    """
    u = (best - mean) / sd
    density = np.exp(-0.5 * u * u) / np.sqrt(2 * np.pi)
    gain: FloatArray = np.maximum(sd * (u * normal_cdf(u) + density), 0.0)
    return gain


def gain_within(best: float, limit: FloatArray, mean: FloatArray, sd: FloatArray) -> FloatArray:
    """Return E[max(best - y, 0); y < limit], for limits (n,), means and deviations (d, n) [derived]."""
    least = np.minimum(limit, best)
    with np.errstate(invalid="ignore"):
        short = np.where(least < best, (best - least) * normal_cdf((least - mean) / sd), 0.0)
    return expected_gain(least, mean, sd) + short


@dataclass(frozen=True, slots=True)
class Choice:
    """The position of the next configuration and why; -1, and why the search stops.

    more: first points that follow it, before there is a law of them.
    """

    at: int
    reason: str
    more: int = 0

    @property
    def stops(self) -> bool:
        """Whether the search asks for no further run."""
        return self.at < 0


@dataclass(frozen=True)
class Choosing(ABC):
    """A searcher that asks for one configuration at a time; `stops`: it may stop by its own rule."""

    goal: Goal = field(default_factory=Goal)
    seed: int = 0
    stops: bool = True

    name = ""

    def choose(self, land: Landscape, seen: ObservedRuns, pending: Sequence[int] = ()) -> Choice:
        """Return the next configuration that was not seen, nor is under way, or why none."""
        left = np.ones(len(land), dtype=bool)
        left[seen.at], left[list(pending)] = False, False
        if not left.any():
            return Choice(-1, f"all {len(land):,} configurations are measured")
        return self.choose_among(land, seen, left)

    @abstractmethod
    def choose_among(self, land: Landscape, seen: ObservedRuns, left: BoolArray) -> Choice:
        """Return one of the configurations that are left, (n,), or why none."""

    def by_forecast(
        self, land: Landscape, seen: ObservedRuns, left: BoolArray, expected: FloatArray
    ) -> Choice:
        """Return what is left with the least forecast within the deadline; it may stop where none betters the best run.

        Where nothing that is left has a forecast, the next one is run.

        expected: forecast seconds, (n,), NaN where nothing is forecast, infinite where it may not be run.
        """
        weights = self.goal.weights(land)
        open_to = left & (expected <= self.goal.deadline_seconds)
        scores = np.where(open_to, expected * weights, np.inf)
        at, first = int(np.argmin(scores)), seen.best(weights)
        best = np.inf if first < 0 else float(seen.seconds[first] * weights[seen.at[first]])
        none, silent = np.isinf(scores[at]), bool(np.isnan(expected[left]).all())
        if self.stops and none and not silent:
            return Choice(-1, "the laws expect no other configuration within the deadline")
        if self.stops and not none and scores[at] >= best:
            return Choice(-1, "the laws expect no other configuration to be better")
        if none:
            why = "no law yet" if silent else "none is expected within the deadline"
            return Choice(int(np.argmax(left)), f"{why}: the next")
        return Choice(at, "the best by the laws of the runs")

    def band(self, land: Landscape, seen: ObservedRuns) -> tuple[float, float] | None:
        """Return what its model says of the best run so far, 5 to 95 % in dollars or seconds; None without one."""
        return None

    def suggest(self, space: Jobs, runs: Runs | None) -> Jobs:
        """Return the job of the space to run next, or none. See `contracts.Searcher`.

        Raises:
            RequestError: the goal is a cost, and a job has no price.
        """
        if not len(space):
            return space
        keys = landscape_of(space).keys
        first = np.array(sorted({key: i for i, key in reversed([*enumerate(keys)])}.values()))
        space = space.take(first)
        land = landscape_of(space)
        choice = self.choose(land, seen_of(land, runs, self.goal))
        return space.take(np.array([] if choice.stops else [choice.at], dtype=np.int64))


@dataclass(frozen=True)
class RandomSearch(Choosing):
    """Every configuration once, in an order drawn from the seed."""

    name = "random"

    def choose_among(self, land: Landscape, seen: ObservedRuns, left: BoolArray) -> Choice:
        """Return the next of the drawn order that has no run yet."""
        order = np.random.default_rng(self.seed).permutation(len(land))
        return Choice(int(order[np.argmax(left[order])]), "drawn at random")


@dataclass(frozen=True)
class GridSearch(Choosing):
    """A coarse grid (ends and middle of every axis), then the rest; the seed draws order and ends."""

    name = "grid"

    def choose_among(self, land: Landscape, seen: ObservedRuns, left: BoolArray) -> Choice:
        """Return the next point of the grid that has no run yet."""
        rng = np.random.default_rng(self.seed)
        ranks = []
        coarse = np.ones(len(land), dtype=bool)
        for values in land.axes.values():
            levels, rank = np.unique(np.round(values, 9), return_inverse=True)
            top = len(levels) - 1
            coarse &= np.isin(rank, (0, (top + 1) // 2, top))
            ranks.append(rank if self.seed == 0 or rng.random() < 0.5 else top - rank)
        turn = np.arange(len(ranks)) if self.seed == 0 else rng.permutation(len(ranks))
        order = np.lexsort((*(ranks[i] for i in turn), ~coarse))
        at = int(order[np.argmax(left[order])])
        if coarse[at]:
            return Choice(at, "a point of the coarse grid: ends and middle of every axis")
        return Choice(at, "a point of the full grid")
