"""The client gives what the functions give, over a real service, and says what to do where it cannot."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import forerun
from forerun import AsyncClient, Client, wire
from forerun.client import _Asking
from forerun.domain.objective import Objective, Preemption
from forerun.domain.plan import Plan
from forerun.domain.workload import Length
from forerun.errors import ForerunError, RequestError, UnknownNameError, UnsatisfiedError
from forerun.server.task_kinds import KINDS
from forerun.tables import Table

JOB = {"workload": "resnet50", "cluster": "1x8xa100-sxm-80gb"}
SPEC = """
name: tiny
transformer: {layers: 4, hidden: 256, heads: 4, vocab: 1000, seq_len: 128}
length: {unit: steps, count: 100}
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve from a process of its own."""
    store = str(tmp_path_factory.mktemp("served") / "runs.db")
    words = ["serve", "--port", "0", "--store", store]
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "forerun", *words], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        yield found[0]
        process.terminate()


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[Client]:
    """Return a client of it."""
    with Client(url) as opened:
        yield opened


def _called(kind: type[_Asking], url: str, ask: Callable[[Any], Any], **named: Any) -> Any:
    """Return what a client of a kind answers."""
    if kind is Client:
        with Client(url, **named) as client:
            return ask(client)

    async def answer() -> Any:
        async with AsyncClient(url, **named) as client:
            return await ask(client)

    return asyncio.run(answer())


@pytest.fixture(params=[Client, AsyncClient])
def call(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Return a function that asks by a client, once of each kind."""
    return lambda url, ask, **named: _called(request.param, url, ask, **named)


def test_an_answer_is_that_of_the_function(call: Callable[..., Any], url: str) -> None:
    asked: dict[str, Any] = {**JOB, "framework": "pytorch", "epochs": 90, "deadline": "4h"}
    found, own = call(url, lambda client: client.predict(**asked)), forerun.predict(**asked)
    assert found.to_json() == own.to_json()
    assert (repr(found), found.limits, found.charts) == (repr(own), own.limits, own.charts)
    assert found.emit("torchrun") == own.emit("torchrun")


def test_objects_of_python_are_asked_as_their_text_is(client: Client) -> None:
    plan = Plan(dp=8, global_batch=512, micro_batch=64)
    lost = Preemption(startup_seconds=600.0)
    asked = {
        **JOB,
        "plan": plan,
        "length": Length("epochs", 3),
        "preemption": lost,
        "deadline": 3600,
    }
    own = forerun.predict(**asked)
    assert client.predict(**asked).to_json() == own.to_json()
    assert own.preemption == lost


def test_explanations_coverage_and_recommendations_are_those_of_the_functions(
    client: Client,
) -> None:
    clusters = "1x8xa100-sxm-80gb,1x8xh100-sxm-80gb"
    assert client.explain(**JOB).to_json() == forerun.explain(**JOB).to_json()
    own = forerun.Advisor().support("llama3-8b", seq_len=4096).to_json()
    assert client.support("llama3-8b", seq_len=4096).to_json() == own
    aim = Objective("time", deadline_seconds=50_000.0, market="spot", confidence=0.8)
    found = client.recommend("resnet50", clusters=clusters, objective=aim)
    same = forerun.recommend("resnet50", clusters=clusters, objective=aim)
    assert (found.objective, repr(found.best)) == (aim, repr(same.best))
    assert [wire.clean(o) for o in found.front] == [wire.clean(o) for o in same.front]
    nothing = client.recommend("resnet50", clusters=clusters, deadline="1s")
    assert nothing.best is None
    assert nothing.near_misses


