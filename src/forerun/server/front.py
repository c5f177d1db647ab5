"""Front: what a request meets before any route: its token, its limits, and an answer that is kept."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from forerun.errors import ForerunError, RequestError
from forerun.server.limits import RateLimit, Receive, ServerLimits, read_body
from forerun.server.pages import PAGES
from forerun.server.problems import HttpError, problem
from forerun.server.tokens import admit

Send = Callable[[dict[str, Any]], Awaitable[None]]
Response = tuple[int, Mapping[str, str], bytes]
_LOG = logging.getLogger("forerun.server")
_SECURITY = {
    "x-content-type-options": "nosniff", "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
}  # fmt: skip
_ONE_BYTES = 65_536  # of a body that count as one more request
_ONE_ANSWER = 600  # bytes that an answer takes beside its text
_KEPT_SHARE = 16  # no answer takes more of the memory for answers than one part in so many
_WATCHING = ("/v1/health", "/v1/ready")
_OPEN = frozenset((*_WATCHING, *PAGES))  # need no token
_RUNS, _UPLOADS, _AUDIT, _SUGGEST = "/v1/runs", "/v1/workloads", "/v1/audit", "/v1/suggest"
_STARTING = ("/v1/tasks/", "/v1/predictddl/fit", "/v1/scavenger/search")  # long work
EVENTS = "text/event-stream"
_OWN_HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\]|)(:\d{1,5})?", re.IGNORECASE)
LOOPBACK = ("localhost", "127.0.0.1", "::1", "")


class AuditLog:
    """A file that gets one line of JSON for each prediction; about: what all have, such as the model."""

    def __init__(self, file: Path, **about: str) -> None:
        self._file, self._about = file, about
        try:
            file.open("a").close()
        except OSError as error:
            found, todo = str(error.strerror), "name a file that can be written"
            raise RequestError(f"the audit log {file}", found, todo) from None

    def write(self, **line: Any) -> None:
        """Append a line to the file, which may be moved meanwhile. Raises HttpError where it takes none of it."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        whole = f"{json.dumps({'time': time, **line, **self._about})}\n".encode()
        try:
            with self._file.open("ab", buffering=0) as opened:
                written = opened.write(whole)
                if written < len(whole):  # what fits on a disk that is full
                    opened.truncate(opened.tell() - written)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            _LOG.error("the audit log cannot be written: %s", error)
            found = "its line in the audit log cannot be written"
            raise HttpError(503, "an answer", found, "tell who runs the service") from None

    def newest(self, limit: int, before: int = 0) -> tuple[list[Any], int]:
        """Return the last lines, newest first, that end before a place in the file (0: its end), and the next such place."""
        try:
            with self._file.open("rb") as opened:
                start = end = min(before or opened.seek(0, 2), opened.seek(0, 2))
                found = b""
                while start and found.count(b"\n") <= limit:
                    step = min(start, _ONE_BYTES)
                    start = opened.seek(start - step)
                    found = opened.read(step) + found
        except OSError as error:
            todo = "tell who runs the service"
            raise HttpError(503, "the audit log", str(error.strerror), todo) from None
        lines = found.splitlines(keepends=True)[-limit:]
        at = end - sum(map(len, lines))
        try:
            return [json.loads(line) for line in reversed(lines)], at
        except ValueError:
            found_there = "a line there is not the service's, or begins elsewhere"
            raise RequestError("the audit log", found_there, "follow the links of it") from None


