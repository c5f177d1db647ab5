"""Vision transformers of one width: ViT, DeiT, BEiT, CaiT, ConViT, XCiT."""

from __future__ import annotations

import re
from dataclasses import dataclass

from forerun.domain.graph import Block, OpKind
from forerun.errors import RequestError
from forerun.workloads.zoo.net import Net, Tensor
from forerun.workloads.zoo.timm.layers import (
    Layer,
    attention,
    before,
    block,
    branch,
    class_attention,
    mlp,
    to_image,
    to_tokens,
)
from forerun.workloads.zoo.timm.parts import CLASSES

# Size: width, layers, heads, MLP ratio.
SIZES: dict[str, tuple[int, int, int, float]] = {
    "tiny": (192, 12, 3, 4.0), "small": (384, 12, 6, 4.0), "medium": (512, 12, 8, 4.0),
    "base": (768, 12, 12, 4.0), "base2": (896, 12, 14, 4.0), "baseplus": (896, 12, 14, 4.0),
    "large": (1024, 24, 16, 4.0),
    "huge": (1280, 32, 16, 4.0), "giant": (1408, 40, 16, 48 / 11),
    "gigantic": (1664, 48, 16, 64 / 13),
}  # fmt: skip
_CAITS = {
    "xxs24": (192, 24, 4), "xxs36": (192, 36, 4), "xs24": (288, 24, 6), "s24": (384, 24, 8),
    "s36": (384, 36, 8), "m36": (768, 36, 16), "m48": (768, 48, 16),
}  # fmt: skip
_XCITS = {
    "nano_12": (128, 12, 4), "tiny_12": (192, 12, 4), "tiny_24": (192, 24, 4),
    "small_12": (384, 12, 8), "small_24": (384, 24, 8), "medium_24": (512, 24, 8),
    "large_24": (768, 24, 16),
}  # fmt: skip
_CONVITS = {"tiny": (192, 4), "small": (432, 9), "base": (768, 16)}


@dataclass(frozen=True, slots=True)
class Vit:
    """A plain vision transformer.

    Attributes:
        width, depth, patch: sizes.
        layer: its layers.
        extra: learned tokens beside the patches.
        heads_out: classifiers (2: one of them on the distillation token).
        gap: tokens are averaged and normalised, not the first one read.
        positions: learned position embeddings.
    """

    width: int
    depth: int
    patch: int
    layer: Layer
    extra: int = 1
    heads_out: int = 1
    gap: bool = False
    positions: bool = True


_VIT = re.compile(
    r"(?P<kind>vit|deit|deit3|beit|vit_relpos|vit_srelpos)_(?P<size>[a-z]+2?)(?P<distilled>_distilled)?"
    r"_patch(?P<patch>\d+)(?P<marks>(_[a-z]+)*)(_(?P<depth>\d+)x(?P<twin>\d))?(_(?P<image>\d+))?"
)


def parse_vit(name: str) -> Vit | None:
    """Return the network that a name means, None where it is none of these."""
    match = _VIT.fullmatch(name)
    if match is None or match["size"] not in SIZES:
        return None
    size, marks = match["size"], match["marks"].split("_")
    if "plus" in marks:
        size = "baseplus"
    width, depth, heads, ratio = SIZES[size]
    depth = int(match["depth"]) * int(match["twin"]) if match["depth"] else depth
    patch, kind = int(match["patch"]), match["kind"]
    side = int(match["image"] or 224) // patch
    relative, beit = "relpos" in kind, kind == "beit"
    own = 0
    if kind == "vit_relpos":
        own = (2 * side - 1) ** 2 * heads
    elif beit:
        own = ((2 * side - 1) ** 2 + 3) * heads
    elif kind == "vit_srelpos":
        own = 1
    layer = Layer(
        heads, ratio, scaled=(relative and "rpn" not in marks) or beit or kind == "deit3", bias=own,
        late="rpn" in marks,
    )  # fmt: skip
    distilled = bool(match["distilled"])
    tokens = 2 if distilled else 0 if relative and not {"cls", "clsgap"} & set(marks) else 1
    return Vit(
        width, depth, patch, layer, extra=tokens, heads_out=2 if distilled else 1,
        gap=(relative and "cls" not in marks) or beit, positions=not (relative or beit),
    )  # fmt: skip


def vit(net: Net, size: int, shape: Vit) -> None:
    """State a plain vision transformer and its loss."""
    image = net.input(3, size, size)
    net.block = Block.EMBED
    x = net.conv(image, "patches", shape.width, shape.patch, shape.patch, 0, bias=True)
    transform(net, to_tokens(net, x, "to_tokens"), shape)


