"""Quotas: the runs that make asked jobs surest, so many of each kind: on one node, on several."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from forerun.arrays import IntArray
from forerun.search.suggestion import Beliefs, NextRun, accuracy_gains, answered


def within_quotas(
    beliefs: Beliefs,
    candidates: IntArray,
    asked: IntArray,
    labels: Sequence[Hashable],
    quota: Mapping[Hashable, int],
) -> list[NextRun]:
    """Return the runs that make the answers of the asked jobs surest, so many of each kind.

    What a campaign may ask: of each app two runs on one node and one on several.

    Args:
        beliefs, candidates, asked: as `most_accurate`.
        labels: the kind of each candidate, (c,).
        quota: how many of each kind; a kind that is left out is not run.
    """
    left = dict(quota)
    asked = answered(beliefs, asked)
    open_to = np.array([left.get(label, 0) > 0 for label in labels], dtype=bool)
    open_to &= np.isfinite(beliefs.middle[candidates]) & (len(asked) > 0)
    picks: list[NextRun] = []
    while open_to.any():
        gains = accuracy_gains(beliefs, candidates, asked)
        best = int(np.argmax(np.where(open_to, gains, -np.inf)))
        row = int(candidates[best])
        beliefs = beliefs.after(row)
        picks.append(NextRun(row, 1.0, float(gains[best])))
        open_to[best] = False
        left[labels[best]] -= 1
        if not left[labels[best]]:
            open_to &= np.array([label != labels[best] for label in labels], dtype=bool)
    return picks
