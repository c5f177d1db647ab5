"""Choosing: how every searcher is asked: a landscape and what was seen of it in, the next run out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np

from forerun.search.landscape import Landscape, landscape_of
from forerun.search.observed import Goal, Seen, seen_of
from forerun.tables import Jobs, Runs


@dataclass(frozen=True, slots=True)
class Choice:
    """The next configuration and why, or why there is none.

    Attributes:
        at: its position in the landscape, -1 where the search stops.
        reason: why this one, or why it stops, in words.
    """

    at: int
    reason: str

    @property
    def stops(self) -> bool:
        """Whether the search asks for no further run."""
        return self.at < 0


@dataclass(frozen=True)
class Choosing(ABC):
    """A searcher that asks for one configuration at a time, and keeps nothing between.

    Attributes:
        goal: what is minimised, under which deadline.
        seed: of whatever it draws: the same seed and runs have the same answer.
        stops: whether it may stop by its own rule; else it goes on until all is measured.
    """

    goal: Goal = field(default_factory=Goal)
    seed: int = 0
    stops: bool = True

    name = ""

    @abstractmethod
    def choose(self, land: Landscape, seen: Seen) -> Choice:
        """Return the next configuration of a landscape, one that was not seen, or why none."""

    def suggest(self, space: Jobs, runs: Runs | None) -> Jobs:
        """Return the job of the space to run next; none left means that the search is done.

        Args:
            space: n jobs; those that are alike count once.
            runs: what was run so far; runs of jobs outside the space teach nothing here.

        Raises:
            RequestError: the goal is a cost, and a job has no price.
        """
        if not len(space):
            return space
        land = landscape_of(space)
        first = _first_of_each(land)
        land = landscape_of(space.take(first))
        choice = self.choose(land, seen_of(land, runs, self.goal))
        rows = first[[choice.at]] if not choice.stops else first[:0]
        return space.take(rows)


def _first_of_each(land: Landscape) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the first row of each distinct configuration, in order."""
    return np.array(list({key: i for i, key in reversed([*enumerate(land.keys)])}.values()))[::-1]


def exhausted(land: Landscape, seen: Seen) -> Choice | None:
    """Return that all is measured, None where something is left."""
    if len(seen) < len(land):
        return None
    return Choice(-1, f"all {len(land):,} configurations are measured")


def unseen(land: Landscape, seen: Seen) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which configurations have no run yet, (n,)."""
    left = np.ones(len(land), dtype=bool)
    left[seen.at] = False
    return left
