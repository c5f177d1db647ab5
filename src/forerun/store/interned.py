"""Interned: workloads, clusters and fingerprints are stored once each and shared by their runs."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy import Table as SqlTable
from sqlalchemy.dialects import postgresql, sqlite

from forerun.domain.hardware import Cluster
from forerun.domain.workload import Workload
from forerun.errors import RequestError
from forerun.store.keys import hash_of
from forerun.store.layout import clusters, fingerprints, workloads
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
