"""Figures for Prometheus count what was answered, and spans hold neither tokens nor bodies."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from forerun.advisor import Advisor
from forerun.errors import MissingExtraError, RequestError
from forerun.server.app import make_app
from forerun.server.front import Front
from forerun.server.limits import ServerLimits
from forerun.server.questions import Questions
from forerun.server.tokens import create_token
from forerun.server.watching import Watched
from forerun.settings import load_settings
from tests.server.conftest import JOB, Client, serving


@pytest.fixture
def watched(advisor: Advisor, tmp_path: Path) -> Iterator[Callable[..., Client]]:
    """Return a function that starts a service that is watched."""
    with ExitStack() as stack:

        def start(tokens: Path | None = None, store: Any = None, **named: Any) -> Client:
            asked = Questions(advisor, load_settings(), str(tmp_path / "runs.db"))
            asked.store = store or asked.store
            routes = make_app(asked, ServerLimits())
            front = Front(routes, ServerLimits(), tokens)
            return stack.enter_context(serving(Watched(front, routes, asked, **named)))

        yield start


def figure(client: Client, name: str, **headers: str) -> float:
    """Return one figure of /metrics, 0 where it has none."""
    reply = client.get("/metrics", **headers)
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/plain")
    found = re.search(rf"^{re.escape(name)} (\S+)$", reply.body.decode(), re.MULTILINE)
    return 0.0 if found is None else float(found[1])


def test_figures_count_requests_by_route_and_status(watched: Callable[..., Client]) -> None:
    client = watched()
    for body in (JOB, JOB, {"workload": 1}):
        client.post("/v1/predict", body)
    client.get("/v1/workloads/resnet50")
    client.get("/v1/secret-name/../x")
    client.request("PURGE", "/v1/predict")
    count = 'forerun_requests_total{method="%s",route="%s",status="%s"}'
    assert figure(client, count % ("POST", "/v1/predict", "200")) == 2
    assert figure(client, count % ("POST", "/v1/predict", "400")) == 1
    assert figure(client, count % ("GET", "/v1/workloads/{name}", "200")) == 1
    assert figure(client, count % ("GET", "other", "404")) == 1
    assert figure(client, count % ("other", "/v1/predict", "405")) == 1
    assert figure(client, 'forerun_request_seconds_count{route="/v1/predict"}') == 4
    assert figure(client, "forerun_kept_answer_hits_total") == 1
    assert figure(client, "forerun_kept_answers_bytes") > 1000
    assert figure(client, 'forerun_tasks{state="waiting"}') == 0
    assert figure(client, "forerun_store_up") == 1
    assert figure(client, "process_resident_memory_bytes") > 1e7
    assert b"secret-name" not in client.get("/metrics").body


def test_questions_that_are_computed_and_wait_are_counted(
    watched: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    go, began = threading.Event(), threading.Semaphore(0)

    def slow(*_: Any) -> bytes:
        began.release()
        go.wait(20)
        return b"{}"

    monkeypatch.setattr(Questions, "_shown", slow)
    client = watched()
    threads = [
        threading.Thread(target=client.post, args=("/v1/predict", {**JOB, "steps": n + 1}))
        for n in range(3)
    ]
    for thread in threads:
        thread.start()
    for _ in range(2):
        assert began.acquire(timeout=20)
    end = time.monotonic() + 20
    while figure(client, "forerun_questions_waiting") != 1 and time.monotonic() < end:
        time.sleep(0.02)
    assert figure(client, "forerun_questions_waiting") == 1
    assert figure(client, "forerun_questions_computed") == 2
    go.set()
    for thread in threads:
        thread.join(20)
    assert figure(client, "forerun_questions_computed") == 0


def test_figures_need_a_token_that_may_read_unless_they_are_open(
    watched: Callable[..., Client], tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens.json"
    reads, predicts = (create_token(tokens, [scope], 1) for scope in ("read", "predict"))
    client = watched(tokens)
    assert client.get("/metrics").status == 401
    assert client.get("/metrics", Authorization=f"Bearer {predicts}").status == 403
    assert client.get("/metrics", Authorization=f"Bearer {reads}").status == 200
    assert watched(tokens, open_metrics=True).get("/metrics").status == 200
    assert watched().get("/metrics", Host="evil.example").status == 403


def test_a_store_that_is_away_leaves_the_other_figures(watched: Callable[..., Client]) -> None:
    def away() -> Any:
        raise RequestError("the store", "it is away", "start it")

    client = watched(store=away)
    assert figure(client, "forerun_store_up") == 0
    assert figure(client, "process_resident_memory_bytes") > 1e7
    assert b"forerun_tasks{" not in client.get("/metrics").body


@pytest.fixture
def receiver() -> Iterator[tuple[str, list[bytes]]]:
    """Yield the endpoint of a receiver of OTLP over HTTP, and the bodies that came."""
    came: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            came.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", came
    server.shutdown()
    server.server_close()


def test_requests_and_questions_are_spans_without_tokens_and_bodies(
    watched: Callable[..., Client], receiver: tuple[str, list[bytes]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:  # fmt: skip
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    endpoint, came = receiver
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    token = create_token(tmp_path / "tokens.json", ["predict", "read"], 1)
    client = watched(tmp_path / "tokens.json")
    sent = {"Authorization": f"Bearer {token}", "traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}
    client.post("/v1/predict", JOB, **sent)
    client.post("/v1/predict", {**JOB, "workload": "secret-workload"}, **sent)
    client.get("/v1/devices?search=secret-query", **sent)
    end, spans = time.monotonic() + 20, []
    while len(spans) < 5 and time.monotonic() < end:
        time.sleep(0.02)
        read = [ExportTraceServiceRequest.FromString(body) for body in list(came)]
        resources = [r for one in read for r in one.resource_spans]
        spans = [span for r in resources for scope in r.scope_spans for span in scope.spans]
    by_name = {span.name: span for span in spans}
    assert sorted(span.name for span in spans) == [
        "GET /v1/devices", "POST /v1/predict", "POST /v1/predict", "question", "question",
    ]  # fmt: skip
    request = next(s for s in spans if s.span_id == by_name["question"].parent_span_id)
    assert (request.name, request.trace_id.hex(), request.parent_span_id.hex()) == (
        "POST /v1/predict", "ab" * 16, "cd" * 8,
    )  # fmt: skip
    kept = {one.key: one.value.string_value or one.value.int_value for one in request.attributes}
    assert kept == {
        "http.request.method": "POST", "http.route": "/v1/predict", "url.scheme": "http",
        "http.response.status_code": kept["http.response.status_code"],
    }  # fmt: skip
    assert {a.key: a.value.string_value for a in resources[0].resource.attributes}[
        "service.name"
    ] == "forerun"
    for secret in (token, token.split("_")[2], "secret-query", "secret-workload", JOB["cluster"]):
        assert all(secret.encode() not in body for body in came)


def test_without_an_endpoint_nothing_is_loaded(
    watched: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.propagate", None)
    assert watched().get("/v1/health").status == 200
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(MissingExtraError, match="otel"):
        watched()
