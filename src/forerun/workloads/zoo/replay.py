"""Replay: re-propagates the layers of a captured network at any image size.

A captured network is a list of nodes `[code, name, inputs, attributes...]`; inputs are positions in
the list, and position 0 is the image. Attributes at their defaults are left off at the end.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from forerun.domain.graph import Block
from forerun.errors import RequestError
from forerun.workloads.zoo.net import Net, Tensor

_DATA = Path(__file__).parent / "data"
Node = Sequence[Any]
Emit = Callable[..., Tensor]


@dataclass(frozen=True, slots=True)
class Captured:
    """A network as it was captured.

    Attributes:
        name: public id.
        size: image size of its published accuracy.
        blocks: repeated residual (or dense, or fire) blocks.
        outputs: nodes that the training loss reads; the first is the classifier.
        nodes: layer operations in execution order, the image first.
    """

    name: str
    size: int
    blocks: int
    outputs: tuple[int, ...]
    nodes: tuple[Node, ...]


@lru_cache(maxsize=4)
def _family(family: str) -> dict[str, dict[str, Any]]:
    path = _DATA / f"{family}.json.gz"
    found: dict[str, dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def captured(family: str, name: str) -> Captured:
    """Return one captured network of a family's data file."""
    fields = _family(family)[name]
    return Captured(
        name=name,
        size=fields["size"],
        blocks=fields["blocks"],
        outputs=tuple(fields["outputs"]),
        nodes=tuple(_unpack(fields["nodes"])),
    )


def _unpack(text: str) -> list[Node]:
    """Return nodes from their packed text; unpacked only for the network that is asked."""
    nodes: list[Node] = json.loads(text)
    return nodes


def replay(net: Net, network: Captured, image: Tensor, auxiliary: bool = True) -> list[Tensor]:
    """State a captured network's operations in `net` and return what its loss reads.

    Args:
        net: where the operations go.
        network: the captured layers.
        image: (channels, height, width).
        auxiliary: also the auxiliary classifiers that some networks train with.

    Raises:
        RequestError: the image is too small for a layer.
    """
    outputs = network.outputs if auxiliary else network.outputs[:1]
    needed = _ancestors(network.nodes, outputs)
    head = _head_start(network.nodes, outputs[0])
    values: dict[int, Tensor] = {0: image}
    for position, (code, name, inputs, *attributes) in enumerate(network.nodes):
        if position == 0 or position not in needed:
            continue
        net.block = Block.HEAD if position >= head else Block.LAYER
        values[position] = _EMIT[code](net, name, [values[i] for i in inputs], *attributes)
    return [values[i] for i in outputs]


def classifier(family: str, name: str, net: Net, size: int) -> tuple[str, ...]:
    """State a captured network and its loss, with auxiliary classifiers where they fit.

    Raises:
        RequestError: the image is too small for a layer.
    """
    network, image = captured(family, name), net.input(3, size, size)
    notes: tuple[str, ...] = ()
    try:
        outputs = replay(net, network, image)
    except RequestError:
        if len(network.outputs) == 1:
            raise
        net.restart()
        outputs = replay(net, network, image, auxiliary=False)
        notes = (f"no auxiliary classifier: it does not fit images of {size} pixels",)
    for number, logits in enumerate(outputs):
        net.loss(logits, f"loss{number}" if number else "loss")
    return notes


def _ancestors(nodes: Sequence[Node], outputs: Sequence[int]) -> set[int]:
    needed = set(outputs)
    for position in range(len(nodes) - 1, 0, -1):
        if position in needed:
            needed.update(nodes[position][2])
    return needed


def _head_start(nodes: Sequence[Node], output: int) -> int:
    """Return the first position of the classifier: what follows the last pooling or mean."""
    last = max(
        (i for i in range(1, output + 1) if nodes[i][0] in ("adapt", "mean")), default=output
    )
    return last + 1 if last < output else output + 1


def _conv(
    net: Net, name: str, x: list[Tensor], out: int, kernel: Any, stride: Any = 1,
    padding: Any = 0, groups: int = 1, bias: int = 0, dilation: Any = 1,
) -> Tensor:  # fmt: skip
    return net.conv(x[0], name, out, kernel, stride, padding, groups, bool(bias), dilation)


def _flatten(net: Net, name: str, x: list[Tensor]) -> Tensor:
    return net.flatten(x[0])


def _part(net: Net, name: str, x: list[Tensor], count: int) -> Tensor:
    return net.channels(x[0], x[0].shape[0] // count)


def _last(net: Net, name: str, x: list[Tensor]) -> Tensor:
    """Move channels from first to last: a view."""
    return net.view(x[0], *x[0].shape[1:], x[0].shape[0])


def _first(net: Net, name: str, x: list[Tensor]) -> Tensor:
    """Move channels from last to first: a view."""
    return net.view(x[0], x[0].shape[-1], *x[0].shape[:-1])


_EMIT: dict[str, Emit] = {
    "conv": _conv,
    "bn": lambda net, name, x: net.batch_norm(x[0], name),
    "ln": lambda net, name, x, width: net.norm(x[0], name, width),
    "act": lambda net, name, x, kind: net.activation(x[0], name, kind),
    "max": lambda net, name, x, k, s, p=0, ceil=0: net.pool(x[0], name, k, s, p, bool(ceil)),
    "avg": lambda net, name, x, k, s, p=0, ceil=0: net.pool(
        x[0], name, k, s, p, bool(ceil), average=True
    ),
    "adapt": lambda net, name, x, out: net.adaptive_pool(x[0], name, out),
    "mean": lambda net, name, x: net.mean(x[0], name),
    "linear": lambda net, name, x, out, bias=1: net.linear(x[0], name, out, bool(bias)),
    "add": lambda net, name, x: net.add(name, *x),
    "mul": lambda net, name, x: net.multiply(name, *x),
    "cat": lambda net, name, x: net.concat(name, x),
    "scale": lambda net, name, x, params: net.scale(x[0], name, params),
    "drop": lambda net, name, x: net.dropout(x[0], name),
    "depth": lambda net, name, x: net.pointwise(x[0], name, launches=2),
    "copy": lambda net, name, x: net.copy(x[0], name),
    "flat": _flatten,
    "part": _part,
    "last": _last,
    "first": _first,
}
