"""Aliases: what a study calls a column, and which column of a table that is; bounds set by a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from forerun.errors import RequestError
from forerun.evaluate.splits import HALF, Split
from forerun.tables import Table

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
        found = _column(split, column, table, numeric)
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


def _column(split: Split, name: str, table: Table, numeric: bool) -> str:
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
