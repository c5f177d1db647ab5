"""Steady: a log's time divided: steady steps, warm-up, pauses, and gaps between sessions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.errors import RequestError
from forerun.measure.logs.series import CHECKPOINT, EVALUATION, RESTART, LogSeries
from forerun.measure.step_times import WINDOW, longest, slow_beginning
from forerun.units import counted, format_percent

_MOST = 20_000  # intervals that are looked at one by one; more are joined
_READINGS = 10  # of the clock's resolution: shorter intervals are joined
_PAUSE_SPREADS, _PAUSE_LEAST = 5.0, 0.05  # an interval is a pause above these, in logs of its speed
_MARKED_SPREADS, _MARKED_LEAST = 2.0, 0.02  # the same where the log tells of a pause
_RUN_OF_PAUSES = 3  # more in a row are a slower stretch, not pauses
_HALT = 50.0  # typical intervals; a single pause so long, which nothing explains, is a halt
_HALT_ALONE = 3.0  # times the next longest pause


@dataclass(frozen=True)
class Gap:
    """Time in which the job did not run, steps done again after it, and whether it was started again."""

    seconds: float
    redone: float
    restart: bool


@dataclass(frozen=True)
class ProgressRows:
    """Rows with a count (n,) of steps or epochs, a clock (n,) (unless `clocked` a sum of steps) and session (n,)."""

    done: FloatArray
    time_s: FloatArray
    session: NDArray[np.int64]
    event: NDArray[np.int64]
    unit: str
    clocked: bool
    gaps: tuple[Gap, ...]
    notes: tuple[str, ...]

    def pairs(self, least_s: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the rows between which intervals lie (m,), each so long at least. Raises RequestError."""
        done, time, session = self.done, self.time_s, self.session
        skip = max(1, len(done) // _MOST)
        pairs, start = [], 0
        for i in range(1, len(done)):
            long, ahead = time[i] - time[start], done[i] > done[start]
            if session[i] != session[start] or (long < 0 and ahead):  # the clock was set back
                start = i
                continue
            ends = i + 1 == len(done) or session[i + 1] != session[i]
            short = long < least_s or i - start < skip
            if ahead and long > 0 and (ends or not short):
                pairs.append((start, i))
                start = i
        if not pairs:
            found = f"{len(done)} rows have a step and a time, and no two follow each other in a session"
            raise RequestError("the log's steps", found, "wait for more steps")
        first, last = np.array(pairs).T
        return first, last


def progress_of(series: LogSeries) -> ProgressRows:
    """Return the rows of a log that say where it is and when. Raises RequestError."""
    unit = "steps" if series.has("step") else "epochs"
    done = series.numbers(unit[:-1])
    done = np.asarray(np.where(done >= 0, done, np.nan), float).round(9)
    clocked = int(np.isfinite(series.numbers("time_s") + done).sum()) >= 2
    time = series.numbers("time_s") if clocked else _summed(series, done)
    event, pending = np.nan_to_num(series.numbers("event")).astype(np.int64), 0
    for i in np.flatnonzero(event.any() and (event > 0) | np.isfinite(done)):
        pending |= event[i]  # an event of a row without a count belongs to the next that has one
        if np.isfinite(done[i]):
            event[i], pending = pending, 0
    rows = np.flatnonzero(np.isfinite(done) & np.isfinite(time))
    if len(rows) < 2:
        known = int(np.isfinite(done).sum())
        why = "none says when it was or how long a step took"
        found = f"{known} of its rows have a step, and {why if known > 1 else 'two are needed'}"
        todo = "log the time or the step time too, or wait for more steps"
        raise RequestError(f"the log {series.name}", found, todo)
    notes = []
    # Out of order is a lower step between two that go on. A job that resumes one row back looks the
    # same for one row; what follows is near then.
    strays, ahead = np.zeros(len(rows), dtype=bool), np.diff(done[rows])
    if len(rows) > 2:
        far = ahead[1:] > 1.5 * np.median(np.abs(ahead))
        strays[1:-1] = (ahead[:-1] < 0) & (done[rows[2:]] > done[rows[:-2]]) & far
    strays &= (event[rows] & RESTART) == 0
    if strays.any():
        notes.append(f"{int(strays.sum()):,} rows came out of order, and are left out")
        rows = rows[~strays]
    done, time, event = done[rows], time[rows], event[rows]
    begins, falls_back = (np.diff(done) < 0) | ((event[1:] & RESTART) > 0), np.diff(time) < 0
    if clocked and not series.absolute:  # seconds since a process began: another one has begun
        begins |= falls_back
    session = np.cumsum(np.r_[0, begins])
    if clocked and (falls := int((falls_back & ~begins).sum())):
        back = counted(falls, "time")
        notes.append(f"the log's clock goes back {back}; those intervals are left out")
    # The last session may count anew, and the log say where it resumed.
    resumed, last = series.fact("resumed_step"), session == session[-1]
    if np.isfinite(resumed) and done[last][0] < resumed:
        done = np.where(last, done + resumed, done)
    ahead = np.diff(done)
    usual = float(np.median(ahead[ahead > 0])) if (ahead > 0).any() else 0.0
    reached = np.maximum.accumulate(done)
    starts = 1 + np.flatnonzero(np.diff(session))
    away = np.maximum(time[starts] - time[starts - 1], 0.0)
    redone = np.clip(reached[starts - 1] - done[starts] + usual, 0.0, reached[starts - 1])
    gaps = tuple(Gap(float(s), float(r), True) for s, r in zip(away, redone, strict=True))
    return ProgressRows(done, time, session, event, unit, clocked, gaps, tuple(notes))


def _summed(series: LogSeries, done: FloatArray) -> FloatArray:
    step = series.numbers("step_time_s")
    time = np.full(len(done), np.nan)
    rows = np.flatnonzero(np.isfinite(done) & (step > 0))
    if len(rows):
        ahead = np.diff(done[rows], prepend=done[rows[0]])
        time[rows] = np.cumsum(np.maximum(ahead, 0.0) * step[rows])
    return time


@dataclass(frozen=True)
class Intervals:
    """Times between rows (m,), in order; `reference` are the steady seconds of a step around each."""

    marks: ProgressRows
    steps: FloatArray
    seconds: FloatArray
    end: FloatArray
    end_s: FloatArray
    warm: NDArray[np.bool_]
    paused: NDArray[np.bool_]
    pause_seconds: FloatArray
    event: NDArray[np.int64]
    gaps: tuple[Gap, ...]
    reference: FloatArray

    @property
    def work_seconds(self) -> FloatArray:
        """Seconds without pauses and warm-up's excess, (m,)."""
        return self.seconds - self.pause_seconds

    @property
    def steady_rows(self) -> NDArray[np.int64]:
        """Positions of the intervals that are neither warm-up nor have a pause; of all if none is."""
        rows = np.flatnonzero(~(self.warm | self.paused))
        return rows if len(rows) else np.arange(len(self.steps))

    @property
    def restarts(self) -> list[Gap]:
        """The gaps after which the job was started again."""
        return [gap for gap in self.gaps if gap.restart]

    def pauses_by_kind(self) -> dict[str, list[int]]:
        """Return positions of pauses by what the log says: evaluation, checkpoint, or pause."""
        kinds: dict[str, list[int]] = {}
        for i in map(int, np.flatnonzero(self.paused)):
            other = "checkpoint" if self.event[i] & CHECKPOINT else "pause"
            kinds.setdefault("evaluation" if self.event[i] & EVALUATION else other, []).append(i)
        return kinds


def intervals_of(series: LogSeries) -> Intervals:
    """Return a log's intervals, divided. Raises RequestError."""
    marks = progress_of(series)
    first, last = marks.pairs(_READINGS * series.resolution_s if marks.clocked else 0.0)
    steps = marks.done[last] - marks.done[first]
    seconds = marks.time_s[last] - marks.time_s[first]
    session = marks.session[last]
    event = np.array(
        [np.bitwise_or.reduce(marks.event[a + 1 : b + 1]) for a, b in zip(first, last, strict=True)]
    )
    speed = seconds / steps
    reference, spread = _reference(speed)
    warm = np.zeros(len(speed), dtype=bool)
    for number in np.unique(session):
        rows = np.flatnonzero(session == number)
        if len(rows) < 4 and len(speed) == len(rows):
            rows = rows[: 1 + len(rows) // 2]
        count, level = slow_beginning(speed[rows[0] :], longest(len(rows)), float(np.median(speed)))
        warm[rows[:count]] = True
        reference[rows[:count]] = level
    # Longer than their neighbours, alone or a few in a row.
    above, marked = np.log(speed / reference), (event & (EVALUATION | CHECKPOINT)) > 0
    paused = above > max(_PAUSE_SPREADS * spread, _PAUSE_LEAST)
    paused |= marked & (above > max(_MARKED_SPREADS * spread, _MARKED_LEAST))
    edges = np.flatnonzero(np.diff(np.r_[False, paused, False].astype(int)))
    for begin, end in zip(edges[::2], edges[1::2], strict=True):
        if end - begin > _RUN_OF_PAUSES and not marked[begin:end].all():
            paused[begin:end] = False
    paused &= ~warm
    excess = np.maximum(seconds - steps * reference, 0.0)
    halted, typical = np.where(paused, excess, 0.0), float(np.median(steps * reference))
    order, halts = np.argsort(-halted), list[int]()
    for i, following in zip(order, [*halted[order[1:]], 0.0], strict=True):
        if event[i] or halted[i] < max(_HALT * typical, _HALT_ALONE * following):
            break
        halts.append(int(i))
    keep = np.setdiff1d(np.arange(len(steps)), halts)
    return Intervals(
        marks, steps[keep], seconds[keep], marks.done[last][keep], marks.time_s[last][keep],
        warm[keep], paused[keep], np.where(paused | warm, excess, 0.0)[keep], event[keep],
        (*marks.gaps, *(Gap(float(excess[i]), 0.0, False) for i in halts)), reference[keep],
    )  # fmt: skip


def _reference(speed: FloatArray) -> tuple[FloatArray, float]:
    """Return the rolling median of seconds a step (m,), and the robust spread of logs about it."""
    from scipy.ndimage import median_filter

    logs = np.log(speed)
    if len(logs) < 4:
        return np.full(len(logs), float(np.exp(np.median(logs)))), 0.0
    half = min(WINDOW // 2, (len(logs) - 1) // 2)
    middle = median_filter(logs, 2 * half + 1, mode="mirror")
    return np.exp(middle), 1.4826 * float(np.median(np.abs(logs - middle)))


BLOCKS = 120  # that a log's intervals are joined to
# Priors of both deviations: log-normal laws, by their medians and the spreads of their logs.
_FLICKER_MEDIAN, _FLICKER_SPREAD = 0.05, 1.3
_WHITE_MEDIAN, _WHITE_SPREAD = 0.05, 1.5
_FLICKERS, _WHITES = np.geomspace(0.001, 1.5, 40), np.r_[0.0, np.geomspace(0.001, 1.5, 25)]
# Newer blocks count more, the more so the less of the noise is white.
_RECENT, _WHITE_PART = 0.7, 0.2
_NARROWEST = 1e-7  # least share of the whole that a block, or what is ahead, is taken to be
_FARTHEST = 8.0  # spreads of a draw
_FREEDOM = 4.0  # degrees of freedom: how much the speed wanders changes on the way, too
_SHORTEST = 6  # blocks of a segment
_LEAST_CHANGE = 0.04  # in logs: less is no change that anyone acts upon
_SPREADS = 3.5  # a change of level is larger than so many spreads of the wander
_CLIPPED = 3.0  # spreads: a lone slow interval must not look like a change


def flicker_variance(seen: float, ahead: float) -> float:
    """Return the variance of flicker's mean ahead less that so far, in Allan variances."""

    def twice(t: float) -> float:  # the second integral of ln t
        return float(t * t * (np.log(t) / 2 - 0.75))

    apart = (twice(seen + ahead) - twice(seen) - twice(ahead)) / (seen * ahead)
    within = twice(seen) / seen**2 + twice(ahead) / ahead**2
    return max((apart - within) / float(np.log(2)), 0.0)


def wander_of(logs: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return Allan variances of flicker (k,), white variances (k,), and how likely each is, by logs (n,)."""
    flicker, white = (grid.ravel() ** 2 for grid in np.meshgrid(_FLICKERS, _WHITES))
    likely = -0.5 * (np.log(np.sqrt(flicker) / _FLICKER_MEDIAN) / _FLICKER_SPREAD) ** 2
    size = np.sqrt(np.maximum(white, _FLICKERS[0] ** 2))
    likely -= np.where(white > 0, 0.5 * (np.log(size / _WHITE_MEDIAN) / _WHITE_SPREAD) ** 2, 0.0)
    sums, scale = np.cumsum(np.r_[0.0, logs]), 1
    while 2 * scale <= len(logs):
        means = (sums[scale:] - sums[:-scale]) / scale
        found = 0.5 * float(np.mean((means[scale:] - means[:-scale]) ** 2))
        # Half of the differences that do not overlap: neighbouring scales tell the same, in part.
        count = max(len(logs) / scale - 1, 1.0) / 2
        model = flicker + white / scale
        likely -= 0.5 * count * (np.log(model) + found / model)
        scale *= 2
    weight = np.exp(likely - likely.max())
    return flicker, white, weight / weight.sum()


@dataclass(frozen=True, eq=False)
class SpeedBlocks:
    """Blocks of steady intervals (n,): their steps, and logs of their mean seconds of a step."""

    steps: FloatArray
    logs: FloatArray

    def changes(self) -> list[int]:
        """Return the blocks at which the level changed by more than wander does, in order."""
        from scipy.ndimage import median_filter

        # The spread about a level that may jump, from differences of neighbours.
        apart = np.abs(np.diff(self.logs))
        noise = max(1.4826 * float(np.median(apart)) / np.sqrt(2), 1e-4) if len(apart) else 1e-4
        middle = median_filter(self.logs, 7, mode="nearest")
        logs = np.clip(self.logs, middle - _CLIPPED * noise, middle + _CLIPPED * noise)
        cuts: list[int] = []
        while True:
            found = []  # the gain of a cut, and the cut itself between two others
            for begin, end in pairwise([0, *cuts, len(logs)]):
                for at in range(begin + _SHORTEST, end - _SHORTEST + 1):
                    size = abs(float(logs[begin:at].mean() - logs[at:end].mean()))
                    gain = size**2 * (at - begin) * (end - at) / (end - begin)
                    found.append((gain, at, size, at - begin, end - at))
            if not found:
                return cuts
            _, at, size, before, after = max(found)
            flicker, white, weight = wander_of(_about_levels(logs, sorted([*cuts, at])))
            variance = weight @ flicker * flicker_variance(before, after)
            variance += weight @ white * (1 / before + 1 / after)
            if size < max(_SPREADS * float(np.sqrt(variance)), _LEAST_CHANGE):
                return cuts
            cuts = sorted([*cuts, at])

    def mean_of_rest(
        self, cuts: Sequence[int], ahead: float, rng: np.random.Generator, draws: int
    ) -> FloatArray:
        """Return draws of the mean of logs over the next steps (draws,); the level changed at `cuts`."""
        flicker, white, weight = wander_of(_about_levels(self.logs, cuts))
        chosen = rng.choice(len(weight), draws, p=weight)
        flicker, white = flicker[chosen], white[chosen]
        now = slice(max([0, *cuts]), None)
        steps = self.steps[now]
        seen, ahead = float(steps.sum()), max(ahead, _NARROWEST * float(self.steps.sum()))
        age = (steps[::-1].cumsum()[::-1] - steps / 2) / seen
        recent = _RECENT * float(np.mean(flicker / (flicker + _WHITE_PART * white)))
        level = float(np.average(self.logs[now], weights=steps * age**-recent))
        each = float(self.steps.mean())
        variance = flicker * flicker_variance(seen, ahead) + white * each * (1 / seen + 1 / ahead)
        student = np.clip(rng.standard_t(_FREEDOM, draws), -_FARTHEST, _FARTHEST)
        return np.asarray(level + np.sqrt(variance) * student)


def _about_levels(logs: FloatArray, cuts: Sequence[int]) -> FloatArray:
    return np.concatenate([part - part.mean() for part in np.split(logs, cuts)])


def blocks_of(steps: FloatArray, seconds: FloatArray) -> tuple[SpeedBlocks, NDArray[np.int64]]:
    """Return intervals (m,) joined to at most BLOCKS blocks, and the block of each interval (m,)."""
    block = np.arange(len(steps), dtype=np.int64) * min(BLOCKS, len(steps)) // len(steps)
    counted = np.bincount(block, steps).astype(np.float64)
    logs = np.log(np.bincount(block, seconds) / counted)
    return SpeedBlocks(np.maximum(counted, _NARROWEST * counted.sum()), logs), block


@dataclass(frozen=True)
class Segment:
    """A stretch of constant speed: intervals `first` to `last`, with their steps and clock."""

    first: int
    last: int
    begin: float
    end: float
    begin_s: float
    end_s: float
    step_seconds: float


def segments_of(intervals: Intervals) -> tuple[Segment, ...]:
    """Return a log's stretches of constant speed in order; the last one is what the job does now."""
    rows = intervals.steady_rows
    steps, seconds = intervals.steps[rows], intervals.work_seconds[rows]
    blocks, block = blocks_of(steps, seconds)
    cuts = [int(np.searchsorted(block, change)) for change in blocks.changes()]
    cuts = [_sharpened(np.log(seconds / steps), cut, block) for cut in cuts]
    segments = []
    for a, b in pairwise([0, *cuts, len(rows)]):
        first, last = int(rows[a]), int(rows[b - 1])
        segments.append(Segment(
            first, last,
            float(intervals.end[first] - intervals.steps[first]), float(intervals.end[last]),
            float(intervals.end_s[first] - intervals.seconds[first]),
            float(intervals.end_s[last]), float(seconds[a:b].sum() / steps[a:b].sum()),
        ))  # fmt: skip
    return tuple(segments)


def _sharpened(logs: FloatArray, cut: int, block: NDArray[np.int64]) -> int:
    """Return the interval at which a level changes (logs (n,)) near a cut between two blocks."""
    width = int((block == block[cut]).sum())
    first = max(cut - 2 * width, 0)
    near = logs[first : cut + 2 * width]
    at = np.arange(1, len(near))
    left = np.cumsum(near)[:-1] / at
    right = (near.sum() - left * at) / (len(near) - at)
    return first + int(at[np.argmax(at * (len(near) - at) * (left - right) ** 2)])


def slower_or_faster(before: Segment, after: Segment) -> str:
    """Return a change of speed in words: `50 % slower`."""
    share = after.step_seconds / before.step_seconds - 1
    return f"{format_percent(abs(share))} {'slower' if share > 0 else 'faster'}"
