"""Products: matrix products, convolutions and attention by size, forward and both gradients.

Each is timed in the layout and transposition in which a framework's layers call it. Sizes are those
of the product itself, (rows, columns, depth), as `graph.Op.dims` states them: a convolution is its
implicit matrix product.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from forerun.measure.probe.clock import Call

ROWS, SIDES = (8, 64, 512), (10, 64, 256, 1024)
# (side of the image, samples): pixels in all are 512, 4,096 and 16,384.
IMAGES = ((8, 8), (16, 16), (32, 16))
# More would take a small host too long; time is proportional to size beyond.
MOST_FLOPS = 1.3e9
ROLES = ("forward", "dgrad", "wgrad")


@dataclass(frozen=True)
class Grid:
    """What is timed at each point of a grid of sizes: `make(*sizes)` returns the call.

    flops: of a point, to leave out what takes too long. per: how many units one call of a point
    does, whose time is asked.
    """

    name: str
    axes: tuple[tuple[float, ...], ...]
    make: Callable[..., Call]
    flops: Callable[..., float] = lambda *sizes: 0.0
    per: Callable[..., float] = lambda *sizes: 1.0

    @property
    def points(self) -> list[tuple[float, ...]]:
        """All points, the last axis runs fastest."""
        return list(itertools.product(*self.axes))


def product_grids(torch: Any, device: str, dtype: Any) -> Iterator[Grid]:
    """Yield what is timed of products, the most useful first."""
    made = {"device": device, "dtype": dtype}
    yield from _matmuls(torch, made)
    yield from _convolutions(torch, made, 3, "conv", (16, 64, 128), (3, 16, 64, 128))
    yield from _attentions(torch, made)
    yield from _convolutions(torch, made, 1, "conv_1x1", (16, 64, 256), (16, 64, 256))
    yield from _depthwise(torch, made)
    yield from _grouped(torch, made)


def _matmuls(torch: Any, made: dict[str, Any]) -> Iterator[Grid]:
    linear, random = torch.nn.functional.linear, torch.randn

    def forward(rows: int, columns: int, depth: int) -> Call:
        x, w, b = (
            random(rows, depth, **made),
            random(columns, depth, **made),
            random(columns, **made),
        )
        return lambda: linear(x, w, b)

    def dgrad(rows: int, columns: int, depth: int) -> Call:
        g, w = random(rows, depth, **made), random(depth, columns, **made)
        return lambda: g.mm(w)

    def wgrad(rows: int, columns: int, depth: int) -> Call:
        g, x = random(depth, rows, **made), random(depth, columns, **made)
        return lambda: g.t().mm(x)

    yield Grid("matmul.forward", (ROWS, SIDES, SIDES), forward, _flops)
    yield Grid("matmul.dgrad", (ROWS, SIDES, SIDES), dgrad, _flops)
    yield Grid("matmul.wgrad", (SIDES, SIDES, ROWS), wgrad, _flops)


def _flops(rows: float, columns: float, depth: float) -> float:
    return 2.0 * rows * columns * depth


def _convolutions(
    torch: Any, made: dict[str, Any], kernel: int, name: str,
    outputs: tuple[int, ...], inputs: tuple[int, ...],
) -> Iterator[Grid]:  # fmt: skip
    """Yield dense convolutions, whose depth is the input channels times the kernel's area."""
    area = kernel * kernel
    pixels = tuple(float(side * side * n) for side, n in IMAGES)
    image = dict(zip(pixels, IMAGES, strict=True))
    depths = tuple(float(c * area) for c in inputs)
    widths = tuple(float(c) for c in outputs)

    def forward(m: float, n: float, k: float) -> Call:
        return _convolution(torch, made, image[m], k / area, n, 1, kernel, "forward")

    def dgrad(m: float, k: float, n: float) -> Call:
        return _convolution(torch, made, image[m], k / area, n, 1, kernel, "dgrad")

    def wgrad(k: float, n: float, m: float) -> Call:
        return _convolution(torch, made, image[m], k / area, n, 1, kernel, "wgrad")

    yield Grid(f"{name}.forward", (pixels, widths, depths), forward, _flops)
    yield Grid(f"{name}.dgrad", (pixels, depths, widths), dgrad, _flops)
    yield Grid(f"{name}.wgrad", (depths, widths, pixels), wgrad, _flops)


def _convolution(
    torch: Any, made: dict[str, Any], image: tuple[int, int], inputs: float, outputs: float,
    groups: int, kernel: int, role: str,
) -> Call:  # fmt: skip
    """Return a call of a convolution; inputs and outputs are channels of one group."""
    side, samples = image
    c, o = int(inputs) * groups, int(outputs) * groups
    x = torch.randn(samples, c, side, side, **made)
    w = torch.randn(o, int(inputs), kernel, kernel, **made)
    b, pad = torch.randn(o, **made), kernel // 2
    if role == "forward":
        return lambda: torch.nn.functional.conv2d(x, w, b, 1, pad, 1, groups)
    g = torch.randn(samples, o, side, side, **made)
    mask = [role == "dgrad", role == "wgrad", role == "wgrad"]
    backward = torch.ops.aten.convolution_backward.default
    one, size = [1, 1], [pad, pad]
    return lambda: backward(g, x, w, [o], one, size, one, False, [0, 0], groups, mask)


def _depthwise(torch: Any, made: dict[str, Any]) -> Iterator[Grid]:
    """Yield 3 x 3 convolutions of single channels, by pixels and channels."""
    yield from (_by_group(torch, made, "conv_depthwise", 1, (16, 64, 256), role) for role in ROLES)


def _grouped(torch: Any, made: dict[str, Any]) -> Iterator[Grid]:
    """Yield 3 x 3 convolutions of groups of 16 channels, by pixels and groups."""
    yield from (_by_group(torch, made, "conv_grouped", 16, (2, 8, 32), role) for role in ROLES)


def _by_group(
    torch: Any, made: dict[str, Any], name: str, width: int, groups: tuple[int, ...], role: str
) -> Grid:
    pixels = tuple(float(side * side * n) for side, n in IMAGES)
    image = dict(zip(pixels, IMAGES, strict=True))

    def make(m: float, g: float) -> Call:
        return _convolution(torch, made, image[m], width, width, int(g), 3, role)

    def flops(m: float, g: float) -> float:
        return 18.0 * m * g * width * width

    return Grid(f"{name}.{role}", (pixels, tuple(map(float, groups))), make, flops)


def _attentions(torch: Any, made: dict[str, Any]) -> Iterator[Grid]:
    """Yield fused attention by tokens, size of a head, and heads of all samples."""
    axes = ((32.0, 128.0, 512.0), (32.0, 64.0), (16.0, 128.0))
    attend = torch.nn.functional.scaled_dot_product_attention

    def inputs(tokens: float, size: float, heads: float) -> list[Any]:
        shape = (int(heads) // 4, 4, int(tokens), int(size))
        return [torch.randn(*shape, **made).requires_grad_() for _ in range(3)]

    def forward(tokens: float, size: float, heads: float) -> Call:
        query, key, value = inputs(tokens, size, heads)
        return lambda: attend(query, key, value)

    def backward(tokens: float, size: float, heads: float) -> Call:
        given = inputs(tokens, size, heads)
        made_of = attend(*given)
        gradient = torch.randn_like(made_of)
        return lambda: torch.autograd.grad(made_of, given, gradient, retain_graph=True)

    def flops(tokens: float, size: float, heads: float) -> float:
        return 10.0 * tokens * tokens * size * heads

    yield Grid("attention.forward", axes, forward, flops)
    yield Grid("attention.backward", axes, backward, flops)
