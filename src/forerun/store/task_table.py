"""TaskTable: long work that somebody asked for: who carries it out, how far it is, and what it found."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, text, update

from forerun.errors import UnknownNameError
from forerun.store import KEPT_ANSWER, TASK_STATES, writing
from forerun.store.database import Database
from forerun.store.layout import task_events, tasks
from forerun.wire import Json, quantiles

# Of a task but for the body that it asks for, which is read once, as it is carried out.
_SHOWN = [column for column in tasks.c if column.name != "asked"]
_CANCELLED = "it was cancelled"
_SHORT = 4000  # characters of a field in a summary


@dataclass(frozen=True)
class TaskTable:
    """The tasks of a store; each change of one is an event, which those who follow it read in turn.

    A task is a mapping: id, what, state (one of `TASK_STATES`), created, started, ended (ISO 8601 in UTC), asked (of
    tables and long fields the number of rows or items alone), progress (done, of, note, eta_seconds as quantiles from
    the time `at` on), result and problem. by: who carries it out; what another one does then changes nothing.
    """

    database: Database

    def add(self, what: str, asked: Mapping[str, Any], idempotency: str = "") -> tuple[Json, bool, bool]:  # fmt: skip
        """Return a new task, or the one of the same idempotency key; whether it is new, and asks for the same."""
        body, is_task = writing.canonical({what: asked}, sort_keys=False), what != KEPT_ANSWER
        row = {
            "key": secrets.token_hex(8), "what": what, "state": "waiting" if is_task else "done", "created": writing.now(),
            "asked": body if is_task else "", "idempotency": idempotency or None, "worker": "", "note": "",
            "cancel": 0, "attempts": 0, "done": 0, **_summary(what, asked, writing.canonical({what: asked})),
        }  # fmt: skip
        with self.database.writing() as connection:
            statement = writing.insert_or_leave(connection, tasks).values(row).returning(*_SHOWN)
            if (found := connection.execute(statement).first()) is not None:
                if is_task:
                    _tell(connection, found)
                return _task(found), True, True
            there = select(*_SHOWN).where(tasks.c.idempotency == idempotency)
            row_there = connection.execute(there).one()
            return _task(row_there), False, row_there.digest == row["digest"]

    def answered(self, key: str, answer: Json) -> Json:
        """Keep the answer to a request of the kind `KEPT_ANSWER`, unless it has one, and return what it has."""
        one = tasks.c.key == key
        with self.database.writing() as connection:
            new = update(tasks).where(one, tasks.c.result.is_(None))
            connection.execute(new.values(result=json.dumps(answer)))
            body = connection.execute(select(tasks.c.result).where(one)).scalar_one()
        return dict(json.loads(body))

    def asked(self, key: str) -> Json:
        """Return all that a task asks for, until it has ended. Raises UnknownNameError."""
        with self.database.reading() as connection:
            body = connection.execute(select(tasks.c.asked).where(tasks.c.key == key)).scalar()
        if not body:
            raise UnknownNameError("task", key[:40], (), "see the list of tasks")
        ((_, asked),) = json.loads(body).items()
        return dict(asked)

    def get(self, key: str) -> Json:
        """Return a task. Raises UnknownNameError."""
        with self.database.reading() as connection:
            row = connection.execute(select(*_SHOWN).where(tasks.c.key == key)).first()
        if row is None or row.what == KEPT_ANSWER:
            raise UnknownNameError("task", key[:40], (), "see the list of tasks")
        return _task(row)

    def page(self, what: str = "", state: str = "", limit: int = 20, before: int = 0) -> tuple[list[Json], int]:  # fmt: skip
        """Return tasks, newest first, without what they found, and where the next page begins or 0."""
        clauses = [tasks.c.what != KEPT_ANSWER]
        clauses += [tasks.c.what == what] if what else []
        clauses += [tasks.c.state == state] if state else []
        clauses += [tasks.c.id < before] if before else []
        wanted = [column for column in _SHOWN if column.name != "result"]
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

    def waiting(self) -> tuple[int, int]:
        """Return how many tasks wait, and the bytes of what they ask for."""
        query = select(func.count(), func.sum(tasks.c.size)).where(tasks.c.state == TASK_STATES[0])
        with self.database.reading() as connection:
            count, size = connection.execute(query).one()
        return int(count), int(size or 0)

    def knows(self, idempotency: str) -> bool:
        """Return whether a task has an idempotency key."""
        query = select(func.count()).where(tasks.c.idempotency == idempotency)
        with self.database.reading() as connection:
            return bool(connection.execute(query).scalar())

    def forget(self, kept: int) -> None:
        """Remove tasks that ended, and answers kept for idempotency keys, but for the newest so many of each."""
        since = func.coalesce(tasks.c.ended, tasks.c.created)
        for mine in (tasks.c.what == KEPT_ANSWER, tasks.c.what != KEPT_ANSWER):
            old = mine & tasks.c.state.in_(TASK_STATES[2:])
            newest = select(since).where(old).order_by(since.desc()).offset(kept).limit(1)
            with self.database.reading() as connection:
                last = connection.execute(newest).scalar()
            if last is not None:
                gone = select(tasks.c.id).where(old, since <= last)
                with self.database.writing() as connection:
                    connection.execute(delete(task_events).where(task_events.c.task_id.in_(gone)))
                    connection.execute(delete(tasks).where(old, since <= last))

    def open(self) -> list[str]:
        """Return the ids of tasks that run or wait, in the order in which they are begun."""
        query = select(tasks.c.key).where(tasks.c.state.in_(TASK_STATES[:2])).order_by(tasks.c.id)
        with self.database.reading() as connection:
            return list(connection.execute(query).scalars())

    def claim(self, key: str, by: str) -> bool:
        """Begin a task that waits; of several who try, one does."""
        since = func.coalesce(tasks.c.started, writing.now())
        begun = {"state": "running", "worker": by, "started": since, "eta": None}
        begun["attempts"] = tasks.c.attempts + 1
        return self._change(key, "", begun, from_state="waiting")

    def report(
        self, key: str, by: str, done: int, total: int | None, note: str, runs: Iterable[Json] = (),
        eta: Sequence[float] | None = None,
    ) -> bool:  # fmt: skip
        """Write down how far a task is, and runs that were measured; False where it is another's by now.

        eta: quantiles of the seconds until its end; None leaves those that were reported before.
        """
        found: Json = {"done": done, "total": total, "note": note}
        if eta is not None:
            found |= {"eta": json.dumps(quantiles(eta)), "reported": writing.now()}
        return self._change(key, by, found, runs)

    def end(self, key: str, by: str, state: str, result: Json | None = None, problem: Json | None = None) -> bool:  # fmt: skip
        """Let a running task end, with what it found or why not; False where it is another's by now."""
        texts = {
            name: None if value is None else json.dumps(value)
            for name, value in {"result": result, "problem": problem}.items()
        }
        found: Json = {"state": state, "ended": writing.now(), **texts}
        if problem or state == "cancelled":
            found["note"] = problem["found"] if problem else _CANCELLED
        return self._change(key, by, found)

    def wait(self, key: str, by: str, note: str, died: bool = True) -> bool:
        """Let a running task wait again; False where it is another's by now. died: it counts as an attempt."""
        tried = tasks.c.attempts - int(not died)
        found = {"state": "waiting", "worker": "", "note": note, "attempts": tried}
        return self._change(key, by, found)

    def cancel(self, key: str) -> Json:
        """Cancel a task that waits, ask for the end of one that runs, and return it. Raises UnknownNameError."""
        ended = {"state": "cancelled", "ended": writing.now(), "note": _CANCELLED}
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

    def _change(self, key: str, by: str | None, values: Json, runs: Iterable[Json] = (), from_state: str = "running") -> bool:  # fmt: skip
        """Change a task in a state, if it is the turn of `by` (None: whoever's), and tell those who follow it."""
        mine = [] if by is None else [tasks.c.worker == by]
        right = (tasks.c.key == key, tasks.c.state == from_state, *mine)
        values = (
            {**values, "asked": ""} if "ended" in values else values
        )  # nobody needs it any more
        with self.database.writing() as connection:
            # The row is locked before an event gets its number: the numbers of a task come in order.
            changed = update(tasks).where(*right).values(values).returning(*_SHOWN)
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
    eta = row.eta if row.state == "running" else None
    progress = {
        "done": row.done, "of": row.total, "note": row.note, "eta_seconds": eta and json.loads(eta), "at": eta and row.reported,
    }  # fmt: skip
    result = {"result": row.result and json.loads(row.result)} if "result" in facts else {}
    problem = row.problem and json.loads(row.problem)
    return {**body, "asked": json.loads(row.brief), "progress": progress, **result, "problem": problem}  # fmt: skip


