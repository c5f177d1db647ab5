"""Long work over REST: asked for once, followed by events, carried out, and its results kept by name."""

from __future__ import annotations

import asyncio
import http.client
import json
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest

from forerun.advisor import Advisor
from forerun.errors import RequestError
from forerun.measure import builtin
from forerun.predictors.graphs import objectives, predictddl
from forerun.predictors.graphs.predictddl import PredictDDL
from forerun.progress import report_progress
from forerun.server import task_kinds, tasks
from forerun.server.app import STARTS
from forerun.server.front import AuditLog
from forerun.server.limits import ServerLimits
from forerun.server.problems import HttpError
from forerun.server.questions import Questions
from forerun.server.task_kinds import KINDS, NETWORKS, carry_out
from forerun.server.tasks import TaskDesk
from forerun.server.tokens import create_token
from forerun.settings import load_settings
from forerun.store import open_store
from forerun.store.task_table import TaskTable
from tests.advisor.test_searching import Machines
from tests.server.conftest import JOB, Client
from tests.server.test_refusals import problem
from tests.store.postgres import server

FIT = KINDS["fit"].example
BUILT_IN = "forerun.measure.builtin:mlp"


class Shop:
    """A service's store, and what carries out its tasks in this process."""

    def __init__(self, client: Client, advisor: Advisor, place: str) -> None:
        self.client, self.questions = client, Questions(advisor, load_settings(), place)

    def start(self, path: str, body: Any, **headers: str) -> str:
        reply = self.client.post(f"/v1/{path}", body, **headers)
        assert reply.status == 202, reply.body
        task = reply.json["task"]
        assert reply.headers["location"] == f"/v1/tasks/{task['id']}"
        assert (task["state"], task["result"]) == ("waiting", None)
        return str(task["id"])

    def carry(self, key: str, modules: bool = False) -> Any:
        assert self.questions.store().tasks.claim(key, "me")
        carry_out(self.questions, key, "me", "", modules)
        return self.client.get(f"/v1/tasks/{key}").json["task"]

    def done(self, path: str, body: Any) -> Any:
        task = self.carry(self.start(path, body))
        assert (task["state"], task["problem"]) == ("done", None)
        return task["result"]


@pytest.fixture
def shop(client: Client, advisor: Advisor, tmp_path: Path, monkeypatch: Any) -> Shop:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Shop(client, advisor, str(tmp_path / "runs.db"))


@pytest.mark.parametrize("path", STARTS)
def test_every_example_of_the_document_begins_a_task(client: Client, path: str) -> None:
    posted = client.get("/v1/openapi.json").json["paths"][f"/v1/{path}"]["post"]
    body = posted["requestBody"]["content"]["application/json"]
    reply = client.post(f"/v1/{path}", body["example"])
    assert reply.status == 202, reply.body
    assert (reply.json["schema"], reply.json["kind"]) == ("forerun/1", "task")
    assert reply.json["task"]["what"] == STARTS[path][0]


@pytest.mark.parametrize(
    ("path", "kind"),
    [("tasks/fit", "fit"), ("tasks/evaluate", "evaluation"), ("tasks/recommend", "recommendation")],
)
def test_what_computes_is_carried_out(shop: Shop, path: str, kind: str) -> None:
    result = shop.done(path, STARTS[path][2])
    assert (result["schema"], result["kind"]) == ("forerun/1", kind)


def test_a_search_among_measured_runs_is_that_of_the_command(
    shop: Shop, capsysbinary: Any, tmp_path: Path
) -> None:
    from tests.server.test_answers import printed

    body = {"rows": FIT["rows"], "searcher": "grid", "minimize": "time", "max_runs": 3}
    result = shop.done("tasks/search", body)
    (tmp_path / "rows.json").write_text(json.dumps(FIT["rows"]))
    names = list(FIT["rows"][0])
    cells = [",".join(str(row[name]) for name in names) for row in FIT["rows"]]
    (tmp_path / "r.csv").write_text("\n".join([",".join(names), *cells]) + "\n")
    words = [
        "search",
        "--replay",
        str(tmp_path / "r.csv"),
        "--searcher",
        "grid",
        "--minimize",
        "time",
        "--max-runs",
        "3",
    ]
    said = json.loads(printed(capsysbinary, *words, "--json"))
    for body in (result, said):  # how a condition is given has other words there
        assert len(body.pop("warnings")) == 1
        del body["replayed"]
    assert result == said
    assert len(result["searches"][0]["runs"]) == 3


