"""Recommendations: the best of all plans, honest limits, and reasons for what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forerun.advisor import Advisor
from forerun.catalog import load_catalog
from forerun.domain.hardware import Cluster
from forerun.domain.job import Job
from forerun.domain.objective import Objective, Preemption
from forerun.domain.plan import Plan
from forerun.domain.quantiles import at_probability, probability_below
from forerun.domain.recommendation import Recommendation
from forerun.domain.workload import Length
from forerun.errors import UnsatisfiedError
from forerun.predictors.analytic import AnalyticPredictor, Constants
from forerun.predictors.analytic.operations import fastest_rate, floor_flops_per_sample
from forerun.search.recommending import MEMORY, Reduction, judge, misses, recommend
from forerun.search.score import (
    SKIPPED,
    SLOWER,
    TIE,
    TOO_FAR,
    TOO_LARGE,
    _reached,
    best_plan,
    grid,
    score,
    score_space,
    usable_bytes,
)
from forerun.search.space import Space
from forerun.tables import Jobs
from forerun.testing.samples import tiny_cluster, tiny_device, tiny_workload
from forerun.units import format_bytes

WORKLOAD = tiny_workload()
LENGTH = Length("samples", 1e6)
# One unnamed software in place of the mixture that a missing framework stands for.
PREDICTOR = AnalyticPredictor(
    Constants(run_counts={"framework:": 1.0, "framework:sample-framework": 1.0})
)
CLUSTERS = [tiny_cluster(n, 4) for n in (1, 2, 4)]


def ask(objective: Objective, clusters=None, **options):
    """Return a recommendation for the sample transformer."""
    return recommend(WORKLOAD, clusters or CLUSTERS, objective, LENGTH, PREDICTOR,
                     global_batches=[64], **options)  # fmt: skip


def everything(objective: Objective):
    """Return all plans of all clusters scored one cluster at a time (the oracle)."""
    for cluster in CLUSTERS:
        plans, _ = Space(WORKLOAD, (cluster,), (64,)).plans(cluster.devices)
        yield score(Jobs.grid(WORKLOAD, cluster, plans), PREDICTOR, objective, LENGTH)


@pytest.mark.parametrize("aim", ["time", "cost", "energy"])
def test_the_best_is_the_best_of_all_plans(aim: str) -> None:
    """No legal, fitting plan beats the chosen one by more than the tie allowance."""
    objective = Objective(aim=aim)
    chosen = ask(objective).best.estimate
    least = np.inf
    for scored in everything(objective):
        fits = scored.estimates.fit_probability >= objective.fit_confidence
        figures = {"time": scored.estimates.wall_seconds, "cost": scored.estimates.dollars,
                   "energy": scored.estimates.kilowatt_hours}[aim][fits, 1]  # fmt: skip
        least = min(least, figures.min(initial=np.inf))
    found = {"time": chosen.wall_seconds, "cost": chosen.dollars,
             "energy": chosen.kilowatt_hours}[aim][1]  # fmt: skip
    assert least <= found <= least * (1 + TIE)


def test_every_option_on_the_front_is_undominated_and_qualified() -> None:
    """The front runs from the fastest to the cheapest, each paying for its speed."""
    front = ask(Objective(aim="knee")).front
    seconds = [o.estimate.wall_seconds[1] for o in front]
    dollars = [o.estimate.dollars[1] for o in front]
    assert seconds == sorted(seconds)
    assert dollars == sorted(dollars, reverse=True)
    assert all(o.estimate.fit_probability >= 0.9 and not o.misses for o in front)


def test_limits_are_met_at_the_asked_confidence() -> None:
    """With 90 % confidence the 90 % quantile of time meets the deadline, not the median alone."""
    fastest = np.array([ask(Objective(aim="time")).best.estimate.wall_seconds])
    deadline = float(at_probability(fastest, 0.9)[0]) * 1.02
    best = ask(Objective(aim="cost", deadline_seconds=deadline, confidence=0.9)).best
    rows = np.array([best.estimate.wall_seconds])
    assert at_probability(rows, 0.9)[0] <= deadline
    assert probability_below(rows, deadline)[0] == pytest.approx(best.chance["deadline"])
    assert best.chance["deadline"] >= 0.9


def test_where_nothing_qualifies_the_nearest_misses_say_by_how_much() -> None:
    """An impossible deadline gives no best, the nearest options, and the miss in words."""
    result = ask(Objective(aim="cost", deadline_seconds=1e-3))
    assert result.best is None
    assert not result.front
    assert result.near_misses
    assert "deadline is" in result.near_misses[0].misses["misses the deadline"]
    assert result.refused_counts["misses the deadline"] > 0
    fastest = min(s.estimates.wall_seconds[:, 1].min() for s in everything(Objective()))
    assert result.near_misses[0].estimate.wall_seconds[1] <= 2 * fastest


def test_every_considered_plan_is_accounted_for() -> None:
    """Qualified plans and refused ones add up to what was considered."""
    result = ask(Objective(aim="cost", budget_dollars=20.0))
    assert result.qualified + sum(result.refused_counts.values()) == result.considered


def test_a_cluster_without_a_price_wins_only_on_time() -> None:
    """Least cost never picks a machine whose price is unknown, and says why."""
    unpriced = [replace(c, dollars_per_hour=None) for c in CLUSTERS]
    assert ask(Objective(aim="cost"), unpriced).best is None
    assert "no price is known" in ask(Objective(aim="cost"), unpriced).refused_counts
    assert ask(Objective(aim="time"), unpriced).best is not None


def test_a_job_that_fits_nowhere_is_refused_with_its_peak() -> None:
    """A device of 1 GB cannot hold it: the reason names need and have."""
    small = tiny_cluster(1, 1, tiny_device(memory_bytes=1e9))
    result = ask(Objective(aim="cost"), [small])
    assert result.best is None
    assert any("of 1 GB a device" in r.reason for r in result.refused)
    with pytest.raises(UnsatisfiedError, match="needs"):
        best_plan(WORKLOAD, small, PREDICTOR, fixed={}, global_batch=64)


def test_spot_is_cheaper_an_hour_and_longer_in_all() -> None:
    """Spot prices lower the dollars, losses lengthen the run, and the market is said."""
    spot = [replace(c, spot_dollars_per_hour=c.dollars_per_hour * 0.3) for c in CLUSTERS]
    calm = ask(Objective(aim="cost", market="on-demand"), spot).best.estimate
    lossy = ask(Objective(aim="cost", market="spot",
                          preemption=Preemption(rate_per_node_hour=0.2)), spot)  # fmt: skip
    assert lossy.best.estimate.spot
    assert lossy.best.estimate.dollars[1] < calm.dollars[1]
    assert any("losses a node-hour" in words for words in lossy.assumptions)
    either = ask(Objective(aim="cost", market="any"), spot).best.estimate
    assert either.dollars[1] <= min(calm.dollars[1], lossy.best.estimate.dollars[1]) * 1.01


def test_options_carry_the_parts_of_their_step() -> None:
    """Each option can be explained: its parts add up to its median step."""
    best = ask(Objective(aim="cost")).best
    forecast = best.estimate.forecast
    assert sum(forecast.parts.values()) == pytest.approx(forecast.seconds[1])
    assert sum(forecast.memory_parts.values()) == pytest.approx(forecast.peak_bytes[1])


def test_best_plan_gives_a_job_that_is_legal_and_says_so() -> None:
    """The chosen plan makes a job on that cluster, keeps what was fixed and is told in words."""
    plan, note = best_plan(WORKLOAD, CLUSTERS[1], PREDICTOR, fixed={"tp": 2}, global_batch=64)
    assert Job(WORKLOAD, CLUSTERS[1], plan).plan.tp == 2
    assert plan.global_batch == 64
    assert "chosen by search" in note
    for name in ("dp", "micro_batch", "zero_stage", "recompute"):
        assert f" {name}={getattr(plan, name)}" in note
    assert " tp=" not in note


def test_energy_is_a_third_axis_when_asked() -> None:
    """A front with energy is at least as long as one without."""
    two = ask(Objective(aim="cost")).front
    three = ask(Objective(aim="cost"), energy=True).front
    assert len(three) >= len(two)


def test_the_nearest_miss_is_measured_by_what_can_be_filled() -> None:
    """By how far a peak misses is by what this framework can fill of a device, not its data sheet."""
    wide = tiny_workload("wide", layers=32, hidden=4096)
    plans = [Plan(global_batch=64, micro_batch=micro) for micro in (8, 16, 32)]

    def scored(memory: float):
        cluster = tiny_cluster(1, 1, tiny_device(memory_bytes=memory))
        jobs = Jobs.of([Job(wide, cluster, plan) for plan in plans])
        return score(jobs, PREDICTOR, Objective(aim="time", fit_confidence=0.9), LENGTH)

    need = scored(1e15).forecasts.peak_bytes[:, 1]
    full, aim = scored(0.9 * need.min()), Objective(aim="time", fit_confidence=0.9)
    peak, usable = (
        at_probability(full.forecasts.peak_bytes, 0.9),
        usable_bytes(full.jobs, full.forecasts),
    )
    stated = full.jobs.per_cluster("device.memory_bytes")
    assert (np.abs(usable / stated - 1.0) > 0.005).all()
    distance = judge(full, aim).distance
    assert np.log(peak / usable) == pytest.approx(distance - 1e6 - 1e3)
    # Half of the runs need no more than what is usable where a peak just reaches it.
    just = scored(stated[0] * need[0] / usable[0])
    assert just.estimates.fit_probability[0] == pytest.approx(0.5, abs=0.1)
    assert f"{format_bytes(usable[2])} usable" in misses(full.take(np.array([2])), aim)[MEMORY]


def _clusters_of_two_devices() -> list[Cluster]:
    slow = tiny_device("slow-gpu", peak_flops={"bf16": 1e9, "fp32": 1e9})
    return [
        replace(tiny_cluster(nodes, 4, device), name=f"{nodes}x{device.id}-{price}",
                dollars_per_hour=float(price * nodes))
        for device in (tiny_device(), slow) for nodes in (1, 2) for price in range(10, 24)
    ]  # fmt: skip


def _shown(found: Recommendation) -> list[tuple[object, ...]]:
    options = (found.best, *found.front, *found.alternatives, found.runner_up, found.next_layout,
               *found.near_misses)  # fmt: skip
    return [
        (option.job.cluster.name, option.job.plan, option.estimate.wall_seconds, option.beaten)
        for option in options if option is not None
    ]  # fmt: skip


@pytest.mark.parametrize("few", [0, 10**9])  # plans below which no usual ones are scored first
@pytest.mark.parametrize("aim", ["cost", "time", "knee", "energy"])
def test_leaving_out_clusters_that_cannot_win_changes_no_option(
    aim: str, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best, the front and the alternatives are those of scoring every cluster."""
    clusters = _clusters_of_two_devices()
    monkeypatch.setattr("forerun.search.score.CHUNK", 400)
    monkeypatch.setattr("forerun.search.score._FEW", few)
    found = ask(Objective(aim=aim), clusters)
    monkeypatch.setattr(Reduction, "cannot_win", lambda *floors: "")
    every = ask(Objective(aim=aim), clusters)
    assert found.refused_counts.get(SKIPPED, 0) > 0
    assert SKIPPED not in every.refused_counts
    assert _shown(found) == _shown(every)
    assert (found.considered, found.legal) == (every.considered, every.legal)


