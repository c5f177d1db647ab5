"""Kept: facts between calls save time, and do not grow without bound."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.domain.job import Job
from forerun.domain.plan import Plan
from forerun.predictors.analytic import AnalyticPredictor, rows
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.rows import lay_out
from forerun.tables import Jobs
from forerun.testing.samples import tiny_cluster, tiny_workload


def asked(name: str) -> Jobs:
    """Return a question of a workload of its own on a cluster of its own."""
    return Jobs.of([Job(tiny_workload(name), tiny_cluster(1, 1), Plan(global_batch=8))])


def test_a_server_that_is_asked_of_ever_new_jobs_keeps_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After hundreds of different questions little is kept, and answers are what they were."""
    monkeypatch.setattr(rows, "MOST_FACTS", 30)
    monkeypatch.setattr(rows, "MOST_SAVED", 10)
    predictor = AnalyticPredictor()
    first = asked("net-0")
    before = predictor.predict(first).seconds
    for i in range(1, 60):
        predictor.predict(asked(f"net-{i}"))
    assert len(predictor._kept) <= 40
    np.testing.assert_array_equal(predictor.predict(first).seconds, before)


def test_what_was_used_last_is_kept_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job asked about between others is not worked out again."""
    monkeypatch.setattr(rows, "MOST_FACTS", 12)
    monkeypatch.setattr(rows, "MOST_SAVED", 4)
    kept: dict[object, object] = {}
    often, constants = asked("often"), Constants()
    lay_out(often, constants, kept)
    facts = dict(kept)
    for i in range(20):
        lay_out(asked(f"net-{i}"), constants, kept)
        lay_out(often, constants, kept)
    assert all(kept[slot] is value for slot, value in facts.items())
