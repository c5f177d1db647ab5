"""Questions: bodies of requests, whose fields are the arguments of `Advisor`'s methods, and their answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields as fields_of_dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_type_hints

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from forerun import wire
from forerun.advisor import Advisor
from forerun.advisor.answer import Answer, JobRequest, taken_apart
from forerun.domain.objective import Objective, Preemption
from forerun.errors import ForerunError, RequestError, UnknownNameError
from forerun.server.problems import HttpProblem, unknown_field
from forerun.settings import Settings
from forerun.tables import Table
from forerun.workloads.resolve import CHANGES, SHAPING, checked_changes
from forerun.workloads.zoo import find_entry, zoo_names

if TYPE_CHECKING:
    from forerun.store.sql_store import SqlStore

MOST_ROWS = 100_000
Fields = dict[str, Any]
# What no request may hold: what is read from files or is no JSON, and what other fields say.
_WITHHELD = ("inputs", "length", "objective", "request", "return")
_NO_NAME = re.compile(r"[/\\:\0]|\.(json|ya?ml|onnx|py|pkl|pt|pth)$", re.IGNORECASE)
_CLOSED = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def _closed(name: str, **fields: Any) -> type[BaseModel]:
    return create_model(name, __config__=_CLOSED, **fields)


_LOST = _closed(
    "Preemption", **{f.name: (float | None, None) for f in fields_of_dataclass(Preemption)}
)
_OPEN_PLAN = str | dict[str, str | int | float | bool] | None
# Fields whose annotation in Python allows what is no JSON.
_TYPES: Mapping[str, Any] = {
    "workload": (str | dict[str, dict[str, Any]], ...), "cluster": (str, ...), "plan": (_OPEN_PLAN, None),
    "clusters": (list[str] | None, None), "preemption": (_LOST | None, None), "market": (str | None, None),
    "confidence": (float | None, None), "max_devices": (int | None, None),
}  # fmt: skip


def _arguments(method: Callable[..., Any], **more: Any) -> Fields:
    """Return the fields of a body by the arguments of a method of `Advisor`."""
    from inspect import signature

    defaults = {name: p.default for name, p in signature(method).parameters.items()}
    hints = {**get_type_hints(method), **get_type_hints(JobRequest)}
    usual = {name: (kind, defaults.get(name)) for name, kind in hints.items()}
    return {
        name: _TYPES.get(name, field)
        for name, field in {**usual, **more}.items() if name not in _WITHHELD
    }  # fmt: skip


_LENGTHS = {unit: (float | str | None, None) for unit in ("steps", "samples", "tokens", "epochs")}
_CELL = str | float | bool | None
_ROWS: Fields = {
    "rows": (list[dict[str, _CELL]] | None, Field(None, max_length=MOST_ROWS)),
    # Columns are checked as they are read: a model would look at each cell.
    "columns": (dict[str, list[Any]] | None, None),
}
PredictBody = _closed("PredictBody", **_arguments(Advisor.predict))
RecommendBody = _closed("RecommendBody", **_arguments(
    Advisor.recommend, fit_confidence=(float | None, None), preemption=()
))  # fmt: skip
SupportBody = _closed("SupportBody", workload=_TYPES["workload"], **{
    name: (kind, None) for name, kind in get_type_hints(JobRequest).items() if name in CHANGES
})  # fmt: skip
CompareBody = _closed("CompareBody", jobs=(list[PredictBody], Field(min_length=1)))
BatchBody = _closed("BatchBody", **_ROWS, **_LENGTHS, market=(str | None, None),
                    goodput=(float | None, None), preemption=_TYPES["preemption"])  # fmt: skip
RunsBody = _closed("RunsBody", **_ROWS, campaign=(str, ""))


def read_body(model: type[BaseModel], body: bytes) -> Fields:
    """Return the fields that a body states. Raises RequestError where they are not the model's."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError("the body", f"it is not JSON: {error}", "send one JSON object") from None
    if not isinstance(found, dict):
        raise RequestError("the body", "it is no JSON object", "send an object of fields")
    try:
        model.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))[:200]
        if first["type"] == "extra_forbidden":
            known = PredictBody if first["loc"][0] == "jobs" else model
            if "preemption" in first["loc"][:-1]:
                known = _LOST
            name = str(first["loc"][-1])
            raise unknown_field(name, list(known.model_fields), "the body") from None
        todo = "see /v1/openapi.json for the fields and an example"
        raise RequestError(f"the field {where}", first["msg"], todo) from None
    return found


