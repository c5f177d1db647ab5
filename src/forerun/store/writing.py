"""Adding: rows of a runs table into the store, in one transaction, each under its own key.

Interned: workloads, clusters and fingerprints are stored once each and shared by their runs.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy import Table as SqlTable
from sqlalchemy.dialects import postgresql, sqlite

from forerun.domain.hardware import Cluster
from forerun.domain.workload import Workload
from forerun.errors import RequestError
from forerun.store.cells import (
    CHUNK_ROWS,
    Cells,
    Keys,
    Origins,
    cells_of,
    filled_names,
    hash_of,
    ids_column,
)
from forerun.store.kept import Added
from forerun.store.layout import clusters, filled_columns, fingerprints, runs, workloads
from forerun.tables import Jobs, Table
from forerun.wire import (
    SCHEMA,
    Json,
    cluster_from_wire,
    cluster_to_wire,
    workload_from_wire,
    workload_to_wire,
)  # fmt: skip

_REMEMBERED = 256


def insert_or_leave(connection: Connection, table: SqlTable) -> Any:
    """Return an INSERT that leaves alone what is there already under the same unique key."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    return dialect.insert(table).on_conflict_do_nothing()


@dataclass
class Interned:
    """The shared parts of runs: objects to their ids in the store, and back."""

    _texts: OrderedDict[int, tuple[Any, str, str]] = field(default_factory=OrderedDict)
    _read: dict[tuple[str, int], Any] = field(default_factory=dict)

    def written(self, value: Workload | Cluster) -> tuple[str, str]:
        """Return an object's hash and its JSON, which is made once for each object."""
        known = self._texts.get(id(value))
        if known is not None and known[0] is value:
            return known[1], known[2]
        wire: Callable[[Any], Json] = (
            workload_to_wire if isinstance(value, Workload) else cluster_to_wire
        )
        text = json.dumps(
            {"schema": SCHEMA, **wire(value)}, sort_keys=True, separators=(",", ":"),
            allow_nan=False, ensure_ascii=True,
        )  # fmt: skip
        hashed = hash_of(text)
        self._texts[id(value)] = (value, hashed, text)
        if len(self._texts) > _REMEMBERED:
            self._texts.popitem(last=False)
        return hashed, text

    def ids(self, connection: Connection, values: Sequence[Workload | Cluster]) -> list[int]:
        """Return the ids of objects of one kind, stored now where they are new."""
        if not values:
            return []
        table = workloads if isinstance(values[0], Workload) else clusters
        hashes, rows = list[str](), dict[str, Json]()
        for value in values:
            hashed, body = self.written(value)
            hashes.append(hashed)
            rows[hashed] = {"hash": hashed, "name": value.name, "body": body}
        ids = _ids(connection, table, rows)
        return [ids[hashed] for hashed in hashes]

    def of_workload(self, connection: Connection, ids: Sequence[int]) -> list[Workload]:
        """Return the workloads of ids."""
        return self._objects(connection, workloads, ids, workload_from_wire)

    def of_cluster(self, connection: Connection, ids: Sequence[int]) -> list[Cluster]:
        """Return the clusters of ids."""
        return self._objects(connection, clusters, ids, cluster_from_wire)

    def _objects(
        self, connection: Connection, table: SqlTable, ids: Sequence[int],
        read: Callable[[Mapping[str, Any]], Any],
    ) -> list[Any]:  # fmt: skip
        missing = [i for i in ids if (table.name, i) not in self._read]
        for part in _parts(missing):
            found = connection.execute(select(table.c.id, table.c.body).where(table.c.id.in_(part)))
            for i, body in found:
                self._read[table.name, i] = _read(body, read, f"{table.name[:-1]} {i}")
        return [self._read[table.name, i] for i in ids]


def _read(body: str, read: Callable[[Mapping[str, Any]], Any], asked: str) -> Any:
    data = json.loads(body)
    schema = data.pop("schema", None)
    if schema != SCHEMA:
        raise RequestError(
            f"reading the stored {asked}",
            f"its schema is {schema!r}",
            f"use the forerun that wrote it; this one reads {SCHEMA}",
        )
    return read(data)


def fingerprint_ids(connection: Connection, texts: Sequence[str]) -> dict[str, int | None]:
    """Return the id of each distinct fingerprint, stored now where it is new; "" has none."""
    hashes = {text: hash_of(text) for text in dict.fromkeys(texts) if text}
    rows = {hashed: {"hash": hashed, "body": text} for text, hashed in hashes.items()}
    ids = _ids(connection, fingerprints, rows)
    return {"": None, **{text: ids[hashed] for text, hashed in hashes.items()}}


def _ids(connection: Connection, table: SqlTable, rows: Mapping[str, Json]) -> dict[str, int]:
    """Return ids by hash; what is not there is stored first."""
    ids = _known(connection, table, list(rows))
    new = [row for hashed, row in rows.items() if hashed not in ids]
    if new:
        connection.execute(insert_or_leave(connection, table), new)
        ids.update(_known(connection, table, [row["hash"] for row in new]))
    return ids


def _known(connection: Connection, table: SqlTable, hashes: Sequence[str]) -> dict[str, int]:
    ids: dict[str, int] = {}
    for part in _parts(hashes):
        found = connection.execute(select(table.c.hash, table.c.id).where(table.c.hash.in_(part)))
        ids.update((row.hash, row.id) for row in found)
    return ids


def _parts(values: Sequence[Any], most: int = 500) -> list[Sequence[Any]]:
    """Return values in parts of which each fits a query's limit of parameters."""
    return [values[i : i + most] for i in range(0, len(values), most)]


_ASKED = "storing runs"
_COPIED_ROWS = 100


