"""CLIP: an image transformer and a text transformer trained to agree."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.domain.graph import Block
from forerun.workloads.zoo.attend import encoder_layer
from forerun.workloads.zoo.net import Net
from forerun.workloads.zoo.recurrent import embedding


@dataclass(frozen=True, slots=True)
class ClipShape:
    """Radford et al. 2021, tables 19 and 20: the image half, then the text half."""

    patch: int
    layers: int
    hidden: int
    heads: int
    text_hidden: int
    text_heads: int
    joint: int


CLIPS: dict[str, ClipShape] = {
    "clip-vit-b-32": ClipShape(32, 12, 768, 12, 512, 8, 512),
    "clip-vit-b-16": ClipShape(16, 12, 768, 12, 512, 8, 512),
    "clip-vit-l-14": ClipShape(14, 24, 1024, 16, 768, 12, 768),
}


def clip(name: str, net: Net, size: int) -> tuple[str, ...]:
    """State CLIP: an image and its caption of 77 tokens, embedded and compared."""
    shape = CLIPS[name]
    x = net.conv(net.input(3, size, size), "patches", shape.hidden, shape.patch, shape.patch, 0)
    tokens = x.shape[1] * x.shape[2] + 1
    x = net.copy(x, "image.class", (tokens, shape.hidden))
    x = net.norm(net.bias(x, "image.positions", (tokens + 1) * shape.hidden), "image.norm0")
    for layer in range(shape.layers):
        x = encoder_layer(net, x, f"image.{layer}", shape.heads, 4 * shape.hidden)
    x = net.norm(net.view(x, 1, shape.hidden), "image.norm")
    image = net.linear(x, "image.project", shape.joint, bias=False)
    y = embedding(net, "text.embed", 49_408, shape.text_hidden, 77)
    y = net.bias(y, "text.positions", 77 * shape.text_hidden)
    for layer in range(12):
        y = encoder_layer(net, y, f"text.{layer}", shape.text_heads, 4 * shape.text_hidden,
                          causal=True)  # fmt: skip
    y = net.norm(net.view(y, 1, shape.text_hidden), "text.norm")
    net.block = Block.HEAD
    text = net.linear(y, "text.project", shape.joint, bias=False)
    net.loss(net.bias(net.multiply("similarity", image, text), "temperature", 1))
    return ("the similarities of all pairs in a batch are left out: they grow with its square",)