def test_a_training_says_its_workers_batch_and_noise_as_it_goes(shop: Shop) -> None:
    body = {**KINDS["train"].example, "workers": 1, "target": {"metric": "loss", "at_most": 0}}
    key = shop.start("tasks/train", body)
    assert shop.carry(key)["state"] == "done"
    events = shop.questions.store().tasks.events(key)
    rows = [json.loads(text) for _, kind, text in events if kind == "run"]
    assert rows[0]["note"].startswith("trains with 1 worker, batch 32")
    assert {(row["workers"], row["global_batch"]) for row in rows} == {(1, 32), (1, 64)}
    losses = [row for row in rows if "loss" in row]
    assert [row["samples"] // 2048 for row in losses] == [1, 2]  # one an epoch
    assert all(row["noise_scale"] > 0 for row in losses)


def test_a_fitted_model_answers_by_its_name(shop: Shop) -> None:
    rows = [{**row, "step_time_s": 3 * row["step_time_s"]} for row in FIT["rows"]]
    shop.client.post("/v1/runs", {"rows": rows, "campaign": "slow"})
    shop.done("tasks/fit", {"name": "slow", "where": ["campaign=slow"]})
    served, ours = shop.client.get("/v1/models").json["models"]
    assert (served["name"], served["task"]) == ("served", None)
    assert (ours["name"], ours["predictor"], ours["runs"]) == ("slow", "analytic", 4)
    assert shop.client.get(f"/v1/tasks/{ours['task']}").json["task"]["result"]["out"] == "slow"
    asked = {
        "workload": "resnet50",
        "cluster": "1x4xv100-sxm2-16gb",
        "precision": "fp16",
        "plan": "dp=4,micro_batch=64",
    }
    plain, named, own = (
        shop.client.post("/v1/predict", {**asked, **more}).json["step_seconds"]["p50"]
        for more in ({}, {"model": "served"}, {"model": "slow"})
    )
    assert plain == named
    assert own > 1.3 * plain
    both = {"jobs": [asked, {**asked, "model": "slow"}]}
    several = shop.client.post("/v1/compare", both)
    assert len(several.json["jobs"]) == 2
    assert several.headers["cache-control"] == "no-store"  # the model may be fitted anew
    batch = shop.client.post("/v1/predict/batch", {"rows": FIT["rows"][:1], "model": "slow"}).json
    assert batch["answered"] == 1
    assert "served, slow" in problem(
        shop.client.post("/v1/predict", {**asked, "model": "fast"}), 400
    )


def test_a_model_that_is_fitted_anew_is_asked_anew(shop: Shop) -> None:
    asked = {
        "workload": "resnet50",
        "cluster": "1x4xv100-sxm2-16gb",
        "precision": "fp16",
        "plan": "dp=4,micro_batch=64",
    }
    found = []
    for factor in (1.0, 4.0):
        rows = [{**row, "step_time_s": factor * row["step_time_s"]} for row in FIT["rows"]]
        shop.done("tasks/fit", {"name": "ours", "rows": rows})
        found.append(
            shop.client.post("/v1/predict", {**asked, "model": "ours"}).json["step_seconds"]["p50"]
        )
    assert found[1] > 1.5 * found[0]
    assert [one["name"] for one in shop.client.get("/v1/models").json["models"]] == [
        "served",
        "ours",
    ]


def test_the_leaderboard_is_the_newest_evaluation(shop: Shop) -> None:
    assert "tasks/evaluate" in problem(shop.client.get("/v1/leaderboard"), 404)
    for name in ("first", "second"):
        shop.done("tasks/evaluate", {**KINDS["evaluate"].example, "table": name})
    board = shop.client.get("/v1/leaderboard").json
    assert (board["kind"], board["tables"]) == ("leaderboard", ["second"])
    assert {score["predictor"] for score in board["scores"]} >= {"analytic"}


def test_predictddl_says_what_trains_it(shop: Shop) -> None:
    (row,) = shop.client.post("/v1/predictddl/predict", STARTS_DDL).json["rows"]
    assert row["step_seconds"] is None
    assert "nothing is trained for images of 224 x 224" in row["declined"]
    task = shop.carry(shop.start("predictddl/fit", {"name": "a", "rows": FIT["rows"]}))
    assert (task["state"], task["asked"]["system"]) == (
        "failed",
        "predictddl",
    )  # four runs of one network are too few
    assert "at least 3 networks" in task["problem"]["next"]


class Cluster:
    """In place of the Ray runner: notes what is sent to which address, and carries it out here."""

    sent: ClassVar[list[str]] = []

    def __init__(self, address: str = "", submit: str = "") -> None:
        self.address = address

    def in_workers(self, work: Any, most: int, report: Any, waits: bool = False) -> list[Any]:
        assert (most, waits) == (1, True)
        self.sent.append(self.address)
        report("computes")
        return [pickle.loads(pickle.dumps(work))(0, 1, report)]


@pytest.mark.parametrize("what", ["fit", "evaluate", "recommend"])
def test_what_computes_goes_to_a_cluster_that_takes_functions_and_says_where_it_is(
    shop: Shop, monkeypatch: Any, what: str
) -> None:
    monkeypatch.setattr(task_kinds.registry, "load", with_cluster(task_kinds.registry.load))
    addresses = {"10.0.0.1:6379": 1, "ray://h:10001": 1, "http://h:8265": 0, "": 0}
    for address, taken in addresses.items() if what == "fit" else [("auto", 1)]:
        Cluster.sent.clear()
        key = shop.start(f"tasks/{what}", KINDS[what].example)
        assert shop.questions.store().tasks.claim(key, "me")
        carry_out(shop.questions, key, "me", address, False)
        task = shop.client.get(f"/v1/tasks/{key}").json["task"]
        assert task["state"] == "done", task["problem"]
        assert Cluster.sent == [address] * taken
        note = task["progress"]["note"]
        place = (
            f"on the Ray cluster {address}"
            if taken
            else f"on this machine: {address} takes runs alone"
        )
        assert (f"({place}" in note) == bool(address)


def test_what_a_cluster_refuses_is_the_problem_of_the_task(shop: Shop, monkeypatch: Any) -> None:
    monkeypatch.setattr(task_kinds.registry, "load", with_cluster(task_kinds.registry.load))
    key = shop.start("predictddl/fit", {"name": "a", "rows": NETWORKS[:4]})
    assert shop.questions.store().tasks.claim(key, "me")
    carry_out(shop.questions, key, "me", "10.0.0.1:6379", False)
    task = shop.client.get(f"/v1/tasks/{key}").json["task"]
    assert (task["state"], Cluster.sent[-1]) == ("failed", "10.0.0.1:6379")
    assert "at least 3 networks" in task["problem"]["next"]
    assert task["progress"]["note"] == task["problem"]["found"]


def with_cluster(load: Callable[[str, str], Any]) -> Callable[[str, str], Any]:
    return lambda group, name: Cluster if (group, name) == ("runners", "ray") else load(group, name)


def test_campaigns_and_searches_say_when_they_end(shop: Shop, monkeypatch: Any) -> None:
    class Runs(Machines):
        def _carry(self, given: Any) -> Any:
            for measured in super()._carry(given):
                time.sleep(0.02)
                yield measured

    load = task_kinds.registry.load
    monkeypatch.setattr(
        task_kinds.registry, "load", lambda group, n: Runs if group == "runners" else load(group, n)
    )
    told: list[tuple[int, Any, float]] = []
    report = TaskTable.report

    def heed(tasks: Any, key: str, by: str, done: int, *more: Any) -> bool:
        told.append((done, more[-1], time.monotonic()))
        return report(tasks, key, by, done, *more)

    monkeypatch.setattr(TaskTable, "report", heed)
    space = {
        **KINDS["campaign"].example,
        "vary": {"workers": 1, "global_batch": [8, 16, 32, 64, 128]},
    }
    shop.done("tasks/campaign", space)
    bands = [(done, eta) for done, eta, _ in told if done and eta]
    # Two runs end first, where none is forecast.
    assert [done for done, _ in bands] == list(range(2, 11))
    assert all(low <= middle <= high for _, (low, middle, high) in bands)
    assert bands[-1][1] == (0.0, 0.0, 0.0)
    told.clear()
    search = {
        "space": {**space, "name": "other"},
        "minimize": "time",
        "searcher": "grid",
        "max_runs": 4,
    }
    shop.done("tasks/search", search)
    (_, before, at), end = next(one for one in told if one[0] == 2 and one[1]), told[-1][2]
    # One end of ten lies beside its band; tests/measure/test_pace.py counts how many do.
    assert before[0] / 2 <= end - at <= 2 * before[2] + 0.1
    assert told[-1][1] == (0.0, 0.0, 0.0)


def test_an_encoder_is_trained_followed_and_used_by_fits(shop: Shop, monkeypatch: Any) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(predictddl, "STEPS", 20)
    spec = "predictddl:regression=linear:features=embedding:encoder=quantities"
    body = {"name": "graphs", "rows": NETWORKS, "predictor": spec}
    key = shop.start("predictddl/encoder", body)
    found = shop.carry(key)
    result = found["result"]
    assert (found["state"], result["kind"], result["out"]) == ("done", "encoder", "graphs")
    stream = list(events(shop.client, key))
    runs = [data for _, kind, data in stream if kind == "run"]
    assert [run["steps"] for run in runs] == [10, 20]
    assert [run["loss"] for run in runs] == result["losses"]
    assert result["losses"][-1] < result["losses"][0]
    monkeypatch.setattr(objectives, "trained_encoder", None)  # a fit that has it trains none
    rows = [{**row, "step_time_s": 2 * row["step_time_s"]} for row in NETWORKS]
    shop.done("tasks/fit", {"name": "own", "rows": rows, "encoder": "graphs"})
    artifacts = shop.questions.store().artifacts
    models = [PredictDDL.from_json(artifacts.read(name).decode()) for name in ("graphs", "own")]
    assert [model.encoder for model in models] == ["quantities", "graphs"]
    assert [model.features for model in models] == ["embedding"] * 2
    trained, used = (model.model.encoder for model in models if model.model)
    assert {*trained} == {*used} > {"embed.weight"}
    assert all((trained[name] == used[name]).all() for name in trained)
    asked = {"workload": "resnet50", "cluster": "1x4xv100-sxm2-16gb", "plan": "dp=4,micro_batch=16"}
    first, second = (
        shop.client.post("/v1/predict", {**asked, "model": name}).json["step_seconds"]["p50"]
        for name in ("graphs", "own")
    )
    assert second > 1.3 * first


@pytest.mark.parametrize("name", ["nobody", "physics"])
def test_an_encoder_that_nobody_trained_is_refused(shop: Shop, name: str) -> None:
    shop.done("tasks/fit", {**FIT, "name": "physics"})
    task = shop.carry(shop.start("tasks/fit", {"name": "a", "rows": NETWORKS, "encoder": name}))
    assert (task["state"], task["problem"]["found"]) == ("failed", "no task trained it")


STARTS_DDL = {
    "rows": [
        {"workload": "resnet50", "device": "v100-sxm2-16gb", "devices": 8, "global_batch": 512}
    ]
}


def test_predictddl_answers_what_it_was_trained_for(shop: Shop) -> None:
    from tests.systems.test_predictddl import NAMES, PLAIN

    rows = [
        {"workload": name, "device": "v100-sxm2-16gb", "devices": n, "global_batch": 16 * n, "micro_batch": 16,
         "step_time_s": 0.01 * (i + 1)}
        for i, name in enumerate(NAMES) for n in (1, 2, 4)
    ]  # fmt: skip
    shop.done("tasks/fit", {"name": "graphs", "predictor": PLAIN, "rows": rows})
    (row,) = shop.client.post("/v1/predictddl/predict", {"rows": [rows[4]]}).json["rows"]
    assert row["declined"] is None
    assert 0.2 < row["step_seconds"]["p50"] / rows[4]["step_time_s"] < 5


@pytest.mark.parametrize(
    ("path", "body", "word"),
    [
        ("tasks/fit", {"name": "a", "runs": "x.csv"}, "no such field"),
        ("tasks/fit", {"name": "../a"}, "name"), ("tasks/fit", {"name": "served"}, "another"),
        ("tasks/fit", {"name": "a", "predictor": "nobody"}, "no such predictor"),
        ("tasks/fit", {"name": "a", "predictor": "predictddl:encoder=/tmp/x.pt"}, "no file is read"),
        ("tasks/fit", {"name": "a", "predictor": "predictddl:encoder=x.pt"}, "no file is read"),
        ("tasks/fit", {"name": "a", "predictor": "predictddl:encoder=canary"}, "no file is read"),
        ("tasks/fit", {"name": "a", "system": "nobody"}, "nobody"),
        ("tasks/encoder", {"name": "a", "predictor": "predictddl:encoder=digits"}, "predictor"),
        ("tasks/encoder", {"name": "a", "predictor": "analytic"}, "predictor"),
        ("tasks/fit", {"name": "a", "encoder": "graphs", "predictor": "analytic"}, "leave out the predictor"),
        ("tasks/encoder", {"name": "a", "predictor": "predictddl:encoder=/x.pt:encoder=quantities"}, "no file is read"),
        ("tasks/encoder", {"name": "quantities"}, "forerun's own"), ("tasks/fit", {"name": "a", "encoder": "digits"}, "forerun's own"),
        ("tasks/encoder", {"name": "a", "predictor": "predictddl:features=quantities:encoder=quantities"}, "predictor"),
        ("tasks/evaluate", {"predictors": ["analytic"], "tables": [{"name": "x" * 201, "rows": []}]}, "longer than 200"),
        ("tasks/campaign", {**KINDS["campaign"].example, "repeats": 10_000}, "a campaign has at most"),
        ("tasks/campaign", {
            **KINDS["campaign"].example, "runs": [{"workload": "mlp", "global_batch": [8, 16]}] * 1200
        }, "a campaign has at most"),
        ("tasks/train", {"entry": "forerun.measure.builtin:mlp", "workers": 1, "global_batch": 8, "epochs": 1}, "regression"),
        ("tasks/train", {
            "entry": "forerun.measure.builtin:regression", "workers": 5000, "global_batch": 5000, "epochs": 1
        }, "workers"),
        ("tasks/evaluate", {"predictors": []}, "predictors"), ("tasks/evaluate", {"predictors": ["os:system"]}, "os"),
        ("tasks/search", {}, "not one of space and runs"), ("tasks/search", {"where": ["a=1"], "searcher": "dowsing"}, "dowsing"),
        ("tasks/search", {"space": {"name": "a"}}, "workloads"),
        ("tasks/search", {"space": KINDS["campaign"].example, "price": 1.0}, "give a budget"),
        ("tasks/campaign", {**KINDS["campaign"].example, "name": ""}, "name"),
        ("tasks/campaign", {**KINDS["campaign"].example, "vary": {"workers": 0, "global_batch": 1}}, "workers"),
        ("tasks/campaign", {**KINDS["campaign"].example, "extra": 1}, "no such field"),
        ("tasks/train", {"entry": "forerun.measure.builtin:regression", "workers": 1, "global_batch": 8}, "ends"),
        ("tasks/train", {"entry": "forerun.measure.builtin:regression", "earlier": "/etc"}, "no such field"),
        ("tasks/train", {"entry": "forerun.measure.builtin:regression", "known": "x.csv"}, "no such field"),
        ("predictddl/fit", {"name": "a", "system": "scavenger", "rows": [], "x": 1}, "no such field"),
    ],
)  # fmt: skip
def test_a_wrong_task_is_a_problem(client: Client, path: str, body: Any, word: str) -> None:
    reply = client.post(f"/v1/{path}", body)
    assert word in problem(reply, 400).lower()
    assert client.get("/v1/tasks").json["tasks"] == []


@pytest.mark.parametrize(
    "entry",
    ["os:system", "train.py", "examples.lab_models:mlp", "forerun.measure.builtin:_check", 7],
)
@pytest.mark.parametrize("path", ["campaign", "search", "train"])
def test_code_of_others_is_refused_unless_it_is_allowed(
    client: Client, shop: Shop, path: str, entry: Any
) -> None:
    space = {"name": "a", "workloads": {"x": {"entry": entry}}, "vary": {"global_batch": [8, 16]}}
    body = {
        "campaign": space,
        "search": {"space": space},
        "train": {"entry": entry, "workers": 1, "global_batch": 8, "epochs": 1},
    }
    problem(client.post(f"/v1/tasks/{path}", body[path]), 400)
    key = shop.questions.store().tasks.add(path, body[path])[0]["id"]  # the process looks again
    task = shop.carry(key)
    assert (task["state"], task["result"]) == ("failed", None)


def test_a_task_that_cannot_be_carried_out_says_why(shop: Shop) -> None:
    task = shop.carry(shop.start("tasks/fit", {"name": "a", "where": ["campaign=nobody"]}))
    assert (task["state"], task["result"]) == ("failed", None)
    assert task["problem"] == {
        "asked": "the runs",
        "found": "the store has none such",
        "next": "see /v1/runs, or send rows",
        "error": "RequestError",
    }


def test_dollars_need_a_budget_or_a_yes(shop: Shop) -> None:
    body = {**KINDS["campaign"].example, "price_usd_per_worker_hour": 100}
    task = shop.carry(shop.start("tasks/campaign", body))
    assert "it may cost up to $" in task["problem"]["found"]


def test_more_workers_than_the_machine_bears_are_refused(shop: Shop) -> None:
    body = {**KINDS["campaign"].example, "vary": {"workers": 1000, "global_batch": 1000}}
    task = shop.carry(shop.start("tasks/campaign", body))
    assert task["problem"]["asked"] == "1,000 workers"


def test_networks_that_fill_a_machine_are_refused() -> None:
    with pytest.raises(RequestError, match="width x width x layers"):
        builtin.transformer(width=4096, layers=2)


def test_runs_are_made_on_the_cluster_of_the_service(shop: Shop, tmp_path: Path) -> None:
    report = task_kinds.Report(shop.questions.store(), "task", "me")
    for address, name in (("http://head:8265", "submit"), ("10.0.0.1:6379", "address")):
        bench = task_kinds.Bench(shop.questions, report, address, tmp_path)
        assert getattr(bench.runner({}), name) == address
        assert bench.runner({"runner": "local"}).name == "local"


def test_ray_is_refused_where_there_is_no_cluster(shop: Shop) -> None:
    task = shop.carry(shop.start("tasks/campaign", {**KINDS["campaign"].example, "runner": "ray"}))
    assert "--ray" in task["problem"]["next"]


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path / "runs.db")
        return
    with server() as running:
        yield running.new_place()


