"""Folds: which rows of a table teach and which are judged; no judged row is among its teachers.

Shots: the few runs of a group that is left out which teach all the same, and their repeats.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray
from forerun.errors import RequestError, nearest_names
from forerun.evaluate.aliases import grounded, with_aliases
from forerun.evaluate.splits import SHOTS, USUAL_FOLDS, Split
from forerun.tables import Table, configurations
from forerun.tables.conditions import absent, parse_condition
from forerun.tables.rates import throughput_seconds

Index = NDArray[np.int64]

_TIMES = ("step_time_s", "samples_per_s", "tokens_per_s", "tflops_per_device", "epoch_time_s",
          "time_to_train_s")  # fmt: skip


def seconds_of(table: Table) -> FloatArray:
    """Return the time that each row states: a step's, else an epoch's, else a run's, (n,)."""
    found = np.full(len(table), np.nan)
    for times in (
        table.numbers("step_time_s"), throughput_seconds(table), table.numbers("epoch_time_s"),
        table.numbers("time_to_train_s"),
    ):  # fmt: skip
        found = np.where(np.isnan(found) & (times > 0), times, found)
    return found


def run_costs(table: Table) -> FloatArray:
    """Return what each run cost, (n,), infinite where that cannot be told.

    Dollars where every timed row states its price an hour; else device-seconds. Equal numbers of
    steps are compared: a row of a step counts with one step.
    """
    seconds = seconds_of(table)
    price = table.numbers("price_usd_per_hour")
    devices = table.numbers("devices")
    timed = np.isfinite(seconds)
    rate = price if timed.any() and np.all(price[timed] > 0) else devices
    return np.where(np.isfinite(seconds * rate), seconds * rate, np.inf)


def shots_of(
    split: Split, table: Table, groups: Index, rng: np.random.Generator
) -> tuple[BoolArray, BoolArray]:
    """Return the rows that are given and the exact repeats of them, (n,) each.

    `split.count` configurations of each group are given, one measurement of each: at random, or
    the cheapest (`run_costs`). Only runs that ended well, have a time, and meet the conditions.

    Args:
        split: a few-shot split.
        table: n rows.
        groups: the group of each row, (n,).
        rng: draws them, or breaks ties.

    Raises:
        RequestError: a condition names no column, or no row of the table may be given.
    """
    useful = np.flatnonzero(_useful(table) & _allowed(split.conditions, table))
    if not len(useful):
        raise RequestError(
            f"--split {split}", "no row that ended with a time may be a shot"
            + (f": none meets {' and '.join(split.conditions)}" if split.conditions else ""),
            "loosen the conditions" if split.conditions else "give runs with times",
        )  # fmt: skip
    config = configurations(table)[1]
    drawn = rng.permutation(useful)
    if split.shots == "cheapest":
        drawn = drawn[np.argsort(run_costs(table)[drawn], kind="stable")]
    # One row of each configuration, the first drawn; of these, the first `count` of each group.
    one = np.sort(np.unique(config[drawn], return_index=True)[1])
    drawn = drawn[one]
    order = drawn[np.argsort(groups[drawn], kind="stable")]
    starts = np.flatnonzero(np.r_[True, groups[order][1:] != groups[order][:-1]])
    turn = np.arange(len(order)) - np.repeat(starts, np.diff(np.r_[starts, len(order)]))
    given = np.zeros(len(table), dtype=bool)
    given[order[turn < split.count]] = True
    return given, np.isin(config, config[given]) & ~given


def _useful(table: Table) -> BoolArray:
    timed = np.any([np.isfinite(table.numbers(name)) for name in _TIMES], axis=0)
    texts = table.texts("status")
    ended = {text: text.strip().lower() in ("", "ok") for text in set(texts.tolist())}
    ok = np.fromiter((ended[text] for text in texts.tolist()), dtype=bool, count=len(texts))
    return np.asarray(timed & ok)


def _allowed(conditions: Sequence[str], table: Table) -> BoolArray:
    allowed = np.ones(len(table), dtype=bool)
    for text in conditions:
        allowed &= parse_condition(text).holds(table)
    return allowed


# What grows in the two splits that choose their own bounds, and within which rows: a larger
# cluster of the same device, a larger batch on as many devices (weak scaling grows both at once).
LARGER = {
    "larger-clusters": ("devices", ("workload", "device")),
    "larger-batches": ("global_batch", ("workload", "device", "devices")),
}


