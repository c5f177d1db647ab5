"""Kept: facts between calls save time, and do not grow without bound."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.domain.job import Job
from forerun.domain.plan import Plan
from forerun.predictors.analytic import AnalyticPredictor, layout
from forerun.tables import Jobs
from forerun.testing.samples import tiny_cluster, tiny_workload


def asked(name: str) -> Jobs:
    """Return a question of a workload of its own on a cluster of its own."""
    return Jobs.of([Job(tiny_workload(name), tiny_cluster(1, 1), Plan(global_batch=8))])


def test_a_server_that_is_asked_of_ever_new_jobs_keeps_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After hundreds of different questions little is kept, and answers are what they were."""
    monkeypatch.setattr(layout, "MOST_FACTS", 40)
    predictor = AnalyticPredictor()
    first = asked("net-0")
    before = predictor.predict(first).seconds
    for i in range(1, 60):
        predictor.predict(asked(f"net-{i}"))
    assert len(predictor._kept) <= 40
    np.testing.assert_array_equal(predictor.predict(first).seconds, before)
