"""ETA: when a running job will be done, from its log: the rest is drawn from what can still happen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forerun.arrays import FloatArray
from forerun.charts import Chart, Series, duration_unit
from forerun.errors import RequestError
from forerun.measure.logs import steady
from forerun.measure.logs.series import LogSeries
from forerun.units import MOST_COUNT, counted, format_seconds


@dataclass(frozen=True)
class JobLength:
    """How long the job is, by one of the first four; the others turn one into another."""

    steps: float | None = None
    epochs: float | None = None
    tokens: float | None = None
    samples: float | None = None
    steps_per_epoch: float | None = None
    global_batch: float | None = None
    seq_len: float | None = None
    dataset_size: float | None = None


def length_of(series: LogSeries, unit: str, length: JobLength) -> tuple[float, str]:
    """Return the count in a unit at which a job is done, and where it comes from. Raises RequestError."""
    units = ("steps", "epochs", "tokens", "samples")
    given = {name: value for name in units if (value := getattr(length, name))}
    if len(given) > 1:
        found = f"{' and '.join(given)} are given"
        raise RequestError("the job's length", found, "give one of them")
    if not given and unit == "steps" and series.fact("total_steps") <= MOST_COUNT:
        return series.fact("total_steps"), "the log says"
    epochs = series.fact("total_epochs")
    if not given and not epochs <= MOST_COUNT:
        refused = f"when {series.name} will be done"
        why = "the log does not say how long the job is"
        raise RequestError(refused, why, "give --total-steps, --epochs, --tokens or --samples")
    name, count = next(iter(given.items()), ("epochs", epochs))
    source = f"{count:,.6g} {name}, as given" if given else f"the log says {epochs:g} epochs"
    if name == unit:
        return count, source
    asked = f"a job of {count:,.6g} {name}"
    if unit == "epochs":
        raise RequestError(asked, "the log counts epochs alone", "give --epochs")
    per_step, missing = _per_step(series, length, name)
    if not per_step > 0:
        found = f"the log does not say how many {name} a step has"
        raise RequestError(asked, found, f"give {missing}, or --total-steps")
    return count / per_step, source


def _per_step(series: LogSeries, given: JobLength, unit: str) -> tuple[float, str]:
    def known(name: str) -> float:
        column = series.numbers(name)
        column = column[np.isfinite(column)]
        value = getattr(given, name) or (column[-1] if len(column) else series.fact(name))
        return float(value) if np.isfinite(value) and value > 0 else 0.0

    def slope(name: str) -> float:
        each = series.per_step(name)
        return max(float(np.median(each)), 0.0) if len(each) else 0.0

    batch = given.global_batch or slope("samples") or known("global_batch")
    if unit == "samples":
        return batch, "--global-batch"
    if unit == "tokens":
        return slope("tokens") or batch * known("seq_len"), "--global-batch and --seq-len"
    length, size = known("steps_per_epoch"), known("dataset_size")
    if not length and batch and size:
        length = np.ceil(size / batch)
    return slope("epoch") or (1 / length if length else 0.0), "--steps-per-epoch"


_EVEN = 0.25  # spread of the distances between pauses, over their mean: below, they are periodic
_CAME = 0.6  # of the pauses of a period that are due
# Jobs that will still begin to pause now and then, before any is seen; of their time left, the share
# that it takes: a log-normal law. Periods are taken to be log-uniform from a hundredth of a job on.
_PAUSING, _PAUSING_MORE, _SHORTEST = 0.4, 0.1, 0.01
_TAKEN, _TAKEN_SPREAD = 0.08, 1.2
DRAWS = 4000
_HALF_LIFE = 0.35  # of the intervals since the speed changed: newer ones count more
_JOB_CHANGES, _JOB_SEEN = 0.5, 0.6  # changes of speed in a job before any is seen: 0.5 / 0.6
_JOB_RESTARTS, _JOB_WHOLE = 0.1, 0.3  # restarts of a job before any is seen: 0.1 / 0.3
_RESTART_COST = 0.03  # of the job's time: median, with a factor of e as its spread
_CHANGE_SIZE, _CHANGE_TAIL = 0.2, 3  # spread of a change's log, and its degrees of freedom
_MOST_CHANGES = 8
_ENDLESS = 230.0  # log of seconds a step (1e100) that a draw may wander to at most


@dataclass(frozen=True)
class Pauses:
    """Pauses of one kind: counts at which they came (k,), their seconds (k,), and their period or NaN."""

    kind: str
    at: FloatArray
    seconds: FloatArray
    period: float

    def to_come(
        self, done: float, total: float, rng: np.random.Generator, draws: int
    ) -> FloatArray:
        """Return the seconds of those still to come, a column of draws (draws,)."""
        if np.isfinite(self.period):
            number = np.full(draws, self.expected(done, total))
        else:
            rate = rng.gamma(len(self.at), 1.0 / max(done, 1e-9), draws)
            number = rng.poisson(np.minimum(rate * (total - done), 1e6)).astype(np.float64)
        size = rng.choice(self.seconds, (draws, len(self.seconds))).mean(axis=1)
        # How long the next will be is not sure after one.
        size *= np.exp(0.3 / np.sqrt(len(self.seconds)) * rng.standard_normal(draws))
        return np.asarray(number * size)

    def expected(self, done: float, total: float) -> float:
        """Return how many are still to come."""
        if np.isfinite(self.period):
            return float(np.floor((total - self.at[-1]) / self.period + 1e-6))
        return len(self.at) * (total - done) / max(done, 1e-9)


def pauses_of(intervals: steady.Intervals) -> tuple[Pauses, ...]:
    """Return a log's pauses by kind; intervals that follow one another are one pause."""
    found = []
    for kind, members in intervals.pauses_by_kind().items():
        starts = np.flatnonzero(np.diff(members, prepend=members[0] - 2) > 1)
        at = intervals.end[np.array(members)[starts]]
        seconds = np.add.reduceat(intervals.pause_seconds[members], starts)
        at, first = np.unique(at, return_index=True)  # steps that were done again
        found.append(Pauses(kind, at, seconds[first], _period(at, kind != "pause", intervals)))
    return tuple(found)


