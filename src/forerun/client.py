"""Client: asks a service what the functions of this package answer, with the same arguments and the same answers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np

from forerun import wire
from forerun.advisor.answer import Answer, Explanation, Support, items_of
from forerun.domain.objective import Objective, Preemption
from forerun.domain.plan import Plan
from forerun.domain.recommendation import Recommendation
from forerun.domain.workload import Length
from forerun.errors import ForerunError, RequestError, UnknownNameError, UnsatisfiedError, optional
from forerun.tables import Table

Json = dict[str, Any]
_TRIES, _LONGEST_WAIT_SECONDS = 4, 60  # of a request; a longer wait is the caller's
_CONNECT_SECONDS, _ANSWER_SECONDS, _QUIET_SECONDS = 10.0, 150.0, 60.0  # _QUIET: between events
_PAGE, _BATCH, _EVENTS_PAUSE_SECONDS = 1000, 100_000, 0.5
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def _call(
    path: str, body: Any = None, query: Sequence[tuple[str, str]] = (), safe: bool = True, **headers: str
) -> tuple[bool, Json]:  # fmt: skip
    """Return how httpx sends a request; safe: it may be sent again, as nothing or one and the same thing comes of it."""
    sent = {name.replace("_", "-"): value for name, value in headers.items() if value}
    asked = {"url": f"/v1/{path}", "params": list(query), "headers": sent}
    if body is None:
        return safe, {"method": "GET", **asked}
    sent["content-type"] = "application/json"
    return safe, {"method": "POST", "content": wire.dumps(body, None).encode(), **asked}


# What asks: it yields seconds to wait and a request, is sent its reply or failure, and returns an answer.
_Flow = Generator[tuple[float, Json], Any, Any]


def _tried(safe: bool, call: Json) -> _Flow:
    """Return the JSON of a reply and the cursor of its next page; what may be sent again is, a few times."""
    wait, left = 0.0, _TRIES
    while True:
        reply, left = (yield wait, call), left - 1
        if isinstance(reply, Exception):
            if not left or not safe or type(reply).__name__ == "ReadTimeout":
                raise _unreachable(reply)
            wait = max(0.2, 2.5 * wait)
            continue
        after, status = reply.headers.get("retry-after", ""), reply.status_code
        again = status == 429 or (status == 503 and safe)
        if not (left and again and after.isdigit() and int(after) <= _LONGEST_WAIT_SECONDS):
            link = reply.links.get("next", {}).get("url", "")
            cursor = reply.url.join(link).params.get("cursor", "") if link else ""
            return _checked(reply), cursor
        wait = float(after)


def _unreachable(error: Exception) -> RequestError:
    url = error.request.url  # type: ignore[attr-defined]
    asked = f"the service at {url.scheme}://{url.netloc.decode()}"
    if "Timeout" in type(error).__name__:
        found, todo = ("it did not answer in time", "ask for less, or give the client a longer timeout=")  # fmt: skip
    else:
        words = str(error).partition("] ")[2] or str(error) or "the connection broke"
        found = f"it cannot be reached: {words[:1].lower()}{words[1:]}"
        todo = "start it with `forerun serve`, or correct the address (--server, FORERUN_SERVER)"
    return RequestError(asked, found, todo)


def _checked(reply: Any) -> Any:
    """Return the JSON of a reply. Raises the error that a problem describes."""
    kind = _PassingError if reply.status_code in (429, 502, 503) else RequestError
    try:
        found = json.loads(reply.content)
        if reply.status_code < 400:
            return found
        own = [found[name] for name in ("asked", "found", "next")]
        parts = tuple(map(str, found.get("command_line", own)))
    except (ValueError, KeyError, TypeError):
        status = f"{reply.status_code} {reply.reason_phrase}".strip()
        raise kind(
            f"{reply.request.method} {reply.request.url.copy_with(query=None)}",
            f"no answer of forerun ({status})",
            "look whether the address is that of a service, and what a proxy before it does",
        ) from None
    if found.get("error") == "UnsatisfiedError":
        raise UnsatisfiedError(*parts)
    raise (_NoSuchNameError if found.get("error") == "UnknownNameError" else kind)(*parts)


class _PassingError(RequestError):
    """A refusal that may be gone in a moment."""


class _NoSuchNameError(UnknownNameError):
    """An `UnknownNameError` in the words of a service."""

    def __init__(self, asked: str, found: str, next_step: str) -> None:
        ForerunError.__init__(self, asked, found, next_step)
        self.nearest = []


def _sent_workload(given: Any) -> Any:
    """Return a workload as a body has it: a name, or the content of a file."""
    if isinstance(given, Mapping):
        return dict(given)
    if not isinstance(given, str | Path):
        found, todo = "a service gets names and files", "give a name, a config.json or a YAML spec"
        raise RequestError(f"a workload of type {type(given).__name__}", found, todo)
    text, path = str(given), Path(given).expanduser()
    if text.lower().endswith((".yaml", ".yml")):
        from forerun.yaml_files import read_yaml

        content, _ = read_yaml(path, f"the spec {text}", "give the path of a YAML spec")
        named = isinstance(content, Mapping)
        return {"spec": {"name": path.stem, **content} if named else content}
    if text.lower().endswith(".json") or (path / "config.json").is_file():
        file = path / "config.json" if path.is_dir() else path
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            if not content.get("_name_or_path"):
                content["_name_or_path"] = file.resolve().parent.name
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            found = getattr(error, "strerror", None) or "it is no JSON object"
            raise RequestError(f"the configuration {text}", found, "give a config.json") from None
        return {"config": content}
    if text.lower().endswith(".onnx"):
        todo = "ask without a server, or give a config.json or a YAML spec"
        raise RequestError(f"the workload {text}", "a service takes no .onnx file here", todo)
    return text


def _body(asked: Mapping[str, Any]) -> Json:
    """Return arguments of `Advisor`'s methods as fields of a body; what is None is left out."""
    body = {name: value for name, value in asked.items() if value is not None}
    if "workload" in body:
        body["workload"] = _sent_workload(body["workload"])
    objective = body.pop("objective", None)
    if isinstance(objective, Objective):
        stated = vars(objective)
        own = ("confidence", "fit_confidence", "market", "preemption")
        body |= {"minimize": objective.aim, **{name: stated[name] for name in own}}
        if objective.deadline_seconds is not None:  # with its unit, as a bare number may mean hours
            body["deadline"] = f"{objective.deadline_seconds!r}s"
        if objective.budget_dollars is not None:
            body["budget"] = objective.budget_dollars
    if isinstance(length := body.pop("length", None), Length):
        body[length.unit] = length.count
    if isinstance(lost := body.get("preemption"), Preemption):
        body["preemption"] = {name: v for name, v in vars(lost).items() if v is not None}
    if isinstance(plan := body.get("plan"), Plan):
        body["plan"] = plan.as_dict()
    for name in ("clusters", "providers", "devices", "exclude"):
        if name in body:
            body[name] = items_of(body[name])
    for name in ("inputs", "cluster", "clusters"):
        if name in body and not all(isinstance(one, str) for one in items_of(body[name])):
            todo = "name it in text, such as 1x8xa100-sxm-80gb"
            raise RequestError(f"{name} of an object in Python", "a service gets text", todo)
    return body


