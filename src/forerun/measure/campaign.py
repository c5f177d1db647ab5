"""Campaign: a set of runs to make, with what they may take; each point is known by what it asks."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from forerun.errors import RequestError
from forerun.measure.task import Task, sharing
from forerun.tables import Table

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
