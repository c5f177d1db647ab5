"""Queries: conditions and filters as SQL, the runs for which they hold as tables and Runs, and why none does.

A condition on a column of one's own, which lies in `rest` as JSON, is judged on the table that was read.
"""

from __future__ import annotations

import json
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, Select, func, select

from forerun.domain.plan import MEMORY_FORMATS, NAMES, RECOMPUTE, SYNC, PlanColumns
from forerun.errors import RequestError, UnknownNameError, nearest_names
from forerun.store import PROVENANCE
from forerun.store.cells import plain
from forerun.store.layout import NUMBERS, REAL, filled_columns, fingerprints, runs
from forerun.store.writing import SharedParts
from forerun.tables import COLUMNS, Jobs, Runs, Table
from forerun.tables.conditions import Condition, parse_condition
from forerun.tables.table import by_row
from forerun.units import counted

if TYPE_CHECKING:
    from forerun.store.sql_store import SqlStore

_COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "!=": operator.ne, "<=": operator.le, ">=": operator.ge,
    "<": operator.lt, ">": operator.gt,
}  # fmt: skip
# Names for provenance, as a table has them and as the database does.
_ORIGINS = {name: name.removeprefix("run_") for name in PROVENANCE if name != "run_fingerprint"}
_CHUNK_ROWS = 8192
_ORDER = tuple(name for name in COLUMNS if name in REAL)
_WORDS = {"recompute": RECOMPUTE, "sync": SYNC, "memory_format": MEMORY_FORMATS}
UNRESOLVED = (
    "its row names no whole job; the advisor looks its names up in zoo and catalogue"
    " (forerun.advisor.given_runs)"
)
_FACTS = ("id", "workload_id", "cluster_id", *_ORIGINS.values(), "fingerprint_id")
_MOST_READ = 50_000  # rows whose own columns are read for their values, the newest ones
_SHOWN = 6  # values of a column that are named
_VALUES_READ = 2000
Part = tuple[str, str, tuple[Any, ...]]  # column, sign, values; None is a blank


@dataclass(frozen=True)
class RunQuery:
    """Which runs are meant: what the database judges, and conditions on columns of one's own.

    `columns` are those that any run fills: no other has to be fetched.
    """

    clauses: tuple[ColumnElement[bool], ...] = ()
    own: tuple[Part, ...] = ()
    columns: frozenset[str] = frozenset()


def query_of(
    connection: Connection, where: Iterable[str | Condition], equal: Mapping[str, Any]
) -> RunQuery:
    """Return conditions and filters as one query; all of them must hold.

    Args:
        where: `devices<=8`, `device=t4,v100` and so on; never true of a blank cell.
        equal: values by column; a list means any of them, None and "" a blank cell.

    Raises:
        RequestError: no run has such a column, or a text is compared with a number column.
    """
    known = _filled(connection)
    where = (where,) if isinstance(where, str) else where
    conditions = [c if isinstance(c, Condition) else parse_condition(c) for c in where]
    parts: list[Part] = [(c.column, c.sign, tuple(c.values)) for c in conditions]
    for name, value in equal.items():
        values = value if isinstance(value, list | tuple | set | frozenset) else (value,)
        parts.append((name, "=", tuple(None if v is None or v == "" else v for v in values)))
    clauses: list[ColumnElement[bool]] = []
    own = list[Part]()
    for name, sign, values in parts:
        column = _column(name)
        if column is not None:
            clauses.append(_clause(column, name, sign, values))
            continue
        _check_own(known, name)
        own.append((name, sign, values))
        if None not in values:
            clauses.append(_has(name))
    return RunQuery(tuple(clauses), tuple(own), known)


def _filled(connection: Connection) -> frozenset[str]:
    """Return the columns of runs tables that any run fills."""
    return frozenset(connection.execute(select(filled_columns.c.name)).scalars())


def _column(name: str) -> Any:
    """Return the database's column for a name, None for one's own."""
    if name in REAL:
        return runs.c[name]
    if name in _ORIGINS or f"run_{name}" in _ORIGINS:
        return runs.c[_ORIGINS.get(name, name)]
    return None


def _has(name: str) -> ColumnElement[bool]:
    """Return the condition that a row has a cell in a column of one's own."""
    return runs.c.rest.contains(f"{json.dumps(name, ensure_ascii=False)}:", autoescape=True)


