"""Named: a run by its key, and the values by which runs can be asked for."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from sqlalchemy import Connection, func, select

from forerun.errors import RequestError, UnknownNameError
from forerun.store.asking import check_own, column_of
from forerun.store.cells import plain
from forerun.store.layout import runs

_MOST_READ = 50_000  # rows whose own columns are read, the newest ones


def values_of(
    connection: Connection, known: set[str], name: str, limit: int | None
) -> dict[str, int]:
    """Return a column's values as texts and how many runs have each, the usual ones first.

    Of a column of one's own, those of the newest 50,000 runs that have it.

    Raises:
        RequestError: no run has such a column.
    """
    column = column_of(name)
    if column is not None:
        query = select(column, func.count()).where(column.is_not(None)).group_by(column)
        query = query.order_by(func.count().desc(), column).limit(limit)
        return {plain(value): int(count) for value, count in connection.execute(query)}
    check_own(known, name)
    mark = f"{json.dumps(name, ensure_ascii=False)}:"
    having = select(runs.c.rest).where(runs.c.rest.contains(mark, autoescape=True))
    found: Counter[str] = Counter()
    for text in connection.execute(having.order_by(runs.c.id.desc()).limit(_MOST_READ)).scalars():
        cell = json.loads(text).get(name)
        if cell is not None:
            found[plain(cell)] += 1
    return dict(sorted(found.items(), key=lambda one: (-one[1], one[0]))[:limit])


def by_key(connection: Connection, key: str) -> Any:
    """Return the row of the run that has a key, or the first 8 or more characters of it.

    Raises:
        UnknownNameError: no run has that key.
        RequestError: several do.
    """
    query = select(
        runs.c.id, runs.c.key, runs.c.started, runs.c.added, runs.c.campaign, runs.c.point,
        runs.c.fingerprint_id,
    )  # fmt: skip
    row = connection.execute(query.where(runs.c.key == key)).first()
    if row is not None:
        return row
    found = []
    if len(key) >= 8:
        if connection.dialect.name == "sqlite":  # it orders texts by their letters' codes
            begins = (runs.c.key >= key) & (runs.c.key < key[:-1] + chr(ord(key[-1]) + 1))
        else:
            begins = runs.c.key.startswith(key, autoescape=True)
        found = list(connection.execute(query.where(begins).limit(3)))
    if not found:
        raise UnknownNameError("run", key, (), "(`forerun runs list` shows keys)", nearest=())
    if len(found) > 1:
        raise RequestError(
            f"run {key!r}", f"several keys begin so: {', '.join(r.key for r in found)}",
            "give more of it",
        )  # fmt: skip
    return found[0]
