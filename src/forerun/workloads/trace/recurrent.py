"""Recurrent layers as the fused kernels run them: one operation a layer, not one a time step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forerun.domain.graph import OpKind, Phase
from forerun.workloads.trace.backend import autograd_function, load_torch, no_dispatch
from forerun.workloads.trace.products import Product
from forerun.workloads.trace.raw import RawOp
from forerun.workloads.trace.recorder import Recorder


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of a recurrent network, both directions together.

    Attributes:
        weights: its weight and bias tensors.
        inputs, outputs, hidden: features that it reads and writes, and those of its state.
        gates: rows of its weights for each feature of the state (LSTM 4, GRU 3, plain 1).
        directions: 1, or 2 where it runs both ways.
    """

    weights: tuple[Any, ...]
    inputs: int
    outputs: int
    hidden: int
    gates: int
    directions: int

    def multiply_adds(self) -> int:
        """Multiply-adds of one time step of one sample: every matrix element once."""
        sizes: list[int] = [w.numel() for w in self.weights if w.dim() == 2]
        return sum(sizes)

    def through_time(self) -> int:
        """Multiply-adds of them from one time step into the next: all but the input's."""
        entries = self.weights[:: len(self.weights) // self.directions]
        sizes: list[int] = [w.numel() for w in entries]
        return self.multiply_adds() - sum(sizes)


def layers_of(weights: Sequence[Any], count: int, directions: int, cell: str) -> list[Layer]:
    """Return the layers behind torch's flat list of weights."""
    gates = {"lstm": 4, "gru": 3, "rnn": 1}[cell]
    size = len(weights) // (count * directions)
    made = []
    for position in range(count):
        start = position * directions * size
        mine = tuple(weights[start : start + directions * size])
        hidden = mine[0].shape[0] // gates
        projected = mine[1].shape[1]
        made.append(
            Layer(mine, mine[0].shape[1], projected * directions, hidden, gates, directions)
        )
    return made


def recurrent(
    recorder: Recorder, cell: str, inputs: Any, state: Any, weights: Sequence[Any],
    biases: bool, count: int, dropout: float, training: bool, bidirectional: bool,
    batch_first: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """Record a stack of recurrent layers and return its outputs, as torch's function does.

    A kernel runs each time step; gates and cell state of every step are kept for backward.

    Args:
        recorder: writes the operations down.
        cell: lstm, gru or rnn.
        inputs: (batch, time, features), or (time, batch, features), or without batch.
        state: the initial state: one tensor, or a pair for an LSTM.
        weights: torch's flat list.
        biases: whether layers have biases.
        count: of layers.
        dropout: between layers (its mask is inside the kept gates).
        training: whether dropout acts.
        bidirectional: whether each layer runs both ways.
        batch_first: order of the first two sides.
    """
    directions = 2 if bidirectional else 1
    layers = layers_of(weights, count, directions, cell)
    states = tuple(state) if cell == "lstm" else (state,)
    run = _Run(recorder, cell, layers, directions, batch_first and inputs.dim() == 3)
    function = autograd_function(run.forward, run.backward)
    result: tuple[Any, ...] = function(inputs, *states, *weights)
    return result


@dataclass
class _Run:
    recorder: Recorder
    cell: str
    layers: list[Layer]
    directions: int
    batch_first: bool
    first: int = 0

    def forward(self, ctx: Any, tensors: Sequence[Any]) -> Any:
        inputs = tensors[0]
        states = tensors[1 : 3 if self.cell == "lstm" else 2]
        tokens = inputs.numel() // inputs.shape[-1]
        with no_dispatch():
            output = inputs.new_empty((*inputs.shape[:-1], self.layers[-1].outputs))
            ends = [load_torch().empty_like(s) for s in states]
            kept = [inputs.new_empty(tokens * self._kept(layer)) for layer in self.layers]
        previous, self.first = inputs, len(self.recorder.ops)
        for layer, reserve in zip(self.layers, kept, strict=True):
            op = self._op(layer, tokens, Phase.FORWARD)
            op.reads = float(tokens * layer.inputs) / self._samples
            op.writes = float(tokens * layer.outputs) / self._samples
            op.launches = self._steps(inputs)
            last = layer is self.layers[-1]
            written = [reserve, output, *ends] if last else [reserve]
            read = [self.recorder.book.of(t) for t in (previous, *layer.weights)]
            self.recorder.add(op, read, written)
            previous = reserve
        self.recorder.mark(self.first)
        ctx.save_for_backward(inputs, output, *kept)
        ctx.tensors, ctx.tokens = tensors, tokens
        return (output, *ends)

    def backward(self, ctx: Any, grads: Sequence[Any]) -> Any:
        """Record data and weight gradients of each layer, the last layer first."""
        with no_dispatch():
            made = [load_torch().empty_like(t) for t in ctx.tensors]
        book, samples = self.recorder.book, self._samples
        saved = [book.of(t) for t in ctx.saved_tensors]
        arriving = [book.of(g) for g in grads if g is not None]
        upstream: dict[int, None] = {}
        for position in reversed(range(len(self.layers))):
            layer, source = self.layers[position], self.first + position
            forward = self.recorder.ops[source]
            read, arriving = [*arriving, saved[2 + position]], []
            weight = self._op(layer, ctx.tokens, Phase.BACKWARD, "wgrad")
            weight.source, weight.inputs = source, dict(upstream)
            weight.reads = float(ctx.tokens * (layer.inputs + layer.gates * layer.hidden)) / samples
            weight.into_weight_gradient(0.0)
            data = self._op(layer, ctx.tokens, Phase.BACKWARD, "dgrad")
            data.source, data.launches = source, forward.launches
            data.reads, data.writes = forward.writes + forward.saved, forward.reads
            data.inputs = upstream
            if position == 0 and not ctx.needs_input_grad[0]:
                # The gradient still runs back through time, but not into the input.
                data.flops = 2.0 * ctx.tokens * layer.through_time() / samples
                data.writes = 0.0
            written = made[:1] if position == 0 else []
            upstream = {self.recorder.add(data, read, written): None}
            mine = {id(w) for w in layer.weights}
            written = [m for t, m in zip(ctx.tensors, made, strict=True) if id(t) in mine]
            self.recorder.add(weight, read, written)
        return tuple(m if n else None for m, n in zip(made, ctx.needs_input_grad, strict=True))

    def _op(self, layer: Layer, tokens: int, phase: Phase, part: str = "") -> RawOp:
        multiply_adds = layer.multiply_adds()
        op = RawOp(part or self.cell, OpKind.RECURRENT, phase, path=self.recorder.path)
        op.flops = 2.0 * tokens * multiply_adds / self._samples
        op.weights = float(sum(w.numel() for w in layer.weights))
        rows = self.directions * layer.gates * layer.hidden
        inner = multiply_adds // rows
        if part == "wgrad":
            op.product = Product(OpKind.RECURRENT, op.flops, inner, rows, tokens)
        elif part == "dgrad":
            op.product = Product(OpKind.RECURRENT, op.flops, tokens, inner, rows)
        else:
            op.product = Product(OpKind.RECURRENT, op.flops, tokens, rows, inner)
        op.right_static = True
        op.shape = (tokens, layer.outputs)
        return op

    def _kept(self, layer: Layer) -> int:
        """Elements kept for each token: every gate, and the cell state of an LSTM."""
        states = layer.gates + (1 if self.cell == "lstm" else 0)
        return self.directions * states * layer.hidden

    def _steps(self, inputs: Any) -> int:
        steps: int = inputs.shape[1] if self.batch_first else inputs.shape[0]
        return steps * self.directions

    @property
    def _samples(self) -> int:
        return self.recorder.book.samples
