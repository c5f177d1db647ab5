"""Clients that mean harm, or are broken: each is refused or sent away, and others are served meanwhile."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from forerun.advisor import Advisor
from forerun.server.app import make_app
from forerun.server.connections import GuardedConnection
from forerun.server.front import Front
from forerun.server.limits import ServerLimits
from forerun.server.questions import Questions
from forerun.server.tokens import create_token
from forerun.settings import load_settings
from tests.server.conftest import JOB, Client, serving
from tests.server.test_refusals import problem

HEAD_SECONDS = 1.0
HOST = b"Host: localhost\r\n"
POST = b"POST /v1/predict HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"


class Hasty(GuardedConnection):
    """A connection that waits less, for the tests."""

    head_seconds = taking_seconds = HEAD_SECONDS


@pytest.fixture(scope="module")
def app(advisor: Advisor, tmp_path_factory: Any) -> Front:
    limits = ServerLimits(read_seconds=2.0, body_bytes=100_000)
    place = str(tmp_path_factory.mktemp("store") / "runs.db")
    return Front(make_app(Questions(advisor, load_settings(), place), limits), limits)


@pytest.fixture(scope="module")
def client(app: Front) -> Iterator[Client]:
    with serving(app, Hasty) as one:
        one.get("/v1/devices")
        yield one


@contextmanager
def wire(client: Client) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", client.port), timeout=20) as one:
        yield one


def rest(one: socket.socket) -> bytes:
    """Return all that comes until the other side closes; fail where it never does."""
    found = b""
    try:
        while part := one.recv(65_536):
            found += part
    except ConnectionError:  # closed with what we sent unread
        pass
    return found


def sockets() -> int:
    found = 0
    for one in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found += str(one.readlink()).startswith("socket:")
    return found


def sent_away(one: socket.socket, part: bytes, pause: float = 0.0) -> float:
    """Send a part again and again until the other side has closed; return the seconds that it took."""
    start = time.monotonic()
    with suppress(ConnectionError):
        while time.monotonic() - start < 10 * HEAD_SECONDS:
            one.sendall(part)
            time.sleep(pause)
    return time.monotonic() - start


def until(holds: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.05)
    return holds()


@pytest.mark.parametrize("first", [b"", b"G", b"GET /v1/health HTTP/1.1\r\n" + HOST, POST[:-2]])
def test_who_does_not_send_its_headers_is_sent_away(client: Client, first: bytes) -> None:
    with wire(client) as one:
        start = time.monotonic()
        one.sendall(first)
        assert client.get("/v1/health").status == 200
        assert rest(one) == b""
        assert time.monotonic() - start < HEAD_SECONDS + 5


def test_who_sends_its_headers_bit_by_bit_is_sent_away(client: Client) -> None:
    with wire(client) as one:
        one.sendall(b"GET /v1/health HTTP/1.1\r\n")
        assert sent_away(one, b"x: y\r\n", 0.05) < HEAD_SECONDS + 5


def test_the_second_request_of_a_connection_has_no_more_time_than_the_first(client: Client) -> None:
    with wire(client) as one:
        one.sendall(b"GET /v1/health HTTP/1.1\r\n" + HOST + b"\r\n")
        assert one.recv(65_536).startswith(b"HTTP/1.1 200")
        time.sleep(HEAD_SECONDS * 1.5)  # it may be silent between two
        one.sendall(b"GET /v1/health HTTP/1.1\r\n")
        start = time.monotonic()
        assert rest(one) == b""
        assert time.monotonic() - start < HEAD_SECONDS + 5


def test_headers_without_end_are_not_kept(client: Client) -> None:
    with wire(client) as one:
        one.sendall(b"GET /v1/health HTTP/1.1\r\n")
        assert sent_away(one, b"x-a: " + b"y" * 10_000 + b"\r\n") < HEAD_SECONDS * 0.9


@pytest.mark.parametrize("answers", [1, 40])  # what the system keeps for it, and more
def test_who_does_not_take_its_answer_is_sent_away(app: Front, answers: int, caplog: Any) -> None:
    there = set()

    class Counted(Hasty):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            there.add(self)

        def connection_lost(self, exc: Any) -> None:
            super().connection_lost(exc)
            there.discard(self)

    with serving(app, Counted, idle=1) as client, socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.connect(("127.0.0.1", client.port))
        one.sendall((b"GET /v1/instances HTTP/1.1\r\n" + HOST + b"\r\n") * answers)
        assert until(lambda: len(there) == 1, 2)
        assert client.get("/v1/health").status == 200
        assert until(lambda: not there, 10)
    assert "Exception" not in caplog.text


def test_who_takes_its_answer_slowly_gets_all_of_it(app: Front) -> None:
    with serving(app, Hasty, idle=1) as client, socket.socket() as one:
        whole = client.get("/v1/instances")
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.connect(("127.0.0.1", client.port))
        one.sendall((b"GET /v1/instances HTTP/1.1\r\n" + HOST + b"\r\n") * 20)
        found, end = 0, time.monotonic() + 4
        while time.monotonic() < end:
            found += len(one.recv(2000))
            time.sleep(0.02)
        one.settimeout(5)
        while found < 20 * len(whole.body):
            part = one.recv(65_536)
            assert part
            found += len(part)


def test_who_closes_its_half_is_no_leak(client: Client) -> None:
    before = sockets()
    for sent in (
        b"",
        b"GET /v1/devices HTTP/1.1\r\n" + HOST + b"\r\n",
        POST + b"Content-Length: 10\r\n\r\n{",
    ):
        with wire(client) as one:
            one.sendall(sent)
            one.shutdown(socket.SHUT_WR)
            rest(one)
    assert until(lambda: sockets() <= before, 5)
    assert client.get("/v1/health").status == 200


def test_a_thousand_idle_connections_keep_nobody_out(client: Client) -> None:
    before = sockets()
    with ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(socket.create_connection(("127.0.0.1", client.port), timeout=20))
        start = time.monotonic()
        assert client.post("/v1/predict", JOB).status == 200
        assert time.monotonic() - start < 10
        assert until(
            lambda: sockets() <= before + 1000, HEAD_SECONDS + 10
        )  # the other ends are closed
    assert client.get("/v1/health").status == 200


LINE = b"POST /v1/predict HTTP/1.1\r\n"
MALFORMED = {
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 100,
    "no method": b" / HTTP/1.1\r\n\r\n", "unknown method": b"HACK / HTTP/1.1\r\n" + HOST + b"\r\n",
    "NUL in a path": b"GET /v1/wor\0kloads HTTP/1.1\r\n" + HOST + b"\r\n",
    "NUL in a header": b"GET /v1/workloads HTTP/1.1\r\nHost: local\0host\r\n\r\n",
    "negative length": LINE + HOST + b"Content-Length: -1\r\n\r\n",
    "two lengths": LINE + HOST + b"Content-Length: 2\r\nContent-Length: 50\r\n\r\n{}",
    "length and chunks": LINE + HOST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "no chunk": POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", "huge chunk": POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 40 + b"\r\n",
    "length that is no number": POST + b"Content-Length: 0x10\r\n\r\n", "folded header": b"GET /v1/nothing HTTP/1.1\r\nHost: a\r\n b\r\n\r\n",
    "another host": b"GET /v1/devices HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "a host that ends well": b"GET /v1/devices HTTP/1.1\r\nHost: evil]localhost\r\n\r\n",
    "a host with a user": b"GET /v1/devices HTTP/1.1\r\nHost: localhost:80@evil.example\r\n\r\n",
    "an absolute target": b"GET http://evil.example/v1/devices HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "long path": b"GET /" + b"a" * 60_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    "many headers": b"GET /v1/nothing HTTP/1.1\r\n" + b"a: b\r\n" * 8_000 + b"\r\n",
    "upgrade": b"GET /v1/nothing HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
               b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    "traversal": b"GET /../../etc/passwd HTTP/1.1\r\n" + HOST + b"\r\n", "encoded traversal": b"GET /v1/%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\n" + HOST + b"\r\n",
    "no UTF-8": b"GET /v1/workloads/%ff%fe HTTP/1.1\r\n" + HOST + b"\r\n", "double encoding": b"GET /v1/workloads/%252e%252e%252f HTTP/1.1\r\n" + HOST + b"\r\n",
    "new lines in a path": b"GET /v1/workloads/a%0d%0aSet-Cookie:%20a=b HTTP/1.1\r\n" + HOST + b"\r\n",
}  # fmt: skip


@pytest.mark.parametrize("sent", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_request_is_refused(client: Client, sent: bytes) -> None:
    with wire(client) as one:
        one.sendall(sent)
        one.settimeout(HEAD_SECONDS + 5)
        found = one.recv(65_536)
        assert not found or re.match(rb"HTTP/1.1 4\d\d ", found), found[:200]
        assert b"set-cookie" not in found.lower().partition(b"\r\n\r\n")[0]
        assert b"root:" not in found
    assert client.get("/v1/health").status == 200


def test_a_body_beyond_the_limit_is_refused_as_it_comes(client: Client) -> None:
    for head, body in (
        (b"Content-Length: 200000\r\n\r\n", b""), (b"Transfer-Encoding: chunked\r\n\r\n", b"186a1\r\n" + b" " * 100_001 + b"\r\n"),
    ):  # fmt: skip
        with wire(client) as one:
            one.sendall(POST + head + body)
            assert one.recv(4096).startswith(b"HTTP/1.1 413")


def test_the_same_field_twice_is_what_stands_last(client: Client) -> None:
    """As JSON readers do; the fields that are checked are those that are answered."""
    body = b'{"workload": "/etc/passwd", "workload": "resnet50", "cluster": "1x8xa100-sxm-80gb", "framework": "pytorch"}'
    assert client.post("/v1/predict", body).body == client.post("/v1/predict", JOB).body
    body = body.replace(b"resnet50", b"/etc/hosts")
    problem(client.post("/v1/predict", body), 400)


def test_a_script_in_a_name_comes_back_as_data(client: Client) -> None:
    script = "<script>alert(1)</script>"
    spec = {"name": script, "totals": {"params": 1e6, "gmacs": 1}}
    asked = {
        "workload": {"spec": spec},
        "cluster": JOB["cluster"],
        "framework": "pytorch",
        "steps": 1,
    }
    for reply in (client.post("/v1/predict", asked), client.get(f"/v1/workloads/{'%3Cscript%3E'}"),
                  client.get("/v1/workloads?search=%3Cscript%3E"), client.post("/v1/predict", {**JOB, "workload": script})):  # fmt: skip
        assert reply.headers["content-type"] in ("application/json", "application/problem+json")
        assert reply.headers["x-content-type-options"] == "nosniff"


def test_no_redirect_leads_elsewhere(client: Client) -> None:
    for path in ("/v1/workloads/", "//evil.example/v1/workloads", "/v1//workloads", "/v1/runs/"):
        assert client.get(path).status == 404


def routes(app: Front) -> list[tuple[str, str]]:
    described = app._app.openapi()["paths"]
    return [
        (m.upper(), re.sub(r"\{\w+\}", "x", p)) for p, methods in described.items() for m in methods
    ]


def test_no_route_lets_anybody_in_without_the_right_token(advisor: Advisor, tmp_path: Path) -> None:
    file, limits = tmp_path / "tokens.json", ServerLimits()
    kinds = ("read", "predict", "run", "admin", "read", "admin")
    good = dict(
        zip(
            (*kinds[:4], "expired", "revoked"),
            (create_token(file, (k,), 1.0) for k in kinds),
            strict=True,
        )
    )
    rows = json.loads(file.read_text())["tokens"]
    rows[4]["expires"] = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()
    file.write_text(json.dumps({"tokens": rows[:5]}))
    app = Front(
        make_app(Questions(advisor, load_settings(), str(tmp_path / "r.db")), limits), limits, file
    )
    every = [r for r in routes(app) if r[1] not in ("/v1/health", "/v1/ready")]
    assert ("POST", "/v1/workloads") in every
    assert len(every) > 15
    with serving(app) as client:
        for method, path in (
            *every,
            ("GET", "/v1/openapi.json"),
            ("GET", "/v1/nothing"),
            ("PUT", "/v1/runs"),
            ("OPTIONS", "/v1/runs"),
        ):
            body = b"{}" if method == "POST" else None
            for header in ({}, {"Authorization": "Bearer x"}, {"Authorization": f"Bearer {good['expired']}"},
                           {"Authorization": f"Bearer {good['revoked']}"}, {"Authorization": f"Basic {good['admin']}"}):  # fmt: skip
                assert client.request(method, path, body, **header).status == 401, (method, path)
            if method == "POST":  # who may only read changes and asks nothing
                assert (
                    client.request(
                        method, path, body, Authorization=f"Bearer {good['read']}"
                    ).status
                    == 403
                )
            let_in = client.request(
                method, path, body, Authorization=f"Bearer {good['admin']}"
            ).status
            assert let_in not in (401, 403)
