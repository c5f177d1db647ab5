"""Conditions on the rows of a table, as a person writes them: `tp<=8`, `device=t4,v100`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from forerun.arrays import BoolArray
from forerun.errors import RequestError, nearest_names
from forerun.tables.table import Table, label_key, matched

# What each column can be read from where it is absent, by what a cluster calls it.
DERIVED: Mapping[str, str] = {
    "devices": "devices", "nodes": "nodes", "devices_per_node": "devices_per_node",
    "device": "device.id",
}  # fmt: skip
SOURCES = "fill it in, or nodes with devices_per_node, or cluster (as 4x8xh100-sxm-80gb)"

_SIGNS: Mapping[str, np.ufunc] = {
    "<=": np.less_equal, ">=": np.greater_equal, "<": np.less, ">": np.greater,
}  # fmt: skip
_CONDITION = re.compile(r"\s*([^<>=!]+?)\s*(<=|>=|!=|=|<|>)\s*([^<>=!\s].*?)\s*")


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on rows: `COLUMN=VALUE,...`, `COLUMN!=VALUE,...` or `COLUMN<=NUMBER` and so on."""

    column: str
    sign: str
    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.column}{self.sign}{','.join(self.values)}"

    def holds(self, table: Table) -> BoolArray:
        """Return for which rows it holds, (n,); never where the column is blank."""
        if self.column not in table:
            raise unknown_column(f"condition {self}", self.column, table)
        numeric = table.columns[self.column].dtype != object
        if self.sign in _SIGNS or numeric:
            cells, values = table.numbers(self.column), [*map(number_of, self.values)]
            if None in values:
                raise RequestError(
                    f"condition {self}", f"{self.column} holds numbers", "compare it with a number"
                )
            if self.sign in _SIGNS:
                return np.asarray(_SIGNS[self.sign](cells, values[0]), dtype=bool)
            found = np.isin(cells, np.array(values, dtype=np.float64))
            return (found if self.sign == "=" else ~found) & ~np.isnan(cells)
        texts = matched(self.column, table.texts(self.column)).astype(str)
        keys = {label_key(self.column, value) for value in self.values}
        found = np.isin(texts, [t for t in np.unique(texts) if label_key(self.column, t) in keys])
        return np.asarray((found if self.sign == "=" else ~found) & (texts != ""))


def parse_condition(text: str) -> Condition:
    """Return the condition of a text such as `tp<=8` or `device=t4,v100`, or raise RequestError."""
    match = _CONDITION.fullmatch(text)
    step = "write COLUMN=VALUE,..., COLUMN!=VALUE,..., COLUMN<=NUMBER, <, >= or >"
    if match is None:
        raise RequestError(f"condition {text}", "it is no condition", step)
    column, sign, right = match.groups()
    values = tuple(v.strip() for v in right.split(",") if v.strip())
    bound = number_of(values[0]) if len(values) == 1 else None
    if not values or (sign in _SIGNS and (bound is None or not np.isfinite(bound))):
        raise RequestError(f"condition {text}", f"{right!r} is not a number", step)
    return Condition(column, sign, values)


def absent(column: str, table: Table) -> tuple[str, str]:
    """Return what is found where a table has no such column, and what to do."""
    if column in DERIVED:
        return f"there is no column {column!r}, and no cluster to read it from", SOURCES
    near = nearest_names(column, list(table.columns)) or list(table.columns)[:6]
    return f"there is no column {column!r}", f"choose one that is there, e.g. {', '.join(near)}"


def unknown_column(asked: str, column: str, table: Table) -> RequestError:
    """Return the error that a table has no such column, with what to do."""
    return RequestError(asked, *absent(column, table))


def number_of(text: str) -> float | None:
    """Return the number that a text is, or None."""
    try:
        return float(text)
    except ValueError:
        return None