def test_files_of_a_workload_are_sent_as_what_they_hold(client: Client, tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(SPEC)
    folder = tmp_path / "own-model"
    folder.mkdir()
    config = {"model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 8, "vocab_size": 32000,
              "num_attention_heads": 16, "intermediate_size": 2816, "max_position_embeddings": 2048}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    for given in (str(tmp_path / "tiny.yaml"), folder, str(folder / "config.json")):
        found = client.predict(given, JOB["cluster"], steps=10)
        own = forerun.predict(str(given), JOB["cluster"], steps=10)
        assert found.job.workload.name == own.job.workload.name
        assert found.step_seconds == own.step_seconds


def test_a_table_is_answered_as_by_the_function(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"workload": w, "cluster": JOB["cluster"], "global_batch": 512}
        for w in ("resnet50", "nobody", "vgg16")
    ]
    own = forerun.predict_table(Table.from_rows(rows))
    monkeypatch.setattr("forerun.client._BATCH", 2)  # so that it goes in parts
    found = client.predict_table(Table.from_rows(rows))
    assert list(found.columns) == list(own.columns)
    assert [found.row(i) for i in range(3)] == [own.row(i) for i in range(3)]
    assert found.texts("declined")[1]


def test_runs_are_kept_once_and_listed_over_pages(
    call: Callable[..., Any], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"workload": "resnet50", "device": "a100-sxm-80gb", "devices": n, "step_time_s": 0.2}
        for n in range(1, 6)
    ]
    call(url, lambda client: client.keep_runs(Table.from_rows(rows), "night"))
    again = call(url, lambda client: client.keep_runs(Table.from_rows(rows), "night"))
    assert (again["files"][0]["new"], again["files"][0]["known_already"]) == (0, 5)
    monkeypatch.setattr("forerun.client._PAGE", 2)
    found = call(url, lambda client: client.runs("campaign=night"))
    assert (found["count"], sorted(run["devices"] for run in found["runs"])) == (5, [1, 2, 3, 4, 5])
    assert len(call(url, lambda client: client.runs(limit=3))["runs"]) == 3


def test_lists_and_any_route_are_read(call: Callable[..., Any], url: str) -> None:
    found = call(url, lambda client: client.listing("instances", "h100", "us-east-1"))
    assert found
    assert all("us-east-1" in str(row) for row in found)
    assert call(url, lambda client: client.ask("version"))["versions"]["forerun"]


@pytest.mark.parametrize(
    ("kind", "words", "asked"),
    [
        (UnknownNameError, "did you mean resnet50", {**JOB, "workload": "resnet51"}),
        (RequestError, "'batch': no such field; use one of micro_batch", {**JOB, "batch": 3}),
        (UnsatisfiedError, "fits", {"workload": "mixtral-8x7b", "cluster": "1x8xv100-sxm2-16gb"}),
        (RequestError, "a workload of type object", {**JOB, "workload": object()}),
        (RequestError, "cluster of an object in Python", {**JOB, "cluster": 8}),
        (RequestError, "takes no .onnx file", {**JOB, "workload": "model.onnx"}),
        (RequestError, "Not a directory", {**JOB, "workload": f"{__file__}/none.json"}),
        (RequestError, "no file or module is read", {**JOB, "workload": "os:system"}),
    ],
)  # fmt: skip
def test_errors_are_those_of_the_functions(
    client: Client, kind: type[ForerunError], words: str, asked: dict[str, Any]
) -> None:
    with pytest.raises(kind, match=re.escape(words)) as caught:
        client.predict(**asked)
    assert type(caught.value).__mro__.index(kind) <= 1
    assert caught.value.exit_code == (3 if kind is UnsatisfiedError else 2)


@contextmanager
def scripted(*replies: Any) -> Iterator[tuple[str, list[Any]]]:
    """Serve replies (status, headers, body), one after the other; None breaks the connection off."""
    seen, left = list[Any](), list(replies)

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            size = int(self.headers.get("content-length", 0))
            seen.append((self.path, dict(self.headers), self.rfile.read(size)))
            reply = left.pop(0)
            if reply is None:
                self.close_connection = True
                self.connection.close()
                return
            status, headers, body = reply
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = answer  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", seen
    finally:
        server.shutdown()
        server.server_close()


PROBLEM = json.dumps({"asked": "a", "found": "b", "next": "c"}).encode()
OK = (200, {}, b'{"versions": 1}')
BUSY = (429, {"retry-after": "0"}, PROBLEM)


def test_what_is_safe_is_sent_again(call: Callable[..., Any]) -> None:
    with scripted(None, BUSY, (503, {"retry-after": "0"}, PROBLEM), OK) as (url, seen):
        assert call(url, lambda client: client.ask("version")) == {"versions": 1}
    assert len(seen) == 4


