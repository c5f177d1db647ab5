"""Fingerprints: a run is known again by what was measured, whatever stands beside it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import RequestError
from forerun.evaluate.fingerprints import BYTES, fingerprints, packed, seen, unpacked
from forerun.tables import Runs, Table
from forerun.testing.samples import tiny_jobs, tiny_runs

CODES = st.lists(st.integers(1, 2 ** (8 * BYTES) - 1), max_size=50)


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
    assert fingerprints(bare).tolist() == fingerprints(runs).tolist()
    back = np.arange(len(runs))[::-1]
    assert fingerprints(runs.take(back)).tolist() == fingerprints(runs)[back].tolist()


@given(st.floats(1e-4, 1e-1))
def test_another_time_is_another_run(change: float) -> None:
    jobs = tiny_jobs().take(np.arange(1))
    first, second = (tiny_runs(jobs, step_time_s=t) for t in (1.2345, 1.2345 * (1 + change)))
    assert fingerprints(first) != fingerprints(second)


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