def columns_of(split: Split) -> tuple[str, ...]:
    """Return the columns by which a split divides a table."""
    column, within = LARGER.get(split.kind, (split.column, split.within))
    names = [name for name, _ in split.bounds]
    names += [parse_condition(text).column for text in split.conditions]
    if split.shots != SHOTS[0]:
        names.append("devices")  # what a run cost where no price is stated
    return with_aliases((*filter(None, [column]), *within, *names))


@dataclass(frozen=True, slots=True)
class Fold:
    """Positions of the rows that teach and of the rows that are judged; they never overlap."""

    train: Index
    test: Index


def folds_of(split: Split, table: Table, seed: int = 0, parts: int = 0) -> list[Fold]:
    """Return the folds of a table.

    * whole judges all rows and teaches none.
    * random has `parts` folds; repeats of one configuration stay in one of them.
    * holdout is the first of the five folds of random alone, for what takes long to fit.
    * leave-out judges the rows of one value and teaches all others; of more than `parts` values
      several are left out together, dealt by the seed.
    * from teaches the rows of the named values and judges those of all others.
    * above teaches up to the bound and judges beyond it, up to the limit.
    * larger-clusters, larger-batches: see `LARGER`; in each group of these columns the lower half
      of the distinct values teaches and the upper half is judged. A group of one value teaches.
    * leave-one-out is leave-out with a fold for every value.
    * few-shot is leave-out, but K measured configurations of each judged value (of each group of
      its rows, where columns make groups) teach too; exact repeats of these are not judged. See
      `shots.shots_of`.
    * interpolation judges the listed values of a column, or every h-th of its sorted distinct
      values from the first, as Filippini and Ardagna did. The smallest value is always judged in
      the second case, and nothing smaller teaches: that part of it is extrapolation downward.
    * between judges every second distinct value of a column, never the least or largest.
    * extrapolation judges a row where any of the columns is strictly above its bound, and teaches
      all others, as they did.

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
    split, _ = grounded(split, table)
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
    if kind in ("random", "holdout"):
        count, config = configurations(table)
        whole = USUAL_FOLDS["random"] if kind == "holdout" else parts
        return list(_dealt(rng.permutation(count)[config] % whole, whole))[:parts]
    if kind in ("leave-out", "leave-one-out", "few-shot"):
        return _left_out(split, table, rng, parts)
    teach, judge = _sides(split, table)
    return [Fold(np.flatnonzero(teach), np.flatnonzero(judge))]


def _left_out(split: Split, table: Table, rng: np.random.Generator, parts: int) -> list[Fold]:
    for column in (split.column, *split.within):
        _require(split, column, table)
    first, groups = table.groups((split.column,))
    count = len(first)
    if split.kind != "few-shot" and count < 2:
        raise _empty(split, f"all rows have the same {split.column}")
    parts = count if split.kind == "leave-one-out" else parts
    part = groups if count <= parts else rng.permutation(count)[groups] % parts
    folds = _dealt(part, min(count, parts))
    if split.kind != "few-shot":
        return list(folds)
    shown = shots_of(split, table, table.groups((split.column, *split.within))[1], rng)
    return [_given(fold, *shown) for fold in folds]


def _dealt(part: Index, parts: int) -> Iterator[Fold]:
    for i in range(parts):
        yield Fold(np.flatnonzero(part != i), np.flatnonzero(part == i))


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
        return _interpolated(split, table)
    if split.kind == "between":
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


def _interpolated(split: Split, table: Table) -> tuple[BoolArray, BoolArray]:
    """Return the sides of the Ray study's rule: listed values, or every h-th from the first."""
    if split.values:
        judge, teach = _named(split, table)
        return teach, judge
    _require(split, split.column, table)
    cells = table.columns[split.column]
    known = cells != "" if cells.dtype == object else np.isfinite(table.numbers(split.column))
    distinct = np.unique(cells[known].astype(str) if cells.dtype == object else cells[known])
    if len(distinct) < 2:
        raise _empty(split, f"all rows have the same {split.column}")
    chosen = distinct[:: split.every]
    judge = known & np.isin(cells.astype(str) if cells.dtype == object else cells, chosen)
    return known & ~judge, judge


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
