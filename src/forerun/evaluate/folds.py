"""Folds: which rows of a table teach and which are judged; no judged row is among its teachers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.errors import RequestError, nearest_names
from forerun.evaluate.derived import absent
from forerun.evaluate.splits import USUAL_FOLDS, Split
from forerun.tables import COLUMNS, Table

Index = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]

# What grows in the two splits that choose their own bounds, and within which rows: a larger
# cluster of the same device, a larger batch on as many devices (weak scaling grows both at once).
LARGER = {
    "larger-clusters": ("devices", ("workload", "device")),
    "larger-batches": ("global_batch", ("workload", "device", "devices")),
}
_TIMES = ("step_time_s", "samples_per_s", "tokens_per_s", "tflops_per_device", "epoch_time_s",
          "time_to_train_s")  # fmt: skip


def columns_of(split: Split) -> tuple[str, ...]:
    """Return the columns by which a split divides a table."""
    column, within = LARGER.get(split.kind, (split.column, ()))
    return (*filter(None, [column]), *within, *(name for name, _ in split.bounds))


@dataclass(frozen=True, slots=True)
class Fold:
    """Positions of the rows that teach and of the rows that are judged; they never overlap."""

    train: Index
    test: Index


def folds_of(split: Split, table: Table, seed: int = 0, parts: int = 0) -> list[Fold]:
    """Return the folds of a table.

    * whole judges all rows and teaches none.
    * random has `parts` folds; repeats of one configuration stay in one of them.
    * leave-out judges the rows of one value and teaches all others; of more than `parts` values
      several are left out together, dealt by the seed.
    * from teaches the rows of the named values and judges those of all others.
    * above teaches up to the bound and judges beyond it, up to the limit.
    * larger-clusters, larger-batches: see `LARGER`; in each group of these columns the lower half
      of the distinct values teaches and the upper half is judged. A group of one value teaches.
    * few-shot is leave-out, but K measured configurations of each judged value teach too, drawn
      by the seed; repeats of these are not judged.
    * interpolation judges every second distinct value of a column, never the least or largest.
    * extrapolation teaches where no column is above its bound, and judges where one is.

    Rows whose column is blank stand on neither side where the column is compared by number.

    Args:
        split: as it was asked for.
        table: its rows.
        seed: of what is drawn.
        parts: folds; 0 is `USUAL_FOLDS`.

    Raises:
        RequestError: the column is missing or its value unknown, one side would be empty, or
            `parts` is given for a split of one fold.
    """
    if parts and split.kind not in USUAL_FOLDS:
        raise RequestError(
            f"--folds {parts} with --split {split}", f"{split.kind} has no folds to count",
            f"leave --folds out, or split by one of {', '.join(USUAL_FOLDS)}",
        )  # fmt: skip
    rng = np.random.default_rng(seed)
    parts = parts or USUAL_FOLDS.get(split.kind, 1)
    folds = [fold for fold in _folds(split, table, rng, parts) if len(fold.test)]
    if not folds:
        raise _empty(split, "no row would be judged")
    if split.kind != "whole" and any(not len(fold.train) for fold in folds):
        raise _empty(split, "no row would teach")
    return folds


def _folds(split: Split, table: Table, rng: np.random.Generator, parts: int) -> list[Fold]:
    kind = split.kind
    if kind == "whole":
        rows = np.arange(len(table))
        return [Fold(rows[:0], rows)]
    if kind == "random":
        count, config = _configurations(table)
        return list(_dealt(rng.permutation(count)[config] % parts, parts))
    if kind in ("leave-out", "few-shot"):
        _require(split, split.column, table)
        first, groups = table.groups((split.column,))
        count = len(first)
        if kind == "leave-out" and count < 2:
            raise _empty(split, f"all rows have the same {split.column}")
        part = groups if count <= parts else rng.permutation(count)[groups] % parts
        folds = _dealt(part, min(count, parts))
        if kind == "leave-out":
            return list(folds)
        shown = _shots(table, groups, split.count, rng)
        return [_given(fold, *shown) for fold in folds]
    teach, judge = _sides(split, table)
    return [Fold(np.flatnonzero(teach), np.flatnonzero(judge))]


def _dealt(part: Index, parts: int) -> Iterator[Fold]:
    for i in range(parts):
        yield Fold(np.flatnonzero(part != i), np.flatnonzero(part == i))


def _configurations(table: Table) -> tuple[int, Index]:
    """Return the number of distinct questions and each row's; repeats of a measurement share it."""
    asked = [
        name for name in table.columns
        if name not in COLUMNS or COLUMNS[name].group not in ("origin", "measured")
    ]  # fmt: skip
    first, groups = table.groups(asked)
    return len(first), groups


