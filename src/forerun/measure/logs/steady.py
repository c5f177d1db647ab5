"""Steady: a log's time divided: steady steps, warm-up, pauses, and gaps between sessions.

An interval lies between two rows of the log. What is longer than its neighbours and stands alone is
a pause (an evaluation, a checkpoint, a stall); what is longer at a session's beginning is warm-up;
what lies between two sessions of a restarted job is a gap, and no progress.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.measure.logs.progress import Gap, Marks, marks_of
from forerun.measure.logs.series import CHECKPOINT, EVALUATION, LogSeries
from forerun.measure.step_times import WINDOW, longest, slow_beginning

_PAUSE_SPREADS, _PAUSE_LEAST = 5.0, 0.05  # an interval is a pause above these, in logs of its speed
_TOLD_SPREADS, _TOLD_LEAST = 2.0, 0.02  # the same where the log tells of a pause
_RUN_OF_PAUSES = 3  # more in a row are a slower stretch, not pauses
_HALT = 50.0  # typical intervals; a single pause so long, of which nothing is said, is a halt
_HALT_ALONE = 3.0  # times the next longest pause


@dataclass(frozen=True)
class Intervals:
    """Times between rows (m,), in order.

    Attributes:
        marks: the rows they lie between.
        steps: steps done in each; `seconds`: taken, of which `pause_seconds` were a pause or
            the excess of warm-up.
        end: the count of steps at each end; `end_s`: the clock there.
        session: which start of the job each belongs to.
        warm: whether it is warm-up; `paused`: whether it has a pause.
        event: bits that the log says of it.
        gaps: between sessions, and halts within one.
        reference: the steady seconds of a step around each.
        spread: robust standard deviation of the log of an interval's speed.
    """

    marks: Marks
    steps: FloatArray
    seconds: FloatArray
    end: FloatArray
    end_s: FloatArray
    session: NDArray[np.int64]
    warm: NDArray[np.bool_]
    paused: NDArray[np.bool_]
    pause_seconds: FloatArray
    event: NDArray[np.int64]
    gaps: tuple[Gap, ...]
    reference: FloatArray
    spread: float

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def work_seconds(self) -> FloatArray:
        """Seconds without pauses and warm-up's excess, (m,)."""
        return self.seconds - self.pause_seconds

    @property
    def steady(self) -> NDArray[np.bool_]:
        """Which intervals are neither warm-up nor have a pause, (m,)."""
        return ~(self.warm | self.paused)

    def kind(self, i: int) -> str:
        """Return what the log says of a pause: evaluation, checkpoint, or nothing."""
        if self.event[i] & EVALUATION:
            return "evaluation"
        return "checkpoint" if self.event[i] & CHECKPOINT else "pause"


def intervals_of(series: LogSeries) -> Intervals:
    """Return a log's intervals, divided.

    Raises:
        RequestError: the log says nothing of time, or has fewer than two rows with a step.
    """
    marks = marks_of(series)
    first, last = marks.pairs()
    steps = marks.done[last] - marks.done[first]
    seconds = marks.time_s[last] - marks.time_s[first]
    session = marks.session[last]
    event = marks.events(first, last)
    speed = seconds / steps
    reference, spread = _reference(speed, session)
    warm = _warm(speed, reference, session)
    paused = _paused(speed, reference, spread, event) & ~warm
    halts = _halts(seconds, steps, reference, paused, event)
    excess = np.maximum(seconds - steps * reference, 0.0)
    pause = np.where(paused | warm, excess, 0.0)
    found = [Gap(float(pause[i]), 0.0, float(marks.done[last[i]]), False) for i in halts]
    keep = np.ones(len(steps), dtype=bool)
    keep[halts] = False
    return Intervals(
        marks, steps[keep], seconds[keep], marks.done[last][keep], marks.time_s[last][keep],
        session[keep], warm[keep], paused[keep], pause[keep], event[keep],
        (*marks.gaps, *found), reference[keep], spread,
    )  # fmt: skip


def _reference(speed: FloatArray, session: NDArray[np.int64]) -> tuple[FloatArray, float]:
    """Return the rolling median of seconds a step (m,), and the robust spread of logs about it."""
    logs = np.log(speed)
    if len(logs) < 4:
        return np.full(len(logs), float(np.exp(np.median(logs)))), 0.0
    half = min(WINDOW // 2, (len(logs) - 1) // 2)
    padded = np.pad(logs, half, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1)
    middle = np.median(windows, axis=1)
    spread = 1.4826 * float(np.median(np.abs(logs - middle)))
    return np.exp(middle), spread


def _warm(
    speed: FloatArray, reference: FloatArray, session: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return which intervals at a session's beginning are slower than what follows them, (m,)."""
    warm = np.zeros(len(speed), dtype=bool)
    for number in np.unique(session):
        rows = np.flatnonzero(session == number)
        if len(rows) < 4 and len(speed) == len(rows):
            rows = rows[: 1 + len(rows) // 2]
        count, level = slow_beginning(speed[rows[0] :], longest(len(rows)), float(np.median(speed)))
        warm[rows[:count]] = True
        reference[rows[:count]] = level
    return warm


def _paused(
    speed: FloatArray, reference: FloatArray, spread: float, event: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return which intervals are longer than their neighbours, alone or a few in a row, (m,)."""
    above = np.log(speed / reference)
    told = (event & (EVALUATION | CHECKPOINT)) > 0
    paused = above > max(_PAUSE_SPREADS * spread, _PAUSE_LEAST)
    paused |= told & (above > max(_TOLD_SPREADS * spread, _TOLD_LEAST))
    edges = np.flatnonzero(np.diff(np.r_[False, paused, False].astype(int)))
    for begin, end in zip(edges[::2], edges[1::2], strict=True):
        if end - begin > _RUN_OF_PAUSES and not told[begin:end].all():
            paused[begin:end] = False
    return paused


def _halts(
    seconds: FloatArray,
    steps: FloatArray,
    reference: FloatArray,
    paused: NDArray[np.bool_],
    event: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the intervals in which the job seems not to have run: long, alone, nothing said."""
    excess = np.where(paused, seconds - steps * reference, 0.0)
    typical = float(np.median(steps * reference)) if len(steps) else 0.0
    order = np.argsort(-excess)
    halts = []
    for rank, i in enumerate(order):
        beside = excess[order[rank + 1]] if rank + 1 < len(order) else 0.0
        if event[i] or excess[i] < _HALT * typical or excess[i] < _HALT_ALONE * beside:
            break
        halts.append(i)
    return np.array(halts, dtype=np.int64)
