"""Measured tables: sound rows are left alone, spoilt ones found; the figures are printed (-s)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from benchmarks import converters
from forerun.catalog import load_catalog
from forerun.domain.forecast import Forecasts
from forerun.predictors.analytic import AnalyticPredictor
from forerun.tables import Runs, read_table
from forerun.tables.suspects import FlagKind, suspects
from forerun.workloads.rows import runs_from_table
from tests.needs import published
from tests.tables.suspect_tables import FloatArray, devices_of, in_column, with_column

pytestmark = pytest.mark.data
TABLES = ("dlperf", "dlperf_gpt", "gavel", "korthikanti2022", "lambda", "llm_foundry", "mlperf",
          "mtnlg", "nvidia_nemo", "pollux", "profet", "pytorch_gpu_benchmark", "sia",
          "tf_benchmarks", "timm", "torchtitan", "ultrascale", "vtrain")  # fmt: skip
# timm's 640 networks take half a minute to build.
NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (name == "timm")) for name in TABLES]
# Tables whose own description speaks of repeats that contradict one another, or of accumulations
# that do not multiply out.
BLEMISHED = {"dlperf", "torchtitan", "nvidia_nemo", "ultrascale"}
SPOILT = ("vtrain", "llm_foundry", "pollux")
_BATCH = "global_batch"
# What is done, to which column, and by how much a figure must change to count as spoilt.
SPOILS: dict[str, tuple[str, Callable[[FloatArray, Runs], FloatArray]]] = {
    "x 1000": ("step_time_s", lambda v, runs: v * 1e3),
    "x 1e6": ("step_time_s", lambda v, runs: v * 1e6),
    "x 60": ("step_time_s", lambda v, runs: v * 60),
    "/ 60": ("step_time_s", lambda v, runs: v / 60),
    "/ 3600": ("step_time_s", lambda v, runs: v / 3600),
    "step / devices": ("step_time_s", lambda v, runs: v / devices_of(runs)),
    "step <- rate": ("step_time_s", lambda v, runs: runs.table.numbers(_BATCH) / v),
    "rate / devices": ("samples_per_s", lambda v, runs: v / devices_of(runs)),
    "rate / batch": ("samples_per_s", lambda v, runs: v / runs.table.numbers(_BATCH)),
    "rate / 1000": ("samples_per_s", lambda v, runs: v / 1e3),
    "rate x 60": ("samples_per_s", lambda v, runs: v * 60),
    "rate <- step": ("samples_per_s", lambda v, runs: runs.table.numbers(_BATCH) / v),
}
LEAST_FACTOR = 3.5


@cache
def table(name: str) -> tuple[Runs, Forecasts]:
    published(name)
    path = converters.measured_folder() / f"{name}.csv"
    runs = runs_from_table(read_table(path), load_catalog())
    return runs, AnalyticPredictor().predict(runs.jobs, detail=False)


@cache
def compared(name: str, column: str) -> tuple[Runs, Forecasts]:
    """Return the rows that have both a step and a forecast, the step in one column alone."""
    runs, forecasts = table(name)
    rows = np.flatnonzero(np.isfinite(runs.step_seconds()) & forecasts.answered)
    runs, forecasts = runs.take(rows), forecasts.take(rows)
    seconds = runs.step_seconds()
    for other in ("step_time_s", "samples_per_s", "tokens_per_s"):
        runs = with_column(runs, other, np.full(len(rows), np.nan))
    return with_column(runs, column, in_column(runs, column, seconds)), forecasts


@pytest.mark.parametrize("name", NAMES)
def test_few_rows_of_a_sound_table_look_wrong(name: str) -> None:
    runs, forecasts = table(name)
    flags = suspects(runs, forecasts)
    compared_rows = int((np.isfinite(runs.step_seconds()) & forecasts.answered).sum())
    found = flags.rows_with(flags.suspect)
    counts = {k: n for k, n in flags.counts().items() if flags.of(FlagKind(k))[flags.suspect].any()}
    print(f"{name}: {found.sum()} of {compared_rows} compared rows {counts}")
    assert flags.rows_with(flags.of(FlagKind.UNIT)).sum() <= 0.002 * compared_rows
    if name not in BLEMISHED:
        assert found.sum() <= 0.02 * compared_rows


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("column", ["step_time_s", "samples_per_s"])
def test_a_sound_table_with_one_column_alone_has_few_false_alarms(name: str, column: str) -> None:
    runs, forecasts = compared(name, column)
    flags = suspects(runs, forecasts)
    assert flags.rows_with(flags.of(FlagKind.UNIT)).sum() <= 0.01 * len(runs)


def nodes_of(runs: Runs) -> FloatArray:
    return np.array([*(float(c.nodes) for c in runs.jobs.clusters), 1.0])[runs.jobs.cluster_index]


# Forecasts that are wrong in ways that many rows share: by how much each row's is multiplied.
BENDS: dict[str, Callable[[FloatArray, FloatArray], FloatArray]] = {
    "several nodes half": lambda nodes, devices: np.where(nodes > 1, 0.5, 1.0),
    "several nodes double": lambda nodes, devices: np.where(nodes > 1, 2.0, 1.0),
    "inside a node 0.6": lambda nodes, devices: np.where((nodes == 1) & (devices > 1), 0.6, 1.0),
    "growing with devices": lambda nodes, devices: devices**0.3,
    "shrinking with devices": lambda nodes, devices: devices**-0.3,
    "a third": lambda nodes, devices: np.full(len(nodes), 1 / 3),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", BENDS)
def test_a_forecast_that_is_off_alike_raises_few_false_alarms(name: str, how: str) -> None:
    runs, forecasts = compared(name, "samples_per_s")
    devices = np.nan_to_num(devices_of(runs), nan=1.0)
    bend = BENDS[how](nodes_of(runs), devices)
    bent = replace(forecasts, seconds=forecasts.seconds * bend[:, None])
    flags = suspects(runs, bent)
    assert flags.rows_with(flags.of(FlagKind.UNIT)).sum() <= 0.01 * len(runs)


def test_a_rate_in_millions_of_samples_is_found_where_it_was_published() -> None:
    runs, forecasts = table("nvidia_dle")
    flags = suspects(runs, forecasts)
    unit = flags.of(FlagKind.UNIT)
    assert set(runs.table.texts("workload")[flags.row[unit]]) == {"recommendation-ncf"}
    assert {a.partition(":")[0] for a in flags.advice[unit]} == {"it looks like million samples/s"}
    assert unit.sum() == 6


@pytest.mark.parametrize("name", SPOILT)
@pytest.mark.parametrize("what", SPOILS)
def test_spoilt_rows_are_found(name: str, what: str) -> None:
    """At least 95 % of the rows that a mistake changes by a factor of 3.5, at any share of them."""
    column, spoil = SPOILS[what]
    runs, forecasts = compared(name, column)
    values = runs.table.numbers(column)
    wrong = spoil(values, runs)
    can = np.flatnonzero(np.abs(np.log(wrong / values)) > np.log(LEAST_FACTOR))
    recalls, alarms = [], []
    for share, seed in ((0.05, 1), (0.05, 2), (0.2, 3), (1.0, 4)):
        count = max(1, round(share * len(can)))
        rows = np.random.default_rng(seed).choice(can, count, replace=False)
        changed = values.copy()
        changed[rows] = wrong[rows]
        if share == 1.0:  # the whole column, with the rows that the mistake changes little
            changed, rows = wrong, can
        flags = suspects(with_column(runs, column, changed), forecasts)
        found = flags.rows_with(flags.of(FlagKind.UNIT, FlagKind.FLOOR))
        recalls.append(float(found[rows].mean()))
        sound = np.delete(found, rows)
        alarms.append(float(sound.mean()) if share < 1.0 and len(sound) else 0.0)
    print(f"{name} {what}: found {min(recalls):.3f} to {max(recalls):.3f}, false {max(alarms):.4f}")
    assert np.mean(recalls) >= 0.95
    assert min(recalls) >= 0.93
    assert max(alarms) <= 0.01


@pytest.mark.parametrize("name", ["ultrascale", "torchtitan"])
@pytest.mark.parametrize("factor", [953.67, 1e6, 1e9])
def test_memory_in_another_unit_is_found(name: str, factor: float) -> None:
    runs, forecasts = table(name)
    values = runs.table.numbers("memory_gb")
    rows = np.flatnonzero(np.isfinite(values) & forecasts.answered)
    for share in (0.1, 1.0):
        changed = values.copy()
        some = np.random.default_rng(0).choice(rows, round(share * len(rows)), replace=False)
        changed[some] *= factor
        flags = suspects(with_column(runs, "memory_gb", changed), forecasts)
        missed = ~flags.rows_with(flags.of(FlagKind.UNIT) & flags.out_memory)[some]
        assert missed.mean() <= 0.05
    flags = suspects(runs, forecasts)
    assert not flags.rows_with(flags.out_memory)[rows].any()
