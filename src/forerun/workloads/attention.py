"""Attention as operations: projections, then a fused kernel or its materialised products."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.domain.graph import OpKind, Shard
from forerun.workloads.shapes import TransformerSpec
from forerun.workloads.tape import Tape


@dataclass(frozen=True, slots=True)
class View:
    """What a token may attend to: `tokens` queries over `keys` keys.

    Attributes:
        memory: position of the operation that made the keys' input (-1: the queries' own).
        window: tokens seen (0: all).
    """

    tokens: int
    keys: int
    causal: bool = False
    window: int = 0
    memory: int = -1

    def pairs(self, skipping: bool) -> float:
        """Return (query, key) pairs computed; a skipping kernel leaves out the masked ones.

        A fused causal kernel does half of the square, and with a window a band of it (half a
        window at the start is not taken off twice); a materialised one does the whole square,
        which is how Megatron counts (Narayanan et al. 2021, equation 2).
        """
        square = float(self.tokens * self.keys)
        if not skipping or not (self.causal or self.window):
            return square
        if not self.window or self.window >= self.keys:
            return square / 2 if self.causal else square
        band = float(self.window) * (self.tokens - self.window / 2)
        return band if self.causal else min(square, 2 * band)


def attention(tape: Tape, spec: TransformerSpec, source: int, view: View, name: str) -> int:
    """Append an attention block that reads the normalised `source`; return its output's position.

    Kept for backward (Korthikanti et al. 2022, section 4): queries, keys and values; scores after
    softmax, after dropout, and the mask, unless fused; then the projection's input. The input of
    the qkv projection is kept by the normalisation before it.
    """
    if spec.kv_lora_rank:
        core_inputs = _latent_projections(tape, spec, source, view, name)
    else:
        core_inputs = _projections(tape, spec, source, view, name)
    out_size = spec.v_dim if spec.kv_lora_rank else spec.head_size
    if spec.fused_attention:
        core = _fused(tape, spec, core_inputs, view, name)
    else:
        core = _materialised(tape, spec, core_inputs, view, name)
    width = spec.heads * out_size
    return tape.linear(
        f"{name}.out", core, view.tokens, spec.hidden, width, spec.bias,
        saved=float(view.tokens * width),
    )  # fmt: skip


def _projections(
    tape: Tape, spec: TransformerSpec, source: int, view: View, name: str
) -> tuple[int, ...]:
    """Append queries, keys and values of ordinary (grouped) attention."""
    bias = spec.bias if spec.qkv_bias is None else spec.qkv_bias
    query, key = spec.heads * spec.head_size, spec.key_heads * spec.head_size
    made: tuple[int, ...]
    if view.memory < 0:
        width = query + 2 * key
        made = (
            tape.linear(
                f"{name}.qkv", source, view.tokens, width, spec.hidden, bias,
                saved=float(view.tokens * width),
            ),
        )  # fmt: skip
    else:
        made = (
            tape.linear(
                f"{name}.q", source, view.tokens, query, spec.hidden, bias,
                saved=float(view.tokens * query),
            ),
            tape.linear(
                f"{name}.kv", view.memory, view.keys, 2 * key, spec.hidden, bias,
                saved=float(view.keys * 2 * key),
            ),
        )  # fmt: skip
    if spec.qk_norm:
        made = (_query_key_norm(tape, spec, made, view, name),)
    if spec.positions == "rope":
        shape = (view.tokens, query + key)
        rope = tape.pointwise(f"{name}.rope", made, shape, shard=Shard.TENSOR, launches=2)
        made = (*made, rope)
    return made


def _query_key_norm(
    tape: Tape, spec: TransformerSpec, made: tuple[int, ...], view: View, name: str
) -> int:
    """Append the normalisation of each head of queries and keys; it keeps its input."""
    size = float(view.tokens * (spec.heads + spec.key_heads) * spec.head_size)
    params = 2.0 * spec.head_size
    return tape.add(
        f"{name}.qk_norm", OpKind.NORM, made,
        reads=size, writes=size, weights=params, params=params,
        saved=size, shard=Shard.TENSOR, launches=2,
    )  # fmt: skip


def _latent_projections(
    tape: Tape, spec: TransformerSpec, source: int, view: View, name: str
) -> tuple[int, ...]:
    """Append DeepSeek's low-rank queries, keys and values (DeepSeek-V2, section 2.1).

    The narrow projections are repeated on every tensor rank; the wide ones are divided.
    """
    tokens, heads, rank = view.tokens, spec.heads, spec.kv_lora_rank
    wide = heads * (spec.nope_dim + spec.rope_dim)
    query = source
    if spec.q_lora_rank:
        query = tape.linear(
            f"{name}.q_down", source, tokens, spec.q_lora_rank, spec.hidden, shard=Shard.SEQUENCE
        )
        query = tape.norm(f"{name}.q_norm", query, (tokens, spec.q_lora_rank), "rmsnorm")
    query = tape.linear(
        f"{name}.q_up", query, tokens, wide, spec.q_lora_rank or spec.hidden,
        saved=float(tokens * wide),
    )  # fmt: skip
    key = tape.linear(
        f"{name}.kv_down", source, tokens, rank + spec.rope_dim, spec.hidden, shard=Shard.SEQUENCE
    )
    key = tape.norm(f"{name}.kv_norm", key, (tokens, rank), "rmsnorm")
    # Keys carry the rotary part too, copied to every head before attention.
    kept = tokens * heads * (spec.nope_dim + spec.rope_dim + spec.v_dim)
    key = tape.linear(
        f"{name}.kv_up", key, tokens, heads * (spec.nope_dim + spec.v_dim), rank,
        saved=float(kept),
    )  # fmt: skip
    rope = tape.pointwise(
        f"{name}.rope", (query, key), (tokens, 2 * wide), shard=Shard.TENSOR, launches=4
    )
    return (query, key, rope)


def _sizes(spec: TransformerSpec, view: View) -> tuple[float, float, float, int]:
    """Return elements of queries, keys and values, and the size of a value's head."""
    value_dim = spec.v_dim if spec.kv_lora_rank else spec.head_size
    heads = spec.heads if spec.kv_lora_rank else spec.key_heads
    query = float(view.tokens * spec.heads * spec.head_size)
    return (
        query,
        float(view.keys * heads * spec.head_size),
        view.keys * heads * value_dim,
        value_dim,
    )


