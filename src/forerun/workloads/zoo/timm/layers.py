"""Transformer layers as the timm library states them: scores in memory, layer scales, MLPs."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.domain.graph import OpKind, Shard
from forerun.workloads.zoo.attend import sharded
from forerun.workloads.zoo.net import Net, Tensor


@dataclass(frozen=True, slots=True)
class Layer:
    """What the layers of one network share.

    Attributes:
        heads: attention heads.
        ratio: inner width of the MLP over the width.
        scaled: each branch is multiplied by a trained vector (Touvron et al. 2021).
        bias: trained biases of positions in every layer's scores.
        late: branches are normalised after, not before.
        qkv_bias: projections to queries, keys and values have biases.
    """

    heads: int
    ratio: float = 4.0
    scaled: bool = False
    bias: int = 0
    late: bool = False
    qkv_bias: bool = True


def products(
    net: Net, name: str, query: Tensor, others: tuple[Tensor, ...], heads: int, head: int,
    tokens: int, keys: int, groups: int = 1, bias: int = 0, mixed: bool = False,
) -> Tensor:  # fmt: skip
    """Attend with scores in memory: two products and a soft-max; `mixed` also mixes the heads."""
    many, width = heads * groups, heads * head
    operands = tuple(dict.fromkeys((query, *others)))
    packed = net.emit(
        OpKind.COPY, f"{name}.heads", operands, (width * groups * (tokens + 2 * keys),),
        reads=width * groups * (tokens + 2 * keys), launches=3,
    )  # fmt: skip
    work = 2.0 * tokens * keys * head * many
    scores = net.emit(
        OpKind.ATTENTION, f"{name}.scores", (packed,), (many, tokens, keys), keep=(packed,),
        flops=work, dims=(tokens, keys, head, many), reads=width * groups * (tokens + keys),
    )  # fmt: skip
    scores = net.pointwise(scores, f"{name}.temperature")
    if bias:
        scores = net.bias(scores, f"{name}.position_bias", bias)
    if mixed:
        scores = _mix_heads(net, scores, f"{name}.mix_scores", heads)
    weights = net.softmax(scores, f"{name}.softmax")
    if mixed:
        weights = _mix_heads(net, weights, f"{name}.mix_weights", heads)
    out = net.emit(
        OpKind.ATTENTION, f"{name}.values", (weights, packed), (tokens * groups, width),
        keep=(packed, weights), flops=work, dims=(tokens, head, keys, many),
        reads=weights.size + width * groups * keys,
    )  # fmt: skip
    return net.copy(out, f"{name}.join")


def _mix_heads(net: Net, scores: Tensor, name: str, heads: int) -> Tensor:
    """Talking heads: a linear layer over the heads of each pair of positions."""
    pairs = scores.size // heads
    moved = net.copy(scores, f"{name}.in", (pairs, heads))
    mixed = net.linear(moved, name, heads)
    return net.copy(mixed, f"{name}.out", scores.shape)


def attention(
    net: Net, x: Tensor, name: str, layer: Layer, groups: int = 1, mixed: bool = False
) -> Tensor:
    """Self-attention over (tokens, width) in `groups` separate groups of tokens."""
    count, width = x.shape
    with sharded(net, Shard.TENSOR):
        qkv = net.linear(x, f"{name}.qkv", 3 * width, bias=layer.qkv_bias)
        tokens = count // groups
        y = products(
            net, name, qkv, (), layer.heads, width // layer.heads, tokens, tokens, groups,
            layer.bias, mixed,
        )  # fmt: skip
        return net.linear(y, f"{name}.out", width)


def reduced_attention(
    net: Net, x: Tensor, name: str, heads: int, grid: tuple[int, int], reduce: int
) -> Tensor:
    """Attention to keys and values of a grid that a convolution has made smaller."""
    count, width = x.shape
    query, source = net.linear(x, f"{name}.q", width), x
    if reduce > 1:
        image = net.copy(x, f"{name}.to_image", (width, *grid))
        small = net.conv(image, f"{name}.reduce", width, reduce, reduce, 0, bias=True)
        small = net.copy(small, f"{name}.to_tokens", (small.shape[1] * small.shape[2], width))
        source = net.norm(small, f"{name}.norm")
    pair = net.linear(source, f"{name}.kv", 2 * width)
    y = products(net, name, query, (pair,), heads, width // heads, count, source.shape[0])
    return net.linear(y, f"{name}.out", width)


def class_attention(net: Net, x: Tensor, name: str, heads: int) -> Tensor:
    """Attention of one token to all (Touvron et al. 2021): (tokens, width) -> (1, width)."""
    count, width = x.shape
    query = net.linear(net.view(x, count, width), f"{name}.kv", 2 * width)
    first = net.linear(net.view(x, 1, width), f"{name}.q", width)
    y = products(net, name, first, (query,), heads, width // heads, 1, count)
    return net.linear(y, f"{name}.out", width)


def mlp(net: Net, x: Tensor, name: str, inner: int, act: str = "gelu") -> Tensor:
    """Two linear layers with an activation between."""
    with sharded(net, Shard.TENSOR):
        y = net.activation(net.linear(x, f"{name}.up", inner), f"{name}.act", act)
        return net.linear(y, f"{name}.down", x.shape[-1])


def branch(net: Net, x: Tensor, y: Tensor, name: str, layer: Layer) -> Tensor:
    """Join a branch to the trunk."""
    with sharded(net, Shard.SEQUENCE):
        y = net.norm(y, f"{name}.norm") if layer.late else y
        y = net.scale(y, f"{name}.gamma", x.shape[-1]) if layer.scaled else y
        return net.add(f"{name}.sum", x, y)


def before(net: Net, x: Tensor, name: str, layer: Layer) -> Tensor:
    """Normalise what a branch reads, unless its output is."""
    with sharded(net, Shard.SEQUENCE):
        return x if layer.late else net.norm(x, f"{name}.norm")


def block(
    net: Net, x: Tensor, name: str, layer: Layer, groups: int = 1, mixed: bool = False
) -> Tensor:
    """One transformer layer: attention and an MLP, each added to the trunk."""
    y = attention(net, before(net, x, f"{name}.attn", layer), f"{name}.attn", layer, groups, mixed)
    x = branch(net, x, y, f"{name}.attn", layer)
    y = before(net, x, f"{name}.mlp", layer)
    y = mlp(net, y, f"{name}.mlp", int(x.shape[-1] * layer.ratio))
    return branch(net, x, y, f"{name}.mlp", layer)


def to_tokens(net: Net, image: Tensor, name: str) -> Tensor:
    """(channels, height, width) -> (pixels, channels)."""
    return net.copy(image, name, (image.shape[1] * image.shape[2], image.shape[0]))


def to_image(net: Net, x: Tensor, name: str, grid: tuple[int, int]) -> Tensor:
    """(pixels, channels) -> (channels, height, width)."""
    return net.copy(x, name, (x.shape[1], *grid))
