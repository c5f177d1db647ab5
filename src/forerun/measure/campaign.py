"""Campaign: runs to make, carried out within time and money; each result is kept at once."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.errors import RequestError
from forerun.measure.measurement import Measurement
from forerun.measure.pace import Band, Pace
from forerun.measure.runner import TaskRunner
from forerun.measure.task import Task, sharing
from forerun.tables import COLUMNS, Table, configurations
from forerun.units import SECONDS_PER_HOUR, counted

# Seconds from the start of the processes to a first step, before any was measured: imports and the
# meeting of the workers. Ray's own start under a CPU share took 20-30 s.
STARTUP_SECONDS = {"local": 8.0, "ray": 25.0}
USUAL_STEP_SECONDS = 0.2  # where no step time is forecast
# A run that failed may have met a bad moment, and is tried again when the campaign is resumed; one
# that ran out of memory is not, and one that ran out of time only where it is given more.
FINAL = ("ok", "oom", "timeout")
_PRICE = "price_usd_per_hour"  # another price makes no other configuration
MOST_FAILURES_IN_A_ROW = 5  # then the campaign stops: the next run would fail too


@dataclass(frozen=True)
class Point:
    """One run to make; `asked` are the columns of the runs table by which it will be found."""

    task: Task
    asked: Mapping[str, object]
    repeat: int = 0

    @cached_property
    def key(self) -> str:
        """The point's name in a store: a hash of its content, without how long is measured."""
        content = {"task": self.task.key, "asked": dict(self.asked), "repeat": self.repeat}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    def __str__(self) -> str:
        task = self.task
        size = f", {task.dataset_size:,} samples" if task.dataset_size else ""
        cpus = f", {task.cpus_per_worker:g} CPUs each" if task.cpus_per_worker else ""
        again = f", repeat {self.repeat + 1}" if self.repeat else ""
        name = self.asked.get("workload", task.entry)
        workers = counted(task.workers, "worker")
        return f"{name} on {workers}, batch {task.global_batch}{size}{cpus}{again}"


@dataclass(frozen=True)
class Budget:
    """Most that a campaign may take in all sittings; None is no limit."""

    seconds: float | None = None
    dollars: float | None = None


@dataclass(frozen=True)
class Campaign:
    """Distinct points in the order in which they are run; with `passes`, repeats share no start."""

    name: str
    points: tuple[Point, ...]
    budget: Budget = Budget()
    dollars_per_worker_hour: float = 0.0
    instance_prices: Mapping[str, float] = field(default_factory=dict)  # of a worker-hour, by type
    runner: str = "local"
    notes: tuple[str, ...] = ()
    spec: Mapping[str, Any] = field(default_factory=dict)
    passes: bool = False

    def __post_init__(self) -> None:
        asked = f"campaign {self.name!r}"
        if not self.points:
            raise RequestError(asked, "it has no run to make", "vary more, or leave_out less")
        if len({point.key for point in self.points}) < len(self.points):
            raise RequestError(asked, "two points are equal", "give each its own name or repeat")

    def dollars_per_hour(self, workers: float, instance_type: str = "") -> float:
        """Return what workers on machines of a type cost an hour."""
        return workers * self.instance_prices.get(instance_type, self.dollars_per_worker_hour)

    def groups(self, points: Sequence[Point] | None = None) -> list[list[Point]]:
        """Return points (None: all) in groups that one start of processes can carry out."""
        parts: dict[int, list[Point]] = {}
        for point in self.points if points is None else points:
            parts.setdefault(point.repeat if self.passes else 0, []).append(point)
        return [[part[i] for i in at] for part in parts.values() for at in sharing([point.task for point in part])]  # fmt: skip


@dataclass(frozen=True)
class CampaignCost:
    """What points are expected to take, and at most by the caps of each run."""

    seconds: float
    most_seconds: float
    dollars: float
    most_dollars: float
    runs: int
    starts: int


def expected_cost(
    campaign: Campaign, points: Sequence[Point], step_seconds: Mapping[str, float] = {},
    started: bool = False,
) -> CampaignCost:  # fmt: skip
    """Return what points are expected to take, by the step times that are forecast for their keys."""
    groups = campaign.groups(points)
    startup = STARTUP_SECONDS[campaign.runner]
    likely, most = [], []
    for i, group in enumerate(groups):
        start = 0.0 if started and not i else startup
        tasks = [(p.task, step_seconds.get(p.key, USUAL_STEP_SECONDS)) for p in group]
        likely.append(start + sum(_task_seconds(task, seconds) for task, seconds in tasks))
        most.append(max(likely[-1], start + sum(task.timeout_seconds for task, _ in tasks)))
    prices = [price_per_second(campaign, group[0].task) for group in groups]
    return CampaignCost(
        sum(likely), sum(most), float(np.dot(likely, prices)), float(np.dot(most, prices)),
        len(points), len(groups),
    )  # fmt: skip


