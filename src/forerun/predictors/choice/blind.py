"""Blind: which runs shipped constants know already, so that trials on them do not flatter physics.

Constants that a run has taught are no forecast of it, nor of its like: a source's other runs of the
same workload and device were made on the same machines with the same software. On such runs whoever
brings constants is judged as it starts from its priors; what then answers may start from them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forerun import registry
from forerun.predictors.choice.columns import JobColumns
from forerun.predictors.starts import PRIORS, has_shipped
from forerun.tables import Runs
from forerun.tables.fingerprints import seen

BoolArray = NDArray[np.bool_]


def bringers(names: tuple[str, ...], start: str) -> tuple[str, ...]:
    """Return the candidates that start from constants shipped with them."""
    if start == PRIORS:
        return ()
    return tuple(name for name in names if has_shipped(registry.load("predictors", name)))


def known_already(names: tuple[str, ...], start: str, runs: Runs, columns: JobColumns) -> BoolArray:
    """Return which runs are of a workload and device whose runs taught shipped constants, (n,).

    All of them where a candidate does not say which runs taught its own.

    Args:
        names: of the candidates. start: see `starts.started`.
        runs: facts. columns: of their jobs.

    Raises:
        RequestError: the fingerprints of the runs that taught cannot be read.
    """
    taught = np.zeros(len(runs), dtype=bool)
    looked_up = []
    for name in bringers(names, start):
        kind = registry.load("predictors", name)
        if not hasattr(kind, "shipped_rows"):
            return np.ones(len(runs), dtype=bool)
        rows = kind.shipped_rows()
        if rows not in looked_up:  # several candidates may bring the same ones
            taught |= seen(runs, rows)
            looked_up.append(rows)
    _, group = columns.groups
    return np.isin(group, group[taught])
