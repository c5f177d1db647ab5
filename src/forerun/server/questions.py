"""Questions: bodies of requests, whose fields are the arguments of `Advisor`'s methods, and their answers."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import fields as fields_of
from dataclasses import replace
from functools import cache, lru_cache, partial
from hashlib import sha256
from importlib.metadata import version
from inspect import signature
from tempfile import NamedTemporaryFile
from types import MappingProxyType
from typing import Any, Literal, get_type_hints

import orjson
from pydantic import ConfigDict, Field, ValidationError, conlist, create_model

from forerun import registry, wire
from forerun.advisor import Advisor
from forerun.advisor.answer import Answer, JobRequest, limits_of, taken_apart
from forerun.advisor.comparing import check_number, side_by_side
from forerun.advisor.recommending import recommendation_json
from forerun.advisor.tabular import OUTPUT_COLUMNS, summary_of
from forerun.domain.objective import Objective, Preemption
from forerun.domain.workload import Length, Workload
from forerun.errors import (
    ForerunError,
    MissingExtraError,
    RequestError,
    UnavailableError,
    UnknownNameError,
    nearest_names,
)
from forerun.predictors.options import known_by
from forerun.progress import report_progress
from forerun.server import uploads
from forerun.server.problems import HttpError, wrong
from forerun.server.uploads import sound
from forerun.settings import Settings
from forerun.store import open_store
from forerun.tables import Runs, Table
from forerun.tables.table import measured_rows, unknown_columns
from forerun.workloads.hf_config import workload_from_hf_config
from forerun.workloads.resolve import CHANGES, checked_changes
from forerun.workloads.rows import jobs_from_table
from forerun.workloads.spec import workload_from_spec
from forerun.workloads.zoo import find_entry, zoo_names

MOST_ROWS, _MOST_UPLOADS, _KEPT_UPLOADS = 100_000, 16, 1000  # of a batch; in memory; in the store
_STORE_SECONDS = 5.0  # that a question waits for another writer: less than others wait for it
SERVED, MODEL = "served", "model"  # the name of the model that is served; the kind of artifacts of others  # fmt: skip
_MOST_MODELS = 8  # that are kept in memory
Fields = dict[str, Any]
_NOTHING: Mapping[str, Any] = MappingProxyType({})
# What no request may hold: what is read from files, is no JSON, or is stated by other fields.
_WITHHELD = ("inputs", "length", "objective", "request", "return")
_NO_NAME = re.compile(r"[/\\:\0]|\.(json|ya?ml|onnx|py|pkl|pt|pth)$", re.IGNORECASE)
_CONFIG_CHANGES = ("seq_len", "precision", "optimizer")
# In the name of a predictor: an option that is a file.
_FILE = re.compile(r"[/\\\0~]|\.[A-Za-z]|encoder\s*=(?!(digits|(graphormer-)?(quantities|residual))([:,]|$))")  # fmt: skip


def closed(name: str, fields: Mapping[str, Any]) -> Any:
    """Return the model of a body that has these fields, (type, default) by name, and no other."""
    config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    return create_model(name, __config__=config, **fields)


_LOST = closed("Preemption", {f.name: (float | None, None) for f in fields_of(Preemption)})
# Fields whose annotation in Python allows what is no JSON.
_TYPES: Mapping[str, Any] = {
    "workload": (str | dict[str, dict[str, Any]], ...), "cluster": (str, ...),
    "plan": (str | dict[str, str | int | float | bool] | None, None),
    "clusters": (list[str] | None, None), "preemption": (_LOST | None, None),
    "market": (str | None, None), "confidence": (float | None, None),
    "max_devices": (int | None, None),
}  # fmt: skip
_MODEL: Fields = {"model": (str | None, Field(None, max_length=80))}  # that answers, of /v1/models  # fmt: skip
_OBJECTS = {"objects": (bool, Field(False, description="The objects themselves, for forerun.Client"))}  # fmt: skip
_REQUEST = {name: (kind, None) for name, kind in get_type_hints(JobRequest).items()}


def _arguments(method: Callable[..., Any]) -> dict[str, Any]:
    """Return the fields of a body by the arguments of a method of `Advisor`."""
    usual = {name: p.default for name, p in signature(method).parameters.items()}
    fields = {name: (kind, usual.get(name)) for name, kind in get_type_hints(method).items()}
    fields |= {"preemption": _TYPES["preemption"], **_REQUEST}
    return {**_MODEL, **{n: _TYPES.get(n, field) for n, field in fields.items() if n not in _WITHHELD}}  # fmt: skip


ROWS: Fields = {
    "rows": (list[dict[str, str | float | bool | None]] | None, Field(None, max_length=MOST_ROWS)),
    "columns": (dict[str, list[Any]] | None, None),  # their cells are looked at as they are read
}
PREDICT = closed("Predict", {**_arguments(Advisor.predict), **_OBJECTS})
_SURE = {"fit_confidence": _TYPES["confidence"]}
RECOMMEND = closed("Recommend", {**_arguments(Advisor.recommend), **_SURE, **_OBJECTS})
_SUBJECT = {n: _TYPES.get(n) or _REQUEST[n] for n in ("workload", *CHANGES)}
SUPPORT = closed("Support", {**_SUBJECT, **_OBJECTS})
COMPARE = closed("Compare", {"jobs": (conlist(PREDICT, min_length=1), ...)})
BATCH = closed("Batch", {
    **ROWS, **_MODEL, **{unit: _REQUEST[unit] for unit in Length.UNITS}, "goodput": (float | None, None),
    "market": _TYPES["market"], "preemption": _TYPES["preemption"],
})  # fmt: skip
JOBS = closed("Jobs", ROWS)
_TABLE = (JOBS | None, None)
SUGGEST = closed("Suggest", {
    **{n: field for n, field in _arguments(Advisor.recommend).items() if n not in ("confidence", "energy", "emit")},
    **ROWS, "workload": (str | dict[str, dict[str, Any]] | None, None), "asked": _TABLE, "runs": _TABLE,
    "where": (conlist(str, max_length=20) | None, None), "goal": (Literal["accuracy", "decision"] | None, None),
    "criterion": (Literal["V", "A", "D"] | None, None), "minimize": (Literal["time", "cost"], "cost"),
    **{n: (int | None, Field(None, ge=1, le=10_000_000)) for n in ("count", "run_steps")},
    "times": (float | None, Field(None, gt=0)), "predictor": (str | None, None), "own_columns": (str, ""),
})  # fmt: skip
RUNS = closed("Runs", {**ROWS, "campaign": (str, "")})


def fields_in(model: Any, body: bytes, more: Mapping[str, Any] = _NOTHING) -> Fields:
    """Return the fields that a body states, and more. Raises RequestError where they are not the model's."""
    try:
        found = orjson.loads(body)
        found = {**found, **more} if isinstance(found, dict) else found
    except orjson.JSONDecodeError as error:
        raise RequestError("the body", f"it is not JSON: {error}", "send one JSON object") from None
    try:
        model.model_validate(found)
    except ValidationError as error:
        every = error.errors(include_url=False, include_input=False)
        first = min(every, key=lambda one: one["type"] != "extra_forbidden")  # slips before lacks
        name, words = wrong(first)
        asked = f"the field {name[:200]!r}" if name else "the body"
        todo = "see /v1/openapi.json for the fields, and an example"
        if first["type"] == "extra_forbidden":
            above = name.split(".")[:-1]
            known = _LOST if "preemption" in above else PREDICT if "jobs" in above else model
            near = nearest_names(str(first["loc"][-1]), known.model_fields) or known.model_fields
            words, todo = "no such field", f"use one of {', '.join(near)}"
        raise RequestError(asked, words, todo) from None
    return dict(found)


