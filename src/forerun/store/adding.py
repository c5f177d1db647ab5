"""Adding: rows of a runs table into the store, in one transaction, each under its own key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Any

from sqlalchemy import Connection, select

from forerun.errors import RequestError
from forerun.store.cells import CHUNK_ROWS, Cells, cells_of, filled_names
from forerun.store.interned import Interned, fingerprint_ids, insert_or_leave
from forerun.store.kept import Added
from forerun.store.keys import Keys, Origins, ids_column
from forerun.store.layout import filled_columns, runs
from forerun.tables import Jobs, Table

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
