"""Searching: a searcher chooses among a campaign's configurations; each trial is a run made now, and is kept."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from forerun.advisor.measuring import Profiling
from forerun.arrays import FloatArray
from forerun.errors import RequestError
from forerun.measure.campaign import (
    MOST_FAILURES_IN_A_ROW,
    Budget,
    Campaign,
    Point,
    carry_out,
    price_per_second,
)
from forerun.measure.runner import TaskRunner
from forerun.predictors.convergence.predictor import Convergence
from forerun.search.following import BlackBox, Trail, follow, json_of, searcher_of, warnings_of
from forerun.search.landscape import Goal, Landscape
from forerun.search.searchers import Choice
from forerun.tables import COLUMNS, Jobs, Runs, Table
from forerun.tables.own_columns import read_as
from forerun.tables.table import OwnColumns
from forerun.units import counted, format_seconds
from forerun.workloads.rows import runs_from_table

if TYPE_CHECKING:
    from forerun.advisor.advisor import Advisor

_FOLLOWS = "micro_batch"  # from workers and batch, and is no choice of its own


class LiveTrials(BlackBox):
    """The configurations of a campaign, each measured when it is asked for and kept at once.

    A trial is stopped, and paid for, at the goal's deadline, start included, or at what is left of the
    campaign's budget of time and money. What the store has of the campaign is known from the start.

    Args:
        profiling: the campaign with its runner and its store.
        width: how many trials may be under way at once; only Ray places several.
        retry: ask again for configurations that failed in an earlier sitting.
        known: earlier runs. Where they say how many samples the workload needs until its target at each
            batch, a configuration's time is that of a whole training, else of equal work.

    Raises:
        RequestError: no configuration can be run, or the cost is the goal and there is no price.
    """

    def __init__(
        self, profiling: Profiling, goal: Goal, width: int = 1, retry: bool = False,
        known: Runs | None = None,
    ) -> None:  # fmt: skip
        self.campaign, self.runner = profiling.campaign, profiling.runner
        self._profiling, self._retry, self.width = profiling, retry, width
        groups: dict[str, list[Point]] = {}
        for point in self.campaign.points:
            groups.setdefault(replace(point, repeat=0).key, []).append(point)
        title = f"searching the space {self.campaign.name!r}"
        if len(groups) < 2:
            raise RequestError(title, "it is one configuration", "vary more, or: forerun profile")
        if width > 1 and self.runner.name != "ray":
            raise RequestError(
                f"{width} trials at once with the {self.runner.name} runner", "they would share its cores",
                "leave out --parallel, or add --on ray",
            )  # fmt: skip
        states = profiling.ledger.states()
        self.refused: Counter[str] = Counter()
        self._points: list[list[Point]] = []
        for points in groups.values():
            task = points[0].task
            made = all(point.key in states for point in points)
            if why := "" if made else self.runner.refuses(task) or self.runner.lacks(task):
                self.refused[why] += 1
            else:
                self._points.append(points)
        if not self._points:
            most = "; ".join(f"{counted(n, 'trial')}: {why}" for why, n in self.refused.items())
            todo = "change the space, or let another runner or cluster carry it out (--on)"
            raise RequestError(title, f"no trial of it can be made ({most})", todo)
        tasks = [points[0].task for points in self._points]
        prices = np.array([price_per_second(self.campaign, task) * 3600 for task in tasks])
        if goal.minimize == "cost" and not (prices > 0).all():
            raise RequestError(
                f"{title} for the least cost", "a worker has no price",
                "give --price USD (of a worker-hour), or price_usd_per_worker_hour in the file, a number or"
                " one for each instance_type; or --minimize time",
            )  # fmt: skip
        asked = [
            {k: v for k, v in points[0].asked.items() if k != _FOLLOWS} for points in self._points
        ]
        own = tuple(dict.fromkeys(name for row in asked for name in row if name not in COLUMNS))
        rows = read_as(Table.from_rows(asked, self.campaign.name), OwnColumns(own))
        land = Landscape(rows, np.where(prices > 0, prices, np.nan))
        self._work, quantity = _work(tasks)
        self._passes: FloatArray = np.ones(len(tasks))  # over the dataset
        super().__init__(land, goal, quantity)
        if known is not None:
            self._train_to_target(known, tasks)
        # Seconds of all runs of each, their start included, and why it did not end well.
        self.lasted: FloatArray = np.zeros(len(self))
        self.reason: NDArray[np.object_] = np.full(len(self), "", dtype=object)
        self._begun_at = time.monotonic()
        self._before = profiling.ledger.spent()
        self._ended: queue.SimpleQueue[tuple[int, BaseException | None]] = queue.SimpleQueue()
        self._reserved: dict[int, float] = {}  # dollars that trials under way may still take
        self._running: list[int] = []
        self._failures = 0
        self._learn()
        self.made = [Choice(i, "made before") for i in self._order if self._is_final(i, states)]

    @property
    def notes(self) -> list[str]:
        """What to know before the search: trials that cannot be made, and what failed before."""
        found = [f"{counted(n, 'trial')} cannot be made: {why}" for why, n in self.refused.items()]
        if failed := sum(self.status[choice.at] != "ok" for choice in self.made):
            again = "not asked for again (--retry asks for failed ones)"
            found.append(f"{counted(failed, 'configuration')} did not end well before: {again}")
        return [*self.campaign.notes, *found, *filter(None, [self._target_note])]

    _target_note = (
        ""  # why times are not those of a training to its target, or what is doubtful of it
    )

    def _train_to_target(self, known: Runs, tasks: list[Any]) -> None:
        """Let work be the steps until the target, where runs say how many samples it takes."""
        if not Convergence.speaks_of(known):
            self._target_note = "times are not those until a target: no known run states samples_to_target and its batch"
            return
        samples, reasons, doubts = Convergence().fit(known).samples(self.space)
        if not np.isfinite(samples[:, 1]).all():
            why = next(reason for reason in reasons.tolist() if reason)
            self._target_note = f"times are not those until a target: {why}"
            return
        self._target_note = "; ".join(dict.fromkeys(filter(None, doubts.tolist())))
        batches, sizes = (
            np.array([getattr(task, name) for task in tasks], dtype=np.float64)
            for name in ("global_batch", "dataset_size")
        )
        self.samples, self.are_foreseen = samples[:, 1], True
        self._work, self.quantity = self.samples / batches, "training to its target"
        with np.errstate(divide="ignore"):
            self._passes = np.where(sizes > 0, self.samples / sizes, np.nan)

    def most_dollars(self, runs: int) -> float:
        """Return what so many more trials may cost at most, by their limits of time."""
        limit = self.goal.deadline_seconds
        times = [sum(min(p.task.timeout_seconds, limit) for p in some) for some in self._points]
        costs = np.sort(np.nan_to_num(np.array(times) * self.land.dollars_per_second))
        return float(costs[::-1][: max(runs, 0)].sum())

    @property
    def dollars(self) -> FloatArray:
        """What the runs of each took, (n,)."""
        return np.where(self.lasted > 0, self.lasted * self.land.dollars_per_second, 0.0)

    @property
    def spent_seconds(self) -> float:
        """Time of the whole search: the runs of earlier sittings, and this one."""
        return self._before.seconds + time.monotonic() - self._begun_at

    @property
    def spent_dollars(self) -> float:
        """What all runs of the campaign cost, also those that are no trial of this search."""
        return self._profiling.ledger.spent().dollars

    @cached_property
    def space(self) -> Jobs:
        """The jobs, each configuration once."""
        prices = self.land.table.with_columns(price_usd_per_hour=self.land.dollars_per_hour)
        return runs_from_table(prices, self._profiling.catalog).jobs

    def ask(self, jobs: Jobs) -> Runs:
        """Return the known runs of jobs of the space. Raises as `places`."""
        at = self.places(jobs)
        found = {"epoch_time_s": self.seen(at).seconds, "status": self.status[at]}
        return Runs(self.space.take(at), Table(found, len(at)))

    def has_room(self, at: int) -> bool:
        """Return whether the cluster has room for a trial beside those under way."""
        tasks = [self._points[i][0].task for i in (*self._running, at)]
        return not self.runner.lacks(*tasks)

    def begin(self, at: int) -> str:
        """Begin the trial of a configuration, or return which limit stops the search."""
        budget, rate = self.campaign.budget, float(self.land.dollars_per_second[at])
        shortest = min(self.lasted[self.lasted > 0].tolist(), default=0.0)
        caps = [self.goal.deadline_seconds]
        if budget.seconds is not None:
            left = budget.seconds - self.spent_seconds
            if left <= shortest:
                return _used_up("time", left, budget.seconds, shortest, format_seconds)
            caps.append(left)
        if budget.dollars is not None and rate > 0:
            money = budget.dollars - self.spent_dollars - sum(self._reserved.values())
            if money <= shortest * rate:
                return _used_up("money", money, budget.dollars, shortest * rate, "${:.2g}".format)
            # Trials that are under way at once share what is left.
            self._reserved[at] = money / (self.width - len(self._reserved))
            caps.append(self._reserved[at] / rate)
        if self._failures >= MOST_FAILURES_IN_A_ROW:
            return f"{self._failures} trials failed one after the other"
        self._running.append(at)
        self._next = (at, min(caps) / len(self._points[at]))
        if self.width > 1:
            threading.Thread(target=self._run, args=self._next, daemon=True).start()
        return ""

    def ended(self) -> int:
        """Carry the trial out, or wait for one of those under way, and return its configuration."""
        if self.width == 1:
            self._run(*self._next)
        at, error = self._ended.get()
        if error is not None:
            raise error
        self._running.remove(at)
        self._reserved.pop(at, None)
        self._learn()
        self._failures = self._failures + 1 if self.status[at] == "failed" else 0
        return at

    def _run(self, at: int, most_seconds: float) -> None:
        try:
            points = tuple(self._limited(point, most_seconds) for point in self._points[at])
            one = replace(self.campaign, points=points, budget=Budget())
            carry_out(one, self.runner, self._profiling.ledger, retry=self._retry)
            self._ended.put((at, None))
        except BaseException as error:  # noqa: BLE001  (the search has it, whatever it is)
            self._ended.put((at, error))

    def _limited(self, point: Point, most_seconds: float) -> Point:
        limit = min(point.task.timeout_seconds, most_seconds)
        return replace(point, task=point.task.with_(timeout_seconds=limit))

    def _is_final(self, at: int, states: Mapping[str, Any]) -> bool:
        ends = []
        for point in self._points[at]:
            task = self._limited(point, self.goal.deadline_seconds).task
            state = states.get(point.key)
            ends.append(state.status if state and state.is_final(task, self._retry) else "")
        # One repeat that did not end well is enough to leave a configuration.
        return all(ends) or any(end not in ("", "ok") for end in ends)

    def _learn(self) -> None:
        """Take what the store has of the configurations: the median of repeats that ended well."""
        table = self._profiling.store.table(campaign=self.campaign.name, provenance=True)
        place = {point.key: i for i, points in enumerate(self._points) for point in points}
        at = np.array([place.get(key, -1) for key in table.texts("run_point")], dtype=np.int64)
        step, epoch = table.numbers("step_time_s"), table.numbers("epoch_time_s")
        status, notes = table.texts("status"), table.texts("note")
        times = np.where(np.isfinite(epoch), epoch * self._passes[at], step * self._work[at])
        lasted = np.nan_to_num(table.numbers("run_time_s"))
        self._order = [i for i in dict.fromkeys(at.tolist()) if i >= 0]
        for i in self._order:
            rows = np.flatnonzero(at == i)
            ok = rows[(status[rows] == "ok") & np.isfinite(times[rows])]
            self.lasted[i] = float(lasted[rows].sum())
            last = rows[-1]
            self.status[i] = "ok" if len(ok) else str(status[last])
            self.reason[i] = "" if len(ok) else str(notes[last])
            self.seconds[i] = float(np.median(times[ok])) if len(ok) else float(times[last])


def notes_of(trail: Trail, box: LiveTrials) -> dict[str, list[str]]:
    """Return what to know of a search by its heading: notes, trials that did not end well, warnings."""
    failed = [
        f"{box.land.words(int(i))}: {box.status[i]}, {box.reason[i]}; it is not asked for again"
        + (" under these limits" if box.status[i] == "timeout" else "")
        for i in trail.at if box.status[i] != "ok"
    ]  # fmt: skip
    warnings = warnings_of(box, "leave the others out of the space")
    return {"notes": box.notes, "did not end well": failed, "warnings": warnings}


def live_json(trail: Trail, box: LiveTrials, notes: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return a search by runs made now, with its `notes_of`, as JSON data."""
    return json_of(
        [(trail, {})], campaign=box.campaign.name, spent_seconds=box.spent_seconds,
        spent_dollars=box.spent_dollars, warnings=[line for part in notes.values() for line in part],
    )  # fmt: skip


