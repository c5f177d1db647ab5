"""Places: where a store lies, from a path, a URL or the setting `store`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from forerun.errors import RequestError
from forerun.settings import SETTINGS, load_settings

WAIT_SECONDS = 60.0
_POSTGRES = re.compile(r"(postgresql|postgres)(\+psycopg)?://(.*)", re.DOTALL)
_SQLITE = re.compile(r"sqlite(\+pysqlite)?://(.*)", re.DOTALL)
_PASSWORD = re.compile(r"(?<=:)[^:@/]+(?=@)")
_TABLES = (".csv", ".parquet", ".pq", ".json", ".yaml", ".yml")
_STEP = "give a file such as runs.db, or postgresql://USER@HOST/DATABASE"


@dataclass(frozen=True)
class Place:
    """Where a store lies.

    Attributes:
        file: the SQLite file, None for a server.
        url: the server's, for SQLAlchemy with psycopg; "" for a file.
        shown: for messages; without a password.
    """

    file: Path | None
    url: str
    shown: str


def place_of(where: str | Path = "") -> Place:
    """Return the place that a path or URL names; "" is the setting `store`.

    Raises:
        RequestError: another database, a table, or a folder.
    """
    text = str(where).strip() or load_settings().text("store").strip() or _default()
    server = _POSTGRES.fullmatch(text)
    if server is not None:
        return Place(None, f"postgresql+psycopg://{server[3]}", _PASSWORD.sub("***", text))
    file = _SQLITE.fullmatch(text)
    if file is not None:
        name = unquote(file[2].removeprefix("/").partition("?")[0])
        if not name or name == ":memory:":
            raise RequestError(f"the store {text}", "it would be in memory, and lost", _STEP)
        return _file(name, text)
    if "://" in text:
        kind = text.partition("://")[0]
        raise RequestError(
            f"the store {_PASSWORD.sub('***', text)}", f"{kind} is no kind of store", _STEP
        )
    return _file(text, text)


def _default() -> str:
    return next(str(setting.default) for setting in SETTINGS if setting.name == "store")


def _file(name: str, shown: str) -> Place:
    try:
        path = Path(name).expanduser()
    except RuntimeError as error:
        raise RequestError(f"the store {shown}", str(error), _STEP) from None
    if path.suffix.lower() in _TABLES:
        raise RequestError(
            f"the store {shown}", f"a file that ends in {path.suffix} is no database",
            f"bring its rows in with `forerun runs import {shown}`, and name the store runs.db",
        )  # fmt: skip
    if path == Path(_default()).expanduser():
        _make_folder(path.parent, shown)
    return Place(path, "", shown)


def _make_folder(folder: Path, shown: str) -> None:
    """Make the folder of the usual place; that of a place which a person named must be there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(
            f"the store {shown}", f"its folder cannot be made: {error.strerror}",
            "name another place with --store or FORERUN_STORE",
        ) from None  # fmt: skip
