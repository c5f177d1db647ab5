"""Ordering: runs in one order by what they say, however their table lists them."""

from __future__ import annotations

from dataclasses import replace
from time import process_time

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.tables import Runs, sorted_runs
from forerun.testing.samples import tiny_jobs, tiny_runs
from tests.predictors.choice.rows import grid_rows, runs_of

ROWS = [
    *grid_rows(), *grid_rows(), *grid_rows("resnet50", "v100"), *grid_rows("vgg16", "p100"),
    {"workload": "resnet50", "device": "v100", "devices": 2, "status": "oom"},
    {"workload": "", "device": "v100", "step_time_s": 1.0, "run_name": "b"},
    {"workload": "", "device": "v100", "step_time_s": 1.0, "run_name": "a", "source": "mine"},
]  # fmt: skip


def said(runs: Runs) -> list[str]:
    """Return all that is said of each row, by table, labels, names and plan."""
    jobs = runs.jobs
    names = [w.name for w in jobs.workloads] + ["-"]
    clusters = [c.name for c in jobs.clusters] + ["-"]
    return [
        repr((
            sorted(runs.table.row(i).items()), names[jobs.workload_index[i]],
            clusters[jobs.cluster_index[i]], jobs.plans[i],
        ))
        for i in range(len(runs))
    ]  # fmt: skip


@given(st.permutations(range(len(ROWS))))
@settings(max_examples=20, deadline=None)
def test_any_order_of_a_table_becomes_one(order: list[int]) -> None:
    first, second = sorted_runs(runs_of(ROWS)), sorted_runs(runs_of([ROWS[i] for i in order]))
    assert said(first) == said(second)
    assert [w.name for w in first.jobs.workloads] == [w.name for w in second.jobs.workloads]
    assert [c.name for c in first.jobs.clusters] == [c.name for c in second.jobs.clusters]
    np.testing.assert_array_equal(first.jobs.workload_index, second.jobs.workload_index)
    np.testing.assert_array_equal(first.jobs.cluster_index, second.jobs.cluster_index)


def test_nothing_is_lost_and_nothing_changed() -> None:
    runs = runs_of(ROWS)
    assert sorted(said(sorted_runs(runs))) == sorted(said(runs))


def test_what_was_asked_goes_before_what_was_measured() -> None:
    runs = sorted_runs(runs_of(ROWS))
    asked = list(zip(runs.table.texts("device"), runs.table.numbers("devices"), strict=True))
    known = [one for one in asked if one[1] == one[1]]
    assert known == sorted(known)


def test_jobs_without_labels_are_told_apart_by_what_they_are() -> None:
    runs = tiny_runs(replace(tiny_jobs(), labels=None))
    bare = Runs(runs.jobs, runs.table)
    order = np.random.default_rng(0).permutation(len(bare))
    assert said(sorted_runs(bare)) == said(sorted_runs(bare.take(order)))


def test_rows_in_order_stay_known_as_such_while_they_are_taken_in_order() -> None:
    runs = sorted_runs(runs_of(ROWS))
    assert sorted_runs(runs) is runs
    assert runs.take(np.array([1, 1, 4])).ordered
    assert runs.take(np.arange(len(runs)) % 2 == 0).ordered
    assert not runs.take(np.array([4, 1])).ordered
    assert not runs_of(ROWS).ordered


def test_a_row_keeps_its_place() -> None:
    """A complaint about a row points at it as its owner listed it."""
    runs = runs_of(ROWS)
    found = sorted_runs(runs)
    labels = found.jobs.labels
    assert labels is not None
    for table in (labels, found.table):
        order = table.places().line - 1
        assert sorted(order.tolist()) == list(range(len(ROWS)))
        assert order.tolist() != sorted(order.tolist())
        assert said(Runs(runs.jobs.take(order), runs.table.take(order))) == said(found)


def test_no_runs_are_in_order() -> None:
    none = runs_of(ROWS).take(np.arange(0))
    assert len(sorted_runs(none)) == 0


def test_ten_thousand_rows_take_little() -> None:
    runs = runs_of(ROWS)
    many = runs.take(np.random.default_rng(0).integers(0, len(runs), 10_000))
    began = process_time()
    sorted_runs(many)
    assert process_time() - began < 0.5
