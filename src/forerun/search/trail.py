"""Trail: a search carried out: each run asked for, what it cost, the best so far, why it stopped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.contracts import Searcher
from forerun.search.choosing import Choice, Choosing
from forerun.search.replay import Replay
from forerun.tables import Runs

NEAR = 1.10  # a run within 10 % of the best of all has found it


@dataclass(frozen=True)
class Trail:
    """What one search did on a replayed table.

    Attributes:
        replay: the black box.
        searcher: its name.
        seed: what it drew with.
        at: the configurations asked for, in order, (m,).
        reasons: why each was asked for.
        stopped: why no more was asked for.
    """

    replay: Replay
    searcher: str
    seed: int
    at: IntArray
    reasons: tuple[str, ...]
    stopped: str

    def __len__(self) -> int:
        return len(self.at)

    @property
    def seconds(self) -> FloatArray:
        """What each run took, until it ended or was stopped, (m,); NaN where none is stated."""
        return self.replay.seen(self.at).seconds

    @property
    def late(self) -> BoolArray:
        """Which went on until the deadline or beyond, (m,)."""
        return self.replay.seen(self.at).late

    @property
    def status(self) -> list[str]:
        """How each ended in the table: ok, timeout, oom or failed."""
        return [str(s) for s in self.replay.runs.status[self.at]]

    @property
    def spent(self) -> FloatArray:
        """Dollars spent after each run, (m,)."""
        return np.cumsum(self.replay.dollars[self.at])

    @property
    def best_so_far(self) -> FloatArray:
        """The least cost or time that met the deadline after each run, (m,); infinite before one."""
        if not len(self):
            return np.zeros(0)
        return np.minimum.accumulate(self.replay.values[self.at])

    @property
    def recommended(self) -> int:
        """The best measured configuration within the deadline, -1 where none was found."""
        if not len(self) or not np.isfinite(self.best_so_far[-1]):
            return -1
        return int(self.at[np.argmin(self.replay.values[self.at])])

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
    made: Sequence[Choice] = (), told: Callable[[Choice], None] = lambda choice: None,
) -> Trail:  # fmt: skip
    """Return the trail of a searcher on a replayed table.

    Args:
        searcher: one of ours, or a guest that keeps the protocol.
        replay: the black box.
        max_runs: it is stopped after so many.
        until_near: stop as soon as a run is within 10 % of the oracle, which no searcher can know:
            for counting.
        made: choices of an earlier call, which are gone on from.
        told: is called with each new choice once its run is made.
    """
    at = [choice.at for choice in made]
    reasons = [choice.reason for choice in made]
    stopped = f"{max_runs} runs are made, the most that it may ask for"
    while len(at) < max_runs:
        choices = _asked(searcher, replay, at)
        if choices[0].stops:
            stopped = choices[0].reason
            break
        for choice in choices[: max_runs - len(at)]:
            at.append(choice.at)
            reasons.append(choice.reason)
            told(choice)
        if until_near and replay.values[at].min() <= NEAR * replay.oracle:
            stopped = "within 10 % of the oracle"
            break
    seed = int(getattr(searcher, "seed", 0))
    return Trail(replay, searcher.name, seed, np.array(at, np.int64), tuple(reasons), stopped)


def _asked(searcher: Searcher, replay: Replay, at: list[int]) -> list[Choice]:
    """Return what a searcher asks for next: at least one choice, the first of which may stop."""
    places = np.array(at, dtype=np.int64)
    if isinstance(searcher, Choosing):
        return [searcher.choose(replay.land, replay.seen(places))]
    runs: Runs | None = replay.ask(replay.space.take(places)) if at else None
    jobs = searcher.suggest(replay.space, runs)
    found = [Choice(i, "") for i in replay.places(jobs).tolist() if i not in at]
    return found or [Choice(-1, "it asks for no further run")]
