"""Folders of runs: nobody else reads them, one that is gone fails its run alone, campaigns run once."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.measure import Steps, Task
from forerun.measure.local import LocalRunner
from forerun.store import open_store
from tests.measure.entries import QUICK
from tests.processes import profiling

pytest.importorskip("torch", reason="measuring needs the extra torch")

LEAVER = """
import shutil, sys
from forerun.measure import record
with record() as run:
    for i in run.steps(range(30)):
        if i == 4:
            shutil.rmtree(sys.argv[1])
"""
SLOW = """
name: twice
workloads: {slow: {entry: "toys:slow", settings: {pause: 0.2}}}
vary: {workers: 1, global_batch: [4, 8]}
steps: {warmup: 1, least: 4, most: 4}
"""


def test_a_script_that_removes_its_folder_fails_alone_and_is_recorded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / "leaver.py").write_text(LEAVER)
    runner = LocalRunner(folder=folder / "runs")
    steps = Steps(warmup=1, least=4, most=20)
    leaving = Task("leaver.py", (str(folder / "runs"),), steps=steps)
    gone, after = runner.measure_many(
        [leaving, Task("toys:slow", settings={"pause": 0.0, **QUICK})]
    )
    assert gone.status == "failed"
    assert "its folder was removed while it ran" in gone.reason
    assert after.status == "ok", after.reason


def test_logs_of_runs_are_their_owners_alone(folder: Path) -> None:
    runner = LocalRunner(folder=folder / "runs")
    assert runner.measure(Task("toys:raising")).status == "failed"
    (made,) = (folder / "runs").iterdir()
    assert not made.stat().st_mode & 0o077


def test_two_profiles_of_one_campaign_and_store_do_not_share_a_point(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sqlalchemy")
    monkeypatch.chdir(folder)
    campaign, store = folder / "twice.yaml", folder / "r.db"
    campaign.write_text(SLOW)
    both = [profiling(campaign, store, "--no-retry") for _ in range(2)]
    said = [one.communicate(timeout=120)[1] for one in both]
    codes = sorted(one.returncode for one in both)
    assert codes == [0, 2], said
    assert any("another process is at it" in text for text in said), said
    with open_store(str(store)) as opened:
        assert opened.count() == 2
    assert not [path for path in folder.iterdir() if path.name.endswith(".lock")]
    again = profiling(campaign, store)
    assert "another" not in again.communicate(timeout=120)[1]
    assert again.returncode == 0
