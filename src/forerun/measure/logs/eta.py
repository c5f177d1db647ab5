"""ETA: when a running job will be done, from its log: with its band, its cost and what is unknown.

The rest of a job is drawn many times, from what can still happen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forerun.arrays import FloatArray
from forerun.errors import RequestError
from forerun.measure.logs.series import LogSeries
from forerun.measure.logs.speed import Speeds, blocks_of, speeds_of
from forerun.measure.logs.steady import Intervals, ProgressRows, intervals_of
from forerun.units import counted, format_seconds


@dataclass(frozen=True)
class JobLength:
    """How long the job is, one of these; all None leaves it to the log.

    `steps_per_epoch`, `global_batch`, `seq_len` and `dataset_size` turn one into another where
    the log does not.
    """

    steps: float | None = None
    epochs: float | None = None
    tokens: float | None = None
    samples: float | None = None
    steps_per_epoch: float | None = None
    global_batch: float | None = None
    seq_len: float | None = None
    dataset_size: float | None = None


def length_of(series: LogSeries, marks: ProgressRows, length: JobLength) -> tuple[float, str]:
    """Return the count at which a job is done, in the unit of its rows, and where it comes from.

    Raises:
        RequestError: it is not known, or it cannot be turned into that unit.
    """
    units = ("steps", "epochs", "tokens", "samples")
    given = {name: value for name in units if (value := getattr(length, name))}
    if len(given) > 1:
        raise RequestError(
            "the job's length", f"{' and '.join(given)} are given", "give one of them"
        )
    for unit, count in given.items():
        total = _in_unit(series, marks, length, unit, count)
        return total, f"{count:,.6g} {unit}, as given"
    if marks.unit == "steps" and np.isfinite(series.fact("total_steps")):
        return series.fact("total_steps"), "the log says"
    epochs = series.fact("total_epochs")
    if not np.isfinite(epochs):
        raise RequestError(
            f"when {series.name} will be done", "the log does not say how long the job is",
            "give --total-steps, --epochs, --tokens or --samples",
        )  # fmt: skip
    return _in_unit(series, marks, length, "epochs", epochs), f"the log says {epochs:g} epochs"


def _in_unit(
    series: LogSeries, marks: ProgressRows, given: JobLength, unit: str, count: float
) -> float:
    """Return a length in the unit that the log counts."""
    if unit == marks.unit:
        return count
    if marks.unit == "epochs":
        raise RequestError(
            f"a job of {count:,.6g} {unit}", "the log counts epochs alone", "give --epochs"
        )
    per_step, missing = _per_step(series, given, unit)
    if not per_step > 0:
        raise RequestError(
            f"a job of {count:,.6g} {unit}", f"the log does not say how many {unit} a step has",
            f"give {missing}, or --total-steps",
        )  # fmt: skip
    return count / per_step


def _per_step(series: LogSeries, given: JobLength, unit: str) -> tuple[float, str]:
    """Return how many samples, tokens or epochs a step has, and what to give where nobody says."""
    batch = given.global_batch or _slope(series, "samples") or _known(series, "global_batch")
    if unit == "samples":
        return batch, "--global-batch"
    if unit == "tokens":
        tokens = _slope(series, "tokens")
        sequence = given.seq_len or _known(series, "seq_len")
        return tokens or batch * sequence, "--global-batch and --seq-len"
    length = given.steps_per_epoch or _known(series, "steps_per_epoch")
    size = given.dataset_size or _known(series, "dataset_size")
    if not length and batch and size:
        length = np.ceil(size / batch)
    epochs = _slope(series, "epoch") or (1 / length if length else 0.0)
    return epochs, "--steps-per-epoch"


def _known(series: LogSeries, name: str) -> float:
    """Return a number of the log, 0 where it says none."""
    column = series.numbers(name)
    known = column[np.isfinite(column)]
    value = float(known[-1]) if len(known) else series.fact(name)
    return value if np.isfinite(value) and value > 0 else 0.0


def _slope(series: LogSeries, name: str) -> float:
    """Return how much of a column a step adds, 0 where the log does not say."""
    steps, values = series.numbers("step"), series.numbers(name)
    both = np.isfinite(steps) & np.isfinite(values)
    ahead, more = np.diff(steps[both]), np.diff(values[both])
    each = more[ahead > 0] / ahead[ahead > 0]
    slope = float(np.median(each)) if len(each) else 0.0
    return slope if slope > 0 else 0.0


_EVEN = 0.25  # spread of the distances between pauses, over their mean: below, they are periodic
_CAME = 0.6  # of the pauses of a period that are due
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


def pauses_of(intervals: Intervals) -> tuple[Pauses, ...]:
    """Return a log's pauses by kind."""
    rows = np.flatnonzero(intervals.paused)
    kinds: dict[str, list[int]] = {}
    for i in rows:
        kinds.setdefault(intervals.kind(int(i)), []).append(int(i))
    return tuple(_group(intervals, members, kind) for kind, members in kinds.items())


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


