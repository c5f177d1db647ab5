"""The physics of the step: promises that hold for every plan, device and size."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.catalog import load_catalog
from forerun.domain.hardware import Cluster
from forerun.domain.job import Job
from forerun.domain.plan import Plan, PlanColumns
from forerun.predictors.analytic import AnalyticPredictor, Constants
from forerun.tables import Jobs
from forerun.testing.samples import tiny_cluster, tiny_device, tiny_jobs, tiny_runs
from forerun.workloads.transformer import TransformerSpec, transformer_workload
from forerun.workloads.zoo import zoo_workload
from tests.predictors.analytic.physics import (
    UNNAMED,
    ask,
    asks,
    cluster_of,
    faster_links,
    plans,
    transformer,
)

FEW = settings(max_examples=60, deadline=None)
WORKLOAD = transformer()
SLACK = 1 + 1e-9


@FEW
@given(plans(), st.floats(1.0, 20.0))
def test_more_bandwidth_is_never_slower(plan: Plan, factor: float) -> None:
    """Faster links, device memory or host bus never lengthen a step."""
    cluster = cluster_of(plan.world_size)
    device = cluster.device
    quicker = [
        replace(cluster, device=replace(device, **{name: getattr(device, name) * factor}))
        for name in ("memory_bytes_per_second", "host_bytes_per_second")
    ]
    clusters = (cluster, faster_links(cluster, factor), *quicker)
    base, *faster = (one.seconds[1] for one in asks(*((WORKLOAD, c, plan) for c in clusters)))
    assert max(faster) <= base * SLACK


@FEW
@given(plans(), st.floats(1.0, 20.0))
def test_more_flops_are_never_slower(plan: Plan, factor: float) -> None:
    """A device with every rate raised never takes longer."""
    cluster = cluster_of(plan.world_size)
    rates = {k: v * factor for k, v in cluster.device.peak_flops.items()}
    quicker = replace(cluster, device=replace(cluster.device, peak_flops=rates))
    slow, fast = asks((WORKLOAD, cluster, plan), (WORKLOAD, quicker, plan))
    assert fast.seconds[1] <= slow.seconds[1] * SLACK


@FEW
@given(plans())
def test_twice_the_work_is_never_faster(plan: Plan) -> None:
    """Twice the batch, the layers or the sequence never takes less time."""
    cluster = cluster_of(plan.world_size)
    double = replace(plan, global_batch=2 * plan.global_batch)
    base, *more = asks(
        (WORKLOAD, cluster, plan), (WORKLOAD, cluster, double),
        (transformer(layers=16), cluster, plan), (transformer(hidden=2048), cluster, plan),
    )  # fmt: skip
    assert min(one.seconds[1] for one in more) >= base.seconds[1] / SLACK


@FEW
@given(plans())
def test_every_forecast_is_ordered_finite_and_above_its_floor(plan: Plan) -> None:
    """p05 <= p50 <= p95, none below the floor, and the floor is real work at the peak rate."""
    forecast = ask(WORKLOAD, cluster_of(plan.world_size), plan)
    low, middle, high = forecast.seconds
    assert 0 < forecast.floor_seconds <= low <= middle <= high < 1e6
    assert 0 <= forecast.fit_probability <= 1
    flops = WORKLOAD.graph.forward_flops + WORKLOAD.graph.backward_flops
    ideal = flops * plan.global_batch / (100e12 * plan.world_size)
    assert forecast.floor_seconds == pytest.approx(ideal, rel=0.02)


@FEW
@given(plans())
def test_parts_add_up_to_the_step_and_the_peak(plan: Plan) -> None:
    """The waterfall of seconds and of bytes leaves nothing out, and no part is negative."""
    forecast = ask(WORKLOAD, cluster_of(plan.world_size), plan)
    assert sum(forecast.parts.values()) == pytest.approx(forecast.seconds[1], rel=1e-9)
    assert sum(forecast.memory_parts.values()) == pytest.approx(forecast.peak_bytes[1], rel=1e-9)
    assert min(forecast.parts.values()) >= -1e-12
    assert min(forecast.memory_parts.values()) >= 0


@FEW
@given(plans())
def test_memory_never_falls_with_the_micro_batch(plan: Plan) -> None:
    """A larger micro-batch keeps more activations, at the same number of micro-batches."""
    cluster = cluster_of(plan.world_size)
    larger = replace(plan, micro_batch=2 * plan.micro_batch, global_batch=2 * plan.global_batch)
    small, large = asks((WORKLOAD, cluster, plan), (WORKLOAD, cluster, larger))
    assert large.peak_bytes[1] >= small.peak_bytes[1]
    assert large.fit_probability <= small.fit_probability + 1e-12


@FEW
@given(plans())
def test_sharding_more_never_needs_more_memory(plan: Plan) -> None:
    """Each ZeRO stage, and each deeper recomputation, needs no more memory than the one before."""
    cluster = cluster_of(plan.world_size)
    changes: list[dict[str, object]] = [
        *({"zero_stage": stage} for stage in (0, 1, 2, 3)),
        *({"recompute": word} for word in ("none", "full")),
    ]
    found = asks(*((WORKLOAD, cluster, replace(plan, **change)) for change in changes))
    states = [one.memory_parts["gradients"] + one.memory_parts["optimizer"] for one in found[:4]]
    assert all(b <= a * SLACK for a, b in itertools.pairwise(states))
    none, full = (one.memory_parts["activations"] for one in found[4:])
    assert full <= none * SLACK


@FEW
@given(plans())
def test_recomputation_is_never_free(plan: Plan) -> None:
    """Full recomputation adds one more forward pass; none adds nothing."""
    cluster = cluster_of(plan.world_size)
    none, full = asks(
        *((WORKLOAD, cluster, replace(plan, recompute=word)) for word in ("none", "full"))
    )
    assert none.parts["recompute"] == 0
    assert full.parts["recompute"] > 0
    assert full.seconds[1] >= none.seconds[1] / SLACK


def test_the_bubble_of_a_balanced_pipeline_is_pp_minus_one_over_m() -> None:
    """1F1B idles (pp-1)/m of the ideal time; interleaving divides that by vpp."""
    cluster = cluster_of(4)
    for vpp in (1, 2):
        plan = Plan(pp=4, vpp=vpp, micro_batch=1, global_batch=16)
        parts = ask(WORKLOAD, cluster, plan).parts
        ideal = sum(parts[k] for k in ("forward", "backward", "tensor comm", "host"))
        assert parts["pipeline bubble"] == pytest.approx(ideal * 3 / 16 / vpp, rel=1e-6)


def test_states_are_sixteen_bytes_a_parameter_with_adam() -> None:
    """Mixed-precision Adam keeps 2 + 2 + 12 bytes (Rajbhandari et al. 2020), 18 with fp32 grads."""
    constants = UNNAMED
    slim = replace(constants.frameworks[""], grad_bytes=2.0)
    predictor = AnalyticPredictor(replace(constants, frameworks={**constants.frameworks, "": slim}))
    jobs = Jobs.grid(WORKLOAD, cluster_of(1), PlanColumns.of([Plan()]))
    parts = predictor.predict(jobs)[0].memory_parts
    states = parts["weights"] + parts["gradients"] + parts["optimizer"]
    assert states == pytest.approx(16 * WORKLOAD.params, rel=1e-6)


def test_zero_divides_what_the_paper_says_it_divides() -> None:
    """Stage 1 divides the optimizer by N, stage 2 the gradients too, stage 3 the weights too."""
    cluster, n = cluster_of(8), WORKLOAD.params
    expected = {0: (2, 4, 12), 1: (2, 4, 12 / 8), 2: (2, 4 / 8, 12 / 8)}
    for stage, sizes in expected.items():
        parts = ask(WORKLOAD, cluster, Plan(dp=8, global_batch=8, zero_stage=stage)).memory_parts
        found = [parts[k] / n for k in ("weights", "gradients", "optimizer")]
        assert found == pytest.approx(sizes, rel=1e-6)
    full = ask(WORKLOAD, cluster, Plan(dp=8, global_batch=8, zero_stage=3)).memory_parts
    assert full["weights"] / n == pytest.approx(2 / 8, rel=1e-6)
    half = ask(WORKLOAD, cluster, Plan(dp=8, global_batch=8, zero_stage=2)).memory_parts
    assert full["buffers"] > half["buffers"]  # the layer at work is gathered whole


def test_stage_zero_holds_pp_micro_batches_in_flight() -> None:
    """1F1B keeps min(m, pp) micro-batches of activations on the first stage."""
    cluster = cluster_of(4)
    deep = transformer(layers=64)  # so that its layers, not its logits, set the peak
    held = {
        m: ask(deep, cluster, Plan(pp=4, global_batch=m)).memory_parts["activations"]
        for m in (1, 2, 4, 64)
    }
    each = held[2] - held[1]
    assert each > 0
    assert held[4] - held[2] == pytest.approx(2 * each)
    assert held[64] == pytest.approx(held[4])


def test_tensor_parallelism_across_nodes_is_slower_than_inside() -> None:
    """The same plan costs more communication where its tensor group leaves the node."""
    plan = Plan(tp=8, global_batch=8)
    inside = ask(WORKLOAD, tiny_cluster(1, 8), plan).parts["tensor comm"]
    across = ask(WORKLOAD, tiny_cluster(8, 1), plan).parts["tensor comm"]
    assert across > 5 * inside


def test_asynchronous_servers_saturate() -> None:
    """More workers raise the cluster's update rate until the servers bind, never beyond."""
    workload = transformer(layers=2)
    steps = []
    for workers in (2, 4, 16, 64, 256):
        plan = Plan(dp=workers, global_batch=workers, sync="ps-async", parameter_servers=1)
        steps.append(ask(workload, tiny_cluster(workers, 1), plan).seconds[1])
    assert all(b <= a * SLACK for a, b in itertools.pairwise(steps))
    assert steps[-1] > 0.9 * steps[-2]


