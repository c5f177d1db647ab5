"""forerun profile: the price first, each run kept at once, and resumed where it stopped."""

from __future__ import annotations

import csv
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forerun.store import open_store
from forerun.tables import Table
from tests.cli.conftest import Run
from tests.measure.entries import ENTRIES
from tests.processes import alive, profiling

pytest.importorskip("torch", reason="measuring needs the extra torch")

ROOT = Path(__file__).parents[2]
CAMPAIGN = """
name: small
workloads:
  mlp: {entry: "examples.lab_models:mlp"}
vary:
  workers: [1, 2]
  global_batch: [4, 8]
  dataset_size: 64
steps: {warmup: 1, least: 2, most: 3, seconds: 5s}
timeout: 2min
price_usd_per_worker_hour: 0.36
budget: {time: 10min, dollars: 5}
"""


# Four runs of some seconds each in one start, of a function that loads no optimizer.
SLOW = """
name: slow
workloads:
  slow: {entry: "toys:slow", settings: {pause: 0.3, rehearse: false}}
vary: {workers: 1, global_batch: [4, 8, 16, 32]}
steps: {warmup: 1, least: 2, most: 3, seconds: 5s}
timeout: 2min
budget: {time: 10min}
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(CAMPAIGN)
    return path


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A campaign to be ended in its midst, in the working directory that holds its entry."""
    path = tmp_path / "slow.yaml"
    path.write_text(SLOW)
    (tmp_path / "toys.py").write_text(ENTRIES)
    monkeypatch.chdir(tmp_path)
    return path


def test_a_campaign_is_measured_kept_and_never_made_twice(
    forerun: Run, study: Path, tmp_path: Path
) -> None:
    store, out = str(tmp_path / "runs.db"), tmp_path / "runs.csv"
    first = forerun("profile", str(study), "--store", store, "--dry-run")
    assert first.code == 0, first.err
    assert "4 runs in 2 starts" in first.out
    assert "price   about $" in first.out
    with open_store(store) as opened:
        assert opened.count() == 0

    done = forerun("profile", str(study), "--store", store, "--out", str(out), "--json")
    assert done.code == 0, done.err
    found = done.json()
    assert (found["made"], found["left"]) == ({"ok": 4}, 0)
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert len(rows) == len(found["runs"]) == 4
    for row in rows:
        assert float(row["step_time_s"]) > 0
        assert float(row["params"]) == 783_842
        assert float(row["gmacs"]) > 0
        assert row["status"] == "ok"
    assert {(row["devices"], row["global_batch"]) for row in rows} == {
        ("1", "4"), ("1", "8"), ("2", "4"), ("2", "8"),
    }  # fmt: skip

    again = forerun("profile", str(study), "--store", store)
    assert again.code == 0, again.err
    assert "4 runs already" in again.out
    with open_store(store) as opened:
        assert opened.count() == 4
        assert all(opened.runs().jobs.workload_index >= 0)


