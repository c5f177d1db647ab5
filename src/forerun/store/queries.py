"""Reading: stored runs as tables and as Runs, in the order in which they came."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from forerun.domain.plan import MEMORY_FORMATS, RECOMPUTE, SYNC
from forerun.domain.plan_columns import NAMES, PlanColumns
from forerun.store.asking import Asked
from forerun.store.cells import REAL, plain
from forerun.store.kept import PROVENANCE
from forerun.store.layout import NUMBERS, fingerprints, runs
from forerun.store.writing import Interned
from forerun.tables import COLUMNS, Jobs, Runs, Table

_CHUNK_ROWS = 8192
_ORDER = tuple(name for name in COLUMNS if name in REAL)
_WORDS = {"recompute": RECOMPUTE, "sync": SYNC, "memory_format": MEMORY_FORMATS}
UNRESOLVED = (
    "its row names no whole job; the advisor looks its names up in zoo and catalogue"
    " (forerun.advisor.given_runs)"
)
_FACTS = ("workload_id", "cluster_id", "key", "started", "campaign", "point", "fingerprint_id")


def chunks_of(
    connection: Connection, asked: Asked, limit: int | None, newest: bool, columns: Sequence[str]
) -> Iterator[list[Any]]:
    """Yield rows of `columns`, some thousands at a time, oldest first unless `newest`."""
    order = runs.c.id.desc() if newest else runs.c.id
    query = select(*(runs.c[name] for name in columns)).order_by(order)
    if limit is None or asked.own:
        query = query.where(*asked.clauses)
    else:
        # The index alone finds and orders the few that are wanted; only these are then read.
        chosen = select(runs.c.id).where(*asked.clauses).order_by(order).limit(limit)
        query = query.where(runs.c.id.in_(chosen))
    # Left early, a cursor on a server would stay open: `with` closes it.
    few = limit is not None and limit <= _CHUNK_ROWS and not asked.own
    options = {} if few else {"yield_per": _CHUNK_ROWS}
    with connection.execute(query, execution_options=options) as found:
        if not asked.own:
            # Without a size of their own, partitions are of one row each.
            yield from found.partitions(_CHUNK_ROWS)
            return
        at = columns.index("rest")
        held = (
            row for part in found.partitions() for row in part
            if all(own.holds(_cells(row[at])) for own in asked.own)
        )  # fmt: skip
        rows = islice(held, limit)
        while part := list(islice(rows, _CHUNK_ROWS)):
            yield part


def _cells(text: str | None) -> dict[str, Any]:
    return dict(json.loads(text)) if text else {}


def table_of(
    connection: Connection, asked: Asked, limit: int | None = None, newest: bool = False,
    provenance: bool = False,
) -> Table:  # fmt: skip
    """Return the asked runs as a table: columns that no row fills are left out.

    Args:
        connection: to the store.
        asked: which runs.
        limit: how many at most, None for all.
        newest: the last ones first.
        provenance: with the columns of `PROVENANCE`.
    """
    return _fetched(connection, asked, limit, newest, provenance)[0]


def runs_of(
    connection: Connection, asked: Asked, interned: Interned, limit: int | None, newest: bool
) -> Runs:
    """Return the asked runs; a row that came without its job is unresolved, and says so."""
    table, facts = _fetched(connection, asked, limit, newest, False)
    kinds: dict[str, tuple[Any, NDArray[np.int32]]] = {}
    for name, read in (("workload_id", interned.of_workload), ("cluster_id", interned.of_cluster)):
        ids = list(dict.fromkeys(i for i in facts[name] if i is not None))
        position = {None: -1, **{i: at for at, i in enumerate(ids)}}
        index = np.array([position[i] for i in facts[name]], dtype=np.int32)
        kinds[name] = (tuple(read(connection, ids)), index)
    workloads, workload_index = kinds["workload_id"]
    clusters, cluster_index = kinds["cluster_id"]
    jobs = Jobs(
        workloads, clusters, workload_index, cluster_index, _plans(table),
        _reasons(workload_index), _reasons(cluster_index),
        np.full(len(table), None, dtype=object), table,
    )  # fmt: skip
    return Runs(jobs, table)


def _reasons(index: NDArray[np.int32]) -> NDArray[np.object_]:
    reasons = np.full(len(index), None, dtype=object)
    reasons[index < 0] = UNRESOLVED
    return reasons


def _fetched(
    connection: Connection, asked: Asked, limit: int | None, newest: bool, provenance: bool
) -> tuple[Table, dict[str, list[Any]]]:
    """Return the table, and the ids of what its rows share."""
    shown = [name for name in _ORDER if name in asked.columns]
    names = (*shown, "rest", *_FACTS)
    pieces: dict[str, list[Piece]] = {name: [] for name in names}
    same: dict[Any, Any] = {}  # equal texts are one object: a million rows have few of them
    n = 0
    for part in chunks_of(connection, asked, limit, newest, names):
        rows, n = len(part), n + len(part)
        for name, values in zip(names, zip(*part, strict=True), strict=True):
            kept: Any = values
            if values.count(None) == rows:
                kept = None
            elif name in NUMBERS:
                kept = np.array(values, dtype=np.float64)
            elif name != "rest":
                kept = [same.setdefault(v, v) for v in values]
            pieces[name].append((rows, kept))
    columns: dict[str, NDArray[Any]] = {}
    for name in shown:
        if any(values is not None for _, values in pieces[name]):
            columns[name] = (_numbers if name in NUMBERS else _texts)(pieces[name])
    rest, *others = (_every(pieces[name]) for name in ("rest", *_FACTS))
    facts = dict(zip(_FACTS, others, strict=True))
    table = _with_rest(columns, n, rest)
    return (_with_origins(table, connection, facts) if provenance else table), facts


Piece = tuple[int, Any]  # so many rows, and their values: None where all are blank


def _every(pieces: Sequence[Piece]) -> list[Any]:
    return [v for n, values in pieces for v in (repeat(None, n) if values is None else values)]


def _numbers(pieces: Sequence[Piece]) -> NDArray[np.float64]:
    return np.concatenate([np.full(n, np.nan) if v is None else v for n, v in pieces])


def _texts(pieces: Sequence[Piece]) -> NDArray[np.object_]:
    return np.array([value or "" for value in _every(pieces)], dtype=object)


def _by_column(rest: Sequence[str | None]) -> dict[str, dict[int, Any]]:
    """Return the cells of many rows' JSON by column and row."""
    rows = [row for row, text in enumerate(rest) if text]
    cells: dict[str, dict[int, Any]] = {}
    for start in range(0, len(rows), _CHUNK_ROWS):
        part = rows[start : start + _CHUNK_ROWS]
        texts = ",".join(rest[row] or "" for row in part)  # one text is read faster than many
        for row, members in zip(part, json.loads(f"[{texts}]"), strict=True):
            for name, value in members.items():
                cells.setdefault(name, {})[row] = value
    return cells


