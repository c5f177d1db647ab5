"""TaskTable: long work that somebody asked for: who carries it out, how far it is, and what it found."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from forerun.errors import UnknownNameError
from forerun.store import KEPT_ANSWER, TASK_STATES, writing
from forerun.store.database import Database
from forerun.store.layout import task_events, tasks
from forerun.wire import Json


@dataclass(frozen=True)
class TaskTable:
    """The tasks of a store; each change of one is an event, which those who follow it read in turn.

    A task is a mapping: id, what, state (one of `TASK_STATES`), created, started, ended (ISO 8601 in UTC), asked (of
    tables the number of rows alone), progress (done, of, note), result and problem. by: who carries it out; what
    another one does then changes nothing.
    """

    database: Database

    def add(self, what: str, asked: Mapping[str, Any], idempotency: str = "") -> tuple[Json, bool, bool]:  # fmt: skip
        """Return a new task, or the one of the same idempotency key; whether it is new, and asks for the same."""
        text = writing.canonical({what: asked})
        row = {
            "key": secrets.token_hex(8), "what": what, "state": "done" if what == KEPT_ANSWER else "waiting", "created": writing.now(),
            "asked": text, "idempotency": idempotency or None, "worker": "", "note": "",
            "cancel": 0, "attempts": 0, "done": 0,
        }  # fmt: skip
        with self.database.writing() as connection:
            statement = writing.insert_or_leave(connection, tasks).values(row).returning(*tasks.c)
            if (found := connection.execute(statement).first()) is not None:
                if what != KEPT_ANSWER:
                    _tell(connection, found)
                return _task(found), True, True
            there = select(tasks).where(tasks.c.idempotency == idempotency)
            row_there = connection.execute(there).one()
            return _task(row_there), False, row_there.asked == text

    def answered(self, key: str, answer: Json) -> Json:
        """Keep the answer to a request of the kind `KEPT_ANSWER`, unless it has one, and return what it has."""
        one = tasks.c.key == key
        with self.database.writing() as connection:
            new = update(tasks).where(one, tasks.c.result.is_(None))
            connection.execute(new.values(result=json.dumps(answer)))
            text = connection.execute(select(tasks.c.result).where(one)).scalar_one()
        return dict(json.loads(text))

    def asked(self, key: str) -> Json:
        """Return all that a task asks for. Raises UnknownNameError."""
        with self.database.reading() as connection:
            text = connection.execute(select(tasks.c.asked).where(tasks.c.key == key)).scalar()
        if text is None:
            raise UnknownNameError("task", key[:40], (), "see the list of tasks")
        ((_, asked),) = json.loads(text).items()
        return dict(asked)

    def get(self, key: str) -> Json:
        """Return a task. Raises UnknownNameError."""
        with self.database.reading() as connection:
            row = connection.execute(select(tasks).where(tasks.c.key == key)).first()
        if row is None or row.what == KEPT_ANSWER:
            raise UnknownNameError("task", key[:40], (), "see the list of tasks")
        return _task(row)

    def page(self, what: str = "", state: str = "", limit: int = 20, before: int = 0) -> tuple[list[Json], int]:  # fmt: skip
        """Return tasks, newest first, without what they found, and where the next page begins or 0."""
        clauses = [tasks.c.what != KEPT_ANSWER]
        clauses += [tasks.c.what == what] if what else []
        clauses += [tasks.c.state == state] if state else []
        clauses += [tasks.c.id < before] if before else []
        wanted = [column for column in tasks.c if column.name != "result"]
        query = select(*wanted).where(*clauses).order_by(tasks.c.id.desc()).limit(limit + 1)
        with self.database.reading() as connection:
            rows = connection.execute(query).all()
        return [_task(row) for row in rows[:limit]], rows[limit - 1].id if len(rows) > limit else 0

    def counts(self) -> dict[str, int]:
        """Return how many tasks are in each state."""
        state = tasks.c.state
        query = select(state, func.count()).where(tasks.c.what != KEPT_ANSWER).group_by(state)
        with self.database.reading() as connection:
            return dict.fromkeys(TASK_STATES, 0) | dict(map(tuple, connection.execute(query)))

    def open(self) -> list[str]:
        """Return the ids of tasks that run or wait, in the order in which they are begun."""
        query = select(tasks.c.key).where(tasks.c.state.in_(TASK_STATES[:2])).order_by(tasks.c.id)
        with self.database.reading() as connection:
            return list(connection.execute(query).scalars())

    def claim(self, key: str, by: str) -> bool:
        """Begin a task that waits; of several who try, one does."""
        since = func.coalesce(tasks.c.started, writing.now())
        begun = {"state": "running", "worker": by, "started": since}
        begun["attempts"] = tasks.c.attempts + 1
        return self._change(key, "", begun, from_state="waiting")

    def report(self, key: str, by: str, done: int, total: int | None, note: str, runs: Iterable[Json] = ()) -> bool:  # fmt: skip
        """Write down how far a task is, and runs that were measured; False where it is another's by now."""
        return self._change(key, by, {"done": done, "total": total, "note": note}, runs)

    def end(self, key: str, by: str, state: str, result: Json | None = None, problem: Json | None = None) -> bool:  # fmt: skip
        """Let a running task end, with what it found or why not; False where it is another's by now."""
        texts = {
            name: None if value is None else json.dumps(value)
            for name, value in {"result": result, "problem": problem}.items()
        }
        return self._change(key, by, {"state": state, "ended": writing.now(), **texts})

    def wait(self, key: str, by: str, note: str, died: bool = True) -> bool:
        """Let a running task wait again; False where it is another's by now. died: it counts as an attempt."""
        tried = tasks.c.attempts - int(not died)
        found = {"state": "waiting", "worker": "", "note": note, "attempts": tried}
        return self._change(key, by, found)

    def cancel(self, key: str) -> Json:
        """Cancel a task that waits, ask for the end of one that runs, and return it. Raises UnknownNameError."""
        ended = {"state": "cancelled", "ended": writing.now()}
        if not self._change(key, "", ended, from_state="waiting"):
            self._change(key, None, {"cancel": 1, "note": "it is being cancelled"})
        return self.get(key)

    def turn(self, key: str) -> Any:
        """Return what a task is, its state and worker, whether to cancel it, and how many attempts there were."""
        wanted = [tasks.c[name] for name in ("what", "state", "worker", "cancel", "attempts")]
        with self.database.reading() as connection:
            return connection.execute(select(*wanted).where(tasks.c.key == key)).one()

    def events(self, key: str, after: int = 0) -> list[tuple[int, str, str]]:
        """Return the events of a task after a number: their numbers, which count up, kinds and JSON texts."""
        query = select(task_events.c.id, task_events.c.kind, task_events.c.body).join(tasks)
        query = query.where(tasks.c.key == key, task_events.c.id > after)
        with self.database.reading() as connection:
            return [tuple(row) for row in connection.execute(query.order_by(task_events.c.id))]

    def _change(
        self, key: str, by: str | None, values: Json, runs: Iterable[Json] = (), from_state: str = "running"
    ) -> bool:  # fmt: skip
        """Change a task in a state, if it is the turn of `by` (None: whoever's), and tell those who follow it."""
        mine = [] if by is None else [tasks.c.worker == by]
        right = (tasks.c.key == key, tasks.c.state == from_state, *mine)
        with self.database.writing() as connection:
            # The row is locked before an event gets its number: the numbers of a task come in order.
            changed = update(tasks).where(*right).values(values).returning(*tasks.c)
            row = connection.execute(changed).first()
            if row is None:
                return False
            for run in runs:
                _event(connection, row.id, "run", run)
            _tell(connection, row)
        return True


