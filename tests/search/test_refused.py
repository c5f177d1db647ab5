"""Refused: near misses in a sensible order, counts that add up, and fixed fields that cannot be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from forerun.domain.forecast import Forecasts
from forerun.domain.objective import Objective
from forerun.domain.recommendation import Recommendation
from forerun.domain.workload import Length
from forerun.errors import RequestError
from forerun.predictors.analytic import AnalyticPredictor, Constants
from forerun.search.recommending import DEADLINE, MEMORY, NO_MEMORY, judge, recommend
from forerun.search.score import best_plan, score
from forerun.search.space import Space
from forerun.tables import Jobs
from forerun.testing.samples import tiny_cluster, tiny_device, tiny_workload

WORKLOAD = tiny_workload()
LENGTH = Length("samples", 1e6)
# One unnamed software in place of the mixture that a missing framework stands for.
PREDICTOR = AnalyticPredictor(
    Constants(run_counts={"framework:": 1.0, "framework:sample-framework": 1.0})
)


def crowded() -> float:
    """Return bytes of memory in which about half of the plans on four devices fit."""
    plans, _ = Space(WORKLOAD, (tiny_cluster(1, 4),), (64,)).plans(4)
    peaks = PREDICTOR.predict(Jobs.grid(WORKLOAD, tiny_cluster(1, 4), plans)).peak_bytes
    profile = PREDICTOR.constants.framework(WORKLOAD.framework)
    beside = profile.context_bytes + PREDICTOR.constants.group_buffer_bytes
    return (float(np.quantile(peaks[:, 2], 0.5)) * 1.05 + beside) / profile.usable_share


def ask(clusters: list[Any], fixed: dict[str, Any] | None = None, **fields: Any) -> Recommendation:
    """Return a recommendation for the sample transformer."""
    return recommend(WORKLOAD, clusters, Objective(**fields), LENGTH, PREDICTOR, fixed=fixed,
                     global_batches=[64])  # fmt: skip


def test_what_fits_and_is_late_is_nearer_than_what_does_not_fit() -> None:
    """With a hopeless deadline the nearest misses still fit in memory, one a cluster."""
    small = tiny_device("small-gpu", memory_bytes=crowded())
    fast = replace(small, id="fast-gpu", peak_flops={"bf16": 1e18}, memory_bytes=crowded() / 50)
    clusters = [tiny_cluster(1, 4, small), tiny_cluster(2, 4, small), tiny_cluster(1, 4, fast)]
    found = ask(clusters, deadline_seconds=1.0)
    fits = [option.estimate.fit_probability >= 0.9 for option in found.near_misses]
    assert fits == sorted(fits, reverse=True)
    assert fits[0]
    assert not fits[-1]
    names = [option.job.cluster.name for option in found.near_misses]
    assert len(set(names)) == len(names)
    assert set(found.near_misses[0].misses) == {DEADLINE}
    assert MEMORY in found.near_misses[-1].misses


def test_distance_counts_fitting_then_limits_then_how_far() -> None:
    """The three parts of the order, on every plan of a cluster."""
    cluster = tiny_cluster(1, 4, tiny_device(memory_bytes=crowded()))
    plans, _ = Space(WORKLOAD, (cluster,), (64,)).plans(4)
    objective = Objective(deadline_seconds=1.0, budget_dollars=2.0)
    scored = score(Jobs.grid(WORKLOAD, cluster, plans), PREDICTOR, objective, LENGTH)
    fitting = scored.take(np.flatnonzero(scored.estimates.fit_probability >= 0.9)).estimates
    objective = Objective(
        deadline_seconds=float(np.median(fitting.wall_seconds[:, 1])) * 1.05,
        budget_dollars=float(np.median(fitting.dollars[:, 1])) * 0.95,
    )
    scored = score(Jobs.grid(WORKLOAD, cluster, plans), PREDICTOR, objective, LENGTH)
    judged = judge(scored, objective)
    fits = ~judged.reasons[MEMORY]
    late, dear = judged.reasons["misses the deadline"], judged.reasons["exceeds the budget"]
    assert fits.any()
    assert not fits.all()
    assert judged.distance[fits].max() < judged.distance[~fits].min()
    one, two = fits & (late ^ dear), fits & late & dear
    assert one.any()
    assert two.any()
    assert judged.distance[one].max() < judged.distance[two].min()
    assert (judged.distance[judged.qualified] == 0).all()


def test_counts_of_the_shown_refusals_add_up() -> None:
    """Each limit's count stands once, and all of them are what did not qualify."""
    clusters = [tiny_cluster(n, 4, tiny_device(memory_bytes=crowded())) for n in (1, 2, 3, 4)]
    found = ask(clusters, budget_dollars=2.0)
    assert len(found.refused) > len(found.refused_counts)
    assert sum(refusal.count for refusal in found.refused) == found.considered - found.qualified
    for limit, count in found.refused_counts.items():
        rows = [refusal.count for refusal in found.refused if refusal.limit == limit]
        assert rows[0] == count
        assert not any(rows[1:])


