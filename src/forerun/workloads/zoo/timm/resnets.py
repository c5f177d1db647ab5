"""ResNets as the timm library varies them: stems, shortcuts, gates, blurs, splits."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from forerun.workloads.zoo.net import Net, Tensor
from forerun.workloads.zoo.timm.parts import Units, classify, rounded

_DEPTHS: dict[str, tuple[int, ...]] = {
    "10": (1, 1, 1, 1), "14": (1, 1, 1, 1), "18": (2, 2, 2, 2), "26": (2, 2, 2, 2),
    "34": (3, 4, 6, 3), "50": (3, 4, 6, 3), "101": (3, 4, 23, 3), "152": (3, 8, 36, 3),
    "200": (3, 24, 36, 3), "269": (3, 30, 48, 8),
}  # fmt: skip
_RS = {
    "50": (3, 4, 6, 3), "101": (3, 4, 23, 3), "152": (3, 8, 36, 3), "200": (3, 24, 36, 3),
    "270": (4, 29, 53, 4), "350": (4, 36, 72, 4), "420": (4, 44, 87, 4),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Resnet:
    """A residual network and its variations.

    Attributes:
        depths: blocks a stage.
        basic: two 3 x 3 convolutions a block, else a bottleneck.
        groups, base: groups of the middle convolution and their width at the first stage.
        stem: widths of a stem of three 3 x 3 convolutions; () for one of 7 x 7.
        pooled_stem: max-pooling after the stem; else a convolution of stride 2.
        average: shortcuts are averaged before their 1 x 1 convolution.
        gate: se, eca or none, on a block's output; ratio: of its inner width.
        anti_alias: strided convolutions are followed by a blur or an average.
        scales: parts that convolve one after another (Gao et al. 2019); 0: one convolution.
        radix: splits that attend to each other (Zhang et al. 2020); 0: none.
        kernels: selective kernels (Li et al. 2019).
        norm: batch or group.
        down_kernel: of shortcuts that stride.
        first_share: width of a bottleneck's first convolution over that of its middle one.
    """

    depths: tuple[int, ...]
    basic: bool = False
    groups: int = 1
    base: int = 64
    stem: tuple[int, ...] = ()
    pooled_stem: bool = True
    average: bool = False
    gate: str = ""
    ratio: float = 1 / 16
    anti_alias: bool = False
    scales: int = 0
    radix: int = 0
    kernels: bool = False
    norm: str = "batch"
    down_kernel: int = 1
    first_share: float = 1.0


_DEEP, _TIERED = (32, 32, 64), (24, 32, 64)
_NAME = re.compile(
    r"(?P<lead>se|eca|sk|legacy_se)?(?P<kind>resnet|resnext)(?P<filter>aa|blur)?(?P<depth>\d+)"
    r"(?P<form>[dtcs])?(_(?P<groups>\d+)x(?P<width>\d+)d)?(?P<norm>_gn)?"
)


def parse(name: str) -> Resnet | None:
    """Return the network that a name means, None where it is none of these."""
    for reader in (_special, _split, _scaled):
        found = reader(name)
        if found is not None:
            return found
    match = _NAME.fullmatch(name)
    if match is None or match["depth"] not in _DEPTHS:
        return None
    depth, form = match["depth"], match["form"] or ""
    basic = depth in ("10", "18", "34")
    net = Resnet(_DEPTHS[depth], basic)
    if match["groups"]:
        net = replace(net, groups=int(match["groups"]), base=int(match["width"]))
    elif match["kind"] == "resnext":
        return None
    if form:
        width = {"d": _DEEP, "c": _DEEP, "t": _TIERED, "s": (64, 64, 128)}[form]
        net = replace(net, stem=width, average=form in "dt")
    lead = (match["lead"] or "").removeprefix("legacy_")
    if lead == "sk":
        net = replace(net, kernels=True, groups=net.groups)
    elif lead:
        net = replace(net, gate=lead)
    if match["filter"]:
        net = replace(net, anti_alias=True)
    return replace(net, norm="group" if match["norm"] else "batch")


def _special(name: str) -> Resnet | None:
    if match := re.fullmatch(r"resnetrs(\d+)", name):
        if match[1] not in _RS:
            return None
        return Resnet(
            _RS[match[1]], stem=_DEEP, pooled_stem=False, average=True, gate="se", ratio=1 / 4
        )
    if name in ("senet154", "legacy_senet154"):
        return Resnet((3, 8, 36, 3), groups=64, base=4, stem=(64, 64, 128), gate="se",
                      down_kernel=3, first_share=0.5)  # fmt: skip
    if name == "ecaresnetlight":
        return Resnet((1, 1, 11, 3), average=True, gate="eca")
    if match := re.fullmatch(r"wide_resnet(50|101)_2", name):
        return Resnet(_DEPTHS[match[1]], base=128)
    return None


def _split(name: str) -> Resnet | None:
    """ResNeSt: depth, form, and radix s, groups x, width d of a variation."""
    match = re.fullmatch(r"resnest(\d+)([de])(_(\d)s(\d)x(\d+)d)?", name)
    if match is None or match[1] not in _DEPTHS:
        return None
    wide = int(match[1]) > 50
    net = Resnet(
        _DEPTHS[match[1]],
        stem=(64, 64, 128) if wide else _DEEP,
        average=True,
        radix=2,
    )
    if match[3]:
        net = replace(net, radix=int(match[4]), groups=int(match[5]), base=int(match[6]))
    return net


def _scaled(name: str) -> Resnet | None:
    """Res2Net: width w and scales s."""
    if match := re.fullmatch(r"res2net(50|101)_(\d+)w_(\d)s", name):
        return Resnet(_DEPTHS[match[1]], base=int(match[2]), scales=int(match[3]))
    if name == "res2next50":
        return Resnet(_DEPTHS["50"], groups=8, base=4, scales=4)
    return None


def known(name: str) -> bool:
    """Whether a name is one of this module's."""
    return parse(name) is not None


