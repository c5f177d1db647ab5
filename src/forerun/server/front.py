"""Front: what a request meets before any route: its token, its limits, and an answer that is kept."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import logging
import secrets
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from forerun.errors import ForerunError, RequestError
from forerun.server import problems
from forerun.server.answers import AnswerCache, KeptAnswer
from forerun.server.limits import BODY_OF_ONE, RateLimit, Receive, ServerLimits, read_body
from forerun.server.problems import HttpProblem
from forerun.server.tokens import Tokens

Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]
_LOG = logging.getLogger("forerun.server")
_SECURITY: Headers = [
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_OPEN = ("/v1/health", "/v1/ready")  # for whoever watches the service
_LARGE = ("/v1/predict/batch", "/v1/runs")
_CHANGING = ("/v1/runs", *_OPEN)  # the same question may have another answer a moment later


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class AuditLog:
    """One line of JSON for each prediction, appended to a file: who asked what, and who answered with which prices."""

    def __init__(self, file: Path, model: str, prices: str) -> None:
        self._about = {"model": model, "prices": prices}
        try:
            self._file = file.open("a", encoding="utf-8")
        except OSError as error:
            todo = "name a file that can be written"
            raise RequestError(f"the audit log {file}", str(error.strerror), todo) from None

    def write(self, client: str, path: str, body: bytes, status: int) -> None:
        """Append a line. Raises HttpProblem where the file takes none."""
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"), "client": client, "path": path,
            "inputs": hashlib.sha256(body).hexdigest(), "status": status, **self._about,
        }  # fmt: skip
        try:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        except OSError as error:
            _LOG.error("the audit log cannot be written: %s", error)
            found = "the audit log cannot be written, and no answer goes out without it"
            raise HttpProblem(503, "answering", found, "tell who runs the service") from None


class Front:
    """An ASGI application around the routes.

    hosts: names in the header Host that are let in, none for any: a page in a browser on this
        machine could otherwise ask under a name of its own.
    """

    def __init__(
        self, app: Any, limits: ServerLimits, tokens: Tokens | None = None, audit: AuditLog | None = None,
        hosts: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self._app, self._limits = app, limits
        self._tokens, self._audit, self._hosts = tokens, audit, hosts
        self._rate = RateLimit(limits.requests_per_second)
        self._kept = AnswerCache(limits.cache_bytes)

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request, or pass on the events of the server's life."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            status, headers, body = await self._answer(scope, receive)
        except ForerunError as error:
            status, headers, body = _refusal(error)
        except Exception:
            number = secrets.token_hex(4)
            _LOG.exception("defect %s in %s %s", number, scope["method"], scope["path"][:200])
            status, headers, body = _refusal(problems.defect(number))
        size = (b"content-length", b"%d" % len(body))
        start = {"type": "http.response.start", "status": status, "headers": [*headers, size, *_SECURITY]}
        await send(start)
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def _answer(self, scope: dict[str, Any], receive: Receive) -> tuple[int, Headers, bytes]:
        path, method, given = scope["path"], scope["method"], dict(scope["headers"])
        client = self._admit(path, method, given, scope)
        asks = method == "POST"
        most = self._limits.batch_bytes if path in _LARGE else self._limits.body_bytes
        body = await read_body(receive, given, most, self._limits.read_seconds)
        self._rate.take(client, 1.0 + len(body) / BODY_OF_ONE)
        if asks and not given.get(b"content-type", b"").lower().startswith(b"application/json"):
            found = "its content type is not application/json"
            raise HttpProblem(415, "the body", found, "send Content-Type: application/json")
        keeps = (asks or method == "GET") and path not in _CHANGING
        key = AnswerCache.key(method.encode(), path.encode(), scope["query_string"], body)
        kept = self._kept.get(key) if keeps else None
        status, headers = 200, [(b"content-type", b"application/json")]
        if kept is None:
            status, headers, content = await self._ask(scope, body)
            kept = KeptAnswer.of(content)
            if status == 200 and keeps and not any(name == b"link" for name, _ in headers):
                self._kept.put(key, kept)
        if self._audit is not None and asks and path != "/v1/runs":
            self._audit.write(client, path, body, status)
        if status != 200:
            return status, headers, kept.body
        headers = [*headers, (b"etag", kept.etag), (b"cache-control", b"private, no-cache")]
        if method == "GET" and kept.etag in given.get(b"if-none-match", b""):
            return 304, headers, b""
        return status, headers, kept.body

    def _admit(self, path: str, method: str, given: dict[bytes, bytes], scope: dict[str, Any]) -> str:
        """Return who asks: the id of a token, else an address. Raises HttpProblem for who may not."""
        address = str((scope.get("client") or ("unknown",))[0])
        host = given.get(b"host", b"").decode("latin-1").rpartition("]")[2].partition(":")[0]
        if self._hosts and host and host not in self._hosts:
            found = f"the service is not known as {host[:80]!r}"
            raise HttpProblem(403, "the header Host", found, f"ask {self._hosts[0]}")
        if self._tokens is None or path in _OPEN:
            return address
        scope_name = "read" if method in ("GET", "HEAD") else "run" if path == "/v1/runs" else "predict"
        try:
            header = given.get(b"authorization", b"").decode("latin-1")
            return self._tokens.admit(header, scope_name).id
        except HttpProblem:
            self._rate.take(address)  # guesses are counted too
            raise

    async def _ask(self, scope: dict[str, Any], body: bytes) -> tuple[int, Headers, bytes]:
        """Return what the routes answer."""
        start: dict[str, Any] = {}
        parts: list[bytes] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            else:
                parts.append(message.get("body", b""))

        await self._app(scope, receive, send)
        headers = [(n, v) for n, v in start["headers"] if n != b"content-length"]
        return start["status"], headers, b"".join(parts)


def _refusal(error: ForerunError) -> tuple[int, Headers, bytes]:
    status = problems.status_of(error)
    headers: Headers = [(b"content-type", problems.CONTENT_TYPE.encode()), (b"cache-control", b"no-store")]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if wait := getattr(error, "retry_seconds", 0):
        headers.append((b"retry-after", b"%d" % wait))
    return status, headers, problems.document(error)
