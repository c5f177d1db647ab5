"""The promises of physics hold for every family of workloads, not for dense transformers alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.catalog import load_catalog
from forerun.domain.hardware import Cluster
from forerun.domain.job import Job
from forerun.domain.plan import Plan
from forerun.domain.workload import Workload
from forerun.testing.samples import tiny_cluster
from forerun.workloads.transformer import TransformerSpec, transformer_workload
from forerun.workloads.zoo import zoo_workload
from tests.predictors.analytic.physics import ask, asks, faster_links

FEW = settings(max_examples=50, deadline=None)
SLACK = 1 + 1e-9
NAMES = ("resnet18", "mobilenet-v2", "vit-b-16", "unet", "lstm-lm-medium", "dlrm-criteo-kaggle",
         "mask-rcnn-r50-fpn", "gnmt", "t5-small", "rnnt")  # fmt: skip
PRECISIONS = ("fp32", "fp16", "bf16", "fp8", "tf32", "fp64")


def mixture() -> Workload:
    """Return a mixture of 8 experts."""
    spec = TransformerSpec(layers=4, hidden=512, heads=8, ffn=1024, vocab=1000, seq_len=1024,
                           experts=8, experts_per_token=2)  # fmt: skip
    return transformer_workload(spec, "mixture")


@st.composite
def questions(draw: st.DrawFn) -> tuple[Workload, Cluster, Plan]:
    """Draw a workload of any family, a cluster, and a plan that suits them."""
    nodes, per_node = draw(st.sampled_from([(1, 1), (1, 4), (2, 4), (4, 1)]))
    cluster = tiny_cluster(nodes, per_node)
    devices = cluster.devices
    micro = draw(st.sampled_from([1, 2, 8]))
    rounds = draw(st.sampled_from([1, 3]))
    if draw(st.booleans()):
        ep = draw(st.sampled_from([d for d in (1, 2, 4, 8) if devices % d == 0]))
        plan = Plan(dp=devices, ep=ep, micro_batch=micro, global_batch=micro * devices * rounds,
                    zero_stage=draw(st.sampled_from([0, 1, 2, 3])))  # fmt: skip
        return mixture(), cluster, plan
    name = draw(st.sampled_from(NAMES))
    workload = zoo_workload(name, precision=draw(st.sampled_from(PRECISIONS)))
    syncs = ["allreduce", "ps-sync", "ps-async"] + (["dataparallel"] if nodes == 1 else [])
    sync = draw(st.sampled_from(syncs))
    plan = Plan(dp=devices, micro_batch=micro, global_batch=micro * devices * rounds, sync=sync,
                zero_stage=draw(st.sampled_from([0, 1, 2, 3])) if sync == "allreduce" else 0,
                parameter_servers=2 if sync.startswith("ps") else 0,
                recompute=draw(st.sampled_from(["none", "full"])))  # fmt: skip
    return workload, cluster, plan


@FEW
@given(questions())
def test_every_family_gets_an_ordered_answer_above_its_floor(
    question: tuple[Workload, Cluster, Plan],
) -> None:
    """Quantiles are ordered and finite, parts add up, nothing is negative or below the floor."""
    forecast = ask(*question)
    low, middle, high = forecast.seconds
    assert 0 < forecast.floor_seconds <= low <= middle <= high < 1e7
    assert sum(forecast.parts.values()) == pytest.approx(middle, rel=1e-9)
    assert min(forecast.parts.values()) >= -1e-12
    assert sum(forecast.memory_parts.values()) == pytest.approx(forecast.peak_bytes[1], rel=1e-9)
    assert min(forecast.memory_parts.values()) >= 0


@FEW
@given(questions(), st.floats(1.0, 20.0))
def test_better_hardware_is_never_slower_for_any_family(
    question: tuple[Workload, Cluster, Plan], factor: float
) -> None:
    """Faster links, memory or arithmetic never lengthen a step."""
    workload, cluster, plan = question
    device = cluster.device
    better = (
        replace(device, memory_bytes_per_second=device.memory_bytes_per_second * factor),
        replace(device, peak_flops={k: v * factor for k, v in device.peak_flops.items()}),
    )
    clusters = (
        cluster, faster_links(cluster, factor), *(replace(cluster, device=one) for one in better)
    )  # fmt: skip
    base, *faster = (one.seconds[1] for one in asks(*((workload, c, plan) for c in clusters)))
    assert max(faster) <= base * SLACK


@FEW
@given(questions())
def test_a_larger_micro_batch_never_needs_less_memory(
    question: tuple[Workload, Cluster, Plan],
) -> None:
    """Twice the samples at once, at the same number of micro-batches."""
    workload, cluster, plan = question
    double = replace(plan, micro_batch=2 * plan.micro_batch, global_batch=2 * plan.global_batch)
    small, large = asks((workload, cluster, plan), (workload, cluster, double))
    assert large.peak_bytes[1] >= small.peak_bytes[1]
    assert large.seconds[1] >= small.seconds[1] / SLACK or plan.sync == "ps-async"


@pytest.mark.parametrize("name", ["cpu", "tpu-v4", "gaudi2", "mi300x", "k80", "ipu-gc200"])
@pytest.mark.parametrize("workload", ["resnet50", "bert-base"])
def test_every_kind_of_device_answers(name: str, workload: str) -> None:
    """CPUs, TPUs, accelerators and the oldest GPUs get a step above its floor."""
    cluster = load_catalog().cluster(f"2x2x{name}")
    job = Job(zoo_workload(workload, precision="fp32"), cluster, Plan(dp=4, global_batch=16))
    forecast = ask(job.workload, job.cluster, job.plan)
    assert 0 < forecast.floor_seconds <= forecast.seconds[0] < 1e5
