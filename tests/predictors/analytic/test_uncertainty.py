"""Uncertainty: causes add up to the band, and distance to its parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.catalog import load_catalog
from forerun.domain.hardware import Cluster
from forerun.domain.job import Job
from forerun.domain.plan import Plan
from forerun.domain.quantiles import Z95, correlation
from forerun.predictors.analytic import AnalyticPredictor
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.layout import lay_out
from forerun.predictors.analytic.step import step_and_floor
from forerun.predictors.analytic.uncertainty import evidence, exposures
from forerun.search.space import Space
from forerun.tables import Jobs
from forerun.testing.samples import tiny_cluster, tiny_workload
from forerun.workloads.backward import graph_from_totals

WORKLOAD, CLUSTER = replace(tiny_workload(), framework="megatron"), tiny_cluster(4, 4)
PLANS, _ = Space(WORKLOAD, (CLUSTER,), (64,)).plans(CLUSTER.devices)
TAUGHT = replace(
    Constants(),
    run_counts={f"workload:{WORKLOAD.name}": 9.0, f"device:{CLUSTER.device.id}": 5.0,
            "framework:megatron": 5.0, "devices": 8.0},
)  # fmt: skip
PREDICTORS = [AnalyticPredictor(), AnalyticPredictor(TAUGHT)]


def every(predictor: AnalyticPredictor):
    """Return forecasts of every legal plan on the cluster."""
    return predictor.predict(Jobs.grid(WORKLOAD, CLUSTER, PLANS))


@pytest.mark.parametrize("predictor", PREDICTORS)
def test_causes_add_up_to_the_band(predictor: AnalyticPredictor) -> None:
    found = every(predictor)
    assert all((column >= 0).all() for column in found.causes.values())
    sigma = np.log(found.seconds[:, 2] / found.seconds[:, 1]) / Z95
    np.testing.assert_allclose(np.sqrt(sum(found.causes.values())), sigma, rtol=1e-6)


@pytest.mark.parametrize("predictor", PREDICTORS)
def test_parts_of_the_distance_add_up_to_it(predictor: AnalyticPredictor) -> None:
    found = every(predictor)
    np.testing.assert_allclose(sum(found.distance_parts.values()), found.distance)


@given(st.integers(0, len(PLANS) - 1), st.integers(0, len(PLANS) - 1))
def test_two_plans_share_what_their_steps_have_in_common(i: int, j: int) -> None:
    """The more alike their parts, the more alike their errors; no two plans are the same."""
    found = every(PREDICTORS[0]).take(np.array([i, j]))
    a, b = ({name: column[k : k + 1] for name, column in found.causes.items()} for k in (0, 1))
    other = {"plan": i == j}
    rho = correlation(a, b, other)[0]
    assert 0 <= rho <= 1
    shares = np.stack([column for name, column in found.parts.items() if name != "floor"])
    alike = np.minimum(*(shares / shares.sum(axis=0)).T).sum()
    assert (rho == pytest.approx(1.0)) == (i == j)
    if alike > 0.97:
        assert rho > 0.9
    assert correlation(a, b, {**other, "device": False})[0] < rho


FASTER = {
    "FLOP/s": lambda d, x: {"peak_flops": {k: v * x for k, v in d.peak_flops.items()}},
    "bytes/s": lambda d, x: {"memory_bytes_per_second": d.memory_bytes_per_second * x},
    "memory": lambda d, x: {"memory_bytes": d.memory_bytes * x},
}


def faster(cluster: Cluster, what: str, times: float) -> Cluster:
    """Return a cluster with so many times more of one thing."""
    if what == "links":
        links = {n: getattr(cluster, n) for n in ("intra", "inter")}
        return replace(cluster, **{
            n: replace(link, bytes_per_second=link.bytes_per_second * times)
            for n, link in links.items()
        })  # fmt: skip
    return replace(cluster, device=replace(cluster.device, **FASTER[what](cluster.device, times)))


@given(
    st.sampled_from([*PREDICTORS, AnalyticPredictor.shipped()]),
    st.sampled_from(["megatron", "pytorch", "nanotron", "deepspeed", "tensorflow"]),
    st.sampled_from([64, 512, 4096]),
    st.sampled_from([CLUSTER, tiny_cluster(1, 1), load_catalog().cluster("1x1xt4")]),
    st.sampled_from([*FASTER, "links"]),
    st.floats(1.01, 3.0),
)
def test_more_of_a_resource_raises_no_quantile(
    predictor: AnalyticPredictor, framework: str, hidden: int, cluster: Cluster, what: str,
    times: float,
) -> None:  # fmt: skip
    workload = tiny_workload(hidden=hidden, framework=framework)
    plans, _ = Space(workload, (cluster,), (64,)).plans(cluster.devices)
    before = predictor.predict(Jobs.grid(workload, cluster, plans)).seconds
    after = predictor.predict(Jobs.grid(workload, faster(cluster, what, times), plans)).seconds
    # The host joins all layers at once where bands are weighed, each pass where the step is.
    assert (after <= before * 1.005).all()


def test_details_leave_the_answer_as_it_is() -> None:
    jobs = Jobs.grid(WORKLOAD, CLUSTER, PLANS)
    short, full = PREDICTORS[0].predict(jobs, detail=False), PREDICTORS[0].predict(jobs)
    assert not short.causes
    assert not short.distance_parts
    np.testing.assert_array_equal(short.seconds, full.seconds)
    np.testing.assert_allclose(short.distance, full.distance)


def test_runs_of_a_workload_tell_what_its_totals_do_not() -> None:
    """Of a graph that is only totals, runs of it narrow the band; runs of others hardly do."""
    workload = replace(tiny_workload("net"), graph=graph_from_totals(25.6e6, 4.1), detailed=False)
    cluster, plan = tiny_cluster(1, 1), Plan(global_batch=8, micro_batch=8)
    jobs = Jobs.of([Job(workload, cluster, plan)])
    others = {f"device:{cluster.device.id}": 50.0, "framework:": 50.0, "setting:": 50.0}

    def totals(counts: dict[str, float]) -> float:
        predictor = AnalyticPredictor(replace(Constants(), run_counts=counts))
        rows = lay_out(jobs, predictor.constants).rows(predictor.constants)
        parts = step_and_floor(rows, predictor.constants)[0]
        known = evidence(jobs, predictor.constants)
        return float(exposures(rows, parts, known, predictor.constants)[0]["totals"][0])

    assert totals({}) == 1.0
    assert totals(others) == totals({})
    assert totals({"workload:net": 50.0}) < 0.4


def test_runs_of_other_frameworks_say_little_of_a_precision() -> None:
    """A framework that is known without a precision has kernels for it that no run has seen."""
    counts = {"framework:megatron": 50.0, "precision:fp8": 50.0, "precision:16 bits": 50.0,
              "precision:16 bits of megatron": 50.0}  # fmt: skip

    def known(framework: str, precision: str, **more: float) -> float:
        constants = replace(Constants(), run_counts={**counts, **more})
        workload = replace(WORKLOAD, framework=framework, precision=precision)
        jobs = Jobs.grid(workload, CLUSTER, PLANS.take(np.array([0])))
        return float(evidence(jobs, constants)["precision_evidence"][0])

    assert (
        known("megatron", "fp8")
        < 0.1
        < 0.9
        < known("megatron", "bf16")
        == known("megatron", "fp16")
    )
    assert known("megatron", "fp8", **{"precision:fp8 of megatron": 50.0}) > 0.9
    assert known("a new one", "fp8") > 0.9 > 0.1 > known("a new one", "fp4")


def test_runs_of_other_frameworks_tell_half_of_a_device_and_none_of_a_pipeline() -> None:
    """A known framework has kernels of its own for a device, and schedules of its own for stages."""
    device = CLUSTER.device.id
    counts = {"framework:megatron": 50.0, f"device:{device}": 50.0, "pipeline:nemo": 50.0}

    def known(what: str, framework: str, **more: float) -> float:
        constants = replace(Constants(), run_counts={**counts, **more})
        jobs = Jobs.grid(replace(WORKLOAD, framework=framework), CLUSTER, PLANS.take(np.array([0])))
        return float(evidence(jobs, constants)[f"{what}_evidence"][0])

    assert 0.4 < known("device", "megatron") < 0.6
    assert known("device", "megatron", **{f"device:{device} on megatron": 50.0}) > 0.9
    assert known("device", "a new one") > 0.9  # what is new is then said by the framework
    assert known("pipeline", "megatron") == 0.0
    assert known("pipeline", "megatron", **{"pipeline:megatron": 50.0}) > 0.9
