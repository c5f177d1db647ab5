"""Golden cases: steps and bytes worked out by hand, with every efficiency set to one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forerun.catalog import load_catalog
from forerun.domain.forecast import Forecast
from forerun.domain.graph import PHASE_INDEX, Block, Graph, Op, OpKind, Phase, Shard
from forerun.domain.hardware import Cluster
from forerun.domain.job import Job
from forerun.domain.plan import Plan
from forerun.domain.workload import LayerShape, Workload
from forerun.predictors.analytic import AnalyticPredictor, Constants
from forerun.predictors.analytic.constants import FRAMEWORKS
from forerun.predictors.analytic.operations import effective_rates
from forerun.tables import Jobs
from forerun.testing.samples import tiny_cluster
from forerun.workloads.transformer import TransformerSpec, transformer_workload
from forerun.workloads.zoo import zoo_workload

G = 1e9
# The sample device: 100 TFLOP/s in 16 bits, 1 TB/s, links of 100 GB/s inside and 10 GB/s between.
PEAK, MEMORY, INSIDE, BETWEEN = 100e12, 1e12, 100 * G, 10 * G


def ideal() -> Constants:
    """Return constants with which formulas can be done by hand: no losses, no host, sums."""
    one = dict.fromkeys((str(k) for k in OpKind), 1.0)
    quiet = {
        k: replace(
            f,
            host_seconds=0.0,
            step_seconds=0.0,
            fusion=1.0,
            context_bytes=0.0,
            shard_power=1.0,
            bucket_bytes=1e30,
        )
        for k, f in FRAMEWORKS.items()
    }
    return Constants(
        tensor_efficiency=one, vector_efficiency=one, bandwidth_efficiency=one,
        generation_factor={"sample": 1.0}, precision_factor={}, frameworks=quiet,
        link_efficiency=dict.fromkeys(("nvlink", "ethernet", "unknown", "pcie"), 1.0),
        tcp_bytes_per_second=1e30, launch_seconds=0.0, tile=1e-9, wave_flops_per_element=1e30, overlap_power=1.0,
        roofline_power=200.0,
        gather_exposed=1.0, context_exposed=1.0,
        expert_exposed=1.0, expert_imbalance=1.0, straggler_share=0.0, fragmentation=0.0,
        group_buffer_bytes=0.0, run_counts={"framework:": 1.0},
    )  # fmt: skip


def near(cluster: Cluster) -> Cluster:
    """Return the cluster with no latencies."""
    return replace(
        cluster, intra=replace(cluster.intra, latency_seconds=0.0),
        inter=replace(cluster.inter, latency_seconds=0.0),
    )  # fmt: skip


def ask(workload: Workload, cluster: Cluster, plan: Plan) -> Forecast:
    """Return the forecast with ideal constants."""
    return AnalyticPredictor(ideal()).predict(Jobs.of([Job(workload, near(cluster), plan)]))[0]


def one_product(params: float = 1e9, **fields: object) -> Workload:
    """Return one layer of one product: 1000 tokens through a square weight matrix."""
    side, tokens = params**0.5, 1000
    flops = 2.0 * tokens * params
    weight = {"weights": params, "dims": (tokens, side, side, 1)}
    ops = (
        Op("product", OpKind.MATMUL, flops=flops, params=params, shard=Shard.TENSOR, **weight),
        Op("product.dgrad", OpKind.MATMUL, Phase.BACKWARD, flops=flops, writes=1.0, **weight),
        Op("product.wgrad", OpKind.MATMUL, Phase.BACKWARD, flops=flops, **weight),
        Op("update", OpKind.OPTIMIZER, Phase.OPTIMIZER, reads=4 * params, writes=3 * params),
    )
    shape = LayerShape(layers=1, hidden=int(side), heads=8, kv_heads=8)
    return Workload("product", Graph(ops), shape, seq_len=tokens, **fields)  # type: ignore[arg-type]


def gpt(**changes: object) -> Workload:
    """Return a GPT of 4 layers, hidden 1024, 16 heads, 1024 tokens."""
    fields = {"layers": 4, "hidden": 1024, "heads": 16, "ffn": 4096, "vocab": 512,
              "seq_len": 1024, "fused_attention": False}  # fmt: skip
    return transformer_workload(TransformerSpec(**{**fields, **changes}), "gpt")  # type: ignore[arg-type]


def mixture() -> Workload:
    """Return a small mixture: 8 experts, 2 a token."""
    spec = TransformerSpec(layers=2, hidden=1024, heads=16, ffn=4096, vocab=512, seq_len=1024,
                           experts=8, experts_per_token=2)  # fmt: skip
    return transformer_workload(spec, "mixture")


def test_a_product_takes_its_flops_over_the_peak() -> None:
    """Three products of 2 x 1000 x 1e9 FLOPs at 100 TFLOP/s, two samples: 0.12 s."""
    parts = ask(one_product(), tiny_cluster(1, 1), Plan(micro_batch=2, global_batch=2)).parts
    assert parts["forward"] == pytest.approx(2 * 2e12 / PEAK)
    assert parts["backward"] == pytest.approx(2 * 4e12 / PEAK)


def test_the_update_moves_seven_words_a_parameter() -> None:
    """Adam reads gradient, weight and two states and writes three: 28 bytes at 1 TB/s, 28 ms."""
    plan = Plan(micro_batch=1, global_batch=1)
    assert ask(one_product(), tiny_cluster(1, 1), plan).parts["optimizer"] == pytest.approx(0.028)


def test_gradients_ring_once_a_step_whatever_the_accumulation() -> None:
    """4 bytes x 1e9 x 2 (K-1)/K over 100 GB/s with 4 ranks in a node: 60 ms, for 1 or 8 batches."""
    for batch in (4, 32):
        plan = Plan(dp=4, micro_batch=1, global_batch=batch)
        parts = ask(one_product(), tiny_cluster(1, 4), plan).parts
        assert parts["data comm"] == pytest.approx(4e9 * 1.5 / INSIDE)


def test_stage_two_scatters_in_every_micro_batch_and_gathers_once() -> None:
    """Half the ring's volume 8 times for gradients of 4 bytes, then weights of 2 bytes once."""
    plan = Plan(dp=4, micro_batch=1, global_batch=32, zero_stage=2)
    parts = ask(one_product(), tiny_cluster(1, 4), plan).parts
    assert parts["data comm"] == pytest.approx((8 * 4e9 + 2e9) * 0.75 / INSIDE)


