"""forerun runs: what is kept is listed, shown, brought in, written out, and removed when asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Run

Failed = Callable[..., str]
ROWS = """\
workload,device,devices,global_batch,step_time_s,status,label
resnet50,t4,1,32,0.25,ok,"a,b"
resnet50,t4,2,64,0.3,ok,
gpt2,v100-sxm2-16gb,8,64,,oom,x
gpt2,v100-sxm2-16gb,8,32,,,no run at all
gpt2,v100-sxm2-16gb,4,32,fast,ok,unread
"""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a table of four runs and a job, and stand in its folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORERUN_STORE", "kept.db")
    path = tmp_path / "runs.csv"
    path.write_text(ROWS)
    return path


@pytest.fixture
def failed(forerun: Run) -> Failed:
    """Return how a request that cannot be met is asked, and its words had."""

    def ask(*arguments: str) -> str:
        done = forerun(*arguments)
        assert done.code in (2, 3), done.out
        return done.err

    return ask


def test_an_import_says_what_is_new_known_and_no_run(
    forerun: Run, failed: Failed, table: Path
) -> None:
    first = forerun("runs", "import", "runs.csv")
    assert first.code == 0
    assert "runs.csv: 4 new runs, 1 row without a measured figure left out" in first.out
    assert "1 with a cell that is kept but not understood: runs.csv line 6" in first.out
    assert "4 new runs in kept.db" in first.out
    table.write_text(ROWS + "gpt2,t4,1,8,2.5,ok,later\n")
    again = forerun("runs", "import", "runs.csv", "--json").json()
    assert again["files"] == [
        {"file": "runs.csv", "rows": 6, "new": 1, "known_already": 4, "no_run": 1, "unread": 1}
    ]


def test_a_list_shows_the_last_runs_and_json_all_of_them(
    forerun: Run, failed: Failed, table: Path
) -> None:
    forerun("runs", "import", "runs.csv")
    lines = forerun("runs", "list", "--limit", "2").out.splitlines()
    assert lines[0].split() == "key workload device devices global_batch step_time_s status".split()
    assert lines[1].split()[1:] == "gpt2 v100-sxm2-16gb 4 32 fast ok".split()
    assert lines[-1] == "2 of 4 runs in kept.db"
    found = forerun("runs", "list", "--where", "devices<=2", "--oldest", "--json").json()
    assert found["count"] == 2
    assert [run["step_time_s"] for run in found["runs"]] == [0.25, 0.3]
    assert forerun("runs", "list", "--columns", "label", "--oldest", "--limit", "1").out.split()[3]
    assert "none of these runs has such a column" in failed("runs", "list", "--columns", "lable")


@pytest.mark.parametrize(
    ("conditions", "words"),
    [
        (["workload=resnet5"], "resnet5: did you mean resnet50? workload is gpt2 (2 runs), resnet50 (2 runs)"),
        (["devices=16"], "devices=16: devices is 1 (1 run), 2 (1 run), 4 (1 run), 8 (1 run)"),
        (["label=c"], "label is a,b (1 run), unread (1 run), x (1 run)"),
        (["memory_gb>1"], "no run fills memory_gb"),
        (["devices<=2", "workload=gpt2"], "each holds for some, all of them for none: devices<=2 for 2 runs, workload=gpt2 for 2 runs"),
    ],
)  # fmt: skip
def test_where_no_run_matches_the_values_that_there_are_are_told(
    forerun: Run, failed: Failed, table: Path, conditions: list[str], words: str
) -> None:
    forerun("runs", "import", "runs.csv")
    where = [word for text in conditions for word in ("--where", text)]
    shown = forerun("runs", "list", *where)
    assert shown.code == 0
    assert shown.out.startswith("none of 4 runs in kept.db matches\n")
    assert words in shown.out
    assert words in forerun("runs", "remove", "--yes", *where).out
    assert words in forerun("runs", "list", "--json", *where).json()["why_none"][0]
    told = failed("runs", "export", "--out", "none.csv", *where)
    assert "there are none among its 4 runs" in told
    assert words in told
    assert not Path("none.csv").exists()


def test_a_column_that_no_run_has_and_a_store_without_runs_are_told(
    forerun: Run, failed: Failed, table: Path
) -> None:
    forerun("runs", "import", "runs.csv")
    assert "did you mean devices" in failed("runs", "list", "--where", "devicess<=8")
    assert "ask by one that runs fill: device, devices," in failed(
        "runs", "list", "--where", "q7=1"
    )
    forerun("runs", "remove", "--yes", "--where", "devices>0")
    for more in ([], ["--where", "devices<=8"]):
        assert "no run is in kept.db yet" in forerun("runs", "list", *more).out
    assert "it has none yet" in failed("runs", "export", "--out", "none.csv")


def test_one_run_is_shown_with_all_that_is_known(forerun: Run, failed: Failed, table: Path) -> None:
    forerun("runs", "import", "runs.csv", "--campaign", "night", "--with", "framework=pytorch")
    key = forerun("runs", "list", "--where", "status=oom", "--json").json()["runs"][0]["run_key"]
    shown = forerun("runs", "show", key[:12])
    assert key in shown.out
    assert "night" in shown.out
    run = forerun("runs", "show", key, "--json").json()["run"]
    assert run["columns"]["framework"] == "pytorch"
    assert (run["campaign"], run["job"], run["columns"]["label"]) == ("night", None, "x")
    assert "no such run" in failed("runs", "show", "0123456789")


@pytest.mark.parametrize("name", ["out.csv", "out.parquet"])
def test_what_is_written_out_comes_in_elsewhere_as_the_same(
    forerun: Run, failed: Failed, table: Path, name: str
) -> None:
    forerun("runs", "import", "runs.csv", "--campaign", "night")
    assert "4 runs of kept.db, written to" in forerun("runs", "export", "--out", name).out
    forerun("runs", "import", name, "--store", "other.db")
    forerun("runs", "export", "--out", f"again-{name}", "--store", "other.db")
    assert Path(name).read_bytes() == Path(f"again-{name}").read_bytes()
    assert "0 new runs, 4 known already" in forerun("runs", "import", name).out
    assert "the file is there already" in failed("runs", "export", "--out", name)
    forerun("runs", "export", "--out", name, "--force", "--plain", "--where", "status=oom")
    if name.endswith("csv"):
        assert Path(name).read_text() == (
            "workload,device,devices,global_batch,status,label\ngpt2,v100-sxm2-16gb,8,64,oom,x\n"
        )


def test_all_files_come_in_or_none(forerun: Run, failed: Failed, table: Path) -> None:
    forerun("runs", "import", "runs.csv")
    Path("bad.csv").write_text("workload,step_time_s\na,1\nb,2,3\n")
    Path("jobs.csv").write_text("workload,devices\na,1\n")
    Path("good.csv").write_text("workload,step_time_s\na,1\n")
    Path("clash.csv").write_text("workload,step_time_s,run_key\na,1,k\nb,2,k\n")
    for other, words in (
        ("bad.csv", "line 3 has 3 cells"), ("jobs.csv", "no row has a measured figure"),
        ("clash.csv", "another run with other figures"), ("absent.csv", "no such file"),
    ):  # fmt: skip
        assert words in failed("runs", "import", "good.csv", other)
        assert "4 of 4 runs" in forerun("runs", "list").out


def test_a_log_comes_in_as_a_run(forerun: Run, failed: Failed, table: Path) -> None:
    lines = (f'{{"step": {i}, "time": {1000 + i * 0.5}}}' for i in range(40))
    Path("job.jsonl").write_text("\n".join(lines))
    forerun(
        "runs", "import", "job.jsonl", "--with", "workload=resnet50", "--with", "global_batch=8"
    )
    run = forerun("runs", "list", "--json").json()["runs"][0]
    assert run["workload"] == "resnet50"
    assert run["step_time_s"] == pytest.approx(0.5, rel=0.01)


def test_runs_go_only_when_it_is_said_twice(forerun: Run, failed: Failed, table: Path) -> None:
    forerun("runs", "import", "runs.csv")
    assert "no --where says which" in failed("runs", "remove", "--yes")
    asked = forerun("runs", "remove", "--where", "workload=resnet50")
    assert asked.out == "it would remove 2 runs from kept.db; give --yes to do it\n"
    assert "2 runs removed" in forerun("runs", "remove", "--where", "devices<=2", "--yes").out
    assert "1 run removed" in forerun("runs", "remove", "--where", "label=x", "--yes").out
    assert "1 of 1 run in kept.db" in forerun("runs", "list").out
    assert "there are none" in failed("runs", "export", "--out", "o.csv", "--where", "label=x")


def test_a_store_that_is_not_there_is_not_made_by_looking(
    forerun: Run, failed: Failed, table: Path
) -> None:
    for words in (["list"], ["show", "k" * 9], ["export", "--out", "o.csv"]):
        assert "there is no such file" in failed("runs", *words)
    assert not Path("kept.db").exists()
    assert "is no database" in failed("runs", "list", "--store", "runs.csv")


def test_kept_runs_teach_and_are_judged(forerun: Run, failed: Failed, table: Path) -> None:
    cluster = [f"resnet50,1x{n}xa100-sxm-80gb,{32 * n},{0.02 + 0.002 * n},ok" for n in (1, 2, 4, 8)]
    Path("good.csv").write_text(
        "\n".join(["workload,cluster,global_batch,step_time_s,status", *cluster])
    )
    forerun("runs", "import", "good.csv", "--campaign", "night")
    forerun("runs", "import", "runs.csv")
    for source, out in (("store:campaign=night", "a.json"), ("good.csv", "b.json")):
        assert forerun("fit", "--runs", source, "--out", out).code == 0
    assert Path("a.json").read_text() == Path("b.json").read_text()
    judged = forerun("evaluate", "--runs", "kept.db", "--predictors", "analytic", "--json")
    assert judged.code == 0


def test_a_log_says_when_its_target_was_met(forerun: Run, failed: Failed, table: Path) -> None:
    lines = (
        f'{{"step": {i}, "time": {1000 + i * 0.5}, "loss": {4 - 0.05 * i}}}' for i in range(60)
    )
    Path("job.jsonl").write_text("\n".join(lines))
    ask = ("runs", "import", "job.jsonl", "--with", "workload=resnet50", "--with", "global_batch=8")
    assert forerun(*ask, "--target", "loss=2.0").code == 0
    run = forerun("runs", "list", "--json").json()["runs"][0]
    assert run["target"] == "loss <= 2"
    assert 40 * 8 <= run["samples_to_target"] <= 43 * 8
    assert "it is not METRIC=VALUE" in failed(*ask, "--target", "loss")
    assert "has no 'accuracy'" in failed(*ask, "--target", "accuracy=0.9")
    assert "rows say that themselves" in failed("runs", "import", "runs.csv", "--target", "loss=2")


def test_artifacts_are_kept_listed_and_given_out(forerun: Run, failed: Failed, table: Path) -> None:
    forerun("runs", "import", "runs.csv")
    key = forerun("runs", "list", "--json").json()["runs"][0]["run_key"]
    Path("m.json").write_text('{"a": 1}')
    put = (
        "runs",
        "artifacts",
        "put",
        "m.json",
        "--kind",
        "model",
        "--run",
        key[:10],
        "--seed",
        "7",
    )
    assert "m.json (" in forerun(*put, "--command", "forerun fit").out
    Path("plot.svg").write_text("<svg/>")
    forerun("runs", "artifacts", "put", "plot.svg", "--name", "speed", "--kind", "plot", "--leave")

    found = forerun("runs", "artifacts", "list", "--json").json()["artifacts"]
    assert [one["name"] for one in found] == ["m.json", "speed"]
    assert (found[0]["runs"], found[0]["seed"], found[0]["kind"]) == ([key], 7, "model")
    assert found[0]["command"] == "forerun fit"
    shown = forerun("runs", "artifacts", "list", "--kind", "plot").out
    assert "speed" in shown
    assert "m.json" not in shown
    assert "1 artifact in kept.db" in shown

    assert "already" in failed("runs", "artifacts", "get", "m.json")
    assert forerun("runs", "artifacts", "get", "m.json", "--out", "again.json").code == 0
    assert Path("again.json").read_text() == '{"a": 1}'
    Path("m.json").unlink()
    assert forerun("runs", "artifacts", "get", found[0]["digest"][:8]).code == 0
    assert Path("m.json").read_text() == '{"a": 1}'

    Path("plot.svg").write_text("<svg>other</svg>")
    assert "has changed since" in failed("runs", "artifacts", "get", "speed", "--out", "p.svg")
    assert "speed" in failed("runs", "artifacts", "get", "sped", "--out", "p.svg")
    assert "no such file" in failed("runs", "artifacts", "put", "absent").lower()
    assert "a device and no file" in failed("runs", "artifacts", "put", "/dev/zero")
    assert "it is a folder" in failed("runs", "artifacts", "put", ".")
    assert "run" in failed("runs", "artifacts", "put", "m.json", "--run", "nothing-such")
