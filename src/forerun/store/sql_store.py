"""SqlStore: the store of runs, campaigns, searches and artifacts in one database."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import Connection, delete, func, select, update

from forerun.domain.job import STATUSES, Run
from forerun.errors import RequestError, UnknownNameError, one_of
from forerun.paths import check_file
from forerun.store import Added, Artifact, CampaignRecord, StoredPoint, StoredRun, writing
from forerun.store.database import Database
from forerun.store.layout import (
    artifact_runs,
    artifacts,
    campaign_points,
    campaigns,
    runs,
    search_steps,
    searches,
)
from forerun.store.queries import Where, clauses_of, run_of, runs_of, table_of, values_of
from forerun.store.task_table import TaskTable
from forerun.tables import RUN_COLUMNS, Jobs, Runs, Table
from forerun.tables.jobs import described

_FACTS = [column for column in artifacts.c if column.name != "content"]


@dataclass(frozen=True)
class ArtifactTable:
    """The artifacts of a store."""

    database: Database

    def put(
        self, name: str, content: bytes | str | Path, kind: str = "", runs: Iterable[str] = (),
        seed: int | None = None, commit: str = "", command: str = "", keep: bool = True,
    ) -> Artifact:  # fmt: skip
        """Keep an artifact and what made it; the same content under the same name is kept once.

        Args:
            name: not unique: `get` returns the newest one.
            content: bytes, text, or the path of a file.
            runs: keys of the runs that it was made from.
            keep: False leaves a file where it is and keeps its path and hash alone.

        Raises:
            RequestError: the file cannot be read, or is not to be kept and is no file.
        """
        writing.checked_text(name + kind + commit + command, "an artifact")
        if seed is not None and not -(2**63) <= seed < 2**63:
            raise RequestError(
                f"the artifact {name!r} of seed {seed}", "a seed has at most 64 bits",
                "give a smaller one, e.g. seed % 2**63",
            )  # fmt: skip
        body = _content(name, content)
        path = str(content.resolve()) if isinstance(content, Path) and not keep else ""
        if not keep and not path:
            raise RequestError(
                f"the artifact {name!r}", "it is no file, and would be lost",
                "give the path of a file, or keep=True",
            )  # fmt: skip
        digest = sha256(body).hexdigest()
        row = {
            "digest": digest, "name": name, "kind": kind, "size_bytes": len(body), "path": path,
            "content": None if path else body, "seed": seed, "commit": commit, "command": command,
            "created": writing.now(),
        }  # fmt: skip
        with self.database.writing() as connection:
            connection.execute(writing.insert_or_leave(connection, artifacts), [row])
            same = (artifacts.c.digest == digest) & (artifacts.c.name == name)
            found = connection.execute(select(*_FACTS).where(same)).one()
            links = [{"artifact_id": found.id, "run_key": key} for key in dict.fromkeys(runs)]
            if links:
                connection.execute(writing.insert_or_leave(connection, artifact_runs), links)
            return _artifact(connection, found)

    def get(self, name: str) -> Artifact:
        """Return the newest artifact of a name, or the one of a digest (8 digits or more of it)."""
        with self.database.reading() as connection:
            return _artifact(connection, _found(connection, name))

    def read(self, name: str) -> bytes:
        """Return an artifact's content. Raises RequestError where it is gone or has changed."""
        with self.database.reading() as connection:
            row = _found(connection, name)
            query = select(artifacts.c.content).where(artifacts.c.id == row.id)
            body = connection.execute(query).scalar()
        if body is None:
            body = _content(row.name, Path(row.path))
        if sha256(body).hexdigest() != row.digest:
            raise RequestError(
                f"the artifact {row.name!r}", f"{row.path or 'its content'} has changed since it"
                f" was stored (SHA-256 {row.digest[:12]}...)", "put it in again as it is now, or bring the old file back",
            )  # fmt: skip
        return bytes(body)

    def every(self, kind: str = "") -> list[Artifact]:
        """Return the artifacts, of one kind or all, oldest first."""
        query = select(*_FACTS).order_by(artifacts.c.id)
        with self.database.reading() as connection:
            rows = connection.execute(query.where(artifacts.c.kind == kind) if kind else query)
            return [_artifact(connection, row) for row in rows.all()]

    def keep_newest(self, kind: str, number: int) -> None:
        """Remove the artifacts of a kind but for the newest, with what says which runs they were made from."""
        ids = select(artifacts.c.id).where(artifacts.c.kind == kind).order_by(artifacts.c.id.desc())
        with self.database.writing() as connection:
            if old := connection.execute(ids.offset(number)).scalars().all():
                connection.execute(delete(artifact_runs).where(artifact_runs.c.artifact_id.in_(old)))  # fmt: skip
                connection.execute(delete(artifacts).where(artifacts.c.id.in_(old)))


