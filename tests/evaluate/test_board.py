"""The leaderboard: what counts, what stands where nothing does, and what outlives a killed process."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from forerun.catalog import load_catalog
from forerun.cli import main
from forerun.errors import RequestError
from forerun.evaluate.leaderboard import (
    BoardSection,
    EntryFile,
    Scoreboard,
    filled,
    program_code,
    table_code,
)
from forerun.evaluate.pages import board_page, figure
from forerun.tables import Table, write_table
from forerun.workloads.rows import runs_from_table
from tests.evaluate.test_leaderboard_docs import script

PAGE = script("docs/leaderboard_page.py")
SPLITS = ("interpolation:devices", "between:devices", "random", "leave-one-out:workload")


def rows(n: int = 120, **columns: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    devices = 1.0 + np.arange(n) % 6
    seconds = (0.05 + 2.0 / devices + 0.01 * np.log(devices)) * np.exp(rng.normal(0, 0.02, n))
    plain = {
        "workload": [f"net-{i // 40}" for i in range(n)], "device": ["t4"] * n, "devices": devices,
        "global_batch": np.full(n, 64.0), "step_time_s": seconds,
    }  # fmt: skip
    return {**plain, **columns}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_table(Table.from_columns(rows()), tmp_path / "mine.csv")
    return tmp_path / "mine.csv"


def call(*words: Any) -> Result:
    return CliRunner().invoke(main, ["leaderboard", *map(str, words)])


def judge(
    tables: Mapping[str, Table], names: tuple[str, ...], *splits: str, kept: EntryFile | None = None
) -> Scoreboard:
    facts = {name: runs_from_table(table, load_catalog()) for name, table in tables.items()}
    sections = tuple(BoardSection(text, dict.fromkeys(facts, text)) for text in splits)
    done = filled(facts, names, sections, kept or EntryFile(), start="priors")
    return Scoreboard(sections, names, tuple(entry for entry, _ in done), 0)


def test_the_json_holds_a_figure_for_each_predictor_table_and_split(
    runs: Path, tmp_path: Path
) -> None:
    done = call("--runs", runs, "--predictors", "ernest,constant-mfu", "--splits", *SPLITS[:2],
                "--cache", tmp_path / "c.jsonl", "--page", tmp_path / "p.md", "--json")  # fmt: skip
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert data["kind"] == "leaderboard"
    cells = {(e["predictor"], e["table"], e["split"]) for e in data["entries"]}
    assert cells == {(p, "mine", s) for p in ("ernest", "constant-mfu") for s in SPLITS[:2]}
    best = {e["split"]: e["predictor"] for e in data["entries"] if e["best"]}
    assert best == dict.fromkeys(SPLITS[:2], "ernest")
    ernest = data["entries"][0]
    assert ernest["score"]["median_ape"] < 40
    assert ernest["score"]["quantities"] == {"step": 60}
    page = (tmp_path / "p.md").read_text()
    assert "forerun leaderboard --runs mine.csv --predictors ernest,constant-mfu" in page
    assert "seed 0" in page
    assert "| ernest | **" in page
    assert "20 rows of 60 (devices 1) below all fitted rows" in page


def test_nothing_is_judged_twice(runs: Path, tmp_path: Path) -> None:
    words = ("--runs", runs, "--predictors", "ernest", "--splits", "random", "--cache",
             tmp_path / "c.jsonl")  # fmt: skip
    first, second, fresh = call(*words), call(*words), call(*words, "--fresh")
    assert "mine random ernest: " in first.stderr
    assert second.stderr == ""
    assert second.stdout == first.stdout
    assert "mine random ernest: " in fresh.stderr
    other = call(*words, "--seed", 1)
    assert "mine random ernest: " in other.stderr


def test_another_cell_is_another_table(tmp_path: Path) -> None:
    first = Table.from_columns(rows())
    second = Table.from_columns(rows(global_batch=[64.0] * 119 + [65.0]))
    assert table_code(first) != table_code(second)
    assert table_code(first) == table_code(Table.from_columns(rows()))
    assert table_code(first) != table_code(first.take(np.arange(119)))
    kept = EntryFile(tmp_path / "c.jsonl")
    for table in (first, second, first):
        judge({"t": table}, ("ernest",), "random", kept=kept)
    assert len(EntryFile(tmp_path / "c.jsonl").entries) == 2
    assert len(program_code()) == 12


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_a_killed_leaderboard_goes_on_where_it_was(runs: Path, tmp_path: Path) -> None:
    """The process is killed in its midst; the next one judges what is missing, and nothing else."""
    cache = tmp_path / "c.jsonl"
    words = ["--runs", str(runs), "--predictors", "ernest,constant-mfu",
             "--splits", *SPLITS, "--json", "--cache"]  # fmt: skip
    # What it says of each figure goes to a pipe that nobody reads, where there is room for a few.
    reading, writing = os.pipe()
    size = fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writing, bytes(size - 350))
    started = subprocess.Popen(
        [sys.executable, "-m", "forerun", "leaderboard", *words, str(cache)],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL, stderr=writing,
    )  # fmt: skip
    limit = time.monotonic() + 60
    while len(_lines(cache)) < 2 and time.monotonic() < limit:
        time.sleep(0.01)
    started.send_signal(signal.SIGKILL)
    assert started.wait() == -signal.SIGKILL
    os.close(reading)
    os.close(writing)
    before = _lines(cache)
    assert 2 <= len(before) < 8
    # As if it had died while it wrote: the last line is cut short.
    cache.write_text("\n".join(before)[:-40])
    again, whole = call(*words, cache), call(*words, tmp_path / "whole.jsonl")
    assert again.exit_code == whole.exit_code == 0, again.output
    assert len(again.stderr.splitlines()) == 8 - len(before) + 1
    found, expected = (json.loads(done.stdout)["entries"] for done in (again, whole))
    assert len(found) == 8
    for one, other in zip(found, expected, strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}
    assert len(EntryFile(cache).entries) == 8
    assert EntryFile(cache).unreadable == 1


def test_a_file_of_something_else_is_not_written_to(tmp_path: Path, runs: Path) -> None:
    other = tmp_path / "notes.jsonl"
    other.write_text('{"mine": 1}\n')
    done = call("--runs", runs, "--predictors", "ernest", "--cache", other)
    assert done.exit_code == 2
    assert "it holds no entries of a leaderboard" in done.stderr
    assert other.read_text() == '{"mine": 1}\n'


def test_entries_of_an_older_format_are_judged_again(tmp_path: Path) -> None:
    cache = tmp_path / "c.jsonl"
    cache.write_text('{"format":0,"table":"t"}\n')
    assert EntryFile(cache).unreadable == 1
    judge({"t": Table.from_columns(rows())}, ("ernest",), "random", kept=EntryFile(cache))
    assert len(EntryFile(cache).entries) == 1


def test_who_answers_too_little_is_in_brackets_and_never_the_best() -> None:
    """Half of the rows are of a network that ernest has too few runs of."""
    table = Table.from_columns(rows(60, workload=["net"] * 30 + [f"rare-{i}" for i in range(30)]))
    board = judge({"t": table}, ("ernest", "constant-mfu"), "random")
    share = board.shares("t", "random")["ernest"]
    assert 0.3 < share < 0.9
    assert board.best("t", "random") == ""
    cell = figure(board, "ernest", "t", "random")
    assert cell.startswith("[")
    assert f"at {100 * share:.0f} %]" in cell
    assert "ernest has only 1 different run" in board_page(board) or "has no runs of" in board_page(
        board
    )


def test_a_table_that_cannot_bear_a_split_says_so_and_the_others_stand() -> None:
    one = Table.from_columns(rows(40, devices=np.ones(40)))
    board = judge({"flat": one, "t": Table.from_columns(rows())}, ("ernest",), "between:devices")
    entry = board.of("ernest", "flat", "between:devices")
    assert entry is not None
    assert "1 distinct values" in entry.reason
    assert board.best("t", "between:devices") == "ernest"
    assert "| ernest | none | **" in board_page(board)


def test_the_best_stands_beside_its_target() -> None:
    board = judge({"t": Table.from_columns(rows())}, ("ernest",), "random")
    score = board.score_of("ernest", "t", "random")
    assert score is not None
    for target, said in ((99.0, "met"), (0.01, "missed")):
        _, table = PAGE.best_of_each(board, [{"t": target}])
        assert f"| random | ernest {score.median_ape:.1f} (target {target:g}: {said}) |" in table


def test_a_table_of_stopped_runs_alone_has_no_figure_and_says_why(tmp_path: Path) -> None:
    columns = rows(status=["timeout"] * 120)
    columns["time_to_train_s"] = columns.pop("step_time_s")
    write_table(Table.from_columns(columns), tmp_path / "stopped.csv")
    done = call("--runs", tmp_path / "stopped.csv", "--predictors", "ernest,analytic", "--splits",
                "random", "--cache", tmp_path / "c.jsonl")  # fmt: skip
    assert done.exit_code == 3, done.output
    assert "every judged run was stopped early" in done.stdout
    assert "*judged*" not in done.stdout


def test_stopped_runs_stand_apart() -> None:
    columns = rows(status=(["ok"] * 5 + ["timeout"]) * 20)
    columns["time_to_train_s"] = columns.pop("step_time_s")
    board = judge({"t": Table.from_columns(columns)}, ("ernest",), "random")
    score = board.score_of("ernest", "t", "random")
    assert score is not None
    assert (score.comparable, score.censored, score.censored_answered) == (100, 20, 20)
    page = board_page(board)
    assert "| *judged* | 100 runs |" in page
    assert f"{100 * score.share_short:.0f} % of 20" in page


def test_a_defect_of_one_predictor_costs_the_others_nothing(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forerun.predictors.laws.ernest import Ernest

    def broken(self: Ernest, runs: Any) -> Ernest:
        raise ZeroDivisionError("by chance")

    monkeypatch.setattr(Ernest, "fit", broken)
    words = ("--runs", runs, "--predictors", "ernest,analytic",
             "--splits", "random", "--cache", tmp_path / "c.jsonl")  # fmt: skip
    done = call(*words)
    assert done.exit_code == 1
    assert "a defect of the predictor: ZeroDivisionError: by chance" in done.stdout
    monkeypatch.undo()
    assert "mine random ernest: " in call(*words).stderr  # a defect is not kept


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--splits", "interpolation:sideways"), "no column 'sideways'"),
        (("--splits", "sideways"), "there is no split 'sideways'"),
        (("--predictors", "ernst"), "ernest"),
        (("--runs", "gone.csv"), "gone.csv"),
        (("--cache", "c.txt"), "ends in '.txt'"),
        (("--where", "workload=none"), "no row of mine is left"),
        (("--page", "page.txt"), "ends in '.txt'"),
    ],
)
def test_bad_input_is_told(runs: Path, tmp_path: Path, words: tuple[str, str], said: str) -> None:
    usual = {"--runs": runs, "--predictors": "ernest", "--splits": "random",
             "--cache": tmp_path / "c.jsonl"}  # fmt: skip
    name, value = words
    usual[name] = tmp_path / value if name in ("--cache", "--page") else value
    done = call(*[w for pair in usual.items() for w in pair])
    assert done.exit_code in (2, 3)
    assert said in done.output


def test_an_unknown_predictor_is_a_request_that_is_wrong() -> None:
    with pytest.raises(RequestError, match="nobody"):
        judge({"t": Table.from_columns(rows())}, ("nobody",), "random")
