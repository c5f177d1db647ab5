"""PredictDDL (CLUSTER 2023): its errors and waits beside those of Ernest with runs of its own."""

from __future__ import annotations

import time

import numpy as np
import pytest

from benchmarks.architectures_judge import SCALE_OUT, Measured
from forerun.predictors.laws.ernest import Ernest
from forerun.registry import load
from forerun.systems.recipe import System

SYSTEM: System = load("systems", "predictddl")


def test_ernest_with_runs_of_its_own_errs_less_and_takes_ten_times_as_long() -> None:
    """Three networks of the lab on four workers; 9.8 times below Ernest's error was published."""
    pytest.importorskip("sklearn")
    measured, errors, waits = Measured(), [], []
    names = np.unique(measured.architecture)[::12]
    others = measured.runs(~np.isin(measured.architecture, names))
    fitted = SYSTEM.part("predictor").made().fit(others)
    for name in names:
        mine, asked = measured.architecture == name, measured.workers == SCALE_OUT
        jobs = measured.jobs.take(np.flatnonzero(mine & asked))
        start = time.perf_counter()
        law = Ernest().fit(measured.runs(mine & ~asked))
        said = [law.predict(jobs).seconds[:, 1]]
        begun = time.perf_counter()
        said.append(fitted.predict(jobs).seconds[:, 1])
        profiled = measured.run_seconds[mine & ~asked].sum()
        waits.append((profiled + begun - start, time.perf_counter() - begun))
        errors.append(
            np.nanmean(np.abs(np.array(said) / measured.seconds[mine & asked] - 1), axis=1)
        )
    theirs, ours = np.nanmean(errors, axis=0)
    assert theirs < ours
    theirs, ours = np.median(waits, axis=0)
    assert theirs > 10.3 * ours