@pytest.mark.parametrize(
    ("replies", "sent", "words"),
    [
        ([None, OK], 1, "the service at http"),  # it may have been started
        ([(503, {"retry-after": "0"}, PROBLEM), OK], 1, "a: b; c"),
        ([BUSY, (201, {}, b'{"task": {"id": "t"}}')], 2, ""),  # it was not looked at
    ],
)
def test_a_task_without_a_key_is_started_once(
    call: Callable[..., Any], replies: list[Any], sent: int, words: str
) -> None:
    with scripted(*replies) as (url, seen):
        if words:
            with pytest.raises(RequestError, match=words):
                call(url, lambda client: client.start_task("fit", {}))
        else:
            assert call(url, lambda client: client.start_task("fit", {})) == {"id": "t"}
    assert len(seen) == sent


def test_a_task_with_a_key_is_sent_again_with_it(call: Callable[..., Any]) -> None:
    with scripted(None, (202, {}, b'{"task": {"id": "t"}}')) as (url, seen):
        found = call(url, lambda client: client.start_task("fit", {"a": 1}, key="mine"))
    assert found == {"id": "t"}
    assert [headers["idempotency-key"] for _, headers, _ in seen] == ["mine", "mine"]
    assert {body for _, _, body in seen} == {b'{"a": 1}'}


def test_a_refusal_is_not_repeated_for_ever(call: Callable[..., Any]) -> None:
    with scripted(*[BUSY] * 9) as (url, seen), pytest.raises(RequestError, match="a: b; c"):
        call(url, lambda client: client.ask("version"))
    assert len(seen) == 4
    long = (429, {"retry-after": "3600"}, PROBLEM)
    with scripted(long) as (url, _), pytest.raises(RequestError, match="a: b; c"):
        call(url, lambda client: client.ask("version"))


@pytest.mark.parametrize(
    "reply",
    [(502, {}, b"<html>bad gateway"), (200, {}, b"<html>"), (404, {}, b"{}"), (200, {}, b""), (500, {}, b"[]")],
)  # fmt: skip
def test_what_no_service_answers_is_named(call: Callable[..., Any], reply: Any) -> None:
    with scripted(reply) as (url, _), pytest.raises(RequestError, match="no answer of forerun"):
        call(url, lambda client: client.ask("version?a=secret"))


def test_an_answer_of_another_release_says_so() -> None:
    body = {"by": {"forerun": "99.0"}, "object": {"of": "the future"}}
    with (
        scripted((200, {}, json.dumps(body).encode())) as (url, _),
        pytest.raises(RequestError, match=r"99\.0.*install the same version"),
    ):
        _called(Client, url, lambda client: client.predict(**JOB))


def test_a_token_is_sent_and_never_shown(call: Callable[..., Any]) -> None:
    with scripted(OK) as (url, seen):
        call(url, lambda client: client.ask("version"), token="forerun_a_secret")
        with Client(url, token="forerun_a_secret") as shown:
            assert "secret" not in repr(shown)
    assert seen[0][1]["authorization"] == "Bearer forerun_a_secret"


def test_no_service_says_what_to_do(call: Callable[..., Any]) -> None:
    with pytest.raises(RequestError, match=r"cannot be reached.*; start it with `forerun serve`"):
        call("127.0.0.1:9", lambda client: client.start_task("fit", {}))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent_url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(RequestError, match="longer timeout="):
            call(silent_url, lambda client: client.ask("version"), timeout=0.1)
    for wrong in ("ftp://a", "http://", "http://me:secret@host"):
        with pytest.raises(RequestError, match="no address") as caught:
            Client(wrong)
        assert "secret" not in str(caught.value)


