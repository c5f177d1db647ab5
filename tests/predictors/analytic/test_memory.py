"""Memory: promises about the peak, bytes worked out by hand, and how full a device can be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.catalog import load_catalog
from forerun.domain.forecast import Forecast
from forerun.domain.job import Job
from forerun.domain.plan import Plan, PlanColumns
from forerun.domain.workload import Workload
from forerun.predictors.analytic import AnalyticPredictor, Constants
from forerun.predictors.analytic.flat import Rows
from forerun.predictors.analytic.layout import Layout, lay_out, sparse_tables
from forerun.predictors.analytic.memory import peak_bytes, returned_bytes, usable_bytes
from forerun.tables import Jobs
from forerun.testing.samples import tiny_device
from forerun.workloads.transformer import TransformerSpec, transformer_workload
from forerun.workloads.tuning import tuned
from forerun.workloads.zoo import zoo_workload
from tests.predictors.analytic.physics import ask, asks, cluster_of, plans

FEW = settings(max_examples=60, deadline=None)
SLACK = 1 + 1e-9
FRAMEWORKS = ("", "pytorch", "megatron", "nanotron", "torchtitan", "composer")


def llama(framework: str = "", **changes: object) -> Workload:
    """Return a gated transformer of 16 layers whose head weighs as much as 4 of them."""
    fields: dict[str, object] = {
        "layers": 16, "hidden": 2048, "heads": 32, "ffn": 8192, "vocab": 131072, "seq_len": 4096,
        "gated": True, "norm": "rmsnorm", "positions": "rope", "bias": False,
    }  # fmt: skip
    spec = TransformerSpec(**{**fields, **changes})  # type: ignore[arg-type]
    return transformer_workload(spec, "llama-test", framework=framework)


def laid(workload: Workload, plan: Plan) -> Layout:
    """Return one job laid out."""
    cluster = cluster_of(plan.world_size)
    return lay_out(Jobs.grid(workload, cluster, PlanColumns.of([plan])), Constants())


def rows_of(workload: Workload, plan: Plan, constants: Constants) -> Rows:
    """Return one job's row."""
    return laid(workload, plan).rows(constants)


def with_framework(name: str, **changes: float) -> Constants:
    """Return constants with changed fields of a framework."""
    constants = Constants()
    changed = replace(constants.frameworks[name], **changes)
    return replace(constants, frameworks={**constants.frameworks, name: changed})


def peaks(*asked: tuple[Workload, Plan]) -> list[float]:
    """Return the median peaks."""
    answers = asks(*((workload, cluster_of(plan.world_size), plan) for workload, plan in asked))
    return [answer.peak_bytes[1] for answer in answers]


@FEW
@given(plans(), st.sampled_from(FRAMEWORKS))
def test_more_to_keep_never_needs_less(plan: Plan, framework: str) -> None:
    """Twice the sequence, the layers, the width or the micro-batch never lowers the peak."""
    small = {"layers": 8, "hidden": 1024, "heads": 16, "ffn": 4096, "vocab": 32000, "seq_len": 1024}
    workload = llama(framework, **small)
    more = [
        (llama(framework, **{**small, name: 2 * small[name]}), plan)
        for name in ("layers", "seq_len", "hidden")
    ]
    larger = replace(plan, micro_batch=2 * plan.micro_batch, global_batch=2 * plan.global_batch)
    base, *others = peaks((workload, plan), *more, (workload, larger))
    assert min(others) >= base / SLACK


@FEW
@given(plans(), st.sampled_from(FRAMEWORKS))
def test_cutting_more_never_needs_more(plan: Plan, framework: str) -> None:
    """Twice the tensor ranks, and each ZeRO stage to the second, never raise the peak."""
    workload = llama(framework, layers=8, hidden=1024, heads=16, ffn=4096, vocab=32000)
    plan = replace(plan, sequence_parallel=plan.sequence_parallel and plan.tp > 1)
    wider = replace(plan, tp=2 * plan.tp)
    staged_plans = [replace(plan, zero_stage=stage) for stage in (0, 1, 2)]
    one, two, *staged = peaks(*((workload, p) for p in (plan, wider, *staged_plans)))
    assert two <= one * SLACK
    assert staged[0] * SLACK >= staged[1] >= staged[2] / SLACK


