"""Beating: how sure the best is of its rivals, and which they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forerun.domain.forecast import Forecasts
from forerun.domain.objective import Objective
from forerun.domain.quantiles import probability_below, probability_less, spread
from forerun.domain.workload import Length
from forerun.predictors.analytic import AnalyticPredictor, Constants
from forerun.search.recommending import (
    TOGETHER,
    judge,
    knee,
    knee_win_probability,
    recommend,
    run_correlation,
)
from forerun.search.score import Scored, estimates_for, score
from forerun.search.space import Space
from forerun.tables import Jobs
from forerun.testing.samples import tiny_cluster, tiny_workload

WORKLOAD = tiny_workload()
LENGTH = Length("samples", 1e6)
# The sample framework counts as known: no mixture over others.
PREDICTOR = AnalyticPredictor(Constants(run_counts={"framework:sample-framework": 1.0}))
CLUSTERS = [tiny_cluster(n, 4) for n in (1, 2, 4)]
LAYOUT = ("dp", "tp", "pp", "cp", "ep")


def ask(objective: Objective, clusters=None, predictor=PREDICTOR, length=LENGTH, **options):
    """Return a recommendation for the sample transformer."""
    return recommend(WORKLOAD, clusters or CLUSTERS, objective, length, predictor,
                     global_batches=[64], **options)  # fmt: skip


def detailed(cluster, plans) -> Scored:
    """Return plans scored with their causes."""
    jobs = Jobs.grid(WORKLOAD, cluster, plans)
    forecasts = PREDICTOR.predict(jobs)
    return Scored(jobs, forecasts, estimates_for(jobs, forecasts, LENGTH, False))


@pytest.mark.parametrize("aim", ["time", "cost", "energy"])
def test_the_best_beats_every_option_at_least_as_often_as_not(aim: str) -> None:
    found = ask(Objective(aim=aim), energy=True)
    for option in (*found.front, *found.alternatives, found.next_layout):
        assert option.beaten[aim] >= 0.5 - 0.02  # ties within the allowance go to the simplest
    assert found.best.beaten[aim] == pytest.approx(0.5)


def test_answers_that_share_their_errors_are_told_apart() -> None:
    """More surely than independent ones: plans of one workload on one kind of device."""
    found = ask(Objective(aim="time"))
    slower = found.next_layout
    rows = [np.array([o.estimate.wall_seconds]) for o in (found.best, slower)]
    assert rows[0][0, 1] < rows[1][0, 1]
    assert slower.beaten["time"] > probability_less(*rows)[0] + 0.02


def test_the_runner_up_is_the_rival_that_is_beaten_least_surely() -> None:
    found = ask(Objective(aim="cost"))
    others = [o for o in (*found.front, *found.alternatives)
              if o.job.cluster.name != found.best.job.cluster.name]  # fmt: skip
    assert found.runner_up.beaten["cost"] == min(o.beaten["cost"] for o in others)


def test_a_single_cluster_has_no_runner_up_and_a_next_layout() -> None:
    """The next layout is the best of all plans with other degrees."""
    found = ask(Objective(aim="time"), clusters=CLUSTERS[1:2])
    assert found.runner_up is None
    best, rival = found.best.job.plan, found.next_layout.job.plan
    assert [getattr(best, n) for n in LAYOUT] != [getattr(rival, n) for n in LAYOUT]
    plans, _ = Space(WORKLOAD, (CLUSTERS[1],), (64,)).plans(CLUSTERS[1].devices)
    scored = score(Jobs.grid(WORKLOAD, CLUSTERS[1], plans), PREDICTOR, Objective(), LENGTH)
    judged = judge(scored, Objective(aim="time"))
    same = np.all([getattr(plans, n) == getattr(best, n) for n in LAYOUT], axis=0)
    least = judged.aim[judged.qualified & ~same].min()
    assert least <= found.next_layout.estimate.wall_seconds[1] <= least * 1.006


def test_a_plan_whose_degrees_are_fixed_has_no_next_layout() -> None:
    fixed = {"tp": 2, "pp": 1, "cp": 1}
    assert ask(Objective(), clusters=CLUSTERS[:1], fixed=fixed).next_layout is None


def test_where_nothing_qualifies_nothing_is_beaten_and_chances_are_told() -> None:
    found = ask(Objective(deadline_seconds=1.0, budget_dollars=0.01))
    assert found.runner_up is None
    assert found.next_layout is None
    for miss in found.near_misses:
        assert not miss.beaten
        assert set(miss.chance) == {"fits", "deadline", "budget", "all"}
        assert "P(in time)" in miss.misses["misses the deadline"]


def test_a_chance_reaches_the_confidence_exactly_where_a_limit_is_met() -> None:
    """Qualified by a quantile, and by a probability, are the same."""
    free = ask(Objective(aim="time")).best.estimate.wall_seconds
    for confidence in (0.3, 0.5, 0.9):
        objective = Objective(aim="cost", deadline_seconds=free[1] * 1.5, confidence=confidence)
        found = ask(objective)
        for option in (*found.front, *found.alternatives):
            assert option.chance["all"] >= confidence - 1e-6
        for miss in found.near_misses:
            assert miss.chance["all"] < confidence or miss.chance["fits"] < 0.9


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.95])
def test_the_confidence_is_asked_of_fitting_and_keeping_the_limits_together(
    confidence: float,
) -> None:
    """What meets a deadline at 90 % and fits at 90 % does both at 81 %."""
    plans, _ = Space(WORKLOAD, CLUSTERS[:1], (64,)).plans(CLUSTERS[0].devices)
    scored = score(Jobs.grid(WORKLOAD, CLUSTERS[0], plans), PREDICTOR, Objective(), LENGTH)
    fits = np.linspace(0.85, 1.0, len(scored))
    estimates = replace(scored.estimates, fit_probability=fits)
    scored = Scored(scored.jobs, replace(scored.forecasts, fit_probability=fits), estimates)
    run, cost = estimates.wall_seconds, estimates.dollars
    limits = {"deadline_seconds": float(np.quantile(run[:, 2], 0.5)),
              "budget_dollars": float(np.quantile(cost[:, 2], 0.6))}  # fmt: skip
    judged = judge(scored, Objective(confidence=confidence, **limits))
    kept = np.minimum(
        probability_below(run, limits["deadline_seconds"]),
        probability_below(cost, limits["budget_dollars"]),
    )
    expected = (fits >= 0.9) & (kept * fits >= confidence)
    assert judged.qualified.tolist() == expected.tolist()
    assert 0 < expected.sum() < len(expected)
    each = (fits >= 0.9) & (kept >= confidence)
    assert judged.reasons[TOGETHER].tolist() == (each & ~expected).tolist()
    assert (judged.distance[judged.reasons[TOGETHER]] > 0).all()


def test_the_knee_is_compared_as_drawing_it_again_and_again_would() -> None:
    """To first order: small errors, shared in part, move the front and its ranges."""
    time = np.array([40.0, 10.0, 20.0, 40.0, 80.0, 50.0])
    cost = np.array([25.0, 60.0, 33.0, 25.0, 20.0, 40.0])  # the first is the knee, the last off
    sigma, front = 0.02, np.array([1, 2, 3, 4])
    rho = np.full((6, 6), 0.6)
    np.fill_diagonal(rho, 1.0)
    rho[0, 3] = rho[3, 0] = 1.0
    believed = knee_win_probability(spread(time, np.full(6, sigma)), spread(cost, np.full(6, sigma)),
                           front, rho.copy())  # fmt: skip
    assert knee(time[front], cost[front]) == 1  # of the front; row 0 is its next
    rng = np.random.default_rng(0)
    values, vectors = np.linalg.eigh(rho)
    root = vectors * np.sqrt(np.maximum(values, 0))
    error = np.exp(sigma * rng.standard_normal((100_000, 6)) @ root.T)
    times, costs = time * error, cost * error
    height = (times / np.ptp(times[:, front], axis=1)[:, None]
              + costs / np.ptp(costs[:, front], axis=1)[:, None])  # fmt: skip
    drawn = np.mean(height[:, :1] < height, axis=0)
    drawn[[0, 3]] = 0.5  # the same job
    np.testing.assert_allclose(believed, drawn, atol=0.03)


def test_an_error_that_all_share_does_not_move_the_knee() -> None:
    time, cost = np.array([20.0, 10.0, 30.0, 80.0]), np.array([33.0, 60.0, 28.0, 20.0])
    rows = [spread(values, np.full(4, 0.5)) for values in (time, cost)]
    found = knee_win_probability(rows[0], rows[1], np.array([0, 1, 2, 3]), np.ones((4, 4)))
    assert np.isin(found.round(6), [0.0, 0.5, 1.0]).all()


def test_a_front_without_a_knee_is_compared_by_cost() -> None:
    found = ask(Objective(aim="knee"), clusters=CLUSTERS[:1])
    assert "knee" not in found.best.beaten
    assert found.compared_by == "cost"


def test_correlations_are_those_of_one_distribution() -> None:
    plans, _ = Space(WORKLOAD, (CLUSTERS[2],), (64,)).plans(CLUSTERS[2].devices)
    some = plans.take(np.arange(0, len(plans), max(1, len(plans) // 12)))
    rho = run_correlation(detailed(CLUSTERS[2], some))
    np.testing.assert_allclose(np.diag(rho), 1.0)
    np.testing.assert_allclose(rho, rho.T)
    assert np.linalg.eigvalsh(rho).min() > -1e-9


class Targets(AnalyticPredictor):
    """Says how many samples the target takes, give or take a half."""

    def predict(self, jobs: Jobs, detail: bool = True) -> Forecasts:
        found = super().predict(jobs, detail)
        return replace(
            found, samples_to_target=spread(np.full(len(jobs), 5e5), np.full(len(jobs), 0.4))
        )


def test_an_uncertain_length_counts_in_the_chance_of_a_deadline() -> None:
    usual = Length("samples", 1e6, "usual")
    sure_run = ask(Objective(aim="time"), predictor=Targets(), length=LENGTH).best
    unsure = ask(Objective(aim="time"), predictor=Targets(), length=usual).best
    half = np.array(sure_run.estimate.wall_seconds) / 2  # the target comes after half the samples
    assert unsure.estimate.wall_seconds[1] == pytest.approx(half[1], rel=1e-3)
    step, run = (
        np.log(rows[2] / rows[1]) / 1.6449 for rows in (half, unsure.estimate.wall_seconds)
    )
    assert run == pytest.approx(np.hypot(step, 0.4), rel=1e-3)
    deadline = half[2]
    late = ask(Objective(aim="time", deadline_seconds=deadline), predictor=Targets(), length=usual)
    assert late.best.chance["deadline"] < 0.95


def test_sure_forecasts_are_compared_for_sure() -> None:
    class Sure(AnalyticPredictor):
        def predict(self, jobs: Jobs, detail: bool = True) -> Forecasts:
            found = super().predict(jobs, detail)
            return replace(found, seconds=spread(found.seconds[:, 1], 0.0), unmeasured=None)

    found = ask(Objective(aim="time"), predictor=Sure())
    rivals = [*found.alternatives[1:], found.next_layout]
    slower = [o for o in rivals if o.estimate.wall_seconds > found.best.estimate.wall_seconds]
    assert slower
    assert all(o.beaten["time"] == 1.0 for o in slower)
