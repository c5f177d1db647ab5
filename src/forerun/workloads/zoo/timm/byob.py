"""Networks that the timm library states block by block: RepVGG, GENet, ResNets of other widths.

A stage is a block type, depth, width, stride, group width and bottleneck ratio (the inner width
over the outer).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from forerun.workloads.zoo.net import Net, Tensor
from forerun.workloads.zoo.timm.parts import Units, classify, rounded


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: see the module."""

    kind: str
    depth: int
    width: int
    stride: int = 2
    group: int = 0
    ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class Built:
    """A network of stages.

    Attributes:
        stages: in order.
        stem: tiered, quad, rep or 3x3; stem_width: its last width.
        pooled_stem: a max-pooling follows.
        features: width of a last 1 x 1 convolution, 0: none.
        act: activation.
        gate: se, eca, gc or none; ratio: of a gate's inner width.
        norm: batch or group.
    """

    stages: tuple[Stage, ...]
    stem: str = "3x3"
    stem_width: int = 32
    pooled_stem: bool = False
    features: int = 0
    act: str = "relu"
    gate: str = ""
    ratio: float = 1 / 16
    norm: str = "batch"


def _rep(depths: tuple[int, ...], scale: tuple[float, ...], group: int = 0) -> Built:
    widths = [int(w * s) for w, s in zip((64, 128, 256, 512), scale, strict=True)]
    stages = tuple(Stage("rep", d, w, group=group) for d, w in zip(depths, widths, strict=True))
    return Built(stages, "rep", min(64, int(64 * scale[0])))


_A, _B = (2, 4, 14, 1), (4, 6, 16, 1)


def _bottles(
    depths: tuple[int, ...], widths: tuple[int, ...], group: int = 0, first: int = 1,
    ratio: float = 0.25, **fields: object,
) -> Built:  # fmt: skip
    stages = tuple(
        Stage("bottle", d, w, 2 if i else first, group, ratio)
        for i, (d, w) in enumerate(zip(depths, widths, strict=True))
    )
    return replace(Built(stages), **fields)  # type: ignore[arg-type]


_26, _50, _W = (2, 2, 2, 2), (3, 4, 6, 3), (256, 512, 1024, 2048)
_33 = _bottles((2, 3, 3, 2), (256, 512, 1536, 1536), stem="tiered", stem_width=64,
               features=1280, act="silu")  # fmt: skip
