"""Outlook: how long the rest of a job may take, as draws of what can still happen.

The rest is: its steps at the present speed, which wanders (see `wander`), changes of speed that may
still come (as often as they came, and a little for those that have not yet), the pauses that recur
and those that may still begin to, and further restarts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forerun.measure.logs.recurring import Pauses, pauses_of, unseen
from forerun.measure.logs.series import FloatArray
from forerun.measure.logs.speed import Speeds, speeds_of
from forerun.measure.logs.steady import Intervals
from forerun.measure.logs.wander import stretch_of

DRAWS = 4000
_HALF_LIFE = 0.35  # of the intervals since the speed changed: newer ones count more
_JOB_CHANGES, _JOB_SEEN = 0.5, 0.6  # changes of speed in a job before any is seen: 0.5 / 0.6
_JOB_RESTARTS, _JOB_WHOLE = 0.1, 0.3  # restarts of a job before any is seen: 0.1 / 0.3
_RESTART_COST = 0.03  # of the job's time: median, with a factor of e as its spread
_CHANGE_SIZE, _CHANGE_TAIL = 0.2, 3  # spread of a change's log, and its degrees of freedom
_BACK = 0.7  # of the changes that follow one, the share that goes back to a speed seen before
_MOST_CHANGES = 8
_ENDLESS = (
    230.0  # log of seconds a step (1e100) that a draw may wander to: absurd logs end in no overflow
)


@dataclass(frozen=True)
class Outlook:
    """What is still to come.

    Attributes:
        seconds: draws of the rest's length, pauses included (draws,).
        step_seconds: the present mean of a step, without pauses.
        pauses: that recur; `pause_seconds`: what they add, by median.
        interruptions: further ones that are expected; 0 where none was seen.
    """

    seconds: FloatArray
    step_seconds: float
    pauses: tuple[Pauses, ...]
    pause_seconds: float
    interruptions: float
    speeds: Speeds

    def quantiles(self) -> tuple[float, float, float]:
        """Return the 5, 50 and 95 % quantiles of the rest, in seconds."""
        p05, p50, p95 = np.quantile(self.seconds, [0.05, 0.5, 0.95])
        return float(p05), float(p50), float(p95)

    def missed(self, seconds: float) -> float:
        """Return the probability that the rest takes longer than this."""
        over = float((self.seconds > seconds).sum())
        return (over + 0.5) / (len(self.seconds) + 1)


def outlook_of(intervals: Intervals, total: float, seed: int = 0, draws: int = DRAWS) -> Outlook:
    """Return what the rest of a job may take, from its last row on.

    Args:
        intervals: of its log.
        total: the count at which it is done, in the unit of the intervals.
        seed: of the draws.
        draws: how many.
    """
    rng = np.random.default_rng(seed)
    done = float(intervals.marks.done[-1])
    left = max(0.0, total - done)
    speeds = speeds_of(intervals)
    step_seconds, convex = _present(intervals, speeds)
    steps = np.zeros(draws)
    if left:
        level = _rest(intervals, speeds, left, convex, rng, draws)
        steps = left * level * _changes(speeds, done, total, rng, draws)
    pauses = pauses_of(intervals)
    paused = steps * unseen(pauses, done / total, rng, draws) if left else np.zeros(draws)
    for group in pauses:
        paused += group.to_come(done, total, rng, draws)
    lost, number = _interruptions(intervals, step_seconds, left, total, rng, draws)
    seconds = steps + (paused + lost if left else 0.0)
    middle = float(np.median(paused)) if left and pauses else 0.0
    return Outlook(seconds, step_seconds, pauses, middle, number if left else 0.0, speeds)


def _present(intervals: Intervals, speeds: Speeds) -> tuple[float, float]:
    """Return a step's mean seconds now, and by how much the log of a mean is above the logs' mean."""
    rows = np.arange(speeds.now.first, speeds.now.last + 1)
    rows = rows[intervals.steady[rows]] if intervals.steady[rows].any() else rows
    steps, seconds = intervals.steps[rows], intervals.work_seconds[rows]
    age = steps[::-1].cumsum()[::-1] - steps / 2
    weight = 0.5 ** (age / (_HALF_LIFE * steps.sum()))
    stretch, block = stretch_of(steps, seconds)
    mean_of_logs = np.average(stretch.logs, weights=np.bincount(block, steps))
    convex = float(np.log(seconds.sum() / steps.sum()) - mean_of_logs)
    return float((weight * seconds).sum() / (weight * steps).sum()), convex


def _rest(
    intervals: Intervals, speeds: Speeds, left: float, convex: float,
    rng: np.random.Generator, draws: int,
) -> FloatArray:  # fmt: skip
    """Return draws of the mean seconds of a step over the rest, at the present level (draws,)."""
    rows = np.flatnonzero(intervals.steady)
    if not len(rows):
        rows = np.arange(len(intervals))
    stretch, block = stretch_of(intervals.steps[rows], intervals.work_seconds[rows])
    firsts = np.searchsorted(rows, [s.first for s in speeds.segments[1:]])
    cuts = sorted({int(c) for c in block[firsts]} - {0})
    logs = stretch.mean_of_rest(cuts, left, rng, draws) + convex
    return np.asarray(np.exp(np.clip(logs, -_ENDLESS, _ENDLESS)))


def _changes(
    speeds: Speeds, done: float, total: float, rng: np.random.Generator, draws: int
) -> FloatArray:
    """Return draws of the rest's mean seconds of a step over the present one's (draws,)."""
    share = float(np.clip(done / total, 0.0, 1.0)) if total else 1.0
    seen = len(speeds.segments) - 1
    rate = (_JOB_CHANGES + seen) / (_JOB_SEEN + share) * max(0.0, 1 - share)
    number = np.minimum(rng.poisson(rate, draws), _MOST_CHANGES)
    places = np.sort(
        rng.random((draws, _MOST_CHANGES)) + (np.arange(_MOST_CHANGES) >= number[:, None]), axis=1
    )
    known = np.array([s.step_seconds for s in speeds.segments]) / speeds.now.step_seconds
    lengths = np.array([s.end_s - s.begin_s for s in speeds.segments])
    share_of = np.maximum(lengths, 0) + 1e-12
    factor, level = np.ones(draws), np.ones(draws)
    for k in range(_MOST_CHANGES):
        on = number > k
        back = rng.choice(known, draws, p=share_of / share_of.sum())
        new = np.where(rng.random(draws) < (_BACK if seen else 0.0), back, level)
        new = new * np.exp(np.clip(_CHANGE_SIZE * rng.standard_t(_CHANGE_TAIL, draws), -2, 2))
        factor = np.where(on, factor + (1 - places[:, k]) * (new - level), factor)
        level = np.where(on, new, level)
    return np.maximum(factor, 0.02)


def _interruptions(
    intervals: Intervals,
    step_seconds: float,
    left: float,
    total: float,
    rng: np.random.Generator,
    draws: int,
) -> tuple[FloatArray, float]:
    """Return draws of the seconds that further restarts cost, and how many are expected.

    How often: as often as so far, held against a job that has few; what one costs: as so far, and
    before one was seen a share of the job that restarts usually cost.
    """
    if not left:
        return np.zeros(draws), 0.0
    restarts = [g for g in intervals.gaps if g.restart]
    share = (total - left) / total
    many = len(restarts) + _JOB_RESTARTS
    rate = rng.gamma(many, (1 - share) / (share + _JOB_WHOLE), draws)
    number = rng.poisson(np.minimum(rate, 1e4))
    if not restarts:
        usual = _RESTART_COST * total * step_seconds
        return np.asarray(number * usual * np.exp(rng.standard_normal(draws))), 0.0
    costs = np.array([g.seconds + g.redone * step_seconds for g in restarts])
    size = rng.choice(costs, (draws, len(costs))).mean(axis=1)
    return np.asarray(number * size), many * (1 - share) / (share + _JOB_WHOLE)
