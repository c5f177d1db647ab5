"""Derived columns: counts and devices that a table's other columns imply, for whoever divides by them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from forerun.tables import Runs
from forerun.tables.conditions import DERIVED


def with_derived(runs: Runs, names: Iterable[str]) -> Runs:
    """Return runs whose table has the named columns too, where their clusters tell them.

    Columns that the table has stay as they are, blanks included; names that no cluster tells are
    passed over, as are those of tables of which no cluster is known.
    """
    known = runs.jobs.cluster_index >= 0
    if not known.any():
        return runs
    added = {
        name: _column(runs, DERIVED[name], known)
        for name in names
        if name in DERIVED and name not in runs.table
    }
    return Runs(runs.jobs, runs.table.with_columns(**added)) if added else runs


def _column(runs: Runs, field: str, known: NDArray[np.bool_]) -> NDArray[np.object_ | np.float64]:
    values = runs.jobs.per_cluster(field)
    if values.dtype.kind in "US":
        return np.where(known, values.astype(object), "")
    return np.where(known, values.astype(np.float64), np.nan)