def test_stage_three_gathers_twice_and_scatters_once_a_micro_batch() -> None:
    """8 x (2 x 2 bytes + 4 bytes) x 3/4 of a parameter: 0.48 s."""
    plan = Plan(dp=4, micro_batch=1, global_batch=32, zero_stage=3)
    parts = ask(one_product(), tiny_cluster(1, 4), plan).parts
    assert parts["data comm"] == pytest.approx(8 * (2 * 2e9 + 4e9) * 0.75 / INSIDE)


def test_between_nodes_each_rank_carries_its_share() -> None:
    """2 nodes of 4: rings of 8 carry 2 x 7/8 of a quarter of the buffer over each 10 GB/s."""
    plan = Plan(dp=8, micro_batch=1, global_batch=8)
    parts = ask(one_product(), tiny_cluster(2, 4), plan).parts
    assert parts["data comm"] == pytest.approx(1e9 * 2 * 7 / 8 / BETWEEN)


def test_tensor_ranks_reduce_four_times_a_layer() -> None:
    """Messages of b s h 2 bytes x 2 (t-1)/t, twice forward and twice backward in each of 4 layers."""
    parts = ask(gpt(), tiny_cluster(1, 4), Plan(tp=4, micro_batch=2, global_batch=2)).parts
    message = 2 * 1024 * 1024 * 2
    assert parts["tensor comm"] == pytest.approx(4 * 4 * message * 1.5 / INSIDE)


def test_context_ranks_pass_keys_and_values_three_times() -> None:
    """Forward once, backward twice: 2 x tokens/2 x heads x head size x 2 bytes from each rank."""
    wide = gpt(kv_heads=4, head_dim=128, seq_len=4096)
    parts = ask(wide, tiny_cluster(1, 2), Plan(cp=2, micro_batch=1, global_batch=1)).parts
    block = 2 * 2048 * 4 * 128 * 2
    assert parts["context comm"] == pytest.approx(3 * 4 * block / INSIDE)
    assert parts["tensor comm"] == 0


def test_experts_reduce_among_their_own_replicas() -> None:
    """8 nodes of 8, dp=64, ep=8: an expert's 8 replicas stand on 8 nodes, so nothing is inside."""
    workload = mixture()
    cluster = tiny_cluster(8, 8)
    plan = Plan(dp=64, ep=8, micro_batch=1, global_batch=64)
    experts = sum(o.params * o.repeat for o in workload.graph.ops if o.shard is Shard.EXPERT)
    dense = workload.params - experts
    inside, between = 2 * 7 / 8 / INSIDE, 2 * 7 / 8 / BETWEEN
    together = 2 * 63 / 64 / (8 * BETWEEN)  # rings through all ranks, an eighth on each adapter
    by_hand = 4 * dense * together + 4 * experts / 8 * between
    assert ask(workload, cluster, plan).parts["data comm"] == pytest.approx(by_hand)
    alone = ask(workload, tiny_cluster(1, 8), Plan(dp=8, ep=8, global_batch=8)).parts
    assert alone["data comm"] == pytest.approx(4 * dense * inside)


