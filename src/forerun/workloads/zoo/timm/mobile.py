"""Networks that timm states as strings of mobile blocks: EfficientNet, MobileNet, MixNet ...

A string holds a block's kind and its fields with underscores between: `ir_r3_k5_s2_e6_c40_se0.25`
is an inverted residual, three times, kernel 5, the first of stride 2, expansion 6, 40 channels,
gated by a quarter. Kinds: ds depth-wise separable, ir inverted residual, er with a dense expansion,
cn a convolution.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from forerun.domain.graph import Block
from forerun.workloads.zoo.net import Net, Tensor
from forerun.workloads.zoo.timm.mobile_archs import ARCHS, MODELS
from forerun.workloads.zoo.timm.parts import CLASSES, Units, rounded


@dataclass(frozen=True, slots=True)
class Mobile:
    """One member of a family of mobile networks.

    Attributes:
        arch: key of `ARCHS`.
        width, depth: multipliers of channels and of repeats (one, or one for each stage).
        stem, features: channels of the first convolution and of the last.
        act: activation.
        fixed_stem, fixed_head: multipliers do not reach the stem, or the features.
        fixed_ends: the depth multiplier does not reach the first and last stage.
        gate_of_expanded: a gate's ratio is of the expanded channels, not of the block's input.
        late_head: features are computed after pooling (MobileNet V3).
        gates: se, context or none.
        limit: see `parts.rounded`.
        norm: batch or group.
        group: channels of a group in depth-wise convolutions (0: one).
        divisor: channels are multiples of it.
        round_depth: round, not up, as repeats are multiplied.
    """

    arch: str
    width: float = 1.0
    depth: float | tuple[float, ...] = 1.0
    stem: int = 32
    features: int = 1280
    act: str = "silu"
    fixed_stem: bool = False
    fixed_head: bool = False
    fixed_ends: bool = False
    gate_of_expanded: bool = False
    late_head: bool = False
    gates: str = "se"
    limit: float = 0.9
    norm: str = "batch"
    group: int = 0
    divisor: int = 8
    round_depth: bool = False

    def channels(self, count: float) -> int:
        """Return channels after the width multiplier."""
        return rounded(count * self.width, self.divisor, self.limit)


@dataclass(frozen=True, slots=True)
class _Spec:
    kind: str
    repeat: int
    kernels: tuple[int, ...]
    stride: int
    expand: float
    out: int
    gate: float
    skip: bool
    expand_groups: int
    project_groups: int
    forced: int


def _parse(text: str) -> _Spec:
    kind, *fields = text.split("_")
    found: dict[str, str] = {}
    for field in fields:
        if match := re.fullmatch(r"([a-z]+)([\d.]+)?", field):
            found[match[1]] = match[2] or ""
    return _Spec(
        kind, int(found["r"]), tuple(int(k) for k in found["k"].split(".")), int(found["s"]),
        float(found.get("e", "1")), int(found["c"]), float(found.get("se", "0")),
        "noskip" not in found, 2 if "a" in found else 1, 2 if "p" in found else 1,
        int(found.get("fc", "0")),
    )  # fmt: skip


def _repeats(stage: Sequence[_Spec], depth: float, nearest: bool) -> list[int]:
    """Scale the repeats of a stage and spread them over its blocks, the last ones first."""
    total = sum(block.repeat for block in stage)
    wanted = total * depth
    left = max(1, round(wanted) if nearest else math.ceil(wanted))
    counts = []
    for block in reversed(stage):
        count = max(1, round(block.repeat / total * left))
        counts.append(count)
        total, left = total - block.repeat, left - count
    return counts[::-1]


def _blocks(model: Mobile) -> Iterator[tuple[str, _Spec, int]]:
    stages = [[_parse(text) for text in stage.split()] for stage in ARCHS[model.arch]]
    for number, stage in enumerate(stages):
        depth = model.depth if isinstance(model.depth, float) else model.depth[number]
        if model.fixed_ends and number in (0, len(stages) - 1):
            depth = 1.0
        counts = _repeats(stage, depth, model.round_depth)
        for part, (spec, count) in enumerate(zip(stage, counts, strict=True)):
            for copy in range(count):
                yield f"stage{number}.{part}.{copy}", spec, spec.stride if copy == 0 else 1


def known(name: str) -> bool:
    """Whether a name is one of this module's."""
    return name in MODELS


