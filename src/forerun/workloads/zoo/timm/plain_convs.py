"""Networks of aggregated layers: DLA, DPN, HRNet, VoVNet, DenseNet, SelecSLS, GhostNet, Xception."""

from __future__ import annotations

import re

from forerun.workloads.zoo.net import Net, Tensor
from forerun.workloads.zoo.timm.parts import Units, classify, rounded

# ---- dense aggregation: widths of 3 x 3 convolutions, of outputs, layers and blocks a stage -------
_VOVNETS: dict[str, tuple[tuple[int, ...], tuple[int, ...], int, tuple[int, ...], bool, str]] = {
    "vovnet39a": ((128, 160, 192, 224), (256, 512, 768, 1024), 5, (1, 1, 2, 2), False, ""),
    "vovnet57a": ((128, 160, 192, 224), (256, 512, 768, 1024), 5, (1, 1, 4, 3), False, ""),
    "ese_vovnet19b_slim": ((64, 80, 96, 112), (112, 256, 384, 512), 3, (1, 1, 1, 1), False, "ese"),
    "ese_vovnet19b_slim_dw": ((64, 80, 96, 112), (112, 256, 384, 512), 3, (1, 1, 1, 1), True,
                              "ese"),
    "ese_vovnet19b_dw": ((128, 160, 192, 224), (256, 512, 768, 1024), 3, (1, 1, 1, 1), True, "ese"),
    "ese_vovnet19b": ((128, 160, 192, 224), (256, 512, 768, 1024), 3, (1, 1, 1, 1), False, "ese"),
    "ese_vovnet39b": ((128, 160, 192, 224), (256, 512, 768, 1024), 5, (1, 1, 2, 2), False, "ese"),
    "ese_vovnet57b": ((128, 160, 192, 224), (256, 512, 768, 1024), 5, (1, 1, 4, 3), False, "ese"),
    "ese_vovnet99b": ((128, 160, 192, 224), (256, 512, 768, 1024), 5, (1, 3, 9, 3), False, "ese"),
    "eca_vovnet39b": ((128, 160, 192, 224), (256, 512, 768, 1024), 5, (1, 1, 2, 2), False, "eca"),
}  # fmt: skip


def _vovnet(net: Net, size: int, name: str) -> None:
    widths, outs, layers, blocks, separable, gate = _VOVNETS[name]
    units = Units(net)
    x = units.unit(net.input(3, size, size), "stem.0", 64, 3, 2)
    slim = _separable if separable else _dense
    x = slim(units, x, "stem.1", 64, 1)
    x = slim(units, x, "stem.2", 64 if name.endswith("slim_dw") else 128, 2)
    for stage, (width, out, count) in enumerate(zip(widths, outs, blocks, strict=True)):
        x = net.pool(x, f"stage{stage}.pool", 3, 2, ceil=True) if stage else x
        for number in range(count):
            path = f"stage{stage}.{number}"
            parts, y, source = [x], x, x
            if separable and x.shape[0] != width:
                y = units.unit(x, f"{path}.reduce", width)
            for layer in range(layers):
                y = slim(units, y, f"{path}.{layer}", width, 1)
                parts.append(y)
            y = units.unit(net.concat(f"{path}.join", parts), f"{path}.out", out)
            last = number + 1 == count
            if gate == "ese" and last:
                mean = net.conv(net.adaptive_pool(y, f"{path}.ese.pool", 1), f"{path}.ese", out, 1,
                                bias=True)  # fmt: skip
                mean = net.activation(mean, f"{path}.ese.sigmoid", "hardsigmoid")
                y = net.multiply(f"{path}.ese.scale", y, mean)
            elif gate == "eca" and last:
                y = units.eca(y, f"{path}.eca")
            x = net.add(f"{path}.sum", source, y) if number else y
    classify(net, x)


def _dense(units: Units, x: Tensor, name: str, out: int, stride: int) -> Tensor:
    return units.unit(x, name, out, 3, stride)


def _separable(units: Units, x: Tensor, name: str, out: int, stride: int) -> Tensor:
    """A depth-wise convolution and a point-wise one, normalised once."""
    x = units.net.conv(x, f"{name}.depth", x.shape[0], 3, stride, groups=x.shape[0])
    return units.unit(x, name, out)


