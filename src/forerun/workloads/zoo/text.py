"""Text networks that are no plain transformers: GNMT, LSTM language models, Transformer-XL."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from forerun.domain.graph import Block, OpKind, Shard
from forerun.workloads.zoo.attend import feedforward, fused_attention, sharded
from forerun.workloads.zoo.net import Net, Tensor
from forerun.workloads.zoo.recurrent import embedding, recurrent

LSTM_MODELS: dict[str, tuple[int, int, int]] = {  # vocabulary, width, layers
    "lstm-lm-medium": (10_000, 650, 2),
    "lstm-lm-large": (10_000, 1500, 2),
    "lstm-wikitext2": (33_278, 200, 2),
}


def lstm_model(name: str, net: Net, size: int) -> tuple[str, ...]:
    """State a word language model: embedding, LSTM layers with dropout, vocabulary."""
    vocab, width, layers = LSTM_MODELS[name]
    net.block = Block.EMBED
    x = net.dropout(embedding(net, "embed", vocab, width, size), "embed.dropout")
    net.block = Block.LAYER
    for layer in range(layers):
        x = recurrent(net, x, f"lstm.{layer}", width)
        x = net.dropout(x, f"lstm.{layer}.dropout")
    net.block = Block.HEAD
    net.loss(net.linear(x, "head", vocab))
    return ()


GNMTS: dict[str, tuple[int, int]] = {"gnmt": (4, 32_320), "gnmt-8": (8, 32_000)}


def gnmt(name: str, net: Net, size: int) -> tuple[str, ...]:
    """State GNMT (Wu et al. 2016): LSTM layers of 1024, the first encoder layer both ways."""
    layers, vocab = GNMTS[name]
    x = net.dropout(embedding(net, "embed", vocab, 1024, size), "embed.dropout")
    for layer in range(layers):
        y = recurrent(net, x, f"encoder.{layer}", 1024, both_ways=layer == 0)
        y = net.dropout(y, f"encoder.{layer}.dropout")
        x = net.add(f"encoder.{layer}.sum", x, y) if layer > 1 else y
    keys = net.linear(x, "attention.keys", 1024, bias=False)
    y = embedding(net, "decoder.embed", vocab, 1024, size, tied=True)
    y = recurrent(net, y, "decoder.0", 1024)
    context = _additive_attention(net, y, keys, x)
    for layer in range(1, layers):
        z = net.concat(f"decoder.{layer}.join", (y, context), axis=1)
        z = net.dropout(recurrent(net, z, f"decoder.{layer}", 1024), f"decoder.{layer}.dropout")
        y = net.add(f"decoder.{layer}.sum", y, z) if layer > 1 else z
    net.block = Block.HEAD
    net.loss(net.linear(y, "head", vocab))
    return ("source and target have the same number of tokens",)


def _additive_attention(net: Net, query: Tensor, keys: Tensor, memory: Tensor) -> Tensor:
    """Bahdanau attention of every target token over every source token."""
    asked = net.linear(query, "attention.query", 1024, bias=False)
    steps, letters = query.shape[0], keys.shape[0]
    energy = net.emit(
        OpKind.ELEMENTWISE, "attention.tanh", (asked, keys), (steps, letters), params=1024,
        extra_saved=steps * letters * 1024, reads=2 * steps * letters * 1024, launches=4,
    )  # fmt: skip
    return net.emit(
        OpKind.ATTENTION, "attention.context", (net.softmax(energy, "attention.softmax"), memory),
        (steps, 1024), flops=2.0 * steps * letters * 1024, keep=(memory,),
        dims=(steps, 1024, letters, 1),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class LongShape:
    """Dai et al. 2019: layers, width, heads, inner width, memory; `shrink` of rare words."""

    layers: int
    hidden: int
    heads: int
    inner: int
    memory: int
    shrink: int


LONGS: dict[str, LongShape] = {
    "transformer-xl-base": LongShape(16, 512, 8, 2048, 192, 1),
    "transformer-xl-large": LongShape(18, 1024, 16, 4096, 384, 4),
}
_CUTOFFS = (0, 19_997, 39_997, 199_997, 267_735)


def transformer_xl(name: str, net: Net, size: int) -> tuple[str, ...]:
    """State Transformer-XL on WikiText-103: relative positions, a memory, adaptive soft-max."""
    shape = LONGS[name]
    width, keys = shape.hidden, size + shape.memory
    net.block = Block.EMBED
    table = sum(
        (high - low) * (width // shape.shrink**i)
        for i, (low, high) in enumerate(pairwise(_CUTOFFS))
    )
    x = net.emit(
        OpKind.EMBEDDING, "embed", (), (size, width), params=table, weights=0, learns=True,
        reads=size * width,
    )  # fmt: skip
    x = net.pointwise(x, "embed.scale")
    net.block = Block.LAYER
    for layer in range(shape.layers):
        x = _relative_layer(net, x, f"layer.{layer}", shape, keys)
    net.block = Block.HEAD
    # Most words fall into the first cluster, whose soft-max has 19,997 words and 3 clusters.
    net.loss(net.linear(x, "head", _CUTOFFS[1] + 3, owned=False))
    return ("rare words' clusters of the adaptive soft-max are left out of the work",)


def _relative_layer(net: Net, x: Tensor, name: str, shape: LongShape, keys: int) -> Tensor:
    width = shape.hidden
    both = net.copy(x, f"{name}.memory", (keys, width))
    with sharded(net, Shard.TENSOR):
        qkv = net.linear(both, f"{name}.qkv", 3 * width, bias=False)
        place = net.linear(net.input(keys, width), f"{name}.positions", width, bias=False)
        core = fused_attention(
            net, f"{name}.core", qkv, place, heads=shape.heads, head_size=width // shape.heads,
            tokens=x.shape[0], keys=keys,
        )  # fmt: skip
        core = net.linear(core, f"{name}.out", width, bias=False)
    y = net.dropout(core, f"{name}.dropout1")
    x = net.norm(net.add(f"{name}.sum1", x, y), f"{name}.norm1")
    y = net.dropout(feedforward(net, x, f"{name}.mlp", shape.inner, "relu"), f"{name}.dropout2")
    return net.norm(net.add(f"{name}.sum2", x, y), f"{name}.norm2")
