"""Columns of a user's own: which of them are part of a configuration, and who reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from forerun.errors import RequestError
from forerun.tables import Runs, Table, configurations
from forerun.tables.files import read_table, write_table
from forerun.tables.jobs import join_runs
from forerun.tables.own_columns import read_as, runs_read_as, with_own_columns
from forerun.tables.suspects.judging import jobs_of
from forerun.workloads.rows import runs_from_table
from tests.predictors.laws.rows import CATALOG

KERNELS, FILTERS, ACTIVATIONS, DEVICES = (1, 3, 5), (8, 16, 32), ("relu", "tanh"), (1, 2, 4)
COST = {"relu": 1.0, "tanh": 1.4}


def rows(**more: object) -> Table:
    """Return a grid of runs by kernel, filters, activation and devices, and further columns."""
    cells = [
        {
            "workload": "cnn", "device": "mine", "devices": n, "global_batch": 16 * n, "kernel": k,
            "filters": f, "activation": a,
            "step_time_s": 1e-3 * k**1.5 * f**0.8 * COST[a] * n**0.2 + 0.002,
        }
        for k in KERNELS for f in FILTERS for a in ACTIVATIONS for n in DEVICES
    ]  # fmt: skip
    for name, values in more.items():
        for i, cell in enumerate(cells):
            cell[name] = values[i % len(values)] if isinstance(values, tuple) else values
    return Table.from_rows(cells)


def own_runs(table: Table | None = None, wish: str = "auto") -> Runs:
    runs = runs_from_table(rows() if table is None else table, CATALOG)
    return runs_read_as(runs, with_own_columns(runs.table, wish).own)


def test_what_varies_among_equal_runs_is_part_of_a_configuration() -> None:
    table = with_own_columns(rows())
    assert table.own.factors == ("kernel", "filters", "activation")
    assert configurations(table)[0] == len(table)
    assert len(np.unique(jobs_of(table))) == len(table)
    assert table.columns["kernel"].dtype == np.float64
    assert table.columns["activation"].dtype == object
    assert configurations(with_own_columns(rows(), "none"))[0] == len(DEVICES)


def test_what_is_none_is_named_with_its_reason() -> None:
    n = len(rows())
    table = with_own_columns(rows(
        load=tuple(np.random.default_rng(0).uniform(size=n)), trial_id=tuple(range(n)),
        temperature=tuple(np.random.default_rng(1).uniform(size=n)), stride=1,
        label=("a", "b", "c"), width=tuple(8 * f for f in FILTERS for _ in range(6)),
    ))  # fmt: skip
    assert table.own.factors == ("kernel", "filters", "activation")
    assert table.own.left_out == {
        "load": "it is a figure", "trial_id": "it names a run",
        "temperature": f"it has {n} values in {n} runs", "stride": "it is the same in all runs",
        "label": "it is the same in runs that are equal otherwise", "width": "it goes with filters",
    }  # fmt: skip


def test_a_wish_is_taken_as_it_is() -> None:
    assert with_own_columns(rows(load=(0.1, 0.2)), "load, kernel").own.factors == ("kernel", "load")
    with pytest.raises(RequestError, match="kernl is no column of these runs; did you mean kernel"):
        with_own_columns(rows(), "kernl")
    with pytest.raises(RequestError, match="devices has a meaning that is fixed"):
        with_own_columns(rows(), "devices")


def test_a_number_that_can_be_0_is_a_word() -> None:
    table = with_own_columns(rows(dropout=(0, 0.1, 0.2, 0.3, 0.5)))
    assert "dropout" in table.own.factors
    assert set(table.texts("dropout")) == {"0", "0.1", "0.2", "0.3", "0.5"}
    assert table.columns["dropout"].dtype == object


def test_folds_joined_tables_and_files_keep_them(tmp_path: Path) -> None:
    runs = own_runs()
    assert runs.take(np.arange(3)).table.own == runs.table.own
    assert runs.take(np.arange(3)).jobs.cells.own == runs.table.own
    assert join_runs([runs, runs]).table.own.factors == runs.table.own.factors
    write_table(runs.table, tmp_path / "runs.csv")
    again = with_own_columns(read_table(tmp_path / "runs.csv"))
    assert again.own.factors == runs.table.own.factors


def test_tables_without_them_are_as_they_were() -> None:
    table = rows()
    known = table.take(np.arange(6))
    plain = Table(
        {n: c for n, c in known.columns.items() if n not in ("kernel", "filters", "activation")}, 6
    )
    assert with_own_columns(plain).own.factors == ()


def test_a_word_of_the_runs_is_a_word_in_rows_that_are_asked() -> None:
    """Dropout 0 makes a word of it; a table of jobs without a 0 must not make a number of it."""
    runs = own_runs(rows(dropout=(0, 0.1, 0.2, 0.3, 0.5)))
    asked = Table.from_rows([{"dropout": 0.1, "kernel": 3}])
    read = read_as(asked, runs.table.own)
    assert read.columns["dropout"].dtype == object
    assert read.texts("dropout").tolist() == ["0.1"]
    assert read.columns["kernel"].dtype == np.float64


def test_a_setting_may_name_columns_that_other_runs_have() -> None:
    assert with_own_columns(rows(), "kernel,stride", strict=False).own.factors == ("kernel",)
