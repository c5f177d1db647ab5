"""Splits: the ways to divide a table into rows that teach and rows that are judged, as words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from forerun.errors import RequestError
from forerun.tables.conditions import parse_condition

FORMS = (
    "whole", "random", "holdout", "leave-out:COLUMN", "leave-one-out:COLUMN", "from:COLUMN=VALUE,...",
    "above:COLUMN=VALUE[..END]", "larger-clusters", "larger-batches",
    "few-shot:COLUMN[/COLUMN...]=K[:cheapest][:CONDITION...]",
    "interpolation:COLUMN[=VALUE,...|=everyN]", "between:COLUMN", "extrapolation:COLUMN=VALUE,...",
)  # fmt: skip
# Splits of several folds, and how many they have where nothing else is said. A column of many
# values is left out in this many parts: one by one would be as many fits as it has values, which
# leave-one-out asks for.
USUAL_FOLDS: Mapping[str, int] = {"random": 5, "leave-out": 10, "few-shot": 10}
USUAL_EVERY = 2
HALF = "half"  # a bound that each table sets for itself: the middle of its distinct values
SHOTS = ("random", "cheapest")
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})")
_EVERY = re.compile(r"every[- ]?(\d+)")


@dataclass(frozen=True, slots=True)
class Split:
    """One way to divide a table, as it was asked for; `folds.folds_of` carries it out.

    Attributes:
        kind: the word before the colon.
        column: that the split speaks of, "" where it speaks of none or of several.
        values: of `from`, those that teach; of `interpolation`, those that are judged.
        count: of `few-shot`, the given runs of each judged group.
        bounds: of `above` and `extrapolation`, the largest value that teaches, by column; NaN for
            the middle of a table's distinct values.
        limit: of `above`, the largest value that is judged.
        every: of `interpolation` without values, the step through the sorted distinct values.
        within: of `few-shot`, the columns that make groups of the rows of a value; each group gets
            its own shots.
        shots: of `few-shot`, which runs are given, one of `SHOTS`.
        conditions: of `few-shot`, what a row must meet to be given, as `filters.parse_condition` reads.
    """

    kind: str
    column: str = ""
    values: tuple[str, ...] = ()
    count: int = 0
    bounds: tuple[tuple[str, float], ...] = ()
    limit: float = float("inf")
    every: int = 0
    within: tuple[str, ...] = ()
    shots: str = SHOTS[0]
    conditions: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.bounds:
            end = f"..{self.limit:g}" if np.isfinite(self.limit) else ""
            return f"{self.kind}:{','.join(f'{c}={_bound(v)}' for c, v in self.bounds)}{end}"
        text = f"{self.kind}:{self.column}" if self.column else self.kind
        if self.values:
            return f"{text}={','.join(self.values)}"
        if self.every:
            return text if self.every == USUAL_EVERY else f"{text}=every{self.every}"
        if not self.count:
            return text
        manner = () if self.shots == SHOTS[0] else (self.shots,)
        given = ":".join((str(self.count), *manner, *self.conditions))
        return f"{'/'.join((text, *self.within))}={given}"


def parse_split(text: str) -> Split:
    """Return the split that a text such as `above:devices=8` asks for.

    Raises:
        RequestError: no such split, or its column or value is missing; all forms are named.
    """
    kind, colon, rest = str(text).strip().partition(":")
    asked = _Asked(f"--split {text}")
    if kind in ("whole", "random", "holdout", "larger-clusters", "larger-batches"):
        if colon:
            raise asked.wrong(f"{kind} takes nothing after it")
        return Split(kind)
    read = _READERS.get(kind)
    if read is None:
        raise asked.wrong(f"there is no split {kind!r}")
    return read(kind, rest.strip(), asked)


def with_shots(split: Split, shots: str = "", conditions: tuple[str, ...] = ()) -> Split:
    """Return a few-shot split whose shots are chosen so, "" and () leaving it as it is.

    Raises:
        RequestError: the split gives no shots, or a condition is none.
    """
    if not shots and not conditions:
        return split
    if split.kind != "few-shot":
        raise RequestError(
            f"--split {split} with --shots or --shots-where", "it gives no shots",
            "split by few-shot:COLUMN=K",
        )  # fmt: skip
    for condition in conditions:
        parse_condition(condition)
    return replace(split, shots=shots or split.shots, conditions=split.conditions + conditions)


def _bound(value: float) -> str:
    return HALF if np.isnan(value) else f"{value:g}"


@dataclass(frozen=True, slots=True)
class _Asked:
    """The text of a split, for messages."""

    text: str

    def wrong(self, found: str) -> RequestError:
        """Return the error that says what was found, and all forms."""
        return RequestError(self.text, found, f"write one of {', '.join(FORMS)}")

    def pair(self, text: str) -> tuple[str, str]:
        """Return column and value. Raises RequestError where one is missing."""
        column, equals, value = (piece.strip() for piece in text.partition("="))
        if not column:
            raise self.wrong("it names no column")
        if not equals or not value:
            raise self.wrong("it names no value")
        return column, value

    def number(self, text: str) -> float:
        """Return a finite number. Raises RequestError where it is none."""
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not np.isfinite(value):
            raise self.wrong(f"{text!r} is not a number")
        return value

    def bound(self, text: str) -> float:
        """Return a number, or NaN for `HALF`. Raises RequestError where it is neither."""
        return float("nan") if text == HALF else self.number(text)

    def count(self, text: str, least: int, what: str) -> int:
        """Return a whole number. Raises RequestError where it is none or too small."""
        value = self.number(text)
        if not (value.is_integer() and value >= least):
            raise self.wrong(f"{text} is not {what}")
        return int(value)


def _column(kind: str, rest: str, asked: _Asked) -> Split:
    if not rest:
        raise asked.wrong("it names no column")
    if "=" in rest:
        raise asked.wrong(f"{kind} takes a column and no value")
    return Split(kind, rest)


def _from(kind: str, rest: str, asked: _Asked) -> Split:
    column, value = asked.pair(rest)
    return Split(kind, column, _listed(value, asked))


def _listed(text: str, asked: _Asked) -> tuple[str, ...]:
    values = tuple(v.strip() for v in text.split(",") if v.strip())
    if not values:
        raise asked.wrong("it names no value")
    return values


def _interpolation(kind: str, rest: str, asked: _Asked) -> Split:
    if "=" not in rest:
        return replace(_column(kind, rest, asked), every=USUAL_EVERY)
    column, value = asked.pair(rest)
    step = _EVERY.fullmatch(value)
    if step is None:
        return Split(kind, column, _listed(value, asked))
    return Split(kind, column, every=asked.count(step[1], 2, "a step of 2 or more"))


def _above(kind: str, rest: str, asked: _Asked) -> Split:
    column, value = asked.pair(rest)
    span = _RANGE.fullmatch(value)
    low, limit = span.groups() if span else (value, "")
    bound = asked.bound(low)
    if not limit:
        return Split(kind, column, bounds=((column, bound),))
    end = asked.number(limit)
    if end <= bound:
        raise asked.wrong(f"nothing lies above {bound:g} and up to {end:g}")
    return Split(kind, column, bounds=((column, bound),), limit=end)


def _extrapolation(kind: str, rest: str, asked: _Asked) -> Split:
    pairs = [asked.pair(piece) for piece in rest.split(",")]
    bounds = tuple((column, asked.bound(value)) for column, value in pairs)
    if len({column for column, _ in bounds}) < len(bounds):
        raise asked.wrong("a column has two bounds")
    return Split(kind, bounds=bounds)


def _few_shot(kind: str, rest: str, asked: _Asked) -> Split:
    columns, value = asked.pair(rest)
    column, *within = (name.strip() for name in columns.split("/"))
    if not column or not all(within):
        raise asked.wrong("it names no column")
    count, *words = (word.strip() for word in value.split(":"))
    given = asked.count(count, 1, "a count of runs above zero")
    manner = words.pop(0) if words and words[0] in SHOTS else SHOTS[0]
    for word in words:
        try:
            parse_condition(word)
        except RequestError as error:
            raise asked.wrong(f"{word!r}: {error.found}") from None
    return Split(
        kind, column, count=given, within=tuple(within), shots=manner, conditions=tuple(words)
    )


_READERS: Mapping[str, Callable[[str, str, _Asked], Split]] = {
    "leave-out": _column, "leave-one-out": _column, "interpolation": _interpolation,
    "between": _column, "from": _from, "above": _above, "few-shot": _few_shot,
    "extrapolation": _extrapolation,
}  # fmt: skip
