"""A store is made where there is none, and refused where it is another's."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from sqlalchemy import Connection, inspect, text

from forerun.errors import MissingExtraError, RequestError
from forerun.store import open_store, place_of
from forerun.store.layout import VERSION_TABLE, metadata
from forerun.tables import Table
from tests.store.postgres import Server

ROW = Table.from_columns({"workload": ["resnet50"], "own": ["x"]})


@pytest.fixture(params=["sqlite", "postgresql"])
def nowhere(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return a place where nothing is yet."""
    if request.param == "sqlite":
        return str(tmp_path / "runs.db")
    return str(request.getfixturevalue("postgres").new_place())


@pytest.mark.parametrize(("layout", "age"), [("9001", "a newer"), ("0001", "an older")])
def test_a_store_of_another_layout_is_refused_untouched(
    nowhere: str, layout: str, age: str
) -> None:
    with open_store(nowhere) as store, store._database.writing() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '{layout}'"))
    with pytest.raises(RequestError, match=rf"{age} forerun wrote it .*{layout}.*install {age}"):
        open_store(nowhere)


def test_a_store_without_a_layout_is_refused(nowhere: str) -> None:
    with open_store(nowhere) as store, store._database.writing() as connection:
        connection.execute(text(f"DELETE FROM {VERSION_TABLE}"))
    with pytest.raises(RequestError, match="names no layout"):
        open_store(nowhere)


def test_a_new_store_has_the_tables_that_the_code_asks(nowhere: str) -> None:
    with open_store(nowhere) as store, store._database.reading() as connection:
        found = inspect(connection)
        for table in metadata.sorted_tables:
            columns = {c["name"]: c["nullable"] for c in found.get_columns(table.name)}
            assert columns == {c.name: bool(c.nullable) for c in table.columns}, table.name
            primary = found.get_pk_constraint(table.name)["constrained_columns"]
            assert primary == [c.name for c in table.primary_key], table.name
            indexes = {i["name"]: i["column_names"] for i in found.get_indexes(table.name)}
            wanted = {i.name: [c.name for c in i.columns] for i in table.indexes}
            assert wanted.items() <= indexes.items(), table.name


def test_a_store_that_cannot_be_made_whole_is_not_made(nowhere: str) -> None:
    """The tables are made in one transaction: nothing is left where one of them fails."""
    with patch.object(metadata, "create_all", _half_made), pytest.raises(Exception, match="absent"):
        open_store(nowhere)
    with open_store(nowhere) as store:
        assert store.add_table(ROW).new == 1


def _half_made(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE workloads (taken INTEGER)"))
    connection.execute(text("INSERT INTO absent VALUES (1)"))


def test_another_program_s_database_is_refused_untouched(tmp_path: Path, postgres: Server) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE photos (id)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(RequestError, match=r"another program keeps its tables there \(photos\)"):
        open_store(str(path))
    assert path.read_bytes() == before
    place = postgres.new_place()
    schema = place.rpartition("%3D")[2]
    postgres.run(f"CREATE TABLE {schema}.runs (id INTEGER)")
    with pytest.raises(RequestError, match="another program keeps its tables there"):
        open_store(place)


def test_what_is_no_store_is_told(tmp_path: Path) -> None:
    (tmp_path / "words.db").write_text("these are words, not pages" * 99)
    (tmp_path / "folder").mkdir()
    for name, words in (
        ("words.db", "it is no SQLite file"), ("folder", "it is a folder"),
        ("absent/runs.db", "there is no folder"), ("x" * 300, "File name too long"),
        ("runs.csv", "forerun runs import"),
    ):  # fmt: skip
        with pytest.raises(RequestError, match=words):
            open_store(str(tmp_path / name))


@pytest.mark.parametrize("part", ["rows", "layout"])
def test_a_damaged_file_is_told(tmp_path: Path, part: str) -> None:
    """Also where SQLite's own words on it are no UTF-8."""
    path = tmp_path / "runs.db"
    with open_store(str(path)) as store:
        store.add_table(Table.from_columns({"workload": ["a"] * 2000, "own": ["b" * 50] * 2000}))
    body = bytearray(path.read_bytes())
    if part == "rows":
        body[4096:-4096] = b"\x5a" * (len(body) - 8192)
    else:
        body[body.index(b"_autoindex")] = 0xA1
    path.write_bytes(body)
    with pytest.raises(RequestError, match="damaged"), open_store(str(path)) as store:
        store.table()


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("mysql://host/runs", "mysql is no kind of store"), ("sqlite://", "in memory, and lost"),
        ("sqlite:///:memory:", "in memory"),
        ("postgresql://me:secret@127.0.0.1:1/runs", "does not answer.*start it"),
        ("postgresql://me@host:port/runs", "no URL of a database"),
    ],
)  # fmt: skip
def test_a_place_that_cannot_be_is_told_without_its_password(where: str, words: str) -> None:
    with pytest.raises(RequestError, match=words) as told:
        open_store(where)
    assert "secret" not in str(told.value)


def test_a_database_or_user_that_is_not_there_is_told(postgres: Server) -> None:
    good = postgres.new_place()
    with pytest.raises(RequestError, match="there is no such database"):
        open_store(good.replace("/postgres?", "/absent?"))
    with pytest.raises(RequestError, match="refuses the user"):
        open_store(good.replace("forerun@", "nobody@"))


def test_places_are_files_urls_and_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert place_of("runs.db").file == Path("runs.db")
    assert place_of("sqlite:///runs.db").file == Path("runs.db")
    assert place_of("sqlite:////a/runs.db").file == Path("/a/runs.db")
    assert place_of("postgres://me:pw@h/d").url == "postgresql+psycopg://me:pw@h/d"
    assert place_of("postgres://me:pw@h/d").shown == "postgres://me:***@h/d"
    usual = place_of().file
    assert usual == tmp_path / ".local/share/forerun/runs.db"
    assert usual.parent.is_dir(), "the usual folder is made"
    monkeypatch.setenv("FORERUN_STORE", "other.db")
    assert place_of().file == Path("other.db")


def test_without_the_extra_the_message_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forerun.store.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"forerun\[store\]"):
        open_store(str(tmp_path / "runs.db"))


def test_naming_the_store_loads_no_database() -> None:
    code = "import forerun.store, sys; sys.exit('sqlalchemy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