def test_where_every_run_failed_the_exit_code_says_so(
    forerun: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.py").write_text("def step(task):\n    raise ValueError('no such layer')\n")
    path = tmp_path / "broken.yaml"
    path.write_text(SLOW.replace("name: slow", "name: broken").replace(
        'slow: {entry: "toys:slow", settings: {pause: 0.3, rehearse: false}}', 'it: {entry: "broken:step", settings: {rehearse: false}}')
        .replace("[4, 8, 16, 32]", "4"))  # fmt: skip
    monkeypatch.chdir(tmp_path)
    done = forerun("profile", str(path), "--store", str(tmp_path / "runs.db"))
    assert done.code == 1
    assert "1 failed" in done.out
    assert "forerun fit" not in done.out


def test_a_killed_campaign_loses_no_finished_run_and_goes_on(slow: Path, tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    words = [sys.executable, "-m", "forerun", "profile", str(slow), "--store", str(store)]
    process = subprocess.Popen(
        words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    told = [process.stderr.readline() for _ in range(2)]  # lines of runs that were kept
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stderr.close()
    assert all(" of 4  slow" in line for line in told), told
    with open_store(str(store)) as opened:
        kept = set(opened.table(provenance=True).texts("run_key"))
    assert 2 <= len(kept) < 4

    done = subprocess.run(
        [*words, "--json"], capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with open_store(str(store)) as opened:
        table = opened.table(provenance=True)
    assert kept <= set(table.texts("run_key"))
    assert len(set(table.texts("run_point"))) == len(table) == 4


def test_an_interrupt_ends_the_workers_and_says_how_to_go_on(slow: Path, tmp_path: Path) -> None:
    process = profiling(slow, tmp_path / "r.db", MY_MARK=str(tmp_path))
    assert process.stderr is not None
    assert " of 4  slow" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 130, said
    assert "every finished run is kept" in said
    assert "Traceback" not in said
    time.sleep(0.2)
    assert not alive(f"MY_MARK={tmp_path}")


def test_a_dear_campaign_is_not_begun_without_a_word(
    forerun: Run, study: Path, tmp_path: Path
) -> None:
    study.write_text(CAMPAIGN.replace("budget: {time: 10min, dollars: 5}", ""))
    done = forerun("profile", str(study), "--store", str(tmp_path / "r.db"), "--json")
    assert done.code == 2
    assert "it may cost up to $" in done.err
    assert "--yes" in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--on", "local", "--address", "auto"), "only a Ray cluster has one"),
        (("--lab", "no-such-lab"), "no-such-lab"),
        (("--store", "/no/such/folder/r.db"), "there is no folder"),
        (("--out", "/no/such/folder/r.csv"), "/no/such/folder"),
    ],
)
def test_a_wrong_word_is_told_before_anything_runs(
    forerun: Run, study: Path, words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    place = () if "--store" in words else ("--store", str(tmp_path / "r.db"))
    done = forerun("profile", str(study), *place, *words)
    assert done.code == 2, done.err
    assert said in done.err


def test_the_documented_campaign_in_python_measures_and_keeps(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "campaigns.md").read_text()
    [code] = [c for c in re.findall(r"```python\n(.*?)```", text, re.S) if "forerun.profile(" in c]
    code = code.replace('"runs.db"', repr(str(tmp_path / "runs.db")))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"\d\.\d+", done.stdout)) == 2, done.stdout
    with open_store(str(tmp_path / "runs.db")) as opened:
        assert opened.count(campaign="from-python") == 2


def test_a_script_that_is_not_there_is_told_before_anything_is_planned(
    forerun: Run, study: Path, tmp_path: Path
) -> None:
    text = study.read_text()
    study.write_text(text.replace("examples.lab_models:mlp", "missing.py"))
    done = forerun("profile", str(study), "--store", str(tmp_path / "s.db"), "--dry-run")
    assert done.code == 2
    assert "there is no script missing.py" in done.err
    study.write_text(text.replace("vary:", '  gone: {entry: "missing.py"}\nvary:'))
    done = forerun("profile", str(study), "--store", str(tmp_path / "s.db"), "--dry-run")
    assert done.code == 0, done.err
    assert "4 runs cannot be carried out: there is no script missing.py" in done.out


def test_notes_of_a_plan_are_said_once_each(forerun: Run, tmp_path: Path) -> None:
    study = tmp_path / "notes.yaml"
    study.write_text("""
name: notes
device: mylaptop
workloads:
  a: {entry: examples.lab_models:cnn, settings: {width: [8, 16]}}
  b: {entry: examples.lab_models:mlp, settings: {width: [8, 16]}}
  c: {entry: examples.nothing:here}
  cut: {entry: examples.lab_models:transformer, workers: 2, settings: {partitions: 2}}
  traced: {entry: examples.lab_models:mlp, settings: {sync: ps-stale, stale_bound: 2, partitions: 1}}
vary: {workers: [1, 2], global_batch: 16, precision: [fp32, bf16]}
""")
    done = forerun("profile", str(study), "--store", str(tmp_path / "n.db"), "--dry-run", "--json")
    assert done.code == 0, done.err
    assert done.json()["notes"] == [
        "examples.lab_models:cnn is not traced (the settings width may change it): its runs are kept"
        " by their label alone",
        "device 'mylaptop': no such device; its runs are kept by that label alone",
        "examples.lab_models:mlp is not traced (the settings width may change it): its runs are kept"
        " by their label alone",
        "examples.nothing:here is not traced (examples.nothing: no such module): its runs are kept"
        " by their label alone",
    ]


def test_a_campaign_that_is_told_to_end_does_so_in_order(slow: Path, tmp_path: Path) -> None:
    store = tmp_path / "r.db"
    process = profiling(slow, store, MY_MARK=str(tmp_path))
    assert process.stderr is not None
    assert " of 4  slow" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)  # an impatient second one leaves nothing behind
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 143, said
    assert "every finished run is kept" in said
    assert "Traceback" not in said
    assert not alive(f"MY_MARK={tmp_path}")
    with open_store(str(store)) as opened:
        assert 1 <= opened.count(status="ok") < 4
        assert opened.count() == opened.count(status="ok")


@pytest.mark.parametrize(
    ("row", "warned"),
    [
        ({}, True),
        ({"note": "communication is not measured: the DDP module reduced nothing in the counted steps"}, True),
        ({"note": "communication is not measured: the module has a hook of its own"}, False),
        ({"comm_gb": 0.2}, False),
        ({"devices": 1}, False),
        ({"partitions": 2}, False),
        ({"parameter_servers": 1}, False),
        ({"status": "failed"}, False),
    ],
)  # fmt: skip
def test_workers_that_never_reduced_anything_are_warned_of(
    row: dict[str, object], warned: bool
) -> None:
    from forerun.advisor.measuring import apart

    usual = {"workload": "own", "devices": 2, "step_time_s": 0.1, "status": "ok"}
    found = apart(Table.from_rows([{**usual, **row}]))
    assert len(found) == warned
    if warned:
        assert found[0].startswith("1 run on several workers (own) reduced no gradients")
        assert "DistributedDataParallel" in found[0]


def test_a_script_without_ddp_is_warned_of_where_it_ran(
    forerun: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(
        "import torch\nnet = torch.nn.Linear(8, 8)\nopt = torch.optim.SGD(net.parameters(), lr=0.01)\n"
        "while True:\n    opt.zero_grad()\n    net(torch.randn(4, 8)).sum().backward()\n    opt.step()\n"
    )
    Path("c.yaml").write_text(
        "name: apart\nworkloads: {own: {entry: own.py}}\nvary: {workers: 2, global_batch: 8}\n"
        "steps: {warmup: 1, least: 3, most: 6, seconds: 5s}\n"
    )
    done = forerun("profile", "c.yaml", "--store", "runs.db")
    assert done.code == 0, done.err
    assert "warnings\n  - 1 run on several workers (own) reduced no gradients" in done.out