def price_per_second(campaign: Campaign, task: Task) -> float:
    """Return what a second of a task costs in dollars."""
    return campaign.dollars_per_hour(task.workers, task.instance_type) / SECONDS_PER_HOUR


def time_left(
    campaign: Campaign, points: Sequence[Point], step_seconds: Mapping[str, float], pace: Pace, spent: float,
    started: bool = False,
) -> Band | None:  # fmt: skip
    """Return how long points will take, as quantiles, by how long others took. spent: seconds of the budget."""
    cost = expected_cost(campaign, points, step_seconds, started)
    sizes = [_task_seconds(p.task, step_seconds.get(p.key, USUAL_STEP_SECONDS)) for p in points]
    share = float(np.square(sizes).sum() / max(sum(sizes), 1e-9) ** 2)
    rest = (campaign.budget.seconds or math.inf) - spent
    return pace.left(cost.seconds, share, min(cost.most_seconds, rest))


def _task_seconds(task: Task, step_seconds: float) -> float:
    steps = task.steps
    if steps.epochs:
        each = max(1.0, task.dataset_size / task.global_batch)
        return float(steps.epochs * each * step_seconds)
    # Half way between the fewest and the most steps: how noisy steps are is not known yet.
    count = steps.warmup + math.sqrt(steps.least * steps.most)
    return min(count * step_seconds, steps.seconds + steps.warmup * step_seconds)


@dataclass(frozen=True, slots=True)
class RunState:
    """How a point that was run ended; `limit_seconds` is the limit that ended it, 0 where none did."""

    status: str
    limit_seconds: float = 0.0

    @staticmethod
    def of(task: Task, found: Measurement) -> RunState:
        """Return the state that a run leaves its point in."""
        if found.status == "timeout":
            return RunState(found.status, task.timeout_seconds)
        return RunState(found.status, task.hang_seconds if found.hangs else 0.0)

    def is_final(self, task: Task, retry: bool) -> bool:
        """Whether the point need not be run again: what ended by a limit gets a larger one."""
        if self.status == "timeout":
            return not 0 < self.limit_seconds < task.timeout_seconds
        if self.status == "failed" and self.limit_seconds:
            return not retry and 0 < task.hang_seconds <= self.limit_seconds
        return self.status in FINAL or (self.status == "failed" and not retry)


@dataclass(frozen=True, slots=True)
class Spent:
    """What all runs of a campaign took so far."""

    seconds: float = 0.0
    dollars: float = 0.0


class CampaignResults(Protocol):
    """Where a campaign's results are kept, each as soon as it is there."""

    def begin(self) -> None:
        """Make it ready to keep results."""

    def states(self) -> Mapping[str, RunState]:
        """Return the state of every point that was run, by its key."""

    def spent(self) -> Spent:
        """Return what all runs took that were kept, in every sitting."""

    def keep(self, point: Point, measurement: Measurement) -> None:
        """Keep one result; once this returns it is not lost."""


@dataclass(frozen=True)
class CampaignProgress:
    """How far a campaign is after one run; `dollars` were paid in this sitting. left: quantiles of the seconds to come."""

    point: Point
    measurement: Measurement
    done: int
    total: int
    seconds_left: float
    dollars: float
    left: Band | None = None


@dataclass(frozen=True)
class CampaignOutcome:
    """How a sitting of a campaign ended: runs by status, `refused` points with reasons, why it `stopped` early."""

    made: Mapping[str, int]
    before: int
    left: int
    refused: Mapping[str, str]
    stopped: str
    seconds: float
    dollars: float


def still_open(campaign: Campaign, results: CampaignResults, retry: bool = True) -> list[Point]:
    """Return the points without a final result, in order; failed ones among them with `retry`."""
    known = results.states()
    return [
        point for point in campaign.points
        if (state := known.get(point.key)) is None or not state.is_final(point.task, retry)
    ]  # fmt: skip


