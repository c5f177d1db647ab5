"""Tasks of a store: one of several who try begins each, what another does then changes nothing, events come in order."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import event, text

from forerun.errors import RequestError, UnknownNameError
from forerun.store import KEPT_ANSWER, open_store
from forerun.store.layout import BEFORE, LAYOUT, VERSION_TABLE
from forerun.store.sql_store import SqlStore
from forerun.tables import Table


def test_a_task_is_asked_for_begun_reported_and_ended(store: SqlStore) -> None:
    tasks = store.tasks
    task, new, _ = tasks.add("fit", {"name": "ours", "rows": [{"a": 1}, {"a": 2}]})
    key = task["id"]
    assert new
    assert (task["state"], task["started"], task["result"]) == ("waiting", None, None)
    assert task["asked"] == {"name": "ours", "rows": 2}  # of a table the number of rows
    assert tasks.asked(key)["rows"] == [{"a": 1}, {"a": 2}]
    assert tasks.claim(key, "me")
    assert tasks.report(key, "me", 1, 2, "half", [{"devices": 4}])
    progress = tasks.get(key)["progress"]
    assert progress == {"done": 1, "of": 2, "note": "half", "eta_seconds": None, "at": None}
    assert tasks.report(key, "me", 1, 2, "half", eta=(1.0, 2.0, float("inf")))
    progress = tasks.get(key)["progress"]
    assert progress["eta_seconds"] == {"p05": 1.0, "p50": 2.0, "p95": None}
    assert tasks.report(key, "me", 2, 2, "words alone")
    assert tasks.get(key)["progress"] == {**progress, "done": 2, "note": "words alone"}
    assert tasks.end(key, "me", "done", {"kind": "fit"})
    found = tasks.get(key)
    assert (found["state"], found["result"], found["problem"]) == ("done", {"kind": "fit"}, None)
    assert found["created"] <= found["started"] <= found["ended"]
    assert (found["progress"]["eta_seconds"], found["asked"]["rows"]) == (None, 2)
    with pytest.raises(UnknownNameError, match="no such task"):
        tasks.asked(key)  # its body goes when it ends
    assert tasks.counts()["done"] == 1
    with pytest.raises(UnknownNameError, match="no such task"):
        tasks.get("nobody")
    with pytest.raises(UnknownNameError, match="no such task"):
        tasks.asked("nobody")


def test_one_of_many_who_try_begins_a_task(place: str, store: SqlStore) -> None:
    keys = [store.tasks.add("fit", {"name": str(i)})[0]["id"] for i in range(10)]

    def take(who: str) -> list[str]:
        with open_store(place) as own:
            return [key for key in own.tasks.open() if own.tasks.claim(key, who)]

    with ThreadPoolExecutor(8) as threads:
        begun = [key for found in threads.map(take, "abcdefgh") for key in found]
    assert sorted(begun) == sorted(keys)
    assert all(store.tasks.turn(key).attempts == 1 for key in keys)


def test_what_another_does_changes_nothing(store: SqlStore) -> None:
    key = store.tasks.add("campaign", {"name": "night"})[0]["id"]
    assert not store.tasks.report(key, "me", 1, 2, "it waits")
    assert store.tasks.claim(key, "me")
    for done in (
        store.tasks.claim(key, "you"), store.tasks.report(key, "you", 9, 9, "x"), store.tasks.wait(key, "you", ""),
        store.tasks.end(key, "you", "done", {}),
    ):  # fmt: skip
        assert not done
    assert store.tasks.wait(key, "me", "again")
    assert not store.tasks.end(key, "me", "done", {})  # whose turn it was
    assert store.tasks.claim(key, "you")
    assert store.tasks.turn(key).attempts == 2
    assert store.tasks.wait(key, "you", "stopped in order", died=False)
    assert store.tasks.turn(key).attempts == 1
    assert store.tasks.claim(key, "you")
    assert store.tasks.end(key, "you", "failed", None, {"asked": "a", "found": "b", "next": "c"})
    assert not store.tasks.end(key, "you", "done", {})
    assert store.tasks.get(key)["problem"]["found"] == "b"


def test_events_count_up_and_states_that_passed_are_forgotten(store: SqlStore) -> None:
    tasks = store.tasks
    key, other = (tasks.add("campaign", {"name": name})[0]["id"] for name in "ab")
    first = tasks.events(key)
    assert [kind for _, kind, _ in first] == ["task"]
    tasks.claim(key, "me")
    for i in range(3):
        tasks.report(key, "me", i, 3, f"run {i}", [{"run": i}])
    kinds = [(kind, json.loads(text)) for _, kind, text in tasks.events(key)]
    assert [kind for kind, _ in kinds] == ["run", "run", "run", "task"]
    assert kinds[-1][1]["progress"]["note"] == "run 2"
    assert "result" not in kinds[-1][1]
    seen = tasks.events(key)[-1][0]
    tasks.report(other, "me", 0, 1, "")
    tasks.end(key, "me", "done", {"found": 1})
    ((number, kind, text),) = tasks.events(key, seen)
    assert (number > seen, kind, json.loads(text)["result"]) == (True, "end", {"found": 1})
    assert [kind for _, kind, _ in tasks.events(key)] == ["run", "run", "run", "end"]
    numbers = [number for number, _, _ in tasks.events(key)]
    assert numbers == sorted(set(numbers))


def test_cancelling_ends_what_waits_and_asks_what_runs(store: SqlStore) -> None:
    waiting, running = (store.tasks.add("fit", {"name": name})[0]["id"] for name in "ab")
    task = store.tasks.cancel(waiting)
    assert (task["state"], task["progress"]["note"]) == ("cancelled", "it was cancelled")
    assert not store.tasks.claim(waiting, "me")
    assert store.tasks.events(waiting)[-1][1] == "end"
    store.tasks.claim(running, "me")
    assert store.tasks.cancel(running)["state"] == "running"
    assert store.tasks.turn(running).cancel
    assert store.tasks.get(running)["progress"]["note"] == "it is being cancelled"
    store.tasks.end(running, "me", "done", {})  # it was quicker
    assert store.tasks.cancel(running)["state"] == "done"
    with pytest.raises(UnknownNameError):
        store.tasks.cancel("nobody")


def test_an_idempotency_key_names_one_task(store: SqlStore) -> None:
    first, new, same = store.tasks.add("fit", {"name": "a"}, "me 1")
    assert (new, same) == (True, True)
    for what, asked, alike in (
        ("fit", {"name": "a"}, True),
        ("fit", {"name": "b"}, False),
        ("evaluate", {"name": "a"}, False),
    ):
        found, new, same = store.tasks.add(what, asked, "me 1")
        assert (found["id"], new, same) == (first["id"], False, alike)
    assert store.tasks.add("fit", {"name": "a"}, "you 1")[1]
    assert store.tasks.add("fit", {"name": "a"})[1]
    assert store.tasks.add("fit", {"name": "a"})[1]  # without a key each is another


def test_pages_walk_through_the_newest_first(store: SqlStore) -> None:
    keys = [store.tasks.add(("fit", "search")[i % 2], {"name": str(i)})[0]["id"] for i in range(7)]
    store.tasks.cancel(keys[0])
    seen, before = [], 0
    while True:
        rows, before = store.tasks.page(limit=3, before=before)
        seen += [row["id"] for row in rows]
        if not before:
            break
    assert seen == keys[::-1]
    assert [row["id"] for row in store.tasks.page("fit", "cancelled")[0]] == [keys[0]]
    assert all("result" not in row for row in store.tasks.page()[0])


def test_a_held_task_is_nobody_elses(store: SqlStore, place: str) -> None:
    key = store.tasks.add("fit", {"name": "a"})[0]["id"]
    with (
        store.tasks.database.alone(f"the task {key}"),
        open_store(place) as other,
        pytest.raises(RequestError, match="another process"),
        other.tasks.database.alone(f"the task {key}"),
    ):
        pass
    with open_store(place) as other, other.tasks.database.alone(f"the task {key}"):
        pass


def test_an_answer_is_kept_for_its_key_and_is_no_task(store: SqlStore) -> None:
    kept, new, _ = store.tasks.add(KEPT_ANSWER, {"rows": [1]}, "me 1")
    assert new
    assert store.tasks.answered(kept["id"], {"new": 1}) == {"new": 1}
    assert store.tasks.answered(kept["id"], {"new": 0}) == {"new": 1}
    assert store.tasks.add(KEPT_ANSWER, {"rows": [1]}, "me 1")[0]["result"] == {"new": 1}
    assert (store.tasks.page()[0], store.tasks.open(), sum(store.tasks.counts().values())) == (
        [],
        [],
        0,
    )
    with pytest.raises(UnknownNameError):
        store.tasks.get(kept["id"])


def test_lists_read_no_bodies_and_show_why_tasks_failed(store: SqlStore) -> None:
    tasks, rows = store.tasks, [{"workload": "resnet50", "step_time_s": 0.1}] * 5000
    asked = {
        "name": "a",
        "rows": rows,
        "runs": [{"batch": i} for i in range(900)],
        "note": "x" * 5000,
    }
    key = tasks.add("fit", asked)[0]["id"]
    read: list[str] = []

    def heed(connection: Any, cursor: Any, statement: str, *more: Any) -> None:
        read.append(statement)

    event.listen(tasks.database.engine, "before_cursor_execute", heed)
    try:
        (task,) = tasks.page()[0]
        tasks.claim(key, "me")
        tasks.report(key, "me", 1, 1, "")
        tasks.get(key)
    finally:
        event.remove(tasks.database.engine, "before_cursor_execute", heed)
    assert not [words for words in read if "asked" in words]
    assert task["asked"] == {"name": "a", "rows": 5000, "runs": 900, "note": 5000}
    assert len(tasks.events(key)[-1][2]) < 1000
    assert tasks.waiting() == (0, 0)
    problem = {"asked": "a", "found": "no run has a time", "next": "c"}
    tasks.end(key, "me", "failed", problem=problem)
    (task,) = tasks.page()[0]
    assert (task["problem"], task["progress"]["note"]) == (problem, "no run has a time")


def test_what_waits_is_counted_with_its_bytes(store: SqlStore) -> None:
    for name in ("a", "é" * 1000):
        store.tasks.add("fit", {"name": name})
    count, size = store.tasks.waiting()
    assert (count, 2000 < size < 2100) == (2, True)


def test_an_idempotency_key_compares_what_is_no_longer_kept(store: SqlStore) -> None:
    rows = [{"step_time_s": 0.1}]
    key = store.tasks.add("fit", {"name": "a", "rows": rows}, "me 1")[0]["id"]
    store.tasks.cancel(key)
    assert store.tasks.add("fit", {"name": "a", "rows": rows}, "me 1")[1:] == (False, True)
    other = [{"step_time_s": 0.2}]
    assert store.tasks.add("fit", {"name": "a", "rows": other}, "me 1")[1:] == (False, False)


def test_what_is_asked_keeps_its_order_and_its_key_does_not_hang_on_it(store: SqlStore) -> None:
    """The order of workloads and columns decides draws and the order of a campaign's points."""
    asked = {"name": "a", "columns": {"workload": ["vgg16"], "devices": [2]}, "b": 1}
    key = store.tasks.add("fit", asked, "me 1")[0]["id"]
    assert list(store.tasks.asked(key)) == ["name", "columns", "b"]
    assert list(store.tasks.asked(key)["columns"]) == ["workload", "devices"]
    other = {"b": 1, "columns": {"devices": [2], "workload": ["vgg16"]}, "name": "a"}
    assert store.tasks.add("fit", other, "me 1")[1:] == (False, True)
    assert store.tasks.knows("me 1")
    assert not store.tasks.knows("me 2")


