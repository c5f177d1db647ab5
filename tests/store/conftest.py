"""What tests of the store share: a place for one in SQLite, and one in PostgreSQL."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from forerun.store import open_store
from forerun.store.sql_store import SqlStore
from tests.store.postgres import Server, server

KINDS = ("sqlite", "postgresql")


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the settings and the store of whoever runs the tests out of them."""
    for name in list(os.environ):
        if name.startswith("FORERUN_") and name != "FORERUN_DATA":
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """Yield a PostgreSQL server."""
    with server() as running:
        yield running


@pytest.fixture(scope="session")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store of SQLite that holds nothing, to be copied: that is quicker than to make one."""
    path = tmp_path_factory.mktemp("store") / "empty.db"
    open_store(str(path)).close()
    return path


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path, empty_file: Path) -> str:
    """Return where an empty store lies: once in SQLite, once in PostgreSQL."""
    if request.param == "sqlite":
        return str(shutil.copy(empty_file, tmp_path / "runs.db"))
    return str(request.getfixturevalue("postgres").empty_place())


@pytest.fixture
def store(place: str) -> Iterator[SqlStore]:
    """Yield an empty store."""
    with open_store(place, wait_seconds=10) as opened:
        yield opened
