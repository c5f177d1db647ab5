"""Xception, DarkNets with and without split stages, TResNet, MobileViT."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.workloads.zoo.net import Net, Tensor
from forerun.workloads.zoo.timm.layers import Layer, block, to_image, to_tokens
from forerun.workloads.zoo.timm.parts import Units, classify

# Xception in DeepLab's form: (widths of its three separable convolutions), stride, skip.
_Sep = tuple[tuple[int, int, int], int, bool]


def _same(width: int, stride: int = 1) -> _Sep:
    return ((width, width, width), stride, True)


_ENTRY: tuple[_Sep, ...] = (_same(128, 2), _same(256, 2), _same(728, 2))
_EXIT: tuple[_Sep, ...] = (((728, 1024, 1024), 2, True), ((1536, 1536, 2048), 1, False))
_ALIGNED: dict[str, tuple[_Sep, ...]] = {
    "xception41": (*_ENTRY, *((_same(728),) * 8), *_EXIT),
    "xception65": (*_ENTRY, *((_same(728),) * 16), *_EXIT),
    "xception71": (
        _same(128, 2), _same(256), _same(256, 2), _same(728), _same(728, 2), *((_same(728),) * 16),
        *_EXIT,
    ),
    "xception41p": (*_ENTRY, *((_same(728),) * 8), *_EXIT),
    "xception65p": (*_ENTRY, *((_same(728),) * 16), *_EXIT),
}  # fmt: skip


def _aligned(net: Net, size: int, name: str) -> None:
    units = Units(net)
    x = units.unit(net.input(3, size, size), "stem.0", 32, 3, 2)
    x = units.unit(x, "stem.1", 64, 3)
    for number, (widths, stride, skip) in enumerate(_ALIGNED[name]):
        path, y = f"blocks.{number}", x
        for step, width in enumerate(widths):
            y = _separable(units, y, f"{path}.{step}", width, stride if step == 2 else 1,
                           not name.endswith("p"))  # fmt: skip
        if skip:
            if x.shape != y.shape:
                x = units.unit(x, f"{path}.shortcut", y.shape[0], 1, stride, act=False)
            y = net.add(f"{path}.sum", x, y)
        x = y
    classify(net, x)


def _separable(
    units: Units, x: Tensor, name: str, out: int, stride: int, both: bool = True
) -> Tensor:
    """A depth-wise and a point-wise convolution, `both` normalised or only the second."""
    net = units.net
    x = units.active(x, f"{name}.before")
    y = net.conv(x, f"{name}.depth", x.shape[0], 3, stride, groups=x.shape[0])
    y = units.normal(y, f"{name}.depth") if both else y
    return units.unit(y, f"{name}.point", out, act=False)


def _xception(net: Net, size: int) -> None:
    """Xception as its author published it (Chollet 2017)."""
    units = Units(net)
    x = units.unit(net.input(3, size, size), "conv1", 32, 3, 2, padding=0)
    x = units.unit(x, "conv2", 64, 3, padding=0)
    for number, (widths, stride) in enumerate((
        ((128, 128), 2), ((256, 256), 2), ((728, 728), 2), *((((728,) * 3), 1) for _ in range(8)),
        ((728, 1024), 2),
    )):  # fmt: skip
        path, y = f"block{number + 1}", x
        for step, width in enumerate(widths):
            y = _separable(units, y, f"{path}.{step}", width, 1, False)
        if stride > 1:
            y = net.pool(y, f"{path}.pool", 3, 2, 1)
            x = units.unit(x, f"{path}.shortcut", y.shape[0], 1, 2, act=False)
        x = net.add(f"{path}.sum", x, y)
    for step, width in enumerate((1536, 2048)):
        x = units.active(_separable(units, x, f"last.{step}", width, 1, False), f"last.{step}")
    classify(net, x)


@dataclass(frozen=True, slots=True)
class Cross:
    """A network of stages that part the channels, work on one part and join (Wang et al. 2020).

    Attributes:
        stem: widths of the stem's convolutions with kernel and stride; pooled: max-pooling follows.
        widths, depths: of the stages.
        split: stages part their channels (CSPNet); else they are DarkNet's.
        expand, inner, ratio: widths of the parted channels over the stage's, of a block over the
            parted, and of a bottleneck over a block, at each stage.
        strided: whether each stage halves the resolution.
        cross: no separate path is kept: the whole expansion goes on (cross_linear).
    """

    stem: tuple[tuple[int, int, int], ...]
    widths: tuple[int, ...]
    depths: tuple[int, ...]
    pooled: bool = False
    split: bool = False
    expand: tuple[float, ...] = ()
    inner: tuple[float, ...] = ()
    ratio: tuple[float, ...] = ()
    strided: tuple[bool, ...] = (True,) * 5
    groups: int = 1
    grown: bool = False


_DARK = (64, 128, 256, 512, 1024)
_D53 = Cross(((32, 3, 1),), _DARK, (1, 2, 8, 8, 4), ratio=(0.5,) * 5)
_CSP50 = Cross(
    ((64, 7, 2),),
    (128, 256, 512, 1024),
    (3, 3, 5, 2),
    True,
    True,
    (2.0,) * 4,
    (1.0,) * 4,
    (0.5,) * 4,
    (False, True, True, True),
)
CROSS: dict[str, Cross] = {
    "darknet17": Cross(((32, 3, 1),), _DARK, (1, 1, 1, 1, 1), ratio=(0.5,) * 5),
    "darknet21": Cross(((32, 3, 1),), _DARK, (1, 1, 1, 2, 2), ratio=(0.5,) * 5),
    "darknet53": _D53,
    "cspresnet50": _CSP50,
    "cspresnext50": Cross(
        ((64, 7, 2),), (256, 512, 1024, 2048), (3, 3, 5, 2), True, True, (1.0,) * 4, (0.5,) * 4,
        (1.0,) * 4, (False, True, True, True), 32,
    ),
    "cspresnet50d": Cross(
        ((32, 3, 2), (32, 3, 1), (64, 3, 1)), (128, 256, 512, 1024), (3, 3, 5, 2), True, True,
        (2.0,) * 4, (1.0,) * 4, (0.5,) * 4, (False, True, True, True),
    ),
    "cspresnet50w": Cross(
        ((32, 3, 2), (32, 3, 1), (64, 3, 1)), (256, 512, 1024, 2048), (3, 3, 5, 2), True, True,
        (1.0,) * 4, (0.5,) * 4, (0.25,) * 4, (False, True, True, True),
    ),
    "cspdarknet53": Cross(
        ((32, 3, 1),), _DARK, (1, 2, 8, 8, 4), False, True, (2.0, 1.0, 1.0, 1.0, 1.0),
        (1.0, 0.5, 0.5, 0.5, 0.5), (0.5, 1.0, 1.0, 1.0, 1.0), grown=True,
    ),
}  # fmt: skip


def _crossed(net: Net, size: int, name: str) -> None:
    shape = CROSS[name]
    units = Units(net, "leaky_relu")
    x = net.input(3, size, size)
    for number, (width, kernel, stride) in enumerate(shape.stem):
        x = units.unit(x, f"stem.{number}", width, kernel, stride)
    x = net.pool(x, "stem.pool", 3, 2, 1) if shape.pooled else x
    for stage in range(len(shape.widths)):
        x = (_split_stage if shape.split else _dark_stage)(shape, units, x, stage)
    classify(net, x)


def _dark_stage(shape: Cross, units: Units, x: Tensor, stage: int) -> Tensor:
    out, name = shape.widths[stage], f"stage{stage}"
    x = units.unit(x, f"{name}.down", out, 3, 2)
    for number in range(shape.depths[stage]):
        x = _dark_block(units, x, f"{name}.{number}", out, shape.ratio[stage])
    return x


def _dark_block(units: Units, x: Tensor, name: str, out: int, ratio: float) -> Tensor:
    y = units.unit(x, f"{name}.1", int(out * ratio))
    return units.net.add(f"{name}.sum", x, units.unit(y, f"{name}.2", out, 3))


def _split_stage(shape: Cross, units: Units, x: Tensor, stage: int) -> Tensor:
    net, out, name = units.net, shape.widths[stage], f"stage{stage}"
    down = out if shape.grown else x.shape[0]
    if shape.strided[stage]:
        x = units.unit(x, f"{name}.down", down, 3, 2)
    wide = int(out * shape.expand[stage])
    whole = units.unit(x, f"{name}.expand", wide)
    x = net.channels(whole, wide // 2)
    inner = int(out * shape.inner[stage])
    for number in range(shape.depths[stage]):
        path = f"{name}.{number}"
        middle = int(inner * shape.ratio[stage])
        y = units.unit(x, f"{path}.1", middle)
        if shape.grown:
            y = units.unit(y, f"{path}.2", inner, 3)
            x = net.add(f"{path}.sum", x, y)
            continue
        y = units.unit(y, f"{path}.2", middle, 3, groups=shape.groups)
        y = units.unit(y, f"{path}.3", inner, act=False)
        x = units.active(net.add(f"{path}.sum", x, y), path)
    x = units.unit(x, f"{name}.transition", wide // 2)
    joined = net.concat(f"{name}.join", [net.channels(whole, wide // 2), x])
    return units.unit(joined, f"{name}.out", out)


# MobileViT: width of each stage, width and layers of its transformers.
_MOBILEVITS: dict[str, tuple[tuple[int, ...], tuple[tuple[int, int], ...], int, int]] = {
    "mobilevit_xxs": ((16, 24, 48, 64, 80), ((64, 2), (80, 4), (96, 3)), 320, 2),
    "mobilevit_xs": ((32, 48, 64, 80, 96), ((96, 2), (120, 4), (144, 3)), 384, 4),
    "mobilevit_s": ((32, 64, 96, 128, 160), ((144, 2), (192, 4), (240, 3)), 640, 4),
}


def _mobilevit(net: Net, size: int, name: str) -> None:
    """MobileViT (Mehta & Rastegari 2022): inverted residuals, then transformers over patches."""
    widths, transformers, last, expand = _MOBILEVITS[name]
    units = Units(net, "silu")
    x = units.unit(net.input(3, size, size), "stem", 16, 3, 2)
    x = _inverted(units, x, "stage0.0", widths[0], 1, expand)
    for number in range(3):
        x = _inverted(units, x, f"stage1.{number}", widths[1], 1 if number else 2, expand)
    for stage, (width, depth) in enumerate(transformers):
        path = f"stage{stage + 2}"
        x = _inverted(units, x, f"{path}.0", widths[stage + 2], 2, expand)
        y = units.unit(x, f"{path}.local", x.shape[0], 3)
        y = net.conv(y, f"{path}.in", width, 1)
        grid = (y.shape[1], y.shape[2])
        tokens = to_tokens(net, y, f"{path}.unfold")
        for number in range(depth):
            tokens = block(net, tokens, f"{path}.{number + 1}", Layer(4, 2.0), groups=4)
        y = to_image(net, net.norm(tokens, f"{path}.norm"), f"{path}.fold", grid)
        y = units.unit(y, f"{path}.out", x.shape[0])
        y = net.concat(f"{path}.join", [x, y])
        x = units.unit(y, f"{path}.fuse", x.shape[0], 3)
    classify(net, units.unit(x, "last", last))


def _inverted(units: Units, x: Tensor, name: str, out: int, stride: int, expand: int) -> Tensor:
    wide = x.shape[0] * expand
    y = units.unit(x, f"{name}.1", wide)
    y = units.unit(y, f"{name}.2", wide, 3, stride, wide)
    y = units.unit(y, f"{name}.3", out, act=False)
    return units.net.add(f"{name}.sum", x, y) if x.shape == y.shape else y


def known(name: str) -> bool:
    """Whether a name is one of this module's."""
    return name == "xception" or name in _ALIGNED or name in CROSS or name in _MOBILEVITS


def classifier(name: str, net: Net, size: int) -> tuple[str, ...]:
    """State a network of this module and its loss."""
    if name == "xception":
        _xception(net, size)
    elif name in _ALIGNED:
        _aligned(net, size, name)
    elif name in CROSS:
        _crossed(net, size, name)
    else:
        _mobilevit(net, size, name)
    return ()