def _content(name: str, content: bytes | str | Path) -> bytes:
    if not isinstance(content, Path):
        return content if isinstance(content, bytes) else content.encode()
    asked = f"the artifact {name!r} in {content}"
    check_file(content, asked)
    try:
        return content.read_bytes()
    except OSError as error:
        raise RequestError(asked, str(error.strerror), "give the path of a file that you may read") from None  # fmt: skip


def _found(connection: Connection, name: str) -> Any:
    match = artifacts.c.name == name
    if len(name) >= 8:
        match |= artifacts.c.digest.startswith(name, autoescape=True)
    row = connection.execute(select(*_FACTS).where(match).order_by(artifacts.c.id.desc())).first()
    if row is None:
        known = connection.execute(select(artifacts.c.name).distinct()).scalars()
        raise UnknownNameError("artifact", name, known)
    return row


def _artifact(connection: Connection, row: Any) -> Artifact:
    facts = dict(row._mapping)
    query = select(artifact_runs.c.run_key).where(artifact_runs.c.artifact_id == facts.pop("id"))
    return Artifact(**facts, runs=tuple(connection.execute(query).scalars()))


class CampaignTable:
    """The campaigns, or the searches, of a store."""

    def __init__(self, database: Database, kind: str) -> None:
        self.database, self.kind = database, kind
        self._owners = campaigns if kind == "campaign" else searches
        self._points = campaign_points if kind == "campaign" else search_steps

    def put(self, name: str, spec: Mapping[str, Any], replace: bool = False) -> CampaignRecord:
        """Keep a specification under a unique name, and return the record with its points so far.

        Raises:
            RequestError: the name is blank, or taken by another spec and `replace` is not set.
        """
        if not name.strip():
            raise RequestError(f"a {self.kind} without a name", "its name is blank", "name it")
        writing.checked_text(name, f"a {self.kind}'s name")
        text = writing.canonical(spec)
        with self.database.writing() as connection:
            row = {"name": name, "spec": text, "created": writing.now()}
            connection.execute(writing.insert_or_leave(connection, self._owners), [row])
            stored = self._owners.c.name == name
            found = connection.execute(select(self._owners.c.spec).where(stored)).scalar_one()
            if found != text and not replace:
                had = json.loads(found)
                names = [key for key in {**had, **spec} if had.get(key) != spec.get(key)]
                raise RequestError(
                    f"the {self.kind} {name!r}", "the store has one of that name with another spec:"
                    f" it was begun with another {' and '.join(names)}",
                    "ask as it was begun, or use another name",
                )  # fmt: skip
            if found != text:
                connection.execute(update(self._owners).where(stored).values(spec=text))
            record = self._record(connection, name)
            assert record is not None
            return record

    def get(self, name: str) -> CampaignRecord | None:
        """Return a record with its points, None where there is none of that name."""
        with self.database.reading() as connection:
            return self._record(connection, name)

    def alone(self, name: str) -> AbstractContextManager[None]:
        """Hold a name while it is worked on. Raises RequestError where another process does."""
        return self.database.alone(f"the {self.kind} {name!r}")

    def names(self) -> list[str]:
        """Return the names, oldest first."""
        with self.database.reading() as connection:
            query = select(self._owners.c.name).order_by(self._owners.c.id)
            return list(connection.execute(query).scalars())

    def mark(self, name: str, point: str, status: str, run_key: str = "", note: str = "") -> None:
        """Set the state of a point, which is new or known. Raises UnknownNameError for the name."""
        with self.database.writing() as connection:
            self.mark_in(connection, name, {point: StoredPoint(status, run_key, note)}, over=True)

    def mark_in(self, connection: Connection, name: str, points: Mapping[str, StoredPoint], over: bool = False) -> None:  # fmt: skip
        """Set the states of several points in the caller's transaction.

        Without `over`, a point that is ok stays so unless its new state is ok too: another process
        may have measured it. Raises UnknownNameError for the name.
        """
        owners, table = self._owners, self._points
        owner = connection.execute(select(owners.c.id).where(owners.c.name == name)).scalar()
        if owner is None:
            known = connection.execute(select(owners.c.name)).scalars()
            raise UnknownNameError(self.kind, name, known)
        when = writing.now()
        rows = [{**asdict(state), "owner_id": owner, "point": point, "updated": when} for point, state in points.items()]  # fmt: skip
        for row in rows:
            writing.checked_text(row["point"] + row["status"] + row["note"], "a point")
        if not rows:
            return
        insert = writing.insert_or_leave(connection, table)
        changed = {n: insert.excluded[n] for n in ("status", "run_key", "note", "updated")}
        # The conflict that is left alone elsewhere is an update here.
        upsert = type(insert)(table).on_conflict_do_update(
            index_elements=["owner_id", "point"], set_=changed,
            where=None if over else (table.c.status != "ok") | (insert.excluded.status == "ok"),
        )  # fmt: skip
        connection.execute(upsert, rows)

    def _record(self, connection: Connection, name: str) -> CampaignRecord | None:
        owners, points = self._owners, self._points
        row = connection.execute(select(owners).where(owners.c.name == name)).first()
        if row is None:
            return None
        query = select(points).where(points.c.owner_id == row.id).order_by(points.c.id)
        states = {p.point: StoredPoint(p.status, p.run_key, p.note, p.updated) for p in connection.execute(query)}  # fmt: skip
        return CampaignRecord(row.name, json.loads(row.spec), row.created, states)


