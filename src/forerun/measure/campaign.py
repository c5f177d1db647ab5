"""Carrying out a campaign: what is open is run, each result is kept at once, within time and money.

Campaign: a set of runs to make, with what they may take; each point is known by what it asks.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.errors import RequestError
from forerun.measure.measurement import Measurement
from forerun.measure.task import Task, sharing
from forerun.tables import COLUMNS, Table, configurations


def joined(table: Table) -> Table:
    """Return one row for each configuration (m,): of what was measured the median over its runs.

    Runs that are not ok take no part where others are; a configuration none of whose runs is ok
    keeps the first, with its status. `repeats` counts the runs, and `std_s` is the standard
    deviation of step_time_s between them, blank for one alone.
    """
    if not len(table):
        return table
    groups = configurations(table)[1]
    status = table.texts("status")
    ok = (status == "ok") | (status == "")
    first = _first(groups, ok)
    counted = np.flatnonzero(ok | ~np.isin(groups, groups[ok]))
    columns: dict[str, NDArray[Any]] = {}
    for name, column in table.columns.items():
        columns[name] = column[first]
        known = COLUMNS.get(name)
        if known is not None and known.group == "measured" and column.dtype != object:
            columns[name] = _by_group(column[counted], groups[counted], len(first), np.median)
    seconds = table.numbers("step_time_s")[counted]
    columns["repeats"] = np.bincount(groups[counted], minlength=len(first)).astype(np.float64)
    columns["std_s"] = _by_group(seconds, groups[counted], len(first), _spread)
    return Table(columns, len(first))


def _first(groups: NDArray[np.int64], ok: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return each group's first row that is ok, else its first."""
    order = np.lexsort((np.arange(len(groups)), ~ok, groups))
    return order[np.r_[True, np.diff(groups[order]) != 0]].astype(np.int64)


def _by_group(values: FloatArray, groups: NDArray[np.int64], count: int, of: Any) -> FloatArray:
    """Return a figure of the numbers of each group (count,), NaN where it has none."""
    found = np.full(count, np.nan)
    known = np.isfinite(values)
    for group in np.unique(groups[known]):
        found[group] = of(values[known & (groups == group)])
    return found


def _spread(values: FloatArray) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else np.nan


HOUR = 3600.0
# Seconds from the start of the processes to a first step, before any was seen: imports and the
# meeting of the workers. Ray's own start under a CPU share took 20-30 s.
STARTUP_SECONDS = {"local": 8.0, "ray": 25.0, "replay": 0.0}
USUAL_STEP_SECONDS = 0.2  # before anything is known of a step's time


