"""Diffusion: the latent U-Nets of Stable Diffusion, and diffusion transformers."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.domain.graph import Block
from forerun.errors import RequestError
from forerun.workloads.zoo.attend import cross_attention, feedforward, self_attention
from forerun.workloads.zoo.net import Net, Tensor

_EIGHTH = 8  # an image's side is eight times its latents'


@dataclass(frozen=True, slots=True)
class UnetShape:
    """A latent U-Net (Rombach et al. 2022; Podell et al. 2023).

    Attributes:
        widths: channels of each level.
        depths: transformer layers in each attention of a level (0: no attention).
        context, context_tokens: what cross-attention reads.
        heads: attention heads (0: one a 64 features).
        linear: projections around a transformer are linear, else 1 x 1 convolutions.
        vector: size of further conditioning (0: none).
        middle: transformer layers in the middle.
    """

    widths: tuple[int, ...]
    depths: tuple[int, ...]
    context: int
    heads: int = 0
    linear: bool = True
    vector: int = 0
    middle: int = 1
    context_tokens: int = 77


UNETS: dict[str, UnetShape] = {
    "stable-diffusion-v1-5": UnetShape(
        (320, 640, 1280, 1280), (1, 1, 1, 0), 768, heads=8, linear=False
    ),
    "stable-diffusion-v2": UnetShape((320, 640, 1280, 1280), (1, 1, 1, 0), 1024),
    "sdxl": UnetShape((320, 640, 1280), (0, 2, 10), 2048, vector=2816, middle=10),
}
UNET_NOTE = "trains the U-Net alone: image latents and text features are computed beforehand"


def latent_unet(name: str, net: Net, size: int) -> tuple[str, ...]:
    """State a latent U-Net and its loss.

    Raises:
        RequestError: the image does not halve evenly down to the last level.
    """
    shape = UNETS[name]
    step = _EIGHTH * 2 ** (len(shape.widths) - 1)
    if size % step:
        raise RequestError(
            f"{name} on images of {size} pixels", f"its levels need a multiple of {step}",
            f"ask for {max(step, round(size / step) * step)}",
        )  # fmt: skip
    unet = _Unet(net, shape)
    unet.run(net.input(4, size // _EIGHTH, size // _EIGHTH))
    return (UNET_NOTE,)


class _Unet:
    """The parts of one U-Net; they share the time embedding and the text."""

    def __init__(self, net: Net, shape: UnetShape) -> None:
        self.net, self.shape = net, shape
        self.text = net.input(shape.context_tokens, shape.context)
        first, self.time_width = shape.widths[0], 4 * shape.widths[0]
        self.time = self._embed("time", first)
        if shape.vector:
            self.time = net.add("embed", self.time, self._embed("vector", shape.vector))

    def _embed(self, name: str, width: int) -> Tensor:
        x = self.net.linear(self.net.input(width), f"{name}.0", self.time_width)
        x = self.net.activation(x, f"{name}.silu", "silu")
        return self.net.linear(x, f"{name}.1", self.time_width)

    def run(self, latents: Tensor) -> None:
        """State the way down, the middle, the way up and the loss."""
        net, widths, depths = self.net, self.shape.widths, self.shape.depths
        x = net.conv(latents, "in", widths[0], 3, bias=True)
        skips = [x]
        for level, (width, depth) in enumerate(zip(widths, depths, strict=True)):
            for block in range(2):
                x = self._pair(x, f"down{level}.{block}", width, depth)
                skips.append(x)
            if level + 1 < len(widths):
                x = net.conv(x, f"down{level}.shrink", width, 3, 2, bias=True)
                skips.append(x)
        x = self._residual(x, "middle.0", widths[-1])
        x = self._transformer(x, "middle", self.shape.middle)
        x = self._residual(x, "middle.1", widths[-1])
        for level in reversed(range(len(widths))):
            for block in range(3):
                name = f"up{level}.{block}"
                x = net.concat(f"{name}.join", (x, skips.pop()))
                x = self._pair(x, name, widths[level], depths[level])
            if level:
                x = net.upsample(x, f"up{level}.grow", [2 * side for side in x.shape[1:]])
                x = net.conv(x, f"up{level}.grow.conv", widths[level], 3, bias=True)
        net.block = Block.HEAD
        x = net.activation(net.norm(x, "out.norm", x.shape[0]), "out.silu", "silu")
        net.loss(net.conv(x, "out", 4, 3, bias=True))

    def _pair(self, x: Tensor, name: str, width: int, depth: int) -> Tensor:
        x = self._residual(x, f"{name}.residual", width)
        return self._transformer(x, f"{name}.attention", depth) if depth else x

    def _residual(self, x: Tensor, name: str, width: int) -> Tensor:
        net = self.net
        y = net.activation(net.norm(x, f"{name}.norm1", x.shape[0]), f"{name}.silu1", "silu")
        y = net.conv(y, f"{name}.conv1", width, 3, bias=True)
        time = net.activation(self.time, f"{name}.time.silu", "silu")
        y = net.add(f"{name}.time.sum", y, net.linear(time, f"{name}.time", width))
        y = net.activation(net.norm(y, f"{name}.norm2", width), f"{name}.silu2", "silu")
        y = net.conv(y, f"{name}.conv2", width, 3, bias=True)
        if x.shape[0] != width:
            x = net.conv(x, f"{name}.shortcut", width, 1, bias=True)
        return net.add(f"{name}.sum", x, y)

    def _transformer(self, x: Tensor, name: str, depth: int) -> Tensor:
        net, width = self.net, x.shape[0]
        flat = (x.shape[1] * x.shape[2], width)
        heads = self.shape.heads or width // 64
        y = net.norm(x, f"{name}.norm", width)
        if self.shape.linear:
            y = net.linear(net.copy(y, f"{name}.flat", flat), f"{name}.in", width)
        else:
            y = net.conv(y, f"{name}.in", width, 1, bias=True)
            y = net.copy(y, f"{name}.flat", flat)
        for layer in range(depth):
            y = self._layer(y, f"{name}.{layer}", heads)
        if self.shape.linear:
            y = net.linear(y, f"{name}.out", width)
            y = net.copy(y, f"{name}.image", x.shape)
        else:
            y = net.copy(y, f"{name}.image", x.shape)
            y = net.conv(y, f"{name}.out", width, 1, bias=True)
        return net.add(f"{name}.sum", x, y)

    def _layer(self, x: Tensor, name: str, heads: int) -> Tensor:
        """Attention to itself, attention to the text, a gated network."""
        net = self.net
        y = self_attention(net, net.norm(x, f"{name}.norm1"), f"{name}.self", heads, bias=False)
        x = net.add(f"{name}.sum1", x, y)
        y = net.norm(x, f"{name}.norm2")
        y = cross_attention(net, y, self.text, f"{name}.text", heads, bias=False)
        x = net.add(f"{name}.sum2", x, y)
        width = x.shape[1]
        y = net.linear(net.norm(x, f"{name}.norm3"), f"{name}.gate", 8 * width)
        half = net.view(y, x.shape[0], 4 * width)
        y = net.multiply(f"{name}.geglu", half, net.activation(half, f"{name}.gelu", "gelu"))
        return net.add(f"{name}.sum3", x, net.linear(y, f"{name}.down", width))


@dataclass(frozen=True, slots=True)
class DitShape:
    """Peebles & Xie 2023, table 1."""

    layers: int
    hidden: int
    heads: int
    patch: int = 2


DITS: dict[str, DitShape] = {
    "dit-s-2": DitShape(12, 384, 6),
    "dit-b-2": DitShape(12, 768, 12),
    "dit-l-2": DitShape(24, 1024, 16),
    "dit-xl-2": DitShape(28, 1152, 16),
}


def dit(name: str, net: Net, size: int) -> tuple[str, ...]:
    """State a diffusion transformer with adaptive layer norms and its loss.

    Raises:
        RequestError: the latents are not a whole number of patches.
    """
    shape = DITS[name]
    step = _EIGHTH * shape.patch
    if size % step:
        raise RequestError(
            f"{name} on images of {size} pixels", f"it needs a multiple of {step}",
            f"ask for {max(step, round(size / step) * step)}",
        )  # fmt: skip
    side, width = size // _EIGHTH, shape.hidden
    net.block = Block.EMBED
    x = net.conv(net.input(4, side, side), "patches", width, shape.patch, shape.patch, 0, bias=True)
    tokens = x.shape[1] * x.shape[2]
    x = net.pointwise(net.view(x, tokens, width), "positions")
    time = net.activation(net.linear(net.input(256), "time.0", width), "time.silu", "silu")
    time = net.linear(time, "time.1", width)
    label = net.bias(net.input(width), "label", 1001 * width)
    condition = net.activation(net.add("condition", time, label), "condition.silu", "silu")
    net.block = Block.LAYER
    for layer in range(shape.layers):
        x = _dit_layer(net, x, condition, f"layer.{layer}", shape)
    net.block = Block.HEAD
    x = _modulated(net, x, net.linear(condition, "out.modulation", 2 * width), "out")
    net.loss(net.linear(x, "out", shape.patch**2 * 8))
    return ("trains on latents computed beforehand",)


def _modulated(net: Net, x: Tensor, modulation: Tensor, name: str) -> Tensor:
    """Normalise without own parameters, then scale and shift by the condition."""
    width = x.shape[1]
    x = net.norm(x, f"{name}.norm", 0)
    return net.multiply(f"{name}.modulate", x, net.view(modulation, width))


def _dit_layer(net: Net, x: Tensor, condition: Tensor, name: str, shape: DitShape) -> Tensor:
    modulation = net.linear(condition, f"{name}.modulation", 6 * shape.hidden)
    gate = net.view(modulation, shape.hidden)
    y = _modulated(net, x, modulation, f"{name}.attention")
    y = self_attention(net, y, f"{name}.attention", shape.heads)
    x = net.add(f"{name}.sum1", x, net.multiply(f"{name}.gate1", y, gate))
    y = _modulated(net, x, modulation, f"{name}.mlp")
    y = feedforward(net, y, f"{name}.mlp", 4 * shape.hidden)
    return net.add(f"{name}.sum2", x, net.multiply(f"{name}.gate2", y, gate))
