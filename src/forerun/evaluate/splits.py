"""Splits: the ways to divide a table into rows that teach and rows that are judged, as words.

Folds: which rows of a table teach and which are judged; no judged row is among its training runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray
from forerun.errors import RequestError, nearest_names
from forerun.tables import Runs, Table, configurations
from forerun.tables.conditions import DERIVED, Condition, absent, parse_condition, unknown_column
from forerun.tables.jobs import throughput_seconds
from forerun.tables.measured import measured_seconds

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


# Words of the published studies for columns of a runs table; of several the first that varies.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "workers": ("devices",),
    "batch": ("global_batch",),
    "resources": ("vcpus", "devices_per_node", "instance_type"),
}


def with_aliases(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names and the columns that they may stand for."""
    return tuple(dict.fromkeys(n for name in names for n in (name, *ALIASES.get(name, ()))))


def grounded(split: Split, table: Table) -> tuple[Split, tuple[str, ...]]:
    """Return the split in columns and bounds of this table, and what was put for what, in words.

    Raises:
        RequestError: a word stands for columns of which the table has none that varies, or a
            bound is to be the middle of a column without two numbers.
    """
    notes: list[str] = []
    numeric = bool(split.bounds)

    def named(column: str) -> str:
        found = _column_named(split, column, table, numeric)
        if found != column:
            notes.append(f"{column} is the column {found}")
        return found

    bounds = []
    for column, bound in split.bounds:
        name = named(column)
        if np.isnan(bound):
            bound = _middle(split, name, table)
            notes.append(f"{name}={HALF} is {name} <= {bound:g}")
        bounds.append((name, bound))
    column = bounds[0][0] if bounds and split.column else named(split.column)
    within = tuple(named(name) for name in split.within)
    return replace(split, column=column, bounds=tuple(bounds), within=within), tuple(notes)


def _column_named(split: Split, name: str, table: Table, numeric: bool) -> str:
    if name in table or name not in ALIASES:
        return name
    choices = ALIASES[name]
    here = [c for c in choices if c in table]
    if numeric:
        here = [c for c in here if table.columns[c].dtype != object]
    varied = [c for c in here if len(set(table.texts(c).tolist()) - {""}) > 1]
    if varied or here:
        return (varied or here)[0]
    raise RequestError(
        f"--split {split}", f"{name} stands for {' or '.join(choices)}, and the table has no such"
        f" column{' of numbers' if numeric else ''}",
        "name a column that it has",
    )  # fmt: skip


def _middle(split: Split, column: str, table: Table) -> float:
    """Return the last of the lower half of the distinct values."""
    if column not in table:
        return float("nan")  # the fold says what is missing
    values = table.numbers(column)
    distinct = np.unique(values[np.isfinite(values)])
    if len(distinct) < 2:
        raise RequestError(
            f"--split {split}", f"{column} has {len(distinct)} distinct numbers, and no middle",
            "choose a column that varies",
        )  # fmt: skip
    return float(distinct[(len(distinct) - 1) // 2])


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


SLOWER = "in the slower half of its group (--faster-half)"


def rows_where(runs: Runs, conditions: Sequence[Condition], name: str) -> Runs:
    """Return the rows for which all conditions hold. Raises RequestError where there is none."""
    if not conditions:
        return runs
    runs = with_derived(runs, [c.column for c in conditions])
    keep = np.all([c.holds(runs.table) for c in conditions], axis=0)
    if not keep.any():
        raise RequestError(
            f"--where {' --where '.join(map(str, conditions))}", f"no row of {name} is left",
            "loosen the conditions, or leave the table out",
        )  # fmt: skip
    return runs.take(np.flatnonzero(keep))


def slower_half(runs: Runs, columns: Sequence[str]) -> BoolArray:
    """Return the measured rows that are slower than the median of their group, (n,).

    Rows of a group share the values of the columns; they are compared by measured seconds a
    sample. A group keeps at least half of its rows, and equals stay together. Rows without a
    time are in neither half. The halves are chosen by what was measured, as in the published
    figures that this filter is to be compared with: it says how good forecasts are among the
    plans that are worth having, and no forecast can know beforehand which these are.

    Raises:
        RequestError: a column is missing, or no row has a step time.
    """
    asked = f"--faster-half {','.join(columns)}"
    for column in columns:
        if column not in runs.table:
            raise unknown_column(asked, column, runs.table)
    batch = runs.table.numbers("global_batch")
    seconds = measured_seconds(runs, "step").seconds / np.where(batch > 0, batch, 1.0)
    timed = np.flatnonzero(~np.isnan(seconds))
    if not len(timed):
        raise RequestError(asked, "no row has a step time", "leave it out for these runs")
    group = runs.table.groups(columns)[1]
    order = timed[np.lexsort((seconds[timed], group[timed]))]
    starts = np.flatnonzero(np.r_[True, group[order][1:] != group[order][:-1]])
    counts = np.diff(np.r_[starts, len(order)])
    middle = np.full(int(group.max()) + 1, np.nan)
    middle[group[order[starts]]] = seconds[order[starts + (counts + 1) // 2 - 1]]
    return np.asarray(seconds > middle[group])


def with_derived(runs: Runs, names: Iterable[str]) -> Runs:
    """Return runs with the named columns, derived from their clusters where the table lacks them.

    Existing columns stay, blanks included; names that no cluster states are passed over.
    """
    known = runs.jobs.cluster_index >= 0
    if not known.any():
        return runs
    added = {
        name: _cluster_column(runs, DERIVED[name], known)
        for name in names
        if name in DERIVED and name not in runs.table
    }
    return Runs(runs.jobs, runs.table.with_columns(**added)) if added else runs


def _cluster_column(runs: Runs, field: str, known: BoolArray) -> NDArray[np.object_ | np.float64]:
    values = runs.jobs.per_cluster(field)
    if values.dtype.kind in "US":
        return np.where(known, values.astype(object), "")
    return np.where(known, values.astype(np.float64), np.nan)