def classifier(name: str, net: Net, size: int) -> tuple[str, ...]:
    """State a network of `MODELS` and its loss."""
    model = Mobile(**MODELS[name])
    units = Units(net, model.act, model.norm)
    stem = model.stem if model.fixed_stem else model.channels(model.stem)
    x = units.unit(net.input(3, size, size), "stem", stem, 3, 2)
    for path, spec, stride in _blocks(model):
        x = _BUILD[spec.kind](model, units, x, path, spec, stride)
    features = model.features if model.fixed_head else model.channels(model.features)
    net.block = Block.HEAD
    if model.late_head:
        x = net.conv(net.adaptive_pool(x, "head.pool", 1), "head.conv", features, 1, bias=True)
        x = net.view(units.active(x, "head"), features)
    else:
        x = net.mean(units.unit(x, "head.conv", features), "head.pool")
    net.loss(net.linear(x, "head", CLASSES))
    return ()


def _joined(units: Units, x: Tensor, y: Tensor, path: str, spec: _Spec) -> Tensor:
    return units.net.add(f"{path}.sum", x, y) if spec.skip and x.shape == y.shape else y


def _gated(
    model: Mobile, units: Units, x: Tensor, y: Tensor, path: str, spec: _Spec
) -> Tensor:  # fmt: skip
    if not spec.gate or model.gates == "none":
        return y
    if model.gate_of_expanded:
        inner = rounded(y.shape[0] * spec.gate)
    else:
        inner = round(x.shape[0] * spec.gate)
        inner = rounded(inner) if model.late_head else inner
    if model.gates == "context":
        return units.context(y, f"{path}.gate", max(8, inner))
    return units.gate(y, f"{path}.gate", inner)


def _depthwise(
    model: Mobile, units: Units, x: Tensor, path: str, spec: _Spec, stride: int
) -> Tensor:
    """Convolve each channel alone, in parts of different kernels where there are several."""
    net, channels = units.net, x.shape[0]
    groups = channels // model.group if model.group else channels
    if len(spec.kernels) == 1:
        return units.unit(x, f"{path}.depth", channels, spec.kernels[0], stride, groups)
    parts = []
    share = channels // len(spec.kernels)
    for number, kernel in enumerate(spec.kernels):
        width = share if number else channels - share * (len(spec.kernels) - 1)
        part = net.channels(x, width)
        parts.append(net.conv(part, f"{path}.depth{number}", width, kernel, stride, groups=width))
    y = units.normal(net.concat(f"{path}.depth.join", parts), f"{path}.depth")
    return units.active(y, f"{path}.depth")


def _pointwise(units: Units, x: Tensor, path: str, out: int, parts: int, act: bool) -> Tensor:
    """Mix channels, in `parts` separate halves where there are several."""
    if parts == 1:
        return units.unit(x, path, out, act=act)
    net = units.net
    pieces = [
        net.conv(net.channels(x, x.shape[0] // parts), f"{path}.{i}", out // parts, 1)
        for i in range(parts)
    ]
    y = units.normal(net.concat(f"{path}.join", pieces), path)
    return units.active(y, path) if act else y


def _separable(
    model: Mobile, units: Units, x: Tensor, path: str, spec: _Spec, stride: int
) -> Tensor:
    y = _depthwise(model, units, x, path, spec, stride)
    y = _gated(model, units, x, y, path, spec)
    last = spec.kind == "dsa"
    y = units.unit(y, f"{path}.point", model.channels(spec.out), act=last)
    return y if last else _joined(units, x, y, path, spec)


def _inverted(
    model: Mobile, units: Units, x: Tensor, path: str, spec: _Spec, stride: int
) -> Tensor:
    wide = rounded(x.shape[0] * spec.expand, model.divisor)
    y = _pointwise(units, x, f"{path}.expand", wide, spec.expand_groups, True)
    y = _depthwise(model, units, y, path, spec, stride)
    y = _gated(model, units, x, y, path, spec)
    y = _pointwise(
        units, y, f"{path}.project", model.channels(spec.out), spec.project_groups, False
    )
    return _joined(units, x, y, path, spec)


def _edge(model: Mobile, units: Units, x: Tensor, path: str, spec: _Spec, stride: int) -> Tensor:
    start = model.channels(spec.forced) if spec.forced else x.shape[0]
    y = units.unit(x, f"{path}.expand", rounded(start * spec.expand), spec.kernels[0], stride)
    y = _gated(model, units, x, y, path, spec)
    y = units.unit(y, f"{path}.project", model.channels(spec.out), act=False)
    return _joined(units, x, y, path, spec)


def _plain(model: Mobile, units: Units, x: Tensor, path: str, spec: _Spec, stride: int) -> Tensor:
    y = units.unit(x, path, model.channels(spec.out), spec.kernels[0], stride)
    return units.net.add(f"{path}.sum", x, y) if x.shape == y.shape and spec.kernels[0] > 1 else y


_BUILD = {
    "ds": _separable, "dsa": _separable, "ir": _inverted, "er": _edge, "cn": _plain,
}  # fmt: skip