def _task(row: Any) -> Json:
    """Return a row as a task."""
    facts = row._mapping
    body = {"id": row.key, **{name: facts[name] for name in ("what", "state", "created", "started", "ended")}}  # fmt: skip
    progress = {"done": row.done, "of": row.total, "note": row.note}
    result = {"result": row.result and json.loads(row.result)} if "result" in facts else {}
    problem = row.problem and json.loads(row.problem)
    ((_, asked),) = json.loads(row.asked).items()
    for name in asked.keys() & {"rows", "columns"}:
        table = asked[name] or ()
        first = next(iter(table.values()), ()) if isinstance(table, dict) else table
        asked[name] = len(first)
    for name in asked.keys() & {"tables", "fit"}:
        asked[name] = [one["name"] for one in asked[name] or ()]
    return {**body, "asked": asked, "progress": progress, **result, "problem": problem}


def _event(connection: Connection, task: int, kind: str, body: Json) -> None:
    text = json.dumps(body)
    connection.execute(insert(task_events).values(task_id=task, kind=kind, body=text))


def _tell(connection: Connection, row: Any) -> None:
    """Add the event of a task's change; its end takes the place of what it was before."""
    task, kind = _task(row), "end" if row.ended else "task"
    if kind == "task":
        del task["result"]
    _event(connection, row.id, kind, task)
    newest = select(func.max(task_events.c.id)).where(task_events.c.task_id == row.id)
    older = (task_events.c.task_id == row.id) & (task_events.c.kind == "task")
    connection.execute(delete(task_events).where(older, task_events.c.id < newest.scalar_subquery()))  # fmt: skip
