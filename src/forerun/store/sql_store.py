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

    Calls may come from several threads and processes at once; each call is one transaction. A run
    is confirmed when `add` or `add_table` returns, and is never lost from then on.

    Attributes:
        campaigns, searches: what was asked for, and the state of each of their points.
        artifacts: what was made from runs.
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
        """Keep runs with their whole jobs, all of them or none, and return their keys.

        The keywords, and what is raised, are those of `add_table`; RequestError too for what is no Run.
        """
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
            jobs: their n jobs, where they are known whole; rows without workload or cluster (-1)
                are kept as rows. The columns of a job fill the row's blanks, and state its plan.
            keys: of one's own, n texts. Else a row's key is a hash of its cells, its provenance and
                its job; the second of equal rows in one call gets another one than the first.
            campaign: whose runs they are.
            points: of that campaign, which gets each run's key and status in the same transaction;
                it must be in `campaigns`. A point that is ok stays so where the new run is not.
            started: when they began, ISO 8601 in UTC: one for all, or n.
            fingerprint: software and hardware that they ran on, as JSON.
            notes: kept with the points' states, n texts.

        Raises:
            RequestError: a key is there for another run, a cell cannot be kept, the disk is full,
                or another writer held the store for too long.
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

        Points of campaigns, steps of searches and artifacts keep the keys of their runs.

        Raises:
            RequestError: no condition is given; and as `runs` does.
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
            limit: how many at most.
            newest: the last ones first.
            equal: values by column; a list means any of them, None and "" a blank. `campaign`,
                `point`, `key` and `started` are columns too.

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
        """Return the values of a column as texts and how many runs have each, the usual ones first.

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
            return run_of(connection, key)


def rows_of(facts: Sequence[Run]) -> tuple[Table, Jobs]:
    """Return what n runs measured as rows of the runs table, and their jobs."""
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
    columns: dict[str, Any] = {
        name: np.array([getattr(run, field) for run in facts], dtype=np.float64) / unit
        for field, (name, unit) in RUN_COLUMNS.items()
    }
    columns["status"] = np.array([run.status for run in facts], dtype=object)
    columns["source"] = np.array([run.origin for run in facts], dtype=object)
    return Table(columns, len(facts)), Jobs.of([run.job for run in facts])
