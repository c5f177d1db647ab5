"""Queries: conditions as SQL, the runs for which they hold, and why none does."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import JSON, ColumnElement, Connection, Double, case, cast, func, select

from forerun.domain.hardware import Cluster
from forerun.domain.plan import BOOLEAN_FIELDS, FROM_ZERO, NAMES, WORDS, PlanColumns
from forerun.domain.workload import Workload
from forerun.errors import RequestError, UnknownNameError, nearest_names
from forerun.store import PROVENANCE, StoredRun
from forerun.store.database import whole_rows
from forerun.store.layout import (
    INDEXED_NUMBERS,
    INDEXED_TEXTS,
    clusters,
    filled_columns,
    fingerprints,
    runs,
    workloads,
)
from forerun.store.writing import json_name, json_number, plain, rows_with
from forerun.tables import COLUMNS, Jobs, Runs, Table
from forerun.tables.conditions import Condition, number_of, parse_condition
from forerun.tables.table import by_row
from forerun.units import counted
from forerun.wire import SCHEMA, read

if TYPE_CHECKING:
    from forerun.store.sql_store import SqlStore

Where = Iterable[str | Condition]
_SIZES: Mapping[str, Callable[[Any, Any], Any]] = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}  # fmt: skip
# Names for provenance, as a table has them and as the database does.
_ORIGINS = {name: name.removeprefix("run_") for name in PROVENANCE if name != "run_fingerprint"}
_CHUNK_ROWS = 8192
_WORDS = {**WORDS, **dict.fromkeys(BOOLEAN_FIELDS, ("false", "true"))}
UNRESOLVED = "its row names no whole job; the advisor looks its names up in zoo and catalogue (forerun.advisor.given_runs)"
_FACTS = (
    *(runs.c[name] for name in ("key", "added", "started", "campaign", "point")),
    runs.c.workload_id, runs.c.cluster_id, fingerprints.c.body,
)  # fmt: skip
_SHOWN, _VALUES_READ = 6, 2000  # values of a column that are named, and that are looked at


def clauses_of(connection: Connection, where: Where, equal: Mapping[str, Any]) -> list[ColumnElement[bool]]:  # fmt: skip
    """Return conditions and filters as SQL; all of them must hold."""
    where = (where,) if isinstance(where, str) else where
    conditions = [c if isinstance(c, Condition) else parse_condition(c) for c in where]
    parts: list[tuple[str, str, Sequence[Any]]] = [(c.column, c.sign, c.values) for c in conditions]
    for name, value in equal.items():
        values = value if isinstance(value, list | tuple | set | frozenset) else (value,)
        parts.append((name, "=", [None if v == "" else v for v in values]))
    return [_clause(connection, *part) for part in parts]


def _cell(connection: Connection, name: str) -> tuple[Any, Any, str]:
    """Return a column's cell in SQL, the same as a number, and its kind, "" for one's own."""
    if name in _ORIGINS or f"run_{name}" in _ORIGINS:
        return runs.c[_ORIGINS.get(name, name)], None, "text"
    kind = COLUMNS[name].kind if name in COLUMNS else ""
    if name in INDEXED_TEXTS or name in INDEXED_NUMBERS:
        return runs.c[name], runs.c[name], kind
    if not kind:
        _check_own(connection, name)
    if connection.dialect.name == "sqlite":
        cell = func.json_extract(runs.c.cells, f"$.{json_name(name)}")
        number = case((func.typeof(cell) != "text", cell))
    else:
        cell = cast(runs.c.cells, JSON).op("->>")(name)
        written = func.json_typeof(cast(runs.c.cells, JSON).op("->")(name)) == "number"
        far = {json_number(value): value for value in (math.inf, -math.inf)}
        number = case(far, value=cell, else_=case((written, cast(cell, Double))))
    return number if kind == "number" else cell, number, kind


def _clause(connection: Connection, name: str, sign: str, values: Sequence[Any]) -> ColumnElement[bool]:  # fmt: skip
    cell, number, kind = _cell(connection, name)
    asked = f"runs where {name}{sign}{','.join(map(str, values))}"
    wanted: list[Any] = [v if isinstance(v, str) else _text(v) for v in values if v is not None]
    numbers = [number for number in map(number_of, wanted) if number is not None]
    if sign in _SIZES and kind == "text":
        raise RequestError(asked, f"{name} holds texts", "compare it by = or !=")
    if (sign in _SIZES or kind == "number") and len(numbers) < len(wanted):
        raise RequestError(asked, f"{name} holds numbers", "compare it with a number")
    if sign in _SIZES:
        clause: ColumnElement[bool] = _SIZES[sign](number, numbers[0])
        return clause
    if kind == "number":
        wanted = numbers
    elif not kind:  # a cell of one's own may be either
        sqlite = connection.dialect.name == "sqlite"
        wanted += numbers if sqlite else map(json_number, numbers)
    among = cell == wanted[0] if len(wanted) == 1 else cell.in_(wanted)
    if sign == "!=":
        return among.is_not(True) & cell.is_not(None)
    return cell.is_(None) | among if None in values else among


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return plain(float(value)) if isinstance(value, int | float) else str(value)


def _check_own(connection: Connection, name: str) -> None:
    known = set(connection.execute(select(filled_columns.c.name)).scalars())
    if name in known:
        return
    if near := nearest_names(name, [*COLUMNS, *known, *_ORIGINS]):
        todo = f"did you mean {', '.join(near)}?"
    elif known:
        todo = f"ask by one that runs fill: {', '.join(sorted(known))}"
    else:
        todo = "the store is empty: bring runs in by `forerun runs import` or `forerun profile`"
    raise RequestError(f"runs by {name!r}", "no run has such a column", todo)


def table_of(
    connection: Connection, clauses: Sequence[ColumnElement[bool]], limit: int | None = None,
    newest: bool = False, provenance: bool = False,
) -> Table:  # fmt: skip
    """Return runs as a table: columns that no row fills are left out."""
    table, facts = _fetched(connection, clauses, limit, newest)
    if not provenance:
        return table
    facts["fingerprint"] = facts["body"]
    columns = dict(table.columns)
    for name in PROVENANCE:
        values = [value or "" for value in facts[name.removeprefix("run_")]]
        if any(values):
            columns[name] = np.array(values, dtype=object)
    return Table(columns, len(table), table.problems, table.lines, table.unread)


def runs_of(
    connection: Connection, clauses: Sequence[ColumnElement[bool]], limit: int | None = None,
    newest: bool = False,
) -> Runs:  # fmt: skip
    """Return runs; a row that came without its job is unresolved, and has the reason."""
    return _runs(connection, *_fetched(connection, clauses, limit, newest))


def _runs(connection: Connection, table: Table, facts: Mapping[str, list[Any]]) -> Runs:
    parts: list[tuple[tuple[Any, ...], NDArray[np.int32], NDArray[np.object_]]] = []
    for name, stored, kind in (("workload_id", workloads, Workload), ("cluster_id", clusters, Cluster)):  # fmt: skip
        ids = list(dict.fromkeys(i for i in facts[name] if i is not None))
        found = rows_with(connection, stored.c.id, ids, stored.c.id, stored.c.body)
        bodies = dict(map(tuple, found))
        position = {None: -1, **{i: at for at, i in enumerate(ids)}}
        index = np.array([position[i] for i in facts[name]], dtype=np.int32)
        reasons = np.array([None, UNRESOLVED], dtype=object)[(index < 0).astype(np.intp)]
        parts.append((tuple(_object(kind, bodies[i]) for i in ids), index, reasons))
    (workloads_of, workload_index, no_workload), (clusters_of, cluster_index, no_cluster) = parts
    columns: dict[str, Any] = {}
    for name in filter(table.__contains__, NAMES):
        if name in _WORDS:
            words = {word: at for at, word in enumerate(_WORDS[name])}
            columns[name] = [words.get(text.strip().lower(), 0) for text in table.texts(name)]
        else:
            usual = 0 if name in FROM_ZERO else 1
            numbers = table.numbers(name)
            fits = np.abs(numbers) < 2**31  # not of a blank, nor of what no plan can hold
            columns[name] = np.where(fits, numbers, usual)
    plans = PlanColumns.build(len(table), **columns)
    jobs = Jobs(workloads_of, clusters_of, workload_index, cluster_index, plans, no_workload, no_cluster, labels=table)  # fmt: skip
    return Runs(jobs, table)


def _object(kind: type, body: str) -> Any:
    with whole_rows():
        data = json.loads(body)
        if (schema := data.pop("schema", None)) == SCHEMA:
            return read(kind, data)
    raise RequestError(
        f"reading a stored {kind.__name__.lower()}", f"its schema is {schema!r}",
        f"use the forerun that wrote it; this one reads {SCHEMA}",
    )  # fmt: skip


def _fetched(
    connection: Connection, clauses: Sequence[ColumnElement[bool]], limit: int | None, newest: bool
) -> tuple[Table, dict[str, list[Any]]]:
    order = runs.c.id.desc() if newest else runs.c.id
    query = select(runs.c.cells, *_FACTS).select_from(runs).outerjoin(fingerprints).order_by(order)
    if limit is None:
        query = query.where(*clauses)
    else:
        # The index alone finds and orders the few that are wanted; only these are then read.
        chosen = select(runs.c.id).where(*clauses).order_by(order).limit(limit)
        query = query.where(runs.c.id.in_(chosen))
    columns: dict[str, list[Any]] = {}
    facts: dict[str, list[Any]] = {column.name: [] for column in _FACTS}
    found = connection.execute(query, execution_options={"yield_per": _CHUNK_ROWS})
    for part in found.partitions():
        texts, *beside = zip(*part, strict=True)
        read_rows = len(facts["key"])
        with whole_rows():
            rows = json.loads(f"[{','.join(texts)}]")  # one text is read faster than many
            for name in {*columns, *(name for row in rows for name in row)}:
                column = columns.setdefault(name, [None] * read_rows)
                column += [row.get(name) for row in rows]
        for values, more in zip(facts.values(), beside, strict=True):
            values += more
    with whole_rows():
        return _table(columns, len(facts["key"])), facts


def _table(cells: Mapping[str, list[Any]], n: int) -> Table:
    """Return the table of columns (n,) of numbers, texts and None, those of the schema first."""
    columns: dict[str, NDArray[Any]] = {}
    unread: dict[str, NDArray[np.object_]] = {}
    problems: dict[int, str] = {}
    for name in (*(c for c in COLUMNS if c in cells), *sorted(set(cells) - set(COLUMNS))):
        values, kind = cells[name], COLUMNS[name].kind if name in COLUMNS else ""
        texts = {i: value for i, value in enumerate(values) if isinstance(value, str)}
        if kind == "text" or (texts and not kind):
            columns[name] = np.array(["" if v is None else plain(v) for v in values], dtype=object)
            continue
        if texts:  # cells that could not be read
            unread[name] = by_row(texts, n, "")
            values = [None if i in texts else value for i, value in enumerate(values)]
        for row, text in texts.items():
            problems.setdefault(row, f"{name}={text[:40]!r} is not a number; correct it")
        columns[name] = np.array(values, dtype=np.float64)
        if columns[name].ndim != 1:
            raise ValueError(f"a cell of {name} is a list")
    return Table(columns, n, by_row(problems, n, None) if problems else None, unread=unread)


def values_of(connection: Connection, name: str, limit: int | None) -> dict[str, int]:
    """Return a column's values as texts and how many runs have each, the usual ones first."""
    cells = select(_cell(connection, name)[0].label("value")).subquery()
    value, many = cells.c.value, func.count()
    query = select(value, many).where(value.is_not(None)).group_by(value)
    found = connection.execute(query.order_by(many.desc(), value).limit(limit))
    return {plain(value): int(count) for value, count in found}