# ---- deep layer aggregation: levels, widths, groups, base width, scales ---------------------------
_DLAS: dict[str, tuple[tuple[int, ...], tuple[int, ...], str, int, int, bool]] = {
    "dla34": ((1, 1, 1, 2, 2, 1), (16, 32, 64, 128, 256, 512), "basic", 1, 64, False),
    "dla46_c": ((1, 1, 1, 2, 2, 1), (16, 32, 64, 64, 128, 256), "bottle", 1, 64, False),
    "dla46x_c": ((1, 1, 1, 2, 2, 1), (16, 32, 64, 64, 128, 256), "bottle", 32, 4, False),
    "dla60x_c": ((1, 1, 1, 2, 3, 1), (16, 32, 64, 64, 128, 256), "bottle", 32, 4, False),
    "dla60": ((1, 1, 1, 2, 3, 1), (16, 32, 128, 256, 512, 1024), "bottle", 1, 64, False),
    "dla60x": ((1, 1, 1, 2, 3, 1), (16, 32, 128, 256, 512, 1024), "bottle", 32, 4, False),
    "dla102": ((1, 1, 1, 3, 4, 1), (16, 32, 128, 256, 512, 1024), "bottle", 1, 64, True),
    "dla102x": ((1, 1, 1, 3, 4, 1), (16, 32, 128, 256, 512, 1024), "bottle", 32, 4, True),
    "dla102x2": ((1, 1, 1, 3, 4, 1), (16, 32, 128, 256, 512, 1024), "bottle", 64, 4, True),
    "dla169": ((1, 1, 2, 3, 5, 1), (16, 32, 128, 256, 512, 1024), "bottle", 1, 64, True),
    "dla60_res2net": ((1, 1, 1, 2, 3, 1), (16, 32, 128, 256, 512, 1024), "scales", 1, 28, False),
    "dla60_res2next": ((1, 1, 1, 2, 3, 1), (16, 32, 128, 256, 512, 1024), "scales", 8, 4, False),
}  # fmt: skip


def _dla(net: Net, size: int, name: str) -> None:
    levels, widths, kind, groups, base, residual = _DLAS[name]
    units = Units(net)
    x = units.unit(net.input(3, size, size), "base", widths[0], 7)
    x = units.unit(x, "level0", widths[0], 3)
    x = units.unit(x, "level1", widths[1], 3, 2)
    build = (kind, groups, base)
    for level in range(2, 6):
        x = _tree(units, x, f"level{level}", levels[level], widths[level], 2, build, residual,
                  level > 2, [])  # fmt: skip
    classify(net, x)


_Build = tuple[str, int, int]


def _tree(
    units: Units, x: Tensor, name: str, depth: int, out: int, stride: int, build: _Build,
    residual: bool, root: bool, children: list[Tensor],
) -> Tensor:  # fmt: skip
    """Two sub-trees and a root that joins their outputs (Yu et al. 2018)."""
    net = units.net
    bottom = net.pool(x, f"{name}.pool", stride, stride) if stride > 1 else x
    shortcut = bottom
    if depth == 1 and x.shape[0] != out:
        shortcut = units.unit(bottom, f"{name}.project", out, act=False)
    if root:
        children = [*children, bottom]
    if depth == 1:
        first = _dla_block(units, x, f"{name}.tree1", out, stride, build, shortcut)
        second = _dla_block(units, first, f"{name}.tree2", out, 1, build, first)
        joined = net.concat(f"{name}.join", [second, first, *children])
        y = units.unit(joined, f"{name}.root", out, act=False)
        y = net.add(f"{name}.sum", y, second) if residual else y
        return units.active(y, name)
    first = _tree(units, x, f"{name}.tree1", depth - 1, out, stride, build, residual, False, [])
    return _tree(units, first, f"{name}.tree2", depth - 1, out, 1, build, residual, False,
                 [*children, first])  # fmt: skip


