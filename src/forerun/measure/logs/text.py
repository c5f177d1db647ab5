"""Text: a plain log read line by line: steps by pattern, and what it says beside them.

Bars: progress bars of tqdm in a log: which of several counts steps, and bars for each epoch.

Matched: the groups of a line that a pattern matched, as a row in the units of a series.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from forerun.errors import RequestError
from forerun.measure.logs.keys import column_of, gigabytes_in, seconds_in
from forerun.measure.logs.opening import head_of, is_text, lines_of, written_s
from forerun.measure.logs.patterns import (
    GENERIC,
    GENERIC_MORE,
    HF_DICTIONARY,
    NAMES,
    SPECIFIC,
    Pattern,
)
from forerun.measure.logs.said import Ending, epoch_in, event_in, facts_in
from forerun.measure.logs.series import (
    EVALUATION,
    RESTART,
    Fact,
    Gathered,
    LogSeries,
    clock_resolution,
)
from forerun.measure.logs.stamps import Stamps
from forerun.pointing import pointed

Row = dict[str, float]
_SHORT = {"K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
_TOGETHER = ("time", "time_unit", "rate", "rate_unit", "memory", "memory_unit", "clock", "clock2",
             "epoch_number", "epoch_from_one", "percent")  # fmt: skip


def row_of(match: re.Match[str], pattern: Pattern, line: str) -> Row:
    """Return what a matched line says, steps counted as done."""
    groups = {k: v for k, v in match.groupdict().items() if v is not None}
    row: Row = {}
    if pattern is GENERIC:
        lowered = line.lower()
        for word, more in GENERIC_MORE:
            found = more.search(line) if word in lowered else None
            if found is not None:
                for key, value in found.groupdict().items():
                    groups.setdefault(key, value)
    for key, text in groups.items():
        if key not in _TOGETHER:
            column, factor = column_of(key) or (key, 1.0)
            _put(row, column, number(text, pattern.shortened) * factor)
    _measured_together(row, groups)
    if pattern.zero_based and "step" in row:
        row["step"] += 1
    if pattern.zero_based and "in_epoch" in row:
        row["in_epoch"] += 1
    if "epoch_number" in groups:
        row["epochs_before"] = number(groups["epoch_number"])
    if "epoch_from_one" in groups:
        row["epochs_before"] = number(groups["epoch_from_one"]) - 1
    return {k: v for k, v in row.items() if v == v}


def _measured_together(row: Row, groups: dict[str, str]) -> None:
    """Read the numbers whose unit stands beside them, and a bar's clock."""
    if "time" in groups and "time_unit" in groups:
        unit = groups["time_unit"].replace("\u00b5", "u")
        row["step_time_s"] = number(groups["time"]) * seconds_in(unit)
    if "memory" in groups and "memory_unit" in groups:
        row["memory_gb"] = number(groups["memory"]) * gigabytes_in(groups["memory_unit"])
    if groups.get("rate") and groups.get("rate_unit"):
        rate = number(groups["rate"])
        if rate > 0:
            row["step_time_s"] = rate if groups["rate_unit"] == "s/it" else 1 / rate
    clock = groups.get("clock") or groups.get("clock2")
    if clock:
        row["elapsed_s"] = _clock_seconds(clock)


def _put(row: Row, column: str, value: float) -> None:
    if column == "steps_per_s":
        if value > 0:
            row["step_time_s"] = 1 / value
    else:
        row[column] = value


def _clock_seconds(text: str) -> float:
    seconds = 0.0
    for part in text.split(":"):
        seconds = seconds * 60 + (float(part) if part else 0.0)
    return seconds


def number(text: str, shortened: bool = False) -> float:
    """Return a printed number, NaN where it is none; `shortened` ones may end in K, M, B or T."""
    text = text.strip()
    factor = 1.0
    if shortened and text and text[-1] in _SHORT:
        factor, text = _SHORT[text[-1]], text[:-1]
    try:
        return float(text.replace(",", "")) * factor
    except ValueError:
        return float("nan")


