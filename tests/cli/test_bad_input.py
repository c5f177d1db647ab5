"""Bad input: nothing that is read is written over, no secret is shown, no figure fails a command."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run

CLUSTER = ("--cluster", "8xa100-sxm-80gb")
RUNS = (
    "workload,device,devices,global_batch,step_time_s\n"
    "resnet50,a100-sxm-80gb,8,256,0.1\nresnet50,a100-sxm-80gb,4,256,0.2\n"
    "resnet50,a100-sxm-80gb,2,256,0.4\nresnet50,a100-sxm-80gb,1,256,0.8\n"
)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Return a table of four runs."""
    path = tmp_path / "runs.csv"
    path.write_text(RUNS)
    return path


@pytest.fixture
def store(forerun: Run, runs: Path, tmp_path: Path) -> Path:
    """Return a store of these runs."""
    pytest.importorskip("sqlalchemy")
    path = tmp_path / "s.db"
    assert forerun("runs", "import", str(runs), "--store", str(path)).code == 0
    return path


@pytest.mark.parametrize(
    "command",
    [
        "runs artifacts get runs.csv --store s.db --out s.db --force",
        "runs artifacts get runs.csv --store sqlite:///s.db --out ./s.db --force",
        "runs artifacts get runs.csv --store s.db --out s.db-wal --force",
        "explain config.json {} --trace config.json",
        "explain folder {} --trace folder/config.json",
        "explain resnet50 {} --model m.json --trace m.json",
        "explain resnet50 {} --model m.json --trace link.json",
        "recommend resnet50 --clusters a100-sxm-80gb --model m.html --html m.html",
        "predict --table jobs.csv --model m.csv --out m.csv",
        "predict --table jobs.csv --fit runs.csv --out both.csv --flags both.csv",
        "predict --table jobs.csv --fit store: --out jobs.csv",
        "suggest --candidates jobs.csv --model m.csv --out m.csv",
        "suggest --candidates jobs.csv --out jobs.csv",
        "suggest --candidates jobs.csv --runs runs.csv --flags runs.csv",
        "suggest --candidates jobs.csv --runs runs.csv --flags jobs.csv",
        "suggest resnet50 --clusters a100-sxm-80gb --runs runs.csv --flags runs.csv",
        "fit --runs runs.csv --catalog mine.json --out mine.json --force",
        "leaderboard --runs runs.csv --catalog mine.md --page mine.md",
    ],
)
def test_nothing_that_is_read_is_written_over(
    forerun: Run, runs: Path, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert forerun("runs", "artifacts", "put", "runs.csv", "--store", "s.db").code == 0
    (tmp_path / "folder").mkdir()
    for name in ("config.json", "folder/config.json", "m.json", "m.html", "m.csv", "jobs.csv",
                 "mine.json", "mine.md", "both.csv"):  # fmt: skip
        Path(name).write_text("as it was")
    Path("link.json").symlink_to("m.json")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    done = forerun(*command.format(" ".join(CLUSTER)).split())
    assert done.code == 2
    assert "by this very command" in done.err, done.err
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("setting", ["MODEL", "STORE", "CATALOG"])
def test_what_the_settings_name_is_not_written_over(
    forerun: Run, jobs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    kept = tmp_path / "kept.csv" if setting != "STORE" else tmp_path / "kept"
    kept.write_text("as it was")
    monkeypatch.setenv(f"FORERUN_{setting}", str(kept))
    out = tmp_path / "out.csv"
    out.symlink_to(kept)
    done = forerun("predict", "--table", str(jobs), "--out", str(out))
    assert done.code == 2
    assert "by this very command" in done.err, done.err
    assert kept.read_text() == "as it was"


@pytest.mark.parametrize("name", ["a?b.db", "a%41.db", "a#b.db", "a b.db", "a&mode=ro.db", "ü.db"])
def test_a_store_is_the_file_that_is_named(
    forerun: Run, runs: Path, tmp_path: Path, name: str
) -> None:
    pytest.importorskip("sqlalchemy")
    before = set(tmp_path.iterdir())
    assert forerun("runs", "import", str(runs), "--store", str(tmp_path / name)).code == 0
    assert {path.name for path in set(tmp_path.iterdir()) - before} == {name}
    assert forerun("runs", "list", "--store", str(tmp_path / name), "--json").json()["count"] == 4


def test_a_store_by_url_tells_the_file_that_it_is(
    forerun: Run, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sqlalchemy")
    monkeypatch.chdir(tmp_path)
    for url, name in (("sqlite:///a%41.db", "aA.db"), ("sqlite:///b.db?mode=ro", "b.db")):
        done = forerun("runs", "import", str(runs), "--store", url)
        assert Path(name).is_file()
        assert f"new runs in {name}" in done.out


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:secret@127.0.0.1:1/d", "postgresql://u:se@secret@127.0.0.1:1/d",
        "postgresql://u:secret/x@127.0.0.1:1/d", "postgresql://u@127.0.0.1:1/d?password=secret",
        "postgresql://127.0.0.1:1/d?user=u&password=secret&sslpassword=secret",
        "postgresql://u:secret:x@127.0.0.1:1/d", "postgresql://u:@secret@127.0.0.1:1/d",
        "postgresql://u:secret@127.0.0.1:port/d", "postgresql+asyncpg://u:x@secret@h/d",
        "postgresql:u:secret@h/d", "postgresql:/u:secret@h/d", "postgresql//u:secret@h/d",
        "host=h password=secret dbname=d", "host=h password = 'secret' dbname=d",
        "POSTGRESQL://u:secret@h/d", "mysql://u:x/secret@h/d", "sqlite://u:secret@h/d.csv",
        " postgresql://u:secret@127.0.0.1:1/d", "postgresql://u:secret@/d?host=127.0.0.1:1",
    ],
)  # fmt: skip
@pytest.mark.parametrize("verb", ["list", "import"])
def test_no_form_of_a_url_shows_its_password(
    forerun: Run, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, verb: str
) -> None:
    pytest.importorskip("sqlalchemy")
    monkeypatch.chdir(tmp_path)
    done = forerun("runs", verb, *([str(runs)] if verb == "import" else []), "--store", url)
    assert done.code == 2, done
    assert "secret" not in done.out + done.err, done.err


@pytest.mark.parametrize("url", ["https://u:secret@h/x.csv", "postgresql://u:secret@h/d"])
@pytest.mark.parametrize(
    "words",
    ["predict --table", "predict --table runs.csv --fit", "predict --cluster 1x8xa100",
     "predict resnet50 --cluster 1x8xa100 --catalog", "predict resnet50 --cluster 1x8xa100 --model",
     "fit --out m.json --runs", "eta", "profile --dry-run", "runs import"],
)  # fmt: skip
def test_a_url_in_the_place_of_a_file_is_refused_without_its_password(
    forerun: Run, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = forerun(*[str(runs) if word == "runs.csv" else word for word in words.split()], url)
    assert (done.code, "secret" in done.err) == (2, False), done
    assert url.replace("secret", "***") in done.err
    assert "download it" in done.err


DAMAGE = {
    **{f"no {name}": f"DROP TABLE {name}" for name in
       ("runs", "campaigns", "artifacts", "fingerprints", "workloads", "filled_columns")},
    "no UTF-8": "UPDATE runs SET cells = CAST(X'7b22ff80223a317d' AS TEXT)",
    "no JSON": "UPDATE runs SET cells = '{'", "a list": "UPDATE runs SET cells = '[1]'",
    "nested": """UPDATE runs SET cells = '{"devices": {"a": 1}}'""",
    "own nested": """UPDATE runs SET cells = '{"mine": [1]}'""",
    "bytes": "UPDATE runs SET cells = X'ff80', workload = X'ff80'",
    "a column less": "ALTER TABLE runs RENAME COLUMN cells TO cell",
    "layout": "UPDATE forerun_version SET version_num = X'ff'",
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_store_is_told_and_no_defect(
    forerun: Run, runs: Path, store: Path, tmp_path: Path, damage: str
) -> None:
    with sqlite3.connect(store) as file:
        file.execute(DAMAGE[damage])
    file.close()
    told = 0
    for command in (
        ("runs", "list"), ("runs", "list", "--where", "workload=resnet50"),
        ("runs", "export", "--out", str(tmp_path / "o.csv")), ("runs", "import", str(runs)),
        ("runs", "artifacts", "list"), ("runs", "show", "abcdefgh"),
    ):  # fmt: skip
        done = forerun(*command, "--store", str(store))
        assert done.code in (0, 2, 3), (command, done.err)
        told += "damaged" in done.err or "it holds" in done.err or "layout" in done.err
    done = forerun("fit", "--runs", str(store), "--out", str(tmp_path / "m.json"))
    assert done.code in (0, 2), done.err
    assert told or damage == "no campaigns"


def log(path: Path, cell: Callable[[int], dict[str, Any]], rows: int = 50) -> str:
    """Write a log of so many steps of 2 s with further cells; return its path."""
    lines = [json.dumps({"step": i, "time": 2 * i, **cell(i)}) for i in range(1, rows + 1)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.mark.parametrize(
    "options",
    [("--seed", "-1"), ("--seed", str(2**80)), ("--total-steps", "1e15"), ("--total-steps", "1e17"),
     ("--as-of", "9999-12-31T23:59"), ("--deadline", "9999-12-31T23:59"),
     ("--deadline", "1e15h"), ("--as-of", "last", "--deadline", "0001-01-01T00:00")],
)  # fmt: skip
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_an_eta_beyond_any_calendar_is_answered_or_refused(
    forerun: Run, tmp_path: Path, options: tuple[str, ...], form: tuple[str, ...]
) -> None:
    path = log(tmp_path / "l.jsonl", lambda i: {})
    usual = () if "--total-steps" in options else ("--total-steps", "100")
    done = forerun("eta", path, *usual, *options, *form)
    assert done.code in (0, 2, 3), done.err


@pytest.mark.parametrize("figure", ["9" * 400, "9" * 5000, f'"{"9" * 400}"', "[1]", '{"a": 1}'])
def test_figures_of_hundreds_of_digits_are_passed_over(
    forerun: Run, tmp_path: Path, figure: str
) -> None:
    path = tmp_path / "l.jsonl"
    for name in ("loss", "step", "time", "samples", "epoch"):
        rows = [
            {"step": i, "time": 2 * i, **({name: figure} if i % 7 == 0 else {})}
            for i in range(1, 51)
        ]
        texts = ("{" + ", ".join(f'"{k}": {v}' for k, v in row.items()) + "}" for row in rows)
        path.write_text("\n".join(texts))
        for command in (("eta", str(path), "--total-steps", "100"),
                        ("runs", "import", str(path), "--store", str(tmp_path / f"{name}.db"))):  # fmt: skip
            done = forerun(*command)
            assert done.code in (0, 2, 3), (name, done.err)


CHANGES: dict[str, Any] = {
    "text": "x", "huge": 1e300, "negative": -1.0, "nothing": None, "list": [], "endless": 10**400,
    "no number": float("nan"), "a thousand times": 1e3,
}  # fmt: skip


def leaves(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the place of every value inside JSON."""
    inside = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value if isinstance(value, list) else ())
    )
    return [place] * bool(place) + [p for key, one in inside for p in leaves(one, (*place, key))]


@pytest.mark.parametrize("predictor", ["ernest", "constant-mfu", "linear-scaling", "analytic"])
def test_a_model_that_was_changed_is_refused_before_it_is_used(
    forerun: Run, runs: Path, tmp_path: Path, predictor: str
) -> None:
    out, changed = tmp_path / "m.json", tmp_path / "changed.json"
    fit = ("fit", "--runs", str(runs), "--predictor", predictor, "--out", str(out))
    assert forerun(*fit).code == 0
    ask = ("predict", "resnet50", *CLUSTER, "--global-batch", "256", "--model")
    assert forerun(*ask, str(out)).code == 0
    whole = out.read_text()
    places = [place for place in leaves(json.loads(whole)) if place[0] != "runs_made"]
    for place in places[:: max(len(places) // 12, 1)]:
        for change in CHANGES.values():
            content = json.loads(whole)
            *way, last = place
            at = content
            for key in way:
                at = at[key]
            if change == 1e3 and isinstance(at[last], float):
                change = at[last] * 1e3
            if at[last] == change:
                continue
            at[last] = change
            changed.write_text(json.dumps(content))
            done = forerun(*ask, str(changed))
            assert done.code == 2, (place, change, done)
            assert "fit it again" in done.err or "no such predictor" in done.err, (place, change)


@pytest.mark.parametrize("predictor", ["ernest", "constant-mfu", "linear-scaling", "goodput"])
def test_a_saved_predictor_is_of_its_types_and_finite(predictor: str, runs: Path) -> None:
    from forerun import registry
    from forerun.advisor import Advisor
    from forerun.errors import RequestError

    kind = registry.load("predictors", predictor)
    saved = json.loads(Advisor(predictor=predictor).fit(runs).predictor.to_json())
    refused = 0
    for place in leaves(saved):
        content = json.loads(json.dumps(saved))
        *way, last = place
        at = content
        for key in way:
            at = at[key]
        for change in (
            "x" if isinstance(at[last], float) else 1.5,
            [[1.0], 2.0],
            10**400,
            float("nan"),
        ):
            at[last] = change
            try:
                kind.from_json(json.dumps(content))
            except RequestError:
                refused += 1
    assert refused > 3 * len(leaves(saved))


def noted(forerun: Run, tmp_path: Path, **cells: str) -> tuple[str, str, float]:
    """Return the note, the reason and the step time of one row on two nodes with further cells."""
    row = {"workload": "resnet50", "device": "a100-sxm-80gb", "nodes": "2", "devices": "16",
           "global_batch": "512", "dp": "16", **cells}  # fmt: skip
    path = tmp_path / "row.csv"
    path.write_text(f"{','.join(row)}\n{','.join(row.values())}\n")
    found = forerun("predict", "--table", str(path), "--json").json()["rows"][0]
    return (
        found.get("predicted_note") or "",
        found.get("declined") or "",
        found.get("predicted_step_time_s") or 0.0,
    )


def test_a_network_that_a_row_states_is_used_or_told(forerun: Run, tmp_path: Path) -> None:
    usual = noted(forerun, tmp_path)
    assert noted(forerun, tmp_path, node_gbps="-5")[1].startswith("node_gbps=-5 is")
    assert noted(forerun, tmp_path, node_gbps="0")[1].startswith("node_gbps=0 is")
    slow, fast = (noted(forerun, tmp_path, node_gbps=rate) for rate in ("1", "400"))
    assert slow[2] > 2 * fast[2] > 0
    assert slow[2] > 2 * usual[2]
    both = noted(forerun, tmp_path, node_gbps="1", interconnect="NVLink 600 GB/s + Ethernet")
    assert both[2] > 2 * usual[2]
    assert noted(forerun, tmp_path, node_gbps="1e-9")[1].startswith("node_gbps=1e-09 is")
    assert noted(forerun, tmp_path, node_gbps="1e-5")[2] > 100 * slow[2]
    assert (
        "'pigeon' is not understood"
        in noted(forerun, tmp_path, node_gbps="10", interconnect="pigeon")[0]
    )
    mixed = noted(forerun, tmp_path, node_gbps="400", interconnect="10 Gb/s Ethernet")
    assert "'10 Gb/s Ethernet' has another rate than node_gbps=400, which counts" in mixed[0]
    for text in ("NVLink 600 GB/s", "InfiniBand", "100 Gb/s Ethernet"):
        assert "another rate" not in noted(forerun, tmp_path, node_gbps="100", interconnect=text)[0]
    note, reason, step = noted(forerun, tmp_path, interconnect="pigeon")
    assert "the interconnect 'pigeon' is not understood" in note
    assert not reason
    assert step == usual[2]


@pytest.mark.parametrize(
    ("workload", "column", "value"),
    [("resnet50", "params", "1e9"), ("resnet50", "gmacs", "400"), ("resnet50", "vocab", "1000"),
     ("resnet50", "heads", "8"), ("gpt2", "params", "1e9"), ("gpt2", "gmacs", "1")],
)  # fmt: skip
def test_a_column_that_contradicts_the_zoo_is_noted_where_the_row_is_answered(
    forerun: Run, tmp_path: Path, workload: str, column: str, value: str
) -> None:
    note, reason, step = noted(forerun, tmp_path, workload=workload, **{column: value})
    assert f"the row differs from the zoo: {column} is {float(value):.4g}, the zoo" in note
    assert (reason, step > 0) == ("", True)


@pytest.mark.parametrize("column", ["layers", "vocab", "heads", "ffn", "kv_heads", "image_size"])
def test_a_shape_that_contradicts_the_zoo_is_declined(
    forerun: Run, tmp_path: Path, column: str
) -> None:
    _, reason, step = noted(forerun, tmp_path, workload="llama3-8b", **{column: "7"})
    assert f"{column} is 7, " in reason
    assert step == 0


def test_a_label_that_is_taken_as_a_known_name_is_noted(forerun: Run, tmp_path: Path) -> None:
    assert "taken as llama2-7b" in noted(forerun, tmp_path, workload="llama-v2-7b")[0]


@pytest.mark.filterwarnings("error")
def test_devices_without_end_are_declined_without_a_warning(forerun: Run, tmp_path: Path) -> None:
    for count in ("inf", "1e300"):
        done = noted(forerun, tmp_path, devices=count)
        assert done[1].startswith(f"devices={count} is") or "devices" in done[1]


def test_a_misspelt_framework_of_a_row_is_noted(forerun: Run, tmp_path: Path) -> None:
    note, reason, _ = noted(forerun, tmp_path, framework="torchtitn")
    assert "framework 'torchtitn' is not known: did you mean torchtitan?" in note
    assert not reason
    for label in ("torchtitan", "PyTorch+AdaptDL (DDP)", "my own", "torchtitan 0.2", ""):
        assert "did you mean" not in noted(forerun, tmp_path, framework=label)[0]


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"framework": "hf trainer", "tp": "2", "dp": "8"}, "hf trainer runs no plan with tp: the Trainer"),
        ({"framework": "megatron", "zero_stage": "3"}, "megatron runs no plan with zero_stage=3: its"),
        ({"framework": "tensorflow", "recompute": "full"}, ""),
        ({"framework": "megatron", "tp": "2", "dp": "8"}, ""),
        ({"micro_batch": "3"}, "global batch 512 is no multiple of micro_batch x dp = 48"),
    ],
)  # fmt: skip
def test_a_plan_that_its_framework_or_batch_does_not_allow_is_noted(
    forerun: Run, tmp_path: Path, cells: dict[str, str], words: str
) -> None:
    note, reason, step = noted(forerun, tmp_path, workload="gpt2", **cells)
    assert words in note
    assert words or "runs no plan" not in note
    assert (reason, step > 0) == ("", True)


NASTY = "\x1b[2J\x9bm\u202egnp.exe\u2066\x07"


def test_names_and_logs_do_not_steer_the_terminal(
    forerun: Run, tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sqlalchemy")
    monkeypatch.chdir(tmp_path)
    bad = tmp_path / "bad.csv"
    bad.write_text(RUNS.replace("resnet50", f"net{NASTY}").replace("devices", "devices", 1))
    table = tmp_path / f"t{NASTY}.csv"
    table.write_text(RUNS.replace("global_batch", f"global_batch{NASTY}"))
    text = tmp_path / "run.log"
    text.write_text("".join(
        f"step {i}/100 loss 1.0 time {2 * i}.0 {NASTY}\n{NASTY} Error: {NASTY} no such\n"
        for i in range(1, 40)
    ))  # fmt: skip
    named = log(tmp_path / f"l{NASTY}.jsonl", lambda i: {f"key{NASTY}": 1.0})
    for command in (
        ("predict", NASTY, *CLUSTER), ("predict", "resnet50", "--cluster", NASTY),
        ("predict", "resnet50", *CLUSTER, "--plan", NASTY), (NASTY,), ("predict", f"--{NASTY}"),
        ("predict", "--table", str(table)), ("predict", "--table", str(bad), "--json"),
        ("predict", "--table", str(bad), "--out", "o.csv"), ("support", NASTY),
        ("fit", "--runs", str(bad), "--predictor", "ernest", "--out", "m.json"),
        ("runs", "import", str(bad), "--store", "s.db"), ("runs", "list", "--store", "s.db"),
        ("runs", "list", "--store", "s.db", "--json"), ("runs", "list", "--store", f"{NASTY}.db"),
        ("evaluate", "--runs", str(bad), "--predictors", "ernest", "--split", "random"),
        ("eta", str(text), "--total-steps", "100"), ("eta", named, "--total-steps", "100"),
        ("runs", "import", named, str(text), "--store", "s.db"), ("devices", NASTY),
        ("suggest", "--candidates", str(bad), "--runs", str(bad), "--predictor", "ernest"),
    ):  # fmt: skip
        done = forerun(*command)
        shown = set(
            done.err if command[-1] == str(table) else done.out + done.err
        )  # cells are data
        assert not shown & set(NASTY) - set("[2Jmgnp.exe"), (command, done)
        assert done.code in (0, 2, 3), done.err
        if "--json" in command and done.out:
            (rows,) = (v for k, v in done.json().items() if k in ("rows", "runs"))
            assert rows[0]["workload"] == f"net{NASTY}"


def test_names_that_are_no_utf8_are_shown_escaped(forerun: Run, tmp_path: Path) -> None:
    import os
    import subprocess
    import sys

    name = bytes(tmp_path) + b"/runs-\xff\xfe.csv"
    with open(name, "w") as file:  # noqa: PTH123 (a name of bytes)
        file.write(RUNS)
    commands = (
        [b"predict", b"--table", name], [b"predict", b"--table", name, b"--json"],
        [b"fit", b"--runs", name, b"--out", bytes(tmp_path) + b"/m\xff.json"],
        [b"fit", b"--runs", name, b"--out", bytes(tmp_path) + b"/m\xff.json", b"--json"],
        [b"predict", b"res\xffnet", b"--cluster", b"8xa100"], [b"predict", b"--table", b"\xff.csv"],
        [b"evaluate", b"--runs", name, b"--predictors", b"ernest"],
        [b"runs", b"import", name, b"--store", bytes(tmp_path) + b"/\xff.db"],
        [b"runs", b"import", name, b"--store", bytes(tmp_path) + b"/s.db"],
        [b"recommend", b"resnet50", b"--clusters", b"a100\xff"], [b"eta", name],
        [b"explain", b"resnet50", b"--cluster", b"8xa100", b"--trace", b"/\xff/t.json"],
    )  # fmt: skip
    for command in commands:
        ended = forerun(*map(os.fsdecode, command))
        assert ended.code in (0, 2, 3), (command, ended)
        ended.out.encode(), ended.err.encode()
    for command in commands[1], commands[4]:  # as the system passes and prints them
        words = [*map(os.fsencode, (sys.executable, "-m", "forerun")), *command]
        done = subprocess.run(words, capture_output=True, check=False)
        assert done.returncode in (0, 2, 3), (command, done.stderr)
        done.stdout.decode(), done.stderr.decode()


def test_numbers_beyond_any_float_are_refused_where_they_stand(
    forerun: Run, tmp_path: Path
) -> None:
    huge = "9" * 400
    config = tmp_path / "config.json"
    for field in ("hidden_size", "num_hidden_layers", "vocab_size", "max_position_embeddings"):
        fields = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
                  "num_attention_heads": 2, "vocab_size": 100, field: "HUGE"}  # fmt: skip
        config.write_text(json.dumps(fields).replace('"HUGE"', huge))
        done = forerun("predict", str(config), *CLUSTER)
        assert done.code == 2
        assert field in done.err
    state = tmp_path / "state.json"
    rows = ", ".join(f'{{"step": {i}, "loss": 1.0, "train_runtime": {i}.0}}' for i in range(1, 9))
    state.write_text(f'{{"max_steps": {huge}, "log_history": [{rows}]}}')
    assert forerun("eta", str(state), "--epochs", "3").code in (0, 2)
    catalog = tmp_path / "c.yaml"
    catalog.write_text(
        "devices:\n  my-card: {memory_gb: 48, memory_gb_per_s: 960, fp32_tflops: 60, fp16_tflops: 240,\n"
        "    watts: 300, link_gb_per_s: 0, host_gb_per_s: 32, devices_per_node: .nan, source: mine}\n"
    )
    done = forerun("devices", "--catalog", str(catalog))
    assert done.code == 2
    assert "devices_per_node" in done.err


def test_counts_without_end_are_refused_or_cut(
    forerun: Run, tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ("evaluate", "--runs", str(runs), "--predictors", "linear-scaling", "--split", "random")
    most, four = (forerun(*few, "--folds", n, "--json") for n in ("2147483647", "4"))
    assert (most.code, most.json()["scores"]) == (four.code, four.json()["scores"])
    search = ("search", "--replay", str(runs), "--searcher", "random", "--seeds", "100000000000")
    assert forerun(*search).code == 2
    settings = tmp_path / "forerun.toml"
    monkeypatch.setenv("FORERUN_CONFIG", str(settings))
    for name in ("model", "store", "catalog", "predictor"):
        settings.write_text(f'{name} = "\\u0000"\n')
        done = forerun("predict", "--table", str(runs), "--out", str(tmp_path / "o.csv"))
        assert done.code == 2
        assert "it holds a NUL" in done.err
