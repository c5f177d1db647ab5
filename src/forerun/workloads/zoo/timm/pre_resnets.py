"""Residual networks without batch normalisation, hybrids with transformers, and later RegNets."""

from __future__ import annotations

import re
from dataclasses import dataclass

from forerun.domain.graph import Block
from forerun.workloads.zoo.net import Net, Tensor
from forerun.workloads.zoo.regnets import RegnetShape
from forerun.workloads.zoo.timm.layers import Layer, to_tokens
from forerun.workloads.zoo.timm.parts import Units, classify, rounded
from forerun.workloads.zoo.timm.plain_vits import SIZES, Vit, transform
from forerun.workloads.zoo.timm.resnets import parse as parse_resnet
from forerun.workloads.zoo.timm.resnets import stages

_DEPTHS = {"26": (2, 2, 2, 2), "50": (3, 4, 6, 3), "101": (3, 4, 23, 3), "152": (3, 8, 36, 3)}
_V2 = re.compile(r"resnetv2_(\d+)(x\d)?([dt])?(_(gn|evos|evob|bit.*))?")
_NFNET = re.compile(r"(dm_|eca_)?nfnet_([fl])(\d)s?")
_HYBRID = re.compile(r"vit_([a-z]+)_(r|r26|r50|resnet26d|resnet50d|resnet50)(_s(16|32))?(_p8)?_\d+")
_REGNETS: dict[str, tuple[RegnetShape, float, int, str, bool]] = {
    # shape, bottleneck ratio, last width, normalisation, pre-activation
    "regnetz_005": (RegnetShape(21, 16, 10.7, 2.51, 4), 4.0, 1024, "batch", False),
    "regnetz_040": (RegnetShape(28, 48, 14.5, 2.226, 8), 4.0, 0, "batch", False),
    "regnetz_040h": (RegnetShape(28, 48, 14.5, 2.226, 8), 4.0, 1536, "batch", False),
    "regnetv_040": (RegnetShape(22, 96, 31.41, 2.24, 64), 1.0, 0, "batch", True),
    "regnetv_064": (RegnetShape(25, 112, 33.22, 2.27, 72), 1.0, 0, "batch", True),
    "regnety_040s_gn": (RegnetShape(22, 96, 31.41, 2.24, 64), 1.0, 0, "group", False),
}


@dataclass(frozen=True, slots=True)
class _Free:
    """A normaliser-free network (Brock et al. 2021).

    Attributes:
        repeat: multiplier of the depths 1, 2, 6, 3.
        group, ratio: group width, and bottleneck width over the output.
        features: channels of the last convolution.
        extra: two 3 x 3 convolutions a block.
        gate: se or eca; gate_ratio: of its inner width.
        act: activation.
    """

    repeat: int
    group: int
    ratio: float
    features: int
    extra: bool
    gate: str
    gate_ratio: float
    act: str


def _free(name: str) -> _Free | None:
    match = _NFNET.fullmatch(name)
    if match is None:
        return None
    repeat = int(match[3]) + 1
    if match[2] == "f":
        return _Free(repeat, 128, 0.5, 3072, True, "se", 0.5, "silu" if name[-1] == "s" else "gelu")
    features = 2304 if repeat == 1 else 3072
    return _Free(repeat, 64, 0.25, features, True, "eca" if match[1] == "eca_" else "se", 0.25,
                 "silu")  # fmt: skip


def _nfnet(net: Net, size: int, shape: _Free) -> None:
    units = Units(net, shape.act, "none")
    x = net.input(3, size, size)
    for number, (width, stride) in enumerate(((16, 2), (32, 1), (64, 1), (128, 2))):
        x = net.conv(x, f"stem.{number}", width, 3, stride, bias=True)
        x = units.active(x, f"stem.{number}") if number < 3 else x
    for stage, (depth, out) in enumerate(zip((1, 2, 6, 3), (256, 512, 1536, 1536), strict=True)):
        for number in range(depth * shape.repeat):
            stride = 2 if number == 0 and stage else 1
            x = _nf_block(shape, units, x, f"stage{stage}.{number}", out, stride)
    classify(net, _scaled(units, net.conv(x, "last", shape.features, 1, bias=True), "last"))


def _scaled(units: Units, x: Tensor, name: str) -> Tensor:
    """An activation and the constant that keeps its variance."""
    return units.net.pointwise(units.active(x, name), f"{name}.gain")


