"""Encoders of graphs trained by what is known of networks, or by what physics missed of their runs, in place of decoded weights.

An encoder and a small net over [embedding; further numbers of a row] learn targets of rows, each of which belongs
to a graph: quantities of the graph itself, or log errors of a forecast with the cluster and the plan beside it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.predictors.graphs.encoder import GATED, WIDTH, Encoder
from forerun.predictors.graphs.hypernetwork import (
    as_tensors,
    first_weights,
    load_torch,
    torch_backend,
)
from forerun.predictors.graphs.primitives import PrimitiveGraph

HIDDEN = 32  # of the net over embeddings
GRAPHS, ROWS = 4, 128  # of a step


@dataclass(frozen=True)
class TrainedEncoder:
    """Weights of encoder and head by name, the loss of each step, (steps,), and the optimizer's state."""

    weights: Mapping[str, NDArray[Any]]
    losses: FloatArray
    optimizer: Mapping[str, Any]

    @property
    def encoder(self) -> dict[str, NDArray[Any]]:
        """The weights of the encoder alone."""
        return {name: value for name, value in self.weights.items() if not name.startswith("head.")}


def trained_encoder(
    graphs: Sequence[PrimitiveGraph], of: IntArray, beside: FloatArray, targets: FloatArray, seed: int, steps: int,
    *, rate: float = 3e-3, encoder: Encoder = GATED, start: TrainedEncoder | None = None,
    report: Callable[[int, float], None] = lambda step, loss: None,
) -> TrainedEncoder:  # fmt: skip
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
    first = first_weights(seed, encoder.shapes(WIDTH) | head) if start is None else start.weights
    begun = 0 if start is None else len(start.losses)
    weights = {name: torch.tensor(value, requires_grad=True) for name, value in first.items()}
    adam = torch.optim.Adam(weights.values(), lr=rate)
    if start is not None:
        adam.load_state_dict(copy.deepcopy(start.optimizer))
    x, y = (torch.as_tensor(_standard(v), dtype=torch.float32) for v in (beside, targets))
    using, losses = torch_backend(), list(() if start is None else start.losses)
    for step in range(begun, begun + steps):
        rng = np.random.default_rng((seed, step))
        some = rng.permutation(len(graphs))[:GRAPHS]
        place = np.full(len(graphs), -1)
        place[some] = np.arange(len(some))
        rows = rng.permutation(np.flatnonzero(place[of] >= 0))[:ROWS]
        if not len(rows):
            losses.append(losses[-1] if losses else 0.0)
            continue
        batch = encoder.batch([graphs[i] for i in some])
        found = encoder.states(as_tensors(batch), weights, using)
        means = torch.stack([one.mean(dim=0) for one in found.split(batch.counts.tolist())])
        seen = torch.cat([means[torch.as_tensor(place[of[rows]])], x[rows]], dim=1)
        half = (seen @ weights["head.0.weight"].T + weights["head.0.bias"]).relu()
        said = half @ weights["head.1.weight"].T + weights["head.1.bias"]
        loss = torch.nn.functional.smooth_l1_loss(said, y[rows])
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(weights.values()), 5.0)
        adam.step()
        losses.append(float(loss.detach()))
        report(step, losses[-1])
    made = {name: value.detach().numpy() for name, value in weights.items()}
    return TrainedEncoder(made, np.array(losses), adam.state_dict())


def _standard(values: FloatArray) -> FloatArray:
    return np.asarray((values - values.mean(axis=0)) / np.maximum(values.std(axis=0), 1e-9))
