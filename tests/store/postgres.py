"""A PostgreSQL server of the tests' own: a temporary folder, a Unix socket, a user that is not root."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import text

from forerun.store import open_store
from forerun.store.layout import metadata, version
from tests.needs import require

_SCHEMAS = count(1)


def binary(name: str) -> str | None:
    """Return a program of PostgreSQL: on the path, else where Debian puts the newest version."""
    found = sorted(
        Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda p: int(p.parts[-3])
    )
    return shutil.which(name) or (str(found[-1]) if found else None)


class Server:
    """A running server; each test gets a schema of its own in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 5432  # of the socket's name; no network port is opened
        self._psql = binary("psql") or ""
        self._store: str | None = None
        self._session: Any = None

    def run(self, sql: str) -> str:
        """Return what psql prints for a statement."""
        done = subprocess.run(
            [self._psql, "-h", str(self.folder), "-U", "forerun", "-d", "postgres", "-Atc", sql],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout.strip()

    def empty_place(self) -> str:
        """Return the URL of a store that holds nothing: made once, and emptied each time."""
        if self._store is None:
            self._store = self.new_place()
            with open_store(self._store) as store:
                self._session = store._database.engine.connect()
                self._session.detach()  # it outlives the store's other connections
        names = ", ".join(
            f'"{table.name}"' for table in metadata.sorted_tables if table is not version
        )
        self._session.execute(text(f"TRUNCATE {names} RESTART IDENTITY CASCADE"))
        self._session.commit()
        return self._store

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Within it the server is away."""
        words = [str(binary("pg_ctl")), "-D", str(self.folder / "data"), "-w"]
        given: dict[str, Any] = {
            "cwd": self.folder,
            "stdout": subprocess.DEVNULL,
            **_demote(),
        }
        options = (self.folder / "data" / "postmaster.opts").read_text().split(maxsplit=1)[1]
        subprocess.run([*words, "-m", "fast", "stop"], check=True, **given)
        try:
            yield
        finally:
            log = ["-l", str(self.folder / "log"), "-o", options.replace('"', "'")]
            subprocess.run([*words, *log, "start"], check=True, **given)

    def close(self) -> None:
        """Let go of the connection that empties the store."""
        if self._session is not None:
            self._session.close()

    def new_place(self) -> str:
        """Return the URL of an empty schema."""
        schema = f"s{next(_SCHEMAS)}"
        self.run(f"CREATE SCHEMA {schema}")
        options = quote(f"-csearch_path={schema}")
        return f"postgresql://forerun@/postgres?host={quote(str(self.folder))}&options={options}"


def _demote() -> dict[str, object]:
    """Return how a child runs as nobody where this process is root, whom the server refuses."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


@contextmanager
def server() -> Iterator[Server]:
    """Yield a server, stopped and removed at the end; skip or fail where it is not installed."""
    programs = {name: binary(name) for name in ("initdb", "postgres", "psql", "pg_ctl")}
    missing = [name for name, path in programs.items() if path is None]
    driver = [] if find_spec("psycopg") else ["the Python package psycopg"]
    require(
        "postgres", not missing and not driver,
        f"no {', '.join(missing + driver)}; apt-get install postgresql, pip install"
        " 'psycopg[binary]'",
    )  # fmt: skip
    # Short, as a socket's path has at most 107 characters, and open to the server's user.
    folder = Path(tempfile.mkdtemp(prefix="forerun-pg-", dir="/tmp"))
    as_nobody = _demote()
    if as_nobody:
        os.chown(folder, int(str(as_nobody["user"])), int(str(as_nobody["group"])))
    try:
        with _running(folder, programs, as_nobody):
            running = Server(folder)
            yield running
            running.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _running(
    folder: Path, programs: dict[str, str | None], as_nobody: dict[str, object]
) -> Iterator[None]:
    def call(*words: str) -> None:
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, cwd=folder, **as_nobody
        )  # type: ignore[call-overload]
        assert done.returncode == 0, f"{words[0]}: {done.stdout}{done.stderr}"

    data = str(folder / "data")
    call(
        str(programs["initdb"]), "-D", data, "-U", "forerun", "-A", "trust", "-E", "UTF8",
        "--no-sync", "--no-locale",
    )  # fmt: skip
    settings = (
        f"-k {folder} -c listen_addresses='' -c fsync=off -c max_connections=60"
        " -c shared_buffers=32MB"
    )
    log = str(folder / "log")
    call(str(programs["pg_ctl"]), "-D", data, "-l", log, "-w", "-o", settings, "start")
    try:
        yield
    finally:
        call(str(programs["pg_ctl"]), "-D", data, "-m", "immediate", "-w", "stop")
