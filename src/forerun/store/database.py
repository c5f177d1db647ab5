"""Database: one SQLite file or one PostgreSQL database: opened, brought up to date, and in turns."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.exc import ArgumentError, OperationalError

from forerun.errors import MissingExtraError, RequestError
from forerun.store.faults import in_words
from forerun.store.layout import HEAD, VERSION_TABLE, metadata
from forerun.store.places import Place

_WRITES = "forerun_writes"
_UPGRADE_LOCK = 0x666F7265  # any number that others are unlikely to lock


@dataclass
class Database:
    """Connections to one store; every reader and writer goes through `reading` and `writing`."""

    place: Place
    wait_seconds: float
    engine: Engine
    _owner: int

    @staticmethod
    def opened(place: Place, wait_seconds: float) -> Database:
        """Return the database of a place, made or upgraded where it has to be.

        Raises:
            RequestError: it cannot be opened, is another program's, or a newer forerun's.
            MissingExtraError: the driver of PostgreSQL is not installed.
        """
        engine = _engine(place, wait_seconds)
        database = Database(place, wait_seconds, engine, os.getpid())
        try:
            with in_words(database.asked, wait_seconds):
                if place.file is not None:
                    _keep_a_log(engine, wait_seconds)
                database._bring_up_to_date()
        except BaseException:
            engine.dispose()
            raise
        return database

    @property
    def asked(self) -> str:
        """What a message says was asked for."""
        return f"the store {self.place.shown}"

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield a connection on one state of the store: writers neither wait for it nor change it.

        Raises:
            RequestError: the database cannot answer.
        """
        self._after_a_fork()
        asked = f"reading {self.asked}"
        with in_words(asked, self.wait_seconds), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Yield a connection whose changes are kept whole at the end, or not at all.

        Raises:
            RequestError: another writer held it for too long, or it cannot be written.
        """
        self._after_a_fork()
        asked = f"writing {self.asked}"
        with in_words(asked, self.wait_seconds), self._writer().begin() as connection:
            yield connection

    def close(self) -> None:
        """Close every connection."""
        self._after_a_fork()
        self.engine.dispose()

    def _after_a_fork(self) -> None:
        """A child process leaves its parent's connections alone and opens its own."""
        if os.getpid() != self._owner:
            self.engine.dispose(close=False)
            self._owner = os.getpid()

    def _bring_up_to_date(self) -> None:
        with self.engine.connect() as connection:
            found = _layout_of(connection, self.asked)
        if found == HEAD:
            return
        with self._writer().begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text(f"SELECT pg_advisory_xact_lock({_UPGRADE_LOCK})"))
            if _layout_of(connection, self.asked) != HEAD:  # nobody else did it meanwhile
                _upgrade(connection)

    def _writer(self) -> Engine:
        """Return the same connections, whose transactions are a writer's from their first word."""
        writer: Engine = self.engine.execution_options(**{_WRITES: True})
        return writer


def _engine(place: Place, wait_seconds: float) -> Engine:
    if place.file is not None:
        _check_file(place)
        engine = create_engine(
            f"sqlite+pysqlite:///{place.file}",
            connect_args={"timeout": wait_seconds, "check_same_thread": False},
        )
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    try:
        # Positional parameters, so that many rows go to the driver as plain tuples.
        engine = create_engine(place.url, paramstyle="format", pool_pre_ping=True)
    except ImportError:
        raise MissingExtraError(f"the store {place.shown}", "psycopg", "store") from None
    except (ArgumentError, ValueError) as error:
        raise RequestError(
            f"the store {place.shown}", f"it is no URL of a database: {error}",
            "write postgresql://USER@HOST/DATABASE",
        ) from None  # fmt: skip
    milliseconds = max(int(wait_seconds * 1000), 1)
    event.listen(
        engine, "connect",
        lambda connection, record: _prepare_postgres(connection, milliseconds),
    )  # fmt: skip
    return engine


def _check_file(place: Place) -> None:
    """Refuse what SQLite would report by a bare `unable to open database file`, or overwrite."""
    asked, path = f"the store {place.shown}", place.file
    assert path is not None
    try:
        if path.is_dir():
            raise RequestError(asked, "it is a folder", "name a file in it, such as runs.db")
        if not path.parent.is_dir():
            raise RequestError(asked, f"there is no folder {path.parent}", "make it first")
        if path.exists() and path.stat().st_size:
            with path.open("rb") as stream:
                head = stream.read(16)
            if head != b"SQLite format 3\0":
                raise RequestError(asked, "it is no SQLite file", "name another file")
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise RequestError(asked, said, "name a file that you may read and write") from None


def _prepare_sqlite(connection: Any, record: Any) -> None:
    # Transactions are begun by `_begin_sqlite`, never by the driver on its own.
    connection.isolation_level = None
    # FULL: a run that was confirmed is on the disk, also where the power goes in the next moment.
    for pragma in (
        "synchronous=FULL",
        "foreign_keys=ON",
        "cache_size=-65536",
        "journal_size_limit=67108864",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    # A writer takes its turn at once: one that reads first and writes later could only fail.
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _prepare_postgres(connection: Any, milliseconds: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = {milliseconds}")
    connection.commit()


def _keep_a_log(engine: Engine, wait_seconds: float) -> None:
    """Let readers and a writer work side by side (WAL); a new file may be switched by several."""
    end = time.monotonic() + wait_seconds
    while True:
        raw = engine.raw_connection()
        try:
            found = raw.driver_connection
            assert found is not None
            if str(found.execute("PRAGMA journal_mode").fetchone()[0]) == "wal":
                return
            if _is_anothers(found):
                return  # the version check refuses it; it is not to be changed
            found.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", "")
            if not name.startswith("SQLITE_BUSY") or time.monotonic() > end:
                raise OperationalError("PRAGMA journal_mode=WAL", None, error) from error
            time.sleep(0.02)
        finally:
            raw.close()


def _is_anothers(connection: Any) -> bool:
    names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    return bool(names) and VERSION_TABLE not in names


def _layout_of(connection: Connection, asked: str) -> str:
    """Return the layout of a database, "" where it is empty.

    Raises:
        RequestError: it is another program's, or of a newer forerun.
    """
    present = set(inspect(connection).get_table_names())
    if VERSION_TABLE not in present:
        taken = sorted(
            present if connection.dialect.name == "sqlite" else present & set(metadata.tables)
        )
        if taken:
            raise RequestError(
                asked, f"another program keeps its tables there ({', '.join(taken[:4])})",
                "name another file, or an empty database or schema",
            )  # fmt: skip
        return ""
    found = str(connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar() or "")
    if found > HEAD:
        raise RequestError(
            asked, f"a newer forerun wrote it (layout {found}; this one knows {HEAD})",
            "install a newer forerun, or name another store",
        )  # fmt: skip
    return found


def _upgrade(connection: Connection) -> None:
    """Carry out the steps that are missing, in the caller's transaction."""
    from pathlib import Path

    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option(
        "script_location", str(Path(__file__).parent / "migrations").replace("%", "%%")
    )
    config.set_main_option("path_separator", "os")
    config.attributes.update(connection=connection, version_table=VERSION_TABLE)
    command.upgrade(config, HEAD)