def classifier(name: str, net: Net, size: int) -> tuple[str, ...]:
    """State a network of this module and its loss."""
    shape = parse(name)
    assert shape is not None
    resnet(shape, net, size)
    return ()


def resnet(shape: Resnet, net: Net, size: int) -> None:
    """State a residual network and its loss."""
    classify(net, stages(shape, net, net.input(3, size, size), 4))


def stages(shape: Resnet, net: Net, image: Tensor, count: int) -> Tensor:
    """State the trunk of a residual network up to a stage, and return its output."""
    units = Units(net, norm=shape.norm)
    x = _stem(shape, units, image)
    for stage, depth in enumerate(shape.depths[:count]):
        width = 64 << stage
        for number in range(depth):
            stride = 2 if number == 0 and stage else 1
            x = _block(shape, units, x, f"layer{stage + 1}.{number}", width, stride)
    return x


def _stem(shape: Resnet, units: Units, x: Tensor) -> Tensor:
    net = units.net
    if shape.stem:
        for number, width in enumerate(shape.stem):
            x = units.unit(x, f"stem.{number}", width, 3, 1 if number else 2)
    else:
        x = units.unit(x, "stem", 64, 7, 2)
    if not shape.pooled_stem:
        return units.unit(x, "stem.pool", x.shape[0], 3, 2)
    if shape.anti_alias:
        return _blur(net, net.pool(x, "stem.pool", 3, 1, 1), "stem.blur")
    return net.pool(x, "stem.pool", 3, 2, 1)


def _blur(net: Net, x: Tensor, name: str) -> Tensor:
    """Halve the resolution by a fixed filter: a depth-wise convolution that is not trained."""
    return net.conv(x, name, x.shape[0], 3, 2, groups=x.shape[0], trainable=False)


def _block(shape: Resnet, units: Units, x: Tensor, name: str, width: int, stride: int) -> Tensor:
    net, out = units.net, width if shape.basic else 4 * width
    if shape.basic:
        y = _strided(shape, units, x, f"{name}.conv1", width, stride)
        y = units.unit(y, f"{name}.conv2", out, 3, act=False)
    else:
        inner = width * shape.base // 64 * shape.groups
        if shape.scales:
            inner = width * shape.base // 64 * shape.groups * shape.scales
        y = units.unit(x, f"{name}.conv1", int(inner * shape.first_share))
        y = _MIDDLES[_middle(shape)](shape, units, y, f"{name}.conv2", inner, stride)
        y = units.unit(y, f"{name}.conv3", out, act=False)
    y = _gated(shape, units, y, f"{name}.gate")
    shortcut = _shortcut(shape, units, x, f"{name}.shortcut", out, stride)
    return units.active(net.add(f"{name}.sum", shortcut, y), name)


def _middle(shape: Resnet) -> str:
    if shape.scales:
        return "scales"
    if shape.radix:
        return "radix"
    return "kernels" if shape.kernels else "plain"


