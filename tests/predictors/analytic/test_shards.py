"""How a framework sends sharded gradients, and what its pipelines lose where tensor groups meet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forerun.domain.job import Job
from forerun.domain.plan import Plan
from forerun.predictors.analytic import AnalyticPredictor, Constants
from forerun.tables import Jobs
from tests.predictors.analytic.physics import cluster_of, transformer


def _parts(framework: str, plan: Plan, **changes: float) -> dict[str, float]:
    """Return the parts of a step with some constants of its framework changed."""
    known = Constants()
    changed = replace(known.framework(framework), **changes)
    constants = replace(known, frameworks={**known.frameworks, framework: changed})
    job = Job(transformer(framework=framework), cluster_of(plan.world_size), plan)
    return dict(AnalyticPredictor(constants).predict(Jobs.of([job]))[0].parts)


def test_shards_that_travel_joined_gain_and_whole_gradients_do_not() -> None:
    """A ring's latency is paid less often in ZeRO-1; hooks send bucket by bucket."""
    plan = Plan(dp=512, global_batch=512, zero_stage=1)
    joined, apart = (_parts("nanotron", plan, rank_shard_bytes=b) for b in (2e6, 0.0))
    assert 0 < joined["data comm"] < apart["data comm"]
    whole = replace(plan, zero_stage=0)
    joined, apart = (_parts("nanotron", whole, rank_shard_bytes=b) for b in (2e6, 0.0))
    assert 0 < joined["data comm"] == apart["data comm"]


def test_what_is_scattered_after_the_last_micro_batch_is_not_hidden() -> None:
    """The bare share is a least one, and of sharded gradients alone."""
    plan = Plan(dp=16, global_batch=32, zero_stage=1)
    bare, hidden = (_parts("nanotron", plan, bare_shards=s)["data comm"] for s in (1.0, 0.0))
    assert hidden < bare
    less = _parts("nanotron", plan, bare_shards=0.1, bare_gradients=0.5)["data comm"]
    assert less == _parts("nanotron", plan, bare_shards=0.0, bare_gradients=0.5)["data comm"]
    whole = replace(plan, zero_stage=0)
    bare, hidden = (_parts("nanotron", whole, bare_shards=s)["data comm"] for s in (1.0, 0.0))
    assert bare == hidden


def test_a_pipeline_that_fills_and_drains_does_not_lose_where_tensor_groups_meet() -> None:
    """The bubble is the same with and without the loss; the host's part is not."""
    plan = Plan(tp=4, pp=4, global_batch=16)
    losing, spared = (_parts("nanotron", plan, tensor_pipeline_seconds=s) for s in (2e-2, 0.0))
    assert losing["host"] > spared["host"]
    assert losing["pipeline bubble"] == pytest.approx(spared["pipeline bubble"])
