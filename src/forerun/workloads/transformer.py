"""Transformers: from a TransformerSpec to the graph of a training step and its Workload."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from forerun.domain.graph import Block, Graph, Op, OpKind, Shard
from forerun.domain.workload import ACTIVATION_BYTES, LayerShape, Length, Workload
from forerun.errors import RequestError, one_of
from forerun.workloads.backward import complete

__all__ = ["TransformerSpec", "transformer_graph", "transformer_workload"]

_WORDS: Mapping[str, tuple[str, ...]] = {
    "kind": ("decoder", "encoder", "encoder-decoder"), "norm": ("layernorm", "rmsnorm"),
    "positions": ("learned", "sinusoidal", "rope", "alibi", "relative", "none"),
}  # fmt: skip
_AT_LEAST_ONE = ("layers", "hidden", "heads", "vocab", "seq_len", "moe_every")
_LARGEST = 2**31 - 1
_MOST_LAYERS = 10_000


@dataclass(frozen=True)
class TransformerSpec:
    """A transformer's shape; docs/spec.md has the meaning of each field.

    Zero in a size that has a usual value means that value. `activation_bytes`: of one activation
    element; masks and fp32 copies are counted in these.
    """

    layers: int
    hidden: int
    heads: int
    vocab: int
    seq_len: int
    kv_heads: int = 0
    head_dim: int = 0
    ffn: int = 0
    gated: bool = False
    kind: str = "decoder"
    causal: bool | None = None
    decoder_layers: int = 0
    target_len: int = 0
    norm: str = "layernorm"
    norm_bias: bool = True
    norms: int = 2
    positions: str = "learned"
    max_positions: int = 0
    tied: bool = True
    bias: bool = True
    qkv_bias: bool | None = None
    head_bias: bool = False
    final_norm: bool = True
    embedding_norm: bool = False
    token_types: int = 0
    embedding_size: int = 0
    pooler: bool = False
    mlm_head: bool = False
    head_outputs: int = 0
    dropout: float = 0.0
    experts: int = 0
    experts_per_token: int = 0
    expert_groups: int = 0
    shared_experts: int = 0
    expert_ffn: int = 0
    dense_layers: int = 0
    moe_every: int = 1
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    rope_dim: int = 0
    nope_dim: int = 0
    v_dim: int = 0
    window: int = 0
    global_every: int = 0
    qk_norm: bool = False
    parallel: bool = False
    shared_layers: bool = False
    predict_layers: int = 0
    patch: int = 0
    fused_attention: bool = True
    activation_bytes: float = 2.0

    def __post_init__(self) -> None:
        for name in (item.name for item in fields(self) if item.type == "int"):
            value, least = getattr(self, name), 1 if name in _AT_LEAST_ONE else 0
            whole = isinstance(value, int) and not isinstance(value, bool)
            largest = _MOST_LAYERS if "layers" in name else _LARGEST
            if not (whole and least <= value <= largest):
                raise self._wrong(
                    name, f"{name} must be a whole number, at least {least}",
                    f"give {name} from {least} to {largest}",
                )  # fmt: skip
        for name, allowed in _WORDS.items():
            if getattr(self, name) not in allowed:
                raise self._wrong(name, f"no such {name}", one_of(getattr(self, name), allowed))
        heads, experts = self.heads, self.experts
        for name, is_wrong, found, next_step in (
            ("heads", not (self.kv_lora_rank or self.head_dim) and self.hidden % heads,
             f"hidden={self.hidden} is not divisible by it",
             "give head_dim, or heads that divide hidden"),
            ("kv_heads", self.kv_heads and heads % self.kv_heads,
             f"heads={heads} is not a multiple of it", "give kv_heads that divide heads"),
            ("kv_lora_rank", self.kv_lora_rank and not (self.rope_dim and self.nope_dim
                                                        and self.v_dim),
             "latent attention without its head sizes", "give rope_dim, nope_dim and v_dim too"),
            ("experts_per_token", experts and not 0 < self.experts_per_token <= experts,
             f"there are {experts} experts", f"give a number from 1 to {experts}"),
            ("dense_layers", self.dense_layers > self.layers,
             f"there are {self.layers} layers", f"give at most {self.layers}"),
            ("dropout", not 0 <= self.dropout < 1, "not a probability",
             "give 0 or more, below 1"),
        ):  # fmt: skip
            if is_wrong:
                raise self._wrong(name, found, next_step)

    def _wrong(self, name: str, found: str, next_step: str) -> RequestError:
        value = getattr(self, name)
        return RequestError(f"a transformer with {name}={value}", found, next_step)

    @property
    def key_heads(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def head_size(self) -> int:
        """Size of a query head."""
        if self.kv_lora_rank:
            return self.nope_dim + self.rope_dim
        return self.head_dim or self.hidden // self.heads

    @property
    def ffn_size(self) -> int:
        """Inner width of a dense feed-forward network."""
        return self.ffn or 4 * self.hidden

    @property
    def target_size(self) -> int:
        """Tokens a sample in the decoder of an encoder-decoder."""
        return self.target_len or self.seq_len

    def has_experts(self, layer: int) -> bool:
        """Whether the layer of this number (from 0) has experts."""
        if not self.experts or layer < self.dense_layers:
            return False
        return (layer - self.dense_layers + 1) % self.moe_every == 0


_TOKENS_A_PARAMETER = 20.0
_RULE_OF_THUMB = "Hoffmann et al. 2022 rule of thumb: 20 tokens a parameter"
_COLOURS = 3


def transformer_graph(spec: TransformerSpec, optimizer: str = "adamw") -> Graph:
    """Return the graph of one training step, per sample of `seq_len` tokens.

    Layers that are alike are written once with `repeat`. `saved` follows Korthikanti et al. 2022:
    with 16-bit activations, materialised attention and dropout, an ungated layer keeps
    s h (34 + 5 a s / h) bytes a sample; its TENSOR part is s h (24 + 5 a s / h), its SEQUENCE part
    10 s h, and its ATTENTION and SOFTMAX operations keep the 5 a s / h term alone.
    Fused attention keeps queries, keys, values, the output and the log-sum-exp.
    """
    return complete(_Builder(spec).forward(), optimizer)


def transformer_workload(
    spec: TransformerSpec, name: str, *, task: str = "pretrain", **fields: Any
) -> Workload:
    """Return a Workload of a transformer; `fields` are further fields of Workload.

    Without a `length` it is 20 tokens for each active parameter, or `TUNING`. A table of learned positions
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
    if "length" not in fields:
        active = graph.params  # parameters that one token meets: of experts those it visits
        if spec.experts:
            routed = sum(op.params * op.repeat for op in graph.ops if op.shard is Shard.EXPERT)
            active -= routed * (1 - spec.experts_per_token / spec.experts)
        fields["length"] = Length("tokens", _TOKENS_A_PARAMETER * active, _RULE_OF_THUMB)
    two_stacks = spec.kind == "encoder-decoder"
    made = Workload(
        name=name,
        graph=graph,
        shape=LayerShape(
            layers=spec.layers + (spec.decoder_layers or spec.layers) * two_stacks,
            hidden=spec.hidden,
            heads=spec.heads,
            kv_heads=spec.key_heads,
            ffn=spec.ffn_size,
            vocab=spec.vocab,
            experts=spec.experts,
            experts_per_token=spec.experts_per_token,
            expert_groups=spec.expert_groups,
            moe_layers=sum(spec.has_experts(i) for i in range(spec.layers)),
            head_size=spec.head_size,
        ),
        sample="sequence",
        seq_len=spec.seq_len,
        fused_attention=spec.fused_attention,
        notes=notes,
        **fields,
    )
    return made.with_(task=task)