@FEW
@given(plans())
def test_more_recomputation_never_keeps_more_of_a_layer(plan: Plan) -> None:
    """None, selective, full: what is kept falls, for kernels with and without kept scores."""
    for fused in (False, True):
        workload = llama("megatron", layers=8, hidden=1024, heads=16, fused_attention=fused)
        kept = [
            float(laid(workload, replace(plan, recompute=word)).saved[name][0])
            for word, name in (("none", "saved_layer"), ("selective", "saved_chosen"),
                               ("full", "saved_input"))
        ]  # fmt: skip
        assert kept[0] >= kept[1] >= 0
        assert kept[0] >= kept[2] > 0


def test_states_of_the_first_stage_by_hand() -> None:
    """10 layers and the tied embedding: 2 + 4 + 12 bytes, and 2 more in buckets with replicas."""
    constants = with_framework("nanotron", bucket_copies=0.5)
    layer, table = 4 * 2048**2 + 3 * 2048 * 8192 + 2 * 2048, 131072 * 2048
    params = 10 * layer + table
    jobs = Jobs.grid(
        llama("nanotron"), cluster_of(8), PlanColumns.of([Plan(dp=4, pp=2, global_batch=256)])
    )
    parts = AnalyticPredictor(constants).predict(jobs)[0].memory_parts
    assert parts["weights"] == pytest.approx(2 * params)
    assert parts["gradients"] == pytest.approx(4 * params)
    assert parts["optimizer"] == pytest.approx(12 * params)
    assert parts["buffers"] == pytest.approx(2 * params)


def test_a_gated_layer_without_fusions_keeps_its_gate() -> None:
    """16 h + 6 ffn bytes a token with fused operations; 2 ffn more where they are apart."""
    each = {}
    for unfused in (0.0, 1.0):
        constants = with_framework("nanotron", unfused=unfused, kept_share=1.0)
        rows = rows_of(llama("nanotron", heads=16), Plan(), constants)
        each[unfused] = float(rows.key["held_layers"][0]) / 16 / 4096
    log_sum_exp = 4 * 16  # one fp32 number a head
    assert each[0.0] == pytest.approx(16 * 2048 + 6 * 8192 + log_sum_exp)
    assert each[1.0] == pytest.approx(each[0.0] + 2 * 8192)
    assert laid(llama("nanotron", gated=False), Plan()).saved["saved_gate"][0] == 0.0


def test_shards_that_are_masters_save_two_bytes() -> None:
    """FSDP keeps 4 + 4 + 8 bytes a parameter over 8 ranks, DeepSpeed's ZeRO-3 2 + 4 + 12."""
    plan = Plan(dp=8, global_batch=8, zero_stage=3)
    for framework, sizes in (("torchtitan", (4, 4, 8)), ("megatron", (2, 4, 12))):
        workload = llama(framework)
        parts = ask(workload, cluster_of(8), plan).memory_parts
        found = [parts[k] * 8 / workload.params for k in ("weights", "gradients", "optimizer")]
        assert found == pytest.approx(sizes, rel=1e-6)


def test_weights_that_are_not_trained_have_no_wide_copy() -> None:
    """LoRA under FSDP holds two bytes a frozen parameter, where full training keeps fp32 shards."""
    plan, workload = Plan(dp=8, global_batch=8, zero_stage=3), llama("pytorch")
    adapted, whole = (
        ask(tuned(workload.with_(task=task)), cluster_of(8), plan).memory_parts["weights"] * 8
        for task in ("lora", "pretrain")
    )
    assert whole == pytest.approx(4.0 * workload.params, rel=1e-6)
    assert 2.0 <= adapted / workload.params < 2.1


def test_what_the_allocator_returns_does_not_count_against_fitting() -> None:
    """Inputs gathered ahead of need raise the peak that is seen, not the need."""
    plan = Plan(tp=8, micro_batch=8, global_batch=64, sequence_parallel=True)
    seen: dict[float, Forecast] = {}
    for ahead in (0.0, 40.0):
        jobs = Jobs.of([Job(llama("nanotron"), cluster_of(8), plan)])
        predictor = AnalyticPredictor(with_framework("nanotron", inputs_ahead=ahead))
        seen[ahead] = predictor.predict(jobs)[0]
    whole = 8 * 4096 * 2048 * 2
    assert seen[40.0].peak_bytes[1] - seen[0.0].peak_bytes[1] == pytest.approx(40 * whole)
    assert seen[40.0].fit_probability == pytest.approx(seen[0.0].fit_probability)
    piped = replace(plan, tp=4, pp=2)
    rows = rows_of(llama("nanotron"), piped, with_framework("nanotron", inputs_ahead=40.0))
    assert returned_bytes(rows)[0] == 0