def _nf_block(shape: _Free, units: Units, x: Tensor, name: str, out: int, stride: int) -> Tensor:
    net, inner = units.net, rounded(out * shape.ratio)
    groups = inner // shape.group
    y = net.pointwise(_scaled(units, x, f"{name}.act1"), f"{name}.beta")
    shortcut = x
    if stride > 1 or x.shape[0] != out:
        shortcut = net.pool(y, f"{name}.pool", 2, 2, average=True) if stride > 1 else y
        shortcut = net.conv(shortcut, f"{name}.shortcut", out, 1, bias=True)
    y = net.conv(y, f"{name}.conv1", inner, 1, bias=True)
    y = _scaled(units, y, f"{name}.act2")
    y = net.conv(y, f"{name}.conv2", inner, 3, stride, groups=groups, bias=True)
    if shape.extra:
        y = _scaled(units, y, f"{name}.act2b")
        y = net.conv(y, f"{name}.conv2b", inner, 3, groups=groups, bias=True)
    y = net.conv(_scaled(units, y, f"{name}.act3"), f"{name}.conv3", out, 1, bias=True)
    if shape.gate == "eca":
        y = units.eca(y, f"{name}.gate")
    else:
        y = units.gate(y, f"{name}.gate", rounded(out * shape.gate_ratio))
    y = net.pointwise(y, f"{name}.gain", launches=2)
    return net.add(f"{name}.sum", net.pointwise(y, f"{name}.alpha"), shortcut)


def _resnetv2(net: Net, size: int, name: str) -> None:
    match = _V2.fullmatch(name)
    assert match is not None
    wide = int(match[2][1:]) if match[2] else 1
    norm = "group" if match[5] else "batch"
    units = Units(net, norm=norm)
    x = net.input(3, size, size)
    if match[3]:
        for number, width in enumerate((32, 32, 64) if match[3] == "d" else (24, 32, 64)):
            x = net.conv(x, f"stem.{number}", width, 3, 1 if number else 2)
            if number < 2:
                x = units.active(units.normal(x, f"stem.{number}"), f"stem.{number}")
    else:
        x = net.conv(x, "stem", 64 * wide, 7, 2)
    x = net.pool(x, "stem.pool", 3, 2, 1)
    for stage, depth in enumerate(_DEPTHS[match[1]]):
        for number in range(depth):
            stride = 2 if number == 0 and stage else 1
            x = _pre_block(units, x, f"stage{stage}.{number}", (256 << stage) * wide, stride,
                           match[3] is not None)  # fmt: skip
    classify(net, units.active(units.normal(x, "last"), "last"))


def _pre_block(units: Units, x: Tensor, name: str, out: int, stride: int, average: bool) -> Tensor:
    """A bottleneck that normalises and activates before each convolution (He et al. 2016b)."""
    net, inner, shortcut = units.net, out // 4, x
    y = units.active(units.normal(x, f"{name}.1"), f"{name}.1")
    if stride > 1 or x.shape[0] != out:
        shortcut, step = y, stride
        if average and stride > 1:
            shortcut, step = net.pool(y, f"{name}.pool", 2, 2, ceil=True, average=True), 1
        shortcut = net.conv(shortcut, f"{name}.shortcut", out, 1, step)
    y = net.conv(y, f"{name}.conv1", inner, 1)
    y = units.active(units.normal(y, f"{name}.2"), f"{name}.2")
    y = net.conv(y, f"{name}.conv2", inner, 3, stride)
    y = units.active(units.normal(y, f"{name}.3"), f"{name}.3")
    return net.add(f"{name}.sum", shortcut, net.conv(y, f"{name}.conv3", out, 1))


def _hybrid(net: Net, size: int, name: str) -> None:
    """A transformer over the features of a residual network."""
    match = _HYBRID.fullmatch(name)
    assert match is not None
    width, depth, heads, ratio = SIZES[match[1]]
    trunk, stride = match[2], int(match[4] or (16 if match[2] == "resnet50" else 32))
    net.block = Block.EMBED
    image = net.input(3, size, size)
    if trunk.endswith("d"):
        shape = parse_resnet(trunk)
        assert shape is not None
        x = stages(shape, net, image, 3 if stride == 16 else 4)
        if match[1] == "small":
            width, depth, heads, ratio = 768, 8, 8, 3.0
    else:
        x = _group_trunk(net, image, trunk, stride)
    patch = 8 if match[5] else 1
    x = net.conv(x, "patches", width, patch, patch, 0, bias=True)
    transform(net, to_tokens(net, x, "to_tokens"), Vit(width, depth, patch, Layer(heads, ratio)))


