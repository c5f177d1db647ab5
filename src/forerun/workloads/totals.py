"""A graph from totals alone: parameters, multiply-adds and activations of one forward pass."""

from __future__ import annotations

import math

from forerun.domain.graph import Graph, Op, OpKind
from forerun.workloads.backward import complete

# Convolutional networks write about 5.5 M activations for the square root of a GMAC
# (Radosavovic et al. 2020, table 1: RegNetX and ResNe(X)t within a quarter, 0.4 to 32 GMAC).
_MACTIVATIONS_A_ROOT_GMAC = 5.5
# Products of a network whose layers are not known; it sets the size of each and its launches.
_USUAL_PRODUCTS = 50


def graph_from_totals(
    params: float,
    gmacs: float,
    mactivations: float = 0.0,
    seq_len: int = 0,
    optimizer: str = "adamw",
) -> Graph:
    """Return a graph of a few operations with these totals, for one sample.

    Each of 50 equal products is followed by a normalisation and an activation, which read and
    write what the product wrote.

    Args:
        params: trainable parameters.
        gmacs: multiply-adds of a forward pass, 1e9.
        mactivations: elements that products write in a forward pass, 1e6; 0 means about
            5.5 x sqrt(gmacs) for images, and 1/200 of gmacs for tokens.
        seq_len: tokens in a sample; 0 for images, whose products are convolutions.
        optimizer: a key of `OPTIMIZER_STATES`.
    """
    if not mactivations:
        mactivations = gmacs / 200 if seq_len else _MACTIVATIONS_A_ROOT_GMAC * math.sqrt(gmacs)
    share = 1.0 / _USUAL_PRODUCTS
    moved, weights = share * mactivations * 1e6, share * params
    first = _layer("first", 1, (), share * 2e9 * gmacs, moved, weights, seq_len > 0)
    others = _layer(
        "layer", _USUAL_PRODUCTS - 1, (2,), share * 2e9 * gmacs, moved, weights, seq_len > 0
    )
    return complete((*first, *others), optimizer)


def _layer(
    name: str,
    repeat: int,
    inputs: tuple[int, ...],
    flops: float,
    moved: float,
    weights: float,
    tokens: bool,
) -> tuple[Op, Op, Op]:
    """Return a product, a normalisation and an activation that each write `moved` elements."""
    start = len(inputs) * 3
    product = Op(
        name=f"{name}.product",
        kind=OpKind.MATMUL if tokens else OpKind.CONV,
        flops=flops,
        reads=moved,
        writes=moved,
        weights=weights,
        params=weights,
        saved=moved,
        repeat=repeat,
        inputs=inputs,
    )
    norm = Op(
        name=f"{name}.norm",
        kind=OpKind.NORM if tokens else OpKind.BATCH_NORM,
        reads=moved if tokens else 2 * moved,
        writes=moved,
        saved=moved,
        repeat=repeat,
        inputs=(start,),
    )
    activation = Op(
        name=f"{name}.activation",
        kind=OpKind.ELEMENTWISE,
        reads=moved,
        writes=moved,
        repeat=repeat,
        inputs=(start + 1,),
    )
    return product, norm, activation
