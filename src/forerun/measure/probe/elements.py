"""Elements: operations that move elements, by input elements and, where they go row by row, width."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from forerun.measure.probe.clock import Call
from forerun.measure.probe.products import CPU, Grid, GridSizes

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

    Args:
        torch: the module.
        device, dtype: where and in which precision.
        sizes: at which footprints, and in calls of how many elements.
        least_seconds: a call that takes less tells of its launch; its footprint is left out.
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