def _group_trunk(net: Net, image: Tensor, trunk: str, stride: int) -> Tensor:
    depths = {"r": (), "r26": (2, 2, 2, 2), "r50": (3, 4, 6, 3), "resnet50": (3, 4, 6, 3)}[trunk]
    if stride == 16 and depths:
        depths = (3, 4, 9)
    units = Units(net, norm="group")
    x = units.unit(image, "stem", 64, 7, 2)
    x = net.pool(x, "stem.pool", 3, 2, 1)
    for stage, count in enumerate(depths):
        for number in range(count):
            step = 2 if number == 0 and stage else 1
            x = _post_block(units, x, f"trunk{stage}.{number}", 256 << stage, step)
    return x


def _post_block(units: Units, x: Tensor, name: str, out: int, stride: int) -> Tensor:
    y = units.unit(x, f"{name}.conv1", out // 4)
    y = units.unit(y, f"{name}.conv2", out // 4, 3, stride)
    y = units.unit(y, f"{name}.conv3", out, act=False)
    if stride > 1 or x.shape[0] != out:
        x = units.unit(x, f"{name}.shortcut", out, 1, stride, act=False)
    return units.active(units.net.add(f"{name}.sum", x, y), name)


def _regnet(net: Net, size: int, name: str) -> None:
    shape, ratio, features, norm, pre = _REGNETS[name]
    units = Units(net, "silu", norm)
    x = net.conv(net.input(3, size, size), "stem", 32, 3, 2)
    x = x if pre else units.active(units.normal(x, "stem"), "stem")
    for stage, (width, depth, group) in enumerate(shape.stages()):
        for number in range(depth):
            stride = 2 if number == 0 else 1
            block = _pre_reg if pre else _reg
            x = block(units, x, f"stage{stage}.{number}", width, stride, group, ratio)
    x = units.unit(x, "last", features) if features else x
    x = units.active(units.normal(x, "last"), "last") if pre else x
    classify(net, x)


def _reg(
    units: Units, x: Tensor, name: str, width: int, stride: int, group: int, ratio: float
) -> Tensor:
    net, linear = units.net, ratio > 1
    inner = round(width * ratio)
    inner = max(group, round(inner / group) * group) if linear else inner
    y = units.unit(x, f"{name}.a", inner)
    y = units.unit(y, f"{name}.b", inner, 3, stride, inner // group)
    y = units.gate(y, f"{name}.gate", round(x.shape[0] / 4))
    y = units.unit(y, f"{name}.c", width, act=False)
    if x.shape == y.shape:
        y = net.add(f"{name}.sum", x, y)
    elif not linear:
        short = units.unit(x, f"{name}.shortcut", width, 1, stride, act=False)
        y = net.add(f"{name}.sum", short, y)
    return y if linear else units.active(y, name)


def _pre_reg(
    units: Units, x: Tensor, name: str, width: int, stride: int, group: int, ratio: float
) -> Tensor:
    net, shortcut = units.net, x
    y = units.active(units.normal(x, f"{name}.1"), f"{name}.1")
    if x.shape[0] != width or stride > 1:
        shortcut = net.conv(y, f"{name}.shortcut", width, 1, stride)
    y = net.conv(y, f"{name}.a", width, 1)
    y = units.active(units.normal(y, f"{name}.2"), f"{name}.2")
    y = net.conv(y, f"{name}.b", width, 3, stride, groups=width // group)
    y = units.active(units.normal(y, f"{name}.3"), f"{name}.3")
    y = units.gate(y, f"{name}.gate", round(x.shape[0] / 4))
    return net.add(f"{name}.sum", shortcut, net.conv(y, f"{name}.c", width, 1))


def known(name: str) -> bool:
    """Whether a name is one of this module's."""
    if match := _HYBRID.fullmatch(name):
        return match[1] in SIZES
    if match := _V2.fullmatch(name):
        return match[1] in _DEPTHS
    return name in _REGNETS or _free(name) is not None


def classifier(name: str, net: Net, size: int) -> tuple[str, ...]:
    """State a network of this module and its loss."""
    shape = _free(name)
    if shape is not None:
        _nfnet(net, size, shape)
    elif _HYBRID.fullmatch(name):
        _hybrid(net, size, name)
    elif name in _REGNETS:
        _regnet(net, size, name)
    else:
        _resnetv2(net, size, name)
    return ()