def now() -> str:
    """Return the time in UTC, ISO 8601 to the microsecond."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@dataclass
class Adding:
    """Some rows on their way into the store: what can be done without a lock is done first."""

    table: Table
    jobs: Jobs | None
    origins: Origins
    interned: Interned

    def __post_init__(self) -> None:
        self._filled = sorted(filled_names(self.table))
        chunks = cells_of(self.table)
        # The first rows are made ready before a lock is held: most calls have no others.
        self._chunks: Iterator[Cells] = chain(list(islice(chunks, 1)), chunks)
        jobs = self.jobs
        self._hashes = [
            (index, [self.interned.written(value)[0] for value in values] + [""])
            for index, values in (
                () if jobs is None
                else ((jobs.workload_index, jobs.workloads), (jobs.cluster_index, jobs.clusters))
            )
        ]  # fmt: skip

    def into(self, connection: Connection) -> Added:
        """Store the rows; the caller's transaction keeps all of them, or none.

        Raises:
            RequestError: a key is in the store for another run.
        """
        facts = self._facts(connection)
        if self._filled:
            names = [{"name": name} for name in self._filled]
            connection.execute(insert_or_leave(connection, filled_columns), names)
        maker, keys, new, at = Keys(), list[str](), 0, 0
        for cells in self._chunks:
            rows = range(at, at + len(cells.digests))
            made = [self._key(i, d, maker) for i, d in zip(rows, cells.digests, strict=True)]
            part = {name: values[at : rows.stop] for name, values in facts.items()}
            columns = {"key": made, "digest": cells.digests, **part, **cells.columns}
            added = _insert(connection, columns)
            if added < len(made):
                _check_known(connection, made, cells.digests)
            keys, new, at = keys + made, new + added, rows.stop
        return Added(tuple(keys), new, len(keys) - new)

    def _facts(self, connection: Connection) -> dict[str, Sequence[Any]]:
        """Return what stands beside the cells of each row, columns that nobody fills left out."""
        n, origins = len(self.table), self.origins
        prints = fingerprint_ids(connection, origins.fingerprints)
        facts: dict[str, Sequence[Any]] = {
            "added": [now()] * n,
            "started": origins.started,
            "campaign": origins.campaigns,
            "point": origins.points,
            "fingerprint_id": [prints[text] for text in origins.fingerprints],
        }
        if self.jobs is not None:
            for name, values, index in (
                ("workload_id", self.jobs.workloads, self.jobs.workload_index),
                ("cluster_id", self.jobs.clusters, self.jobs.cluster_index),
            ):
                facts[name] = ids_column(index, self.interned.ids(connection, values))
        return {
            name: [value or None for value in values]
            for name, values in facts.items() if any(values)
        }  # fmt: skip

    def _key(self, row: int, digest: bytes, maker: Keys) -> str:
        given, o = self.origins.keys[row], self.origins
        if given:
            return given
        return maker.of(
            digest, o.started[row], o.campaigns[row], o.points[row], o.fingerprints[row],
            *(hashes[index[row]] for index, hashes in self._hashes),
        )  # fmt: skip


def _insert(connection: Connection, columns: dict[str, Sequence[Any]]) -> int:
    """Insert rows that are columns, and return how many were new."""
    n = len(columns["key"])
    if not n:
        return 0
    if connection.dialect.name == "postgresql" and n >= _COPIED_ROWS:
        return _copied(connection, columns)
    statement = insert_or_leave(connection, runs).values(dict.fromkeys(columns))
    compiled = statement.compile(dialect=connection.dialect, column_keys=list(columns))
    # The driver takes tuples as they are; rows as mappings would be read name by name.
    order = compiled.positiontup
    rows = list(zip(*(columns[name] for name in order), strict=True))
    return int(connection.exec_driver_sql(str(compiled), rows).rowcount)


def _copied(connection: Connection, columns: dict[str, Sequence[Any]]) -> int:
    """Insert many rows into PostgreSQL: COPY is several times quicker, and knows no conflicts.

    So rows are copied into a table of this transaction's own, and go on from there.
    """
    names = ", ".join(f'"{name}"' for name in columns)
    made = "CREATE TEMPORARY TABLE IF NOT EXISTS runs_copied (LIKE runs) ON COMMIT DROP"
    connection.exec_driver_sql(made)
    # No id yet, and none of the rows before.
    connection.exec_driver_sql("ALTER TABLE runs_copied ALTER COLUMN id DROP NOT NULL")
    connection.exec_driver_sql("TRUNCATE runs_copied")
    with (
        connection.connection.cursor() as cursor,
        cursor.copy(f"COPY runs_copied ({names}) FROM STDIN") as copy,
    ):
        for row in zip(*columns.values(), strict=True):
            copy.write_row(row)
    moved = (
        f"INSERT INTO runs ({names}) SELECT {names} FROM runs_copied ORDER BY ctid"
        " ON CONFLICT DO NOTHING"
    )
    return int(connection.exec_driver_sql(moved).rowcount)


def _check_known(connection: Connection, keys: Sequence[str], digests: Sequence[bytes]) -> None:
    """Refuse a key that the store, or this very call, has for a run with other cells."""
    for start in range(0, len(keys), CHUNK_ROWS // 8):
        stop = start + CHUNK_ROWS // 8
        part = keys[start:stop]
        query = select(runs.c.key, runs.c.digest).where(runs.c.key.in_(part))
        stored = {key: bytes(digest) for key, digest in connection.execute(query)}
        for key, digest in zip(part, digests[start:stop], strict=True):
            if stored[key] != digest:
                raise RequestError(
                    f"{_ASKED} under the key {key!r}", "another run with other figures has it",
                    "give each run its own key; nothing of this call was kept",
                )  # fmt: skip
