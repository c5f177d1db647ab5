"""Commands with --server print what they print without it, and refuse by name what a service does not take."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forerun.advisor import Advisor
from forerun.cli import main
from forerun.client import Client
from forerun.server.app import make_app
from forerun.server.front import Front
from forerun.server.limits import ServerLimits
from forerun.server.questions import Questions
from forerun.server.task_kinds import carry_out
from forerun.server.tokens import create_token
from forerun.settings import load_settings
from tests.server.conftest import serving

TAKEN = re.compile(r'"seconds_taken": [\d.e-]+|; [\d.]+ s$', re.MULTILINE)
JOB = ("resnet50", "--cluster", "1x8xa100-sxm-80gb")
TABLE = (
    "workload,cluster,global_batch\nresnet50,1x8xa100-sxm-80gb,512\nnobody,1x8xa100-sxm-80gb,512\n"
)
RUNS = (
    "workload,device,devices,global_batch,step_time_s,my_note\nresnet50,a100-sxm-80gb,8,512,0.21,a\n"
    "resnet50,a100-sxm-80gb,16,512,0.1,\nvgg16,h100-sxm-80gb,8,64,0.30000001,b\n"
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("served") / "runs.db")


@pytest.fixture(scope="module")
def url(store: str) -> Iterator[str]:
    """Serve with a store."""
    limits = ServerLimits()
    app = make_app(Questions(Advisor(), load_settings(), store), limits)
    with serving(Front(app, limits)) as client:
        yield f"http://127.0.0.1:{client.port}"


def printed(capsys: Any, *words: str) -> tuple[int, str, str]:
    """Return what a command returns and prints, less the time that it took."""
    code = main(list(words), standalone_mode=False)
    out, err = capsys.readouterr()
    return code, TAKEN.sub("", out), TAKEN.sub("", err)


@pytest.mark.parametrize("as_json", [(), ("--json",)], ids=["text", "json"])
@pytest.mark.parametrize(
    "words",
    [
        ("predict", *JOB, "--deadline", "4h", "--goodput", "0.9", "--spot", "--plan", "dp=8"),
        ("explain", "llama3-8b", "--cluster", "4x8xh100-sxm-80gb", "--budget", "20000", "--framework", "fsdp"),
        ("support", "llama3-8b", "--seq-len", "4096"),
        ("compare", *JOB, "8xnobody", "1x8xh100-sxm-80gb"),
        ("compare", *JOB, "1x8xh100-sxm-80gb", "--plan", "dp=8", "--plan", "dp=7"),
        ("recommend", "resnet50", "--clusters", "1x8xa100-sxm-80gb,h100-sxm-80gb", "--deadline", "24h"),
        ("recommend", "resnet50", "--clusters", "1x8xa100-sxm-80gb", "--deadline", "1s", "--confidence", "0.8"),
        ("predict", "mixtral-8x7b", "--cluster", "1x8xv100-sxm2-16gb"),
        ("workloads", "llama"), ("devices", "h100-sxm-80gb"), ("devices",), ("instances", "p5"),
        ("devices", "nobody"), ("predictors",), ("systems",), ("version",),
    ],
    ids=lambda words: "-".join(words[:2]),
)  # fmt: skip
def test_a_command_prints_what_it_prints_without_a_server(
    capsys: Any, url: str, words: tuple[str, ...], as_json: tuple[str, ...]
) -> None:
    own = printed(capsys, *words, *as_json)
    assert printed(capsys, *words, *as_json, "--server", url) == own
    assert own[1] or own[0]


JOBS = "workload,device,devices,global_batch,price_usd_per_hour,epochs,framework\n" + "".join(
    f"resnet50,v100-sxm2-16gb,{n},{64 * n},{3 * n},10,pytorch\n" for n in (1, 2, 4, 8)
)
MADE = "workload,device,devices,global_batch,micro_batch,precision,step_time_s,price_usd_per_hour\n" + "".join(
    f"resnet50,v100-sxm2-16gb,{n},{64 * n},64,fp16,{0.08 * (1 + 0.05 * n)},{3 * n}\n" for n in (1, 2, 4)
)  # fmt: skip
FEW = ("resnet50", "--clusters", "1x8xa100-sxm-80gb,1x8xh100-sxm-80gb", "--framework", "pytorch")


@pytest.mark.parametrize("as_json", [(), ("--json",)], ids=["text", "json"])
@pytest.mark.parametrize(
    "words",
    [
        (*FEW, "--epochs", "90", "--deadline", "24h", "--spot", "--startup", "5min", "--plan", "tp=1"),
        (*FEW, "--deadline", "1s"),
        ("--candidates", "jobs.csv", "--count", "2"),
        ("--candidates", "jobs.csv", "--asked", "jobs.csv", "--goal", "decision", "--minimize", "time"),
        ("--candidates", "jobs.csv", "--runs", "runs.csv", "--predictor", "ernest", "--criterion", "A"),
        ("--candidates", "jobs.csv", "--runs", "runs.csv", "runs.csv", "--budget", "$3", "--out", "out.csv"),
    ],
    ids=["workload", "nothing", "rows", "decision", "design", "budget"],
)  # fmt: skip
def test_next_runs_are_those_without_a_server(
    capsys: Any, url: str, tmp_path: Path, words: tuple[str, ...], as_json: tuple[str, ...]
) -> None:
    (tmp_path / "jobs.csv").write_text(JOBS)
    (tmp_path / "runs.csv").write_text(MADE)
    out = tmp_path / "out.csv"
    given = [str(tmp_path / w) if w.endswith(".csv") else w for w in ("suggest", *words, *as_json)]
    own, written = printed(capsys, *given), out.read_text() if out.exists() else ""
    assert printed(capsys, *given, "--server", url)[:2] == own[:2]
    assert not written or out.read_text() == written
    assert own[1] or own[0] == 3


CAMPAIGN = """
name: {name}
workloads:
  mlp: {{entry: "forerun.measure.builtin:mlp", settings: {{width: [64, 128]}}}}
