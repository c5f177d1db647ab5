"""What the service refuses: each refusal says what was asked, what was found, and what to do next."""

from __future__ import annotations

import json
import logging
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from forerun.advisor import Advisor
from forerun.cli import main
from forerun.errors import RequestError
from forerun.progress import report_progress
from forerun.server.app import make_app
from forerun.server.front import AnswerCache, AuditLog, Front
from forerun.server.limits import RateLimit, ServerLimits
from forerun.server.problems import HttpError
from forerun.server.questions import Questions
from forerun.server.tokens import admit, create_token, read_tokens
from forerun.settings import load_settings
from tests.server.conftest import JOB, Client, Reply, serving

CLUSTER = {"cluster": "1x8xa100-sxm-80gb"}
RUN = {"workload": "resnet50", **CLUSTER, "framework": "pytorch", "global_batch": 512}


def problem(reply: Reply, status: int) -> str:
    """Return the detail of a problem, whose form is checked."""
    assert reply.status == status, reply.body
    assert reply.headers["content-type"] == "application/problem+json"
    found = reply.json
    assert found["status"] == status
    assert all(found[name] for name in ("type", "title", "asked", "found", "next"))
    assert "Traceback" not in str(found)
    return str(found["detail"])


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "JSON"), (b"{", "JSON"), (b"[]", "no object"), (b"null", "no object"), (b'"x"', "no object"),
        (b'{"workload": NaN}', "JSON"), (b'{"workload": 1e999, "cluster": ""}', "JSON"),
        (b"[" * 100_000, "JSON"), (b'{"workload":' * 50_000, "JSON"), (b"\xff\xfe", "JSON"),
        (b'{"workload": "\\ud800", "cluster": "x"}', "JSON"),
        ({}, "workload"), ({"workload": "resnet50"}, "cluster"), ({**JOB, "clutser": 1}, "cluster"),
        ({"workload": "resnet50", "clutser": 1}, "use one of cluster"),
        ({**JOB, "predictor": "auto"}, "no such field"), ({**JOB, "fit": "runs.csv"}, "no such field"),
        ({**JOB, "table": "/etc/passwd"}, "no such field"), ({**JOB, "catalog": "x.yaml"}, "no such field"),
        ({**JOB, "inputs": 1}, "no such field"), ({**JOB, "length": {}}, "no such field"),
        ({**JOB, "global_batch": "512"}, "global_batch"), ({**JOB, "global_batch": 1.5}, "no whole number"),
        ({**JOB, "global_batch": 0}, "global batch"), ({**JOB, "global_batch": 10**18}, "from 1 to 2,147,483,647"),
        ({**JOB, "seq_len": 10**30}, "seq_len"), ({**JOB, "plan": {"tp": [1]}}, "plan"),
        ({**JOB, "plan": "tp=3"}, "tp"), ({**JOB, "plan": {"teepee": 1}}, "teepee"),
        ({**JOB, "steps": 1, "epochs": 1}, "one length"), ({**JOB, "deadline": "soon"}, "soon"),
        ({**JOB, "market": "black"}, "black"), ({**JOB, "price": -1}, "price"),
        ({**JOB, "preemption": {"startup": 1}}, "startup_seconds"),
        ({**JOB, "preemption": {"startup_seconds": 1e308}}, "longer than any run"), ({**JOB, "goodput": 7}, "goodput"),
        ({**JOB, "cluster": "1x8xnobody"}, "nobody"), ({**JOB, "cluster": "0x0x"}, "cluster"),
        ({**JOB, "cluster": "1x8x" + "a" * 100_000}, "a cluster's text"), ({**JOB, "cluster": "../../etc/passwd"}, "no such device"),
        ({**JOB, "workload": "resnet5000"}, "did you mean"), ({**JOB, "workload": ""}, "workload"),
        ({**JOB, "workload": "<script>alert(1)<!"}, "no such workload"), ({**JOB, "workload": 7}, "workload"),
        ({**JOB, "workload": {}}, "config"), ({**JOB, "workload": {"file": {}}}, "config"),
        ({**JOB, "workload": {"spec": {}}}, "transformer"), ({**JOB, "workload": {"config": {}}}, "hidden_size"),
    ],
)  # fmt: skip
def test_a_wrong_question_is_a_problem(client: Client, body: Any, word: str) -> None:
    assert word in problem(client.post("/v1/predict", body), 400)


