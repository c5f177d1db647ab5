"""Writing: rows of a runs table into the store, each under its own key.

Workloads, clusters and fingerprints are stored once each and shared by their runs.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b, sha256
from typing import Any

import numpy as np
from sqlalchemy import Connection, select
from sqlalchemy import Table as SqlTable
from sqlalchemy.dialects import postgresql, sqlite

from forerun.domain.hardware import Cluster
from forerun.domain.workload import Workload
from forerun.errors import RequestError
from forerun.store import PROVENANCE, Added
from forerun.store.layout import (
    INDEXED_NUMBERS,
    INDEXED_TEXTS,
    clusters,
    filled_columns,
    fingerprints,
    runs,
    workloads,
)
from forerun.tables import Jobs, Table
from forerun.wire import SCHEMA, Json, clean

_MOST_CHARACTERS = 512  # of a key
_CHUNK_ROWS = 4096
_ANALYZED_ROWS = 1000  # added by one call: the planner looks at the runs anew
Origins = Mapping[str, Sequence[str]]


def now() -> str:
    """Return the time in UTC, ISO 8601 to the microsecond."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def checked_text(text: str, name: str) -> str:
    """Return a text that every database takes. Raises RequestError for a NUL or half a character."""
    if "\0" in text or (not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text)):
        found = "it holds a NUL, or a character that is not Unicode"
        raise RequestError(f"storing {name}", found, "take it out")
    return text


def canonical(value: Mapping[str, Any], sort_keys: bool = True) -> str:
    """Return JSON that is the same text for the same value; without sort_keys in its own order. Raises RequestError."""
    try:
        return json.dumps(clean(value), sort_keys=sort_keys, separators=(",", ":"), allow_nan=False, ensure_ascii=False)  # fmt: skip
    except (TypeError, ValueError) as error:
        next_step = "give numbers, texts, lists and mappings"
        raise RequestError("storing JSON", str(error), next_step) from None


def insert_or_leave(connection: Connection, table: SqlTable) -> Any:
    """Return an INSERT that leaves alone what is there already under the same unique key."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    return dialect.insert(table).on_conflict_do_nothing()


def plain(value: float | str) -> str:
    """Return a cell as the shortest text that reads back as the same number."""
    return value if isinstance(value, str) else repr(value).removesuffix(".0")


def json_number(value: float) -> str:
    """Return a number as JSON that reads back as the same one, also -0 and infinity."""
    if math.isinf(value):
        return "1e999" if value > 0 else "-1e999"
    return plain(value) if value else repr(value)


def json_name(name: str) -> str:
    """Return a column's name as it stands in JSON and in a JSON path, which has no escaped quotes."""
    inner = json.dumps(name, ensure_ascii=False)[1:-1].replace('\\"', r"\u0022")
    return f'"{inner}"'


