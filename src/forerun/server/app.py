"""The service's routes: an application of FastAPI, to which `Front` lets requests in."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.routing import Match

from forerun.advisor import listings
from forerun.errors import ForerunError, RequestError, UnknownNameError
from forerun.server import questions
from forerun.server.connections import GuardedConnection
from forerun.server.limits import QuestionPool, ServerLimits
from forerun.server.pages import add_pages
from forerun.server.problems import PROBLEM, PROBLEM_JSON, HttpError, problem
from forerun.server.questions import Questions, fields_in, printed
from forerun.server.uploads import FORMS, NAME
from forerun.wire import SCHEMA

_Limit = Annotated[int | None, Query(ge=1, le=10_000, description="The most rows of a page")]
_Cursor = Annotated[str, Query(max_length=100, description="As in the link to the next page")]
_Search = Annotated[
    list[str], Query(max_length=8, description="Rows that hold each of these texts")
]
_Where = Annotated[list[str], Query(max_length=20, description="Conditions such as devices<=8")]
_Name = Annotated[str, Query(max_length=80, pattern=r"^[\w.@+-]*$")]
_Size = Annotated[int | None, Query(ge=1, le=100_000_000)]
_IDLE_SECONDS, _CONNECTIONS = 30, 2000
_ABOUT = """Time, cost and memory of a distributed training job before it runs. Bodies have the names of
the arguments in Python; answers are what the command line prints with --json."""


_JOB = {
    "workload": "resnet50",
    "cluster": "1x8xa100-sxm-80gb",
    "framework": "pytorch",
    "epochs": 90,
}
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
    "support": (questions.SUPPORT, Questions.support, {"workload": "llama3-8b", "seq_len": 4096}),
    "compare": (questions.COMPARE, Questions.compare, {"jobs": [_JOB, _OTHER]}),
    "runs": (questions.RUNS, Questions.keep_runs, {"rows": [_RUN], "campaign": "first"}),
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


def make_app(asked: Questions, limits: ServerLimits) -> FastAPI:
    """Return the routes; questions are answered in threads."""
    pool = QuestionPool(limits)
    app = FastAPI(
        title="forerun", version=listings.versions()["forerun"], description=_ABOUT,
        openapi_url="/v1/openapi.json", docs_url=None, redoc_url=None, redirect_slashes=False,
        responses={"200": {"description": "The answer", "content": {"application/json": {"schema": _ANSWER}}},
                   **{status: {"description": "What was asked, what was found, what to do next",
                               "content": {PROBLEM_JSON: {"schema": PROBLEM}}} for status in ("4XX", "5XX")}},
    )  # fmt: skip
    for path in QUESTIONS:
        _add_question(app, path, asked, pool)
    catalog = asked.advisor.catalog
    _add_list(app, "workload", listings.workload_rows())
    _add_list(app, "device", listings.with_sources(listings.device_rows(catalog), catalog))
    _add_list(app, "instance", listings.instance_rows(catalog))
    _add_list(app, "predictor", listings.registered_rows("predictors"))
    _add_list(app, "system", listings.registered_rows("systems"))
    _add_rest(app, asked, pool)
    for kind in (ForerunError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _refused)
    add_pages(app)
    return app


async def _refused(request: Request, error: Any) -> Response:
    todo, more = "see /v1/openapi.json for what there is", {}
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        asked = f"the parameter {'.'.join(map(str, first['loc'][1:]))}"
        error = RequestError(asked, first["msg"], todo)
    elif isinstance(error, HTTPException):
        asked = f"{request.method} {request.url.path[:200]}"
        if error.status_code == 405:  # of all routes of the path, not of the first alone
            fit = [r for r in request.app.routes if r.matches(request.scope)[0] != Match.NONE]
            more = {
                "allow": ", ".join(sorted({method for route in fit for method in route.methods}))
            }
        error = HttpError(error.status_code, asked, str(error.detail).lower(), todo)
    elif isinstance(error, UnknownNameError) and request.method == "GET":
        error = HttpError(404, error.asked, error.found, error.next_step)
    status, headers, body = problem(error)
    return Response(body, status, {**headers, **more})


def _answered(body: bytes, request: Request | None = None, cursor: str = "") -> Response:
    """Return an answer, with the link to its next page where a cursor of that is given."""
    headers = {}
    if request is not None and cursor:
        url = request.url.include_query_params(cursor=cursor)
        headers["link"] = f'<{url.path}?{url.query}>; rel="next"'
    return Response(body, headers=headers, media_type="application/json")


def _add_question(app: FastAPI, path: str, asked: Questions, pool: QuestionPool) -> None:
    model, method, example = QUESTIONS[path]

    async def answer(request: Request) -> Response:
        body = await request.body()
        return _answered(await pool.answer(lambda: method(asked, fields_in(model, body))))

    content = {"schema": _inlined(model.model_json_schema()), "example": example}
    body = {"required": True, "content": {"application/json": content}}
    named = {"summary": method.__doc__, "operation_id": method.__name__}
    app.post(f"/v1/{path}", openapi_extra={"requestBody": body}, **named)(answer)


def _add_list(app: FastAPI, kind: str, every: listings.Rows) -> None:
    def answer(
        request: Request, search: _Search = [], limit: _Limit = None, cursor: _Cursor = ""  # noqa: B006
    ) -> Response:  # fmt: skip
        rows = every
        for text in search:
            rows = listings.rows_with(kind, rows, text)
        if cursor and not (cursor.isascii() and cursor.isdigit()):
            raise RequestError(f"the cursor {cursor!r}", "none of this list", "follow its links")
        start = int(cursor or 0)
        end = len(rows) if limit is None else start + limit
        body = printed({f"{kind}s": rows[start:end]}, f"{kind}s")
        return _answered(body, request, str(end) if end < len(rows) else "")

    app.get(f"/v1/{kind}s", summary=f"The {kind}s that are known", operation_id=f"{kind}s")(answer)


def _add_rest(app: FastAPI, asked: Questions, pool: QuestionPool) -> None:
    rows = {row["name"]: row for row in listings.workload_rows()}

    async def workload(name: str) -> Response:
        if NAME.fullmatch(name):
            return _answered(await pool.answer(lambda: asked.upload(name)))
        if name not in rows:
            raise UnknownNameError("workload", name[:80], rows)
        return _answered(printed({"workload": rows[name]}, "workload"))

    def version() -> Response:
        return _answered(printed({"versions": listings.versions()}, "version"))

    async def health() -> Response:
        return _answered(printed({"status": "ok"}, "health"))

    async def ready() -> Response:
        await pool.answer(lambda: asked.store().count(where=["campaign=none"]))
        return _answered(printed({"status": "ok"}, "ready"))

    async def runs(
        request: Request, where: _Where = [], limit: _Limit = 20, cursor: _Cursor = ""  # noqa: B006
    ) -> Response:  # fmt: skip
        body, after = await pool.answer(lambda: asked.runs(where, limit or 20, cursor))
        return _answered(body, request, after)

    async def upload(
        request: Request, name: _Name = "", seq_len: _Size = None, image_size: _Size = None,
        precision: _Name = "", optimizer: _Name = "",
    ) -> Response:  # fmt: skip
        body, kind = await request.body(), request.headers.get("content-type", "")
        sizes = {"seq_len": seq_len, "image_size": image_size}
        words = {"precision": precision or None, "optimizer": optimizer or None}
        answer = lambda: asked.keep_upload(kind, body, name, **sizes, **words)  # noqa: E731
        return _answered(await pool.answer(answer))

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
    ):  # fmt: skip
        app.get(f"/v1/{path}", summary=summary)(answer)


def run(app: Any, listening: socket.socket) -> None:
    """Serve an application on a socket that listens, until a signal ends it."""
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, ws="none", timeout_graceful_shutdown=10,
        timeout_keep_alive=_IDLE_SECONDS, limit_concurrency=_CONNECTIONS, http=GuardedConnection,
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[listening])
