"""The Ray study's splits and the few-shot ones: who teaches, who is judged, and what is said of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import RequestError
from forerun.evaluate.judge import notes_of
from forerun.evaluate.splits import Fold, columns_of, folds_of, parse_split
from forerun.tables import Table, read_table
from tests.needs import published


def table(n: int = 48, **columns: Any) -> Table:
    """Return runs on two clusters: a has 1-4 devices, b 1-4; two workloads, three batches."""
    rows: dict[str, Any] = {
        "workload": [f"net-{i % 2}" for i in range(n)],
        "cluster": [("a", "b")[2 * i >= n] for i in range(n)],
        "devices": [float(1 + i // 2 % 4) for i in range(n)],
        "nodes": [float(1 + i // 2 % 4 // 2) for i in range(n)],
        "global_batch": [float(16 * (1 + i // 8 % 3)) for i in range(n)],
        "step_time_s": [0.1 * (1 + i // 8 % 3) / (1 + i // 2 % 4) + 1e-3 * i for i in range(n)],
    }
    return Table.from_columns({**rows, **columns})


def only(text: str, rows: Table, seed: int = 0) -> Fold:
    (fold,) = folds_of(parse_split(text), rows, seed)
    return fold


@given(st.lists(st.integers(1, 40), min_size=4, max_size=60), st.integers(2, 5))
def test_every_hth_sorted_value_is_judged_from_the_first(values: list[int], h: int) -> None:
    """The study's rule, spelled out: sort the distinct values, take positions 0, h, 2h, ..."""
    rows = table(len(values), devices=[float(v) for v in values])
    distinct = sorted(set(values))
    judged = {v for i, v in enumerate(distinct) if i % h == 0}
    if len(distinct) < 2:
        return
    fold = only(f"interpolation:devices=every{h}", rows)
    assert set(rows.numbers("devices")[fold.test]) == judged
    assert set(rows.numbers("devices")[fold.train]) == set(values) - judged
    assert len(fold.test) + len(fold.train) == len(values)


def test_the_trap_of_interpolation_is_said_with_its_rows() -> None:
    rows = table()
    split = parse_split("interpolation:workers")
    (note, trap) = notes_of(split, rows, folds_of(split, rows))
    assert note == "workers is the column devices"
    assert "12 rows of 24 (devices 1) below all fitted rows: extrapolation" in trap
    assert "between:devices leaves the ends out" in trap


def test_between_falls_into_no_trap_and_says_nothing() -> None:
    rows = table()
    split = parse_split("between:devices")
    folds = folds_of(split, rows)
    assert notes_of(split, rows, folds) == ()
    devices = rows.numbers("devices")
    (fold,) = folds
    assert devices[fold.train].min() < devices[fold.test].min()
    assert devices[fold.train].max() > devices[fold.test].max()


def test_listed_values_are_judged_and_may_be_words() -> None:
    rows = table()
    fold = only("interpolation:devices=2,3", rows)
    assert set(rows.numbers("devices")[fold.test]) == {2, 3}
    fold = only("interpolation:cluster=b", rows)
    assert set(rows.texts("cluster")[fold.test]) == {"b"}


def test_words_are_sorted_as_words() -> None:
    rows = table(8, instance_type=list("cbadcbad"))
    fold = only("interpolation:instance_type", rows)
    assert set(rows.texts("instance_type")[fold.test]) == {"a", "c"}


def test_rows_that_do_not_say_the_column_stand_on_neither_side() -> None:
    rows = table(8, devices=[1.0, "", 2.0, 3.0, "", 4.0, 5.0, 6.0])
    fold = only("interpolation:devices", rows)
    assert sorted([*fold.train, *fold.test]) == [0, 2, 3, 5, 6, 7]


def test_extrapolation_is_strict_and_any_column_is_enough() -> None:
    rows = table()
    fold = only("extrapolation:workers=2,batch=32", rows)
    devices, batch = rows.numbers("devices"), rows.numbers("global_batch")
    assert np.array_equal(fold.test, np.flatnonzero((devices > 2) | (batch > 32)))
    assert np.array_equal(fold.train, np.flatnonzero((devices <= 2) & (batch <= 32)))


def test_half_is_the_middle_of_the_distinct_values() -> None:
    rows = table(6, devices=[1.0, 2, 4, 8, 16, 16])
    split = parse_split("extrapolation:devices=half")
    fold = only("extrapolation:devices=half", rows)
    assert set(rows.numbers("devices")[fold.test]) == {8, 16}
    assert notes_of(split, rows, [fold]) == ("devices=half is devices <= 4",)


def test_resources_is_the_first_of_its_columns_that_varies_and_is_named() -> None:
    rows = table(vcpus=[4.0] * 48, devices_per_node=[1.0, 2.0, 4.0, 8.0] * 12)
    split = parse_split("interpolation:resources")
    folds = folds_of(split, rows)
    assert set(rows.numbers("devices_per_node")[folds[0].test]) == {1, 4}
    assert notes_of(split, rows, folds)[0] == "resources is the column devices_per_node"
    assert {"vcpus", "devices_per_node", "instance_type"} <= set(columns_of(split))


def test_a_column_of_that_very_name_is_taken_as_it_is() -> None:
    rows = table(8, resources=[1.0, 2, 3, 4] * 2, devices_per_node=[8.0, 4.0] * 4)
    assert set(rows.numbers("resources")[only("interpolation:resources", rows).test]) == {1, 3}


