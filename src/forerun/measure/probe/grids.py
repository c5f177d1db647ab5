"""Grids: the operations that a probe times, and the sizes at which it times them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from forerun.measure.probe.clock import Call

# More would take a small host too long; time is proportional to size beyond.
MOST_FLOPS = 1.3e9
_CUDA_FLOPS, _CUDA_WIDE_FLOPS = 1.2e12, 1.4e11  # many cards do fp64 at a thirtieth of fp32
_CUDA_FOOTPRINT = 4e9
_TENSORS = 5  # that an operation of elements reads, writes and keeps, at most
_EMBEDDING_WIDTH, _EMBEDDING_ROWS = 128, 1000
# Operations of each input element to the one that stands for others of its class.
CLASSES = {
    "elementwise": "add", "norm": "native_layer_norm", "batch_norm": "native_batch_norm",
    "softmax": "_softmax", "pool": "max_pool2d_with_indices", "reduce": "sum", "copy": "clone",
    "norm.backward": "native_layer_norm_backward", "softmax.backward": "_softmax_backward_data",
    "batch_norm.backward": "native_batch_norm_backward",
    "pool.backward": "max_pool2d_with_indices_backward",
    "elementwise.backward": "threshold_backward", "unknown": "add",
}  # fmt: skip
# What most steps hold; the rest follows in its own order.
FIRST = tuple(
    """memory matmul.forward matmul.dgrad matmul.wgrad add sum relu threshold_backward conv.forward
    conv.dgrad conv.wgrad native_layer_norm native_layer_norm_backward _log_softmax
    _log_softmax_backward_data nll_loss_forward nll_loss_backward clone gelu gelu_backward
    attention.forward attention.backward max_pool2d_with_indices
    max_pool2d_with_indices_backward native_batch_norm native_batch_norm_backward embedding
    embedding.backward""".split()
)
# Where rows, columns and depth of the forward product stand among the axes of each role's.
_ROLE_AXES = {"forward": (0, 1, 2), "dgrad": (0, 2, 1), "wgrad": (2, 1, 0)}
ROLES = tuple(_ROLE_AXES)


@dataclass(frozen=True)
class GridSizes:
    """The points of the grids; by default those of a processor's core."""

    rows: tuple[int, ...] = (8, 64, 512)  # of matrix products
    sides: tuple[int, ...] = (10, 64, 256, 1024)
    images: tuple[tuple[int, int], ...] = ((2, 4), (8, 8), (16, 16), (32, 16))  # (side, samples)
    outputs: tuple[int, ...] = (16, 64, 128)  # channels of dense 3 x 3 convolutions
    inputs: tuple[int, ...] = (3, 16, 64, 128)
    pointwise: tuple[int, ...] = (16, 64, 256)  # channels of 1 x 1 convolutions
    depthwise: tuple[int, ...] = (16, 64, 256)
    groups: tuple[int, ...] = (2, 8, 32)  # of 16 channels
    tokens: tuple[int, ...] = (32, 128, 512)  # of attention
    head_sizes: tuple[int, ...] = (32, 64)
    heads: tuple[int, ...] = (16, 128)  # of all samples
    # Elements of an input: from one that only costs a call, to what no cache holds.
    counts: tuple[int, ...] = (64, 8192, 131072, 1048576, 4194304)
    lines: tuple[int, ...] = (8, 256, 4096)  # row by row: a size is lines x 64 elements
    widths: tuple[int, ...] = (10, 128, 1024)
    # Bytes that are gone through in turn: from what a cache holds to what only memory does.
    footprints: tuple[float, ...] = (1e6, 4e6, 8e6, 16e6, 32e6, 64e6, 192e6)
    chunk: int = 65536  # elements of one call of those; 0 is one call for all
    most_flops: float = MOST_FLOPS  # a point with more is not run


CPU = GridSizes()


def cuda_sizes(free_bytes: float, element_bytes: int) -> GridSizes:
    """Return the sizes of a GPU, where nothing takes more than a quarter of `free_bytes`."""
    room = free_bytes / 4.0
    largest = min(_CUDA_FOOTPRINT, room)
    counts = (64, 65536, 1048576, 16777216, 67108864)
    return GridSizes(
        rows=(16, 256, 2048, 8192), sides=(64, 512, 2048, 8192),
        images=((8, 16), (16, 64), (56, 32)),
        outputs=(64, 128, 512), inputs=(3, 64, 128, 512), pointwise=(64, 256, 1024),
        depthwise=(32, 128, 512), groups=(2, 8, 32),
        tokens=(128, 512, 2048), head_sizes=(64, 128), heads=(16, 128),
        counts=tuple(n for n in counts if n * _TENSORS * element_bytes <= room),
        lines=(64, 4096, 262144), widths=(10, 128, 1024, 8192),
        footprints=(*(f for f in (64e6, 256e6, 1e9) if f < largest), largest),
        chunk=0,
        most_flops=_CUDA_FLOPS if element_bytes <= 4 else _CUDA_WIDE_FLOPS,
    )  # fmt: skip


