"""Splits: the ways to divide a table into rows that teach and rows that are judged, as words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from forerun.errors import RequestError

FORMS = (
    "whole", "random", "leave-out:COLUMN", "from:COLUMN=VALUE,...", "above:COLUMN=VALUE[..END]",
    "larger-clusters", "larger-batches", "few-shot:COLUMN=K", "interpolation:COLUMN",
    "extrapolation:COLUMN=VALUE,...",
)  # fmt: skip
# Splits of several folds, and how many they have where nothing else is said. A column of many
# values is left out in this many parts: one by one would be as many fits as it has values.
USUAL_FOLDS: Mapping[str, int] = {"random": 5, "leave-out": 10, "few-shot": 10}
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})")


@dataclass(frozen=True, slots=True)
class Split:
    """One way to divide a table, as it was asked for; `folds.folds_of` carries it out.

    Attributes:
        kind: the word before the colon.
        column: that the split speaks of, "" where it speaks of none or of several.
        values: of `from`, those that teach.
        count: of `few-shot`, the given runs of each judged value.
        bounds: of `above` and `extrapolation`, the largest value that teaches, by column.
        limit: of `above`, the largest value that is judged.
    """

    kind: str
    column: str = ""
    values: tuple[str, ...] = ()
    count: int = 0
    bounds: tuple[tuple[str, float], ...] = ()
    limit: float = float("inf")

    def __str__(self) -> str:
        if self.bounds:
            end = f"..{self.limit:g}" if np.isfinite(self.limit) else ""
            return f"{self.kind}:{','.join(f'{c}={v:g}' for c, v in self.bounds)}{end}"
        text = f"{self.kind}:{self.column}" if self.column else self.kind
        if self.values:
            return f"{text}={','.join(self.values)}"
        return f"{text}={self.count}" if self.count else text


def parse_split(text: str) -> Split:
    """Return the split that a text such as `above:devices=8` asks for.

    Raises:
        RequestError: no such split, or its column or value is missing; all forms are named.
    """
    kind, colon, rest = str(text).strip().partition(":")
    asked = _Asked(f"--split {text}")
    if kind in ("whole", "random", "larger-clusters", "larger-batches"):
        if colon:
            raise asked.wrong(f"{kind} takes nothing after it")
        return Split(kind)
    read = _READERS.get(kind)
    if read is None:
        raise asked.wrong(f"there is no split {kind!r}")
    return read(kind, rest.strip(), asked)


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


def _column(kind: str, rest: str, asked: _Asked) -> Split:
    if not rest:
        raise asked.wrong("it names no column")
    if "=" in rest:
        raise asked.wrong(f"{kind} takes a column and no value")
    return Split(kind, rest)


def _from(kind: str, rest: str, asked: _Asked) -> Split:
    column, value = asked.pair(rest)
    values = tuple(v.strip() for v in value.split(",") if v.strip())
    if not values:
        raise asked.wrong("it names no value")
    return Split(kind, column, values)


def _above(kind: str, rest: str, asked: _Asked) -> Split:
    column, value = asked.pair(rest)
    span = _RANGE.fullmatch(value)
    low, limit = span.groups() if span else (value, "")
    bound = asked.number(low)
    if not limit:
        return Split(kind, column, bounds=((column, bound),))
    end = asked.number(limit)
    if end <= bound:
        raise asked.wrong(f"nothing lies above {bound:g} and up to {end:g}")
    return Split(kind, column, bounds=((column, bound),), limit=end)


def _extrapolation(kind: str, rest: str, asked: _Asked) -> Split:
    pairs = [asked.pair(piece) for piece in rest.split(",")]
    bounds = tuple((column, asked.number(value)) for column, value in pairs)
    if len({column for column, _ in bounds}) < len(bounds):
        raise asked.wrong("a column has two bounds")
    return Split(kind, bounds=bounds)


def _few_shot(kind: str, rest: str, asked: _Asked) -> Split:
    column, value = asked.pair(rest)
    count = asked.number(value)
    if not (count.is_integer() and count >= 1):
        raise asked.wrong(f"{value} is not a count of runs above zero")
    return Split(kind, column, count=int(count))


_READERS: Mapping[str, Callable[[str, str, _Asked], Split]] = {
    "leave-out": _column, "interpolation": _column, "from": _from, "above": _above,
    "few-shot": _few_shot, "extrapolation": _extrapolation,
}  # fmt: skip
