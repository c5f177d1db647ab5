"""Runs of the store teach and are judged as those of a file: whole jobs kept, rows looked up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from forerun.advisor.given_runs import is_stored, runs_in, runs_of
from forerun.catalog import load_catalog
from forerun.domain.job import Run
from forerun.errors import RequestError
from forerun.store import open_store
from forerun.tables import Table
from forerun.testing.samples import tiny_jobs
from forerun.workloads.rows import runs_from_table

ROWS = Table.from_columns({
    "workload": ["resnet50", "no-such-net", "gpt2"], "device": ["a100-sxm-80gb"] * 3,
    "devices": [8, 8, 4], "global_batch": [256, 64, 32], "step_time_s": [0.1, 0.2, 0.3],
    "status": ["ok"] * 3,
})  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the store of the settings; it holds a row, two whole jobs and two rows."""
    path = tmp_path / "runs.db"
    monkeypatch.setenv("FORERUN_STORE", str(path))
    jobs = tiny_jobs()
    with open_store() as store:
        store.add_table(ROWS.take(np.array([0])), campaign="night")
        store.add([Run(jobs[3], step_seconds=0.5), Run(jobs[70], "oom")])
        store.add_table(ROWS.take(np.array([1, 2])))
    return path


def test_rows_are_looked_up_between_whole_jobs(place: Path) -> None:
    catalog, jobs = load_catalog(), tiny_jobs()
    with open_store(str(place)) as store:
        found = runs_in(store, catalog)
    assert found.jobs.resolved.tolist() == [True, True, True, False, True]
    assert (found.jobs[1], found.jobs[2]) == (jobs[3], jobs[70])
    plain = runs_from_table(ROWS, catalog)
    assert (found.jobs[0], found.jobs[4]) == (plain.jobs[0], plain.jobs[2])
    assert "no-such-net" in str(found.jobs.problem(3))
    assert found.table.numbers("step_time_s").tolist()[:2] == [0.1, 0.5]
    assert found.status.tolist() == ["ok", "ok", "oom", "ok", "ok"]
    assert found.step_seconds()[4] == 0.3
    assert found.jobs.labels is not None
    assert found.jobs.labels.texts("workload")[4] == "gpt2"


def test_only_whole_jobs_are_resolved_without_a_look(tmp_path: Path) -> None:
    jobs = tiny_jobs()
    with open_store(str(tmp_path / "runs.db")) as store:
        store.add([Run(job, step_seconds=1.0) for job in jobs])
        found = runs_in(store, load_catalog())
    assert found.jobs.resolved.all()
    assert list(found.jobs) == list(jobs)


@pytest.mark.parametrize(
    ("source", "count"),
    [("store:", 5), ("store:campaign=night", 1), ("store:devices<=4", 2), ("FILE", 5)],
)
def test_a_source_names_the_store_or_some_of_it(place: Path, source: str, count: int) -> None:
    runs = runs_of([place if source == "FILE" else Path(source)], load_catalog())
    assert len(runs) == count
    if source == "store:":
        assert runs.table.places().text(3) == "store: run 4"


def test_stores_and_files_are_told_apart() -> None:
    assert all(map(is_stored, ("store:", "store:a=1", "runs.db", Path("a/b.sqlite"))))
    assert not any(map(is_stored, ("runs.csv", "runs.parquet", "store", Path("store/runs.csv"))))


def test_no_run_and_no_store_are_told(place: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="the store has none such"):
        runs_of(["store:campaign=day"], load_catalog())
    with pytest.raises(RequestError, match="no run has such a column"):
        runs_of(["store:campain=day"], load_catalog())
    with pytest.raises(RequestError, match="there is no such file"):
        runs_of([str(tmp_path / "none.db")], load_catalog())
