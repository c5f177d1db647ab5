"""What comes back is what was put in: every cell, own columns, what could not be read, and keys."""

from __future__ import annotations

import math

import numpy as np
import pytest

from forerun.errors import RequestError
from forerun.store import open_store
from forerun.store.layout import INDEXED_NUMBERS, INDEXED_TEXTS
from forerun.store.sql_store import SqlStore
from forerun.tables import COLUMNS, Table, read_table, write_table

ROWS = Table.from_columns({
    "workload": ["resnet50", "gpt2", "gpt2"], "device": ["t4", "", "v100"],
    "devices": [1.0, 8.0, 8.0], "step_time_s": [0.1 + 0.2, 1e-300, ""], "status": ["", "ok", "oom"],
    "my label": ["a,\"b\"", "", "zwölf\n☃"], "loss": ["0.5", "007", "1e3"],
})  # fmt: skip
ODD = Table({
    "seed": np.array([7.0, np.nan, -0.0]), "far": np.array([math.inf, -math.inf, 5e-324]),
    "exact": np.array([0.1, 1 / 3, 123456789.123456789]),
    "words": np.array(["inf", "nan", "-0"], dtype=object),
}, 3)  # fmt: skip


def same(a: Table, b: Table) -> None:
    """Assert that two tables say the same, cell by cell; blank columns count as absent."""
    assert len(a) == len(b)
    for name in {*a.columns, *b.columns}:
        if any(name in t and t.columns[name].dtype != object for t in (a, b)):
            assert np.array_equal(a.numbers(name), b.numbers(name), equal_nan=True), name
        assert a.texts(name).tolist() == b.texts(name).tolist(), name


def test_every_cell_comes_back(store: SqlStore) -> None:
    added = store.add_table(ROWS)
    assert (added.new, added.known, len(set(added.keys))) == (3, 0, 3)
    same(store.table(), ROWS)


def test_numbers_of_ones_own_come_back_to_the_last_bit(store: SqlStore) -> None:
    store.add_table(ODD)
    back = store.table()
    same(back, ODD)
    assert math.copysign(1, back.numbers("seed")[2]) == -1
    assert back.columns["words"].dtype == object


def test_a_column_is_one_of_numbers_only_where_every_cell_is_one(store: SqlStore) -> None:
    store.add_table(Table.from_columns({"own": ["1", "2.5"]}))
    assert store.table().columns["own"].dtype == np.float64
    store.add_table(Table.from_columns({"own": ["007"]}))
    assert store.table().texts("own").tolist() == ["1", "2.5", "007"]


def test_a_cell_that_could_not_be_read_keeps_its_text(store: SqlStore) -> None:
    store.add_table(Table.from_columns({"step_time_s": ["fast", "0.5"], "devices": ["8", "8"]}))
    back = store.table()
    assert np.isnan(back.numbers("step_time_s")[0])
    assert back.unread["step_time_s"].tolist() == ["fast", ""]
    assert back.problems is not None
    assert "step_time_s='fast' is not a number" in str(back.problems[0])
    assert back.problems[1] is None


@pytest.mark.parametrize("name", ["runs.csv", "runs.parquet"])
def test_a_file_of_all_runs_makes_the_same_store_again(
    store: SqlStore, tmp_path: object, name: str
) -> None:
    from pathlib import Path

    file, other = Path(str(tmp_path)) / name, Path(str(tmp_path)) / "other.db"
    store.add_table(ROWS, campaign="c", started="2026-01-02T03:04:05Z", fingerprint={"torch": "2"})
    store.add_table(Table.from_columns({"devices": ["many", "1"], "own": ["x", ""]}))
    write_table(store.table(provenance=True), file)
    again = read_table(file)
    assert store.add_table(again).new == 0, "known runs came in twice"
    with open_store(str(other)) as copy:
        assert copy.add_table(again).new == 5
        same(copy.table(provenance=True), store.table(provenance=True))
        assert copy.table().unread["devices"].tolist() == ["", "", "", "many", ""]
        key = store.table(provenance=True).texts("run_key")[0]
        assert copy.get(key).fingerprint == {"torch": "2"}
        assert copy.get(key).campaign == "c"


