"""The ends of a transformer as operations: embeddings before the layers, output and loss behind."""

from __future__ import annotations

from forerun.domain.graph import Block, OpKind, Shard
from forerun.workloads.shapes import TransformerSpec
from forerun.workloads.tape import Tape

_COLOURS = 3


def embed(tape: Tape, spec: TransformerSpec, tokens: int, prefix: str, own_table: bool) -> int:
    """Append token (or patch) and position embeddings; a decoder's table is the encoder's."""
    tape.enter(prefix, Block.EMBED if own_table else Block.LAYER)
    width = spec.embedding_size or spec.hidden
    size = float(tokens * width)
    table = float(spec.vocab * width) if own_table else 0.0
    if spec.patch:
        last = _patches(tape, spec, tokens)
    else:
        last = tape.add(
            "tokens", OpKind.EMBEDDING, reads=size, writes=size, params=table,
            shape=(tokens, width), shard=Shard.TENSOR,
        )  # fmt: skip
    tables = spec.token_types
    if spec.positions == "learned" and own_table:
        tables += max(spec.max_positions, spec.seq_len)
    if tables:
        other = tape.add(
            "positions", OpKind.EMBEDDING, reads=size, writes=size, params=float(tables * width),
            shape=(tokens, width), shard=Shard.SEQUENCE,
        )  # fmt: skip
        last = tape.pointwise("sum", (last, other), (tokens, width), reads=2.0)
    elif spec.positions == "relative":
        buckets = float((spec.max_positions or 32) * spec.heads)
        tape.add(
            "relative", OpKind.EMBEDDING, reads=buckets, writes=buckets, params=buckets,
            shard=Shard.TENSOR,
        )  # fmt: skip
    if spec.embedding_norm:
        last = tape.norm("norm", last, (tokens, width), spec.norm)
    if spec.dropout:
        last = tape.pointwise("dropout", (last,), (tokens, width), saved=tape.mask)
    if width != spec.hidden:
        last = tape.linear(
            "project", last, tokens, spec.hidden, width, bias=True, shard=Shard.SEQUENCE
        )
    return last


def _patches(tape: Tape, spec: TransformerSpec, tokens: int) -> int:
    """Append the convolution that cuts an image into patches, one token each."""
    area = _COLOURS * spec.patch**2
    patches = tokens - 1  # the first token is the class's
    weights = float(spec.hidden * (area + 1))
    return tape.add(
        "patches", OpKind.CONV,
        flops=2.0 * patches * spec.hidden * area,
        reads=float(patches * area), writes=float(tokens * spec.hidden),
        weights=weights, params=weights + spec.hidden,
        shape=(tokens, spec.hidden), dims=(patches, spec.hidden, area),
        saved=float(patches * area), shard=Shard.NONE,
    )  # fmt: skip


def head(tape: Tape, spec: TransformerSpec, trunk: int, tokens: int) -> None:
    """Append the final normalisation, the output layer and the loss over the vocabulary."""
    tape.enter("head", Block.HEAD)
    if spec.final_norm:
        trunk = tape.norm("norm", trunk, (tokens, spec.hidden), spec.norm, bias=spec.norm_bias)
    if spec.pooler:
        tape.linear("pooler", trunk, 1, spec.hidden, spec.hidden, True, Shard.NONE)
    width = spec.embedding_size or spec.hidden
    if spec.mlm_head:
        trunk = tape.linear(
            "transform", trunk, tokens, width, spec.hidden, True, Shard.SEQUENCE,
            saved=float(tokens * width),
        )  # fmt: skip
        trunk = tape.norm("transform_norm", trunk, (tokens, width), spec.norm)
    elif width != spec.hidden and not spec.head_outputs:
        trunk = tape.linear("project", trunk, tokens, width, spec.hidden, shard=Shard.SEQUENCE)
    if spec.head_outputs and not spec.mlm_head:
        width = spec.hidden
    tokens = 1 if spec.patch else tokens  # an image has one label
    output(tape, spec, trunk, tokens, width, spec.tied)


def output(
    tape: Tape, spec: TransformerSpec, trunk: int, tokens: int, width: int, tied: bool
) -> None:
    """Append logits and cross-entropy; the loss keeps probabilities in fp32."""
    outputs = spec.head_outputs or spec.vocab
    shard = Shard.NONE if spec.head_outputs else Shard.TENSOR
    tied = tied and not spec.head_outputs
    logits = tape.linear("logits", trunk, tokens, outputs, width, spec.head_bias, shard, tied=tied)
    size = float(tokens * outputs)
    tape.add(
        "loss", OpKind.REDUCE, (logits,),
        reads=tape.wide * size, writes=tape.wide * size,
        shape=(tokens, outputs), saved=tape.wide * size, shard=shard, launches=2,
    )  # fmt: skip
