"""VOLO, CrossViT, Visformer, mixers, ConvMixer and Sequencer as the timm library states them."""

from __future__ import annotations

import re
from collections.abc import Callable

from forerun.domain.graph import Block, OpKind
from forerun.workloads.zoo.net import Net, Tensor
from forerun.workloads.zoo.timm.layers import (
    Layer,
    before,
    block,
    branch,
    class_attention,
    mlp,
    products,
    to_image,
    to_tokens,
)
from forerun.workloads.zoo.timm.parts import CLASSES, Units, classify

# VOLO: layers, widths, heads of the first stage and of the others, MLP ratio of the others.
_VOLOS: dict[str, tuple[tuple[int, ...], tuple[int, int], tuple[int, int], float]] = {
    "d1": ((4, 4, 8, 2), (192, 384), (6, 12), 3.0),
    "d2": ((6, 4, 10, 4), (256, 512), (8, 16), 3.0),
    "d3": ((8, 8, 16, 4), (256, 512), (8, 16), 3.0),
    "d4": ((8, 8, 16, 4), (384, 768), (12, 16), 3.0),
    "d5": ((12, 12, 20, 4), (384, 768), (12, 16), 4.0),
}
# CrossViT: widths, layers of the large branch, heads, MLP ratio.
_CROSS: dict[str, tuple[tuple[int, int], int, int, float]] = {
    "tiny": ((96, 192), 4, 3, 4.0), "small": ((192, 384), 4, 6, 4.0),
    "base": ((384, 768), 4, 12, 4.0), "9": ((128, 256), 3, 4, 3.0),
    "15": ((192, 384), 5, 6, 3.0), "18": ((224, 448), 6, 7, 3.0),
}  # fmt: skip
# Mixers: width, layers, patch.
_MIXERS: dict[str, tuple[int, int, int]] = {
    "mixer_s32": (512, 8, 32), "mixer_s16": (512, 8, 16), "mixer_b32": (768, 12, 32),
    "mixer_b16": (768, 12, 16), "mixer_l32": (1024, 24, 32), "mixer_l16": (1024, 24, 16),
    "gmixer_12": (384, 12, 16), "gmixer_24": (384, 24, 16), "resmlp_12": (384, 12, 16),
    "resmlp_24": (384, 24, 16), "resmlp_36": (384, 36, 16), "resmlp_big_24": (768, 24, 8),
    "gmlp_ti16": (128, 30, 16), "gmlp_s16": (256, 30, 16), "gmlp_b16": (512, 30, 16),
}  # fmt: skip
# ConvMixer: width, layers, kernel, patch.
_CONVMIXERS: dict[str, tuple[int, int, int, int]] = {
    "1536_20": (1536, 20, 9, 7),
    "768_32": (768, 32, 7, 7),
    "1024_20_ks9_p14": (1024, 20, 9, 14),
}
_SEQUENCERS = {"s": (4, 3, 8, 3), "m": (4, 3, 14, 3), "l": (8, 8, 16, 4)}


def _volo(net: Net, size: int, kind: str) -> None:
    """VOLO (Yuan et al. 2022): outlook attention at 1/8, then transformers at 1/16."""
    depths, (first, width), heads, ratio = _VOLOS[kind]
    stem = 128 if kind == "d5" else 64
    units = Units(net)
    x = net.input(3, size, size)
    for number in range(3):
        x = units.unit(x, f"stem.{number}", stem, 7 if number == 0 else 3, 2 if number == 0 else 1)
    x = net.conv(x, "patches", first, 4, 4, 0, bias=True)
    for number in range(depths[0]):
        x = _outlooker(net, x, f"outlook.{number}", heads[0])
    x = net.conv(x, "shrink", width, 2, 2, 0, bias=True)
    x = to_tokens(net, x, "to_tokens")
    x = net.bias(x, "positions", x.size)
    layer = Layer(heads[1], ratio, qkv_bias=False)
    for number in range(sum(depths[1:])):
        x = block(net, x, f"blocks.{number}", layer)
    patches = x.shape[0]
    token = net.view(x, 1, width)
    for number in range(2):
        name = f"class_blocks.{number}"
        joined = net.copy(x, f"{name}.join", (patches + 1, width))
        y = before(net, joined, f"{name}.attn", layer)
        token = branch(net, token, class_attention(net, y, f"{name}.attn", heads[1]),
                       f"{name}.attn", layer)  # fmt: skip
        y = mlp(net, before(net, token, f"{name}.mlp", layer), f"{name}.mlp", int(ratio * width))
        token = branch(net, token, y, f"{name}.mlp", layer)
    net.block = Block.HEAD
    x = net.norm(net.copy(x, "head.join", (patches + 1, width)), "norm")
    net.loss(net.linear(net.view(x, width), "head", CLASSES))
    net.loss(net.linear(net.view(x, patches, width), "token_head", CLASSES), "token_loss")


