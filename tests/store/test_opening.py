"""A store is made where there is none, upgraded where it is old, refused where it is another's."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from forerun.errors import MissingExtraError, RequestError
from forerun.store import database as databases
from forerun.store import open_store, place_of
from forerun.store.layout import metadata
from forerun.store.migrations import HEAD, STEPS, VERSION_TABLE
from forerun.tables import Table
from tests.store.postgres import Server

ROW = Table.from_columns({"workload": ["resnet50"], "own": ["x"]})


@pytest.fixture(params=["sqlite", "postgresql"])
def nowhere(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return a place where nothing is yet."""
    if request.param == "sqlite":
        return str(tmp_path / "runs.db")
    return str(request.getfixturevalue("postgres").new_place())


def test_the_migrations_are_one_list_and_lead_to_the_layout() -> None:
    assert [*STEPS] == [f"{i:04}" for i in range(1, len([*STEPS]) + 1)]
    assert [*STEPS][-1] == HEAD


def test_a_new_store_has_the_tables_that_the_code_asks(nowhere: str) -> None:
    with open_store(nowhere) as store, store._database.reading() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": VERSION_TABLE, "compare_type": True}
        )
        assert compare_metadata(context, metadata) == []


@pytest.mark.parametrize("old", [*STEPS][:-1])
def test_an_older_store_is_upgraded_with_its_runs(
    nowhere: str, old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "HEAD", old)
    with open_store(nowhere) as store:
        assert store.add_table(ROW).new == 1
    monkeypatch.undo()
    with open_store(nowhere) as store:
        assert store.table().texts("own").tolist() == ["x"]
        assert store.add_table(ROW).known == 1
        assert store.artifacts.every() == []
        assert store.campaigns.names() == []


def test_an_upgrade_that_fails_leaves_the_store_as_it_was(
    nowhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two steps fails: the first is not kept either."""
    monkeypatch.setattr(databases, "HEAD", "0001")
    with open_store(nowhere) as store:
        store.add_table(ROW)
        with store._database.writing() as connection:
            connection.execute(text("CREATE TABLE artifacts (taken INTEGER)"))
    monkeypatch.undo()
    with pytest.raises(Exception, match="artifacts"):
        open_store(nowhere)
    monkeypatch.setattr(databases, "HEAD", "0001")
    with open_store(nowhere) as store:
        assert store.count() == 1
        with store._database.reading() as connection:
            tables = databases.inspect(connection).get_table_names()
    assert "campaigns" not in tables


def test_a_newer_store_is_refused_untouched(nowhere: str) -> None:
    with open_store(nowhere) as store, store._database.writing() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9001'"))
    with pytest.raises(RequestError, match=r"a newer forerun wrote it .*9001.*install a newer"):
        open_store(nowhere)


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


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with open_store(str(path)) as store:
        store.add_table(Table.from_columns({"workload": ["a"] * 2000, "own": ["b" * 50] * 2000}))
    body = bytearray(path.read_bytes())
    body[4096:-4096] = b"\x5a" * (len(body) - 8192)
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


def test_cells_move_into_the_columns_that_the_schema_gained(
    nowhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "HEAD", "0003")
    own = '{"cpus_per_worker":0.5,"far":1e999,"say \\"x\\"":"zwölf"}'
    with open_store(nowhere) as store, store._database.writing() as connection:
        for key, rest in (("a", own), ("b", '{"cpus_per_worker":"half","comm_gb":2}'), ("c", None)):
            connection.execute(
                text("INSERT INTO runs (key, digest, added, rest) VALUES (:k, :d, '', :r)"),
                {"k": key, "d": b"", "r": rest},
            )
        for name in ("cpus_per_worker", "far", 'say "x"', "comm_gb"):
            connection.execute(text("INSERT INTO filled_columns VALUES (:n)"), {"n": name})
    monkeypatch.undo()
    with open_store(nowhere) as store:
        table = store.table(where=["cpus_per_worker<1"])
        assert table.row(0) == {"cpus_per_worker": 0.5, "far": float("inf"), 'say "x"': "zwölf"}
        assert store.table(comm_gb=2).unread["cpus_per_worker"].tolist() == ["half"]
        with store._database.reading() as connection:
            rest = list(connection.execute(text("SELECT rest FROM runs ORDER BY id")).scalars())
    assert rest == ['{"far":1e999,"say \\"x\\"":"zwölf"}', '{"cpus_per_worker":"half"}', None]