def _dla_block(
    units: Units, x: Tensor, name: str, out: int, stride: int, build: _Build, shortcut: Tensor
) -> Tensor:
    kind, groups, base = build
    net = units.net
    if kind == "basic":
        y = units.unit(x, f"{name}.conv1", out, 3, stride)
        y = units.unit(y, f"{name}.conv2", out, 3, act=False)
        return units.active(net.add(f"{name}.sum", y, shortcut), name)
    if kind == "scales":
        share = int(out * base / 64) * groups // 2
        y = units.unit(x, f"{name}.conv1", 4 * share)
        parts: list[Tensor] = []
        last = net.channels(y, share)
        for number in range(3):
            piece = net.channels(y, share)
            if number and stride == 1:
                piece = net.add(f"{name}.sum{number}", piece, last)
            last = units.unit(piece, f"{name}.conv2.{number}", share, 3, stride, groups)
            parts.append(last)
        piece = net.channels(y, share)
        if stride > 1:
            piece = net.pool(piece, f"{name}.pool", 3, stride, 1, average=True)
        y = net.concat(f"{name}.join", [*parts, piece])
    else:
        inner = int(out * base / 64) * groups // 2
        y = units.unit(x, f"{name}.conv1", inner)
        y = units.unit(y, f"{name}.conv2", inner, 3, stride, groups)
    y = units.unit(y, f"{name}.conv3", out, act=False)
    return units.active(net.add(f"{name}.sum", y, shortcut), name)


# ---- high resolution: modules a stage, blocks a branch, width -------------------------------------
_HRNETS: dict[str, tuple[int, tuple[int, int, int], int, int]] = {
    "hrnet_w18_small": (16, (1, 1, 1), 2, 1), "hrnet_w18_small_v2": (18, (1, 3, 2), 2, 2),
    **{f"hrnet_w{w}": (w, (1, 4, 3), 4, 4) for w in (18, 30, 32, 40, 44, 48, 64)},
}  # fmt: skip


def _hrnet(net: Net, size: int, name: str) -> None:
    width, modules, blocks, first = _HRNETS[name]
    units = Units(net)
    x = units.unit(net.input(3, size, size), "stem.0", 64, 3, 2)
    x = units.unit(x, "stem.1", 64, 3, 2)
    inner = 32 if name.endswith("small") else 64
    for number in range(first):
        x = _hr_bottle(units, x, f"layer1.{number}", inner)
    branches = [x]
    for stage, count in enumerate(modules):
        branches = _hr_widen(units, branches, f"widen{stage}", width)
        for module in range(count):
            path = f"stage{stage}.{module}"
            for i, branch in enumerate(branches):
                for number in range(blocks):
                    branch = _hr_basic(units, branch, f"{path}.{i}.{number}", branch.shape[0])
                branches[i] = branch
            branches = _hr_fuse(units, branches, path)
    heads = [_hr_bottle(units, b, f"head{i}", 32 << i) for i, b in enumerate(branches)]
    y = heads[0]
    for i, head in enumerate(heads[1:], 1):
        down = net.conv(y, f"down{i}", head.shape[0], 3, 2, bias=True)
        y = net.add(f"join{i}", head, units.active(units.normal(down, f"down{i}"), f"down{i}"))
    y = net.conv(y, "last", 2048, 1, bias=True)
    classify(net, units.active(units.normal(y, "last"), "last"))


def _hr_bottle(units: Units, x: Tensor, name: str, inner: int) -> Tensor:
    y = units.unit(units.unit(x, f"{name}.1", inner), f"{name}.2", inner, 3)
    y = units.unit(y, f"{name}.3", 4 * inner, act=False)
    if x.shape[0] != 4 * inner:
        x = units.unit(x, f"{name}.shortcut", 4 * inner, act=False)
    return units.active(units.net.add(f"{name}.sum", x, y), name)


def _hr_basic(units: Units, x: Tensor, name: str, width: int) -> Tensor:
    y = units.unit(units.unit(x, f"{name}.1", width, 3), f"{name}.2", width, 3, act=False)
    return units.active(units.net.add(f"{name}.sum", x, y), name)