class AnswerCache:
    """Answers with their entity tags by the hash of what was asked; the longest unused make room."""

    def __init__(self, most_bytes: int) -> None:
        self._most, self.bytes = most_bytes, 0
        self.hit: Callable[[], None] = lambda: None  # called when one is given out
        self._kept: OrderedDict[bytes, Response] = OrderedDict()

    def get(self, key: bytes) -> Response | None:
        """Return an answer, which counts as used, or None."""
        if (found := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
            self.hit()
        return found

    def put(self, key: bytes, answer: Response) -> None:
        """Keep an answer, unless it is large."""
        if len(answer[2]) * _KEPT_SHARE <= self._most and key not in self._kept:
            self._kept[key] = answer
            self.bytes += len(answer[2]) + _ONE_ANSWER
        while self.bytes > self._most:
            self.bytes -= len(self._kept.popitem(last=False)[1][2]) + _ONE_ANSWER


class Front:
    """An ASGI application around the routes; tokens: their file, None where this machine alone may ask."""

    def __init__(
        self, app: Any, limits: ServerLimits, tokens: Path | None = None, audit: AuditLog | None = None
    ) -> None:  # fmt: skip
        self._app, self._limits, self._tokens, self._audit = app, limits, tokens, audit
        self._rate, self.kept = RateLimit(limits.requests_per_second), AnswerCache(limits.cache_bytes)  # fmt: skip

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer a request, or pass on an event of the server's life."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Scopes and routes are to see one path, also behind a prefix.
        path = scope["path"].removeprefix(scope.get("root_path", "")) or "/"
        scope = {**scope, "path": path, "root_path": ""}
        try:
            answer = await self._answer(scope, receive, send)
            if answer is None:  # it was sent bit by bit
                return
            status, headers, body = answer
        except ForerunError as error:
            status, headers, body = problem(error)
        except Exception:  # noqa: BLE001 (the last door: a defect is numbered, and logged)
            number, todo = secrets.token_hex(4), "report it with what the log has"
            _LOG.exception("defect %s in %s %r", number, scope["method"], scope["path"][:200])
            found = f"a defect of forerun, {number} in the log"
            status, headers, body = problem(HttpError(500, "an answer", found, todo))
        await self.send(send, status, headers, body)

    @staticmethod
    async def send(send: Send, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Send a whole answer with the headers of safety."""
        await send(_start(status, {**headers, "content-length": str(len(body))}))
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: dict[str, Any], receive: Receive, send: Send) -> Response | None:
        path, method, given = scope["path"], scope["method"], dict(scope["headers"])
        client, asks = self.admit(scope), method == "POST"
        if path == _SUGGEST:  # it may tell of runs that are kept
            self.admit({**scope, "method": "GET"})
        large = path in (_RUNS, _UPLOADS, "/v1/predict/batch") or path.startswith(_STARTING)
        scope["forerun.client"] = client
        most = self._limits.batch_bytes if large else self._limits.body_bytes
        stated = given.get(b"content-length", b"")
        body = await read_body(receive, stated, most, self._limits.read_seconds)
        self._rate.take(client, 1.0 + len(body) / _ONE_BYTES)
        kind = given.get(b"content-type", b"").lower()
        # No form of a page can send that; uploads have types of their own.
        if asks and path != _UPLOADS and not kind.startswith(b"application/json"):
            found, todo = "it is not said to be JSON", "send Content-Type: application/json"
            raise HttpError(415, "the body", found, todo)
        asked = (method.encode(), path.encode(), scope["query_string"], body)
        key = hashlib.sha256(b"\0".join(asked)).digest()
        found_answer = self.kept.get(key)
        answer = found_answer or await self._ask(scope, body, receive, send)
        if answer is None:
            return None
        status, headers, _ = answer
        fresh = path in PAGES or headers.get("cache-control") == "no-store"  # or of a file
        if status == 200 and found_answer is None and not fresh:
            self.kept.put(key, answer)
        if self._audit is not None and asks and path != _RUNS:
            inputs = hashlib.sha256(body).hexdigest()
            self._audit.write(client=client, path=path, inputs=inputs, status=status)
        tags = given.get(b"if-none-match", b"").decode("latin-1")
        if method == "GET" and status == 200 and headers["etag"] in tags:
            return 304, headers, b""
        return answer

    def admit(self, scope: dict[str, Any]) -> str:
        """Return who asks: the id of a token, else an address. Raises HttpError for who may not."""
        path, given = scope["path"], dict(scope["headers"])
        address = str((scope.get("client") or ("unknown",))[0])
        if path in _OPEN:
            return address
        if self._tokens is None:
            host = given.get(b"host", b"").decode("latin-1")
            # A page of another name would ask through somebody's browser.
            if not _OWN_HOST.fullmatch(host):
                found = f"the service is not known as {host[:80]!r}"
                raise HttpError(403, "the header Host", found, "ask localhost")
            return address
        need = "run" if path in (_RUNS, _UPLOADS) or path.startswith(_STARTING) else "predict"
        need = "admin" if path == _AUDIT else "read" if scope["method"] == "GET" else need
        try:
            return admit(self._tokens, given.get(b"authorization", b"").decode("latin-1"), need)
        except HttpError:
            self._rate.take(address)  # guesses are counted too
            raise

    async def _ask(
        self, scope: dict[str, Any], body: bytes, receive: Receive, send: Send
    ) -> Response | None:
        """Return what the routes answer, with its entity tag; None where they answered bit by bit."""
        start: dict[str, Any] = {}
        parts: list[bytes] = []
        given = [{"type": "http.request", "body": body, "more_body": False}]

        def is_stream() -> bool:
            return bool(start) and start["headers"].get("content-type", "").startswith(EVENTS)

        async def take() -> dict[str, Any]:
            return given.pop() if given else await receive()  # that the client has gone away

        async def answer(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
                start["headers"] = {n.decode(): v.decode("latin-1") for n, v in message["headers"]}
                if is_stream():
                    await send(_start(message["status"], start["headers"]))
            elif is_stream():
                await send(message)
            else:
                parts.append(message.get("body", b""))

        try:
            await self._app(scope, take, answer)
        except Exception:
            if not is_stream():
                raise
            _LOG.exception("defect in the events of %r", scope["path"][:200])  # the connection ends
            return None
        headers, content = start["headers"], b"".join(parts)
        if is_stream():
            return None
        if start["status"] == 200:
            headers["etag"] = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            headers.setdefault("cache-control", "private, no-cache")
        return start["status"], headers, content


def _start(status: int, headers: Mapping[str, str]) -> dict[str, Any]:
    pairs = [(n.encode(), v.encode()) for n, v in {**_SECURITY, **headers}.items()]
    return {"type": "http.response.start", "status": status, "headers": pairs}
