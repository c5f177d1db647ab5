"""Links: the latency and effective rate of many clusters' connections, as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.domain.hardware import Cluster
from forerun.predictors.analytic.constants import Constants
from forerun.predictors.analytic.fallbacks import constant_of

FloatArray = NDArray[np.float64]
Link = tuple[FloatArray, FloatArray, FloatArray, FloatArray]


@dataclass(frozen=True)
class Links:
    """The links of c clusters: nominal rates (bytes/s a device), latencies and kinds, each (c,).

    A node's network is stated for each of its devices; where a placement uses only some of them,
    these have all of it.
    """

    kinds: tuple[str, ...]
    intra_kind: NDArray[np.int64]
    inter_kind: NDArray[np.int64]
    intra_latency: FloatArray
    intra_rate: FloatArray
    inter_latency: FloatArray
    inter_rate: FloatArray
    host_rate: FloatArray

    def take(self, index: NDArray[Any]) -> Links:
        """Return the links of the clusters at the given positions."""
        columns = {name: v[index] for name, v in vars(self).items() if name != "kinds"}
        return Links(self.kinds, **columns)

    def effective(self, constants: Constants) -> Link:
        """Return (intra latency, intra rate, inter latency, inter rate) as software meets them."""
        share = self._by_kind("link_efficiency", constants.link_efficiency)
        slower = self._by_kind("link_latency", constants.link_latency)
        return (
            self.intra_latency * slower[self.intra_kind], self.intra_rate * share[self.intra_kind],
            self.inter_latency * slower[self.inter_kind], self.inter_rate * share[self.inter_kind],
        )  # fmt: skip

    def host(self, constants: Constants) -> FloatArray:
        """Return bytes/s between device and host; the node's own link where it is not known."""
        pcie = self.host_rate * constants.link_efficiency["pcie"]
        return np.where(pcie > 0, pcie, self.effective(constants)[1])

    def _by_kind(self, family: str, known: Mapping[str, float]) -> FloatArray:
        return np.array([constant_of(family, known, kind) for kind in self.kinds])


def links_of(clusters: Sequence[Cluster]) -> Links:
    """Return the links of clusters."""
    kinds = sorted({k for c in clusters for k in (c.intra.kind, c.inter.kind)})
    place = {kind: i for i, kind in enumerate(kinds)}
    rows = [
        (
            c.intra.latency_seconds, c.intra.bytes_per_second, c.inter.latency_seconds,
            c.inter.bytes_per_second
            * max(c.devices_per_node / max(c.placement, default=c.devices_per_node), 1.0),
            c.device.host_bytes_per_second,
        )
        for c in clusters
    ]  # fmt: skip
    numbers = np.array(rows, dtype=np.float64).T
    return Links(
        tuple(kinds),
        np.array([place[c.intra.kind] for c in clusters]),
        np.array([place[c.inter.kind] for c in clusters]),
        *numbers,
    )
