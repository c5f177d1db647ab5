"""Faults: what a database says when it cannot, in words: asked, found, and what to do next."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sqlalchemy.exc import DBAPIError, TimeoutError

from forerun.errors import RequestError

_INTACT = "; nothing of this call was kept, and what was stored before is intact"
_NEXT_DISK = "free some space, then repeat the call"
_NEXT_LOCK = "repeat the call when the other writer is done, or wait longer"

# SQLAlchemy's, and the drivers' own: while a connection is being made, or rows are copied.
_ERRORS: tuple[type[Exception], ...] = (DBAPIError, sqlite3.Error)
with suppress(ImportError):
    import psycopg

    _ERRORS += (psycopg.Error,)
_REFUSED = re.compile(r"role \S+ does not exist|authentication failed|no password supplied|pg_hba")
_NO_DATABASE = re.compile(r"database \S+ does not exist")


@contextmanager
def in_words(asked: str, wait_seconds: float) -> Iterator[None]:
    """Turn what a database cannot do into a RequestError; a defect of the caller stays what it is.

    Args:
        asked: for the message.
        wait_seconds: how long a writer waits for another one.
    """
    try:
        yield
    except _ERRORS as error:
        said = _words(getattr(error, "orig", error), wait_seconds)
        if said is None:
            raise
        raise RequestError(asked, *said) from error
    except TimeoutError as error:  # every connection of this process is in use
        raise RequestError(
            asked, f"no connection was free for {wait_seconds:g} s", "open the store once a thread"
        ) from error
    except UnicodeEncodeError as error:
        raise RequestError(
            asked,
            f"a text is not Unicode: {error}",
            "take the half character out of it (text.encode(errors='replace'))",
        ) from error


def _words(error: BaseException | None, wait_seconds: float) -> tuple[str, str] | None:
    """Return what was found and what to do, None where it is nobody's fault but the code's."""
    if isinstance(error, sqlite3.Error):
        return _sqlite(error, wait_seconds)
    return _postgres(error, wait_seconds)


def _sqlite(error: sqlite3.Error, wait_seconds: float) -> tuple[str, str] | None:
    name = getattr(error, "sqlite_errorname", "") or ""
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return f"another writer has locked it for more than {wait_seconds:g} s{_INTACT}", _NEXT_LOCK
    if name.startswith("SQLITE_FULL"):
        return f"the disk is full{_INTACT}", _NEXT_DISK
    if name.startswith("SQLITE_IOERR"):
        return (
            f"the disk could not be read or written ({error}){_INTACT}",
            "look for its fault in the system's log (dmesg), or copy the file to another disk",
        )
    if name.startswith("SQLITE_READONLY"):
        return "it may not be written", "ask for the right to write the file and its folder"
    if name.startswith("SQLITE_CANTOPEN"):
        return (
            "the file cannot be opened",
            "name one that your user may write, in a folder that it may write (ls -ld shows)",
        )
    if name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
        return (
            f"it is no SQLite file, or a damaged one ({error})",
            "name another file, or bring it back from a backup",
        )
    return None


def _postgres(error: BaseException | None, wait_seconds: float) -> tuple[str, str] | None:
    state = str(getattr(error, "sqlstate", None) or "")
    lines = str(error).strip().splitlines()
    said = lines[0] if lines else ""
    if state == "53100":
        return f"the server's disk is full{_INTACT}", _NEXT_DISK
    if state in ("55P03", "40P01", "57014"):
        return f"another writer has locked it for more than {wait_seconds:g} s{_INTACT}", _NEXT_LOCK
    if state == "54000":
        return (
            f"a text is too long for an index of the server: {said}{_INTACT}",
            "shorten it below 2,700 bytes",
        )
    if state in ("42501", "25006"):
        return f"it may not be written: {said}", "ask for the right to write in this database"
    # A connection that is not made has no state: the server's words tell.
    if state.startswith("28") or (not state and _REFUSED.search(said)):
        return (
            f"the server refuses the user: {said}",
            "name the user in the URL, and give its password in PGPASSWORD or ~/.pgpass",
        )
    if state == "3D000" or (not state and _NO_DATABASE.search(said)):
        return f"there is no such database: {said}", "make it first (createdb), or name another"
    if state.startswith(("08", "53", "57P")) or (
        not state and type(error).__name__ in ("OperationalError", "ConnectionTimeout")
    ):
        return (
            f"the server does not answer: {said}{_INTACT}",
            "start it, or check host, port and database of the URL",
        )
    return None
