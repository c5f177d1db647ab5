"""Kept: facts between calls save time, and do not grow without bound."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest

from forerun.advisor import Advisor
from forerun.domain.forecast import Forecasts
from forerun.domain.job import Job
from forerun.domain.plan import Plan
from forerun.predictors.analytic import AnalyticPredictor, layout
from forerun.predictors.analytic import predictor as predictor_module
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.flat import FEW_ROWS
from forerun.tables import Jobs, Table
from forerun.testing.samples import tiny_cluster, tiny_workload


def asked(name: str) -> Jobs:
    """Return a question of a workload of its own on a cluster of its own."""
    return Jobs.of([Job(tiny_workload(name), tiny_cluster(1, 1), Plan(global_batch=8))])


def test_a_server_that_is_asked_of_ever_new_jobs_keeps_none_of_them() -> None:
    """Facts go with the workload that they are of, and answers are what they were."""
    predictor = AnalyticPredictor()
    first, other = asked("net-0"), asked("net-1")
    before = predictor.predict(first).seconds
    predictor.predict(other)
    gone = weakref.ref(other.workloads[0]), weakref.ref(other.clusters[0])
    del other
    gc.collect()
    assert [one() for one in gone] == [None, None]
    np.testing.assert_array_equal(predictor.predict(first).seconds, before)


def columns(found: Forecasts) -> dict[str, np.ndarray]:
    """Return all figures of forecasts by name."""
    of_all = {"seconds": found.seconds, "peak": found.peak_bytes, "fits": found.fit_probability}
    return of_all | {f"part {n}": v for n, v in found.parts.items()}


@pytest.mark.parametrize("framework", ["pytorch", ""])
def test_a_kept_instance_costs_what_it_did(framework: str) -> None:
    """Whether instances were asked before, together, one by one or not at all: the figures are the same."""
    predictor = AnalyticPredictor()
    plans = [Plan(global_batch=64, micro_batch=size, recompute=word, tp=tp, dp=8 // tp)
             for size in (1, 2, 4) for word in ("none", "full") for tp in (1, 2)]  # fmt: skip

    def whole() -> Jobs:
        workload, cluster = tiny_workload(framework=framework), tiny_cluster(1, 8)
        return Jobs.of([Job(workload, cluster, plan) for plan in plans])

    layout._KEPT.clear()
    jobs = whole()
    alone = [columns(predictor.predict(jobs.take(np.array([i])))) for i in range(len(plans))]
    kept, again = columns(predictor.predict(jobs)), columns(predictor.predict(whole()))
    for name, values in kept.items():
        np.testing.assert_array_equal(values, again[name], err_msg=name)
        each = np.concatenate([one[name] for one in alone])
        np.testing.assert_allclose(values, each, rtol=1e-14 if not framework else 0, err_msg=name)


def test_what_is_kept_of_one_is_not_taken_for_another() -> None:
    """Other constants, another device of the same name, another precision: each has answers of its own."""
    workload, cluster = tiny_workload(), tiny_cluster(1, 2)
    job, plan = (
        Jobs.of([Job(workload, cluster, Plan(dp=2, global_batch=8))]),
        Plan(dp=2, global_batch=8),
    )
    first = AnalyticPredictor().predict(job).seconds[0, 1]
    constants = replace(Constants(), layer_power=Constants().layer_power + 1.0)
    peaks = {name: rate / 2 for name, rate in cluster.device.peak_flops.items()}
    slower = replace(cluster, device=replace(cluster.device, peak_flops=peaks))
    others = [
        AnalyticPredictor(constants).predict(job),
        AnalyticPredictor().predict(Jobs.of([Job(workload, slower, plan)])),
        AnalyticPredictor().predict(Jobs.of([Job(replace(workload, precision="fp32"), cluster, plan)])),
    ]  # fmt: skip
    assert len({first, *(found.seconds[0, 1] for found in others)}) == 4
    assert AnalyticPredictor().predict(job).seconds[0, 1] == first


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "_MOST_KEPT", 3)
    predictor = AnalyticPredictor()
    for i in range(12):
        predictor.predict(asked(f"net-{i}"))
        assert len(layout._KEPT) <= 4


@pytest.mark.parametrize("framework", ["pytorch", ""])
def test_rows_that_ask_of_one_plan_have_the_answer_that_it_has_alone(framework: str) -> None:
    """A long table of few plans, refused ones among them, is answered as its rows are one by one."""
    workload, cluster = tiny_workload(framework=framework), tiny_cluster(1, 8)
    plans = [Plan(dp=8, global_batch=64, micro_batch=size) for size in (1, 2, 4)]
    few = Jobs.of([Job(workload, cluster, plan) for plan in plans])
    reasons = np.array([None, "no such plan", None], dtype=object)
    few = replace(few, plan_problem=reasons)
    rows = np.arange(3000) % 3
    predictor = AnalyticPredictor()
    long, short = predictor.predict(few.take(rows)), predictor.predict(few)
    assert long.declined.tolist() == short.declined[rows].tolist()
    for name, values in columns(long).items():
        np.testing.assert_allclose(values, columns(short)[name][rows], rtol=1e-14, err_msg=name)


def test_a_long_mixture_is_answered_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads and small blocks move no figure and no row."""
    workload, cluster = tiny_workload(framework=""), tiny_cluster(1, 8)
    jobs = Jobs.of([
        Job(workload, cluster, Plan(dp=8, global_batch=8 * n, micro_batch=1)) for n in range(1, 301)
    ])  # fmt: skip
    whole = columns(AnalyticPredictor().predict(jobs))
    monkeypatch.setattr(predictor_module, "BLOCK", 60)
    parts = columns(AnalyticPredictor().predict(jobs))
    for name, values in whole.items():
        np.testing.assert_allclose(values, parts[name], rtol=1e-14, err_msg=name)


def test_rows_of_a_large_table_have_the_answers_of_a_small_one() -> None:
    """Rows of one job and plan are answered once, but for what a row says of the place where it runs."""
    sites = (("siteA", 1.0), ("siteB", 2.5))
    job = {
        "device": "v100-sxm2-16gb",
        "micro_batch": 64,
        "precision": "fp16",
        "framework": "pytorch",
    }
    runs = Table.from_rows([
        {**job, "workload": name, "devices": n, "global_batch": 64 * n, "step_time_s": seconds * slower * (1 + 0.02 * n), "cluster": site}
        for site, slower in sites
        for name, seconds in (("resnet50", 0.1), ("resnet18", 0.04), ("vgg16", 0.25)) for n in (1, 2, 4, 8)
    ])  # fmt: skip
    advisor = Advisor().fit(runs)
    row = {**job, "workload": "resnet50", "devices": 2, "global_batch": 128}
    rows = [{**row, "cluster": sites[i % 2][0]} for i in range(FEW_ROWS + 2)]
    few, many = (
        advisor.predict_table(Table.from_rows(some)).numbers("predicted_step_time_s")
        for some in (rows[:2], rows)
    )
    assert few[1] > 1.5 * few[0]
    np.testing.assert_allclose(many, np.resize(few, len(rows)), rtol=1e-9)


def test_kinds_of_clusters_do_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "_MOST_KEPT", 5)
    predictor = AnalyticPredictor()
    jobs = [
        Job(tiny_workload(), tiny_cluster(1, n), Plan(dp=n, global_batch=8 * n))
        for n in range(1, 12)
    ]
    answers = [predictor.predict(Jobs.of([one])).seconds for one in jobs]
    assert len(layout._KINDS) <= 6
    again = [predictor.predict(Jobs.of([one])).seconds for one in jobs]
    np.testing.assert_array_equal(answers, again)