def transform(net: Net, x: Tensor, shape: Vit) -> None:
    """State the layers and classifiers over patch tokens."""
    tokens = x.shape[0] + shape.extra
    if shape.extra:
        x = net.copy(x, "class_token", (tokens, shape.width))
    if shape.positions:
        x = net.bias(x, "positions", (tokens + shape.extra) * shape.width)
    net.block = Block.LAYER
    for number in range(shape.depth):
        x = block(net, x, f"blocks.{number}", shape.layer)
    net.block = Block.HEAD
    if shape.gap:
        x = net.mean(net.view(x, shape.width, tokens), "head.pool")
    x = net.norm(x, "norm", shape.width)
    features = net.view(x, shape.width)
    for number in range(shape.heads_out):
        net.loss(net.linear(features, f"head{number}", CLASSES), f"loss{number}")


def cait(net: Net, size: int, width: int, depth: int, heads: int) -> None:
    """State CaiT (Touvron et al. 2021): talking heads, then two layers for the class token."""
    net.block = Block.EMBED
    x = net.conv(net.input(3, size, size), "patches", width, 16, 16, 0, bias=True)
    x = to_tokens(net, x, "to_tokens")
    x = net.bias(x, "positions", x.size + width)
    net.block = Block.LAYER
    layer = Layer(heads, scaled=True)
    for number in range(depth):
        x = block(net, x, f"blocks.{number}", layer, mixed=True)
    finish_by_class(net, x, layer)


def finish_by_class(net: Net, x: Tensor, layer: Layer, all_tokens: bool = False) -> None:
    """State two layers in which a class token reads all others, and the classifier."""
    width = x.shape[1]
    token = net.view(x, 1, width)
    for number in range(2):
        name = f"class_blocks.{number}"
        joined = net.copy(x, f"{name}.join", (x.shape[0] + (number == 0 or not all_tokens), width))
        y = class_attention(net, before(net, joined, f"{name}.attn", layer), f"{name}.attn",
                            layer.heads)  # fmt: skip
        token = branch(net, token, y, f"{name}.attn", layer)
        y = mlp(net, before(net, token, f"{name}.mlp", layer), f"{name}.mlp", 4 * width)
        token = branch(net, token, y, f"{name}.mlp", layer)
        x = joined if all_tokens else x
    net.block = Block.HEAD
    features = net.view(net.norm(token, "norm"), width)
    net.loss(net.linear(features, "head", CLASSES))