def _hr_widen(units: Units, branches: list[Tensor], name: str, width: int) -> list[Tensor]:
    """Add a branch of half the resolution; the first stage also narrows its only branch."""
    found = list(branches)
    if len(branches) == 1:
        found[0] = units.unit(branches[0], f"{name}.0", width, 3)
    found.append(units.unit(branches[-1], f"{name}.new", width << len(branches), 3, 2))
    return found


def _hr_fuse(units: Units, branches: list[Tensor], name: str) -> list[Tensor]:
    """Every branch becomes the sum of all, resampled to its resolution."""
    net, fused = units.net, []
    for i, target in enumerate(branches):
        terms = [target]
        for j, source in enumerate(branches):
            path = f"{name}.fuse{i}.{j}"
            if j > i:
                y = units.unit(source, path, target.shape[0], act=False)
                terms.append(net.upsample(y, f"{path}.up", target.shape[1:]))
            elif j < i:
                y = source
                for step in range(i - j):
                    last = step == i - j - 1
                    out = target.shape[0] if last else source.shape[0]
                    y = units.unit(y, f"{path}.{step}", out, 3, 2, act=not last)
                terms.append(y)
        fused.append(units.active(net.add(f"{name}.sum{i}", *terms), f"{name}.{i}"))
    return fused


# ---- dual paths: first width, base, groups, blocks, growths ---------------------------------------
_DPNS: dict[str, tuple[int, int, int, tuple[int, ...], tuple[int, ...], bool]] = {
    "dpn68": (10, 128, 32, (3, 4, 12, 3), (16, 32, 32, 64), True),
    "dpn92": (64, 96, 32, (3, 4, 20, 3), (16, 32, 24, 128), False),
    "dpn98": (96, 160, 40, (3, 6, 20, 3), (16, 32, 32, 128), False),
    "dpn131": (128, 160, 40, (4, 8, 28, 3), (16, 32, 32, 128), False),
    "dpn107": (128, 200, 50, (4, 8, 20, 3), (20, 64, 64, 128), False),
}  # fmt: skip


def _dpn(net: Net, size: int, name: str) -> None:
    """Dual path networks (Chen et al. 2017): a residual and a dense path beside each other."""
    first, rate, groups, depths, growths, small = _DPNS[name.removesuffix("b")]
    units = Units(net)
    x = units.unit(net.input(3, size, size), "stem", first, 3 if small else 7, 2)
    x = net.pool(x, "stem.pool", 3, 2, 1)
    parts = [x]
    for stage, (depth, growth) in enumerate(zip(depths, growths, strict=True)):
        wide = (64 if small else 256) << stage
        inner = rate * wide // (64 if small else 256)
        for number in range(depth):
            path, stride = f"stage{stage}.{number}", 2 if number == 0 and stage else 1
            x = net.concat(f"{path}.join", parts) if len(parts) > 1 else parts[0]
            if number == 0:
                y = _pre(units, x, f"{path}.shortcut", wide + 2 * growth, 1, stride)
                residual, dense = net.channels(y, wide), net.channels(y, 2 * growth)
            else:
                residual, dense = net.channels(parts[0], wide), parts[1]
            y = _pre(units, x, f"{path}.a", inner)
            y = _pre(units, y, f"{path}.b", inner, 3, stride, groups)
            y = _pre(units, y, f"{path}.c", wide + growth)
            total = net.add(f"{path}.sum", residual, net.channels(y, wide))
            grown = net.concat(f"{path}.grow", [dense, net.channels(y, growth)])
            parts = [total, grown]
    x = units.active(units.normal(net.concat("last.join", parts), "last"), "last")
    classify(net, x)


def _pre(
    units: Units, x: Tensor, name: str, out: int, kernel: int = 1, stride: int = 1, groups: int = 1
) -> Tensor:
    """Normalise and activate before the convolution."""
    y = units.active(units.normal(x, name), name)
    return units.net.conv(y, name, out, kernel, stride, groups=groups)


# ---- DenseNets: growth, blocks, first width, deep stem -------------------------------------------
_DENSE: dict[str, tuple[int, tuple[int, ...], int, bool]] = {
    "densenet121d": (32, (6, 12, 24, 16), 64, True), "densenetblur121d": (32, (6, 12, 24, 16), 64, True),
    "densenet264": (48, (6, 12, 64, 48), 64, False), "densenet264d_iabn": (48, (6, 12, 64, 48), 64, True),
}  # fmt: skip


