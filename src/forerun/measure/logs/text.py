"""Text: a plain log read line by line: steps by pattern, their times, and what it says beside them."""

from __future__ import annotations

import ast
import itertools
import math
import re
import time
from datetime import datetime
from pathlib import Path

import numpy as np

from forerun.arrays import FloatArray
from forerun.errors import RequestError
from forerun.measure.logs.files import head_of, is_text, lines_of, written_s
from forerun.measure.logs.patterns import (
    GENERIC,
    SPECIFIC,
    Ending,
    Pattern,
    Row,
    epoch_in,
    event_in,
    facts_in,
    own_pattern,
)  # fmt: skip
from forerun.measure.logs.series import (
    EVALUATION,
    RESTART,
    Fact,
    LogSeries,
    SeriesBuilder,
    clock_resolution,
    put,
)  # fmt: skip

_HF_DICTIONARY = "huggingface"  # read as a literal, not by an expression
_SHOWN_LINES = 3
_LOOKED_AT = 5000  # lines at each end of a log by which its program is known
_DONE = 0.95  # of its length: a bar that begins again from there was finished
_WITHIN = 160  # characters at a line's beginning in which its time stands
_TIME = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
# With a date; glog's and short ones, with month and day (and year); a clock alone.
_FULL = re.compile(
    rf"(?P<year>\d{{4}})[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T ,_]\s?{_TIME}"
    r"\s?(?P<zone>Z\b|UTC\b|GMT\b|[+-]\d\d:?\d\d\b)?"
)
_GLOG = re.compile(rf"^\W{{0,2}}[IWEF](?P<month>\d\d)(?P<day>\d\d) {_TIME}")
_SHORT = re.compile(rf"^\W{{0,3}}(?P<month>\d\d)[/-](?P<day>\d\d)(?:[/-](?P<year>\d\d))? {_TIME}")
_CLOCK = re.compile(rf"^\W{{0,3}}{_TIME}(?=[\s\]),|])")
_DAY = 86400.0


class TimeStamps:
    """Reads the time of each line of one log, from its first line on.

    A stamp without a zone is of this machine's zone, as the loggers write it. A stamp without a
    date goes on to the next day where it falls back by more than half a day; it counts from the
    first day's midnight (`absolute` stays False).
    """

    def __init__(self) -> None:
        self.absolute = False
        self._day = 0.0
        self._last = math.nan

    def read(self, line: str) -> float:
        """Return the line's time in seconds, NaN where it has none."""
        head = line[:_WITHIN]
        match = _FULL.search(head) or _GLOG.search(head) or _SHORT.search(head)
        if match is None and not self.absolute:
            match = _CLOCK.search(head)
        if match is None:
            return math.nan
        found = match.groupdict()
        clock = f"{found['hour']}:{found['minute']}:{found['second']}"
        fraction = float(f"0.{found['fraction'] or 0}")
        if "day" in found:
            seconds = _date_seconds(found, clock)
            self.absolute = self.absolute or not math.isnan(seconds)
            return seconds + fraction
        # The clock of a first day, which lies beyond changes to summer time.
        now = iso_seconds(f"2001-01-03T{clock}Z") - iso_seconds("2001-01-03T00:00Z") + fraction
        if now + self._day < self._last - _DAY / 2:
            self._day += _DAY
        if not math.isnan(now):
            self._last = now + self._day
        return now + self._day


def _date_seconds(found: dict[str, str | None], clock: str) -> float:
    """Return the seconds since 1970 of a date and its clock, NaN where there is none such.

    Without a year it is this one, or the last where that is in the future.
    """
    year = int(found.get("year") or datetime.now().year)
    zone = (found.get("zone") or "").replace("UTC", "Z").replace("GMT", "Z")
    rest = f"{found['month']}-{found['day']}T{clock}{zone}"
    seconds = iso_seconds(f"{year + 2000 if year < 100 else year:04d}-{rest}")
    if not found.get("year") and seconds > time.time() + _DAY:
        seconds = iso_seconds(f"{year - 1}-{rest}")
    return seconds


