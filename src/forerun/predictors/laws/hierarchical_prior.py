"""Prior of the hierarchical law: where each parameter starts, and how far each level may move it.

The parameters of one app on one cluster are a sum: all + workload + app + cluster + their own. The
widths are wide where machines differ (rates, compute) and narrow where networks of all kinds agree
(exponents); decision 0015 says on which splits they were chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.predictors.laws.hierarchical_law import AT, COUNT, KNOTS
from forerun.predictors.laws.law_rows import BESIDE_POWER, CORES_POWER, SHARE_POWER

LEVELS = ("all", "workload", "app", "cluster", "own")
# Log standard deviations (or of an exponent) at each level, in the order of LEVELS.
WIDTHS: dict[str, tuple[float, float, float, float, float]] = {
    "fixed": (0.0, 1.0, 1.1, 0.7, 0.3),
    "sample": (0.0, 1.0, 1.1, 0.7, 0.25),
    "host_fixed": (0.1, 0.07, 0.07, 0.1, 0.15),
    "host_sample": (0.02, 0.02, 0.02, 0.03, 0.03),
    "single": (0.05, 0.03, 0.03, 0.05, 0.15),
    "share": (0.08, 0.05, 0.03, 0.05, 0.05),
    "cores": (0.2, 0.1, 0.1, 0.1, 0.1),
    "volume": (0.0, 0.7, 0.5, 0.0, 0.2),
    "intra": (0.0, 0.0, 0.0, 0.6, 0.25),
    "intra_growth": (0.2, 0.07, 0.07, 0.15, 0.1),
    "inter": (0.3, 0.0, 0.0, 0.4, 0.25),
    "rate": (0.05, 0.0, 0.0, 0.05, 0.03),
    "node_size": (0.1, 0.04, 0.03, 0.1, 0.05),
    "node_count": (0.1, 0.04, 0.03, 0.1, 0.05),
    "two_nodes": (0.05, 0.04, 0.03, 0.4, 0.1),
    "hop": (0.3, 0.1, 0.1, 0.5, 0.1),
    "overlap": (0.2, 0.25, 0.15, 0.1, 0.1),
    **{f"shape_{i}": (0.0, 0.05, 0.03, 0.0, 0.06) for i in range(KNOTS)},
}
# Where nothing is known of a workload's size its gradients may be anything.
UNKNOWN_VOLUME = 1.5
MOST_WORKLOADS, MOST_EFFECTS = 30, 60
MEANS = {
    "intra": -np.log(0.25), "intra_growth": 0.5, "inter": -np.log(0.7), "node_size": 0.25,
    "node_count": 0.1, "two_nodes": 0.1, "overlap": 0.7,
}  # fmt: skip
# Of what computes on a processor, of what is not known, and of what computes on something else: powers of
# a part of a core and of whole cores, and seconds that a core takes for one message (NCCL's are tens of
# microseconds, those of gloo on TCP half a millisecond). Where messages take that long, they are what grows
# with the nodes.
BY_PROCESSOR: Mapping[int, Mapping[str, float]] = {
    1: {
        "share": 1.0,
        "cores": 0.85,
        "hop": float(np.log(5e-4)),
        "node_count": 0.0,
        "two_nodes": 0.0,
    },
    0: {"share": SHARE_POWER, "cores": CORES_POWER, "hop": float(np.log(5e-5))},
    -1: {"share": BESIDE_POWER, "cores": BESIDE_POWER, "hop": float(np.log(5e-5))},
}
# PyTorch reduces gradients in buckets: the first of 1 MiB, the others of 25 (its documentation of
# DistributedDataParallel). The last one starts when nothing is left to compute. On devices that leave
# sending to others this was no gain (decision 20), so that it is said of processors alone.
ONE_BUCKET_GB, ONE_BUCKET_OVERLAP = 26 * 2**20 / 1e9, -0.7


@dataclass(frozen=True)
class Tree:
    """Which effects the parameters of each group (an app on a cluster) are the sum of.

    Attributes:
        shared: (g, s) rows of `widths` that each group has in common with others, -1 for none.
        widths: (b, p) standard deviations of the shared effects.
        own: (g, p) of what is a group's alone.
        cluster_effect: (c,) the row of each cluster's effect, -1 where there is one cluster.
    """

    shared: IntArray
    widths: FloatArray
    own: FloatArray
    cluster_effect: IntArray


def grown(workload: IntArray, app: IntArray, cluster: IntArray, known: NDArray[np.bool_]) -> Tree:
    """Return the tree of groups: an effect that only one group has is that group's own.

    Args:
        workload, app, cluster: of each group, (g,).
        known: which apps have gradients of known size, (apps,).
    """
    width = _widths()
    shared = np.full((len(app), len(LEVELS) - 1), -1, dtype=np.int64)
    shared[:, 0] = 0
    rows = [width[0].copy()]
    own = np.repeat(width[4][None] ** 2, len(app), axis=0)
    alike = np.where(known[app], 0.0, UNKNOWN_VOLUME)
    common_to = _most_common(workload)
    for value in np.unique(workload):
        members = workload == value
        apps = np.unique(app[members])
        if value not in common_to:
            wide = np.hypot(width[1], width[2])
            wide[AT["volume"]] = np.hypot(wide[AT["volume"]], alike[members].max())
            own[members] += wide**2
            continue
        common = width[1].copy() if len(apps) > 1 else np.hypot(width[1], width[2])
        common[AT["volume"]] = np.hypot(common[AT["volume"]], alike[members].max())
        _share(members, 1, common, shared, rows, own)
        for one in apps if len(apps) > 1 else ():
            if len(rows) < MOST_EFFECTS:
                _share(app == one, 2, width[2], shared, rows, own)
            else:
                own[app == one] += width[2] ** 2
    count = int(cluster.max()) + 1
    effects = np.full(count, -1, dtype=np.int64)
    if count == 1:
        rows[0] = np.hypot(rows[0], width[3])
    else:
        effects = len(rows) + np.arange(count)
        shared[:, 3] = effects[cluster]
        rows += [width[3]] * count
    return Tree(shared, np.array(rows), np.sqrt(own), effects)


def _most_common(workload: IntArray) -> set[int]:
    """Return the workloads whose groups share effects: those with most groups, where there are many.

    Shared effects meet in one matrix, and a table of hundreds of workloads would fill it.
    """
    values, counts = np.unique(workload, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return set(values[order][:MOST_WORKLOADS].tolist())


def _share(
    members: NDArray[np.bool_], level: int, width: FloatArray, shared: IntArray,
    rows: list[FloatArray], own: FloatArray,
) -> None:  # fmt: skip
    """Give the members an effect in common, or one alone the width as its own; in place."""
    if members.sum() == 1:
        own[members] += width**2
        return
    shared[members, level] = len(rows)
    rows.append(width)


def _widths() -> FloatArray:
    """Return the standard deviations by level and parameter, (5, p)."""
    table = np.zeros((len(LEVELS), COUNT))
    for name, values in WIDTHS.items():
        table[:, AT[name]] = values
    return table


def means(
    start: FloatArray, volume: FloatArray, processor: IntArray, known: FloatArray | None = None
) -> FloatArray:
    """Return where the parameters of each group start, (g, p).

    Args:
        start: (g, 2) log seconds of the fixed and of the per-sample compute.
        volume: (g,) log gigabytes of gradients.
        processor: (g,) 1 where it computes on a processor, -1 where on something else, else 0.
        known: (g,) the volume where it is known, NaN elsewhere.
    """
    table = np.zeros((len(start), COUNT))
    for name, value in MEANS.items():
        table[:, AT[name]] = value
    for kind, changes in BY_PROCESSOR.items():
        for name, value in changes.items():
            table[processor == kind, AT[name]] = value
    table[:, AT["fixed"]], table[:, AT["sample"]] = start.T
    table[:, AT["volume"]] = volume
    if known is not None:
        small = (known < np.log(ONE_BUCKET_GB)) & (processor == 1)
        table[small, AT["overlap"]] = ONE_BUCKET_OVERLAP
    return table
