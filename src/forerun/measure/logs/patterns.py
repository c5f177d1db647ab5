"""Patterns: what lines of usual training programs say, by the expressions of patterns.yaml.

A group's name is a column with its unit (`step`, `step_time_ms`, `loss`, `memory_mib` ...), so a
pattern of one's own is written in the same way. Groups that are read together: `time` with
`time_unit`, `rate` with `rate_unit`, `memory` with `memory_unit`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forerun.errors import RequestError
from forerun.measure.logs.series import (
    CHECKPOINT,
    EVALUATION,
    RESTART,
    Fact,
    column_of,
    put,
    vocabulary,
)

# Numbers as they are printed: grouped, with an exponent.
_N = r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_SHORT = {"K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
_TOGETHER = ("time", "time_unit", "rate", "rate_unit", "memory", "memory_unit", "clock", "clock2",
             "epoch_number", "epoch_from_one", "percent")  # fmt: skip
Row = dict[str, float]


def _compiled(text: str, flags: re.RegexFlag) -> re.Pattern[str]:
    for name, number in (("NAN", rf"(?:{_N}|nan|inf|-inf)"), ("N", _N), ("I", r"(\d[\d,]*)")):
        text = text.replace(f"{{{name}}}", number)
    return re.compile(text, flags)


@dataclass(frozen=True)
class Pattern:
    """One kind of line.

    Attributes:
        name: the program that prints it.
        expression: with named groups.
        hints: words that stand in every such line: a quick test before the expression.
        example: such a line.
        shortened: whether numbers end in K, M or B.
        zero_based: whether the first step is number 0, so that step n means n + 1 are done.
        more: (word that is needed, expression) of what may stand elsewhere in the line in lower case.
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
        if self.zero_based:
            row.update({name: row[name] + 1 for name in ("step", "in_epoch") if name in row})
        return {k: v for k, v in row.items() if v == v}


def _put_together(row: Row, groups: Mapping[str, str]) -> None:
    """Add the numbers whose unit stands beside them, a bar's clock, and the epochs before."""
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
    """Return the pattern of a user's own expression.

    Raises:
        RequestError: it is no regular expression, or none of its groups says where a step is.
    """
    asked = f"--pattern '{text}'"
    try:
        expression = re.compile(text)
    except re.error as error:
        found, at = f"it is no regular expression: {error}", error.pos
        if at is not None:
            first = text.rfind("\n", 0, at) + 1
            found += f"\n    {text[first:].splitlines()[0]}\n    {' ' * (at - first)}^"
        todo = "correct it there, and try it on one line of the log"
        raise RequestError(asked, found, todo) from None
    except (OverflowError, RecursionError) as error:
        found = f"it is no regular expression: {error}"
        raise RequestError(asked, found, "write a shorter one") from None
    names = set(expression.groupindex)
    if not {(column_of(n) or (n, 1.0))[0] for n in names} & {"step", "epoch", "in_epoch"}:
        raise RequestError(
            asked, f"its named groups are {', '.join(sorted(names)) or 'none'}",
            r"name a group for the step (or the epoch), e.g. 'step (?P<step>\d+) took"
            r" (?P<step_time_ms>[\d.]+)'",
        )  # fmt: skip
    for name, better in (("time", "step_time_ms"), ("memory", "memory_mib")):
        if name in names and f"{name}_unit" not in names:
            raise RequestError(
                asked, f"the group {name!r} has no unit", f"name it with its unit, e.g. {better}"
            )
    return Pattern("your pattern", expression)


def facts_in(line: str) -> dict[str, Fact]:
    """Return what a line says once for the whole run."""
    found: dict[str, Fact] = {}
    lowered = line.lower()
    for word, expression, name in _FACTS:
        if word in lowered and (match := expression.search(line)):
            found[name] = match[1].strip() if name == "device" else number(match[1])
    return found


def epoch_in(line: str) -> tuple[int, int] | None:
    """Return the epoch that a line opens, counted from one, and how many there are."""
    match = _EPOCH.search(line) if "poch" in line else None
    return None if match is None else (int(match[1]), int(match[2]))


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
