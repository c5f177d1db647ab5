"""Job: an illegal plan is refused at birth in words that carry the numbers of this job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from forerun.domain.graph import Graph, Op, OpKind
from forerun.domain.hardware import Cluster, Device, Link
from forerun.domain.job import Job, job_problem
from forerun.domain.plan import Plan
from forerun.domain.workload import LayerShape, Workload
from forerun.errors import RequestError

LINK = Link("nvlink", 1e-6, 1e11)
DEVICE = Device(
    "d", "D", "v", "gpu", "g", 2020, 1e9, 1e11, {"fp32": 1e13, "bf16": 1e13}, 1, 1, 1, 1, 8
)
CLUSTER = Cluster("2x4xd", DEVICE, 2, 4, LINK, LINK)
MODEL = Workload(
    "model", Graph(()), LayerShape(layers=6, heads=12, kv_heads=4, experts=6), seq_len=20
)
PLAIN = Workload("plain", Graph(()))


@pytest.mark.parametrize(
    ("workload", "plan", "found", "next_step"),
    [
        (MODEL, {"dp": 4}, "tp x pp x dp x cp = 4 devices, but the cluster has 8", "product of 8"),
        (MODEL, {"dp": 8, "global_batch": 7}, "= 8 exceeds the global batch of 7",
         "raise the global batch"),
        (PLAIN, {"dp": 4, "tp": 2}, "plain states none", "use tp=1"),
        (MODEL, {"tp": 8}, "12 attention heads are not divisible by tp=8", "choose a divisor"),
        (PLAIN, {"dp": 4, "pp": 2}, "plain states none", "use pp=1"),
        (MODEL, {"pp": 8}, "pp x vpp = 8 stages, but model has 6 layers", "lower pp or vpp"),
        (MODEL, {"dp": 8, "vpp": 2}, "but pp=1", "use vpp=1"),
        (PLAIN, {"dp": 4, "cp": 2}, "a sample of plain has no attention", "use cp=1"),
        (MODEL, {"dp": 8, "ep": 4}, "ep=4 divides experts, and model has 6", "divisor of them"),
        (MODEL, {"dp": 4, "pp": 2, "ep": 6}, "ep=6 must divide dp x cp x tp = 4",
         "choose a divisor"),
        (MODEL, {"dp": 8, "sync": "ps-sync", "zero_stage": 1}, "sync=ps-sync is data parallel",
         "zero_stage=0"),
        (MODEL, {"dp": 4, "pp": 2, "sync": "ps-async"}, "sync=ps-async is data parallel", "pp=1"),
        (MODEL, {"dp": 8, "sync": "ps-async", "stale_bound": 4}, "stale_bound=4 bounds workers",
         "sync=ps-stale or stale_bound=0"),
        (MODEL.with_(graph=Graph((Op("w", OpKind.MATMUL, params=5.0),))),
         {"dp": 8, "sync": "ps-sync", "parameter_servers": 6},
         "the 5 parameters of model do not make parameter_servers=6 shards", "at most 5"),
        (MODEL, {"dp": 8, "sync": "dataparallel"}, "the cluster has 2 nodes", "sync=allreduce"),
        (MODEL, {"dp": 2, "partitions": 3}, "dp=2 x partitions=3 make 6 devices, but the cluster has 8",
         "choose a product of 8"),
        *((MODEL, {"partitions": 2, **other}, "partitions=2 cuts the layers of data-parallel replicas",
           "use tp=1, pp=1, cp=1, ep=1, zero_stage=0 and a sync other than dataparallel")
          for other in ({"dp": 2, "tp": 2}, {"dp": 2, "pp": 2}, {"dp": 2, "cp": 2}, {"dp": 4, "ep": 2},
                        {"dp": 4, "zero_stage": 2}, {"dp": 4, "sync": "dataparallel"})),
        (MODEL, {"cp": 8}, "20 tokens is not divisible by 2 x cp = 16", "choose a divisor"),
    ],
)  # fmt: skip
def test_a_refusal_says_asked_found_and_next(
    workload: Workload, plan: dict[str, Any], found: str, next_step: str
) -> None:
    with pytest.raises(RequestError) as caught:
        Job(workload, CLUSTER, Plan(**{"global_batch": 64, **plan}))
    error = caught.value
    assert error.asked.startswith(f"{workload.name} on 2x4xd with dp=")
    assert found in error.found
    assert next_step in error.next_step
    assert "{" not in str(error)


def test_kv_heads_that_neither_divide_nor_are_divided_are_refused() -> None:
    shape = LayerShape(layers=6, heads=12, kv_heads=4)
    three = replace(CLUSTER, nodes=1, devices_per_node=3)
    with pytest.raises(RequestError, match="4 key-value heads and tp=3"):
        Job(MODEL.with_(shape=shape), three, Plan(tp=3))


def test_kv_heads_may_be_fewer_than_the_tensor_group_if_they_divide_it() -> None:
    shape = LayerShape(layers=6, heads=16, kv_heads=4)
    job = Job(MODEL.with_(shape=shape), CLUSTER, Plan(tp=8))
    assert job.plan.tp == 8


def test_a_legal_plan_has_no_problem_and_no_warning() -> None:
    plan = Plan(dp=4, tp=2, micro_batch=2, global_batch=64)
    assert job_problem(MODEL, CLUSTER, plan) is None
    assert Job(MODEL, CLUSTER, plan).warnings == ()


def test_an_uneven_placement_counts_its_own_devices() -> None:
    assert Job(PLAIN, replace(CLUSTER, placement=(4, 3)), Plan(dp=7, global_batch=7))
    with pytest.raises(RequestError, match="the cluster has 7"):
        Job(PLAIN, replace(CLUSTER, placement=(4, 3)), Plan(dp=8, global_batch=8))


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (Plan(dp=8, micro_batch=1, global_batch=12), "not a multiple of micro_batch x dp = 8"),
        (Plan(dp=8, global_batch=8, sequence_parallel=True), "does nothing with tp=1"),
        (Plan(dp=2, pp=4, global_batch=8), "6 layers do not divide evenly into 4 stages"),
    ],
)
def test_what_is_legal_but_odd_is_a_warning(plan: Plan, words: str) -> None:
    (warning,) = Job(MODEL, CLUSTER, plan).warnings
    assert words in warning


def test_notes_of_workload_and_cluster_are_passed_on() -> None:
    job = Job(
        PLAIN.with_(notes=("bounded",)), replace(CLUSTER, warnings=("old price",)),
        Plan(dp=8, global_batch=8),
    )  # fmt: skip
    assert job.warnings == ("bounded", "old price")


@pytest.mark.parametrize(
    ("precision", "rates", "words"),
    [("fp8", {"fp32": 1e13, "bf16": 4e13}, "states no fp8 rate: it is counted at its bf16 rate"),
     ("bf16", {"fp32": 1e13}, "states no bf16 rate: it is counted at its fp32 rate"),
     ("bf16", {"fp32": 1e13, "bf16": 1e13, "fp16": 8e13}, "no fast bf16 arithmetic; fp16")],
)  # fmt: skip
def test_a_precision_that_the_device_lacks_is_never_substituted_in_silence(
    precision: str, rates: dict[str, float], words: str
) -> None:
    cluster = replace(CLUSTER, device=replace(DEVICE, peak_flops=rates))
    (note,) = Job(MODEL.with_(precision=precision), cluster, Plan(dp=8, global_batch=64)).warnings
    assert words in note


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"sync": "ps-sync"}, "one server is assumed"),
        ({"parameter_servers": 2}, "sync=allreduce has no servers"),
        ({"servers_with_workers": True}, "sync=allreduce has no servers"),
        ({"gradient_bits": 8}, "sync=allreduce has no servers"),
    ],
)
def test_what_a_plan_says_of_servers_in_vain_is_said(plan: dict[str, Any], words: str) -> None:
    plain = Job(MODEL, CLUSTER, Plan(dp=8, global_batch=64))
    notes = Job(MODEL, CLUSTER, Plan(dp=8, global_batch=64, **plan)).warnings
    assert any(words in note for note in notes)
    assert not any("server" in note for note in plain.warnings)
