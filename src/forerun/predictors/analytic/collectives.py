"""Collectives: seconds to move bytes among ranks inside and between nodes.

All functions take NumPy arrays that broadcast together. `size` is the bytes of the full buffer on
one rank, `ranks` how many take part, bandwidths are effective bytes/s per device and direction.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from forerun.arrays import FloatArray


def all_reduce(
    size: Any, ranks: Any, per_node: Any, intra_latency: Any, intra_bandwidth: Any,
    inter_latency: Any, inter_bandwidth: Any,
) -> Any:  # fmt: skip
    """Return the seconds of an all-reduce over rings that pass through all nodes.

    Every ring carries 2 (K-1)/K of its share of the buffer over each link (Patarasuk and Yuan
    2009), so that the slower of the links inside nodes and between them binds, and two nodes are
    no faster than many: NCCL has no reduce-scatter inside a node before the network. Small buffers
    climb a tree of nodes (Sanders, Speck and Traeff 2009).

    per_node: ranks of the group in one node, each with its own share of the network.
    """
    nodes = np.ceil(ranks / per_node)
    climb = np.minimum(nodes - 1, np.ceil(np.log2(np.maximum(nodes, 1))))
    latency = 2.0 * ((per_node - 1) * intra_latency + climb * inter_latency)
    return 2.0 * _around(size, ranks, per_node, intra_bandwidth, inter_bandwidth) + latency


def all_gather(
    size: Any, ranks: Any, per_node: Any, intra_latency: Any, intra_bandwidth: Any,
    inter_latency: Any, inter_bandwidth: Any,
) -> Any:  # fmt: skip
    """Return the seconds of an all-gather or reduce-scatter over the same rings.

    `size` is the bytes of the complete buffer; the volume is half of an all-reduce's. K ranks on M
    nodes take K - M hops inside nodes and M - 1 between them: there is no tree.
    """
    nodes = np.ceil(ranks / per_node)
    latency = (ranks - nodes) * intra_latency + (nodes - 1) * inter_latency
    return _around(size, ranks, per_node, intra_bandwidth, inter_bandwidth) + latency


def _around(size: Any, ranks: Any, per_node: Any, intra: Any, inter: Any) -> Any:
    """Return the seconds in which (K-1)/K of a buffer passes the slowest link of its rings."""
    moved = (ranks - 1) / ranks * size
    inside = moved / intra
    between = np.where(np.asarray(ranks) > per_node, moved / (per_node * inter), 0.0)
    return np.maximum(inside, between)


def all_to_all(
    size: Any, ranks: Any, per_node: Any, intra_latency: Any, intra_bandwidth: Any,
    inter_latency: Any, inter_bandwidth: Any,
) -> Any:  # fmt: skip
    """Return an all-to-all in which each rank holds `size` bytes and sends 1/K to each other."""
    inside = (per_node - 1) / ranks * size / intra_bandwidth
    between = (ranks - per_node) / ranks * size / inter_bandwidth
    latency = np.where(
        np.asarray(ranks) > np.asarray(per_node), inter_latency,
        np.where(np.asarray(ranks) > 1, intra_latency, 0.0),
    )  # fmt: skip
    return np.maximum(inside, between) + latency * np.log2(np.maximum(ranks, 1))


def dispatch(
    size: Any, copies: Any, ranks: Any, per_node: Any, intra_latency: Any, intra_bandwidth: Any,
    inter_latency: Any, inter_bandwidth: Any,
) -> Any:  # fmt: skip
    """Return the seconds in which each rank's tokens reach their experts.

    `size` is the bytes of one rank's tokens, each sent to `copies` experts spread evenly over the
    ranks. A token crosses to a node once, however many of its experts are there (the expected
    number of distinct nodes), and is copied inside it.
    """
    nodes = np.ceil(ranks / per_node)
    distinct = nodes * (1.0 - (1.0 - 1.0 / nodes) ** copies)
    between = size * distinct * (nodes - 1) / nodes / inter_bandwidth
    inside = size * copies * (per_node - 1) / per_node / intra_bandwidth
    latency = np.where(nodes > 1, inter_latency, np.where(np.asarray(ranks) > 1, intra_latency, 0))
    return np.maximum(inside, between) + latency * np.log2(np.maximum(ranks, 1))


def p_norm(a: ArrayLike, b: ArrayLike, power: float | FloatArray) -> FloatArray:
    """Return (a^p + b^p)^(1/p): 1 adds up, infinity overlaps perfectly. Grows with a and b."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    high, low = np.maximum(a, b), np.minimum(a, b)
    ratio = low / np.maximum(high, 1e-300)
    result: FloatArray = high * (1.0 + ratio**power) ** (1.0 / power)
    return result