@pytest.mark.parametrize("name", [
    "/etc/passwd", "../config.json", "config.json", "spec.yaml", "net.onnx", "os:system", "a.pkl",
    "examples.resnet50:build", "C:\\net", "http://host/x", "~/config.json", "resnet50\0.json", "trap",
])  # fmt: skip
def test_no_file_or_module_is_reached_by_a_name(
    client: Client, name: str, tmp_path: Path, monkeypatch: Any
) -> None:
    folder = tmp_path / "trap"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    monkeypatch.chdir(tmp_path)
    assert client.post("/v1/suggest", {"rows": [RUN, {**RUN, "workload": "mine"}]}).status == 200
    opened = []  # beyond the package's own data, which that has read
    monkeypatch.setattr(Path, "read_text", lambda path, *a, **k: opened.append(path) or "{}")
    for path in ("predict", "explain"):
        problem(client.post(f"/v1/{path}", {"workload": name, **CLUSTER}), 400)
    problem(client.post("/v1/support", {"workload": name}), 400)
    problem(
        client.post("/v1/recommend", {"workload": name, "clusters": ["1x8xa100-sxm-80gb"]}), 400
    )
    answer = client.post(
        "/v1/predict/batch", {"rows": [{"workload": name, **CLUSTER, "global_batch": 8}]}
    )
    assert answer.status == 400 or answer.json["declined"] == 1
    row = {"workload": name, **CLUSTER, "global_batch": 8}
    problem(client.post("/v1/suggest", {"workload": name, "clusters": [CLUSTER["cluster"]]}), 400)
    assert client.post("/v1/suggest", {"rows": [row]}).status in (200, 400)  # a label of one's own
    assert client.post("/v1/suggest", {"workload": "resnet50", "predictor": f"analytic:a={name}"}).status == 400  # fmt: skip
    assert [
        path for path in opened if "site-packages" not in str(path)
    ] == []  # of what is imported now


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({}, "neither of"), ({"workload": "resnet50", "rows": [RUN]}, "both of"), ({"rows": []}, "rows"),
        ({"rows": [RUN], "columns": {"workload": ["resnet50"]}}, "not one of rows and columns"),
        ({"rows": [RUN], "clusters": ["h100-sxm-80gb"]}, "the rows of the tables say that"), ({"rows": [{"a": 1}]}, "no column of a job"),
        ({"workload": "resnet50", "asked": {"rows": [RUN]}}, "a workload is asked for"), ({"rows": [RUN], "goal": "fame"}, "goal"),
        ({"rows": [RUN], "count": 0}, "count"), ({"rows": [RUN], "count": 1.5}, "count"), ({"rows": [RUN], "times": 0}, "times"),
        ({"rows": [RUN], "minimize": "energy"}, "minimize"), ({"rows": [RUN], "criterion": "V"}, "optimal designs"),
        ({"rows": [RUN], "budget": -1}, "budget"), ({"rows": [RUN], "predictor": "nobody"}, "nobody"), ({"rows": [RUN], "where": ["devices~8"]}, "devices~8"),
        ({"rows": [RUN], "predictor": "predictddl:encoder=/etc/passwd"}, "no file is read"), ({"rows": [RUN], "model": "nobody"}, "nobody"),
        ({"rows": [RUN], "runs": {"rows": []}}, "rows"), ({"rows": [RUN], "runs": {"row": [RUN]}}, "row"), ({"rows": [RUN], "where": []}, "none such"),
        ({"rows": [RUN], "runs": {"rows": [{**RUN, "step_time_s": 0.1}] * 300}}, "/v1/tasks/fit"), ({"rows": [RUN], "steps": 1, "epochs": 1}, "one length"),
        ({"rows": [RUN], "predictor": "auto", "runs": {"rows": [{**RUN, "step_time_s": 0.1}] * 300}}, "/v1/tasks/fit"),
        ({"rows": [RUN], "asked": {}}, "rows"), ({"rows": [RUN], "runs": {}}, "none such"),
    ],
)  # fmt: skip
def test_a_wrong_question_on_next_runs_is_a_problem(client: Client, body: Any, word: str) -> None:
    assert word in problem(client.post("/v1/suggest", body), 400)


