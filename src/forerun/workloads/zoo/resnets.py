"""ResNets beyond torchvision's: deep stems, gates, other depths and group widths, CIFAR forms."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.domain.graph import Block
from forerun.workloads.zoo.net import Net, Tensor


@dataclass(frozen=True, slots=True)
class ResnetShape:
    """A residual network (He et al. 2016) and its later variations.

    Attributes:
        depths: residual blocks a stage.
        bottleneck: three convolutions a block, else two.
        groups, group_width: of the middle convolution (ResNeXt: 32 groups of 4).
        stem: imagenet (7 x 7), deep (three 3 x 3 of He et al. 2019) or cifar (one 3 x 3).
        deep_width: first width of a deep stem.
        pool_shortcut: a shortcut is averaged before its 1 x 1 convolution (the D form).
        squeeze: divisor of a gate's inner width (0: no gates).
        widths: channels of the stages before expansion.
        classes: outputs.
        projected: a shortcut is projected where shapes differ; else it is padded (CIFAR form A).
    """

    depths: tuple[int, ...]
    bottleneck: bool = True
    groups: int = 1
    group_width: int = 64
    stem: str = "imagenet"
    deep_width: int = 32
    pool_shortcut: bool = False
    squeeze: int = 0
    widths: tuple[int, ...] = (64, 128, 256, 512)
    classes: int = 1000
    projected: bool = True


_D = {"stem": "deep", "pool_shortcut": True}
_DEPTHS = {
    18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3),
    152: (3, 8, 36, 3), 200: (3, 24, 36, 3), 26: (2, 2, 2, 2),
}  # fmt: skip


def _shape(depth: int, **options: object) -> ResnetShape:
    return ResnetShape(_DEPTHS[depth], bottleneck=depth not in (18, 34), **options)  # type: ignore[arg-type]


RESNETS: dict[str, ResnetShape] = {
    "resnet26": _shape(26),
    "resnet200": _shape(200),
    "resnext101-32x4d": _shape(101, groups=32, group_width=4),
    "resnext152-32x4d": _shape(152, groups=32, group_width=4),
    "resnext101-32x16d": _shape(101, groups=32, group_width=16),
    "se-resnext50-32x4d": _shape(50, groups=32, group_width=4, squeeze=16),
    "se-resnext101-32x4d": _shape(101, groups=32, group_width=4, squeeze=16),
    "se-resnext101-64x4d": _shape(101, groups=64, group_width=4, squeeze=16),
    **{f"se-resnet{n}": _shape(n, squeeze=16) for n in (18, 34, 50, 101, 152)},
    **{f"resnet{n}-d": _shape(n, **_D) for n in (18, 26, 34, 50, 101, 152, 200)},
    **{f"resnet{n}-c": _shape(n, stem="deep") for n in (50, 101, 152)},
    **{f"resnet{n}-s": _shape(n, stem="deep", deep_width=64) for n in (50, 101, 152)},
}


def classifier(name: str, net: Net, size: int) -> tuple[str, ...]:
    """State a network of `RESNETS` and its loss."""
    return resnet(RESNETS[name], net, size)


def resnet(shape: ResnetShape, net: Net, size: int) -> tuple[str, ...]:
    """State a residual network and its loss; return notes about it."""
    x = stages(shape, net, net.input(3, size, size))[-1]
    net.block = Block.HEAD
    net.loss(net.linear(net.mean(x, "pool"), "head", shape.classes))
    return ()


def stages(
    shape: ResnetShape,
    net: Net,
    image: Tensor,
    frozen: int = 0,
    frozen_norm: bool = False,
    steady: int | None = None,
) -> list[Tensor]:
    """State the trunk of a residual network and return the output of each stage.

    Args:
        shape: its dimensions.
        net: where the operations go.
        image: (channels, height, width).
        frozen: how many parts (the stem, then stages) are not trained.
        frozen_norm: batch normalisations are fixed, as detectors have them.
        steady: a stage (from 0) that keeps its input's resolution.
    """
    part = _Part(net, shape, frozen > 0, frozen_norm)
    x = _stem(part, image)
    outputs = []
    for stage, (depth, width) in enumerate(zip(shape.depths, shape.widths, strict=False)):
        part = _Part(net, shape, frozen > stage + 1, frozen_norm)
        for block in range(depth):
            stride = 2 if block == 0 and stage not in (0, steady) else 1
            x = _residual(part, x, f"layer{stage + 1}.{block}", width, stride)
        outputs.append(x)
    return outputs


@dataclass(frozen=True, slots=True)
class _Part:
    """A stretch of the trunk that is trained, or is not."""

    net: Net
    shape: ResnetShape
    frozen: bool
    frozen_norm: bool

    def conv(
        self, x: Tensor, name: str, out: int, kernel: int, stride: int = 1, groups: int = 1,
        relu: bool = True,
    ) -> Tensor:  # fmt: skip
        """Convolve, normalise and (unless told not to) rectify."""
        x = self.net.conv(x, name, out, kernel, stride, groups=groups, trainable=not self.frozen)
        x = self.net.batch_norm(x, f"{name}.norm", frozen=self.frozen or self.frozen_norm)
        return self.net.activation(x, f"{name}.relu") if relu else x


def _stem(part: _Part, image: Tensor) -> Tensor:
    shape, net = part.shape, part.net
    if shape.stem == "cifar":
        return part.conv(image, "stem", shape.widths[0], 3)
    if shape.stem == "deep":
        x = part.conv(image, "stem.0", shape.deep_width, 3, 2)
        x = part.conv(x, "stem.1", shape.deep_width, 3)
        x = part.conv(x, "stem.2", 2 * shape.deep_width, 3)
    else:
        x = part.conv(image, "stem", 64, 7, 2)
    return net.pool(x, "stem.pool", 3, 2, 1)


def _residual(part: _Part, x: Tensor, name: str, width: int, stride: int) -> Tensor:
    shape, net = part.shape, part.net
    out = 4 * width if shape.bottleneck else width
    if shape.bottleneck:
        inner = width * shape.group_width * shape.groups // 64
        y = part.conv(x, f"{name}.conv1", inner, 1)
        y = part.conv(y, f"{name}.conv2", inner, 3, stride, shape.groups)
        y = part.conv(y, f"{name}.conv3", out, 1, relu=False)
    else:
        y = part.conv(x, f"{name}.conv1", width, 3, stride)
        y = part.conv(y, f"{name}.conv2", width, 3, relu=False)
    if shape.squeeze:
        y = squeeze_excite(net, y, f"{name}.se", _gate_width(out, shape.squeeze), "relu")
    shortcut = _shortcut(part, x, f"{name}.shortcut", out, stride)
    return net.activation(net.add(f"{name}.sum", shortcut, y), f"{name}.relu")


def _gate_width(channels: int, divisor: int) -> int:
    """Return a gate's inner width: a multiple of eight, as common implementations round it."""
    rounded = max(8, int(channels / divisor + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels / divisor else rounded


def _shortcut(part: _Part, x: Tensor, name: str, out: int, stride: int) -> Tensor:
    if stride == 1 and x.shape[0] == out:
        return x
    if not part.shape.projected:
        side = -(-x.shape[1] // stride)
        return part.net.copy(x, f"{name}.pad", (out, side, side))
    if part.shape.pool_shortcut and stride > 1:
        x = part.net.pool(x, f"{name}.pool", stride, stride, ceil=True, average=True)
        stride = 1
    return part.conv(x, name, out, 1, stride, relu=False)


def squeeze_excite(net: Net, x: Tensor, name: str, squeezed: int, function: str = "silu") -> Tensor:
    """Scale channels by a small network of their means (Hu et al. 2018)."""
    y = net.conv(net.adaptive_pool(x, f"{name}.pool", 1), f"{name}.down", squeezed, 1, bias=True)
    y = net.activation(y, f"{name}.act", function)
    y = net.conv(y, f"{name}.up", x.shape[0], 1, bias=True)
    return net.multiply(f"{name}.scale", x, net.activation(y, f"{name}.sigmoid", "sigmoid"))