@dataclass(frozen=True)
class Point:
    """One run to make: what to start, and the columns of the runs table that ask for it.

    Attributes:
        task: what the runner carries out.
        asked: columns of the runs table and cells, those that a person would ask by.
        repeat: which repeat of the same point this is, from 0.
    """

    task: Task
    asked: Mapping[str, object]
    repeat: int = 0

    @cached_property
    def key(self) -> str:
        """What this point is known by in a store: a hash of what is asked, 20 hexadecimal digits.

        How long is measured, and what may be waited for, are no part of it: a point that was
        measured stays measured when a campaign's caps change.
        """
        said = {"task": self.task.key, "asked": dict(self.asked), "repeat": self.repeat}
        text = json.dumps(said, sort_keys=True, separators=(",", ":"), default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    def __str__(self) -> str:
        task = self.task
        size = f", {task.dataset_size:,} samples" if task.dataset_size else ""
        cpus = f", {task.cpus_per_worker:g} CPUs each" if task.cpus_per_worker else ""
        again = f", repeat {self.repeat + 1}" if self.repeat else ""
        workers = f"{task.workers} worker{'s' if task.workers > 1 else ''}"
        name = self.asked.get("workload", task.entry)
        return f"{name} on {workers}, batch {task.global_batch}{size}{cpus}{again}"


@dataclass(frozen=True)
class Budget:
    """What a campaign may take in all, over every sitting of it; None is no limit.

    Attributes:
        seconds: of this machine's or cluster's time.
        dollars: at the price of a worker's hour.
    """

    seconds: float | None = None
    dollars: float | None = None


@dataclass(frozen=True)
class Campaign:
    """A named set of points, in the order in which they are run.

    Attributes:
        name: what a store knows it by.
        points: distinct; those that one start of processes can carry out follow one another.
        budget: what it may take.
        dollars_per_worker_hour: price of one worker's time, 0 where it costs nothing.
        runner: the runner's name in the registry.
        notes: what a person should know, e.g. points that were left out.
        spec: the fields it was made of, for the store.
        passes: repeats are passes over all points, and share no start of processes.
    """

    name: str
    points: tuple[Point, ...]
    budget: Budget = Budget()
    dollars_per_worker_hour: float = 0.0
    runner: str = "local"
    notes: tuple[str, ...] = ()
    spec: Mapping[str, Any] = field(default_factory=dict)
    passes: bool = False

    def __post_init__(self) -> None:
        asked = f"campaign {self.name!r}"
        if not self.points:
            raise RequestError(
                asked, "it has no run to make", "widen what varies, or leave_out less"
            )
        if len({point.key for point in self.points}) < len(self.points):
            raise RequestError(asked, "two points ask the same", "give each its own name or repeat")

    def on(self, runner: str) -> Campaign:
        """Return the same campaign for another runner; its points keep their keys."""
        return replace(self, runner=runner)

    def table(self) -> Table:
        """Return the points as a table of jobs, (n,) rows in the campaign's order."""
        names = dict.fromkeys(name for point in self.points for name in point.asked)
        return Table.from_columns(
            {name: [point.asked.get(name, "") for point in self.points] for name in names},
            f"campaign {self.name}",
        )

    def groups(self, points: Sequence[Point] | None = None) -> list[list[Point]]:
        """Return points (by default all) in groups that one start of processes can carry out."""
        points = self.points if points is None else points
        parts: dict[int, list[Point]] = {}
        for point in points:
            parts.setdefault(point.repeat if self.passes else 0, []).append(point)
        return [
            [part[i] for i in at] for part in parts.values()
            for at in sharing([point.task for point in part])
        ]  # fmt: skip


@dataclass(frozen=True)
class Outlook:
    """What points are expected to take before any of them is run.

    Attributes:
        seconds, dollars: expected.
        most_seconds, most_dollars: where every run takes all that its caps allow.
        runs, starts: how many of each.
    """

    seconds: float
    most_seconds: float
    dollars: float
    most_dollars: float
    runs: int
    starts: int


def outlook(
    campaign: Campaign, points: Sequence[Point], believed: Mapping[str, float] = {},
    started: bool = False,
) -> Outlook:  # fmt: skip
    """Return what some of a campaign's points will take.

    Args:
        campaign: theirs; it has the price and the runner.
        points: those still to run.
        believed: seconds of a step by the point's key; a usual one where nobody knows.
        started: the processes of the first of them run already.
    """
    if not points:
        return Outlook(0.0, 0.0, 0.0, 0.0, 0, 0)
    usual = STARTUP_SECONDS.get(campaign.runner, STARTUP_SECONDS["local"])
    groups = campaign.groups(points)
    likely = most = likely_worker = most_worker = 0.0
    for i, group in enumerate(groups):
        startup = 0.0 if started and not i else usual
        expected = startup + sum(
            _seconds(point.task, believed.get(point.key, USUAL_STEP_SECONDS)) for point in group
        )
        longest = max(expected, startup + sum(point.task.timeout_seconds for point in group))
        likely, most = likely + expected, most + longest
        likely_worker += expected * group[0].task.workers
        most_worker += longest * group[0].task.workers
    price = campaign.dollars_per_worker_hour / HOUR
    return Outlook(
        likely, most, likely_worker * price, most_worker * price, len(points), len(groups)
    )


def _seconds(task: Task, step_seconds: float) -> float:
    """Return what measuring one task is expected to take, without its start."""
    steps = task.steps
    if steps.epochs:
        each = max(1.0, task.dataset_size / task.global_batch)
        return float(steps.epochs * each * step_seconds)
    # Half way between the fewest and the most steps: how noisy steps are is not known yet.
    count = steps.warmup + math.sqrt(steps.least * steps.most)
    return min(count * step_seconds, steps.seconds + steps.warmup * step_seconds)


# What is known of a point for good. A run that failed may have met a bad moment: it is tried
# again when the campaign is resumed; what ran out of memory would do so again, and what ran out
# of time too, unless it is given more.
FINAL = ("ok", "oom", "timeout")
# A campaign whose runs all fail in the same way stops: the next would too.
MOST_FAILURES_IN_A_ROW = 5


class Carrier(Protocol):
    """What a campaign needs of a runner."""

    name: str

    def each(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Measurement]]:
        """Yield (position, measurement) as each ends; closing the iterator ends what still runs."""
        ...

    def refuses(self, task: Task) -> str | None:
        """Return why it cannot carry a task out, or None."""
        ...

    def placement(self, task: Task) -> tuple[int, ...]:
        """Return how many workers each host gets; () where that is not known beforehand."""
        ...


