"""Models that judge the probe: a residual net, a mixer, an encoder and a mobile net, all small.

No figure was fitted on them. The mixer led to one change of what is measured (copies that turn
inner sides) and is no blind judge of that; the other three changed nothing. See probe_lab.py.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.lab_models import CLASSES, Classifier, images

WORDS, TOKENS = 2000, 64
Made = tuple[nn.Module, tuple[Tensor, Tensor]]


def _conv(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    pad = kernel // 2
    return [
        nn.Conv2d(inputs, outputs, kernel, stride, pad, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]


class Residual(nn.Module):
    """Two convolutions around a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_conv(inputs, outputs, 3, stride), nn.ReLU(), *_conv(outputs, outputs, 3)
        )
        same = inputs == outputs and stride == 1
        self.short = nn.Identity() if same else nn.Sequential(*_conv(inputs, outputs, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output for images (n, inputs, side, side)."""
        return functional.relu(self.body(x) + self.short(x))


class Mix(nn.Module):
    """Tokens and then channels go through two linear layers each (Tolstikhin et al. 2021)."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.one, self.two = nn.Linear(tokens, tokens), nn.Linear(tokens, tokens)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output for x (n, tokens, width)."""
        turned = functional.gelu(self.one(self.before(x).transpose(1, 2)))
        x = x + self.two(turned).transpose(1, 2)
        return x + self.down(functional.gelu(self.up(self.between(x))))


class Mixer(nn.Module):
    """Patches of 4 x 4 pixels, four mixing layers, a mean."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.layers = nn.Sequential(*(Mix(64, width) for _ in range(4)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of images (n, 3, 32, 32)."""
        tokens = self.patch(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.layers(tokens)).mean(1))


class Encoder(nn.Module):
    """torch's own transformer encoder with dropout, which classifies."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.words, self.places = (
            nn.Embedding(WORDS, width),
            nn.Parameter(torch.zeros(TOKENS, width)),
        )
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        """Return logits of words (n, tokens)."""
        return self.head(self.layers(self.words(words) + self.places).mean(1))


def resnet(batch: int = 16) -> Made:
    """Return a residual net of seven convolutions."""
    blocks = (Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2))
    ends = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES))
    return Classifier(nn.Sequential(*_conv(3, 16, 3), nn.ReLU(), *blocks, *ends)), images(batch)


def mixer(batch: int = 16) -> Made:
    """Return a mixer of four layers."""
    return Classifier(Mixer()), images(batch)


def encoder(batch: int = 16) -> Made:
    """Return an encoder of three layers."""
    labels = torch.randint(0, CLASSES, (batch,))
    return Classifier(Encoder()), (torch.randint(0, WORDS, (batch, TOKENS)), labels)


def mobile(batch: int = 16) -> Made:
    """Return three inverted residuals with depthwise convolutions (Sandler et al. 2018)."""
    parts: list[nn.Module] = [*_conv(3, 16, 3), nn.Hardswish()]
    for inputs, outputs in ((16, 24), (24, 32), (32, 64)):
        wide = 4 * inputs
        parts += [*_conv(inputs, wide, 1), nn.Hardswish()]
        parts += [*_conv(wide, wide, 3, 2, wide), nn.Hardswish(), *_conv(wide, outputs, 1)]
    parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES)]
    return Classifier(nn.Sequential(*parts)), images(batch)