def _question(path: str, kind: type, asked: Mapping[str, Any], by: Callable[[Json], None]) -> _Flow:
    """Return the object that answers a question; by: is given who answered."""
    found, _ = yield from _tried(*_call(path, {**_body(asked), "objects": True}))
    try:
        by(found["by"])
        return wire.read(kind, found["object"])
    except (KeyError, TypeError, ValueError, AttributeError):
        theirs, own = found.get("by", {}).get("forerun", "an older one"), version("forerun")
        words = f"it cannot be read: it is of forerun {theirs}, and this is {own}"
        todo = "install the same version, or take its JSON (Client.ask)"
        raise RequestError("the answer of the service", words, todo) from None


def _batch(table: Any, asked: Mapping[str, Any], summary: Callable[[Json], None]) -> _Flow:
    """Return a table with answers; summary: is given what else each part's answer says."""
    table = _table(table)
    columns = columns_of(table)
    parts: list[dict[str, list[Any]]] = []
    for start in range(0, max(len(table), 1), _BATCH):
        cells = {name: column[start : start + _BATCH] for name, column in columns.items()}
        body = {**_body(asked), "columns": cells}
        found, _ = yield from _tried(*_call("predict/batch", body))
        parts.append(found.pop("columns"))
        summary(found)
    cells = {name: [cell for part in parts for cell in part[name]] for name in parts[0]}
    return table.with_columns(**{name: _column(column) for name, column in cells.items()})