def test_twenty_at_once_under_one_key_are_one_task(
    served: Callable[..., Client], place: str
) -> None:
    client = served(place=place)
    with ThreadPoolExecutor(20) as threads:
        replies = list(
            threads.map(lambda i: client.post("/v1/tasks/fit", FIT, Idempotency_Key="k"), range(20))
        )
        kept = list(
            threads.map(
                lambda i: client.post("/v1/runs", {"rows": FIT["rows"]}, Idempotency_Key="r"),
                range(20),
            )
        )
    assert sorted(reply.status for reply in replies) == [200] * 19 + [202]
    assert len({reply.json["task"]["id"] for reply in replies}) == 1
    assert len(client.get("/v1/tasks").json["tasks"]) == 1
    assert len({reply.body for reply in kept}) == 1
    assert kept[0].json["files"][0]["new"] == 4
    assert client.get("/v1/runs").json["count"] == 4


def test_a_key_with_another_request_is_refused(client: Client) -> None:
    first = client.post("/v1/tasks/fit", FIT, Idempotency_Key="k")
    assert client.post("/v1/tasks/fit", FIT, Idempotency_Key="k").json == first.json
    assert client.post("/v1/tasks/fit", FIT, Idempotency_Key="l").json != first.json
    for path, body in (
        ("tasks/fit", {**FIT, "name": "b"}),
        ("tasks/evaluate", KINDS["evaluate"].example),
    ):
        assert "another request" in problem(
            client.post(f"/v1/{path}", body, Idempotency_Key="k"), 422
        )
    problem(client.post("/v1/runs", {"rows": FIT["rows"]}, Idempotency_Key="k"), 422)
    assert client.get("/v1/runs").json["count"] == 0  # nothing of it was kept
    for wrong in ("", "x" * 201, "a\tb"):
        problem(client.post("/v1/tasks/fit", FIT, Idempotency_Key=wrong), 400)


