"""Tasks of a store: one of several who try begins each, what another does then changes nothing, events come in order."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from forerun.errors import RequestError, UnknownNameError
from forerun.store import open_store
from forerun.store.sql_store import SqlStore


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
    assert tasks.get(key)["progress"] == {"done": 1, "of": 2, "note": "half"}
    assert tasks.end(key, "me", "done", {"kind": "fit"})
    found = tasks.get(key)
    assert (found["state"], found["result"], found["problem"]) == ("done", {"kind": "fit"}, None)
    assert found["created"] <= found["started"] <= found["ended"]
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
    assert store.tasks.cancel(waiting)["state"] == "cancelled"
    assert not store.tasks.claim(waiting, "me")
    assert store.tasks.events(waiting)[-1][1] == "end"
    store.tasks.claim(running, "me")
    assert store.tasks.cancel(running)["state"] == "running"
    assert store.tasks.turn(running).cancel
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
    from forerun.store import KEPT_ANSWER

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