def own_pattern(text: str) -> Pattern:
    """Return the pattern of a user's own expression.

    Raises:
        RequestError: it is no regular expression, or none of its groups says where a step is.
    """
    asked = f"--pattern '{text}'"
    try:
        expression = re.compile(text)
    except re.error as error:
        raise RequestError(asked, _fault(error, text), _remedy(error.msg)) from None
    except (OverflowError, RecursionError) as error:
        raise RequestError(
            asked, f"it is no regular expression: {error}", "write a shorter one"
        ) from None
    names = set(expression.groupindex)
    columns = {(column_of(n) or (n, 1.0))[0] for n in names}
    if not columns & {"step", "epoch", "in_epoch"}:
        raise RequestError(
            asked, f"its named groups are {', '.join(sorted(names)) or 'none'}",
            r"name a group for the step (or the epoch), e.g. 'step (?P<step>\d+) took"
            r" (?P<step_time_ms>[\d.]+)'",
        )  # fmt: skip
    vague = names & {"time", "memory"} - {n.removesuffix("_unit") for n in names if "_unit" in n}
    for name in vague:
        better = "step_time_s, step_time_ms" if name == "time" else "memory_gb, memory_mib"
        raise RequestError(
            asked, f"the group {name!r} has no unit", f"name it with its unit, e.g. {better}"
        )
    return Pattern("your pattern", (), expression, text)


# What `re` says of a mistake, and what its author should do.
_REMEDIES = (
    ("missing ), unterminated", "close the bracket; one that is meant itself is written \\("),
    ("unbalanced parenthesis", r"open it too; one that is meant itself is written \)"),
    ("unterminated character set", "close it by ]; a bracket that is meant itself is written \\["),
    ("nothing to repeat", r"write \ before a *, + or ? that is meant itself"),
    ("multiple repeat", r"write \ before a *, + or ? that is meant itself"),
    ("bad escape", r"leave the backslash out; one that is meant itself is written \\"),
    ("bad character in group name", "name groups by letters, digits and _, as (?P<step>...)"),
    ("unknown extension", "write a named group as (?P<step>...)"),
    ("redefinition of group name", "give each group its own name"),
)


def _fault(error: re.error, text: str) -> str:
    """Return what is wrong with an expression, and below it where."""
    if error.pos is None:
        return f"it is no regular expression: {error.msg}"
    before = text[: error.pos].split("\n")
    line = text.split("\n")[len(before) - 1]
    return (
        f"it is no regular expression: {error.msg}, at character {error.pos + 1}\n"
        f"{pointed(line, len(before[-1]))}"
    )


def _remedy(said: str) -> str:
    found = (todo for words, todo in _REMEDIES if words in said)
    return next(found, "correct it there, and try it on one line of the log")


_DONE = 0.95  # of its length: a bar that begins again from there was finished


class Bars:
    """Keeps the longest bar as the one of training; a shorter one within it is an evaluation.

    A bar that begins again after its end is the next epoch's, so its steps go on.
    """

    def __init__(self) -> None:
        self._length = 0.0
        self._offset = 0.0
        self._last = 0.0
        self._finished = 0

    def row(self, row: Row) -> int:
        """Turn a bar's row into one of the whole job; return the event where it is another bar."""
        length, count = row.pop("total_steps", 0.0), row.get("step", 0.0)
        if length < self._length:
            return EVALUATION
        if length > self._length:
            self._length, self._offset, self._finished = length, 0.0, 0
        elif count < self._last and self._last >= _DONE * length:
            self._offset += length
            self._finished += 1
        self._last = count
        row["step"] = self._offset + count
        return 0

    def facts(self, facts: dict[str, Fact]) -> dict[str, Fact]:
        """Return facts with the length that the bars tell: of the job, or of an epoch."""
        if not self._length:
            return facts
        epochs = facts.get("total_epochs")
        if self._finished or isinstance(epochs, float):
            told: dict[str, Fact] = {"steps_per_epoch": self._length}
            if isinstance(epochs, float):
                told["total_steps"] = self._length * epochs
            return {**told, **facts}
        return {"total_steps": self._length, **facts}