def _period(at: FloatArray, marked: bool, intervals: Intervals) -> float:
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
class RemainingTime:
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


def remaining_of(
    intervals: Intervals, total: float, seed: int = 0, draws: int = DRAWS
) -> RemainingTime:
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
    return RemainingTime(seconds, step_seconds, pauses, middle, number if left else 0.0, speeds)


def _present(intervals: Intervals, speeds: Speeds) -> tuple[float, float]:
    """Return a step's mean seconds now, and by how much the log of a mean is above the logs' mean."""
    rows = np.arange(speeds.now.first, speeds.now.last + 1)
    rows = rows[intervals.steady[rows]] if intervals.steady[rows].any() else rows
    steps, seconds = intervals.steps[rows], intervals.work_seconds[rows]
    age = steps[::-1].cumsum()[::-1] - steps / 2
    weight = 0.5 ** (age / (_HALF_LIFE * steps.sum()))
    stretch, block = blocks_of(steps, seconds)
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
    stretch, block = blocks_of(intervals.steps[rows], intervals.work_seconds[rows])
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


_SILENT = 10.0  # typical intervals without a row after which the job may have stopped
_SILENT_SECONDS = 120.0


@dataclass(frozen=True)
class Eta:
    """What is foreseen of a running job, from its last row on.

    Attributes:
        name: of the log.
        done, total: in `unit` (steps or epochs); `length`: where the total comes from.
        intervals: what was seen; `outlook`: what is to come.
        last_s: the time of the last row; `now_s`: that from which the rest is counted; both in
            seconds since 1970, NaN where neither the log nor its file tells.
        silent: nothing came for so long that it may have stopped: what passed since the last row
            counts for nothing, and the rest is as long as if it went on at `now_s`.
        status, reason: of the log's end.
        notes: what a reader of the figures should know; `unknown`: what is not known.
    """

    name: str
    done: float
    total: float
    unit: str
    length: str
    intervals: Intervals
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
        since = self._since
        p05, p50, p95 = (max(0.0, s - since) for s in self.outlook.quantiles())
        return p05, p50, p95

    @property
    def finish_s(self) -> tuple[float, float, float] | None:
        """The same as times since 1970; None where no date is known."""
        if not np.isfinite(self.now_s):
            return None
        p05, p50, p95 = self.remaining_seconds
        return self.now_s + p05, self.now_s + p50, self.now_s + p95

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
        return self.outlook.missed(seconds + self._since)

    @property
    def _since(self) -> float:
        since = self.now_s - self.last_s
        return since if np.isfinite(since) and not self.silent else 0.0


