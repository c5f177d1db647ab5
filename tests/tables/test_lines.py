"""Lines: a row is found again in the file where it was written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from forerun.tables import Table, read_table, write_table
from forerun.tables.jobs import join_tables


def places(table: Table) -> list[str]:
    return [table.places().text(i) for i in range(len(table))]


def test_blank_lines_and_line_ends_in_cells_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text('workload,note\na,x\n\nb,"two\nlines"\n\n\nc,\n')
    assert places(read_table(path)) == ["runs.csv line 2", "runs.csv line 5", "runs.csv line 8"]


def test_rows_keep_their_line_when_some_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("workload\na\nb\nc\n")
    table = read_table(path).take(np.array([2, 0])).with_columns(nodes=np.ones(2))
    assert places(table) == ["runs.csv line 4", "runs.csv line 2"]
    assert places(table.take(np.array([False, True]))) == ["runs.csv line 2"]


def test_rows_of_several_files_are_told_apart(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("workload\nx\ny\n")
    parts = [read_table(tmp_path / name) for name in ("a.csv", "b.csv")]
    joined = join_tables([*parts, Table.from_rows([{"workload": "z"}])])
    assert places(joined)[1:] == ["a.csv line 3", "b.csv line 2", "b.csv line 3", "row 1"]
    assert places(joined.take(np.array([3]))) == ["b.csv line 3"]


def test_what_could_not_be_read_stays_with_its_row_when_tables_are_joined(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("workload,nodes\nx,1\ny,one\n")
    joined = join_tables([Table.from_rows([{"workload": "z"}]), read_table(path)])
    assert joined.problems is not None
    assert joined.problems[:2].tolist() == [None, None]
    assert joined.problems[2].startswith("nodes='one'")


def test_rows_of_no_file_are_counted_from_one() -> None:
    assert places(Table.from_rows([{"workload": "a"}, {"workload": "b"}])) == ["row 1", "row 2"]


def test_parquet_has_rows(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "runs.parquet"
    write_table(Table.from_rows([{"workload": "a"}, {"workload": "b"}]), path)
    assert places(read_table(path)) == ["runs.parquet row 1", "runs.parquet row 2"]
