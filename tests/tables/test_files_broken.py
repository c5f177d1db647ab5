"""Broken files: each kind of damage is named, with what to do, and never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import RequestError
from forerun.tables import read_table


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is empty"),
        (b"\n\n", "it is empty"),
        (b" , \n", "it is empty"),
        (b"\xef\xbb\xbf", "it is empty"),
        (b"workload,nodes\n", "a header and no rows"),
        (b"workload,nodes\n\n\n", "a header and no rows"),
        (b"workload,nodes", "a header and no rows"),
        (b"workload,,nodes\na,b,1\n", "a column has no name"),
        (b"workload,workload\na,b\n", "'workload' appears twice"),
        (b"workload,model\na,b\n", "'workload' appears twice"),
        (b"workload,nodes\na,1,2\n", "line 2 has 3 cells, the header 2"),
        (b"workload,nodes\na,1\nb,1,\n", "line 3 has 3 cells"),
        (b"workload,nodes\na,one\n", "row 1 has 'one' in the number column 'nodes'"),
        (b"workload,step_time_ms\na,1\n", "a unit that the runs table does not use"),
        (b"workload,nodes\na\x00b,1\n", "NUL bytes"),
        (b"\x00\x01\x02", "NUL bytes"),
        (b"workload,nodes\nr\xe9seau,1\n", "not text in UTF-8"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "not text in UTF-8"),
        (b"\x1f\x8b\x08\x00\x00", "not text in UTF-8"),
        ("workload,nodes\na,1\n".encode("utf-16"), "not text in UTF-8"),
        (b'workload,nodes\n"a,1\nb,2\n', "unexpected end of data"),
        (b'workload,nodes\n"a"b,1\n', "expected after"),
        (b"workload,nodes\n" + b"x" * 200_000 + b",1\n", "field larger than"),
    ],
    ids=range(23),
)
def test_a_broken_csv_is_named_by_its_damage(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(content)
    with pytest.raises(RequestError, match=words) as caught:
        read_table(path)
    assert str(path) in caught.value.asked
    assert caught.value.next_step


@given(st.binary(max_size=60))
def test_any_bytes_are_a_table_or_a_request_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    folder = tmp_path_factory.mktemp("any")
    for name in ("any.csv", "head.csv"):
        path = folder / name
        path.write_bytes((b"workload,nodes\n" if name == "head.csv" else b"") + content)
        try:
            table = read_table(path)
        except RequestError:
            continue
        assert len(table) >= 1


def test_a_missing_file_names_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text("nodes\n1\n")
    with pytest.raises(RequestError, match=r"no such file; check the path \(there: runs.csv\)"):
        read_table(tmp_path / "run.csv")


@pytest.mark.parametrize("name", ["x" * 5000, "no/such/folder/runs.csv", "runs\0.csv"])
def test_an_impossible_path_is_a_missing_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(RequestError, match="no such file"):
        read_table(tmp_path / name)


@pytest.mark.parametrize("name", ["folder", "folder.csv", "folder.parquet"])
def test_a_folder_is_not_a_table(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(RequestError, match="it is a folder; name one file in it"):
        read_table(tmp_path / name)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"workload,nodes\na,1\n", b"\x00" * 100])
def test_what_is_not_parquet_is_refused(tmp_path: Path, content: bytes) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "runs.parquet"
    path.write_bytes(content)
    with pytest.raises(RequestError, match="not Parquet"):
        read_table(path)


def test_a_truncated_parquet_is_refused(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    path = tmp_path / "runs.parquet"
    pq.write_table(pa.table({"nodes": [1.0, 2.0]}), path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(RequestError, match="not Parquet"):
        read_table(path)


def test_parquet_without_rows_or_with_a_doubled_column_is_refused(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    path = tmp_path / "runs.parquet"
    pq.write_table(pa.table({"nodes": pa.array([], pa.float64())}), path)
    with pytest.raises(RequestError, match="it has no rows"):
        read_table(path)
    pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["nodes", "nodes"]), path)
    with pytest.raises(RequestError, match="'nodes' appears twice"):
        read_table(path)
    pq.write_table(pa.table({"nodes": [1], "nnodes": [2]}), path)
    with pytest.raises(RequestError, match="'nodes' appears twice"):
        read_table(path)
