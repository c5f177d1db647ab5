"""Claims: a candidate's own band counts while few runs were judged; bands of few runs are wide."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.contracts import Predictor
from forerun.domain.forecast import Forecasts
from forerun.predictors.choice import Auto, candidates
from forerun.predictors.choice.claims import (
    MOST_REACH,
    are_laws,
    calibration,
    claimed,
    least_reach,
    student_95,
    with_claims,
)
from forerun.predictors.choice.weighing import mixed, weights_of
from forerun.tables import Jobs, Runs, read_table
from tests.predictors.choice.rows import catalog, grid_rows, jobs_of, runs_of

LAWS = np.array([True, True])


def weights(widths: tuple[float, float], trust: float) -> np.ndarray[Any, Any]:
    reach = np.log(np.array(widths))[None, :, None].repeat(2, axis=2)
    claim = claimed(reach, np.array([10.0]), LAWS)
    loss = with_claims(np.zeros((1, 2)), claim, np.array([trust]))
    return weights_of(loss, np.ones((1, 2), dtype=bool))[0]


def test_a_band_of_a_factor_of_two_pulls_no_answer_that_claims_ten_percent() -> None:
    assert weights((1.1, 2.0), trust=2.0)[0] == 1.0


@given(st.floats(1.0, 400.0))
def test_claims_count_less_the_more_was_judged(trust: float) -> None:
    few, more = weights((1.2, 1.4), trust), weights((1.2, 1.4), 2 * trust)
    assert few[0] >= more[0] >= 0.5


def test_many_trials_leave_claims_without_a_say() -> None:
    np.testing.assert_allclose(weights((1.1, 2.0), trust=1e5), 0.5, atol=0.01)


def test_a_law_of_one_run_is_not_taken_at_its_word() -> None:
    reach = np.full((1, 2, 2), 0.01)
    law, physics = claimed(reach, np.zeros(1), are_laws(["hierarchical", "residual"]))[0]
    assert np.exp(law) > 0.2
    assert np.exp(physics) < 0.02


def test_who_claimed_too_much_in_trials_is_believed_less() -> None:
    claim = np.log(np.full((20, 2), 0.1))
    loss = np.log(np.full((20, 2), 0.1) * np.array([1.0, 5.0]))
    short = calibration(loss, claim, np.ones(20))
    assert short[1] - short[0] > np.log(3.0)


def test_who_was_never_judged_falls_short_as_all_do() -> None:
    loss = np.stack([np.full(50, 1.0), np.full(50, np.nan)], axis=1)
    short = calibration(loss, np.zeros((50, 2)), np.ones(50))
    assert short[1] == pytest.approx(short[0], rel=0.1)


@pytest.mark.parametrize(("freedom", "known"), [(2, 2.920), (3, 2.353), (5, 2.015), (30, 1.697)])
def test_student_is_that_of_the_tables(freedom: float, known: float) -> None:
    assert student_95(freedom) == pytest.approx(known, rel=0.015)


@given(st.floats(0.0, 1000.0), st.floats(1.1, 4.0))
def test_the_least_reach_shrinks_with_what_was_judged(judged: float, times: float) -> None:
    law, physics = least_reach(judged, np.array([1.0, 0.0]))
    assert law >= least_reach(judged * times, np.ones(1))[0] >= 0.0
    assert 0.0 <= physics <= law / 2 or law == 0.0


@given(st.floats(5.0, 200.0), st.sampled_from([-1.0, 1.0]))
def test_a_runaway_answer_is_bounded(off: float, side: float) -> None:
    """However far one of three is off in logs, the mixture stays within its weight of a factor of 3."""
    log = np.array([[0.0, 0.05, side * off]])
    middle, width = mixed(log, np.full((1, 3, 2), 0.1), np.array([[0.4, 0.3, 0.3]]))
    assert abs(middle[0]) < 0.4
    assert np.isfinite(width).all()


class _Wide:
    """A predictor with a band of 10^9 either way."""

    name = "wide"

    def fit(self, runs: Runs) -> _Wide:
        return self

    def declines(self, jobs: Jobs) -> list[str | None]:
        return [None] * len(jobs)

    def predict(self, jobs: Jobs) -> Forecasts:
        blank = Forecasts.blank(len(jobs), self.name)
        blank.seconds[:] = [1e-9, 1.0, 1e9]
        return blank


def _with_wide(monkeypatch: pytest.MonkeyPatch, *names: str) -> Auto:
    usual = candidates.started

    def made(name: str, start: str = "") -> Predictor:
        return _Wide() if name == "wide" else usual(name, start)

    monkeypatch.setattr(candidates, "started", made)
    return Auto(names=names).fit(runs_of(grid_rows()))


def test_a_band_beyond_a_thousand_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = _with_wide(monkeypatch, "wide").predict(jobs_of(grid_rows()))
    assert not answer.answered.any()
    assert {str(name) for name in answer.by} == {""}  # type: ignore[union-attr]
    assert "x1,000" in str(answer.declined[0])


def test_where_one_says_nothing_the_next_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = _with_wide(monkeypatch, "wide", "ernest").predict(jobs_of(grid_rows()))
    assert all("ernest" in name and "wide" not in name for name in answer.by)  # type: ignore[union-attr]
    assert (np.diff(np.log(answer.seconds), axis=1) < MOST_REACH).all()


def test_few_trials_never_narrow_a_band() -> None:
    """Three runs: the band is no narrower than the law's own, and that of 48 is much narrower."""
    rows = grid_rows(batches=(128,))[:3]
    jobs = jobs_of(grid_rows(machines=(4, 8), batches=(128,)))
    fitted = Auto(names=("ernest", "linear-scaling")).fit(runs_of(rows))
    answer = fitted.predict(jobs)
    by = [str(name) for name in answer.by]  # type: ignore[union-attr]
    own = {n: one.predict(jobs).seconds for n, one in fitted.chosen[0].members.fitted.items()}
    for i, name in enumerate(by):
        alone = [seconds for n, seconds in own.items() if n in name]
        if len(alone) == 1:
            assert answer.seconds[i, 2] / answer.seconds[i, 0] >= alone[0][i, 2] / alone[0][i, 0]
    many = Auto(names=("ernest", "linear-scaling")).fit(
        runs_of(grid_rows(machines=(1, 2, 3, 4, 5, 6, 7, 8), batches=(64, 96, 128, 160, 192, 256)))
    )
    assert _width(answer) > 2 * _width(many.predict(jobs))


