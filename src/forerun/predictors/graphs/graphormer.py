"""Graphormer, the encoder of GHN-3: attention among all nodes of a graph, biased by how far they lie apart.

Source: Knyazev, Hwang and Lacoste-Julien, Can We Scale Transformers to Predict Parameters of Diverse ImageNet
Models? (ICML 2023), reconstructed: pre-norm layers of attention and a net, degrees added to a node's features, and
a number for each head by the forward and backward distance of two nodes. In a graph without cycles only one of
these is there, so that a table by signed distance holds any function of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from forerun.arrays import IntArray
from forerun.predictors.graphs.encoder import (
    FARTHEST,
    NUMPY,
    WIDTH,
    Backend,
    Encoder,
    Weights,
    features,
    tables,
)
from forerun.predictors.graphs.primitives import PrimitiveGraph, distances, size_codes

LAYERS, HEADS = 3, 4  # three layers as the smallest published one
MOST_DEGREE = 99
_APART = 2 * FARTHEST + 1  # the code of nodes without a way from one to the other


@dataclass(frozen=True)
class PaddedBatch:
    """Graphs side by side, each filled up to m nodes.

    primitive (g m,), sizes (g m, 4), inward, outward (g m,) are codes of all places; away (g, m, m): signed
    distance, as a code; blank (g, 1, 1, m): what keeps attention from empty places. nodes: the places that are
    none of these, (n,). begins, counts: of each graph's nodes among them, (g,).
    """

    primitive: IntArray
    sizes: IntArray
    inward: IntArray
    outward: IntArray
    away: IntArray
    blank: Any
    nodes: IntArray
    begins: IntArray
    counts: IntArray

    @staticmethod
    def of(graphs: Sequence[PrimitiveGraph]) -> PaddedBatch:
        """Return the batch of graphs."""
        counts = np.array([len(graph) for graph in graphs])
        begins, most = np.concatenate([[0], np.cumsum(counts)[:-1]]), int(counts.max())
        graph = np.repeat(np.arange(len(graphs)), counts)
        inside = np.arange(counts.sum()) - begins[graph]
        nodes = graph * most + inside
        source, target, length = distances(graphs, FARTHEST)
        away = np.full((len(graphs), most, most), _APART)
        signed = length.astype(np.int64)
        away[graph[target], inside[target], inside[source]] = FARTHEST + signed
        away[graph[target], inside[source], inside[target]] = FARTHEST - signed
        away[graph, inside, inside] = FARTHEST
        direct = signed == 1
        degrees = [
            _put(np.minimum(np.bincount(end[direct], minlength=len(nodes)), MOST_DEGREE), nodes, len(graphs) * most)
            for end in (target, source)
        ]  # fmt: skip
        sizes = np.zeros((len(graphs) * most, 4), dtype=np.int64)
        sizes[nodes] = size_codes(np.concatenate([one.sizes for one in graphs]))
        primitive = _put(np.concatenate([one.primitive for one in graphs]), nodes, len(sizes))
        blank = np.full((len(graphs), 1, 1, most), -1e9, dtype=np.float32)
        blank.reshape(-1)[nodes] = 0.0
        inward, outward = degrees
        return PaddedBatch(primitive, sizes, inward, outward, away, blank, nodes, begins, counts)


def _put(values: IntArray, places: IntArray, count: int) -> IntArray:
    array = np.zeros(count, dtype=np.int64)
    array[places] = values
    return array


def states(batch: PaddedBatch, weights: Weights, using: Backend = NUMPY) -> Any:
    """Return the final state of each node, (n, width)."""
    graphs, most = batch.away.shape[:2]
    x = features(batch.primitive, batch.sizes, weights, using)
    x = x + weights["centrality_embed_in.weight"][batch.inward]
    x = x + weights["centrality_embed_out.weight"][batch.outward]
    width = x.shape[1]
    x = x.reshape(graphs, most, width)
    bias = weights["edge_embed.weight"][batch.away]  # (g, m, m, heads)
    bias = bias.swapaxes(2, 3).swapaxes(1, 2) + batch.blank
    layer, heads = 0, bias.shape[1]
    while f"layers.{layer}.qkv.weight" in weights:
        name = f"layers.{layer}"
        whole = _normed(x, weights, f"{name}.ln1") @ weights[f"{name}.qkv.weight"].T
        query, key, value = (
            whole[:, :, i * width : (i + 1) * width]
            .reshape(graphs, most, heads, width // heads)
            .swapaxes(1, 2)
            for i in range(3)
        )
        seen = using.softmax(query @ key.swapaxes(2, 3) * (width // heads) ** -0.5 + bias) @ value
        seen = seen.swapaxes(1, 2).reshape(graphs, most, width)
        x = x + _linear(seen, weights, f"{name}.out")
        half = _linear(_normed(x, weights, f"{name}.ln2"), weights, f"{name}.up")
        # GELU, by its usual approximation (Hendrycks and Gimpel 2016).
        half = 0.5 * half * (1.0 + using.tanh(0.7978845608 * (half + 0.044715 * half**3)))
        x = x + _linear(half, weights, f"{name}.down")
        layer += 1
    return _normed(x, weights, "ln").reshape(graphs * most, width)[batch.nodes]


def _linear(x: Any, weights: Weights, name: str) -> Any:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _normed(x: Any, weights: Weights, name: str) -> Any:
    centred = x - x.mean(axis=-1, keepdims=True)
    scale = ((centred * centred).mean(axis=-1, keepdims=True) + 1e-5) ** -0.5
    return centred * scale * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def shapes(
    width: int = WIDTH, layers: int = LAYERS, heads: int = HEADS
) -> dict[str, tuple[int, ...]]:
    """Return the shape of each weight of an encoder."""
    found = tables(width) | {
        "centrality_embed_in.weight": (MOST_DEGREE + 1, width),
        "centrality_embed_out.weight": (MOST_DEGREE + 1, width),
        "edge_embed.weight": (_APART + 1, heads),
        "ln.weight": (width,), "ln.bias": (width,),
    }  # fmt: skip
    for layer in range(layers):
        name = f"layers.{layer}"
        found |= {f"{name}.{ln}.{part}": (width,) for ln in ("ln1", "ln2") for part in ("weight", "bias")}  # fmt: skip
        found |= {
            f"{name}.qkv.weight": (3 * width, width),
            f"{name}.out.weight": (width, width), f"{name}.out.bias": (width,),
            f"{name}.up.weight": (4 * width, width), f"{name}.up.bias": (4 * width,),
            f"{name}.down.weight": (width, 4 * width), f"{name}.down.bias": (width,),
        }  # fmt: skip
    return found


GRAPHORMER = Encoder(shapes, PaddedBatch.of, states)