def test_long_work_is_started_once_followed_and_named(client: Client) -> None:
    told: list[str] = []
    body = KINDS["fit"].example
    task = client.start_task("fit", body, key="mine")
    assert client.start_task("fit", body, key="mine")["id"] == task["id"]
    done = client.wait(task["id"], lambda name, data: told.append(name))
    assert (done["state"], told[0], told[-1]) == ("done", "task", "end")
    assert [one["id"] for one in client.tasks(what="fit", state="done")] == [task["id"]]
    asked = {**JOB, "cluster": "1x8xv100-sxm2-16gb", "precision": "fp16"}
    own, named = client.predict(**asked), client.predict(**asked, model=body["name"])
    assert named.step_seconds != own.step_seconds
    with pytest.raises(RequestError, match=r"other|another"):
        client.start_task("fit", {**body, "name": "other"}, key="mine")
    with pytest.raises(RequestError, match="no such task"):
        client.wait("nobody")


DONE = json.dumps({"task": {"id": "t", "state": "done", "result": {"r": 2}, "problem": None}})
FAILED = json.dumps(
    {"task": {"id": "t", "state": "failed", "problem": {"asked": "x", "found": "y", "next": "z"}}}
)
CANCELLED = json.dumps({"task": {"id": "t", "state": "cancelled", "problem": None}})
STREAM = {"content-type": "text/event-stream"}


def test_a_task_is_followed_over_a_broken_stream(call: Callable[..., Any]) -> None:
    first = b': hello\nid: 1\nevent: task\ndata: {"state":\ndata: "running"}\n\nid: 2\nevent: run\ndata: {"cut'
    rest = b'id: 2\nevent: run\ndata: {"step_time_s": 1}\n\nid: 3\nevent: end\ndata: {"state": "done"}\n\n'
    told: list[Any] = []
    with scripted((200, STREAM, first), (200, STREAM, rest), (200, {}, DONE.encode())) as (
        url,
        seen,
    ):
        found = call(url, lambda client: client.wait("t", lambda *event: told.append(event)))
    assert found["result"] == {"r": 2}
    assert told == [
        ("task", {"state": "running"}),
        ("run", {"step_time_s": 1}),
        ("end", {"state": "done"}),
    ]
    assert [headers.get("last-event-id") for _, headers, _ in seen[:2]] == [None, "1"]


@pytest.mark.parametrize(("end", "words"), [(FAILED, "x: y; z"), (CANCELLED, "it is cancelled")])
def test_a_task_that_failed_raises(call: Callable[..., Any], end: str, words: str) -> None:
    events = (200, STREAM, b"id: 1\nevent: end\ndata: {}\n\n")
    with (
        scripted(events, (200, {}, end.encode())) as (url, _),
        pytest.raises(RequestError, match=words),
    ):
        call(url, lambda client: client.wait("t"))


def test_a_stream_that_never_ends_the_task_is_given_up(
    call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forerun.client._EVENTS_PAUSE_SECONDS", 0.0)
    with (
        scripted(*[(200, STREAM, b": x\n\n")] * 9) as (url, seen),
        pytest.raises(RequestError, match="ended before the task"),
    ):
        call(url, lambda client: client.wait("t"))
    assert len(seen) == 4
    refused = (401, {}, PROBLEM)
    with scripted(refused) as (url, _), pytest.raises(RequestError, match="a: b; c"):
        call(url, lambda client: client.wait("../t"))


def test_next_runs_are_those_of_the_command(call: Callable[..., Any], url: str) -> None:
    rows = [
        {"workload": "resnet50", "device": "v100-sxm2-16gb", "devices": n, "global_batch": 64 * n}
        for n in (1, 2, 4)
    ]
    made = Table.from_rows([{**rows[0], "step_time_s": 0.08}, {**rows[1], "step_time_s": 0.09}])
    asked = {"candidates": Table.from_rows(rows), "runs": [made], "predictor": "ernest", "count": 1}
    found = call(url, lambda client: client.suggest(**asked))
    assert (found["kind"], found["considered"], len(found["runs"])) == ("suggestion", 1, 1)
    assert found["runs"][0]["row"]["devices"] == 4
    chosen = call(url, lambda client: client.suggest("resnet50", clusters="1x8xa100-sxm-80gb", epochs=3))  # fmt: skip
    assert chosen["goal"] == "decision"
    with pytest.raises(UnsatisfiedError, match="nothing satisfies"):
        call(url, lambda client: client.suggest("resnet50", clusters="1x8xa100-sxm-80gb", deadline="1s"))  # fmt: skip
