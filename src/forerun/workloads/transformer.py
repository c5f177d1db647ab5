"""Transformers: from a TransformerSpec to the graph of a training step and its Workload.

TransformerSpec: the dimensions and switches that a transformer is made of.

Tape: forward operations written one after the other, each knowing which ones it reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from forerun.domain.graph import Block, Graph, Op, OpKind, Shard
from forerun.domain.workload import ACTIVATION_BYTES, LayerShape, Length, Workload
from forerun.errors import RequestError, one_of
from forerun.workloads.backward import complete

GPT: Mapping[str, Any] = {"dropout": 0.1}
LLAMA: Mapping[str, Any] = {
    "gated": True, "norm": "rmsnorm", "positions": "rope", "bias": False, "tied": False,
}  # fmt: skip
ENCODER: Mapping[str, Any] = {
    "kind": "encoder", "dropout": 0.1, "final_norm": False, "embedding_norm": True,
    "mlm_head": True, "head_bias": True, "max_positions": 512, "token_types": 2, "pooler": True,
}  # fmt: skip


@dataclass
class Tape:
    """A growing list of forward operations with the block, prefix and repeat they now get.

    Attributes:
        activation_bytes: bytes of an activation element; a mask byte and an fp32 copy are
            counted in these elements.
        shared: copies of a repeated layer share one set of weights (ALBERT).
    """

    activation_bytes: float = 2.0
    shared: bool = False
    ops: list[Op] = field(default_factory=list)
    prefix: str = ""
    block: Block = Block.EMBED
    repeat: int = 1

    @property
    def mask(self) -> float:
        """Elements that a mask of one byte takes."""
        return 1.0 / self.activation_bytes

    @property
    def wide(self) -> float:
        """Elements that an fp32 number takes."""
        return 4.0 / self.activation_bytes

    def enter(self, prefix: str, block: Block, repeat: int = 1) -> None:
        """Begin a part of the network: what follows carries its prefix, block and repeat."""
        self.prefix, self.block, self.repeat = prefix, block, repeat

    def add(self, name: str, kind: OpKind, inputs: tuple[int, ...] = (), **numbers: object) -> int:
        """Append one operation and return its position."""
        if self.shared and self.repeat > 1 and "params" in numbers:
            numbers["params"] = float(numbers["params"]) / self.repeat  # type: ignore[arg-type]
        self.ops.append(
            Op(
                name=f"{self.prefix}.{name}",
                kind=kind,
                block=self.block,
                repeat=self.repeat,
                inputs=inputs,
                **numbers,  # type: ignore[arg-type]
            )
        )
        return len(self.ops) - 1

    def linear(
        self,
        name: str,
        source: int,
        m: int,
        n: int,
        k: int,
        bias: bool = False,
        shard: Shard = Shard.TENSOR,
        saved: float = 0.0,
        tied: bool = False,
    ) -> int:
        """Append y[m, n] = x[m, k] w[k, n] (+ b) for one sample.

        `tied` weights are owned elsewhere: they are read here and not counted as parameters.
        """
        weights = float(n * k + (n if bias else 0))
        return self.add(
            name,
            OpKind.MATMUL,
            (source,),
            flops=2.0 * m * n * k,
            reads=float(m * k),
            writes=float(m * n),
            weights=weights,
            params=float(n if bias else 0) if tied else weights,
            shape=(m, n),
            dims=(m, n, k),
            saved=saved,
            shard=shard,
        )

    def norm(
        self,
        name: str,
        source: int,
        shape: tuple[int, int],
        norm: str,
        saved: float = 2.0,
        shard: Shard = Shard.SEQUENCE,
        bias: bool = True,
    ) -> int:
        """Append a normalisation over the last of `shape`; `saved` is in copies of its input.

        It keeps its input, and its output, which the products behind it read.
        """
        size = float(shape[0] * shape[1])
        params = shape[1] * (2.0 if norm == "layernorm" and bias else 1.0)
        return self.add(
            name,
            OpKind.NORM,
            (source,),
            reads=size,
            writes=size,
            weights=params,
            params=params,
            shape=shape,
            saved=saved * size,
            shard=shard,
        )

    def pointwise(
        self,
        name: str,
        sources: tuple[int, ...],
        shape: tuple[int, ...],
        reads: float = 1.0,
        saved: float = 0.0,
        shard: Shard = Shard.SEQUENCE,
        launches: int = 1,
    ) -> int:
        """Append an element-wise operation; reads and saved are for each output element."""
        size = 1.0
        for side in shape:
            size *= side
        return self.add(
            name,
            OpKind.ELEMENTWISE,
            sources,
            reads=reads * size,
            writes=size,
            shape=shape,
            saved=saved * size,
            shard=shard,
            launches=launches,
        )

    def dropout_add(
        self, name: str, branch: int, trunk: int, shape: tuple[int, ...], dropout: float
    ) -> int:
        """Append the residual sum, with the dropout before it where there is one."""
        dropping = dropout > 0
        return self.pointwise(
            name,
            (branch, trunk),
            shape,
            reads=2.0,
            saved=self.mask if dropping else 0.0,
        )


KINDS = ("decoder", "encoder", "encoder-decoder")
NORMS = ("layernorm", "rmsnorm")
POSITIONS = ("learned", "sinusoidal", "rope", "alibi", "relative", "none")
_LARGEST = 2**31 - 1
_MOST_LAYERS = 10_000


@dataclass(frozen=True)
class TransformerSpec:
    """A transformer's shape. Zero in a size that has a usual value means that value.

    Attributes:
        layers: repeated layers (of the encoder, in an encoder-decoder).
        hidden, heads, vocab, seq_len: model width, attention heads, vocabulary, tokens a sample.
        kv_heads: heads of keys and values (0: as many as heads).
        head_dim: size of a head (0: hidden / heads).
        ffn: inner width of the feed-forward network (0: 4 x hidden).
        gated: the feed-forward network has a gate (three matrices).
        kind: decoder, encoder or encoder-decoder.
        causal: a token attends to those before it (None: true for a decoder).
        decoder_layers, target_len: of an encoder-decoder (0: as many as of the encoder).
        norm, norm_bias: layernorm or rmsnorm; whether a layernorm has a bias.
        norms: normalisations a layer on the trunk: 1 (parallel block), 2, or 4 (before and after).
        positions: learned, sinusoidal, rope, alibi, relative or none.
        max_positions: rows of a learned table (never fewer than seq_len), or buckets of a
            relative one.
        tied: the output layer uses the embedding's weights.
        bias, qkv_bias, head_bias: linear layers, the qkv projection (None: as bias) and the
            output layer have biases.
        final_norm: a normalisation after the last layer.
        embedding_norm, token_types, embedding_size: BERT, BLOOM; BERT; ALBERT, ELECTRA.
        pooler, mlm_head, head_outputs: a dense pooler on the first token; a dense transform before
            the output layer; outputs of the last layer for each token (0: the vocabulary).
        dropout: probability; 0 means that there is none and no masks are kept.
        experts, experts_per_token, shared_experts, expert_ffn: mixture of experts (0: none).
        dense_layers, moe_every: first layers without experts; each n-th layer has experts.
        q_lora_rank, kv_lora_rank, rope_dim, nope_dim, v_dim: latent attention (DeepSeek);
            kv_lora_rank 0 means ordinary attention.
        window, global_every: tokens seen by a windowed layer (0: all); each n-th layer sees all
            (0: none does).
        qk_norm: queries and keys are normalised.
        parallel: attention and feed-forward read the same input.
        shared_layers: all layers have the same weights (ALBERT).
        predict_layers: extra layers that predict tokens further ahead (DeepSeek-V3), each with
            the output layer again.
        patch: pixels on a side of an image's patches, which take the place of tokens (0: text);
            the output layer then reads one token.
        fused_attention: scores never reach device memory.
        activation_bytes: of one activation element; masks and fp32 copies are counted in these.
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
        for name in ("layers", "hidden", "heads", "vocab", "seq_len", "moe_every"):
            _whole(name, getattr(self, name), 1)
        for name in _SIZES:
            _whole(name, getattr(self, name), 0)
        for name in ("layers", "decoder_layers", "predict_layers"):
            if getattr(self, name) > _MOST_LAYERS:
                raise _wrong(
                    name, getattr(self, name), "no network has as many",
                    f"give at most {_MOST_LAYERS}",
                )  # fmt: skip
        _among("kind", self.kind, KINDS)
        _among("norm", self.norm, NORMS)
        _among("positions", self.positions, POSITIONS)
        self._check_heads()
        self._check_experts()
        if not 0 <= self.dropout < 1:
            raise _wrong("dropout", self.dropout, "not a probability", "give 0 or more, below 1")

    def _check_heads(self) -> None:
        if self.kv_lora_rank == 0 and self.head_dim == 0 and self.hidden % self.heads:
            raise _wrong(
                "heads", self.heads, f"hidden={self.hidden} is not divisible by it",
                "give head_dim, or heads that divide hidden",
            )  # fmt: skip
        if self.kv_heads and (self.kv_heads > self.heads or self.heads % self.kv_heads):
            raise _wrong(
                "kv_heads", self.kv_heads, f"heads={self.heads} is not a multiple of it",
                "give kv_heads that divide heads",
            )  # fmt: skip
        if self.kv_lora_rank and not (self.rope_dim and self.nope_dim and self.v_dim):
            raise _wrong(
                "kv_lora_rank", self.kv_lora_rank, "latent attention without its head sizes",
                "give rope_dim, nope_dim and v_dim too",
            )  # fmt: skip

    def _check_experts(self) -> None:
        if self.experts and not 0 < self.experts_per_token <= self.experts:
            raise _wrong(
                "experts_per_token", self.experts_per_token, f"there are {self.experts} experts",
                f"give a number from 1 to {self.experts}",
            )  # fmt: skip
        if self.dense_layers > self.layers:
            raise _wrong(
                "dense_layers", self.dense_layers, f"there are {self.layers} layers",
                f"give at most {self.layers}",
            )  # fmt: skip

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
    def expert_size(self) -> int:
        """Inner width of one expert."""
        return self.expert_ffn or self.ffn_size

    @property
    def target_size(self) -> int:
        """Tokens a sample in the decoder of an encoder-decoder."""
        return self.target_len or self.seq_len

    @property
    def attends_back_only(self) -> bool:
        """Whether the (first) stack is causal."""
        return self.kind == "decoder" if self.causal is None else self.causal

    def has_experts(self, layer: int) -> bool:
        """Whether the layer of this number (from 0) has experts."""
        if not self.experts or layer < self.dense_layers:
            return False
        return (layer - self.dense_layers + 1) % self.moe_every == 0

    def window_of(self, layer: int) -> int:
        """Tokens that the layer of this number sees, 0 where it sees all."""
        sees_all = self.global_every > 0 and (layer + 1) % self.global_every == 0
        return 0 if sees_all or self.window >= self.seq_len else self.window


