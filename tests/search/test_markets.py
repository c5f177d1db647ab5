"""Markets: either market is at least as good as each, and losses are never hidden."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.domain.hardware import Cluster
from forerun.domain.job import Job
from forerun.domain.objective import Objective, Preemption
from forerun.domain.plan import Plan
from forerun.domain.quantiles import at_probability
from forerun.domain.recommendation import Recommendation
from forerun.domain.workload import Length
from forerun.predictors.analytic import AnalyticPredictor
from forerun.search.recommending import ENDLESS, NO_PRICE, recommend
from forerun.search.score import TIE, priced_runs
from forerun.tables import Jobs
from forerun.testing.samples import tiny_cluster, tiny_workload

WORKLOAD = tiny_workload()
PREDICTOR = AnalyticPredictor()
LENGTH = Length("samples", 1e8)
PRICES = st.one_of(st.none(), st.floats(0.2, 3.0))


def priced(prices: list[tuple[float | None, float | None]]) -> list[Cluster]:
    """Return clusters of 1, 2, 4 ... nodes with (on-demand, spot) prices a device and hour."""
    found = []
    for power, (demand, spot) in enumerate(prices):
        cluster = tiny_cluster(2**power, 2)
        found.append(
            replace(
                cluster,
                dollars_per_hour=None if demand is None else demand * cluster.devices,
                spot_dollars_per_hour=None if spot is None else spot * cluster.devices,
            )
        )
    return found


def ask(clusters: list[Cluster], **fields: object) -> Recommendation:
    """Return a recommendation at a market."""
    objective = Objective(**fields)  # type: ignore[arg-type]
    return recommend(WORKLOAD, clusters, objective, LENGTH, PREDICTOR, global_batches=[64],
                     fixed={"recompute": "none", "zero_stage": 0})  # fmt: skip


def figure(found: Recommendation, aim: str, confidence: float) -> float:
    """Return what the choice costs in the aim, infinite where there is none."""
    if found.best is None:
        return float("inf")
    estimate = found.best.estimate
    row = {"time": estimate.wall_seconds, "cost": estimate.dollars,
           "energy": estimate.kilowatt_hours}[aim]  # fmt: skip
    return float(at_probability(np.array([row]), confidence)[0])


@settings(max_examples=40)
@given(
    st.lists(st.tuples(PRICES, PRICES), min_size=1, max_size=3),
    st.sampled_from(["time", "cost", "energy"]),
    st.floats(0, 3),
    st.one_of(st.none(), st.floats(1e3, 1e5)),
    st.one_of(st.none(), st.floats(1.0, 1e3)),
    st.sampled_from([0.5, 0.9]),
)
def test_either_market_is_no_worse_than_each(
    prices: list[tuple[float | None, float | None]], aim: str, rate: float,
    deadline: float | None, budget: float | None, confidence: float,
) -> None:  # fmt: skip
    """`any` qualifies what either market qualifies, and its choice is as good in the aim."""
    clusters = priced(prices)
    fields = {"aim": aim, "deadline_seconds": deadline, "budget_dollars": budget,
              "confidence": confidence, "preemption": Preemption(rate)}  # fmt: skip
    found = {m: ask(clusters, market=m, **fields) for m in ("on-demand", "spot", "any")}
    either = found["any"]
    for market in ("on-demand", "spot"):
        assert either.qualified >= found[market].qualified
        best = figure(found[market], aim, confidence)
        assert figure(either, aim, confidence) <= best * (1 + TIE) * (1 + 1e-9)
    assert either.considered == found["spot"].considered
    assert either.qualified + sum(either.refused_counts.values()) == either.considered
    if either.best is not None and either.best.estimate.spot:
        assert either.best.job.cluster.spot_dollars_per_hour is not None


def test_what_spot_makes_too_late_is_met_on_demand() -> None:
    """A deadline that only undisturbed machines meet is met at their price, though spot is cheaper."""
    clusters = priced([(2.0, 0.5)])
    calm = ask(clusters, market="on-demand", aim="cost").best.estimate.wall_seconds[1]
    limits = {"deadline_seconds": calm * 1.01, "preemption": Preemption(0.5)}
    assert ask(clusters, market="spot", **limits).best is None
    best = ask(clusters, market="any", **limits).best
    assert best is not None
    assert not best.estimate.spot


def test_least_time_is_undisturbed_and_least_cost_is_on_spot() -> None:
    """The aim chooses the market, and the front holds both."""
    clusters = priced([(2.0, 0.5)])
    assert not ask(clusters, market="any", aim="time").best.estimate.spot
    cheap = ask(clusters, market="any", aim="cost")
    assert cheap.best.estimate.spot
    assert cheap.best.dollars_per_hour == clusters[0].spot_dollars_per_hour
    assert {option.estimate.spot for option in cheap.front} == {False, True}


def test_a_run_that_losses_never_let_end_is_refused() -> None:
    """No run of centuries: it does not finish, and the loss rate is why."""
    clusters = priced([(2.0, 0.5)])
    found = ask(clusters, market="spot", preemption=Preemption(10.0, 7200.0))
    assert found.best is None
    assert found.refused_counts[ENDLESS] > 0
    assert any("spot nodes lose one every" in r.reason for r in found.refused)
    assert not found.near_misses
    assert ask(clusters, market="any", preemption=Preemption(10.0, 7200.0)).best is not None


def test_what_is_not_offered_on_spot_is_not_recommended_there() -> None:
    """Without a spot price there is no spot machine, even where only time counts."""
    found = ask(priced([(2.0, None)]), market="spot", aim="time")
    assert found.best is None
    assert NO_PRICE in found.refused_counts


def test_losses_widen_the_band_of_a_run_on_spot() -> None:
    """The 5 to 95 % band on spot is wider than the same plan's on demand, times the mean."""
    clusters = priced([(2.0, 0.5), (2.0, 0.5), (2.0, 0.5)])
    spot = ask(clusters, market="spot", aim="time", preemption=Preemption(1.0)).best.estimate
    calm = spot.forecast.seconds
    assert spot.wall_seconds[2] / spot.wall_seconds[1] > calm[2] / calm[1]
    assert spot.wall_seconds[1] / spot.wall_seconds[0] > calm[1] / calm[0]


