"""Vision transformers whose stages shrink: Swin, PiT, Twins, NesT, PoolFormer."""

from __future__ import annotations

import re

from forerun.domain.graph import Block
from forerun.workloads.zoo.net import Net, Tensor
from forerun.workloads.zoo.timm.layers import (
    Layer,
    before,
    block,
    branch,
    mlp,
    reduced_attention,
    to_image,
    to_tokens,
)
from forerun.workloads.zoo.timm.parts import classify
from forerun.workloads.zoo.vision_transformers import SwinShape, swin

_SWINS: dict[str, tuple[int, tuple[int, ...], tuple[int, ...]]] = {
    "tiny": (96, (2, 2, 6, 2), (3, 6, 12, 24)),
    "small": (96, (2, 2, 18, 2), (3, 6, 12, 24)),
    "base": (128, (2, 2, 18, 2), (4, 8, 16, 32)),
    "large": (192, (2, 2, 18, 2), (6, 12, 24, 48)),
    "huge": (352, (2, 2, 18, 2), (11, 22, 44, 88)),
    "giant": (512, (2, 2, 42, 2), (16, 32, 64, 128)),
}
_SWIN_NAME = re.compile(
    r"(?P<kind>swin|swinv2|swinv2_cr|swin_s3)_(?P<size>[a-z]+)(_ns)?"
    r"(_patch4)?(_window(?P<window>\d+)(to(?P<later>\d+))?)?_\d+(to\d+)?(_22kft1k|_in22k|_in22ft1k)?"
)
# Width of a head, heads, layers, first patch and stride, of each stage.
_PITS: dict[str, tuple[int, tuple[int, ...], tuple[int, ...], int, int]] = {
    "ti": (32, (2, 4, 8), (2, 6, 4), 16, 8), "xs": (48, (2, 4, 8), (2, 6, 4), 16, 8),
    "s": (48, (3, 6, 12), (2, 6, 4), 16, 8), "b": (64, (4, 8, 16), (3, 6, 4), 14, 7),
}  # fmt: skip
# Widths, heads, MLP ratios, layers.
_Twins = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]
_TWINS: dict[str, _Twins] = {
    "svt_small": ((64, 128, 256, 512), (2, 4, 8, 16), (4, 4, 4, 4), (2, 2, 10, 4)),
    "svt_base": ((96, 192, 384, 768), (3, 6, 12, 24), (4, 4, 4, 4), (2, 2, 18, 2)),
    "svt_large": ((128, 256, 512, 1024), (4, 8, 16, 32), (4, 4, 4, 4), (2, 2, 18, 2)),
    "pcpvt_small": ((64, 128, 320, 512), (1, 2, 5, 8), (8, 8, 4, 4), (3, 4, 6, 3)),
    "pcpvt_base": ((64, 128, 320, 512), (1, 2, 5, 8), (8, 8, 4, 4), (3, 4, 18, 3)),
    "pcpvt_large": ((64, 128, 320, 512), (1, 2, 5, 8), (8, 8, 4, 4), (3, 8, 27, 3)),
}
_NESTS: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "tiny": ((96, 192, 384), (3, 6, 12), (2, 2, 8)),
    "small": ((96, 192, 384), (3, 6, 12), (2, 2, 20)),
    "base": ((128, 256, 512), (4, 8, 16), (2, 2, 20)),
}
_POOLFORMERS: dict[str, tuple[tuple[int, ...], tuple[int, ...], bool]] = {
    "s12": ((2, 2, 6, 2), (64, 128, 320, 512), False),
    "s24": ((4, 4, 12, 4), (64, 128, 320, 512), False),
    "s36": ((6, 6, 18, 6), (64, 128, 320, 512), False),
    "m36": ((6, 6, 18, 6), (96, 192, 384, 768), False),
    "m48": ((8, 8, 24, 8), (96, 192, 384, 768), False),
}


