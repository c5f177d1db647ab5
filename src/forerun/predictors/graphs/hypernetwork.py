"""GHN-2 as published, in small: it predicts the weights of networks that it never saw, and learns by their loss.

Source: Knyazev et al. 2021. The encoder's state of each node goes through a decoder to the weights of that
node; the network runs with them, and its task's loss trains encoder and decoder. Networks are drawn at
random from the primitives, and executed as their graphs say: a product reads its input through a ReLU, and
a pool halves the image.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun import registry
from forerun.arrays import FloatArray, IntArray
from forerun.errors import optional
from forerun.predictors.graphs.encoder import (
    GATED,
    WIDTH,
    Backend,
    Encoder,
    Kept,
    Pass,
    level_gradients,
    run_levels,
)
from forerun.predictors.graphs.primitives import CLASSES, CODE, PRIMITIVES, PrimitiveGraph
from forerun.progress import TrainingStep, report_progress

MOST_CHANNELS = 32  # of a decoded weight; no drawn network is wider
KERNEL = 5  # side of a decoded kernel; smaller ones are its middle
HIDDEN = 32  # channels inside the decoder
REPORT_EVERY = 10  # steps
_PRODUCTS = ("conv", "sep_conv", "dil_conv")


def load_torch(task: str = "train an encoder of graphs") -> Any:
    """Return the torch package. Raises MissingExtraError where it is not installed."""
    with optional(task, "torch", "torch"):
        import torch
    return torch


def drawn_network(rng: np.random.Generator, channels: int = 1) -> PrimitiveGraph:
    """Return a network at random: a stem, one to three stages of cells of up to four products, and a classifier."""
    made = _Drawn()
    width = int(rng.choice([8, 12, 16]))
    node = made.product("conv", made.node("input"), width, channels, 3)
    for stage in range(int(rng.integers(1, 4))):
        if stage:
            node = made.node(str(rng.choice(["max_pool", "avg_pool"])), node)
        for _ in range(int(rng.integers(1, 3))):
            node, width = made.cell(rng, node, width)
    node = made.node("glob_avg", node)
    last = made.node("conv", node, sizes=(CLASSES, width, 1, 1))
    made.node("bias", last, sizes=(CLASSES, 1, 1, 1))
    return made.graph()


class _Drawn:
    def __init__(self) -> None:
        self.primitive: list[int] = []
        self.sizes: list[tuple[int, ...]] = []
        self.edges: list[tuple[int, int]] = []

    def node(self, name: str, *read: int, sizes: tuple[int, ...] = (0, 0, 0, 0)) -> int:
        self.primitive.append(CODE[name])
        self.sizes.append(sizes)
        self.edges += [(i, len(self.primitive) - 1) for i in read]
        return len(self.primitive) - 1

    def product(self, name: str, read: int, out: int, channels: int, kernel: int) -> int:
        """Add a product and its normalisation; a separable one has a filter a channel."""
        inside = 1 if name == "sep_conv" else channels
        node = self.node(name, read, sizes=(out, inside, kernel, kernel))
        return self.node("bn", node, sizes=(out, 1, 1, 1))

    def cell(self, rng: np.random.Generator, read: int, width: int) -> tuple[int, int]:
        """Add one cell: a chain beside a way around it, or two branches that are joined."""
        chain = read
        for _ in range(int(rng.integers(1, 3))):
            name = str(rng.choice(_PRODUCTS))
            chain = self.product(name, chain, width, width, int(rng.choice([1, 3, 5])))
        form = rng.integers(0, 4)
        if form == 0:
            return chain, width
        if form == 1:
            return self.node("sum", read, chain), width
        other = self.product("conv", read, width, width, int(rng.choice([1, 3])))
        if form == 2 or 2 * width > MOST_CHANNELS:
            return self.node("sum", chain, other), width
        return self.node("concat", chain, other), 2 * width

    def graph(self) -> PrimitiveGraph:
        return PrimitiveGraph(np.array(self.primitive), np.array(self.sizes), np.array(self.edges), {})  # fmt: skip


@cache
def torch_backend() -> Backend:
    """Return the encoder's operations in torch, where gradients pass."""
    torch = load_torch()

    class Levels(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(context: Any, way: Pass, *inputs: Any) -> Any:
            arrays, kept = [one.detach().numpy() for one in inputs], Kept()
            states = run_levels(way, *arrays, kept=kept)
            context.gradients = partial(level_gradients, way, arrays, states, kept)
            return torch.from_numpy(states)

        @staticmethod
        def backward(context: Any, given: Any) -> tuple[Any, ...]:
            return None, *map(torch.from_numpy, context.gradients(given.numpy()))

    return Backend(
        torch.tanh, lambda arrays: torch.cat(list(arrays), dim=1), torch.zeros,
        lambda values: torch.softmax(values, dim=-1), Levels.apply,
    )  # fmt: skip


def as_tensors(value: Any) -> Any:
    """Return a batch, or a part of one, whose arrays are tensors, but those of passes."""
    if isinstance(value, np.ndarray):
        return load_torch().as_tensor(value)
    if is_dataclass(value) and not isinstance(value, Pass | type):
        return replace(value, **{f.name: as_tensors(getattr(value, f.name)) for f in fields(value)})
    return value


@dataclass(frozen=True)
class Trained:
    """Weights of an encoder and of what read it, by name, the loss of each step, (steps,), and the optimizer's state."""

    weights: Mapping[str, NDArray[Any]]
    losses: FloatArray
    optimizer: Mapping[str, Any]

    @property
    def encoder(self) -> dict[str, NDArray[Any]]:
        """The weights of the encoder alone."""
        readers = ("decoder.", "head.")
        return {name: value for name, value in self.weights.items() if not name.startswith(readers)}

    def save(self, path: Path) -> None:
        """Write all of it to a file, from which `read` and `start` go on in another process."""
        torch = load_torch()
        weights = {name: torch.as_tensor(value) for name, value in self.weights.items()}
        losses = torch.as_tensor(self.losses)
        torch.save({"weights": weights, "losses": losses, "optimizer": self.optimizer}, path)

    @staticmethod
    def read(path: Path) -> Trained:
        """Return what `save` wrote; nothing in the file is executed."""
        saved = load_torch().load(path, weights_only=True)
        weights = {name: value.numpy() for name, value in saved["weights"].items()}
        return Trained(weights, saved["losses"].numpy(), saved["optimizer"])


def decoder_shapes(width: int = WIDTH) -> dict[str, tuple[int, ...]]:
    """Return the shape of each weight of the decoder."""
    return {
        "decoder.fc.weight": (HIDDEN * KERNEL * KERNEL, width), "decoder.fc.bias": (HIDDEN * KERNEL * KERNEL,),
        "decoder.conv.0.weight": (2 * HIDDEN, HIDDEN), "decoder.conv.0.bias": (2 * HIDDEN,),
        "decoder.conv.2.weight": (MOST_CHANNELS * MOST_CHANNELS, 2 * HIDDEN),
        "decoder.conv.2.bias": (MOST_CHANNELS * MOST_CHANNELS,),
        "decoder.class.weight": (CLASSES, MOST_CHANNELS), "decoder.class.bias": (CLASSES,),
        "decoder.vector.0.weight": (2 * width, width), "decoder.vector.0.bias": (2 * width,),
        "decoder.vector.2.weight": (2 * MOST_CHANNELS, 2 * width), "decoder.vector.2.bias": (2 * MOST_CHANNELS,),
    }  # fmt: skip


def first_weights(seed: int, wanted: Mapping[str, tuple[int, ...]]) -> dict[str, NDArray[Any]]:
    """Return weights as torch's layers start: uniform within 1 / sqrt(inputs), and normal for tables."""
    rng, found = np.random.default_rng(seed), {}
    for name, shape in wanted.items():
        if "embed" in name:
            values = rng.normal(size=shape)
        elif ".ln" in f".{name}":
            values = np.full(shape, float(name.endswith("weight")))
        else:
            inputs = shape[-1] if len(shape) > 1 else wanted[name.replace("bias", "weight")][-1]
            values = rng.uniform(-1.0, 1.0, shape) / np.sqrt(inputs)
        found[name] = values.astype(np.float32)
    return found


def predicted_weights(graph: PrimitiveGraph, node_states: Any, weights: Mapping[str, Any]) -> dict[int, Any]:  # fmt: skip
    """Return tensors of weights by node, decoded from the nodes' states (n, width), and normalised by fan-in."""
    torch = load_torch()
    found: dict[int, Any] = {}
    names = [PRIMITIVES[i] for i in graph.primitive]
    products = [i for i, name in enumerate(names) if name in _PRODUCTS]
    x = _linear(node_states[products], weights, "decoder.fc").relu()
    x = x.reshape(len(products), HIDDEN, KERNEL * KERNEL).transpose(1, 2)
    x = _linear(_linear(x, weights, "decoder.conv.0").relu(), weights, "decoder.conv.2")
    x = x.transpose(1, 2).reshape(len(products), MOST_CHANNELS, MOST_CHANNELS, KERNEL, KERNEL)
    classifier = max(products)
    for place, node in enumerate(products):
        out, inside, height, wide = graph.sizes[node].tolist()
        top, left = (KERNEL - height) // 2, (KERNEL - wide) // 2
        kernel = x[place, :, :, top : top + height, left : left + wide]
        if node == classifier:
            rows = _linear(kernel[:, :, 0, 0].T.relu(), weights, "decoder.class").T
            found[node] = rows[:, :inside, None, None] / inside**0.5
        else:
            found[node] = kernel[:out, :inside] * (2.0 / (inside * height * wide)) ** 0.5
    vectors = [i for i, name in enumerate(names) if name in ("bn", "bias")]
    y = _linear(_linear(node_states[vectors], weights, "decoder.vector.0").relu(), weights, "decoder.vector.2")  # fmt: skip
    for place, node in enumerate(vectors):
        size = int(graph.sizes[node, 0])
        scale, shift = y[place, :size], y[place, MOST_CHANNELS : MOST_CHANNELS + size]
        found[node] = torch.stack([2.0 * torch.sigmoid(0.5 * scale), torch.tanh(0.2 * shift)])
    return found


def _linear(x: Any, weights: Mapping[str, Any], name: str) -> Any:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def executed(graph: PrimitiveGraph, images: Any, weights: Mapping[int, Any]) -> Any:
    """Return the logits (b, classes) of a drawn network on images (b, c, h, w) with weights by node."""
    functional = load_torch().nn.functional
    values: list[Any] = []
    for node, code in enumerate(graph.primitive):
        name = PRIMITIVES[code]
        read = [values[i] for i in graph.edges[graph.edges[:, 1] == node, 0]]
        values.append(_value(functional, name, read, images, weights.get(node)))
    return values[-1][:, :, 0, 0]


def _value(functional: Any, name: str, read: Sequence[Any], images: Any, weight: Any) -> Any:
    if name == "input":
        return images
    x = read[0]
    if name in _PRODUCTS:
        x = x if x is images else x.relu()
        groups, dilation = x.shape[1] // weight.shape[1], 2 if name == "dil_conv" else 1
        padding = dilation * (weight.shape[-1] // 2)
        return functional.conv2d(x, weight, padding=padding, dilation=dilation, groups=groups)
    if name == "bn":
        return functional.batch_norm(x, None, None, weight[0], weight[1], training=True)
    if name == "bias":
        return x + weight[1][None, :, None, None]
    if name == "sum":
        return read[0] + read[1]
    if name == "concat":
        return load_torch().cat(list(read), dim=1)
    if name == "max_pool":
        return functional.max_pool2d(x, 2)
    if name == "avg_pool":
        return functional.avg_pool2d(x, 2)
    return x.mean(dim=(2, 3), keepdim=True)


def trained(
    images: FloatArray, labels: IntArray, seed: int, steps: int, *, networks: int = 4, samples: int = 64,
    rate: float = 1e-3, encoder: Encoder = GATED, start: Trained | None = None,
) -> Trained:  # fmt: skip
    """Return a hypernetwork trained on images (m, c, h, w) of CLASSES classes, each step on networks drawn anew.

    start: goes on from there, with the networks and images that would have come next. Otherwise as `descended`.
    """
    torch = load_torch()
    x, y = torch.as_tensor(images, dtype=torch.float32), torch.as_tensor(labels)

    def loss_of(weights: Mapping[str, Any], rng: np.random.Generator, rank: int, workers: int) -> Any:  # fmt: skip
        graphs = [drawn_network(rng, images.shape[1]) for _ in range(networks)][rank::workers]
        chosen = torch.as_tensor(rng.integers(0, len(labels), samples))
        batch = encoder.batch(graphs)
        found = encoder.states(as_tensors(batch), weights, torch_backend())
        losses = [
            torch.nn.functional.cross_entropy(
                executed(graph, x[chosen], predicted_weights(graph, mine, weights)), y[chosen]
            )
            for graph, mine in zip(graphs, found.split(batch.counts.tolist()), strict=True)
        ]
        return torch.stack(losses).sum() / networks

    wanted = encoder.shapes(WIDTH) | decoder_shapes()
    return descended(Descent(loss_of, wanted, networks, seed, steps, rate, start))


@dataclass(frozen=True)
class Descent:
    """So many steps of Adam down a loss, from first weights or from where another ended.

    loss_of: of the weights, a generator of the step, a rank and how many workers there are, returns this worker's
    share of the loss; shares add up to it. parts: how many a loss can be shared among. wanted: shapes of the weights.
    """

    loss_of: Callable[[Mapping[str, Any], np.random.Generator, int, int], Any]
    wanted: Mapping[str, tuple[int, ...]]
    parts: int
    seed: int
    steps: int
    rate: float
    start: Trained | None

    def carried_out(self, rank: int, workers: int, report: Callable[[int, float], None]) -> Trained:
        """Return the weights, whose gradients several workers of torch.distributed add up at each step.

        report: is called with each step and its loss, in the first worker alone.
        """
        torch, start = load_torch(), self.start
        first = first_weights(self.seed, self.wanted) if start is None else start.weights
        losses = [] if start is None else start.losses.tolist()
        weights = {name: torch.tensor(value, requires_grad=True) for name, value in first.items()}
        adam = torch.optim.Adam(weights.values(), lr=self.rate)
        if start is not None:
            adam.load_state_dict(copy.deepcopy(start.optimizer))
        for step in range(len(losses), len(losses) + self.steps):
            loss = self.loss_of(weights, np.random.default_rng((self.seed, step)), rank, workers)
            adam.zero_grad()
            loss.backward()
            whole = loss.detach()
            if workers > 1:
                whole = _added([whole, *(w.grad for w in weights.values())])
            torch.nn.utils.clip_grad_norm_(list(weights.values()), 5.0)
            adam.step()
            losses.append(float(whole))
            if not rank:
                report(step, losses[-1])
        made = {name: value.detach().numpy() for name, value in weights.items()}
        return Trained(made, np.array(losses), adam.state_dict())


def _added(tensors: Sequence[Any]) -> Any:
    """Put into each tensor its sum over all workers; return the first."""
    torch = load_torch()
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    torch.distributed.all_reduce(flat)
    for tensor, sums in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(sums.reshape(tensor.shape))
    return tensors[0]


def descended(descent: Descent) -> Trained:
    """Return what a descent leads to: on Ray Train where Ray is connected or RAY_ADDRESS names a cluster, else here.

    A worker of Ray trains on the CPU that it has. How many workers the cluster has room for changes the time, and the sums' last digits. Step and loss go to
    `forerun.progress`. Raises RequestError where the cluster cannot be used.
    """
    last = descent.steps + (0 if descent.start is None else len(descent.start.losses))

    def say(step: int, loss: float) -> None:
        if (step + 1) % REPORT_EVERY == 0 or step + 1 == last:
            words = f"training an encoder: step {step + 1} of {last}, loss {loss:.4f}"
            report_progress(TrainingStep(words, step + 1, last, loss))

    ray = sys.modules.get("ray")
    is_connected = ray is not None and ray.is_initialized()
    is_worker = is_connected and ray is not None and ray.get_runtime_context().get_task_id()
    if is_worker or not (is_connected or os.environ.get("RAY_ADDRESS")):
        return descent.carried_out(0, 1, say)
    runner = registry.load("runners", "ray")()
    found: Trained = runner.in_workers(descent.carried_out, descent.parts, say)[0]
    return found
