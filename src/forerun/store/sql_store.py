"""SqlStore: the store of runs, campaigns, searches and artifacts in one database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from sqlalchemy import delete, func, select

from forerun.domain.job import STATUSES, Run
from forerun.errors import RequestError, one_of
from forerun.store import Added, StoredPoint, StoredRun
from forerun.store.database import Database
from forerun.store.layout import runs
from forerun.store.queries import Where, clauses_of, run_of, runs_of, table_of, values_of
from forerun.store.records import ArtifactTable, CampaignTable
from forerun.store.writing import add_rows, origins_of
from forerun.tables import RUN_COLUMNS, Jobs, Runs, Table
from forerun.tables.jobs import described


class SqlStore:
    """A store in SQLite or PostgreSQL; made by `forerun.store.open_store`.

    Threads and processes may share it; each call is one transaction, durable when it returns.
    """

    name = "sql"

    def __init__(self, database: Database) -> None:
        self._database = database
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

    def __exit__(self, *error: object) -> None:
        self.close()

    def add(self, runs: Iterable[Run], **origins: Any) -> list[str]:
        """Keep runs with their jobs and return their keys; keywords are those of `add_table`."""
        return list(self.add_table(*rows_of(list(runs)), **origins).keys)

    def add_table(
        self, table: Table, jobs: Jobs | None = None, *, keys: Sequence[str] | None = None,
        campaign: str = "", points: Sequence[str] | None = None, started: str | Sequence[str] = "",
        fingerprint: Mapping[str, Any] | None = None, notes: Sequence[str] = (),
    ) -> Added:  # fmt: skip
        """Keep the n rows of a runs table, all of them or none.

        A row that is in the store under its key already is left as it is. Columns of `PROVENANCE`
        in the table count where the arguments do not.

        Args:
            table: runs with any columns.
            jobs: their n jobs; a job fills blanks of its row and states its plan.
            keys: n texts; by default a hash of cells, provenance and job.
            campaign, points: whose runs they are; each of the n points gets its run's key and status,
                and one that is ok stays so.
            started: ISO 8601 in UTC, one for all or n.
            fingerprint: software and hardware that they ran on.
            notes: n texts, kept with the points.

        Raises:
            RequestError: another run has a key, or the rows cannot be written.
            UnknownNameError: points are given and there is no such campaign.
        """
        if jobs is not None:
            table = described(table, jobs)
        table, origins = origins_of(table, keys, started, campaign, points, fingerprint)
        with self._database.writing() as connection:
            added = add_rows(connection, table, jobs, origins)
            if points is not None:
                states = zip(
                    origins["run_point"], added.keys, table.texts("status"),
                    notes or [""] * len(table), strict=True,
                )  # fmt: skip
                self.campaigns.mark_in(connection, campaign, {
                    point: StoredPoint(status or "ok", key, note)
                    for point, key, status, note in states if point
                })  # fmt: skip
        return added

    def add_tables(self, tables: Sequence[Table], campaign: str = "") -> list[Added]:
        """Keep the rows of several tables, all of them or none. Raises as `add_table` does."""
        given = [origins_of(table, campaign=campaign) for table in tables]
        with self._database.writing() as connection:
            return [add_rows(connection, rows, None, origins) for rows, origins in given]

    def remove(self, *, where: Where = (), **equal: Any) -> int:
        """Forget the runs for which all conditions and filters hold; return how many they were.

        Points, steps and artifacts keep the keys of their runs. Raises RequestError without conditions.
        """
        with self._database.writing() as connection:
            clauses = clauses_of(connection, where, equal)
            if not clauses:
                raise RequestError(
                    "removing runs", "nothing says which",
                    "give conditions: remove(where=['campaign=night'])",
                )  # fmt: skip
            return int(connection.execute(delete(runs).where(*clauses)).rowcount)

    def runs(
        self, *, where: Where = (), limit: int | None = None, newest: bool = False, **equal: Any
    ) -> Runs:
        """Return the runs for which all conditions and filters hold, oldest first.

        Args:
            where: conditions such as `devices<=8` or `device=t4,v100`; never true of a blank.
            newest: the last ones first.
            equal: values by column; a list means any of them, None and "" a blank.

        Raises:
            RequestError: no run has such a column, or a number column is compared with a text.
        """
        with self._database.reading() as connection:
            return runs_of(connection, clauses_of(connection, where, equal), limit, newest)

    def table(
        self, *, where: Where = (), limit: int | None = None, newest: bool = False,
        provenance: bool = False, **equal: Any,
    ) -> Table:  # fmt: skip
        """Return the same runs as a table alone, `provenance` with the columns of `PROVENANCE`."""
        with self._database.reading() as connection:
            clauses = clauses_of(connection, where, equal)
            return table_of(connection, clauses, limit, newest, provenance)

    def count(self, *, where: Where = (), **equal: Any) -> int:
        """Return how many runs there are for which all conditions and filters hold."""
        with self._database.reading() as connection:
            clauses = clauses_of(connection, where, equal)
            query = select(func.count()).select_from(runs).where(*clauses)
            return int(connection.execute(query).scalar_one())

    def values(self, column: str, limit: int | None = None) -> dict[str, int]:
        """Return a column's values as texts and how many runs have each, the most frequent first."""
        with self._database.reading() as connection:
            return values_of(connection, column, limit)

    def get(self, key: str) -> StoredRun:
        """Return one run by its key or the first 8 or more characters; errors for none or several."""
        with self._database.reading() as connection:
            return run_of(connection, key)


def rows_of(facts: Sequence[Run]) -> tuple[Table, Jobs]:
    """Return what n runs measured as rows of the runs table, and their jobs."""
    for run in facts:
        if not isinstance(run, Run):
            next_step = "add runs, or rows of a table by add_table"
            raise RequestError(f"storing {run!r:.60}", "it is no Run", next_step)
        if run.status not in STATUSES:
            raise RequestError(
                f"storing a run of status {run.status!r}", "no such status",
                one_of(run.status, STATUSES),
            )  # fmt: skip
    columns: dict[str, Any] = {
        name: np.array([getattr(run, field) for run in facts], dtype=np.float64) / unit
        for field, (name, unit) in RUN_COLUMNS.items()
    }
    columns["status"] = np.array([run.status for run in facts], dtype=object)
    columns["source"] = np.array([run.origin for run in facts], dtype=object)
    return Table(columns, len(facts)), Jobs.of([run.job for run in facts])
