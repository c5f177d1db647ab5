"""Serving: which fit answers which kind of job, where some kinds have a fit of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from forerun.predictors.laws.law_rows import GROUP, Kind

# The name of the fit that all kinds with few runs share.
POOL: Kind = ()


def served(
    asked: tuple[list[Kind], NDArray[np.int64]], runs: Mapping[Kind, int], fits: Iterable[Kind]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return which fit answers each job, -1 where none does, and whether its kind had runs, (n,).

    A kind without runs goes by that of its workload and device which has most; a kind without a
    fit of its own by the pool.

    Args:
        asked: distinct kinds of the jobs, and which each is, (n,).
        runs: how many each kind had.
        fits: the kinds that have a fit, in order.
    """
    names, index = asked
    place = {kind: i for i, kind in enumerate(fits)}
    usual: dict[Kind, Kind] = {}
    for kind in sorted(runs, key=lambda kind: runs[kind]):
        usual[kind[: len(GROUP)]] = kind  # the one with most runs comes last
    of, known = [], []
    for name in names:
        near = name if name in runs else usual.get(name[: len(GROUP)])
        of.append(-1 if near is None else place.get(near, place.get(POOL, -1)))
        known.append(name in runs)
    return np.array([*of, -1], dtype=np.int64)[index], np.array([*known, False])[index]
