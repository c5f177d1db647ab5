"""Headers of one's own: read as the columns that they are stated to mean, and named where they likely mean one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from forerun.errors import RequestError
from forerun.tables import read_table
from forerun.tables.own_headers import headers_mean
from forerun.tables.table import _HINTS, ALIASES, COLUMNS, factor_of, unknown_columns

OWN = "Net,my GPUs,Step (ms),peak_mib\nresnet50,8,210,1024\nresnet50,16,x,\n"
MEANT = {"net": "model", "my gpus": "devices", "Step (ms)": "step_time_s", "peak_mib": "memory_gb"}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "own.csv"
    path.write_text(OWN)
    return path


def test_headers_are_read_as_columns_and_their_units_converted(table: Path) -> None:
    found = read_table(table, MEANT)
    assert list(found.columns) == ["workload", "devices", "step_time_s", "memory_gb"]
    np.testing.assert_allclose(found.numbers("step_time_s"), [0.21, np.nan])
    assert found.numbers("memory_gb")[0] == pytest.approx(1.073741824)
    assert found.problems is not None
    assert "step_time_s='x' is not a number" in found.problems[1]


def test_a_parquet_table_s_headers_too(table: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet needs the extra parquet")
    import pyarrow as pa

    path = tmp_path / "own.parquet"
    parquet.write_table(pa.table({"my GPUs": [8, 16], "Step (ms)": [210.0, 110.0]}), path)
    found = read_table(path, {"my GPUs": "devices", "step (ms)": "step_time_s"})
    np.testing.assert_allclose(found.numbers("step_time_s"), [0.21, 0.11])


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"net": "wrkload"}, "'wrkload' is no column of the runs table; did you mean workload"),
        ({"nett": "workload"}, "there is no column 'nett'; did you mean Net"),
        ({"net": "workload", "my gpus": "workload"}, "are both mapped to workload; map one"),
    ],
)
def test_a_map_that_cannot_be_is_refused(table: Path, columns: dict[str, str], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        read_table(table, columns)


def test_a_map_to_a_column_that_is_there_already_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "two.csv"
    path.write_text("devices,n\n8,8\n")
    with pytest.raises(RequestError, match="'devices' appears twice"):
        read_table(path, {"n": "devices"})


def test_in_a_block_each_table_is_read_so_as_far_as_it_has_the_headers(table: Path) -> None:
    plain = table.with_name("plain.csv")
    plain.write_text("workload,devices\nresnet50,8\n")
    with headers_mean(MEANT):
        assert read_table(table).numbers("devices").tolist() == [8, 16]
        assert read_table(plain).numbers("devices").tolist() == [8]
    assert "my GPUs" in read_table(table)


def test_usual_headers_of_others_are_suggested_and_never_read_by_themselves() -> None:
    assert not {*_HINTS} & {*ALIASES, *COLUMNS}
    assert unknown_columns([
        "batch_size", "Batch Size", "bs", "n_gpus", "time_per_step_ms", "Step Time (ms)", "images/sec", "kernel",
        "GPU Memory (MiB)",
    ]) == {
        "batch_size": "global_batch", "Batch Size": "global_batch", "bs": "global_batch", "n_gpus": "devices",
        "time_per_step_ms": "step_time_s", "Step Time (ms)": "step_time_s", "images/sec": "samples_per_s",
        "kernel": "", "GPU Memory (MiB)": "memory_gb",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("header", "column", "factor"),
    [("ms", "step_time_s", 1e-3), ("img/min", "samples_per_s", 1 / 60), ("h", "hidden", 1.0),
     ("train_hours", "time_to_train_s", 3600.0), ("peak_mb", "memory_gb", 1e-3)],
)  # fmt: skip
def test_a_unit_at_a_header_s_end_counts_for_times_rates_and_bytes(
    header: str, column: str, factor: float
) -> None:
    assert factor_of(header, column) == pytest.approx(factor)


def test_a_quantity_in_another_unit_names_the_map_that_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "ms.csv"
    path.write_text("workload,step_time_ms\nresnet50,210\n")
    with pytest.raises(RequestError, match="give --map 'step_time_ms=step_time_s'"):
        read_table(path)
    assert read_table(path, {"step_time_ms": "step_time_s"}).numbers("step_time_s")[0] == 0.21
