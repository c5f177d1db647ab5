"""The service's routes: an application of FastAPI, to which `Front` lets requests in."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any

import uvicorn
from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match

from forerun.advisor import listings
from forerun.errors import ForerunError, RequestError, UnknownNameError
from forerun.server import questions
from forerun.server.connections import GuardedConnection
from forerun.server.front import EVENTS, AuditLog
from forerun.server.limits import QuestionPool, ServerLimits
from forerun.server.pages import add_pages
from forerun.server.problems import PROBLEM, PROBLEM_JSON, HttpError, problem, wrong
from forerun.server.questions import Questions, fields_in, printed
from forerun.server.task_kinds import KINDS, NETWORKS
from forerun.server.tasks import TaskDesk, idempotency_of, place_in
from forerun.server.uploads import FORMS
from forerun.wire import SCHEMA

_Limit = Annotated[int | None, Query(ge=1, le=10_000, description="The most rows of a page")]
_Cursor = Annotated[str, Query(max_length=100, description="As in the link to the next page")]
_Search = Annotated[
    list[str], Query(max_length=8, description="Rows that hold each of these texts")
]
_Where = Annotated[list[str], Query(max_length=20, description="Conditions such as devices<=8")]
_Word = Annotated[str, Query(max_length=40)]
_CHANGING = ("runs", "predictddl/predict", "suggest")  # whose answers change with the store
_Name = Annotated[str, Query(max_length=80, pattern=r"^[\w.@+-]*$")]
_Size = Annotated[int | None, Query(ge=1, le=100_000_000)]
_IDLE_SECONDS, _CONNECTIONS = 30, 2000
_ABOUT = """Time, cost and memory of a distributed training job before it runs. Bodies have the names of
the arguments in Python; answers are what the command line prints with --json."""


_JOB = {
    "workload": "resnet50", "cluster": "1x8xa100-sxm-80gb", "framework": "pytorch", "epochs": 90,
}  # fmt: skip
_OTHER = {**_JOB, "cluster": "1x8xh100-sxm-80gb"}
_RUN = {"workload": "resnet50", "device": "a100-sxm-80gb", "devices": 8, "global_batch": 512, "step_time_s": 0.21}  # fmt: skip
# Each path that takes a body: the model of the body, what answers, and an example that can be sent.
QUESTIONS: Mapping[str, tuple[Any, Callable[[Questions, dict[str, Any]], bytes], dict[str, Any]]] = {
    "predict": (questions.PREDICT, Questions.predict, _JOB),
    "predict/batch": (questions.BATCH, Questions.batch, {"columns": {
        "workload": ["resnet50", "bert-large"], "framework": ["pytorch", "pytorch"],
        "cluster": ["1x8xa100-sxm-80gb", "2x8xh100-sxm-80gb"], "global_batch": [512, 256],
    }}),
    "recommend": (questions.RECOMMEND, Questions.recommend, {
        "workload": "resnet50", "clusters": ["1x8xa100-sxm-80gb", "1x8xh100-sxm-80gb"],
        "framework": "pytorch", "epochs": 90, "deadline": "24h",
    }),
    "explain": (questions.PREDICT, Questions.explain, _JOB),
    "suggest": (questions.SUGGEST, Questions.suggest, {"minimize": "time", "count": 2, "rows": [
        {"workload": "resnet50", "framework": "pytorch", "cluster": f"{n}x8xa100-sxm-80gb", "global_batch": 512 * n, "epochs": 90}
        for n in (1, 2)
    ]}),
    "support": (questions.SUPPORT, Questions.support, {"workload": "llama3-8b", "seq_len": 4096}),
    "compare": (questions.COMPARE, Questions.compare, {"jobs": [_JOB, _OTHER]}),
    "runs": (questions.RUNS, Questions.keep_runs, {"rows": [_RUN], "campaign": "first"}),
    "predictddl/predict": (questions.JOBS, Questions.predictddl, {"rows": [{
        "workload": "resnet50", "device": "v100-sxm2-16gb", "devices": 8, "global_batch": 512, "precision": "fp16",
    }]}),
}  # fmt: skip
# Each path that begins a task: its kind, what it adds to the body, and an example of the rest.
STARTS: Mapping[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    **{f"tasks/{name}": (name, {}, kind.example) for name, kind in KINDS.items()},
    "predictddl/fit": ("fit", {"system": "predictddl"}, {"name": "by-graph", "rows": NETWORKS}),
    "predictddl/encoder": ("encoder", {}, KINDS["encoder"].example),
    "scavenger/search": ("search", {"searcher": "scavenger-partial"}, {
        **{k: v for k, v in KINDS["search"].example.items() if k != "searcher"},
    }),
}  # fmt: skip


_ANSWER = {
    "type": "object", "required": ["schema", "kind"],
    "properties": {"schema": {"const": SCHEMA}, "kind": {"type": "string"}},
}  # fmt: skip


def _inlined(schema: Any, defined: Mapping[str, Any] | None = None) -> Any:
    """Return the schema of a model with its parts in their places: what `$defs` names is not found in a document."""
    if isinstance(schema, list):
        return [_inlined(part, defined) for part in schema]
    if not isinstance(schema, dict):
        return schema
    defined = schema.get("$defs", {}) if defined is None else defined
    if "$ref" in schema:
        return _inlined(defined[schema["$ref"].rpartition("/")[2]], defined)
    return {name: _inlined(part, defined) for name, part in schema.items() if name != "$defs"}


def make_app(
    asked: Questions, limits: ServerLimits, desk: TaskDesk | None = None, audit: AuditLog | None = None
) -> FastAPI:  # fmt: skip
    """Return the routes; questions are answered in threads. desk: takes tasks; audit: the log that is shown."""
    pool = QuestionPool(limits)
    desk = desk or TaskDesk(asked, limits)
    app = FastAPI(
        title="forerun", version=listings.versions()["forerun"], description=_ABOUT,
        openapi_url="/v1/openapi.json", docs_url=None, redoc_url=None, redirect_slashes=False,
        dependencies=[Depends(_check_query)],
        responses={"200": {"description": "The answer", "content": {"application/json": {"schema": _ANSWER}}},
                   **{status: {"description": "What was asked, what was found, what to do next",
                               "content": {PROBLEM_JSON: {"schema": PROBLEM}}} for status in ("4XX", "5XX")}},
    )  # fmt: skip
    app.state.pool = pool
    for path in QUESTIONS:
        _add_question(app, path, asked, pool, desk)
    catalog = asked.advisor.catalog
    _add_list(app, "workload", listings.workload_rows())
    _add_list(app, "device", listings.with_sources(listings.device_rows(catalog), catalog))
    _add_list(app, "instance", listings.instance_rows(catalog))
    _add_list(app, "predictor", listings.registered_rows("predictors"))
    _add_list(app, "system", listings.registered_rows("systems"))
    _add_rest(app, asked, pool, desk)
    _add_tasks(app, desk, audit)
    for kind in (ForerunError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _refused)
    add_pages(app)
    described, bearer = app.openapi(), {"type": "http", "scheme": "bearer"}
    described.setdefault("components", {})["securitySchemes"] = {"token": bearer}
    described["security"] = [{}, {"token": []}]  # on this machine alone nobody needs one
    return app


async def _check_query(request: Request) -> None:
    """Raise RequestError for a parameter that the route does not have: a slip would ask for something else."""
    known = [parameter.alias for parameter in request.scope["route"].dependant.query_params]
    if slips := sorted(set(request.query_params) - set(known)):
        todo = f"use one of {', '.join(known)}" if known else "leave it out"
        raise RequestError(f"the parameter {slips[0][:80]!r}", "no such parameter", todo)


async def _refused(request: Request, error: Any) -> Response:
    todo, more = "see /v1/openapi.json for what there is", {}
    if isinstance(error, RequestValidationError):
        name, words = wrong(error.errors()[0])
        error = RequestError(f"the parameter {name.partition('.')[2]!r}", words, todo)
    elif isinstance(error, HTTPException):
        asked = f"{request.method} {request.url.path[:200]}"
        if error.status_code == 405:  # of all routes of the path, not of the first alone
            fit = [r for r in request.app.routes if r.matches(request.scope)[0] != Match.NONE]
            methods = {method for route in fit for method in route.methods}
            more = {"allow": ", ".join(sorted(methods))}
        error = HttpError(error.status_code, asked, str(error.detail).lower(), todo)
    elif isinstance(error, UnknownNameError) and (
        request.method == "GET" or request.url.path.endswith("/cancel")
    ):
        error = HttpError(404, error.asked, error.found, error.next_step)
    status, headers, body = problem(error)
    return Response(body, status, {**headers, **more})


def _answered(
    body: bytes, request: Request | None = None, cursor: str = "", status: int = 200, fresh: bool = False
) -> Response:  # fmt: skip
    """Return an answer, with the link to its next page where a cursor of that is given; fresh: it may change."""
    headers = {"cache-control": "no-store"} if fresh else {}
    if request is not None and cursor:
        url = request.url.include_query_params(cursor=cursor)
        headers["link"] = f'<{url.path}?{url.query}>; rel="next"'
    return Response(body, status, headers, media_type="application/json")


def _add_question(
    app: FastAPI, path: str, asked: Questions, pool: QuestionPool, desk: TaskDesk
) -> None:
    model, method, example = QUESTIONS[path]

    async def answer(request: Request) -> Response:
        body = await request.body()

        def ask() -> tuple[bytes, bool]:
            fields = fields_in(model, body)
            fresh = b'"model"' in body or path in _CHANGING  # a model may be fitted anew
            if path == "runs":
                return desk.keep_runs(fields, _idempotency(request)), fresh
            return method(asked.of(fields), fields), fresh

        found, fresh = await pool.answer(ask)
        return _answered(found, fresh=fresh)

    named = {"summary": method.__doc__, "operation_id": method.__name__}
    app.post(f"/v1/{path}", openapi_extra=_body_of(model, example, path == "runs"), **named)(answer)


def _body_of(model: Any, example: Any, once: bool = False) -> dict[str, Any]:
    """Return the description of a body; once: an idempotency key may be sent with it."""
    content = {"schema": _inlined(model.model_json_schema()), "example": example}
    words = "A new random text; with it the request is carried out at most once"
    key = {
        "in": "header", "name": "Idempotency-Key", "description": words,
        "schema": {"type": "string"},
    }  # fmt: skip
    return {
        "requestBody": {"required": True, "content": {"application/json": content}},
        "parameters": [key] * once,
    }


def _idempotency(request: Request) -> str:
    client = request.scope.get("forerun.client", "")
    return idempotency_of(request.headers.get("idempotency-key"), client)


def _add_list(app: FastAPI, kind: str, every: listings.Rows) -> None:
    def answer(
        request: Request, search: _Search = [], limit: _Limit = None, cursor: _Cursor = ""  # noqa: B006
    ) -> Response:  # fmt: skip
        rows = every
        for text in search:
            rows = listings.rows_with(kind, rows, text)
        start = place_in(cursor)
        end = len(rows) if limit is None else start + limit
        body = printed({f"{kind}s": rows[start:end]}, f"{kind}s")
        return _answered(body, request, str(end) if end < len(rows) else "")

    app.get(f"/v1/{kind}s", summary=f"The {kind}s that are known", operation_id=f"{kind}s")(answer)


def _add_rest(app: FastAPI, asked: Questions, pool: QuestionPool, desk: TaskDesk) -> None:
    rows = {row["name"]: row for row in listings.workload_rows()}

    async def workload(name: str) -> Response:
        if name.startswith("upload:"):
            return _answered(await pool.answer(lambda: asked.upload(name)))
        if name not in rows:
            raise UnknownNameError("workload", name[:80], rows)
        return _answered(printed({"workload": rows[name]}, "workload"))

    def version() -> Response:
        return _answered(printed({"versions": listings.versions()}, "version"))

    async def health() -> Response:
        return _answered(printed({"status": "ok"}, "health"), fresh=True)

    async def ready() -> Response:
        await desk.pool.answer(lambda: asked.store().count(where=["campaign=none"]))
        return _answered(printed({"status": "ok"}, "ready"), fresh=True)

    def now(ask: Callable[[], bytes]) -> Callable[[], Awaitable[Response]]:
        async def answer() -> Response:
            return _answered(await desk.pool.answer(ask), fresh=True)

        return answer

    async def runs(
        request: Request, where: _Where = [], limit: _Limit = 20, cursor: _Cursor = ""  # noqa: B006
    ) -> Response:  # fmt: skip
        body, after = await pool.answer(lambda: asked.runs(where, limit or 20, cursor))
        return _answered(body, request, after, fresh=True)

    async def upload(
        request: Request, name: _Name = "", seq_len: _Size = None, image_size: _Size = None,
        precision: _Name = "", optimizer: _Name = "",
    ) -> Response:  # fmt: skip
        body, kind = await request.body(), request.headers.get("content-type", "")
        sizes = {"seq_len": seq_len, "image_size": image_size}
        words = {"precision": precision or None, "optimizer": optimizer or None}
        answer = lambda: asked.keep_upload(kind, body, name, **sizes, **words)  # noqa: E731
        return _answered(await pool.answer(answer), fresh=True)

    schema = {"type": "string", "format": "binary"}
    contents = {kind: {"schema": schema} for kind in FORMS}
    app.post(
        "/v1/workloads", summary="Keep a workload that is sent as a file", operation_id="upload",
        openapi_extra={"requestBody": {"required": True, "content": contents}},
    )(upload)  # fmt: skip
    for path, answer, summary in (
        ("workloads/{name}", workload, "One named workload"),
        ("version", version, "The versions of forerun and its parts"),
        ("health", health, "Whether the process answers"),
        ("ready", ready, "Whether questions are answered and the store opens"),
        ("runs", runs, "The runs that are kept, newest first"),
        ("models", now(asked.models), "The models that answer"),
        ("uploads", now(asked.uploads), "The workloads that were uploaded, newest first"),
        ("leaderboard", now(desk.leaderboard), "The newest judgement of predictors on measured runs"),
    ):  # fmt: skip
        app.get(f"/v1/{path}", summary=summary)(answer)


def _add_start(app: FastAPI, path: str, desk: TaskDesk) -> None:
    what, more, example = STARTS[path]
    kind = KINDS[what]

    async def start(request: Request) -> Response:
        body, key = await request.body(), _idempotency(request)
        found, new, name = await desk.pool.answer(lambda: desk.add(what, body, key, more))
        answer = _answered(found, status=202 if new else 200, fresh=True)
        answer.headers["location"] = f"/v1/tasks/{name}"
        return answer

    named = {"summary": kind.carry.__doc__, "operation_id": path.replace("/", "_")}
    responses = {
        "202": {"description": "A new task"},
        "200": {"description": "The task of the same Idempotency-Key"},
    }
    app.post(
        f"/v1/{path}",
        openapi_extra=_body_of(kind.model, example, True),
        responses=responses,
        **named,
    )(start)


def _add_tasks(app: FastAPI, desk: TaskDesk, audit: AuditLog | None) -> None:
    for path in STARTS:
        _add_start(app, path, desk)

    async def tasks(
        request: Request, what: _Word = "", state: _Word = "", limit: _Limit = 20, cursor: _Cursor = ""
    ) -> Response:  # fmt: skip
        body, after = await desk.pool.answer(lambda: desk.page(what, state, limit or 20, cursor))
        return _answered(body, request, after, fresh=True)

    async def task(name: str) -> Response:
        return _answered(await desk.pool.answer(lambda: desk.get(name)), fresh=True)

    async def cancel(name: str) -> Response:
        return _answered(await desk.pool.answer(lambda: desk.cancel(name)), fresh=True)

    async def events(request: Request, name: str) -> Response:
        found = await desk.events(name, request.headers.get("last-event-id", ""))
        return StreamingResponse(found, headers={"cache-control": "no-store"}, media_type=EVENTS)

    async def log(request: Request, limit: _Limit = 100, cursor: _Cursor = "") -> Response:
        if audit is None:
            todo = "start it with one: forerun serve --audit FILE"
            raise HttpError(404, "the audit log", "the service keeps none", todo)
        lines, after = await desk.pool.answer(lambda: audit.newest(limit or 100, place_in(cursor)))
        return _answered(printed({"lines": lines}, "audit"), request, str(after or ""), fresh=True)

    app.get("/v1/tasks", summary="The tasks, newest first")(tasks)
    app.get("/v1/tasks/{name}", summary="One task, with what it found")(task)
    app.post("/v1/tasks/{name}/cancel", summary="Cancel a task")(cancel)
    app.get("/v1/tasks/{name}/events", summary="What happens to a task, as server-sent events")(
        events
    )
    app.get("/v1/audit", summary="The newest lines of the audit log")(log)


def run(app: Any, listening: socket.socket, desk: TaskDesk) -> None:
    """Serve an application on a socket that listens, until a signal ends it. desk: whose streams then end."""
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, ws="none", timeout_graceful_shutdown=10,
        timeout_keep_alive=_IDLE_SECONDS, limit_concurrency=_CONNECTIONS, http=GuardedConnection, proxy_headers=False,
    )  # fmt: skip
    server = uvicorn.Server(config)
    desk.closing = lambda: server.should_exit
    server.run(sockets=[listening])