def test_the_same_rows_again_are_known_and_repeats_stay_apart(store: SqlStore) -> None:
    twice = Table.from_columns({"workload": ["a", "a", "b"], "status": ["oom"] * 3})
    first = store.add_table(twice)
    assert first.new == 3, "two equal rows of one call are two repeats"
    assert store.add_table(twice) == type(first)(first.keys, 0, 3)
    more = Table.from_columns({"status": ["oom"] * 4, "workload": ["a", "a", "b", "a"]})
    assert store.add_table(more).new == 1, "the third repeat alone is new"
    assert store.count() == 4


def test_another_time_campaign_or_machine_is_another_run(store: SqlStore) -> None:
    one = Table.from_columns({"workload": ["a"]})
    for facts in ({}, {"started": "2026-01-01"}, {"campaign": "c"}, {"fingerprint": {"os": 1}}):
        assert store.add_table(one, **facts).new == 1
    assert store.count() == 4


def test_a_key_of_ones_own_is_one_run_for_ever(store: SqlStore) -> None:
    one = Table.from_columns({"workload": ["a"], "step_time_s": [1.0]})
    assert store.add_table(one, keys=["mine"]).keys == ("mine",)
    assert store.add_table(one, keys=["mine"]).known == 1
    other = Table.from_columns({"workload": ["new", "a"], "step_time_s": [1.0, 2.0]})
    with pytest.raises(RequestError, match=r"key 'mine'.*another run.*nothing of this call"):
        store.add_table(other, keys=["fresh", "mine"])
    with pytest.raises(RequestError, match="another run"):
        store.add_table(other, keys=["both", "both"])
    assert store.count() == 1


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"keys": ["a", "b"]}, "2 values were given for run_key"),
        ({"keys": [""]}, "a key is blank"),
        ({"keys": ["k" * 513]}, "513 characters"),
        ({"keys": ["a\0b"]}, "NUL"),
        ({"campaign": "half \ud800"}, "not Unicode"),
        ({"fingerprint": {"x": object()}}, "no JSON form"),
    ],
)
def test_provenance_that_cannot_be_is_told(
    store: SqlStore, facts: dict[str, object], words: str
) -> None:
    with pytest.raises(RequestError, match=words):
        store.add_table(Table.from_columns({"workload": ["a"]}), **facts)  # type: ignore[arg-type]
    assert store.count() == 0


@pytest.mark.parametrize("column", ["workload", "own"])
@pytest.mark.parametrize("text", ["a\0b", "half \ud800"])
def test_a_text_that_no_database_takes_is_told(store: SqlStore, column: str, text: str) -> None:
    with pytest.raises(RequestError, match=r"NUL|not Unicode"):
        store.add_table(Table.from_columns({column: ["good", text]}))
    assert store.count() == 0


def test_a_fingerprint_in_a_file_must_be_json(store: SqlStore) -> None:
    table = Table.from_columns({"workload": ["a"], "run_fingerprint": ["torch 2"]})
    with pytest.raises(RequestError, match="no JSON object"):
        store.add_table(table)


def test_columns_of_the_database_are_of_the_schema_and_of_its_kind() -> None:
    assert {COLUMNS[name].kind for name in INDEXED_TEXTS} == {"text"}
    assert {COLUMNS[name].kind for name in INDEXED_NUMBERS} == {"number"}


def test_many_rows_come_back_in_order(store: SqlStore) -> None:
    """More than one chunk, the last one short."""
    n = 9001
    table = Table({"devices": np.arange(n, dtype=float), "own": np.arange(n) / 7}, n)
    assert store.add_table(table).new == n
    same(store.table(), table)
    assert store.table(limit=3, newest=True).numbers("devices").tolist() == [9000, 8999, 8998]


def test_many_known_rows_stay_and_one_clash_among_many_keeps_all_out(store: SqlStore) -> None:
    n = 300
    table = Table({"devices": np.arange(n, dtype=float), "own": np.arange(n) / 7}, n)
    part = table.take(np.arange(0, n, 2))
    assert store.add_table(part).new == n // 2
    both = store.add_table(table)
    assert (both.new, both.known) == (n // 2, n // 2)
    assert len(set(both.keys)) == n
    keys = [f"key {i}" for i in range(n)]
    keys[-1] = both.keys[0]
    with pytest.raises(RequestError, match="another run with other figures"):
        store.add_table(table, keys=keys)
    assert store.count() == n
