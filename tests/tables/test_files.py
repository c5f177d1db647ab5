"""Files: what is written as CSV or Parquet is what is read."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import RequestError
from forerun.tables import Table, read_table, write_table
from forerun.tables.files import from_frame, to_frame

FORMATS = ["csv", "parquet"]
# Figures that a run can have, of either sign; others are no figures of it (see below).
SIZES = st.floats(1e-9, 1e12)
NUMBERS = st.one_of(st.sampled_from([math.nan, 0.0]), SIZES, SIZES.map(lambda size: -size))
# A line end of any kind, quotes, commas and blanks at the edges are text like any other.
TEXTS = st.one_of(
    st.sampled_from(["", "007", "134", "1e3", "nan", 'a "b", c', "x\ny", "x\r\ny", "\r", " x "]),
    st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=8),
)
ROWS = st.lists(st.tuples(NUMBERS, NUMBERS, TEXTS, TEXTS), min_size=1, max_size=8)


def journey(table: Table, path: Path) -> Table:
    """Return the table after it was written and read."""
    write_table(table, path)
    return read_table(path)


@pytest.mark.parametrize("ending", FORMATS)
@given(rows=ROWS)
def test_a_table_comes_back_value_for_value(
    tmp_path_factory: pytest.TempPathFactory, ending: str, rows: list[tuple[Any, ...]]
) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    names = ("step_time_s", "global_batch", "device", "my note")
    raw = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    back = journey(Table.from_columns(raw), tmp_path_factory.mktemp("t") / f"t.{ending}")
    assert tuple(back.columns) == names
    assert len(back) == len(rows)
    for name in names[:2]:
        np.testing.assert_array_equal(back.numbers(name), np.array(raw[name]))
    for name in names[2:]:
        assert back.texts(name).tolist() == raw[name]


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize(
    ("column", "figure", "bounds"),
    [
        ("step_time_s", 1e300, "1e-09 to 1e+12 s"), ("time_to_train_s", 2e-9 / 4, "1e-09 to"),
        ("samples_per_s", 1e-300, "1e-12 to 1e+18"), ("global_batch", -1e19, "1e+18 at most"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("written", [str, float])
def test_a_figure_that_no_run_can_have_is_its_row_s_problem_and_stays_in_the_file(
    tmp_path: Path, ending: str, column: str, figure: float, bounds: str, written: Any
) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    table = Table.from_columns({column: [written(3.0), written(figure)], "nodes": [1.0, 2.0]})
    for read in (table, journey(table, tmp_path / f"t.{ending}")):
        np.testing.assert_array_equal(read.numbers(column), [3.0, math.nan])
        assert read.problems is not None
        assert read.problems[0] is None
        assert f"{column}={figure:g} is no figure of a run" in read.problems[1]
        assert bounds in read.problems[1]
        assert float(read.unread[column][1]) == figure


def test_a_column_of_figures_that_no_run_can_have_is_each_row_s_problem() -> None:
    found = Table.from_columns({"step_time_s": np.array([1e300, 1e-300]), "nodes": [1.0, 2.0]})
    assert np.isnan(found.numbers("step_time_s")).all()
    assert found.problems is not None
    assert all("correct it" in reason for reason in found.problems)


@pytest.mark.parametrize("ending", FORMATS)
def test_an_all_blank_row_and_an_all_blank_column_survive(tmp_path: Path, ending: str) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    table = Table.from_columns({"workload": ["a", "", "b"], "nodes": [None] * 3, "note": [""] * 3})
    back = journey(table, tmp_path / f"t.{ending}")
    assert back.texts("workload").tolist() == ["a", "", "b"]
    assert np.isnan(back.numbers("nodes")).all()
    assert back.texts("note").tolist() == ["", "", ""]


@pytest.mark.parametrize("ending", FORMATS)
def test_a_blank_in_a_table_of_one_column_survives(tmp_path: Path, ending: str) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    back = journey(Table.from_columns({"note": ["a", "", "b"]}), tmp_path / f"t.{ending}")
    assert back.texts("note").tolist() == ["a", "", "b"]


def test_a_number_is_written_as_a_person_wrote_it(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    cells = ["0.1", "8", "1e-07", "123456789.25", "", "100000000000000000000"]
    write_table(Table.from_columns({"step_time_s": cells, "placement": ["134"] * 6}), path)
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[0] for line in lines[1:6]] == cells[:5]
    assert float(lines[6].split(",")[0]) == 1e20


def test_new_number_columns_are_written_with_ten_digits_and_flags_in_words(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    table = Table.from_columns({"nodes": [1, 2]}).with_columns(
        predicted_s=np.array([1 / 3, np.nan]), fits=np.array([True, False])
    )
    write_table(table, path)
    assert path.read_text() == "nodes,predicted_s,fits\n1,0.3333333333,true\n2,,false\n"


@pytest.mark.parametrize(
    "text",
    [
        "workload,nodes\na,1\nb,2\n",
        "workload,nodes\r\na,1\r\nb,2\r\n",
        "workload,nodes\ra,1\rb,2",
        "\ufeffworkload,nodes\na,1\nb,2",
        "workload , nnodes\na,1\n\nb,2\n,\n\n".replace(",\n\n", "\n\n"),
        '"workload","nodes"\n"a","1"\n"b",2.0\n',
    ],
)
def test_the_usual_dialects_of_csv_are_one(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode())
    table = read_table(str(path))
    assert table.texts("workload").tolist()[:2] == ["a", "b"]
    assert table.numbers("nodes").tolist()[:2] == [1, 2]


def test_a_short_line_has_blanks_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("workload,nodes,tp\na,1\nb,2,4\n")
    np.testing.assert_array_equal(read_table(path).numbers("tp"), [np.nan, 4])


def test_a_bad_cell_far_down_is_named_by_its_own_row(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("nodes\n" + "1\n" * 40_000 + "many\n" + "1\n" * 9)
    problems = read_table(path).problems
    assert problems is not None
    assert [(i, p) for i, p in enumerate(problems) if p] == [
        (40_000, "nodes='many' is not a number; correct it")
    ]


@pytest.mark.parametrize(("mark", "word"), [(";", "semicolons"), ("\t", "tabs"), ("|", "bars")])
def test_columns_that_are_apart_by_no_comma_get_a_hint(
    tmp_path: Path, mark: str, word: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"workload{mark}device\nresnet50{mark}t4\n")
    with pytest.raises(RequestError, match=f"separated by {word}"):
        read_table(path)


def test_thousands_in_one_part_of_a_long_column_do_not_disturb_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("nodes\n" + "1\n" * 20_000 + '"1,024"\n\n' + "2\n" * 20_000)
    numbers = read_table(path).numbers("nodes")
    assert (numbers.sum(), len(numbers)) == (61_024, 40_001)


def test_parquet_integers_flags_and_nulls_are_read_as_csv_would_be(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    data = pa.table(
        {
            "nodes": pa.array([1, None, 3]),
            "placement": pa.array([134, None, 44]),
            "sequence_parallel": pa.array([True, None, False]),
            "device": pa.array(["h100", None, "a100"]).dictionary_encode(),
        }
    )
    pq.write_table(data, tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet")
    np.testing.assert_array_equal(table.numbers("nodes"), [1, np.nan, 3])
    assert table.texts("placement").tolist() == ["134", "", "44"]
    assert table.texts("sequence_parallel").tolist() == ["true", "", "false"]
    assert table.texts("device").tolist() == ["h100", "", "a100"]


def test_a_data_frame_goes_out_and_comes_in(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    table = Table.from_columns({"nodes": [1, None], "placement": ["134", ""], "mine": ["x", "y"]})
    back = from_frame(to_frame(table))
    np.testing.assert_array_equal(back.numbers("nodes"), [1, np.nan])
    assert back.texts("placement").tolist() == ["134", ""]
    assert back.texts("mine").tolist() == ["x", "y"]


def test_the_missing_marks_of_data_frames_are_blanks() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(
        {
            "nodes": pd.array([1, None], dtype="Int64"),
            "tp": pd.array([2, pd.NA], dtype="object"),
            "device": pd.array(["h100", None], dtype="string"),
            "note": pd.array([pd.NaT, "x"], dtype="object"),
        }
    )
    table = from_frame(frame)
    np.testing.assert_array_equal(table.numbers("nodes"), [1, np.nan])
    np.testing.assert_array_equal(table.numbers("tp"), [2, np.nan])
    assert table.texts("device").tolist() == ["h100", ""]
    assert table.texts("note").tolist() == ["", "x"]


def test_a_data_frame_with_a_doubled_column_is_refused() -> None:
    pd = pytest.importorskip("pandas")
    with pytest.raises(RequestError, match="'nodes' appears twice"):
        from_frame(pd.DataFrame([[1, 2]], columns=["nodes", "nodes"]))


def test_many_rows_are_written_and_read_in_seconds(tmp_path: Path) -> None:
    n, rng = 200_000, np.random.default_rng(0)
    words = np.array([f"label-{i}" for i in range(40)], dtype=object)
    table = Table.from_columns(
        {
            "workload": words[rng.integers(0, 40, n)],
            "device": words[rng.integers(0, 40, n)],
            "nodes": rng.integers(1, 9, n),
            "step_time_s": rng.random(n),
        }
    )
    started = time.process_time()
    back = journey(table, tmp_path / "t.csv")
    taken = time.process_time() - started
    os.remove(tmp_path / "t.csv")  # noqa: PTH107
    np.testing.assert_array_equal(back.numbers("step_time_s"), table.numbers("step_time_s"))
    assert (back.texts("device") == table.texts("device")).all()
    assert taken < 5


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_a_cell_that_could_not_be_read_is_written_as_it_was(tmp_path: Path, ending: str) -> None:
    if ending == ".parquet":
        pytest.importorskip("pyarrow")
    path, copy = tmp_path / "a.csv", tmp_path / f"b{ending}"
    path.write_text("workload,global_batch\nx,64\ny,abc\nz,\n")
    write_table(read_table(path), copy)
    again = read_table(copy)
    assert again.problems is not None
    assert again.unread["global_batch"].tolist() == ["", "abc", ""]
    assert again.numbers("global_batch")[0] == 64
    assert read_table(path).take(np.array([1])).unread["global_batch"].tolist() == ["abc"]
    if ending == ".csv":
        assert copy.read_text() == path.read_text()
