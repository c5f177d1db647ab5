"""Net: states the forward operations of a network one call at a time, shapes propagated exactly.

Each call emits one operation with what it reads, writes and keeps for backward. A tensor that two
operations keep is counted once. Floating-point operations are those of matrix products only, as
every published count has it; point-wise operations are stated by the elements they move.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from forerun.domain.graph import Block, Graph, Op, OpKind, Phase, Shard
from forerun.workloads.backward import complete
from forerun.workloads.zoo.geometry import conv_kind, spread, window_count

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

    Attributes:
        op: position of the operation that wrote it (`INPUT`: the network's own input).
        shape: (channels, *spatial) for images and volumes, (tokens, features) for sequences.
        key: identity of its memory; views share it.
        held: elements of that memory: what stays alive while any view of it is kept.
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
        block: where the operations emitted next stand in a pipeline.
        shard: what divides the operations emitted next under tensor parallelism.
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

    def input(self, *shape: int) -> Tensor:
        """Return the network's own input; nothing is computed for it and it has no gradient."""
        return self._tensor(INPUT, shape)

    def restart(self) -> None:
        """Forget every operation, so that the network can be stated in another way."""
        self.ops.clear()
        self._kept.clear()
        self._learns.clear()

    def graph(self, optimizer: str) -> Graph:
        """Return the whole training step; nothing goes back into what is not trained."""
        cut = [
            op if any(self._learns[i] for i in op.inputs) else replace(op, inputs=())
            for op in self.ops
        ]
        step = complete(cut, optimizer, sparse_params=self.sparse_params)
        count = len(self.ops)
        after = (
            op
            for op in step.ops[count:]
            if op.phase is not Phase.BACKWARD or self._learns[op.inputs[0]]
        )
        return Graph((*self.ops, *after), step.unknown)

    # ---- the ground floor ---------------------------------------------------------------------

    def emit(
        self,
        kind: OpKind,
        name: str,
        inputs: Sequence[Tensor],
        shape: Sequence[int],
        *,
        keep: Sequence[Tensor] = (),
        keep_output: bool = False,
        extra_saved: float = 0.0,
        flops: float = 0.0,
        params: float = 0.0,
        weights: float | None = None,
        dims: tuple[int, ...] = (),
        launches: int = 1,
        reads: float | None = None,
        writes: float | None = None,
        learns: bool | None = None,
    ) -> Tensor:
        """Append one operation and return its output.

        Args:
            kind: operation class.
            name: dotted path.
            inputs: what it reads.
            shape: shape of its output for one sample.
            keep: inputs kept for backward.
            keep_output: whether its output is kept for backward.
            extra_saved: further elements kept (masks, indices, statistics).
            flops: floating-point operations of one sample.
            params: trainable parameters.
            weights: weight elements read; None means as many as there are parameters.
            dims: implicit matrix product, see `Op.dims`.
            launches: device kernels started.
            reads: elements read; None means each input once.
            writes: elements written; None means the output once.
            learns: whether it has trained weights; None means that it has where it owns any.
        """
        output = self._tensor(len(self.ops), shape)
        trained = params > 0 if learns is None else learns
        differentiated = trained or any(t.op != INPUT and self._learns[t.op] for t in inputs)
        self._learns.append(differentiated)
        saved = 0.0
        if differentiated:
            kept = (*keep, output) if keep_output else keep
            saved = extra_saved + sum(self._keep(t) for t in kept)
        self.ops.append(
            Op(
                name,
                kind,
                flops=float(flops),
                reads=float(sum(t.size for t in inputs) if reads is None else reads),
                writes=float(output.size if writes is None else writes),
                weights=float(params if weights is None else weights),
                params=float(params),
                shape=output.shape,
                dims=dims,
                saved=float(saved),
                launches=launches,
                block=self.block,
                shard=self.shard,
                inputs=tuple(dict.fromkeys(t.op for t in inputs if t.op != INPUT)),
            )
        )
        return output

    def view(self, x: Tensor, *shape: int) -> Tensor:
        """Return the same memory under another shape (no operation)."""
        return Tensor(x.op, tuple(int(d) for d in shape), x.key, x.held)

    def _tensor(self, op: int, shape: Sequence[int]) -> Tensor:
        self._tensors += 1
        sizes = tuple(int(d) for d in shape)
        return Tensor(op, sizes, self._tensors, math.prod(sizes))

    def _keep(self, x: Tensor) -> float:
        if x.key in self._kept:
            return 0.0
        self._kept.add(x.key)
        return float(x.held)

    # ---- matrix products ----------------------------------------------------------------------

    def conv(
        self,
        x: Tensor,
        name: str,
        out: int,
        kernel: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] | None = None,
        groups: int = 1,
        bias: bool = False,
        dilation: int | Sequence[int] = 1,
        trainable: bool = True,
        owned: bool = True,
    ) -> Tensor:
        """Convolve (channels, *spatial) in one, two or three dimensions; None pads to "same".

        Weights that are not trainable have no gradient; those not owned belong to an earlier
        operation which shares them.

        Raises:
            RequestError: the image is smaller than the kernel.
        """
        rank = len(x.shape) - 1
        k, s, d = spread(kernel, rank), spread(stride, rank), spread(dilation, rank)
        pad = tuple(di * (ki - 1) // 2 for ki, di in zip(k, d, strict=True))
        p = pad if padding is None else spread(padding, rank)
        spatial = [
            window_count(x.shape[i + 1], k[i], s[i], p[i], d[i], name=name) for i in range(rank)
        ]
        channels = x.shape[0]
        area = math.prod(k)
        m, n, depth = math.prod(spatial), out // groups, channels // groups * area
        count = groups * n * depth
        return self.emit(
            conv_kind(area, groups, channels, out),
            name,
            (x,),
            (out, *spatial),
            keep=(x,) if trainable else (),
            learns=trainable,
            flops=2.0 * m * count,
            params=(count + (out if bias else 0)) if trainable and owned else 0,
            weights=count + (out if bias else 0),
            dims=(m, n, depth, groups),
        )

    def conv_transpose(
        self, x: Tensor, name: str, out: int, kernel: int, stride: int, padding: int = 0
    ) -> Tensor:
        """Up-sample by a transposed convolution (its work is done at each input pixel)."""
        rank = len(x.shape) - 1
        spatial = [(size - 1) * stride - 2 * padding + kernel for size in x.shape[1:]]
        m, n, depth = math.prod(x.shape[1:]), out * kernel**rank, x.shape[0]
        return self.emit(
            OpKind.CONV,
            name,
            (x,),
            (out, *spatial),
            keep=(x,),
            flops=2.0 * m * n * depth,
            params=n * depth + out,
            dims=(m, n, depth, 1),
            launches=2,
        )

    def linear(
        self, x: Tensor, name: str, out: int, bias: bool = True, owned: bool = True
    ) -> Tensor:
        """Multiply the last dimension by a weight: (..., k) -> (..., out).

        A weight that is not owned belongs to another operation (a tied embedding).
        """
        m, k = x.size // x.shape[-1], x.shape[-1]
        weights = k * out + (out if bias else 0)
        return self.emit(
            OpKind.MATMUL,
            name,
            (x,),
            (*x.shape[:-1], out),
            keep=(x,),
            flops=2.0 * m * k * out,
            params=weights if owned else 0,
            weights=weights,
            learns=True,
            dims=(m, out, k, 1),
        )

    # ---- normalisation, activations, element-wise ---------------------------------------------

    def batch_norm(self, x: Tensor, name: str, frozen: bool = False) -> Tensor:
        """Normalise each channel over the batch; a frozen one is a fixed scale and shift."""
        if frozen:
            return self.emit(OpKind.ELEMENTWISE, name, (x,), x.shape, weights=2 * x.shape[0])
        return self.emit(OpKind.BATCH_NORM, name, (x,), x.shape, keep=(x,), params=2 * x.shape[0])

    def norm(self, x: Tensor, name: str, channels: int | None = None) -> Tensor:
        """Normalise by layer or group; `channels` scales and shifts (None: the last dimension)."""
        width = x.shape[-1] if channels is None else channels
        return self.emit(OpKind.NORM, name, (x,), x.shape, keep=(x,), params=2 * width)

    def activation(self, x: Tensor, name: str, function: str = "relu") -> Tensor:
        """Apply a point-wise function; it keeps its input or its output, as its gradient needs."""
        by_input = function in _KEEPS_INPUT
        return self.emit(
            OpKind.ELEMENTWISE,
            name,
            (x,),
            x.shape,
            keep=(x,) if by_input else (),
            keep_output=not by_input,
        )

    def add(self, name: str, *terms: Tensor) -> Tensor:
        """Sum tensors of one shape (a smaller one is broadcast)."""
        largest = max(terms, key=lambda t: t.size)
        return self.emit(OpKind.ELEMENTWISE, name, terms, largest.shape, launches=len(terms) - 1)

    def multiply(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        """Multiply point-wise (a smaller one is broadcast); both are kept."""
        largest = max(a, b, key=lambda t: t.size)
        return self.emit(OpKind.ELEMENTWISE, name, (a, b), largest.shape, keep=(a, b))

    def scale(self, x: Tensor, name: str, params: int) -> Tensor:
        """Multiply by a trainable vector."""
        return self.emit(OpKind.ELEMENTWISE, name, (x,), x.shape, keep=(x,), params=params)

    def bias(self, x: Tensor, name: str, params: int) -> Tensor:
        """Add a trainable tensor, such as position embeddings."""
        return self.emit(OpKind.ELEMENTWISE, name, (x,), x.shape, params=params)

    def pointwise(self, x: Tensor, name: str, *, launches: int = 1) -> Tensor:
        """Apply a point-wise operation which keeps nothing of size (stochastic depth, a cast)."""
        return self.emit(OpKind.ELEMENTWISE, name, (x,), x.shape, launches=launches)

    def dropout(self, x: Tensor, name: str) -> Tensor:
        """Drop elements at random; the mask is kept, one byte an element."""
        mask = _MASK_BYTES / self.activation_bytes * x.size
        return self.emit(OpKind.ELEMENTWISE, name, (x,), x.shape, extra_saved=mask)

    def softmax(self, x: Tensor, name: str) -> Tensor:
        """Soft-max over the last dimension; the output is kept."""
        return self.emit(OpKind.SOFTMAX, name, (x,), x.shape, keep_output=True)

    def loss(self, x: Tensor, name: str = "loss", launches: int = 2) -> Tensor:
        """Cross-entropy (or another point-wise loss) over predictions; fp32 values are kept."""
        wide = _WIDE_BYTES / self.activation_bytes * x.size
        return self.emit(
            OpKind.REDUCE,
            name,
            (x,),
            x.shape,
            extra_saved=wide,
            reads=wide,
            writes=wide,
            launches=launches,
        )

    # ---- shape ----------------------------------------------------------------------------------

    def pool(
        self,
        x: Tensor,
        name: str,
        kernel: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        ceil: bool = False,
        average: bool = False,
    ) -> Tensor:
        """Pool windows by their maximum or mean; a maximum keeps the position of each.

        Raises:
            RequestError: the image is smaller than the window.
        """
        rank = len(x.shape) - 1
        k, p = spread(kernel, rank), spread(padding, rank)
        s = spread(kernel if stride is None else stride, rank)
        spatial = [
            window_count(x.shape[i + 1], k[i], s[i], p[i], 1, ceil, name) for i in range(rank)
        ]
        shape = (x.shape[0], *spatial)
        indices = 0.0 if average else _INDEX_BYTES / self.activation_bytes * math.prod(shape)
        return self.emit(OpKind.POOL, name, (x,), shape, keep=(x,), extra_saved=indices)

    def adaptive_pool(self, x: Tensor, name: str, out: int) -> Tensor:
        """Average to out x out pixels; to one pixel it is a mean, which keeps nothing."""
        rank = len(x.shape) - 1
        shape = (x.shape[0], *([out] * rank))
        if out == 1:
            return self.emit(OpKind.REDUCE, name, (x,), shape)
        return self.emit(OpKind.POOL, name, (x,), shape, keep=(x,))

    def mean(self, x: Tensor, name: str) -> Tensor:
        """Average over all but the channels: (channels, *spatial) -> (channels,)."""
        return self.emit(OpKind.REDUCE, name, (x,), x.shape[:1])

    def concat(self, name: str, parts: Sequence[Tensor], axis: int = 0) -> Tensor:
        """Join along an axis (0: the channels)."""
        shape = list(parts[0].shape)
        shape[axis] = sum(p.shape[axis] for p in parts)
        return self.emit(OpKind.COPY, name, parts, shape)

    def copy(
        self,
        x: Tensor,
        name: str,
        shape: Sequence[int] | None = None,
        reads: float | None = None,
        others: Sequence[Tensor] = (),
    ) -> Tensor:
        """Move elements into another layout (permute, shuffle, partition, crop, pad, gather)."""
        shape = x.shape if shape is None else shape
        reads = math.prod(shape) if reads is None else reads
        return self.emit(OpKind.COPY, name, (x, *others), shape, reads=reads)

    def upsample(self, x: Tensor, name: str, size: Sequence[int]) -> Tensor:
        """Interpolate to a spatial size."""
        return self.emit(OpKind.COPY, name, (x,), (x.shape[0], *size))

    def flatten(self, x: Tensor) -> Tensor:
        """Return a view of one dimension."""
        return self.view(x, x.size)

    def channels(self, x: Tensor, count: int) -> Tensor:
        """Return a view of some of the channels; keeping it keeps all of them."""
        return self.view(x, count, *x.shape[1:])
