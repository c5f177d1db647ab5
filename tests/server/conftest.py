"""A service on a free port of this machine, asked by plain HTTP."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from forerun.advisor import Advisor
from forerun.server.app import make_app
from forerun.server.front import AuditLog, Front
from forerun.server.limits import ServerLimits
from forerun.server.questions import Questions
from forerun.settings import load_settings
from tests.store.postgres import Server, server

JOB = {"workload": "resnet50", "cluster": "1x8xa100-sxm-80gb", "framework": "pytorch"}


@dataclass(frozen=True)
class Reply:
    """A status, headers in lower case, and a body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Client:
    """Asks a service; each request has a connection of its own."""

    port: int
    headers: dict[str, str] = field(default_factory=dict)

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        wire = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        sent = {**self.headers, **{n.replace("_", "-"): v for n, v in headers.items()}}
        if body is not None:
            sent.setdefault("Content-Type", "application/json")
        raw = body if isinstance(body, bytes | str) or body is None else json.dumps(body)
        try:
            wire.request(method, path, raw, sent)
            reply = wire.getresponse()
            found = {name.lower(): value for name, value in reply.getheaders()}
            return Reply(reply.status, found, reply.read())
        finally:
            wire.close()

    def get(self, path: str, **headers: str) -> Reply:
        return self.request("GET", path, **headers)

    def post(self, path: str, body: Any, **headers: str) -> Reply:
        return self.request("POST", path, body, **headers)


@contextmanager
def serving(app: Any, http: Any = None, idle: int = 5) -> Iterator[Client]:
    """Serve an application from a thread until the block ends."""
    import uvicorn

    from forerun.server.connections import GuardedConnection

    config = uvicorn.Config(
        app, log_level="warning", access_log=False, ws="none", http=http or GuardedConnection,
        timeout_keep_alive=idle,
    )  # fmt: skip
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            thread.join(0.01)
        try:
            yield Client(listening.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join(30)


@pytest.fixture(scope="session")
def advisor() -> Advisor:
    return Advisor()


@pytest.fixture
def served(advisor: Advisor, tmp_path: Any) -> Iterator[Callable[..., Client]]:
    """Return a function that starts a service with limits, tokens or an audit log of one's own."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def start(
            limits: ServerLimits | None = None, tokens: Path | None = None, audit: AuditLog | None = None,
            place: str = "",
        ) -> Client:  # fmt: skip
            chosen = limits or ServerLimits()
            questions = Questions(advisor, load_settings(), place or str(tmp_path / "runs.db"))
            if place:
                stack.callback(questions.store().close)
            app = Front(make_app(questions, chosen, audit=audit), chosen, tokens, audit)
            return stack.enter_context(serving(app))

        yield start


@pytest.fixture
def client(served: Callable[..., Client]) -> Client:
    return served()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """Yield a PostgreSQL server."""
    with server() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return where a store lies: once in SQLite, once in PostgreSQL."""
    if request.param == "sqlite":
        return str(tmp_path / "runs.db")
    return str(request.getfixturevalue("postgres").new_place())


@pytest.fixture
def keeper(served: Callable[..., Client], place: str) -> Client:
    """Return a client of a service with that store."""
    return served(place=place)
