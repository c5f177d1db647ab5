"""Kept: facts between calls save time, and do not grow without bound."""

from __future__ import annotations

import gc
import weakref

import numpy as np

from forerun.domain.job import Job
from forerun.domain.plan import Plan
from forerun.predictors.analytic import AnalyticPredictor
from forerun.tables import Jobs
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
