"""Splits: the ways to divide a table into training rows and judged rows, as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray, IntArray, group_medians, turns
from forerun.errors import RequestError, nearest_names
from forerun.tables import Runs, Table, configurations
from forerun.tables.conditions import DERIVED, Condition, absent, parse_condition, unknown_column
from forerun.tables.jobs import row_step_samples, throughput_seconds
from forerun.tables.measured import measured_seconds
from forerun.tables.table import label_key, matched

FORMS = (
    "whole", "random", "holdout", "leave-out:COLUMN", "leave-one-out:COLUMN", "from:COLUMN=VALUE,...",
    "above:COLUMN=VALUE[..END]", "larger-clusters", "larger-batches",
    "few-shot:COLUMN[/COLUMN...]=K[:cheapest][:CONDITION...]",
    "interpolation:COLUMN[=VALUE,...|=everyN]", "between:COLUMN", "extrapolation:COLUMN=VALUE,...",
)  # fmt: skip
_FORM_OF = {re.split("[:[]", form)[0]: form for form in FORMS}
# Splits of several folds, and how many they have by default.
USUAL_FOLDS: Mapping[str, int] = {"random": 5, "leave-out": 10, "few-shot": 10}
HALF = "half"  # a bound that each table sets for itself: the middle of its distinct values
SHOTS = ("random", "cheapest")
SLOWER = "in the slower half of its group (--faster-half)"
# Words of the published studies for columns of a runs table; of several the first that varies.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "workers": ("devices",), "batch": ("global_batch",),
    "resources": ("vcpus", "devices_per_node", "instance_type"),
}  # fmt: skip
# What grows in the two splits that choose their own bounds, and within which rows.
LARGER = {
    "larger-clusters": ("devices", ("workload", "device")),
    "larger-batches": ("global_batch", ("workload", "device", "devices")),
}
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})")
_EVERY = re.compile(r"every[- ]?(\d+)")
_TIMES = ("step_time_s", "samples_per_s", "tokens_per_s", "tflops_per_device", "epoch_time_s",
          "time_to_train_s")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Split:
    """One way to divide a table, as a user wrote it; `folds_of` carries it out.

    Attributes:
        values: of `from`, those to fit; of `interpolation`, those that are judged.
        count, within, shots, conditions: of `few-shot`, see `folds_of`.
        bounds, limit: the largest value to fit, by column (NaN: the middle of a table's distinct
            values), and of `above` the largest judged.
        every: of `interpolation` without values, the step through the sorted distinct values.
    """

    text: str
    column: str = ""
    values: tuple[str, ...] = ()
    count: int = 0
    bounds: tuple[tuple[str, float], ...] = ()
    limit: float = float("inf")
    every: int = 2
    within: tuple[str, ...] = ()
    shots: str = SHOTS[0]
    conditions: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The word before the colon."""
        return self.text.partition(":")[0]

    def __str__(self) -> str:
        return self.text


def parse_split(text: str) -> Split:
    """Return the split that a text such as `above:devices=8` asks for, or raise RequestError."""
    text = str(text).strip()
    kind, colon, rest = text.partition(":")
    form = _FORM_OF.get(kind, "")
    if not form or (colon and ":" not in form):
        raise _wrong(
            text, f"{kind} takes nothing after it" if form else f"there is no split {kind!r}"
        )
    if ":" not in form:
        return Split(text)
    if kind in ("above", "extrapolation"):
        return _bounded(text, rest.split(",") if kind == "extrapolation" else [rest])
    column, equals, value = (piece.strip() for piece in rest.partition("="))
    if "=" not in form or (kind == "interpolation" and not equals):
        if equals or not column:
            raise _wrong(text, "it takes a column and no value" if column else "it names no column")
        return Split(text, column)
    column, value = _pair(text, rest)
    if kind == "few-shot":
        return _few_shot(text, column, value)
    step = _EVERY.fullmatch(value) if kind == "interpolation" else None
    if step is not None:
        if int(step[1]) < 2:
            raise _wrong(text, f"{step[1]} is not a step of 2 or more")
        return Split(text, column, every=int(step[1]))
    values = tuple(v.strip() for v in value.split(",") if v.strip())
    if not values:
        raise _wrong(text, "it names no value")
    return Split(text, column, values)