def _outlooker(net: Net, x: Tensor, name: str, heads: int) -> Tensor:
    """Attention of each pixel's neighbourhood, predicted from the pixel alone."""
    width, grid = x.shape[0], (x.shape[1], x.shape[2])
    half = (-(-grid[0] // 2), -(-grid[1] // 2))
    tokens, layer = to_tokens(net, x, f"{name}.tokens"), Layer(heads, 3.0)
    normal = net.norm(tokens, f"{name}.attn.norm")
    values = net.linear(normal, f"{name}.attn.v", width, bias=False)
    windows = half[0] * half[1]
    unfolded = net.copy(values, f"{name}.attn.unfold", (windows * 9, width))
    pooled = net.pool(to_image(net, normal, f"{name}.attn.image", grid), f"{name}.attn.pool", 2, 2,
                      ceil=True, average=True)  # fmt: skip
    scores = net.linear(to_tokens(net, pooled, f"{name}.attn.pooled"), f"{name}.attn.scores",
                        81 * heads)  # fmt: skip
    weights = net.softmax(net.pointwise(scores, f"{name}.attn.scale"), f"{name}.attn.softmax")
    many, head = windows * heads, width // heads
    y = net.emit(
        OpKind.ATTENTION, f"{name}.attn.values", (weights, unfolded), (windows * 9, width),
        keep=(weights, unfolded), flops=2.0 * 81 * head * many, dims=(9, head, 9, many),
    )  # fmt: skip
    y = net.copy(y, f"{name}.attn.fold", (grid[0] * grid[1], width))
    y = net.linear(y, f"{name}.attn.out", width)
    tokens = net.add(f"{name}.attn.sum", tokens, y)
    y = mlp(net, before(net, tokens, f"{name}.mlp", layer), f"{name}.mlp", 3 * width)
    return to_image(net, branch(net, tokens, y, f"{name}.mlp", layer), f"{name}.back", grid)


def _crossvit(net: Net, size: int, kind: str, dagger: bool) -> None:
    """CrossViT (Chen et al. 2021): two branches of patches, whose class tokens read the other."""
    widths, depth, heads, ratio = _CROSS[kind]
    images = (size, round(size * 224 / 240) if size != 408 else 384)
    branches = []
    net.block = Block.EMBED
    for number, (side, patch, width) in enumerate(zip(images, (12, 16), widths, strict=True)):
        image = net.input(3, side, side)
        name = f"patches{number}"
        if dagger:
            parts = ((4, 7, 4), (2, 3, 3), (1, 3, 1)) if patch == 12 else (
                (4, 7, 4), (2, 3, 2), (1, 3, 2))  # fmt: skip
            for step, (part, kernel, stride) in enumerate(parts):
                image = net.conv(image, f"{name}.{step}", width // part, kernel, stride, bias=True)
                image = net.activation(image, f"{name}.{step}.relu") if part > 1 else image
        else:
            image = net.conv(image, name, width, patch, patch, 0, bias=True)
        x = net.copy(to_tokens(net, image, f"{name}.tokens"), f"{name}.join",
                     (image.shape[1] * image.shape[2] + 1, width))  # fmt: skip
        branches.append(net.bias(x, f"{name}.positions", x.size + width))
    net.block = Block.LAYER
    for stage in range(3):
        for number in range(2):
            count, layer = (depth if number else 1), Layer(heads, ratio)
            for step in range(count):
                branches[number] = block(net, branches[number], f"stage{stage}.{number}.{step}",
                                         layer)  # fmt: skip
        branches = _exchange(net, branches, f"stage{stage}.cross", heads)
    net.block = Block.HEAD
    for number, x in enumerate(branches):
        features = net.view(net.norm(x, f"norm{number}"), x.shape[1])
        net.loss(net.linear(features, f"head{number}", CLASSES), f"loss{number}")


def _exchange(net: Net, branches: list[Tensor], name: str, heads: int) -> list[Tensor]:
    found = []
    for number, x in enumerate(branches):
        other, path = branches[1 - number], f"{name}{number}"
        width, theirs = x.shape[1], other.shape[1]
        token = net.activation(net.norm(net.view(x, 1, width), f"{path}.norm"), f"{path}.gelu",
                               "gelu")  # fmt: skip
        token = net.linear(token, f"{path}.project", theirs)
        joined = net.copy(other, f"{path}.join", other.shape, others=(token,))
        normal = net.norm(joined, f"{path}.attn.norm")
        query = net.linear(net.view(normal, 1, theirs), f"{path}.q", theirs)
        pair = net.linear(normal, f"{path}.kv", 2 * theirs)
        y = products(net, f"{path}.attn", query, (pair,), heads, theirs // heads, 1, other.shape[0])
        y = net.add(f"{path}.sum", token, net.linear(y, f"{path}.out", theirs))
        back = net.activation(net.norm(y, f"{path}.back.norm"), f"{path}.back.gelu", "gelu")
        back = net.linear(back, f"{path}.back", width)
        found.append(net.copy(x, f"{path}.joined", x.shape, others=(back,)))
    return found


def _mixer(net: Net, size: int, kind: str) -> None:
    """MLP-Mixer, its gated forms, gMLP and ResMLP: linear layers over tokens and channels."""
    width, depth, patch = _MIXERS[kind]
    net.block = Block.EMBED
    x = net.conv(net.input(3, size, size), "patches", width, patch, patch, 0, bias=True)
    x = to_tokens(net, x, "to_tokens")
    net.block = Block.LAYER
    mixers: dict[str, Callable[[Net, Tensor, str], Tensor]] = {
        "mixer": _mixer_block, "gmixer": _gated_mixer_block, "gmlp": _gmlp_block,
        "resmlp": _resmlp_block,
    }  # fmt: skip
    for number in range(depth):
        x = mixers[kind.split("_")[0]](net, x, f"blocks.{number}")
    net.block = Block.HEAD
    tokens, width = x.shape
    pooled = net.mean(net.view(net.norm(x, "norm"), width, tokens), "pool")
    net.loss(net.linear(pooled, "head", CLASSES))


def _turned(net: Net, x: Tensor, name: str) -> Tensor:
    return net.copy(x, name, (x.shape[1], x.shape[0]))


def _mixer_block(net: Net, x: Tensor, name: str) -> Tensor:
    width = x.shape[1]
    y = _turned(net, net.norm(x, f"{name}.norm1"), f"{name}.turn")
    y = mlp(net, y, f"{name}.tokens", width // 2)
    x = net.add(f"{name}.sum1", x, _turned(net, y, f"{name}.back"))
    y = mlp(net, net.norm(x, f"{name}.norm2"), f"{name}.channels", 4 * width)
    return net.add(f"{name}.sum2", x, y)


def _gated_mixer_block(net: Net, x: Tensor, name: str) -> Tensor:
    width = x.shape[1]
    y = _turned(net, net.norm(x, f"{name}.norm1"), f"{name}.turn")
    y = _glu(net, y, f"{name}.tokens", width)
    x = net.add(f"{name}.sum1", x, _turned(net, y, f"{name}.back"))
    y = _glu(net, net.norm(x, f"{name}.norm2"), f"{name}.channels", 4 * width)
    return net.add(f"{name}.sum2", x, y)


def _glu(net: Net, x: Tensor, name: str, inner: int) -> Tensor:
    both = net.linear(x, f"{name}.up", inner)
    half = net.view(both, x.shape[0], inner // 2)
    y = net.multiply(f"{name}.gate", half, net.activation(half, f"{name}.silu", "silu"))
    return net.linear(y, f"{name}.down", x.shape[1])


def _gmlp_block(net: Net, x: Tensor, name: str) -> Tensor:
    tokens, width = x.shape
    both = net.linear(net.norm(x, f"{name}.norm"), f"{name}.up", 6 * width)
    both = net.activation(both, f"{name}.gelu", "gelu")
    half = net.view(both, tokens, 3 * width)
    gate = _turned(net, net.norm(half, f"{name}.gate.norm"), f"{name}.turn")
    gate = _turned(net, net.linear(gate, f"{name}.gate", tokens), f"{name}.back")
    y = net.linear(net.multiply(f"{name}.product", half, gate), f"{name}.down", width)
    return net.add(f"{name}.sum", x, y)


def _resmlp_block(net: Net, x: Tensor, name: str) -> Tensor:
    tokens, width = x.shape
    y = _turned(net, net.scale(x, f"{name}.affine1", 2 * width), f"{name}.turn")
    y = _turned(net, net.linear(y, f"{name}.tokens", tokens), f"{name}.back")
    x = net.add(f"{name}.sum1", x, net.scale(y, f"{name}.gamma1", width))
    y = mlp(net, net.scale(x, f"{name}.affine2", 2 * width), f"{name}.channels", 4 * width)
    return net.add(f"{name}.sum2", x, net.scale(y, f"{name}.gamma2", width))


def _convmixer(net: Net, size: int, kind: str) -> None:
    width, depth, kernel, patch = _CONVMIXERS[kind]
    act = "relu" if kind == "768_32" else "gelu"
    x = net.conv(net.input(3, size, size), "patches", width, patch, patch, 0, bias=True)
    x = net.batch_norm(net.activation(x, "patches.act", act), "patches.norm")
    for number in range(depth):
        name = f"blocks.{number}"
        y = net.conv(x, f"{name}.depth", width, kernel, groups=width, bias=True)
        y = net.batch_norm(net.activation(y, f"{name}.depth.act", act), f"{name}.depth.norm")
        x = net.add(f"{name}.sum", x, y)
        x = net.conv(x, f"{name}.point", width, 1, bias=True)
        x = net.batch_norm(net.activation(x, f"{name}.point.act", act), f"{name}.point.norm")
    classify(net, x)


def _visformer(net: Net, size: int, kind: str) -> None:
    """Visformer (Chen et al. 2021): convolutional blocks at 1/8, attention at 1/16 and 1/32."""
    first, width, depths = (16, 192, (7, 4, 4)) if kind == "tiny" else (32, 384, (7, 4, 4))
    heads = 3 if kind == "tiny" else 6
    units = Units(net)
    x = units.unit(net.input(3, size, size), "stem", first, 7, 2)
    for stage, (depth, part, patch) in enumerate(zip(depths, (2, 1, 0.5), (4, 2, 2), strict=True)):
        wide = int(width / part)
        x = net.batch_norm(net.conv(x, f"patches{stage}", wide, patch, patch, 0, bias=True),
                           f"patches{stage}.norm")  # fmt: skip
        x = net.bias(x, f"positions{stage}", x.size)
        for number in range(depth):
            x = _visformer_block(net, x, f"stage{stage}.{number}", stage, heads)
    classify(net, net.batch_norm(x, "norm"))


def _visformer_block(net: Net, x: Tensor, name: str, stage: int, heads: int) -> Tensor:
    width, grid = x.shape[0], (x.shape[1], x.shape[2])
    if stage:
        y = net.conv(net.batch_norm(x, f"{name}.norm1"), f"{name}.qkv", 3 * width, 1)
        head, tokens = width // heads, grid[0] * grid[1]
        y = products(net, f"{name}.attn", y, (), heads, head, tokens, tokens)
        y = net.conv(to_image(net, y, f"{name}.image", grid), f"{name}.out", width, 1)
        x = net.add(f"{name}.sum1", x, y)
    y = net.batch_norm(x, f"{name}.norm2")
    inner = 4 * width if stage else 2 * width
    y = net.activation(net.conv(y, f"{name}.up", inner, 1), f"{name}.gelu1", "gelu")
    if not stage:
        y = net.conv(y, f"{name}.group", inner, 3, groups=8)
        y = net.activation(y, f"{name}.gelu2", "gelu")
    return net.add(f"{name}.sum2", x, net.conv(y, f"{name}.down", width, 1))


def known(name: str) -> bool:
    """Whether a name is one of this module's."""
    if match := re.fullmatch(r"volo_(d\d)_\d+", name):
        return match[1] in _VOLOS
    if match := re.fullmatch(r"crossvit_([a-z]+|\d+)(_dagger)?_(240|408)", name):
        return match[1] in _CROSS
    if match := re.fullmatch(r"(.*mi?xer.*|gmlp.*|resmlp.*?)_224(_distilled|_miil|_in22k)?", name):
        return match[1] in _MIXERS
    if match := re.fullmatch(r"convmixer_(.*)", name):
        return match[1] in _CONVMIXERS
    return name in ("visformer_tiny", "visformer_small")


def classifier(name: str, net: Net, size: int) -> tuple[str, ...]:
    """State a network of this module and its loss."""
    family, _, rest = name.partition("_")
    if family == "volo":
        _volo(net, size, rest[:2])
    elif family == "crossvit":
        _crossvit(net, size, rest.split("_")[0], "dagger" in rest)
    elif family == "convmixer":
        _convmixer(net, size, rest)
    elif family == "visformer":
        _visformer(net, size, rest)
    else:
        kind = re.sub(r"_224.*", "", name)
        _mixer(net, size, kind)
    return ()