def xcit(net: Net, size: int, width: int, depth: int, heads: int, patch: int) -> None:
    """State XCiT (El-Nouby et al. 2021): attention between channels, local patch interaction."""
    net.block = Block.EMBED
    image = net.input(3, size, size)
    parts = (8, 4, 2, 1) if patch == 16 else (4, 2, 1)
    for number, part in enumerate(parts):
        image = net.conv(image, f"patches.{number}", width // part, 3, 2)
        image = net.batch_norm(image, f"patches.{number}.norm")
        if part > 1:
            image = net.activation(image, f"patches.{number}.gelu", "gelu")
    grid = (image.shape[1], image.shape[2])
    x = to_tokens(net, image, "to_tokens")
    encoded = net.conv(net.input(64, *grid), "positions", width, 1, bias=True)
    x = net.add("positions.sum", x, net.view(encoded, *x.shape))
    net.block = Block.LAYER
    layer = Layer(heads, scaled=True)
    for number in range(depth):
        x = _xcit_block(net, x, f"blocks.{number}", layer, grid)
    finish_by_class(net, x, layer, all_tokens=True)


def _xcit_block(net: Net, x: Tensor, name: str, layer: Layer, grid: tuple[int, int]) -> Tensor:
    y = _channel_attention(net, before(net, x, f"{name}.attn", layer), f"{name}.attn", layer.heads)
    x = branch(net, x, y, f"{name}.attn", layer)
    width = x.shape[1]
    y = to_image(net, before(net, x, f"{name}.local", layer), f"{name}.local.image", grid)
    y = net.conv(y, f"{name}.local.0", width, 3, groups=width, bias=True)
    y = net.batch_norm(net.activation(y, f"{name}.local.gelu", "gelu"), f"{name}.local.bn")
    y = net.conv(y, f"{name}.local.1", width, 3, groups=width, bias=True)
    x = branch(net, x, to_tokens(net, y, f"{name}.local.tokens"), f"{name}.local", layer)
    y = mlp(net, before(net, x, f"{name}.mlp", layer), f"{name}.mlp", 4 * width)
    return branch(net, x, y, f"{name}.mlp", layer)


def _channel_attention(net: Net, x: Tensor, name: str, heads: int) -> Tensor:
    tokens, width = x.shape
    head = width // heads
    qkv = net.linear(x, f"{name}.qkv", 3 * width)
    packed = net.copy(qkv, f"{name}.heads", (3 * x.size,))
    pair = net.emit(
        OpKind.ELEMENTWISE, f"{name}.normalise", (packed,), (2 * x.size,), reads=2 * x.size,
        keep=(packed,), launches=4,
    )  # fmt: skip
    work = 2.0 * tokens * head * head * heads
    scores = net.emit(
        OpKind.ATTENTION, f"{name}.scores", (pair,), (heads, head, head), keep=(pair,), flops=work,
        dims=(head, head, tokens, heads),
    )  # fmt: skip
    weights = net.softmax(net.scale(scores, f"{name}.temperature", heads), f"{name}.softmax")
    y = net.emit(
        OpKind.ATTENTION, f"{name}.values", (weights, packed), (tokens, width),
        keep=(packed, weights), flops=work, dims=(head, tokens, head, heads), reads=x.size,
    )  # fmt: skip
    return net.linear(net.copy(y, f"{name}.join"), f"{name}.out", width)


def convit(net: Net, size: int, width: int, heads: int) -> None:
    """State ConViT (d'Ascoli et al. 2021): ten of twelve layers have gated positions."""
    net.block = Block.EMBED
    x = net.conv(net.input(3, size, size), "patches", width, 16, 16, 0, bias=True)
    x = to_tokens(net, x, "to_tokens")
    x = net.bias(x, "positions", x.size)
    net.block = Block.LAYER
    layer = Layer(heads, qkv_bias=False)
    for number in range(12):
        name = f"blocks.{number}"
        if number == 10:
            x = net.copy(x, "class_token", (x.shape[0] + 1, width))
        normal = before(net, x, f"{name}.attn", layer)
        y = attention(net, normal, f"{name}.attn", layer)
        if number < 10:  # soft-max of positions, gate, and renormalised sum of both
            offsets = net.copy(normal, f"{name}.attn.offsets", (x.shape[0] ** 2, 3))
            scores = net.linear(offsets, f"{name}.attn.positions", heads)
            for part in ("position_softmax", "gate", "gated_sum", "renormalise"):
                net.pointwise(scores, f"{name}.attn.{part}")
        x = branch(net, x, y, f"{name}.attn", layer)
        y = mlp(net, before(net, x, f"{name}.mlp", layer), f"{name}.mlp", 4 * width)
        x = branch(net, x, y, f"{name}.mlp", layer)
    net.block = Block.HEAD
    features = net.view(net.norm(x, "norm"), width)
    net.loss(net.linear(features, "head", CLASSES))


def known(name: str) -> bool:
    """Whether a name is one of this module's."""
    if re.fullmatch(r"xcit_.*", name):
        match = re.fullmatch(r"xcit_([a-z]+_\d+)_p(8|16)(_\d+)?(_dist)?", name)
        return match is not None and match[1] in _XCITS
    if match := re.fullmatch(r"cait_([a-z]+\d+)(_\d+)?", name):
        return match[1] in _CAITS
    if match := re.fullmatch(r"convit_([a-z]+)", name):
        return match[1] in _CONVITS
    return parse_vit(name) is not None


def classifier(name: str, net: Net, size: int) -> tuple[str, ...]:
    """State a network of this module and its loss.

    Raises:
        RequestError: the image is not a whole number of patches.
    """
    patch = 16
    if match := re.fullmatch(r"xcit_([a-z]+_\d+)_p(8|16).*", name):
        xcit(net, size, *_XCITS[match[1]], int(match[2]))
    elif match := re.fullmatch(r"cait_([a-z]+\d+).*", name):
        cait(net, size, *_CAITS[match[1]])
    elif match := re.fullmatch(r"convit_([a-z]+)", name):
        convit(net, size, *_CONVITS[match[1]])
    elif (shape := parse_vit(name)) is not None:
        patch = shape.patch
        vit(net, size, shape)
    if size % patch:
        raise RequestError(
            f"{name} on images of {size} pixels", f"its patches are of {patch} pixels",
            f"ask for a multiple of {patch}",
        )  # fmt: skip
    return ()