def eta_of(
    series: LogSeries, length: JobLength | None = None, now_s: float | None = None, seed: int = 0
) -> Eta:
    """Return when a job will be done.

    Args:
        series: its log, or its logs joined.
        length: how long the job is; what is blank is taken from the log.
        now_s: the present time, seconds since 1970; None counts from the log's last row.
        seed: of the draws.

    Raises:
        RequestError: nobody says how long the job is, it is beyond that already, or the log does
            not say what time it was or how long a step took.
    """
    intervals = intervals_of(series)
    marks = intervals.marks
    done = float(marks.done[-1])
    total, source = length_of(series, marks, length or JobLength())
    if total < done * (1 - 1e-9):
        raise RequestError(
            f"a job of {total:,.6g} {marks.unit}",
            f"the log {series.name} is at {marks.unit[:-1]} {done:,.6g} already ({source})",
            "give a greater total, or check that both count the same",
        )  # fmt: skip
    outlook = remaining_of(intervals, total, seed)
    # Without dates in the log, its file's last write is the time of its last row.
    dated = series.absolute and marks.clocked
    last = float(marks.time_s[-1]) if dated else series.written_s
    # A log may be read long after its end, and its clock may be ahead of this machine's.
    now = last if now_s is None or not np.isfinite(last) else max(now_s, last)
    since = now - last if np.isfinite(last) else 0.0
    notes, silent = _notes(series, intervals, outlook, since, done >= total)
    if not dated and np.isfinite(last):
        notes.append("the log has no dates; its file's last write counts as the last row's time")
    return Eta(
        series.name, done, total, marks.unit, source, intervals, outlook, last,
        now, silent, series.status, series.reason, tuple(notes),
        tuple(_unknown(series, intervals, outlook)),
    )  # fmt: skip


def _notes(
    series: LogSeries, intervals: Intervals, outlook: RemainingTime, since: float, ended: bool
) -> tuple[list[str], bool]:
    """Return what to say beside the figures, and whether the log has been silent for too long."""
    unit = intervals.marks.unit
    notes = []
    if series.status != "ok":
        notes.append(
            f"the log ends with: {series.reason or series.status}; counted as if it went on"
        )
    typical = float(np.median(intervals.seconds))
    longest = float(np.max(intervals.seconds))
    silent = since > max(_SILENT * typical, 2 * longest, _SILENT_SECONDS) and not ended
    if silent:
        notes.append(
            f"no {unit[:-1]} for {format_seconds(since)}, where one row came every"
            f" {format_seconds(typical)}: it hangs, has stopped, or the log is old; counted as if"
            " it went on now"
        )
        since = 0.0
    speeds = outlook.speeds
    if len(speeds.segments) > 1:
        ago = float(intervals.end_s[-1]) - speeds.now.begin_s + since
        change = speeds.change - 1
        word = "slower" if change > 0 else "faster"
        notes.append(
            f"the speed changed {format_seconds(ago)} ago, at {unit[:-1]} {speeds.now.begin:,.6g}:"
            f" {abs(change):.0%} {word}; the new speed is used"
        )
    restarts = [g for g in intervals.gaps if g.restart]
    if restarts:
        redone = sum(g.redone for g in restarts)
        again = f"; {redone:,.6g} {unit} were done twice, and count once" if redone else ""
        away = format_seconds(sum(g.seconds for g in restarts))
        notes.append(f"started again {counted(len(restarts), 'time')}, {away} between{again}")
    if outlook.interruptions:
        notes.append(
            f"about {outlook.interruptions:.1f} further restarts are counted in, by those so far"
        )
    return [*notes, *intervals.marks.notes, *series.notes], silent


def _unknown(series: LogSeries, intervals: Intervals, outlook: RemainingTime) -> list[str]:
    """Return what would make the answer surer and nobody told."""
    found = []
    if not intervals.marks.clocked:
        found.append("the log has no times, so pauses and gaps are not known")
    elif not outlook.pauses:
        found.append(
            "no evaluation or checkpoint has come yet; what one takes is a guess of the band"
        )
    single = [p for p in outlook.pauses if len(p.at) == 1]
    if single:
        found.append(f"one {single[0].kind} was seen so far: how often it comes is a guess")
    if len([g for g in intervals.gaps if g.restart]) == 1:
        found.append("one restart was seen: whether more will come is a guess")
    return found