def _period(at: FloatArray, marked: bool, intervals: steady.Intervals) -> float:
    """Return the steps between pauses where they are periodic, NaN where they are not."""
    if len(at) == 1:
        # Of a single one only the log's own word says that it will come again, as far on as it came.
        begin = float(intervals.end[0] - intervals.steps[0])
        return float(at[0]) if marked and at[0] > 2 * begin else float("nan")
    if len(at) == 2 and not marked:
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


@dataclass(frozen=True)
class RemainingTime:
    """What is still to come: draws of its seconds (draws,), and what they rest on."""

    seconds: FloatArray
    step_seconds: float
    pauses: tuple[Pauses, ...]
    interruptions: float
    segments: tuple[steady.Segment, ...]


def remaining_of(intervals: steady.Intervals, total: float, seed: int) -> RemainingTime:
    """Return what the rest of a job may take, from its last row on to the count `total`."""
    rng, draws = np.random.default_rng(seed), DRAWS
    done = float(intervals.marks.done[-1])
    segments, pauses = steady.segments_of(intervals), pauses_of(intervals)
    every = intervals.steady_rows
    rows = every[(every >= segments[-1].first) & (every <= segments[-1].last)]
    steps, work = intervals.steps[rows], intervals.work_seconds[rows]
    age = steps[::-1].cumsum()[::-1] - steps / 2
    weight = 0.5 ** (age / (_HALF_LIFE * steps.sum()))
    step_seconds = float((weight * work).sum() / (weight * steps).sum())
    left = max(0.0, total - done)
    if not left:
        return RemainingTime(np.zeros(draws), step_seconds, pauses, 0.0, segments)
    blocks, block = steady.blocks_of(steps, work)
    # By how much the log of a mean is above the logs' mean.
    mean = np.average(blocks.logs, weights=np.bincount(block, steps))
    convex = np.log(work.sum() / steps.sum()) - mean
    blocks, block = steady.blocks_of(intervals.steps[every], intervals.work_seconds[every])
    firsts = np.searchsorted(every, [segment.first for segment in segments[1:]])
    logs = blocks.mean_of_rest(sorted({int(c) for c in block[firsts]} - {0}), left, rng, draws)
    each = np.exp(np.clip(logs + convex, -_ENDLESS, _ENDLESS))
    share = min(max(done / total, 0.0), 1.0)
    seconds = left * each * _changes(len(segments) - 1, share, rng, draws)
    # Pauses of which none has come yet: fewer are missing where a periodic one has.
    jobs = _PAUSING_MORE if any(np.isfinite(p.period) for p in pauses) else _PAUSING
    longer = min(max(np.log(max(share, 1e-9)) / np.log(_SHORTEST), 0.0), 1.0)
    taken = _TAKEN * np.exp(_TAKEN_SPREAD * rng.standard_normal(draws))
    seconds += seconds * np.where(rng.random(draws) < jobs * longer, taken, 0.0)
    for group in pauses:
        seconds += group.to_come(done, total, rng, draws)
    # Restarts: as often as so far, held against a job that has few; each costs as much as so far,
    # and before one was seen the share of a job that restarts usually cost.
    restarts = intervals.restarts
    rate = (1 - share) / (share + _JOB_WHOLE)
    number = rng.poisson(np.minimum(rng.gamma(len(restarts) + _JOB_RESTARTS, rate, draws), 1e4))
    if restarts:
        costs = np.array([gap.seconds + gap.redone * step_seconds for gap in restarts])
        cost = rng.choice(costs, (draws, len(costs))).mean(axis=1)
    else:
        cost = _RESTART_COST * total * step_seconds * np.exp(rng.standard_normal(draws))
    expected = (len(restarts) + _JOB_RESTARTS) * rate if restarts else 0.0
    return RemainingTime(seconds + number * cost, step_seconds, pauses, expected, segments)


