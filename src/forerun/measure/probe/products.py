"""Products: matrix products, convolutions and attention by size, forward and both gradients.

Each is timed in the layout and transposition in which a framework's layers call it. Sizes are those
of the product itself, (rows, columns, depth), as `graph.Op.dims` states them: a convolution is its
implicit matrix product.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from forerun.measure.probe.clock import Call
from forerun.measure.probe.sizes import CPU, MOST_FLOPS, Sizes

ROLES = ("forward", "dgrad", "wgrad")


@dataclass(frozen=True)
class Grid:
    """What is timed at each point of a grid of sizes: `make(*sizes)` returns the call.

    flops: of a point, to leave out what takes too long: more than `most_flops`. per: how many
    units one call of a point does, whose time is asked. least_seconds: points whose call takes
    less tell of launches and are left out (grids of one axis).
    """

    name: str
    axes: tuple[tuple[float, ...], ...]
    make: Callable[..., Call]
    flops: Callable[..., float] = lambda *sizes: 0.0
    per: Callable[..., float] = lambda *sizes: 1.0
    most_flops: float = MOST_FLOPS
    least_seconds: float = 0.0

    @property
    def points(self) -> list[tuple[float, ...]]:
        """All points, the last axis runs fastest."""
        return list(itertools.product(*self.axes))


def product_grids(torch: Any, device: str, dtype: Any, sizes: Sizes = CPU) -> Iterator[Grid]:
    """Yield what is timed of products, the most useful first."""
    for grid in _grids(torch, {"device": device, "dtype": dtype}, sizes):
        yield replace(grid, most_flops=sizes.most_flops)


def _grids(torch: Any, made: dict[str, Any], sizes: Sizes) -> Iterator[Grid]:
    images = sizes.images
    yield from _matmuls(torch, made, sizes.rows, sizes.sides)
    yield from _convolutions(torch, made, images, 3, "conv", sizes.outputs, sizes.inputs)
    yield from _attentions(torch, made, (sizes.tokens, sizes.head_sizes, sizes.heads))
    yield from _convolutions(
        torch, made, images, 1, "conv_1x1", sizes.pointwise, sizes.pointwise
    )  # fmt: skip
    # 3 x 3 convolutions of single channels, by pixels and channels; of groups of 16 channels.
    for name, width, groups in (
        ("conv_depthwise", 1, sizes.depthwise), ("conv_grouped", 16, sizes.groups)
    ):  # fmt: skip
        for role in ROLES:
            yield _by_group(torch, made, images, name, width, groups, role)


def _matmuls(
    torch: Any, made: dict[str, Any], tall: tuple[int, ...], sides: tuple[int, ...]
) -> Iterator[Grid]:
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

    yield Grid("matmul.forward", (tall, sides, sides), forward, _flops)
    yield Grid("matmul.dgrad", (tall, sides, sides), dgrad, _flops)
    yield Grid("matmul.wgrad", (sides, sides, tall), wgrad, _flops)


def _flops(rows: float, columns: float, depth: float) -> float:
    return 2.0 * rows * columns * depth


def _convolutions(
    torch: Any, made: dict[str, Any], images: tuple[tuple[int, int], ...], kernel: int, name: str,
    outputs: tuple[int, ...], inputs: tuple[int, ...],
) -> Iterator[Grid]:  # fmt: skip
    """Yield dense convolutions, whose depth is the input channels times the kernel's area."""
    area = kernel * kernel
    pixels = tuple(float(side * side * n) for side, n in images)
    image = dict(zip(pixels, images, strict=True))
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


def _by_group(
    torch: Any, made: dict[str, Any], images: tuple[tuple[int, int], ...], name: str, width: int,
    groups: tuple[int, ...], role: str,
) -> Grid:  # fmt: skip
    pixels = tuple(float(side * side * n) for side, n in images)
    image = dict(zip(pixels, images, strict=True))

    def make(m: float, g: float) -> Call:
        return _convolution(torch, made, image[m], width, width, int(g), 3, role)

    def flops(m: float, g: float) -> float:
        return 18.0 * m * g * width * width

    return Grid(f"{name}.{role}", (pixels, tuple(map(float, groups))), make, flops)


def _attentions(
    torch: Any, made: dict[str, Any], axes: tuple[tuple[float, ...], ...]
) -> Iterator[Grid]:
    """Yield fused attention by tokens, size of a head, and heads of all samples."""
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