def _json_cell(value: float | str, name: str) -> str:
    """Return a cell as JSON; a text as CSV writes a number becomes that number, so both are equal."""
    if not isinstance(value, str):
        return json_number(value)
    try:
        number = float(checked_text(value, f"the column {name!r}"))
    except ValueError:
        number = math.nan
    return json_number(number) if plain(number) == value != "nan" else _quoted(value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _cells(table: Table, start: int, stop: int) -> tuple[list[str], set[str]]:
    """Return the cells of each row as JSON, equal for equal rows, and which columns have any."""
    parts: list[Sequence[str]] = []
    filled = set[str]()
    for name in sorted(table.columns):
        member = f"{json_name(checked_text(name, 'a column'))}:"
        column = table.columns[name][start:stop]
        values = column.tolist() if column.dtype == object else column.astype(np.float64).tolist()
        texts = {
            value: member + _json_cell(value, name) for value in dict.fromkeys(values) if value not in (None, "") and value == value
        }  # fmt: skip
        part = [texts.get(value, "") for value in values]
        if name in table.unread:  # a cell that could not be read is kept as it was written
            unread = table.unread[name][start:stop]
            part = [
                member + _quoted(checked_text(str(text), name)) if text else cell
                for text, cell in zip(unread, part, strict=True)
            ]
        if any(part):
            filled.add(name)
            parts.append(part)
    rows = zip(*parts, strict=True) if parts else [()] * (stop - start)
    return [f"{{{','.join(filter(None, row))}}}" for row in rows], filled


def origins_of(
    table: Table, keys: Sequence[str] | None = None, started: str | Sequence[str] = "",
    campaign: str = "", points: Sequence[str] | None = None,
    fingerprint: Mapping[str, Any] | None = None,
) -> tuple[Table, Origins]:  # fmt: skip
    """Return the table without its columns of `PROVENANCE`, and these columns (n,), "" where blank."""
    n = len(table)
    given: dict[str, Any] = {
        "run_key": keys, "run_started": started or None, "run_campaign": campaign or None, "run_point": points,
        "run_fingerprint": canonical(fingerprint) if fingerprint else None,
    }  # fmt: skip
    origins: dict[str, list[str]] = {}
    for name, own in given.items():
        values = table.texts(name) if own is None else [own] * n if isinstance(own, str) else own
        origins[name] = list(map(str, values))
        if len(values) != n:
            found = f"{len(values)} values were given for {name}"
            raise RequestError(f"storing {n} runs", found, "give one for each")
        for text in set(origins[name]):
            checked_text(text, name)
    bodies = {text: _fingerprint(text) for text in set(origins["run_fingerprint"])}
    origins["run_fingerprint"] = [bodies[text] for text in origins["run_fingerprint"]]
    longest = max(map(len, origins["run_key"]), default=0)
    if longest > _MOST_CHARACTERS:
        raise RequestError("storing runs", f"a key has {longest} characters", f"give keys of at most {_MOST_CHARACTERS}")  # fmt: skip
    if keys is not None and not all(origins["run_key"]):
        raise RequestError(
            "storing runs under given keys", "a key is blank",
            "give every run a key, or none and let the store make them",
        )  # fmt: skip
    columns = {name: c for name, c in table.columns.items() if name not in PROVENANCE}
    return Table(columns, n, table.problems, table.lines, table.unread), origins


def _fingerprint(text: str) -> str:
    try:
        value = json.loads(text) if text else {}
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise RequestError(
            f"storing the fingerprint {text[:60]!r}", "it is no JSON object",
            'write {"name": value, ...}, or leave it blank',
        )  # fmt: skip
    return canonical(value) if value else ""


def add_rows(connection: Connection, table: Table, jobs: Jobs | None, origins: Origins) -> Added:
    """Store the rows of a table; the caller's transaction keeps all of them, or none.

    A row without a key gets the hash of its cells, origins and job. The second of equal rows gets
    another one: the same rows given again are known, and repeats of one figure stay runs apart.
    """
    facts, hashes = _facts(connection, len(table), jobs, origins)
    used, keys, new, filled = Counter[str](), list[str](), 0, set[str]()
    for start in range(0, len(table), _CHUNK_ROWS):
        stop = min(start + _CHUNK_ROWS, len(table))
        cells, names = _cells(table, start, stop)
        filled |= names
        made = []
        for row, text in enumerate(cells, start):
            if not (key := origins["run_key"][row]):
                identity = "\x1f".join((text, *(part[row] for part in hashes)))
                key = blake2b(identity.encode(), digest_size=16).hexdigest()
                used[key] += 1
                key = key if used[key] == 1 else f"{key}-{used[key]}"
            made.append(key)
        part = {name: values[start:stop] for name, values in facts.items()}
        columns: dict[str, Sequence[Any]] = {"key": made, "cells": cells, **part}
        for name in (name for name in (*INDEXED_TEXTS, *INDEXED_NUMBERS) if name in table):
            if name in INDEXED_NUMBERS:
                numbers = table.numbers(name)[start:stop].tolist()
                columns[name] = [None if v != v else v for v in numbers]
            else:
                columns[name] = [text or None for text in table.texts(name)[start:stop]]
        statement = insert_or_leave(connection, runs).values(dict.fromkeys(columns))
        compiled = statement.compile(dialect=connection.dialect, column_keys=list(columns))
        # The driver takes tuples as they are; rows as mappings would be read name by name.
        rows = list(zip(*(columns[name] for name in compiled.positiontup), strict=True))
        added = int(connection.exec_driver_sql(str(compiled), rows).rowcount)
        if added < len(made):
            stored = dict(map(tuple, rows_with(connection, runs.c.key, made, runs.c.key, runs.c.cells)))  # fmt: skip
            for key, text in zip(made, cells, strict=True):
                if stored[key] != text:
                    raise RequestError(
                        f"storing runs under the key {key!r}", "another run with other figures has it",
                        "give each run its own key; nothing of this call was kept",
                    )  # fmt: skip
        keys, new = keys + made, new + added
    if filled:
        names_filled = [{"name": name} for name in sorted(filled)]
        connection.execute(insert_or_leave(connection, filled_columns), names_filled)
    if new >= _ANALYZED_ROWS:
        connection.exec_driver_sql("ANALYZE runs")
    return Added(tuple(keys), new, len(keys) - new)


def _facts(
    connection: Connection, n: int, jobs: Jobs | None, origins: Origins
) -> tuple[dict[str, Sequence[Any]], list[Sequence[str]]]:
    """Return what stands beside the cells of n rows, and the texts that distinguish runs."""
    prints = {body: hash_of(body) for body in set(origins["run_fingerprint"]) if body}
    ids = _ids(connection, fingerprints, {h: {"body": body} for body, h in prints.items()})
    facts: dict[str, Sequence[Any]] = {
        "added": [now()] * n,
        "fingerprint_id": [ids.get(prints.get(text, "")) for text in origins["run_fingerprint"]],
        **{name: [text or None for text in origins[f"run_{name}"]] for name in ("started", "campaign", "point")},
    }  # fmt: skip
    identities: list[Sequence[str]] = [v for name, v in origins.items() if name != "run_key"]
    if jobs is not None:
        parts: tuple[tuple[str, SqlTable, Sequence[Workload | Cluster], Any], ...] = (
            ("workload_id", workloads, jobs.workloads, jobs.workload_index),
            ("cluster_id", clusters, jobs.clusters, jobs.cluster_index),
        )
        for name, table, values, index in parts:
            bodies_of = [canonical({"schema": SCHEMA, **clean(value)}) for value in values]
            hashes = [hash_of(body) for body in bodies_of]
            ids = _ids(connection, table, {
                h: {"name": value.name, "body": body}
                for h, value, body in zip(hashes, values, bodies_of, strict=True)
            })  # fmt: skip
            id_at, hash_at = [*(ids[h] for h in hashes), None], [*hashes, ""]  # -1: the last, none
            facts[name] = [id_at[i] for i in index]
            identities.append([hash_at[i] for i in index])
    return facts, identities


def hash_of(text: str) -> str:
    """Return the SHA-256 of a text, 64 hexadecimal digits."""
    return sha256(text.encode()).hexdigest()


def rows_with(connection: Connection, column: Any, values: Sequence[Any], *wanted: Any) -> Iterator[Any]:  # fmt: skip
    """Yield columns of the rows with one of the values, some hundred values a query."""
    for start in range(0, len(values), 500):
        part = values[start : start + 500]
        yield from connection.execute(select(*wanted).where(column.in_(part)))


def _ids(connection: Connection, table: SqlTable, rows: Mapping[str, Json]) -> dict[str, int]:
    """Return the ids of shared parts by their hash; what is not there is stored first."""
    if rows:
        new = [{"hash": hashed, **row} for hashed, row in rows.items()]
        connection.execute(insert_or_leave(connection, table), new)
    found = rows_with(connection, table.c.hash, [*rows], table.c.hash, table.c.id)
    return dict(map(tuple, found))
