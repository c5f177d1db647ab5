"""Answers of the service are those of the command line, byte for byte, and are kept."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from forerun.cli import main
from forerun.server.app import QUESTIONS
from forerun.server.limits import ServerLimits
from tests.server.conftest import JOB, Client

JOB_WORDS = ["resnet50", "--cluster", "1x8xa100-sxm-80gb", "--framework", "pytorch"]
ROWS = [
    {"workload": "resnet50", "cluster": "1x8xa100-sxm-80gb", "global_batch": 512},
    {"workload": "nobody-knows", "cluster": "1x8xa100-sxm-80gb", "global_batch": 512},
]
CONFIG = {
    "model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16,
    "vocab_size": 32000, "intermediate_size": 2816, "max_position_embeddings": 2048,
}  # fmt: skip
SPEC = {
    "name": "tiny", "transformer": {"layers": 4, "hidden": 256, "heads": 4, "vocab": 1000, "seq_len": 128},
    "length": {"unit": "steps", "count": 100},
}  # fmt: skip


def printed(capsysbinary: Any, *words: str) -> bytes:
    """Return what a command prints."""
    assert main(list(words), standalone_mode=False) in (0, 3)
    return bytes(capsysbinary.readouterr().out)


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("predict", JOB, ["predict", *JOB_WORDS]),
        ("predict", {**JOB, "plan": "dp=8", "global_batch": 512, "epochs": 90, "deadline": "4h", "price": 20.5},
         ["predict", *JOB_WORDS, "--plan", "dp=8", "--global-batch", "512", "--epochs", "90", "--deadline", "4h",
          "--price", "20.5"]),
        ("predict", {"workload": "llama3-8b", "cluster": "1x8xh100-sxm-80gb", "task": "lora", "lora_rank": 8,
                     "tokens": "50M", "preemption": {"startup_seconds": 600}, "goodput": 0.9},
         ["predict", "llama3-8b", "--cluster", "1x8xh100-sxm-80gb", "--task", "lora", "--lora-rank", "8",
          "--tokens", "50M", "--startup", "10min", "--goodput", "0.9"]),
        ("explain", JOB, ["explain", *JOB_WORDS]),
        ("support", {"workload": "llama3-8b", "seq_len": 4096}, ["support", "llama3-8b", "--seq-len", "4096"]),
        ("compare", {"jobs": [JOB, {**JOB, "cluster": "1x8xh100-sxm-80gb"}]},
         ["compare", *JOB_WORDS[:3], "1x8xh100-sxm-80gb", *JOB_WORDS[3:]]),
    ],
)  # fmt: skip
def test_an_answer_is_what_the_command_prints(
    client: Client, capsysbinary: Any, path: str, body: dict[str, Any], words: list[str]
) -> None:
    reply = client.post(f"/v1/{path}", body)
    assert reply.body == printed(capsysbinary, *words, "--json")
    assert reply.status == 200


@pytest.mark.parametrize("limit", ["24h", "1s"])
def test_a_recommendation_is_what_the_command_prints_but_for_its_time(
    client: Client, capsysbinary: Any, limit: str
) -> None:
    reply = client.post("/v1/recommend", {
        "workload": "resnet50", "clusters": ["1x8xa100-sxm-80gb", "1x8xh100-sxm-80gb"], "framework": "pytorch",
        "deadline": limit, "confidence": 0.9,
    })  # fmt: skip
    words = ["recommend", "resnet50", "--clusters", "1x8xa100-sxm-80gb,1x8xh100-sxm-80gb", "--framework",
             "pytorch", "--deadline", limit, "--confidence", "0.9", "--json"]  # fmt: skip
    took = re.compile(rb'"seconds_taken": [\d.e-]+')
    assert took.sub(b"", reply.body) == took.sub(b"", printed(capsysbinary, *words))
    assert reply.status == 200
    assert (reply.json["best"] is None) == (limit == "1s")


def test_a_table_of_rows_is_what_the_command_prints(
    client: Client, capsysbinary: Any, tmp_path: Path
) -> None:
    table = tmp_path / "jobs.csv"
    cells = [",".join(map(str, row.values())) for row in ROWS]
    table.write_text("\n".join([",".join(ROWS[0]), *cells]) + "\n")
    reply = client.post("/v1/predict/batch", {"rows": ROWS})
    assert reply.body == printed(capsysbinary, "predict", "--table", str(table), "--json")


def test_columns_have_the_figures_of_rows(client: Client) -> None:
    columns = {name: [row[name] for row in ROWS] for name in ROWS[0]}
    by_column = client.post("/v1/predict/batch", {"columns": columns}).json
    by_row = client.post("/v1/predict/batch", {"rows": ROWS}).json
    assert by_column["answered"] == by_row["answered"] == 1
    for name, cells in by_column["columns"].items():
        assert cells == [row.get(name, None if cells[0] != "" and cells[1] is None else "") or cells[i]
                         for i, row in enumerate(by_row["rows"])]  # fmt: skip
    first = by_row["rows"][0]
    assert by_column["columns"]["predicted_step_time_s"] == [first["predicted_step_time_s"], None]
    assert by_column["columns"]["declined"][1].startswith("no such workload") or (
        "nobody-knows" in by_column["columns"]["declined"][1]
    )


@pytest.mark.parametrize(
    "kind", ["workloads", "devices", "instances", "predictors", "systems", "version"]
)
def test_a_list_is_what_the_command_prints(client: Client, capsysbinary: Any, kind: str) -> None:
    assert client.get(f"/v1/{kind}").body == printed(capsysbinary, kind, "--json")


@pytest.mark.parametrize("kind", ["workloads", "devices", "instances"])
def test_pages_walk_the_whole_list(client: Client, kind: str) -> None:
    rows, path = [], f"/v1/{kind}?limit=997&search=a"
    whole = client.get(f"/v1/{kind}?search=a").json[kind]
    path = f"/v1/{kind}?limit={max(len(whole) // 3, 1)}&search=a"
    while path:
        reply = client.get(path)
        rows += reply.json[kind]
        link = reply.headers.get("link", "")
        path = link.partition("<")[2].partition(">")[0]
    assert rows == whole
    assert len(rows) > 10


def test_a_search_narrows_by_every_text(client: Client) -> None:
    rows = client.get("/v1/instances?search=h100&search=us-east-1").json["instances"]
    assert rows
    assert all("h100" in str(row) and "us-east-1" in str(row) for row in rows)


def test_one_workload_has_its_row(client: Client) -> None:
    assert client.get("/v1/workloads/resnet50").json["workload"]["name"] == "resnet50"


def test_an_etag_saves_sending_a_list_again(client: Client) -> None:
    first = client.get("/v1/devices")
    again = client.get("/v1/devices", If_None_Match=first.headers["etag"])
    assert (again.status, again.body) == (304, b"")
    other = client.get("/v1/devices", If_None_Match='"other"')
    assert (other.status, other.body) == (200, first.body)


@pytest.mark.parametrize("path", QUESTIONS)
def test_every_example_of_the_document_is_answered(client: Client, path: str) -> None:
    paths = client.get("/v1/openapi.json").json["paths"]
    body = paths[f"/v1/{path}"]["post"]["requestBody"]["content"]["application/json"]
    reply = client.post(f"/v1/{path}", body["example"])
    assert reply.status == 200, reply.body
    assert reply.json["schema"] == "forerun/1"


def test_every_path_of_the_document_without_a_body_is_answered(client: Client) -> None:
    task = client.post("/v1/tasks/fit", {"name": "a", "where": []}).json["task"]["id"]
    for path, methods in client.get("/v1/openapi.json").json["paths"].items():
        if "get" in methods and not path.endswith("/events"):  # which goes on until the task ends
            name = task if "/tasks/" in path else "resnet50"
            none = path in ("/v1/leaderboard", "/v1/audit")  # there is none yet, which is said
            assert client.get(path.replace("{name}", name)).status == (404 if none else 200), path


@pytest.mark.parametrize("workload", [{"config": CONFIG}, {"spec": SPEC}], ids=["config", "spec"])
def test_a_workload_may_come_with_the_request(client: Client, workload: dict[str, Any]) -> None:
    asked = {"workload": workload, "cluster": "1x8xa100-sxm-80gb", "steps": 100}
    reply = client.post("/v1/predict", asked)
    assert reply.status == 200, reply.body
    assert reply.json["workload"]["params"] > 1e6


def test_a_configuration_is_read_as_its_file(
    client: Client, capsysbinary: Any, tmp_path: Path
) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**CONFIG, "_name_or_path": "mine"}))
    words = ["predict", str(file), "--cluster", "1x8xa100-sxm-80gb", "--seq-len", "1024", "--json"]
    asked = {"workload": {"config": {**CONFIG, "_name_or_path": "mine"}}, "seq_len": 1024}
    reply = client.post("/v1/predict", {**asked, "cluster": "1x8xa100-sxm-80gb"})
    assert reply.body == printed(capsysbinary, *words)


def test_an_answer_is_kept_and_costs_a_millisecond(
    client: Client, advisor: Any, monkeypatch: Any
) -> None:
    first = client.post("/v1/predict", JOB)
    monkeypatch.setattr(type(advisor), "predict", None)  # who asks again would fail
    assert client.post("/v1/predict", JOB).body == first.body
    assert client.post("/v1/predict", {**JOB, "epochs": 3}).status == 500


def test_parallel_questions_have_the_answers_of_one_after_another(
    served: Callable[..., Client], advisor: Any
) -> None:
    client = served(ServerLimits(cache_bytes=0))
    bodies = [{**JOB, "plan": "dp=8,micro_batch=16", "steps": 100 + i} for i in range(200)]
    with ThreadPoolExecutor(40) as threads:
        replies = list(threads.map(lambda body: client.post("/v1/predict", body), bodies))
    assert {reply.status for reply in replies} == {200}
    for body, reply in list(zip(bodies, replies, strict=True))[::20]:
        alone = advisor.predict(**body).to_json()
        assert reply.json == json.loads(json.dumps(alone))


def test_runs_are_kept_once_and_paged_newest_first(keeper: Client) -> None:
    rows = [
        {"workload": "resnet50", "device": "t4", "devices": n, "step_time_s": 1 / n}
        for n in range(1, 8)
    ]
    first = keeper.post("/v1/runs", {"rows": rows, "campaign": "night"}).json["files"][0]
    again = keeper.post("/v1/runs", {"rows": rows, "campaign": "night"}).json["files"][0]
    assert (first["new"], again["new"], again["known_already"]) == (7, 0, 7)
    seen, path = [], "/v1/runs?limit=3&where=campaign%3Dnight&where=devices%3C%3D6"
    while path:
        reply = keeper.get(path)
        assert reply.json["count"] == 6
        seen += [row["devices"] for row in reply.json["runs"]]
        path = reply.headers.get("link", "").partition("<")[2].partition(">")[0]
    assert seen == [6, 5, 4, 3, 2, 1]


def test_the_list_of_runs_is_what_the_command_prints(
    keeper: Client, capsysbinary: Any, place: str
) -> None:
    keeper.post(
        "/v1/runs", {"rows": [{"workload": "resnet50", "device": "t4", "step_time_s": 0.2}]}
    )
    words = ["runs", "list", "--store", place, "--json"]
    assert keeper.get("/v1/runs").body == printed(capsysbinary, *words)
