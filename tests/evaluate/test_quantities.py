"""What is judged: steps, epochs or whole runs, also on one table, and stopped runs from one side."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.catalog import load_catalog
from forerun.domain.forecast import Forecasts
from forerun.evaluate import Evaluation, evaluate, leaderboard, scoring
from forerun.evaluate.leaderboard import judged_rows
from forerun.evaluate.pages import notes, sections
from forerun.evaluate.scoring import shortfalls
from forerun.evaluate.splits import slower_half
from forerun.predictors.choice.quantities import steps_in
from forerun.tables import Jobs, Runs, Table
from forerun.workloads.rows import runs_from_table


@dataclass(frozen=True)
class Says:
    """Answers every job with the same seconds of one quantity, or of what most runs of a fit have."""

    seconds: float = 10.0
    quantity: str = "run"
    name: str = "says"
    learns: bool = False
    band: float = 2.0

    def fit(self, runs: Runs) -> Says:
        if not self.learns:
            return self
        steps = np.isfinite(runs.table.numbers("step_time_s")).sum()
        return replace(self, quantity="step" if steps * 2 > len(runs) else "run")

    def declines(self, jobs: Jobs) -> list[str | None]:
        return [None] * len(jobs)

    def predict(self, jobs: Jobs) -> Forecasts:
        blank = Forecasts.blank(len(jobs), self.name, self.quantity)
        band = np.array([1 / self.band, 1.0, self.band])
        return replace(blank, seconds=np.tile(self.seconds * band, (len(jobs), 1)))


def runs(**columns: Any) -> Runs:
    n = max(len(values) for values in columns.values())
    plain = {
        "workload": ["a-net"] * n,
        "device": ["t4"] * n,
        "devices": [1.0 + i for i in range(n)],
    }
    return runs_from_table(Table.from_columns({**plain, **columns}), load_catalog())


STOPPED = {
    "time_to_train_s": [10.0, 12.0, 8.0, 40.0, 5.0, 20.0],
    "status": ["ok", "ok", "ok", "timeout", "timeout", "timeout"],
}


def test_a_stopped_run_is_wrong_below_its_bound_and_right_above() -> None:
    """10 s answered: 40 and 20 s are bounds above it, 5 s is one below."""
    score = evaluate({"t": runs(**STOPPED)}, [Says(10.0)]).of("says", "t")
    assert (score.censored, score.censored_answered, score.censored_short) == (3, 3, 2)
    assert score.share_short == pytest.approx(2 / 3)
    assert score.censored_short_ape == pytest.approx((75 + 50) / 2)
    assert score.censored_mape == pytest.approx((75 + 50 + 0) / 3)
    assert score.censored_below == 1  # 20 s is its 95 % quantile: it is wrong of 40 for sure


def test_stopped_runs_move_no_figure_of_the_others() -> None:
    ended = {name: values[:3] for name, values in STOPPED.items()}
    both, alone = (
        evaluate({"t": runs(**columns)}, [Says(10.0)]).of("says", "t")
        for columns in (STOPPED, ended)
    )
    for name in ("comparable", "answered", "timed_rows", "median_ape", "mape", "coverage", "tau"):
        first, second = getattr(both, name), getattr(alone, name)
        assert first == second or (first != first and second != second), name


@given(st.floats(0.01, 1e6), st.floats(0.01, 1e6))
def test_a_shortfall_is_a_share_of_the_bound_and_never_below_zero(
    answer: float, bound: float
) -> None:
    (short,) = shortfalls(np.array([answer]), np.array([bound]))
    assert 0.0 <= short < 100.0
    assert (short == 0.0) == (answer >= bound)
    assert bound * (1 - short / 100) == pytest.approx(min(answer, bound))


def test_a_table_of_stopped_runs_alone_is_judged_by_its_bounds_and_has_no_error() -> None:
    columns = {"time_to_train_s": [10.0, 20.0], "status": ["timeout", "timeout"]}
    score = evaluate({"t": runs(**columns)}, [Says(15.0)]).of("says", "t")
    assert (score.comparable, score.answered, score.censored_answered) == (0, 0, 2)
    assert score.median_ape != score.median_ape
    assert score.censored_short == 1


MIXED = {
    "global_batch": [8.0] * 8,
    "step_time_s": [1.0] * 4 + [""] * 4,
    "time_to_train_s": [""] * 4 + [100.0] * 4,
    "framework": ["a"] * 4 + ["b"] * 4,
}


def test_one_predictor_may_answer_the_step_in_a_fold_and_the_run_in_another() -> None:
    """Each fold is taught by the other framework, whose runs have the other time."""
    table = runs(**MIXED)
    swapped = table.take(np.r_[4:8, 0:4])
    for one in (table, swapped):
        found = evaluate({"t": one}, [Says(1.0, learns=True)], "from:framework=a")
        score = found.of("says", "t")
        assert score.quantities == {}  # taught steps, asked where there are none
        assert score.not_comparable == {"a whole run without the samples or epochs that it took": 4}
    both = evaluate({"t": table}, [Says(1.0, learns=True)], "leave-out:framework").of("says", "t")
    assert both.timed_rows == 8
    assert both.answered == 0


def test_errors_of_steps_and_of_runs_are_shares_of_one_measurement() -> None:
    """100 samples to the target at 10 a step: a run of 50 s is 10 steps of 5 s."""
    columns = {"global_batch": [10.0] * 3, "samples_to_target": [100.0] * 3,
               "time_to_train_s": [50.0, 100.0, 25.0]}  # fmt: skip
    found = evaluate(
        {"t": runs(**columns)},
        [Says(5.0, "step", "stepwise"), Says(50.0, "run", "wholesale")],
    )
    steps, whole = found.of("stepwise", "t"), found.of("wholesale", "t")
    assert steps.quantities == {"step": 3}
    assert whole.quantities == {"run": 3}
    assert steps.median_ape == pytest.approx(whole.median_ape)
    assert [s.counted for s in leaderboard(found)] == [1, 1]


def test_who_answers_in_a_time_that_half_of_the_rows_lack_does_not_count() -> None:
    """Four rows tell a step, all eight a run: the step's median is of four easy rows alone."""
    table = runs(
        global_batch=[8.0] * 8, step_time_s=[1.0] * 4 + [""] * 4, time_to_train_s=[100.0] * 8
    )
    found = evaluate({"t": table}, [Says(1.0, "step", "easy"), Says(90.0, "run", "all")])
    easy = found.of("easy", "t")
    assert (easy.share_answered, easy.median_ape) == (1.0, 0.0)
    assert judged_rows([easy, found.of("all", "t")]) == 8
    assert {s.predictor: s.counted for s in leaderboard(found)} == {"easy": 0, "all": 1}


