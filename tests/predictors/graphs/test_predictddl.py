"""PredictDDL passes its exam, answers networks that nobody ran, and says which measured one is most alike."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from forerun.domain.graph import Graph, Op, OpKind
from forerun.domain.job import Job
from forerun.domain.plan import Plan
from forerun.errors import RequestError
from forerun.predictors.analytic import AnalyticPredictor
from forerun.predictors.graphs import encoder as gated
from forerun.predictors.graphs import graphormer
from forerun.predictors.graphs.predictddl import (
    FEATURES,
    LEAST_NETWORKS,
    REGRESSIONS,
    PredictDDL,
    WorkloadEmbeddingsGenerator,
)
from forerun.predictors.graphs.primitives import primitive_graph
from forerun.predictors.options import started
from forerun.search.score import best_plan
from forerun.tables import Jobs, Runs, Table
from forerun.testing import PredictorContract
from forerun.testing.samples import tiny_cluster
from forerun.workloads.zoo import zoo_workload

NAMES = (
    "resnet18", "resnet34", "resnet50", "vgg11", "vgg16", "alexnet", "squeezenet1_1", "mobilenet_v2",
    "densenet121", "mnasnet1_0", "shufflenet_v2_x1_0", "googlenet",
)  # fmt: skip


def jobs_of(names: tuple[str, ...]) -> Jobs:
    return Jobs.of([
        Job(zoo_workload(name), tiny_cluster(1, devices),
            Plan(dp=devices, micro_batch=batch, global_batch=batch * devices))
        for name in names for devices in (1, 2, 4) for batch in (16, 64)
    ])  # fmt: skip


@cache
def runs() -> Runs:
    """Return runs at a third of the peak, slower for each kernel that is started."""
    jobs = jobs_of(NAMES)
    seconds = np.array([
        3.0 * job.plan.global_batch / job.cluster.devices
        * (job.workload.graph.forward_flops + job.workload.graph.backward_flops) / 100e12
        + 1e-5 * job.workload.graph.total("launches")
        for job in jobs
    ])  # fmt: skip
    return Runs(jobs, Table({"step_time_s": seconds}, len(jobs)))


class TestFitted(PredictorContract):
    def make_predictor(self) -> PredictDDL:
        return PredictDDL().fit(runs())

    def make_jobs(self) -> Jobs:
        return jobs_of(("resnet101", "vgg13", "resnet18"))

    def make_runs(self) -> Runs:
        return runs()


@pytest.mark.parametrize("regression", REGRESSIONS)
@pytest.mark.parametrize("features", FEATURES[:-1])
def test_every_regression_learns_from_every_feature(regression: str, features: str) -> None:
    fitted = PredictDDL(regression, features).fit(runs())
    seconds = runs().step_seconds()
    off = np.abs(np.log(fitted.predict(runs().jobs).seconds[:, 1] / seconds))
    spread = np.abs(np.log(seconds / np.median(seconds)))
    assert np.median(off) < 0.5 * np.median(spread)


def test_a_network_that_nobody_ran_is_answered_with_the_nearest_one() -> None:
    fitted = PredictDDL().fit(runs())
    known, new = (fitted.predict(jobs_of((name,)))[0] for name in ("resnet50", "resnet101"))
    assert known.nearest == "resnet50 at 0.00"
    assert new.nearest is not None
    assert float(new.nearest.split(" at ")[1]) > 0
    assert new.seconds[0] < new.seconds[1] < new.seconds[2]


def test_a_network_unlike_all_others_is_declined_with_its_distance() -> None:
    fitted = PredictDDL().fit(runs())
    odd = Graph(tuple(Op(f"norm{i}", OpKind.NORM, flops=1e6, params=64.0) for i in range(40)))
    job = Job(
        replace(zoo_workload("resnet18"), graph=odd), tiny_cluster(1, 1), Plan(global_batch=8)
    )
    (reason,) = fitted.declines(Jobs.of([job]))
    assert reason is not None
    assert "usual distances away" in reason


def test_a_workload_of_totals_has_no_graph_to_embed() -> None:
    totals = replace(zoo_workload("resnet18"), detailed=False)
    job = Job(totals, tiny_cluster(1, 1), Plan(global_batch=8))
    (reason,) = PredictDDL().fit(runs()).declines(Jobs.of([job]))
    assert reason == "only totals of resnet18 are known, and an embedding needs its graph"


def test_a_network_of_operations_without_a_primitive_is_declined_with_their_share() -> None:
    job = Job(zoo_workload("gnmt"), tiny_cluster(1, 1), Plan(global_batch=8))
    (reason,) = PredictDDL().fit(runs()).declines(Jobs.of([job]))
    assert reason is not None
    assert "of its FLOPs are operations without a primitive: " in reason


def test_a_type_of_dataset_that_was_never_measured_is_declined_with_the_command() -> None:
    small = Job(
        replace(zoo_workload("resnet18"), image_size=32), tiny_cluster(1, 1), Plan(global_batch=16)
    )
    (reason,) = PredictDDL().fit(runs()).declines(Jobs.of([small]))
    assert reason is not None
    assert "no run of images of 32 x 32 was given" in reason
    assert "forerun fit --system predictddl" in reason


@pytest.mark.parametrize("encoder", ["quantities", "residual", "graphormer-residual"])
def test_an_encoder_is_trained_by_the_fit_and_goes_with_the_model(
    encoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr("forerun.predictors.graphs.predictddl.STEPS", 3)
    fitted = PredictDDL("linear", "embedding", encoder=encoder).fit(runs())
    assert fitted.model is not None
    kind = graphormer if encoder.startswith("graphormer") else gated
    assert fitted.model.encoder.keys() == kind.shapes().keys()
    again, jobs = PredictDDL.from_json(fitted.to_json()), jobs_of(("resnet101",))
    np.testing.assert_array_equal(again.predict(jobs).seconds, fitted.predict(jobs).seconds)
    other = PredictDDL("linear", "embedding").fit(runs())
    assert not np.array_equal(other.predict(jobs).seconds, fitted.predict(jobs).seconds)


def test_an_encoder_may_be_a_file(tmp_path: Path) -> None:
    save_file = pytest.importorskip("safetensors.numpy").save_file
    rng = np.random.default_rng(0)
    own = {
        name: rng.normal(size=shape).astype(np.float32) for name, shape in gated.shapes().items()
    }
    save_file(own, tmp_path / "own.safetensors")
    spec = f"predictddl:regression=linear:features=embedding:encoder={tmp_path}/own.safetensors"
    fitted = started(spec).fit(runs())  # type: ignore[attr-defined]
    np.testing.assert_allclose(fitted.model.encoder["gru.bias_hh"], own["gru.bias_hh"])
    assert fitted.predict(jobs_of(("resnet101",))).answered.all()
    with pytest.raises(RequestError, match="no safetensors file"):
        PredictDDL(encoder=str(tmp_path / "none.safetensors")).fit(runs())


def test_what_physics_leaves_is_learned_where_that_is_the_target() -> None:
    jobs, physics = runs().jobs, AnalyticPredictor().predict(runs().jobs).seconds[:, 1]
    twice = Runs(jobs, Table({"step_time_s": 2.0 * physics}, len(jobs)))
    asked = jobs_of(("resnet101", "vgg13"))
    found = PredictDDL("linear", "none", "residual").fit(twice).predict(asked)
    expected = 2.0 * AnalyticPredictor().predict(asked).seconds[:, 1]
    np.testing.assert_allclose(found.seconds[:, 1], expected, rtol=1e-6)


def test_physics_chooses_among_plans_that_trees_cannot_tell_apart() -> None:
    fitted = PredictDDL().fit(runs())
    job = jobs_of(("resnet101",))[0]
    chosen, by_physics = (
        best_plan(job.workload, job.cluster, one, fixed={}, global_batch=16)[0]
        for one in (fitted, AnalyticPredictor())
    )
    assert chosen == by_physics
    assert chosen.micro_batch > 1


def test_few_networks_are_refused() -> None:
    few = np.flatnonzero(runs().jobs.workload_index < LEAST_NETWORKS - 1)
    with pytest.raises(RequestError, match="at least 3 networks"):
        PredictDDL().fit(runs().take(few))


def test_it_knows_nothing_before_a_fit() -> None:
    reasons = PredictDDL().declines(jobs_of(("resnet18",)))
    assert all(reason is not None and "knows no runs" in reason for reason in reasons)


def test_a_saved_predictor_answers_as_before() -> None:
    fitted, jobs = PredictDDL().fit(runs()), jobs_of(("resnet101",))
    again = PredictDDL.from_json(fitted.to_json())
    assert np.array_equal(again.predict(jobs).seconds, fitted.predict(jobs).seconds)


def test_bands_grow_where_cluster_and_batch_lie_beyond_the_runs() -> None:
    fitted = PredictDDL().fit(runs())
    job = jobs_of(("resnet50",))[5]
    far = replace(
        job, cluster=tiny_cluster(4, 8), plan=Plan(dp=32, micro_batch=64, global_batch=64 * 32)
    )
    near, wide = (fitted.predict(Jobs.of([one]))[0] for one in (job, far))
    assert wide.seconds[2] / wide.seconds[0] > 2.0 * near.seconds[2] / near.seconds[0]
    assert wide.distance > near.distance


@pytest.mark.parametrize(
    ("part", "value"),
    [("sigma", -1.0), ("usual", 0.0), ("names", ["resnet18"]), ("reach", [[0.0], [1.0]]), ("centre", [0.0]), ("sides", [])],
)  # fmt: skip
def test_a_damaged_model_is_refused_before_use(part: str, value: object) -> None:
    saved = json.loads(PredictDDL().fit(runs()).to_json())
    saved["model"][part] = value
    with pytest.raises(RequestError, match="fit it again"):
        PredictDDL.from_json(json.dumps(saved))


@pytest.mark.parametrize(
    ("part", "value"), [("scale", 0.0), ("right", 99_999), ("left", 0), ("places", 99_999)]
)
def test_a_damaged_regression_is_refused_before_use(part: str, value: float) -> None:
    saved = json.loads(PredictDDL().fit(runs()).to_json())
    regression = saved["model"]["regression"]
    holder = regression if part in regression else regression["model"]
    holder[part][0] = value
    with pytest.raises(RequestError, match="fit it again"):
        PredictDDL.from_json(json.dumps(saved))


@pytest.mark.parametrize("part", ["regression", "features", "target"])
def test_a_model_of_another_option_is_refused(part: str) -> None:
    saved = json.loads(PredictDDL().fit(runs()).to_json())
    with pytest.raises(RequestError, match="fit it again"):
        PredictDDL.from_json(json.dumps(saved | {part: "psychic"}))


def test_many_graphs_are_embedded_in_parts_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    from forerun.predictors.graphs import predictddl

    graphs = [primitive_graph(zoo_workload(name).graph) for name in NAMES]
    together = WorkloadEmbeddingsGenerator().of(graphs)
    monkeypatch.setattr(predictddl, "MOST_CELLS", 20_000)
    np.testing.assert_allclose(WorkloadEmbeddingsGenerator().of(graphs), together, atol=1e-4)


def test_a_structure_is_embedded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from forerun.predictors.graphs import predictddl

    made, whole = [], predictddl.encoder_of
    monkeypatch.setattr(predictddl, "encoder_of", lambda found: (made.append(1), whole(found))[1])
    cache_of, graph = WorkloadEmbeddingsGenerator(), primitive_graph(zoo_workload("resnet18").graph)
    first, second = cache_of.of([graph]), cache_of.of([graph, graph])
    assert len(made) == 1
    assert np.array_equal(first[0], second[1])