def _wrong(text: str, found: str) -> RequestError:
    return RequestError(f"--split {text}", found, f"write one of {', '.join(FORMS)}")


def _pair(text: str, part: str) -> tuple[str, str]:
    column, _, value = (piece.strip() for piece in part.partition("="))
    if not column or not value:
        raise _wrong(text, f"it names no {'value' if column else 'column'}")
    return column, value


def _bounded(text: str, parts: Sequence[str]) -> Split:
    pairs, end = [_pair(text, part) for part in parts], np.inf
    above = pairs[0][0] if text.startswith("above") else ""
    if above and (span := _RANGE.fullmatch(pairs[0][1])):
        pairs, end = [(above, span[1])], float(span[2])
    bounds: dict[str, float] = {}
    for column, value in pairs:
        if value != HALF and not (re.fullmatch(_NUMBER, value) and np.isfinite(float(value))):
            raise _wrong(text, f"{value!r} is not a number")
        bounds[column] = float("nan" if value == HALF else value)
    if len(bounds) < len(pairs):
        raise _wrong(text, "a column has two bounds")
    if end <= (bound := next(iter(bounds.values()))):
        raise _wrong(text, f"nothing lies above {bound:g} and up to {end:g}")
    return Split(text, above, bounds=tuple(bounds.items()), limit=end)


def _few_shot(text: str, columns: str, value: str) -> Split:
    column, *within = (name.strip() for name in columns.split("/"))
    if not column or not all(within):
        raise _wrong(text, "it names no column")
    count, *words = (word.strip() for word in value.split(":"))
    if not count.isdigit() or not int(count):
        raise _wrong(text, f"{count} is not a count of runs above zero")
    manner = words.pop(0) if words and words[0] in SHOTS else SHOTS[0]
    for word in words:
        try:
            parse_condition(word)
        except RequestError as error:
            raise _wrong(text, f"{word!r}: {error.found}") from None
    return Split(
        text, column, count=int(count), within=tuple(within), shots=manner, conditions=tuple(words)
    )


def columns_of(split: Split) -> tuple[str, ...]:
    """Return the columns by which a split divides a table, and those that they may stand for."""
    column, within = LARGER.get(split.kind, (split.column, split.within))
    names = [*filter(None, [column]), *within, *(name for name, _ in split.bounds)]
    names += [parse_condition(text).column for text in split.conditions]
    if split.shots != SHOTS[0]:
        names.append("devices")  # what a run cost where no price is stated
    return tuple(dict.fromkeys(n for name in names for n in (name, *ALIASES.get(name, ()))))


