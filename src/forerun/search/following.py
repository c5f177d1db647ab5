"""Following: one loop carries every search, on a box that answers from a table or by a run made now."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun import registry
from forerun.arrays import FloatArray, IntArray
from forerun.contracts import Searcher
from forerun.errors import RequestError
from forerun.search.bayesian import LEAST_RUNS
from forerun.search.landscape import Goal, Landscape, ObservedRuns, landscape_of, scattered
from forerun.search.searchers import Choice, Choosing
from forerun.tables import Jobs, Runs
from forerun.units import counted

# What decides how much there is to do: a search should be among ways to do the same.
_WORK = ("workload", "dataset", "dataset_size", "seq_len", "image_size")
NEAR = 1.10  # a run within 10 % of the best of all has found it


class BlackBox(ABC):
    """n distinct configurations, and what is known of the run of each.

    quantity: what is timed. seconds: (n,), a lower bound of a run that was stopped, NaN of none. status: (n,).
    samples: until the target of each, (n,), NaN of none; None where all do equally many. are_foreseen: they are known before a run.
    width: how many runs may be under way at once.
    """

    width = 1
    samples: FloatArray | None = None
    are_foreseen = False

    def __init__(self, land: Landscape, goal: Goal, quantity: str) -> None:
        self.land, self.goal, self.quantity = land, goal, quantity
        self.seconds: FloatArray = np.full(len(land), np.nan)
        self.status: NDArray[np.object_] = np.full(len(land), "", dtype=object)

    def __len__(self) -> int:
        return len(self.land)

    @property
    @abstractmethod
    def space(self) -> Jobs:
        """The jobs, each configuration once."""

    @property
    @abstractmethod
    def dollars(self) -> FloatArray:
        """What the run of each costs, (n,), 0 where there is none; NaN where there is no price."""

    def has_room(self, at: int) -> bool:
        """Return whether a configuration can run beside those under way."""
        return True

    @abstractmethod
    def begin(self, at: int) -> str:
        """Begin the run of a configuration, or return why the search has to stop instead."""

    @abstractmethod
    def ended(self) -> int:
        """Wait until a run that was begun has ended, and return its configuration."""

    @abstractmethod
    def ask(self, jobs: Jobs) -> Runs:
        """Return the known runs of jobs of the space, stopped as in a search. Raises as `places`."""

    def places(self, jobs: Jobs) -> IntArray:
        """Return where jobs stand in the space. Raises RequestError where one is not of it."""
        found = landscape_of(self.space).places(landscape_of(jobs))
        if -1 in found:
            raise RequestError(
                f"searching for job {found.index(-1)}", "no run of it is known, nor can be made",
                "suggest jobs of the space alone",
            )  # fmt: skip
        return np.array(found, dtype=np.int64)

    @property
    def unlike(self) -> tuple[str, ...]:
        """The columns by which configurations do different work: their times are no rivals."""
        work = (*_WORK, "global_batch") if self.quantity == "step" else _WORK
        return tuple(name for name in work if name in self.land.varied)

    @property
    def values(self) -> FloatArray:
        """What is minimised of each, dollars or seconds, (n,): infinite where it is not feasible."""
        values = self.seconds * self.goal.weights(self.land)
        return np.where(self.seen(np.arange(len(self))).feasible, values, np.inf)

    def seen(self, at: IntArray) -> ObservedRuns:
        """Return what a search has seen once it has asked for these, in this order."""
        limit, samples = self.goal.deadline_seconds, self.samples
        if samples is not None and not self.are_foreseen:
            samples = scattered(samples[at], at, len(self))
        return ObservedRuns.of(at, self.seconds[at], self.status[at], limit, samples)


@dataclass(frozen=True)
class Trail:
    """What one search did: the configurations that were run, in order, (m,), and why each."""

    box: BlackBox
    searcher: str
    seed: int
    at: IntArray
    reasons: tuple[str, ...]
    stopped: str

    def __len__(self) -> int:
        return len(self.at)

    @property
    def seen(self) -> ObservedRuns:
        """The runs, each until it ended or was stopped."""
        return self.box.seen(self.at)

    @property
    def spent(self) -> FloatArray:
        """Dollars spent after each run, (m,)."""
        return np.cumsum(self.box.dollars[self.at])

    @property
    def best_so_far(self) -> FloatArray:
        """The least cost or time that met the deadline after each run, (m,); infinite before one."""
        return np.minimum.accumulate(self.box.values[self.at])

    @property
    def recommended(self) -> int:
        """The best measured configuration within the deadline, -1 where none was found."""
        values = self.box.values[self.at]
        return int(self.at[np.argmin(values)]) if np.isfinite(values).any() else -1

    @property
    def regret(self) -> float:
        """How much worse what is recommended is than the best known: 0.1 is 10 %; infinite for none."""
        best = self.best_so_far
        found = len(best) and np.isfinite(best[-1])
        return float(best[-1] / self.box.values.min() - 1) if found else np.inf

    @property
    def runs_until_near(self) -> float:
        """Runs until one was within 10 % of the best known; infinite where none was."""
        best = self.box.values.min()
        near = np.flatnonzero(np.isfinite(self.best_so_far) & (self.best_so_far <= NEAR * best))
        return float(near[0] + 1) if len(near) else np.inf

    @property
    def dollars_until_near(self) -> float:
        """Dollars spent by then."""
        runs = self.runs_until_near
        return float(self.spent[int(runs) - 1]) if np.isfinite(runs) else np.inf


def follow(
    searcher: Searcher, box: BlackBox, max_runs: int, until_near: bool = False,
    made: Sequence[Choice] = (), on_run: Callable[[Trail], None] = lambda trail: None,
) -> Trail:  # fmt: skip
    """Return the trail of a searcher, one of ours or a plug-in's, on a box.

    until_near: stop within 10 % of the best known. made: choices of an earlier call. on_run: gets the trail so far after each run.
    """
    choices, queue, pending = list(made), list[Choice](), dict[int, Choice]()
    stopped, most = "", f"{max_runs} runs are made, the most that it may ask for"
    while True:
        while not stopped and len(pending) < box.width:
            if len(choices) + len(pending) >= max_runs:
                more = max((c.more for c in [*choices, *pending.values()][-1:]), default=0)
                short = f", {more} fewer than the first points that {searcher.name} goes by"
                stopped = most + short * (more > 0)
                break
            queue = queue or _asked(searcher, box, [c.at for c in choices], [*pending])
            if pending and not queue[0].stops and not box.has_room(queue[0].at):
                queue = []  # asked again once a run has ended, with what that shows
                break
            if queue[0].stops:
                # What is under way may change its mind.
                stopped = "" if pending else queue[0].reason
                queue = []
                break
            choice = queue.pop(0)
            stopped = box.begin(choice.at)
            if not stopped:
                pending[choice.at] = choice
        if not pending:
            break
        choices.append(pending.pop(box.ended()))
        on_run(_trail(searcher, box, choices, stopped))
        if until_near and min(box.values[c.at] for c in choices) <= NEAR * box.values.min():
            stopped = "within 10 % of the oracle"
    return _trail(searcher, box, choices, stopped)


def _trail(searcher: Searcher, box: BlackBox, choices: Sequence[Choice], stopped: str) -> Trail:
    places = np.array([choice.at for choice in choices], np.int64)
    reasons = tuple(choice.reason for choice in choices)
    return Trail(box, searcher.name, getattr(searcher, "seed", 0), places, reasons, stopped)


def searcher_of(
    name: str, box: BlackBox, seed: int = 0, stops: bool = True, known: Runs | None = None
) -> tuple[Searcher, str]:
    """Return a searcher of the box by its name, and why `auto` chose it, "" where it did not.

    known: runs of other workloads, for a searcher that reads them. Raises RequestError for no such name.
    """
    why = ""
    if name == "auto":
        # Up to there the stopping rule of `bayesian` would not end it before all are measured.
        name = "grid" if len(box) <= LEAST_RUNS else "bayesian"
        beyond = f"{counted(len(box), 'configuration')}, and it may stop from {LEAST_RUNS} runs on"
        few = f"{counted(len(box), 'configuration')} are few enough to measure all"
        why = f"{name}: {few if name == 'grid' else beyond}"
    kind = registry.load("searchers", name)
    if isinstance(kind, type) and issubclass(kind, Choosing):
        return kind(box.goal, seed, stops, **({"known": known} if reads_known(name) else {})), why
    return kind(), why  # a plug-in has the protocol alone


def reads_known(name: str) -> bool:
    """Whether a searcher reads runs of other workloads."""
    kind = None if name == "auto" else registry.load("searchers", name)
    return "known" in getattr(kind, "__dataclass_fields__", ())


def _asked(searcher: Searcher, box: BlackBox, done: Sequence[int], pending: Sequence[int]) -> list[Choice]:  # fmt: skip
    places = np.array(done, dtype=np.int64)
    if isinstance(searcher, Choosing):
        return [searcher.choose(box.land, box.seen(places), pending)]
    runs = box.ask(box.space.take(places)) if len(places) else None
    asked = box.places(searcher.suggest(box.space, runs)).tolist()
    new = [Choice(i, "") for i in asked if i not in done and i not in pending]
    again = f"it asks again for what was run: {box.land.words(asked[0])}" if asked else ""
    return new or [Choice(-1, again or "it asks for no further run")]


def warnings_of(box: BlackBox, todo: str) -> list[str]:
    """Return what may mislead: configurations that do different work."""
    if not box.unlike:
        return []
    unlike = f"the rows differ in {', '.join(box.unlike)}: not all do the same work"
    return [f"{unlike}, so the smallest job may win; {todo}"]


def json_of(searches: Sequence[tuple[Trail, dict[str, Any]]], **facts: Any) -> dict[str, Any]:
    """Return searches of one box, each with figures of its own, as JSON data; facts: of all."""
    trail = searches[0][0]
    box = trail.box
    return {
        "configurations": len(box), "minimize": box.goal.minimize, "times": box.quantity,
        "deadline_seconds": box.goal.deadline_seconds, "searcher": trail.searcher,
        "searches": [{**trail_json(one), **own} for one, own in searches], **facts,
    }  # fmt: skip


def trail_json(trail: Trail) -> dict[str, Any]:
    """Return one search as JSON data."""
    box, best, chosen, seen = trail.box, trail.best_so_far, trail.recommended, trail.seen
    runs = [
        {**configuration(box, int(i)), "status": str(box.status[i]), "seconds": float(seen.seconds[k]), "late": bool(seen.late[k]),
         "dollars": float(box.dollars[i]), "reason": trail.reasons[k], "best": float(best[k])}
        for k, i in enumerate(trail.at)
    ]  # fmt: skip
    return {
        "seed": trail.seed, "runs": runs, "stopped": trail.stopped,
        "dollars": float(trail.spent[-1]) if len(trail) else 0.0,
        "recommended": None if chosen < 0 else configuration(box, chosen),
    }  # fmt: skip


def configuration(box: BlackBox, i: int) -> dict[str, Any]:
    """Return what a configuration chose, its price, and it in words."""
    chosen = {name: box.land.table.row(i).get(name) for name in box.land.varied}
    return {
        "configuration": {name: value for name, value in chosen.items() if value is not None},
        "dollars_per_hour": float(box.land.dollars_per_hour[i]), "words": box.land.words(i),
    }  # fmt: skip
