"""Measurements: a fact goes into the runs table and comes back, and nothing is made up."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from forerun.errors import RequestError
from forerun.measure.measurement import PARTS, Measurement
from forerun.tables import COLUMNS, Runs, Table
from forerun.testing.samples import tiny_jobs

FULL = Measurement(
    step_seconds=0.1, step_mean_seconds=0.11, step_std_seconds=0.01, interval=(0.098, 0.102),
    steps=40, warmup_steps=5, parts=dict.fromkeys(PARTS, 0.02), samples_per_second=320.0, epoch_seconds=3.0,
    peak_bytes=2e9, sync_bytes=4e6, comm_seconds=0.03, grad_sqr=0.5, grad_var=2.0, cpu_share=0.9,
    network_bytes_per_second=1e6, fingerprint={"torch": "2.13"}, started="2026-01-01T00:00:00Z",
    seconds=12.0,
)  # fmt: skip


def test_a_measurement_comes_back_from_json() -> None:
    assert Measurement.from_json(json.loads(json.dumps(FULL.to_json()))) == FULL


def test_its_row_is_a_run_of_the_runs_table() -> None:
    table = Table.from_rows([FULL.row(), Measurement("oom", "no memory").row()], "measured")
    jobs = tiny_jobs().take(np.arange(2))
    runs = Runs(jobs, table)
    assert runs.step_seconds().tolist()[0] == 0.1
    assert list(runs.status) == ["ok", "oom"]
    assert table.numbers("memory_gb")[0] == 2.0
    assert table.numbers("comm_gb")[0] == pytest.approx(0.004)
    assert table.numbers("sync_time_s")[0] == 0.02


def test_every_number_of_its_row_is_a_column_of_the_schema() -> None:
    numbers = {name for name, value in FULL.row().items() if not isinstance(value, str)}
    assert numbers <= set(COLUMNS)
    assert set(FULL.row()) - set(COLUMNS) == {"started", "fingerprint"}


def test_what_was_not_measured_is_not_in_its_row() -> None:
    failed = Measurement("failed", "worker 1 of 4 was killed by signal 9 in step 12")
    assert failed.row() == {"status": "failed", "note": failed.reason, "repeats": 1}
    assert "step_time_s" not in Measurement(step_seconds=math.nan).row()


def test_its_run_holds_no_figure_that_is_not_above_zero() -> None:
    job = tiny_jobs()[0]
    run = Measurement(step_seconds=0.5, parts={"sync": 0.0}, peak_bytes=math.nan).run(job, "local")
    assert (run.step_seconds, run.sync_seconds, run.peak_bytes) == (0.5, None, None)
    assert run.job is job
    assert run.origin == "local"


def test_a_status_or_part_that_does_not_exist_is_refused() -> None:
    with pytest.raises(RequestError, match="no such status"):
        Measurement("fine")
    with pytest.raises(RequestError, match="no such parts"):
        Measurement(parts={"lunch": 1.0})