def test_stage_one_divides_the_update_of_experts_by_their_replicas() -> None:
    """Dense parameters by dp = 8, experts (cut by ep = 4) by their 2 replicas."""
    workload = mixture()
    plan = Plan(dp=8, ep=4, micro_batch=1, global_batch=8, zero_stage=1)
    experts = sum(o.params * o.repeat for o in workload.graph.ops if o.shard is Shard.EXPERT)
    by_hand = 28 * ((workload.params - experts) / 8 + experts / 4 / 2) / MEMORY
    parts = ask(workload, tiny_cluster(1, 8), plan).parts
    assert parts["optimizer"] == pytest.approx(by_hand, rel=1e-6)


@pytest.mark.parametrize(
    ("recompute", "fused", "bytes_a_layer"),
    [("none", False, 34 + 5 * 16), ("selective", False, 34), ("full", False, 2),
     ("full", True, 2)],
)  # fmt: skip
def test_a_layer_keeps_what_korthikanti_says(
    recompute: str, fused: bool, bytes_a_layer: float
) -> None:
    """A layer keeps s b h (34 + 5 a s/h) bytes; selective drops the second term, full keeps 2 s b h."""
    plans = [Plan(micro_batch=1, global_batch=1, recompute=recompute)] * 2
    kept = [
        ask(
            gpt(layers=n, fused_attention=fused, dropout=0.1), tiny_cluster(1, 1), plan
        ).memory_parts["activations"]
        for n, plan in zip((4, 12), plans, strict=True)
    ]
    assert kept[1] - kept[0] == pytest.approx(8 * bytes_a_layer * 1024 * 1024, rel=0.02)


def test_selective_recomputation_with_fused_attention_still_keeps_the_residual() -> None:
    """Norms and activations are done again, and the residual stream of each layer stays."""

    def each(recompute: str) -> float:
        plan = Plan(micro_batch=1, global_batch=1, recompute=recompute)
        many, few = (
            ask(gpt(layers=n), tiny_cluster(1, 1), plan).memory_parts["activations"]
            for n in (12, 4)
        )
        return (many - few) / 8 / 1024**2

    def gpt(layers: int) -> Workload:
        spec = TransformerSpec(layers=layers, hidden=1024, heads=16, ffn=4096, vocab=512,
                               seq_len=1024)  # fmt: skip
        return transformer_workload(spec, "fused")

    assert 2 < each("selective") < each("none")
    assert each("selective") >= 2 + 14  # the residual, and the outputs of the products


def test_no_class_of_operation_passes_a_matrix_units_peak() -> None:
    """On every device of the catalogue 16-bit products stay below the stated rate."""
    workload = zoo_workload("resnet50", precision="fp16")
    for device in load_catalog().devices.values():
        if "fp16" not in device.peak_flops or not device.has_matrix_unit("fp16"):
            continue
        rates, _ = effective_rates(device, workload, Constants())
        assert rates.max() <= device.peak_flops["fp16"] * (1 + 1e-9), device.id


def test_a_precision_that_a_device_lacks_gains_and_loses_nothing() -> None:
    """fp8 on an A100 is counted exactly as bf16, and the job says so."""
    cluster = load_catalog().cluster("1x8xa100-sxm-80gb")
    plan = Plan(dp=8, global_batch=64, zero_stage=3)
    eight, sixteen = (
        Job(zoo_workload("llama3-8b", precision=word), cluster, plan) for word in ("fp8", "bf16")
    )
    parts = [AnalyticPredictor().predict(Jobs.of([job]))[0].parts for job in (eight, sixteen)]
    assert parts[0]["forward"] == pytest.approx(parts[1]["forward"], rel=0.02)
    assert any("states no fp8 rate" in note for note in eight.warnings)
    assert not any("states no" in note for note in sixteen.warnings)


