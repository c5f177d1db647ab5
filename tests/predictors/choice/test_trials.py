"""Trials: folds never teach what they judge, weights follow left-out errors, bands what was covered."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.predictors.choice.columns import JobColumns
from forerun.predictors.choice.quantities import in_quantity, only, steps_in, told, with_steps
from forerun.predictors.choice.questions import DEVICES, INSIDE, WORKLOAD
from forerun.predictors.choice.trials import folds_of, thinned, trials_of
from forerun.predictors.choice.weighing import mixed, standing, stretch, weights_of
from forerun.predictors.laws.ernest import Ernest
from forerun.tables import configurations
from tests.predictors.choice.rows import grid_rows, jobs_of, runs_of


def test_a_fold_never_teaches_a_question_that_it_judges() -> None:
    rows = grid_rows()
    runs = runs_of([*rows, *rows, *grid_rows(workload="b"), *grid_rows(device="other")])
    config = configurations(runs.table)[1]
    folds = folds_of(JobColumns(runs.jobs), config, np.ones(len(runs), dtype=bool))
    assert {fold.words for fold in folds} >= {
        "runs left out by chance", "the upper half of devices left out",
        "every workload of a part left out", "every device of a part left out",
        "all but a few runs of a workload and device left out",
    }  # fmt: skip
    for fold in folds:
        assert len(fold.judge)
        assert not set(config[fold.teach]) & set(config[fold.judge])


def test_beyond_the_lower_half_only_more_devices_are_judged() -> None:
    runs = runs_of(grid_rows())
    every = np.ones(len(runs), dtype=bool)
    folds = folds_of(JobColumns(runs.jobs), configurations(runs.table)[1], every)
    fold = next(f for f in folds if f.words == "the upper half of devices left out")
    devices = runs.table.numbers("devices")
    assert devices[fold.teach].max() < devices[fold.judge].min()


def test_trials_ask_beyond_what_workers_were_given_and_beyond_the_data() -> None:
    rows = [
        {**row, "cpus_per_worker": share, "node_gbps": rate, "dataset_size": data}
        for row in grid_rows(machines=(1, 2), batches=(64,))
        for share in (0.1, 0.2, 0.4) for rate in (1, 10) for data in (640, 1280)
    ]  # fmt: skip
    runs = runs_of(rows)
    every = np.ones(len(runs), dtype=bool)
    folds = folds_of(JobColumns(runs.jobs), configurations(runs.table)[1], every)
    found = {fold.words: fold for fold in folds}
    for words, column, most in (
        ("the most of cores of a worker left out", "cpus_per_worker", 0.4),
        ("the upper half of rates of the network left out", "node_gbps", 10.0),
        ("the upper half of samples of an epoch left out", "dataset_size", 1280.0),
    ):
        values = runs.table.numbers(column)
        assert set(values[found[words].judge]) == {most}
        assert values[found[words].teach].max() < most


def test_runs_that_cannot_be_judged_only_teach() -> None:
    runs = runs_of(grid_rows())
    timed = np.arange(len(runs)) % 2 == 0
    for fold in folds_of(JobColumns(runs.jobs), configurations(runs.table)[1], timed):
        assert timed[fold.judge].all()


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.integers(1, 60))
@settings(max_examples=40, deadline=None)
def test_thinning_keeps_as_many_questions_as_it_can(labels: list[int], most: int) -> None:
    config = np.array(labels)
    kept = thinned(config, config // 3, most)
    assert len(kept) == min(most, len(labels))
    assert len(np.unique(config[kept])) == min(most, len(np.unique(config)))


def test_trials_tell_each_kind_of_question_apart() -> None:
    runs = runs_of([*grid_rows(), *grid_rows(workload="b")])
    found = trials_of(("ernest", "linear-scaling"), "priors", runs, "step")
    ernest, nearest = found.error[:, 0], found.error[:, 1]
    far = found.questions.kind == DEVICES
    assert np.nanmedian(np.abs(ernest[far])) < np.nanmedian(np.abs(nearest[far]))
    assert np.isnan(ernest[found.questions.kind == WORKLOAD]).all()
    i = int(np.flatnonzero(far)[0])
    loss = standing(found, found.questions, i).loss
    assert loss[0] < loss[1]
    assert (found.questions.kind == INSIDE).any()


def test_weights_are_of_those_who_answer_and_sum_to_one() -> None:
    loss = np.array([-3.0, -2.9, 0.0])
    answered = np.array(
        [[True, True, True], [False, True, True], [False, False, True], [False] * 3]
    )
    weight = weights_of(loss, answered)
    np.testing.assert_allclose(weight.sum(axis=1), [1, 1, 1, 0])
    assert weight[0, 0] > weight[0, 1] > weight[0, 2] == 0
    np.testing.assert_array_equal(weight[2], [0, 0, 1])


def test_a_mixture_lies_between_its_members_and_is_wider_where_they_disagree() -> None:
    log, reach = np.array([[0.0, 1.0]]), np.full((1, 2, 2), 0.1)
    middle, width = mixed(log, reach, np.array([[0.5, 0.5]]))
    assert middle[0] == pytest.approx(0.5)
    assert (width > 0.3).all()
    alone, own = mixed(log, reach, np.array([[1.0, 0.0]]))
    assert alone[0] == 0.0
    np.testing.assert_allclose(own, 0.1)


@given(st.floats(0.6, 3.0))
@settings(max_examples=20, deadline=None)
def test_bands_are_stretched_to_hold_what_was_measured(scale: float) -> None:
    rng = np.random.default_rng(0)
    ratio = np.abs(rng.normal(size=4000)) * scale / 1.645
    found = stretch(ratio, np.full(4000, 0.05))
    assert found == pytest.approx(scale, rel=0.15)
    assert stretch(np.empty(0), np.empty(0)) == pytest.approx(1.0, abs=0.1)


def test_quantities_are_told_apart_and_turned_into_one_another() -> None:
    rows = [{**row, "dataset_size": 25_600, "epoch_time_s": 7.0} for row in grid_rows()]
    runs = runs_of(rows)
    assert told(runs) == ["step", "epoch"]
    assert told(only(runs, "epoch")) == ["epoch"]
    steps = 25_600 / runs.table.numbers("global_batch")
    np.testing.assert_allclose(steps_in(runs.jobs, "epoch"), steps)
    np.testing.assert_allclose(with_steps(only(runs, "epoch")).step_seconds(), 7.0 / steps)
    step = Ernest().fit(only(runs, "step")).predict(runs.jobs)
    np.testing.assert_allclose(
        in_quantity(step, runs.jobs, "epoch").seconds, step.seconds * steps[:, None]
    )
    lost = in_quantity(step, jobs_of(grid_rows()), "run")
    assert "how many steps a run has" in str(lost.declined[0])
