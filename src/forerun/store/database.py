"""Database: one SQLite file or one PostgreSQL database, opened, and written in turns.

A database's own errors become errors in words.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, insert, inspect, select, text
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError

from forerun import packaged
from forerun.errors import MissingExtraError, RequestError, UnavailableError
from forerun.store import Place
from forerun.store.layout import BEFORE, LAYOUT, VERSION_TABLE, metadata, version

_INTACT = "; nothing of this call was kept, and what was stored before is intact"

# SQLAlchemy's, and the drivers' own: while a connection is being made, or rows are copied. SQLite's words on a
# damaged file quote it as it is.
_ERRORS: tuple[type[Exception], ...] = (DBAPIError, sqlite3.Error, UnicodeDecodeError)
with suppress(ImportError):
    import psycopg

    _ERRORS += (psycopg.Error,)


@contextmanager
def in_words(asked: str, wait_seconds: float) -> Iterator[None]:
    """Turn what a database cannot do into a RequestError; a defect of the caller stays what it is."""
    try:
        yield
    except _ERRORS as error:
        fault = _words(getattr(error, "orig", None) or error, wait_seconds)
        if fault is None:
            raise
        kind, *words = fault
        raise kind(asked, *words) from error
    except UnicodeEncodeError as error:
        next_step = "take out the characters that UTF-8 cannot write (halves of surrogate pairs)"
        raise RequestError(asked, f"a text is not Unicode: {error}", next_step) from error


_BACKUP = "name another file, or bring it back from a backup"
# What a store of this layout has, and what is in it, unless it was changed by others.
_DAMAGED = re.compile(
    r"no such (table|column)|no column named|malformed JSON|Could not decode to UTF-8"
    r'|(relation|column) "?[\w.]+"? does not exist'
)  # fmt: skip
_FAULTS = packaged.table(__file__, "faults.yaml")


def _words(error: BaseException, wait_seconds: float) -> tuple[type[RequestError], str, str] | None:
    """Return the kind of error, what was found and what to do; None where it is nobody's fault but the code's."""
    reason = next(iter(str(error).strip().splitlines()), "")
    if _DAMAGED.search(reason) or isinstance(error, UnicodeDecodeError):
        return UnavailableError, f"it is damaged ({reason})", _BACKUP
    code = str(getattr(error, "sqlite_errorname", "") or getattr(error, "sqlstate", "") or "")
    unmade = not code and type(error).__name__ in ("OperationalError", "ConnectionTimeout")
    for fault in _FAULTS:
        words = fault.get("words")
        if (code and code.startswith(tuple(fault["codes"]))) or (unmade and words and re.search(words, reason)):  # fmt: skip
            found = fault["found"].format(reason=reason, wait=wait_seconds, intact=_INTACT)
            kind = RequestError if fault.get("of_request") else UnavailableError
            return kind, found, fault["next"]
    return None


@contextmanager
def whole_rows() -> Iterator[None]:
    """Turn what rows cannot be read as, since somebody changed them, into a RequestError."""
    try:
        yield
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        found = f"a row of it is damaged: {error}"
        raise RequestError("reading the store", found, _BACKUP) from error


_WRITES = "forerun_writes"
_LAYOUT_LOCK = 0x666F7265  # any number that others are unlikely to lock


@dataclass
class Database:
    """Connections to one store; every reader and writer goes through `reading` and `writing`."""

    place: Place
    wait_seconds: float
    engine: Engine
    _owner: int
    _file: tuple[int, int] | None = None

    @staticmethod
    def opened(place: Place, wait_seconds: float) -> Database:
        """Return the database of a place, made where it is empty."""
        engine = _engine(place, wait_seconds)
        database = Database(place, wait_seconds, engine, os.getpid())
        try:
            with in_words(database.asked, wait_seconds):
                database._make_tables()
            database._file = database._file_now()
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
        """Yield a connection on one state of the store: writers neither wait for it nor change it."""
        self._look_again()
        asked = f"reading {self.asked}"
        with in_words(asked, self.wait_seconds), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Yield a connection whose changes are kept whole at the end, or not at all."""
        self._look_again()
        asked = f"writing {self.asked}"
        with in_words(asked, self.wait_seconds), self._writer().begin() as connection:
            yield connection

    @contextmanager
    def alone(self, what: str) -> Iterator[None]:
        """Hold a name among all who use the store. Raises RequestError where another process does."""
        number = int.from_bytes(sha256(what.encode()).digest()[:8], "big", signed=True)
        hold = self._locked_file if self.place.file is not None else self._locked_server
        with hold(number) as is_mine:
            if not is_mine:
                found = f"another process is at it in {self.place.shown}"
                raise RequestError(what, found, "wait for its end, or end it")
            yield

    @contextmanager
    def _locked_server(self, number: int) -> Iterator[bool]:
        with self.engine.connect() as connection:

            def call(name: str) -> bool:
                found = connection.execute(text(f"SELECT {name}({number})")).scalar()
                connection.commit()  # the lock is the session's: no transaction stays open
                return bool(found)

            with in_words(self.asked, self.wait_seconds):
                is_mine = call("pg_try_advisory_lock")
            try:
                yield is_mine
            finally:
                if is_mine:
                    with suppress(*_ERRORS):  # a connection that was lost has let it go
                        call("pg_advisory_unlock")

    @contextmanager
    def _locked_file(self, number: int) -> Iterator[bool]:
        import fcntl

        path = Path(f"{self.place.file}-{number & 0xFFFFFFFF:08x}.lock")
        with path.open("w") as file:
            is_mine = False
            with suppress(BlockingIOError, FileNotFoundError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The one before may have removed it between our opening and our lock.
                is_mine = path.samefile(f"/dev/fd/{file.fileno()}")
            try:
                yield is_mine
            finally:
                if is_mine:
                    path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close every connection."""
        self._after_a_fork()
        self.engine.dispose()

    def _file_now(self) -> tuple[int, int] | None:
        """Return which file lies at the place, None where none does, or none is one."""
        try:
            found = self.place.file.stat() if self.place.file is not None else None
        except OSError:
            return None
        if found is None:
            return None
        return found.st_dev, found.st_ino

    def _look_again(self) -> None:
        """Open connections anew in a child process, and where the file was replaced. Raises UnavailableError."""
        self._after_a_fork()
        if self.place.file is not None and (now := self._file_now()) != self._file:
            if now is None:  # what is written into a file without a name is lost
                raise UnavailableError(self.asked, "its file was removed", _BACKUP)
            self.engine.dispose()
            self._file = now

    def _after_a_fork(self) -> None:
        """A child process leaves its parent's connections alone and opens its own."""
        if os.getpid() != self._owner:
            self.engine.dispose(close=False)
            self._owner = os.getpid()

    def _make_tables(self) -> None:
        with self.engine.connect() as connection:
            made = _has_tables(connection, self.asked)
        if self.place.file is not None:
            _keep_a_log(self.engine, self.wait_seconds)
        if made:
            return
        from forerun.store.task_table import bring_over

        with self._writer().begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text(f"SELECT pg_advisory_xact_lock({_LAYOUT_LOCK})"))
            if _has_tables(connection, self.asked):  # somebody else did it meanwhile
                return
            if inspect(connection).has_table(VERSION_TABLE):
                bring_over(connection)
                connection.execute(version.delete())
            metadata.create_all(connection)
            connection.execute(insert(version).values(version_num=LAYOUT))

    def _writer(self) -> Engine:
        writer: Engine = self.engine.execution_options(**{_WRITES: True})
        return writer


