"""Splits: no judged row teaches, every row that should be judged is, and mistakes are told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from forerun.errors import RequestError
from forerun.evaluate.splits import FORMS, parse_split
from forerun.tables import Table

SPLITS = ["whole", "random", "leave-out:device", "above:devices=4", "few-shot:device=2"]


def table(n: int = 60, **columns: Any) -> Table:
    rows: dict[str, Any] = {
        "workload": [f"net-{i}" for i in range(n)],
        "device": [("t4", "v100", "a100")[i % 3] for i in range(n)],
        "devices": [float(1 + i % 8) for i in range(n)],
        "step_time_s": [0.1 + i for i in range(n)],
    }
    return Table.from_columns({**rows, **columns})


@pytest.mark.parametrize("text", SPLITS)
def test_no_judged_row_is_among_its_teachers(text: str) -> None:
    for fold in parse_split(text).folds(table()):
        assert not set(fold.train) & set(fold.test)
        assert len(fold.test)


@pytest.mark.parametrize("text", ["whole", "random", "leave-out:device", "leave-out:workload"])
def test_every_row_is_judged_once(text: str) -> None:
    judged = np.concatenate([f.test for f in parse_split(text).folds(table())])
    assert sorted(judged) == list(range(60))


@pytest.mark.parametrize("text", SPLITS)
def test_the_same_seed_gives_the_same_folds(text: str) -> None:
    first, second = (list(parse_split(text).folds(table(), seed=3)) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert np.array_equal(a.test, b.test)
        assert np.array_equal(a.train, b.train)


def test_another_seed_gives_another_random_split() -> None:
    split = parse_split("random")
    first, second = (next(iter(split.folds(table(), seed=s))).test for s in (0, 1))
    assert not np.array_equal(first, second)


def test_whole_teaches_nothing() -> None:
    (fold,) = parse_split("whole").folds(table())
    assert len(fold.train) == 0


def test_repeats_of_a_configuration_stay_on_one_side_of_a_random_split() -> None:
    """Nine measurements of each of ten configurations: the name tells which."""
    rows = table(90, workload=[f"net-{i // 9}" for i in range(90)], device=["t4"] * 90,
                 devices=[1.0] * 90)  # fmt: skip
    names = rows.texts("workload")
    for fold in parse_split("random").folds(rows):
        assert not set(names[fold.train]) & set(names[fold.test])


def test_leave_out_never_teaches_the_value_that_it_judges() -> None:
    rows = table()
    for column in ("device", "workload"):
        labels = rows.texts(column)
        folds = list(parse_split(f"leave-out:{column}").folds(rows))
        assert len(folds) == min(10, len(set(labels)))
        for fold in folds:
            assert not set(labels[fold.train]) & set(labels[fold.test])


def test_above_teaches_up_to_the_value_and_judges_beyond() -> None:
    rows = table()
    (fold,) = parse_split("above:devices=4").folds(rows)
    assert rows.numbers("devices")[fold.train].max() == 4
    assert rows.numbers("devices")[fold.test].min() == 5


def test_above_leaves_blanks_on_neither_side() -> None:
    rows = table(6, devices=[1.0, 2.0, "", 8.0, "", 9.0])
    (fold,) = parse_split("above:devices=4").folds(rows)
    assert sorted([*fold.train, *fold.test]) == [0, 1, 3, 5]


def test_few_shot_teaches_k_rows_of_the_judged_value() -> None:
    rows = table()
    device = rows.texts("device")
    for fold in parse_split("few-shot:device=2").folds(rows):
        (value,) = set(device[fold.test])
        assert (device[fold.train] == value).sum() == 2
        assert len(fold.train) + len(fold.test) == 60


@pytest.mark.parametrize(
    "text",
    ["", "sideways", "random:x", "leave-out", "leave-out:", "leave-out:a=1", "above:devices",
     "above:devices=many", "above:=3", "few-shot:device=0", "few-shot:device=1.5",
     "interpolation:devices", "extrapolation:devices=8", "above:devices=nan"],
)  # fmt: skip
def test_a_split_that_cannot_be_read_is_told_with_all_forms(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_split(text)
    assert all(form in caught.value.next_step for form in FORMS)


@pytest.mark.parametrize("text", SPLITS)
def test_a_split_is_written_as_it_was_asked(text: str) -> None:
    assert str(parse_split(text)) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("leave-out:devise", "there is no column 'devise'"),
        ("above:devices=100", "no row has devices above 100"),
        ("above:devices=0", "no row has devices up to 0"),
        ("leave-out:framework", "all rows have the same framework"),
    ],
)
def test_a_split_that_the_table_cannot_bear_is_told(text: str, words: str) -> None:
    rows = table(framework=["torch"] * 60)
    with pytest.raises(RequestError, match=words):
        list(parse_split(text).folds(rows))
