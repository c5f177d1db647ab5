"""Matched: the groups of a line that a pattern matched, as a row in the units of a series."""

from __future__ import annotations

import re

from forerun.errors import RequestError
from forerun.measure.logs.keys import column_of, gigabytes_in, seconds_in
from forerun.measure.logs.patterns import GENERIC, GENERIC_MORE, Pattern
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