def _swin(net: Net, size: int, name: str) -> None:
    match = _SWIN_NAME.fullmatch(name)
    assert match is not None
    width, depths, heads = _SWINS[match["size"]]
    if match["kind"] == "swinv2_cr":
        window = size // 32
    else:
        window = int(match["later"] or match["window"] or 7)
    version = 1 if match["kind"] == "swin" else 2
    shape = SwinShape(width, depths, heads, window, version)
    net.loss(swin(net, net.input(3, size, size), shape))


def _pit(net: Net, size: int, kind: str, distilled: bool) -> None:
    head, heads, depths, patch, stride = _PITS[kind]
    net.block = Block.EMBED
    image = net.conv(net.input(3, size, size), "patches", head * heads[0], patch, stride, 0,
                     bias=True)  # fmt: skip
    grid = (image.shape[1], image.shape[2])
    image = net.bias(image, "positions", image.size)
    x = to_tokens(net, image, "to_tokens")
    extra = 2 if distilled else 1
    net.block = Block.LAYER
    for stage, (count, depth) in enumerate(zip(heads, depths, strict=True)):
        width = head * count
        if stage:
            image = to_image(net, x, f"pool{stage}.image", grid)
            image = net.conv(image, f"pool{stage}", width, 3, 2, groups=image.shape[0], bias=True)
            net.linear(net.view(x, extra, x.shape[1]), f"pool{stage}.tokens", width)
            grid = (image.shape[1], image.shape[2])
            x = to_tokens(net, image, f"pool{stage}.to_tokens")
        x = net.copy(x, f"stage{stage}.join", (grid[0] * grid[1] + extra, width))
        for number in range(depth):
            x = block(net, x, f"stage{stage}.{number}", Layer(count))
        x = net.copy(x, f"stage{stage}.split", (grid[0] * grid[1], width))
    net.block = Block.HEAD
    features = net.view(net.norm(x, "norm"), x.shape[1])
    for number in range(extra):
        net.loss(net.linear(features, f"head{number}", 1000), f"loss{number}")


