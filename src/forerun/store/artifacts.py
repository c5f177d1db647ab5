"""Artifacts: models, plots and reports, with their content's hash and the runs that made them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, select

from forerun.errors import RequestError, UnknownNameError
from forerun.store.adding import now
from forerun.store.database import Database
from forerun.store.interned import insert_or_leave
from forerun.store.kept import Artifact
from forerun.store.keys import checked_text
from forerun.store.layout import artifact_runs, artifacts

_FACTS = [column for column in artifacts.c if column.name != "content"]
_LEAST_DIGITS = 8


@dataclass(frozen=True)
class Artifacts:
    """The artifacts of a store."""

    database: Database

    def put(
        self, name: str, content: bytes | str | Path, kind: str = "", runs: Iterable[str] = (),
        seed: int | None = None, commit: str = "", command: str = "", keep: bool = True,
    ) -> Artifact:  # fmt: skip
        """Keep an artifact and what made it; the same content under the same name is kept once.

        Args:
            name: the artifact's, not unique: the newest one is meant by it.
            content: bytes, text, or the path of a file.
            kind: a word such as model, plot or report.
            runs: keys of the runs that it was made from.
            seed, commit, command: how it was made.
            keep: False leaves a file where it is and keeps its path and hash alone.

        Raises:
            RequestError: the file cannot be read, or content that is no file is not to be kept.
        """
        checked_text(name + kind + commit + command, "an artifact")
        if seed is not None and not -(2**63) <= seed < 2**63:
            raise RequestError(
                f"the artifact {name!r} of seed {seed}",
                "a seed has at most 64 bits",
                "give a smaller one, e.g. seed % 2**63",
            )
        body = _content(name, content)
        path = str(content.resolve()) if isinstance(content, Path) and not keep else ""
        if not keep and not path:
            raise RequestError(
                f"the artifact {name!r}",
                "it is no file, and would be lost",
                "give the path of a file, or keep=True",
            )
        digest = sha256(body).hexdigest()
        row = {
            "digest": digest, "name": name, "kind": kind, "size_bytes": len(body),
            "path": path or None, "content": None if path else body, "seed": seed,
            "commit": commit or None, "command": command or None, "created": now(),
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
        """Return the newest artifact of a name, or the one of a digest (8 digits or more of it).

        Raises:
            UnknownNameError: there is none.
        """
        with self.database.reading() as connection:
            return _artifact(connection, _found(connection, name))

    def read(self, name: str) -> bytes:
        """Return an artifact's content.

        Raises:
            UnknownNameError: there is none of that name or digest.
            RequestError: its file is gone, or has changed since.
        """
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
    if isinstance(content, bytes):
        return content
    if isinstance(content, str):
        return content.encode()
    try:
        return content.read_bytes()
    except OSError as error:
        raise RequestError(
            f"the artifact {name!r} in {content}",
            str(error.strerror),
            "give the path of a file that you may read",
        ) from None


def _found(connection: Connection, name: str) -> Any:
    match = artifacts.c.name == name
    if len(name) >= _LEAST_DIGITS:
        match |= artifacts.c.digest.startswith(name, autoescape=True)
    row = connection.execute(select(*_FACTS).where(match).order_by(artifacts.c.id.desc())).first()
    if row is None:
        known = connection.execute(select(artifacts.c.name).distinct()).scalars()
        raise UnknownNameError("artifact", name, known)
    return row


def _artifact(connection: Connection, row: Any) -> Artifact:
    keys = connection.execute(
        select(artifact_runs.c.run_key).where(artifact_runs.c.artifact_id == row.id)
    ).scalars()
    return Artifact(
        row.digest, row.name, row.kind, row.size_bytes, row.path or "", row.seed, row.commit or "",
        row.command or "", row.created, tuple(keys),
    )  # fmt: skip
