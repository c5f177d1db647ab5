"""Plans that a framework refuses are told apart from plans that do not fit."""

from __future__ import annotations

from forerun.domain.job import Job
from forerun.domain.plan import Plan
from forerun.predictors.analytic import AnalyticPredictor
from forerun.tables import Jobs
from tests.predictors.analytic.physics import cluster_of
from tests.predictors.analytic.test_memory import llama


def answer(framework: str, plan: Plan) -> tuple[str | None, float]:
    """Return the reason of refusal and P(fits)."""
    jobs = Jobs.of([Job(llama(framework), cluster_of(plan.world_size), plan)])
    forecast = AnalyticPredictor().predict(jobs)[0]
    assert AnalyticPredictor().declines(jobs) == [forecast.declined]
    return forecast.declined, forecast.fit_probability


def test_nanotron_needs_as_many_micro_batches_as_stages_less_one() -> None:
    """Pp = 4 runs 3 micro-batches and refuses 2; other frameworks run them."""
    plan = {"pp": 4, "dp": 2}
    refused, fits = answer("nanotron", Plan(**plan, global_batch=4))
    assert refused is not None
    assert "at least pp - 1 = 3 micro-batches" in refused
    assert "lower pp" in refused
    assert fits == 0.0
    assert answer("nanotron", Plan(**plan, global_batch=6))[0] is None
    assert answer("megatron", Plan(**plan, global_batch=4))[0] is None


def test_nanotron_leaves_no_stage_without_a_block() -> None:
    """16 layers and a head of 4 fill 8 stages, and leave the last of 16 without anything."""
    assert answer("nanotron", Plan(pp=8, global_batch=64))[0] is None
    refused, fits = answer("nanotron", Plan(pp=16, global_batch=64))
    assert refused is not None
    assert "deals 16 layers and the head to pp = 16" in refused
    assert fits == 0.0
    assert answer("", Plan(pp=16, global_batch=64))[0] is None


def test_what_does_not_fit_is_answered() -> None:
    """A legal plan that is far too large has a peak, a time and no reason."""
    reason, fits = answer("nanotron", Plan(micro_batch=64, global_batch=64))
    assert reason is None
    assert fits < 1e-3
