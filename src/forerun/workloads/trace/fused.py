"""Fused kernels: what accelerators run as one, the meta device would take apart, is kept whole.

On the meta device torch lowers attention to its materialised products, recurrent layers to one
product a time step, and dropout to a float mask. Calls of these are replaced by operations with
the same shapes that save what the fused kernels save. Requests for another device are answered
with the device that is traced on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from forerun.domain.graph import OpKind, Phase
from forerun.workloads.backward import FUSED_ATTENTION_BACKWARD
from forerun.workloads.trace.backend import autograd_function, load_torch, no_dispatch
from forerun.workloads.trace.products import fused_attention
from forerun.workloads.trace.raw import Heads, RawOp
from forerun.workloads.trace.recorder import Recorder
from forerun.workloads.trace.recurrent import recurrent

_Handler = Callable[[Any, Sequence[Any], dict[str, Any]], Any]


@dataclass
class Fusions:
    """The callback of a function mode: answers some of torch's Python calls in its own way.

    Attributes:
        recorder: writes the fused operations down.
        device: the type of device that is traced on.
    """

    recorder: Recorder
    device: str = "meta"

    def __post_init__(self) -> None:
        torch = load_torch()
        functional = torch.nn.functional
        self._attention = functional.scaled_dot_product_attention
        self._move = torch.Tensor.to
        self._handlers: dict[Any, _Handler] = {
            self._move: self._to,
            torch.Tensor.cuda: lambda func, args, kwargs: args[0],
        }
        if self.device == "meta":
            self._handlers |= {
                self._attention: self._fuse_attention,
                functional.multi_head_attention_forward: self._with_inner_attention,
                functional.dropout: self._dropout,
                torch.lstm: partial(self._recurrent, "lstm"),
                torch.gru: partial(self._recurrent, "gru"),
                torch.rnn_tanh: partial(self._recurrent, "rnn"),
                torch.rnn_relu: partial(self._recurrent, "rnn"),
            }

    def intercept(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Answer a call of torch's Python face.

        A copy to the CPU is left alone: what follows it wants values, not a place.
        """
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
        if len(rest) > 0 and isinstance(rest[0], torch.Tensor):
            rest[0] = rest[0].dtype
        return func(args[0], *rest, **kwargs)

    def _dropout(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        def fused(tensor: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
            if not training or p <= 0:
                return func(tensor, p, training, inplace)
            return load_torch().native_dropout(tensor, p, True)[0]

        return fused(*args, **kwargs)

    def _with_inner_attention(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run torch's own multi-head attention with the attention inside it replaced."""
        with _replaced("scaled_dot_product_attention", self._inner_attention):
            return func(*args, **kwargs)

    def _inner_attention(self, *args: Any, **kwargs: Any) -> Any:
        return self._fuse_attention(self._attention, args, kwargs)

    def _recurrent(self, cell: str, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if len(args) != 9 or not isinstance(args[3], bool):
            return func(*args, **kwargs)  # a packed sequence: its lengths are data
        return recurrent(self.recorder, cell, *args)

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
                output = _laid_out_as_fused(query, value.shape[-1])
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
            recorder.heads.append(Heads.of(query.shape, key.shape))
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


def _laid_out_as_fused(query: Any, size: int) -> Any:
    """Return an output of attention; kernels write the heads of a token side by side."""
    if query.dim() != 4:
        return query.new_empty((*query.shape[:-1], size))
    batch, heads, tokens, _ = query.shape
    return query.new_empty((batch, tokens, heads, size)).transpose(1, 2)


@contextmanager
def _replaced(name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Put a function in the place of one of torch.nn.functional for a while."""
    functional = load_torch().nn.functional
    original = getattr(functional, name)
    setattr(functional, name, function)
    try:
        yield
    finally:
        setattr(functional, name, original)