def test_leave_one_out_has_a_fold_for_every_value() -> None:
    rows = table(48, workload=[f"net-{i // 2}" for i in range(48)])
    folds = folds_of(parse_split("leave-one-out:workload"), rows)
    assert len(folds) == 24
    for fold in folds:
        assert len(set(rows.texts("workload")[fold.test])) == 1
        assert not set(rows.texts("workload")[fold.test]) & set(rows.texts("workload")[fold.train])


def test_a_whole_cluster_is_left_out_less_k_runs_of_each_of_its_workloads() -> None:
    rows = table()
    cluster, workload = rows.texts("cluster"), rows.texts("workload")
    folds = folds_of(parse_split("few-shot:cluster/workload=3"), rows)
    assert len(folds) == 2
    for fold in folds:
        (judged,) = set(cluster[fold.test])
        shots = fold.train[cluster[fold.train] == judged]
        assert [(workload[shots] == w).sum() for w in ("net-0", "net-1")] == [3, 3]
        assert len(fold.train) + len(fold.test) == 48


def test_shots_meet_their_condition() -> None:
    rows = table()
    split = parse_split("few-shot:cluster/workload=3:nodes=1")
    for fold in folds_of(split, rows):
        (judged,) = set(rows.texts("cluster")[fold.test])
        shots = fold.train[rows.texts("cluster")[fold.train] == judged]
        assert set(rows.numbers("nodes")[shots]) == {1}
        assert set(rows.numbers("nodes")[fold.test]) == {1, 2}


def test_the_cheapest_shots_cost_least_by_price_or_by_device_seconds() -> None:
    """Dearer an hour and slower a step: device-seconds and dollars choose apart."""
    devices = [1.0, 1, 2, 2, 4, 4]
    seconds = [1.0, 2, 0.6, 0.9, 0.5, 0.1]
    plain = table(6, cluster=["a"] * 6, workload=["net"] * 6, devices=devices, step_time_s=seconds,
                  global_batch=[16.0] * 6, micro_batch=[1.0, 2, 3, 4, 5, 6])  # fmt: skip
    fold = only("few-shot:cluster=2:cheapest", plain)
    assert sorted(fold.train) == [0, 5]  # 1.0 and 0.4 device-seconds
    priced = plain.with_columns(price_usd_per_hour=np.array([9.0, 1, 1, 9, 9, 99]))
    fold = only("few-shot:cluster=2:cheapest", priced)
    assert sorted(fold.train) == [1, 2]
    partly = plain.with_columns(price_usd_per_hour=np.array([9.0, 1, 1, 9, 9, np.nan]))
    assert sorted(only("few-shot:cluster=2:cheapest", partly).train) == [0, 5]


def test_exact_repeats_of_a_shot_are_never_judged() -> None:
    rows = table(12, cluster=["a"] * 6 + ["b"] * 6, workload=["net"] * 12,
                 devices=[1.0, 1, 2, 2, 4, 4] * 2, nodes=[1.0] * 12, global_batch=[8.0] * 12,
                 step_time_s=[1.0, 1.1, 0.9, 0.8, 0.7, 0.6] * 2)  # fmt: skip
    for fold in folds_of(parse_split("few-shot:cluster/workload=1:cheapest"), rows):
        (judged,) = set(rows.texts("cluster")[fold.test])
        (shot,) = fold.train[rows.texts("cluster")[fold.train] == judged]
        assert rows.numbers("devices")[shot] == 1
        assert 1 not in set(rows.numbers("devices")[fold.test])


def test_a_stopped_run_is_no_shot() -> None:
    rows = table(status=["timeout"] * 20 + ["ok"] * 28)
    for fold in folds_of(parse_split("few-shot:cluster=2"), rows):
        if 0 in fold.test:
            assert [i for i in fold.train if i < 24] == [
                i for i in range(20, 24) if i in fold.train
            ]
    with pytest.raises(RequestError, match="no row that ended with a time"):
        folds_of(parse_split("few-shot:cluster=1"), table(status=["timeout"] * 48))


@pytest.mark.data
def test_pollux_is_divided_as_the_study_would() -> None:
    """1 to 16 workers: 1, 3 ... 15 are judged; the 57 rows of one worker lie below all fitted rows."""
    rows = read_table(published("pollux"))
    split = parse_split("interpolation:workers")
    folds = folds_of(split, rows)
    devices = rows.numbers("devices")
    assert set(devices[folds[0].test]) == set(range(1, 17, 2))
    assert set(devices[folds[0].train]) == set(range(2, 17, 2))
    assert "57 rows of" in notes_of(split, rows, folds)[-1]


def test_columns_of_ones_own_do_not_part_repeats() -> None:
    """A run's id or date would make a question of each repeat, judged beside its twin."""
    twice = Table.from_columns({
        "workload": ["net"] * 40, "devices": [float(1 + i % 20) for i in range(40)],
        "step_time_s": [1.0 + 1e-3 * i for i in range(40)],
        "run_id": [f"run-{i}" for i in range(40)],
    })  # fmt: skip
    devices = twice.numbers("devices")
    for fold in folds_of(parse_split("random"), twice):
        assert not np.isin(devices[fold.test], devices[fold.train]).any()