def _column(cells: list[Any]) -> Any:
    """Return a column of an answer as a table has it; null is NaN, or of texts none."""
    if any(isinstance(cell, str) for cell in cells):
        return np.array(["" if cell is None else cell for cell in cells], dtype=object)
    return np.array(cells, dtype=np.float64)


def answered_rows(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return rows of an answer as a table."""
    names = dict.fromkeys(name for row in rows for name in row)
    return Table({name: _column([row.get(name) for row in rows]) for name in names}, len(rows))


def _table(given: Any) -> Table:
    """Return a table, or the one of a file."""
    from forerun.tables import read_table

    return given if isinstance(given, Table) else read_table(given)


def columns_of(given: Any) -> dict[str, list[Any]]:
    """Return the cells of a table, a file or several as JSON has them, null for blank ones; columns as they are."""
    if isinstance(given, Mapping):
        return dict(given)
    parts = [_table(one) for one in (given if isinstance(given, list | tuple) else [given])]
    found: dict[str, list[Any]] = {name: [] for part in parts for name in part.columns}
    for part in parts:
        for name, cells in found.items():
            column = part.unread.get(name, part.columns.get(name, np.full(len(part), "", object)))
            cells += [None if cell == "" or cell != cell else cell for cell in column.tolist()]
    return found


def _pages(path: str, query: Sequence[tuple[str, str]], kind: str, most: int | None, name: str = "") -> _Flow:  # fmt: skip
    """Return a list's answer with the rows of all its pages, at most so many; name: one member of it."""
    answer: Json = {}
    cursor = ""
    while True:
        left = _PAGE if most is None else min(_PAGE, most - len(answer.get(kind, ())))
        page = [*query, ("limit", str(left)), *([("cursor", cursor)] if cursor else [])]
        found, cursor = yield from _tried(*_call(path, query=page))
        answer = answer or {**found, kind: []}
        answer[kind] += found[kind]
        if not cursor or (most is not None and len(answer[kind]) >= most):
            return answer[name] if name else answer


def _json(call: tuple[bool, Json], name: str = "") -> _Flow:
    """Return what a request answers, or one member of it."""
    found, _ = yield from _tried(*call)
    return found[name] if name else found


class _EventReader:
    """Reads server-sent events line by line, and knows how to go on after the connection broke."""

    def __init__(self) -> None:
        self._last, self._broken = "", 0  # the last event that came whole
        self._id, self._name, self._data = "", "", list[str]()

    def feed(self, line: str) -> tuple[str, Any] | None:
        """Return an event and its data where the line ends one."""
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "id":
            self._id = value
        elif name == "event":
            self._name = value
        elif name == "data":
            self._data.append(value)
        elif not line and self._data:
            event = (self._name, json.loads("\n".join(self._data)))
            self._last, self._name, self._data, self._broken = self._id, "", [], 0
            return event
        return None

    def call(self, task: str) -> Json:
        """Return the request for the events that come next."""
        self._id, self._name, self._data = self._last, "", []
        return _call(f"tasks/{quote(task, safe='')}/events", last_event_id=self._last)[1]

    def pause(self, error: Exception | None) -> float:
        """Return the seconds until it is tried again. Raises RequestError where it broke too often."""
        self._broken += 1
        if self._broken >= _TRIES:
            if error is not None:
                raise error if isinstance(error, RequestError) else _unreachable(error)
            found, todo = "it ended before the task did", "look at the service's log"
            raise RequestError("the stream of events", found, todo)
        return _EVENTS_PAUSE_SECONDS * self._broken


class _Asking:
    """What both clients ask; `_run` of each carries it out."""

    _always: Mapping[str, Any] = MappingProxyType({})  # of each question

    def __init__(self, url: str, token: str = "", timeout: float = _ANSWER_SECONDS) -> None:
        with optional("asking a service", "httpx", "client"):
            import httpx
        self._httpx = httpx
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            found, todo = "it is no address of a service", "write e.g. http://127.0.0.1:8080"
            shown = parts._replace(netloc=parts.hostname or "").geturl()  # without a password
            raise RequestError(f"the server {shown!r}", found, todo)
        base = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"
        sent = {"authorization": f"Bearer {token}"} if token else {}
        self._settings: Json = {
            "base_url": base, "headers": {"user-agent": f"forerun/{version('forerun')}", **sent},
            "timeout": httpx.Timeout(timeout, connect=_CONNECT_SECONDS),
            "trust_env": parts.hostname not in LOOPBACK,  # no proxy for this machine
        }  # fmt: skip
        self._quiet = httpx.Timeout(_QUIET_SECONDS, connect=_CONNECT_SECONDS)
        self._url = base

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r})"

    def _run(self, flow: _Flow) -> Any:
        raise NotImplementedError

    def _asked(self, path: str, kind: type, **asked: Any) -> Any:
        return self._run(_question(path, kind, {**self._always, **asked}, self._by))

    def predict(self, workload: Any, cluster: Any, plan: Any = None, **asked: Any) -> Any:
        """Return an `Answer`, as `forerun.predict` does of the same arguments."""
        return self._asked("predict", Answer, workload=workload, cluster=cluster, plan=plan, **asked)  # fmt: skip

    def explain(self, workload: Any, cluster: Any, plan: Any = None, **asked: Any) -> Any:
        """Return an `Explanation`, as `forerun.explain` does."""
        named = {"workload": workload, "cluster": cluster, "plan": plan}
        return self._asked("explain", Explanation, **named, **asked)

    def recommend(self, workload: Any, **asked: Any) -> Any:
        """Return a `Recommendation`, as `forerun.recommend` does; limits that nothing meets are no error."""
        return self._asked("recommend", Recommendation, workload=workload, **asked)

    def support(self, workload: Any, **changes: Any) -> Any:
        """Return what is covered for a workload, as `Advisor.support` does."""
        return self._run(_question("support", Support, {"workload": workload, **changes}, self._by))

    def suggest(
        self, workload: Any = None, candidates: Any = None, asked: Any = None, runs: Any = None, **stated: Any
    ) -> Any:  # fmt: skip
        """Return as JSON the next runs among candidates, or for the choice of a workload's cluster and plan.

        candidates, asked, runs: a table or file, or several. stated: fields of POST /v1/suggest.
        """
        tables = {"candidates": candidates, "asked": asked, "runs": runs}
        body: Json = {n: {"columns": columns_of(t)} for n, t in tables.items() if t is not None}
        body = {**self._always, "workload": workload, **stated, **body.pop("candidates", {}), **body}  # fmt: skip
        return self._run(_json(_call("suggest", _body(body))))

    def predict_table(self, table: Any, **asked: Any) -> Any:
        """Return a `Table` (or file's table) with answers, as `forerun.predict_table` does; any number of rows."""
        return self._run(_batch(table, {**self._always, **asked}, self._by))

    def compare(self, *jobs: Mapping[str, Any]) -> Any:
        """Return two to eight jobs, each the arguments of `predict`, side by side as JSON."""
        return self._run(_json(_call("compare", {"jobs": [_body(job) for job in jobs]})))

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the JSON of any route (`predict`, `version`): with a body by POST, else by GET."""
        return self._run(_json(_call(path, body, safe=body is None)))

    def listing(self, kind: str, *search: str, limit: int | None = None) -> Any:
        """Return the `workloads`, `devices`, `instances`, `predictors` or `systems` that hold texts, as rows."""
        query = [("search", text) for text in search]
        return self._run(_pages(kind, query, kind, limit, kind))

    def keep_runs(self, table: Any, campaign: str = "", key: str = "") -> Any:
        """Keep the measured runs of a table, and return how many were new, as JSON; key: for at most once."""
        body = {"columns": columns_of(table), "campaign": campaign}
        return self._run(_json(_call("runs", body, safe=bool(key), idempotency_key=key)))

    def runs(self, where: Sequence[str] = (), limit: int | None = None) -> Any:
        """Return the newest kept runs that meet conditions, as JSON with all `runs` up to a limit."""
        query = [("where", text) for text in items_of(where)]
        return self._run(_pages("runs", query, "runs", limit))

    def start_task(self, what: str, body: Mapping[str, Any], key: str = "") -> Any:
        """Start long work (docs/serving.md) and return it; with the key of one that was started, that one."""
        path = f"tasks/{quote(what, safe='')}"
        return self._run(_json(_call(path, body, safe=bool(key), idempotency_key=key), "task"))

    def task(self, task: str) -> Any:
        """Return a task by its id, with its result where it is done."""
        return self._run(_json(_call(f"tasks/{quote(task, safe='')}"), "task"))

    def tasks(self, what: str = "", state: str = "", limit: int | None = None) -> Any:
        """Return tasks without their results, newest first."""
        query = [(name, value) for name, value in (("what", what), ("state", state)) if value]
        return self._run(_pages("tasks", query, "tasks", limit, "tasks"))

    def cancel(self, task: str) -> Any:
        """Cancel a task and return it."""
        return self._run(_json(_call(f"tasks/{quote(task, safe='')}/cancel", {}), "task"))

    def _by(self, about: Json) -> None:
        """Look at who answered, or what else an answer says."""


def finished(data: Any) -> Json:
    """Return a finished task. Raises what made it fail."""
    if problem := data.get("problem"):
        kind = UnsatisfiedError if problem.get("error") == "UnsatisfiedError" else RequestError
        raise kind(*(str(problem[part]) for part in ("asked", "found", "next")))
    if data.get("state") != "done":
        todo = "start it again, with another key where it had one"
        raise RequestError(f"the task {data.get('id')}", f"it is {data.get('state')}", todo)
    return dict(data)


class Client(_Asking):
    """Asks the service at a URL, each call until it is answered; `with` closes its connections.

    Methods have the names and arguments of this package's functions and give their answers. Errors are those of
    the functions. timeout: seconds until an answer; 10 s to connect. GET and questions are sent again where the
    connection fails, all that is refused for its rate after the time that the service names; long work and runs
    only with a key, which makes them at most once.

    Raises:
        RequestError: a request is wrong, or the service cannot be reached.
        UnsatisfiedError: nothing satisfies the request.
    """

    def __init__(self, url: str, token: str = "", timeout: float = _ANSWER_SECONDS) -> None:
        super().__init__(url, token, timeout)
        self._http = self._httpx.Client(**self._settings)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _run(self, flow: _Flow) -> Any:
        found: Any = None
        while True:
            try:
                wait, call = flow.send(found)
            except StopIteration as end:
                return end.value
            time.sleep(wait)
            try:
                found = self._http.request(**call)
            except self._httpx.TransportError as error:
                found = error

    def events(self, task: str) -> Iterator[tuple[str, Any]]:
        """Yield a task's events and their data until it ends, over connections that break."""
        reader = _EventReader()
        while True:
            broke: Exception | None = None
            try:
                with self._http.stream(**reader.call(task), timeout=self._quiet) as reply:
                    if reply.status_code != 200:
                        reply.read()
                        _checked(reply)
                    for event in filter(None, map(reader.feed, reply.iter_lines())):
                        yield event
                        if event[0] == "end":
                            return
            except (self._httpx.TransportError, _PassingError) as error:
                broke = error
            time.sleep(reader.pause(broke))

    def wait(self, task: str, told: Callable[[str, Any], None] = lambda name, data: None) -> Json:
        """Return a task when it is done, with its result; told: called with each event. Raises where it failed."""
        for name, data in self.events(task):
            told(name, data)
        return finished(self.task(task))


