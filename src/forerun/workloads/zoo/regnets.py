"""RegNets of the published size series, from their width rule (Radosavovic et al. 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from forerun.domain.graph import Block
from forerun.workloads.zoo.net import Net, Tensor
from forerun.workloads.zoo.resnets import squeeze_excite

_QUANTUM = 8
_STEM = 32


@dataclass(frozen=True, slots=True)
class RegnetShape:
    """Depth, initial width, slope, width multiplier, group width (section 3.3); Y adds gates."""

    depth: int
    initial: int
    slope: float
    multiplier: float
    group: int
    gated: bool = False

    def stages(self) -> list[tuple[int, int, int]]:
        """Return (width, depth, group width) of each stage: equations 2 to 4 of the paper."""
        widths = []
        for block in range(self.depth):
            linear = self.initial + self.slope * block
            power = round(math.log(linear / self.initial) / math.log(self.multiplier))
            width = self.initial * self.multiplier**power
            widths.append(round(width / _QUANTUM) * _QUANTUM)
        stages = []
        for width in dict.fromkeys(widths):
            group = min(self.group, width)
            stages.append((round(width / group) * group, widths.count(width), group))
        return stages


# Published size: RegNetX, then RegNetY. Sizes that torchvision publishes are captured instead.
_X = {
    "200mf": (13, 24, 36.44, 2.49, 8),
    "600mf": (16, 48, 36.97, 2.24, 24),
    "4-0gf": (23, 96, 38.65, 2.43, 40),
    "6-4gf": (17, 184, 60.83, 2.07, 56),
    "12gf": (19, 168, 73.36, 2.37, 112),
}
_Y = {
    "200mf": (13, 24, 36.44, 2.49, 8),
    "600mf": (15, 48, 32.54, 2.32, 16),
    "4-0gf": (22, 96, 31.41, 2.24, 64),
    "6-4gf": (25, 112, 33.22, 2.27, 72),
    "12gf": (19, 168, 73.36, 2.37, 112),
}
REGNETS: dict[str, RegnetShape] = {
    **{f"regnet-x-{size}": RegnetShape(*row) for size, row in _X.items()},
    **{f"regnet-y-{size}": RegnetShape(*row, gated=True) for size, row in _Y.items()},
}


def classifier(name: str, net: Net, size: int) -> tuple[str, ...]:
    """State a network of `REGNETS` and its loss."""
    return regnet(REGNETS[name], net, size)


def regnet(shape: RegnetShape, net: Net, size: int) -> tuple[str, ...]:
    """State a RegNet and its loss; return notes about it."""
    x = net.conv(net.input(3, size, size), "stem", _STEM, 3, 2)
    x = net.activation(net.batch_norm(x, "stem.norm"), "stem.relu")
    for stage, (width, depth, group) in enumerate(shape.stages()):
        for block in range(depth):
            stride = 2 if block == 0 else 1
            x = _block(net, x, f"stage{stage}.{block}", width, stride, group, shape.gated)
    net.block = Block.HEAD
    net.loss(net.linear(net.mean(x, "pool"), "head", 1000))
    return ()


def _block(
    net: Net, x: Tensor, name: str, width: int, stride: int, group: int, gated: bool
) -> Tensor:
    """A residual bottleneck whose middle convolution is grouped; ratio 1."""
    shortcut = x
    if stride != 1 or x.shape[0] != width:
        shortcut = net.conv(x, f"{name}.shortcut", width, 1, stride)
        shortcut = net.batch_norm(shortcut, f"{name}.shortcut.norm")
    y = net.activation(net.batch_norm(net.conv(x, f"{name}.a", width, 1), f"{name}.a.norm"),
                       f"{name}.a.relu")  # fmt: skip
    y = net.conv(y, f"{name}.b", width, 3, stride, groups=width // group)
    y = net.activation(net.batch_norm(y, f"{name}.b.norm"), f"{name}.b.relu")
    if gated:
        y = squeeze_excite(net, y, f"{name}.se", round(x.shape[0] / 4), "relu")
    y = net.batch_norm(net.conv(y, f"{name}.c", width, 1), f"{name}.c.norm")
    return net.activation(net.add(f"{name}.sum", shortcut, y), f"{name}.relu")