def _width(answer: Forecasts) -> float:
    return float(np.log(answer.seconds[:, 2] / answer.seconds[:, 0]).mean())


def test_a_kind_that_no_run_could_judge_is_said_in_its_row() -> None:
    fitted = Auto(names=("ernest", "linear-scaling")).fit(runs_of(grid_rows(batches=(128,))[:3]))
    asked = [{**grid_rows()[0], "devices": 4, "nodes": 2}]
    said = str(fitted.predict(jobs_of(asked)).by[0])  # type: ignore[index]
    assert "on several nodes, where the runs had one: no run could judge that" in said


def test_who_answered_no_judged_run_is_named_where_others_were_judged() -> None:
    fitted = Auto(names=("ernest", "linear-scaling")).fit(runs_of(grid_rows(batches=(128,))[:3]))
    told = [words for words in fitted.reasons if words.startswith("beyond the runs in devices")]
    assert any("without an answer there" in words and "ernest" in words for words in told)


@pytest.mark.skipif("FORERUN_DATA" not in os.environ, reason="FORERUN_DATA names no folder of runs")
def test_three_runs_of_a_known_job_are_answered_as_well_as_physics_does() -> None:
    """TF benchmarks, resnet50, three runs drawn: within twice the error of calibrated physics."""
    from forerun.workloads.rows import jobs_from_table, runs_from_table

    table = read_table(Path(os.environ["FORERUN_DATA"]) / "runs" / "tf_benchmarks.csv")
    table = table.take(np.flatnonzero(table.texts("workload") == "resnet50"))
    order = np.random.default_rng(5).permutation(len(table))
    runs = runs_from_table(table.take(order[:3]), catalog())
    asked = table.take(order[3:])
    fitted = Auto().fit(runs)
    jobs, truth = jobs_from_table(asked, catalog()), asked.numbers("step_time_s")

    def off(answer: Forecasts) -> float:
        return float(np.nanmedian(np.abs(answer.seconds[:, 1] / truth - 1)))

    assert off(fitted.predict(jobs)) < 2 * off(fitted.planner.predict(jobs)) + 0.01
