"""Gradients as torch computes them, told apart: of data, and of weights no batch makes larger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from forerun.workloads.trace.memory import MemoryBook
from forerun.workloads.trace.products import Product
from forerun.workloads.trace.raw import RawOp


def find_weight_gradients(
    op: RawOp, forward: RawOp, written: Sequence[Any], book: MemoryBook
) -> list[Any]:
    """Return the tensors among those written that are gradients of weights, and state them so.

    A gradient of a weight has the size of a weight that the forward operation read. Where it is
    the only output, it is made of activations alone; among several, data gradients come first.
    """
    sizes = forward.weight_sizes
    if op.static or not sizes:
        return []
    if len(written) == 1:
        if op.weights or written[0].numel() not in sizes:
            return []
        op.into_weight_gradient(book.elements(written[0]))
        return list(written)
    found = [t for t in written[1:] if t.numel() in sizes]
    elements = sum(book.elements(t) for t in found)
    op.writes -= elements / book.samples
    op.weights += elements
    return found


def split_convolution(
    op: RawOp, bound: Mapping[str, Any], outputs: Sequence[Any], book: MemoryBook
) -> list[tuple[RawOp, list[Any]]]:
    """Return a convolution's backward as its data gradient and its weight gradient.

    torch dispatches them as one operation, and may leave either out; each does as many FLOPs as
    forward (a grouped one, too: no channel meets the other groups' channels).
    """
    data, weight, bias = (*bound["output_mask"], False, False, False)[:3]
    grad = book.elements(bound["grad_output"]) / book.samples
    image = book.elements(bound["input"]) / book.samples
    kernel = book.elements(bound["weight"])
    made = list(outputs)
    parts: list[tuple[RawOp, list[Any]]] = []
    if data:
        product = _data_product(op.product)
        part = replace(
            op, label="dgrad", reads=grad, writes=image, weights=kernel, product=product,
            inputs=dict(op.inputs), right_static=True, shape=tuple(made[0].shape),
        )  # fmt: skip
        parts.append((part, [made.pop(0)]))
    if weight:
        part = replace(
            op, label="wgrad", reads=grad + image, writes=0.0, weights=kernel, static=True,
            product=_weight_product(op.product), weight_gradient=True, launches=1 + int(bias),
            inputs=dict(op.inputs), shape=tuple(made[0].shape),
        )  # fmt: skip
        parts.append((part, made))
    elif bias:
        part = replace(op, label="bias_grad", flops=0.0, reads=grad, writes=0.0, product=None,
                       static=True, inputs=dict(op.inputs))  # fmt: skip
        parts.append((part, made))
    return parts


def _data_product(product: Product | None) -> Product | None:
    return product and replace(product, n=product.k, k=product.n)


def _weight_product(product: Product | None) -> Product | None:
    return product and replace(product, m=product.k, k=product.m)
