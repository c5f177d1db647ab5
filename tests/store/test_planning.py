"""Planning: the planner looks anew as runs grow, and finds few rows by an index alone."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import event

from forerun.store import open_store
from forerun.store.sql_store import SqlStore
from forerun.tables import Table


def rows(n: int, first: int = 0) -> Table:
    """Return n rows of 50 workloads on 5 counts of devices; three of twenty do not end well."""
    rng = np.random.default_rng(first)

    def drawn(words: tuple[str, ...]) -> np.ndarray[tuple[int], np.dtype[np.object_]]:
        return np.array(words, dtype=object)[rng.integers(0, len(words), n)]

    return Table({
        "workload": drawn(tuple(f"model-{i}" for i in range(50))), "device": drawn(("t4", "cpu")),
        "status": drawn(("ok",) * 17 + ("oom", "failed", "timeout")), "devices": 2.0 ** rng.integers(0, 5, n),
        "global_batch": 2.0 ** rng.integers(0, 7, n), "step_time_s": 0.1 + np.arange(first, first + n),
    }, n)  # fmt: skip


def seen(place: Path) -> int:
    """Return how many runs there were when the planner last looked."""
    with sqlite3.connect(place) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def test_the_planner_looks_where_runs_have_grown_by_a_quarter(tmp_path: Path) -> None:
    place = tmp_path / "runs.db"
    with open_store(str(place)) as store:
        store.add_table(rows(999))
        assert seen(place) == 0
    for start, n, found in ((999, 1, 1000), (1000, 100, 1000), (1100, 200, 1300)):
        with open_store(str(place)) as store:  # every process looks at its first ones
            store.add_table(rows(n, start))
        assert seen(place) == found


def test_a_process_that_adds_run_by_run_looks_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forerun.store.sql_store.LOOK_EVERY", 10)
    monkeypatch.setattr("forerun.store.sql_store.LOOK_EVERY", 10)
    place = tmp_path / "runs.db"
    with open_store(str(place)) as store:
        looks = []
        for i in range(31):
            store.add_table(rows(1, i))
            looks.append(seen(place))
    assert sorted(set(looks)) == [0, 11, 21, 31]


def plan_of(store: SqlStore, where: tuple[str, ...], limit: int | None) -> tuple[int, str]:
    """Return how many runs are found, and how the database says that it finds them."""
    said: list[tuple[str, object]] = []

    def note(connection: object, cursor: object, text: str, given: object, *rest: object) -> None:
        said.append((text, given))

    engine = store._database.engine
    event.listen(engine, "before_cursor_execute", note)
    found = len(store.runs(where=where, limit=limit))
    event.remove(engine, "before_cursor_execute", note)
    text, given = said[-1]
    with store._database.reading() as connection:
        steps = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", given).all()
    return found, "; ".join(step[3] for step in steps)


@pytest.mark.parametrize(
    ("where", "limit", "index"),
    [
        (("status=oom", "devices<=4"), None, "INDEX runs_by_status (status=? AND devices<?)"),
        (("device=t4", "devices=4", "global_batch=8"), 20,
         "COVERING INDEX runs_by_device (device=? AND devices=? AND global_batch=?)"),
        (("workload=model-7", "devices<=8", "status=ok"), 20,
         "COVERING INDEX runs_by_workload (workload=?)"),
    ],
)  # fmt: skip
def test_what_is_asked_for_together_is_found_by_one_index(
    tmp_path: Path, where: tuple[str, ...], limit: int | None, index: str
) -> None:
    table = rows(6000)
    with open_store(str(tmp_path / "runs.db")) as store:
        store.add_table(table)
        found, plan = plan_of(store, where, limit)
        every = store.count(where=where)
    assert index in plan
    assert found == (every if limit is None else limit)
    assert every > 20


def test_runs_are_kept_also_where_the_planner_cannot_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer comes between a call's rows and the look: the call has kept its rows."""
    place = tmp_path / "runs.db"
    with open_store(str(place), wait_seconds=0.1) as store, sqlite3.connect(place) as other:
        other.isolation_level = None
        monkeypatch.setattr(
            "forerun.store.sql_store._last",
            lambda connection: other.execute("BEGIN IMMEDIATE") and 5000,
        )
        assert store.add_table(rows(10)).new == 10
        other.execute("ROLLBACK")
        monkeypatch.undo()
        assert store.count() == 10
        assert store.add_table(rows(2000, 10)).new == 2000
    assert seen(place) == 2010
