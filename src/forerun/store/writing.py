"""Writing: rows of a runs table into the store, in one transaction, each under its own key.

Workloads, clusters and fingerprints are stored once each and shared by their runs.
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Any

import numpy as np
from sqlalchemy import Connection, select
from sqlalchemy import Table as SqlTable
from sqlalchemy.dialects import postgresql, sqlite

from forerun.domain.hardware import Cluster
from forerun.domain.workload import Workload
from forerun.errors import RequestError
from forerun.store import Added
from forerun.store.cells import CHUNK_ROWS, Provenance, RowBlock, blocks_of, filled_names, hash_of
from forerun.store.layout import clusters, filled_columns, fingerprints, runs, workloads
from forerun.tables import Jobs, Table
from forerun.wire import SCHEMA, Json, clean, read

_REMEMBERED = 256


def now() -> str:
    """Return the time in UTC, ISO 8601 to the microsecond."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def insert_or_leave(connection: Connection, table: SqlTable) -> Any:
    """Return an INSERT that leaves alone what is there already under the same unique key."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    return dialect.insert(table).on_conflict_do_nothing()


@dataclass
class SharedParts:
    """The shared parts of runs: objects to their ids in the store, and back."""

    _texts: OrderedDict[int, tuple[Any, str, str]] = field(default_factory=OrderedDict)
    _read: dict[tuple[str, int], Any] = field(default_factory=dict)

    def written(self, value: Workload | Cluster) -> tuple[str, str]:
        """Return an object's hash and its JSON, which is made once for each object."""
        known = self._texts.get(id(value))
        if known is not None and known[0] is value:
            return known[1], known[2]
        text = json.dumps(
            {"schema": SCHEMA, **clean(value)},
            sort_keys=True,
            separators=(",", ":"),
            allow_nan=False,
        )
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
        written = [(*self.written(value), value.name) for value in values]
        rows = {h: {"hash": h, "name": name, "body": body} for h, body, name in written}
        ids = _ids(connection, table, rows)
        return [ids[hashed] for hashed, _, _ in written]

    def workloads(self, connection: Connection, ids: Sequence[int]) -> list[Workload]:
        """Return the workloads of ids."""
        return self._objects(connection, workloads, ids, Workload)

    def clusters(self, connection: Connection, ids: Sequence[int]) -> list[Cluster]:
        """Return the clusters of ids."""
        return self._objects(connection, clusters, ids, Cluster)

    def _objects(
        self, connection: Connection, table: SqlTable, ids: Sequence[int],
        kind: type,
    ) -> list[Any]:  # fmt: skip
        missing = [i for i in ids if (table.name, i) not in self._read]
        for i, body in _where(connection, table, table.c.id, missing, table.c.id, table.c.body):
            data = json.loads(body)
            schema = data.pop("schema", None)
            if schema != SCHEMA:
                raise RequestError(
                    f"reading the stored {table.name[:-1]} {i}",
                    f"its schema is {schema!r}",
                    f"use the forerun that wrote it; this one reads {SCHEMA}",
                )
            self._read[table.name, i] = read(kind, data)
        return [self._read[table.name, i] for i in ids]


