"""Fingerprints: a run is known again by what was measured, whatever stands beside it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.errors import RequestError
from forerun.tables import Runs, Table
from forerun.tables.fingerprints import BYTES, content_codes, fingerprints, packed, seen, unpacked
from forerun.testing.samples import tiny_jobs, tiny_runs

CODES = st.lists(st.integers(1, 2 ** (8 * BYTES) - 1), max_size=50)
JOBS = tiny_jobs()


def uneven() -> Runs:
    """Return runs of which no two took the same time."""
    runs = tiny_runs()
    seconds = runs.step_seconds() * (1 + np.arange(len(runs)) / 1000)
    return Runs(runs.jobs, runs.table.with_columns(step_time_s=seconds))


@given(CODES)
def test_packing_keeps_every_fingerprint_once(codes: list[int]) -> None:
    given = np.array(codes, dtype=np.uint64)
    assert unpacked(packed(given)).tolist() == sorted(set(codes))


def test_every_different_run_has_a_fingerprint_of_its_own() -> None:
    runs = uneven()
    codes = fingerprints(runs)
    assert (codes > 0).all()
    assert len(set(codes.tolist())) == len(runs)


def test_other_columns_and_another_order_change_nothing() -> None:
    runs = uneven()
    rates = runs.table.numbers("global_batch") / runs.table.numbers("step_time_s")
    bare = Runs(runs.jobs, Table({
        "workload": runs.table.columns["workload"],
        "global_batch": runs.table.columns["global_batch"], "samples_per_s": rates,
    }, len(runs)))  # fmt: skip
    for judged, taught in ((bare, runs), (runs, bare)):
        assert seen(judged, {"taught": packed(fingerprints(taught))}).all()
    back = np.arange(len(runs))[::-1]
    assert fingerprints(runs.take(back)).tolist() == fingerprints(runs)[back].tolist()


@given(st.floats(1e-4, 1e-1))
def test_another_time_is_another_run(change: float) -> None:
    jobs = JOBS.take(np.arange(1))
    first, second = (tiny_runs(jobs, step_time_s=t) for t in (1.2345, 1.2345 * (1 + change)))
    assert fingerprints(first) != fingerprints(second)


@given(st.integers(0, 99), st.integers(0, 1))
@settings(deadline=None, max_examples=30)
def test_a_rate_in_few_digits_and_a_step_in_more_are_one_run(seed: int, which: int) -> None:
    """What rounding took off the rate is not what the step's digits would allow."""
    draw = np.random.default_rng(seed)
    jobs = JOBS.take(np.zeros(40, dtype=int))
    batch = draw.integers(1, 5000, 40).astype(float)
    exact = 10.0 ** draw.uniform(-3, 3, 40)
    whole = Table({
        "workload": tiny_runs(jobs).table.columns["workload"], "global_batch": batch,
    }, len(jobs))  # fmt: skip
    rates = np.array([float(f"{b / s:.3e}") for b, s in zip(batch, exact, strict=True)])
    seconds = np.array([float(f"{s:.4e}") for s in exact])
    tables = [Runs(jobs, whole.with_columns(samples_per_s=rates)),
              Runs(jobs, whole.with_columns(step_time_s=seconds))]  # fmt: skip
    judged, taught = tables[which], tables[1 - which]
    first, second = content_codes([judged, taught])
    assert (first == second).all()
    rows = {"taught": packed(fingerprints(taught))}
    assert seen(judged, rows).all()
    others = taught.table.with_columns(**{
        name: taught.table.numbers(name) * 1.002 for name in ("samples_per_s", "step_time_s")
    })  # fmt: skip
    assert not seen(judged, {"taught": packed(fingerprints(Runs(jobs, others)))}).any()


def test_a_row_without_a_measurement_is_nobodys() -> None:
    runs = tiny_runs(step_time_s=np.nan)
    assert not fingerprints(runs).any()
    assert not seen(runs, {"tiny": packed(fingerprints(runs))}).any()


def test_runs_out_of_memory_are_told_apart_by_their_plan() -> None:
    jobs = tiny_jobs()
    runs = tiny_runs(jobs, step_time_s=np.nan, status=np.full(len(jobs), "oom", dtype=object))
    assert len(set(fingerprints(runs).tolist())) == len(runs)


def test_only_those_that_taught_are_seen() -> None:
    runs = uneven()
    rows = {"a": packed(fingerprints(runs.take(np.arange(2)))),
            "b": packed(fingerprints(runs.take(np.array([4]))))}  # fmt: skip
    assert np.flatnonzero(seen(runs, rows)).tolist() == [0, 1, 4]
    assert not seen(runs, {}).any()


@pytest.mark.parametrize("text", ["no base64!", "AAAA"])
def test_a_broken_list_is_told(text: str) -> None:
    with pytest.raises(RequestError, match="make constants"):
        unpacked(text)
