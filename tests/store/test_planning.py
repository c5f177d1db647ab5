"""Planning: what is asked for together is found by an index alone."""

from __future__ import annotations

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
        store.add_table(rows(1000, first=6000))
        with store._database.reading() as connection:  # so many rows at once are analyzed
            analyzed = "SELECT count(*) FROM sqlite_stat1 WHERE tbl = 'runs'"
            assert connection.exec_driver_sql(analyzed).scalar()
        store.add_table(table)
        found, plan = plan_of(store, where, limit)
        every = store.count(where=where)
    assert index in plan
    assert found == (every if limit is None else limit)
    assert every > 20