vary: {{workers: 1, global_batch: 16}}
steps: {{warmup: 1, least: 2, most: 3, seconds: 2s}}
"""


@pytest.fixture
def worker(url: str, store: str) -> Iterator[None]:
    """Carry out the tasks of the service in this process, one after another."""
    over, questions = threading.Event(), Questions(Advisor(), load_settings(), store)

    def work() -> None:
        with questions.store() as opened:
            while not over.wait(0.05):
                for key in opened.tasks.open():
                    if opened.tasks.claim(key, "me"):
                        carry_out(questions, key, "me", "", False)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield
    over.set()
    thread.join(60)


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "--runs", "runs.csv", "jobs.csv", "--fit", "more.csv", "--predictors", "linear-scaling", "--where", "devices<4"),
        ("evaluate", "--runs", "more.csv"),
        ("search", "--replay", "runs.csv", "--minimize", "time", "--deadline", "0.1s"),
        ("search", "--replay", "runs.csv", "--searcher", "grid", "--max-runs", "2", "--where", "devices<4", "--json"),
        ("search", "--replay", "runs.csv", "--deadline", "0.00001s"),
    ],
    ids=["evaluate", "declined", "search", "json", "nothing"],
)  # fmt: skip
def test_a_task_prints_what_the_command_prints(
    capsys: Any, url: str, worker: None, tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "runs.csv").write_text(MADE)
    (tmp_path / "more.csv").write_text(MADE.replace("resnet50", "own-net"))
    (tmp_path / "jobs.csv").write_text(MADE.replace("resnet50", "vgg16"))
    given = [str(tmp_path / word) if word.endswith(".csv") else word for word in words]
    own = printed(capsys, *given)
    code, out, err = printed(capsys, *given, "--server", url)
    assert (code, out.replace("one with where", "one with --where")) == own[:2]
    assert own[1] or own[2].replace("error:", "") in err.replace("error:", "")


def test_a_model_is_fitted_there_and_then_answers(
    capsys: Any, url: str, worker: None, tmp_path: Path
) -> None:
    (tmp_path / "runs.csv").write_text(MADE)
    given = ("fit", "--runs", str(tmp_path / "runs.csv"), "--out")
    file = str(tmp_path / "m.json")
    own = printed(capsys, *given, file)
    code, out, _ = printed(capsys, *given, "mine", "--server", url)
    there = out.replace("kept by the service as mine", f"written to {file}")
    assert (code, there) == (0, own[1])
    code, _, err = printed(capsys, *given, "mine", "--server", url)
    assert (code, "--force" in err) == (2, True)
    found = json.loads(printed(capsys, *given, "mine", "--force", "--json", "--server", url)[1])
    assert (found["kind"], found["out"], found["tables"]) == (
        "fit",
        "mine",
        [str(tmp_path / "runs.csv")],
    )
    job = ("resnet50", "--cluster", "1x2xv100-sxm2-16gb", "--precision", "fp16", "--json")
    there = printed(capsys, "predict", *job, "--server", url, "--model", "mine")[1]
    assert there == printed(capsys, "predict", *job, "--model", file)[1]
    jobs = ("suggest", "--candidates", str(tmp_path / "runs.csv"))
    code, _, err = printed(capsys, *jobs, "--server", url, "--model", "mine")
    assert (code, "every one of them was run already" in err) == (3, True)


def test_an_interrupt_cancels_the_task(
    capsys: Any, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs.csv").write_text(MADE)

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("forerun.client.Client.events", interrupted)
    given = ("evaluate", "--runs", str(tmp_path / "runs.csv"), "--server", url)
    code, out, err = printed(capsys, *given)
    task = re.search(r"the task (\w+) of the service is cancelled", err)
    assert (code, out) == (130, "")
    assert task is not None
    with Client(url) as client:
        assert client.task(task[1])["state"] == "cancelled"


@pytest.mark.parametrize("ends", [(), ("--json",), ("--json", "--out")], ids=["csv", "json", "out"])
def test_a_table_is_what_it_is_without_a_server(
    capsys: Any, url: str, tmp_path: Path, ends: tuple[str, ...]
) -> None:
    (tmp_path / "jobs.csv").write_text(TABLE)
    out = str(tmp_path / "out.csv")
    words = [
        "predict",
        "--table",
        str(tmp_path / "jobs.csv"),
        *ends,
        *([out] if "--out" in ends else []),
    ]
    own = printed(capsys, *words)
    written = Path(out).read_text() if "--out" in ends else ""
    assert printed(capsys, *words, "--server", url) == own
    assert not written or Path(out).read_text() == written


def test_a_chosen_plan_is_emitted(capsys: Any, url: str) -> None:
    own = printed(capsys, "predict", *JOB, "--emit", "torchrun")[1]
    found = printed(capsys, "predict", *JOB, "--emit", "torchrun", "--server", url)[1]
    assert found.replace(f" --server {url}", "") == own


def test_runs_go_to_the_store_of_the_service_and_come_back(
    capsys: Any, url: str, store: str, tmp_path: Path
) -> None:
    (tmp_path / "runs.csv").write_text(RUNS)
    given = ("runs", "import", str(tmp_path / "runs.csv"), "--campaign", "night")
    assert printed(capsys, *given, "--server", url)[1].endswith(f"3 new runs in {store}\n")
    own = printed(capsys, *given, "--store", store)
    assert "3 known already" in own[1]
    assert printed(capsys, *given, "--server", url) == own
    out = tmp_path / "out.csv"
    for words in (
        ("list",), ("list", "--json"), ("list", "--where", "devices>8", "--json"), ("list", "--where", "devices>80"),
        ("export", "--force", "--out", str(out)), ("export", "--force", "--plain", "--out", str(out)),
        ("export", "--force", "--where", "devices>80", "--out", str(out)),
    ):  # fmt: skip
        own = printed(capsys, "runs", *words, "--store", store)
        kept = out.read_text() if out.exists() else ""
        assert printed(capsys, "runs", *words, "--server", url) == own
        assert not kept or out.read_text() == kept


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("predict", *JOB, "--fit", "x.csv"), "--fit with a server"),
        (("predict", *JOB, "--model", "x.json"), "no such model"),
        (("predict", *JOB, "--predictor", "auto"), "--predictor with a server"),
        (("explain", *JOB, "--start", "priors"), "--start with a server"),
        (("compare", *JOB, "1xh100", "--catalog", "x.csv"), "--catalog with a server"),
        (("predict", *JOB, "--plot"), "--plot or --html with a server"),
        (("predict", "model.onnx", *JOB[1:]), "takes no .onnx file"),
        (("predict", "os:system", *JOB[1:]), "no file or module is read"),
        (("instances", "--catalog", "x.csv"), "own options"),
        (("predictors", "--constants"), "own options"),
        (("runs", "list", "--store", "x.db"), "--store x.db with a server"),
        (("runs", "list", "--oldest"), "--oldest with a server"),
        (("suggest", "resnet50", "--start", "priors"), "--start with a server"),
        (("fit", "--runs", "x.csv", "--out", "ours", "--flags", "f.csv"), "--flags with a server"),
        (("evaluate", "--runs", "tests/cli/conftest.py", "--plot"), "--plot or --html with a server"),
        (("search", "SPACE.yaml", "--out", "x.csv"), "--out of a search with a server"),
        (("search", "--replay", "x.csv", "--seeds", "3"), "--seeds with a server"),
        (("search", "--replay", "x.csv", "--keep", "n"), "--keep with a server"),
        (("search", "--replay", "x.csv", "--known", "k.csv"), "--known with a server"),
        (("suggest", "resnet50", "--campaign", "x.yaml"), "--campaign with a server"),
        (("suggest", "resnet50", "--predictor", "generic:encoder=/etc/passwd"), "no file is read for a request"),
        (("suggest", "resnet50", "--model", "nobody"), "no such model"),
        (("suggest", "resnet50", "--runs", "x.db"), "--runs x.db with a server"),
        (("suggest", "resnet50", "--runs", "architectures-lab"), "--runs architectures-lab with a server"),
    ],
)  # fmt: skip
def test_what_a_service_does_not_take_is_refused(
    capsys: Any, url: str, words: tuple[str, ...], named: str
) -> None:
    code, out, err = printed(capsys, *words, "--server", url)
    assert (code, out) == (2, "")
    assert named in err


def test_a_setting_names_the_server_and_a_file_or_variable_the_token(
    capsys: Any, monkeypatch: pytest.MonkeyPatch, store: str, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens.json"
    token = create_token(tokens, ["read"], 1)
    (tmp_path / "mine").write_text(f"{token}\n")
    limits = ServerLimits()
    app = make_app(Questions(Advisor(), load_settings(), store), limits)
    with serving(Front(app, limits, tokens)) as client:
        monkeypatch.setenv("FORERUN_SERVER", f"127.0.0.1:{client.port}")
        code, _, err = printed(capsys, "version")
        assert (code, "no token" in err) == (2, True)
        assert printed(capsys, "version", "--token-file", str(tmp_path / "mine"))[0] == 0
        code, _, err = printed(capsys, "version", "--token-file", str(tmp_path / "none"))
        assert (code, "No such file" in err) == (2, True)
        monkeypatch.setenv("FORERUN_TOKEN", token)
        assert json.loads(printed(capsys, "version", "--json")[1])["kind"] == "version"
        code, _, err = printed(capsys, "predict", *JOB)
        assert (code, "predict is needed" in err, token in err) == (2, True, False)
        assert printed(capsys, "version", "--server", "")[0] == 0


def test_no_service_is_an_error_that_says_what_to_do(capsys: Any) -> None:
    code, _, err = printed(capsys, "predict", *JOB, "--server", "127.0.0.1:9")
    assert (code, "start it with `forerun serve`" in err) == (2, True)


def test_next_runs_go_by_the_runs_of_the_service(capsys: Any, url: str, tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(JOBS)
    (tmp_path / "runs.csv").write_text(MADE)
    assert printed(capsys, "runs", "import", str(tmp_path / "runs.csv"), "--campaign", "next", "--server", url)[0] == 0  # fmt: skip
    words = ("suggest", "--candidates", str(tmp_path / "jobs.csv"), "--json", "--runs")
    own = printed(capsys, *words, str(tmp_path / "runs.csv"))
    assert printed(capsys, *words, "store:campaign=next", "--server", url)[:2] == own[:2]
    assert "left out: run already" in own[1]
    code, _, err = printed(capsys, *words, "store:campaign=none", "--server", url)
    assert (code, "the store has none such" in err) == (2, True)


def test_a_campaign_and_a_search_are_carried_out_there(
    capsys: Any, url: str, worker: None, store: str, tmp_path: Path
) -> None:
    # At the end: its runs stay in the store of the service, where others list theirs.
    file, out = tmp_path / "fast.yaml", tmp_path / "out.csv"
    file.write_text(CAMPAIGN.format(name="fast"))
    code, shown, err = printed(
        capsys, "profile", str(file), "--server", url, "--out", str(out), "--yes"
    )
    assert (
        code,
        "made    2 ok in" in shown,
        shown.startswith("campaign fast: 2 runs\nleft "),
    ) == (0, True, True)
    assert out.read_text().count("\n") == 3
    again = printed(capsys, "profile", str(file), "--server", url)
    own = printed(capsys, "profile", str(file), "--store", store)
    assert (
        again[1].replace("the store of the service", store).splitlines()[:-1]
        == own[1].splitlines()[:-1]
    )
    given = ("search", str(file), "--searcher", "grid", "--minimize", "time", "--json")
    found = json.loads(printed(capsys, *given, "--server", url)[1])
    assert found["searches"] == json.loads(printed(capsys, *given, "--store", store)[1])["searches"]
    code, shown, err = printed(capsys, *given[:-1], "--deadline", "0.00001s", "--server", url)
    assert (code, "no trial met the limits" in err, "over 10 us" in shown) == (3, True, True)
    file.write_text(CAMPAIGN.format(name="bad").replace("builtin:mlp", "builtin:nobody"))
    code, _, err = printed(capsys, "profile", str(file), "--server", url)
    assert (code, "--allow-modules" in err) == (2, True)
