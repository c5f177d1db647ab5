"""Planning: what the database's planner knows of the runs grows with them, at little cost."""

from __future__ import annotations

from sqlalchemy import Connection

from forerun.store.database import Database

# Runs that one process adds before it looks whether the planner is out of date.
LOOK_EVERY = 1000
_GROWN = 1.25
# Entries of each index that are looked at: enough to tell a value that a tenth of a million runs
# have from one that a hundred have, and a fraction of a second for any number of runs.
_ENTRIES = 100_000
# A whole number in the head of an SQLite file that is the program's to use: how many runs there were
# when the planner last looked.
_SEEN = "PRAGMA user_version"


def inform(database: Database, added: int) -> None:
    """Let the planner look at the runs where they have grown by a quarter since it last did.

    Args:
        database: the store's.
        added: runs that were just added. PostgreSQL looks by itself soon, so that only many runs at
            once make it look at once.

    Raises:
        RequestError: another writer held the database for too long.
    """
    if database.engine.dialect.name == "postgresql":
        if added >= LOOK_EVERY:
            with database.writing() as connection:
                connection.exec_driver_sql("ANALYZE runs")
        return
    with database.reading() as connection:
        if not _out_of_date(connection):
            return
    with database.writing() as connection:
        if _out_of_date(connection):  # nobody else did it meanwhile
            connection.exec_driver_sql(f"PRAGMA analysis_limit={_ENTRIES}")
            connection.exec_driver_sql("ANALYZE runs")
            connection.exec_driver_sql(f"{_SEEN} = {min(_last(connection), 2**31 - 1)}")


def _out_of_date(connection: Connection) -> bool:
    seen = int(connection.exec_driver_sql(_SEEN).scalar() or 0)
    return _last(connection) >= max(seen * _GROWN, LOOK_EVERY)


def _last(connection: Connection) -> int:
    """Return the last run's number: how many there are, but for those that were removed."""
    return int(connection.exec_driver_sql("SELECT max(id) FROM runs").scalar() or 0)