def _changes(seen: int, share: float, rng: np.random.Generator, draws: int) -> FloatArray:
    """Return draws of the rest's mean seconds of a step over the present one's (draws,)."""
    rate = (_JOB_CHANGES + seen) / (_JOB_SEEN + share) * (1 - share)
    come = np.arange(_MOST_CHANGES) < rng.poisson(rate, draws)[:, None]
    places = np.sort(np.where(come, rng.random(come.shape), 1.0), axis=1)
    sizes = np.clip(_CHANGE_SIZE * rng.standard_t(_CHANGE_TAIL, come.shape), -2, 2)
    levels = np.exp(np.cumsum(np.where(come, sizes, 0.0), axis=1))
    steps = np.diff(levels, axis=1, prepend=1.0)
    return np.asarray(np.maximum(1 + ((1 - places) * steps).sum(axis=1), 0.02))


_DRAWN = 200  # rows of a log in its chart
_SILENT = 10.0  # typical intervals without a row after which the job may have stopped
_SILENT_SECONDS = 120.0


@dataclass(frozen=True)
class Eta:
    """What is foreseen of a running job (times since 1970); a `silent` one may have stopped."""

    name: str
    done: float
    total: float
    unit: str
    length: str
    intervals: steady.Intervals
    outlook: RemainingTime
    last_s: float
    now_s: float
    silent: bool
    status: str
    reason: str
    notes: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def share(self) -> float:
        """Share of the job that is done."""
        return min(1.0, self.done / self.total)

    @property
    def remaining_seconds(self) -> tuple[float, float, float]:
        """5, 50 and 95 % quantiles of the time from `now_s` until it is done."""
        left = np.quantile(self.outlook.seconds, [0.05, 0.5, 0.95]) - self._since
        p05, p50, p95 = np.maximum(left, 0.0).tolist()
        return p05, p50, p95

    @property
    def finish_s(self) -> tuple[float, float, float] | None:
        """The same as times since 1970; None where no date is known."""
        p05, p50, p95 = (self.now_s + seconds for seconds in self.remaining_seconds)
        return (p05, p50, p95) if np.isfinite(self.now_s) else None

    @property
    def elapsed_seconds(self) -> float:
        """From the log's first row to its last, gaps between sessions left out."""
        return float(self.intervals.seconds.sum())

    @property
    def away_seconds(self) -> float:
        """Between sessions, and halts within one."""
        return float(sum(gap.seconds for gap in self.intervals.gaps))

    @property
    def redone(self) -> float:
        """Steps that were done again after a restart."""
        return float(sum(gap.redone for gap in self.intervals.gaps))

    def missed(self, seconds: float) -> float:
        """Return the probability that the job takes longer than this from `now_s` on."""
        over = float((self.outlook.seconds > seconds + self._since).sum())
        return (over + 0.5) / (len(self.outlook.seconds) + 1)

    def chart(self, deadline_seconds: float | None = None) -> Chart:
        """Return what is done over the time since the log's first row, and what is foreseen, with its band.

        deadline_seconds: from `now_s`. Gaps between sessions are left out.
        """
        each, unit = duration_unit(self.elapsed_seconds + self.remaining_seconds[2])
        took = np.cumsum(self.intervals.seconds) / each
        rows = np.unique(np.linspace(0, len(took) - 1, _DRAWN).round().astype(np.int64))
        at, done = took[rows], np.asarray(self.intervals.end)[rows]
        now, left = float(took[-1]), np.array(self.remaining_seconds) / each
        series = [Series("done", "line", at.tolist(), done.tolist())]
        if self.share < 1:
            ahead = np.unique([0.0, *left])
            rates = (self.total - self.done) / np.maximum(left[[2, 1, 0]], 1e-9)
            low, middle, high = (
                np.minimum(self.done + rate * ahead, self.total).tolist() for rate in rates
            )
            forecast = (now + ahead).tolist()
            series.append(Series("foreseen", "line", forecast, middle, low, high))
        if deadline_seconds is not None:
            end = now + deadline_seconds / each
            series.append(Series("deadline", "dashed", [end, end], [0.0, self.total]))
        return Chart(
            f"Progress of {self.name}", f"{unit} of work since the first row", self.unit,
            tuple(series),
        )  # fmt: skip

    @property
    def _since(self) -> float:
        since = self.now_s - self.last_s
        return since if np.isfinite(since) and not self.silent else 0.0