def _with_rest(columns: dict[str, NDArray[Any]], n: int, rest: Sequence[str | None]) -> Table:
    """Return the table with the cells that have no column of the database."""
    unread: dict[str, NDArray[np.object_]] = {}
    problems: dict[int, str] = {}
    for name, by_row in _by_column(rest).items():
        known = COLUMNS.get(name)
        if known is not None and known.kind == "number":
            bad = {row: value for row, value in by_row.items() if isinstance(value, str)}
            if bad:
                unread[name] = _spread(bad, n, "")
                for row, text in bad.items():
                    words = f"{name}={text[:40]!r} is not a number; correct it"
                    problems.setdefault(row, words)
            if name in REAL:
                columns.setdefault(name, np.full(n, np.nan))
                continue
            by_row = {row: v for row, v in by_row.items() if not isinstance(v, str)}
        texts = known is not None and known.kind == "text"
        columns[name] = _own(by_row, n, texts or any(isinstance(v, str) for v in by_row.values()))
    found = _spread(problems, n, None) if problems else None
    return Table(columns, n, found, unread=unread)


def _own(by_row: dict[int, Any], n: int, texts: bool) -> NDArray[Any]:
    """Return a column of one's own: numbers where every cell is one, else texts."""
    if texts:
        told = {row: v if isinstance(v, str) else plain(float(v)) for row, v in by_row.items()}
        return _spread(told, n, "")
    column = np.full(n, np.nan)
    column[list(by_row)] = list(by_row.values())
    return column


def _spread(by_row: dict[int, Any], n: int, other: Any) -> NDArray[np.object_]:
    column = np.full(n, other, dtype=object)
    for row, value in by_row.items():
        column[row] = value
    return column


def _with_origins(table: Table, connection: Connection, facts: dict[str, list[Any]]) -> Table:
    ids = {i for i in facts["fingerprint_id"] if i is not None}
    bodies: dict[Any, str] = {}
    if ids:
        every = connection.execute(select(fingerprints.c.id, fingerprints.c.body))
        bodies = {i: body for i, body in every if i in ids}
    columns = dict(table.columns)
    for name in PROVENANCE:
        values = (
            [bodies.get(i, "") for i in facts["fingerprint_id"]]
            if name == "run_fingerprint"
            else [v or "" for v in facts[name.removeprefix("run_")]]
        )
        if any(values):
            columns[name] = np.array(values, dtype=object)
    return Table(columns, len(table), table.problems, table.lines, table.unread)


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