class AsyncClient(_Asking):
    """`Client` for asyncio: each method is awaited, `events` is an asynchronous iterator."""

    def __init__(self, url: str, token: str = "", timeout: float = _ANSWER_SECONDS) -> None:
        super().__init__(url, token, timeout)
        self._http = self._httpx.AsyncClient(**self._settings)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _run(self, flow: _Flow) -> Any:
        found: Any = None
        while True:
            try:
                wait, call = flow.send(found)
            except StopIteration as end:
                return end.value
            await asyncio.sleep(wait)
            try:
                found = await self._http.request(**call)
            except self._httpx.TransportError as error:
                found = error

    async def events(self, task: str) -> AsyncIterator[tuple[str, Any]]:
        """Yield a task's events and their data until it ends, over connections that break."""
        reader = _EventReader()
        while True:
            broke: Exception | None = None
            try:
                async with self._http.stream(**reader.call(task), timeout=self._quiet) as reply:
                    if reply.status_code != 200:
                        await reply.aread()
                        _checked(reply)
                    async for line in reply.aiter_lines():
                        if (event := reader.feed(line)) is not None:
                            yield event
                            if event[0] == "end":
                                return
            except (self._httpx.TransportError, _PassingError) as error:
                broke = error
            await asyncio.sleep(reader.pause(broke))

    async def wait(self, task: str, told: Callable[[str, Any], None] = lambda name, data: None) -> Json:  # fmt: skip
        """Return a task when it is done, as `Client.wait`."""
        async for name, data in self.events(task):
            told(name, data)
        return finished(await self.task(task))
