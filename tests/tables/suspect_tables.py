"""Tables of plausible runs to spoil: physics' own step times, with a bias and noise on them."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from forerun.catalog import load_catalog
from forerun.domain.forecast import Forecasts
from forerun.predictors.analytic import AnalyticPredictor
from forerun.tables import Runs, Table
from forerun.workloads.rows import runs_from_table

FloatArray = NDArray[np.float64]
GPT = {
    "workload": "a-gpt", "layers": 24, "hidden": 2048, "heads": 16, "vocab": 50304,
    "seq_len": 2048, "precision": "fp16", "framework": "Megatron-LM", "device": "a100-sxm-80gb",
    "nodes": 1, "dataset_size": 1_000_000,
}  # fmt: skip


def runs_of(*rows: dict[str, object]) -> tuple[Runs, Forecasts]:
    """Return rows as runs, with what physics expects of them."""
    runs = runs_from_table(Table.from_rows(rows), load_catalog())
    return runs, AnalyticPredictor().predict(runs.jobs)


@cache
def grid() -> tuple[Runs, Forecasts]:
    """Return 144 jobs of one GPT on one to eight devices, nothing measured."""
    rows = [
        {**GPT, "devices": d, "tp": t, "micro_batch": m, "global_batch": m * (d // t) * k}
        for d, t, m, k in product((1, 2, 4, 8), (1, 2, 4), (1, 2, 4, 8), (1, 4, 8, 16))
        if t <= d
    ]
    return runs_of(*rows)


def measured(column: str, seed: int, noise: float = 0.08) -> tuple[Runs, Forecasts, FloatArray]:
    """Return runs of the grid with one measured column, and their true step seconds.

    They are off physics by one bias within a factor of two, and each by a noise of its own.
    """
    runs, forecasts = grid()
    random = np.random.default_rng(seed)
    bias = random.uniform(-0.7, 0.7)
    seconds = forecasts.seconds[:, 1] * np.exp(bias + random.normal(0, noise, len(runs)))
    seconds = np.maximum(seconds, 1.05 * forecasts.floor_seconds)
    return with_column(runs, column, in_column(runs, column, seconds)), forecasts, seconds


def in_column(runs: Runs, column: str, seconds: FloatArray) -> FloatArray:
    """Return step seconds as the figures of a column."""
    batch = runs.table.numbers("global_batch")
    scale = {"step_time_s": 1.0, "samples_per_s": batch, "tokens_per_s": batch * 2048.0}[column]
    return np.asarray(seconds if column == "step_time_s" else scale / seconds)


def with_column(runs: Runs, column: str, values: FloatArray) -> Runs:
    """Return the runs with a column in place of what they had."""
    return Runs(runs.jobs, runs.table.with_columns(**{column: values}))


def devices_of(runs: Runs) -> FloatArray:
    """Return the devices of each row, (n,)."""
    return np.asarray(runs.jobs.per_cluster("devices"), dtype=np.float64)