@dataclass(frozen=True, slots=True)
class State:
    """What is known of a point that was run.

    Attributes:
        status: of its run.
        limit_seconds: the limit that ended it, of the whole run or without a step; 0 where none did.
    """

    status: str
    limit_seconds: float = 0.0

    @staticmethod
    def of(task: Task, found: Measurement) -> State:
        """Return the state that a run leaves its point in."""
        if found.status == "timeout":
            return State(found.status, task.timeout_seconds)
        return State(found.status, task.hang_seconds if found.hangs else 0.0)

    def is_final(self, task: Task, retry: bool) -> bool:
        """Whether the point need not be run again: what ended by a limit gets a larger one."""
        if self.status == "timeout":
            return not 0 < self.limit_seconds < task.timeout_seconds
        if self.status == "failed" and self.limit_seconds:
            return not retry and 0 < task.hang_seconds <= self.limit_seconds
        return self.status in FINAL or (self.status == "failed" and not retry)


@dataclass(frozen=True, slots=True)
class Spent:
    """What the runs of a campaign took so far, those that failed among them.

    Attributes:
        seconds: of the runs, the start of their processes included.
        worker_seconds: the same, times the workers of each.
    """

    seconds: float = 0.0
    worker_seconds: float = 0.0


class Ledger(Protocol):
    """Where a campaign's results are kept, each as soon as it is there."""

    def begin(self) -> None:
        """Make it ready to keep results."""
        ...

    def states(self) -> Mapping[str, State]:
        """Return the state of every point that was run, by its key."""
        ...

    def spent(self) -> Spent:
        """Return what all runs took that were kept, in every sitting."""
        ...

    def keep(self, point: Point, measurement: Measurement) -> None:
        """Keep one result; once this returns it is not lost."""
        ...


@dataclass(frozen=True)
class Progress:
    """Where a campaign stands after one run.

    Attributes:
        point, measurement: the run that just ended.
        done, total: points with a result, of all.
        seconds_left: expected for the rest, from what the runs so far took.
        dollars: paid so far in this sitting.
    """

    point: Point
    measurement: Measurement
    done: int
    total: int
    seconds_left: float
    dollars: float


@dataclass(frozen=True)
class Outcome:
    """How a sitting of a campaign ended.

    Attributes:
        made: runs of this sitting by status.
        before: points that had a result already.
        left: points still without a final one.
        refused: points that the runner cannot carry out, with its reasons.
        stopped: why it ended before all points were run; "" where it did not.
        seconds, dollars: what the sitting took.
    """

    made: Mapping[str, int]
    before: int
    left: int
    refused: Mapping[str, str]
    stopped: str
    seconds: float
    dollars: float


def still_open(campaign: Campaign, ledger: Ledger, retry: bool = True) -> list[Point]:
    """Return the points without a final result, in order; failed ones among them with `retry`.

    A run that its time limit ended, or the limit of time without a step, is open again once that
    limit is larger.
    """
    known = ledger.states()
    return [
        point for point in campaign.points
        if (state := known.get(point.key)) is None or not state.is_final(point.task, retry)
    ]  # fmt: skip


def carry_out(
    campaign: Campaign,
    runner: Carrier,
    ledger: Ledger,
    told: Callable[[Progress], None] = lambda progress: None,
    retry: bool = True,
    believed: Mapping[str, float] = {},
) -> Outcome:
    """Run what is open of a campaign, and keep each result as soon as it is there.

    A run goes on only where it is expected to end within what earlier sittings left of the budget.
    Each is judged before its turn, also where its processes run already: these are ended then. A
    run that is under way when time or money has run out is finished.

    Args:
        campaign, runner, ledger: what is run, by whom, and where it is kept.
        told: called after each run.
        retry: whether points that failed are run again.
        believed: seconds of a step by the point's key, for those that somebody foresees.

    Raises:
        RequestError: the runner can carry out none of the open points.
    """
    todo = still_open(campaign, ledger, retry)
    refused = {p.key: why for p in todo if (why := runner.refuses(p.task)) is not None}
    ready = [point for point in todo if point.key not in refused]
    check_any(campaign, runner, len(ready), list(refused.values()))
    ledger.begin()
    sitting = _Sitting(campaign, runner, ledger, told, ready, len(todo), believed)
    sitting.go()
    return Outcome(
        sitting.made, sitting.before, len(todo) - sitting.final, refused, sitting.stopped,
        sitting.seconds, sitting.dollars,
    )  # fmt: skip