@dataclass(frozen=True)
class Grid:
    """What is timed at each point of at most `most_flops`: `make(*sizes)` returns a call of `per` units."""

    name: str
    axes: tuple[tuple[float, ...], ...]
    make: Callable[..., Call]
    flops: Callable[..., float] = lambda *sizes: 0.0
    per: Callable[..., float] = lambda *sizes: 1.0
    most_flops: float = MOST_FLOPS

    @property
    def points(self) -> list[tuple[float, ...]]:
        """All points, the last axis runs fastest."""
        return list(itertools.product(*self.axes))


def grids(torch: Any, device: str, dtype: Any, sizes: GridSizes = CPU) -> list[Grid]:
    """Return all that is timed, with those first that most steps need: these are never left out."""
    maker = _Maker(torch, device, dtype, sizes)
    found = [maker.memory(), *maker.products(), *maker.elements()]
    return sorted(found, key=lambda g: FIRST.index(g.name) if g.name in FIRST else len(FIRST))


def _floats(*sizes: tuple[float, ...]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(map(float, axis)) for axis in sizes)


@dataclass(frozen=True)
class _Maker:
    torch: Any
    device: str
    dtype: Any
    sizes: GridSizes

    def random(self, *shape: int) -> Any:
        return self.torch.randn(*shape, device=self.device, dtype=self.dtype)

    def memory(self) -> Grid:
        """Return reading and writing one element, last touched so many bytes ago: a cache's or memory's."""
        torch, chunk = self.torch, self.sizes.chunk

        def parts(footprint: float) -> tuple[int, int]:  # calls, elements of each
            if not chunk:
                return 1, max(int(footprint / 2 / self.dtype.itemsize), 1)
            return max(round(footprint / 8 / chunk), 1), chunk

        def make(footprint: int) -> Call:
            count, length = parts(footprint)
            pairs = [(x := self.random(length), torch.empty_like(x)) for _ in range(count)]
            return lambda: [torch.mul(x, 2.0, out=y) for x, y in pairs]

        return Grid(
            "memory", (self.sizes.footprints,), make, per=lambda size: float(math.prod(parts(size)))
        )

    def products(self) -> Iterator[Grid]:
        s = self.sizes

        def flops(rows: float, columns: float, depth: float) -> float:
            return 2.0 * rows * columns * depth

        images = {float(side * side * n): (side, n) for side, n in s.images}
        pixels = tuple(images)

        def dense(role: str, *size: float, kernel: int) -> Call:
            rows, outputs, depth = (size[at] for at in _ROLE_AXES[role])
            inputs = int(depth) // kernel**2
            return self.convolution(role, images[rows], inputs, int(outputs), 1, kernel)

        def grouped(role: str, rows: float, groups: float, width: int) -> Call:
            return self.convolution(role, images[rows], width, width, int(groups), 3)

        area = tuple(9 * channels for channels in s.inputs)
        for name, sides, make in (
            ("matmul", (s.rows, s.sides, s.sides), self.matmul),
            ("conv", (pixels, *_floats(s.outputs, area)), partial(dense, kernel=3)),
            ("conv_1x1", (pixels, *_floats(s.pointwise, s.pointwise)), partial(dense, kernel=1)),
        ):
            for role, at in _ROLE_AXES.items():
                axes = tuple(sides[i] for i in at)
                call = partial(make, role)
                yield Grid(f"{name}.{role}", axes, call, flops, most_flops=s.most_flops)
        for name, width, counts in (
            ("conv_depthwise", 1, s.depthwise), ("conv_grouped", 16, s.groups)
        ):  # fmt: skip
            work = partial(lambda rows, groups, per: per * rows * groups, per=18.0 * width * width)
            for role in ROLES:
                call = partial(grouped, role, width=width)
                axes = (pixels, *_floats(counts))
                yield Grid(f"{name}.{role}", axes, call, work, most_flops=s.most_flops)
        heads = _floats(s.tokens, s.head_sizes, s.heads)
        for role in ("forward", "backward"):
            yield Grid(
                f"attention.{role}", heads, partial(self.attention, role),
                lambda tokens, size, heads: 10.0 * tokens * tokens * size * heads,
                most_flops=s.most_flops,
            )  # fmt: skip

    def matmul(self, role: str, rows: int, columns: int, depth: int) -> Call:
        random, linear = self.random, self.torch.nn.functional.linear
        if role == "forward":
            return partial(linear, random(rows, depth), random(columns, depth), random(columns))
        if role == "dgrad":
            return partial(random(rows, depth).mm, random(depth, columns))
        g, x = random(depth, rows), random(depth, columns)
        return lambda: g.t().mm(x)

    def convolution(
        self, role: str, image: tuple[int, int], inputs: int, outputs: int, groups: int, kernel: int
    ) -> Call:
        """Return a call of a convolution; inputs and outputs are channels of one group."""
        side, samples = image
        c, o, pad = inputs * groups, outputs * groups, kernel // 2
        x, w = self.random(samples, c, side, side), self.random(o, inputs, kernel, kernel)
        if role == "forward":
            b = self.random(o)
            return partial(self.torch.nn.functional.conv2d, x, w, b, 1, pad, 1, groups)
        g = self.random(samples, o, side, side)
        mask = [role == "dgrad", role == "wgrad", role == "wgrad"]
        backward = self.torch.ops.aten.convolution_backward.default
        one, size = [1, 1], [pad, pad]
        return partial(backward, g, x, w, [o], one, size, one, False, [0, 0], groups, mask)

    def attention(self, role: str, tokens: int, size: int, heads: int) -> Call:
        shape = heads // 4, 4, tokens, size
        inputs = [self.random(*shape).requires_grad_() for _ in range(3)]
        attend = partial(self.torch.nn.functional.scaled_dot_product_attention, *inputs)
        if role == "forward":
            return attend
        result = attend()
        gradient = self.torch.randn_like(result)
        return partial(self.torch.autograd.grad, result, inputs, gradient, retain_graph=True)

    def elements(self) -> Iterator[Grid]:
        """Yield operations timed by the elements that they move, some of them by width too."""

        def by_count(size: float, moved: float, make: Callable[[int], Call]) -> Call:
            return make(round(size / moved))

        def by_row(size: float, width: int, moved: float, make: Callable[[int, int], Call]) -> Call:
            return make(max(round(size / moved / width), 1), width)

        for name, moved, make in self._by_elements():
            axis = tuple(float(moved * n) for n in self.sizes.counts)
            yield Grid(name, (axis,), partial(by_count, moved=moved, make=make))
        for name, moved, of_rows in self._by_rows():
            axis = tuple(float(moved * n * 64) for n in self.sizes.lines)
            axes = (axis, *_floats(self.sizes.widths))
            yield Grid(name, axes, partial(by_row, moved=moved, make=of_rows))

    def _by_elements(self) -> Iterator[tuple[str, float, Callable[[int], Call]]]:
        """Yield (name, elements moved for each of the input, call by elements of the input)."""
        torch, random = self.torch, self.random
        aten, functional = torch.ops.aten, torch.nn.functional

        def one(call: Any, *rest: Any) -> Callable[[int], Call]:
            return lambda n: partial(call, random(n), *rest)

        def two(call: Any, *rest: Any) -> Callable[[int], Call]:
            return lambda n: partial(call, random(n), random(n), *rest)

        def halves(call: Any) -> Callable[[int], Call]:
            return lambda n: partial(call, list(random(2, max(n // 2, 1))))

        yield "add", 3, two(torch.add)
        yield "clone", 2, self.clone
        yield "sum", 1, self.rows_summed
        yield "threshold_backward", 3, two(aten.threshold_backward.default, 0)
        yield "relu", 2, one(torch.relu)
        # Read: the image. Written: a quarter of it, and as many indices of 8 bytes.
        pool = functional.max_pool2d_with_indices
        yield "max_pool2d_with_indices", 1.75, lambda n: partial(pool, self.image(n), 2)
        yield "max_pool2d_with_indices_backward", 2.75, self.pool_gradient
        yield "native_batch_norm", 2, self.batch_norm
        yield "native_batch_norm_backward", 3, partial(self.batch_norm, gradient=True)
        yield "mul", 3, two(torch.mul)
        yield "gelu", 2, one(functional.gelu)
        yield "gelu_backward", 3, two(aten.gelu_backward.default)
        yield "native_dropout", 2.25, one(aten.native_dropout.default, 0.1, True)
        yield "embedding", 2, self.embedding
        yield "embedding.backward", 1, self.embedding_gradient
        yield "mean", 1, self.mean
        yield "div", 2, one(torch.div, 3.0)
        yield "cat", 2, halves(torch.cat)
        yield "stack", 2, halves(torch.stack)
        for name in ("tanh", "sigmoid", "silu", "hardswish"):
            yield name, 2, one(getattr(torch, name, None) or getattr(functional, name))
            yield f"{name}_backward", 3, two(getattr(aten, f"{name}_backward").default)

    def clone(self, n: int) -> Call:
        # Attention's heads are turned the one way, channels and tokens the other, where
        # neighbours do not stay neighbours; a graph has only that elements were copied, so one
        # call of each kind is taken, with half of the elements.
        side = 32 if n >= 65536 else 8
        both = self.random(max(n // 2 // side**2, 1), side, side)
        heads, inner = both.unsqueeze(2).transpose(0, 1), both.transpose(1, 2)
        return lambda: (heads.contiguous(), inner.contiguous())

    def rows_summed(self, n: int) -> Call:  # as a bias has it as its gradient
        width = 64 if n <= 8192 else 256
        return partial(self.random(max(n // width, 1), width).sum, 0, keepdim=True)

    def mean(self, n: int) -> Call:
        return partial(self.random(max(n // 4096, 1), 64, min(64, max(n // 64, 1))).mean, 1)

    def image(self, n: int) -> Any:
        """Return images of 16 x 16 in 16 channels with about n elements in all."""
        shape = (1, max(n // 64, 1), 8, 8) if n < 4096 else (n // 4096, 16, 16, 16)
        return self.random(*shape)

    def pool_gradient(self, n: int) -> Call:
        x = self.image(n)
        y, index = self.torch.nn.functional.max_pool2d_with_indices(x, 2)
        call, sides = self.torch.ops.aten.max_pool2d_with_indices_backward.default, [2, 2]
        return partial(call, y, x, sides, sides, [0, 0], [1, 1], False, index)

    def batch_norm(self, n: int, gradient: bool = False) -> Call:
        x = self.image(n)
        zeros = self.torch.zeros(x.shape[1], device=self.device)
        weight, mean, variance = zeros + 1, zeros.clone(), zeros + 1
        aten, call = self.torch.ops.aten, self.torch.ops.aten.native_batch_norm_backward.default
        given = weight, zeros, mean, variance, True, 0.1, 1e-5
        forward = partial(aten.native_batch_norm.default, x, *given)
        if not gradient:
            return forward
        _, kept, scale = forward()
        saved = weight, mean, variance, kept, scale
        return partial(call, self.torch.randn_like(x), x, *saved, True, 1e-5, [True, True, True])

    def indexes(self, n: int) -> Any:
        count = max(n // _EMBEDDING_WIDTH, 1)
        return self.torch.randint(0, _EMBEDDING_ROWS, (count,), device=self.device)

    def embedding(self, n: int) -> Call:
        table = self.random(_EMBEDDING_ROWS, _EMBEDDING_WIDTH)
        return partial(self.torch.nn.functional.embedding, self.indexes(n), table)

    def embedding_gradient(self, n: int) -> Call:
        index, call = self.indexes(n), self.torch.ops.aten.embedding_dense_backward.default
        gradient = self.random(len(index), _EMBEDDING_WIDTH)
        return partial(call, gradient, index, _EMBEDDING_ROWS, -1, False)

    def _by_rows(self) -> Iterator[tuple[str, float, Callable[[int, int], Call]]]:
        """Yield (name, elements moved for each of the input, call by rows and width)."""
        torch, random, aten = self.torch, self.random, self.torch.ops.aten

        def norm(rows: int, width: int, gradient: bool = False) -> Call:
            x, weight, bias = random(rows, width), random(width), random(width)
            forward = partial(aten.native_layer_norm.default, x, [width], weight, bias, 1e-5)
            if not gradient:
                return forward
            (_, mean, scale), g = forward(), random(rows, width)
            call, every = aten.native_layer_norm_backward.default, [True, True, True]
            return partial(call, g, x, [width], mean, scale, weight, bias, every)

        def softmax(call: Any) -> Callable[[int, int], Call]:
            return lambda rows, width: partial(call, random(rows, width), 1)

        def softmax_gradient(call: Any) -> Callable[[int, int], Call]:
            def make(rows: int, width: int) -> Call:
                x = random(rows, width)
                return partial(call, random(rows, width), torch.log_softmax(x, 1), 1, x.dtype)

            return make

        def loss(rows: int, width: int, gradient: bool = False) -> Call:
            x, labels = random(rows, width), torch.zeros(rows, dtype=torch.long, device=self.device)
            if not gradient:
                return partial(torch.nn.functional.nll_loss, x, labels)
            found, weight = aten.nll_loss_forward.default(x, labels, None, 1, -100)
            call = aten.nll_loss_backward.default
            return partial(call, found, x, labels, None, 1, -100, weight)

        yield "native_layer_norm", 2, norm
        yield "native_layer_norm_backward", 3, partial(norm, gradient=True)
        yield "_log_softmax", 2, softmax(torch.log_softmax)
        yield "_softmax", 2, softmax(torch.softmax)
        for name in ("_log_softmax_backward_data", "_softmax_backward_data"):
            yield name, 3, softmax_gradient(getattr(aten, name).default)
        yield "nll_loss_forward", 1, loss
        yield "nll_loss_backward", 2, partial(loss, gradient=True)