def eta_of(
    series: LogSeries, length: JobLength | None = None, now_s: float | None = None, seed: int = 0
) -> Eta:
    """Return when the job of a log will be done, from `now_s` (None: its last row). Raises RequestError."""
    intervals = steady.intervals_of(series)
    marks = intervals.marks
    done, one = float(marks.done[-1]), marks.unit[:-1]
    total, source = length_of(series, marks.unit, length or JobLength())
    if total < done * (1 - 1e-9):
        asked = f"a job of {total:,.6g} {marks.unit}"
        found = f"the log {series.name} is at {one} {done:,.6g} already ({source})"
        raise RequestError(asked, found, "give a greater total, or check that both count the same")
    outlook = remaining_of(intervals, total, seed)
    # Without dates in the log, its file's last write is the time of its last row.
    dated = series.absolute and marks.clocked
    last = float(marks.time_s[-1]) if dated else series.written_s
    # A log may be read long after its end, and its clock may be ahead of this machine's.
    now = last if now_s is None or not np.isfinite(last) else max(now_s, last)
    since = now - last if np.isfinite(last) else 0.0
    typical, slowest = float(np.median(intervals.seconds)), float(np.max(intervals.seconds))
    silent = done < total and since > max(_SILENT * typical, 2 * slowest, _SILENT_SECONDS)
    notes = []
    if series.status != "ok":
        why = series.reason or series.status
        notes.append(f"the log ends with: {why}; counted as if it went on")
    if silent:
        usual = f"where one row came every {format_seconds(typical)}"
        notes.append(
            f"no {one} for {format_seconds(since)}, {usual}: it hangs, has stopped, or the log is old;"
            " counted as if it went on now"
        )
    notes += _notes(intervals, outlook, 0.0 if silent else since)
    notes += [*marks.notes, *series.notes]
    if not dated and np.isfinite(last):
        notes.append("the log has no dates; its file's last write counts as the last row's time")
    unknown = []
    if not marks.clocked:
        unknown.append("the log has no times, so pauses and gaps are not known")
    elif not outlook.pauses:
        unknown.append(
            "no evaluation or checkpoint has come yet; what one takes is a guess of the band"
        )
    if once := [p.kind for p in outlook.pauses if len(p.at) == 1]:
        unknown.append(f"one {once[0]} was seen so far: how often it comes is a guess")
    if len(intervals.restarts) == 1:
        unknown.append("one restart was seen: whether more will come is a guess")
    return Eta(
        series.name, done, total, marks.unit, source, intervals, outlook, last, now, silent,
        series.status, series.reason, tuple(notes), tuple(unknown),
    )  # fmt: skip


def _notes(intervals: steady.Intervals, outlook: RemainingTime, since: float) -> list[str]:
    notes, unit, restarts = [], intervals.marks.unit, intervals.restarts
    if len(outlook.segments) > 1:
        before, now = outlook.segments[-2:]
        ago = format_seconds(float(intervals.end_s[-1]) - now.begin_s + since)
        notes.append(
            f"the speed changed {ago} ago, at {unit[:-1]} {now.begin:,.6g}:"
            f" {steady.slower_or_faster(before, now)}; the new speed is used"
        )
    if restarts:
        redone = sum(gap.redone for gap in restarts)
        again = f"; {redone:,.6g} {unit} were done twice, and count once" if redone else ""
        away = format_seconds(sum(gap.seconds for gap in restarts))
        more = f"about {outlook.interruptions:.1f} further restarts are counted in, by those so far"
        notes.append(f"started again {counted(len(restarts), 'time')}, {away} between{again}")
        notes += [more] if outlook.interruptions else []
    return notes