def _where(
    connection: Connection, table: SqlTable, column: Any, values: Sequence[Any], *wanted: Any
) -> Iterator[Any]:
    """Yield rows with one of the values, asked for in parts that fit a query's limit of parameters."""
    for start in range(0, len(values), CHUNK_ROWS // 8):
        part = values[start : start + CHUNK_ROWS // 8]
        yield from connection.execute(select(*wanted).where(column.in_(part)))


def _ids(connection: Connection, table: SqlTable, rows: Mapping[str, Json]) -> dict[str, int]:
    """Return ids by hash; what is not there is stored first."""
    columns = table.c.hash, table.c.id
    ids: dict[str, int] = dict(
        map(tuple, _where(connection, table, table.c.hash, [*rows], *columns))
    )
    new = [row for hashed, row in rows.items() if hashed not in ids]
    if new:
        connection.execute(insert_or_leave(connection, table), new)
        hashes = [row["hash"] for row in new]
        ids.update(map(tuple, _where(connection, table, table.c.hash, hashes, *columns)))
    return ids


@dataclass
class PreparedRows:
    """Some rows on their way into the store: what can be done without a lock is done first."""

    table: Table
    jobs: Jobs | None
    origins: Provenance
    shared: SharedParts

    def __post_init__(self) -> None:
        self._filled = sorted(filled_names(self.table))
        blocks = blocks_of(self.table)
        # The first rows are made ready before a lock is held: most calls have no others.
        self._blocks: Iterator[RowBlock] = chain(list(islice(blocks, 1)), blocks)
        self._job_hashes = list[tuple[str, ...]]()
        if self.jobs is not None:
            hashes = [
                np.array([*(self.shared.written(v)[0] for v in values), ""])[index].tolist()
                for values, index in _parts(self.jobs)
            ]
            self._job_hashes = list(zip(*hashes, strict=True))

    def add(self, connection: Connection) -> Added:
        """Store the rows; the caller's transaction keeps all of them, or none.

        Raises:
            RequestError: a key is in the store for another run.
        """
        facts = self._facts(connection)
        if self._filled:
            names = [{"name": name} for name in self._filled]
            connection.execute(insert_or_leave(connection, filled_columns), names)
        used, keys, new = Counter[str](), list[str](), 0
        for block in self._blocks:
            start, stop = len(keys), len(keys) + len(block.digests)
            made = self.origins.keyed(start, block.digests, self._job_hashes, used)
            part = {name: values[start:stop] for name, values in facts.items()}
            added = _insert(
                connection, {"key": made, "digest": block.digests, **part, **block.columns}
            )
            if added < len(made):
                _check_known(connection, made, block.digests)
            keys, new = keys + made, new + added
        return Added(tuple(keys), new, len(keys) - new)

    def _facts(self, connection: Connection) -> dict[str, Sequence[Any]]:
        """Return what stands beside the cells of each row, columns that nobody fills left out."""
        origins = self.origins
        hashes = {text: hash_of(text) for text in dict.fromkeys(origins.fingerprints) if text}
        prints = {hashed: {"hash": hashed, "body": text} for text, hashed in hashes.items()}
        ids = _ids(connection, fingerprints, prints)
        facts: dict[str, Sequence[Any]] = {
            "added": [now()] * len(self.table),
            "started": origins.started,
            "campaign": origins.campaigns,
            "point": origins.points,
            "fingerprint_id": [ids[hashes[t]] if t else None for t in origins.fingerprints],
        }
        if self.jobs is not None:
            names = ("workload_id", "cluster_id")
            for name, (values, index) in zip(names, _parts(self.jobs), strict=True):
                of_value = [*self.shared.ids(connection, values), None]  # position -1 is the last
                facts[name] = np.array(of_value, dtype=object)[index].tolist()
        return {
            name: [value or None for value in values]
            for name, values in facts.items() if any(values)
        }  # fmt: skip


def _parts(jobs: Jobs) -> tuple[tuple[Sequence[Any], Any], ...]:
    """Return what jobs share, each with the position in it of each job."""
    return (jobs.workloads, jobs.workload_index), (jobs.clusters, jobs.cluster_index)


def _insert(connection: Connection, columns: dict[str, Sequence[Any]]) -> int:
    """Insert rows that are columns, and return how many were new."""
    statement = insert_or_leave(connection, runs).values(dict.fromkeys(columns))
    compiled = statement.compile(dialect=connection.dialect, column_keys=list(columns))
    # The driver takes tuples as they are; rows as mappings would be read name by name.
    order = compiled.positiontup
    rows = list(zip(*(columns[name] for name in order), strict=True))
    return int(connection.exec_driver_sql(str(compiled), rows).rowcount)


def _check_known(connection: Connection, keys: Sequence[str], digests: Sequence[bytes]) -> None:
    """Refuse a key that the store, or this very call, has for a run with other cells."""
    found = _where(connection, runs, runs.c.key, keys, runs.c.key, runs.c.digest)
    stored = {key: bytes(digest) for key, digest in found}
    for key, digest in zip(keys, digests, strict=True):
        if stored[key] != digest:
            raise RequestError(
                f"storing runs under the key {key!r}", "another run with other figures has it",
                "give each run its own key; nothing of this call was kept",
            )  # fmt: skip
