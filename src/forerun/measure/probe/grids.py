"""Grids: the operations that a probe times, and the sizes at which it times them.

Products (matrix products, convolutions, attention) are timed in the layout and transposition in which a
framework's layers call them, forward and both gradients; sizes are those of the product itself, (rows,
columns, depth), as `graph.Op.dims` states them: a convolution is its implicit matrix product. Operations
that move elements are timed by the elements they move and, where they go row by row, by width.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
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

    Nothing takes more than a quarter of `free_bytes`.
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


# Where rows, columns and depth of the forward product stand among the axes of each role's.
_ROLE_AXES = {"forward": (0, 1, 2), "dgrad": (0, 2, 1), "wgrad": (2, 1, 0)}
ROLES = tuple(_ROLE_AXES)


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
        x, w = random(rows, depth, **made), random(columns, depth, **made)
        b = random(columns, **made)
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

    def make(role: str, *size: float) -> Call:
        m, n, k = (size[at] for at in _ROLE_AXES[role])
        return _convolution(torch, made, image[m], k / area, n, 1, kernel, role)

    sides = (pixels, widths, depths)
    for role, axes in _ROLE_AXES.items():
        yield Grid(f"{name}.{role}", tuple(sides[at] for at in axes), partial(make, role), _flops)


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


# Operations of each input element to the one that stands for others of its class.
CLASSES = {
    "elementwise": "add", "norm": "native_layer_norm", "batch_norm": "native_batch_norm",
    "softmax": "_softmax", "pool": "max_pool2d_with_indices", "reduce": "sum", "copy": "clone",
    "norm.backward": "native_layer_norm_backward", "softmax.backward": "_softmax_backward_data",
    "batch_norm.backward": "native_batch_norm_backward",
    "pool.backward": "max_pool2d_with_indices_backward",
    "elementwise.backward": "threshold_backward", "unknown": "add",
}  # fmt: skip
_EMBEDDING_WIDTH, _EMBEDDING_ROWS = 128, 1000
# (name, elements moved for each of the input, call by elements of the input, or by rows and width).
Operation = tuple[str, float, Callable[..., Call]]


def memory_grid(
    torch: Any, device: str, dtype: Any, sizes: GridSizes = CPU, least_seconds: float = 0.0
) -> Grid:
    """Return the reading and writing of one element by the bytes that are gone through in turn.

    What was last touched so many bytes ago comes from the cache that holds so much, or from memory.

    A call that takes less than `least_seconds` tells of its launch, and its footprint is left out.
    """
    random = partial(torch.randn, device=device, dtype=dtype)

    def parts(footprint: float) -> tuple[int, int]:
        """Return in how many calls of how many elements a footprint is gone through."""
        if not sizes.chunk:
            return 1, max(int(footprint / 2 / dtype.itemsize), 1)
        return max(round(footprint / 8 / sizes.chunk), 1), sizes.chunk

    def make(footprint: int) -> Call:
        count, length = parts(footprint)
        pairs = [(x := random(length), torch.empty_like(x)) for _ in range(count)]
        if count == 1:
            return partial(torch.mul, pairs[0][0], 2.0, out=pairs[0][1])

        def sweep() -> None:
            for x, y in pairs:
                torch.mul(x, 2.0, out=y)

        return sweep

    def each(footprint: float) -> float:
        count, length = parts(footprint)
        return float(count * length)

    return Grid("memory", (sizes.footprints,), make, per=each, least_seconds=least_seconds)


def element_grids(torch: Any, device: str, dtype: Any, sizes: GridSizes = CPU) -> Iterator[Grid]:
    """Yield what is timed of operations that move elements, the most useful first."""
    random = partial(torch.randn, device=device, dtype=dtype)

    def by_count(size: float, moved: float, make: Callable[..., Call]) -> Call:
        return make(round(size / moved))

    def by_width(size: float, width: float, moved: float, make: Callable[..., Call]) -> Call:
        return make(max(round(size / moved / width), 1), int(width))

    for name, moved, make in _by_elements(torch, random, device):
        counts = tuple(float(moved * n) for n in sizes.counts)
        yield Grid(name, (counts,), partial(by_count, moved=moved, make=make))
    for name, moved, make in _by_rows(torch, random, device):
        axes = (tuple(float(moved * n * 64) for n in sizes.lines), tuple(map(float, sizes.widths)))
        yield Grid(name, axes, partial(by_width, moved=moved, make=make))


def _by_elements(torch: Any, random: Callable[..., Any], device: str) -> Iterator[Operation]:
    """Yield operations by elements of the input."""
    aten, functional = torch.ops.aten, torch.nn.functional

    def one(call: Any, *rest: Any) -> Callable[[int], Call]:
        return lambda n: partial(call, random(n), *rest)

    def two(call: Any, *rest: Any) -> Callable[[int], Call]:
        return lambda n: partial(call, random(n), random(n), *rest)

    def clone(n: int) -> Call:
        # Attention's heads are turned the one way, channels and tokens the other, where neighbours
        # do not stay neighbours; a graph tells only that elements were copied, so one call of each
        # kind is taken, with half of the elements.
        side = 32 if n >= 65536 else 8
        both = random(max(n // 2 // side**2, 1), side, side)
        heads, inner = both.unsqueeze(2).transpose(0, 1), both.transpose(1, 2)
        return lambda: (heads.contiguous(), inner.contiguous())

    def rows_summed(n: int) -> Call:  # as a bias has it as its gradient
        width = 64 if n <= 8192 else 256
        return partial(random(max(n // width, 1), width).sum, 0, keepdim=True)

    def mean(n: int) -> Call:
        return partial(random(max(n // 4096, 1), 64, min(64, max(n // 64, 1))).mean, 1)

    def halves(call: Any) -> Callable[[int], Call]:
        return lambda n: partial(call, list(random(2, max(n // 2, 1))))

    yield "add", 3, two(torch.add)
    yield "clone", 2, clone
    yield "sum", 1, rows_summed
    yield "threshold_backward", 3, two(aten.threshold_backward.default, 0)
    yield "relu", 2, one(torch.relu)
    yield from _of_images(torch, random, device)
    yield "mul", 3, two(torch.mul)
    yield "gelu", 2, one(functional.gelu)
    yield "gelu_backward", 3, two(aten.gelu_backward.default)
    yield "native_dropout", 2.25, one(aten.native_dropout.default, 0.1, True)
    yield from _embeddings(torch, random, device)
    yield "mean", 1, mean
    yield "div", 2, one(torch.div, 3.0)
    yield "cat", 2, halves(torch.cat)
    yield "stack", 2, halves(torch.stack)
    for name in ("tanh", "sigmoid", "silu", "hardswish"):
        yield name, 2, one(getattr(torch, name, None) or getattr(functional, name))
        yield f"{name}_backward", 3, two(getattr(aten, f"{name}_backward").default)


def _of_images(torch: Any, random: Callable[..., Any], device: str) -> Iterator[Operation]:
    """Yield pooling and batch normalization by elements of the images."""
    aten, functional = torch.ops.aten, torch.nn.functional

    def image(n: int) -> Any:
        """Return images of 16 x 16 in 16 channels with about n elements in all."""
        return random(1, max(n // 64, 1), 8, 8) if n < 4096 else random(n // 4096, 16, 16, 16)

    def pool(n: int) -> Call:
        return partial(functional.max_pool2d_with_indices, image(n), 2)

    def pool_gradient(n: int) -> Call:
        x = image(n)
        y, index = functional.max_pool2d_with_indices(x, 2)
        call, sides = aten.max_pool2d_with_indices_backward.default, [2, 2]
        return lambda: call(y, x, sides, sides, [0, 0], [1, 1], False, index)

    def batch_norm(n: int, gradient: bool = False) -> Call:
        x = image(n)
        zeros = torch.zeros(x.shape[1], device=device)
        weight, bias, mean, variance = zeros + 1, zeros, zeros.clone(), zeros + 1
        forward = partial(
            aten.native_batch_norm.default, x, weight, bias, mean, variance, True, 0.1, 1e-5
        )
        if not gradient:
            return forward
        (_, kept, scale), g = forward(), torch.randn_like(x)
        call = aten.native_batch_norm_backward.default
        return lambda: call(
            g, x, weight, mean, variance, kept, scale, True, 1e-5, [True, True, True]
        )

    # Read: the image. Written: a quarter of it, and as many indices of 8 bytes.
    yield "max_pool2d_with_indices", 1.75, pool
    yield "max_pool2d_with_indices_backward", 2.75, pool_gradient
    yield "native_batch_norm", 2, batch_norm
    yield "native_batch_norm_backward", 3, partial(batch_norm, gradient=True)


def _embeddings(torch: Any, random: Callable[..., Any], device: str) -> Iterator[Operation]:
    """Yield look-ups in a table by elements that are read, and their gradient."""
    aten, functional = torch.ops.aten, torch.nn.functional

    def indexes(n: int) -> Any:
        return torch.randint(0, _EMBEDDING_ROWS, (max(n // _EMBEDDING_WIDTH, 1),), device=device)

    def embedding(n: int) -> Call:
        return partial(functional.embedding, indexes(n), random(_EMBEDDING_ROWS, _EMBEDDING_WIDTH))

    def embedding_gradient(n: int) -> Call:
        index = indexes(n)
        gradient = random(len(index), _EMBEDDING_WIDTH)
        call = aten.embedding_dense_backward.default
        return partial(call, gradient, index, _EMBEDDING_ROWS, -1, False)

    yield "embedding", 2, embedding
    yield "embedding.backward", 1, embedding_gradient


def _by_rows(torch: Any, random: Callable[..., Any], device: str) -> Iterator[Operation]:
    """Yield operations by rows and width."""
    aten = torch.ops.aten

    def norm(rows: int, width: int, gradient: bool = False) -> Call:
        x, weight, bias = random(rows, width), random(width), random(width)
        forward = partial(aten.native_layer_norm.default, x, [width], weight, bias, 1e-5)
        if not gradient:
            return forward
        (_, mean, scale), g = forward(), random(rows, width)
        call, every = aten.native_layer_norm_backward.default, [True, True, True]
        return lambda: call(g, x, [width], mean, scale, weight, bias, every)

    def softmax(call: Any) -> Callable[[int, int], Call]:
        return lambda rows, width: partial(call, random(rows, width), 1)

    def softmax_gradient(call: Any) -> Callable[[int, int], Call]:
        def make(rows: int, width: int) -> Call:
            x = random(rows, width)
            return partial(call, random(rows, width), torch.log_softmax(x, 1), 1, x.dtype)

        return make

    def loss(rows: int, width: int, gradient: bool = False) -> Call:
        x = random(rows, width)
        labels = torch.zeros(rows, dtype=torch.long, device=device)
        if not gradient:
            return partial(torch.nn.functional.nll_loss, x, labels)
        found, weight = aten.nll_loss_forward.default(x, labels, None, 1, -100)
        call = aten.nll_loss_backward.default
        return partial(call, found, x, labels, None, 1, -100, weight)

    yield "native_layer_norm", 2, norm
    yield "native_layer_norm_backward", 3, partial(norm, gradient=True)
    yield "_log_softmax", 2, softmax(torch.log_softmax)
    yield "_log_softmax_backward_data", 3, softmax_gradient(aten._log_softmax_backward_data.default)
    yield "_softmax", 2, softmax(torch.softmax)
    yield "_softmax_backward_data", 3, softmax_gradient(aten._softmax_backward_data.default)
    yield "nll_loss_forward", 1, loss
    yield "nll_loss_backward", 2, partial(loss, gradient=True)