def check_predictor(name: str) -> None:
    """Raise RequestError where a predictor's name would have a file read, UnknownNameError where there is none such."""
    if _FILE.search(name):
        found = "no file is read for a request"
        raise RequestError(f"the predictor {name[:80]!r}", found, "leave that option out")
    if name:
        registry.load("predictors", name.partition(":")[0])


def has_table(body: Fields) -> bool:
    """Return whether a body has rows or columns."""
    return body.get("rows") is not None or body.get("columns") is not None


def printed(body: Any, kind: str = "") -> bytes:
    """Return JSON as the command line prints it; kind: for a body that does not state its own."""
    head = {"schema": wire.SCHEMA, "kind": kind} if kind else {}
    return f"{wire.dumps({**head, **body})}\n".encode()


def _opened(place: str) -> Any:
    """Return the store. Raises UnavailableError: nobody who asks can mend it."""
    try:
        return open_store(place, _STORE_SECONDS)
    except MissingExtraError:
        raise
    except RequestError as error:
        raise UnavailableError(error.asked, error.found, error.next_step) from None


class Questions:
    """Answers to what `fields_in` returns, as bytes of JSON. Each method raises what that of `Advisor` does."""

    def __init__(self, advisor: Advisor, settings: Settings, store: str = "") -> None:
        self.advisor, self._settings, self.place = advisor, settings, store
        self.store = cache(lambda: _opened(store))  # not before it is asked
        self._uploaded = lru_cache(_MOST_UPLOADS)(self._read_upload)
        self._controller: Any = None  # keeps what it has read of the store
        self._of_models = OrderedDict[str, Questions]()
        named = "" if settings.origins["predictor"] == "default" else "predictor"
        is_fitted = bool(settings.text("model")) or advisor.runs is not None
        self._named = "model" if is_fitted else named  # what says who answers, "" for nothing

    def of(self, body: Fields) -> Questions:
        """Take the model that a body names out of it, and return who answers by that. Raises UnknownNameError."""
        name = body.pop("model", None)
        if name in (None, SERVED):
            return self
        artifacts = self.store().artifacts
        known = {one.name: one.digest for one in artifacts.every(MODEL)}
        if name not in known:
            raise UnknownNameError("model", name, [SERVED, *known])
        if (found := self._of_models.get(digest := known[name])) is None:
            with NamedTemporaryFile(suffix=".json") as file:
                file.write(artifacts.read(digest))
                file.flush()
                advisor = Advisor(self.advisor.catalog_files, fitted=file.name)
            found = Questions(advisor, self._settings, self.place)
            found.store, found._named = self.store, "model"
        self._of_models[digest] = found
        self._of_models.move_to_end(digest)
        if len(self._of_models) > _MOST_MODELS:
            self._of_models.popitem(last=False)
        return found

    def models(self) -> bytes:
        """Return the models that answer: the one that is served, and those that tasks fitted."""
        kept = {one.name: one for one in self.store().artifacts.every(MODEL)}
        own = {"name": SERVED, "predictor": self.advisor.predictor.name, "created": None, "size_bytes": None,
               "runs": None if self.advisor.made is None else len(self.advisor.made), "task": None}  # fmt: skip
        rows = [
            {"name": one.name, "created": one.created, "size_bytes": one.size_bytes, **orjson.loads(one.command)}
            for one in reversed(kept.values())
        ]  # fmt: skip
        return printed({"models": [own, *rows]}, "models")

    def predict(self, body: Fields) -> bytes:
        """Return the time, cost and memory of one job."""
        return self._shown(body, self.advisor.predict(**self._job(body)))

    def explain(self, body: Fields) -> bytes:
        """Return where a step's time and memory go."""
        return self._shown(body, self.advisor.explain(**self._job(body)))

    def support(self, body: Fields) -> bytes:
        """Return what is covered for a workload."""
        return self._shown(body, self.advisor.support(**self._subject(body)))

    def _shown(self, body: Fields, found: Any) -> bytes:
        """Return an answer as printed, or itself with who gave it, of which a client makes the same."""
        if not body.get("objects"):
            return printed(found.to_json())
        about = {"forerun": version("forerun"), **known_by(self.advisor.predictor)}
        return printed({"by": about, "object": wire.exact(found)}, "object")

    def recommend(
        self, body: Fields, by: Callable[..., Any] = lambda work, **given: work(**given)
    ) -> bytes:
        """Return cluster, plan and batch; `best` is null where nothing satisfies the limits.

        by: calls what computes, here or elsewhere.
        """
        asked, settings = self._job(body), self._settings
        objective = Objective(
            aim=asked.pop("minimize", "cost"), market=asked.pop("market"), preemption=self._lost(asked),
            **vars(limits_of(asked.pop("deadline", None), asked.pop("budget", None))),
            **{n: asked.pop(n, settings.number(n)) for n in ("confidence", "fit_confidence")},
        )  # fmt: skip
        asked.setdefault("max_devices", int(settings["max_devices"]))
        found, name = by(self.advisor.recommend, objective=objective, **asked), asked["workload"]
        if body.get("objects"):
            return self._shown(body, found)
        for shown in filter(None, (*found.near_misses[:1], found.best)):
            name = shown.job.workload.name
        name = name.name if isinstance(name, Workload) else name
        return printed(recommendation_json(self.advisor.predictor, name, found))

    def suggest(self, body: Fields) -> bytes:
        """Return the runs that improve the answers most for their price, with the reason of each."""
        from forerun.advisor import next_runs
        from forerun.predictors.choice.auto import MANY_RUNS

        workload, predictor = body.get("workload"), body.get("predictor") or ""
        check_predictor(predictor)
        next_runs.check_asked(workload, has_table(body), body)
        asked = self._job(body)
        limits = limits_of(asked.pop("deadline", None), asked.pop("budget", None))
        length, asked = taken_apart(None, asked)
        stated = {**{name: asked.pop(name, None) for name in next_runs.STATED}, "budget": limits.budget_dollars}  # fmt: skip
        for name in (*ROWS, "asked", "runs", "where", "predictor", "own_columns"):
            asked.pop(name, None)
        sent = {**(body.get("runs") or {}), "where": body.get("where")}
        runs = [] if body.get("runs") is None is sent["where"] else [self.measured(sent)]
        parts = (body if workload is None else None, body.get("asked"))
        tables = [None if part is None else self.table(part) for part in parts]
        named, own = "predictor" if predictor else self._named, body.get("own_columns", "")
        advisor = Advisor(self.advisor.catalog_files, predictor) if predictor else self.advisor
        if runs and len(runs[0]) >= MANY_RUNS:
            todo = "fit a model to them by POST /v1/tasks/fit, and name that"
            raise RequestError(f"{len(runs[0]):,} runs", "so many take long to learn from", todo)

        def fit(before: Advisor) -> Advisor:
            report_progress("fits the runs")
            return before.fit(*runs, own_columns=own)

        asked.setdefault("max_devices", int(self._settings["max_devices"]))
        found = next_runs.next_runs(
            partial(next_runs.fitted_advisor, advisor, runs, named, fit, own, ""), asked.pop("workload", None), tables, stated,
            limits.deadline_seconds, length, preemption=self._lost(asked), **asked,
        )  # fmt: skip
        return printed(next_runs.suggestion_json(found), "suggestion")

    def measured(self, body: Fields) -> Runs:
        """Return the runs of a body's table, or those of the store, that meet its conditions. Raises RequestError."""
        from forerun.advisor.given_runs import runs_in
        from forerun.evaluate import parse_condition, rows_where
        from forerun.workloads.rows import runs_from_table

        where, catalog = tuple(body.get("where") or ()), self.advisor.catalog
        if has_table(body):
            runs = runs_from_table(self.table(body), catalog)
            return rows_where(runs, [parse_condition(text) for text in where], "the request")
        if not (runs := runs_in(self.store(), catalog, where)):
            raise RequestError("the runs", "the store has none such", "see /v1/runs, or send rows")
        return runs

    def compare(self, body: Fields) -> bytes:
        """Return up to eight jobs side by side; those that cannot be are listed with the reason."""
        check_number(len(body["jobs"]))
        answers, refused = list[Answer](), list[tuple[str, ForerunError]]()
        for job in body["jobs"]:
            try:
                by = self.of(job := dict(job))
                answers.append(by.advisor.predict(**by._job(job)))
            except UnknownNameError:
                raise
            except ForerunError as error:
                names = ("workload", "cluster", "plan", "global_batch", "micro_batch", *CHANGES)
                words = [str(job[name]) for name in names if isinstance(job.get(name), str | int)]
                refused.append((", ".join(words), error))
        if not answers:
            raise refused[0][1]
        reasons = [{"job": words, "reason": str(error)} for words, error in refused]
        return printed({**side_by_side(answers).to_json(), "refused": reasons})

    def batch(self, body: Fields) -> bytes:
        """Return a table of jobs with answers: rows for rows, the added columns alone for columns."""
        length, _ = taken_apart(None, {unit: body.get(unit) for unit in Length.UNITS})
        answered = self.advisor.predict_table(
            self.table(body), length=length, market=body.get("market") or self._settings.text("market"),
            goodput=body.get("goodput"), preemption=self._preemption(body),
        )  # fmt: skip
        if body.get("columns") is None:
            return printed(summary_of(self.advisor, answered), "table")
        head = {"schema": wire.SCHEMA, "kind": "table"}
        summary = wire.clean({**head, **summary_of(self.advisor, answered, out="")})
        found = {name: answered.columns[name] for name in OUTPUT_COLUMNS}
        summary["columns"] = {n: c.tolist() if c.dtype == object else c for n, c in found.items()}
        del summary["out"]
        return bytes(orjson.dumps(summary, option=orjson.OPT_SERIALIZE_NUMPY))  # NaN is null

    def keep_runs(self, body: Fields) -> bytes:
        """Keep measured runs, all of them or none."""
        table = self.table(body)
        runs = measured_rows("the request", table)
        (added,) = self.store().add_tables([runs], campaign=body.get("campaign", ""))
        unread = 0 if runs.problems is None else sum(p is not None for p in runs.problems)
        counts = {
            "new": added.new, "known_already": added.known, "no_run": len(table) - len(runs),
            "unknown_columns": unknown_columns(table.columns),
        }  # fmt: skip
        file = {"file": "the request", "rows": len(table), **counts, "unread": unread}
        return printed({"store": self.store().where, "files": [file]}, "import")

    def predictddl(self, body: Fields) -> bytes:
        """Return what PredictDDL's controller answers for jobs, by what was trained for their types of dataset."""
        from forerun.systems.predictddl import Controller

        jobs = jobs_from_table(self.table(body), self.advisor.catalog)
        self._controller = self._controller or Controller.over(self.store())
        found = self._controller.answer(jobs)
        rows = [
            {"step_seconds": wire.quantiles(seconds), "declined": declined or None}
            for seconds, declined in zip(found.seconds, found.declined.tolist(), strict=True)
        ]
        return printed({"rows": rows}, "predictddl")

    def keep_upload(self, content_type: str, content: bytes, name: str, **changes: Any) -> bytes:
        """Keep a workload that is sent as a file; the answer names it for questions."""
        text = uploads.read_upload(content_type, content, name, changes)
        name = f"upload:{sha256(text).hexdigest()[:32]}"
        self.store().artifacts.put(name, text, kind="upload")
        self.store().artifacts.keep_newest("upload", _KEPT_UPLOADS)
        return self.upload(name)

    def upload(self, name: str) -> bytes:
        """Return a workload that was uploaded. Raises UnknownNameError."""
        return printed({"upload": name, "workload": self._uploaded(name)}, "workload")

    def _read_upload(self, name: str) -> Workload:
        unknown = UnknownNameError("upload", name[:80], [], "(POST it to /v1/workloads)")
        if not uploads.NAME.fullmatch(name):
            raise unknown
        try:
            text = self.store().artifacts.read(name)
        except UnknownNameError:
            raise unknown from None
        workload: Workload = wire.read(Workload, orjson.loads(text))
        return workload

    def uploads(self) -> bytes:
        """Return the names of the workloads that were uploaded, the newest first."""
        kept = reversed(self.store().artifacts.every("upload"))
        rows = [{"upload": one.name, "created": one.created, "size_bytes": one.size_bytes} for one in kept]  # fmt: skip
        return printed({"uploads": rows}, "uploads")

    def runs(self, where: list[str], limit: int, after: str) -> tuple[bytes, str]:
        """Return the newest runs that meet conditions, and the cursor of the next page or ""."""
        from forerun.store.queries import why_none

        store = self.store()
        count = store.count(where=where)
        table = store.table(where=where, limit=limit + 1, newest=True, provenance=True, after=after)
        rows = [table.row(i) for i in range(min(len(table), limit))]
        why = [] if count or not store.count() else why_none(store, where)
        body = {"store": store.where, "count": count, "why_none": why, "runs": rows}
        return printed(body, "runs"), str(rows[-1]["run_key"]) if len(table) > limit else ""

    def _job(self, body: Fields) -> Fields:
        """Return a body as arguments of `Advisor`, with the settings' market and region."""
        usual = {name: self._settings.text(name) for name in ("market", "region")}
        return {**usual, **self._subject(body), "preemption": self._preemption(body)}

    @staticmethod
    def _preemption(body: Fields) -> Preemption | None:
        stated = {n: v for n, v in (body.get("preemption") or {}).items() if v is not None}
        return Preemption(**stated) if stated else None

    @staticmethod
    def _lost(asked: Fields) -> Preemption:
        """Take what is lost to preemption and the like out of the arguments."""
        lost = asked.pop("preemption") or Preemption()
        return replace(lost, goodput=asked.pop("goodput", lost.goodput))

    def _subject(self, body: Fields) -> Fields:
        """Return what a body states, its workload a known name or a Workload: no file is looked for."""
        asked = {n: value for n, value in body.items() if value is not None and n not in _OBJECTS}
        if (given := asked.get("workload")) is None:
            return asked
        if isinstance(given, str) and given.startswith("upload:"):
            return {**asked, "workload": self._uploaded(given)}
        if isinstance(given, str):
            self._check_name(given)
            return asked
        if len(given) != 1 or not given.keys() <= {"config", "spec"}:
            todo = 'give a name, {"config": {...}}, or {"spec": {...}} (docs/spec.md)'
            raise RequestError("the workload", "an object that is neither config nor spec", todo)
        ((kind, content),) = given.items()
        with sound(f"the workload's {kind}"):
            if kind == "spec":
                return {**asked, "workload": workload_from_spec(content)}
            shaping = {name: asked.pop(name) for name in _CONFIG_CHANGES if name in asked}
            workload = workload_from_hf_config(content, **checked_changes(shaping))
            return {**asked, "workload": workload}

    def _check_name(self, name: str) -> None:
        if _NO_NAME.search(name):
            raise RequestError(
                f"the workload {name[:80]!r}", "no file or module is read for a request",
                'give a name of /v1/workloads, {"config": {...}} or {"spec": {...}}',
            )  # fmt: skip
        own = self.advisor.made is not None and self.advisor.labels.has_own(name)
        if not own and find_entry(name) is None:
            raise UnknownNameError("workload", name[:80], zoo_names())

    @staticmethod
    def table(body: Fields) -> Table:
        """Return the rows or the columns of a body as a table. Raises RequestError."""
        rows, columns = body.get("rows"), body.get("columns")
        if (rows is None) == (columns is None) or not (rows or any((columns or {}).values())):
            raise RequestError("the body", "not one of rows and columns", "give either, not empty")
        if columns is None:
            return Table.from_rows(rows or (), "the request")
        if max(map(len, columns.values())) > MOST_ROWS:
            found = f"there are more than {MOST_ROWS:,} rows"
            raise HttpError(413, "the columns", found, "send them in parts")
        if any({list, dict} & set(map(type, column)) for column in columns.values()):
            found = "a cell is a list or an object"
            raise RequestError("the columns", found, "give texts, numbers or null")
        return Table.from_columns(columns, "the request")
