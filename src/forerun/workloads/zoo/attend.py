"""Attention and feed-forward parts that vision, speech and diffusion networks share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from forerun.domain.graph import OpKind, Shard
from forerun.workloads.zoo.net import Net, Tensor


@contextmanager
def sharded(net: Net, shard: Shard) -> Iterator[None]:
    """Give the operations emitted inside a shard."""
    before, net.shard = net.shard, shard
    yield
    net.shard = before


def fused_attention(
    net: Net,
    name: str,
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    *,
    heads: int,
    head_size: int,
    tokens: int,
    keys: int,
    groups: int = 1,
    causal: bool = False,
) -> Tensor:
    """Attend without the scores leaving the chip; kept: its operands, output and log-sum-exp.

    Args:
        net: the network.
        name: dotted path.
        query: queries, or queries, keys and values in one tensor.
        key: keys (None: inside `query`).
        value: values (None: inside `query`).
        heads: attention heads.
        head_size: features of a head.
        tokens: queries in a group.
        keys: keys in a group.
        groups: independent groups (windows) in a sample.
        causal: a query sees the keys before it; half of the scores are computed.
    """
    operands = tuple(t for t in (query, key, value) if t is not None)
    many = heads * groups
    pairs = tokens * keys / (2 if causal else 1)
    return net.emit(
        OpKind.ATTENTION,
        name,
        operands,
        (tokens * groups, heads * head_size),
        keep=operands,
        keep_output=True,
        extra_saved=tokens * many,
        flops=4.0 * pairs * head_size * many,
        dims=(tokens, keys, head_size, many),
    )


def plain_attention(
    net: Net,
    name: str,
    qkv: Tensor,
    *,
    heads: int,
    head_size: int,
    tokens: int,
    groups: int,
    bias_params: int = 0,
    masked: bool = False,
    cosine: bool = False,
) -> Tensor:
    """Attend with scores in memory: two products, a trained bias on positions, a soft-max.

    `qkv` holds queries, keys and values of `groups` windows of `tokens` tokens each. They are
    copied head by head for the products, which keep the copies; `cosine` attention (Liu et al.
    2022, equation 2) normalises queries and keys, and scales scores by a trained number a head.
    """
    many, width = heads * groups, heads * head_size
    size = tokens * groups * width
    pair = net.emit(
        OpKind.ELEMENTWISE, f"{name}.scale", (qkv,), (2, size), reads=2 * size,
        keep=(qkv,) if cosine else (), launches=6 if cosine else 2,
    )  # fmt: skip
    values = net.copy(qkv, f"{name}.heads", (size,))
    product = 2.0 * tokens * tokens * head_size * many
    scores = net.emit(
        OpKind.ATTENTION, f"{name}.scores", (pair,), (many, tokens, tokens),
        keep=(pair,), flops=product, dims=(tokens, tokens, head_size, many),
    )  # fmt: skip
    if cosine:
        scores = net.scale(scores, f"{name}.temperature", heads)
    if bias_params:
        scores = net.bias(scores, f"{name}.position_bias", bias_params)
    if masked:
        scores = net.pointwise(scores, f"{name}.mask")
    weights = net.softmax(scores, f"{name}.softmax")
    return net.emit(
        OpKind.ATTENTION, f"{name}.values", (weights, values), (tokens * groups, width),
        keep=(values,), flops=product, dims=(tokens, head_size, tokens, many),
    )  # fmt: skip


def self_attention(
    net: Net,
    x: Tensor,
    name: str,
    heads: int,
    *,
    width: int = 0,
    bias: bool = True,
    out_bias: bool = True,
    causal: bool = False,
) -> Tensor:
    """Project (tokens, features) to queries, keys and values, attend, and project back."""
    tokens, features = x.shape
    inner = width or features
    with sharded(net, Shard.TENSOR):
        qkv = net.linear(x, f"{name}.qkv", 3 * inner, bias=bias)
        mixed = fused_attention(
            net, f"{name}.core", qkv, heads=heads, head_size=inner // heads, tokens=tokens,
            keys=tokens, causal=causal,
        )  # fmt: skip
        return net.linear(mixed, f"{name}.out", features, bias=out_bias)


def cross_attention(
    net: Net,
    x: Tensor,
    memory: Tensor,
    name: str,
    heads: int,
    *,
    width: int = 0,
    bias: bool = True,
    out_bias: bool = True,
) -> Tensor:
    """Attend from (tokens, features) to a memory of another length and width."""
    inner = width or x.shape[1]
    with sharded(net, Shard.TENSOR):
        query = net.linear(x, f"{name}.q", inner, bias=bias)
        key = net.linear(memory, f"{name}.k", inner, bias=bias)
        value = net.linear(memory, f"{name}.v", inner, bias=bias)
        mixed = fused_attention(
            net, f"{name}.core", query, key, value, heads=heads, head_size=inner // heads,
            tokens=x.shape[0], keys=memory.shape[0],
        )  # fmt: skip
        return net.linear(mixed, f"{name}.out", x.shape[1], bias=out_bias)


def feedforward(
    net: Net, x: Tensor, name: str, hidden: int, function: str = "gelu", bias: bool = True
) -> Tensor:
    """Two linear layers with a point-wise function between them."""
    with sharded(net, Shard.TENSOR):
        inner = net.linear(x, f"{name}.up", hidden, bias=bias)
        inner = net.activation(inner, f"{name}.act", function)
        return net.linear(inner, f"{name}.down", x.shape[-1], bias=bias)


def encoder_layer(
    net: Net,
    x: Tensor,
    name: str,
    heads: int,
    hidden: int,
    *,
    pre_norm: bool = True,
    function: str = "gelu",
    causal: bool = False,
    memory: Tensor | None = None,
    dropout: bool = False,
) -> Tensor:
    """One transformer layer with normalisation before (or after) each of its parts.

    Args:
        net: the network.
        x: (tokens, features).
        name: dotted path.
        heads: attention heads.
        hidden: inner width of the feed-forward part.
        pre_norm: normalise before each part; else after each sum.
        function: activation of the feed-forward part.
        causal: a token sees those before it.
        memory: what a decoder layer attends across.
        dropout: each part's output is dropped at random before its sum.
    """
    parts = ["attention", "cross", "mlp"] if memory is not None else ["attention", "mlp"]
    for part in parts:
        with sharded(net, Shard.SEQUENCE):
            inner = net.norm(x, f"{name}.{part}.norm") if pre_norm else x
        if part == "attention":
            y = self_attention(net, inner, f"{name}.attention", heads, causal=causal)
        elif part == "cross" and memory is not None:
            y = cross_attention(net, inner, memory, f"{name}.cross", heads)
        else:
            y = feedforward(net, inner, f"{name}.mlp", hidden, function)
        with sharded(net, Shard.SEQUENCE):
            y = net.dropout(y, f"{name}.{part}.dropout") if dropout else y
            x = net.add(f"{name}.{part}.sum", x, y)
            x = x if pre_norm else net.norm(x, f"{name}.{part}.norm")
    return x
