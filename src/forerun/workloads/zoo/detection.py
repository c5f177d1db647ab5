"""Detectors: SSD, RetinaNet, Faster and Mask R-CNN, YOLOv3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.domain.graph import Block
from forerun.workloads.zoo.net import Net, Tensor
from forerun.workloads.zoo.resnets import ResnetShape, stages
from forerun.workloads.zoo.segmentation import resize_sum

_RESNET50 = ResnetShape((3, 4, 6, 3))
_RESNEXT50 = ResnetShape((3, 4, 6, 3), groups=32, group_width=4)
_ANCHORS = (4, 6, 6, 6, 4, 4)
FROZEN_NOTE = "the stem and first stage are not trained, and batch normalisations are fixed"


@dataclass(frozen=True, slots=True)
class SsdShape:
    """An SSD (Liu et al. 2016) on a residual trunk that stops after its third stage.

    `extra` are (inner, outer) widths of the added stages; `norm` normalises them.
    """

    trunk: ResnetShape
    extra: tuple[tuple[int, int], ...]
    norm: bool
    classes: int = 81


SSDS: dict[str, SsdShape] = {
    "ssd300-resnet34": SsdShape(
        ResnetShape((3, 4, 6), bottleneck=False),
        ((256, 512), (256, 512), (128, 256), (128, 256), (128, 256)),
        norm=False,
    ),
    "ssd300-resnet50": SsdShape(
        ResnetShape((3, 4, 6)),
        ((256, 512), (256, 512), (128, 256), (128, 256), (128, 256)),
        norm=True,
    ),
}


def ssd_resnet(name: str, net: Net, size: int) -> tuple[str, ...]:
    """State SSD300 on a ResNet whose third stage keeps its resolution."""
    shape = SSDS[name]
    maps = [stages(shape.trunk, net, net.input(3, size, size), steady=2)[-1]]
    for number, (inner, outer) in enumerate(shape.extra):
        small = number >= len(shape.extra) - 2
        x = _unit(net, maps[-1], f"extra{number}.0", inner, 1, norm=shape.norm)
        x = _unit(
            net, x, f"extra{number}.1", outer, 3, 1 if small else 2, 0 if small else 1,
            norm=shape.norm,
        )  # fmt: skip
        maps.append(x)
    _multibox(net, maps, shape.classes)
    return ()


def _unit(
    net: Net, x: Tensor, name: str, out: int, kernel: int, stride: int = 1,
    padding: int | None = None, norm: bool = False, dilation: int = 1,
) -> Tensor:  # fmt: skip
    x = net.conv(x, name, out, kernel, stride, padding, bias=not norm, dilation=dilation)
    x = net.batch_norm(x, f"{name}.norm") if norm else x
    return net.activation(x, f"{name}.relu")


def _multibox(net: Net, maps: Sequence[Tensor], classes: int) -> None:
    """Predict boxes and classes at each place of each map; their loss."""
    net.block = Block.HEAD
    for number, (x, anchors) in enumerate(zip(maps, _ANCHORS, strict=True)):
        for label, outputs in (("boxes", 4), ("classes", classes)):
            y = net.conv(x, f"head{number}.{label}", anchors * outputs, 3, bias=True)
            net.loss(y, f"head{number}.{label}.loss", launches=3)


def ssd_vgg(net: Net, size: int) -> tuple[str, ...]:
    """State SSD300 on VGG-16 with the COCO classes of torchvision (91)."""
    x, maps = net.input(3, size, size), []
    for stage, (width, depth) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))):
        if stage == 4:
            maps.append(net.scale(x, "rescale", 512))
        if stage:
            x = net.pool(x, f"pool{stage}", 2, 2, ceil=stage == 3)
        for number in range(depth):
            x = _unit(net, x, f"conv{stage}.{number}", width, 3)
    x = _unit(net, net.pool(x, "pool5", 3, 1, 1), "fc6", 1024, 3, 1, 6, dilation=6)
    maps.append(_unit(net, x, "fc7", 1024, 1))
    for number, (inner, outer, shrink) in enumerate(
        ((256, 512, True), (128, 256, True), (128, 256, False), (128, 256, False))
    ):
        x = _unit(net, maps[-1], f"extra{number}.0", inner, 1)
        maps.append(
            _unit(net, x, f"extra{number}.1", outer, 3, 2 if shrink else 1, 1 if shrink else 0)
        )
    _multibox(net, maps, 91)
    return ()


def pyramid(net: Net, maps: Sequence[Tensor], width: int = 256) -> list[Tensor]:
    """State a feature pyramid (Lin et al. 2017) and return its maps, finest first."""
    sides = [net.conv(x, f"fpn.side{number}", width, 1, bias=True) for number, x in enumerate(maps)]
    for number in reversed(range(len(sides) - 1)):
        sides[number] = resize_sum(net, f"fpn.{number}", sides[number + 1], sides[number])
    return [net.conv(x, f"fpn.out{number}", width, 3, bias=True) for number, x in enumerate(sides)]


RETINANETS: dict[str, tuple[ResnetShape, int]] = {
    "retinanet-r50": (_RESNET50, 91),
    "retinanet-resnext50": (_RESNEXT50, 264),
}


def retinanet(name: str, net: Net, size: int) -> tuple[str, ...]:
    """State RetinaNet (Lin et al. 2017, focal loss): five maps, two heads of four layers."""
    trunk, classes = RETINANETS[name]
    maps = stages(trunk, net, net.input(3, size, size), frozen=2, frozen_norm=True)
    maps = pyramid(net, maps[1:])
    maps.append(net.conv(maps[-1], "fpn.6", 256, 3, 2, bias=True))
    x = net.activation(maps[-1], "fpn.relu")
    maps.append(net.conv(x, "fpn.7", 256, 3, 2, bias=True))
    net.block = Block.HEAD
    for label, outputs in (("classes", 9 * classes), ("boxes", 36)):
        for number, x in enumerate(maps):
            # One head serves all maps: its weights belong to the first.
            for layer in range(4):
                x = net.conv(x, f"{label}.{layer}.map{number}", 256, 3, bias=True, owned=not number)
                x = net.activation(x, f"{label}.{layer}.map{number}.relu")
            x = net.conv(x, f"{label}.out.map{number}", outputs, 3, bias=True, owned=not number)
            net.loss(x, f"{label}.loss{number}", launches=3)
    return (FROZEN_NOTE,)


_PROPOSALS, _POSITIVES, _CLASSES = 512, 128, 91


def rcnn(masks: bool, net: Net, size: int) -> tuple[str, ...]:
    """State Faster R-CNN, or with masks Mask R-CNN (He et al. 2017), on ResNet-50 and a pyramid."""
    maps = stages(_RESNET50, net, net.input(3, size, size), frozen=2, frozen_norm=True)
    maps = pyramid(net, maps)
    maps.append(net.pool(maps[-1], "fpn.pool", 1, 2))
    for number, x in enumerate(maps):
        y = net.conv(x, f"rpn.map{number}", 256, 3, bias=True, owned=not number)
        y = net.activation(y, f"rpn.map{number}.relu")
        for label, outputs in (("score", 3), ("boxes", 12)):
            z = net.conv(y, f"rpn.{label}.map{number}", outputs, 1, bias=True, owned=not number)
            net.loss(z, f"rpn.{label}.loss{number}", launches=3)
    net.block = Block.HEAD
    x = _regions(net, maps, "boxes.align", _PROPOSALS, 7)
    x = net.view(x, _PROPOSALS, 256 * 49)
    for number in range(2):
        x = net.activation(net.linear(x, f"boxes.{number}", 1024), f"boxes.{number}.relu")
    net.loss(net.linear(x, "boxes.score", _CLASSES), "boxes.score.loss")
    net.loss(net.linear(x, "boxes.delta", 4 * _CLASSES), "boxes.delta.loss")
    if masks:
        _mask_head(net, maps)
    return (FROZEN_NOTE, f"{_PROPOSALS} proposals an image, {_POSITIVES} of them with an object")


def _regions(net: Net, maps: Sequence[Tensor], name: str, count: int, side: int) -> Tensor:
    """Sample a square of features for each region (two points a bin and direction)."""
    shape = (256, count * side, side)
    reads = 4.0 * 4 * 256 * count * side * side
    return net.copy(maps[0], name, shape, reads=reads, others=maps[1:4])


def _mask_head(net: Net, maps: Sequence[Tensor]) -> None:
    x = _regions(net, maps, "masks.align", _POSITIVES, 14)
    for number in range(4):
        x = net.activation(
            net.conv(x, f"masks.{number}", 256, 3, bias=True), f"masks.{number}.relu"
        )
    x = net.activation(net.conv_transpose(x, "masks.grow", 256, 2, 2), "masks.grow.relu")
    net.loss(net.conv(x, "masks.out", _CLASSES, 1, bias=True), "masks.loss")


def yolov3(net: Net, size: int) -> tuple[str, ...]:
    """State YOLOv3 (Redmon & Farhadi 2018) with the 80 classes of COCO."""
    x = _leaky(net, net.input(3, size, size), "stem", 32, 3)
    maps = []
    for stage, (width, depth) in enumerate(((64, 1), (128, 2), (256, 8), (512, 8), (1024, 4))):
        x = _leaky(net, x, f"stage{stage}.shrink", width, 3, 2)
        for block in range(depth):
            y = _leaky(net, x, f"stage{stage}.{block}.0", width // 2, 1)
            y = _leaky(net, y, f"stage{stage}.{block}.1", width, 3)
            x = net.add(f"stage{stage}.{block}.sum", x, y)
        maps.append(x)
    x = maps[4]
    for level, width in ((0, 512), (1, 256), (2, 128)):
        if level:
            x = _leaky(net, x, f"neck{level}", width, 1)
            x = net.upsample(x, f"neck{level}.grow", [2 * side for side in x.shape[1:]])
            x = net.concat(f"neck{level}.join", (x, maps[4 - level]))
        for number in range(5):
            wide = number % 2 == 1
            x = _leaky(
                net, x, f"neck{level}.{number}", 2 * width if wide else width, 3 if wide else 1
            )
        y = _leaky(net, x, f"head{level}.0", 2 * width, 3)
        net.loss(net.conv(y, f"head{level}.1", 255, 1, bias=True), f"loss{level}", launches=8)
    return ()


def _leaky(net: Net, x: Tensor, name: str, out: int, kernel: int, stride: int = 1) -> Tensor:
    x = net.batch_norm(net.conv(x, name, out, kernel, stride), f"{name}.norm")
    return net.activation(x, f"{name}.leaky", "leaky_relu")
