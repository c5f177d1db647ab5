"""Ties: the simplest of what no forecast tells apart, however the plans are cut into chunks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.domain.hardware import Cluster
from forerun.domain.objective import Objective
from forerun.domain.plan import Plan, PlanColumns
from forerun.domain.recommendation import Recommendation
from forerun.domain.workload import Length
from forerun.predictors.analytic import AnalyticPredictor, Constants
from forerun.search.recommending import recommend
from forerun.search.score import EVEN, TIE, burden, score_space, simplest
from forerun.search.space import Space
from forerun.tables import Jobs
from forerun.testing.samples import tiny_cluster, tiny_workload

WORKLOAD = tiny_workload(layers=6)
LENGTH = Length("samples", 1e6)
# One unnamed software in place of the mixture that a missing framework stands for.
PREDICTOR = AnalyticPredictor(
    Constants(run_counts={"framework:": 1.0, "framework:sample-framework": 1.0})
)
ROWS = st.lists(
    st.tuples(st.integers(1000, 1100), st.integers(0, 6), st.integers(0, 3)),
    min_size=1,
    max_size=60,
)


def ask(objective: Objective, nodes: tuple[int, ...]) -> Recommendation:
    """Return a recommendation for the sample transformer, its front whole."""
    clusters = tuple(tiny_cluster(n, 4) for n in nodes)
    return recommend(WORKLOAD, clusters, objective, LENGTH, PREDICTOR, global_batches=[64],
                     max_front=1000)  # fmt: skip


def hard(plan: Plan) -> int:
    """Return one plan's burden."""
    jobs = Jobs.grid(WORKLOAD, tiny_cluster(1, plan.world_size), PlanColumns.of([plan]))
    return int(burden(jobs.plans)[0])


def test_fewer_mechanisms_then_fewer_devices_then_larger_micro_batches() -> None:
    """The order of preference among equals."""
    order = [
        Plan(dp=1, micro_batch=4, global_batch=64),
        Plan(dp=1, micro_batch=2, global_batch=64),
        Plan(dp=4, micro_batch=8, global_batch=64),
        Plan(dp=4, micro_batch=8, global_batch=64, zero_stage=1),
        Plan(dp=4, micro_batch=8, global_batch=64, zero_stage=2),
        Plan(dp=2, tp=2, micro_batch=8, global_batch=64, zero_stage=1),
        Plan(dp=2, tp=2, micro_batch=8, global_batch=64, recompute="full"),
        Plan(tp=2, pp=2, micro_batch=8, global_batch=64, recompute="full", vpp=2),
    ]
    found = [hard(plan) for plan in order]
    assert found == sorted(set(found))


@given(ROWS)
def test_the_simplest_is_within_the_tie_and_nothing_simpler_is(rows: list[tuple[int, ...]]) -> None:
    """No row within 5 % has fewer mechanisms; of as few, none within half a per cent is simpler."""
    aim, rank = np.array([r[0] for r in rows], float), np.array([r[1] for r in rows])
    mechanisms, rest = np.divmod(rank, 3)
    (chosen,) = simplest(aim, (mechanisms << 42) + rest)
    near = aim <= aim.min() * (1 + TIE)
    assert near[chosen]
    assert mechanisms[chosen] == mechanisms[near].min()
    near &= mechanisms == mechanisms[chosen]
    near &= aim <= aim[near].min() * (1 + EVEN)
    assert near[chosen]
    assert rest[chosen] == rest[near].min()
    assert aim[chosen] == aim[near & (rest == rest[chosen])].min()


@given(ROWS)
def test_the_simplest_of_each_group_is_that_of_its_rows_alone(rows: list[tuple[int, ...]]) -> None:
    """One row a group, as if the group were asked alone."""
    aim, rank, group = (np.array(column) for column in zip(*rows, strict=True))
    aim = aim.astype(float)
    alone = [
        mine[simplest(aim[mine], rank[mine])[0]]
        for g in np.unique(group)
        for mine in [np.flatnonzero(group == g)]
    ]
    assert simplest(aim, rank, group).tolist() == alone


@pytest.mark.parametrize("aim", ["time", "cost", "energy", "knee"])
def test_the_answer_does_not_depend_on_the_chunks(
    aim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small chunks and one large one give the same best, front and counts."""
    objective = Objective(aim=aim, deadline_seconds=3000.0)
    answers = []
    for size in (97, 100_000):
        monkeypatch.setattr("forerun.search.score.CHUNK", size)
        found = ask(objective, (1, 2, 3, 4))
        answers.append(
            (
                found.best.job.plan,
                found.best.job.cluster.name,
                [o.estimate.wall_seconds for o in found.front],
                [(o.job.plan, o.job.cluster.name) for o in found.alternatives],
                found.considered, found.qualified, found.refused_counts,
            )
        )  # fmt: skip
    assert answers[0] == answers[1]


def test_the_front_is_of_true_figures() -> None:
    """A simpler plan that is as good as equal stands for its cluster, by its own figures."""
    objective = Objective(aim="time")
    space = Space(WORKLOAD, tuple(tiny_cluster(n, 4) for n in (1, 2, 4)), (64,))
    least = np.inf
    for every in score_space(space, PREDICTOR, objective, LENGTH, {}):
        fits = every.estimates.fit_probability >= objective.fit_confidence
        least = min(least, float(every.estimates.wall_seconds[fits, 1].min()))
    found = ask(objective, (1, 2, 4))
    assert found.front[0].estimate.wall_seconds[1] == pytest.approx(least, rel=1e-12)
    assert least <= found.best.estimate.wall_seconds[1] <= least * (1 + TIE) * (1 + EVEN)


def test_no_simpler_cluster_that_costs_more_and_takes_longer_is_best() -> None:
    """Ties are settled within a cluster: among clusters the least is best, and on the front."""
    small, large = tiny_cluster(1, 1), tiny_cluster(1, 4)

    def best_of(*clusters: Cluster) -> Recommendation:
        return recommend(WORKLOAD, clusters, Objective(), LENGTH, PREDICTOR, global_batches=[64])

    costs = [best_of(cluster).best.estimate.dollars[1] for cluster in (small, large)]
    # As good as equal, on fewer devices.
    price = small.dollars_per_hour * costs[1] / costs[0] * (1 + EVEN / 2)
    found = best_of(replace(small, name="small", dollars_per_hour=price), large)
    assert found.best.job.cluster.name == large.name
    assert [option.job.cluster.name for option in found.front] == [large.name]
    assert [option.job.cluster.name for option in found.alternatives] == [large.name, "small"]
