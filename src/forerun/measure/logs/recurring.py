"""Recurring: what interrupts a job's steps again and again, and how much of it is to come."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forerun.measure.logs.series import FloatArray
from forerun.measure.logs.steady import Intervals

_EVEN = 0.25  # spread of the distances between pauses, over their mean: below, they are periodic
_CAME = 0.6  # of the pauses of a period that are due
_ALIKE = 0.35  # spread of the logs of pauses that are of one kind
# Jobs that will still begin to pause now and then, before any is seen; of their time left, the share
# that it takes: a log-normal law. Periods are taken to be log-uniform from a hundredth of a job on.
_PAUSING, _PAUSING_MORE, _SHORTEST = 0.4, 0.1, 0.01
_TAKEN, _TAKEN_SPREAD = 0.08, 1.2


@dataclass(frozen=True)
class Pauses:
    """Pauses of one kind.

    Attributes:
        kind: evaluation, checkpoint, or pause where the log does not say.
        at: counts of steps at which they came (k,); `seconds`: how long each took (k,).
        period: steps between them where they are periodic, else NaN.
    """

    kind: str
    at: FloatArray
    seconds: FloatArray
    period: float

    def to_come(
        self, done: float, total: float, rng: np.random.Generator, draws: int
    ) -> FloatArray:
        """Return the seconds of those still to come, a column of draws (draws,)."""
        number = self._numbers(done, total, rng, draws)
        size = rng.choice(self.seconds, (draws, len(self.seconds))).mean(axis=1)
        # One pause says little of how long the next will be.
        size *= np.exp(0.3 / np.sqrt(len(self.seconds)) * rng.standard_normal(draws))
        return np.asarray(number * size)

    def expected(self, done: float, total: float) -> float:
        """Return how many are still to come."""
        if np.isfinite(self.period):
            return float(np.floor((total - self.at[-1]) / self.period + 1e-6))
        return len(self.at) * (total - done) / max(done, 1e-9)

    def _numbers(
        self, done: float, total: float, rng: np.random.Generator, draws: int
    ) -> FloatArray:
        if np.isfinite(self.period):
            return np.full(draws, self.expected(done, total))
        rate = rng.gamma(len(self.at), 1.0 / max(done, 1e-9), draws)
        return rng.poisson(np.minimum(rate * (total - done), 1e6)).astype(np.float64)


def pauses_of(intervals: Intervals) -> tuple[Pauses, ...]:
    """Return a log's pauses by kind; those of which nothing is said by their lengths."""
    rows = np.flatnonzero(intervals.paused)
    kinds: dict[str, list[int]] = {}
    for i in rows:
        kinds.setdefault(intervals.kind(int(i)), []).append(int(i))
    found = list[Pauses]()
    for kind, members in kinds.items():
        groups = _alike(intervals, members) if kind == "pause" else [members]
        known = [_group(intervals, sorted(group), kind) for group in groups]
        found += [p for p in known if np.isfinite(p.period)]
        # What comes at no even distances is one kind: there is nothing else to tell it by.
        rest = [
            i
            for p, group in zip(known, groups, strict=True)
            if not np.isfinite(p.period)
            for i in group
        ]
        if rest:
            found.append(_group(intervals, sorted(rest), kind))
    return tuple(found)


def unseen(
    pauses: tuple[Pauses, ...], share: float, rng: np.random.Generator, draws: int
) -> FloatArray:
    """Return draws of what pauses of which none has come yet add to the rest, over its steps' time.

    Args:
        pauses: those that came; with a periodic one among them, fewer are missing.
        share: of the job that is done.
        rng, draws: of the draws.
    """
    jobs = _PAUSING_MORE if any(np.isfinite(p.period) for p in pauses) else _PAUSING
    longer = float(np.clip(np.log(1 / max(share, 1e-9)) / np.log(1 / _SHORTEST), 0.0, 1.0))
    taken = _TAKEN * np.exp(_TAKEN_SPREAD * rng.standard_normal(draws))
    return np.where(rng.random(draws) < jobs * longer, taken, 0.0)


def _group(intervals: Intervals, members: list[int], kind: str) -> Pauses:
    """Return pauses as one kind; intervals that follow one another are one pause."""
    starts = np.flatnonzero(np.diff(members, prepend=members[0] - 2) > 1)
    at = intervals.end[np.array(members)[starts]]
    seconds = np.add.reduceat(intervals.pause_seconds[members], starts)
    order = np.argsort(at, kind="stable")
    at, first = np.unique(at[order], return_index=True)  # steps that were done again
    return Pauses(kind, at, seconds[order][first], _period(at, kind != "pause", intervals))


def _alike(intervals: Intervals, members: list[int]) -> list[list[int]]:
    """Return pauses in groups of like length: a gap in the sorted logs begins another group."""
    order = sorted(members, key=lambda i: intervals.pause_seconds[i])
    logs = np.log(intervals.pause_seconds[order])
    groups = [[order[0]]]
    for i in range(1, len(order)):
        if logs[i] - logs[i - 1] > _ALIKE:
            groups.append([])
        groups[-1].append(order[i])
    return groups


def _period(at: FloatArray, told: bool, intervals: Intervals) -> float:
    """Return the steps between pauses where they are periodic, NaN where they are not."""
    if len(at) == 1:
        # Of a single one only the log's own word says that it will come again, as far on as it came.
        begin = float(intervals.end[0] - intervals.steps[0])
        return float(at[0]) if told and at[0] > 2 * begin else float("nan")
    if len(at) == 2 and not told:
        return float("nan")
    distances = np.diff(at)
    # Where a pause was missed, a distance is twice the period or more.
    period = float(np.median(distances))
    folded = distances / np.maximum(np.round(distances / period), 1)
    slack = float(np.median(intervals.steps)) / period
    even = float(np.std(folded)) / period < max(_EVEN, slack)
    # Those that came must be most of those that should have come by now.
    due = 1 + np.floor((intervals.marks.done.max() - at[0]) / period + 1e-6)
    return period if even and len(at) >= _CAME * due else float("nan")
