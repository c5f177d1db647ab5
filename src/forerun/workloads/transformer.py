"""Transformers: from a TransformerSpec to the graph of a training step and its Workload."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from forerun.domain.graph import Block, Graph, Op, Shard
from forerun.domain.workload import ACTIVATION_BYTES, LayerShape, Length, Workload
from forerun.workloads.attention import View, attention
from forerun.workloads.backward import complete
from forerun.workloads.ends import embed, head, output
from forerun.workloads.feedforward import feedforward, mixture
from forerun.workloads.shapes import TransformerSpec
from forerun.workloads.tape import Tape

__all__ = ["TransformerSpec", "transformer_graph", "transformer_workload"]

TOKENS_A_PARAMETER = 20.0
RULE_OF_THUMB = "Hoffmann et al. 2022 rule of thumb: 20 tokens a parameter"


def transformer_graph(spec: TransformerSpec, optimizer: str = "adamw") -> Graph:
    """Return the graph of one training step, per sample of `seq_len` tokens.

    Layers that are alike are written once with `repeat`. `saved` follows Korthikanti et al. 2022:
    with 16-bit activations, materialised attention and dropout, an ungated layer keeps
    s h (34 + 5 a s / h) bytes a sample; its TENSOR part is s h (24 + 5 a s / h), its SEQUENCE part
    10 s h, and its ATTENTION and SOFTMAX operations keep the 5 a s / h term alone.
    Fused attention keeps queries, keys, values, the output and the log-sum-exp.
    """
    return complete(_forward(spec), optimizer)


def transformer_workload(
    spec: TransformerSpec, name: str, *, task: str = "pretrain", **fields: Any
) -> Workload:
    """Return a Workload of a transformer; `fields` are further fields of Workload.

    Without a `length` it is 20 tokens for each active parameter. A table of learned positions
    that is shorter than the sequence is lengthened, and a note says so.
    """
    precision = fields.get("precision", "bf16")
    optimizer = fields.setdefault("optimizer", "adamw")
    spec = replace(spec, activation_bytes=ACTIVATION_BYTES.get(precision, 2.0))
    notes = tuple(fields.pop("notes", ()))
    if spec.positions == "learned" and 0 < spec.max_positions < spec.seq_len:
        notes += (
            f"positions lengthened from {spec.max_positions} to {spec.seq_len} for this sequence",
        )
    graph = transformer_graph(spec, optimizer)
    fields.setdefault("length", Length("tokens", _usual_tokens(spec, graph), RULE_OF_THUMB))
    return Workload(
        name=name,
        graph=graph,
        shape=layer_shape(spec),
        sample="sequence",
        seq_len=spec.seq_len,
        fused_attention=spec.fused_attention,
        task=task,
        notes=notes,
        **fields,
    )


def layer_shape(spec: TransformerSpec) -> LayerShape:
    """Return what parallel plans may divide."""
    layers = spec.layers
    if spec.kind == "encoder-decoder":
        layers += spec.decoder_layers or spec.layers
    return LayerShape(
        layers=layers,
        hidden=spec.hidden,
        heads=spec.heads,
        kv_heads=spec.key_heads,
        ffn=spec.ffn_size,
        vocab=spec.vocab,
        experts=spec.experts,
        experts_per_token=spec.experts_per_token,
        moe_layers=sum(spec.has_experts(i) for i in range(spec.layers)),
        head_size=spec.head_size,
    )


def active_params(spec: TransformerSpec, graph: Graph) -> float:
    """Return the parameters that one token meets: of the experts only those it visits."""
    if not spec.experts:
        return graph.params
    routed = sum(op.params * op.repeat for op in graph.ops if op.shard is Shard.EXPERT)
    return graph.params - routed * (1 - spec.experts_per_token / spec.experts)


def _usual_tokens(spec: TransformerSpec, graph: Graph) -> float:
    return TOKENS_A_PARAMETER * active_params(spec, graph)


def _forward(spec: TransformerSpec) -> list[Op]:
    tape = Tape(activation_bytes=spec.activation_bytes, shared=spec.shared_layers)
    trunk = embed(tape, spec, spec.seq_len, "embed", own_table=True)
    if spec.kind == "encoder-decoder":
        memory = _stack(tape, spec, trunk, "encoder", causal=False)
        tape.enter("encoder", Block.LAYER)
        memory = tape.norm("norm", memory, (spec.seq_len, spec.hidden), spec.norm)
        tokens = spec.target_size
        trunk = embed(tape, spec, tokens, "decoder.embed", own_table=False)
        trunk = _stack(tape, spec, trunk, "decoder", causal=True, memory=memory)
    else:
        tokens = spec.seq_len
        trunk = _stack(tape, spec, trunk, "layer", causal=spec.attends_back_only)
    head(tape, spec, trunk, tokens)
    if spec.predict_layers:
        _predict_ahead(tape, spec, trunk, tokens)
    return tape.ops


def _stack(
    tape: Tape, spec: TransformerSpec, trunk: int, prefix: str, causal: bool, memory: int = -1
) -> int:
    """Append the layers, those that are alike once; `memory` is what a decoder attends across."""
    layers = spec.layers
    if memory >= 0:
        layers = spec.decoder_layers or spec.layers
    tokens = spec.target_size if memory >= 0 else spec.seq_len
    kinds: dict[tuple[bool, int], int] = {}
    for layer in range(layers):
        kind = (spec.has_experts(layer), spec.window_of(layer) if spec.fused_attention else 0)
        kinds[kind] = kinds.get(kind, 0) + 1
    for (experts, window), repeat in kinds.items():
        label = prefix
        if len(kinds) > 1:
            label += (".moe" if experts else ".dense") * (len({k for k, _ in kinds}) > 1)
            label += (f".window{window}" if window else ".full") * (len({w for _, w in kinds}) > 1)
        tape.enter(label, Block.LAYER, repeat)
        view = View(tokens, tokens, causal, window)
        trunk = _layer(tape, spec, trunk, view, experts, memory)
    return trunk


def _layer(
    tape: Tape, spec: TransformerSpec, trunk: int, view: View, experts: bool, memory: int
) -> int:
    """Append one layer: attention, (cross-attention,) feed-forward, each with its residual."""
    shape = (view.tokens, spec.hidden)
    norm = tape.norm("norm1", trunk, shape, spec.norm, bias=spec.norm_bias)
    branch = attention(tape, spec, norm, view, "attention")
    if spec.norms >= 4:
        branch = tape.norm("norm_after1", branch, shape, spec.norm, 1.0, bias=spec.norm_bias)
    if spec.parallel:
        other = norm
        if spec.norms >= 2:
            other = tape.norm("norm2", trunk, shape, spec.norm, bias=spec.norm_bias)
        second = feedforward(tape, spec, other, view.tokens, spec.ffn_size)
        both = tape.pointwise("sum", (branch, second), shape, reads=2.0)
        return tape.dropout_add("residual", both, trunk, shape, spec.dropout)
    trunk = tape.dropout_add("residual1", branch, trunk, shape, spec.dropout)
    if memory >= 0:
        norm = tape.norm("norm_cross", trunk, shape, spec.norm, bias=spec.norm_bias)
        across = View(view.tokens, spec.seq_len, memory=memory)
        branch = attention(tape, spec, norm, across, "cross_attention")
        trunk = tape.dropout_add("residual_cross", branch, trunk, shape, spec.dropout)
    norm = tape.norm("norm2", trunk, shape, spec.norm, bias=spec.norm_bias)
    if experts:
        branch = mixture(tape, spec, norm, view.tokens)
    else:
        branch = feedforward(tape, spec, norm, view.tokens, spec.ffn_size)
    if spec.norms >= 4:
        branch = tape.norm("norm_after2", branch, shape, spec.norm, 1.0, bias=spec.norm_bias)
    return tape.dropout_add("residual2", branch, trunk, shape, spec.dropout)


def _predict_ahead(tape: Tape, spec: TransformerSpec, trunk: int, tokens: int) -> None:
    """Append DeepSeek-V3's multi-token prediction: norms, a projection, one layer, the output."""
    shape = (tokens, spec.hidden)
    for index in range(spec.predict_layers):
        tape.enter(f"ahead{index}", Block.HEAD)
        left = tape.norm("norm_hidden", trunk, shape, spec.norm)
        tape.norm("norm_token", trunk, shape, spec.norm)
        trunk = tape.linear(
            "project", left, tokens, spec.hidden, 2 * spec.hidden, shard=Shard.SEQUENCE
        )
        trunk = _layer(tape, spec, trunk, View(tokens, tokens, True), spec.experts > 0, -1)
        last = tape.norm("norm", trunk, shape, spec.norm)
        output(tape, spec, last, tokens, spec.hidden, tied=True)
