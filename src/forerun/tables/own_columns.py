"""OwnColumns: which columns of a user's own are part of a configuration, as kernel size or dropout are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import IntArray
from forerun.errors import RequestError, one_of
from forerun.tables.jobs import Runs
from forerun.tables.table import COLUMNS, OwnColumns, Table, configurations

AUTO, NONE = "auto", "none"
# More values than this are no setting that somebody chose, but a reading.
MOST_VALUES = 32
_NAMES_A_RUN = re.compile(
    r"(^|.*_)(id|uuid|index|date|day|timestamp|started|ended|created|updated|repeat|rep|trial|run|"
    r"seed|host|hostname|user|commit|hash|comment|note|ref|url|path|file|log|fingerprint|point)s?$"
)
_MEASURED = re.compile(
    r"(^|.*_)(s|ms|us|sec|second|minute|hour|time|byte|kb|gb|gib|mib|usd|watt|share|percent|util|"
    r"utilization|load|loss|accuracy|throughput|tflops|mfu|measured_step|warmup_step)s?$"
)


def with_own_columns(table: Table, wish: str = AUTO, strict: bool = True) -> Table:
    """Return the table with `own` decided, and those of its columns that are numbers read as numbers.

    By itself a column is part of a configuration where it varies among runs that are equal otherwise,
    its values return, and its name is not that of a run or of a figure; of columns that go together
    the first stays.

    wish: `auto`; `none`; or names with commas, which then are those that are. strict: all of them have to
    be columns of this table.

    Raises:
        RequestError: the table lacks a named column, or knows it as one with another meaning.
    """
    unknown = [name for name in table.columns if name not in COLUMNS]
    wanted = [] if wish in (AUTO, NONE) else [w.strip() for w in wish.split(",") if w.strip()]
    for name in wanted if strict else ():
        if name not in unknown:
            fixed = f"{name} has a meaning that is fixed"
            raise RequestError(
                f"own columns {wish}", fixed if name in COLUMNS else f"{name} is no column of these runs",
                one_of(name, unknown) if unknown else "leave it out: they have none of their own",
            )  # fmt: skip
    others = ((n, "it is not among those that were named") for n in unknown if n not in wanted)
    left_out = dict(_left_out(table, unknown) if wish == AUTO else others)
    factors = tuple(name for name in unknown if name not in left_out)
    columns = {name: _column(table, name) for name in factors}
    words = tuple(name for name in factors if columns[name].dtype == object)
    return replace(table.with_columns(**columns), own=OwnColumns(factors, left_out, words))


def read_as(table: Table, own: OwnColumns) -> Table:
    """Return the table with the own columns of other runs, as far as it has them."""
    factors = tuple(name for name in own.factors if name in table)
    columns = {
        name: table.texts(name) if name in own.words else _column(table, name) for name in factors
    }
    return replace(table.with_columns(**columns), own=replace(own, factors=factors))


def runs_read_as(runs: Runs, own: OwnColumns) -> Runs:
    """Return runs, and the labels of their jobs, with the own columns of other runs."""
    labels = None if runs.jobs.labels is None else read_as(runs.jobs.labels, own)
    jobs = replace(runs.jobs, labels=labels)
    return replace(runs, jobs=jobs, table=read_as(runs.table, own))


def _column(table: Table, name: str) -> NDArray[Any]:
    """Return a column whose cells are all numbers above 0, or blank, as numbers, any other as texts."""
    with suppress(RequestError):
        numbers = table.numbers(name)
        if not (numbers <= 0).any() and (numbers > 0).any():
            return numbers
    return table.texts(name)


def _left_out(table: Table, unknown: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the columns that are no part of a configuration, and why."""
    codes, n = {}, len(table)
    for name in unknown:
        count, code = table.groups([name])
        if _NAMES_A_RUN.match(name.lower()):
            yield name, "it names a run"
        elif _MEASURED.match(name.lower()):
            yield name, "it is a figure"
        elif len(count) < 2:
            yield name, "it is the same in all runs"
        elif len(count) > min(MOST_VALUES, n // 2):
            yield name, f"it has {len(count)} values in {n} runs"
        else:
            codes[name] = code
    if not codes:
        return
    _, config = configurations(replace(table, own=OwnColumns()))
    kept: dict[str, IntArray] = {}
    for name, code in codes.items():
        twins = (other for other, theirs in kept.items() if _tells(code, theirs, both=True))
        if _tells(config, code):
            yield name, "it is the same in runs that are equal otherwise"
        elif twin := next(twins, ""):
            yield name, f"it goes with {twin}"
        else:
            kept[name] = code


def _tells(one: IntArray, other: IntArray, both: bool = False) -> bool:
    """Return whether each value of one has a single value of the other, or each of `both`."""
    pairs = np.unique(np.stack([one, other]), axis=1).shape[1]
    return bool(pairs == one.max() + 1 and (not both or pairs == other.max() + 1))
