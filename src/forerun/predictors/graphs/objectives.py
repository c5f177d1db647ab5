"""Encoders of graphs trained by what is known of networks, or by what physics missed of their runs, in place of decoded weights.

An encoder and a small net over [embedding; further numbers of a row] learn targets of rows, each of which belongs
to a graph: quantities of the graph itself, or log errors of a forecast with the cluster and the plan beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from forerun.arrays import FloatArray, IntArray
from forerun.predictors.graphs.encoder import GATED, WIDTH, Encoder
from forerun.predictors.graphs.hypernetwork import (
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
    report: Callable[[int, float], None] = lambda step, loss: None,
) -> Trained:  # fmt: skip
    """Return an encoder that has learned targets (r, k) of r rows.

    of: the graph of each row, (r,). beside: what else the net reads, (r, f), f may be 0. Each column is
    taken in its own mean and spread. start: goes on from there, to the last bit.
    """
    torch = load_torch()
    width = WIDTH + beside.shape[1]
    head = {
        "head.0.weight": (HIDDEN, width), "head.0.bias": (HIDDEN,),
        "head.1.weight": (targets.shape[1], HIDDEN), "head.1.bias": (targets.shape[1],),
    }  # fmt: skip
    x, y = (torch.as_tensor(_standard(v), dtype=torch.float32) for v in (beside, targets))
    using, known = torch_backend(), np.unique(of)

    def loss_of(weights: Mapping[str, Any], rng: np.random.Generator) -> Any:
        some = rng.permutation(known)[:GRAPHS]
        place = np.full(len(graphs), -1)
        place[some] = np.arange(len(some))
        rows = rng.permutation(np.flatnonzero(place[of] >= 0))[:ROWS]
        batch = encoder.batch([graphs[i] for i in some])
        found = encoder.states(as_tensors(batch), weights, using)
        means = torch.stack([one.mean(dim=0) for one in found.split(batch.counts.tolist())])
        seen = torch.cat([means[torch.as_tensor(place[of[rows]])], x[rows]], dim=1)
        half = (seen @ weights["head.0.weight"].T + weights["head.0.bias"]).relu()
        said = half @ weights["head.1.weight"].T + weights["head.1.bias"]
        return torch.nn.functional.smooth_l1_loss(said, y[rows])

    return descended(loss_of, encoder.shapes(WIDTH) | head, seed, steps, rate, start, report)


def _standard(values: FloatArray) -> FloatArray:
    return np.asarray((values - values.mean(axis=0)) / np.maximum(values.std(axis=0), 1e-9))