def test_the_oldest_that_ended_are_forgotten_and_nothing_else(store: SqlStore) -> None:
    tasks = store.tasks
    store.artifacts.put("ours", "a model", kind="model")
    keys = [tasks.add("fit", {"name": str(i)}, f"me {i}")[0]["id"] for i in range(6)]
    answers = [tasks.add(KEPT_ANSWER, {"rows": [i]}, f"you {i}")[0]["id"] for i in range(4)]
    tasks.claim(keys[0], "me")
    for key in keys[2:]:  # the first two run and wait
        tasks.claim(key, "me")
        tasks.report(key, "me", 1, 1, "", [{"devices": 1}])
    for key in reversed(keys[2:]):
        tasks.end(key, "me", "done", {})
    tasks.forget(2)
    assert {task["id"] for task in tasks.page()[0]} == {*keys[:2], *keys[2:4]}  # these ended last
    assert tasks.events(keys[5]) == []
    assert len(tasks.events(keys[2])) == 2
    for i in (0, 3):
        assert tasks.add(KEPT_ANSWER, {"rows": [i]}, f"you {i}")[1] == (i == 0)
    assert tasks.add("fit", {"name": "5"}, "me 5")[1], "its key is free again"
    assert store.artifacts.read("ours") == b"a model"
    assert len(answers) == 4