def test_a_device_holds_less_with_every_communicator() -> None:
    """Its memory's usable share, less the context, less one buffer for each kind of group."""
    constants = Constants()
    soft = constants.frameworks[""]
    for plan, groups in ((Plan(), 0), (Plan(dp=2), 1), (Plan(dp=2, tp=2, pp=2, cp=2), 4)):
        rows = rows_of(llama(), replace(plan, global_batch=16), constants)
        expected = 40e9 * soft.usable_share - soft.context_bytes
        expected -= groups * constants.group_buffer_bytes
        assert usable_bytes(rows, constants)[0] == pytest.approx(expected)


def test_fitting_is_even_at_the_limit_and_falls_with_the_peak() -> None:
    """P(fits) is a half where the need is what a device can hold, and falls with the micro-batch."""
    workload, plan = llama(), Plan(micro_batch=1, global_batch=64)
    chances = [
        ask(workload, cluster_of(1), replace(plan, micro_batch=micro)).fit_probability
        for micro in (1, 2, 4, 8)
    ]
    assert chances == sorted(chances, reverse=True)
    constants = Constants()
    need = float(peak_bytes(rows_of(workload, plan, constants), constants)[0][0])
    soft = constants.frameworks[""]
    just = (need + soft.context_bytes) / soft.usable_share
    full = replace(cluster_of(1), device=tiny_device(memory_bytes=just))
    assert ask(workload, full, plan).fit_probability == pytest.approx(0.5, abs=1e-6)


def test_every_framework_is_finite_for_every_family() -> None:
    """No part is negative or missing for any profile."""
    for framework in Constants().frameworks:
        plan = Plan(dp=2, tp=2, pp=2, global_batch=16, sequence_parallel=True)
        parts = ask(llama(framework), cluster_of(8), plan).memory_parts
        assert np.isfinite(list(parts.values())).all()
        assert min(parts.values()) >= 0


def served(workload: Workload, machine: str, nodes: int = 4, **plan: Any) -> Forecast:
    """Return the forecast of a worker on each of some machines, with servers."""
    cluster = load_catalog().cluster(f"{nodes}x{machine}")
    sizes = {"dp": nodes, "micro_batch": 8, "global_batch": 8 * nodes, "sync": "ps-sync"}
    return ask(workload, cluster, Plan(**{**sizes, **plan}))


@pytest.mark.parametrize("nodes", [2, 8])
def test_workers_keep_tables_as_their_framework_does(nodes: int) -> None:
    """A module has whole tables, however many workers and servers; TensorFlow's are the servers'."""
    for servers in (1, 4):
        asked = {"nodes": nodes, "parameter_servers": servers}
        module, variables = (
            served(zoo_workload("dlrm").with_(framework=name), "aws:p3.2xlarge", **asked)
            for name in ("pytorch", "tensorflow")
        )
        sparse = 4.0 * sparse_tables(zoo_workload("dlrm"))[0]
        assert sparse < module.memory_parts["weights"] < 1.02 * sparse
        assert variables.memory_parts["weights"] < 0.02 * sparse
        assert module.fit_probability < 0.01


def test_a_plan_fits_only_where_its_servers_do() -> None:
    """Weights, states and a gradient of each worker lie in a server's host, by shards of as many servers."""
    workload = zoo_workload("dlrm").with_(framework="tensorflow")
    one, eight = (served(workload, "aws:p3.2xlarge", parameter_servers=count) for count in (1, 8))
    assert one.peak_bytes[1] == eight.peak_bytes[1]
    assert one.fit_probability < 0.01 < 0.99 < eight.fit_probability
    # Eight servers on one host are no better than one.
    beside = served(workload, "aws:p3.2xlarge", 1, parameter_servers=8, servers_with_workers=True)
    assert beside.fit_probability < 0.01


def test_servers_beside_workers_share_a_processors_memory() -> None:
    """Its peak has the shard's weights, a gradient of each of four workers, and the optimizer's states."""
    workload = zoo_workload("vgg16")
    shard, states = workload.params * 4.0 / 4, 1
    apart, beside = (
        served(workload, "aws:c5.4xlarge", parameter_servers=4, servers_with_workers=together)
        for together in (False, True)
    )
    added = {n: beside.memory_parts[n] - apart.memory_parts[n] for n in apart.memory_parts}
    expected = {"weights": shard, "gradients": 4 * shard, "optimizer": states * shard}
    for name, value in added.items():
        assert value == pytest.approx(expected.get(name, 0.0), rel=1e-6)
    assert beside.peak_bytes[1] > apart.peak_bytes[1]