def _twins(net: Net, size: int, kind: str) -> None:
    """Local attention in windows of 7 x 7, or global attention to a smaller grid."""
    widths, heads, ratios, depths = _TWINS[kind]
    image = net.input(3, size, size)
    for stage, (width, count, ratio, depth) in enumerate(
        zip(widths, heads, ratios, depths, strict=True)
    ):
        patch = 2 if stage else 4
        image = net.conv(image, f"patches{stage}", width, patch, patch, 0, bias=True)
        grid = (image.shape[1], image.shape[2])
        x = net.norm(to_tokens(net, image, f"patches{stage}.tokens"), f"patches{stage}.norm")
        layer = Layer(count, ratio)
        for number in range(depth):
            name, reduce = f"stage{stage}.{number}", 8 >> stage
            if kind.startswith("svt") and number % 2 == 0:
                groups = -(-grid[0] // 7) * -(-grid[1] // 7)
                x = _local(net, x, name, layer, grid, groups)
            else:
                y = before(net, x, f"{name}.attn", layer)
                y = reduced_attention(net, y, f"{name}.attn", count, grid, reduce)
                x = branch(net, x, y, f"{name}.attn", layer)
                x = _feed(net, x, name, layer)
            if number == 0:
                place = to_image(net, x, f"{name}.position.image", grid)
                moved = net.conv(place, f"{name}.position", width, 3, groups=width, bias=True)
                x = to_tokens(net, net.add(f"{name}.position.sum", place, moved), f"{name}.tokens")
        image = to_image(net, x, f"stage{stage}.image", grid)
    classify(net, net.norm(image, "norm", widths[-1]))


def _feed(net: Net, x: Tensor, name: str, layer: Layer) -> Tensor:
    y = mlp(net, before(net, x, f"{name}.mlp", layer), f"{name}.mlp",
            int(x.shape[1] * layer.ratio))  # fmt: skip
    return branch(net, x, y, f"{name}.mlp", layer)


def _local(
    net: Net, x: Tensor, name: str, layer: Layer, grid: tuple[int, int], groups: int
) -> Tensor:
    """A layer whose attention stays in windows of 7 x 7, padded at the far edges."""
    x = net.copy(x, f"{name}.partition", (groups * 49, x.shape[1]))
    x = block(net, x, name, layer, groups=groups)
    return net.copy(x, f"{name}.reverse", (grid[0] * grid[1], x.shape[1]))


def _nest(net: Net, size: int, kind: str) -> None:
    """NesT (Zhang et al. 2022): attention in blocks, convolution and pooling between levels."""
    widths, heads, depths = _NESTS[kind]
    net.block = Block.EMBED
    image = net.conv(net.input(3, size, size), "patches", widths[0], 4, 4, 0, bias=True)
    net.block = Block.LAYER
    for level, (width, count, depth) in enumerate(zip(widths, heads, depths, strict=True)):
        if level:
            image = net.conv(image, f"pool{level}", width, 3, bias=True)
            image = net.pool(net.norm(image, f"pool{level}.norm", width), f"pool{level}.max", 3, 2,
                             1)  # fmt: skip
        grid, groups = (image.shape[1], image.shape[2]), 4 ** (2 - level)
        x = to_tokens(net, image, f"level{level}.blocks")
        x = net.bias(x, f"level{level}.positions", x.size)
        for number in range(depth):
            x = block(net, x, f"level{level}.{number}", Layer(count), groups=groups)
        image = to_image(net, x, f"level{level}.image", grid)
    classify(net, net.norm(image, "norm", widths[-1]))


def _poolformer(net: Net, size: int, kind: str) -> None:
    """PoolFormer (Yu et al. 2022): an average over 3 x 3 pixels in place of attention."""
    depths, widths, _ = _POOLFORMERS[kind]
    x = net.input(3, size, size)
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        kernel, stride = (3, 2) if stage else (7, 4)
        x = net.conv(x, f"patches{stage}", width, kernel, stride, 1 if stage else 2, bias=True)
        for number in range(depth):
            name = f"stage{stage}.{number}"
            normal = net.norm(x, f"{name}.norm1", width)
            y = net.pool(normal, f"{name}.pool", 3, 1, 1, average=True)
            y = net.add(f"{name}.less", y, normal)
            x = net.add(f"{name}.sum1", x, net.scale(y, f"{name}.gamma1", width))
            y = net.conv(net.norm(x, f"{name}.norm2", width), f"{name}.up", 4 * width, 1, bias=True)
            y = net.conv(net.activation(y, f"{name}.gelu", "gelu"), f"{name}.down", width, 1,
                         bias=True)  # fmt: skip
            x = net.add(f"{name}.sum2", x, net.scale(y, f"{name}.gamma2", width))
    classify(net, net.norm(x, "norm", x.shape[0]))


def known(name: str) -> bool:
    """Whether a name is one of this module's."""
    if match := _SWIN_NAME.fullmatch(name):
        return match["size"] in _SWINS and match["kind"] != "swin_s3"
    if match := re.fullmatch(r"pit_([a-z]+)(_distilled)?_224", name):
        return match[1] in _PITS
    if match := re.fullmatch(r"twins_([a-z]+_[a-z]+)", name):
        return match[1] in _TWINS
    if match := re.fullmatch(r"(jx_)?nest_([a-z]+)", name):
        return match[2] in _NESTS
    match = re.fullmatch(r"poolformer_([a-z]\d+)", name)
    return match is not None and match[1] in _POOLFORMERS


def classifier(name: str, net: Net, size: int) -> tuple[str, ...]:
    """State a network of this module and its loss."""
    family, _, kind = name.removeprefix("jx_").partition("_")
    if family.startswith("swin"):
        _swin(net, size, name)
    elif family == "pit":
        _pit(net, size, kind.split("_")[0], "distilled" in kind)
    elif family == "twins":
        _twins(net, size, kind)
    elif family == "nest":
        _nest(net, size, kind)
    else:
        _poolformer(net, size, kind)
    return ()
