"""Tasks: how requests ask for long work, look at it, follow it, and end it."""

from __future__ import annotations

import asyncio
import json
import time
import weakref
from collections.abc import AsyncIterator, Callable
from functools import partial
from threading import Lock
from typing import Any

from forerun.errors import RequestError, one_of
from forerun.server.limits import QuestionPool, ServerLimits
from forerun.server.problems import HttpError
from forerun.server.questions import Fields, Questions, fields_in, printed
from forerun.server.task_kinds import KINDS
from forerun.store import KEPT_ANSWER, TASK_STATES

_POLL_SECONDS = 0.3
_SILENT_SECONDS = 15.0  # then a comment keeps the connection open
_MOST_WAITING, _MOST_WAITING_BYTES, _MOST_STREAMS = 1000, 256_000_000, 100
_EVERY = 100  # new tasks old ones are removed
KEPT_TASKS = 10_000  # that have ended; older ones are removed with their events
_MOST_KEY, _DIGITS = 200, 18  # characters of an idempotency key; digits of a cursor


class TaskDesk:
    """Takes tasks and tells of them. modules: whether code of others may run. `pool` has threads for the store.

    kept: so many of the tasks that have ended stay.
    """

    def __init__(self, questions: Questions, limits: ServerLimits, modules: bool = False, kept: int = KEPT_TASKS) -> None:  # fmt: skip
        self._questions, self._modules, self._kept = questions, modules, kept
        self.pool = QuestionPool(limits)  # of its own: a long question keeps none of these
        self._streams, self._one, self._added = set[object](), Lock(), 0
        self.closing: Callable[[], bool] = lambda: False  # whether the service ends

    @property
    def _tasks(self) -> Any:
        return self._questions.store().tasks

    def add(self, what: str, body: bytes, idempotency: str, more: Fields) -> tuple[bytes, bool, str]:  # fmt: skip
        """Return a new task, or the one of the same idempotency key; whether it is new, and its id.

        more: fields beside those of the body. Raises HttpError for another request under the same key.
        """
        given = fields_in(KINDS[what].model, body, more)
        KINDS[what].check(given, self._modules)
        count, size = self._tasks.waiting()
        full = count >= _MOST_WAITING or size + len(body) > _MOST_WAITING_BYTES
        if full and not self._tasks.knows(idempotency):
            found = f"{count:,} others wait, with {size:,} bytes"
            raise HttpError(429, "this task", found, "wait 60 s", 60)
        task, new, same = self._tasks.add(what, given, idempotency)
        if not same:
            raise _other_request()
        self._forget()
        return printed({"task": task}, "task"), new, task["id"]

    def keep_runs(self, fields: Fields, idempotency: str) -> bytes:
        """Keep measured runs; asked again under the same key, return what was answered then."""
        if not idempotency:
            return self._questions.keep_runs(fields)
        with self._one:  # or the second of two at once would say that it kept nothing new
            kept, _, same = self._tasks.add(KEPT_ANSWER, fields, idempotency)
            if not same:
                raise _other_request()
            # One that died before its answer was kept is made up for: equal rows are kept once.
            answer = kept["result"] or json.loads(self._questions.keep_runs(fields))
            answered = self._tasks.answered(kept["id"], answer)
            self._forget()
            return printed(answered)

    def _forget(self) -> None:
        self._added += 1
        if self._added % _EVERY == 1:  # it takes a while where many are kept
            self._tasks.forget(self._kept)

    def get(self, key: str) -> bytes:
        """Return a task. Raises UnknownNameError."""
        return printed({"task": self._tasks.get(key)}, "task")

    def cancel(self, key: str) -> bytes:
        """Cancel a task, and return it. Raises UnknownNameError."""
        self._tasks.get(key)
        return printed({"task": self._tasks.cancel(key)}, "task")

    def page(self, what: str, state: str, limit: int, cursor: str) -> tuple[bytes, str]:
        """Return tasks, newest first, and the cursor of the next page or "". Raises RequestError."""
        for name, value, known in (("what", what, KINDS), ("state", state, TASK_STATES)):
            if value and value not in known:
                asked = f"tasks of the {name} {value[:40]!r}"
                raise RequestError(asked, "there is none such", one_of(value, known))
        found, after = self._tasks.page(what, state, limit, place_in(cursor))
        return printed({"tasks": found}, "tasks"), str(after or "")

    def leaderboard(self) -> bytes:
        """Return the newest judgement of predictors on measured runs. Raises HttpError where there is none."""
        found, _ = self._tasks.page("evaluate", "done", 1)
        if not found:
            todo = "ask for one: POST /v1/tasks/evaluate"
            raise HttpError(404, "a leaderboard", "no evaluation has been carried out", todo)
        task = self._tasks.get(found[0]["id"])
        more = {"kind": "leaderboard", "task": task["id"], "ended": task["ended"]}
        return printed({**task["result"], **more})

    async def events(self, key: str, last: str) -> AsyncIterator[bytes]:
        """Yield what happens to a task after an event, until its end. Raises UnknownNameError, HttpError."""
        after = place_in(last)
        task = await self.pool.answer(lambda: self._tasks.get(key))
        if len(self._streams) >= _MOST_STREAMS:
            raise HttpError(429, "these events", f"{_MOST_STREAMS} others are followed", "wait 10 s", 10)  # fmt: skip
        self._streams.add(place := object())
        found = self._followed(key, after, task["ended"] is not None, place)
        weakref.finalize(found, self._streams.discard, place)  # one that was never begun
        return found

    async def _followed(self, key: str, after: int, ended: bool, place: object) -> AsyncIterator[bytes]:  # fmt: skip
        try:
            told = time.monotonic()
            yield b"retry: 1000\n\n"
            while not self.closing():
                new = await self.pool.answer(partial(self._tasks.events, key, after))
                for number, kind, text in new:
                    after, told = number, time.monotonic()
                    yield f"id: {number}\nevent: {kind}\ndata: {text}\n\n".encode()
                    ended = ended or kind == "end"
                if ended:  # its last event may have been seen before
                    return
                await asyncio.sleep(_POLL_SECONDS)
                if time.monotonic() - told > _SILENT_SECONDS:
                    told = time.monotonic()
                    yield b": it goes on\n\n"
        finally:
            self._streams.discard(place)


def place_in(cursor: str) -> int:
    """Return where a page or a stream goes on, 0 for its beginning. Raises RequestError."""
    if cursor and not (cursor.isascii() and cursor.isdigit() and len(cursor) <= _DIGITS):
        raise RequestError(f"the cursor {cursor[:80]!r}", "none of this list", "follow its links")
    return int(cursor or 0)


def idempotency_of(header: str | None, client: str) -> str:
    """Return a client's idempotency key, "" for none. Raises RequestError where it is none."""
    if header is None:
        return ""
    if not (0 < len(header) <= _MOST_KEY and header.isascii() and header.isprintable()):
        found = f"not from 1 to {_MOST_KEY} printable characters"
        raise RequestError("the header Idempotency-Key", found, "send a new random one")
    return f"{client} {header}"


def _other_request() -> HttpError:
    found, todo = "another request had it", "send a new key with another request"
    return HttpError(422, "the Idempotency-Key", found, todo)