def grounded(split: Split, table: Table) -> tuple[Split, tuple[str, ...]]:
    """Return the split in columns and bounds of this table, and notes on what was replaced."""
    notes: list[str] = []

    def named(name: str) -> str:
        if name in table or name not in ALIASES:
            return name
        numbers = bool(split.bounds)
        here = [
            c for c in ALIASES[name]
            if c in table and not (numbers and table.columns[c].dtype == object)
        ]  # fmt: skip
        varied = [c for c in here if len(set(table.texts(c).tolist()) - {""}) > 1]
        if not here:
            lacks = (
                f"{name} stands for {' or '.join(ALIASES[name])}, and the table has no such column"
            )
            todo = "name a column that it has"
            raise _empty(split, f"{lacks}{' of numbers' if numbers else ''}", todo)
        notes.append(f"{name} is the column {(varied or here)[0]}")
        return (varied or here)[0]

    bounds = []
    for column, bound in split.bounds:
        name = named(column)
        if np.isnan(bound) and name in table:  # else the fold reports what is missing
            values = table.numbers(name)
            distinct = np.unique(values[np.isfinite(values)])
            if len(distinct) < 2:
                found = f"{name} has {len(distinct)} distinct numbers, and no middle"
                raise _empty(split, found, "choose a column that varies")
            bound = float(distinct[(len(distinct) - 1) // 2])  # the last of the lower half
            notes.append(f"{name}={HALF} is {name} <= {bound:g}")
        bounds.append((name, bound))
    column = bounds[0][0] if bounds and split.column else named(split.column)
    within = tuple(named(name) for name in split.within)
    return replace(split, column=column, bounds=tuple(bounds), within=within), tuple(notes)


@dataclass(frozen=True, slots=True)
class Fold:
    """Positions of the training rows and of the judged rows; they never overlap."""

    train: IntArray
    test: IntArray


def folds_of(split: Split, table: Table, seed: int = 0, parts: int = 0) -> list[Fold]:
    """Return the folds of a table, none of them empty on either side.

    `random` deals configurations, repeats together, to `parts` folds, of which `holdout` is the first
    of five. `leave-out` judges one value (of many, several) and fits the others; `few-shot` fits K
    configurations of each judged group too and does not judge their repeats. `larger-*` split each
    group of the columns in `LARGER` at the middle of its distinct values. `interpolation` judges
    every h-th of the sorted distinct values from the first (Filippini and Ardagna), `between` every
    second but never the ends. Rows whose column is blank stand on neither side where it is compared
    by number. `parts` 0 is `USUAL_FOLDS`.

    Raises RequestError for a missing column, an unknown value, an empty side or needless `parts`.
    """
    kind = split.kind
    if parts and kind not in USUAL_FOLDS:
        raise RequestError(
            f"--folds {parts} with --split {split}", f"{kind} has no folds to count",
            f"leave --folds out, or split by one of {', '.join(USUAL_FOLDS)}",
        )  # fmt: skip
    split, _ = grounded(split, table)
    rng = np.random.default_rng(seed)
    parts = parts or USUAL_FOLDS.get(kind, 1)
    if kind == "whole":
        folds = [Fold(np.zeros(0, dtype=np.int64), np.arange(len(table)))]
    elif kind in ("random", "holdout"):
        count, config = configurations(table)
        whole = USUAL_FOLDS["random"] if kind == "holdout" else min(parts, count)
        folds = list(_dealt(rng.permutation(count)[config] % whole, whole))[:parts]
    elif kind in ("leave-out", "leave-one-out", "few-shot"):
        folds = _left_out(split, table, rng, parts)
    else:
        train, test = _SIDES[kind](split, table)
        folds = [Fold(np.flatnonzero(train), np.flatnonzero(test))]
    folds = [fold for fold in folds if len(fold.test)]
    if not folds or (kind != "whole" and any(not len(fold.train) for fold in folds)):
        raise _empty(split, f"no row would be {'left to fit' if folds else 'judged'}")
    return folds


def _dealt(part: IntArray, parts: int) -> Iterator[Fold]:
    for i in range(parts):
        yield Fold(np.flatnonzero(part != i), np.flatnonzero(part == i))


def _left_out(split: Split, table: Table, rng: np.random.Generator, parts: int) -> list[Fold]:
    for column in (split.column, *split.within):
        _require(split, column, table)
    first, groups = table.groups((split.column,))
    count = len(first)
    if split.kind != "few-shot" and count < 2:
        raise _empty(split, f"all rows have the same {split.column}")
    parts = count if split.kind == "leave-one-out" else parts
    part = groups if count <= parts else rng.permutation(count)[groups] % parts
    folds = list(_dealt(part, min(count, parts)))
    if split.kind != "few-shot":
        return folds
    given, repeats = _shots(split, table, table.groups((split.column, *split.within))[1], rng)
    return [
        Fold(
            np.sort(np.concatenate([fold.train, fold.test[given[fold.test]]])),
            fold.test[~given[fold.test] & ~repeats[fold.test]],
        )
        for fold in folds
    ]


def _shots(
    split: Split, table: Table, groups: IntArray, rng: np.random.Generator
) -> tuple[BoolArray, BoolArray]:
    """Return which rows are given, K configurations of each group, and which repeat these, (n,)."""
    useful = np.any([np.isfinite(table.numbers(name)) for name in _TIMES], axis=0)
    useful &= np.array([t.strip().lower() in ("", "ok") for t in table.texts("status")], dtype=bool)
    for text in split.conditions:
        useful &= parse_condition(text).holds(table)
    if not useful.any():
        met = f": none meets {' and '.join(split.conditions)}" if split.conditions else ""
        step = "loosen the conditions" if met else "give runs with times"
        raise _empty(split, f"no row that ended with a time may be a shot{met}", step)
    config = configurations(table)[1]
    drawn = rng.permutation(np.flatnonzero(useful))
    if split.shots == "cheapest":
        # Dollars of each run, else device-seconds; infinite where not known.
        seconds = np.full(len(table), np.nan)
        steps, epochs, runs = map(table.numbers, ("step_time_s", "epoch_time_s", "time_to_train_s"))
        for times in (steps, throughput_seconds(table), epochs, runs):
            seconds = np.where(np.isnan(seconds) & (times > 0), times, seconds)
        price, timed = table.numbers("price_usd_per_hour"), np.isfinite(seconds)
        rate = price if timed.any() and np.all(price[timed] > 0) else table.numbers("devices")
        costs = np.where(np.isfinite(seconds * rate), seconds * rate, np.inf)
        drawn = drawn[np.argsort(costs[drawn], kind="stable")]
    # One row of each configuration, the first drawn; of these, the first `count` of each group.
    drawn = drawn[np.sort(np.unique(config[drawn], return_index=True)[1])]
    order = drawn[np.argsort(groups[drawn], kind="stable")]
    given = np.zeros(len(table), dtype=bool)
    given[order[turns(groups[order]) < split.count]] = True
    return given, np.isin(config, config[given]) & ~given


def _beyond(split: Split, table: Table) -> tuple[BoolArray, BoolArray]:
    known, beyond = np.ones(len(table), dtype=bool), np.zeros(len(table), dtype=bool)
    spans = []
    for column, bound in split.bounds:
        values = _values(split, column, table)
        known &= ~np.isnan(values)
        beyond |= values > bound
        if np.isfinite(values).any():
            spans.append(f"{column} within {np.nanmin(values):g} to {np.nanmax(values):g}")
    train, test = known & ~beyond, known & beyond
    if split.kind == "above":
        test &= _values(split, split.column, table) <= split.limit
    for name, side in (("up to", train), ("above", test)):
        if not side.any():
            text = " and ".join(f"{column} {name} {bound:g}" for column, bound in split.bounds)
            choice = ", ".join(spans) or "another column"
            raise _empty(split, f"no row has {text}", f"choose {choice}")
    return train, test


def _named(split: Split, table: Table) -> tuple[BoolArray, BoolArray]:
    cells, known = _cells(split, table)
    texts = dict.fromkeys(matched(split.column, table.texts(split.column))[known].tolist())
    wanted: list[Any] = []
    for value in split.values:
        try:
            key = label_key(split.column, value)
            near = next((t for t in texts if label_key(split.column, t) == key), value)
            wanted.append(float(value) if cells.dtype.kind == "f" else near)
        except ValueError:
            wanted.append(np.nan)
        if not np.isin(cells[known], wanted[-1:]).any():
            near = nearest_names(value, texts) or list(texts)[:6]
            found = f"no row has {split.column} {value}"
            raise _empty(split, found, f"write e.g. {', '.join(near)}")
    train = known & np.isin(cells, wanted)
    return train, known & ~train


def _larger(split: Split, table: Table) -> tuple[BoolArray, BoolArray]:
    column, within = LARGER[split.kind]
    values = _values(split, column, table)
    known, group = ~np.isnan(values), table.groups(within)[1]
    pairs = np.unique(np.stack([group[known], values[known]], axis=1), axis=0)
    lower, _ = group_medians(pairs[:, 1], pairs[:, 0].astype(np.int64), int(group.max()) + 1)
    test = known & (values > lower[group])
    if not test.any():
        raise _empty(split, f"no {' and '.join(within)} has two values of {column}")
    return known & ~test, test


def _alternate(split: Split, table: Table) -> tuple[BoolArray, BoolArray]:
    if split.values:
        test, train = _named(split, table)
        return train, test
    cells, known = _cells(split, table)
    distinct = np.unique(cells[known])
    chosen = distinct[1:-1:2] if split.kind == "between" else distinct[:: split.every]
    if not len(chosen):
        found = f"{split.column} has {len(distinct)} distinct values, and none lies between two"
        raise _empty(split, found, "choose a column of three or more")
    if len(distinct) < 2:
        raise _empty(split, f"all rows have the same {split.column}")
    test = known & np.isin(cells, chosen)
    return known & ~test, test


def _cells(split: Split, table: Table) -> tuple[NDArray[Any], BoolArray]:
    _require(split, split.column, table)
    cells = table.columns[split.column]
    if cells.dtype == object:
        texts = table.texts(split.column)
        return matched(split.column, texts).astype(str), texts != ""
    return cells, np.isfinite(cells)


# Which rows are fitted and which judged, (n,) each, for splits of one fold.
_SIDES: Mapping[str, Callable[[Split, Table], tuple[BoolArray, BoolArray]]] = {
    "from": _named, "larger-clusters": _larger, "larger-batches": _larger, "above": _beyond,
    "extrapolation": _beyond, "interpolation": _alternate, "between": _alternate,
}  # fmt: skip


def _values(split: Split, column: str, table: Table) -> FloatArray:
    _require(split, column, table)
    try:
        return table.numbers(column)
    except RequestError as error:
        raise _empty(
            split, f"{column} is no number: {error.found}", "choose a column of numbers"
        ) from None


def _require(split: Split, column: str, table: Table) -> None:
    if column not in table:
        raise _empty(split, *absent(column, table))


def _empty(
    split: Split, found: str, step: str = "split otherwise, or give more runs"
) -> RequestError:
    return RequestError(f"--split {split}", found, step)


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
    """Return the measured rows that are slower a sample than the median of those equal in columns, (n,)."""
    asked = f"--faster-half {','.join(columns)}"
    for column in columns:
        if column not in runs.table:
            raise unknown_column(asked, column, runs.table)
    batch = row_step_samples(runs.table)
    seconds = measured_seconds(runs, "step").seconds / np.where(batch > 0, batch, 1.0)
    timed = ~np.isnan(seconds)
    if not timed.any():
        raise RequestError(asked, "no row has a step time", "leave it out for these runs")
    group = runs.table.groups(columns)[1]
    return np.asarray(
        seconds > group_medians(seconds[timed], group[timed], int(group.max()) + 1)[0][group]
    )


def with_derived(runs: Runs, names: Iterable[str]) -> Runs:
    """Return runs with the named columns, derived from their clusters where the table lacks them."""
    known = runs.jobs.cluster_index >= 0
    added: dict[str, NDArray[np.object_ | np.float64]] = {}
    for name in names:
        if known.any() and name in DERIVED and name not in runs.table:
            values = runs.jobs.per_cluster(DERIVED[name])
            text = values.dtype.kind in "US"
            cells = values.astype(object if text else np.float64)
            added[name] = np.where(known, cells, "" if text else np.nan)
    return Runs(runs.jobs, runs.table.with_columns(**added)) if added else runs
