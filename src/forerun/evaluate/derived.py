"""Derived columns: counts and devices that a table's other columns imply, for whoever divides by them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from forerun.errors import nearest_names
from forerun.tables import Runs, Table

# What each column can be read from where it is absent, by what a cluster calls it.
DERIVED: Mapping[str, str] = {
    "devices": "devices", "nodes": "nodes", "devices_per_node": "devices_per_node",
    "device": "device.id",
}  # fmt: skip
SOURCES = "fill it in, or nodes with devices_per_node, or cluster (as 4x8xh100-sxm-80gb)"


def absent(column: str, table: Table) -> tuple[str, str]:
    """Return what is found where a table has no such column, and what to do."""
    if column in DERIVED:
        return f"there is no column {column!r}, and no cluster that tells it", SOURCES
    near = nearest_names(column, list(table.columns)) or list(table.columns)[:6]
    return f"there is no column {column!r}", f"choose one that is there, e.g. {', '.join(near)}"


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
