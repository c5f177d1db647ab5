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
        "fit --runs runs.csv --catalog mine.json --out mine.json --force",
        "evaluate --runs runs.csv --catalog mine.md --page mine.md",
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
    places = leaves(json.loads(whole))
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
