"""Encoders of graphs trained by what is known of networks, or by what physics missed of their runs, in place of decoded weights.

An encoder and a small net over [embedding; further numbers of a row] learn targets of rows, each of which belongs
to a graph: quantities of the graph itself, or log errors of a forecast with the cluster and the plan beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from forerun.arrays import FloatArray, IntArray
from forerun.predictors.graphs.encoder import GATED, WIDTH, Encoder
from forerun.predictors.graphs.hypernetwork import (
    Descent,
    Trained,
    as_tensors,
    descended,
    load_torch,
    torch_backend,
)
from forerun.predictors.graphs.primitives import PrimitiveGraph

HIDDEN = 32  # of the net over embeddings
GRAPHS, ROWS = 4, 128  # of a step


def trained_encoder(
    graphs: Sequence[PrimitiveGraph], of: IntArray, beside: FloatArray, targets: FloatArray, seed: int, steps: int,
    *, rate: float = 3e-3, encoder: Encoder = GATED, start: Trained | None = None,
) -> Trained:  # fmt: skip
    """Return an encoder that has learned targets (r, k) of r rows.

    of: the graph of each row, (r,). beside: what else the net reads, (r, f), f may be 0. Each column is
    taken in its own mean and spread. start: goes on from there, to the last bit. Otherwise as `descended`.
    """
    torch = load_torch()
    width = WIDTH + beside.shape[1]
    head = {
        "head.0.weight": (HIDDEN, width), "head.0.bias": (HIDDEN,),
        "head.1.weight": (targets.shape[1], HIDDEN), "head.1.bias": (targets.shape[1],),
    }  # fmt: skip
    x, y = (
        torch.as_tensor((v - v.mean(axis=0)) / np.maximum(v.std(axis=0), 1e-9), dtype=torch.float32) for v in (beside, targets)
    )  # fmt: skip
    known = np.unique(of)

    def loss_of(weights: Mapping[str, Any], rng: np.random.Generator, rank: int, workers: int) -> Any:  # fmt: skip
        some = rng.permutation(known)[:GRAPHS]
        rows = rng.permutation(np.flatnonzero(np.isin(of, some)))[:ROWS]
        every, mine = len(rows) * targets.shape[1], some[rank::workers]
        rows = rows[np.isin(of[rows], mine)]
        place = np.full(len(graphs), -1)
        place[mine] = np.arange(len(mine))
        batch = encoder.batch([graphs[i] for i in mine])
        found = encoder.states(as_tensors(batch), weights, torch_backend())
        means = torch.stack([one.mean(dim=0) for one in found.split(batch.counts.tolist())])
        seen = torch.cat([means[torch.as_tensor(place[of[rows]])], x[rows]], dim=1)
        half = (seen @ weights["head.0.weight"].T + weights["head.0.bias"]).relu()
        said = half @ weights["head.1.weight"].T + weights["head.1.bias"]
        return torch.nn.functional.smooth_l1_loss(said, y[rows], reduction="sum") / every

    parts = min(GRAPHS, len(known))
    wanted = encoder.shapes(WIDTH) | head
    return descended(Descent(loss_of, wanted, parts, seed, steps, rate, start))
