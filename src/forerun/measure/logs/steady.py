"""Steady: a log's time divided: steady steps, warm-up, pauses, and gaps between sessions.

An interval lies between two rows of the log. What is longer than its neighbours and stands alone is
a pause (an evaluation, a checkpoint, a stall); what is longer at a session's beginning is warm-up;
what lies between two sessions of a restarted job is a gap, and no progress.

Progress: a log's rows with a count and a clock: sessions, work that was redone, gaps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.errors import RequestError
from forerun.measure.logs.series import CHECKPOINT, EVALUATION, RESTART, LogSeries
from forerun.measure.step_times import WINDOW, longest, slow_beginning
from forerun.units import counted

_MOST = 20_000  # intervals that are looked at one by one; more are joined
_READINGS = 10  # of the clock's resolution: shorter intervals are joined


@dataclass(frozen=True)
class Gap:
    """Time in which the job did not run.

    Attributes:
        seconds: from the last row before to the first after, the work up to it included.
        redone: steps that were done again; no progress.
        at: the count after it.
        restart: whether the job was started again; else it stood still within one session.
    """

    seconds: float
    redone: float
    at: float
    restart: bool


@dataclass(frozen=True)
class ProgressRows:
    """Rows with a count and a clock (n,).

    Attributes:
        done: steps (or epochs) done at each row, as the job counts them.
        time_s: the clock; where the log has none, the sum of its step times.
        session: which start of the job each row belongs to.
        event: what the log says since the row before.
        unit: what `done` counts: steps or epochs.
        clocked: whether `time_s` is a clock; a sum of step times knows no pauses.
        gaps: between sessions.
        notes: what was found odd.
    """

    done: FloatArray
    time_s: FloatArray
    session: NDArray[np.int64]
    event: NDArray[np.int64]
    unit: str
    clocked: bool
    gaps: tuple[Gap, ...]
    resolution_s: float
    notes: tuple[str, ...]

    def pairs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the rows between which intervals lie (m,), long enough for the clock to tell.

        Raises:
            RequestError: there is none.
        """
        least = _READINGS * self.resolution_s if self.clocked else 0.0
        skip = max(1, len(self.done) // _MOST)
        first, last = [], []
        start = 0
        for i in range(1, len(self.done)):
            if self.session[i] != self.session[start]:
                start = i
                continue
            if self.done[i] <= self.done[start]:
                continue
            if self.time_s[i] < self.time_s[start]:  # the clock was set back in between
                start = i
                continue
            long = self.time_s[i] - self.time_s[start]
            ends = i + 1 == len(self.done) or self.session[i + 1] != self.session[i]
            if long <= 0 or ((long < least or i - start < skip) and not ends):
                continue
            first.append(start)
            last.append(i)
            start = i
        if not first:
            raise RequestError(
                "the log's steps", f"{len(self.done)} rows have a step and a time, and no two follow"
                " each other within one session", "wait for more steps",
            )  # fmt: skip
        return np.array(first), np.array(last)

    def events(self, first: NDArray[np.int64], last: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return all that is said after each first row (m,) up to each last one (m,), as bits."""
        joined = [
            np.bitwise_or.reduce(self.event[a + 1 : b + 1])
            for a, b in zip(first, last, strict=True)
        ]
        return np.array(joined, dtype=np.int64)


def _counts(values: FloatArray) -> FloatArray:
    """Return counts from 0 on, NaN below, rounded to a billionth."""
    return np.asarray(np.round(np.where(values >= 0, values, np.nan), 9))


def progress_of(series: LogSeries) -> ProgressRows:
    """Return the rows of a log that say where it is and when.

    Raises:
        RequestError: fewer than two rows do.
    """
    unit = "steps" if series.has("step") else "epochs"
    done = _counts(series.numbers("step" if unit == "steps" else "epoch"))
    event = np.nan_to_num(series.numbers("event")).astype(np.int64)
    event = _carried(event, np.isfinite(done))
    clocked = int(np.isfinite(series.numbers("time_s") + done).sum()) >= 2
    time = series.numbers("time_s") if clocked else _summed(series, done)
    rows = np.flatnonzero(np.isfinite(done) & np.isfinite(time))
    if len(rows) < 2:
        known = int(np.isfinite(done).sum())
        raise RequestError(
            f"the log {series.name}",
            f"{known} of its rows have a step, and " + (
                "none says when it was or how long a step took" if known > 1
                else "two are needed to tell how long a step takes"),
            "log the time or the step time too, or wait for more steps",
        )  # fmt: skip
    done, time, event = done[rows], time[rows], event[rows]
    done, time, event, notes = _ordered(done, time, event)
    session = np.cumsum(np.r_[0, (np.diff(done) < 0) | ((event[1:] & RESTART) > 0)])
    falls = int((np.diff(time) < 0).sum())
    if clocked and falls:
        notes.append(
            f"the log's clock goes back {counted(falls, 'time')}; those intervals are left out"
        )
    done = _offset(done, session, series.fact("resumed_step"))
    resolution = series.resolution_s if clocked else 0.0
    gaps = _gaps(done, time, session)
    return ProgressRows(done, time, session, event, unit, clocked, gaps, resolution, tuple(notes))


def _carried(event: NDArray[np.int64], kept: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return events (n,) with those of rows that are not kept given to the next row that is."""
    out = event.copy()
    if not event[~kept].any():
        return out
    pending = 0
    for i, bits in enumerate(event.tolist()):
        pending |= bits
        if kept[i]:
            out[i] = pending
            pending = 0
    return out


def _summed(series: LogSeries, done: FloatArray) -> FloatArray:
    """Return a clock made of the log's own step times (n,); it knows neither pauses nor gaps."""
    step = series.numbers("step_time_s")
    known = np.isfinite(done) & np.isfinite(step) & (step > 0)
    time = np.full(len(done), np.nan)
    rows = np.flatnonzero(known)
    if len(rows):
        ahead = np.diff(done[rows], prepend=done[rows[0]])
        ahead = np.where(ahead > 0, ahead, 0.0)
        time[rows] = np.cumsum(ahead * step[rows])
    return time


def _ordered(
    done: FloatArray, time: FloatArray, event: NDArray[np.int64]
) -> tuple[FloatArray, FloatArray, NDArray[np.int64], list[str]]:
    """Leave out single rows that came out of order: a lower step between two that go on."""
    if len(done) < 3:
        return done, time, event, []
    back = np.r_[False, (done[1:-1] < done[:-2]) & (done[2:] > done[:-2]), False]
    back &= (event & RESTART) == 0
    # A job that resumes one row back looks the same for one row; its clock has a gap, if any.
    ahead = np.r_[0.0, done[2:] - done[1:-1], 0.0]
    usual = np.median(np.abs(np.diff(done)))
    back &= ahead > 1.5 * usual
    if not back.any():
        return done, time, event, []
    keep = ~back
    note = f"{int(back.sum()):,} rows came out of order, and are left out"
    return done[keep], time[keep], event[keep], [note]


def _offset(done: FloatArray, session: NDArray[np.int64], resumed: float) -> FloatArray:
    """Return counts that go on where the log says that a session which counts anew resumed."""
    last = session == session[-1]
    if not np.isfinite(resumed) or done[last][0] >= resumed:
        return done
    return np.where(last, done + resumed, done)


def _gaps(done: FloatArray, time: FloatArray, session: NDArray[np.int64]) -> tuple[Gap, ...]:
    found = []
    reached = done[0]
    usual = float(np.median(np.diff(done)[np.diff(done) > 0])) if (np.diff(done) > 0).any() else 0.0
    for i in range(1, len(done)):
        reached = max(reached, done[i - 1])
        if session[i] != session[i - 1]:
            redone = float(np.clip(reached - done[i] + usual, 0.0, reached))
            found.append(Gap(max(0.0, float(time[i] - time[i - 1])), redone, float(done[i]), True))
    return tuple(found)


_PAUSE_SPREADS, _PAUSE_LEAST = 5.0, 0.05  # an interval is a pause above these, in logs of its speed
_MARKED_SPREADS, _MARKED_LEAST = 2.0, 0.02  # the same where the log tells of a pause
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

    marks: ProgressRows
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
    marks = progress_of(series)
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
    marked = (event & (EVALUATION | CHECKPOINT)) > 0
    paused = above > max(_PAUSE_SPREADS * spread, _PAUSE_LEAST)
    paused |= marked & (above > max(_MARKED_SPREADS * spread, _MARKED_LEAST))
    edges = np.flatnonzero(np.diff(np.r_[False, paused, False].astype(int)))
    for begin, end in zip(edges[::2], edges[1::2], strict=True):
        if end - begin > _RUN_OF_PAUSES and not marked[begin:end].all():
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
