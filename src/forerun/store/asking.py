"""Asking: filters and conditions as SQL; on a column of one's own they are judged row by row."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, select

from forerun.errors import RequestError, nearest_names
from forerun.store.cells import REAL, plain
from forerun.store.kept import PROVENANCE
from forerun.store.layout import NUMBERS, filled_columns, runs
from forerun.tables import COLUMNS
from forerun.tables.conditions import Condition, parse_condition

_COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "!=": operator.ne, "<=": operator.le, ">=": operator.ge,
    "<": operator.lt, ">": operator.gt,
}  # fmt: skip
# Names for provenance, as a table has them and as the database does.
_ORIGINS = {name: name.removeprefix("run_") for name in PROVENANCE if name != "run_fingerprint"}


@dataclass(frozen=True)
class Own:
    """A condition on a column that lies in `rest`; None among the values stands for a blank."""

    column: str
    sign: str
    values: tuple[Any, ...]

    def holds(self, cells: Mapping[str, Any]) -> bool:
        """Return whether it holds for a row's own cells; for a blank only where blank is asked."""
        cell = cells.get(self.column)
        if cell is None:
            return self.sign == "=" and None in self.values
        wanted = [v for v in self.values if v is not None]
        if self.sign in ("=", "!="):
            return any(_same(cell, value) for value in wanted) == (self.sign == "=")
        number = _as_number(cell)
        return number is not None and bool(_COMPARE[self.sign](number, float(wanted[0])))


@dataclass(frozen=True)
class Asked:
    """Which runs are meant: what the database judges, and what is left to judge row by row.

    `columns` are those that any run fills: no other has to be fetched.
    """

    clauses: tuple[ColumnElement[bool], ...] = ()
    own: tuple[Own, ...] = ()
    columns: frozenset[str] = frozenset()


def asked_of(known: set[str], where: Iterable[str | Condition], equal: Mapping[str, Any]) -> Asked:
    """Return conditions and filters as one question; all of them must hold.

    Args:
        known: the columns that any run fills.
        where: `devices<=8`, `device=t4,v100` and so on; never true of a blank cell.
        equal: values by column; a list means any of them, None and "" a blank cell.

    Raises:
        RequestError: no run has such a column, or a text is compared with a number column.
    """
    if isinstance(where, str):
        where = (where,)
    conditions = [c if isinstance(c, Condition) else parse_condition(c) for c in where]
    parts = [(c.column, c.sign, tuple(c.values)) for c in conditions]
    parts += [(name, "=", _several(value)) for name, value in equal.items()]
    clauses: list[ColumnElement[bool]] = []
    own: list[Own] = []
    for name, sign, values in parts:
        column = column_of(name)
        if column is not None:
            clauses.append(_clause(column, name, sign, values))
            continue
        check_own(known, name)
        own.append(Own(name, sign, values))
        if None not in values:  # the row has the cell: few rows are read and judged for nothing
            mark = f"{json.dumps(name, ensure_ascii=False)}:"
            clauses.append(runs.c.rest.contains(mark, autoescape=True))
    return Asked(tuple(clauses), tuple(own), frozenset(known))


def _several(value: Any) -> tuple[Any, ...]:
    values = value if isinstance(value, list | tuple | set | frozenset) else (value,)
    return tuple(None if v is None or v == "" else v for v in values)


def column_of(name: str) -> Any:
    """Return the database's column for a name, None for one's own."""
    if name in REAL:
        return runs.c[name]
    if name in _ORIGINS or f"run_{name}" in _ORIGINS:
        return runs.c[_ORIGINS.get(name, name)]
    return None


def _clause(column: Any, name: str, sign: str, values: Sequence[Any]) -> ColumnElement[bool]:
    sized = sign not in ("=", "!=")
    if name in NUMBERS:
        wanted: list[Any] = [None if v is None else _number(v, name) for v in values]
    elif sized:
        raise RequestError(
            f"runs where {name}{sign}{values[0]}", f"{name} holds texts", "compare it by = or !="
        )
    else:
        wanted = [None if v is None else _text(v) for v in values]
    if sized:
        clause: ColumnElement[bool] = _COMPARE[sign](column, wanted[0])
        return clause
    there = [v for v in wanted if v is not None]
    among = column == there[0] if len(there) == 1 else column.in_(there)
    if sign == "!=":
        return among.is_not(True) & column.is_not(None)
    if len(there) == len(wanted):
        return among if there else column.in_([])
    return column.is_(None) | among if there else column.is_(None)


def _number(value: Any, name: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise RequestError(
            f"runs where {name} is {value!r}", f"{name} holds numbers", "compare it with a number"
        ) from None


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return plain(float(value)) if isinstance(value, int | float) else str(value)


def filled(connection: Connection) -> set[str]:
    """Return the columns of runs tables that any run fills."""
    return set(connection.execute(select(filled_columns.c.name)).scalars())


def check_own(known: set[str], name: str) -> None:
    """Raise RequestError where a column is none of the schema's, and no run fills it."""
    if name in known or name in COLUMNS:
        return
    near = nearest_names(name, [*REAL, *known, *_ORIGINS])
    if near:
        todo = f"did you mean {', '.join(near)}?"
    elif known:
        todo = f"ask by one that runs fill: {', '.join(sorted(known))}"
    else:
        todo = "the store is empty: bring runs in by `forerun runs import` or `forerun profile`"
    raise RequestError(f"runs by {name!r}", "no run has such a column", todo)


def _same(cell: Any, value: Any) -> bool:
    number, wanted = _as_number(cell), _as_number(value)
    if number is not None and wanted is not None:
        return number == wanted
    return plain(cell) == _text(value)


def _as_number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
