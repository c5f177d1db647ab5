"""Vision transformers in torchvision's form: ViT, Swin, Swin V2 and MaxViT."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.domain.graph import Block, Shard
from forerun.errors import RequestError
from forerun.workloads.zoo.attend import encoder_layer, plain_attention, sharded
from forerun.workloads.zoo.net import Net, Tensor
from forerun.workloads.zoo.resnets import squeeze_excite

CLASSES = 1000


@dataclass(frozen=True, slots=True)
class VitShape:
    """Dosovitskiy et al. 2021, table 1."""

    patch: int
    layers: int
    hidden: int
    heads: int
    mlp: int


@dataclass(frozen=True, slots=True)
class SwinShape:
    """Liu et al. 2021, section 3.3, and Liu et al. 2022 for version 2."""

    width: int
    depths: tuple[int, ...]
    heads: tuple[int, ...]
    window: int
    version: int = 1


VITS: dict[str, VitShape] = {
    "vit-ti-16": VitShape(16, 12, 192, 3, 768),
    "vit-s-16": VitShape(16, 12, 384, 6, 1536),
    "vit-s-32": VitShape(32, 12, 384, 6, 1536),
    "vit-b-8": VitShape(8, 12, 768, 12, 3072),
    "vit-b-16": VitShape(16, 12, 768, 12, 3072),
    "vit-b-32": VitShape(32, 12, 768, 12, 3072),
    "vit-l-14": VitShape(14, 24, 1024, 16, 4096),
    "vit-l-16": VitShape(16, 24, 1024, 16, 4096),
    "vit-l-32": VitShape(32, 24, 1024, 16, 4096),
    "vit-h-14": VitShape(14, 32, 1280, 16, 5120),
}
SWINS: dict[str, SwinShape] = {
    "swin-t": SwinShape(96, (2, 2, 6, 2), (3, 6, 12, 24), 7),
    "swin-s": SwinShape(96, (2, 2, 18, 2), (3, 6, 12, 24), 7),
    "swin-b": SwinShape(128, (2, 2, 18, 2), (4, 8, 16, 32), 7),
    "swin-v2-t": SwinShape(96, (2, 2, 6, 2), (3, 6, 12, 24), 8, 2),
    "swin-v2-s": SwinShape(96, (2, 2, 18, 2), (3, 6, 12, 24), 8, 2),
    "swin-v2-b": SwinShape(128, (2, 2, 18, 2), (4, 8, 16, 32), 8, 2),
}


def classifier(name: str, net: Net, size: int) -> tuple[str, ...]:
    """State a ViT, a Swin or MaxViT and its loss. Raises RequestError as they do."""
    image = net.input(3, size, size)
    if name in VITS:
        logits = vit(net, image, VITS[name])
    elif name in SWINS:
        logits = swin(net, image, SWINS[name])
    else:
        logits = maxvit(net, image)
    net.loss(logits)
    return ()


def vit(net: Net, image: Tensor, shape: VitShape, classes: int = CLASSES) -> Tensor:
    """State a ViT and return its logits.

    Raises:
        RequestError: the image is not a whole number of patches.
    """
    side = image.shape[1]
    if side % shape.patch:
        raise RequestError(
            f"a ViT with patches of {shape.patch} pixels on images of {side}",
            "the image is not a whole number of patches",
            f"ask for a multiple of {shape.patch}, such as {_nearest(side, shape.patch)}",
        )
    net.block = Block.EMBED
    x = patches(net, image, shape.patch, shape.hidden, extra=1)
    net.block = Block.LAYER
    for layer in range(shape.layers):
        x = encoder_layer(net, x, f"encoder.{layer}", shape.heads, shape.mlp)
    net.block = Block.HEAD
    x = net.norm(x, "encoder.norm")
    return net.linear(net.view(x, shape.hidden), "head", classes)


def patches(net: Net, image: Tensor, patch: int, width: int, extra: int) -> Tensor:
    """Embed square patches, join `extra` learned tokens, add learned positions."""
    x = net.conv(image, "patches", width, patch, patch, 0, bias=True)
    tokens = x.shape[1] * x.shape[2] + extra
    if extra:
        x = net.copy(x, "class_token", (tokens, width))
    else:
        x = net.view(x, tokens, width)
    return net.bias(x, "positions", tokens * width + extra * width)


def _nearest(side: int, step: int) -> int:
    return max(step, round(side / step) * step)


def swin(net: Net, image: Tensor, shape: SwinShape, classes: int = CLASSES) -> Tensor:
    """State a Swin transformer (either version) and return its logits."""
    net.block = Block.EMBED
    x = net.conv(image, "patches", shape.width, 4, 4, 0, bias=True)
    grid = x.shape[1:]
    x = net.copy(x, "to_last", (grid[0] * grid[1], shape.width))
    x = net.norm(x, "patches.norm")
    net.block = Block.LAYER
    for stage, (depth, heads) in enumerate(zip(shape.depths, shape.heads, strict=True)):
        for block in range(depth):
            x = _swin_block(net, x, f"stage{stage}.{block}", shape, heads, grid, block % 2 == 1)
        if stage + 1 < len(shape.depths):
            x, grid = _merge(net, x, f"stage{stage}.merge", grid, shape.version)
    net.block = Block.HEAD
    x = net.norm(x, "norm")
    x = net.mean(net.view(x, x.shape[1], x.shape[0]), "pool")
    return net.linear(x, "head", classes)


def _swin_block(
    net: Net, x: Tensor, name: str, shape: SwinShape, heads: int, grid: tuple[int, ...], odd: bool
) -> Tensor:
    """Windowed attention and an MLP; version 2 normalises after each part, version 1 before."""
    late = shape.version == 2

    def part(x: Tensor, label: str) -> Tensor:
        with sharded(net, Shard.SEQUENCE):
            y = x if late else net.norm(x, f"{name}.{label}.norm")
        if label == "attention":
            y = _window_attention(net, y, f"{name}.attention", shape, heads, grid, odd)
        else:
            with sharded(net, Shard.TENSOR):
                y = net.linear(y, f"{name}.mlp.up", 4 * x.shape[1])
                y = net.activation(y, f"{name}.mlp.gelu", "gelu")
                y = net.linear(y, f"{name}.mlp.down", x.shape[1])
        with sharded(net, Shard.SEQUENCE):
            y = net.norm(y, f"{name}.{label}.norm") if late else y
            y = net.pointwise(y, f"{name}.{label}.depth", launches=2)
            return net.add(f"{name}.{label}.sum", x, y)

    return part(part(x, "attention"), "mlp")


def _window_attention(
    net: Net, x: Tensor, name: str, shape: SwinShape, heads: int, grid: tuple[int, ...], odd: bool
) -> Tensor:
    """Attention inside windows, padded at the far edges; every other block shifts them."""
    window, width = min(shape.window, *grid), x.shape[1]
    rows, columns = (-(-side // window) for side in grid)
    shifted = odd and (rows > 1 or columns > 1)
    windows, tokens = rows * columns, window * window
    with sharded(net, Shard.TENSOR):
        if shifted:
            x = net.copy(x, f"{name}.roll", (windows * tokens, width))
        x = net.copy(x, f"{name}.partition", (windows * tokens, width))
        x = net.linear(x, f"{name}.qkv", 3 * width)
        late = shape.version == 2
        # Version 2 has a small network from offsets to biases in place of a table of them.
        table = 3 * 512 + 512 * heads if late else (2 * window - 1) ** 2 * heads
        x = plain_attention(
            net, name, x, heads=heads, head_size=width // heads, tokens=tokens, groups=windows,
            bias_params=table, masked=shifted, cosine=late,
        )  # fmt: skip
        x = net.linear(x, f"{name}.out", width)
        x = net.copy(x, f"{name}.reverse", (grid[0] * grid[1], width))
        return net.copy(x, f"{name}.roll_back") if shifted else x


def _merge(
    net: Net, x: Tensor, name: str, grid: tuple[int, ...], version: int
) -> tuple[Tensor, tuple[int, ...]]:
    """Join each 2 x 2 neighbourhood and halve the features; odd sides are padded."""
    width = x.shape[1]
    grid = tuple(-(-side // 2) for side in grid)
    x = net.copy(x, f"{name}.join", (grid[0] * grid[1], 4 * width))
    if version == 1:
        x = net.norm(x, f"{name}.norm")
    x = net.linear(x, f"{name}.reduce", 2 * width, bias=False)
    return (net.norm(x, f"{name}.norm") if version == 2 else x), grid


def maxvit(net: Net, image: Tensor, classes: int = CLASSES) -> Tensor:
    """State MaxViT-T (Tu et al. 2022) and return its logits.

    Raises:
        RequestError: a stage does not divide into partitions of 7 x 7.
    """
    if image.shape[1] % 224:
        raise RequestError(
            f"maxvit-t on images of {image.shape[1]} pixels",
            "its partitions of 7 x 7 do not divide every stage",
            "ask for a multiple of 224",
        )
    x = net.conv(image, "stem.0", 64, 3, 2)
    x = net.activation(net.batch_norm(x, "stem.0.norm"), "stem.0.gelu", "gelu")
    x = net.conv(x, "stem.1", 64, 3, bias=True)
    for stage, (width, depth) in enumerate(((64, 2), (128, 2), (256, 5), (512, 2))):
        for block in range(depth):
            name = f"stage{stage}.{block}"
            x = _mbconv(net, x, f"{name}.mbconv", width, 2 if block == 0 else 1)
            for kind in ("window", "grid"):
                x = _partition_attention(net, x, f"{name}.{kind}", width, 7)
    net.block = Block.HEAD
    x = net.norm(net.mean(x, "head.pool"), "head.norm")
    x = net.activation(net.linear(x, "head.0", 512), "head.tanh", "tanh")
    return net.linear(x, "head.1", classes, bias=False)


def _mbconv(net: Net, x: Tensor, name: str, width: int, stride: int) -> Tensor:
    inner, squeezed, shortcut = 4 * width, width // 4, x
    if stride != 1 or x.shape[0] != width:
        if stride == 2:
            shortcut = net.pool(x, f"{name}.shortcut.pool", 3, 2, 1, average=True)
        shortcut = net.conv(shortcut, f"{name}.shortcut", width, 1, bias=True)
    y = net.conv(net.batch_norm(x, f"{name}.norm"), f"{name}.expand", inner, 1)
    y = net.activation(net.batch_norm(y, f"{name}.norm1"), f"{name}.gelu1", "gelu")
    y = net.conv(y, f"{name}.depthwise", inner, 3, stride, groups=inner)
    y = net.activation(net.batch_norm(y, f"{name}.norm2"), f"{name}.gelu2", "gelu")
    y = squeeze_excite(net, y, f"{name}.se", squeezed)
    y = net.conv(y, f"{name}.project", width, 1, bias=True)
    return net.add(f"{name}.sum", shortcut, net.pointwise(y, f"{name}.depth", launches=2))


def _partition_attention(net: Net, x: Tensor, name: str, width: int, side: int) -> Tensor:
    spatial = x.shape[1:]
    windows, tokens, heads = spatial[0] * spatial[1] // side**2, side * side, width // 32
    flat = net.copy(x, f"{name}.partition", (windows * tokens, width))
    y = net.linear(net.norm(flat, f"{name}.norm1"), f"{name}.qkv", 3 * width)
    y = plain_attention(
        net, name, y, heads=heads, head_size=32, tokens=tokens, groups=windows,
        bias_params=(2 * side - 1) ** 2 * heads,
    )  # fmt: skip
    y = net.pointwise(net.linear(y, f"{name}.out", width), f"{name}.depth1", launches=2)
    flat = net.add(f"{name}.sum1", flat, y)
    y = net.linear(net.norm(flat, f"{name}.norm2"), f"{name}.up", 4 * width)
    y = net.linear(net.activation(y, f"{name}.gelu", "gelu"), f"{name}.down", width)
    y = net.pointwise(y, f"{name}.depth2", launches=2)
    return net.copy(net.add(f"{name}.sum2", flat, y), f"{name}.reverse", (width, *spatial))
