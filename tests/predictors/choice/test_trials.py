"""Trials: folds never teach what they judge, weights follow left-out errors, bands what was covered."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.arrays import FloatArray
from forerun.predictors.choice.quantities import (
    in_quantity,
    only,
    steps_in,
    timed_quantities,
    with_steps,
)
from forerun.predictors.choice.questions import (
    DEVICES,
    INSIDE,
    NODES,
    WORKLOAD,
    JobColumns,
    Questions,
    folds_of,
)
from forerun.predictors.choice.trials import (
    CandidateLosses,
    Trials,
    mixed,
    stretch,
    thinned,
    weights,
)
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
        "all but 3 one-node runs of each workload on a cluster left out",
    }  # fmt: skip
    for fold in folds:
        assert len(fold.judge)
        assert not set(config[fold.fit]) & set(config[fold.judge])


def test_beyond_the_lower_half_only_more_devices_are_judged() -> None:
    runs = runs_of(grid_rows())
    every = np.ones(len(runs), dtype=bool)
    folds = folds_of(JobColumns(runs.jobs), configurations(runs.table)[1], every)
    fold = next(f for f in folds if f.words == "the upper half of devices left out")
    devices = runs.table.numbers("devices")
    assert devices[fold.fit].max() < devices[fold.judge].min()


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
        ("the most cores of a worker left out", "cpus_per_worker", 0.4),
        ("the upper half of rates of the network left out", "node_gbps", 10.0),
        ("the upper half of samples of an epoch left out", "dataset_size", 1280.0),
    ):
        values = runs.table.numbers(column)
        assert set(values[found[words].judge]) == {most}
        assert values[found[words].fit].max() < most


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


def test_trials_judge_each_kind_of_question_by_itself() -> None:
    runs = runs_of([*grid_rows(), *grid_rows(workload="b")])
    found = Trials.of(("ernest", "linear-scaling"), "priors", runs, "step")
    ernest, nearest = found.error[:, 0], found.error[:, 1]
    far = found.questions.kind == DEVICES
    assert np.nanmedian(np.abs(ernest[far])) < np.nanmedian(np.abs(nearest[far]))
    assert np.isnan(ernest[found.questions.kind == WORKLOAD]).all()
    i = int(np.flatnonzero(far)[0])
    asked = found.questions
    loss = CandidateLosses.of(
        found, DEVICES, float(asked.known[i]), asked.groups[asked.group[i]]
    ).loss
    assert loss[0] < loss[1]
    assert (found.questions.kind == INSIDE).any()


def weighed(loss: list[float], reach: list[list[float]], trust: float = 100.0) -> FloatArray:
    """Return the weights of laws of many runs whose bands reach so far, NaN where one declines."""
    one = CandidateLosses(np.array(loss), trust, np.ones(0))
    wide = np.array(reach)[..., None].repeat(2, axis=2)
    rows = np.zeros(len(reach), dtype=np.int64)
    return weights(("ernest",) * len(loss), [one], rows, np.full(len(reach), 10.0), wide)


def test_weights_are_of_those_who_answer_and_sum_to_one() -> None:
    no = float("nan")
    found = weighed([-3.0, -2.9, 0.0], [[0.1] * 3, [no, 0.1, 0.1], [no, no, 0.1], [no] * 3])
    np.testing.assert_allclose(found.sum(axis=1), [1, 1, 1, 0])
    assert found[0, 0] > found[0, 1] > found[0, 2] == 0
    np.testing.assert_array_equal(found[2], [0, 0, 1])


def test_a_wide_band_counts_against_a_candidate_that_few_runs_judged() -> None:
    few, many = (weighed([0.0, 0.0], [[0.1, 0.7]], trust)[0] for trust in (2.0, 1e5))
    np.testing.assert_array_equal(few, [1.0, 0.0])
    np.testing.assert_allclose(many, 0.5, atol=0.01)


@pytest.mark.parametrize(("known", "most"), [(0.0, 0.01), (10.0, 1.0)])
def test_a_law_of_one_run_is_not_taken_at_its_word(known: float, most: float) -> None:
    one = CandidateLosses(np.zeros(2), 0.0, np.ones(0))
    reach = np.full((1, 2, 2), 0.05) * np.array([1.0, 2.0])[None, :, None]
    found = weights(("ernest", "analytic"), [one], np.zeros(1, dtype=int), np.array([known]), reach)
    assert found[0, 0] <= most
    assert (found[0, 0] > found[0, 1]) == (known > 0)


def test_on_a_new_cluster_a_few_one_node_runs_teach_and_several_nodes_are_judged() -> None:
    rows = [
        {**row, "cluster": place, "nodes": 1 if row["devices"] < 8 else 2}
        for place in ("here", "there")
        for row in grid_rows(device=place)
    ]
    runs = runs_of(rows)
    every = np.ones(len(runs), dtype=bool)
    folds = folds_of(JobColumns(runs.jobs), configurations(runs.table)[1], every)
    found = [fold for fold in folds if fold.words.startswith("all but 3 one-node runs")]
    assert len(found) == 2
    clusters, nodes = runs.table.texts("cluster"), runs.table.numbers("nodes")
    for fold in found:
        (place,) = set(clusters[fold.judge])
        kept = fold.fit[clusters[fold.fit] == place]
        assert len(kept) == 3
        assert (nodes[kept] == 1).all()
        assert (nodes[fold.judge] == 2).any()
    judged = Trials.of(("ernest",), "priors", runs, "step")
    assert (judged.questions.kind == NODES).any()


def test_a_mixture_lies_between_its_members_and_is_wider_where_they_disagree() -> None:
    log, reach = np.array([[0.0, 1.0]]), np.full((1, 2, 2), 0.1)
    middle, width = mixed(log, reach, np.array([[0.5, 0.5]]))
    assert middle[0] == pytest.approx(0.5)
    assert (width > 0.3).all()
    alone, own = mixed(log, reach, np.array([[1.0, 0.0]]))
    assert alone[0] == 0.0
    np.testing.assert_allclose(own, 0.1)


@given(st.floats(5.0, 200.0), st.sampled_from([-1.0, 1.0]))
def test_a_runaway_answer_is_bounded(off: float, side: float) -> None:
    """However far one of three is off in logs, the mixture stays within its weight of a factor of 3."""
    log = np.array([[0.0, 0.05, side * off]])
    middle, width = mixed(log, np.full((1, 3, 2), 0.1), np.array([[0.4, 0.3, 0.3]]))
    assert abs(middle[0]) < 0.4
    assert np.isfinite(width).all()


def trials_with(error: FloatArray) -> Trials:
    """Return trials of one candidate whose bands reach 0.1 either way."""
    n = len(error)
    asked = Questions(
        np.zeros(n, dtype=np.int8), np.zeros(n), np.zeros(n, dtype=int), (("a", "b"),)
    )
    reach = np.full((n, 1, 2), 0.1)
    return Trials(("ernest",), asked, error[:, None], reach, np.arange(n), 0, (n, n))


@given(st.floats(0.6, 3.0))
@settings(max_examples=20, deadline=None)
def test_bands_are_stretched_to_hold_what_was_measured(scale: float) -> None:
    error = np.random.default_rng(0).normal(size=2000) * scale * 0.1 / 1.645
    found = trials_with(error)
    one = CandidateLosses.of(found, INSIDE, 0.0, ("a", "b"))
    assert stretch(found, INSIDE, one) == pytest.approx(scale, rel=0.15)


def test_without_trials_bands_stay_as_they_are() -> None:
    none = trials_with(np.empty(0))
    assert stretch(
        none, INSIDE, CandidateLosses.of(none, INSIDE, 0.0, ("a", "b"))
    ) == pytest.approx(1.0, abs=0.1)


def test_of_unseen_workloads_the_fewer_were_left_out_the_wider_the_band() -> None:
    error = np.random.default_rng(0).normal(size=60) * 0.1 / 1.645

    def found(units: int) -> float:
        plain = trials_with(error)
        group = np.arange(60) % units
        asked = replace(plain.questions, kind=np.full(60, WORKLOAD, dtype=np.int8), group=group,
                        groups=tuple((f"net-{i}", "b") for i in range(units)))  # fmt: skip
        some = replace(plain, questions=asked)
        return stretch(some, WORKLOAD, CandidateLosses.of(some, WORKLOAD, 0.0, ("new", "b")))

    assert found(2) > 1.3 * found(5) > found(30)


def test_quantities_are_separate_and_convert_into_one_another() -> None:
    rows = [{**row, "dataset_size": 25_600, "epoch_time_s": 7.0} for row in grid_rows()]
    runs = runs_of(rows)
    assert timed_quantities(runs) == ["step", "epoch"]
    assert timed_quantities(only(runs, "epoch")) == ["epoch"]
    steps = 25_600 / runs.table.numbers("global_batch")
    np.testing.assert_allclose(steps_in(runs.jobs, "epoch"), steps)
    np.testing.assert_allclose(with_steps(only(runs, "epoch")).step_seconds(), 7.0 / steps)
    step = Ernest().fit(only(runs, "step")).predict(runs.jobs)
    np.testing.assert_allclose(
        in_quantity(step, runs.jobs, "epoch").seconds, step.seconds * steps[:, None]
    )
    lost = in_quantity(step, jobs_of(grid_rows()), "run")
    assert "how many steps a run has" in str(lost.declined[0])
