"""ResNet-50 as a plain torch module: the kind of thing a person brings to forerun."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Bottleneck(nn.Module):
    """Three convolutions around a shortcut (He et al. 2015, figure 5)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            _conv(inputs, width, 1), nn.ReLU(inplace=True),
            _conv(width, width, 3, stride), nn.ReLU(inplace=True),
            _conv(width, outputs, 1),
        )  # fmt: skip
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else _conv(inputs, outputs, 1, stride)

    def forward(self, images: Tensor) -> Tensor:
        """Map (batch, inputs, h, w) to (batch, 4 width, h / stride, w / stride)."""
        return torch.relu(self.body(images) + self.shortcut(images))


class ResNet50(nn.Module):
    """Stem, four stages of 3, 4, 6 and 3 bottlenecks, and a classifier."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            _conv(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, stride=2, padding=1)
        )
        blocks: list[nn.Module] = []
        channels = 64
        for stage, depth in enumerate((3, 4, 6, 3)):
            width = 64 * 2**stage
            for index in range(depth):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(Bottleneck(channels, width, stride))
                channels = 4 * width
        self.stages = nn.Sequential(*blocks)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (batch, 3, h, w) to class scores (batch, classes)."""
        features = self.stages(self.stem(images))
        return self.classifier(features.mean(dim=(2, 3)))


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return the module and example inputs; forerun reads only the shapes of both."""
    return ResNet50(), (torch.zeros(2, 3, 224, 224),)
