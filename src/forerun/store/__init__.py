"""Store: keeps every run with its origin, in one SQLite file or in PostgreSQL.

SQLAlchemy and Alembic (the extra `store`) are loaded when a store is opened, not before.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from forerun.errors import MissingExtraError, RequestError
from forerun.store.kept import PROVENANCE, Added, Artifact, Point, Record, Stored
from forerun.store.places import WAIT_SECONDS, place_of

if TYPE_CHECKING:
    from forerun.store.sql_store import SqlStore

__all__ = ["PROVENANCE", "Added", "Artifact", "Point", "Record", "Stored", "open_store"]


def open_store(where: str = "", wait_seconds: float = WAIT_SECONDS, new: bool = True) -> SqlStore:
    """Return the store at a place; a new one is made, and an older one is brought up to date.

    Args:
        where: a file, `sqlite:///FILE`, or `postgresql://USER@HOST/DATABASE`; "" is the setting
            `store`.
        wait_seconds: how long a call waits for another writer before it gives up.
        new: make the file where there is none.

    Raises:
        RequestError: the place is none, cannot be opened or written, belongs to another program,
            or was written by a newer forerun.
        MissingExtraError: the extra `store` is not installed.
    """
    place = place_of(where)
    if place.file is not None and not new and not place.file.exists():
        raise RequestError(
            f"the store {place.shown}", "there is no such file",
            "name another, or make it: `forerun runs import`, `forerun profile`",
        )  # fmt: skip
    for package in ("sqlalchemy", "alembic"):
        if find_spec(package) is None:
            raise MissingExtraError(f"opening the store {place.shown}", package, "store")
    from forerun.store.database import Database
    from forerun.store.sql_store import SqlStore

    return SqlStore(Database.opened(place, wait_seconds))