@pytest.mark.parametrize("content", [
    {"hidden_size": {}}, {"hidden_size": [], "model_type": {}}, {"text_config": {"text_config": {}}},
    {"hidden_size": 10**12, "num_hidden_layers": 10**12, "num_attention_heads": 1, "vocab_size": 10**12},
    {"hidden_size": 64, "num_hidden_layers": 10**9, "num_attention_heads": 1, "vocab_size": 10},
    {"model_type": "mpt", "attn_config": [], "d_model": "x"}, {"_name_or_path": "/etc/passwd"},
])  # fmt: skip
def test_a_hostile_configuration_is_answered_or_refused_at_once(
    client: Client, content: Any
) -> None:
    start = time.monotonic()
    reply = client.post("/v1/predict", {"workload": {"config": content}, **CLUSTER})
    assert reply.status in (200, 400, 422), reply.body
    assert time.monotonic() - start < 20


@pytest.mark.parametrize("content", [
    {"operations": []}, {"operations": [[]]}, {"operations": [{"name": "a", "kind": "b"}]},
    {"operations": {"a": 1}}, {"totals": {"params": "1e400", "gmacs": 1}}, {"totals": {"params": -1, "gmacs": 1}},
    {"totals": {"params": 1e300, "gmacs": 1e300}}, {"transformer": []},
    {"transformer": {"layers": 10**15, "hidden": 8, "heads": 8, "vocab": 8, "seq_len": 8}},
    {"transformer": {"layers": "x", "hidden": [], "heads": {}, "vocab": None, "seq_len": True}},
    {"operations": [{"name": "a", "kind": "matmul", "dims": [1, 2, 3], "flops": 1}] * 5000},
    {"totals": {"params": 1, "gmacs": 1, "a": {"b": {"c": {}}}}}, {"name": [], "totals": {"params": 9, "gmacs": 9}},
])  # fmt: skip
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of figures near the largest there are
def test_a_hostile_spec_is_answered_or_refused_at_once(client: Client, content: Any) -> None:
    start = time.monotonic()
    reply = client.post("/v1/predict", {"workload": {"spec": content}, **CLUSTER, "steps": 10})
    assert reply.status in (200, 400, 422), reply.body
    assert time.monotonic() - start < 20


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({}, "rows"), ({"rows": []}, "rows"), ({"columns": {}}, "rows"), ({"rows": [{}], "columns": {"a": [1]}}, "rows"),
        ({"rows": [{}]}, "columns"), ({"rows": [{"workload": [1]}]}, "workload"), ({"rows": [1]}, "rows"),
        ({"columns": {"workload": ["a", "b"], "cluster": ["c"]}}, "equal"),
        ({"columns": {"workload": [[]], "cluster": [{}]}}, "cell"), ({"columns": {"a": []}}, "row"),
        ({"columns": {"workload": ["a"]}, "length": 1}, "no such field"),
    ],
)  # fmt: skip
def test_a_wrong_table_is_a_problem(client: Client, body: Any, word: str) -> None:
    assert word in problem(client.post("/v1/predict/batch", body), 400)


@pytest.mark.parametrize(
    ("path", "body", "right", "wrong"),
    [
        ("predict", {**JOB, "epochs": 2, "workload": "llama3-8b"}, "give dataset_size, or the length in samples", "--"),
        ("recommend", {"workload": "resnet50", "devices": ["foo"]}, "see /v1/devices and /v1/instances", "`forerun"),
        ("compare", {"jobs": [JOB]}, "`/v1/predict` answers one job".replace("`", ""), "--cluster,"),
    ],
)  # fmt: skip
def test_a_problem_speaks_of_fields_and_routes(
    client: Client, path: str, body: Any, right: str, wrong: str
) -> None:
    reply = client.post(f"/v1/{path}", body)
    found = problem(reply, 400)
    assert right in found
    assert wrong not in found
    assert "--" in reply.json["command_line"][2] or "`forerun" in reply.json["command_line"][2]


def test_what_only_an_administrator_can_do_stays_a_command(client: Client) -> None:
    body = {
        "name": "x",
        "workloads": {"a": {"entry": "my.own:module"}},
        "vary": {"global_batch": 8},
    }
    found = problem(client.post("/v1/tasks/campaign", body), 400)
    assert "forerun serve --allow-modules" in found


def test_what_does_not_fit_anywhere_is_unsatisfied(client: Client) -> None:
    asked = {"workload": "llama3.1-405b", "cluster": "1x1xt4"}
    assert "fit" in problem(client.post("/v1/predict", asked), 422)


