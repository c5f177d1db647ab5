"""TransformerSpec: the dimensions and switches that a transformer is made of."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.errors import RequestError, one_of

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
