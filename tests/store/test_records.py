"""Campaigns and searches resume: their points keep state, and a run marks its own in one act."""

from __future__ import annotations

import pytest

from forerun.errors import RequestError, UnknownNameError
from forerun.store import open_store
from forerun.store.sql_store import SqlStore
from forerun.tables import Table

SPEC = {"workloads": ["resnet50"], "workers": [1, 2], "steps": {"least": 20}}


@pytest.mark.parametrize("kind", ["campaigns", "searches"])
def test_a_record_is_found_again_with_its_points_in_order(place: str, kind: str) -> None:
    with open_store(place) as store:
        records = getattr(store, kind)
        assert records.get("night") is None
        assert records.names() == []
        assert records.put("night", SPEC).points == {}
        for point, status in (("w=2", "running"), ("w=1", "done"), ("w=2", "failed")):
            records.mark("night", point, status, run_key=f"key of {point}", note="worker 1 died")
    with open_store(place) as store:
        record = getattr(store, kind).get("night")
        assert record is not None
        assert record.spec == SPEC
        assert list(record.points) == ["w=2", "w=1"]
        assert record.points["w=2"].status == "failed"
        assert record.points["w=2"].run_key == "key of w=2"
        assert record.points["w=2"].note == "worker 1 died"
        assert getattr(store, kind).names() == ["night"]
        other = "searches" if kind == "campaigns" else "campaigns"
        assert getattr(store, other).names() == []


def test_the_same_spec_again_resumes_and_another_is_refused(store: SqlStore) -> None:
    store.campaigns.put("night", SPEC)
    store.campaigns.mark("night", "w=1", "done")
    again = store.campaigns.put("night", dict(reversed(SPEC.items())))
    assert list(again.points) == ["w=1"], "the order of a spec's parts makes it another"
    with pytest.raises(RequestError, match="of that name with another spec"):
        store.campaigns.put("night", {**SPEC, "workers": [4]})
    found = store.campaigns.put("night", {**SPEC, "workers": [4]}, replace=True)
    assert found.spec["workers"] == [4]
    assert list(found.points) == ["w=1"]
    stored = store.campaigns.get("night")
    assert stored is not None
    assert stored.spec["workers"] == [4]


def test_runs_mark_their_points_in_the_same_act(store: SqlStore) -> None:
    store.campaigns.put("night", SPEC)
    rows = Table.from_columns({"workload": ["a", "b"], "status": ["ok", "timeout"]})
    added = store.add_table(rows, campaign="night", points=["w=1", "w=2"])
    record = store.campaigns.get("night")
    assert record is not None
    assert [(p.status, p.run_key) for p in record.points.values()] == [
        ("ok", added.keys[0]), ("timeout", added.keys[1]),
    ]  # fmt: skip
    assert store.get(added.keys[1]).point == "w=2"
    assert store.runs(campaign="night", point="w=2").table.texts("workload").tolist() == ["b"]


def test_a_late_failure_leaves_a_point_that_is_ok_as_it_is(place: str) -> None:
    """Two processes measure one point; the second one's run fails after the first one's was kept."""
    with open_store(place) as first, open_store(place) as second:
        first.campaigns.put("night", SPEC)

        def kept(store: SqlStore, status: str, started: str) -> str:
            row = Table.from_columns({"workload": ["a"], "status": [status]})
            return store.add_table(
                row, campaign="night", points=["w=1"], started=started, notes=[f"by {started}"]
            ).keys[0]

        kept(second, "timeout", "0")
        good = kept(first, "ok", "1")
        bad = kept(second, "failed", "2")
        record = first.campaigns.get("night")
        assert record is not None
        point = record.points["w=1"]
        assert (point.status, point.run_key, point.note) == ("ok", good, "by 1")
        assert second.get(bad).row["status"] == "failed", "the run itself is kept all the same"
        better = kept(second, "ok", "3")
        record = first.campaigns.get("night")
        assert record is not None
        assert record.points["w=1"].run_key == better


def test_no_campaign_no_run(store: SqlStore) -> None:
    with pytest.raises(UnknownNameError, match="no such campaign"):
        store.add_table(Table.from_columns({"workload": ["a"]}), campaign="nights", points=["1"])
    assert store.count() == 0
    store.campaigns.put("night", SPEC)
    with pytest.raises(UnknownNameError, match="did you mean night"):
        store.campaigns.mark("nigth", "1", "done")


def test_a_record_needs_a_name_and_a_spec_that_is_json(store: SqlStore) -> None:
    with pytest.raises(RequestError, match="its name is blank"):
        store.searches.put(" ", {})
    with pytest.raises(RequestError, match="no JSON form"):
        store.searches.put("night", {"x": object()})
    assert store.searches.put("empty", {}).spec == {}


def test_a_name_is_held_by_one_at_a_time(place: str) -> None:
    with open_store(place) as one, open_store(place) as other:
        with one.campaigns.alone("night"):
            with pytest.raises(RequestError, match="another process is at it"):
                other.campaigns.alone("night").__enter__()
            with other.campaigns.alone("day"), other.searches.alone("night"):
                other.campaigns.put("day", SPEC)
        with pytest.raises(KeyError), other.campaigns.alone("night"):
            raise KeyError("what fails inside lets it go")
        with one.campaigns.alone("night"):
            assert one.campaigns.names() == ["day"]