def test_a_store_of_the_layout_before_is_brought_over(place: str) -> None:
    rows = [{"workload": "resnet50"}] * 3
    with open_store(place) as store:
        store.add_table(Table.from_columns({"workload": ["resnet50"]}))
        waits = store.tasks.add("fit", {"name": "a", "rows": rows}, "me 1")[0]["id"]
        ended = store.tasks.add("fit", {"name": "b", "rows": rows})[0]["id"]
        body = json.dumps(
            {"fit": {"name": "b", "rows": rows}}, sort_keys=True, separators=(",", ":")
        )
        store.tasks.cancel(ended)
        with store.tasks.database.writing() as connection:
            for name in ("brief", "digest", "eta", "reported", "size"):
                connection.execute(text(f"ALTER TABLE tasks DROP COLUMN {name}"))
            change = text("UPDATE tasks SET asked = :body WHERE key = :key")
            connection.execute(change, {"body": body, "key": ended})
            connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '{BEFORE}'"))
    with ThreadPoolExecutor(4) as threads:  # one of them does it
        list(threads.map(lambda _: open_store(place).close(), range(4)))
    with open_store(place) as store:
        assert store.count() == 1
        assert [task["asked"] for task in store.tasks.page()[0]] == [
            {"name": "b", "rows": 3},
            {"name": "a", "rows": 3},
        ]
        assert store.tasks.asked(waits)["rows"] == rows
        assert store.tasks.waiting()[1] > 0
        assert store.tasks.add("fit", {"name": "a", "rows": rows}, "me 1")[1:] == (False, True)
        with pytest.raises(UnknownNameError):
            store.tasks.asked(ended)
        with store.tasks.database.reading() as connection:
            assert connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).all() == [
                (LAYOUT,)
            ]
