"""ETA: when a running job will be done, from its log: with its band, its cost and what is unknown."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forerun.errors import RequestError
from forerun.measure.logs.length import Ask, length_of
from forerun.measure.logs.outlook import Outlook, outlook_of
from forerun.measure.logs.series import LogSeries
from forerun.measure.logs.steady import Intervals, intervals_of
from forerun.units import counted, format_seconds

_SILENT = 10.0  # typical intervals without a row after which the job may have stopped
_SILENT_SECONDS = 120.0
_NEWS_SHARE = 0.25  # of what was seen: a change of speed that is newer is told first


@dataclass(frozen=True)
class Eta:
    """What is foreseen of a running job, from its last row on.

    Attributes:
        name: of the log.
        done, total: in `unit` (steps or epochs); `length`: who says the total.
        intervals: what was seen; `outlook`: what is to come.
        last_s: the time of the last row; `now_s`: that from which the rest is counted; both in
            seconds since 1970, NaN where neither the log nor its file tells.
        silent: nothing came for so long that it may have stopped: what passed since the last row
            counts for nothing, and the rest is as long as if it went on at `now_s`.
        status, reason: of the log's end.
        notes: what a reader of the figures should know; `unknown`: what nobody told.
    """

    name: str
    done: float
    total: float
    unit: str
    length: str
    intervals: Intervals
    outlook: Outlook
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
    series: LogSeries, ask: Ask | None = None, now_s: float | None = None, seed: int = 0
) -> Eta:
    """Return when a job will be done.

    Args:
        series: its log, or its logs joined.
        ask: how long the job is; what is blank is taken from the log.
        now_s: the present time, seconds since 1970; None counts from the log's last row.
        seed: of the draws.

    Raises:
        RequestError: nobody says how long the job is, it is beyond that already, or the log does
            not say what time it was or how long a step took.
    """
    intervals = intervals_of(series)
    marks = intervals.marks
    done = float(marks.done[-1])
    length = length_of(series, marks, ask or Ask())
    if length.total < done * (1 - 1e-9):
        raise RequestError(
            f"a job of {length.total:,.6g} {marks.unit}",
            f"the log {series.name} is at {marks.unit[:-1]} {done:,.6g} already ({length.source})",
            "give a greater total, or check that both count the same",
        )  # fmt: skip
    outlook = outlook_of(intervals, length.total, seed)
    # Without dates in the log, its file's last write is the time of its last row.
    dated = series.absolute and marks.clocked
    last = float(marks.time_s[-1]) if dated else series.written_s
    # A log may be read long after its end, and its clock may be ahead of this machine's.
    now = last if now_s is None or not np.isfinite(last) else max(now_s, last)
    since = now - last if np.isfinite(last) else 0.0
    notes, silent = _notes(series, intervals, outlook, since, done >= length.total)
    if not dated and np.isfinite(last):
        notes.append("the log has no dates; its file's last write counts as the last row's time")
    return Eta(
        series.name, done, length.total, marks.unit, length.source, intervals, outlook, last,
        now, silent, series.status, series.reason, tuple(notes),
        tuple(_unknown(series, intervals, outlook)),
    )  # fmt: skip


def _notes(
    series: LogSeries, intervals: Intervals, outlook: Outlook, since: float, ended: bool
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


def _unknown(series: LogSeries, intervals: Intervals, outlook: Outlook) -> list[str]:
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
