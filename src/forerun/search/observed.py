"""Observed: what a search has seen of its landscape, read from the runs it is given, and its goal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.errors import RequestError, one_of
from forerun.search.landscape import Landscape, landscape_of
from forerun.tables import Runs

AIMS = ("cost", "time")
# What a run times, the whole run first: the first of them that any run states is what counts.
QUANTITIES = {"run": "time_to_train_s", "epoch": "epoch_time_s", "step": "step_time_s"}


@dataclass(frozen=True)
class Goal:
    """What a search minimises: the price or the time of a run (epoch, step) that meets a deadline.

    Raises:
        RequestError: no such aim, or a deadline that is not above zero.
    """

    minimize: str = "cost"
    deadline_seconds: float = np.inf

    def __post_init__(self) -> None:
        if self.minimize not in AIMS:
            raise RequestError(
                f"minimize {self.minimize!r}",
                "a search has no such aim",
                one_of(self.minimize, AIMS),
            )
        if not self.deadline_seconds > 0:
            raise RequestError(
                f"deadline {self.deadline_seconds}", "not above zero", "give a positive number"
            )

    def weights(self, land: Landscape) -> FloatArray:
        """Return what a second of each configuration adds to the aim, (n,): dollars, or 1.

        Raises:
            RequestError: the cost is minimised and a configuration has no price.
        """
        if self.minimize == "time":
            return np.ones(len(land))
        unpriced = int((~np.isfinite(land.dollars_per_second)).sum())
        if unpriced:
            raise RequestError(
                "minimizing the cost",
                f"{unpriced:,} of {len(land):,} configurations have no price",
                "add a column price_usd_per_hour (the whole cluster), or minimize the time",
            )
        return land.dollars_per_second


@dataclass(frozen=True)
class Seen:
    """m runs of a landscape's configurations, in the order in which they were made.

    Attributes:
        at: positions in the landscape, (m,).
        seconds: what the run took until it ended or was stopped, (m,).
        feasible: whether it ended well within the deadline: seconds are then its time, (m,).
        late: whether it went on until the deadline or beyond, (m,).
        unknown: whether it says nothing of a time (out of memory, failed), (m,).
    """

    at: IntArray
    seconds: FloatArray
    feasible: BoolArray
    late: BoolArray
    unknown: BoolArray

    def __len__(self) -> int:
        return len(self.at)

    def best(self, weights: FloatArray) -> int:
        """Return which run is the best of those within the deadline, -1 where none is."""
        if not self.feasible.any():
            return -1
        values = np.where(self.feasible, self.seconds * weights[self.at], np.inf)
        return int(np.argmin(values))

    @staticmethod
    def of(
        at: IntArray, seconds: FloatArray, status: NDArray[np.object_], deadline_seconds: float
    ) -> Seen:
        """Return what runs with a status tell under a deadline.

        A run that reached its end after the deadline, or was stopped then or later, is late: its
        time is a lower bound, the deadline. One that was stopped before the deadline without
        reaching its end is not feasible, and its time is a lower bound too.
        """
        seconds = np.where(np.isfinite(seconds) & (seconds > 0), seconds, np.nan)
        ok = (status == "ok") & ~np.isnan(seconds)
        timed = ok | ((status == "timeout") & ~np.isnan(seconds))
        late = timed & (seconds > deadline_seconds)
        late |= (status == "timeout") & timed & (seconds >= deadline_seconds)
        return Seen(at, np.minimum(seconds, deadline_seconds), ok & ~late, late, ~timed)

    @staticmethod
    def nothing() -> Seen:
        """Return the state before the first run."""
        none = np.zeros(0, dtype=bool)
        return Seen(np.zeros(0, dtype=np.int64), np.zeros(0), none, none, none)


def timed_as(runs: Runs) -> str:
    """Return what the runs time: `run`, `epoch` or `step`, the first that any of them states.

    Raises:
        RequestError: they state no time at all.
    """
    for quantity in QUANTITIES:
        if np.isfinite(seconds_of(runs, quantity)).any():
            return quantity
    raise RequestError(
        f"searching among {len(runs):,} runs", "none of them states a time",
        f"give a table with one of {', '.join(QUANTITIES.values())}",
    )  # fmt: skip


def seconds_of(runs: Runs, quantity: str) -> FloatArray:
    """Return seconds as measured (n,), lower bounds where a run timed out, NaN where none."""
    stated = runs.measured(QUANTITIES[quantity])
    if quantity == "step":
        stated = np.where(np.isnan(stated), runs.step_seconds(), stated)
    return np.where((stated > 0) & np.isfinite(stated), stated, np.nan)


def seen_of(land: Landscape, runs: Runs | None, goal: Goal) -> Seen:
    """Return the runs of configurations of the landscape; runs of other jobs are passed over.

    A configuration that was run several times keeps its last run.
    """
    if runs is None or not len(runs):
        return Seen.nothing()
    place = {key: i for i, key in enumerate(land.keys)}
    found = np.array([place.get(key, -1) for key in _keys(land, runs)], dtype=np.int64)
    try:
        seconds = seconds_of(runs, timed_as(runs))
    except RequestError:  # all of them failed before a time was known
        seconds = np.full(len(runs), np.nan)
    last = {at: row for row, at in enumerate(found.tolist()) if at >= 0}
    rows = np.array(sorted(last.values()), dtype=np.int64)
    return Seen.of(found[rows], seconds[rows], runs.status[rows], goal.deadline_seconds)


def _keys(land: Landscape, runs: Runs) -> list[tuple[str, ...]]:
    """Return the runs' keys over the landscape's columns: their own further columns do not count."""
    own = landscape_of(runs.jobs)
    columns = {
        name: own.table.columns.get(name, np.full(len(runs), "", dtype=object))
        for name in land.table.columns
    }
    from dataclasses import replace

    return replace(own, table=replace(own.table, columns=columns)).keys
