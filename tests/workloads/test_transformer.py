"""Transformers: FLOPs, parameters and kept activations meet the published formulas."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.domain.graph import Block, Graph, Op, OpKind, Phase, Shard
from forerun.errors import RequestError
from forerun.workloads.transformer import (
    TransformerSpec,
    transformer_graph,
    transformer_workload,
)

# The 22B model of Korthikanti et al. 2022, table 3.
GPT_22B = TransformerSpec(
    layers=48, hidden=6144, heads=64, vocab=51200, seq_len=2048, dropout=0.1, fused_attention=False
)


def _layer(graph: Graph) -> list[Op]:
    return [op for op in graph.ops if op.block is Block.LAYER and op.phase is Phase.FORWARD]


def _saved_bytes(
    graph: Graph, tensor: int = 1, sequence: int = 1, selective: bool = False
) -> float:
    """Return 16-bit bytes kept in one layer under tensor and sequence parallelism."""
    divisor = {Shard.TENSOR: tensor, Shard.SEQUENCE: sequence, Shard.NONE: 1, Shard.EXPERT: tensor}
    dropped = (OpKind.ATTENTION, OpKind.SOFTMAX) if selective else ()
    return sum(2 * op.saved / divisor[op.shard] for op in _layer(graph) if op.kind not in dropped)


@pytest.mark.parametrize(
    ("hidden", "heads", "seq_len"), [(6144, 64, 2048), (12288, 96, 2048), (1024, 16, 512)]
)
def test_a_gpt_layer_keeps_what_korthikanti_says(hidden: int, heads: int, seq_len: int) -> None:
    spec = replace(GPT_22B, hidden=hidden, heads=heads, seq_len=seq_len)
    s, h, a = seq_len, hidden, heads
    graph = transformer_graph(spec)
    assert _saved_bytes(graph) == pytest.approx(s * h * (34 + 5 * a * s / h), rel=1e-9)


@pytest.mark.parametrize("t", [2, 4, 8])
def test_tensor_parallelism_divides_what_korthikanti_says(t: int) -> None:
    s, h, a = 2048, 6144, 64
    expected = s * h * (10 + 24 / t + 5 * a * s / (h * t))
    assert _saved_bytes(transformer_graph(GPT_22B), tensor=t) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("t", [2, 8])
def test_sequence_parallelism_divides_all_of_it(t: int) -> None:
    s, h, a = 2048, 6144, 64
    expected = s * h / t * (34 + 5 * a * s / h)
    found = _saved_bytes(transformer_graph(GPT_22B), tensor=t, sequence=t)
    assert found == pytest.approx(expected, rel=1e-9)


def test_selective_recompute_drops_exactly_the_scores() -> None:
    found = _saved_bytes(transformer_graph(GPT_22B), selective=True)
    assert found == pytest.approx(2048 * 6144 * 34, rel=1e-9)


def test_fused_attention_keeps_queries_keys_values_output_and_log_sum_exp_only() -> None:
    spec = replace(GPT_22B, fused_attention=True, dropout=0.0)
    kept = sum(op.saved for op in _layer(transformer_graph(spec)) if "attention" in op.name)
    assert kept == 4 * 2048 * 6144 + 2 * 2048 * 64


def test_a_step_with_recomputation_does_the_flops_of_narayanan_equation_2() -> None:
    graph, layers, s, h, v = transformer_graph(GPT_22B), 48, 2048, 6144, 51200
    expected = 96 * s * layers * h * h * (1 + s / (6 * h) + v / (16 * layers * h))
    again = sum(op.flops * op.repeat for op in _layer(graph))
    assert graph.forward_flops + graph.backward_flops + again == pytest.approx(expected, rel=1e-3)


def test_a_causal_fused_kernel_does_half_of_the_square() -> None:
    fused = transformer_graph(replace(GPT_22B, fused_attention=True))
    whole = transformer_graph(GPT_22B)
    attention = OpKind.ATTENTION
    assert fused.total("flops", Phase.FORWARD, attention) == pytest.approx(
        whole.total("flops", Phase.FORWARD, attention) / 2
    )


def test_a_window_is_skipped_only_by_the_fused_kernel() -> None:
    spec = replace(GPT_22B, fused_attention=True, window=256)
    inside = transformer_graph(spec).total("flops", Phase.FORWARD, OpKind.ATTENTION)
    full = transformer_graph(replace(spec, window=0)).total(
        "flops", Phase.FORWARD, OpKind.ATTENTION
    )
    assert inside < full / 2


def test_layers_that_differ_are_written_apart_and_add_up() -> None:
    spec = replace(GPT_22B, fused_attention=True, window=256, global_every=6)
    qkv = [op for op in transformer_graph(spec).ops if op.name.endswith("attention.qkv")]
    assert sorted(op.repeat for op in qkv) == [8, 40]


def test_grouped_keys_make_fewer_parameters() -> None:
    full, grouped = (transformer_graph(replace(GPT_22B, kv_heads=k)).params for k in (0, 8))
    assert full - grouped == 48 * (6144 + 1) * 2 * (64 - 8) * 96


def test_experts_own_all_their_weights_and_work_for_those_a_token_visits() -> None:
    spec = replace(GPT_22B, bias=False, experts=8, experts_per_token=2)
    graph, dense = transformer_graph(spec), transformer_graph(replace(GPT_22B, bias=False))
    up = next(op for op in graph.ops if op.name.endswith("moe.up"))
    plain = next(op for op in dense.ops if op.name.endswith("mlp.up"))
    assert up.shard is Shard.EXPERT
    assert up.params == up.weights == 8 * plain.params
    assert up.flops == 2 * plain.flops


def test_a_router_is_repeated_on_every_tensor_rank() -> None:
    spec = replace(GPT_22B, experts=8, experts_per_token=2)
    router = next(op for op in transformer_graph(spec).ops if op.name.endswith("moe.router"))
    assert router.shard is Shard.NONE


def test_a_tied_output_layer_reads_the_weights_and_owns_none() -> None:
    logits = next(op for op in transformer_graph(GPT_22B).ops if op.name == "head.logits")
    assert (logits.params, logits.weights) == (0.0, 51200 * 6144)
    assert (logits.block, logits.shard) == (Block.HEAD, Shard.TENSOR)


def test_the_loss_keeps_fp32_probabilities_of_the_vocabulary() -> None:
    loss = next(op for op in transformer_graph(GPT_22B).ops if op.name == "head.loss")
    assert loss.saved == 2 * 2048 * 51200
    wide = replace(GPT_22B, activation_bytes=4.0)
    loss = next(op for op in transformer_graph(wide).ops if op.name == "head.loss")
    assert loss.saved == 2048 * 51200


def test_a_workload_states_what_plans_may_divide() -> None:
    workload = transformer_workload(replace(GPT_22B, kv_heads=8), "gpt")
    shape = workload.shape
    assert (shape.layers, shape.heads, shape.kv_heads, shape.ffn) == (48, 64, 8, 24576)
    assert workload.length is not None
    assert workload.length.count == pytest.approx(20 * workload.params)


def test_a_sequence_beyond_the_learned_positions_is_noted() -> None:
    spec = replace(GPT_22B, max_positions=1024)
    assert any("lengthened" in note for note in transformer_workload(spec, "gpt").notes)


@pytest.mark.parametrize(
    "wrong",
    [
        {"heads": 7}, {"layers": -1}, {"hidden": 0}, {"kv_heads": 5}, {"seq_len": 2**40},
        {"norm": "batch"}, {"kind": "mixer"}, {"experts": 4, "experts_per_token": 9},
        {"dense_layers": 99}, {"dropout": 1.5}, {"layers": 2.5}, {"layers": 2**30},
        {"kv_lora_rank": 512},
    ],
)  # fmt: skip
def test_a_shape_that_cannot_be_is_refused_with_its_field(wrong: dict[str, object]) -> None:
    with pytest.raises(RequestError, match=next(iter(reversed(wrong)))):
        replace(GPT_22B, **wrong)  # type: ignore[arg-type]


@given(
    layers=st.integers(1, 6), heads=st.integers(1, 8), size=st.integers(1, 16),
    seq_len=st.integers(1, 64), gated=st.booleans(), fused=st.booleans(),
    kind=st.sampled_from(["decoder", "encoder", "encoder-decoder"]),
    positions=st.sampled_from(["learned", "rope", "alibi", "relative"]),
)  # fmt: skip
def test_every_shape_has_a_graph_whose_edges_point_back_and_whose_numbers_are_not_negative(
    layers: int, heads: int, size: int, seq_len: int, gated: bool, fused: bool, kind: str,
    positions: str,
) -> None:  # fmt: skip
    spec = TransformerSpec(
        layers=layers, hidden=heads * size, heads=heads, vocab=11, seq_len=seq_len, gated=gated,
        kind=kind, fused_attention=fused, positions=positions,
    )  # fmt: skip
    graph = transformer_graph(spec)
    for position, op in enumerate(graph.ops):
        assert all(source < position for source in op.inputs)
        assert min(op.flops, op.reads, op.writes, op.weights, op.params, op.saved) >= 0
    # Every product of weights has two gradients; attention has two or two and a half times.
    assert 1.9 * graph.forward_flops <= graph.backward_flops <= 2.5 * graph.forward_flops