@pytest.mark.parametrize(
    ("devices", "fixed", "named", "why"),
    [
        ([1], {"vpp": 2}, "vpp=2", "pipeline"),
        ([16], {"dp": 3}, "dp=3", "16 devices"),
        ([4, 8], {"tp": 3}, "tp=3", "devices"),
        ([4, 16], {"tp": 16}, "tp=16", "heads"),
        ([4], {"ep": 2}, "ep=2", "experts"),
        ([4], {"cp": 4, "sequence_parallel": True}, "cp=4", ""),
        ([8], {"pp": 8}, "pp=8", "layers"),
        ([4], {"micro_batch": 128}, "micro_batch=128", "global batch"),
        ([4], {"sync": "ps-sync", "zero_stage": 1}, "zero_stage=1", "data parallel only"),
        ([4], {"sync": "ps-sync", "parameter_servers": 2**31 - 1}, "parameter_servers", "shards"),
    ],
)
def test_a_fixed_field_that_no_cluster_can_take_is_a_wrong_request(
    devices: list[int], fixed: dict[str, Any], named: str, why: str
) -> None:
    """The field is named with its reason, and the exit code is that of a wrong request."""
    workload = WORKLOAD.with_(seq_len=100)
    with pytest.raises(RequestError) as raised:
        recommend(workload, [tiny_cluster(1, d) for d in devices], Objective(), LENGTH, PREDICTOR,
                  fixed=fixed, global_batches=[64])  # fmt: skip
    assert raised.value.exit_code == 2
    assert named in raised.value.found
    assert why in raised.value.found


def test_a_fixed_field_that_some_cluster_can_take_is_counted_where_it_cannot() -> None:
    """One device cannot interleave, four can: the first is refused with the reason."""
    found = ask([tiny_cluster(1, 1), tiny_cluster(1, 4)], fixed={"vpp": 2})
    assert found.best.job.cluster.devices == 4
    assert found.best.job.plan.vpp == 2
    assert any("vpp" in reason for reason in found.refused_counts)
    assert found.qualified + sum(found.refused_counts.values()) == found.considered


def test_what_is_not_the_fault_of_a_fixed_field_is_not_blamed_on_it() -> None:
    """A batch that is too small for data parallelism has nothing to do with recomputation."""
    plain = WORKLOAD.with_(shape=type(WORKLOAD.shape)())
    with pytest.raises(RequestError, match="global batch"):
        best_plan(plain, tiny_cluster(1, 8), PREDICTOR, fixed={"recompute": "full"}, global_batch=4)


class Plain:
    """A predictor that knows nothing of detail, and may have a defect of its own."""

    name = "plain"

    def __init__(self, broken: bool = False) -> None:
        self.broken = broken

    def fit(self, runs: Any) -> Plain:
        """Return itself."""
        return self

    def declines(self, jobs: Jobs) -> list[str | None]:
        """Return that it answers all."""
        return [None] * len(jobs)

    def predict(self, jobs: Jobs) -> Forecasts:
        """Return what physics says."""
        if self.broken:
            raise TypeError("a defect of the predictor")
        return PREDICTOR.predict(jobs)


def test_a_predictor_that_knows_no_memory_is_said_to() -> None:
    """What nobody forecasts is not called too large."""

    class Forgetful(Plain):
        def predict(self, jobs: Jobs) -> Forecasts:
            nan = np.full(len(jobs), np.nan)
            return replace(PREDICTOR.predict(jobs), fit_probability=nan,
                           peak_bytes=np.full((len(jobs), 3), np.nan), memory_parts={})  # fmt: skip

    found = recommend(WORKLOAD, [tiny_cluster(1, 4)], Objective(), LENGTH, Forgetful(),
                      global_batches=[64])  # fmt: skip
    assert found.best is None
    assert next(iter(found.refused_counts)) == NO_MEMORY
    assert MEMORY not in found.refused_counts


def test_a_predictor_without_detail_is_asked_plainly() -> None:
    """Its answers are the same."""
    cluster = [tiny_cluster(1, 4)]
    mine = recommend(WORKLOAD, cluster, Objective(), LENGTH, Plain(), global_batches=[64])
    assert mine.best.job.plan == ask(cluster).best.job.plan


def test_a_type_error_inside_a_predictor_is_not_swallowed() -> None:
    """It is raised at the first call, and predict is not tried a second time."""
    calls = []

    class Broken(AnalyticPredictor):
        def predict(self, jobs: Jobs, detail: bool = True) -> Forecasts:
            calls.append(detail)
            raise TypeError("a defect of the predictor")

    for predictor in (Broken(), Plain(broken=True)):
        with pytest.raises(TypeError, match="a defect"):
            recommend(WORKLOAD, [tiny_cluster(1, 1)], Objective(), LENGTH, predictor,
                      global_batches=[64])  # fmt: skip
    assert calls == [False]


def test_what_needs_less_than_there_is_and_is_not_sure_enough_says_so() -> None:
    """A plan whose median peak lies below the memory is refused for its chance, and it is said."""
    small = tiny_device("small-gpu", memory_bytes=crowded())
    found = ask([tiny_cluster(1, 4, small)], fit_confidence=0.999)
    words = [r.reason for r in found.refused if r.limit == MEMORY]
    assert words[0].startswith(f"{MEMORY}: its chance is too low: P(fits) = ")
    assert " %, 99.9 % is asked; the median needs " in words[0]
    assert words[0].endswith(" a device")


def test_a_cluster_that_fits_only_at_first_sight_is_refused_by_name() -> None:
    """Scores may be surer than answers: what does not fit in detail is counted and named."""

    class Unsure(AnalyticPredictor):
        def predict(self, jobs: Jobs, detail: bool = True) -> Forecasts:
            found = super().predict(jobs, detail)
            doubtful = detail & (jobs.per_cluster("nodes") == 2)
            chance = np.where(doubtful, 0.5, found.fit_probability)
            return replace(found, fit_probability=chance)

    clusters = [tiny_cluster(1, 4), tiny_cluster(2, 4)]
    found = recommend(WORKLOAD, clusters, Objective(), LENGTH, Unsure(), global_batches=[64])
    assert found.best.job.cluster.name == clusters[0].name
    assert clusters[1].name in {r.cluster for r in found.refused if r.limit == MEMORY}
    assert found.qualified + sum(found.refused_counts.values()) == found.considered
