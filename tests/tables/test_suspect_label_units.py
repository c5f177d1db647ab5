"""Units of runs that physics does not know: found among the runs of one kind."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from forerun.domain.forecast import Forecasts
from forerun.predictors.laws.ernest import Ernest
from forerun.tables import Runs
from forerun.tables.suspects import FlagKind, Flags, cleaned, suspects
from forerun.tables.suspects.judging import label_unit_flags, two_clusters
from tests.tables.suspect_tables import runs_of, with_column

FloatArray = NDArray[np.float64]
DEVICES = np.repeat([1.0, 2.0, 4.0, 8.0], 3)
BATCH = np.tile([32.0, 64.0, 128.0], 4)
SECONDS = 0.01 + 0.002 * BATCH / DEVICES + 0.003 * DEVICES


@cache
def unmeasured() -> tuple[Runs, Forecasts]:
    """Return runs of a workload nobody knows, nothing measured."""
    rows = [
        {"workload": "mynet", "device": "mygpu", "devices": d, "global_batch": b}
        for d, b in zip(DEVICES, BATCH, strict=True)
    ]
    return runs_of(*rows)


def flagged(seconds: FloatArray, column: str = "step_time_s") -> tuple[Runs, Flags]:
    """Return these runs with such figures, and their flags."""
    runs, forecasts = unmeasured()
    runs = with_column(runs, column, seconds)
    return runs, suspects(runs, forecasts)


def unit_rows(figures: FloatArray, column: str) -> set[int]:
    """Return which rows bear a flag of units."""
    runs = with_column(unmeasured()[0], column, figures)
    return {row for one in label_unit_flags(runs, np.ones(12, dtype=bool)) for row in one.row}


def test_half_of_the_times_in_ms_are_named_left_out_and_the_rest_teach() -> None:
    ms = np.arange(12) % 2 == 1
    runs, flags = flagged(np.where(ms, 1000 * SECONDS, SECONDS))
    units = flags.of(FlagKind.UNIT)
    assert flags.row[units].tolist() == np.flatnonzero(ms).tolist()
    assert flags.void[units].all()
    text = flags.text(int(np.flatnonzero(units)[0]))
    assert (
        "step_time_s is 141 s; expected about 0.141 s, as the other 6 runs of its kind say" in text
    )
    assert "it looks like ms: divide by 1000" in text
    law = Ernest().fit(cleaned(runs, flags))
    assert law.predict(runs.jobs).seconds[:, 1] == pytest.approx(SECONDS, rel=1e-3)


@given(
    factor=st.sampled_from([1e3, 1 / 3600]), seed=st.integers(0, 50),
    wrong=st.sets(st.integers(0, 11), min_size=1, max_size=8),
)  # fmt: skip
def test_the_rows_of_another_unit_are_found_whatever_their_number(
    factor: float, seed: int, wrong: set[int]
) -> None:
    noisy = SECONDS * np.exp(np.random.default_rng(seed).normal(0, 0.05, 12))
    mixed = np.isin(np.arange(12), list(wrong))
    assert unit_rows(np.where(mixed, factor * noisy, noisy), "time_to_train_s") == wrong


def test_rates_per_minute_are_named() -> None:
    rate = BATCH / SECONDS
    _, flags = flagged(np.where(DEVICES == 4, 60 * rate, rate), column="samples_per_s")
    units = flags.of(FlagKind.UNIT)
    assert DEVICES[flags.row[units]].tolist() == [4.0] * 3
    assert "per minute: divide by 60" in str(flags.advice[units][0])


@given(st.integers(0, 50), st.floats(0.0, 0.5))
def test_times_that_sizes_or_noise_explain_bear_no_flag(seed: int, noise: float) -> None:
    size = np.repeat([1.0, 30.0, 1000.0, 30000.0], 3)
    random = np.random.default_rng(seed)
    seconds = size * np.exp(random.normal(0, noise, 12))
    assert two_clusters(np.log(size)[:, None], np.log(seconds)) is None
    assert not unit_rows(SECONDS * np.exp(random.normal(0, noise, 12)), "step_time_s")


def test_other_settings_are_another_kind() -> None:
    slow = np.where(np.arange(12) < 6, 1000.0, 1.0) * SECONDS
    rows = [
        {"workload": "mynet", "device": "mygpu", "devices": d, "global_batch": b, "step_time_s": s,
         "framework": "cpu-only" if s > 1 else "torch"}
        for d, b, s in zip(DEVICES, BATCH, slow, strict=True)
    ]  # fmt: skip
    runs, forecasts = runs_of(*rows)
    assert not suspects(runs, forecasts).of(FlagKind.UNIT).any()


def test_a_gap_that_no_unit_is_stays_in_doubt_and_is_kept() -> None:
    odd = np.where(np.arange(12) == 5, 300.0, 1.0) * SECONDS
    runs, flags = flagged(odd)
    units = flags.of(FlagKind.UNIT)
    assert flags.row[units].tolist() == [5]
    assert not flags.void[units].any()
    assert np.isfinite(cleaned(runs, flags).step_seconds()).all()