_26TS = _bottles(_26, _W, 32, stem="tiered", stem_width=64, pooled_stem=True, act="silu")
BUILT: dict[str, Built] = {
    "repvgg_a0": _rep(_A, (0.75, 0.75, 0.75, 2.5)), "repvgg_a1": _rep(_A, (1, 1, 1, 2.5)),
    "repvgg_a2": _rep(_A, (1.5, 1.5, 1.5, 2.75)),
    "repvgg_b0": _rep(_B, (1, 1, 1, 2.5)), "repvgg_b1": _rep(_B, (2, 2, 2, 4)),
    "repvgg_b1g4": _rep(_B, (2, 2, 2, 4), 4), "repvgg_b2": _rep(_B, (2.5, 2.5, 2.5, 5)),
    "repvgg_b2g4": _rep(_B, (2.5, 2.5, 2.5, 5), 4), "repvgg_b3": _rep(_B, (3, 3, 3, 5)),
    "repvgg_b3g4": _rep(_B, (3, 3, 3, 5), 4),
    "gernet_s": Built(
        (Stage("basic", 1, 48), Stage("basic", 3, 48), Stage("bottle", 7, 384, 2, 0, 1 / 4),
         Stage("bottle", 2, 560, 2, 1, 3.0), Stage("bottle", 1, 256, 1, 1, 3.0)),
        stem_width=13, features=1920,
    ),
    "gernet_m": Built(
        (Stage("basic", 1, 128), Stage("basic", 2, 192), Stage("bottle", 6, 640, 2, 0, 1 / 4),
         Stage("bottle", 4, 640, 2, 1, 3.0), Stage("bottle", 1, 640, 1, 1, 3.0)),
        features=2560,
    ),
    "gernet_l": Built(
        (Stage("basic", 1, 128), Stage("basic", 2, 192), Stage("bottle", 6, 640, 2, 0, 1 / 4),
         Stage("bottle", 5, 640, 2, 1, 3.0), Stage("bottle", 4, 640, 1, 1, 3.0)),
        features=2560,
    ),
    "resnet32ts": replace(_33, features=0), "resnet33ts": _33,
    "gcresnet33ts": replace(_33, gate="gc"), "seresnet33ts": replace(_33, gate="se"),
    "eca_resnet33ts": replace(_33, gate="eca"),
    "gcresnet50t": _bottles(_50, _W, stem="tiered", stem_width=64, act="silu", gate="gc"),
    "gcresnext26ts": replace(_26TS, gate="gc"), "seresnext26ts": replace(_26TS, gate="se"),
    "eca_resnext26ts": replace(_26TS, gate="eca"),
    "gcresnext50ts": _bottles(_50, _W, 32, stem="tiered", stem_width=64, pooled_stem=True,
                              act="silu", gate="gc"),
    "resnet51q": Built(
        (Stage("bottle", 2, 256, 1, 32, 1 / 4), Stage("bottle", 4, 512, 2, 32, 1 / 4),
         Stage("bottle", 6, 1536, 2, 32, 1 / 4), Stage("bottle", 4, 1536, 2, 1, 1.0)),
        stem="quad", stem_width=128, features=2048, act="silu",
    ),
    "resnet61q": Built(
        (Stage("edge", 1, 256, 1, 0, 1.0), Stage("bottle", 4, 512, 2, 32, 1 / 4),
         Stage("bottle", 6, 1536, 2, 32, 1 / 4), Stage("bottle", 4, 1536, 2, 1, 1.0)),
        stem="quad", stem_width=128, features=2048, act="silu",
    ),
    "regnetz_b16": Built(
        (Stage("inverted", 2, 48, 2, 16, 3.0), Stage("inverted", 6, 96, 2, 16, 3.0),
         Stage("inverted", 12, 192, 2, 16, 3.0), Stage("inverted", 2, 288, 2, 16, 3.0)),
        stem_width=32, features=1536, act="silu", gate="se", ratio=1 / 4,
    ),
    "regnetz_c16": Built(
        (Stage("inverted", 2, 48, 2, 16, 4.0), Stage("inverted", 6, 96, 2, 16, 4.0),
         Stage("inverted", 12, 192, 2, 16, 4.0), Stage("inverted", 2, 288, 2, 16, 4.0)),
        stem_width=32, features=1536, act="silu", gate="se", ratio=1 / 4,
    ),
    "regnetz_d32": Built(
        (Stage("inverted", 3, 64, 1, 32, 4.0), Stage("inverted", 6, 128, 2, 32, 4.0),
         Stage("inverted", 12, 256, 2, 32, 4.0), Stage("inverted", 3, 384, 2, 32, 4.0)),
        stem="tiered", stem_width=64, features=1792, act="silu", gate="se", ratio=1 / 4,
    ),
    "regnetz_d8": Built(
        (Stage("inverted", 3, 64, 1, 8, 4.0), Stage("inverted", 6, 128, 2, 8, 4.0),
         Stage("inverted", 12, 256, 2, 8, 4.0), Stage("inverted", 3, 384, 2, 8, 4.0)),
        stem="tiered", stem_width=64, features=1792, act="silu", gate="se", ratio=1 / 4,
    ),
    "regnetz_e8": Built(
        (Stage("inverted", 3, 96, 1, 8, 4.0), Stage("inverted", 8, 192, 2, 8, 4.0),
         Stage("inverted", 16, 384, 2, 8, 4.0), Stage("inverted", 3, 512, 2, 8, 4.0)),
        stem="tiered", stem_width=64, features=2048, act="silu", gate="se", ratio=1 / 4,
    ),
}  # fmt: skip


def known(name: str) -> bool:
    """Whether a name is one of this module's."""
    return name in BUILT


def classifier(name: str, net: Net, size: int) -> tuple[str, ...]:
    """State a network of this module and its loss."""
    shape = BUILT[name]
    units = Units(net, shape.act, shape.norm)
    x = _stem(shape, units, net.input(3, size, size))
    for stage, part in enumerate(shape.stages):
        for number in range(part.depth):
            stride = part.stride if number == 0 else 1
            x = _BLOCKS[part.kind](shape, units, x, f"stage{stage}.{number}", part, stride)
    if shape.features:
        x = units.unit(x, "last", shape.features)
    classify(net, x)
    return ()