def iso_seconds(text: str) -> float:
    """Return the seconds since 1970 of a time in ISO 8601, NaN where it is none.

    Without a zone it is of this machine's zone.
    """
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        return math.nan


class ProgressBars:
    """Keeps the longest bar as the one of training; a shorter one within it is an evaluation.

    A bar that begins again after its end is the next epoch's, so its steps go on.
    """

    def __init__(self) -> None:
        self._length = 0.0
        self._offset = 0.0
        self._last = 0.0

    def row(self, row: Row) -> bool:
        """Turn a bar's row into one of the whole job; return False where it is another bar."""
        length, count = row.pop("total_steps", 0.0), row.get("step", 0.0)
        if length < self._length:
            return False
        if length > self._length:
            self._length, self._offset = length, 0.0
        elif count < self._last and self._last >= _DONE * length:
            self._offset += length
        self._last = count
        row["step"] = self._offset + count
        return True

    def facts(self, facts: dict[str, Fact]) -> dict[str, Fact]:
        """Return facts with the length that the bars tell: of the job, or of an epoch."""
        epochs = facts.get("total_epochs")
        if not self._length:
            return facts
        if isinstance(epochs, float):
            total = self._length * epochs
            return {"steps_per_epoch": self._length, "total_steps": total, **facts}
        return {"steps_per_epoch" if self._offset else "total_steps": self._length, **facts}


def accepts(path: Path) -> bool:
    """Return whether a file may be a plain log."""
    return path.is_file() and is_text(head_of(path))


def read(path: Path, pattern: str = "") -> tuple[LogSeries, ...]:
    """Return the one run of a plain log.

    `pattern` is a regular expression of one's own; "" tries the built-in ones. Raises RequestError
    where the file cannot be read or is not text, it is empty, no line has a step, or the expression
    is none.
    """
    lines = list(lines_of(path))
    patterns: tuple[Pattern, ...] = (own_pattern(pattern),) if pattern else (GENERIC,)
    ends = (*lines[:_LOOKED_AT], *lines[max(_LOOKED_AT, len(lines) - _LOOKED_AT) :])
    usual = not pattern and any(
        _dictionary(line) is not None or any(p.row(line) is not None for p in SPECIFIC)
        for line in ends
    )
    found = _Lines(SPECIFIC if usual else patterns, usual)
    for line in lines:
        found.read(line)
    if found.rows or found.ending.status != "ok":
        return (found.series(path),)
    first = [
        line.strip()[:100] for line in itertools.islice(filter(str.strip, lines), _SHOWN_LINES)
    ]
    if not first:
        raise RequestError(f"reading {path}", "it is empty", "wait until the job has logged steps")
    names = dict.fromkeys((*(p.name for p in SPECIFIC), _HF_DICTIONARY, GENERIC.name))
    tried = "your pattern" if pattern else f"the patterns of {', '.join(names)}"
    own = r"--pattern 'step (?P<step>\d+).*?(?P<step_time_ms>[\d.]+) ms.*?loss (?P<loss>[\d.]+)'"
    raise RequestError(
        f"reading {path}",
        f"no line has a step by {tried}; it begins: {' | '.join(first)}",
        f"give an expression of your own with named groups, for example {own}",
    )


