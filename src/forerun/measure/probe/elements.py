"""Elements: operations that only move elements, by how many they move.

A size is what `graph.Op` states as read and written, for the whole batch. Normalisation and softmax
also have a width: they go row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from forerun.measure.probe.clock import Call
from forerun.measure.probe.products import CPU, Grid, Sizes

# Operations of each input element to the one that stands for others of its class.
CLASSES = {
    "elementwise": "add", "norm": "native_layer_norm", "batch_norm": "native_batch_norm",
    "softmax": "_softmax", "pool": "max_pool2d_with_indices", "reduce": "sum", "copy": "clone",
    "norm.backward": "native_layer_norm_backward", "softmax.backward": "_softmax_backward_data",
    "batch_norm.backward": "native_batch_norm_backward",
    "pool.backward": "max_pool2d_with_indices_backward",
    "elementwise.backward": "threshold_backward", "unknown": "add",
}  # fmt: skip
_UNARY = ("relu", "gelu", "tanh", "sigmoid", "silu", "hardswish")
_BY_OUTPUT = ("tanh", "sigmoid")


def memory_grid(
    torch: Any, device: str, dtype: Any, sizes: Sizes = CPU, least_seconds: float = 0.0
) -> Grid:
    """Return the reading and writing of one element by the bytes that are gone through in turn.

    What was last touched so many bytes ago comes from the cache that holds so much, or from memory.

    Args:
        torch: the module.
        device, dtype: where and in which precision.
        sizes: at which footprints, and in calls of how many elements.
        least_seconds: a call that takes less tells of its launch; its footprint is left out.
    """
    made = {"device": device, "dtype": dtype}
    multiply = torch.mul

    def parts(footprint: float) -> tuple[int, int]:
        """Return in how many calls of how many elements a footprint is gone through."""
        if not sizes.chunk:
            return 1, max(int(footprint / 2 / dtype.itemsize), 1)
        return max(round(footprint / 8 / sizes.chunk), 1), sizes.chunk

    def make(footprint: int) -> Call:
        count, length = parts(footprint)
        pairs = [(torch.randn(length, **made), torch.empty(length, **made)) for _ in range(count)]
        if count == 1:
            return partial(multiply, pairs[0][0], 2.0, out=pairs[0][1])

        def go() -> None:
            for x, y in pairs:
                multiply(x, 2.0, out=y)

        return go

    def each(footprint: float) -> float:
        count, length = parts(footprint)
        return float(count * length)

    return Grid("memory", (sizes.footprints,), make, per=each, least_seconds=least_seconds)


def element_grids(torch: Any, device: str, dtype: Any, sizes: Sizes = CPU) -> Iterator[Grid]:
    """Yield what is timed of operations that move elements, the most useful first."""
    made = {"device": device, "dtype": dtype}
    aten = torch.ops.aten
    for name, moved, make in _plain(torch, aten, made):
        yield Grid(name, (tuple(float(moved * n) for n in sizes.counts),), _by_count(make, moved))
    for name, moved, by_rows in _by_rows(torch, aten, made):
        axes = (tuple(float(moved * n * 64) for n in sizes.lines), tuple(map(float, sizes.widths)))
        yield Grid(name, axes, _by_width(by_rows, moved))


def _by_count(make: Callable[[int], Call], moved: float) -> Callable[[float], Call]:
    return lambda size: make(round(size / moved))


def _by_width(make: Callable[[int, int], Call], moved: float) -> Callable[[float, float], Call]:
    return lambda size, width: make(max(round(size / moved / width), 1), int(width))


def _plain(
    torch: Any, aten: Any, made: dict[str, Any]
) -> Iterator[tuple[str, float, Callable[[int], Call]]]:
    """Yield (name, elements moved for each of the input, call by elements of the input)."""

    def one(call: Any, *rest: Any) -> Callable[[int], Call]:
        return lambda n: partial(call, torch.randn(n, **made), *rest)

    def two(call: Any, *rest: Any) -> Callable[[int], Call]:
        return lambda n: partial(call, torch.randn(n, **made), torch.randn(n, **made), *rest)

    yield "add", 3, two(torch.add)
    yield "clone", 2, _turned(torch, made)
    yield "sum", 1, _summed(torch, made)
    yield "threshold_backward", 3, two(aten.threshold_backward.default, 0)
    yield "relu", 2, one(torch.relu)
    yield from _pools(torch, aten, made)
    yield from _batch_norms(torch, aten, made)
    yield "mul", 3, two(torch.mul)
    yield "gelu", 2, one(torch.nn.functional.gelu)
    yield "gelu_backward", 3, two(aten.gelu_backward.default)
    yield "native_dropout", 2.25, one(aten.native_dropout.default, 0.1, True)
    yield from _embeddings(torch, aten, made)
    yield "mean", 1, _averaged(torch, made)
    yield "div", 2, one(torch.div, 3.0)
    yield "cat", 2, lambda n: partial(torch.cat, list(torch.randn(2, max(n // 2, 1), **made)))
    yield "stack", 2, lambda n: partial(torch.stack, list(torch.randn(2, max(n // 2, 1), **made)))
    for name in ("tanh", "sigmoid", "silu", "hardswish"):
        call = getattr(torch.nn.functional, name)
        yield name, 2, one(getattr(torch, name, call))
        yield f"{name}_backward", 3, two(getattr(aten, f"{name}_backward").default)


def _turned(torch: Any, made: dict[str, Any]) -> Callable[[int], Call]:
    """Copies that turn sides, half of them inner ones, where neighbours do not stay neighbours.

    Attention's heads are turned the one way, channels and tokens the other; a graph tells only that
    elements were copied, so one call of each kind is taken, with half of the elements.
    """

    def make(n: int) -> Call:
        side = 32 if n >= 65536 else 8
        one = torch.randn(max(n // 2 // side**2, 1), side, side, **made)
        heads, inner = one.unsqueeze(2).transpose(0, 1), one.transpose(1, 2)
        return lambda: (heads.contiguous(), inner.contiguous())

    return make


def _summed(torch: Any, made: dict[str, Any]) -> Callable[[int], Call]:
    """A sum over rows, as a bias has it as its gradient."""

    def make(n: int) -> Call:
        width = 64 if n <= 8192 else 256
        x = torch.randn(max(n // width, 1), width, **made)
        return lambda: x.sum(0, keepdim=True)

    return make


def _averaged(torch: Any, made: dict[str, Any]) -> Callable[[int], Call]:
    def make(n: int) -> Call:
        x = torch.randn(max(n // 4096, 1), 64, min(64, max(n // 64, 1)), **made)
        return lambda: x.mean(1)

    return make


def _image(torch: Any, n: int, made: dict[str, Any]) -> Any:
    """Return images of 16 x 16 in 16 channels with about n elements in all."""
    if n < 4096:
        return torch.randn(1, max(n // 64, 1), 8, 8, **made)
    return torch.randn(n // 4096, 16, 16, 16, **made)


def _pools(torch: Any, aten: Any, made: dict[str, Any]) -> Iterator[Any]:
    def forward(n: int) -> Call:
        x = _image(torch, n, made)
        return lambda: torch.nn.functional.max_pool2d_with_indices(x, 2)

    def backward(n: int) -> Call:
        x = _image(torch, n, made)
        y, index = torch.nn.functional.max_pool2d_with_indices(x, 2)
        call, two = aten.max_pool2d_with_indices_backward.default, [2, 2]
        return lambda: call(y, x, two, two, [0, 0], [1, 1], False, index)

    # Read: the image. Written: a quarter of it, and as many indices of 8 bytes.
    yield "max_pool2d_with_indices", 1.75, forward
    yield "max_pool2d_with_indices_backward", 2.75, backward


def _batch_norms(torch: Any, aten: Any, made: dict[str, Any]) -> Iterator[Any]:
    def state(n: int) -> tuple[Any, ...]:
        x = _image(torch, n, made)
        side = {"device": made["device"]}
        c = x.shape[1]
        zeros, ones = torch.zeros(c, **side), torch.ones(c, **side)
        return x, torch.randn_like(x), ones, zeros, zeros.clone(), ones.clone()

    def forward(n: int) -> Call:
        x, _, w, b, mean, var = state(n)
        return lambda: aten.native_batch_norm.default(x, w, b, mean, var, True, 0.1, 1e-5)

    def backward(n: int) -> Call:
        x, g, w, b, mean, var = state(n)
        _, kept, scale = aten.native_batch_norm.default(x, w, b, mean, var, True, 0.1, 1e-5)
        call = aten.native_batch_norm_backward.default
        return lambda: call(g, x, w, mean, var, kept, scale, True, 1e-5, [True, True, True])

    yield "native_batch_norm", 2, forward
    yield "native_batch_norm_backward", 3, backward


def _embeddings(torch: Any, aten: Any, made: dict[str, Any]) -> Iterator[Any]:
    width, words = 128, 1000

    def rows(n: int) -> Any:
        return torch.randint(0, words, (max(n // width, 1),), device=made["device"])

    def forward(n: int) -> Call:
        table, index = torch.randn(words, width, **made), rows(n)
        return lambda: torch.nn.functional.embedding(index, table)

    def backward(n: int) -> Call:
        index = rows(n)
        gradient = torch.randn(len(index), width, **made)
        call = aten.embedding_dense_backward.default
        return lambda: call(gradient, index, words, -1, False)

    yield "embedding", 2, forward
    yield "embedding.backward", 1, backward


def _by_rows(
    torch: Any, aten: Any, made: dict[str, Any]
) -> Iterator[tuple[str, float, Callable[[int, int], Call]]]:
    """Yield (name, elements moved for each of the input, call by rows and width)."""
    norm, softmax = aten.native_layer_norm.default, torch.log_softmax
    norm_back = aten.native_layer_norm_backward.default

    def pair(rows: int, width: int) -> tuple[Any, Any]:
        return torch.randn(rows, width, **made), torch.randn(rows, width, **made)

    def normed(rows: int, width: int) -> Call:
        x, g = pair(rows, width)
        w, b = g[0].clone(), g[0].clone()
        return lambda: norm(x, [width], w, b, 1e-5)

    def norm_gradient(rows: int, width: int) -> Call:
        x, g = pair(rows, width)
        w, b = g[0].clone(), g[0].clone()
        _, mean, scale = norm(x, [width], w, b, 1e-5)
        return lambda: norm_back(g, x, [width], mean, scale, w, b, [True, True, True])

    def gradient(call: Any) -> Callable[[int, int], Call]:
        def make(rows: int, width: int) -> Call:
            x, g = pair(rows, width)
            y = softmax(x, 1)
            return lambda: call(g, y, 1, x.dtype)

        return make

    yield "native_layer_norm", 2, normed
    yield "native_layer_norm_backward", 3, norm_gradient
    yield "_log_softmax", 2, lambda r, w: partial(softmax, pair(r, w)[0], 1)
    yield "_log_softmax_backward_data", 3, gradient(aten._log_softmax_backward_data.default)
    yield "_softmax", 2, lambda r, w: partial(torch.softmax, pair(r, w)[0], 1)
    yield "_softmax_backward_data", 3, gradient(aten._softmax_backward_data.default)
    yield from _losses(torch, aten, made)


def _losses(torch: Any, aten: Any, made: dict[str, Any]) -> Iterator[Any]:
    def forward(rows: int, width: int) -> Call:
        x = torch.randn(rows, width, **made)
        labels = torch.zeros(rows, dtype=torch.long, device=made["device"])
        return lambda: torch.nn.functional.nll_loss(x, labels)

    def backward(rows: int, width: int) -> Call:
        x = torch.randn(rows, width, **made)
        labels = torch.zeros(rows, dtype=torch.long, device=made["device"])
        loss, weight = aten.nll_loss_forward.default(x, labels, None, 1, -100)
        call = aten.nll_loss_backward.default
        return lambda: call(loss, x, labels, None, 1, -100, weight)

    yield "nll_loss_forward", 1, forward
    yield "nll_loss_backward", 2, backward
