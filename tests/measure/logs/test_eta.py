"""ETA: exact where nothing varies, resume-aware, revised when the speed changes, honest in its band."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.eta import FAMILIES, made, scored
from forerun.errors import RequestError
from forerun.measure.logs import JobLength, LogSeries, eta_of, joined, read_log
from forerun.measure.logs.series import EVALUATION, RESTART
from tests.measure.logs import made as logs


def series(
    done: list[float] | np.ndarray, times: list[float] | np.ndarray, event: dict[int, int] | None = None
) -> LogSeries:  # fmt: skip
    """Return a log of rows with a count and a clock."""
    events = np.full(len(done), np.nan)
    for row, bits in (event or {}).items():
        events[row] = bits
    columns = {"step": np.array(done, float), "time_s": np.array(times, float), "event": events}
    return LogSeries("log", "test", (), columns, absolute=True)


@given(
    rows=st.integers(3, 200), every=st.sampled_from([1, 7, 50]), more=st.integers(1, 3000),
    seconds=st.floats(1e-3, 1e3),
)  # fmt: skip
@settings(max_examples=30)
def test_a_job_of_one_speed_is_foreseen_exactly(
    rows: int, every: int, more: int, seconds: float
) -> None:
    done = np.arange(1, rows + 1) * every
    eta = eta_of(series(done, 1e6 + done * seconds), JobLength(steps=rows * every + more))
    p05, p50, p95 = eta.remaining_seconds
    # Evaluations that the first twentieth of a job has not shown yet are in the median with a little.
    early = done[-1] < 0.05 * (done[-1] + more)
    assert p50 == pytest.approx(more * seconds, rel=0.05 if early else 0.03)
    assert p05 <= more * seconds * 1.0001
    assert p95 >= more * seconds * 0.9999


@given(factor=st.floats(1e-3, 1e3), seed=st.integers(0, 20))
@settings(max_examples=15)
def test_another_unit_of_time_changes_the_answer_by_that_factor_alone(
    factor: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.lognormal(0, 0.2, 80))
    done = np.arange(1, 81)
    one = eta_of(series(done, times), JobLength(steps=300)).remaining_seconds
    other = eta_of(series(done, times * factor), JobLength(steps=300)).remaining_seconds
    assert np.allclose(np.array(other), np.array(one) * factor, rtol=1e-6)


@given(seed=st.integers(0, 50), total=st.integers(101, 5000))
@settings(max_examples=20)
def test_a_longer_job_takes_longer(seed: int, total: int) -> None:
    rng = np.random.default_rng(seed)
    log = series(np.arange(1, 101), np.cumsum(rng.lognormal(0, 0.3, 100)))
    shorter, longer = (
        eta_of(log, JobLength(steps=t)).remaining_seconds for t in (total, total * 2)
    )
    assert shorter[1] < longer[1]
    assert shorter[2] < longer[2]


def test_work_that_was_redone_is_no_progress_and_gaps_are_counted_apart() -> None:
    """100 steps, killed, an hour away, again from step 60: 40 of 200 steps are lost, not gained."""
    first, again = np.arange(1, 101), np.arange(61, 121)
    times = np.r_[first * 1.0, 100 + 3600 + np.arange(1, 61)]
    eta = eta_of(series(np.r_[first, again], times), JobLength(steps=200))
    assert eta.done == 120
    assert eta.redone == 40
    assert eta.away_seconds == pytest.approx(3601)
    assert eta.elapsed_seconds == pytest.approx(99 + 59)
    assert eta.outlook.step_seconds == pytest.approx(1.0, rel=1e-6)
    assert eta.remaining_seconds[0] == pytest.approx(80, rel=0.25)
    assert "started again 1 time" in " ".join(eta.notes)
    assert any("whether more will come is a guess" in text for text in eta.unknown)


def test_a_counter_that_begins_anew_goes_on_where_the_log_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    last = logs.plain(path, range(10, 401, 10), 1.0)
    with path.open("a") as stream:
        stream.write(f"{logs.stamp(last + 60)} INFO resuming from step 400\n")
    logs.plain(path, range(10, 201, 10), 1.0, start=last + 70, append=True)
    eta = eta_of(read_log(path))
    assert (eta.done, eta.total, eta.redone) == (600, 1000, 0)


def test_a_speed_that_changed_ten_minutes_ago_is_said_and_used() -> None:
    rng = np.random.default_rng(1)
    seconds = np.r_[np.full(300, 2.0), np.full(200, 3.0)] * rng.lognormal(0, 0.03, 500)
    eta = eta_of(series(np.arange(1, 501), np.cumsum(seconds)), JobLength(steps=1000))
    assert eta.outlook.step_seconds == pytest.approx(3.0, rel=0.02)
    assert eta.remaining_seconds[1] == pytest.approx(1500, rel=0.06)
    said = " ".join(eta.notes)
    assert "the speed changed 10" in said
    assert "min ago, at step 30" in said
    assert "slower; the new speed is used" in said


@pytest.mark.parametrize("noise", [0.01, 0.1, 0.3])
def test_noise_alone_is_seldom_taken_for_a_change(noise: float) -> None:
    changed = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        times = np.cumsum(rng.lognormal(0, noise, 400))
        changed += (
            len(eta_of(series(np.arange(400), times), JobLength(steps=800)).outlook.segments) > 1
        )
    assert changed <= 1


def test_periodic_pauses_come_on() -> None:
    seconds = np.ones(500)
    seconds[99::100] += 30.0
    log = series(
        np.arange(1, 501), np.cumsum(seconds), dict.fromkeys(range(99, 500, 100), EVALUATION)
    )
    eta = eta_of(log, JobLength(steps=1000))
    assert eta.outlook.pauses[0].period == 100
    assert eta.outlook.pauses[0].expected(500, 1000) == 5
    assert eta.remaining_seconds[1] == pytest.approx(500 + 150, rel=0.03)


@given(cut=st.integers(10, 190))
@settings(max_examples=15)
def test_a_job_s_logs_joined_are_as_one_log(cut: int) -> None:
    rng = np.random.default_rng(0)
    done, times = np.arange(1, 201), np.cumsum(rng.lognormal(0, 0.1, 200))
    whole = eta_of(series(done, times), JobLength(steps=400))
    parts = joined([series(done[cut:], times[cut:]), series(done[:cut], times[:cut])])
    eta = eta_of(parts, JobLength(steps=400))
    assert eta.done == 200
    assert eta.remaining_seconds[1] == pytest.approx(whole.remaining_seconds[1], rel=0.06)


def test_logs_of_ranks_are_read_once() -> None:
    done, times = np.arange(1, 101), np.arange(1, 101) * 2.0
    both = joined([series(done, times), series(done, times + 0.01)])
    assert len(both) == 100
    assert "written at the same time" in " ".join(both.notes)


def test_many_restarts_are_foreseen_and_widen_the_band() -> None:
    done, times, at = [], [], 0.0
    for session in range(4):
        at += 100.0
        for step in range(session * 50 - (5 if session else 0), session * 50 + 50):
            at += 1.0
            done.append(float(step))
            times.append(at)
    calm = eta_of(series(np.arange(200), np.arange(200)), JobLength(steps=1000)).remaining_seconds
    eta = eta_of(series(done, times), JobLength(steps=1000))
    assert eta.outlook.interruptions > 2
    assert eta.remaining_seconds[1] > calm[1] + 300
    assert eta.remaining_seconds[2] - eta.remaining_seconds[0] > calm[2] - calm[0]


@pytest.mark.parametrize(
    ("log", "ask", "found"),
    [
        (series([1, 2, 3], [1, 2, 3]), JobLength(), "does not say how long"),
        (series([1, 2, 30], [1, 2, 3]), JobLength(steps=20), "is at step 30 already"),
        (series([1, 2, 3], [1, 2, 3]), JobLength(steps=20, tokens=3), "steps and tokens are given"),
        (series([1, 2, 3], [1, 2, 3]), JobLength(tokens=1e9), "how many tokens a step has"),
        (series([5], [1]), JobLength(steps=20), "two are needed"),
        (series([1, 2], [np.nan, np.nan]), JobLength(steps=20), "none says when"),
        (series([3, 3, 3], [1, 2, 3]), JobLength(steps=20), "no two follow"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_says_why(log: LogSeries, ask: JobLength, found: str) -> None:
    with pytest.raises(RequestError, match=found):
        eta_of(log, ask)


def test_lengths_are_turned_into_the_log_s_steps() -> None:
    log = series(np.arange(1, 11), np.arange(1, 11))
    assert eta_of(log, JobLength(tokens=4e6, global_batch=10, seq_len=1000)).total == 400
    assert eta_of(log, JobLength(epochs=3, steps_per_epoch=50)).total == 150
    assert eta_of(log, JobLength(epochs=2, global_batch=10, dataset_size=1001)).total == 202
    assert eta_of(log, JobLength(samples=1000, global_batch=10)).total == 100


def test_a_clock_that_goes_back_is_told_and_bridged() -> None:
    times = np.arange(1.0, 101.0)
    times[50:] -= 30
    eta = eta_of(series(np.arange(1, 101), times), JobLength(steps=200))
    assert eta.outlook.step_seconds == pytest.approx(1.0)
    assert "clock goes back 1 time" in " ".join(eta.notes)


def test_a_silent_log_is_said_to_be_silent() -> None:
    log = series(np.arange(1, 101), 1e6 + np.arange(1, 101))
    eta = eta_of(log, JobLength(steps=200), now_s=1e6 + 100 + 7200)
    assert "no step for 2 h, where one row came every 1 s" in " ".join(eta.notes)
    assert eta.remaining_seconds[1] == pytest.approx(100, rel=0.05), "as if it went on now"
    assert eta.finish_s is not None
    assert eta.finish_s[0] > 1e6 + 7300, "no job ends in the past"
    assert eta.missed(-3600.0) > 0.999, "a deadline an hour ago"
    assert eta.missed(1000.0) < 0.01


def test_time_since_the_last_row_is_taken_off_what_is_left() -> None:
    log = series(np.arange(1, 101), 1e6 + np.arange(1, 101) * 60.0)
    at_once = eta_of(log, JobLength(steps=200), now_s=1e6 + 6000).remaining_seconds[1]
    later = eta_of(log, JobLength(steps=200), now_s=1e6 + 6060).remaining_seconds[1]
    assert at_once - later == pytest.approx(60)


def test_an_event_that_says_restart_begins_a_session_even_where_steps_go_on() -> None:
    times = np.r_[np.arange(50), 5000 + np.arange(50)].astype(float)
    eta = eta_of(series(np.arange(100), times, {50: RESTART}), JobLength(steps=200))
    assert eta.outlook.step_seconds == pytest.approx(1.0)
    assert eta.away_seconds == pytest.approx(4951)


def test_a_single_long_silence_within_a_session_is_a_halt_not_a_pause() -> None:
    times = np.r_[np.arange(50), 5000 + np.arange(50)].astype(float)
    eta = eta_of(series(np.arange(100), times), JobLength(steps=200))
    assert eta.away_seconds == pytest.approx(4950)
    assert eta.remaining_seconds[1] == pytest.approx(101, rel=0.06)


def test_the_band_holds_and_the_error_is_below_the_rivals() -> None:
    """36 made jobs of nine kinds, a quarter and half done; the benchmark has the figures."""
    replays = [made(family, seed) for family in FAMILIES for seed in (5001, 5002, 5003, 5004)]
    scores = scored(replays, (0.25, 0.5)).values()
    covered = np.mean([hit for score in scores for hit in score.covered])
    errors = {
        name: np.median([e for s in scores for e in s.errors[name]])
        for name in ("forerun", "naive", "tqdm")
    }
    assert covered >= 0.8
    assert errors["forerun"] < errors["naive"] < errors["tqdm"]