_SIZES = (
    "kv_heads", "head_dim", "ffn", "decoder_layers", "target_len", "norms", "max_positions",
    "token_types", "embedding_size", "head_outputs", "experts", "experts_per_token",
    "shared_experts", "expert_ffn", "dense_layers", "q_lora_rank", "kv_lora_rank", "rope_dim",
    "nope_dim", "v_dim", "window", "global_every", "patch", "predict_layers",
)  # fmt: skip


def _wrong(name: str, value: object, found: str, next_step: str) -> RequestError:
    return RequestError(f"a transformer with {name}={value}", found, next_step)


def _whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _LARGEST:
        raise _wrong(
            name, value, f"{name} must be a whole number, at least {least}",
            f"give {name} from {least} to {_LARGEST}",
        )  # fmt: skip


def _among(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise _wrong(name, value, f"no such {name}", one_of(value, allowed))


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


def feedforward(
    tape: Tape, spec: TransformerSpec, source: int, tokens: int, ffn: int, name: str = "mlp"
) -> int:
    """Append a dense feed-forward network that reads the normalised `source`.

    The input of the activation and its output (the input of the second product) are kept.
    """
    inner = 2 * ffn if spec.gated else ffn
    up = tape.linear(
        f"{name}.up", source, tokens, inner, spec.hidden, spec.bias, saved=float(tokens * inner)
    )
    active = tape.pointwise(
        f"{name}.activation", (up,), (tokens, ffn), reads=inner / ffn,
        saved=1.0, shard=Shard.TENSOR,
    )  # fmt: skip
    return tape.linear(f"{name}.down", active, tokens, spec.hidden, ffn, spec.bias)


def mixture(tape: Tape, spec: TransformerSpec, source: int, tokens: int) -> int:
    """Append a router, the experts that each token visits, and the shared experts.

    Experts are stated as grouped products: as many groups as experts, each with an equal share of
    the tokens (imbalance belongs to the plan's cost). All experts' weights are read, whatever the
    batch. Exchanges between devices are no operations: the cost of a plan adds them.
    """
    router = tape.linear("moe.router", source, tokens, spec.experts, spec.hidden, shard=Shard.NONE)
    scores = float(tokens * spec.experts)
    chosen = tape.add(
        "moe.top_k", OpKind.SOFTMAX, (router,),
        reads=scores, writes=scores, saved=tape.wide * scores,
        shape=(tokens, spec.experts), shard=Shard.NONE, launches=3,
    )  # fmt: skip
    last = _experts(tape, spec, (source, chosen), tokens)
    if spec.shared_experts:
        shared = spec.shared_experts * spec.expert_size
        other = feedforward(tape, spec, source, tokens, shared, "moe.shared")
        last = tape.pointwise(
            "moe.sum", (last, other), (tokens, spec.hidden), reads=2.0, shard=Shard.SEQUENCE
        )
    return last


def _experts(tape: Tape, spec: TransformerSpec, sources: tuple[int, ...], tokens: int) -> int:
    """Append dispatch, the experts' products and the weighted sum of their outputs."""
    visits, hidden, ffn = tokens * spec.experts_per_token, spec.hidden, spec.expert_size
    inner = 2 * ffn if spec.gated else ffn
    moved = float(visits * hidden)
    dispatch = tape.add(
        "moe.dispatch", OpKind.COPY, sources,
        reads=moved, writes=moved, shape=(visits, hidden), saved=moved, shard=Shard.EXPERT,
        launches=2,
    )  # fmt: skip
    up = _grouped(tape, spec, "moe.up", dispatch, visits, inner, hidden, float(visits * inner))
    active = tape.pointwise(
        "moe.activation", (up,), (visits, ffn), reads=inner / ffn,
        saved=1.0, shard=Shard.EXPERT,
    )  # fmt: skip
    down = _grouped(tape, spec, "moe.down", active, visits, hidden, ffn, moved)
    return tape.add(
        "moe.combine", OpKind.COPY, (down,),
        reads=moved, writes=float(tokens * hidden), shape=(tokens, hidden),
        shard=Shard.EXPERT, launches=2,
    )  # fmt: skip


def _grouped(
    tape: Tape, spec: TransformerSpec, name: str, source: int, m: int, n: int, k: int, saved: float
) -> int:
    """Append one product for each expert; m counts visits over all experts."""
    weights = float(spec.experts * (n * k + (n if spec.bias else 0)))
    return tape.add(
        name, OpKind.MATMUL, (source,),
        flops=2.0 * m * n * k, reads=float(m * k), writes=float(m * n),
        weights=weights, params=weights, shape=(m, n),
        dims=(max(1, round(m / spec.experts)), n, k, spec.experts),
        saved=saved, shard=Shard.EXPERT,
    )  # fmt: skip
