"""The exam of a store, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from forerun.store import open_store
from forerun.store.sql_store import SqlStore
from forerun.testing import StoreContract
from tests.store.postgres import Server


class TestSqlite(StoreContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> Iterator[None]:
        self.folder, self.opened = tmp_path, list[SqlStore]()
        yield
        for store in self.opened:
            store.close()

    def make_store(self) -> SqlStore:
        store = open_store(str(self.folder / f"{len(self.opened)}.db"))
        self.opened.append(store)
        return store


class TestPostgres(StoreContract):
    @pytest.fixture(autouse=True)
    def _server(self, postgres: Server) -> Iterator[None]:
        self.server, self.opened = postgres, list[SqlStore]()
        yield
        for store in self.opened:
            store.close()

    def make_store(self) -> SqlStore:
        fresh = self.server.new_place if self.opened else self.server.empty_place
        store = open_store(fresh())
        self.opened.append(store)
        return store