def test_jobs_are_compared_up_to_eight(client: Client) -> None:
    problem(client.post("/v1/compare", {"jobs": [JOB] * 9}), 400)
    problem(client.post("/v1/compare", {"jobs": []}), 400)
    found = client.post("/v1/compare", {"jobs": [JOB, {**JOB, "plan": "dp=3"}]}).json
    assert len(found["jobs"]) == 1
    assert found["refused"][0]["job"].startswith("resnet50, 1x8xa100-sxm-80gb, dp=3")


@pytest.mark.parametrize("query", ["runs?wher=devices<=1", "devices?serch=h100", "version?x=1"])
def test_a_slip_in_a_query_is_a_problem(client: Client, query: str) -> None:
    assert "no such parameter" in problem(client.get(f"/v1/{query}"), 400)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/nothing", 404), ("/nothing.js", 404), ("/v1/predict", 405), ("/v1/workloads/nobody", 404),
        ("/v1/workloads/..%2F..%2Fetc%2Fpasswd", 404), ("/v1/workloads?search=nobodyknows", 404),
        ("/v1/workloads?limit=0", 400), ("/v1/workloads?limit=x", 400), ("/v1/workloads?cursor=x", 400),
        ("/v1/runs?where=nothing", 400), ("/v1/runs?where=devices%3C%3Dx", 400), ("/v1/runs?cursor=x", 400),
    ],
)  # fmt: skip
def test_a_wrong_path_is_a_problem(client: Client, path: str, status: int) -> None:
    client.post(
        "/v1/runs", {"rows": [{"workload": "resnet50", "device": "t4", "step_time_s": 0.2}]}
    )
    problem(client.get(path), status)
    assert client.get("/v1/runs?where=device%3D%27;drop%20table%20runs").json["runs"] == []
    assert client.get("/v1/runs").json["count"] == 1


def test_rows_without_a_figure_are_no_runs(keeper: Client) -> None:
    assert "measured" in problem(keeper.post("/v1/runs", {"rows": [{"workload": "resnet50"}]}), 400)
    assert keeper.get("/v1/runs").json["count"] == 0


@pytest.mark.parametrize("path", ["where=nothing", "where=devices%3C%3Dx", "cursor=x", "cursor=0"])
def test_a_wrong_question_about_runs_is_a_problem_of_any_store(keeper: Client, path: str) -> None:
    keeper.post(
        "/v1/runs", {"rows": [{"workload": "resnet50", "device": "t4", "step_time_s": 0.2}]}
    )
    problem(keeper.get(f"/v1/runs?{path}"), 400)
    assert keeper.get("/v1/runs?where=device%3D%27;drop%20table%20runs").json["runs"] == []
    assert keeper.get("/v1/runs").json["count"] == 1
    assert keeper.get("/v1/ready").status == 200


def test_a_body_too_large_is_refused_before_it_is_read(served: Callable[..., Client]) -> None:
    client = served(ServerLimits(body_bytes=1000, batch_bytes=5000))
    assert "1,000" in problem(client.post("/v1/predict", {**JOB, "dataset": "x" * 1000}), 413)
    problem(client.post("/v1/runs", {"rows": [{"notes": "x" * 5000}]}), 413)
    with socket.create_connection(("127.0.0.1", client.port)) as wire:
        head = "POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        wire.sendall(f"{head}Content-Length: 99999999999999999999999\r\n\r\n".encode())
        assert wire.recv(4096).split()[1] in (b"413", b"400")
    with socket.create_connection(("127.0.0.1", client.port)) as wire:  # no length is stated
        wire.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        wire.sendall(b"400\r\n" + b"x" * 1024 + b"\r\n")
        assert wire.recv(4096).split()[1] == b"413"


def test_rows_beyond_the_most_are_refused(client: Client) -> None:
    most = {"columns": {"workload": ["resnet50"] * 100_001}}
    assert "100,000" in problem(client.post("/v1/predict/batch", most), 413)


def test_a_slow_client_is_sent_away_and_others_are_served(served: Callable[..., Client]) -> None:
    client = served(ServerLimits(read_seconds=0.5))
    with socket.create_connection(("127.0.0.1", client.port), timeout=10) as wire:
        wire.sendall(b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     b"Content-Length: 100\r\n\r\n{")  # fmt: skip
        assert client.get("/v1/health").status == 200
        assert wire.recv(4096).split()[1] == b"408"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_only_json_is_read(client: Client, kind: str) -> None:
    problem(client.post("/v1/predict", JOB, **{"Content_Type": kind}), 415)