@pytest.mark.parametrize("few", [0, 10**9])
@pytest.mark.parametrize("limits", [{"deadline_seconds": 1e-3}, {"budget_dollars": 1e-9}])
def test_what_misses_a_limit_by_far_is_left_out_and_changes_no_near_miss(
    limits: dict[str, float], few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forerun.search.score.CHUNK", 400)
    monkeypatch.setattr("forerun.search.score._FEW", few)
    clusters, objective = _clusters_of_two_devices(), Objective(**limits)
    found = ask(objective, clusters)
    monkeypatch.setattr(Reduction, "cannot_win", lambda *floors: "")
    every = ask(objective, clusters)
    assert found.best is None
    assert (TOO_FAR in found.refused_counts) == (few == 0)
    assert _shown(found) == _shown(every)
    assert (found.considered, found.legal) == (every.considered, every.legal)


def test_clusters_that_lack_the_memory_are_left_out_and_change_no_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With clusters that it fits on they are not scored in full; without, the nearest of them are shown."""
    monkeypatch.setattr("forerun.search.score.CHUNK", 400)
    monkeypatch.setattr("forerun.search.score._FEW", 0)
    small = [
        replace(tiny_cluster(nodes, 4, tiny_device(f"small-{size}", memory_bytes=size * 1e6)),
                name=f"{nodes}xsmall-{size}", dollars_per_hour=1.0)
        for size in range(1, 14) for nodes in (1, 2)
    ]  # fmt: skip
    for clusters in (small, small + _clusters_of_two_devices()):
        with monkeypatch.context() as without:
            found = ask(Objective(), clusters)
            without.setattr(Reduction, "cannot_win", lambda *floors: "")
            every = ask(Objective(), clusters)
        # What is far too large may be left out with what is slower.
        refused = every.refused_counts[MEMORY] + every.refused_counts[SLOWER]
        assert 0 < found.refused_counts[TOO_LARGE] <= refused
        assert bool(found.near_misses) == (clusters is small)
        assert _shown(found) == _shown(every)
        assert (found.considered, found.legal) == (every.considered, every.legal)


def test_where_only_an_answer_counts_nothing_that_misses_is_scored() -> None:
    clusters = [replace(c, name=f"{c.name}-{i}") for i, c in enumerate(_clusters_of_two_devices())]
    found = recommend(
        WORKLOAD, clusters, Objective(deadline_seconds=1e-6), LENGTH, AnalyticPredictor.shipped(),
        global_batches=(64,), near=False,
    )  # fmt: skip
    assert (found.best, found.near_misses, found.fitting) == (None, (), 0)
    assert found.refused_counts[TOO_FAR] == found.legal > 0


@pytest.mark.parametrize("name", ["llama3-8b", "mixtral-8x7b", "bert-large"])
def test_no_plan_needs_less_memory_than_the_usual_ones(name: str) -> None:
    workload, cluster = Advisor().workload(name), load_catalog().cluster("2x8xa100-sxm-40gb")
    space, predictor = Space(workload, (cluster,), (256,)), AnalyticPredictor.shipped()
    plans, _, _ = next(space.worlds())
    every, usual = (
        predictor.predict(grid(workload, [(some, cluster)]), detail=False).peak_bytes[:, 1]
        for some in (plans, space.usual(plans))
    )
    assert len(usual) < 0.6 * len(every)
    assert usual.min() == every.min()


@pytest.mark.parametrize("name", ["resnet50", "bert-large", "llama3-8b"])
def test_no_plan_gets_more_out_of_a_device_than_it_does_alone(name: str) -> None:
    """What leaves a cluster out holds for every plan on it, also where memory forbids the plan."""
    workload, catalog = Advisor().workload(name), load_catalog()
    texts = ("1x8xa100-sxm-80gb", "4x8xh100-sxm-80gb", "1xgcp:tpu-v5litepod-8", "8x1xt4")
    clusters = tuple(catalog.cluster(text) for text in texts)
    space = Space(workload, clusters, (256,))
    predictor = AnalyticPredictor.shipped()
    shares = _reached(space, predictor)
    assert (shares < 1).all()
    assert (shares > 0.01).all()
    full = shares * [fastest_rate(c.device, workload) * c.devices for c in clusters]
    least = floor_flops_per_sample(workload) * 256 / full
    for scored in score_space(space, predictor, Objective(aim="time"), Length("steps", 1), {}):
        seconds = scored.forecasts.seconds[:, 1]
        of = [texts.index(c.name) for c in scored.jobs.clusters]
        assert (seconds >= least[np.array(of)[scored.jobs.cluster_index]]).all()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_what_a_device_reaches_alone_does_not_hang_on_the_order_of_hosts(order) -> None:
    """Two hosts of one device, of which one decodes its input slowly."""
    catalog = load_catalog()
    hosts = [replace(catalog.cluster("1x8xh100-sxm-80gb"), vcpus_per_device=n) for n in (28.0, 2.0)]
    workload = Advisor().workload("resnet50")
    space = Space(workload, tuple(hosts[i] for i in order), (256,), {}, False)
    one, other = _reached(space, AnalyticPredictor())
    assert one == other
    best = Space(workload, (replace(hosts[0], vcpus_per_device=1e6),), (256,), {}, False)
    assert one >= _reached(best, AnalyticPredictor())[0]