def test_keys_of_other_clients_are_others(served: Callable[..., Client], tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    tokens = [create_token(file, ["run"], 1) for _ in range(2)]
    client = served(tokens=file)
    found = [
        client.post(
            "/v1/tasks/fit", FIT, Idempotency_Key="k", Authorization=f"Bearer {token}"
        ).json["task"]["id"]
        for token in (*tokens, tokens[0])
    ]
    assert found[0] == found[2] != found[1]


@pytest.mark.parametrize(
    ("method", "path", "body", "needs"),
    [
        ("POST", "tasks/fit", FIT, "run"), ("POST", "predictddl/fit", STARTS["predictddl/fit"][2], "run"),
        ("POST", "scavenger/search", STARTS["scavenger/search"][2], "run"), ("POST", "predictddl/predict", STARTS_DDL, "predict"),
        ("GET", "tasks", None, "read"), ("GET", "models", None, "read"), ("GET", "audit", None, "admin"),
    ],
)  # fmt: skip
def test_each_route_needs_its_scope(
    served: Callable[..., Client], tmp_path: Path, method: str, path: str, body: Any, needs: str
) -> None:
    file = tmp_path / "tokens.json"
    client = served(tokens=file, audit=AuditLog(tmp_path / "audit.jsonl"))
    for scope in ("read", "predict", "run", "admin"):
        token = create_token(file, [scope], 1)
        reply = client.request(method, f"/v1/{path}", body, Authorization=f"Bearer {token}")
        assert (reply.status < 300) == (scope in (needs, "admin")), (scope, reply.body)
    problem(client.request(method, f"/v1/{path}", body), 401)


def events(client: Client, key: str, **headers: str) -> Iterator[tuple[int, str, Any]]:
    """Yield the number, kind and data of each event of a task, until the stream ends."""
    wire = http.client.HTTPConnection("127.0.0.1", client.port, timeout=30)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        wire.request("GET", f"/v1/tasks/{key}/events", headers=sent)
        reply = wire.getresponse()
        assert reply.status == 200
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert reply.headers["x-content-type-options"] == "nosniff"
        fields: dict[str, str] = {}
        for line in reply:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name:
                fields[name] = value
            elif "event" in fields:
                yield int(fields["id"]), fields["event"], json.loads(fields["data"])
                fields = {}
    finally:
        wire.close()


def test_events_follow_a_task_to_its_end_and_go_on_after_one(shop: Shop, monkeypatch: Any) -> None:
    go_on = threading.Event()

    def carry(body: Any, bench: Any) -> Any:
        bench.report.count(1, 3, "one", [{"devices": 1}])
        go_on.wait(20)
        bench.report.count(2, 3, "two", [{"devices": 2}])
        report_progress("soon")  # so soon after another that it is left out
        return {"kind": "fit", "x": float("nan")}, None

    monkeypatch.setattr(
        task_kinds,
        "KINDS",
        {"fit": task_kinds.TaskKind(KINDS["fit"].model, lambda b, m: None, carry, {})},
    )
    key = shop.start("tasks/fit", FIT)
    stream = events(shop.client, key)
    first = next(stream)
    assert (first[1], first[2]["state"]) == ("task", "waiting")
    assert "result" not in first[2]
    thread = threading.Thread(target=shop.carry, args=(key,))
    thread.start()
    seen = [next(stream)]
    while seen[-1][1] != "run":
        seen.append(next(stream))
    go_on.set()
    seen += list(stream)
    thread.join()
    numbers = [number for number, _, _ in [first, *seen]]
    assert numbers == sorted(set(numbers))
    assert [data for _, kind, data in seen if kind == "run"] == [{"devices": 1}, {"devices": 2}]
    assert (seen[-1][1], seen[-1][2]["state"], seen[-1][2]["result"]["x"]) == ("end", "done", None)
    at = next(number for number, kind, _ in seen if kind == "run")
    after = list(events(shop.client, key, Last_Event_ID=str(at)))
    assert [(kind, data) for _, kind, data in after] == [
        ("run", {"devices": 2}),
        ("end", seen[-1][2]),
    ]
    assert list(events(shop.client, key, Last_Event_ID=str(seen[-1][0]))) == []


def test_a_client_that_goes_away_frees_its_place(client: Client, monkeypatch: Any) -> None:
    monkeypatch.setattr(tasks, "_MOST_STREAMS", 2)
    monkeypatch.setattr(tasks, "_SILENT_SECONDS", 0.2)
    key = client.post("/v1/tasks/fit", FIT).json["task"]["id"]
    open_ones = [events(client, key) for _ in range(2)]
    for stream in open_ones:
        next(stream)
    problem(client.get(f"/v1/tasks/{key}/events"), 429)
    for stream in open_ones:
        stream.close()
    until = time.monotonic() + 20
    while True:
        try:
            (stream := events(client, key)).__next__()
            break
        except AssertionError:
            assert time.monotonic() < until
            time.sleep(0.1)
    stream.close()


def test_a_stream_counts_before_it_begins_and_until_nobody_has_it(
    advisor: Advisor, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(tasks, "_MOST_STREAMS", 1)
    questions = Questions(advisor, load_settings(), str(tmp_path / "runs.db"))
    desk = TaskDesk(questions, ServerLimits())
    key = questions.store().tasks.add("fit", FIT)[0]["id"]

    async def follow() -> None:
        stream = await desk.events(key, "")
        with pytest.raises(HttpError):
            await desk.events(key, "")
        del stream  # its client was gone before it began
        stream = await desk.events(key, "")
        assert (await anext(stream)).startswith(b"retry")
        await stream.aclose()
        await desk.events(key, "")

    asyncio.run(follow())


def test_a_silent_stream_is_kept_open_by_comments(client: Client, monkeypatch: Any) -> None:
    monkeypatch.setattr(tasks, "_SILENT_SECONDS", 0.3)
    key = client.post("/v1/tasks/fit", FIT).json["task"]["id"]
    wire = http.client.HTTPConnection("127.0.0.1", client.port, timeout=20)
    wire.request("GET", f"/v1/tasks/{key}/events")
    reply = wire.getresponse()
    while not reply.readline().startswith(b": "):
        pass
    wire.close()


def test_what_is_not_there_is_said(client: Client) -> None:
    for method, path in (("GET", "nobody"), ("GET", "nobody/events"), ("POST", "nobody/cancel")):
        body = {} if method == "POST" else None
        assert "no such task" in problem(client.request(method, f"/v1/tasks/{path}", body), 404)
    key = client.post("/v1/tasks/fit", FIT).json["task"]["id"]
    for query in ("cursor=x", "cursor=-1", "what=dance", "state=lost", "limit=0"):
        problem(client.get(f"/v1/tasks?{query}"), 400)
    problem(client.get(f"/v1/tasks/{key}/events", Last_Event_ID="x"), 400)
    assert client.post(f"/v1/tasks/{key}/cancel", {}).json["task"]["state"] == "cancelled"
    ((_, kind, data),) = events(client, key)
    assert (kind, data["state"]) == ("end", "cancelled")


def test_tasks_are_listed_in_pages(client: Client) -> None:
    keys = [client.post("/v1/tasks/fit", FIT).json["task"]["id"] for _ in range(5)]
    seen, path = [], "/v1/tasks?limit=2&what=fit&state=waiting"
    while path:
        reply = client.get(path)
        seen += [task["id"] for task in reply.json["tasks"]]
        path = reply.headers.get("link", "").partition("<")[2].partition(">")[0]
    assert seen == keys[::-1]
    assert reply.json["kind"] == "tasks"


def test_the_audit_log_is_read_from_its_end(served: Callable[..., Client], tmp_path: Path) -> None:
    client = served(audit=AuditLog(tmp_path / "audit.jsonl", model="analytic"))
    jobs = [{**JOB, "plan": "dp=8,micro_batch=16", "steps": n} for n in range(1, 8)]
    for job in jobs:
        client.post("/v1/predict", job)
    written = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    seen, path = [], "/v1/audit?limit=3"
    while path:
        reply = client.get(path)
        seen += reply.json["lines"]
        path = reply.headers.get("link", "").partition("<")[2].partition(">")[0]
    assert seen == written[::-1]
    assert "follow the links" in problem(client.get("/v1/audit?cursor=5"), 400)
    assert "--audit" in problem(served().get("/v1/audit"), 404)


def test_only_so_many_tasks_wait(client: Client, monkeypatch: Any) -> None:
    monkeypatch.setattr(tasks, "_MOST_WAITING", 1)
    assert client.post("/v1/tasks/fit", FIT).status == 202
    problem(client.post("/v1/tasks/fit", FIT), 429)


def test_tasks_that_wait_hold_only_so_many_bytes(client: Client, monkeypatch: Any) -> None:
    monkeypatch.setattr(tasks, "_MOST_WAITING_BYTES", 1500)
    assert client.post("/v1/tasks/fit", FIT).status == 202
    assert "bytes" in problem(client.post("/v1/tasks/fit", FIT), 429)
    assert client.post("/v1/tasks/recommend", KINDS["recommend"].example).status == 202


def test_tasks_are_taken_while_every_question_is_slow(
    served: Callable[..., Client], advisor: Any, monkeypatch: Any
) -> None:
    client, let_go = served(ServerLimits(workers=1)), threading.Event()
    monkeypatch.setattr(type(advisor), "support", lambda *a, **k: let_go.wait(20))
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(client.post, "/v1/support", {"workload": "resnet50"})
        try:
            assert client.post("/v1/tasks/fit", FIT).status == 202
        finally:
            let_go.set()
        slow.result()


def test_a_store_of_postgresql_opens_the_same_tasks(place: str) -> None:
    with open_store(place) as store:
        key = store.tasks.add("fit", FIT)[0]["id"]
    with open_store(place) as store:
        assert store.tasks.get(key)["state"] == "waiting"
