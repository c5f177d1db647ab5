"""Tape: forward operations written one after the other, each knowing which ones it reads.

Floating-point operations are those of matrix products only, as every published count has it;
other operations are stated by the elements they move.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from forerun.domain.graph import Block, Op, OpKind, Shard


@dataclass
class Tape:
    """A growing list of forward operations with the block, prefix and repeat they now get.

    Attributes:
        activation_bytes: bytes of an activation element; a mask byte and an fp32 copy are
            counted in these elements.
        shared: copies of a repeated layer share one set of weights (ALBERT).
    """

    activation_bytes: float = 2.0
    shared: bool = False
    ops: list[Op] = field(default_factory=list)
    prefix: str = ""
    block: Block = Block.EMBED
    repeat: int = 1

    @property
    def mask(self) -> float:
        """Elements that a mask of one byte takes."""
        return 1.0 / self.activation_bytes

    @property
    def wide(self) -> float:
        """Elements that an fp32 number takes."""
        return 4.0 / self.activation_bytes

    def enter(self, prefix: str, block: Block, repeat: int = 1) -> None:
        """Begin a part of the network: what follows carries its prefix, block and repeat."""
        self.prefix, self.block, self.repeat = prefix, block, repeat

    def add(self, name: str, kind: OpKind, inputs: tuple[int, ...] = (), **numbers: object) -> int:
        """Append one operation and return its position."""
        if self.shared and self.repeat > 1 and "params" in numbers:
            numbers["params"] = float(numbers["params"]) / self.repeat  # type: ignore[arg-type]
        self.ops.append(
            Op(
                name=f"{self.prefix}.{name}",
                kind=kind,
                block=self.block,
                repeat=self.repeat,
                inputs=inputs,
                **numbers,  # type: ignore[arg-type]
            )
        )
        return len(self.ops) - 1

    def linear(
        self,
        name: str,
        source: int,
        m: int,
        n: int,
        k: int,
        bias: bool = False,
        shard: Shard = Shard.TENSOR,
        saved: float = 0.0,
        tied: bool = False,
    ) -> int:
        """Append y[m, n] = x[m, k] w[k, n] (+ b) for one sample.

        `tied` weights are owned elsewhere: they are read here and not counted as parameters.
        """
        weights = float(n * k + (n if bias else 0))
        return self.add(
            name,
            OpKind.MATMUL,
            (source,),
            flops=2.0 * m * n * k,
            reads=float(m * k),
            writes=float(m * n),
            weights=weights,
            params=float(n if bias else 0) if tied else weights,
            shape=(m, n),
            dims=(m, n, k),
            saved=saved,
            shard=shard,
        )

    def norm(
        self,
        name: str,
        source: int,
        shape: tuple[int, int],
        norm: str,
        saved: float = 2.0,
        shard: Shard = Shard.SEQUENCE,
        bias: bool = True,
    ) -> int:
        """Append a normalisation over the last of `shape`; `saved` is in copies of its input.

        It keeps its input, and its output, which the products behind it read.
        """
        size = float(shape[0] * shape[1])
        params = shape[1] * (2.0 if norm == "layernorm" and bias else 1.0)
        return self.add(
            name,
            OpKind.NORM,
            (source,),
            reads=size,
            writes=size,
            weights=params,
            params=params,
            shape=shape,
            saved=saved * size,
            shard=shard,
        )

    def pointwise(
        self,
        name: str,
        sources: tuple[int, ...],
        shape: tuple[int, ...],
        reads: float = 1.0,
        saved: float = 0.0,
        shard: Shard = Shard.SEQUENCE,
        launches: int = 1,
    ) -> int:
        """Append an element-wise operation; reads and saved are for each output element."""
        size = 1.0
        for side in shape:
            size *= side
        return self.add(
            name,
            OpKind.ELEMENTWISE,
            sources,
            reads=reads * size,
            writes=size,
            shape=shape,
            saved=saved * size,
            shard=shard,
            launches=launches,
        )

    def dropout_add(
        self, name: str, branch: int, trunk: int, shape: tuple[int, ...], dropout: float
    ) -> int:
        """Append the residual sum, with the dropout before it where there is one."""
        dropping = dropout > 0
        return self.pointwise(
            name,
            (branch, trunk),
            shape,
            reads=2.0,
            saved=self.mask if dropping else 0.0,
        )