def _summary(what: str, asked: Mapping[str, Any], body: str) -> Json:
    """Return what is kept of a request beside its body: a short form, its hash and its size."""
    short = {} if what == KEPT_ANSWER else {n: _short(n, value) for n, value in asked.items()}
    raw = body.encode()
    return {"brief": json.dumps(short), "digest": sha256(raw).hexdigest(), "size": len(raw)}


def _short(name: str, value: Any) -> Any:
    """Return a field of a request, of a table its number of rows, of another long one that of its items."""
    if name in ("rows", "columns"):
        table = value or ()
        return len(next(iter(table.values()), ()) if isinstance(table, dict) else table)
    if name in ("tables", "fit"):
        return [one["name"] for one in value or ()]
    is_long = isinstance(value, str | list | dict) and len(json.dumps(value)) > _SHORT
    return len(value) if is_long else value


def bring_over(connection: Connection) -> None:
    """Bring the tasks of a store of the layout `BEFORE` over to this one."""
    for column in ("brief TEXT", "digest TEXT", "eta TEXT", "reported TEXT", "size BIGINT"):
        connection.execute(text(f"ALTER TABLE tasks ADD COLUMN {column}"))
    for number in connection.execute(select(tasks.c.id)).scalars().all():
        one = tasks.c.id == number
        body, state = connection.execute(select(tasks.c.asked, tasks.c.state).where(one)).one()
        ((what, asked),) = json.loads(body).items()
        kept = {**_summary(what, asked, body), "asked": body if state in TASK_STATES[:2] else ""}
        connection.execute(update(tasks).where(one).values(kept))


def _event(connection: Connection, task: int, kind: str, body: Json) -> None:
    words = json.dumps(body)
    connection.execute(insert(task_events).values(task_id=task, kind=kind, body=words))


def _tell(connection: Connection, row: Any) -> None:
    """Add the event of a task's change; its end takes the place of what it was before."""
    task, kind = _task(row), "end" if row.ended else "task"
    if kind == "task":
        del task["result"]
    _event(connection, row.id, kind, task)
    newest = select(func.max(task_events.c.id)).where(task_events.c.task_id == row.id)
    older = (task_events.c.task_id == row.id) & (task_events.c.kind == "task")
    connection.execute(delete(task_events).where(older, task_events.c.id < newest.scalar_subquery()))  # fmt: skip
