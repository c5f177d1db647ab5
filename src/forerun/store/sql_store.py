"""SqlStore: the store of runs, campaigns, searches and artifacts in one database.

Planning: what the database's planner knows of the runs grows with them, at little cost.

Named: a run by its key, and the values by which runs can be asked for.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
from sqlalchemy import Connection, delete, func, select

from forerun.domain.run import STATUSES, Run
from forerun.errors import RequestError, UnknownNameError, one_of
from forerun.store.asking import Asked, asked_of, check_own, column_of, filled
from forerun.store.cells import Origins, plain
from forerun.store.database import Database
from forerun.store.kept import Added, Stored
from forerun.store.layout import fingerprints, runs
from forerun.store.queries import chunks_of, runs_of, table_of
from forerun.store.records import Artifacts, Records, states_of
from forerun.store.writing import Adding, Interned
from forerun.tables import Jobs, Runs, Table
from forerun.tables.conditions import Condition
from forerun.tables.jobs import described, job_columns
from forerun.units import GIGA

_MOST_READ = 50_000  # rows whose own columns are read, the newest ones


def values_of(
    connection: Connection, known: set[str], name: str, limit: int | None
) -> dict[str, int]:
    """Return a column's values as texts and how many runs have each, the usual ones first.

    Of a column of one's own, those of the newest 50,000 runs that have it.

    Raises:
        RequestError: no run has such a column.
    """
    column = column_of(name)
    if column is not None:
        query = select(column, func.count()).where(column.is_not(None)).group_by(column)
        query = query.order_by(func.count().desc(), column).limit(limit)
        return {plain(value): int(count) for value, count in connection.execute(query)}
    check_own(known, name)
    mark = f"{json.dumps(name, ensure_ascii=False)}:"
    having = select(runs.c.rest).where(runs.c.rest.contains(mark, autoescape=True))
    found: Counter[str] = Counter()
    for text in connection.execute(having.order_by(runs.c.id.desc()).limit(_MOST_READ)).scalars():
        cell = json.loads(text).get(name)
        if cell is not None:
            found[plain(cell)] += 1
    return dict(sorted(found.items(), key=lambda one: (-one[1], one[0]))[:limit])


def by_key(connection: Connection, key: str) -> Any:
    """Return the row of the run that has a key, or the first 8 or more characters of it.

    Raises:
        UnknownNameError: no run has that key.
        RequestError: several do.
    """
    query = select(
        runs.c.id, runs.c.key, runs.c.started, runs.c.added, runs.c.campaign, runs.c.point,
        runs.c.fingerprint_id,
    )  # fmt: skip
    row = connection.execute(query.where(runs.c.key == key)).first()
    if row is not None:
        return row
    found = []
    if len(key) >= 8:
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
_MEASURED = {
    "step_time_s": "step_seconds", "sync_time_s": "sync_seconds", "epoch_time_s": "epoch_seconds",
    "time_to_train_s": "time_to_train_seconds", "samples_per_s": "samples_per_second",
    "samples_to_target": "samples_to_target",
}  # fmt: skip


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
        self._interned = Interned()
        self._unlooked = LOOK_EVERY
        self.campaigns = Records(database, "campaign")
        self.searches = Records(database, "search")
        self.artifacts = Artifacts(database)

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
        table, origins = Origins.of(table, keys, started, campaign, points, fingerprint)
        adding = Adding(table, jobs, origins, self._interned)
        with self._database.writing() as connection:
            added = adding.into(connection)
            if points is not None:
                statuses = list(table.texts("status"))
                states = states_of(origins.points, added.keys, statuses, notes)
                self.campaigns.mark_in(connection, campaign, states)
        self._after([added])
        return added

    def add_tables(self, tables: Sequence[Table], campaign: str = "") -> list[Added]:
        """Keep the rows of several tables, all of them or none. Raises as `add_table` does."""
        ready = []
        for table in tables:
            rows, origins = Origins.of(table, None, "", campaign, None, None)
            ready.append(Adding(rows, None, origins, self._interned))
        with self._database.writing() as connection:
            added = [adding.into(connection) for adding in ready]
        self._after(added)
        return added

    def remove(self, *, where: Where = (), **equal: Any) -> int:
        """Forget the runs for which all conditions and filters hold; return how many they were.

        Points of campaigns, steps of searches and artifacts keep the keys of their runs.

        Raises:
            RequestError: nothing says which runs; and as `runs` does.
        """
        with self._database.writing() as connection:
            asked = asked_of(filled(connection), where, equal)
            if not asked.clauses and not asked.own:
                raise RequestError(
                    "removing runs",
                    "nothing says which",
                    "give conditions: remove(where=['campaign=night'])",
                )
            if not asked.own:
                return int(connection.execute(delete(runs).where(*asked.clauses)).rowcount)
            columns = ("id", "rest")
            ids = [
                row.id
                for part in chunks_of(connection, asked, None, False, columns)
                for row in part
            ]
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
            asked = asked_of(filled(connection), where, equal)
            return runs_of(connection, asked, self._interned, limit, newest)

    def table(
        self, *, where: Where = (), limit: int | None = None, newest: bool = False,
        provenance: bool = False, **equal: Any,
    ) -> Table:  # fmt: skip
        """Return the same runs as a table alone, `provenance` with the columns of `PROVENANCE`."""
        with self._database.reading() as connection:
            asked = asked_of(filled(connection), where, equal)
            return table_of(connection, asked, limit, newest, provenance)

    def count(self, *, where: Where = (), **equal: Any) -> int:
        """Return how many runs there are for which all conditions and filters hold."""
        with self._database.reading() as connection:
            asked = asked_of(filled(connection), where, equal)
            if asked.own:
                return sum(map(len, chunks_of(connection, asked, None, False, ("rest",))))
            query = select(func.count()).select_from(runs).where(*asked.clauses)
            return int(connection.execute(query).scalar_one())

    def values(self, column: str, limit: int | None = None) -> dict[str, int]:
        """Return the values of a column as texts and how many runs have each, the usual ones first.

        Args:
            column: of the runs table or one's own, or `campaign`, `point`, `key` and `started`.
            limit: how many values at most.

        Raises:
            RequestError: no run has such a column.
        """
        with self._database.reading() as connection:
            return values_of(connection, filled(connection), column, limit)

    def get(self, key: str) -> Stored:
        """Return one run by its key, or by the first 8 or more characters of it.

        Raises:
            UnknownNameError: no run has that key.
            RequestError: several do.
        """
        with self._database.reading() as connection:
            row = by_key(connection, key)
            asked = Asked((runs.c.id == row.id,), columns=frozenset(filled(connection)))
            found = runs_of(connection, asked, self._interned, None, False)
            body = connection.execute(
                select(fingerprints.c.body).where(fingerprints.c.id == row.fingerprint_id)
            ).scalar()
        unread = {name: texts[0] for name, texts in found.table.unread.items() if texts[0]}
        return Stored(
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
    """Return n runs as rows of the runs table, and their jobs.

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
        name: _numbers([getattr(run, field) for run in facts]) for name, field in _MEASURED.items()
    }
    columns["memory_gb"] = _numbers([run.peak_bytes for run in facts]) / GIGA
    columns["status"] = np.array([run.status for run in facts], dtype=object)
    columns["source"] = np.array([run.origin for run in facts], dtype=object)
    return job_columns(jobs).with_columns(**columns), jobs


def _numbers(values: Sequence[float | None]) -> Any:
    return np.array(values, dtype=np.float64)