def test_one_process_data_parallelism_is_slower_than_one_process_a_gpu() -> None:
    """DataParallel copies the model and the gradients through one process."""
    cluster = tiny_cluster(1, 4)
    ddp = ask(WORKLOAD, cluster, Plan(dp=4, global_batch=16)).seconds[1]
    one = ask(WORKLOAD, cluster, Plan(dp=4, global_batch=16, sync="dataparallel")).seconds[1]
    assert one > ddp


def test_an_answer_does_not_depend_on_its_company() -> None:
    """A job asked alone, in a batch or in another order gets the same answer."""
    jobs = tiny_jobs()
    predictor = AnalyticPredictor()
    together = predictor.predict(jobs)
    order = np.random.default_rng(0).permutation(len(jobs))
    shuffled = predictor.predict(jobs.take(order))
    assert np.allclose(shuffled.seconds, together.seconds[order], rtol=1e-12)
    for i in (0, len(jobs) // 2, len(jobs) - 1):
        alone = AnalyticPredictor().predict(Jobs.of([jobs[i]]))
        assert np.allclose(alone.seconds[0], together.seconds[i], rtol=1e-12)
        assert np.allclose(alone.peak_bytes[0], together.peak_bytes[i], rtol=1e-12)


def test_chunks_and_blocks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows than one chunk, and than one block of it, give the answers of small calls."""
    jobs = tiny_jobs()
    expected = [
        AnalyticPredictor().predict(jobs, detail=detail).seconds for detail in (True, False)
    ]
    monkeypatch.setattr("forerun.predictors.analytic.predictor.CHUNK", 4_000)
    monkeypatch.setattr("forerun.predictors.analytic.predictor.BLOCK", 600)
    rows = np.sort(np.arange(10_000) % len(jobs))
    for detail, seconds in zip((True, False), expected, strict=True):
        result = AnalyticPredictor().predict(jobs.take(rows), detail=detail)
        assert np.allclose(result.seconds, seconds[rows], rtol=1e-12)


@pytest.mark.parametrize("sync", ["allreduce", "ps-sync", "ps-async", "ps-stale", "dataparallel"])
@pytest.mark.parametrize("name", ["resnet50", "mixtral-8x7b", "dlrm-dcnv2"])
def test_a_brief_answer_is_that_of_the_whole_one(name: str, sync: str) -> None:
    """Searches leave out parts and causes, and price columns of one value once."""
    catalog, work = load_catalog(), replace(zoo_workload(name), framework="pytorch")
    for text in ("1x8xv100-sxm2-32gb", "2x8xa100-sxm-80gb")[: 1 if sync == "dataparallel" else 2]:
        cluster = catalog.cluster(text)
        plans = [
            Plan(dp=cluster.devices, micro_batch=m, global_batch=64 * m * cluster.devices, sync=sync,
                 parameter_servers=3 * sync.startswith("ps"), stale_bound=2 * (sync == "ps-stale"))
            for m in (1, 2, 4)
        ]  # fmt: skip
        jobs = Jobs.of([Job(work, cluster, plan) for plan in plans])
        whole, brief = (AnalyticPredictor.shipped().predict(jobs, detail=d) for d in (True, False))
        assert np.isfinite(whole.seconds).all()
        for column in ("seconds", "peak_bytes", "fit_probability", "floor_seconds", "distance"):
            assert np.allclose(getattr(brief, column), getattr(whole, column), rtol=1e-12)


def test_fitting_moves_the_forecast_towards_the_runs_and_leaves_the_old_one_alone() -> None:
    """Runs twice as slow as forecast move the median up; the predictor in hand stays as it was."""
    jobs = tiny_jobs()
    predictor = AnalyticPredictor()
    before = predictor.predict(jobs).seconds.copy()
    runs = tiny_runs(jobs, step_time_s=2 * before[:, 1])
    fitted = predictor.fit(runs)
    after = fitted.predict(jobs).seconds
    assert np.array_equal(predictor.predict(jobs).seconds, before)
    error = np.abs(np.log(after[:, 1] / (2 * before[:, 1])))
    assert np.median(error) < 0.1
    saved = AnalyticPredictor.from_json(fitted.to_json())
    assert np.allclose(saved.predict(jobs).seconds, after)


def test_a_device_without_a_network_price_or_year_still_answers() -> None:
    """Facts that physics does not read may be missing from a cluster."""
    cluster = tiny_cluster(1, 1, tiny_device(year=0), dollars_per_hour=None)
    assert ask(WORKLOAD, cluster, Plan()).seconds[1] > 0


def test_hosts_of_tensor_ranks_wait_for_one_another() -> None:
    """A host-bound layer takes longer with each further tensor rank, though it computes less."""
    small = transformer(hidden=256, framework="Megatron-LM")
    steps = [
        ask(small, cluster_of(tp), Plan(tp=tp, global_batch=4)).seconds[1] for tp in (1, 2, 4, 8)
    ]
    assert steps == sorted(steps)
    calm = AnalyticPredictor(Constants(tensor_jitter=0.0))
    job = Job(small, cluster_of(8), Plan(tp=8, global_batch=4))
    assert calm.predict(Jobs.of([job]))[0].seconds[1] < steps[-1]


def test_stopping_recomputation_early_saves_a_share_of_the_forward() -> None:
    """PyTorch's checkpoints do all but a layer's last product again, Megatron's everything."""
    plan = Plan(global_batch=8, micro_batch=8, recompute="full")
    profiles = Constants().frameworks
    assert profiles["composer"].recompute < profiles["megatron"].recompute == 1.0
    changed = replace(profiles["megatron"], recompute=0.75)
    again = [
        AnalyticPredictor(Constants(frameworks={**profiles, "megatron": profile}))
        .predict(Jobs.of([Job(transformer(framework="Megatron"), cluster_of(1), plan)]))[0]
        .parts["recompute"]
        for profile in (profiles["megatron"], changed)
    ]
    assert again[1] == pytest.approx(0.75 * again[0])


def test_sums_over_tensor_ranks_hide_behind_gradients_of_weights() -> None:
    """Backward's half of them, and no more than those products take; forward's too where it is cut."""
    profiles = Constants().frameworks
    job = Job(
        transformer(hidden=4096, framework="Megatron"),
        cluster_of(8),
        Plan(tp=8, global_batch=8, micro_batch=8),
    )
    bare, back, both = (
        AnalyticPredictor(Constants(frameworks={**profiles, "megatron": profile}))
        .predict(Jobs.of([job]))[0]
        .parts
        for profile in (
            replace(profiles["megatron"], backward_overlap=0.0),
            profiles["megatron"],
            replace(profiles["megatron"], forward_overlap=1.0),
        )
    )
    hidden = bare["tensor comm"] - back["tensor comm"]
    assert 0.1 * bare["tensor comm"] < hidden < 0.5 * bare["tensor comm"]
    assert hidden < 0.5 * back["backward"]
    assert 1.5 * hidden < bare["tensor comm"] - both["tensor comm"] < bare["tensor comm"]


def test_autocast_runs_norms_in_fp32() -> None:
    """PyTorch's norms in 16 bits cost as much as in fp32 at least; fused ones cost less."""
    batch, cluster = Plan(global_batch=16, micro_batch=16), cluster_of(1)
    profiles = Constants().frameworks
    fused = {**profiles, "pytorch": replace(profiles["pytorch"], norm_traffic=1.0)}

    def gained(precision: str) -> float:
        work = transformer(precision=precision, framework="PyTorch")
        eager, other = (
            AnalyticPredictor(Constants(frameworks=known))
            .predict(Jobs.of([Job(work, cluster, batch)]))[0]
            .seconds[1]
            for known in (profiles, fused)
        )
        return float(eager - other)

    assert gained("fp32") == 0.0 < gained("bf16")


def test_fused_attention_of_a_newer_generation_reaches_less_of_its_rate() -> None:
    """The same peaks called Hopper take longer for a long sequence, but not without fusion."""
    long = transformer_workload(
        TransformerSpec(layers=4, hidden=512, heads=8, vocab=1000, seq_len=16384), "long"
    )
    plain = replace(long, fused_attention=False)
    cluster = tiny_cluster(1, 1)
    constants = Constants(generation_factor={cluster.device.generation: 1.0, "hopper": 1.0})
    hopper = replace(cluster, device=replace(cluster.device, generation="hopper"))
    for workload, slower in ((long, True), (plain, False)):
        usual, newer = (
            AnalyticPredictor(constants)
            .predict(Jobs.of([Job(workload, c, Plan(global_batch=1))]))[0]
            .seconds[1]
            for c in (cluster, hopper)
        )
        assert (newer > usual * 1.05) == slower


def test_pipelines_without_scatter_send_the_whole_activation_from_every_rank() -> None:
    """Megatron cuts a transfer by tp and gathers behind it, DeepSpeed does not."""
    plan = Plan(tp=4, pp=4, global_batch=16)
    sent = {
        name: ask(transformer(framework=name), cluster_of(16), plan).parts["pipeline comm"]
        for name in ("Megatron-LM", "Megatron-DeepSpeed")
    }
    assert sent["Megatron-DeepSpeed"] > 1.5 * sent["Megatron-LM"]


def test_half_precision_gradients_travel_in_half_the_bytes() -> None:
    """Megatron reduces fp16 gradients as they are, and bf16 ones in fp32."""
    plan = Plan(dp=64, global_batch=64)
    sent = {
        precision: ask(
            transformer(framework="Megatron-LM", precision=precision), cluster_of(64), plan
        ).parts["data comm"]
        for precision in ("fp16", "bf16")
    }
    assert sent["fp16"] < 0.7 * sent["bf16"]


def test_a_fabric_carries_groups_that_are_larger_than_a_node() -> None:
    """Eight tensor ranks on nodes of four talk over the in-node link where a fabric joins them."""
    cluster = tiny_cluster(16, 4)
    plan = Plan(tp=8, dp=8, global_batch=64)
    apart = ask(WORKLOAD, cluster, plan).parts["tensor comm"]
    joined = ask(WORKLOAD, replace(cluster, fabric_devices=32), plan).parts["tensor comm"]
    assert joined < apart / 3


def test_buckets_that_grow_with_the_ring_keep_its_latency_from_binding() -> None:
    job = Job(transformer(framework="NeMo"), cluster_of(2048), Plan(dp=2048, global_batch=2048))
    known = Constants()
    small = replace(known.framework("NeMo"), bucket_bytes=25e6, rank_bucket_bytes=0.0)
    plain = replace(known, frameworks={**known.frameworks, "nemo": small})
    took = [
        AnalyticPredictor(constants).predict(Jobs.of([job]))[0].parts["data comm"]
        for constants in (known, plain)
    ]
    assert 0 < took[0] < took[1]


def _h100s(devices: int) -> Cluster:
    return load_catalog().cluster_for("h100-sxm-80gb", devices // 8, 8, "")


@pytest.mark.parametrize("framework", ["pytorch", "megatron", "deepspeed", "nemo", "torchtitan"])
@pytest.mark.parametrize("devices", [8, 64, 512])
def test_keeping_the_weights_is_never_slower_than_gathering_them(
    framework: str, devices: int
) -> None:
    """ZeRO-2 sends what ZeRO-3 sends, less its gathers; nor do more ranks drown it in latency."""
    workload = replace(zoo_workload("llama3-8b"), framework=framework)
    cluster = _h100s(devices)
    kept, gathered = (
        ask(workload, cluster, Plan(dp=devices, global_batch=devices, zero_stage=stage)).seconds[1]
        for stage in (2, 3)
    )
    one = ask(workload, _h100s(8), Plan(dp=8, global_batch=8, zero_stage=2)).seconds[1]
    assert kept <= gathered
    assert kept < 3.0 * one


def test_sharded_optimizers_wait_for_a_ring_once_a_layer_at_most() -> None:
    """ZeRO-1 on 512 devices is not four times ZeRO-0, as it was with a ring for each 25 MB."""
    workload = replace(zoo_workload("llama3-8b"), framework="megatron")
    plain, sharded = (
        ask(workload, _h100s(512), Plan(dp=512, global_batch=512, zero_stage=stage)).seconds[1]
        for stage in (0, 1)
    )
    assert sharded < 1.5 * plain