def test_a_page_of_another_name_cannot_ask_through_a_browser(client: Client) -> None:
    problem(client.get("/v1/devices", Host="evil.example"), 403)
    assert client.get("/v1/devices", Host=f"localhost:{client.port}").status == 200


def test_a_defect_has_a_number_and_no_traceback(
    client: Client, advisor: Any, monkeypatch: Any, caplog: Any
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("a secret detail")

    monkeypatch.setattr(type(advisor), "predict", broken)
    with caplog.at_level(logging.ERROR):
        reply = client.post("/v1/predict", JOB)
    detail = problem(reply, 500)
    assert b"secret" not in reply.body
    number = next(word for word in caplog.text.split() if len(word) == 8 and word in detail)
    assert number in caplog.text


def test_health_answers_while_questions_are_computed_and_too_many_are_refused(
    served: Callable[..., Client], advisor: Any, monkeypatch: Any
) -> None:
    def slow(*_: Any, **__: Any) -> None:
        time.sleep(2)
        raise RequestError("a", "b", "c")

    monkeypatch.setattr(type(advisor), "predict", slow)
    client = served(ServerLimits(questions=2, workers=1, seconds=0.5))
    with ThreadPoolExecutor(4) as threads:
        asked = [
            threads.submit(client.post, "/v1/predict", {**JOB, "steps": n + 1}) for n in range(4)
        ]
        time.sleep(0.2)
        start = time.monotonic()
        assert client.get("/v1/health").status == 200
        assert time.monotonic() - start < 0.3
        replies = sorted((one.result() for one in asked), key=lambda reply: reply.status)
    assert [reply.status for reply in replies] == [429, 429, 503, 503]
    assert replies[0].headers["retry-after"] == "1"
    assert "0.5 s" in problem(replies[-1], 503)


def test_a_search_that_reports_ends_at_its_time(
    served: Callable[..., Client], advisor: Any, monkeypatch: Any
) -> None:
    ended = []

    def endless(*_: Any, **__: Any) -> None:
        try:
            while True:
                time.sleep(0.05)
                report_progress("searches")
        finally:
            ended.append(True)

    monkeypatch.setattr(type(advisor), "recommend", endless)
    client = served(ServerLimits(seconds=0.3))
    problem(client.post("/v1/recommend", {"workload": "resnet50"}), 503)
    time.sleep(0.3)
    assert ended == [True]


def test_a_table_of_many_searches_ends_at_its_time(served: Callable[..., Client]) -> None:
    client = served(ServerLimits(seconds=0.5, workers=1))
    rows = [{"workload": "llama3-8b", **CLUSTER, "global_batch": 8 * n} for n in range(1, 500)]
    problem(client.post("/v1/predict/batch", {"rows": rows}), 503)
    time.sleep(0.5)
    assert client.get("/v1/ready").status == 200  # the only thread is free again


def test_a_rate_is_kept_and_recovers() -> None:
    rate = RateLimit(20.0)
    for _ in range(100):  # saved up over five seconds
        rate.take("one")
    with pytest.raises(HttpError, match="more than 20 a second"):
        [rate.take("one") for _ in range(20)]
    rate.take("another")
    time.sleep(0.2)
    rate.take("one")


def test_a_large_body_counts_as_several_requests(served: Callable[..., Client]) -> None:
    client = served(ServerLimits(requests_per_second=1.0))
    problem(client.post("/v1/predict", {**JOB, "dataset": "x" * 900_000, "steps": "x"}), 400)
    assert client.get("/v1/devices").status == 429


def test_answers_kept_stay_within_their_bytes() -> None:
    cache = AnswerCache(25_600)  # of 600 bytes each beside their text
    for n in range(100):
        cache.put(bytes([n]), (200, {}, b"x" * 1000))
    assert sum(cache.get(bytes([n])) is not None for n in range(100)) == 16
    assert cache.get(bytes([99])) is not None
    cache.put(b"large", (200, {}, b"x" * 2000))
    assert cache.get(b"large") is None


@pytest.fixture
def tokens(tmp_path: Path) -> Callable[..., str]:
    """Return a function that makes a token in the file `tokens.json`."""
    return lambda *scopes, days=1: create_token(tmp_path / "tokens.json", scopes, days)


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


def test_tokens_open_their_scopes_alone(
    served: Callable[..., Client], tokens: Callable[..., str], tmp_path: Path
) -> None:
    made = {scope: tokens(scope) for scope in ("read", "predict", "run", "admin")}
    client = served(tokens=tmp_path / "tokens.json")
    run = {"rows": [{"workload": "resnet50", "device": "t4", "step_time_s": 0.2}]}
    requests = {"read": ("GET", "/v1/devices", None), "predict": ("POST", "/v1/predict", JOB),
                "run": ("POST", "/v1/runs", run)}  # fmt: skip
    for scope, text in made.items():
        for needed, request in requests.items():
            reply = client.request(*request, **bearer(text))
            if scope in (needed, "admin"):
                assert reply.status == 200
            else:
                assert needed in problem(reply, 403)
    assert client.get("/v1/health").status == 200
    assert client.get("/v1/openapi.json").status == 401
    # Next runs may tell of those that are kept.
    for scopes, status in ((("predict",), 403), (("read",), 403), (("read", "predict"), 200)):
        one = bearer(create_token(tmp_path / "tokens.json", scopes, 1))
        assert client.post("/v1/suggest", {"rows": [RUN]}, **one).status == status


def test_nobody_is_in_without_a_valid_token(
    served: Callable[..., Client], tokens: Callable[..., str], tmp_path: Path
) -> None:
    good = tokens("admin")
    prefix, name, secret = good.split("_", 2)
    client = served(tokens=tmp_path / "tokens.json")
    assert client.post("/v1/predict", JOB, **bearer(good)).status == 200
    wrong = ["", "Bearer", "Bearer x", f"Basic {good}", f"Bearer {good}x", f"Bearer {good[:-1]}",
             f"Bearer {prefix}_{name}_", f"Bearer {prefix}_{name}", f"Bearer {prefix}__{secret}",
             f"Bearer {prefix}_{'0' * 12}_{secret}", "Bearer " + "a" * 5000]  # fmt: skip
    for header in wrong:
        reply = client.post("/v1/predict", JOB, Authorization=header)
        problem(reply, 401)  # an answer that is kept for others is no way in
        assert reply.headers["www-authenticate"] == "Bearer"
        assert secret not in reply.body.decode()
    assert client.post("/v1/predict", JOB).status == 401


def test_a_prefix_opens_no_scope(
    advisor: Advisor, tokens: Callable[..., str], tmp_path: Path
) -> None:
    text, limits = tokens("predict"), ServerLimits()
    questions = Questions(advisor, load_settings(), str(tmp_path / "runs.db"))
    front = Front(make_app(questions, limits), limits, tmp_path / "tokens.json")

    async def behind_a_prefix(scope: Any, receive: Any, send: Any) -> None:
        await front({**scope, "root_path": "/x"}, receive, send)

    run = {"rows": [{"workload": "resnet50", "device": "t4", "step_time_s": 0.2}]}
    with serving(behind_a_prefix) as client:
        assert "run" in problem(client.post("/x/v1/runs", run, **bearer(text)), 403)
        assert client.post("/x/v1/predict", JOB, **bearer(text)).status == 200


def test_a_token_ends_and_can_be_taken_out(
    served: Callable[..., Client], tokens: Callable[..., str], tmp_path: Path
) -> None:
    file = tmp_path / "tokens.json"
    old, other, good = tokens("read"), tokens("read"), tokens("read")
    rows = json.loads(file.read_text())["tokens"]
    rows[0]["expires"] = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()
    file.write_text(json.dumps({"tokens": rows}))
    client = served(tokens=file)
    assert "ended" in problem(client.get("/v1/devices", **bearer(old)), 401)
    assert client.get("/v1/devices", **bearer(other)).status == 200
    file.write_text(json.dumps({"tokens": [rows[0], rows[2]]}))
    problem(client.get("/v1/devices", **bearer(other)), 401)
    assert client.get("/v1/devices", **bearer(good)).status == 200
    file.unlink()
    problem(client.get("/v1/devices", **bearer(good)), 401)


def test_a_file_of_tokens_keeps_no_secret_and_is_its_owners(
    tokens: Callable[..., str], tmp_path: Path
) -> None:
    secret = tokens("read").split("_", 2)[2]
    file = tmp_path / "tokens.json"
    assert len(secret) == 43
    assert secret not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"tokens": [1]}', '{"tokens": [{"id": "a"}]}']
)
def test_a_broken_file_of_tokens_starts_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "t.json").write_text(content)
    with pytest.raises(RequestError, match="no file of tokens"):
        read_tokens(tmp_path / "t.json")


