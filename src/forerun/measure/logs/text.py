"""Text: a plain log read line by line: steps by pattern, their times, and what it says beside them."""

from __future__ import annotations

import ast
import itertools
import math
import re
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from forerun.errors import RequestError
from forerun.measure.logs.files import head_of, is_text, lines_of, written_s
from forerun.measure.logs.series import (
    CHECKPOINT,
    EVALUATION,
    RESTART,
    Fact,
    LogSeries,
    SeriesBuilder,
    clock_resolution,
    column_of,
    put,
    vocabulary,
)  # fmt: skip

# Numbers as they are printed: grouped, with an exponent.
_N = r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_SHORT = {"K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
_TOGETHER = ("time", "time_unit", "rate", "rate_unit", "memory", "memory_unit", "clock", "clock2",
             "epoch_number", "epoch_from_one", "last_epoch", "percent")  # fmt: skip
Row = dict[str, float]


def _compiled(text: str, flags: re.RegexFlag) -> re.Pattern[str]:
    for name, number in (("NAN", rf"(?:{_N}|nan|inf|-inf)"), ("N", _N), ("I", r"(\d[\d,]*)")):
        text = text.replace(f"{{{name}}}", number)
    return re.compile(text, flags)


@dataclass(frozen=True)
class Pattern:
    """One kind of line, by an expression whose groups are columns with their units (`step_time_ms`).

    `more` are (word, expression) of what may stand elsewhere in the line in lower case.
    """

    name: str
    expression: re.Pattern[str]
    hints: tuple[str, ...] = ()
    example: str = ""
    shortened: bool = False
    zero_based: bool = False
    more: tuple[tuple[str, re.Pattern[str]], ...] = ()

    def row(self, line: str) -> Row | None:
        """Return what a line says, steps counted as done; None where it is no such line."""
        if not all(hint in line for hint in self.hints):
            return None
        match = self.expression.search(line)
        if match is None:
            return None
        groups: dict[str, str] = {}
        lowered = line.lower() if self.more else ""
        for found in (match, *(e.search(lowered) for word, e in self.more if word in lowered)):
            for key, text in {} if found is None else found.groupdict().items():
                if text is not None:
                    groups.setdefault(key, text)
        row: Row = {}
        for key, text in groups.items():
            if key not in _TOGETHER:
                put(row, key, number(text, self.shortened))
        _put_together(row, groups)
        for name in {"step", "in_epoch"} & row.keys() if self.zero_based else ():
            row[name] += 1
        return {k: v for k, v in row.items() if v == v}


def _put_together(row: Row, groups: Mapping[str, str]) -> None:
    for name, key in (("time", "step_time"), ("memory", "memory")):
        if unit := groups.get(f"{name}_unit", "").replace("\u00b5", "u"):
            put(row, f"{key}_{unit}", number(groups[name]))
    if groups.get("rate") and groups.get("rate_unit"):
        key = "step_time_s" if groups["rate_unit"] == "s/it" else "it_per_s"
        put(row, key, number(groups["rate"]))
    if clock := groups.get("clock") or groups.get("clock2"):
        row["elapsed_s"] = 0.0
        for part in clock.split(":"):
            row["elapsed_s"] = row["elapsed_s"] * 60 + float(part or 0)
    for name, first in (("epoch_number", 0), ("epoch_from_one", 1)):
        if name in groups:
            row["epochs_before"] = number(groups[name]) - first
    if "last_epoch" in groups:
        row["total_epochs"] = number(groups["last_epoch"]) + 1


def number(text: str, shortened: bool = False) -> float:
    """Return a printed number, NaN where it is none; `shortened` ones may end in K, M, B or T."""
    text = text.strip().replace(",", "")
    factor = _SHORT.get(text[-1:], 1.0) if shortened else 1.0
    try:
        return float(text if factor == 1 else text[:-1]) * factor
    except ValueError:
        return float("nan")


def _of_table(entry: Mapping[str, Any], flags: re.RegexFlag = re.VERBOSE) -> Pattern:
    return Pattern(
        entry["name"], _compiled(entry["expression"], flags), tuple(entry.get("hints", ())),
        entry["example"], entry.get("shortened", False), entry.get("zero_based", False),
        tuple((word, _compiled(e, re.NOFLAG)) for word, e in entry.get("more", ())),
    )  # fmt: skip


_TABLE = vocabulary()
SPECIFIC: tuple[Pattern, ...] = tuple(map(_of_table, _TABLE["programs"]))
GENERIC = _of_table(_TABLE["generic"])
_FACTS = tuple((w.lower(), _compiled(e, re.IGNORECASE), name) for w, e, name in _TABLE["facts"])
_BITS = {"evaluation": EVALUATION, "checkpoint": CHECKPOINT, "restart": RESTART}
_EVENTS = tuple((_BITS[n], re.compile(e)) for n, e in _TABLE["events"].items())
_ENDINGS = {status: re.compile(e) for status, e in _TABLE["endings"].items()}
_RANKS = {"ok": 0, "failed": 1, "timeout": 2, "oom": 3}
_EPOCH = re.compile(r"^\W{0,3}Epoch:?\s+(\d+)\s*/\s*(\d+)\s*:?\s*$")


def own_pattern(text: str) -> Pattern:
    """Return the pattern of a user's own expression. Raises RequestError."""
    asked = f"--pattern '{text}'"
    try:
        expression = re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        found, at = f"it is no regular expression: {error}", getattr(error, "pos", None)
        if at is not None:
            first = text.rfind("\n", 0, at) + 1
            found += f"\n    {text[first:].splitlines()[0]}\n    {' ' * (at - first)}^"
        raise RequestError(asked, found, "correct it, and try it on one line of the log") from None
    names = set(expression.groupindex)
    if not {(column_of(n) or (n, 1.0))[0] for n in names} & {"step", "epoch", "in_epoch"}:
        found = f"its named groups are {', '.join(sorted(names)) or 'none'}"
        example = r"'step (?P<step>\d+) took (?P<step_time_ms>[\d.]+)'"
        raise RequestError(
            asked, found, f"name a group for the step (or the epoch), e.g. {example}"
        )
    for name, better in (("time", "step_time_ms"), ("memory", "memory_mib")):
        if name in names and f"{name}_unit" not in names:
            todo = f"name it with its unit, e.g. {better}"
            raise RequestError(asked, f"the group {name!r} has no unit", todo)
    return Pattern("your pattern", expression)


def event_in(line: str) -> int:
    """Return what a line tells of evaluation, checkpoints and restarts, as bits."""
    lowered = line.lower()
    if not any(word in lowered for word in _TABLE["event_words"]):
        return 0
    return sum(bit for bit, expression in _EVENTS if expression.search(lowered))


class Ending:
    """How a log ends: an error counts where no further step follows it."""

    status, reason = "ok", ""

    def line(self, text: str) -> None:
        """Look at one line that is no step."""
        if not any(word in text for word in _TABLE["ending_words"]):
            return
        status = next((s for s, expression in _ENDINGS.items() if expression.search(text)), "ok")
        # The traceback's last line names the error, so of equals the newest one counts.
        if status != "ok" and _RANKS[status] >= _RANKS[self.status]:
            self.status, self.reason = status, text.strip()[:200]

    def went_on(self) -> None:
        """Forget what was seen: a step has followed."""
        self.status, self.reason = "ok", ""


_HF_DICTIONARY = "huggingface"  # read as a literal, not by an expression
_LOOKED_AT = 5000  # lines at each end of a log by which its program is known
_DONE = 0.95  # of its length: a bar that begins again from there was finished
_WITHIN = 160  # characters at a line's beginning in which its time stands
_TIME = (
    r"(?P<hour>[01]\d|2[0-3]):(?P<minute>[0-5]\d):(?P<second>[0-5]\d)(?:[.,](?P<fraction>\d{1,9}))?"
)
# With a date; glog's and short ones, with month and day (and year); a clock alone.
_FULL = re.compile(
    rf"(?P<year>\d{{4}})[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T ,_]\s?{_TIME}"
    r"\s?(?P<zone>Z\b|UTC\b|GMT\b|[+-]\d\d:?\d\d\b)?"
)
_GLOG = re.compile(rf"^\W{{0,2}}[IWEF](?P<month>\d\d)(?P<day>\d\d) {_TIME}")
_SHORT_DATE = re.compile(
    rf"^\W{{0,3}}(?P<month>\d\d)[/-](?P<day>\d\d)(?:[/-](?P<year>\d\d))? {_TIME}"
)
_CLOCK = re.compile(rf"^\W{{0,3}}{_TIME}(?=[\s\]),|])")
_DAY = 86400.0


class TimeStamps:
    """Reads the time of each line, without a date from the first midnight on, without a zone as local."""

    absolute, _day, _last = False, 0.0, math.nan

    def read(self, line: str) -> float:
        """Return the line's time in seconds, NaN where it has none."""
        head = line[:_WITHIN]
        match = _FULL.search(head) or _GLOG.search(head) or _SHORT_DATE.search(head)
        if match is not None:
            found = match.groupdict()
            year = int(found.get("year") or datetime.now().year)
            zone = (found.get("zone") or "").replace("UTC", "Z").replace("GMT", "Z")
            clock = f"{found['hour']}:{found['minute']}:{found['second']}"
            rest = f"{found['month']}-{found['day']}T{clock}{zone}"
            seconds = iso_seconds(f"{year + 2000 if year < 100 else year:04d}-{rest}")
            if not found.get("year") and seconds > time.time() + _DAY:  # the last such date
                seconds = iso_seconds(f"{year - 1}-{rest}")
            self.absolute = self.absolute or not math.isnan(seconds)
            return seconds + float(f"0.{found['fraction'] or 0}")
        match = None if self.absolute else _CLOCK.search(head)
        if match is None:
            return math.nan
        hour, minute, second = (int(match[name]) for name in ("hour", "minute", "second"))
        now = 3600 * hour + 60 * minute + second + float(f"0.{match['fraction'] or 0}")
        if now + self._day < self._last - _DAY / 2:
            self._day += _DAY
        self._last = now + self._day
        return self._last


def iso_seconds(text: str) -> float:
    """Return the seconds since 1970 of a time in ISO 8601 (local without a zone), NaN where it is none."""
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        return math.nan


# What a bar's description says of it: that it is no training, and which epoch it is, of how many.
_ASIDE = re.compile(r"(?i)\b(?:val|valid\w*|eval\w*|test|testing|sanity|predict\w*)\b")
_NUMBERED = re.compile(r"(?i)\bepoch\W{0,3}(\d+)(?:\s*(?:/|of)\s*(\d+))?")


class ProgressBars:
    """Keeps the longest bar as training's, over epochs; a shorter one is an evaluation, or counts the epochs."""

    _length = _offset = _last = 0.0
    _below = False  # whether this bar was seen before its end
    _number, _from = math.nan, 0.0  # of this epoch, by its description, and of the first one
    _epochs = 0.0  # in all, by a description or the bar around
    counts_epochs = False  # whether the last row that was none of training's counted epochs
    _no_epochs = 0.0  # the length of shorter bars that do not count epochs
    # Seconds: of the bars before, by this bar, by others since, by the one of them that runs, by the bar around.
    _before = _elapsed = _between = _other = _around = 0.0

    def row(self, row: Row, description: str) -> bool:
        """Turn a bar's row into one of the whole job; return False where it is another bar."""
        length, count = row.pop("total_steps", 0.0), row.get("step", 0.0)
        elapsed = row.get("elapsed_s", 0.0)
        aside = _ASIDE.search(description) is not None
        if aside or length < self._length:
            self.counts_epochs = not aside and self._counts_epochs(length, count)
            if self.counts_epochs:
                self._around, self._other, self._between = elapsed, 0.0, 0.0
                return False
            self._between += self._other if elapsed < self._other else 0.0
            self._other = elapsed
            return False
        if length > self._length:
            self._length, self._offset, self._last = length, 0.0, 0.0
        fell, ended = count < self._last, self._last >= _DONE * length
        begins = (fell and ended) or (count == self._last == length > 0 and not self._below)
        numbered = _NUMBERED.search(description)
        if numbered is not None and self._at_epoch(float(numbered[1]), float(numbered[2] or 0)):
            begins = True
        elif begins and (
            fell or numbered is None
        ):  # Lightning resets a bar, and then its description
            self._offset += length or self._last
        if begins or fell or elapsed < self._elapsed:
            self._before += self._elapsed + self._between + self._other
            self._before = max(self._before, self._around)
        self._below = count < length or (self._below and not begins)
        self._last, self._elapsed, self._between, self._other = count, elapsed, 0.0, 0.0
        row["step"] = self._offset + count
        if "elapsed_s" in row:
            row["elapsed_s"] = self._before + elapsed
        return True

    def _counts_epochs(self, length: float, count: float) -> bool:
        """Return whether a shorter bar, so far, has counted one for each of the longest ones that began."""
        if count == 0 or length in (1.0, self._no_epochs):
            return False
        begun = self._offset // self._length + (self._last > 0)
        if count not in (begun, begun - 1):
            self._no_epochs = length
            self._epochs *= length != self._epochs
            return False
        self._epochs = length
        if count == begun:
            self._last = self._length  # a bar that is cleared does not show its end
        return True

    def _at_epoch(self, number: float, epochs: float) -> bool:
        """Take an epoch's number from its description; return whether it begins."""
        begins = number != self._number
        if math.isnan(self._number) or number < self._from:
            # Lightning counts from 0; who writes `Epoch 1` first, or how many there are, from 1.
            self._from = float(number == 1 or (epochs > 0 and number > 0))
        self._number, self._epochs = number, epochs or self._epochs
        self._offset = (number - self._from) * self._length
        return begins

    def facts(self, facts: dict[str, Fact]) -> dict[str, Fact]:
        """Return facts with the length that the bars tell: of the job, or of an epoch."""
        if self._epochs:
            facts = {"total_epochs": self._epochs, **facts}
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
    """Return the one run of a plain log, by an expression or the built-in ones. Raises RequestError."""
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
    asked = f"reading {path}"
    first = [line.strip()[:100] for line in itertools.islice(filter(str.strip, lines), 3)]
    if not first:
        raise RequestError(asked, "it is empty", "wait until the job has logged steps")
    names = dict.fromkeys((*(p.name for p in SPECIFIC), _HF_DICTIONARY, GENERIC.name))
    tried = "your pattern" if pattern else f"the patterns of {', '.join(names)}"
    raise RequestError(
        asked, f"no line has a step by {tried}; it begins: {' | '.join(first)}",
        "give an expression of your own with named groups, for example --pattern"
        r" 'step (?P<step>\d+).*?(?P<step_time_ms>[\d.]+) ms.*?loss (?P<loss>[\d.]+)'",
    )  # fmt: skip


class _Lines:
    def __init__(self, patterns: tuple[Pattern, ...], dictionaries: bool) -> None:
        self.patterns, self.dictionaries = patterns, dictionaries
        self.gathered, self.ending, self.stamps = SeriesBuilder(), Ending(), TimeStamps()
        self.bars, self.by, self.rows = ProgressBars(), Counter[str](), 0
        self._epoch = 0  # passes done before the current one, by the log's own headings
        self._length = float("nan")

    def read(self, line: str) -> None:
        seconds = self.stamps.read(line)
        row = self._row(line)
        if row:
            if not math.isnan(seconds):
                row["time_s"] = seconds
            self.rows += 1
            self.ending.went_on()
            length = row.get("steps_per_epoch", self._length)
            if "in_epoch" in row:
                self._length = length
                before = row.pop("epochs_before", float(self._epoch))
                in_epoch = row.pop("in_epoch")
                if length == length:
                    row.setdefault("step", before * length + in_epoch)
            self.gathered.row(row)
            return
        self.ending.line(line)
        facts, lowered = self.gathered.facts, line.lower()
        for word, expression, name in _FACTS:
            if word in lowered and (match := expression.search(line)):
                facts[name] = match[1].strip() if name == "device" else number(match[1])
        if "poch" in line and (match := _EPOCH.search(line)):
            self._epoch, facts["total_epochs"] = int(match[1]) - 1, float(match[2])
        else:
            self.gathered.event(event_in(line))

    def _row(self, line: str) -> Row | None:
        if self.dictionaries and (row := _dictionary(line)) is not None:
            self.by[_HF_DICTIONARY] += 1
            if "eval_seconds" in row or "eval_loss" in row:
                row.pop("step", None)
            return None if self.gathered.is_summary(row) else row
        for pattern in self.patterns:
            row = pattern.row(line)
            if row is None:
                continue
            self.by[pattern.name] += 1
            if pattern is GENERIC:
                # A line may name a step only to say what else was done there.
                event, bare = event_in(line), not set(row) - {"step", "total_steps", "epoch"}
                return None if event & RESTART or (event and bare) else row
            if pattern.name == "tqdm" and not self.bars.row(row, line.rpartition("%|")[0]):
                self.gathered.event(0 if self.bars.counts_epochs else EVALUATION)
                return None
            return row
        return None

    def series(self, path: Path) -> LogSeries:
        columns = self.gathered.columns()
        facts = self.bars.facts(self.gathered.facts)
        elapsed = columns.pop("elapsed_s", None)
        if "time_s" not in columns and elapsed is not None:
            # A bar's clock as one that never goes back: a bar that begins again goes on.
            out, known = elapsed.copy(), ~np.isnan(elapsed)
            before = np.r_[0.0, elapsed[known][:-1]]
            out[known] += np.cumsum(np.where(out[known] < before, before, 0.0))
            columns["time_s"] = out
        total, epochs = facts.get("total_steps"), facts.get("total_epochs")
        per_epoch = facts.get("steps_per_epoch")
        if per_epoch is None and isinstance(total, float) and isinstance(epochs, float) and epochs:
            per_epoch = total / epochs
        if "epoch" in columns and isinstance(per_epoch, float):
            steps = np.round(columns["epoch"] * per_epoch)
            stated = columns.get("step", np.full(len(steps), np.nan))
            columns["step"] = np.where(np.isnan(stated), steps, stated)
        names = [name for name, _ in self.by.most_common()]
        return LogSeries(
            name=path.stem, reader="text", paths=(str(path),), columns=columns, facts=facts,
            status=self.ending.status, reason=self.ending.reason, absolute=self.stamps.absolute,
            resolution_s=clock_resolution(columns.get("time_s", ())), written_s=written_s(path),
            notes=(f"read as lines of {' and '.join(names)}",) if names else (),
        )  # fmt: skip


def _dictionary(line: str) -> Row | None:
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
        with suppress(TypeError, ValueError):
            put(row, str(key), float(value))
    return row