def _stem(shape: Built, units: Units, x: Tensor) -> Tensor:
    width = shape.stem_width
    if shape.stem == "rep":
        return _rep_unit(units, x, "stem", width, 2, 1)
    steps: tuple[tuple[int, int], ...]
    if shape.stem == "tiered":
        steps = ((3 * width // 8, 2), (width // 2, 1), (width, 1 if shape.pooled_stem else 2))
    elif shape.stem == "quad":
        steps = ((width // 8, 2), (width // 4, 1), (width // 2, 1), (width, 2))
    else:
        steps = ((width, 2),)
    for number, (out, stride) in enumerate(steps):
        x = units.unit(x, f"stem.{number}", out, 3, stride)
    return units.net.pool(x, "stem.pool", 3, 2, 1) if shape.pooled_stem else x


def _rep_unit(units: Units, x: Tensor, name: str, out: int, stride: int, groups: int) -> Tensor:
    """RepVGG in training: 3 x 3, 1 x 1 and identity paths, each normalised."""
    net = units.net
    paths = [
        units.unit(x, f"{name}.wide", out, 3, stride, groups, act=False),
        units.unit(x, f"{name}.point", out, 1, stride, groups, act=False),
    ]
    if stride == 1 and x.shape[0] == out:
        paths.append(net.batch_norm(x, f"{name}.identity"))
    return units.active(net.add(f"{name}.sum", *paths), name)


def _rep_block(
    shape: Built, units: Units, x: Tensor, name: str, part: Stage, stride: int
) -> Tensor:
    every_second = part.group and int(name.rsplit(".", 1)[1]) % 2 == 1
    return _rep_unit(units, x, name, part.width, stride, part.group if every_second else 1)


def _basic(shape: Built, units: Units, x: Tensor, name: str, part: Stage, stride: int) -> Tensor:
    y = units.unit(x, f"{name}.conv1", int(part.width * part.ratio), 3, stride)
    y = units.unit(y, f"{name}.conv2", part.width, 3, act=False)
    return _sum(shape, units, x, y, name, stride)


def _bottle(shape: Built, units: Units, x: Tensor, name: str, part: Stage, stride: int) -> Tensor:
    inner = rounded(part.width * part.ratio)
    group = inner if part.group == 0 else part.group
    y = units.unit(x, f"{name}.conv1", inner)
    y = units.unit(y, f"{name}.conv2", inner, 3, stride, inner // group)
    y = _gate(shape, units, y, f"{name}.gate")
    y = units.unit(y, f"{name}.conv3", part.width, act=False)
    return _sum(shape, units, x, y, name, stride)


def _edge(shape: Built, units: Units, x: Tensor, name: str, part: Stage, stride: int) -> Tensor:
    """A 3 x 3 convolution and a 1 x 1."""
    y = units.unit(x, f"{name}.conv1", int(part.width * part.ratio), 3, stride)
    y = units.unit(y, f"{name}.conv2", part.width, act=False)
    return _sum(shape, units, x, y, name, stride)


def _inverted(shape: Built, units: Units, x: Tensor, name: str, part: Stage, stride: int) -> Tensor:
    """A bottleneck turned outside in, linear at its end (RegNetZ)."""
    inner = rounded(x.shape[0] * part.ratio)
    y = units.unit(x, f"{name}.conv1", inner)
    y = units.unit(y, f"{name}.conv2", inner, 3, stride, inner // part.group)
    y = _gate(shape, units, y, f"{name}.gate")
    y = units.unit(y, f"{name}.conv3", part.width, act=False)
    return units.net.add(f"{name}.sum", x, y) if x.shape == y.shape else y


def _gate(shape: Built, units: Units, y: Tensor, name: str) -> Tensor:
    channels = y.shape[0]
    if shape.gate == "se":
        return units.gate(y, name, rounded(channels * shape.ratio))
    if shape.gate == "eca":
        return units.eca(y, name)
    return units.context(y, name, rounded(channels / 8)) if shape.gate == "gc" else y


def _sum(shape: Built, units: Units, x: Tensor, y: Tensor, name: str, stride: int) -> Tensor:
    net = units.net
    if x.shape != y.shape:
        x = units.unit(x, f"{name}.shortcut", y.shape[0], 1, stride, act=False)
    return units.active(net.add(f"{name}.sum", x, y), name)


_BLOCKS = {
    "rep": _rep_block,
    "basic": _basic,
    "bottle": _bottle,
    "edge": _edge,
    "inverted": _inverted,
}