def carry_out(
    campaign: Campaign, runner: TaskRunner, results: CampaignResults,
    on_run: Callable[[CampaignProgress], None] = lambda progress: None, retry: bool = True,
    step_seconds: Mapping[str, float] = {}, prior: float = math.nan,
) -> CampaignOutcome:  # fmt: skip
    """Run what is open of a campaign within its budget, keeping each result at once. Raises RequestError.

    prior: the log standard deviation of step_seconds, the forecasts; NaN where some points have none.
    """
    todo = still_open(campaign, results, retry)
    refused = {p.key: why for p in todo if (why := runner.refuses(p.task)) is not None}
    ready = {point.key: point for point in todo if point.key not in refused}
    check_any(campaign, runner, len(ready), list(refused.values()))
    results.begin()
    sitting = _Sitting(campaign, results.spent(), step_seconds, Pace(prior))
    before, total = len(campaign.points) - len(todo), len(campaign.points)
    made: Counter[str] = Counter()
    failures, stopped = 0, ""
    for group in campaign.groups(list(ready.values())):
        started, left = False, {point.key: point for point in group}
        with closing(runner.each([point.task for point in group])) as runs:  # type: ignore[type-var]
            while left and not stopped:
                if stopped := sitting.over_budget(next(iter(left.values())), started):
                    break
                began = time.monotonic()
                position, found = next(runs)
                point = group[position]
                results.keep(point, found)
                sitting.count(point, time.monotonic() - began, started)
                made[found.status] += 1
                failures = failures + 1 if found.status == "failed" else 0
                del left[point.key], ready[point.key]
                # After a run that did not end well, the rest of the group needs new processes.
                started = bool(left) and found.status == "ok"
                ahead, _ = sitting.expected(list(ready.values()), started)
                spent = sitting.spent.seconds + sitting.seconds
                band = time_left(campaign, [*ready.values()], step_seconds, sitting.pace, spent, started)  # fmt: skip
                done = before + made.total()
                on_run(CampaignProgress(point, found, done, total, ahead, sitting.dollars, band))
                if ready and failures >= MOST_FAILURES_IN_A_ROW:
                    stopped = f"{failures} runs failed one after the other"
        if stopped:
            break
    final = sum(made[status] for status in FINAL)
    return CampaignOutcome(made, before, len(todo) - final, refused, stopped, sitting.seconds, sitting.dollars)  # fmt: skip


def check_any(campaign: Campaign, runner: TaskRunner, ready: int, reasons: Sequence[str]) -> None:
    """Raise RequestError where a runner refuses, and nothing is ready that it does not refuse."""
    if reasons and not ready:
        asked = f"campaign {campaign.name!r} with the runner {runner.name!r}"
        todo = "change what the campaign asks for, or let another runner carry it out (--on)"
        raise RequestError(asked, reasons[0], todo)


class _Sitting:
    def __init__(self, campaign: Campaign, spent: Spent, step_seconds: Mapping[str, float], pace: Pace) -> None:  # fmt: skip
        self._campaign, self.spent, self._step_seconds, self.pace = campaign, spent, step_seconds, pace  # fmt: skip
        self._began = time.monotonic()
        self.dollars = 0.0
        self._forecast = self._took = 0.0  # seconds of the runs so far

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def count(self, point: Point, took: float, started: bool) -> None:
        self._took += took
        cost = expected_cost(self._campaign, [point], self._step_seconds, started)
        self._forecast += cost.seconds
        self.pace.count(took, cost.seconds)
        self.dollars += took * price_per_second(self._campaign, point.task)

    def expected(self, points: Sequence[Point], started: bool) -> tuple[float, float]:
        cost = expected_cost(self._campaign, points, self._step_seconds, started)
        pace = self._took / self._forecast if self._forecast else 1.0
        return cost.seconds * pace, cost.dollars * pace

    def over_budget(self, point: Point, started: bool) -> str:
        seconds, dollars = self.expected([point], started)
        budget, spent = self._campaign.budget, self.spent
        for what, used, more, limit, form in (
            ("time", spent.seconds + self.seconds, seconds, budget.seconds, "{:,.0f} s"),
            ("money", spent.dollars + self.dollars, dollars, budget.dollars,
             "${:,.2f}"),
        ):  # fmt: skip
            if limit is not None and (used >= limit or used + more > limit):
                whole = f"the {what} of the budget ({form.format(limit)} for all sittings)"
                return f"{whole} is used" if used >= limit else f"the next run would pass {whole}"
        return ""


def join_repeats(table: Table) -> Table:
    """Return one row a configuration (m,): medians over its ok runs, and the deviation `std_s` between repeats."""
    if not len(table):
        return table
    priceless = {name: column for name, column in table.columns.items() if name != _PRICE}
    groups = configurations(replace(table, columns=priceless))[1]
    ok = np.isin(table.texts("status"), ("ok", ""))
    used = np.flatnonzero(ok | ~np.isin(groups, groups[ok]))
    members = [used[groups[used] == group] for group in range(int(groups.max()) + 1)]
    first = np.array([rows[0] for rows in members])

    def figure(values: FloatArray, of: Callable[[FloatArray], Any], least: int) -> FloatArray:
        known = [values[rows][np.isfinite(values[rows])] for rows in members]
        return np.array([of(row) if len(row) >= least else np.nan for row in known], dtype=float)

    columns: dict[str, NDArray[Any]] = {}
    for name, column in table.columns.items():
        schema = COLUMNS.get(name)
        numbers = schema is not None and schema.group == "measured" and column.dtype != object
        columns[name] = figure(column, np.median, 1) if numbers else column[first]
    columns["repeats"] = np.array([float(len(rows)) for rows in members])
    columns["std_s"] = figure(table.numbers("step_time_s"), lambda x: np.std(x, ddof=1), 2)
    return Table(columns, len(first), own=table.own)