_SHOWN_LINES = 3
_LOOKED_AT = 5000  # lines at each end of a log by which its program is known
_FACTS = ("total_steps", "total_epochs", "steps_per_epoch", "devices")


def accepts(path: Path) -> bool:
    """Return whether a file may be a plain log."""
    return path.is_file() and is_text(head_of(path))


def read_text(path: Path, pattern: str = "") -> tuple[LogSeries, ...]:
    """Return the one run of a plain log.

    Args:
        path: the file, gz too.
        pattern: a regular expression of one's own; "" tries the built-in ones.

    Raises:
        RequestError: the file cannot be read or is not text, it is empty, no line has a step, or
            the expression is none.
    """
    lines = list(lines_of(path))
    if pattern:
        found = _Lines((own_pattern(pattern),), dictionaries=False).read(lines)
    elif _usual(lines):
        found = _Lines(SPECIFIC, dictionaries=True).read(lines)
    else:
        found = _Lines((GENERIC,), dictionaries=False).read(lines)
    if not found.marks and found.ending.status == "ok":
        raise _no_step(path, pattern)
    return (found.series(path),)


def _usual(lines: Sequence[str]) -> bool:
    """Return whether some of the first or last lines are those of a usual program."""
    some = (*lines[:_LOOKED_AT], *lines[max(_LOOKED_AT, len(lines) - _LOOKED_AT) :])
    return any(p.match(line) for line in some for p in SPECIFIC) or any(map(_dictionary, some))


class _Lines:
    """What the lines of one log come to, under some patterns."""

    def __init__(self, patterns: tuple[Pattern, ...], dictionaries: bool) -> None:
        self.patterns, self.dictionaries = patterns, dictionaries
        self.gathered, self.ending, self.stamps = Gathered(), Ending(), Stamps()
        self.bars = Bars()
        self.by: dict[str, int] = {}
        self.marks = 0
        self._epoch = 0  # passes done before the current one, by the log's own headings
        self._length = float("nan")

    def read(self, lines: Iterable[str]) -> _Lines:
        """Read every line."""
        for line in lines:
            time = self.stamps.read(line)
            row = self._row(line)
            if row is None:
                self._beside(line)
                continue
            if time == time:
                row["time_s"] = time
            self.marks += 1
            self.ending.went_on()
            self._add(row)
        return self

    def _row(self, line: str) -> Row | None:
        """Return what a line says of a step, None where it speaks of none."""
        if self.dictionaries and (row := _dictionary(line)) is not None:
            self.by[HF_DICTIONARY] = self.by.get(HF_DICTIONARY, 0) + 1
            return self._evaluated(row)
        for pattern in self.patterns:
            match = pattern.match(line)
            if match is not None:
                self.by[pattern.name] = self.by.get(pattern.name, 0) + 1
                row = row_of(match, pattern, line)
                if pattern is GENERIC and _speaks_of_else(row, line):
                    return None
                if pattern.name == "tqdm":
                    event = self.bars.row(row)
                    if event:
                        self.gathered.event(event)
                        return None
                return row or None
        return None

    def _evaluated(self, row: Row) -> Row | None:
        """Keep what an evaluation's line says as an event; a last line's facts as facts."""
        if "eval_seconds" in row or "eval_loss" in row:
            self.gathered.event(EVALUATION)
            row.pop("step", None)
        if "train_runtime" in row:
            self.gathered.facts["train_seconds"] = row["train_runtime"]
            if row.get("samples_per_s", 0) > 0 and len(self.gathered):
                self.gathered.facts["samples_per_s"] = row["samples_per_s"]
            return None
        return row

    def _beside(self, line: str) -> None:
        self.ending.line(line)
        self.gathered.facts.update(facts_in(line))
        opened = epoch_in(line)
        if opened is not None:
            self._epoch = opened[0] - 1
            self.gathered.facts["total_epochs"] = float(opened[1])
        elif event := event_in(line):
            self.gathered.event(event)

    def _add(self, row: Row) -> None:
        """Turn the place within an epoch into a step, and facts of the row into facts."""
        length = row.get("steps_per_epoch", self._length)
        if "in_epoch" in row:
            self._length = length
            before = row.pop("epochs_before", float(self._epoch))
            in_epoch = row.pop("in_epoch")
            if length == length:
                row.setdefault("step", before * length + in_epoch)
        for name in _FACTS:
            if name in row:
                self.gathered.facts[name] = row.pop(name)
        self.gathered.row(row)

    def series(self, path: Path) -> LogSeries:
        """Return the log's series."""
        columns = self.gathered.columns()
        facts = self.bars.facts(self.gathered.facts)
        elapsed = columns.pop("elapsed_s", None)
        absolute = self.stamps.absolute
        if "time_s" not in columns and elapsed is not None:
            columns["time_s"] = _running(elapsed)
        columns = _steps_of_epochs(columns, facts)
        times = columns.get("time_s", np.array([]))
        names = sorted(self.by, key=lambda name: -self.by[name])
        return LogSeries(
            name=path.stem, reader="text", paths=(str(path),), columns=columns, facts=facts,
            status=self.ending.status, reason=self.ending.reason, absolute=absolute,
            resolution_s=clock_resolution(times), written_s=written_s(path),
            notes=(f"read as lines of {' and '.join(names)}",) if names else (),
        )  # fmt: skip