def test_ranks_are_within_times_of_one_quantity() -> None:
    """A step of 1 s and a run of 100 s have no order between them."""
    found = evaluate({"t": runs(**MIXED)}, [Says(1.0, "step")])
    assert np.isnan(found.of("says", "t").tau)


def test_rows_in_step_and_not_are_judged_by_the_samples_of_their_steps() -> None:
    """Four workers take 6,400 samples in 100 steps of all, or in 400 of one each."""
    found = runs(
        devices=[4.0, 4.0], global_batch=[64.0, 64.0], micro_batch=[16.0, 16.0], dp=[4.0, 4.0],
        sync=["ps-sync", "ps-async"], dataset_size=[6400.0, 6400.0], step_time_s=[0.5, 0.125],
    )  # fmt: skip
    answers, no = Says(quantity="step").predict(found.jobs), np.zeros(2, dtype=bool)
    step = np.full(2, scoring.STEP)
    assert scoring.sheet(found, answers, step, no, no).batch.tolist() == [64.0, 16.0]
    assert steps_in(found.jobs, "epoch").tolist() == [100.0, 400.0]
    assert not slower_half(found, ["workload"]).any()


def test_new_figures_survive_json_and_old_files_are_read() -> None:
    found = evaluate({"t": runs(**STOPPED)}, [Says(10.0)])
    plain = found.as_dict()
    assert Evaluation.from_dict(plain).as_dict() == plain
    for score in plain["scores"]:
        for name in ("timed_rows", "quantities", "censored_answered", "censored_mape"):
            del score[name]
    del plain["notes"]
    old = Evaluation.from_dict(plain).of("says", "t")
    assert (old.timed_rows, old.quantities, old.censored_answered) == (0, {}, 0)


def test_the_trap_is_told_with_the_evaluation(tmp_path: Path) -> None:
    found = evaluate(
        {"t": runs(step_time_s=[1.0] * 6)}, [Says(1.0, "step")], "interpolation:devices"
    )
    (note,) = found.notes["t"]
    assert "1 row of 3 (devices 1) below all fitted rows" in note
    assert found.as_dict()["notes"] == {"t": [note]}


def test_the_tables_tell_stopped_runs_apart_and_the_trap() -> None:
    columns = {**STOPPED, "devices": [1.0, 2.0, 3.0, 4.0, 1.0, 2.0]}
    found = evaluate({"t": runs(**columns)}, [Says(10.0)], "interpolation:devices")
    stopped = next(s for s in sections(found, found.predictors[0]) if s.title == "Stopped runs")
    assert stopped.rows[0][:4] == ["t", "1", "1", "0 %"]
    (note,) = notes(found)
    assert note.startswith(
        "t: interpolation:devices judges 2 rows of 3 (devices 1) below all fitted"
    )


def test_no_python_runs_once_a_row() -> None:
    """Eight times the rows may take a few more calls (halvings of a sort), and not eight times as many."""

    def calls(n: int) -> int:
        rng = np.random.default_rng(0)
        facts = runs(
            workload=[f"net-{i % 7}" for i in range(n)], devices=rng.integers(1, 9, n).astype(float),
            global_batch=rng.integers(1, 99, n).astype(float), step_time_s=rng.random(n) + 0.5,
            status=["ok"] * (n - 1) + ["oom"],
        )  # fmt: skip
        count = 0

        def called(frame: Any, event: str, argument: Any) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(called)
        try:
            evaluate({"t": facts}, [Says(1.0, "step")], "few-shot:devices/workload=2:cheapest")
        finally:
            sys.setprofile(None)
        return count

    calls(100)
    few, many = calls(1000), calls(8000)
    assert many < 3 * few