def _engine(place: Place, wait_seconds: float) -> Engine:
    if place.file is not None:
        asked, path = f"the store {place.shown}", place.file
        try:
            if path.is_dir():
                raise RequestError(asked, "it is a folder", "name a file in it, such as runs.db")
            if not path.parent.is_dir():
                raise RequestError(asked, f"there is no folder {path.parent}", "make it first")
        except (OSError, ValueError) as error:
            found = getattr(error, "strerror", None) or str(error)
            raise RequestError(asked, found, "name a file that you may read and write") from None
        engine = create_engine(
            URL.create("sqlite+pysqlite", database=str(place.file)),  # as it is, ? and % too
            pool_size=0,  # as many connections as threads
            connect_args={"timeout": wait_seconds, "check_same_thread": False},
        )
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    try:
        # Positional parameters, so that many rows go to the driver as plain tuples.
        engine = create_engine(place.url, paramstyle="format", pool_pre_ping=True, pool_size=0)
    except ImportError:
        raise MissingExtraError(f"the store {place.shown}", "psycopg", "store") from None
    except (ArgumentError, ValueError) as error:
        raise RequestError(
            f"the store {place.shown}", f"it is no URL of a database: {error}",
            "write postgresql://USER@HOST/DATABASE",
        ) from None  # fmt: skip

    def prepare(connection: Any, record: Any) -> None:
        connection.execute(f"SET lock_timeout = {max(int(wait_seconds * 1000), 1)}")
        connection.commit()

    event.listen(engine, "connect", prepare)
    return engine


def _prepare_sqlite(connection: Any, record: Any) -> None:
    # Transactions are begun by `_begin_sqlite`, never by the driver on its own.
    connection.isolation_level = None
    # FULL: a run that was confirmed is on the disk, also where the power goes in the next moment.
    # Of each index so many entries are looked at, which is enough to tell a usual value from a rare
    # one, in a fraction of a second.
    for pragma in ("synchronous=FULL", "foreign_keys=ON", "cache_size=-65536",
                   "journal_size_limit=67108864", "analysis_limit=100000"):  # fmt: skip
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    # A writer takes its turn at once: one that reads first and writes later could only fail.
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _keep_a_log(engine: Engine, wait_seconds: float) -> None:
    """Let readers and a writer work side by side (WAL); a new file may be switched by several."""
    end = time.monotonic() + wait_seconds
    while True:
        raw = engine.raw_connection()
        try:
            raw.cursor().execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", "")
            if not name.startswith("SQLITE_BUSY") or time.monotonic() > end:
                raise OperationalError("PRAGMA journal_mode=WAL", None, error) from error
            time.sleep(0.02)
        finally:
            raw.close()


def _has_tables(connection: Connection, asked: str) -> bool:
    """Whether the tables are there in this layout; False: they are to be made, or brought over."""
    present = set(inspect(connection).get_table_names())
    if VERSION_TABLE in present:
        found = connection.execute(select(version.c.version_num)).scalar()
        if found is None:
            raise RequestError(asked, f"its table {VERSION_TABLE} names no layout", "name another store")  # fmt: skip
        if found not in (LAYOUT, BEFORE):
            age = "a newer" if str(found) > LAYOUT else "an older"
            raise RequestError(
                asked, f"{age} forerun wrote it (layout {found}; this one knows {LAYOUT})",
                f"install {age} forerun, or write its runs with that (forerun runs export) and"
                " read them into another store here (forerun runs import)",
            )  # fmt: skip
        return bool(found == LAYOUT)
    sqlite = connection.dialect.name == "sqlite"
    taken = sorted(present if sqlite else present & set(metadata.tables))
    if taken:
        raise RequestError(
            asked, f"another program keeps its tables there ({', '.join(taken[:4])})",
            "name another file, or an empty database or schema",
        )  # fmt: skip
    return False
