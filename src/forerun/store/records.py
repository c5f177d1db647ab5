"""Records: campaigns and searches, with the state of each of their points, so that they resume."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select, update
from sqlalchemy import Table as SqlTable

from forerun.errors import RequestError, UnknownNameError
from forerun.store.adding import now
from forerun.store.database import Database
from forerun.store.interned import insert_or_leave
from forerun.store.kept import Point, Record
from forerun.store.keys import canonical, checked_text
from forerun.store.layout import campaign_points, campaigns, search_steps, searches


@dataclass(frozen=True)
class Records:
    """The campaigns, or the searches, of a store."""

    database: Database
    kind: str

    @property
    def _owners(self) -> SqlTable:
        return campaigns if self.kind == "campaign" else searches

    @property
    def _points(self) -> SqlTable:
        return campaign_points if self.kind == "campaign" else search_steps

    def put(self, name: str, spec: Mapping[str, Any], replace: bool = False) -> Record:
        """Keep what was asked for under a name, and return the record with its points so far.

        Args:
            name: unique among campaigns, or among searches.
            spec: as JSON; the same one again changes nothing.
            replace: another spec takes the place of the one that is there; points stay.

        Raises:
            RequestError: the name is blank, or taken by another spec and `replace` is not said.
        """
        if not name.strip():
            raise RequestError(f"a {self.kind} without a name", "its name is blank", "name it")
        checked_text(name, f"a {self.kind}'s name")
        text, owners = canonical(spec) or "{}", self._owners
        with self.database.writing() as connection:
            row = {"name": name, "spec": text, "created": now()}
            connection.execute(insert_or_leave(connection, owners), [row])
            found = _record(connection, owners, self._points, name)
            assert found is not None
            if canonical(found.spec) == canonical(json.loads(text)):
                return found
            if not replace:
                raise RequestError(
                    f"the {self.kind} {name!r}", "the store has one of that name with another spec",
                    "name it otherwise, or replace the spec",
                )  # fmt: skip
            connection.execute(update(owners).where(owners.c.name == name).values(spec=text))
            return Record(name, json.loads(text), found.created, found.points)

    def get(self, name: str) -> Record | None:
        """Return a record with its points, None where there is none of that name."""
        with self.database.reading() as connection:
            return _record(connection, self._owners, self._points, name)

    def names(self) -> list[str]:
        """Return the names, oldest first."""
        with self.database.reading() as connection:
            query = select(self._owners.c.name).order_by(self._owners.c.id)
            return list(connection.execute(query).scalars())

    def mark(self, name: str, point: str, status: str, run_key: str = "", note: str = "") -> None:
        """Set the state of a point, which is new or known. Raises UnknownNameError for the name."""
        with self.database.writing() as connection:
            self.mark_in(connection, name, {point: Point(status, run_key, note)}, over=True)

    def mark_in(
        self, connection: Connection, name: str, points: Mapping[str, Point], over: bool = False
    ) -> None:
        """Set the states of several points in the caller's transaction.

        A point that is ok stays so, unless its new state is ok too: of two processes that measure
        one point, the one that ends last and failed must not undo what the other one found.

        Args:
            connection: the caller's.
            name: of a campaign or search.
            points: their new states.
            over: set them whatever they were.

        Raises:
            UnknownNameError: there is no campaign or search of that name.
        """
        owners, table = self._owners, self._points
        owner = connection.execute(select(owners.c.id).where(owners.c.name == name)).scalar()
        if owner is None:
            known = connection.execute(select(owners.c.name)).scalars()
            raise UnknownNameError(self.kind, name, known)
        when = now()
        rows = [
            {
                "owner_id": owner, "point": checked_text(point, "a point"),
                "status": checked_text(state.status, "a status"), "run_key": state.run_key or None,
                "note": checked_text(state.note, "a note") or None, "updated": when,
            }
            for point, state in points.items()
        ]  # fmt: skip
        if not rows:
            return
        insert = insert_or_leave(connection, table)
        changed = {n: insert.excluded[n] for n in ("status", "run_key", "note", "updated")}
        # The conflict that is left alone elsewhere is an update here.
        upsert = type(insert)(table).on_conflict_do_update(
            index_elements=["owner_id", "point"], set_=changed,
            where=None if over else (table.c.status != "ok") | (insert.excluded.status == "ok"),
        )  # fmt: skip
        connection.execute(upsert, rows)


def _record(connection: Connection, owners: SqlTable, points: SqlTable, name: str) -> Record | None:
    row = connection.execute(select(owners).where(owners.c.name == name)).first()
    if row is None:
        return None
    query = select(points).where(points.c.owner_id == row.id).order_by(points.c.id)
    states = {
        p.point: Point(p.status, p.run_key or "", p.note or "", p.updated)
        for p in connection.execute(query)
    }
    return Record(row.name, json.loads(row.spec), row.created, states)


def states_of(
    points: Sequence[str], keys: Sequence[str], statuses: Sequence[str], notes: Sequence[str] = ()
) -> dict[str, Point]:
    """Return the state that each point gets from its run, with its owner's note where one is given."""
    told = notes or [""] * len(points)
    return {
        point: Point(status or "ok", key, note)
        for point, key, status, note in zip(points, keys, statuses, told, strict=True) if point
    }  # fmt: skip
