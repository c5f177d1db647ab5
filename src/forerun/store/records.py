"""Records: campaigns and searches with the state of each of their points, so that they resume.

Artifacts: models, plots and reports, with their content's hash and the runs that made them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, select, update

from forerun.errors import RequestError, UnknownNameError
from forerun.paths import check_file
from forerun.store import Artifact, CampaignRecord, StoredPoint
from forerun.store.database import Database
from forerun.store.layout import (
    artifact_runs,
    artifacts,
    campaign_points,
    campaigns,
    search_steps,
    searches,
)
from forerun.store.writing import canonical, checked_text, insert_or_leave, now

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
        checked_text(name + kind + commit + command, "an artifact")
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
            "created": now(),
        }  # fmt: skip
        with self.database.writing() as connection:
            connection.execute(insert_or_leave(connection, artifacts), [row])
            same = (artifacts.c.digest == digest) & (artifacts.c.name == name)
            found = connection.execute(select(*_FACTS).where(same)).one()
            links = [{"artifact_id": found.id, "run_key": key} for key in dict.fromkeys(runs)]
            if links:
                connection.execute(insert_or_leave(connection, artifact_runs), links)
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


def _content(name: str, content: bytes | str | Path) -> bytes:
    if not isinstance(content, Path):
        return content if isinstance(content, bytes) else content.encode()
    asked = f"the artifact {name!r} in {content}"
    check_file(content, asked)
    try:
        return content.read_bytes()
    except OSError as error:
        raise RequestError(
            asked, str(error.strerror), "give the path of a file that you may read"
        ) from None


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
        checked_text(name, f"a {self.kind}'s name")
        text = canonical(spec)
        with self.database.writing() as connection:
            row = {"name": name, "spec": text, "created": now()}
            connection.execute(insert_or_leave(connection, self._owners), [row])
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

    def mark_in(
        self, connection: Connection, name: str, points: Mapping[str, StoredPoint],
        over: bool = False,
    ) -> None:  # fmt: skip
        """Set the states of several points in the caller's transaction.

        Without `over`, a point that is ok stays so unless its new state is ok too: another process
        may have measured it. Raises UnknownNameError for the name.
        """
        owners, table = self._owners, self._points
        owner = connection.execute(select(owners.c.id).where(owners.c.name == name)).scalar()
        if owner is None:
            known = connection.execute(select(owners.c.name)).scalars()
            raise UnknownNameError(self.kind, name, known)
        when = now()
        rows = [
            {**asdict(state), "owner_id": owner, "point": point, "updated": when}
            for point, state in points.items()
        ]
        for row in rows:
            checked_text(row["point"] + row["status"] + row["note"], "a point")
        if not rows:
            return
        insert = insert_or_leave(connection, table)
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
        states = {
            p.point: StoredPoint(p.status, p.run_key, p.note, p.updated)
            for p in connection.execute(query)
        }
        return CampaignRecord(row.name, json.loads(row.spec), row.created, states)
