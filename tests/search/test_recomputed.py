"""Plans that recompute are scored only where the same plan without it may be beaten."""

import numpy as np
import pytest

from forerun.advisor import Advisor
from forerun.domain.objective import Objective
from forerun.predictors.analytic import AnalyticPredictor
from forerun.search import score
from forerun.search.space import Space, layout_codes
from forerun.tables import Jobs

CLUSTERS = ("1x8xa100-sxm-80gb", "4x8xh100-sxm-80gb", "2x4xl4", "1x4xt4")
CASES = (
    ("llama3-8b", "", 64), ("llama3-8b", "megatron", 48), ("bert-large", "pytorch", 256),
    ("mixtral-8x7b", "", 64), ("vit-l-16", "", 512), ("qwen3-30b-a3b", "deepspeed", 64),
    ("unet3d", "nemo", 64), ("llama3-70b", "", 64),
)  # fmt: skip


def jobs_of(name: str, framework: str, batch: int, **fixed: object) -> Jobs:
    advisor = Advisor()
    workload = advisor.workload(name, **({"framework": framework} if framework else {}))
    clusters = tuple(map(advisor.cluster, CLUSTERS))
    space = Space(workload, clusters, (batch,), fixed, filled=True)
    parts = [(p, clusters[i]) for p, positions, _ in space.worlds() for i in positions if len(p)]
    return score.grid(workload, parts)


@pytest.mark.parametrize(("name", "framework", "batch"), CASES)
def test_recomputation_saves_no_time_and_hardly_costs_memory(
    name: str, framework: str, batch: int
) -> None:
    jobs = jobs_of(name, framework, batch)
    plans, found = jobs.plans, score.predict_briefly(AnalyticPredictor.shipped(), jobs)
    seconds, fits = found.seconds, found.fit_probability
    columns = [
        layout_codes(plans), jobs.cluster_index, plans.micro_batch, plans.global_batch,
        plans.zero_stage, plans.vpp, plans.sequence_parallel,
    ]  # fmt: skip
    order = np.lexsort((plans.recompute, *columns))
    same = np.all([np.diff(column[order]) == 0 for column in columns], axis=0)
    assert same.sum() > 20
    longer = seconds[order][1:, 1] / seconds[order][:-1, 1]
    assert longer[same].min() >= 1.0
    less, more = fits[order][:-1][same], fits[order][1:][same]
    assert less[more < score._NO_HOPE].max(initial=0.0) < Objective().fit_confidence


@pytest.mark.parametrize(("name", "framework", "batch"), CASES)
@pytest.mark.parametrize("confidence", [0.5, 0.9])
def test_the_best_of_each_cluster_is_scored(
    name: str, framework: str, batch: int, confidence: float
) -> None:
    jobs, predictor = jobs_of(name, framework, batch), AnalyticPredictor.shipped()
    objective = Objective(confidence=confidence)
    every = score.predict_briefly(predictor, jobs)
    rows, found = score._less_recomputed_first(jobs, predictor, objective)
    assert (np.diff(rows) > 0).all()
    np.testing.assert_array_equal(found.seconds, every.seconds[rows])
    np.testing.assert_array_equal(found.fit_probability, every.fit_probability[rows])

    def best(rows: np.ndarray) -> set[int]:
        fits = every.fit_probability[rows]
        rows = rows[fits >= objective.fit_confidence]
        aim = score.at_probability(every.seconds[rows], confidence) / every.fit_probability[rows]
        hard = score.burden(jobs.plans.take(rows))
        return set(rows[score.simplest(aim, hard, jobs.cluster_index[rows])].tolist())

    assert best(rows) == best(np.arange(len(jobs))) != set()
    assert len(rows) < len(jobs)


def test_where_activations_leave_the_device_every_plan_is_scored() -> None:
    jobs = jobs_of("llama3-8b", "", 64, offload_activations=True)
    rows, _ = score._less_recomputed_first(jobs, AnalyticPredictor.shipped(), Objective())
    assert len(rows) == len(jobs) > 100
