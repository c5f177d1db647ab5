"""Carrying out a campaign: what is open is run, each result is kept at once, within time and money."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

from forerun.errors import RequestError
from forerun.measure.campaign import HOUR, Campaign, Point, outlook
from forerun.measure.measurement import Measurement
from forerun.measure.task import Task

# What is known of a point for good. A run that failed may have met a bad moment: it is tried
# again when the campaign is resumed; what ran out of memory or time would do so again.
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


class Ledger(Protocol):
    """Where a campaign's results are kept, each as soon as it is there."""

    def statuses(self) -> Mapping[str, str]:
        """Return the status of every point that was run, by its key."""
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
    """Return the points without a final result, in order; failed ones among them with `retry`."""
    known = ledger.statuses()
    final = FINAL if retry else (*FINAL, "failed")
    return [point for point in campaign.points if known.get(point.key) not in final]


def carry_out(
    campaign: Campaign,
    runner: Carrier,
    ledger: Ledger,
    told: Callable[[Progress], None] = lambda progress: None,
    retry: bool = True,
) -> Outcome:
    """Run what is open of a campaign, and keep each result as soon as it is there.

    A run is begun only where it is expected to end within the budget; runs that are under way
    when time or money has run out are finished, the rest of their group is left.

    Raises:
        RequestError: the runner can carry out none of the open points.
    """
    todo = still_open(campaign, ledger, retry)
    refused = {p.key: why for p in todo if (why := runner.refuses(p.task)) is not None}
    ready = [point for point in todo if point.key not in refused]
    if todo and not ready:
        raise RequestError(
            f"campaign {campaign.name!r} with the runner {runner.name!r}",
            next(iter(refused.values())), "change what is asked, or the runner",
        )  # fmt: skip
    sitting = _Sitting(campaign, runner, ledger, told, ready, len(campaign.points) - len(todo))
    sitting.go()
    return Outcome(
        sitting.made, sitting.before, len(todo) - sitting.final, refused, sitting.stopped,
        sitting.seconds, sitting.dollars,
    )  # fmt: skip


class _Sitting:
    """One sitting of a campaign: the clock, the purse and what came of it."""

    def __init__(
        self, campaign: Campaign, runner: Carrier, ledger: Ledger,
        told: Callable[[Progress], None], ready: Sequence[Point], before: int,
    ) -> None:  # fmt: skip
        self.campaign, self.runner, self.ledger, self.told = campaign, runner, ledger, told
        self.ready, self.before = list(ready), before
        self.began = time.monotonic()
        self.made: dict[str, int] = {}
        self.dollars = 0.0
        self.final = 0
        self.stopped = ""
        self._expected = self._took = 0.0  # seconds of the runs so far: as foreseen, as they were
        self._failures = 0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def go(self) -> None:
        """Run group after group until all is run or something stops it."""
        open_ = list(self.ready)
        for group in self.campaign.groups(self.ready):
            self.stopped = self._cannot_begin(group)
            if self.stopped:
                return
            open_ = self._carry(group, open_)
            if self.stopped:
                return

    def _carry(self, group: Sequence[Point], open_: list[Point]) -> list[Point]:
        """Run one group and return the points that are still open."""
        last = time.monotonic()
        foreseen = outlook(self.campaign, group).seconds / len(group)
        runs = self.runner.each([point.task for point in group])
        with closing(runs):  # type: ignore[type-var]
            for position, measurement in runs:
                point = group[position]
                self.ledger.keep(point, measurement)
                now = time.monotonic()
                self._count(point, measurement, now - last, foreseen)
                last = now
                open_ = [other for other in open_ if other.key != point.key]
                self.told(self._progress(point, measurement, open_))
                self.stopped = self._must_stop(open_)
                if self.stopped:
                    break
        return open_

    def _count(self, point: Point, found: Measurement, took: float, foreseen: float) -> None:
        self.made[found.status] = self.made.get(found.status, 0) + 1
        self.final += found.status in FINAL
        self._failures = self._failures + 1 if found.status == "failed" else 0
        self._took += took
        self._expected += foreseen
        self.dollars += took * point.task.workers * self.campaign.dollars_per_worker_hour / HOUR

    def _progress(self, point: Point, found: Measurement, open_: Sequence[Point]) -> Progress:
        ahead = outlook(self.campaign, open_)
        done = self.before + sum(self.made.values())
        return Progress(
            point, found, done, len(self.campaign.points), ahead.seconds * self._pace, self.dollars
        )

    @property
    def _pace(self) -> float:
        """Seconds that runs took for each second foreseen, so far."""
        return self._took / self._expected if self._expected else 1.0

    def _cannot_begin(self, group: Sequence[Point]) -> str:
        """Return why a group is not begun: its first run would not end within the budget."""
        first = outlook(self.campaign, group[:1])
        budget, spent = self.campaign.budget, self.seconds
        if budget.seconds is not None and spent + first.seconds * self._pace > budget.seconds:
            return f"the next run would pass the time of the budget ({budget.seconds:,.0f} s)"
        if (
            budget.dollars is not None
            and self.dollars + first.dollars * self._pace > budget.dollars
        ):
            return f"the next run would pass the money of the budget (${budget.dollars:,.2f})"
        return ""

    def _must_stop(self, open_: Sequence[Point]) -> str:
        budget = self.campaign.budget
        if not open_:
            return ""
        if self._failures >= MOST_FAILURES_IN_A_ROW:
            return f"{self._failures} runs failed one after the other"
        if budget.seconds is not None and self.seconds >= budget.seconds:
            return f"the time of the budget ({budget.seconds:,.0f} s) is used"
        if budget.dollars is not None and self.dollars >= budget.dollars:
            return f"the money of the budget (${budget.dollars:,.2f}) is used"
        return ""
