"""SqlStore: the store of runs, campaigns, searches and artifacts in one database.

What the database's planner knows of the runs grows with them, at little cost.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
from sqlalchemy import Connection, delete, func, select

from forerun.domain.job import STATUSES, Run
from forerun.errors import RequestError, one_of
from forerun.store import Added, StoredPoint, StoredRun
from forerun.store.cells import Provenance
from forerun.store.database import Database
from forerun.store.layout import fingerprints, runs
from forerun.store.queries import (
    ids_of,
    query_of,
    row_of_key,
    runs_of,
    table_of,
    values_of,
)  # fmt: skip
from forerun.store.records import ArtifactTable, CampaignTable
from forerun.store.writing import PreparedRows, SharedParts
from forerun.tables import RUN_COLUMNS, Jobs, Runs, Table
from forerun.tables.conditions import Condition
from forerun.tables.jobs import described

# Runs that one process adds before it looks whether the planner is out of date.
LOOK_EVERY = 1000
_GROWN = 1.25
# Entries of each index that are looked at: enough to tell a value that a tenth of a million runs
# have from one that a hundred have, and a fraction of a second for any number of runs.
_ENTRIES = 100_000
# A whole number in the head of an SQLite file that is the program's to use: how many runs there were
# when the planner last looked.
_SEEN = "PRAGMA user_version"


def inform(database: Database, added: int) -> None:
    """Let the planner look at the runs where they have grown by a quarter since it last did.

    Args:
        database: the store's.
        added: runs that were just added. PostgreSQL looks by itself soon, so that only many runs at
            once make it look at once.

    Raises:
        RequestError: another writer held the database for too long.
    """
    if database.engine.dialect.name == "postgresql":
        if added >= LOOK_EVERY:
            with database.writing() as connection:
                connection.exec_driver_sql("ANALYZE runs")
        return
    with database.reading() as connection:
        if not _out_of_date(connection):
            return
    with database.writing() as connection:
        if _out_of_date(connection):  # nobody else did it meanwhile
            connection.exec_driver_sql(f"PRAGMA analysis_limit={_ENTRIES}")
            connection.exec_driver_sql("ANALYZE runs")
            connection.exec_driver_sql(f"{_SEEN} = {min(_last(connection), 2**31 - 1)}")


def _out_of_date(connection: Connection) -> bool:
    seen = int(connection.exec_driver_sql(_SEEN).scalar() or 0)
    return _last(connection) >= max(seen * _GROWN, LOOK_EVERY)


def _last(connection: Connection) -> int:
    """Return the last run's number: how many there are, but for those that were removed."""
    return int(connection.exec_driver_sql("SELECT max(id) FROM runs").scalar() or 0)


Where = Iterable[str | Condition]
_PART = 500  # ids in one statement