def _speaks_of_else(row: Row, line: str) -> bool:
    """Return whether a line names a step only to say what else was done there."""
    event = event_in(line)
    return bool(event & RESTART) or bool(event and not set(row) - {"step", "total_steps", "epoch"})


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
            number = float(value)
        except (TypeError, ValueError):
            continue
        column, factor = column_of(str(key)) or (str(key), 1.0)
        row[column] = number * factor
    return row


def _running(elapsed: np.ndarray) -> np.ndarray:
    """Return a bar's clock (n,) as one that never goes back: a bar that begins again goes on."""
    known = np.where(np.isnan(elapsed), -np.inf, elapsed)
    out, base, last = np.full(len(elapsed), np.nan), 0.0, 0.0
    for i, value in enumerate(known):
        if value == -np.inf:
            continue
        if value < last:
            base += last
        last = value
        out[i] = base + value
    return out


def _steps_of_epochs(
    columns: dict[str, np.ndarray], facts: dict[str, float | str]
) -> dict[str, np.ndarray]:
    """Fill steps from epochs where the log says how many steps all the epochs have."""
    total, epochs = facts.get("total_steps"), facts.get("total_epochs")
    per_epoch = facts.get("steps_per_epoch")
    if "epoch" not in columns or not isinstance(epochs, float | int | None):
        return columns
    if not isinstance(per_epoch, float) and isinstance(total, float) and epochs:
        per_epoch = total / epochs
    if not isinstance(per_epoch, float):
        return columns
    known = columns.get("step", np.full(len(columns["epoch"]), np.nan))
    steps = np.where(np.isnan(known), np.round(columns["epoch"] * per_epoch), known)
    return {**columns, "step": steps}


def _no_step(path: Path, pattern: str) -> RequestError:
    """Return the error that shows what was tried and how the log begins."""
    first = list(itertools.islice(_nonblank(lines_of(path)), _SHOWN_LINES))
    if not first:
        return RequestError(f"reading {path}", "it is empty", "wait until the job has logged steps")
    shown = " | ".join(line.strip()[:100] for line in first)
    tried = "your pattern" if pattern else f"the patterns of {', '.join(NAMES)}"
    own = r"--pattern 'step (?P<step>\d+).*?(?P<step_time_ms>[\d.]+) ms.*?loss (?P<loss>[\d.]+)'"
    return RequestError(
        f"reading {path}",
        f"no line has a step by {tried}; it begins: {shown}",
        f"give an expression of your own with named groups, for example {own}",
    )


def _nonblank(lines: Iterable[str]) -> Iterator[str]:
    return (line for line in lines if line.strip())