def test_products_in_8_bits_cast_their_inputs_and_logits_stay_in_16() -> None:
    """At twice the rate, with 4 bytes an input element read and written in between; the head at once."""
    cluster = tiny_cluster(1, 1)
    peaks = {**cluster.device.peak_flops, "fp8": 2.0 * PEAK}
    cluster = replace(cluster, device=replace(cluster.device, peak_flops=peaks))

    def forward(block: Block, precision: str) -> float:
        product = Op(
            "product", OpKind.MATMUL, flops=2e12, reads=1e8, block=block, dims=(1e4, 1e4, 1e4, 1)
        )
        shape = LayerShape(layers=1, hidden=10_000, heads=8, kv_heads=8)
        work = Workload("product", Graph((product,)), shape, seq_len=10_000, precision=precision)
        return ask(work, cluster, Plan(micro_batch=1, global_batch=1)).parts["forward"]

    assert forward(Block.LAYER, "fp8") == pytest.approx(2e12 / (2 * PEAK) + 4e8 / MEMORY)
    assert forward(Block.HEAD, "fp8") == pytest.approx(2e12 / PEAK)
    for block in (Block.LAYER, Block.HEAD):
        assert forward(block, "bf16") == pytest.approx(2e12 / PEAK)


@pytest.mark.parametrize(("framework", "kernels"), [("nemo", 8.0), ("maxtext", 0.0)])
def test_experts_whose_products_are_kernels_of_their_own_wait_for_each(
    framework: str, kernels: float
) -> None:
    """A kernel's gap for each of 8 experts but the first, at two products and two layers, forward."""
    constants, work = ideal(), replace(mixture(), framework=framework)
    plan = Plan(micro_batch=1, global_batch=1, ep=1)
    took = [
        AnalyticPredictor(replace(constants, launch_seconds=gap)).predict(
            Jobs.of([Job(work, near(tiny_cluster(1, 1)), plan)])
        )[0].parts["forward"]
        for gap in (0.0, 1e-3)
    ]  # fmt: skip
    forward = work.graph.columns.phase == PHASE_INDEX[Phase.FORWARD]
    others = (work.graph.columns.launches * work.graph.columns.repeat)[forward].sum()
    extra = 2 * 2 * max(kernels - 1.0, 0.0)
    assert took[1] - took[0] == pytest.approx(1e-3 * (others + extra))


def test_the_input_does_not_depend_on_the_layout() -> None:
    """The hosts decode one global batch, whoever shares the model."""
    workload = zoo_workload("vit-b-16")
    cluster = replace(tiny_cluster(1, 8), vcpus_per_device=1e-4)
    inputs = []
    for plan in (Plan(dp=8, global_batch=64), Plan(dp=2, tp=4, global_batch=64)):
        forecast = AnalyticPredictor().predict(Jobs.of([Job(workload, cluster, plan)]))[0]
        inputs.append(forecast.seconds[1] - forecast.parts["overhead"])
    assert inputs[0] == pytest.approx(inputs[1], rel=0.02)


def test_an_image_transformer_sends_its_tokens() -> None:
    """ViT-B/16: 197 tokens x 768 x 2 bytes a sample, 4 reductions in each of 12 layers."""
    workload = zoo_workload("vit-b-16", precision="bf16")
    plan = Plan(tp=4, micro_batch=64, global_batch=64)
    message = 64 * 197 * 768 * 2
    parts = ask(workload, tiny_cluster(1, 4), plan).parts
    assert parts["tensor comm"] == pytest.approx(12 * 4 * message * 1.5 / INSIDE, rel=0.01)


def test_a_placement_that_uses_one_device_of_a_node_has_its_whole_network() -> None:
    """Two of four-device nodes with one device each: the network is not divided by four."""
    shared, alone = (
        replace(tiny_cluster(2, n), placement=placement) for n, placement in ((4, (1, 1)), (1, ()))
    )
    plan = Plan(dp=2, micro_batch=1, global_batch=2)
    quarter = replace(shared.inter, bytes_per_second=BETWEEN / 4)
    found = ask(one_product(), replace(shared, inter=quarter), plan).parts["data comm"]
    assert found == pytest.approx(ask(one_product(), alone, plan).parts["data comm"])


def test_latency_is_paid_for_every_layer_of_stage_three() -> None:
    """4 layers, 8 nodes, 1 ms between nodes: 3 collectives x 4 layers x 7 hops = 84 ms more."""
    workload = gpt()
    plan = Plan(dp=8, micro_batch=1, global_batch=8, zero_stage=3)
    cluster = near(tiny_cluster(8, 1))
    slow = replace(cluster, inter=replace(cluster.inter, latency_seconds=1e-3))
    predictor = AnalyticPredictor(ideal())
    quick, late = (
        predictor.predict(Jobs.of([Job(workload, c, plan)]))[0].seconds[1] for c in (cluster, slow)
    )
    assert late - quick == pytest.approx(3 * 4 * 7e-3, rel=1e-6)


def test_no_rate_or_time_is_anything_but_a_number() -> None:
    """Ideal constants leave no NaN in any part."""
    parts = ask(mixture(), tiny_cluster(2, 4), Plan(dp=4, tp=2, ep=2, global_batch=8)).parts
    assert np.isfinite(list(parts.values())).all()
