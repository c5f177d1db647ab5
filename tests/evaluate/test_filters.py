"""Filters: conditions choose rows, and the faster half is that of each group by measured time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import RequestError
from forerun.evaluate.splits import rows_where, slower_half
from forerun.tables import Runs, Table
from forerun.tables.conditions import parse_condition
from forerun.testing.samples import tiny_jobs

ROWS = Table.from_columns({
    "device": ["t4", "v100", "", "t4"], "devices": [1.0, 2.0, 4.0, ""], "own": [1.5, 2.5, 3.5, 4.5],
})  # fmt: skip


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("device=t4", [0, 3]), ("device = t4 , v100", [0, 1, 3]), ("device!=t4", [1]),
        ("devices<=2", [0, 1]), ("devices<2", [0]), ("devices>1", [1, 2]), ("devices>=4", [2]),
        ("devices=1,4.0", [0, 2]), ("devices!=1", [1, 2]), ("own>3e0", [2, 3]),
    ],
)  # fmt: skip
def test_a_condition_holds_where_it_says_and_never_at_a_blank(text: str, rows: list[int]) -> None:
    assert np.flatnonzero(parse_condition(text).holds(ROWS)).tolist() == rows


@pytest.mark.parametrize(
    "text", ["", "device", "=t4", "device=", "devices<a", "devices<1,2", "a==b"]
)
def test_what_is_no_condition_is_told_with_all_forms(text: str) -> None:
    with pytest.raises(RequestError, match="COLUMN<=NUMBER"):
        parse_condition(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [("devise=t4", "no column 'devise'"), ("devices=t4", "holds numbers"),
     ("devices=99", "no row of mine is left"), ("device<3", "in the number column 'device'")],
)  # fmt: skip
def test_a_condition_that_the_table_cannot_meet_is_told(text: str, words: str) -> None:
    runs = Runs(tiny_jobs().take(np.arange(4)), ROWS)
    with pytest.raises(RequestError, match=words):
        rows_where(runs, [parse_condition(text)], "mine")


def timed(seconds: list[float], **columns: list[object]) -> Runs:
    n = len(seconds)
    table = Table.from_columns({
        "step_time_s": seconds, "status": ["ok"] * n, "nodes": [1.0] * n, **columns,
    })  # fmt: skip
    return Runs(tiny_jobs().take(np.arange(n)), table)


def test_the_faster_half_of_each_group_stays() -> None:
    runs = timed([1, 2, 3, 4, 10, 20], nodes=[1, 1, 1, 1, 2, 2])
    assert slower_half(runs, ("nodes",)).tolist() == [False, False, True, True, False, True]


def test_an_odd_group_keeps_its_middle_and_a_group_of_one_is_kept() -> None:
    runs = timed([3, 1, 2, 9], nodes=[1, 1, 1, 2])
    assert slower_half(runs, ("nodes",)).tolist() == [True, False, False, False]


def test_rows_are_compared_by_seconds_a_sample() -> None:
    runs = timed([10, 4], global_batch=[100, 10])
    assert slower_half(runs, ("nodes",)).tolist() == [False, True]


def test_runs_that_ended_badly_are_in_neither_half() -> None:
    runs = timed([1, 2, 3], status=["oom", "ok", "ok"])
    assert slower_half(runs, ("nodes",)).tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("columns", "words"), [(("colour",), "no column 'colour'"), (("nodes",), "no row has a step")]
)
def test_a_half_that_cannot_be_formed_is_told(columns: tuple[str, ...], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        slower_half(timed([np.nan, np.nan]), columns)


@given(st.lists(st.floats(0.1, 9.0), min_size=1, max_size=36), st.integers(1, 4))
def test_at_least_half_of_every_group_stays_and_none_that_goes_is_faster(
    seconds: list[float], groups: int
) -> None:
    runs = timed(seconds, nodes=[float(i % groups) for i in range(len(seconds))])
    slower = slower_half(runs, ("nodes",))
    values, nodes = np.array(seconds), runs.table.numbers("nodes")
    for node in set(nodes):
        mine = nodes == node
        assert (~slower[mine]).sum() * 2 >= mine.sum()
        if slower[mine].any():
            assert values[mine & slower].min() > values[mine & ~slower].max()