def _clause(column: Any, name: str, sign: str, values: Sequence[Any]) -> ColumnElement[bool]:
    sized = sign not in ("=", "!=")
    if sized and name not in NUMBERS:
        raise RequestError(
            f"runs where {name}{sign}{values[0]}", f"{name} holds texts", "compare it by = or !="
        )
    read: Callable[[Any], Any] = float if name in NUMBERS else _text
    try:
        present = [read(v) for v in values if v is not None]
    except (TypeError, ValueError):
        raise RequestError(
            f"runs where {name} is {values!r}", f"{name} holds numbers", "compare it with a number"
        ) from None
    if sized:
        clause: ColumnElement[bool] = _COMPARE[sign](column, present[0])
        return clause
    among = column == present[0] if len(present) == 1 else column.in_(present)
    if sign == "!=":
        return among.is_not(True) & column.is_not(None)
    return among if len(present) == len(values) else column.is_(None) | among


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return plain(float(value)) if isinstance(value, int | float) else str(value)


def _check_own(known: Iterable[str], name: str) -> None:
    """Raise RequestError where a column is none of the schema's, and no run fills it."""
    if name in known or name in COLUMNS:
        return
    if near := nearest_names(name, [*REAL, *known, *_ORIGINS]):
        todo = f"did you mean {', '.join(near)}?"
    elif known:
        todo = f"ask by one that runs fill: {', '.join(sorted(known))}"
    else:
        todo = "the store is empty: bring runs in by `forerun runs import` or `forerun profile`"
    raise RequestError(f"runs by {name!r}", "no run has such a column", todo)


def _holds(table: Table, part: Part) -> NDArray[np.bool_]:
    """Return for which rows a condition on a column of one's own holds, (n,)."""
    name, sign, values = part
    blank = np.ones(len(table), dtype=bool)
    if name in table:
        column = table.columns[name]
        blank = column == "" if column.dtype == object else np.isnan(column)
    present = tuple(_text(v) for v in values if v is not None)
    held = np.zeros(len(table), dtype=bool)
    if present and name in table:
        held = np.asarray(Condition(name, sign, present).holds(table))
    return held | blank if len(present) < len(values) else held


def table_of(
    connection: Connection, query: RunQuery, limit: int | None = None, newest: bool = False,
    provenance: bool = False,
) -> Table:  # fmt: skip
    """Return the runs of a query as a table: columns that no row fills are left out.

    limit: how many at most. newest: the last ones first. provenance: with the columns of `PROVENANCE`.
    """
    table, facts = _fetched(connection, query, limit, newest)
    if not provenance:
        return table
    wanted = {i for i in facts["fingerprint_id"] if i is not None}
    every = select(fingerprints.c.id, fingerprints.c.body)
    bodies = {i: body for i, body in connection.execute(every) if i in wanted} if wanted else {}
    facts["fingerprint"] = [bodies.get(i) for i in facts["fingerprint_id"]]
    columns = dict(table.columns)
    for name in PROVENANCE:
        values = [v or "" for v in facts[name.removeprefix("run_")]]
        if any(values):
            columns[name] = np.array(values, dtype=object)
    return Table(columns, len(table), table.problems, table.lines, table.unread)


def ids_of(connection: Connection, query: RunQuery) -> list[int]:
    """Return the database's numbers of the runs of a query."""
    return _fetched(connection, replace(query, columns=frozenset()), None, False)[1]["id"]


def runs_of(
    connection: Connection, query: RunQuery, shared: SharedParts, limit: int | None, newest: bool
) -> Runs:
    """Return the runs of a query; a row that came without its job is unresolved, and says so."""
    table, facts = _fetched(connection, query, limit, newest)
    kinds: list[tuple[tuple[Any, ...], NDArray[np.int32], NDArray[np.object_]]] = []
    for name, read in (("workload_id", shared.workloads), ("cluster_id", shared.clusters)):
        ids = list(dict.fromkeys(i for i in facts[name] if i is not None))
        position = {None: -1, **{i: at for at, i in enumerate(ids)}}
        index = np.array([position[i] for i in facts[name]], dtype=np.int32)
        reasons = np.array([None, UNRESOLVED], dtype=object)[(index < 0).astype(np.intp)]
        kinds.append((tuple(read(connection, ids)), index, reasons))
    (workloads, workload_index, no_workload), (clusters, cluster_index, no_cluster) = kinds
    jobs = Jobs(
        workloads, clusters, workload_index, cluster_index, _plans(table), no_workload, no_cluster,
        np.full(len(table), None, dtype=object), table,
    )  # fmt: skip
    return Runs(jobs, table)


