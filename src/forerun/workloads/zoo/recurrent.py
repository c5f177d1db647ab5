"""Recurrent layers as operations: one a layer, with a launch for each step of its sequence."""

from __future__ import annotations

from forerun.domain.graph import OpKind
from forerun.workloads.zoo.net import Net, Tensor

_GATES = {"lstm": 4, "gru": 3}


def recurrent(
    net: Net,
    x: Tensor,
    name: str,
    hidden: int,
    *,
    kind: str = "lstm",
    both_ways: bool = False,
    biases: int = 2,
) -> Tensor:
    """State one LSTM or GRU layer over (steps, features).

    The gates are a product of [input, state] with one weight. Steps follow one another, so that
    each starts a kernel. Kept: the input, the gates and the states (and cells, of an LSTM).

    Args:
        net: the network.
        x: (steps, features).
        name: dotted path.
        hidden: size of the state.
        kind: lstm or gru.
        both_ways: a second layer reads the sequence backwards; outputs are joined.
        biases: bias vectors a gate (cuDNN and PyTorch have two).
    """
    steps, features = x.shape
    gates, ways = _GATES[kind], 2 if both_ways else 1
    count = gates * hidden * (features + hidden)
    width = (gates + (2 if kind == "lstm" else 1)) * hidden * ways
    return net.emit(
        OpKind.RECURRENT,
        name,
        (x,),
        (steps, hidden * ways),
        keep=(x,),
        extra_saved=steps * width,
        flops=2.0 * steps * count * ways,
        params=ways * (count + biases * gates * hidden),
        dims=(steps, gates * hidden, features + hidden, ways),
        launches=steps + 1,
    )


def embedding(
    net: Net, name: str, rows: int, width: int, lookups: int, tied: bool = False
) -> Tensor:
    """Look up rows of a table: (lookups, width). A tied table is owned elsewhere."""
    return net.emit(
        OpKind.EMBEDDING,
        name,
        (),
        (lookups, width),
        params=0 if tied else rows * width,
        weights=0,
        reads=lookups * width,
        learns=True,
    )
