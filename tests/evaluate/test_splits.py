"""Splits: no judged row teaches, every row that should be judged is, and mistakes are told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import RequestError
from forerun.evaluate.splits import FORMS, folds_of, parse_split
from forerun.tables import Table

SPLITS = [
    "whole", "random", "leave-out:device", "above:devices=4", "few-shot:device=2",
    "above:devices=4..6", "from:device=t4", "from:device=t4,a100", "larger-clusters",
    "larger-batches", "interpolation:devices", "extrapolation:devices=4,global_batch=64",
    "interpolation:devices=2,6", "interpolation:devices=every3", "interpolation:device=t4",
    "holdout", "between:devices", "leave-one-out:device", "above:devices=half",
    "extrapolation:workers=half,batch=64", "few-shot:device/workload=2",
    "few-shot:device=2:cheapest:devices<=4:global_batch>16",
]  # fmt: skip


def table(n: int = 60, **columns: Any) -> Table:
    rows: dict[str, Any] = {
        "workload": [f"net-{i // 30}" for i in range(n)],
        "device": [("t4", "v100", "a100")[i % 3] for i in range(n)],
        "devices": [float(1 + i % 8) for i in range(n)],
        "global_batch": [float(2 ** (4 + i // 12 % 5)) for i in range(n)],
        "step_time_s": [0.1 + i for i in range(n)],
    }
    return Table.from_columns({**rows, **columns})


def rows_without(column: str) -> Table:
    return Table({k: v for k, v in table().columns.items() if k != column}, 60)


@pytest.mark.parametrize("text", SPLITS)
def test_no_judged_row_is_among_its_teachers(text: str) -> None:
    for fold in folds_of(parse_split(text), table()):
        assert not set(fold.train) & set(fold.test)
        assert len(fold.test)


@pytest.mark.parametrize("text", ["whole", "random", "leave-out:device", "leave-out:workload"])
def test_every_row_is_judged_once(text: str) -> None:
    judged = np.concatenate([f.test for f in folds_of(parse_split(text), table())])
    assert sorted(judged) == list(range(60))


@pytest.mark.parametrize("text", SPLITS)
def test_the_same_seed_gives_the_same_folds(text: str) -> None:
    first, second = (list(folds_of(parse_split(text), table(), seed=3)) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert np.array_equal(a.test, b.test)
        assert np.array_equal(a.train, b.train)


def test_another_seed_gives_another_random_split() -> None:
    split = parse_split("random")
    first, second = (next(iter(folds_of(split, table(), seed=s))).test for s in (0, 1))
    assert not np.array_equal(first, second)


def test_a_holdout_is_the_first_fold_of_random() -> None:
    (one,), all_folds = (folds_of(parse_split(text), table(), 3) for text in ("holdout", "random"))
    assert np.array_equal(one.test, all_folds[0].test)
    assert len(one.train) + len(one.test) == 60


def test_whole_teaches_nothing() -> None:
    (fold,) = folds_of(parse_split("whole"), table())
    assert len(fold.train) == 0


def test_repeats_of_a_configuration_stay_on_one_side_of_a_random_split() -> None:
    """Nine measurements of each of ten configurations: the name tells which."""
    rows = table(90, workload=[f"net-{i // 9}" for i in range(90)], device=["t4"] * 90,
                 devices=[1.0] * 90, global_batch=[8.0] * 90)  # fmt: skip
    names = rows.texts("workload")
    for fold in folds_of(parse_split("random"), rows):
        assert not set(names[fold.train]) & set(names[fold.test])


def test_leave_out_never_teaches_the_value_that_it_judges() -> None:
    rows = table()
    for column in ("device", "workload"):
        labels = rows.texts(column)
        folds = folds_of(parse_split(f"leave-out:{column}"), rows)
        assert len(folds) == len(set(labels))
        for fold in folds:
            assert not set(labels[fold.train]) & set(labels[fold.test])


def test_above_teaches_up_to_the_value_and_judges_beyond() -> None:
    rows = table()
    (fold,) = folds_of(parse_split("above:devices=4"), rows)
    assert rows.numbers("devices")[fold.train].max() == 4
    assert rows.numbers("devices")[fold.test].min() == 5


def test_above_judges_up_to_its_limit() -> None:
    rows = table()
    (fold,) = folds_of(parse_split("above:devices=4..6"), rows)
    assert set(rows.numbers("devices")[fold.test]) == {5, 6}
    assert set(rows.numbers("devices")[fold.train]) == {1, 2, 3, 4}


@pytest.mark.parametrize(("parts", "folds"), [(0, 10), (4, 4), (30, 30), (99, 30)])
def test_more_values_than_folds_are_left_out_together(parts: int, folds: int) -> None:
    rows = table(workload=[f"net-{i // 2}" for i in range(60)])
    names = rows.texts("workload")
    found = folds_of(parse_split("leave-out:workload"), rows, parts=parts)
    assert len(found) == folds
    assert sorted(np.concatenate([f.test for f in found])) == list(range(60))
    for fold in found:
        assert not set(names[fold.train]) & set(names[fold.test])
        assert len(fold.train) + len(fold.test) == 60


def test_a_split_of_one_fold_takes_no_number_of_folds() -> None:
    with pytest.raises(RequestError, match="no folds to count"):
        folds_of(parse_split("above:devices=4"), table(), parts=3)


def test_from_teaches_the_named_values_alone() -> None:
    rows = table(device=[("t4", "v100", "a100", "")[i % 4] for i in range(60)])
    device = rows.texts("device")
    (fold,) = folds_of(parse_split("from:device=t4,a100"), rows)
    assert set(device[fold.train]) == {"t4", "a100"}
    assert set(device[fold.test]) == {"v100"}


def test_from_compares_numbers_as_numbers() -> None:
    rows = table()
    (fold,) = folds_of(parse_split("from:devices=2.0,3"), rows)
    assert set(rows.numbers("devices")[fold.train]) == {2, 3}


def test_larger_clusters_judges_the_upper_half_of_each_workloads_sizes() -> None:
    """a: 1 2 4 8 on one device; b: 8 16; c: 64 alone, which teaches."""
    rows = table(
        7, workload=list("aaaabbc"), device=["t4"] * 7, devices=[1, 2, 4, 8, 8, 16, 64]
    )  # fmt: skip
    (fold,) = folds_of(parse_split("larger-clusters"), rows)
    assert fold.test.tolist() == [2, 3, 5]
    assert fold.train.tolist() == [0, 1, 4, 6]


def test_larger_batches_compares_batches_on_as_many_devices() -> None:
    """Weak scaling: the batch grows with the devices, and no row has another batch on its own."""
    weak = table(4, workload=["a"] * 4, device=["t4"] * 4, devices=[1, 2, 4, 8],
                 global_batch=[16, 32, 64, 128])  # fmt: skip
    with pytest.raises(RequestError, match="has two values of global_batch"):
        folds_of(parse_split("larger-batches"), weak)
    both = table(4, workload=["a"] * 4, device=["t4"] * 4, devices=[1, 1, 4, 4],
                 global_batch=[16, 32, 64, 128])  # fmt: skip
    (fold,) = folds_of(parse_split("larger-batches"), both)
    assert fold.test.tolist() == [1, 3]


def test_between_judges_every_second_value_and_never_the_ends() -> None:
    rows = table()
    (fold,) = folds_of(parse_split("between:devices"), rows)
    assert set(rows.numbers("devices")[fold.test]) == {2, 4, 6}
    assert set(rows.numbers("devices")[fold.train]) == {1, 3, 5, 7, 8}


def test_extrapolation_judges_where_any_column_is_beyond_its_bound() -> None:
    rows = table()
    (fold,) = folds_of(parse_split("extrapolation:devices=4,global_batch=64"), rows)
    inside = (rows.numbers("devices") <= 4) & (rows.numbers("global_batch") <= 64)
    assert np.array_equal(fold.train, np.flatnonzero(inside))
    assert np.array_equal(fold.test, np.flatnonzero(~inside))


def test_above_leaves_blanks_on_neither_side() -> None:
    rows = table(6, devices=[1.0, 2.0, "", 8.0, "", 9.0])
    (fold,) = folds_of(parse_split("above:devices=4"), rows)
    assert sorted([*fold.train, *fold.test]) == [0, 1, 3, 5]


def test_few_shot_teaches_k_rows_of_the_judged_value() -> None:
    rows = table()
    device = rows.texts("device")
    for fold in folds_of(parse_split("few-shot:device=2"), rows):
        (value,) = set(device[fold.test])
        assert (device[fold.train] == value).sum() == 2
        assert len(fold.train) + len(fold.test) == 60


def test_shots_are_measured_runs_and_their_repeats_are_not_judged() -> None:
    """Five configurations of three rows each, and six that ran out of memory."""
    rows = table(
        21, workload=["net"] * 21, device=["t4"] * 15 + ["v100"] * 6, global_batch=[8.0] * 21,
        devices=[float(1 + i // 3) for i in range(21)], status=["ok"] * 17 + ["oom"] * 4,
    )  # fmt: skip
    devices, device = rows.numbers("devices"), rows.texts("device")
    for fold in folds_of(parse_split("few-shot:device=2"), rows):
        (value,) = set(device[fold.test])
        shots = fold.train[device[fold.train] == value]
        assert set(rows.texts("status")[shots]) == {"ok"}
        assert not set(devices[shots]) & set(devices[fold.test])
        if value == "t4":
            assert len(set(devices[shots])) == 2
            assert len(fold.test) == 9


def test_a_group_that_shots_use_up_is_not_judged() -> None:
    rows = table(8, device=["t4"] * 6 + ["v100"] * 2)
    (fold,) = folds_of(parse_split("few-shot:device=3"), rows)
    assert set(rows.texts("device")[fold.test]) == {"t4"}


def test_shots_of_values_left_out_together_are_given_for_each() -> None:
    rows = table()
    device = rows.texts("device")
    found = folds_of(parse_split("few-shot:device=4"), rows, parts=2)
    assert len(found) == 2
    for fold in found:
        for value in set(device[fold.test]):
            assert (device[fold.train] == value).sum() == 4


@given(st.integers(0, 2**16), st.sampled_from(SPLITS[1:]), st.integers(8, 80))
def test_sides_never_overlap_and_both_hold_rows_whatever_the_table(
    seed: int, text: str, n: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = table(
        n, workload=rng.choice(["a", "b", "c"], n).tolist(),
        device=rng.choice(["t4", "v100", "a100", ""], n).tolist(),
        devices=rng.integers(1, 9, n).tolist(), global_batch=rng.choice([32.0, 64, 128], n).tolist(),
    )  # fmt: skip
    try:
        found = folds_of(parse_split(text), rows, seed)
    except RequestError:
        return
    for fold in found:
        assert len(fold.train)
        assert len(fold.test)
        assert not set(fold.train) & set(fold.test)
    judged = np.concatenate([f.test for f in found])
    assert len(set(judged)) == len(judged)


@pytest.mark.parametrize(
    "text",
    ["", "sideways", "random:x", "leave-out", "leave-out:", "leave-out:a=1", "above:devices",
     "above:devices=many", "above:=3", "few-shot:device=0", "few-shot:device=1.5",
     "interpolation:", "interpolation:devices=every1", "interpolation:devices=,", "between:devices=4",
     "few-shot:device/=2", "few-shot:device=2:dearest", "leave-one-out:", "extrapolation:devices", "above:devices=nan",
     "extrapolation:devices=1,devices=2", "from:device", "from:device=,", "above:devices=8..4",
     "above:devices=4..", "larger-clusters:devices"],
)  # fmt: skip
def test_a_split_that_cannot_be_read_is_told_with_all_forms(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_split(text)
    assert all(form in caught.value.next_step for form in FORMS)


@pytest.mark.parametrize("text", SPLITS)
def test_a_split_is_written_as_it_was_asked(text: str) -> None:
    assert str(parse_split(text)) == text
    assert (
        parse_split(str(parse_split(text))) == parse_split(text) or "half" in text
    )  # NaN is not NaN


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("leave-out:devise", "there is no column 'devise'"),
        ("above:devices=100", "no row has devices above 100"),
        ("above:devices=0", "no row has devices up to 0"),
        ("leave-out:framework", "all rows have the same framework"),
        ("few-shot:device=60", "no row would be judged"),
        ("from:device=h100", "no row has device h100"),
        ("from:device=t4,v100,a100", "no row would be judged"),
        ("extrapolation:devices=100,global_batch=1000", "no row has devices above 100 and"),
        ("above:device=4", "device is no number"),
        ("between:sized", "2 distinct values"),
        ("interpolation:framework", "all rows have the same framework"),
        ("interpolation:devices=99", "no row has devices 99"),
        ("interpolation:sizes", "no column 'sizes'"),
        ("leave-one-out:framework", "all rows have the same framework"),
        ("extrapolation:resources=half", "no such column of numbers"),
        ("extrapolation:one=half", "1 distinct numbers"),
        ("few-shot:device=2:devices>100", "none meets devices>100"),
        ("few-shot:device/nodes=2", "no column 'nodes'"),
        ("larger-batches", "no column 'global_batch'"),
    ],
)
def test_a_split_that_the_table_cannot_bear_is_told(text: str, words: str) -> None:
    rows = table(framework=["torch"] * 60, sized=[1.0, 2.0] * 30, one=[1.0] * 60)
    if text == "larger-batches":
        rows = rows_without("global_batch")
    with pytest.raises(RequestError, match=words):
        list(folds_of(parse_split(text), rows))
