"""Trials: folds never teach what they judge, another candidate leads only where it is surely better."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.arrays import IntArray, thinned
from forerun.predictors.choice.auto import (
    Trials,
    folds_of,
    ranked,
    stretch,
    usual_order,
)
from forerun.predictors.choice.quantities import (
    in_quantity,
    only,
    steps_in,
    timed_quantities,
    with_steps,
)
from forerun.predictors.choice.questions import DEVICES, FEW, INSIDE, NODES, PLAN, JobColumns
from forerun.predictors.laws.ernest import Ernest
from forerun.tables import Runs, configurations
from tests.predictors.choice.rows import grid_rows, jobs_of, runs_of


def folds(runs: Runs) -> list[tuple[IntArray, IntArray]]:
    config = configurations(runs.table)[1]
    return list(folds_of(JobColumns.of(runs.jobs), config, np.ones(len(runs), dtype=bool)))


def test_a_fold_never_teaches_a_question_that_it_judges() -> None:
    rows = grid_rows()
    runs = runs_of([*rows, *rows, *grid_rows(workload="b"), *grid_rows(device="other")])
    config = configurations(runs.table)[1]
    # Five by chance, each of two devices and of two workloads, the larger half of batches and of devices, and the largest of each.
    assert len(folds(runs)) == 13
    for fit, judge in folds(runs):
        assert len(judge)
        assert not set(config[fit]) & set(config[judge])


def test_of_few_workloads_configurations_count_and_the_largest_alone_is_left_out_too() -> None:
    for workloads, units in (("a", 12), ("abcd", 4 * 4)):  # of four, workload by way of leaving out
        runs = runs_of([row for name in workloads for row in grid_rows(workload=name)])
        devices = runs.table.numbers("devices")
        left_out = {(devices[fit].max(), *np.unique(devices[out])) for fit, out in folds(runs)}
        assert (2.0, 4.0, 8.0) in left_out  # beyond the lower half only more devices are judged
        assert ((4.0, 8.0) in left_out) == (len(workloads) == 1)
        assert len(np.unique(Trials.of(("linear-scaling",), "priors", runs, "step").cell)) == units


def test_trials_ask_beyond_what_workers_were_given_and_beyond_the_data() -> None:
    rows = [
        {**row, "cpus_per_worker": share, "node_gbps": rate, "dataset_size": data}
        for row in grid_rows(machines=(1, 2), batches=(64,))
        for share in (0.1, 0.2, 0.4) for rate in (1, 10) for data in (640, 1280)
    ]  # fmt: skip
    runs = runs_of(rows)
    for column in ("cpus_per_worker", "node_gbps", "dataset_size"):
        values = runs.table.numbers(column)
        assert any(values[fit].max() < values[judge].min() for fit, judge in folds(runs))


def test_runs_that_cannot_be_judged_only_teach() -> None:
    runs = runs_of(grid_rows())
    timed = np.arange(len(runs)) % 2 == 0
    columns, config = JobColumns.of(runs.jobs), configurations(runs.table)[1]
    assert all(timed[judge].all() for _, judge in folds_of(columns, config, timed))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.integers(1, 60))
@settings(max_examples=40, deadline=None)
def test_thinning_keeps_as_many_questions_as_it_can(labels: list[int], most: int) -> None:
    config = np.array(labels)
    kept = thinned(config, most)
    assert len(kept) == min(most, len(labels))
    assert len(np.unique(config[kept])) == min(most, len(np.unique(config)))


def test_trials_judge_each_kind_of_question_by_itself() -> None:
    runs = runs_of([*grid_rows(), *grid_rows(workload="b"), *grid_rows(workload="c")])
    found = Trials.of(("linear-scaling", "ernest"), "priors", runs, "step")
    nearest, ernest = found.error.T
    far = found.kind == DEVICES
    assert np.nanmedian(np.abs(ernest[far])) < np.nanmedian(np.abs(nearest[far]))
    verdicts = {one.kind: one for one in found.verdicts()}
    assert verdicts[DEVICES].scores[0].name == "ernest"
    assert INSIDE in verdicts


def test_runs_on_several_nodes_are_judged_by_those_on_one() -> None:
    rows = [{**row, "nodes": 1 if row["devices"] < 4 else 2} for row in grid_rows()]
    judged = Trials.of(("ernest",), "priors", runs_of(rows), "step")
    assert (judged.kind == NODES).any()


def test_few_runs_on_a_new_place_are_judged_by_leaving_as_few_of_another() -> None:
    rich = [
        {**row, "workload": name, "nodes": 1 if row["devices"] < 4 else 2}
        for name in "ab" for row in grid_rows()
    ]  # fmt: skip
    few = [{**row, "device": "new"} for row in rich if row["global_batch"] == 64]
    few = [row for row in few if row["nodes"] == 1]
    runs = runs_of([*rich, *few])
    groups = np.unique(JobColumns.of(runs.jobs).group[runs.table.texts("device") == "my-gpu"])
    group, nodes = JobColumns.of(runs.jobs).group, runs.table.numbers("nodes")

    def kept(fit: IntArray) -> list[list[float]]:
        return [nodes[fit][group[fit] == one].tolist() for one in groups]

    assert [[1.0, 1.0], [1.0, 1.0]] in [kept(fit) for fit, _ in folds(runs)]
    found = Trials.of(("ernest", "linear-scaling"), "priors", runs, "step")
    judged = runs.table.texts("device") == "my-gpu"
    assert (found.kind == FEW).sum() >= judged.sum() - 4


@pytest.mark.parametrize(("kind", "leader"), [(FEW, "analytic"), (DEVICES, "ernest")])
def test_a_law_of_few_runs_alone_leads_nowhere(kind: int, leader: str) -> None:
    error = np.tile([[0.5, 0.01]], (40, 1))
    made = Trials(("analytic", "ernest"), np.full(40, kind), error, error, np.arange(40))
    (verdict,) = made.verdicts()
    assert verdict.scores[0].name == leader


def test_without_trials_regressions_lead_inside_the_runs_and_physics_elsewhere() -> None:
    names = ("linear-scaling", "analytic", "hierarchical", "gaussian")
    pooled = ["gaussian", "hierarchical"]
    assert usual_order(INSIDE, names) == [*pooled, "analytic", "linear-scaling"]
    assert usual_order(FEW, names) == [*reversed(pooled), "analytic", "linear-scaling"]
    assert usual_order(PLAN, names) == ["analytic", *pooled, "linear-scaling"]


@pytest.mark.parametrize(("gain", "leads"), [(0.5, 1), (0.02, 0), (-0.5, 0)])
def test_another_candidate_leads_only_where_it_is_surely_better(gain: float, leads: int) -> None:
    """By a t-test over workloads, devices and folds; runs of one of them count as one."""
    rng = np.random.default_rng(0)
    cell = np.arange(200) // 10
    one = np.exp(rng.normal(-3, 0.3, 200))
    error = np.stack([one, one * np.exp(rng.normal(-gain, 0.3, 20)[cell])], axis=1)
    assert ranked([0, 1], error, cell)[0] == leads
    assert ranked([0, 1], error, cell // 10)[0] == 0  # two of them are not enough


def test_a_candidate_that_declines_the_hard_runs_gains_nothing_by_it() -> None:
    error = np.tile([[0.1, np.nan], [0.01, 0.012]], (30, 1))
    assert ranked([0, 1], error, np.arange(60))[0] == 0


@given(st.floats(0.6, 3.0))
@settings(max_examples=20, deadline=None)
def test_bands_are_stretched_to_hold_what_was_measured(scale: float) -> None:
    off = np.abs(np.random.default_rng(0).normal(size=2000)) * scale / 1.645
    assert stretch(off) == pytest.approx(scale, rel=0.15)


def test_few_judged_runs_stretch_a_band_little_and_never_narrow_it() -> None:
    assert stretch(np.zeros(0)) == 1.0
    assert stretch(np.full(5, 0.1)) == 1.0
    assert stretch(np.full(5, 4.0)) < 1.5 < stretch(np.full(50, 4.0))


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


def test_the_best_of_the_others_answers_what_the_best_declines() -> None:
    rng = np.random.default_rng(0)
    usual, better, best = (rng.normal(0.0, spread, 400) for spread in (0.5, 0.1, 0.01))
    best[::2] = np.nan
    error, cell = np.stack([usual, better, best], axis=1), np.arange(400)
    assert ranked([0, 1, 2], error, cell) == [2, 1, 0]
    assert ranked([0, 1], error, cell) == [1, 0]
