"""What a fitted hierarchical law knows: parameters by group, their covariance, and whom it can answer.

A job whose app and cluster were both run, though never together, is answered by the app's own group on
the cluster most like it, moved by the difference of the two clusters' effects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from forerun.arrays import FloatArray, IntArray
from forerun.predictors.laws.hierarchical_law import COUNT
from forerun.predictors.laws.hierarchical_near import Near
from forerun.predictors.laws.hierarchical_prior import WIDTHS
from forerun.predictors.laws.hierarchical_rows import Name
from forerun.predictors.laws.law_rows import Span

CLUSTER_LEVEL = 3
# Log standard deviations of an answer by the runs of other settings, and how far off that is.
OTHER_APP_SIGMA, OTHER_CLUSTER_SIGMA = 0.3, 0.3
NEAR, NOT_TOGETHER, OTHER_SETTINGS = 0.1, 0.4, 0.5


@dataclass(frozen=True)
class Known:
    """One group: an app on a cluster, and what its runs spanned.

    Attributes:
        app, cluster: their names. runs: how many taught.
        batch: logs of the least and largest micro-batch of the app; None where its runs state none.
        devices, nodes: the most that a run had. own_batch: logs of the span in this group.
        rates: nominal GB/s inside a node and of a node's wire.
        sigma: log standard deviation of a run about its forecast.
        cores, wire: logs of the least and most cores of a worker that runs of the app state, and of the
            GB/s that those on the cluster do; None where most state none.
    """

    app: Name
    cluster: Name
    runs: int
    batch: tuple[float, float] | None
    own_batch: tuple[float, float]
    devices: float
    nodes: float
    rates: tuple[float, float]
    sigma: float
    cores: Span | None = None
    wire: Span | None = None


@dataclass(frozen=True)
class Served:
    """How a pair of app and cluster is answered: the group, and what is changed of it.

    Attributes:
        group: whose parameters serve. cluster: whose effect replaces its own, -1 for none.
        sigma: log standard deviation that this adds. distance: how far off this is.
    """

    group: int
    cluster: int
    sigma: float
    distance: float


@dataclass(frozen=True)
class Model:
    """Parameters and covariance of g groups; see `hierarchical_fit.Posterior` and `Tree`.

    placements: the texts of the placements that runs had. near: the runs of each group.
    """

    groups: tuple[Known, ...]
    theta: FloatArray
    shared: FloatArray
    covariance: FloatArray
    alone: FloatArray
    gain: FloatArray
    tree: IntArray
    effects: IntArray
    placements: tuple[str, ...]
    near: tuple[Near, ...]

    @cached_property
    def clusters(self) -> tuple[Name, ...]:
        """Distinct clusters, in the order of `effects`."""
        return tuple(dict.fromkeys(group.cluster for group in self.groups))

    def serve(self, app: Name, cluster: Name) -> Served | str:
        """Return how a pair is answered, or why it is not."""
        apps = dict.fromkeys(g.app for g in self.groups if g.app[0] == app[0])
        if not apps:
            return f"no run is of {app[0] or 'a workload without a name'}"
        own = _closest(app, list(apps))
        here = [c for c in self.clusters if c[0] == cluster[0]]
        if not here:
            return (
                f"no run is on {cluster[0] or 'a device without a name'}; one short run of any "
                "workload there would do"
            )
        place = _closest(cluster, here)
        sigma = np.hypot(
            OTHER_APP_SIGMA * _contradicts(app, own),
            OTHER_CLUSTER_SIGMA * _contradicts(cluster, place),
        )
        distance = OTHER_SETTINGS * bool(sigma) + (NEAR if sigma == 0 else 0.0)
        for i, group in enumerate(self.groups):
            if group.app == own and group.cluster == place:
                return Served(i, -1, float(sigma), distance)
        mine = [i for i, group in enumerate(self.groups) if group.app == own]
        best = max(mine, key=lambda i: self.groups[i].runs)
        return Served(best, self.clusters.index(place), float(sigma), distance + NOT_TOGETHER)

    def wire(self, served: Served) -> Span | None:
        """Return what runs on the cluster that answers state of its wire, see `Known`."""
        if served.cluster < 0:
            return self.groups[served.group].wire
        place = self.clusters[served.cluster]
        return next(group.wire for group in self.groups if group.cluster == place)

    def parameters(self, served: Served) -> FloatArray:
        """Return the parameters that answer, (p,)."""
        theta = self.theta[served.group]
        if served.cluster < 0:
            return np.asarray(theta)
        old = self.tree[served.group, CLUSTER_LEVEL]
        return np.asarray(theta - self.shared[old] + self.shared[self.effects[served.cluster]])

    def spread(self, served: Served) -> FloatArray:
        """Return how the answer's parameters follow the shared effects, (p, b p)."""
        count = len(self.shared)
        old = [row for row in self.tree[served.group] if row >= 0]
        new = list(old)
        if served.cluster >= 0:
            new.remove(self.tree[served.group, CLUSTER_LEVEL])
            new.append(int(self.effects[served.cluster]))
        result = np.zeros((COUNT, count, COUNT))
        for row in new:
            result[:, row] += np.eye(COUNT)
        for row in old:
            result[:, row] -= self.gain[served.group]
        return result.reshape(COUNT, count * COUNT)

    def uncertainty(self, served: Served) -> FloatArray:
        """Return the covariance of the parameters that answer, (p, p)."""
        spread = self.spread(served)
        felt = np.flatnonzero(np.any(spread != 0.0, axis=0))
        part = spread[:, felt]
        shared = self.covariance[np.ix_(felt, felt)]
        result = np.asarray(self.alone[served.group] + part @ shared @ part.T)
        if served.cluster >= 0:
            result += 2.0 * np.diag(np.array([width[-1] for width in WIDTHS.values()]) ** 2)
        return result


def _closest(wanted: Name, known: Sequence[Name]) -> Name:
    """Return the name that agrees in most fields; blanks agree a little less than equals."""

    def agreement(name: Name) -> float:
        pairs = zip(wanted, name, strict=True)
        return sum(1.0 if a == b else 0.5 if not a or not b else 0.0 for a, b in pairs)

    return max(known, key=agreement)


def _contradicts(wanted: Name, found: Name) -> bool:
    return any(a and b and a != b for a, b in zip(wanted, found, strict=True))