class SqlStore:
    """A store in SQLite or PostgreSQL; made by `forerun.store.open_store`.

    Calls may come from several threads and processes at once; each call is one transaction. A run
    is confirmed when `add` or `add_table` returns, and is never lost from then on.

    Attributes:
        campaigns, searches: what was asked for, and the state of each of their points.
        artifacts: what was made from runs.
    """

    name = "sql"

    def __init__(self, database: Database) -> None:
        self._database = database
        self._shared = SharedParts()
        self._unlooked = LOOK_EVERY
        self.campaigns = CampaignTable(database, "campaign")
        self.searches = CampaignTable(database, "search")
        self.artifacts = ArtifactTable(database)

    @property
    def where(self) -> str:
        """Where it lies, for messages: a file or a URL without its password."""
        return self._database.place.shown

    def close(self) -> None:
        """Close every connection; a later call opens new ones."""
        self._database.close()

    def __enter__(self) -> SqlStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    def add(
        self, runs: Iterable[Run], *, keys: Sequence[str] | None = None, campaign: str = "",
        points: Sequence[str] | None = None, started: str | Sequence[str] = "",
        fingerprint: Mapping[str, Any] | None = None,
    ) -> list[str]:  # fmt: skip
        """Keep runs with their whole jobs, all of them or none, and return their keys.

        The keywords are those of `add_table`.

        Raises:
            RequestError: one of them is no Run; and as `add_table` does.
        """
        table, jobs = rows_of(list(runs))
        added = self.add_table(
            table, jobs, keys=keys, campaign=campaign, points=points, started=started,
            fingerprint=fingerprint,
        )  # fmt: skip
        return list(added.keys)

    def add_table(
        self, table: Table, jobs: Jobs | None = None, *, keys: Sequence[str] | None = None,
        campaign: str = "", points: Sequence[str] | None = None, started: str | Sequence[str] = "",
        fingerprint: Mapping[str, Any] | None = None, notes: Sequence[str] = (),
    ) -> Added:  # fmt: skip
        """Keep the n rows of a runs table, all of them or none.

        A row that is in the store under its key already is left as it is. Columns of `PROVENANCE`
        in the table speak where the arguments do not.

        Args:
            table: runs with any columns.
            jobs: their n jobs, where they are known whole; rows without workload or cluster (-1)
                are kept as rows. The columns of a job fill the row's blanks, and say its plan.
            keys: of one's own, n texts. Else a row's key is a hash of its cells, its provenance and
                its job; the second of equal rows in one call gets another one than the first.
            campaign: who asked for them.
            points: of that campaign, which gets each run's key and status in the same transaction;
                it must be in `campaigns`. A point that is ok stays so where the new run is not.
            started: when they began, ISO 8601 in UTC: one for all, or n.
            fingerprint: software and hardware that they ran on, as JSON.
            notes: what the points' states say beside, n texts.

        Raises:
            RequestError: a key is there for another run, a cell cannot be kept, the disk is full,
                or another writer held the store for too long.
            UnknownNameError: points are given and there is no such campaign.
        """
        if jobs is not None:
            table = described(table, jobs)
        table, origins = Provenance.of(table, keys, started, campaign, points, fingerprint)
        prepared = PreparedRows(table, jobs, origins, self._shared)
        with self._database.writing() as connection:
            added = prepared.add(connection)
            if points is not None:
                rows = zip(
                    origins.points, added.keys, table.texts("status"), notes or [""] * len(table),
                    strict=True,
                )  # fmt: skip
                states = {
                    p: StoredPoint(status or "ok", key, note) for p, key, status, note in rows if p
                }
                self.campaigns.mark_in(connection, campaign, states)
        self._after([added])
        return added

    def add_tables(self, tables: Sequence[Table], campaign: str = "") -> list[Added]:
        """Keep the rows of several tables, all of them or none. Raises as `add_table` does."""
        prepared = [
            PreparedRows(rows, None, origins, self._shared)
            for rows, origins in (Provenance.of(table, campaign=campaign) for table in tables)
        ]
        with self._database.writing() as connection:
            added = [one.add(connection) for one in prepared]
        self._after(added)
        return added

    def remove(self, *, where: Where = (), **equal: Any) -> int:
        """Forget the runs for which all conditions and filters hold; return how many they were.

        Points of campaigns, steps of searches and artifacts keep the keys of their runs.

        Raises:
            RequestError: nothing says which runs; and as `runs` does.
        """
        with self._database.writing() as connection:
            query = query_of(connection, where, equal)
            if not query.clauses and not query.own:
                raise RequestError(
                    "removing runs",
                    "nothing says which",
                    "give conditions: remove(where=['campaign=night'])",
                )
            if not query.own:
                return int(connection.execute(delete(runs).where(*query.clauses)).rowcount)
            ids = ids_of(connection, query)
            for start in range(0, len(ids), _PART):
                chosen = runs.c.id.in_(ids[start : start + _PART])
                connection.execute(delete(runs).where(chosen))
            return len(ids)

    def runs(
        self, *, where: Where = (), limit: int | None = None, newest: bool = False, **equal: Any
    ) -> Runs:
        """Return the runs for which all conditions and filters hold, oldest first.

        Args:
            where: conditions such as `devices<=8` or `device=t4,v100`; never true of a blank.
            limit: how many at most.
            newest: the last ones first.
            equal: values by column; a list means any of them, None and "" a blank. `campaign`,
                `point`, `key` and `started` are columns too.

        Raises:
            RequestError: no run has such a column, or a number column is compared with a text.
        """
        with self._database.reading() as connection:
            query = query_of(connection, where, equal)
            return runs_of(connection, query, self._shared, limit, newest)

    def table(
        self, *, where: Where = (), limit: int | None = None, newest: bool = False,
        provenance: bool = False, **equal: Any,
    ) -> Table:  # fmt: skip
        """Return the same runs as a table alone, `provenance` with the columns of `PROVENANCE`."""
        with self._database.reading() as connection:
            query = query_of(connection, where, equal)
            return table_of(connection, query, limit, newest, provenance)

    def count(self, *, where: Where = (), **equal: Any) -> int:
        """Return how many runs there are for which all conditions and filters hold."""
        with self._database.reading() as connection:
            query = query_of(connection, where, equal)
            if query.own:
                return len(ids_of(connection, query))
            counted = select(func.count()).select_from(runs).where(*query.clauses)
            return int(connection.execute(counted).scalar_one())

    def values(self, column: str, limit: int | None = None) -> dict[str, int]:
        """Return the values of a column as texts and how many runs have each, the usual ones first.

        Args:
            column: of the runs table or one's own, or `campaign`, `point`, `key` and `started`.
            limit: how many values at most.

        Raises:
            RequestError: no run has such a column.
        """
        with self._database.reading() as connection:
            return values_of(connection, column, limit)

    def get(self, key: str) -> StoredRun:
        """Return one run by its key, or by the first 8 or more characters of it.

        Raises:
            UnknownNameError: no run has that key.
            RequestError: several do.
        """
        with self._database.reading() as connection:
            row = row_of_key(connection, key)
            query = query_of(connection, (), {"key": row.key})
            found = runs_of(connection, query, self._shared, None, False)
            body = connection.execute(
                select(fingerprints.c.body).where(fingerprints.c.id == row.fingerprint_id)
            ).scalar()
        unread = {name: texts[0] for name, texts in found.table.unread.items() if texts[0]}
        return StoredRun(
            row.key, {**found.table.row(0), **unread}, None if found.jobs.problem(0) else found.jobs[0],
            row.started or "", row.added, row.campaign or "", row.point or "",
            json.loads(body) if body else {},
        )  # fmt: skip

    def _after(self, added: Sequence[Added]) -> None:
        """Let the planner see what new rows look like: at a process's first ones, then now and then."""
        new = sum(one.new for one in added)
        self._unlooked += new
        if not new or self._unlooked < LOOK_EVERY:
            return
        try:
            inform(self._database, new)
            self._unlooked = 0
        except RequestError:
            # The runs are kept: that a busy or full disk leaves the planner as it was is no reason
            # to say otherwise. The next call looks again.
            return


def rows_of(facts: Sequence[Run]) -> tuple[Table, Jobs]:
    """Return what n runs measured as rows of the runs table, and their jobs.

    Raises:
        RequestError: one of them is no Run, or of an unknown status.
    """
    for run in facts:
        if not isinstance(run, Run):
            raise RequestError(
                f"storing {run!r:.60}", "it is no Run", "add runs, or rows of a table by add_table"
            )
        if run.status not in STATUSES:
            raise RequestError(
                f"storing a run of status {run.status!r}", "no such status",
                one_of(run.status, STATUSES),
            )  # fmt: skip
    jobs = Jobs.of([run.job for run in facts])
    columns: dict[str, Any] = {
        name: np.array([getattr(run, field) for run in facts], dtype=np.float64) / unit
        for field, (name, unit) in RUN_COLUMNS.items()
    }
    columns["status"] = np.array([run.status for run in facts], dtype=object)
    columns["source"] = np.array([run.origin for run in facts], dtype=object)
    return Table(columns, len(facts)), jobs