def _shots(
    table: Table, groups: Index, count: int, rng: np.random.Generator
) -> tuple[BoolArray, BoolArray]:
    """Return the rows that are given, `count` of each group, and their repeats, (n,) each."""
    timed = np.any([np.isfinite(table.numbers(name)) for name in _TIMES], axis=0)
    status = np.array([str(s).strip().lower() for s in table.texts("status")], dtype=object)
    useful = np.flatnonzero(timed & ((status == "ok") | (status == "")))
    config = _configurations(table)[1]
    drawn = rng.permutation(useful)
    # One row of each configuration, the first drawn; of these, the first `count` of each group.
    one = np.sort(np.unique(config[drawn], return_index=True)[1])
    drawn = drawn[one]
    order = drawn[np.argsort(groups[drawn], kind="stable")]
    starts = np.flatnonzero(np.r_[True, groups[order][1:] != groups[order][:-1]])
    turn = np.arange(len(order)) - np.repeat(starts, np.diff(np.r_[starts, len(order)]))
    given = np.zeros(len(table), dtype=bool)
    given[order[turn < count]] = True
    return given, np.isin(config, config[given]) & ~given


def _given(fold: Fold, shots: BoolArray, repeats: BoolArray) -> Fold:
    """Return the fold with the shots of its judged rows taught, and their repeats set aside."""
    mine = fold.test[shots[fold.test]]
    return Fold(
        np.sort(np.concatenate([fold.train, mine])),
        fold.test[~shots[fold.test] & ~repeats[fold.test]],
    )


def _sides(split: Split, table: Table) -> tuple[BoolArray, BoolArray]:
    """Return which rows teach and which are judged, (n,) each, for splits of one fold."""
    if split.kind == "from":
        return _named(split, table)
    if split.kind in LARGER:
        return _larger(split, table)
    if split.kind == "interpolation":
        return _between(split, table)
    known, beyond = np.ones(len(table), dtype=bool), np.zeros(len(table), dtype=bool)
    for column, bound in split.bounds:
        values = _values(split, column, table)
        known &= ~np.isnan(values)
        beyond |= values > bound
    teach, judge = known & ~beyond, known & beyond
    if split.kind == "above":
        judge &= _values(split, split.column, table) <= split.limit
    for name, side in (("up to", teach), ("above", judge)):
        if not side.any():
            text = " and ".join(f"{column} {name} {bound:g}" for column, bound in split.bounds)
            raise _empty(split, f"no row has {text}", _spans(split, table))
    return teach, judge


def _spans(split: Split, table: Table) -> str:
    spans = []
    for column, _ in split.bounds:
        values = table.numbers(column)
        values = values[np.isfinite(values)]
        if len(values):
            spans.append(f"{column} within {values.min():g} to {values.max():g}")
    return f"choose {', '.join(spans)}" if spans else "choose another column"


def _named(split: Split, table: Table) -> tuple[BoolArray, BoolArray]:
    _require(split, split.column, table)
    texts = table.texts(split.column)
    known = list(dict.fromkeys(t for t in texts.tolist() if t))
    numeric = table.columns[split.column].dtype != object
    wanted = {_plain(value) if numeric else value for value in split.values}
    missing = wanted - set(known)
    if missing:
        value = min(missing)
        near = nearest_names(value, known) or known[:6]
        raise _empty(split, f"no row has {split.column} {value}", f"write e.g. {', '.join(near)}")
    teach = np.isin(texts.astype(str), list(wanted))
    return teach, ~teach & (texts != "")


def _plain(value: str) -> str:
    """Return a value as a table's text has it: 8.0 is 8."""
    try:
        number = float(value)
    except ValueError:
        return value
    return str(int(number)) if number.is_integer() else value


def _larger(split: Split, table: Table) -> tuple[BoolArray, BoolArray]:
    column, within = LARGER[split.kind]
    values = _values(split, column, table)
    known = ~np.isnan(values)
    group = table.groups(within)[1]
    pairs = np.unique(np.stack([group[known], values[known]], axis=1), axis=0)
    starts = np.flatnonzero(np.r_[True, pairs[1:, 0] != pairs[:-1, 0]][: len(pairs)])
    counts = np.diff(np.r_[starts, len(pairs)])
    bounds = np.full(int(group.max(initial=-1)) + 1, np.nan)
    bounds[pairs[starts, 0].astype(np.int64)] = pairs[starts + (counts - 1) // 2, 1]
    judge = known & (values > bounds[group])
    if not judge.any():
        raise _empty(split, f"no {' and '.join(within)} has two values of {column}")
    return known & ~judge, judge


def _between(split: Split, table: Table) -> tuple[BoolArray, BoolArray]:
    values = _values(split, split.column, table)
    distinct = np.unique(values[~np.isnan(values)])
    if len(distinct) < 3:
        raise _empty(
            split, f"{split.column} has {len(distinct)} distinct values, and none lies between two",
            "choose a column of three or more",
        )  # fmt: skip
    judge = np.isin(values, distinct[1:-1:2])
    return ~np.isnan(values) & ~judge, judge


def _values(split: Split, column: str, table: Table) -> FloatArray:
    _require(split, column, table)
    try:
        return table.numbers(column)
    except RequestError as error:
        raise _empty(split, f"{column} is no number: {error.found}",
                     "choose a column of numbers") from None  # fmt: skip


def _require(split: Split, column: str, table: Table) -> None:
    if column not in table:
        raise _empty(split, *absent(column, table))


def _empty(
    split: Split, found: str, step: str = "choose another split, or more runs"
) -> RequestError:
    return RequestError(f"--split {split}", found, step)