def _densenet(net: Net, size: int, name: str) -> None:
    growth, depths, first, deep = _DENSE[name]
    units = Units(net)
    x = net.input(3, size, size)
    if deep:
        x = units.unit(units.unit(x, "stem.0", first // 2, 3, 2), "stem.1", first // 2, 3)
        x = units.unit(x, "stem.2", first, 3)
    else:
        x = units.unit(x, "stem", first, 7, 2)
    x = net.pool(x, "stem.pool", 3, 2, 1)
    for stage, depth in enumerate(depths):
        parts = [x]
        for number in range(depth):
            path = f"block{stage}.{number}"
            y = net.concat(f"{path}.join", parts) if len(parts) > 1 else x
            y = _pre(units, _pre(units, y, f"{path}.a", 4 * growth), f"{path}.b", growth, 3)
            parts.append(y)
        x = net.concat(f"block{stage}.join", parts)
        if stage + 1 < len(depths):
            x = _pre(units, x, f"transition{stage}", x.shape[0] // 2)
            x = net.pool(x, f"transition{stage}.pool", 2, 2, average=True)
    classify(net, units.active(units.normal(x, "last"), "last"))


# ---- SelecSLS: in, skip, middle, out, is first, stride ------------------------------------------
_S = tuple[int, int, int, int, bool, int]
_SLS60: tuple[_S, ...] = (
    (32, 0, 64, 64, True, 2),
    (64, 64, 64, 128, False, 1),
    (128, 0, 128, 128, True, 2),
    (128, 128, 128, 128, False, 1),
    (128, 128, 128, 288, False, 1),
    (288, 0, 288, 288, True, 2),
    (288, 288, 288, 288, False, 1),
    (288, 288, 288, 288, False, 1),
    (288, 288, 288, 416, False, 1),
)
_SLS42: tuple[_S, ...] = (
    (32, 0, 64, 64, True, 2),
    (64, 64, 64, 128, False, 1),
    (128, 0, 144, 144, True, 2),
    (144, 144, 144, 288, False, 1),
    (288, 0, 304, 304, True, 2),
    (304, 304, 304, 480, False, 1),
)
_SLS84: tuple[_S, ...] = (
    (32, 0, 64, 64, True, 2),
    (64, 64, 64, 144, False, 1),
    (144, 0, 144, 144, True, 2),
    *(((144, 144, 144, 144, False, 1),) * 3),
    (144, 144, 144, 304, False, 1),
    (304, 0, 304, 304, True, 2),
    *(((304, 304, 304, 304, False, 1),) * 4),
    (304, 304, 304, 512, False, 1),
)
_Head = tuple[tuple[int, int, int], ...]
_SELECSLS: dict[str, tuple[tuple[_S, ...], _Head]] = {
    "selecsls42": (_SLS42, ((960, 3, 2), (1024, 3, 1), (1024, 3, 2), (1280, 1, 1))),
    "selecsls42b": (_SLS42, ((960, 3, 2), (1024, 3, 1), (1280, 3, 2), (1024, 1, 1))),
    "selecsls60": (_SLS60, ((756, 3, 2), (1024, 3, 1), (1024, 3, 2), (1280, 1, 1))),
    "selecsls60b": (_SLS60, ((756, 3, 2), (1024, 3, 1), (1280, 3, 2), (1024, 1, 1))),
    "selecsls84": (_SLS84, ((960, 3, 2), (1024, 3, 1), (1024, 3, 2), (1280, 3, 1))),
}


def _selecsls(net: Net, size: int, name: str) -> None:
    """SelecSLS (Mehta et al. 2020): half-width convolutions, joined with a long skip."""
    blocks, head = _SELECSLS[name]
    units = Units(net)
    x = units.unit(net.input(3, size, size), "stem", 32, 3, 2)
    skip = x
    for number, (_, _, middle, out, first, stride) in enumerate(blocks):
        path = f"blocks.{number}"
        d1 = units.unit(x, f"{path}.1", middle, 3, stride)
        d2 = units.unit(units.unit(d1, f"{path}.2", middle), f"{path}.3", middle // 2, 3)
        d3 = units.unit(units.unit(d2, f"{path}.4", middle), f"{path}.5", middle // 2, 3)
        parts = [d1, d2, d3] if first else [d1, d2, d3, skip]
        x = units.unit(net.concat(f"{path}.join", parts), f"{path}.6", out)
        skip = x if first else skip
    for number, (out, kernel, stride) in enumerate(head):
        x = units.unit(x, f"head.{number}", out, kernel, stride)
    classify(net, x)


# ---- GhostNet -----------------------------------------------------------------------------------
_GHOST: tuple[tuple[int, int, int, float, int], ...] = (
    (3, 16, 16, 0, 1),
    (3, 48, 24, 0, 2),
    (3, 72, 24, 0, 1),
    (5, 72, 40, 0.25, 2),
    (5, 120, 40, 0.25, 1),
    (3, 240, 80, 0, 2),
    (3, 200, 80, 0, 1),
    (3, 184, 80, 0, 1),
    (3, 184, 80, 0, 1),
    (3, 480, 112, 0.25, 1),
    (3, 672, 112, 0.25, 1),
    (5, 672, 160, 0.25, 2),
    (5, 960, 160, 0, 1),
    (5, 960, 160, 0.25, 1),
    (5, 960, 160, 0, 1),
    (5, 960, 160, 0.25, 1),
)


def _ghostnet(net: Net, size: int, share: float) -> None:
    """GhostNet (Han et al. 2020): half of the channels from cheap depth-wise convolutions."""
    units = Units(net)

    def wide(count: float) -> int:
        return rounded(count * share, 4)

    x = units.unit(net.input(3, size, size), "stem", wide(16), 3, 2)
    for number, (kernel, inner, out, gate, stride) in enumerate(_GHOST):
        path, middle, last = f"blocks.{number}", wide(inner), wide(out)
        y = _ghost(units, x, f"{path}.ghost1", middle, True)
        if stride > 1:
            y = units.unit(y, f"{path}.depth", middle, kernel, stride, middle, act=False)
        if gate:
            y = units.gate(y, f"{path}.gate", rounded(middle * gate, 4))
        y = _ghost(units, y, f"{path}.ghost2", last, False)
        shortcut = x
        if x.shape != y.shape:
            shortcut = units.unit(x, f"{path}.shortcut.depth", x.shape[0], kernel, stride,
                                  x.shape[0], act=False)  # fmt: skip
            shortcut = units.unit(shortcut, f"{path}.shortcut", last, act=False)
        x = net.add(f"{path}.sum", y, shortcut)
    x = net.adaptive_pool(units.unit(x, "last", wide(960)), "head.pool", 1)
    x = net.activation(net.conv(x, "head.conv", 1280, 1, bias=True), "head.relu")
    classify(net, net.view(x, 1280))


def _ghost(units: Units, x: Tensor, name: str, out: int, act: bool) -> Tensor:
    half = -(-out // 2)
    first = units.unit(x, f"{name}.primary", half, act=act)
    second = units.unit(first, f"{name}.cheap", half, 3, 1, half, act=act)
    return units.net.channels(units.net.concat(f"{name}.join", [first, second]), out)


def known(name: str) -> bool:
    """Whether a name is one of this module's."""
    tables = (_VOVNETS, _DLAS, _HRNETS, _DENSE, _SELECSLS)
    if any(name in table for table in tables) or name.removesuffix("b") in _DPNS:
        return True
    return re.fullmatch(r"ghostnet_(050|100|130)", name) is not None


def classifier(name: str, net: Net, size: int) -> tuple[str, ...]:
    """State a network of this module and its loss."""
    if name in _VOVNETS:
        _vovnet(net, size, name)
    elif name in _DLAS:
        _dla(net, size, name)
    elif name in _HRNETS:
        _hrnet(net, size, name)
    elif name in _DENSE:
        _densenet(net, size, name)
    elif name in _SELECSLS:
        _selecsls(net, size, name)
    elif name.startswith("dpn"):
        _dpn(net, size, name)
    else:
        _ghostnet(net, size, int(name[-3:]) / 100)
    return ()
