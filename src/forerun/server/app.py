"""The service's routes, as an ASGI application behind a `Front`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from forerun import wire
from forerun.advisor import listings
from forerun.errors import ForerunError, RequestError, UnknownNameError
from forerun.server import problems, questions
from forerun.server.limits import QuestionPool, ServerLimits
from forerun.server.questions import Questions, json_of

Limit = Annotated[int | None, Query(ge=1, le=10_000, description="The most rows of a page.")]
Cursor = Annotated[str, Query(max_length=100, description="From the link to the next page.")]
Search = Annotated[str, Query(max_length=200, description="Only rows that hold this text.")]


@dataclass(frozen=True)
class Route:
    """A question: its path, the model of its body, an example that can be sent, and what answers."""

    path: str
    model: type[BaseModel]
    answer: Callable[[Questions, dict[str, Any]], bytes]
    summary: str
    example: dict[str, Any]


_JOB = {"workload": "resnet50", "cluster": "1x8xa100-sxm-80gb", "framework": "pytorch", "epochs": 90}
ROUTES = (
    Route("/v1/predict", questions.PredictBody, Questions.predict, "Time, cost and memory of one job", _JOB),
    Route("/v1/predict/batch", questions.BatchBody, Questions.batch,
          "Every row of a table, or its columns (docs/tables.md)",
          {"columns": {"workload": ["resnet50", "bert-large"], "framework": ["pytorch", "pytorch"],
                       "cluster": ["1x8xa100-sxm-80gb", "2x8xh100-sxm-80gb"], "global_batch": [512, 256]}}),
    Route("/v1/recommend", questions.RecommendBody, Questions.recommend, "Which cluster, plan and batch",
          {"workload": "resnet50", "clusters": ["1x8xa100-sxm-80gb", "1x8xh100-sxm-80gb"],
           "framework": "pytorch", "epochs": 90, "deadline": "24h"}),
    Route("/v1/explain", questions.PredictBody, Questions.explain, "Where a step's time and memory go", _JOB),
    Route("/v1/support", questions.SupportBody, Questions.support, "What is covered for a workload",
          {"workload": "llama3-8b", "seq_len": 4096}),
    Route("/v1/compare", questions.CompareBody, Questions.compare, "Up to eight jobs side by side",
          {"jobs": [_JOB, {**_JOB, "cluster": "1x8xh100-sxm-80gb"}]}),
    Route("/v1/runs", questions.RunsBody, Questions.keep_runs, "Keep measured runs, all of them or none",
          {"rows": [{"workload": "resnet50", "device": "a100-sxm-80gb", "devices": 8, "global_batch": 512,
                     "step_time_s": 0.21}], "campaign": "first"}),
)  # fmt: skip


def make_app(asked: Questions, limits: ServerLimits) -> FastAPI:
    """Return the routes, which answer in threads; `Front` reads bodies and lets nobody in uninvited."""
    pool = QuestionPool(limits)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        pool.close()

    app = FastAPI(
        title="forerun", version=listings.versions()["forerun"], openapi_url="/v1/openapi.json",
        docs_url=None, redoc_url=None, lifespan=lifespan,
        description="Time, cost and memory of a distributed training job before it runs. Bodies have the names of"
        " the arguments in Python; answers are what the command line prints with --json.",
    )  # fmt: skip
    for route in ROUTES:
        _add_question(app, route, asked, pool)
    _add_listings(app, asked)
    _add_runs(app, asked, pool)
    app.add_exception_handler(ForerunError, _refused)
    app.add_exception_handler(RequestValidationError, _wrong_query)
    app.add_exception_handler(HTTPException, _no_route)
    return app


def _problem(error: ForerunError) -> Response:
    status = problems.status_of(error)
    wait = getattr(error, "retry_seconds", 0)
    headers = {"Retry-After": str(wait)} if wait else None
    return Response(problems.document(error), status, headers, problems.CONTENT_TYPE)


async def _refused(request: Request, error: Any) -> Response:
    return _problem(error)


async def _wrong_query(request: Request, error: Any) -> Response:
    first = error.errors()[0]
    asked = f"the parameter {'.'.join(map(str, first['loc'][1:]))}"
    return _problem(RequestError(asked, first["msg"], "see /v1/openapi.json"))


async def _no_route(request: Request, error: Any) -> Response:
    asked = f"{request.method} {request.url.path[:200]}"
    todo = "see /v1/openapi.json for what there is"
    return _problem(problems.HttpProblem(error.status_code, asked, str(error.detail).lower(), todo))


def _answered(body: bytes, link: str = "") -> Response:
    return Response(body, headers={"Link": link} if link else None, media_type="application/json")


_PROBLEM = {"description": "A problem: what was asked, what was found, what to do next",
            "content": {problems.CONTENT_TYPE: {"schema": {"type": "object"}}}}  # fmt: skip


def _add_question(app: FastAPI, route: Route, asked: Questions, pool: QuestionPool) -> None:
    async def answer(request: Request) -> Response:
        body = await request.body()
        return _answered(
            await pool.answer(lambda: route.answer(asked, questions.read_body(route.model, body)))
        )

    schema = {"schema": route.model.model_json_schema(), "example": route.example}
    extra = {"requestBody": {"required": True, "content": {"application/json": schema}}}
    app.post(
        route.path, summary=route.summary, openapi_extra=extra,
        operation_id=route.answer.__name__, responses={"4XX": _PROBLEM},
    )(answer)  # fmt: skip


def _page(kind: str, rows: listings.Rows, request: Request, limit: int | None, cursor: str) -> Response:
    """Return the rows from a cursor on, all of them without a limit; the link names the next page."""
    if not (cursor.isascii() and cursor.isdigit()) and cursor:
        found = "it is no cursor of this list"
        raise RequestError(f"the cursor {cursor!r}", found, "follow the link to the next page")
    start = int(cursor or 0)
    end = len(rows) if limit is None else start + limit
    body = {"schema": wire.SCHEMA, "kind": f"{kind}s", f"{kind}s": rows[start:end]}
    return _answered(json_of(body), _next(request, str(end)) if end < len(rows) else "")


def _next(request: Request, cursor: str) -> str:
    url = request.url.include_query_params(cursor=cursor)
    return f'<{url.path}?{url.query}>; rel="next"'


def _add_listings(app: FastAPI, asked: Questions) -> None:
    catalog = asked.advisor.catalog

    def found(kind: str, rows: listings.Rows, search: str) -> listings.Rows:
        try:
            return listings.rows_with(kind, rows, search)
        except UnknownNameError as error:
            raise problems.missing(error) from None

    @app.get("/v1/workloads", summary="The named workloads")
    def workloads(request: Request, search: Search = "", limit: Limit = None, cursor: Cursor = "") -> Response:
        return _page("workload", found("workload", listings.workload_rows(), search), request, limit, cursor)

    @app.get("/v1/workloads/{name}", summary="One named workload")
    def workload(name: str) -> Response:
        from forerun.workloads.zoo import find_entry, zoo_names

        entry = None if "/" in name else find_entry(name)
        if entry is None:
            raise problems.missing(UnknownNameError("workload", name[:80], zoo_names()))
        (row,) = (row for row in listings.workload_rows() if row["name"] == entry.name)
        return _answered(json_of({"schema": wire.SCHEMA, "kind": "workload", "workload": row}))

    @app.get("/v1/devices", summary="The known accelerators and CPUs, with sources")
    def devices(request: Request, search: Search = "", limit: Limit = None, cursor: Cursor = "") -> Response:
        rows = found("device", listings.device_rows(catalog), search)
        return _page("device", listings.with_sources(rows, catalog), request, limit, cursor)

    @app.get("/v1/instances", summary="The known machines with their prices")
    def instances(
        request: Request, search: Search = "", device: Search = "", region: Search = "",
        limit: Limit = None, cursor: Cursor = "",
    ) -> Response:  # fmt: skip
        rows = found("instance", listings.instance_rows(catalog), search)
        wanted = {name: value for name, value in (("device", device), ("region", region)) if value}
        rows = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
        return _page("instance", rows, request, limit, cursor)

    @app.get("/v1/predictors", summary="The registered predictors")
    def predictors(request: Request, search: Search = "", limit: Limit = None, cursor: Cursor = "") -> Response:
        rows = found("predictor", listings.registered_rows("predictors"), search)
        return _page("predictor", rows, request, limit, cursor)

    @app.get("/v1/systems", summary="Published methods")
    def systems(request: Request, limit: Limit = None, cursor: Cursor = "") -> Response:
        return _page("system", listings.registered_rows("systems"), request, limit, cursor)

    @app.get("/v1/version", summary="The versions of forerun and its parts")
    def version() -> Response:
        body = {"schema": wire.SCHEMA, "kind": "version", "versions": listings.versions()}
        return _answered(json_of(body))

    @app.get("/v1/health", summary="Whether the process answers")
    async def health() -> Response:
        return _answered(json_of({"schema": wire.SCHEMA, "kind": "health", "status": "ok"}))


def _add_runs(app: FastAPI, asked: Questions, pool: QuestionPool) -> None:
    where = Query(default=[], max_length=20, description="A condition such as devices<=8.")

    @app.get("/v1/runs", summary="The runs that are kept, newest first")
    async def runs(
        request: Request, where: Annotated[list[str], where], limit: Limit = 20, cursor: Cursor = ""
    ) -> Response:
        try:
            body, after = await pool.answer(lambda: asked.runs(where, limit or 20, cursor))
        except UnknownNameError as error:
            raise problems.missing(error) from None
        return _answered(body, _next(request, after) if after else "")

    @app.get("/v1/ready", summary="Whether questions are answered and the store opens")
    async def ready() -> Response:
        await pool.answer(lambda: asked.store.count(where=["campaign=none"]))
        return _answered(json_of({"schema": wire.SCHEMA, "kind": "ready", "status": "ok"}))
