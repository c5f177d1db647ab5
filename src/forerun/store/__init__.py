"""Store: keeps every run with its origin, in one SQLite file or in PostgreSQL.

SQLAlchemy (the extra `store`) is loaded when a store is opened, not before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from forerun.errors import MissingExtraError, RequestError
from forerun.paths import shown
from forerun.settings import SETTINGS, load_settings

if TYPE_CHECKING:
    from forerun.domain.job import Job
    from forerun.store.sql_store import SqlStore

__all__ = ["KEPT_ANSWER", "PROVENANCE", "TASK_STATES", "Added", "Artifact", "CampaignRecord",
           "StoredPoint", "StoredRun", "open_store"]  # fmt: skip

WAIT_SECONDS = 60.0
TASK_STATES = ("waiting", "running", "done", "failed", "cancelled")
KEPT_ANSWER = (
    "answer"  # of a request with an idempotency key: kept beside the tasks, and none of them
)
_POSTGRES = re.compile(r"(postgresql|postgres)(\+psycopg)?://(.*)", re.DOTALL)
_SQLITE = re.compile(r"sqlite(\+pysqlite)?://(.*)", re.DOTALL)
# Not the form that is read as a server's URL, and surely no file: `postgresql:user@host`, libpq's words.
_MEANT = re.compile(r"\s*postgres(ql)?(\+\w+)?(:|//)|.*\b(password|dbname)\s*=", re.I | re.DOTALL)
_TABLES = (".csv", ".parquet", ".pq", ".json", ".yaml", ".yml")
_STEP = "give a file such as runs.db, or postgresql://USER@HOST/DATABASE"


# Columns of a table that say where a run comes from. A table that has them gives its rows their
# own keys and provenance, so that runs move between stores without becoming others.
PROVENANCE = ("run_key", "run_started", "run_campaign", "run_point", "run_fingerprint")


@dataclass(frozen=True)
class Added:
    """Keys (n,) of the rows of one call, and how many were new; a key given twice is known."""

    keys: tuple[str, ...]
    new: int
    known: int


@dataclass(frozen=True)
class StoredRun:
    """One run with its provenance; "" and None where something is not known.

    Attributes:
        row: its columns without blanks, in the units of the runs table; a cell of a number column
            that could not be read is its text.
        started, added: when it began and when it was stored, ISO 8601 in UTC.
        fingerprint: software and hardware that it ran on.
    """

    key: str
    row: Mapping[str, Any]
    job: Job | None
    started: str
    added: str
    campaign: str
    point: str
    fingerprint: Mapping[str, Any]


@dataclass(frozen=True)
class StoredPoint:
    """State of a campaign's point or a search's step; `updated` is ISO 8601 in UTC."""

    status: str
    run_key: str = ""
    note: str = ""
    updated: str = ""


@dataclass(frozen=True)
class CampaignRecord:
    """A campaign or a search: what was asked for, as JSON, and its points in the order they came."""

    name: str
    spec: Mapping[str, Any]
    created: str
    points: Mapping[str, StoredPoint] = field(default_factory=dict)


@dataclass(frozen=True)
class Artifact:
    """Something made from runs: a model, a plot, a report; and what made it.

    Attributes:
        digest: SHA-256 of its content, 64 hexadecimal digits.
        path: the file that holds it, "" where the store does.
        created: ISO 8601 in UTC.
        runs: keys of the runs that it was made from.
    """

    digest: str
    name: str
    kind: str
    size_bytes: int
    path: str
    seed: int | None
    commit: str
    command: str
    created: str
    runs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Place:
    """Where a store lies: an SQLite file, else a server's URL; `shown` has no password."""

    file: Path | None
    url: str
    shown: str


def place_of(where: str | Path = "", make: bool = True) -> Place:
    """Return the place that a path or URL names; "" is the setting `store`, whose folder it may `make`.

    Raises:
        RequestError: another database, a table, or a folder.
    """
    usual = next(str(setting.default) for setting in SETTINGS if setting.name == "store")
    text = str(where).strip() or load_settings().text("store").strip() or usual
    server = _POSTGRES.fullmatch(text)
    if server is not None:
        if "@" in re.split(r"[/?]", server[3].partition("@")[2])[0]:
            todo = "write @ as %40, or give the password in PGPASSWORD or ~/.pgpass"
            raise RequestError(f"the store {shown(text)}", "an @ too much is in it", todo)
        return Place(None, f"postgresql+psycopg://{server[3]}", shown(text))
    name, file = text, _SQLITE.fullmatch(text)
    if file is not None:
        name = unquote(file[2].removeprefix("/").partition("?")[0])
        if not name or name == ":memory:":
            raise RequestError(f"the store {shown(text)}", "it would be in memory, and lost", _STEP)
    elif "://" in text or _MEANT.match(text):
        kind = text.partition("://")[0] if "://" in text else "that"
        raise RequestError(f"the store {shown(text)}", f"{shown(kind)} is no kind of store", _STEP)
    try:
        path = Path(name).expanduser()
        # The folder of a place that is named must be there.
        if make and path == Path(usual).expanduser():
            path.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        raise RequestError(
            f"the store {shown(text)}", f"its folder cannot be had: {error}",
            "name another place with --store or FORERUN_STORE",
        ) from None  # fmt: skip
    if path.suffix.lower() in _TABLES:
        raise RequestError(
            f"the store {shown(text)}", f"a file that ends in {path.suffix} is no database",
            "bring its rows in with `forerun runs import`, and name the store runs.db",
        )  # fmt: skip
    return Place(path, "", shown(name))


def open_store(where: str = "", wait_seconds: float = WAIT_SECONDS, new: bool = True) -> SqlStore:
    """Return the store at a place; a new one is made.

    Args:
        where: a file, `sqlite:///FILE`, or `postgresql://USER@HOST/DATABASE`; "" is the setting.
        wait_seconds: how long a call waits for another writer.
        new: make the file where there is none.

    Raises:
        RequestError: it cannot be opened, or another program or layout wrote it.
        MissingExtraError: the extra `store` is not installed.
    """
    place = place_of(where)
    if place.file is not None and not new and not place.file.exists():
        raise RequestError(
            f"the store {place.shown}", "there is no such file",
            "name another, or make it: `forerun runs import`, `forerun profile`",
        )  # fmt: skip
    if find_spec("sqlalchemy") is None:
        raise MissingExtraError(f"opening the store {place.shown}", "sqlalchemy", "store")
    from forerun.store.database import Database
    from forerun.store.sql_store import SqlStore

    return SqlStore(Database.opened(place, wait_seconds))
