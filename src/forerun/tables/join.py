"""Join: runs of several tables as one, for a fit that learns from all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.domain.plan_columns import concatenate
from forerun.errors import RequestError
from forerun.tables import Jobs, Runs, Table
from forerun.tables.lines import joined_lines


def join_runs(parts: Sequence[Runs]) -> Runs:
    """Return the runs of all parts, in order. Raises RequestError where there are none."""
    if not parts:
        raise RequestError("joining runs", "no tables were given", "give at least one")
    if len(parts) == 1:
        return parts[0]
    return Runs(join_jobs([p.jobs for p in parts]), join_tables([p.table for p in parts]))


def join_jobs(parts: Sequence[Jobs]) -> Jobs:
    """Return the jobs of all parts; workloads and clusters keep their part's positions."""
    workload_index, cluster_index = [], []
    n_workloads = n_clusters = 0
    for part in parts:
        workload_index.append(_shifted(part.workload_index, n_workloads))
        cluster_index.append(_shifted(part.cluster_index, n_clusters))
        n_workloads += len(part.workloads)
        n_clusters += len(part.clusters)
    labels = [Table({}, len(p)) if p.labels is None else p.labels for p in parts]
    return Jobs(
        workloads=tuple(w for p in parts for w in p.workloads),
        clusters=tuple(c for p in parts for c in p.clusters),
        workload_index=np.concatenate(workload_index),
        cluster_index=np.concatenate(cluster_index),
        plans=concatenate([p.plans for p in parts]),
        workload_problem=_reasons(parts, "workload_problem"),
        cluster_problem=_reasons(parts, "cluster_problem"),
        plan_problem=_reasons(parts, "plan_problem"),
        labels=join_tables(labels),
    )


def join_tables(parts: Sequence[Table]) -> Table:
    """Return the rows of all parts; a column that a part lacks is blank there."""
    names = dict.fromkeys(name for p in parts for name in p.columns)
    columns: dict[str, NDArray[Any]] = {}
    for name in names:
        numeric = all(p.columns[name].dtype != object for p in parts if name in p)
        columns[name] = np.concatenate(
            [p.numbers(name) if numeric else p.texts(name) for p in parts]
        )
    read = all(p.problems is None for p in parts)
    problems = None if read else _reasons(parts, "problems")
    lines = joined_lines([p.places() for p in parts])
    return Table(columns, sum(len(p) for p in parts), problems, lines)


def _shifted(index: NDArray[np.int32], by: int) -> NDArray[np.int32]:
    return np.where(index >= 0, index + by, -1).astype(np.int32)


def _reasons(parts: Sequence[Jobs] | Sequence[Table], name: str) -> NDArray[np.object_]:
    columns: list[NDArray[np.object_] | None] = [getattr(p, name) for p in parts]
    lengths = [len(p) for p in parts]
    return np.concatenate([
        np.full(n, None, dtype=object) if column is None else column
        for n, column in zip(lengths, columns, strict=True)
    ])  # fmt: skip