def with_limits(
    campaign: Campaign, price: float | None = None, seconds: float | None = None,
    dollars: float | None = None,
) -> Campaign:  # fmt: skip
    """Return a campaign with a price of a worker-hour and limits of the whole search, None as it has them."""
    own = campaign.budget
    budget = Budget(seconds or own.seconds, own.dollars if dollars is None else dollars)
    if price is not None:
        campaign = replace(campaign, dollars_per_worker_hour=price, instance_prices={})
    return replace(campaign, budget=budget)


def search_live(
    space: str | Path | Mapping[str, Any], runner: TaskRunner | None = None, store: str = "",
    searcher: str = "bayesian", minimize: str = "cost", deadline_seconds: float = math.inf,
    max_runs: int = 30, price: float | None = None, within_seconds: float | None = None,
    budget: float | None = None, parallel: int = 1, seed: int = 0, retry: bool = False,
    known: Runs | None = None, on_run: Callable[[Trail], None] = lambda trail: None,
    advisor: Advisor | None = None, stops: bool = True,
) -> Trail:  # fmt: skip
    """Search the configurations of a campaign (file or fields) by runs made now; each is kept at once.

    Args:
        price: dollars of a worker-hour; None, also for the limits below, is what the campaign says.
        within_seconds, budget: limits of the whole search, in all its sittings.
        parallel, retry, known: see `LiveTrials`; some searchers read `known` too. on_run: gets the trail so far after each trial.
        advisor: describes the runs. stops: whether the searcher's stopping rule counts.

    Raises:
        RequestError: no trial can be made, or the cost is the goal and there is no price.
    """
    from forerun.advisor.advisor import Advisor as UsualAdvisor
    from forerun.measure.campaign_file import campaign, read_campaign
    from forerun.registry import load
    from forerun.store import open_store

    asked = campaign(space) if isinstance(space, Mapping) else read_campaign(space)
    asked = with_limits(asked, price, within_seconds, budget)
    carrier = runner or load("runners", asked.runner)()
    with open_store(store) as opened, opened.campaigns.alone(asked.name):
        profiling = Profiling(asked, carrier, opened, advisor or UsualAdvisor())
        box = LiveTrials(profiling, Goal(minimize, deadline_seconds), parallel, retry, known)
        chooser, _ = searcher_of(searcher, box, seed, stops, known)
        with carrier.started():
            return follow(chooser, box, max_runs, made=box.made, on_run=on_run)


def _work(tasks: list[Any]) -> tuple[FloatArray, str]:
    """Return the steps of each task that do equal work, and what they are in words."""
    batches = np.array([task.global_batch for task in tasks], dtype=np.float64)
    sizes = np.array([task.dataset_size for task in tasks], dtype=np.float64)
    if (sizes > 0).all():
        return np.ceil(sizes / batches), "pass over the dataset"
    if np.ptp(batches) == 0:
        return np.ones(len(tasks)), "step"
    return batches.max() / batches, f"pass over {batches.max():,.0f} samples"


def _used_up(what: str, left: float, most: float, least: float, write: Any) -> str:
    if left <= 0:
        return f"the {what} of the search ({write(most)} in all sittings) is used"
    return f"{write(left)} of {write(most)} is left; the shortest trial would take {write(least)}"
