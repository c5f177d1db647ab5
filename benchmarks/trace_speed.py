"""How long tracing ResNet-50 takes, importing torch left out: `python benchmarks/trace_speed.py`."""

from __future__ import annotations

import time

import torch
from torch import nn

from forerun.workloads.trace import trace_module

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
REPEATS = 3


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut (He et al. 2016, figure 5)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.reduce, self.norm1 = nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width)
        self.mix = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.expand, self.norm3 = nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if channels != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        y = self.relu(self.norm1(self.reduce(x)))
        y = self.relu(self.norm2(self.mix(y)))
        return self.relu(self.norm3(self.expand(y)) + self.shortcut(x))


def resnet50() -> nn.Module:
    """Return ResNet-50 for 1000 classes."""
    parts: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    channels = 64
    for stage, (width, count) in enumerate(STAGES):
        for block in range(count):
            parts.append(Bottleneck(channels, width, 2 if stage and not block else 1))
            channels = 4 * width
    parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)]
    return nn.Sequential(*parts)


def main() -> None:
    """Trace several times and print the slowest, the first one with its warming up included."""
    net, image = resnet50(), torch.zeros(8, 3, 224, 224)
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        workload = trace_module(net, image)
        seconds.append(time.perf_counter() - start)
    print(f"gmacs: {workload.graph.forward_flops / 2e9:.3f}")
    print(f"params: {workload.params:.0f}")
    print(f"trace_seconds: {max(seconds):.3f}")


if __name__ == "__main__":
    main()
