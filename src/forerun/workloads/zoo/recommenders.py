"""Recommenders: DLRM and its DCN-v2 form, Wide & Deep, neural collaborative filtering."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.domain.graph import Block, OpKind
from forerun.workloads.zoo.net import Net, Tensor
from forerun.workloads.zoo.recurrent import embedding

SPARSE_NOTE = "gradients of the embedding tables are sparse: the optimizer touches looked-up rows"


@dataclass(frozen=True, slots=True)
class DlrmShape:
    """Naumov et al. 2019, figure 1.

    Attributes:
        rows: rows of all tables together.
        width: size of an embedding.
        bottom, top: widths of the two networks.
        tables: categorical features.
        lookups: rows looked up for a sample (None: one a table).
        crosses: low-rank cross layers of DCN-v2 in place of pairwise products.
        rank: of a cross layer.
    """

    rows: int
    width: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    tables: int = 26
    lookups: int | None = None
    crosses: int = 0
    rank: int = 512


# Rows after the cap of 40 million a table: MLPerf Training v0.7 to v2.1, and v3.0 on.
DLRM: dict[str, DlrmShape] = {
    "dlrm-criteo-1tb": DlrmShape(187_767_399, 128, (512, 256, 128), (1024, 1024, 512, 256, 1)),
    "dlrm-dcnv2": DlrmShape(
        204_184_588, 128, (512, 256, 128), (1024, 1024, 512, 256, 1), lookups=214, crosses=3
    ),
    "dlrm-criteo-kaggle": DlrmShape(33_762_577, 16, (512, 256, 64, 16), (512, 256, 1)),
}


def dense_layers(net: Net, x: Tensor, name: str, widths: Sequence[int], last: bool) -> Tensor:
    """Linear layers with ReLU between them; `last` says whether the last has one too."""
    for number, width in enumerate(widths):
        x = net.linear(x, f"{name}.{number}", width)
        if last or number + 1 < len(widths):
            x = net.activation(x, f"{name}.{number}.relu")
    return x


def dlrm(name: str, net: Net, size: int) -> tuple[str, ...]:
    """State a DLRM of Criteo's 13 numbers and 26 categories."""
    shape = DLRM[name]
    dense = dense_layers(net, net.input(13), "bottom", shape.bottom, last=True)
    lookups = shape.lookups or shape.tables
    net.block = Block.EMBED
    table = embedding(net, "tables", shape.rows, shape.width, lookups)
    net.sparse_params = float(shape.rows * shape.width)
    net.block = Block.LAYER
    if lookups > shape.tables:
        pooled = (shape.tables, shape.width)
        table = net.emit(OpKind.REDUCE, "tables.sum", (table,), pooled)
    features = shape.tables + 1
    joined = net.concat("features", (net.view(dense, 1, shape.width), table))
    if shape.crosses:
        x = _cross(net, net.view(joined, features * shape.width), shape)
    else:
        x = _pairs(net, joined, dense, features)
    net.block = Block.HEAD
    net.loss(dense_layers(net, x, "top", shape.top, last=False))
    return (SPARSE_NOTE,)


def _pairs(net: Net, joined: Tensor, dense: Tensor, features: int) -> Tensor:
    """Products of all pairs of features, joined to the dense one."""
    width = joined.shape[1]
    products = net.emit(
        OpKind.MATMUL, "pairs", (joined,), (features, features), keep=(joined,),
        flops=2.0 * features * features * width, dims=(features, features, width, 1),
    )  # fmt: skip
    pairs = features * (features - 1) // 2
    return net.concat("interaction", (dense, net.copy(products, "lower", (pairs,))))


def _cross(net: Net, x: Tensor, shape: DlrmShape) -> Tensor:
    """Cross layers x0 * (V U x) + x of low rank (Wang et al. 2021, equation 2)."""
    first = x
    for layer in range(shape.crosses):
        inner = net.linear(x, f"cross.{layer}.down", shape.rank, bias=False)
        inner = net.linear(inner, f"cross.{layer}.up", first.shape[0])
        x = net.add(f"cross.{layer}.sum", net.multiply(f"cross.{layer}.product", first, inner), x)
    return x


def wide_deep(net: Net, size: int) -> tuple[str, ...]:
    """State Wide & Deep (Cheng et al. 2016) on Criteo in the OneFlow benchmark's form."""
    rows, width, tables = 2_322_444, 16, 26
    net.block = Block.EMBED
    deep = embedding(net, "deep.table", rows, width, tables)
    wide = embedding(net, "wide.table", rows, 1, 2)
    net.sparse_params = float(rows * (width + 1))
    net.block = Block.LAYER
    x = net.concat("deep.features", (net.flatten(deep), net.input(13)))
    for layer in range(7):
        x = net.activation(net.linear(x, f"deep.{layer}", 1024), f"deep.{layer}.relu")
        x = net.dropout(x, f"deep.{layer}.dropout")
    net.block = Block.HEAD
    wide = net.emit(OpKind.REDUCE, "wide.sum", (wide,), (1,))
    net.loss(net.add("sum", net.linear(x, "head", 1), wide))
    return (SPARSE_NOTE,)


@dataclass(frozen=True, slots=True)
class NeumfShape:
    """He et al. 2017, section 3.4."""

    users: int
    items: int
    factors: int
    layers: tuple[int, ...]


NEUMF: dict[str, NeumfShape] = {
    "neumf-ml20m": NeumfShape(138_493, 26_744, 64, (256, 256, 128, 64)),
    "neumf-ml1m": NeumfShape(6_040, 3_706, 32, (256, 128, 64, 32)),
}


def neumf(name: str, net: Net, size: int) -> tuple[str, ...]:
    """State neural matrix factorisation: a product and a network of embeddings, joined."""
    shape = NEUMF[name]
    half = shape.layers[0] // 2
    net.block = Block.EMBED
    kinds = (("user", shape.users), ("item", shape.items))
    factors = [embedding(net, f"mf.{k}", rows, shape.factors, 1) for k, rows in kinds]
    deep = [embedding(net, f"mlp.{k}", rows, half, 1) for k, rows in kinds]
    net.block = Block.LAYER
    product = net.multiply("mf.product", *factors)
    x = net.concat("mlp.join", deep, axis=1)
    x = dense_layers(net, x, "mlp", shape.layers[1:], last=True)
    net.block = Block.HEAD
    net.loss(net.linear(net.concat("join", (product, x), axis=1), "head", 1))
    return ()
