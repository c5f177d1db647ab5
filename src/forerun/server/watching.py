"""Watching: figures of a service for Prometheus, and spans of its requests and questions for OpenTelemetry."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from forerun.errors import ForerunError, MissingExtraError
from forerun.server.front import Front, Send
from forerun.server.limits import QuestionPool, Receive
from forerun.server.problems import problem
from forerun.server.questions import Questions

METRICS = "/metrics"
_CARRIED = (b"traceparent", b"tracestate")
# Seconds; kept answers take a fraction of a millisecond, searches up to minutes.
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class _Routes:
    """Which route a path is of, so that no path from outside becomes a label."""

    def __init__(self, app: Any) -> None:
        routes = [route for route in app.routes if hasattr(route, "path_regex")]
        self._plain = {route.path for route in routes if "{" not in route.path} | {METRICS}
        self._others = [(r.path_regex, r.path) for r in routes if "{" in r.path]

    def of(self, path: str) -> str:
        if path in self._plain:
            return path
        return next((name for form, name in self._others if form.match(path)), "other")


class Watched:
    """An ASGI application around `Front` and its routes: counts what they answer, and answers /metrics.

    asked: whose store has tasks. open_metrics: /metrics needs no token; else one with the scope `read`.
    Raises MissingExtraError without the library.
    """

    def __init__(self, front: Front, routes: Any, asked: Questions, open_metrics: bool = False) -> None:  # fmt: skip
        pool: QuestionPool = routes.state.pool
        self._front, self._routes = front, _Routes(routes)
        self._asked, self._open = asked, open_metrics
        try:
            import prometheus_client as client
        except ImportError:
            raise MissingExtraError("serving", "prometheus_client", "server") from None
        self._client, self._registry = client, client.CollectorRegistry()
        kept: Mapping[str, Any] = {"registry": self._registry}
        client.ProcessCollector(registry=self._registry)
        client.GCCollector(registry=self._registry)
        names = ("method", "route", "status")
        self._requests = client.Counter("forerun_requests", "Requests that were answered", names, **kept)  # fmt: skip
        self._seconds = client.Histogram(
            "forerun_request_seconds", "From a request to the end of its answer", ("route",),
            buckets=_BUCKETS, **kept,
        )  # fmt: skip
        for name, words, figure in (
            ("questions_computed", "Questions that threads compute", lambda: min(pool.open, pool.workers)),
            ("questions_waiting", "Questions that wait for a thread", lambda: max(pool.open - pool.workers, 0)),
            ("kept_answers_bytes", "Memory of answers that are kept", lambda: front.kept.bytes),
        ):  # fmt: skip
            client.Gauge(f"forerun_{name}", words, **kept).set_function(figure)
        hits = client.Counter("forerun_kept_answer_hits", "Requests answered from memory", **kept)
        front.kept.hit = hits.inc
        self._by_state = client.Gauge("forerun_tasks", "Long work, by state", ("state",), **kept)
        self._store_up = client.Gauge("forerun_store_up", "Whether the store answers", **kept)
        self._span = _spans()
        pool.span = lambda: self._span("question", {}, None)

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer a request, or pass on an event of the server's life."""
        if scope["type"] != "http":
            await self._front(scope, receive, send)
            return
        began, route, status = time.perf_counter(), self._routes.of(scope["path"]), [0]
        asks_figures = (scope["method"], scope["path"]) == ("GET", METRICS)
        answer = self._metrics if asks_figures else self._front

        async def watched(message: dict[str, Any]) -> None:
            status[0] = message.get("status", status[0])
            await send(message)

        method = scope["method"] if scope["method"] in ("GET", "POST", "HEAD") else "other"
        about = {"http.request.method": method, "http.route": route, "url.scheme": scope["scheme"]}
        try:
            with self._span(f"{method} {route}", about, scope["headers"]) as span:
                await answer(scope, receive, watched)
                if span is not None:
                    span.set_attribute("http.response.status_code", status[0])
        finally:
            self._requests.labels(method, route, str(status[0])).inc()
            self._seconds.labels(route).observe(time.perf_counter() - began)

    async def _metrics(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        try:
            if not self._open:
                self._front.admit(scope)
            await self._count_tasks()
            status, kind = 200, self._client.CONTENT_TYPE_LATEST
            headers, body = {"content-type": kind}, self._client.generate_latest(self._registry)
        except ForerunError as error:
            status, headers, body = problem(error)
        await self._front.send(send, status, headers, body)

    async def _count_tasks(self) -> None:
        try:
            store = await asyncio.to_thread(self._asked.store)
            for state, count in (await asyncio.to_thread(store.tasks.counts)).items():
                self._by_state.labels(state).set(count)
            self._store_up.set(1)
        except ForerunError:  # the other figures are wanted then most of all
            self._by_state.clear()
            self._store_up.set(0)


def _spans() -> Callable[[str, Mapping[str, str], Any], AbstractContextManager[Any]]:
    """Return what begins a span by its name, attributes and a request's headers; nothing without an endpoint."""
    names = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    if not any(map(os.environ.get, names)) or os.environ.get("OTEL_SDK_DISABLED") == "true":
        return lambda name, about, headers: nullcontext()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.propagate import extract
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace import SpanKind
    except ImportError:
        raise MissingExtraError("spans for OTEL_EXPORTER_OTLP_ENDPOINT", "opentelemetry", "otel") from None  # fmt: skip
    own = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "forerun"}
    provider = TracerProvider(resource=Resource.create(own))  # which sends what is left as it ends
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    tracer = provider.get_tracer("forerun.server")

    def begin(name: str, about: Mapping[str, str], headers: Any) -> AbstractContextManager[Any]:
        more: dict[str, Any] = {}
        if headers is not None:
            carried = {n.decode(): v.decode("latin-1") for n, v in headers if n in _CARRIED}
            more = {"context": extract(carried), "kind": SpanKind.SERVER, "attributes": about}
        # The words of errors may be those of a body.
        span: AbstractContextManager[Any] = tracer.start_as_current_span(
            name, record_exception=False, set_status_on_exception=False, **more
        )
        return span

    return begin
