"""Where a row comes from changes no forecast: source, ref and note are for people."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from forerun.catalog import load_catalog
from forerun.predictors.analytic import AnalyticPredictor
from forerun.registry import load
from forerun.tables import Jobs, Runs, Table, read_table
from forerun.workloads.rows import runs_from_table
from tests.needs import published

CATALOG = load_catalog()
PLACES = ("gavel", "profet", "lambda", "dlperf", "mlperf", "timm", "pytorch-gpu-benchmark", "own")
ROWS = [
    {"workload": name, "device": device, "devices": n, "global_batch": 16 * n, "framework": framework,
     "status": "ok", "step_time_s": 0.1 + 0.02 * n}
    for name in ("resnet18", "vgg11", "gnmt", "transformer-multi30k", "bert-base", "mlperf-gpt3")
    for device in ("v100-sxm2-16gb", "a100-sxm-80gb")
    for n in (1, 8)
    for framework in ("", "pytorch", "TensorFlow 2.5")
]  # fmt: skip


def variants(table: Table) -> dict[str, Table]:
    """Return a table with its origin's columns blank, invented and dealt anew."""
    n, rng = len(table), np.random.default_rng(0)
    invented = np.array([PLACES[i] for i in rng.integers(0, len(PLACES), n)], dtype=object)
    dealt = rng.permutation(n)
    blank = np.full(n, "", dtype=object)
    return {
        "blank": table.with_columns(source=blank, ref=blank, note=blank),
        "invented": table.with_columns(source=invented, ref=invented[::-1], note=invented),
        "dealt anew": table.with_columns(
            **{name: table.texts(name)[dealt] for name in ("source", "ref", "note")}
        ),
    }


def assert_same_jobs(one: Jobs, other: Jobs) -> None:
    """Assert that two columns of jobs are alike but for where they come from."""
    assert [one.problem(i) for i in range(len(one))] == [other.problem(i) for i in range(len(one))]
    assert one.workloads == other.workloads
    assert one.clusters == other.clusters
    assert np.array_equal(one.workload_index, other.workload_index)
    assert np.array_equal(one.cluster_index, other.cluster_index)
    for name, values in vars(one.plans).items():
        np.testing.assert_array_equal(values, getattr(other.plans, name), err_msg=name)


def forecast(predictor: AnalyticPredictor, runs: Runs) -> Any:
    """Return seconds and bytes of n runs' jobs, (n, 6)."""
    found = predictor.predict(runs.jobs)
    return np.hstack([found.seconds, found.peak_bytes])


def assert_same_forecasts(table: Table) -> None:
    """Assert that neither jobs nor forecasts follow the columns of a table's origin."""
    runs, physics = runs_from_table(table, CATALOG), AnalyticPredictor()
    expected = forecast(physics, runs)
    for name, other in variants(table).items():
        found = runs_from_table(other, CATALOG)
        assert_same_jobs(runs.jobs, found.jobs)
        np.testing.assert_array_equal(forecast(physics, found), expected, err_msg=name)


def test_source_ref_and_note_change_no_forecast() -> None:
    assert_same_forecasts(Table.from_rows(ROWS))


@pytest.mark.parametrize("predictor", ["gaussian", "hierarchical"])
def test_source_ref_and_note_change_no_fitted_forecast(predictor: str) -> None:
    table, fitted = Table.from_rows(ROWS), load("predictors", predictor)()
    runs = runs_from_table(table, CATALOG)
    expected = fitted.fit(runs).predict(runs.jobs).seconds
    assert np.isfinite(expected).any()
    for name, other in variants(table).items():
        found = runs_from_table(other, CATALOG)
        got = fitted.fit(found).predict(found.jobs).seconds
        np.testing.assert_array_equal(got, expected, err_msg=name)


@pytest.mark.data
def test_source_ref_and_note_change_no_forecast_of_any_table() -> None:
    """Of every published table some rows of each workload."""
    for path in sorted(published().glob("*.csv")):
        table = read_table(path)
        kept = np.sort(np.random.default_rng(1).permutation(len(table))[:16])
        assert_same_forecasts(table.take(kept))
