"""Unguided: random and grid search, which ask without looking at what came of the runs before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forerun.arrays import IntArray
from forerun.search.choosing import Choice, Choosing, exhausted, unseen
from forerun.search.landscape import Landscape
from forerun.search.observed import Seen


@dataclass(frozen=True)
class RandomSearch(Choosing):
    """Every configuration once, in an order drawn from the seed; it has no rule to stop by."""

    name = "random"

    def choose(self, land: Landscape, seen: Seen) -> Choice:
        """Return the next of the drawn order that has no run yet."""
        order = np.random.default_rng(self.seed).permutation(len(land))
        return _next(land, seen, order, "drawn at random")


@dataclass(frozen=True)
class GridSearch(Choosing):
    """A coarse grid first (the ends and the middle of every axis), then all that lies between.

    Within each it goes axis by axis, as nested loops would; the seed draws which axis is the
    innermost, and from which end each is taken. It has no rule to stop by.
    """

    name = "grid"

    def choose(self, land: Landscape, seen: Seen) -> Choice:
        """Return the next point of the grid that has no run yet."""
        coarse, order = _grid_order(land, self.seed)
        choice = _next(land, seen, order, "a point of the full grid")
        if not choice.stops and coarse[choice.at]:
            return Choice(choice.at, "a point of the coarse grid: ends and middle of every axis")
        return choice


def _next(land: Landscape, seen: Seen, order: IntArray, reason: str) -> Choice:
    left = unseen(land, seen)[order]
    return exhausted(land, seen) or Choice(int(order[np.argmax(left)]), reason)


def _grid_order(
    land: Landscape, seed: int
) -> tuple[np.ndarray[tuple[int], np.dtype[np.bool_]], IntArray]:
    """Return which configurations lie on the coarse grid (n,), and the order of all (n,)."""
    rng = np.random.default_rng(seed)
    ranks = []
    coarse = np.ones(len(land), dtype=bool)
    for values in land.axes.values():
        levels, rank = np.unique(np.round(values, 9), return_inverse=True)
        top = len(levels) - 1
        coarse &= np.isin(rank, (0, (top + 1) // 2, top))
        ranks.append(rank if seed == 0 or rng.random() < 0.5 else top - rank)
    turn = np.arange(len(ranks)) if seed == 0 else rng.permutation(len(ranks))
    keys = [ranks[i] for i in turn]
    return coarse, np.lexsort((*keys, ~coarse)).astype(np.int64)