@dataclass(frozen=True, slots=True)
class _View:
    """What a token may attend to: keys, of `memory` (the operation that made them; -1: its own), in a window."""

    tokens: int
    keys: int
    causal: bool = False
    window: int = 0
    memory: int = -1


class _Builder:
    """Writes forward operations of the part entered last; a method returns the position of its last one."""

    def __init__(self, spec: TransformerSpec) -> None:
        self.spec = spec
        self.ops: list[Op] = []
        self.prefix, self.block, self.repeat = "", Block.EMBED, 1
        # Elements that a mask of one byte and an fp32 number take.
        self.mask, self.wide = 1.0 / spec.activation_bytes, 4.0 / spec.activation_bytes

    def enter(self, prefix: str, block: Block, repeat: int = 1) -> None:
        self.prefix, self.block, self.repeat = prefix, block, repeat

    def add(
        self, name: str, kind: OpKind, inputs: tuple[int, ...] = (), *, shape: tuple[int, ...] = (),
        reads: float | None = None, writes: float | None = None, params: float = 0.0,
        weights: float | None = None, shard: Shard = Shard.SEQUENCE, **numbers: Any,
    ) -> int:  # fmt: skip
        """Append one operation; it reads and writes its shape and its parameters by default."""
        size = float(math.prod(shape))
        # Layers that share their weights (ALBERT) own a part of them each.
        shared = self.spec.shared_layers and self.repeat > 1
        self.ops.append(
            Op(
                f"{self.prefix}.{name}",
                kind,
                reads=size if reads is None else reads,
                writes=size if writes is None else writes,
                weights=params if weights is None else weights,
                params=params / self.repeat if shared else params,
                shape=shape,
                block=self.block,
                repeat=self.repeat,
                shard=shard,
                inputs=inputs,
                **numbers,
            )
        )
        return len(self.ops) - 1

    def linear(
        self, name: str, source: int, m: int, n: int, k: int, bias: bool = False,
        shard: Shard = Shard.TENSOR, saved: float = 0.0, tied: bool = False, experts: int = 0,
    ) -> int:  # fmt: skip
        """Append y[m, n] = x[m, k] w[k, n] (+ b) for one sample; `tied` weights are owned elsewhere.

        `experts` share the m rows, each with a weight of its own.
        """
        weights = float(max(experts, 1) * (n * k + n * bias))
        dims = (max(1, round(m / experts)), n, k, experts) if experts else (m, n, k)
        return self.add(
            name, OpKind.MATMUL, (source,), shape=(m, n), flops=2.0 * m * n * k,
            reads=float(m * k), weights=weights, params=float(n * bias) if tied else weights,
            dims=dims, saved=saved, shard=Shard.EXPERT if experts else shard,
        )  # fmt: skip

    def norm(
        self, name: str, source: int, tokens: int, width: int = 0, norm: str = "",
        saved: float = 2.0, bias: bool = True,
    ) -> int:  # fmt: skip
        """Append a normalisation; `saved` is in copies of its input."""
        width = width or self.spec.hidden
        biased = (norm or self.spec.norm) == "layernorm" and bias
        return self.add(
            name, OpKind.NORM, (source,), shape=(tokens, width),
            params=width * (2.0 if biased else 1.0), saved=saved * float(tokens * width),
        )  # fmt: skip

    def pointwise(
        self, name: str, sources: tuple[int, ...], tokens: int, width: int = 0, *,
        reads: float = 1.0, saved: float = 0.0, shard: Shard = Shard.SEQUENCE, launches: int = 1,
    ) -> int:  # fmt: skip
        """Append an element-wise operation; reads and saved are for each output element."""
        width = width or self.spec.hidden
        size = 1.0 * tokens * width
        return self.add(
            name, OpKind.ELEMENTWISE, sources, shape=(tokens, width), reads=reads * size,
            saved=saved * size, shard=shard, launches=launches,
        )  # fmt: skip

    def residual(self, name: str, branch: int, trunk: int, tokens: int) -> int:
        saved = self.mask if self.spec.dropout else 0.0
        return self.pointwise(name, (branch, trunk), tokens, reads=2.0, saved=saved)

    def forward(self) -> list[Op]:
        spec = self.spec
        tokens = spec.seq_len
        trunk = self.embed(tokens, "embed", own_table=True)
        if spec.kind == "encoder-decoder":
            memory = self.stack(trunk, "encoder", causal=False)
            self.enter("encoder", Block.LAYER)
            memory = self.norm("norm", memory, tokens)
            tokens = spec.target_size
            trunk = self.embed(tokens, "decoder.embed", own_table=False)
            trunk = self.stack(trunk, "decoder", causal=True, memory=memory)
        else:
            causal = spec.kind == "decoder" if spec.causal is None else spec.causal
            trunk = self.stack(trunk, "layer", causal=causal)
        self.head(trunk, tokens)
        for index in range(spec.predict_layers):
            # DeepSeek-V3's multi-token prediction: norms, a projection, one layer, the output.
            self.enter(f"ahead{index}", Block.HEAD)
            left = self.norm("norm_hidden", trunk, tokens)
            self.norm("norm_token", trunk, tokens)
            trunk = self.linear(
                "project", left, tokens, spec.hidden, 2 * spec.hidden, shard=Shard.SEQUENCE
            )
            trunk = self.layer(trunk, _View(tokens, tokens, True), spec.experts > 0, -1)
            self.output(self.norm("norm", trunk, tokens), tokens, spec.hidden, tied=True)
        return self.ops

    def embed(self, tokens: int, prefix: str, own_table: bool) -> int:
        """Append token (or patch) and position embeddings; a decoder's table is the encoder's."""
        spec = self.spec
        self.enter(prefix, Block.EMBED if own_table else Block.LAYER)
        width = spec.embedding_size or spec.hidden
        if spec.patch:
            # A convolution cuts an image into patches, one token each; the first is the class's.
            area, patches = _COLOURS * spec.patch**2, tokens - 1
            weights, pixels = float(spec.hidden * (area + 1)), float(patches * area)
            last = self.add(
                "patches", OpKind.CONV, shape=(tokens, spec.hidden),
                flops=2.0 * patches * spec.hidden * area, reads=pixels, weights=weights,
                params=weights + spec.hidden, dims=(patches, spec.hidden, area), saved=pixels,
                shard=Shard.NONE,
            )  # fmt: skip
        else:
            last = self.add(
                "tokens", OpKind.EMBEDDING, shape=(tokens, width), weights=0.0,
                params=float(spec.vocab * width) if own_table else 0.0, shard=Shard.TENSOR,
            )  # fmt: skip
        tables = spec.token_types
        if spec.positions == "learned" and own_table:
            tables += max(spec.max_positions, spec.seq_len)
        if tables:
            other = self.add(
                "positions", OpKind.EMBEDDING, shape=(tokens, width), weights=0.0,
                params=float(tables * width),
            )  # fmt: skip
            last = self.pointwise("sum", (last, other), tokens, width, reads=2.0)
        elif spec.positions == "relative":
            buckets = float((spec.max_positions or 32) * spec.heads)
            self.add(
                "relative", OpKind.EMBEDDING, reads=buckets, writes=buckets, params=buckets,
                weights=0.0, shard=Shard.TENSOR,
            )  # fmt: skip
        if spec.embedding_norm:
            last = self.norm("norm", last, tokens, width)
        if spec.dropout:
            last = self.pointwise("dropout", (last,), tokens, width, saved=self.mask)
        if width != spec.hidden:
            last = self.linear(
                "project", last, tokens, spec.hidden, width, bias=True, shard=Shard.SEQUENCE
            )
        return last

    def stack(self, trunk: int, prefix: str, causal: bool, memory: int = -1) -> int:
        """Append the layers, those that are alike once; a decoder attends across to `memory`."""
        spec, layers, tokens = self.spec, self.spec.layers, self.spec.seq_len
        if memory >= 0:
            layers, tokens = spec.decoder_layers or spec.layers, spec.target_size
        kinds: dict[tuple[bool, int], int] = {}
        for layer in range(layers):
            sees_all = spec.global_every > 0 and (layer + 1) % spec.global_every == 0
            sees_all |= spec.window >= spec.seq_len or not spec.fused_attention
            kind = (spec.has_experts(layer), 0 if sees_all else spec.window)
            kinds[kind] = kinds.get(kind, 0) + 1
        for (experts, window), repeat in kinds.items():
            label = prefix
            if len({k for k, _ in kinds}) > 1:
                label += ".moe" if experts else ".dense"
            if len({w for _, w in kinds}) > 1:
                label += f".window{window}" if window else ".full"
            self.enter(label, Block.LAYER, repeat)
            trunk = self.layer(trunk, _View(tokens, tokens, causal, window), experts, memory)
        return trunk

    def layer(self, trunk: int, view: _View, experts: bool, memory: int) -> int:
        spec, tokens, bias = self.spec, view.tokens, self.spec.norm_bias
        norm = self.norm("norm1", trunk, tokens, bias=bias)
        branch = self.attention(norm, view, "attention")
        if spec.norms >= 4:
            branch = self.norm("norm_after1", branch, tokens, saved=1.0, bias=bias)
        if spec.parallel:
            other = norm
            if spec.norms >= 2:
                other = self.norm("norm2", trunk, tokens, bias=bias)
            second = self.feedforward(other, tokens, spec.ffn_size)
            both = self.pointwise("sum", (branch, second), tokens, reads=2.0)
            return self.residual("residual", both, trunk, tokens)
        trunk = self.residual("residual1", branch, trunk, tokens)
        if memory >= 0:
            norm = self.norm("norm_cross", trunk, tokens, bias=bias)
            across = _View(tokens, spec.seq_len, memory=memory)
            branch = self.attention(norm, across, "cross_attention")
            trunk = self.residual("residual_cross", branch, trunk, tokens)
        norm = self.norm("norm2", trunk, tokens, bias=bias)
        if experts:
            branch = self.mixture(norm, tokens)
        else:
            branch = self.feedforward(norm, tokens, spec.ffn_size)
        if spec.norms >= 4:
            branch = self.norm("norm_after2", branch, tokens, saved=1.0, bias=bias)
        return self.residual("residual2", branch, trunk, tokens)

    def attention(self, source: int, view: _View, name: str) -> int:
        """Append an attention block that reads the normalised `source`.

        Kept for backward (Korthikanti et al. 2022, section 4): queries, keys and values; scores
        after softmax, after dropout, and the mask, unless fused; then the projection's input.
        """
        spec = self.spec
        latent = spec.kv_lora_rank > 0
        inputs = (self.latent_projections if latent else self.projections)(source, view, name)
        value_dim = spec.v_dim if latent else spec.head_size
        core = (self.fused if spec.fused_attention else self.materialised)(
            inputs, view, value_dim, name
        )
        width = spec.heads * value_dim
        return self.linear(
            f"{name}.out", core, view.tokens, spec.hidden, width, spec.bias,
            saved=float(view.tokens * width),
        )  # fmt: skip

    def projections(self, source: int, view: _View, name: str) -> tuple[int, ...]:
        spec = self.spec
        bias = spec.bias if spec.qkv_bias is None else spec.qkv_bias
        query, key = spec.heads * spec.head_size, spec.key_heads * spec.head_size
        parts = [("qkv", source, view.tokens, query + 2 * key)]
        if view.memory >= 0:
            parts = [("q", source, view.tokens, query), ("kv", view.memory, view.keys, 2 * key)]
        made = tuple(
            self.linear(
                f"{name}.{part}", read, tokens, width, spec.hidden, bias,
                saved=float(tokens * width),
            )
            for part, read, tokens, width in parts
        )  # fmt: skip
        if spec.qk_norm:  # each head of queries and keys is normalised; its input is kept
            size = float(view.tokens * (query + key))
            norm = self.add(
                f"{name}.qk_norm", OpKind.NORM, made, reads=size, writes=size, saved=size,
                params=2.0 * spec.head_size, shard=Shard.TENSOR, launches=2,
            )  # fmt: skip
            made = (norm,)
        if spec.positions == "rope":
            rope = self.pointwise(
                f"{name}.rope", made, view.tokens, query + key, shard=Shard.TENSOR, launches=2
            )
            made = (*made, rope)
        return made

    def latent_projections(self, source: int, view: _View, name: str) -> tuple[int, ...]:
        """Append DeepSeek's low-rank queries, keys and values (DeepSeek-V2, section 2.1)."""
        spec, tokens, heads, hidden = self.spec, view.tokens, self.spec.heads, self.spec.hidden
        wide, rank = heads * spec.head_size, spec.kv_lora_rank
        query = source
        if spec.q_lora_rank:
            query = self.linear(
                f"{name}.q_down", source, tokens, spec.q_lora_rank, hidden, shard=Shard.SEQUENCE
            )
            query = self.norm(f"{name}.q_norm", query, tokens, spec.q_lora_rank, "rmsnorm")
        query = self.linear(
            f"{name}.q_up", query, tokens, wide, spec.q_lora_rank or hidden,
            saved=float(tokens * wide),
        )  # fmt: skip
        key = self.linear(
            f"{name}.kv_down", source, tokens, rank + spec.rope_dim, hidden, shard=Shard.SEQUENCE
        )
        key = self.norm(f"{name}.kv_norm", key, tokens, rank, "rmsnorm")
        # Keys carry the rotary part too, copied to every head before attention.
        kept = float(tokens * heads * (spec.head_size + spec.v_dim))
        key = self.linear(
            f"{name}.kv_up", key, tokens, heads * (spec.nope_dim + spec.v_dim), rank, saved=kept
        )
        rope = self.pointwise(
            f"{name}.rope", (query, key), tokens, 2 * wide, shard=Shard.TENSOR, launches=4
        )
        return (query, key, rope)

    def fused(self, inputs: tuple[int, ...], view: _View, value_dim: int, name: str) -> int:
        """Append one kernel, which skips masked pairs and keeps the log-sum-exp of each row."""
        spec, tokens, keys = self.spec, view.tokens, view.keys
        heads, size = spec.heads, spec.head_size
        key_heads = heads if spec.kv_lora_rank else spec.key_heads
        # Causal attention does half of the square, and with a window a band of it (half a window
        # at the start is not taken off twice).
        square = float(tokens * keys)
        pairs = square / 2 if view.causal else square
        if 0 < view.window < keys:
            band = float(view.window) * (tokens - view.window / 2)
            pairs = band if view.causal else min(square, 2 * band)
        return self.add(
            f"{name}.core", OpKind.ATTENTION, inputs, shape=(heads, tokens, value_dim),
            flops=pairs * heads * 2.0 * (size + value_dim),
            reads=float(tokens * heads * size + keys * key_heads * (size + value_dim)),
            dims=(tokens, keys, (size + value_dim) // 2, heads),
            saved=self.wide * tokens * heads, shard=Shard.TENSOR,
        )  # fmt: skip

    def materialised(self, inputs: tuple[int, ...], view: _View, value_dim: int, name: str) -> int:
        """Append scores, softmax, dropout and the product with the values, each through memory.

        The whole square is computed, as Narayanan et al. 2021 count (equation 2).
        """
        tokens, keys, heads, size = view.tokens, view.keys, self.spec.heads, self.spec.head_size
        scores, square = (heads, tokens, keys), float(tokens * keys * heads)
        last = self.add(
            f"{name}.scores", OpKind.ATTENTION, inputs, shape=scores, flops=2.0 * square * size,
            reads=float((tokens + keys) * heads * size), dims=(tokens, keys, size, heads),
            shard=Shard.TENSOR,
        )  # fmt: skip
        last = self.add(
            f"{name}.softmax", OpKind.SOFTMAX, (last,), shape=scores, saved=square,
            shard=Shard.TENSOR,
        )  # fmt: skip
        if self.spec.dropout:
            last = self.add(
                f"{name}.dropout", OpKind.SOFTMAX, (last,), shape=scores,
                saved=(1.0 + self.mask) * square, shard=Shard.TENSOR,
            )  # fmt: skip
        return self.add(
            f"{name}.context", OpKind.ATTENTION, (last, *inputs), shape=(heads, tokens, value_dim),
            flops=2.0 * square * value_dim, reads=square + float(keys * heads * value_dim),
            dims=(tokens, value_dim, keys, heads), shard=Shard.TENSOR,
        )  # fmt: skip

    def feedforward(self, source: int, tokens: int, ffn: int, name: str = "mlp") -> int:
        """Append a dense feed-forward network; the input and output of its activation are kept."""
        spec = self.spec
        inner = 2 * ffn if spec.gated else ffn
        up = self.linear(
            f"{name}.up", source, tokens, inner, spec.hidden, spec.bias, saved=float(tokens * inner)
        )
        active = self.pointwise(
            f"{name}.activation", (up,), tokens, ffn, reads=inner / ffn, saved=1.0,
            shard=Shard.TENSOR,
        )  # fmt: skip
        return self.linear(f"{name}.down", active, tokens, spec.hidden, ffn, spec.bias)

    def mixture(self, source: int, tokens: int) -> int:
        """Append a router, the experts that each token visits (grouped products of equal shares), and shared ones."""
        spec, hidden, ffn = self.spec, self.spec.hidden, self.spec.expert_ffn or self.spec.ffn_size
        visits, inner = tokens * spec.experts_per_token, 2 * ffn if spec.gated else ffn
        router = self.linear("moe.router", source, tokens, spec.experts, hidden, shard=Shard.NONE)
        top_k = self.add(
            "moe.top_k", OpKind.SOFTMAX, (router,), shape=(tokens, spec.experts),
            saved=self.wide * float(tokens * spec.experts), shard=Shard.NONE, launches=3,
        )  # fmt: skip
        moved = float(visits * hidden)
        dispatch = self.add(
            "moe.dispatch", OpKind.COPY, (source, top_k), shape=(visits, hidden), saved=moved,
            shard=Shard.EXPERT, launches=2,
        )  # fmt: skip
        many: Any = {"bias": spec.bias, "experts": spec.experts}
        up = self.linear(
            "moe.up", dispatch, visits, inner, hidden, saved=float(visits * inner), **many
        )
        active = self.pointwise(
            "moe.activation", (up,), visits, ffn, reads=inner / ffn, saved=1.0, shard=Shard.EXPERT
        )
        # A router's weights multiply the activation, so that nobody keeps what the experts return.
        down = self.linear("moe.down", active, visits, hidden, ffn, **many)
        last = self.add(
            "moe.combine", OpKind.COPY, (down,), shape=(tokens, hidden), reads=moved,
            shard=Shard.EXPERT, launches=2,
        )  # fmt: skip
        if spec.shared_experts:
            other = self.feedforward(source, tokens, spec.shared_experts * ffn, "moe.shared")
            last = self.pointwise("moe.sum", (last, other), tokens, reads=2.0)
        return last

    def head(self, trunk: int, tokens: int) -> None:
        spec = self.spec
        self.enter("head", Block.HEAD)
        if spec.final_norm:
            trunk = self.norm("norm", trunk, tokens, bias=spec.norm_bias)
        if spec.pooler:
            self.linear("pooler", trunk, 1, spec.hidden, spec.hidden, True, Shard.NONE)
        width = spec.embedding_size or spec.hidden
        if spec.mlm_head:
            trunk = self.linear(
                "transform", trunk, tokens, width, spec.hidden, True, Shard.SEQUENCE,
                saved=float(tokens * width),
            )  # fmt: skip
            trunk = self.norm("transform_norm", trunk, tokens, width)
        elif spec.head_outputs:
            width = spec.hidden
        elif width != spec.hidden:
            trunk = self.linear("project", trunk, tokens, width, spec.hidden, shard=Shard.SEQUENCE)
        self.output(trunk, 1 if spec.patch else tokens, width, spec.tied)  # an image has one label

    def output(self, trunk: int, tokens: int, width: int, tied: bool) -> None:
        """Append logits and cross-entropy; the loss keeps probabilities in fp32."""
        spec = self.spec
        outputs = spec.head_outputs or spec.vocab
        shard = Shard.NONE if spec.head_outputs else Shard.TENSOR
        tied = tied and not spec.head_outputs
        logits = self.linear(
            "logits", trunk, tokens, outputs, width, spec.head_bias, shard, tied=tied
        )
        wide = self.wide * float(tokens * outputs)
        self.add(
            "loss", OpKind.REDUCE, (logits,), shape=(tokens, outputs), reads=wide, writes=wide,
            saved=wide, shard=shard, launches=2,
        )  # fmt: skip
