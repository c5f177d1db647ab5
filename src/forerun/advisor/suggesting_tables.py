"""SuggestingTables: candidates beside runs: which were made already, and two tables as one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import IntArray
from forerun.tables import COLUMNS, Table
from forerun.units import counted

# What a job is known by; a price and where it was published tell no two apart.
IDENTITY = tuple(
    c.name
    for c in COLUMNS.values()
    if c.group in ("workload", "cluster", "plan")
    and c.name not in ("price_usd_per_hour", "interconnect", "family")
)
# Two tables may say in other columns where a job runs: one that says it otherwise is another job.
_PLACE = ("cluster", "device", "nodes", "devices")
# A candidate of so many devices of a kind, which leaves open on how many nodes, was run on any.
_PLACED = {"device", "devices"}


def made_already(candidates: Table, runs: Table | None) -> NDArray[np.bool_]:
    """Return which candidates equal a run in every column that says what a job is, (n,)."""
    if runs is None or not len(runs):
        return np.zeros(len(candidates), dtype=bool)
    both = [name for name in IDENTITY if name in candidates and name in runs]
    places = [n for n in _PLACE if n not in both and (n in candidates or n in runs)]
    if set(both) >= _PLACED and "nodes" not in candidates:
        places = [n for n in places if n != "nodes"]
    names = [*both, *places]
    if "workload" not in names:
        return np.zeros(len(candidates), dtype=bool)
    had = set(_keys(runs, names))
    return np.array([key in had for key in _keys(candidates, names)], dtype=bool)


def looked_at(table: Table, made: NDArray[np.bool_], most: int) -> tuple[IntArray, list[str]]:
    """Return the rows of candidates that are looked at, (m,), and what is said of the others.

    One of those that are the same job, and of more than `most` an even choice in their order.

    Args:
        table: of candidates. made: which were run already, (n,). most: rows to look at.
    """
    notes = [f"{counted(int(made.sum()), 'candidate')} left out: run already"] if made.any() else []
    names = [name for name in IDENTITY if name in table]
    seen: dict[tuple[Any, ...], int] = {}
    for i, key in enumerate(_keys(table, names)):
        if not made[i]:
            seen.setdefault(key, i)
    rows = np.array(sorted(seen.values()), dtype=np.int64)
    again = int((~made).sum()) - len(rows)
    if again:
        notes.append(f"{counted(again, 'candidate')} left out: the same job as another")
    if len(rows) > most:
        notes.append(
            f"{most:,} of {len(rows):,} candidates looked at, evenly spread over the table"
        )
        rows = evenly(rows, most)
    return rows, notes


def evenly(rows: IntArray, most: int) -> IntArray:
    """Return at most so many of the rows, evenly spread."""
    if len(rows) <= most:
        return rows
    return np.asarray(rows[np.linspace(0, len(rows) - 1, most).astype(np.int64)])


def _keys(table: Table, names: list[str]) -> list[tuple[Any, ...]]:
    columns = [
        np.nan_to_num(table.numbers(name), nan=-1.0).tolist()
        if COLUMNS[name].kind == "number"
        else [text.strip().lower() for text in table.texts(name)]
        for name in names
    ]
    return list(zip(*columns, strict=True))


def joined(first: Table, second: Table | None) -> Table:
    """Return the rows of two tables, one below the other; a column that one lacks is blank there."""
    if second is None:
        return first
    columns: dict[str, NDArray[Any]] = {}
    for name in dict.fromkeys((*first.columns, *second.columns)):
        number = name in COLUMNS and COLUMNS[name].kind == "number"
        columns[name] = np.concatenate([
            table.numbers(name) if number else table.texts(name) for table in (first, second)
        ])  # fmt: skip
    problems = [
        np.full(len(table), None, dtype=object) if table.problems is None else table.problems
        for table in (first, second)
    ]
    return Table(columns, len(first) + len(second), np.concatenate(problems))
