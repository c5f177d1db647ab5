"""Carrying out a campaign: what is open is run, each result is kept at once, within time and money."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

from forerun.errors import RequestError
from forerun.measure.campaign import HOUR, Campaign, Outlook, Point, outlook
from forerun.measure.measurement import Measurement
from forerun.measure.task import Task

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
