"""Net: states the forward operations of a network one call at a time, shapes propagated exactly.

A tensor that two operations keep is counted once. FLOPs are those of matrix products only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from forerun.domain.graph import Block, Graph, Op, OpKind, Phase, Shard
from forerun.errors import RequestError
from forerun.workloads.backward import complete, conv_kind

INPUT = -1
# A pooling layer keeps the position of each maximum as an 8-byte integer, a dropout a byte.
_INDEX_BYTES = 8.0
_MASK_BYTES = 1.0
_WIDE_BYTES = 4.0
# Activations whose gradient needs their input (relu6 in PyTorch's form, even in place); the
# others' needs their output.
_KEEPS_INPUT = frozenset(
    {"relu6", "gelu", "silu", "hardswish", "hardsigmoid", "leaky_relu", "mish", "elu"}
)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value inside the network, for one sample.

    `op` wrote it (`INPUT`: nobody); shape (channels, *spatial) or (tokens, features); views share
    `key`, the identity of its memory, of `held` elements.
    """

    op: int
    shape: tuple[int, ...]
    key: int
    held: int

    @property
    def size(self) -> int:
        """Elements for one sample."""
        return math.prod(self.shape)


@dataclass
class Net:
    """A network under construction; `graph` closes it with backward and optimizer.

    Attributes:
        activation_bytes: of one element; masks, indices and fp32 copies are counted in these.
        ops: forward operations so far.
        block, shard: where the operations emitted next stand in a pipeline, and what tensor parallelism divides.
        sparse_params: parameters of tables whose gradients are sparse.
    """

    activation_bytes: float = 2.0
    ops: list[Op] = field(default_factory=list)
    block: Block = Block.LAYER
    shard: Shard = Shard.NONE
    sparse_params: float = 0.0
    _kept: set[int] = field(default_factory=set)
    _learns: list[bool] = field(default_factory=list)
    _tensors: int = 0

    def input(self, name: str, *shape: int) -> Tensor:
        """Return the network's own input; nothing is computed for it and it has no gradient."""
        return self._tensor(INPUT, shape)

    def place(self, name: str, block: str, shard: str) -> None:
        """Say where in a pipeline the operations that follow stand, and what divides them."""
        self.block, self.shard = Block(block), Shard(shard)

    def graph(self, optimizer: str) -> Graph:
        """Return the whole training step; nothing goes back into what is not trained."""
        cut = [
            op if any(self._learns[i] for i in op.inputs) else replace(op, inputs=())
            for op in self.ops
        ]
        step = complete(cut, optimizer, sparse_params=self.sparse_params)
        after = [
            op
            for op in step.ops[len(self.ops) :]
            if op.phase is not Phase.BACKWARD or self._learns[op.inputs[0]]
        ]
        return Graph((*self.ops, *after), step.unknown)

    def emit(
        self, name: str, *inputs: Tensor, kind: str = OpKind.ELEMENTWISE,
        shape: Sequence[int] | None = None, keep: Sequence[int] = (), keep_output: bool = False,
        extra_saved: float = 0.0, work: float = 2.0, params: float = 0.0,
        weights: float | None = None, dims: Sequence[int] = (), launches: int = 1,
        reads: float | None = None, writes: float | None = None, learns: bool | None = None,
    ) -> Tensor:  # fmt: skip
        """Append one operation and return its output; None means as many as usual.

        Args:
            *inputs: what it reads.
            shape: of its output for one sample; None means that of the first input.
            keep, keep_output: positions of the inputs kept for backward, and whether the output is.
            extra_saved: further elements kept (masks, indices, statistics).
            work: FLOPs of one sample over the product of `dims`: 2 for a matrix product, 4 for attention.
            params, weights: trainable parameters, and weight elements read.
            dims: implicit matrix product, see `Op.dims`; () where there is none.
            learns: whether it has trained weights.
        """
        output = self._tensor(len(self.ops), inputs[0].shape if shape is None else shape)
        trained = params > 0 if learns is None else learns
        differentiated = trained or any(t.op != INPUT and self._learns[t.op] for t in inputs)
        self._learns.append(differentiated)
        saved = 0.0
        if differentiated:
            kept = [inputs[i] for i in keep] + ([output] if keep_output else [])
            saved = extra_saved + sum(self._keep(t) for t in kept)
        self.ops.append(
            Op(
                name,
                OpKind(kind),
                flops=float(work * math.prod(dims)) if dims else 0.0,
                reads=float(sum(t.size for t in inputs) if reads is None else reads),
                writes=float(output.size if writes is None else writes),
                weights=float(params if weights is None else weights),
                params=float(params),
                shape=output.shape,
                dims=tuple(dims),
                saved=float(saved),
                launches=launches,
                block=self.block,
                shard=self.shard,
                inputs=tuple(dict.fromkeys(t.op for t in inputs if t.op != INPUT)),
            )
        )
        return output

    def view(self, name: str, x: Tensor, *shape: int) -> Tensor:
        """Return the same memory under another shape (no operation)."""
        return Tensor(x.op, shape, x.key, x.held)

    def _tensor(self, op: int, shape: Sequence[int]) -> Tensor:
        self._tensors += 1
        return Tensor(op, tuple(shape), self._tensors, math.prod(shape))

    def _keep(self, x: Tensor) -> float:
        if x.key in self._kept:
            return 0.0
        self._kept.add(x.key)
        return float(x.held)

    def conv(
        self, name: str, x: Tensor, out: int, kernel: int | Sequence[int],
        stride: int | Sequence[int] = 1, padding: int | Sequence[int] | None = None,
        groups: int = 1, bias: bool = False, dilation: int | Sequence[int] = 1,
        trainable: bool = True, owned: bool = True,
    ) -> Tensor:  # fmt: skip
        """Convolve (channels, *spatial) in one to three dimensions; None pads to "same". Raises RequestError.

        Weights not trainable have no gradient; those not owned belong to an earlier operation.
        """
        rank, channels = len(x.shape) - 1, x.shape[0]
        k, s, d = _each(kernel, rank), _each(stride, rank), _each(dilation, rank)
        same = tuple(di * (ki - 1) // 2 for ki, di in zip(k, d, strict=True))
        p = same if padding is None else _each(padding, rank)
        spatial = [_windows(name, x.shape[i + 1], k[i], s[i], p[i], d[i]) for i in range(rank)]
        area = math.prod(k)
        n, depth = out // groups, channels // groups * area
        weights = groups * n * depth + (out if bias else 0)
        return self.emit(
            name, x, kind=conv_kind(area, groups, channels, out), shape=(out, *spatial),
            keep=(0,) if trainable else (), learns=trainable,
            params=weights if trainable and owned else 0, weights=weights,
            dims=(math.prod(spatial), n, depth, groups),
        )  # fmt: skip

    def conv_transpose(
        self, name: str, x: Tensor, out: int, kernel: int, stride: int, padding: int = 0
    ) -> Tensor:
        """Up-sample by a transposed convolution (its work is done at each input pixel)."""
        spatial = [(size - 1) * stride - 2 * padding + kernel for size in x.shape[1:]]
        n, depth = out * kernel ** len(spatial), x.shape[0]
        return self.emit(
            name, x, kind=OpKind.CONV, shape=(out, *spatial), keep=(0,), params=n * depth + out,
            dims=(math.prod(x.shape[1:]), n, depth, 1), launches=2,
        )  # fmt: skip

    def linear(
        self, name: str, x: Tensor, out: int, bias: bool = True, owned: bool = True
    ) -> Tensor:
        """Multiply the last dimension by a weight: (..., k) -> (..., out); one not owned is tied."""
        k = x.shape[-1]
        weights = k * out + (out if bias else 0)
        return self.emit(
            name, x, kind=OpKind.MATMUL, shape=(*x.shape[:-1], out), keep=(0,),
            params=weights if owned else 0, weights=weights, learns=True,
            dims=(x.size // k, out, k, 1),
        )  # fmt: skip

    def batch_norm(self, name: str, x: Tensor, frozen: bool = False) -> Tensor:
        """Normalise each channel over the batch; a frozen one is a fixed scale and shift."""
        count = 2 * x.shape[0]
        if frozen:
            return self.emit(name, x, weights=count)
        return self.emit(name, x, kind=OpKind.BATCH_NORM, keep=(0,), params=count)

    def norm(self, name: str, x: Tensor, channels: int | None = None) -> Tensor:
        """Normalise by layer or group; `channels` scales and shifts (None: the last dimension)."""
        width = x.shape[-1] if channels is None else channels
        return self.emit(name, x, kind=OpKind.NORM, keep=(0,), params=2 * width)

    def activation(self, name: str, x: Tensor, function: str = "relu") -> Tensor:
        """Apply a point-wise function; it keeps its input or its output, as its gradient needs."""
        by_input = function in _KEEPS_INPUT
        return self.emit(name, x, keep=(0,) if by_input else (), keep_output=not by_input)

    def add(self, name: str, *terms: Tensor) -> Tensor:
        """Sum tensors of one shape (a smaller one is broadcast)."""
        shape, launches = max(terms, key=lambda t: t.size).shape, len(terms) - 1
        return self.emit(name, *terms, shape=shape, launches=launches)

    def multiply(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        """Multiply point-wise (a smaller one is broadcast); both are kept."""
        shape = max(a, b, key=lambda t: t.size).shape
        return self.emit(name, a, b, shape=shape, keep=(0, 1))

    def scale(self, name: str, x: Tensor, params: int) -> Tensor:
        """Multiply by a trainable vector."""
        return self.emit(name, x, keep=(0,), params=params)

    def bias(self, name: str, x: Tensor, params: int) -> Tensor:
        """Add a trainable tensor, such as position embeddings."""
        return self.emit(name, x, params=params)

    def pointwise(self, name: str, x: Tensor, *, launches: int = 1) -> Tensor:
        """Apply a point-wise operation which keeps nothing of size (stochastic depth, a cast)."""
        return self.emit(name, x, launches=launches)

    def dropout(self, name: str, x: Tensor) -> Tensor:
        """Drop elements at random; the mask is kept, one byte an element."""
        mask = _MASK_BYTES / self.activation_bytes * x.size
        return self.emit(name, x, extra_saved=mask)

    def softmax(self, name: str, x: Tensor) -> Tensor:
        """Soft-max over the last dimension; the output is kept."""
        return self.emit(name, x, kind=OpKind.SOFTMAX, keep_output=True)

    def loss(self, name: str, x: Tensor, launches: int = 2) -> Tensor:
        """Cross-entropy (or another point-wise loss) over predictions; fp32 values are kept."""
        wide = _WIDE_BYTES / self.activation_bytes * x.size
        return self.emit(
            name, x, kind=OpKind.REDUCE, extra_saved=wide, reads=wide, writes=wide,
            launches=launches,
        )  # fmt: skip

    def pool(
        self, name: str, x: Tensor, kernel: int | Sequence[int],
        stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0,
        ceil: bool = False, average: bool = False,
    ) -> Tensor:  # fmt: skip
        """Pool windows by maximum, whose position is kept, or mean. Raises RequestError for too small an image."""
        rank = len(x.shape) - 1
        k, p = _each(kernel, rank), _each(padding, rank)
        s = _each(kernel if stride is None else stride, rank)
        spatial = [_windows(name, x.shape[i + 1], k[i], s[i], p[i], 1, ceil) for i in range(rank)]
        shape = (x.shape[0], *spatial)
        indices = 0.0 if average else _INDEX_BYTES / self.activation_bytes * math.prod(shape)
        return self.emit(name, x, kind=OpKind.POOL, shape=shape, keep=(0,), extra_saved=indices)

    def adaptive_pool(self, name: str, x: Tensor, out: int) -> Tensor:
        """Average to out x out pixels; to one pixel it is a mean, which keeps nothing."""
        shape = (x.shape[0], *([out] * (len(x.shape) - 1)))
        if out == 1:
            return self.emit(name, x, kind=OpKind.REDUCE, shape=shape)
        return self.emit(name, x, kind=OpKind.POOL, shape=shape, keep=(0,))

    def mean(self, name: str, x: Tensor) -> Tensor:
        """Average over all but the channels: (channels, *spatial) -> (channels,)."""
        return self.emit(name, x, kind=OpKind.REDUCE, shape=x.shape[:1])

    def concat(self, name: str, *parts: Tensor, axis: int = 0) -> Tensor:
        """Join along an axis (0: the channels)."""
        shape = list(parts[0].shape)
        shape[axis] = sum(p.shape[axis] for p in parts)
        return self.emit(name, *parts, kind=OpKind.COPY, shape=shape)

    def copy(
        self, name: str, *inputs: Tensor, shape: Sequence[int] = (), reads: float | None = None
    ) -> Tensor:
        """Move elements into another layout (permute, shuffle, partition, crop, pad, gather)."""
        shape = shape or inputs[0].shape
        reads = math.prod(shape) if reads is None else reads
        return self.emit(name, *inputs, kind=OpKind.COPY, shape=shape, reads=reads)

    def upsample(self, name: str, x: Tensor, *size: int) -> Tensor:
        """Interpolate to a spatial size."""
        return self.emit(name, x, kind=OpKind.COPY, shape=(x.shape[0], *size))

    def flatten(self, name: str, x: Tensor) -> Tensor:
        """Return a view of one dimension."""
        return self.view(name, x, x.size)

    def channels(self, name: str, x: Tensor, count: int) -> Tensor:
        """Return a view of some of the channels; keeping it keeps all of them."""
        return self.view(name, x, count, *x.shape[1:])


def _each(value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    return (value,) * rank if isinstance(value, int) else tuple(value)


def _windows(
    name: str, size: int, kernel: int, stride: int, padding: int, dilation: int = 1,
    ceil: bool = False,
) -> int:  # fmt: skip
    """Return how many windows fit along one dimension, by the rule of PyTorch's layers."""
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    count = (-(-span // stride) if ceil else span // stride) + 1
    if ceil and (count - 1) * stride >= size + padding:
        count -= 1  # a window may not start in the padding on the far side
    if span < 0 or count < 1:
        raise RequestError(
            f"{name} over {size} pixels", f"its window of {kernel} does not fit",
            "ask for a larger image size",
        )  # fmt: skip
    return count