def test_every_prediction_has_a_line_in_the_audit_log(
    served: Callable[..., Client], tokens: Callable[..., str], tmp_path: Path
) -> None:
    token, file = tokens("admin"), tmp_path / "audit.jsonl"
    log = AuditLog(file, model="analytic", prices="list of a day")
    client = served(tokens=tmp_path / "tokens.json", audit=log)
    for body in (JOB, JOB, {**JOB, "steps": -1}):  # computed, kept, refused
        client.post("/v1/predict", body, **bearer(token))
    client.get("/v1/devices", **bearer(token))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["status"] for line in lines] == [200, 200, 400]
    assert lines[0]["inputs"] == lines[1]["inputs"] != lines[2]["inputs"]
    assert {line["client"] for line in lines} == {token.split("_")[1]}
    assert (lines[0]["model"], lines[0]["prices"]) == ("analytic", "list of a day")
    assert token.split("_", 2)[2] not in file.read_text()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_no_prediction_goes_out_without_its_line(served: Callable[..., Client]) -> None:
    client = served(audit=AuditLog(Path("/dev/full"), model="analytic"))
    assert "audit" in problem(client.post("/v1/predict", JOB), 503)
    assert client.get("/v1/health").status == 200


def test_every_answer_has_the_headers_of_safety(client: Client) -> None:
    for reply in (
        client.get("/v1/health"),
        client.get("/v1/nothing"),
        client.post("/v1/predict", b"{"),
    ):
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in reply.headers["content-security-policy"]


