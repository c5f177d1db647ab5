"""Products: matrix products, convolutions and attention by size, forward and both gradients.

Each is timed in the layout and transposition in which a framework's layers call it. GridSizes are those
of the product itself, (rows, columns, depth), as `graph.Op.dims` states them: a convolution is its
implicit matrix product.

GridSizes: at which sizes a device is timed, so that operations are measured and not their launches.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from forerun.measure.probe.clock import Call

# More would take a small host too long; time is proportional to size beyond.
MOST_FLOPS = 1.3e9
_CUDA_FLOPS, _CUDA_WIDE_FLOPS = 1.2e12, 1.4e11  # many cards do fp64 at a thirtieth of fp32
_CUDA_FOOTPRINT = 4e9
_TENSORS = 5  # that an operation of elements reads, writes and keeps, at most
# A call that takes less than so many launches says more of these than of itself.
LAUNCHES = 3.0


@dataclass(frozen=True)
class GridSizes:
    """The points of the grids; those of a core, unless said otherwise.

    Attributes:
        rows, sides: of matrix products.
        images: (side of the image, samples) of convolutions.
        outputs, inputs: channels of dense 3 x 3 convolutions.
        pointwise: channels of 1 x 1 convolutions.
        depthwise, groups: channels of depthwise ones; groups of 16 channels.
        tokens, head_sizes, heads: of attention; heads are those of all samples.
        counts: elements of an operation's input: from one that only costs a call, to what no
            cache holds.
        lines, widths: of operations that go row by row; a size is lines x 64 elements.
        footprints: bytes that are gone through in turn: from what a cache holds to what only
            memory does.
        chunk: elements of one call of those; 0 goes through all of them in one call.
        most_flops: a point with more is not run.
    """

    rows: tuple[int, ...] = (8, 64, 512)
    sides: tuple[int, ...] = (10, 64, 256, 1024)
    images: tuple[tuple[int, int], ...] = ((8, 8), (16, 16), (32, 16))
    outputs: tuple[int, ...] = (16, 64, 128)
    inputs: tuple[int, ...] = (3, 16, 64, 128)
    pointwise: tuple[int, ...] = (16, 64, 256)
    depthwise: tuple[int, ...] = (16, 64, 256)
    groups: tuple[int, ...] = (2, 8, 32)
    tokens: tuple[float, ...] = (32.0, 128.0, 512.0)
    head_sizes: tuple[float, ...] = (32.0, 64.0)
    heads: tuple[float, ...] = (16.0, 128.0)
    counts: tuple[int, ...] = (64, 8192, 131072, 1048576, 4194304)
    lines: tuple[int, ...] = (8, 256, 4096)
    widths: tuple[int, ...] = (10, 128, 1024)
    footprints: tuple[float, ...] = (1e6, 4e6, 8e6, 16e6, 32e6, 64e6, 192e6)
    chunk: int = 65536
    most_flops: float = MOST_FLOPS


CPU = GridSizes()


def cuda_sizes(free_bytes: float, element_bytes: int) -> GridSizes:
    """Return the sizes of a GPU, whose launches take as long as 100 MB of its memory.

    Args:
        free_bytes: of its memory; nothing takes more than a quarter of them.
        element_bytes: of a number.
    """
    room = free_bytes / 4.0
    largest = min(_CUDA_FOOTPRINT, room)
    counts = (64, 65536, 1048576, 16777216, 67108864)
    return GridSizes(
        rows=(16, 256, 2048, 8192), sides=(64, 512, 2048, 8192),
        images=((8, 16), (16, 64), (56, 32)),
        outputs=(64, 128, 512), inputs=(3, 64, 128, 512), pointwise=(64, 256, 1024),
        depthwise=(32, 128, 512), groups=(2, 8, 32),
        tokens=(128.0, 512.0, 2048.0), head_sizes=(64.0, 128.0), heads=(16.0, 128.0),
        counts=tuple(n for n in counts if n * _TENSORS * element_bytes <= room),
        lines=(64, 4096, 262144), widths=(10, 128, 1024, 8192),
        footprints=(
            *(f for f in (4e6, 16e6, 64e6, 256e6, 1e9) if f < largest), largest
        ),
        chunk=0,
        most_flops=_CUDA_FLOPS if element_bytes <= 4 else _CUDA_WIDE_FLOPS,
    )  # fmt: skip


def sizes_of(torch: object, device: str, element_bytes: int) -> GridSizes:
    """Return the sizes at which a device is timed."""
    if device != "cuda":
        return CPU
    free, _ = torch.cuda.mem_get_info()  # type: ignore[attr-defined]
    return cuda_sizes(float(free), element_bytes)


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


def product_grids(torch: Any, device: str, dtype: Any, sizes: GridSizes = CPU) -> Iterator[Grid]:
    """Yield what is timed of products, the most useful first."""
    for grid in _grids(torch, {"device": device, "dtype": dtype}, sizes):
        yield replace(grid, most_flops=sizes.most_flops)


def _grids(torch: Any, made: dict[str, Any], sizes: GridSizes) -> Iterator[Grid]:
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