def _strided(shape: Resnet, units: Units, x: Tensor, name: str, width: int, stride: int) -> Tensor:
    if shape.kernels:
        return _selective(shape, units, x, name, width, stride)
    if stride == 1 or not shape.anti_alias:
        return units.unit(x, name, width, 3, stride, shape.groups)
    return _blur(units.net, units.unit(x, name, width, 3, 1, shape.groups), f"{name}.blur")


def _selective(
    shape: Resnet, units: Units, x: Tensor, name: str, width: int, stride: int
) -> Tensor:
    """Two kernels of different reach on halves of the input, weighed channel by channel."""
    net = units.net
    half = net.channels(x, x.shape[0] // 2)
    paths = [
        units.unit(half, f"{name}.path{i}", width, 3, stride, shape.groups, dilation=i + 1,
                   padding=i + 1) for i in range(2)
    ]  # fmt: skip
    total = net.add(f"{name}.sum", *paths)
    inner = rounded(width / 8 if shape.groups > 1 else width / 16)
    inner = max(inner, 32) if shape.groups > 1 else inner
    y = units.unit(net.adaptive_pool(total, f"{name}.pool", 1), f"{name}.down", inner)
    y = net.softmax(net.conv(y, f"{name}.up", 2 * width, 1), f"{name}.softmax")
    parts = [net.multiply(f"{name}.weigh{i}", path, y) for i, path in enumerate(paths)]
    return net.add(f"{name}.join", *parts)


def _scales(shape: Resnet, units: Units, x: Tensor, name: str, width: int, stride: int) -> Tensor:
    """Parts of the channels convolved in turn, each with the result of the one before."""
    net, count = units.net, shape.scales
    share = width // count
    parts: list[Tensor] = []
    y = net.channels(x, share)
    for number in range(count - 1):
        piece = net.channels(x, share)
        if number and stride == 1:
            piece = net.add(f"{name}.sum{number}", piece, y)
        y = units.unit(piece, f"{name}.{number}", share, 3, stride, shape.groups)
        parts.append(y)
    last = net.channels(x, share)
    if stride > 1:
        last = net.pool(last, f"{name}.pool", 3, stride, 1, average=True)
    return net.concat(f"{name}.join", [*parts, last])


def _radix(shape: Resnet, units: Units, x: Tensor, name: str, width: int, stride: int) -> Tensor:
    """Splits of a grouped convolution, summed with weights from their common means."""
    net, radix = units.net, shape.radix
    if stride > 1 and shape.groups > 1:  # the variations average before, the others after
        x = net.pool(x, f"{name}.pool", 3, stride, 1, average=True)
        stride = 1
    y = units.unit(x, name, width * radix, 3, 1, shape.groups * radix)
    if radix > 1:
        total = net.add(f"{name}.sum", *(net.channels(y, width) for _ in range(radix)))
    else:
        total = y
    inner = rounded(max(width * radix / 4, 32))
    gate = net.conv(net.adaptive_pool(total, f"{name}.gap", 1), f"{name}.fc1", inner, 1,
                    groups=shape.groups, bias=True)  # fmt: skip
    gate = units.active(net.batch_norm(gate, f"{name}.fc1.norm"), f"{name}.fc1")
    gate = net.conv(gate, f"{name}.fc2", width * radix, 1, groups=shape.groups, bias=True)
    gate = net.softmax(gate, f"{name}.softmax")
    y = net.multiply(f"{name}.weigh", y, gate)
    if radix > 1:
        y = net.add(f"{name}.join", *(net.channels(y, width) for _ in range(radix)))
    return net.pool(y, f"{name}.pool", 3, stride, 1, average=True) if stride > 1 else y


_Middle = Callable[[Resnet, Units, Tensor, str, int, int], Tensor]
_MIDDLES: dict[str, _Middle] = {
    "plain": _strided, "kernels": _selective, "scales": _scales, "radix": _radix,
}  # fmt: skip


def _gated(shape: Resnet, units: Units, y: Tensor, name: str) -> Tensor:
    channels = y.shape[0]
    if shape.gate == "eca":
        return units.eca(y, name)
    if shape.gate == "se":
        return units.gate(y, name, rounded(channels * shape.ratio))
    return y


def _shortcut(shape: Resnet, units: Units, x: Tensor, name: str, out: int, stride: int) -> Tensor:
    if stride == 1 and x.shape[0] == out:
        return x
    if shape.average and stride > 1:
        x = units.net.pool(x, f"{name}.pool", 2, 2, ceil=True, average=True)
        stride = 1
    kernel = shape.down_kernel if stride > 1 else 1
    return units.unit(x, name, out, kernel, stride, act=False)