def said(capsys: Any, *words: str) -> tuple[int, str]:
    code = main(list(words), standalone_mode=False)
    found = capsys.readouterr()
    return code, found.out + found.err


def test_another_host_needs_tokens(capsys: Any, tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "10.0.0.1", ""):
        code, text = said(capsys, "serve", "--host", host)
        assert code == 2
        assert "forerun serve token create" in text
    code, text = said(capsys, "serve", "--host", "0.0.0.0", "--tokens", str(tmp_path / "none"))
    assert (code, "No such file" in text) == (2, True)


def test_the_command_makes_tokens_and_refuses_scopes(capsys: Any, tmp_path: Path) -> None:
    file = str(tmp_path / "t.json")
    words = ("serve", "token", "create", "--tokens", file)
    code, text = said(capsys, *words, "--scope", "read", "--scope", "predict")
    assert code == 0
    assert admit(Path(file), f"Bearer {text.strip()}", "predict") == text.split("_")[1]
    assert said(capsys, *words, "--scope", "all")[0] == 2
    secret = said(capsys, *words, "--scope", "run", "--name", "night")[1].strip()
    one = secret.split("_")[1]
    listed = said(capsys, "serve", "token", "list", "--tokens", file)[1]
    assert re.search(rf"{one} +night +run ", listed)
    assert secret.split("_", 2)[2] not in listed
    assert said(capsys, "serve", "token", "revoke", one, "--tokens", file)[0] == 0
    assert one not in said(capsys, "serve", "token", "list", "--tokens", file)[1]
    assert said(capsys, "serve", "token", "revoke", one, "--tokens", file)[0] == 2
    assert said(capsys, "serve", "token", "revoke", one, "--tokens", f"{file}.none")[0] == 2
    with pytest.raises(HttpError):
        admit(Path(file), f"Bearer {secret}", "run")
    assert said(capsys, "serve", "token", "create", "--scope", "read")[0] == 2


def test_the_command_serves_until_it_is_stopped(tmp_path: Path) -> None:
    words = [
        "serve",
        "--port",
        "0",
        "--store",
        str(tmp_path / "runs.db"),
        "--audit",
        str(tmp_path / "a.jsonl"),
    ]
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "forerun", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:  # fmt: skip
        assert process.stdout is not None
        line = process.stdout.readline()
        client = Client(int(line.partition(":")[2].partition("127.0.0.1:")[2].partition("/")[0]))
        taken = subprocess.run(
            [sys.executable, "-m", "forerun", "serve", "--port", str(client.port)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert taken.returncode == 2
        assert "choose another --port" in taken.stderr
        assert client.post("/v1/predict", JOB).status == 200
        process.terminate()
        assert process.wait(20) in (0, -15)
    about = json.loads((tmp_path / "a.jsonl").read_text())
    assert "constants" in about["model"]
    assert "commit" in about["prices"]