def check_any(campaign: Campaign, runner: Carrier, ready: int, reasons: Sequence[str]) -> None:
    """Raise RequestError where a runner refuses, and nothing is ready that it does not refuse."""
    if reasons and not ready:
        raise RequestError(
            f"campaign {campaign.name!r} with the runner {runner.name!r}",
            reasons[0],
            "change what the campaign asks for, or let another runner carry it out (--on)",
        )  # fmt: skip


class _Sitting:
    """One sitting of a campaign: the clock, the purse and what came of it."""

    def __init__(
        self, campaign: Campaign, runner: Carrier, ledger: Ledger,
        told: Callable[[Progress], None], ready: Sequence[Point], todo: int,
        believed: Mapping[str, float],
    ) -> None:  # fmt: skip
        self.campaign, self.runner, self.ledger, self.told = campaign, runner, ledger, told
        self.ready, self.believed = list(ready), believed
        self.before = len(campaign.points) - todo
        self.began = time.monotonic()
        self.made: dict[str, int] = {}
        self.dollars = 0.0
        self.final = 0
        self.stopped = ""
        self._spent = ledger.spent()  # in earlier sittings
        self._price = campaign.dollars_per_worker_hour / HOUR
        self._expected = self._took = 0.0  # seconds of the runs so far: as foreseen, as they were
        self._failures = 0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def go(self) -> None:
        """Run group after group until all is run or something stops it."""
        open_ = list(self.ready)
        for group in self.campaign.groups(self.ready):
            self.stopped = self._cannot_begin(group[0], started=False)
            if self.stopped:
                return
            open_ = self._carry(group, open_)
            if self.stopped:
                return

    def _carry(self, group: Sequence[Point], open_: list[Point]) -> list[Point]:
        """Run one group and return the points that are still open."""
        last, started, left = time.monotonic(), False, list(group)
        runs = self.runner.each([point.task for point in group])
        with closing(runs):  # type: ignore[type-var]
            for position, measurement in runs:
                point = group[position]
                self.ledger.keep(point, measurement)
                now = time.monotonic()
                self._count(point, measurement, now - last, self._foreseen([point], started))
                last = now
                open_, left = _without(open_, point), _without(left, point)
                # After a run that did not end well, the rest of the group needs new processes.
                started = bool(left) and measurement.status == "ok"
                ahead = self._foreseen(open_, started)
                self.told(self._progress(point, measurement, ahead))
                self.stopped = self._must_stop(open_)
                if not self.stopped and left:
                    self.stopped = self._cannot_begin(left[0], started)
                if self.stopped:
                    break
        return open_

    def _foreseen(self, points: Sequence[Point], started: bool) -> Outlook:
        return outlook(self.campaign, points, self.believed, started)

    def _count(self, point: Point, found: Measurement, took: float, foreseen: Outlook) -> None:
        self.made[found.status] = self.made.get(found.status, 0) + 1
        self.final += found.status in FINAL
        self._failures = self._failures + 1 if found.status == "failed" else 0
        self._took += took
        self._expected += foreseen.seconds
        self.dollars += took * point.task.workers * self._price

    def _progress(self, point: Point, found: Measurement, ahead: Outlook) -> Progress:
        done = self.before + sum(self.made.values())
        left = ahead.seconds * self._pace
        return Progress(point, found, done, len(self.campaign.points), left, self.dollars)

    @property
    def _pace(self) -> float:
        """Seconds that runs took for each second foreseen, so far."""
        return self._took / self._expected if self._expected else 1.0

    def _cannot_begin(self, point: Point, started: bool) -> str:
        """Return why a run is not begun: it would not end within the budget; "" where it would."""
        run, budget = self._foreseen([point], started), self.campaign.budget
        seconds = self._spent.seconds + self.seconds
        dollars = self._spent.worker_seconds * self._price + self.dollars
        for what, spent, more, limit, said in (
            ("time", seconds, run.seconds, budget.seconds, "{:,.0f} s"),
            ("money", dollars, run.dollars, budget.dollars, "${:,.2f}"),
        ):
            if limit is None:
                continue
            told = f"the {what} of the budget ({said.format(limit)} for all sittings)"
            if spent >= limit:
                return f"{told} is used"
            if spent + more * self._pace > limit:
                return f"the next run would pass {told}"
        return ""

    def _must_stop(self, open_: Sequence[Point]) -> str:
        if open_ and self._failures >= MOST_FAILURES_IN_A_ROW:
            return f"{self._failures} runs failed one after the other"
        return ""


def _without(points: Sequence[Point], gone: Point) -> list[Point]:
    return [point for point in points if point.key != gone.key]
