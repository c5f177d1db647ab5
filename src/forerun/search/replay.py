"""Replay: a table of measured runs as the black box of a search: asking a job gives its run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from forerun.arrays import BoolArray, FloatArray
from forerun.errors import RequestError, UnsatisfiedError
from forerun.search import landscape
from forerun.search.following import BlackBox, Trail, configuration, json_of
from forerun.tables import Jobs, Runs
from forerun.units import counted, format_seconds


class Replay(BlackBox):
    """n distinct configurations, each with the run that the table has of it.

    A run is stopped, and paid for, at the deadline. quantity: run, epoch or step.
    """

    def __init__(
        self, runs: Runs, land: landscape.Landscape, goal: landscape.Goal, quantity: str,
        seconds: FloatArray,
    ) -> None:  # fmt: skip
        super().__init__(land, goal, quantity)
        self.runs, self.seconds, self.status = runs, seconds, runs.status
        self.samples = landscape.target_samples(runs, quantity)
        if quantity == "step":  # a run is one
            self.samples, self.are_foreseen = landscape.batches(land.table), True
        self._begun = -1

    @staticmethod
    def of(runs: Runs, goal: landscape.Goal) -> Replay:
        """Return a table as a black box; of a configuration's repeats the median run counts.

        Raises:
            RequestError: no run states a time, prices are missing, or there is one configuration.
            UnsatisfiedError: no run meets the deadline; the nearest misses are named.
        """
        quantity = landscape.timed_as(runs)
        seconds = landscape.seconds_of(runs, quantity)
        # Of repeats the median, failures being the slowest.
        rank = np.where((runs.status == "ok") & ~np.isnan(seconds), seconds, np.inf)
        groups: dict[tuple[str, ...], list[int]] = {}
        for row, key in enumerate(landscape.landscape_of(runs.jobs).keys):
            groups.setdefault(key, []).append(row)
        ordered = (sorted(rows, key=lambda row: rank[row]) for rows in groups.values())
        kept = np.array([rows[(len(rows) - 1) // 2] for rows in ordered], dtype=np.int64)
        one_each = runs.take(kept)
        land = landscape.landscape_of(one_each.jobs)
        box = Replay(one_each, land, goal, quantity, seconds[kept])
        if len(land) < 2:
            raise RequestError(
                f"searching among {counted(len(runs), 'run')}",
                "all of them are of one configuration: no column of workload, cluster or plan varies",
                "give a table of runs of several configurations",
            )
        if not box.feasible.any():
            raise _nothing_meets(box)
        return box

    @property
    def space(self) -> Jobs:
        """The jobs, each configuration once."""
        return self.runs.jobs

    @cached_property
    def feasible(self) -> BoolArray:
        """Which configurations meet the goal's deadline, (n,)."""
        self.goal.weights(self.land)  # a missing price is reported before a missing time
        return self.seen(np.arange(len(self))).feasible

    @cached_property
    def values(self) -> FloatArray:
        """What is minimised of each, dollars or seconds, (n,): infinite where it is not feasible."""
        return super().values

    @property
    def oracle(self) -> float:
        """The best of all, known in hindsight."""
        return float(self.values.min())

    @cached_property
    def dollars(self) -> FloatArray:
        """What each run costs, stopped at the deadline, (n,); NaN where there is no price."""
        # A run that failed before any time was stated is counted as nothing.
        lasted = np.nan_to_num(self.seen(np.arange(len(self))).seconds)
        return lasted * self.land.dollars_per_second

    def begin(self, at: int) -> str:
        """Take the table's run."""
        self._begun = at
        return ""

    def ended(self) -> int:
        """Return the configuration at once."""
        return self._begun

    def ask(self, jobs: Jobs) -> Runs:
        """Return the runs of jobs of the space, stopped as in a search. Raises as `places`."""
        at = self.places(jobs)
        found, late = self.runs.take(at), self.seen(at).late
        seconds = np.where(late, self.goal.deadline_seconds, self.seconds[at])
        status = np.where(late, "timeout", found.status)
        table = found.table.with_columns(
            **{landscape.QUANTITIES[self.quantity]: seconds, "status": status}
        )
        return Runs(found.jobs, table)


def _nothing_meets(box: Replay) -> UnsatisfiedError:
    limit, status = box.goal.deadline_seconds, box.status
    ended = np.flatnonzero((status == "ok") & ~np.isnan(box.seconds))
    within = "" if np.isinf(limit) else f" within {format_seconds(limit)}"
    title = f"searching {counted(len(box), 'configuration')} for one that ends{within}"
    if not len(ended):
        ways = ", ".join(f"{n:,} {way}" for way, n in sorted(Counter(status.tolist()).items()))
        found = f"no run of the table reached its end ({ways})"
        return UnsatisfiedError(title, found, "give runs that ended ok")
    near = ended[np.argsort(box.seconds[ended], kind="stable")][:3].tolist()
    words = "; ".join(f"{format_seconds(box.seconds[i])} with {box.land.words(i)}" for i in near)
    next_step = "give a later --deadline, or more runs"
    return UnsatisfiedError(title, f"none does; the nearest: {words}", next_step)


def replay_json(
    name: str, box: Replay, trails: Sequence[Trail], warnings: list[str]
) -> dict[str, Any]:
    """Return searches on one table, by its name, as JSON data."""
    searches = [
        (trail, {"regret": trail.regret, "runs_until_within_10_percent": trail.runs_until_near,
                 "dollars_until_within_10_percent": trail.dollars_until_near})
        for trail in trails
    ]  # fmt: skip
    oracle = {**configuration(box, int(box.values.argmin())), "value": box.oracle}
    feasible = int(box.feasible.sum())
    return json_of(searches, replayed=name, feasible=feasible, oracle=oracle, warnings=warnings)  # fmt: skip