def _fetched(
    connection: Connection, query: RunQuery, limit: int | None, newest: bool
) -> tuple[Table, dict[str, list[Any]]]:
    """Return the table, and what the database keeps beside its rows."""
    shown = [name for name in _ORDER if name in query.columns]
    names = (*shown, "rest", *_FACTS)
    few = limit is not None and limit <= _CHUNK_ROWS and not query.own
    numbers: dict[str, list[NDArray[np.float64]]] = {n: [] for n in shown if n in NUMBERS}
    others: dict[str, list[Any]] = {name: [] for name in names if name not in numbers}
    same: dict[Any, Any] = {}  # equal texts are one object: a million rows have few of them
    # Left early, a cursor on a server would stay open: `with` closes it.
    with connection.execute(
        _statement(query, names, limit, newest),
        execution_options={} if few else {"yield_per": _CHUNK_ROWS},
    ) as found:
        for part in found.partitions(_CHUNK_ROWS):
            if query.own:
                cells = _with_rest({}, len(part), [row.rest for row in part])
                held = np.all([_holds(cells, one) for one in query.own], axis=0)
                room = None if limit is None else limit - len(others["id"])
                part = [part[i] for i in np.flatnonzero(held)[:room]]
            if not part:
                continue
            for name, values in zip(names, zip(*part, strict=True), strict=True):
                if name in numbers:
                    numbers[name].append(np.array(values, dtype=np.float64))
                else:
                    others[name] += map(same.setdefault, values, values) if name in REAL else values
            if limit is not None and len(others["id"]) >= limit:
                break
    columns: dict[str, NDArray[Any]] = {}
    for name in shown:
        if name in numbers:
            column: NDArray[Any] = np.concatenate([np.zeros(0), *numbers[name]])
            blank = np.isnan(column).all()
        else:
            blank = not any(others[name])
            column = np.array([value or "" for value in others[name]], dtype=object)
        if not blank:
            columns[name] = column
    table = _with_rest(columns, len(others["id"]), others.pop("rest"))
    return table, others


def _statement(
    query: RunQuery, names: Sequence[str], limit: int | None, newest: bool
) -> Select[Any]:
    order = runs.c.id.desc() if newest else runs.c.id
    statement = select(*(runs.c[name] for name in names)).order_by(order)
    if limit is None or query.own:
        return statement.where(*query.clauses)
    # The index alone finds and orders the few that are wanted; only these are then read.
    chosen = select(runs.c.id).where(*query.clauses).order_by(order).limit(limit)
    return statement.where(runs.c.id.in_(chosen))


def _with_rest(columns: dict[str, NDArray[Any]], n: int, rest: Sequence[str | None]) -> Table:
    """Return the table with the cells that have no column of the database."""
    cells: dict[str, dict[int, Any]] = {}
    rows = [row for row, text in enumerate(rest) if text]
    for start in range(0, len(rows), _CHUNK_ROWS):
        part = rows[start : start + _CHUNK_ROWS]
        texts = ",".join(rest[row] or "" for row in part)  # one text is read faster than many
        for row, members in zip(part, json.loads(f"[{texts}]"), strict=True):
            for name, value in members.items():
                cells.setdefault(name, {})[row] = value
    unread: dict[str, NDArray[np.object_]] = {}
    problems: dict[int, str] = {}
    for name, filled in cells.items():
        known = COLUMNS.get(name)
        if known is not None and known.kind == "number":
            bad = {row: value for row, value in filled.items() if isinstance(value, str)}
            if bad:
                unread[name] = by_row(bad, n, "")
            for row, text in bad.items():
                del filled[row]
                problems.setdefault(row, f"{name}={text[:40]!r} is not a number; correct it")
            if name in REAL:
                columns.setdefault(name, np.full(n, np.nan))
                continue
        texts_in_it = any(isinstance(v, str) for v in filled.values())
        if texts_in_it or (known is not None and known.kind == "text"):
            words = {row: v if isinstance(v, str) else plain(float(v)) for row, v in filled.items()}
            columns[name] = by_row(words, n, "")
        else:
            columns[name] = np.full(n, np.nan)
            columns[name][list(filled)] = list(filled.values())
    return Table(columns, n, by_row(problems, n, None) if problems else None, unread=unread)


