"""Replay: a table of measured runs as the black box of a search: asking a job gives its run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.contracts import Searcher
from forerun.errors import RequestError, UnsatisfiedError
from forerun.search import landscape
from forerun.search.searchers import Choice, Choosing
from forerun.tables import Jobs, Runs
from forerun.units import counted, format_seconds

# What decides how much there is to do: a search should be among ways to do the same.
_WORK = ("workload", "dataset", "dataset_size", "seq_len", "image_size")


@dataclass(frozen=True)
class Replay:
    """n distinct configurations, each with the run that the table has of it.

    A run is stopped, and paid for, at the deadline.
    quantity: run, epoch or step. seconds: (n,), a lower bound where a run timed out, NaN if not stated.
    """

    runs: Runs
    land: landscape.Landscape
    goal: landscape.Goal
    quantity: str
    seconds: FloatArray

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

    def __len__(self) -> int:
        return len(self.land)

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
        values = self.seconds * self.goal.weights(self.land)
        return np.where(self.feasible, values, np.inf)

    @property
    def oracle(self) -> float:
        """The best of all, known in hindsight."""
        return float(self.values.min())

    @property
    def unlike(self) -> tuple[str, ...]:
        """The columns by which configurations do different work: their times are no rivals."""
        work = (*_WORK, "global_batch") if self.quantity == "step" else _WORK
        return tuple(name for name in work if name in self.land.varied)

    @cached_property
    def dollars(self) -> FloatArray:
        """What each run costs, stopped at the deadline, (n,); NaN where there is no price."""
        # A run that failed before any time was stated is counted as nothing.
        lasted = np.nan_to_num(self.seen(np.arange(len(self))).seconds)
        return lasted * self.land.dollars_per_second

    def seen(self, at: IntArray) -> landscape.ObservedRuns:
        """Return what a search has seen once it has asked for these, in this order."""
        return landscape.ObservedRuns.of(
            at, self.seconds[at], self.runs.status[at], self.goal.deadline_seconds
        )

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

    def places(self, jobs: Jobs) -> IntArray:
        """Return where jobs stand in the space. Raises RequestError where one is not of it."""
        found = self.land.places(landscape.landscape_of(jobs))
        if -1 in found:
            raise RequestError(
                f"replaying job {found.index(-1)}", "the table has no run of it",
                "suggest jobs of the space alone",
            )  # fmt: skip
        return np.array(found, dtype=np.int64)


def _nothing_meets(box: Replay) -> UnsatisfiedError:
    limit, status = box.goal.deadline_seconds, box.runs.status
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


NEAR = 1.10  # a run within 10 % of the best of all has found it


@dataclass(frozen=True)
class Trail:
    """What one search did on a replayed table: the configurations asked for, in order, (m,), and why."""

    replay: Replay
    searcher: str
    seed: int
    at: IntArray
    reasons: tuple[str, ...]
    stopped: str

    def __len__(self) -> int:
        return len(self.at)

    @property
    def seen(self) -> landscape.ObservedRuns:
        """The runs, each until it ended or was stopped."""
        return self.replay.seen(self.at)

    @property
    def spent(self) -> FloatArray:
        """Dollars spent after each run, (m,)."""
        return np.cumsum(self.replay.dollars[self.at])

    @property
    def best_so_far(self) -> FloatArray:
        """The least cost or time that met the deadline after each run, (m,); infinite before one."""
        return np.minimum.accumulate(self.replay.values[self.at])

    @property
    def recommended(self) -> int:
        """The best measured configuration within the deadline, -1 where none was found."""
        found = np.isfinite(self.regret)
        return int(self.at[np.argmin(self.replay.values[self.at])]) if found else -1

    @property
    def regret(self) -> float:
        """How much worse what is recommended is than the oracle: 0.1 is 10 %; infinite for none."""
        best = self.best_so_far
        return float(best[-1] / self.replay.oracle - 1) if len(best) else np.inf

    @property
    def runs_until_near(self) -> float:
        """Runs until one was within 10 % of the oracle; infinite where none was."""
        near = np.flatnonzero(self.best_so_far <= NEAR * self.replay.oracle)
        return float(near[0] + 1) if len(near) else np.inf

    @property
    def dollars_until_near(self) -> float:
        """Dollars spent by then."""
        runs = self.runs_until_near
        return float(self.spent[int(runs) - 1]) if np.isfinite(runs) else np.inf


def follow(
    searcher: Searcher, replay: Replay, max_runs: int, until_near: bool = False,
    made: Sequence[Choice] = (), on_run: Callable[[Choice], None] = lambda choice: None,
) -> Trail:  # fmt: skip
    """Return the trail of a searcher, one of ours or a plug-in's, on a replayed table.

    until_near: stop within 10 % of the oracle. made: choices of an earlier call. on_run: gets each new one.
    """
    choices = list(made)
    stopped = f"{max_runs} runs are made, the most that it may ask for"
    while len(choices) < max_runs:
        places = np.array([choice.at for choice in choices], dtype=np.int64)
        if isinstance(searcher, Choosing):
            found = [searcher.choose(replay.land, replay.seen(places))]
        else:
            runs = replay.ask(replay.space.take(places)) if choices else None
            asked = replay.places(searcher.suggest(replay.space, runs))
            found = [Choice(i, "") for i in asked.tolist() if i not in places]
        if not found or found[0].stops:
            stopped = found[0].reason if found else "it asks for no further run"
            break
        for choice in found[: max_runs - len(choices)]:
            choices.append(choice)
            on_run(choice)
        if until_near and min(replay.values[c.at] for c in choices) <= NEAR * replay.oracle:
            stopped = "within 10 % of the oracle"
            break
    places = np.array([choice.at for choice in choices], np.int64)
    reasons = tuple(choice.reason for choice in choices)
    return Trail(replay, searcher.name, getattr(searcher, "seed", 0), places, reasons, stopped)
