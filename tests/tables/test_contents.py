"""Contents: rows that tell of one measurement have one number, whatever stands around them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from forerun.catalog import load_catalog
from forerun.evaluate.judge import TrainingSets
from forerun.tables import Runs, read_table
from forerun.tables.fingerprints import ENDED, content_codes
from forerun.testing.samples import tiny_jobs, tiny_runs
from forerun.workloads.rows import runs_from_table
from tests.needs import published

JOBS = tiny_jobs()


def many(count: int, ended: np.ndarray) -> Runs:
    """Return runs of as many questions, some of which ended without a figure."""
    jobs = JOBS.take(np.zeros(count, dtype=int))
    runs = tiny_runs(
        jobs, step_time_s=np.where(ended, np.nan, np.linspace(1e-3, 1e3, count)),
        status=np.where(ended, "oom", "ok").astype(object),
    )  # fmt: skip
    return Runs(jobs, runs.table.with_columns(global_batch=np.arange(1.0, count + 1)))


@given(st.integers(1, 3000), st.floats(0, 1), st.integers(0, 99))
def test_a_table_beside_its_copy_has_the_same_numbers(count: int, share: float, seed: int) -> None:
    runs = many(count, np.random.default_rng(seed).random(count) < share)
    first, second = content_codes([runs, runs])
    assert (first == second).all()
    assert len(set(first.tolist())) == count


def test_a_run_that_ended_is_not_one_that_filled_a_gigabyte() -> None:
    jobs = tiny_jobs().take(np.zeros(2, dtype=int))
    runs = tiny_runs(jobs, step_time_s=np.nan, status=np.array(["oom", "oom"], dtype=object))
    (codes,) = content_codes([
        Runs(jobs, runs.table.with_columns(memory_gb=np.array([np.nan, 1.0])))
    ])  # fmt: skip
    assert codes[0] != codes[1]


def test_no_row_of_a_real_table_teaches_its_copy() -> None:
    runs = runs_from_table(read_table(published("ultrascale")), load_catalog())
    first, second = content_codes([runs, runs])
    assert np.isin(runs.status.astype(str), ENDED).sum() > 500
    assert (first == second).all()
    half, rest = runs.take(np.arange(0, len(runs), 2)), runs.take(np.arange(1, len(runs), 2))
    training = TrainingSets.of("half", half, np.zeros(len(half), dtype=bool), {"all": runs})
    # Rows of the other half that repeat a judged one are left out with it.
    assert 0 <= len(rest) - len(training.others["all"]) < 10
    assert len(training.others["all"]) + training.identical["all"] == len(runs)