def _plans(table: Table) -> PlanColumns:
    """Return the plan of each row; a blank cell is the default."""
    columns: dict[str, Any] = {}
    for name in NAMES:
        if name not in table:
            continue
        if name == "sequence_parallel":
            columns[name] = table.texts(name) == "true"
        elif name in _WORDS:
            words = {word: at for at, word in enumerate(_WORDS[name])}
            default = words.get("none", 0)
            columns[name] = [words.get(text.strip().lower(), default) for text in table.texts(name)]
        else:
            usual = 0 if name in ("zero_stage", "parameter_servers") else 1
            numbers = table.numbers(name)
            fits = np.abs(numbers) < 2**31  # not of a blank, nor of what no plan can hold
            columns[name] = np.where(fits, numbers, usual)
    return PlanColumns.build(len(table), **columns)


def values_of(connection: Connection, name: str, limit: int | None) -> dict[str, int]:
    """Return a column's values as texts and how many runs have each, the usual ones first.

    Of a column of one's own, those of the newest 50,000 runs that have it.

    Raises:
        RequestError: no run has such a column.
    """
    column = _column(name)
    if column is not None:
        query = select(column, func.count()).where(column.is_not(None)).group_by(column)
        query = query.order_by(func.count().desc(), column).limit(limit)
        return {plain(value): int(count) for value, count in connection.execute(query)}
    _check_own(_filled(connection), name)
    having = select(runs.c.rest).where(_has(name)).order_by(runs.c.id.desc()).limit(_MOST_READ)
    cells = (json.loads(text).get(name) for text in connection.execute(having).scalars())
    found = Counter(plain(cell) for cell in cells if cell is not None)
    return dict(sorted(found.items(), key=lambda one: (-one[1], one[0]))[:limit])


def row_of_key(connection: Connection, key: str) -> Any:
    """Return the row of the run that has a key, or the first 8 or more characters of it.

    Raises:
        UnknownNameError: no run has that key.
        RequestError: several do.
    """
    columns = (*_FACTS, "added")
    query = select(*(runs.c[name] for name in columns))
    found = list(connection.execute(query.where(runs.c.key == key)))
    if not found and len(key) >= 8:
        if connection.dialect.name == "sqlite":  # it orders texts by their letters' codes
            begins = (runs.c.key >= key) & (runs.c.key < key[:-1] + chr(ord(key[-1]) + 1))
        else:
            begins = runs.c.key.startswith(key, autoescape=True)
        found = list(connection.execute(query.where(begins).limit(3)))
    if not found:
        raise UnknownNameError("run", key, (), "(`forerun runs list` shows keys)", nearest=())
    if len(found) > 1:
        raise RequestError(
            f"run {key!r}", f"several keys begin so: {', '.join(r.key for r in found)}",
            "give more of it",
        )  # fmt: skip
    return found[0]


def why_none(store: SqlStore, where: Iterable[str | Condition]) -> list[str]:
    """Return, for each condition that no run meets alone, which values there are, in words.

    Where each of them alone holds for some runs, how many these are.

    Raises:
        RequestError: no run has such a column, or it is no condition.
    """
    conditions = [c if isinstance(c, Condition) else parse_condition(c) for c in where]
    counts = [(one, store.count(where=[one])) for one in conditions]
    alone = [
        _values_instead(one, store.values(one.column, _VALUES_READ))
        for one, count in counts if not count
    ]  # fmt: skip
    if alone or len(counts) < 2:
        return alone
    each = ", ".join(f"{one} for {counted(count, 'run')}" for one, count in counts)
    return [f"each holds for some, all of them for none: {each}"]


def _values_instead(condition: Condition, values: Mapping[str, int]) -> str:
    """Return what a column holds where no run meets a condition on it."""
    if not values:
        return f"{condition}: no run fills {condition.column}"
    near: list[str] = []
    try:
        values = {text: values[text] for text in sorted(values, key=float)}
        if len(values) > _SHOWN:
            return f"{condition}: {condition.column} goes from {min(values, key=float)} to {max(values, key=float)}"
    except ValueError:
        near = nearest_names(condition.values[0], values) if condition.sign == "=" else []
    meant = f"did you mean {', '.join(near)}? " if near else ""
    shown = [f"{value} ({counted(count, 'run')})" for value, count in values.items()]
    more = f" and {len(shown) - _SHOWN:,} more" if len(shown) > _SHOWN else ""
    return f"{condition}: {meant}{condition.column} is {', '.join(shown[:_SHOWN])}{more}"
