"""Rows: what plan-level formulas read of n jobs, and how plans lay a model on devices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray


def total(columns: Iterable[FloatArray]) -> FloatArray:
    """Return the sum of columns, (n,) each."""
    first, *others = columns
    result = np.array(first, dtype=np.float64)
    for column in others:
        result += column
    return result


def spread_over(values: FloatArray, index: NDArray[Any]) -> FloatArray:
    """Return values of few owners as a column of their rows, (n,)."""
    return np.full(len(index), values[0]) if len(values) == 1 else np.asarray(values[index])


@dataclass(frozen=True)
class Rows:
    """n resolved jobs as float columns (n,): plan degrees, key costs, and facts by their names.

    `key` maps what `operations.instance_costs` and `memory.held_bytes` return to (n,); `work` the
    workload's facts, `node` the cluster's and `software` the framework's constants.
    """

    plan: dict[str, FloatArray]
    key: dict[str, FloatArray]
    work: dict[str, FloatArray]
    node: dict[str, FloatArray]
    software: dict[str, FloatArray]
    sync: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.sync)

    @cached_property
    def micro_batches(self) -> FloatArray:
        """Forward-backward passes of a device in one step, at least 1."""
        plan = self.plan
        return np.maximum(plan["global_batch"] / (plan["micro_batch"] * plan["dp"]), 1.0)

    @cached_property
    def layer_shares(self) -> tuple[FloatArray, FloatArray]:
        """The fullest (first) and the last stage's share of the layers, each (n,), 1 without pp.

        Spread evenly, ceil(L / (pp vpp)) vpp / L, or, where the framework counts the head among the
        work (`counts_head`): with T = L + head / layer, the first stage gets ceil(T / pp) layers,
        the last what then remains.
        """
        work, pp, vpp = self.work, self.plan["pp"], self.plan["vpp"]
        layers = np.maximum(work["layers"], 1.0)
        even = np.minimum(np.ceil(layers / (pp * vpp)) * vpp / layers, 1.0)
        counted = (self.software["counts_head"] > 0) & (pp > 1) & (vpp == 1)
        if not counted.any():
            return even, even
        one = (work["layer_tensor"] + work["layer_whole"] + work["layer_expert"]) / layers
        head = work["head_tensor"] + work["head_whole"] + work["head_copied"]
        dealt = layers + head / np.maximum(one, 1.0)
        first = np.minimum(np.ceil(dealt / pp), layers) / layers
        last = 1.0 - np.minimum(np.ceil(dealt * (pp - 1.0) / pp), layers) / layers
        return np.where(counted, first, even), np.where(counted, last, even)

    @cached_property
    def in_flight(self) -> FloatArray:
        """Micro-batches whose activations stage 0 holds at once under 1F1B."""
        pp, vpp = self.plan["pp"], self.plan["vpp"]
        factor = np.where(vpp > 1, 1.0 + (pp - 1.0) / (pp * vpp), 1.0)
        return np.minimum(self.micro_batches, pp) * factor

    @property
    def in_flight_last(self) -> FloatArray:
        """The same for the last stage: one, or a few chunks of it when interleaved."""
        pp, vpp = self.plan["pp"], self.plan["vpp"]
        return np.where(vpp > 1, np.minimum(self.in_flight, 1.0 + (pp - 1.0) / vpp), 1.0)

    @cached_property
    def expert_spread(self) -> FloatArray:
        """Over how many ranks one copy of the experts is cut.

        ep x tp, or all dp x cp x tp ranks of a stage where that is less: experts spread over tensor
        ranks too are then not cut by them.
        """
        plan = self.plan
        return np.minimum(plan["ep"] * plan["tp"], plan["dp"] * plan["cp"] * plan["tp"])

    @cached_property
    def local_params(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Parameters on the fullest device before ZeRO, each (n,).

        (dense on the first stage, dense on the last stage, experts on any): experts are divided by
        ep and have dp x cp / ep replicas, the rest dp x cp.
        """
        work, (share, share_last), tp = self.work, self.layer_shares, self.plan["tp"]
        one_stage = self.plan["pp"] == 1
        layers = work["layer_tensor"] / tp + work["layer_whole"]
        embed = work["embed_tensor"] / tp + work["embed_whole"]
        head = work["head_tensor"] / tp + work["head_whole"]
        first = layers * share + embed + np.where(one_stage, head, 0.0)
        last = layers * share_last + head + np.where(one_stage, embed, work["head_copied"] / tp)
        return first, last, work["layer_expert"] / self.expert_spread * share

    @property
    def one_layer(self) -> FloatArray:
        """Parameters of one layer on a device before ZeRO, (n,)."""
        work = self.work
        dense = work["layer_tensor"] / self.plan["tp"] + work["layer_whole"]
        whole = dense + work["layer_expert"] / self.expert_spread
        return np.asarray(whole / np.maximum(work["layers"], 1.0))
