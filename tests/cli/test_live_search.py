"""forerun search SPACE.yaml: real trials, kept at once and resumed, and what is refused with a way out."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from forerun.store import open_store
from tests.cli.conftest import Run
from tests.cli.test_report import BROWSER, FLAGS
from tests.measure.entries import ENTRIES

pytest.importorskip("torch", reason="measuring needs the extra torch")

SPACE = """
name: tiny
workloads:
  slow: {entry: "toys:slow", settings: {pause: [0.02, 0.05, 0.1, 0.2], rehearse: false}}
vary: {workers: 1, global_batch: 8}
steps: {warmup: 1, least: 2, most: 3, seconds: 5s}
timeout: 2min
price_usd_per_worker_hour: 0.36
"""


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A space of four configurations, in the working directory that holds its entry."""
    path = tmp_path / "space.yaml"
    path.write_text(SPACE)
    (tmp_path / "toys.py").write_text(ENTRIES)
    monkeypatch.chdir(tmp_path)
    return path


def test_a_killed_search_loses_no_finished_trial_and_repeats_none(space: Path) -> None:
    words = [sys.executable, "-m", "forerun", "search", str(space), "--store", "runs.db", "--yes"]
    words += ["--searcher", "grid", "--html", "page.html", "--out", "runs.csv"]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=variables,
        start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    told = next(line for line in process.stderr if " of at most 30 " in line)
    assert re.search(
        r"1 of at most 30  pause=0.02: 2\d(\.\d+)? ms, \$[\d.]+; best \$\S+ with pause=0.02", told
    )
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stderr.close()
    with open_store("runs.db") as opened:
        kept = set(opened.table(provenance=True).texts("run_key"))
    assert kept

    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env=variables, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"done +\d trials? already, in .*runs.db", done.stdout)
    assert re.search(r"best +\$\S+ with pause=0.02, measured", done.stdout)
    assert "all 4 configurations are measured" in done.stdout
    with open_store("runs.db") as opened:
        table = opened.table(provenance=True)
    assert kept <= set(table.texts("run_key"))
    assert len(set(table.texts("run_point"))) == len(table) == 4
    assert set(table.numbers("price_usd_per_hour")) == {0.36}
    rows = Path("runs.csv").read_text().splitlines()
    assert len(rows) == 5

    page = Path("page.html").read_text()
    assert "default-src 'none'" in page
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])  # type: ignore[index]
    assert [len(data["runs"]), data["unit"], data["goal"]] == [4, "dollars", "cost"]
    if BROWSER is not None:
        shown = subprocess.run(
            [BROWSER, *FLAGS, "--user-data-dir=browser", "--dump-dom", Path("page.html").resolve().as_uri()],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert 'data-drawn="4"' in shown.stdout, shown.stderr[-2000:]


def test_a_failed_configuration_is_named_and_the_search_goes_on(forerun: Run, space: Path) -> None:
    space.write_text(SPACE.replace("[0.02, 0.05, 0.1, 0.2]", "[0.02, none]"))
    ask = ("search", str(space), "--store", "runs.db", "--minimize", "time", "--yes")
    done = forerun(*ask)
    assert done.code == 0, done.err
    assert "did not end well" in done.out
    assert re.search(r"pause=none: failed, .*; it is not asked for again", done.out)
    assert re.search(r"best +\S+ ms .* with pause=0.02, measured", done.out)
    again = forerun(*ask, "--json")
    assert again.code == 0
    found = again.json()
    assert [run["reason"] for run in found["searches"][0]["runs"]] == ["made before"] * 2
    assert any("1 configuration did not end well before" in note for note in found["warnings"])


def test_a_search_ends_at_its_limits_of_time_and_money(forerun: Run, space: Path) -> None:
    # No step ends within the limits, however fast a worker starts.
    space.write_text(SPACE.replace("[0.02, 0.05, 0.1, 0.2]", "[9, 10, 11, 12]"))
    done = forerun("search", str(space), "--store", "runs.db", "--within", "8s", "--yes")
    assert done.code == 3
    assert "nothing is recommended" in done.out
    assert "no trial met the limits" in done.err
    with open_store("runs.db") as opened:
        table = opened.table()
    assert table.numbers("run_time_s").sum() < 14, "a trial under way is stopped with the search"
    # 0.36 dollars an hour are 0.0001 a second.
    done = forerun("search", str(space), "--store", "money.db", "--budget", "0.0005")
    assert done.code == 3
    with open_store("money.db") as opened:
        seconds = opened.table().numbers("run_time_s")
    assert 4 < seconds.sum() < 9
    assert "of the search ($0.0005 in all sittings) is used" in done.out or "is left" in done.out


@pytest.mark.parametrize(
    ("words", "change", "found"),
    [
        ((), ("price_usd_per_worker_hour: 0.36\n", ""), "give --price USD (of a worker-hour)"),
        ((), ("timeout:", 'leave_out: ["devices=1"]\ntimeout:'), "it has no run to make"),
        ((), ("[0.02, 0.05, 0.1, 0.2]", "0.02"), "it is one configuration"),
        ((), ("workers: 1", "workers: 1, cpus_per_worker: 512"), "no trial of it can be made"),
        ((), ("", ""), "it may cost up to $0.05"),
        (("--keep", "x"), ("", ""), "it belongs to --replay"),
        (("--seeds", "3"), ("", ""), "it belongs to --replay"),
        (("--where", "devices=1"), ("", ""), "it belongs to --replay"),
        (("--parallel", "2"), ("", ""), "add --on ray"),
        (("--searcher", "cherrypik"), ("", ""), "did you mean cherrypick?"),
        (("--replay", "runs.csv"), ("", ""), "both are given"),
    ],
)  # fmt: skip
def test_what_cannot_be_searched_is_refused_with_a_way_out(
    forerun: Run, space: Path, words: tuple[str, ...], change: tuple[str, str], found: str
) -> None:
    space.write_text(SPACE.replace(*change) if change[0] else SPACE)
    done = forerun("search", str(space), "--store", "runs.db", *words)
    assert done.code == 2
    assert found in done.err
    assert "Traceback" not in done.err


def test_options_of_a_space_are_refused_for_a_replay(forerun: Run, tmp_path: Path) -> None:
    for words in (("--on", "ray"), ("--within", "1h"), ("--budget", "5"), ("--parallel", "2")):
        done = forerun("search", "--replay", str(tmp_path / "runs.csv"), *words)
        assert done.code == 2
        assert f"{words[0]} with --replay" in done.err
    assert "neither SPACE.yaml nor --replay" in forerun("search").err


def test_where_every_trial_failed_the_first_reason_is_given_and_no_limit_blamed(
    forerun: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.py").write_text("def step(task):\n    raise ValueError('no such layer')\n")
    path = Path("broken.yaml")
    path.write_text(SPACE.replace("name: tiny", "name: broken").replace(
        'slow: {entry: "toys:slow", settings: {pause: [0.02, 0.05, 0.1, 0.2], rehearse: false}}',
        'it: {entry: "broken:step", settings: {rehearse: false}}').replace("global_batch: 8", "global_batch: [8, 16]"))  # fmt: skip
    done = forerun("search", str(path), "--store", "runs.db", "--yes", "--searcher", "grid")
    assert done.code == 3
    assert "every one of 2 trials failed; the first: global_batch=8: " in done.err
    assert "no such layer" in done.err
    assert "--retry" in done.err
    assert "limits" not in done.err
    assert "none: every run failed" in done.out
    assert "forerun fit" not in done.out
