"""Table: columns keep their kind, their blanks and their rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import RequestError
from forerun.tables import COLUMNS, Table
from forerun.tables.table import iter_rows, misspelt_columns

LABELS = st.sampled_from(["", "a", "b", "A", "a ", "é"])
VALUES = st.one_of(st.sampled_from([math.nan, 0.0, -0.0, 1.0, 8.0]), st.floats(-1e6, 1e6))


@given(st.lists(st.tuples(LABELS, LABELS, VALUES), min_size=1, max_size=30))
def test_groups_are_those_of_a_dictionary(rows: list[tuple[str, str, float]]) -> None:
    table = Table.from_columns(
        {
            "workload": [row[0] for row in rows],
            "mine": [row[1] for row in rows],
            "nodes": [row[2] for row in rows],
        }
    )
    seen: dict[Any, int] = {}
    for i, (workload, mine, nodes) in enumerate(rows):
        seen.setdefault((workload, mine, "blank" if nodes != nodes else nodes + 0.0), i)
    first, group = table.groups(("workload", "absent", "mine", "nodes"))
    assert sorted(first.tolist()) == sorted(seen.values())
    for i, (workload, mine, nodes) in enumerate(rows):
        key = (workload, mine, "blank" if nodes != nodes else nodes + 0.0)
        assert first[group[i]] == seen[key]


def test_no_columns_make_one_group() -> None:
    first, group = Table.from_columns({"nodes": [1, 2]}).groups(())
    assert (first.tolist(), group.tolist()) == ([0], [0, 0])


@pytest.mark.parametrize("cell", ["134", "007", "1e3", "nan", "true", "4-4-2", " x ", "1,5"])
def test_text_in_a_text_column_stays_as_it_was_written(cell: str) -> None:
    for name in ("placement", "device", "my_id"):
        assert Table.from_columns({name: [cell]}).texts(name)[0] == cell


@pytest.mark.parametrize(
    ("value", "text"),
    [(134, "134"), (134.0, "134"), (np.int64(7), "7"), (np.float64(0.5), "0.5"), (True, "true"),
     (np.bool_(False), "false"), (None, ""), (math.nan, ""), ("", "")],
)  # fmt: skip
def test_a_value_in_a_text_column_becomes_its_plain_text(value: object, text: str) -> None:
    assert Table.from_columns({"placement": [value]}).texts("placement")[0] == text


@pytest.mark.parametrize("blank", ["", " ", None, "nan", "NaN", math.nan, np.nan])
def test_a_blank_number_is_nan(blank: object) -> None:
    assert np.isnan(Table.from_columns({"nodes": [blank, 1]}).numbers("nodes")[0])


@pytest.mark.parametrize(
    ("cell", "number"),
    [("8", 8), ("8.0", 8), (" 8 ", 8), ("1e3", 1000), ("1,024", 1024), ("1,234,567.5", 1234567.5),
     ("-1,024", -1024), (8, 8), (np.int32(8), 8), (True, 1), (10**400, np.inf)],
)  # fmt: skip
def test_a_number_is_read_in_any_usual_dress(cell: object, number: float) -> None:
    assert Table.from_columns({"nodes": [cell]}).numbers("nodes")[0] == number


@pytest.mark.parametrize("cell", ["four", "1,5", "12,34", "1 2", "0x10", "8 GB", "--", [8]])
def test_a_column_without_a_number_is_refused_with_its_first_cell(cell: object) -> None:
    with pytest.raises(RequestError) as caught:
        Table.from_columns({"nodes": ["", cell, ""]}, "jobs.csv")
    assert str(caught.value).startswith(f"reading jobs.csv: row 2 has {cell!r} in the number")
    assert "'nodes'" in caught.value.found


@pytest.mark.parametrize("cell", ["four", "1,5", "8 GB", [8]])
def test_one_cell_that_is_no_number_is_its_own_row_s_problem(cell: object) -> None:
    table = Table.from_columns({"nodes": ["1", "", cell], "tp": ["x", "2", "y"]})
    assert table.problems is not None
    assert table.problems[1] is None
    assert table.problems[2] == f"nodes={str(cell)!r} is not a number; correct it"
    np.testing.assert_array_equal(table.numbers("nodes"), [1, np.nan, np.nan])
    part = table.take(np.array([2, 1])).with_columns(mine=np.zeros(2))
    assert part.problems is not None
    assert part.problems.tolist() == [table.problems[2], None]


def test_a_header_is_known_in_any_case() -> None:
    table = Table.from_columns({"Workload": ["a"], "NODES": ["1"], "TP": ["2"]})
    assert list(table.columns) == ["workload", "nodes", "tp"]


def test_a_column_that_looks_like_a_known_one_is_found_and_no_other() -> None:
    names = ["precison", "global batch", "workload", "mark", "batch", "my_figure", "GPU-type"]
    assert misspelt_columns(names) == {
        "precison": "precision", "global batch": "global_batch", "GPU-type": "device",
    }  # fmt: skip


@given(st.lists(st.one_of(st.floats(allow_nan=False), st.integers(-(2**53), 2**53)), min_size=1))
def test_numbers_written_in_full_are_read_exactly(values: list[float]) -> None:
    cells = np.array([repr(value) for value in values], dtype=object)
    assert Table({"nodes": cells}, len(cells)).numbers("nodes").tolist() == [
        float(v) for v in values
    ]


def test_arrays_are_copied_so_that_a_table_does_not_change_under_its_owner() -> None:
    mine = np.array([1.0, 2.0])
    table = Table.from_columns({"nodes": mine, "unknown": mine})
    mine[0] = 9
    assert table.numbers("nodes").tolist() == table.numbers("unknown").tolist() == [1.0, 2.0]


def test_absent_columns_are_blank() -> None:
    table = Table.from_columns({"nodes": [1, 2]})
    assert np.isnan(table.numbers("devices")).all()
    assert table.texts("device").tolist() == ["", ""]
    assert "devices" not in table


def test_numbers_are_text_where_text_is_asked_for_and_the_other_way_round() -> None:
    table = Table.from_columns({"nodes": [4, None, 0.5], "my_size": ["4", "", "1,024"]})
    assert table.texts("nodes").tolist() == ["4", "", "0.5"]
    np.testing.assert_array_equal(table.numbers("my_size"), [4, np.nan, 1024])
    with pytest.raises(RequestError, match="'x' in the number column 'my_size'"):
        Table.from_columns({"my_size": ["x"]}).numbers("my_size")


def test_a_row_is_shown_without_its_blanks() -> None:
    table = Table.from_columns({"workload": ["a", ""], "nodes": [None, 2], "mine": ["", "7"]})
    assert list(iter_rows(table)) == [{"workload": "a"}, {"nodes": 2.0, "mine": "7"}]
    assert type(table.row(1)["nodes"]) is float


def test_rows_of_different_names_share_one_table() -> None:
    table = Table.from_rows([{"workload": "a"}, {"nodes": 2, "mine": None}])
    assert table.texts("workload").tolist() == ["a", ""]
    assert table.texts("mine").tolist() == ["", ""]
    assert len(table) == 2


@pytest.mark.parametrize("rows", [[], [{}]])
def test_rows_without_a_name_are_refused(rows: list[dict[str, Any]]) -> None:
    with pytest.raises(RequestError, match="no columns"):
        Table.from_rows(rows)


def test_columns_of_unequal_length_are_refused() -> None:
    with pytest.raises(RequestError, match=r"columns of \[1, 2\] rows"):
        Table.from_columns({"nodes": [1, 2], "devices": [1]})


@given(st.lists(VALUES, min_size=1, max_size=9), st.data())
def test_taking_by_mask_or_position_takes_those_rows(
    values: list[float], data: st.DataObject
) -> None:
    keep = data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values)))
    table = Table.from_columns({"nodes": values, "mine": [str(v) for v in values]})
    wanted = [str(v) for v, kept in zip(values, keep, strict=True) if kept]
    for index in (np.array(keep), np.flatnonzero(keep)):
        part = table.take(index)
        assert part.texts("mine").tolist() == wanted
        assert len(part) == len(part.numbers("nodes")) == len(wanted)


def test_added_columns_leave_the_old_table_alone() -> None:
    old = Table.from_columns({"nodes": [1]})
    new = old.with_columns(devices=np.array([8.0]))
    assert new.numbers("devices")[0] == 8
    assert "devices" not in old


def test_every_column_of_the_schema_is_a_number_or_a_text_and_says_its_group() -> None:
    assert {column.kind for column in COLUMNS.values()} == {"number", "text"}
    groups = {column.group for column in COLUMNS.values()}
    assert groups == {"origin", "workload", "cluster", "plan", "length", "measured"}
