"""Fused kernels: attention, recurrent layers and dropout stay whole, which the meta device would take apart.

They save what the fused kernels save. Requests for another device are answered with the traced one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from forerun.domain.graph import OpKind, Phase
from forerun.workloads.backward import FUSED_ATTENTION_BACKWARD
from forerun.workloads.trace.aten import Product, fused_attention
from forerun.workloads.trace.backend import autograd_function, load_torch, no_dispatch
from forerun.workloads.trace.recorder import OpRecorder, RawOp

_GATES = {"lstm": 4, "gru": 3, "rnn": 1}  # rows of a cell's weights for each feature of its state


@dataclass(frozen=True, slots=True)
class _Layer:
    """A recurrent layer, both directions; `rows` of its weights, `kept` elements for each token."""

    weights: tuple[Any, ...]
    inputs: int
    outputs: int
    rows: int
    kept: int

    @property
    def multiply_adds(self) -> int:
        return sum(int(w.numel()) for w in self.weights if w.dim() == 2)


def _layers(weights: Sequence[Any], count: int, directions: int, cell: str) -> list[_Layer]:
    size = len(weights) // count
    layers = []
    for start in range(0, size * count, size):
        mine = tuple(weights[start : start + size])
        gate_rows, inputs = mine[0].shape
        state = gate_rows // _GATES[cell] if cell == "lstm" else 0
        kept, outputs = directions * (gate_rows + state), directions * mine[1].shape[1]
        layers.append(_Layer(mine, inputs, outputs, directions * gate_rows, kept))
    return layers


@dataclass
class _Recurrent:
    """A stack of recurrent layers run by fused kernels, one operation a layer; gates of every step are kept."""

    recorder: OpRecorder
    cell: str
    layers: list[_Layer]
    launches: int
    first: int = 0

    def forward(self, ctx: Any, tensors: Sequence[Any]) -> Any:
        inputs = tensors[0]
        states = tensors[1 : 3 if self.cell == "lstm" else 2]
        tokens = inputs.numel() // inputs.shape[-1]
        with no_dispatch():
            output = inputs.new_empty((*inputs.shape[:-1], self.layers[-1].outputs))
            ends = [load_torch().empty_like(s) for s in states]
            kept = [inputs.new_empty(tokens * layer.kept) for layer in self.layers]
        previous, self.first = inputs, len(self.recorder.ops)
        for layer, reserve in zip(self.layers, kept, strict=True):
            op = self._op(self.cell, layer, tokens, Phase.FORWARD)
            op.reads = float(tokens * layer.inputs) / self.recorder.book.samples
            op.writes = float(tokens * layer.outputs) / self.recorder.book.samples
            op.launches = self.launches
            written = [reserve, output, *ends] if layer is self.layers[-1] else [reserve]
            read = [self.recorder.book.of(t) for t in (previous, *layer.weights)]
            self.recorder.add(op, read, written)
            previous = reserve
        self.recorder.mark(self.first)
        ctx.save_for_backward(inputs, output, *kept)
        ctx.tensors, ctx.tokens = tensors, tokens
        return (output, *ends)

    def backward(self, ctx: Any, grads: Sequence[Any]) -> Any:
        with no_dispatch():
            made = [load_torch().empty_like(t) for t in ctx.tensors]
        book, tokens = self.recorder.book, ctx.tokens
        saved = [book.of(t) for t in ctx.saved_tensors]
        arriving = [book.of(g) for g in grads if g is not None]
        upstream: dict[int, None] = {}
        for position in reversed(range(len(self.layers))):
            layer, source = self.layers[position], self.first + position
            forward = self.recorder.ops[source]
            read, arriving = [*arriving, saved[2 + position]], []
            weight = self._op("wgrad", layer, tokens, Phase.BACKWARD)
            weight.source, weight.inputs = source, dict(upstream)
            weight.reads = float(tokens * (layer.inputs + layer.rows)) / book.samples
            weight.into_weight_gradient(0.0)
            data = self._op("dgrad", layer, tokens, Phase.BACKWARD)
            data.source, data.launches = source, forward.launches
            data.reads, data.writes = forward.writes + forward.saved, forward.reads
            data.inputs = upstream
            if position == 0 and not ctx.needs_input_grad[0]:
                # The gradient still runs back through time, but not into the input.
                entry = layer.rows * layer.inputs
                data.flops = 2.0 * tokens * (layer.multiply_adds - entry) / book.samples
                data.writes = 0.0
            upstream = {self.recorder.add(data, read, made[:1] if position == 0 else []): None}
            mine = {id(w) for w in layer.weights}
            written = [m for t, m in zip(ctx.tensors, made, strict=True) if id(t) in mine]
            self.recorder.add(weight, read, written)
        return tuple(m if n else None for m, n in zip(made, ctx.needs_input_grad, strict=True))

    def _op(self, label: str, layer: _Layer, tokens: int, phase: Phase) -> RawOp:
        op = RawOp(label, OpKind.RECURRENT, phase, path=self.recorder.path)
        flops = 2.0 * tokens * layer.multiply_adds / self.recorder.book.samples
        inner = layer.multiply_adds // layer.rows
        sides = {"wgrad": (inner, layer.rows, tokens), "dgrad": (tokens, inner, layer.rows)}
        m, n, k = sides.get(label, (tokens, layer.rows, inner))
        op.flops, op.product = flops, Product(OpKind.RECURRENT, flops, m, n, k)
        op.weights = float(sum(w.numel() for w in layer.weights))
        op.right_static, op.shape = True, (tokens, layer.outputs)
        return op


class Fusions:
    """The callback of a function mode: answers some of torch's Python calls in its own way."""

    def __init__(self, recorder: OpRecorder, device: str = "meta") -> None:
        torch = load_torch()
        functional = torch.nn.functional
        self.recorder, self.device = recorder, device
        self._attention = functional.scaled_dot_product_attention
        self._move = torch.Tensor.to
        self._handlers: dict[Any, Callable[..., Any]] = {
            self._move: self._to, torch.Tensor.cuda: lambda func, args, kwargs: args[0],
        }  # fmt: skip
        if device == "meta":
            self._handlers |= {
                self._attention: self._fuse_attention,
                functional.multi_head_attention_forward: self._with_inner_attention,
                functional.dropout: self._dropout, torch.lstm: partial(self._recurrent, "lstm"),
                torch.gru: partial(self._recurrent, "gru"),
                torch.rnn_tanh: partial(self._recurrent, "rnn"),
                torch.rnn_relu: partial(self._recurrent, "rnn"),
            }  # fmt: skip

    def intercept(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Answer a call of torch's Python face; a copy to the CPU is left alone."""
        given = dict(kwargs)
        if given.get("device") is not None and not (
            func is self._move and _is_cpu(given["device"])
        ):
            given["device"] = self.device
        handler = self._handlers.get(func)
        return func(*args, **given) if handler is None else handler(func, args, given)

    def _to(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        torch = load_torch()
        rest = [
            self.device if isinstance(value, str | torch.device) and not _is_cpu(value) else value
            for value in args[1:]
        ]
        if rest and isinstance(rest[0], torch.Tensor):
            rest[0] = rest[0].dtype
        return func(args[0], *rest, **kwargs)

    def _dropout(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        def fused(tensor: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
            if not training or p <= 0:
                return func(tensor, p, training, inplace)
            return load_torch().native_dropout(tensor, p, True)[0]

        return fused(*args, **kwargs)

    def _with_inner_attention(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        functional = load_torch().nn.functional
        functional.scaled_dot_product_attention = lambda *inner, **options: self._fuse_attention(
            self._attention, inner, options
        )
        try:
            return func(*args, **kwargs)
        finally:
            functional.scaled_dot_product_attention = self._attention

    def _recurrent(self, cell: str, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if len(args) != 9 or not isinstance(args[3], bool):
            return func(*args, **kwargs)  # a packed sequence: its lengths are data
        inputs, state, weights, _, count, _, _, both_ways, batch_first = args
        directions = 2 if both_ways else 1
        steps = inputs.shape[1] if batch_first and inputs.dim() == 3 else inputs.shape[0]
        layers = _layers(weights, count, directions, cell)
        run = _Recurrent(self.recorder, cell, layers, steps * directions)
        states = tuple(state) if cell == "lstm" else (state,)
        return autograd_function(run.forward, run.backward)(inputs, *states, *weights)

    def _fuse_attention(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        def fused(
            query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
            is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
        ) -> Any:  # fmt: skip
            learned_mask = attn_mask is not None and attn_mask.requires_grad
            plain = query.dim() == key.dim() == value.dim() and query.dim() >= 3
            if learned_mask or not plain or not query.is_meta:
                return func(*args, **kwargs)
            return self._attend(query, key, value, attn_mask, is_causal)

        return fused(*args, **kwargs)

    def _attend(self, query: Any, key: Any, value: Any, mask: Any, causal: bool) -> Any:
        """Record one fused attention; it saves its inputs, its output and a sum for each row."""
        recorder, torch = self.recorder, load_torch()
        product = fused_attention(query.shape, key.shape, value.shape, causal)
        book = recorder.book

        def forward(ctx: Any, tensors: Sequence[Any]) -> Any:
            with no_dispatch():
                shape = (*query.shape[:-1], value.shape[-1])
                output = query.new_empty(shape)
                if len(shape) == 4:  # kernels write the heads of a token side by side
                    batch, heads, tokens, width = shape
                    output = query.new_empty((batch, tokens, heads, width)).transpose(1, 2)
                row_sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
            op = RawOp("attention", OpKind.ATTENTION, Phase.FORWARD, path=recorder.path)
            op.flops = product.flops / book.samples
            op.product, op.shape = product, tuple(output.shape)
            read = [book.of(t) for t in tensors]
            op.sizes = {
                m.writer: float(t.numel())
                for t, m in zip(tensors, read, strict=True)
                if m.writer is not None
            }
            if mask is not None:
                masks = book.of(mask)
                size = book.elements(mask)
                op.weights += size if masks.static else 0.0
                op.reads += 0.0 if masks.static else size / book.samples
                read.append(masks)
            op.reads += sum(book.elements(t) for t in tensors) / book.samples
            op.writes = book.elements(output) / book.samples
            recorder.attend(query.shape, key.shape)
            position = recorder.add(op, read, [output, row_sums])
            recorder.mark(position)
            ctx.save_for_backward(*tensors, output, row_sums)
            ctx.position = position
            return output

        def backward(ctx: Any, grads: Sequence[Any]) -> Any:
            with no_dispatch():
                made = [torch.empty_like(t) for t in ctx.saved_tensors[:3]]
            done = recorder.ops[ctx.position]
            op = RawOp("grad", OpKind.ATTENTION, Phase.BACKWARD, path=done.path)
            op.source, op.product, op.launches = ctx.position, product, 2
            op.flops = FUSED_ATTENTION_BACKWARD * done.flops
            op.reads, op.writes = done.reads + 2 * done.writes, done.reads
            read = [book.of(t) for t in (*grads, *ctx.saved_tensors)]
            recorder.add(op, read, made)
            return tuple(made)

        return autograd_function(forward, backward)(query, key, value)


def _is_cpu(device: Any) -> bool:
    return str(device).partition(":")[0] == "cpu"