class SqlStore(AbstractContextManager["SqlStore"]):
    """A store in SQLite or PostgreSQL; made by `forerun.store.open_store`.

    Threads and processes may share it; each call is one transaction, durable when it returns.
    """

    name = "sql"

    def __init__(self, database: Database) -> None:
        self._database = database
        self.campaigns = CampaignTable(database, "campaign")
        self.searches = CampaignTable(database, "search")
        self.artifacts = ArtifactTable(database)
        self.tasks = TaskTable(database)

    @property
    def where(self) -> str:
        """Where it lies, for messages: a file or a URL without its password."""
        return self._database.place.shown

    def close(self) -> None:
        """Close every connection; a later call opens new ones."""
        self._database.close()

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
        table, origins = writing.origins_of(table, keys, started, campaign, points, fingerprint)
        with self._database.writing() as connection:
            added = writing.add_rows(connection, table, jobs, origins)
            if points is not None:
                states = zip(origins["run_point"], added.keys, table.texts("status"), notes or [""] * len(table), strict=True)  # fmt: skip
                self.campaigns.mark_in(connection, campaign, {
                    point: StoredPoint(status or "ok", key, note)
                    for point, key, status, note in states if point
                })  # fmt: skip
        return added

    def add_tables(self, tables: Sequence[Table], campaign: str = "") -> list[Added]:
        """Keep the rows of several tables, all of them or none. Raises as `add_table` does."""
        given = [writing.origins_of(table, campaign=campaign) for table in tables]
        with self._database.writing() as connection:
            return [writing.add_rows(connection, rows, None, origins) for rows, origins in given]

    def remove(self, *, where: Where = (), **equal: Any) -> int:
        """Forget the runs for which all conditions and filters hold; return how many they were.

        Points, steps and artifacts keep the keys of their runs. Raises RequestError without conditions.
        """
        with self._database.writing() as connection:
            clauses = clauses_of(connection, where, equal)
            if not clauses:
                raise RequestError("removing runs", "nothing says which", "give conditions: remove(where=['campaign=night'])")  # fmt: skip
            return int(connection.execute(delete(runs).where(*clauses)).rowcount)

    def runs(self, *, where: Where = (), limit: int | None = None, newest: bool = False, **equal: Any) -> Runs:  # fmt: skip
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
        provenance: bool = False, after: str = "", **equal: Any,
    ) -> Table:  # fmt: skip
        """Return the same runs as a table alone, `provenance` with the columns of `PROVENANCE`.

        after: a run's key; those that follow it in this order. Raises RequestError where no run has it.
        """
        with self._database.reading() as connection:
            clauses = clauses_of(connection, where, equal)
            if after:
                last = connection.scalar(select(runs.c.id).where(runs.c.key == after))
                if last is None:
                    found = "no run has this key"
                    raise RequestError(f"runs after {after[:80]!r}", found, "give a run's key")
                clauses.append(runs.c.id < last if newest else runs.c.id > last)
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
            raise RequestError(f"storing a run of status {run.status!r}", "no such status", one_of(run.status, STATUSES))  # fmt: skip
    columns: dict[str, Any] = {
        name: np.array([getattr(run, field) for run in facts], dtype=np.float64) / unit
        for field, (name, unit) in RUN_COLUMNS.items()
    }
    columns["status"] = np.array([run.status for run in facts], dtype=object)
    columns["source"] = np.array([run.origin for run in facts], dtype=object)
    return Table(columns, len(facts)), Jobs.of([run.job for run in facts])