def run_of(connection: Connection, key: str) -> StoredRun:
    """Return the run that has a key, or the first 8 or more characters of it."""
    table, facts = _fetched(connection, [runs.c.key == key], None, False)
    if not len(table) and len(key) >= 8:
        begins = func.substr(runs.c.key, 1, len(key)) == key
        table, facts = _fetched(connection, [begins], 3, False)
    if not len(table):
        raise UnknownNameError("run", key, (), "(`forerun runs list` shows keys)", nearest=())
    if len(table) > 1:
        raise RequestError(f"run {key!r}", f"several keys begin so: {', '.join(facts['key'])}", "give more of it")  # fmt: skip
    jobs = _runs(connection, table, facts).jobs
    fact = {name: values[0] for name, values in facts.items()}
    unread = {name: texts[0] for name, texts in table.unread.items() if texts[0]}
    return StoredRun(
        fact["key"], {**table.row(0), **unread}, None if jobs.problem(0) else jobs[0],
        fact["started"] or "", fact["added"], fact["campaign"] or "", fact["point"] or "",
        json.loads(fact["body"] or "{}"),
    )  # fmt: skip


def why_none(store: SqlStore, where: Where) -> list[str]:
    """Return, for each condition that no run meets alone, which values there are, in words."""
    conditions = [c if isinstance(c, Condition) else parse_condition(c) for c in where]
    counts = {one: store.count(where=[one]) for one in conditions}
    alone = [
        f"{one}: {_values_instead(one, store.values(one.column, _VALUES_READ))}"
        for one, count in counts.items() if not count
    ]  # fmt: skip
    if alone or len(counts) < 2:
        return alone
    each = ", ".join(f"{one} for {counted(count, 'run')}" for one, count in counts.items())
    return [f"each holds for some, all of them for none: {each}"]


def _values_instead(condition: Condition, values: Mapping[str, int]) -> str:
    name, near = condition.column, list[str]()
    if not values:
        return f"no run fills {name}"
    numbers = [number for number in map(number_of, values) if number is not None]
    if len(numbers) == len(values):
        values = {text: values[text] for text in sorted(values, key=float)}
        if len(values) > _SHOWN:
            return f"{name} goes from {plain(min(numbers))} to {plain(max(numbers))}"
    elif condition.sign == "=":
        near = nearest_names(condition.values[0], values)
    shown = [f"{value} ({counted(count, 'run')})" for value, count in values.items()]
    meant = f"did you mean {', '.join(near)}? " if near else ""
    more = f" and {len(shown) - _SHOWN:,} more" if len(shown) > _SHOWN else ""
    return f"{meant}{name} is {', '.join(shown[:_SHOWN])}{more}"
