"""Ties: among options that are as good as equal, the one that is easiest to run."""

from __future__ import annotations

import numpy as np

from forerun.arrays import FloatArray, IntArray
from forerun.search.score import Scored

# Options within this share of the best are a tie: no forecast tells them apart.
TIE = 0.005
_BITS = 21  # for devices and for micro-batches, each


def burden(scored: Scored) -> IntArray:
    """Return how hard each row is to run, (n,): lower is simpler, and is taken among ties.

    Fewer mechanisms come first, then fewer devices, then larger micro-batches, whose kernels are
    fewer and whose input is read in larger pieces.
    """
    plans = scored.jobs.plans
    mechanisms = (
        2 * ((plans.tp > 1).astype(np.int64) + (plans.pp > 1) + (plans.cp > 1) + (plans.vpp > 1)
             + (plans.recompute > 0) + plans.sequence_parallel) + plans.zero_stage
    )  # fmt: skip
    devices = np.minimum(plans.world_size.astype(np.int64), 2**_BITS - 1)
    micro = 2**_BITS - 1 - np.minimum(plans.micro_batch.astype(np.int64), 2**_BITS - 1)
    return np.asarray((mechanisms << (2 * _BITS)) + (devices << _BITS) + micro)


def simplest(aim: FloatArray, hard: IntArray) -> int:
    """Return the position of the simplest row within `TIE` of the least aim (n,), n > 0."""
    near = np.flatnonzero(aim <= np.nanmin(aim) * (1 + TIE))
    return int(near[np.lexsort((aim[near], hard[near]))[0]])


def contenders(aim: FloatArray, hard: IntArray, group: IntArray) -> IntArray:
    """Return the rows that may still be the simplest of their group when other chunks are seen.

    Another chunk can only lower the least aim, and so the bar of the tie. Under any bar the choice
    is the simplest row below it; so what is kept is, of the rows within the tie of their own
    group's least aim, those that no other row beats in both aim and simplicity.

    Args:
        aim, hard: (n,), from the objective and from `burden`.
        group: (n,) small numbers of zero or more, a cluster each.
    """
    least = np.full(int(group.max(initial=0)) + 1, np.inf)
    np.minimum.at(least, group, aim)
    rows = np.flatnonzero(aim <= least[group] * (1 + TIE))
    _, rank = np.unique(hard[rows], return_inverse=True)
    rows_group = group[rows].astype(np.int64)
    order = np.lexsort((rank, aim[rows], rows_group))
    # Each group starts below all that went before it, so one running minimum serves them all.
    level = rank[order] - rows_group[order] * (len(rows) + 1)
    keep = np.ones(len(order), dtype=bool)
    keep[1:] = level[1:] < np.minimum.accumulate(level)[:-1]
    return np.asarray(rows[order[keep]])