def _fused(
    tape: Tape, spec: TransformerSpec, inputs: tuple[int, ...], view: View, name: str
) -> int:
    """Append one kernel; it keeps only the log-sum-exp of each row (its output is kept behind)."""
    query, key, value, value_dim = _sizes(spec, view)
    pairs = view.pairs(skipping=True)
    per_pair = 2.0 * (spec.head_size + value_dim)
    return tape.add(
        f"{name}.core", OpKind.ATTENTION, inputs,
        flops=pairs * spec.heads * per_pair,
        reads=query + key + value,
        writes=float(view.tokens * spec.heads * value_dim),
        shape=(spec.heads, view.tokens, value_dim),
        dims=(view.tokens, view.keys, (spec.head_size + value_dim) // 2, spec.heads),
        saved=tape.wide * view.tokens * spec.heads,
        shard=Shard.TENSOR,
    )  # fmt: skip


def _materialised(
    tape: Tape, spec: TransformerSpec, inputs: tuple[int, ...], view: View, name: str
) -> int:
    """Append scores, softmax, dropout and the product with the values, each through memory."""
    tokens, keys, heads = view.tokens, view.keys, spec.heads
    _, _, _, value_dim = _sizes(spec, view)
    square = float(tokens * keys * heads)
    scores = tape.add(
        f"{name}.scores", OpKind.ATTENTION, inputs,
        flops=2.0 * square * spec.head_size,
        reads=float((tokens + keys) * heads * spec.head_size), writes=square,
        shape=(heads, tokens, keys), dims=(tokens, keys, spec.head_size, heads),
        shard=Shard.TENSOR,
    )  # fmt: skip
    last = tape.add(
        f"{name}.softmax", OpKind.SOFTMAX, (scores,),
        reads=square, writes=square,
        shape=(heads, tokens, keys), saved=square, shard=Shard.TENSOR,
    )  # fmt: skip
    if spec.dropout > 0:
        last = tape.add(
            f"{name}.dropout", OpKind.SOFTMAX, (last,),
            reads=square, writes=square,
            shape=(heads, tokens, keys), saved=(1.0 + tape.mask) * square, shard=Shard.TENSOR,
        )  # fmt: skip
    return tape.add(
        f"{name}.context", OpKind.ATTENTION, (last, *inputs),
        flops=2.0 * square * value_dim,
        reads=square + float(keys * heads * value_dim),
        writes=float(tokens * heads * value_dim),
        shape=(heads, tokens, value_dim), dims=(tokens, value_dim, keys, heads),
        shard=Shard.TENSOR,
    )  # fmt: skip