@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_energy_is_judged_at_the_asked_confidence(confidence: float) -> None:
    """As time and dollars are."""
    from forerun.search.recommending import judge
    from forerun.search.score import score
    from forerun.search.space import Space
    from forerun.tables import Jobs

    cluster = tiny_cluster(1, 4)
    plans, _ = Space(WORKLOAD, (cluster,), (64,)).plans(4)
    objective = Objective(aim="energy", confidence=confidence)
    scored = score(Jobs.grid(WORKLOAD, cluster, plans), PREDICTOR, objective, LENGTH)
    judged = judge(scored, objective)
    expected = at_probability(scored.estimates.kilowatt_hours, confidence)
    np.testing.assert_allclose(judged.aim, expected)


@pytest.mark.parametrize("market", ["on-demand", "spot"])
def test_servers_machines_cost_draw_power_and_fail(market: str) -> None:
    """Two servers beside four workers' machines are paid for, and lost, as six machines are."""
    cluster = tiny_cluster(4, 1, spot_dollars_per_hour=4.0)
    plan = Plan(dp=4, micro_batch=8, global_batch=32, sync="ps-sync", parameter_servers=2)
    plans = [plan, replace(plan, servers_with_workers=True), replace(plan, sync="allreduce")]
    jobs = Jobs.of([Job(WORKLOAD, cluster, each) for each in plans])
    seconds, one = np.tile([0.9, 1.0, 1.1], (3, 1)), np.ones(3)
    spot, steps = np.full(3, market == "spot"), np.full(3, 1e6)
    apart, beside, without = (
        priced_runs(jobs, seconds, one, steps, spot, Preemption(0.05), True)[i] for i in range(3)
    )
    price = 4.0 if market == "spot" else 8.0
    for found, machines in ((apart, 6), (beside, 4), (without, 4)):
        hours = found.wall_seconds[1] / 3600
        assert found.dollars[1] == pytest.approx(hours * price * machines / 4)
        assert found.kilowatt_hours[1] == pytest.approx(hours * cluster.watts * machines / 4 / 1000)
    assert apart.wall_seconds[1] > beside.wall_seconds[1] == without.wall_seconds[1]
