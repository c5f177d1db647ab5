"""RawOp: an operation as it was seen, before the step is folded into a Graph."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from forerun.domain.graph import Block, OpKind, Phase, Shard
from forerun.workloads.trace.products import Product


@dataclass(frozen=True, slots=True)
class Heads:
    """The shape of one attention: query heads, key-value heads, size of a head, tokens."""

    heads: int
    kv_heads: int
    size: int
    tokens: int

    @classmethod
    def of(cls, query: Sequence[int], key: Sequence[int]) -> Heads:
        """Return it from the shapes (batch, heads, tokens, head size) of queries and keys."""
        kv_heads = key[-3] if len(key) > 3 else 1
        heads = query[-3] if len(query) > 3 else 1
        return cls(heads, kv_heads, query[-1], query[-2])


@dataclass(slots=True)
class RawOp:
    """One dispatched operation; numbers are for one sample, as in `Op`.

    Attributes:
        label: the operation's own name.
        path: the module that ran it.
        static: its work and output do not grow with the batch.
        weight_gradient: it makes the gradient of a weight.
        product: the product of matrices in it, for the whole batch.
        shape: of its output, for the whole batch.
        left_static, right_static: factors of the product that do not grow with the batch.
        inputs: operations whose outputs it reads, in order.
        sizes: elements that it reads of each of them.
        weight_sizes: sizes of the weights that it reads.
        table: (rows, width) where it looks rows up.
        source: for a backward operation, the forward one that it differentiates.
    """

    label: str
    kind: OpKind
    phase: Phase
    flops: float = 0.0
    reads: float = 0.0
    writes: float = 0.0
    weights: float = 0.0
    params: float = 0.0
    saved: float = 0.0
    launches: int = 1
    shape: tuple[int, ...] = ()
    path: str = ""
    static: bool = False
    weight_gradient: bool = False
    product: Product | None = None
    left_static: bool = False
    right_static: bool = False
    inputs: dict[int, None] = field(default_factory=dict)
    sizes: dict[int, float] = field(default_factory=dict)
    weight_sizes: set[int] = field(default_factory=set)
    table: tuple[int, ...] = ()
    source: int | None = None
    block: Block = Block.LAYER
    shard: Shard = Shard.NONE
    repeat: int = 1

    def into_weight_gradient(self, elements: float) -> None:
        """Become the gradient of a weight of `elements`: its output does not grow with the batch."""
        self.weight_gradient = self.static = True
        self.weights += elements
        self.writes = 0.0

    def dims(self, samples: int) -> tuple[int, ...]:
        """Return (m, n, k, groups) for one sample.

        The side that grows with the batch stands first, except that attention and stacks of
        activation products grow by groups, and a weight gradient by its reduction k.
        """
        product = self.product
        if product is None:
            return ()
        m, n, k, groups = product.m, product.n, product.k, product.groups
        if self.weight_gradient:
            k /= samples
        elif self.left_static and not self.right_static:
            m, n = n / samples, m
        elif not (self.right_static or math.fmod(groups, samples)) and groups >= samples > 1:
            groups /= samples
        elif not self.static:
            m /= samples
        return tuple(max(1, round(side)) for side in (m, n, k, groups))

    def sample_shape(self, samples: int) -> tuple[int, ...]:
        """Return the output's shape for one sample, its leading side divided by the batch."""
        if self.static or not self.shape or self.shape[0] % samples:
            return self.shape
        lead = self.shape[0] // samples
        return self.shape[1:] if lead == 1 and len(self.shape) > 1 else (lead, *self.shape[1:])