class _Lines:
    """What the lines of one log come to, under some patterns."""

    def __init__(self, patterns: tuple[Pattern, ...], dictionaries: bool) -> None:
        self.patterns, self.dictionaries = patterns, dictionaries
        self.gathered, self.ending, self.stamps = SeriesBuilder(), Ending(), TimeStamps()
        self.bars = ProgressBars()
        self.by: dict[str, int] = {}
        self.rows = 0
        self._epoch = 0  # passes done before the current one, by the log's own headings
        self._length = float("nan")

    def read(self, line: str) -> None:
        """Read one line: a step's, or one beside them."""
        seconds = self.stamps.read(line)
        row = self._row(line)
        if row:
            if not math.isnan(seconds):
                row["time_s"] = seconds
            self.rows += 1
            self.ending.went_on()
            self._add(row)
            return
        self.ending.line(line)
        self.gathered.facts.update(facts_in(line))
        opened = epoch_in(line)
        if opened is not None:
            self._epoch = opened[0] - 1
            self.gathered.facts["total_epochs"] = float(opened[1])
        else:
            self.gathered.event(event_in(line))

    def _row(self, line: str) -> Row | None:
        """Return what a line says of a step, None where it speaks of none."""
        if self.dictionaries and (row := _dictionary(line)) is not None:
            self.by[_HF_DICTIONARY] = self.by.get(_HF_DICTIONARY, 0) + 1
            if "eval_seconds" in row or "eval_loss" in row:
                row.pop("step", None)
            return None if self.gathered.is_summary(row) else row
        for pattern in self.patterns:
            row = pattern.row(line)
            if row is None:
                continue
            self.by[pattern.name] = self.by.get(pattern.name, 0) + 1
            if pattern is GENERIC:
                # A line may name a step only to say what else was done there.
                event, bare = event_in(line), not set(row) - {"step", "total_steps", "epoch"}
                return None if event & RESTART or (event and bare) else row
            if pattern.name == "tqdm" and not self.bars.row(row):
                self.gathered.event(EVALUATION)
                return None
            return row
        return None

    def _add(self, row: Row) -> None:
        """Add a row, its place within an epoch turned into a step."""
        length = row.get("steps_per_epoch", self._length)
        if "in_epoch" in row:
            self._length = length
            before = row.pop("epochs_before", float(self._epoch))
            in_epoch = row.pop("in_epoch")
            if length == length:
                row.setdefault("step", before * length + in_epoch)
        self.gathered.row(row)

    def series(self, path: Path) -> LogSeries:
        """Return the log's series."""
        columns = self.gathered.columns()
        facts = self.bars.facts(self.gathered.facts)
        elapsed = columns.pop("elapsed_s", None)
        if "time_s" not in columns and elapsed is not None:
            columns["time_s"] = _running(elapsed)
        columns = _steps_of_epochs(columns, facts)
        names = sorted(self.by, key=lambda name: -self.by[name])
        return LogSeries(
            name=path.stem, reader="text", paths=(str(path),), columns=columns, facts=facts,
            status=self.ending.status, reason=self.ending.reason, absolute=self.stamps.absolute,
            resolution_s=clock_resolution(columns.get("time_s", ())), written_s=written_s(path),
            notes=(f"read as lines of {' and '.join(names)}",) if names else (),
        )  # fmt: skip


def _dictionary(line: str) -> Row | None:
    """Return the numbers of a dictionary that HuggingFace's Trainer prints, None where it is none."""
    start, end = line.find("{'"), line.rfind("}")
    if start < 0 or end < start or not any(w in line for w in ("loss'", "epoch'", "_runtime'")):
        return None
    try:
        found = ast.literal_eval(line[start : end + 1].replace(": nan", ": None"))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    row: Row = {}
    for key, value in found.items():
        try:
            put(row, str(key), float(value))
        except (TypeError, ValueError):
            continue
    return row


def _running(elapsed: FloatArray) -> FloatArray:
    """Return a bar's clock (n,) as one that never goes back: a bar that begins again goes on."""
    known = np.flatnonzero(~np.isnan(elapsed))
    values = elapsed[known]
    before = np.r_[0.0, values[:-1]]
    out = np.full(len(elapsed), np.nan)
    out[known] = values + np.cumsum(np.where(values < before, before, 0.0))
    return out


def _steps_of_epochs(
    columns: dict[str, FloatArray], facts: dict[str, Fact]
) -> dict[str, FloatArray]:
    """Fill steps from epochs where the log says how many steps all the epochs have."""
    total, epochs = facts.get("total_steps"), facts.get("total_epochs")
    per_epoch = facts.get("steps_per_epoch")
    if per_epoch is None and isinstance(total, float) and isinstance(epochs, float) and epochs:
        per_epoch = total / epochs
    if "epoch" not in columns or not isinstance(per_epoch, float):
        return columns
    known = columns.get("step", np.full(len(columns["epoch"]), np.nan))
    steps = np.where(np.isnan(known), np.round(columns["epoch"] * per_epoch), known)
    return {**columns, "step": steps}
