"""Splits: which rows teach and which are judged; no judged row is ever among its teachers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.errors import RequestError, nearest_names
from forerun.tables import COLUMNS, Table

Index = NDArray[np.int64]

FORMS = (
    "whole", "random", "leave-out:COLUMN", "above:COLUMN=VALUE", "few-shot:COLUMN=K",
)  # fmt: skip
FOLDS = 5
MOST_FOLDS = 10  # of leave-out: a column of many values is left out in this many parts


@dataclass(frozen=True, slots=True)
class Fold:
    """Positions of the rows that teach and of the rows that are judged; they never overlap."""

    train: Index
    test: Index


@dataclass(frozen=True, slots=True)
class Split:
    """One way to divide a table, as it was asked for.

    Attributes:
        kind: whole, random, leave-out, above or few-shot.
        column: that the split speaks of, "" where of none.
        value: the limit of `above`, the count of `few-shot`.
    """

    kind: str
    column: str = ""
    value: float = 0.0

    def __str__(self) -> str:
        text = f"{self.kind}:{self.column}" if self.column else self.kind
        return f"{text}={self.value:g}" if self.kind in ("above", "few-shot") else text

    def folds(self, table: Table, seed: int = 0) -> Iterator[Fold]:
        """Yield the folds of a table.

        whole judges all rows and teaches none; random has five parts, and repeats of one
        configuration stay in one part; leave-out judges the rows of one value (or of one tenth of the values) and teaches all others; above teaches up to
        VALUE and judges beyond; few-shot judges one value's rows but K, which teach with all
        others.

        Raises:
            RequestError: the column is missing or blank, or one side would be empty.
        """
        rng = np.random.default_rng(seed)
        rows = np.arange(len(table))
        if self.kind == "whole":
            yield Fold(rows[:0], rows)
        elif self.kind == "random":
            yield from _parts(*_repeats_together(table, rng))
        elif self.kind == "above":
            yield self._above(table)
        else:
            groups, count = self._groups(table)
            if self.kind == "leave-out":
                part = (
                    groups if count <= MOST_FOLDS else (rng.permutation(count)[groups] % MOST_FOLDS)
                )
                yield from _parts(part, min(count, MOST_FOLDS))
            else:
                yield from self._few_shot(groups, count, rng)

    def _above(self, table: Table) -> Fold:
        self._require(table)
        values = table.numbers(self.column)
        rows = np.arange(len(table))
        fold = Fold(rows[values <= self.value], rows[values > self.value])
        for name, side in (("up to", fold.train), ("above", fold.test)):
            if not len(side):
                raise RequestError(
                    f"--split {self}", f"no row has {self.column} {name} {self.value:g}",
                    f"choose a value within {np.nanmin(values):g} to {np.nanmax(values):g}"
                    if np.isfinite(values).any() else "choose another column",
                )  # fmt: skip
        return fold

    def _few_shot(self, groups: Index, count: int, rng: np.random.Generator) -> Iterator[Fold]:
        everything = np.arange(len(groups))
        for value in range(count):
            mine = rng.permutation(everything[groups == value])
            shots = mine[: int(self.value)]
            judged = np.sort(mine[int(self.value) :])
            if len(judged):
                others = everything[groups != value]
                yield Fold(np.sort(np.concatenate([others, shots])), judged)

    def _groups(self, table: Table) -> tuple[Index, int]:
        self._require(table)
        first, groups = table.groups((self.column,))
        if self.kind == "leave-out" and len(first) < 2:
            raise RequestError(
                f"--split {self}", f"all rows have the same {self.column}",
                "choose a column with at least two values",
            )  # fmt: skip
        return groups, len(first)

    def _require(self, table: Table) -> None:
        if self.column not in table:
            near = nearest_names(self.column, list(table.columns)) or list(table.columns)[:6]
            raise RequestError(
                f"--split {self}", f"there is no column {self.column!r}",
                f"choose one that is there, e.g. {', '.join(near)}",
            )  # fmt: skip


def _repeats_together(table: Table, rng: np.random.Generator) -> tuple[Index, int]:
    """Return each row's part of `FOLDS`; rows that differ only in what was measured share it."""
    asked = [
        name for name in table.columns
        if name != "ref" and (name not in COLUMNS or COLUMNS[name].group != "measured")
    ]  # fmt: skip
    first, groups = table.groups(asked)
    return rng.permutation(len(first))[groups] % FOLDS, FOLDS


def _parts(part: Index, count: int) -> Iterator[Fold]:
    rows = np.arange(len(part))
    for i in range(min(count, int(part.max(initial=-1)) + 1)):
        yield Fold(rows[part != i], rows[part == i])


def parse_split(text: str) -> Split:
    """Return the split that a text such as `above:devices=8` asks for.

    Raises:
        RequestError: no such split, or its column or value is missing; all forms are named.
    """
    kind, _, rest = str(text).strip().partition(":")
    column, equals, raw = (piece.strip() for piece in rest.partition("="))
    known = f"write one of {', '.join(FORMS)}"
    asked = f"--split {text}"
    if kind in ("whole", "random"):
        if rest:
            raise RequestError(asked, f"{kind} takes nothing after it", known)
        return Split(kind)
    if kind not in ("leave-out", "above", "few-shot"):
        raise RequestError(asked, f"there is no split {kind!r} (yet)", known)
    if not column:
        raise RequestError(asked, "it names no column", known)
    if kind == "leave-out":
        if equals:
            raise RequestError(asked, "leave-out takes a column and no value", known)
        return Split(kind, column)
    try:
        value = float(raw)
    except ValueError:
        value = float("nan")
    if not np.isfinite(value):
        raise RequestError(asked, f"{raw!r} is not a number", known)
    if kind == "few-shot" and not (value.is_integer() and value >= 1):
        raise RequestError(asked, f"{raw} is not a count of rows above zero", known)
    return Split(kind, column, value)