def json_of(body: Any) -> bytes:
    """Return an answer as the command line prints it with `--json`."""
    return wire.dumps(body).encode() + b"\n"


class Questions:
    """Answers bodies that `read_body` has read, as bytes of JSON. Each raises what its method of `Advisor` does."""

    def __init__(self, advisor: Advisor, settings: Settings, store: str = "") -> None:
        self.advisor = advisor
        self._settings = settings
        self._store = store

    def predict(self, body: Fields) -> bytes:
        """Return the time, cost and memory of one job."""
        return json_of(self._answer(body).to_json())

    def explain(self, body: Fields) -> bytes:
        """Return where a step's time and memory go."""
        return json_of(self.advisor.explain(**self._job(body)).to_json())

    def support(self, body: Fields) -> bytes:
        """Return what is covered for a workload."""
        return json_of(self.advisor.support(**self._subject(body)).to_json())

    def recommend(self, body: Fields) -> bytes:
        """Return cluster, plan and batch; `best` is null where nothing satisfies the limits."""
        from forerun.advisor.answer import limits_of
        from forerun.advisor.recommending import recommendation_json

        asked = self._job(body)
        settings = self._settings
        goodput = {} if body.get("goodput") is None else {"goodput": asked.pop("goodput")}
        lost = {**vars(asked.pop("preemption", None) or Preemption()), **goodput}
        objective = Objective(
            aim=asked.pop("minimize", "cost"), market=asked.pop("market"), preemption=Preemption(**lost),
            **vars(limits_of(asked.pop("deadline", None), asked.pop("budget", None))),
            **{n: asked.pop(n, settings.number(n)) for n in ("confidence", "fit_confidence")},
        )  # fmt: skip
        asked.setdefault("max_devices", int(settings["max_devices"]))
        name, found = asked["workload"], self.advisor.recommend(objective=objective, **asked)
        shown = next(filter(None, (found.best, *found.near_misses)), None)
        name = shown.job.workload.name if shown else getattr(name, "name", name)
        return json_of(recommendation_json(self.advisor.predictor, name, found))

    def compare(self, body: Fields) -> bytes:
        """Return up to eight jobs side by side; those that cannot be are listed with the reason."""
        from forerun.advisor.comparing import check_number, side_by_side

        check_number(len(body["jobs"]))
        answers, refused = list[Answer](), list[tuple[str, ForerunError]]()
        for job in body["jobs"]:
            try:
                answers.append(self._answer(job))
            except UnknownNameError:
                raise
            except ForerunError as error:
                names = ("workload", "cluster", "plan", "global_batch", "micro_batch", *CHANGES)
                words = [str(job[name]) for name in names if isinstance(job.get(name), str | int)]
                refused.append((", ".join(words), error))
        if not answers:
            raise refused[0][1]
        reasons = [{"job": words, "reason": str(error)} for words, error in refused]
        return json_of({**side_by_side(answers).to_json(), "refused": reasons})

    def batch(self, body: Fields) -> bytes:
        """Return a table of jobs with answers: rows for rows, the added columns alone for columns."""
        from forerun.advisor.tabular import OUTPUT_COLUMNS, summary_of

        table = self._table(body)
        length, _ = taken_apart(None, {unit: body.get(unit) for unit in _LENGTHS})
        answered = self.advisor.predict_table(
            table, length=length, market=body.get("market") or self._settings.text("market"),
            goodput=body.get("goodput"), preemption=self._preemption(body),
        )  # fmt: skip
        head = {"schema": wire.SCHEMA, "kind": "table"}
        if body.get("columns") is None:
            return json_of({**head, **summary_of(self.advisor, answered)})
        summary = wire.clean(summary_of(self.advisor, answered, out=""))
        del summary["out"]
        found = {name: answered.columns[name] for name in OUTPUT_COLUMNS}
        columns = {n: c.tolist() if c.dtype == object else c for n, c in found.items()}
        whole = {**head, **summary, "columns": columns}
        return bytes(orjson.dumps(whole, option=orjson.OPT_SERIALIZE_NUMPY))  # NaN is null

    def keep_runs(self, body: Fields) -> bytes:
        """Keep measured runs, all of them or none."""
        from forerun.tables.table import measured_rows

        table = self._table(body)
        runs = measured_rows("the request", table)
        (added,) = self.store.add_tables([runs], campaign=body.get("campaign", ""))
        bad = 0 if runs.problems is None else sum(p is not None for p in runs.problems)
        counts = {"rows": len(table), "new": added.new, "known_already": added.known,
                  "no_run": len(table) - len(runs), "unread": bad}  # fmt: skip
        head = {"schema": wire.SCHEMA, "kind": "import", "store": self.store.where}
        return json_of({**head, "files": [{"file": "the request", **counts}]})

    def runs(self, where: list[str], limit: int, after: str) -> tuple[bytes, str]:
        """Return the newest runs that meet conditions, and the cursor of the next page or ""."""
        from forerun.store.queries import why_none

        store, count = self.store, self.store.count(where=where)
        table = store.table(where=where, limit=limit + 1, newest=True, provenance=True, after=after)
        rows = [table.row(i) for i in range(min(len(table), limit))]
        body = {"schema": wire.SCHEMA, "kind": "runs", "store": store.where, "count": count,
                "why_none": [] if count or not store.count() else why_none(store, where), "runs": rows}  # fmt: skip
        return json_of(body), str(rows[-1]["run_key"]) if len(table) > limit else ""

    @cached_property
    def store(self) -> SqlStore:
        """The store of runs, opened when first needed."""
        from forerun.store import open_store

        return open_store(self._store)

    def _answer(self, body: Fields) -> Answer:
        return self.advisor.predict(**self._job(body))

    def _job(self, body: Fields) -> Fields:
        """Return a body as arguments of `Advisor`, with the settings' market and region."""
        asked = {**self._subject(body), "preemption": self._preemption(body)}
        for name in ("market", "region"):
            asked.setdefault(name, self._settings.text(name))
        return asked

    @staticmethod
    def _preemption(body: Fields) -> Preemption | None:
        stated = {n: v for n, v in (body.get("preemption") or {}).items() if v is not None}
        return Preemption(**stated) if stated else None

    def _subject(self, body: Fields) -> Fields:
        """Return what a body states, its workload by a name that is known or as a Workload. Nothing is opened."""
        asked = {name: value for name, value in body.items() if value is not None}
        given = asked["workload"]
        if isinstance(given, str):
            self._check_name(given)
            return asked
        if len(given) != 1 or not given.keys() <= {"config", "spec"}:
            todo = 'give a name, {"config": {...}} of HuggingFace, or {"spec": {...}} (docs/spec.md)'
            raise RequestError("the workload", f"an object of {', '.join(given) or 'nothing'}", todo)
        ((kind, content),) = given.items()
        shaping = {name: asked[name] for name in SHAPING if name in asked}
        try:
            if kind == "spec":
                from forerun.workloads.spec import workload_from_spec

                asked["workload"] = workload_from_spec(content)
                return asked
            from forerun.workloads.hf_config import workload_from_hf_config

            shaping = {name: asked.pop(name) for name in shaping if name != "image_size"}
            asked["workload"] = workload_from_hf_config(content, **checked_changes(shaping))
        except (TypeError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
            found = f"it cannot be read ({type(error).__name__}: {str(error)[:200]})"
            raise RequestError(f"the workload's {kind}", found, "correct its fields") from None
        return asked

    def _check_name(self, name: str) -> None:
        if _NO_NAME.search(name):
            raise RequestError(
                f"the workload {name[:80]!r}", "files and modules are not read here",
                'give a name of /v1/workloads, {"config": {...}} or {"spec": {...}}',
            )  # fmt: skip
        own = self.advisor.made is not None and self.advisor.labels.has_own(name)
        if not own and find_entry(name) is None:
            raise UnknownNameError("workload", name[:80], zoo_names())

    @staticmethod
    def _table(body: Fields) -> Table:
        rows, columns = body.get("rows"), body.get("columns")
        if (rows is None) == (columns is None):
            raise RequestError("the body", "not one of rows and columns", "give rows or columns")
        if columns is None:
            table = Table.from_rows(rows or [{}], "the request") if rows else None
        else:
            ((most, name),) = [max(((len(v), n) for n, v in columns.items()), default=(0, ""))]
            if most > MOST_ROWS:
                found = f"{most:,} cells in {name[:80]}"
                raise HttpProblem(413, "the columns", found, f"send at most {MOST_ROWS:,} rows at once")
            for column in columns.values():
                if any(map(_NO_CELL.__contains__, set(map(type, column)))):
                    raise RequestError("the columns", "a cell is a list or an object", "give texts and numbers")
            table = Table.from_columns(columns, "the request") if most else None
        if table is None:
            raise RequestError("the body", "no row is in it", "give one row or more")
        return table


_NO_CELL = frozenset((list, dict))
