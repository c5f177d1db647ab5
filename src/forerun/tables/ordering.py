"""Ordering: one order of runs by what they say, so that nobody's answer hangs on how a file lists them.

Whoever draws, thins or adds up rows does so in some order; a fit puts its runs into this one first.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from forerun.domain.hardware import Cluster
from forerun.domain.plan_columns import NAMES
from forerun.domain.workload import Workload
from forerun.tables.jobs import Jobs, Runs
from forerun.tables.schema import COLUMNS

T = TypeVar("T")
_LATER = {"measured": 1, "origin": 2}  # after what was asked; columns of one's own are the last


def sorted_runs(runs: Runs) -> Runs:
    """Return the runs by what was asked, then by what was measured, then by where they come from.

    Rows that agree in all of it stay as they came, and each row keeps its place in its file. Workloads and clusters are numbered as the rows
    name them, those that none names are left out.
    """
    if runs.ordered:
        return runs
    keys = [key for key in _keys(runs) if len(key) and (key != key[0]).any()]
    if keys:
        order = np.lexsort(keys[::-1])
        if (order[1:] < order[:-1]).any():
            runs = _placed(runs).take(order)
    return replace(runs, jobs=_numbered(runs.jobs), ordered=True)


def _placed(runs: Runs) -> Runs:
    """Return the runs with the place of each row kept, also where no file holds them."""
    labels, table = runs.jobs.labels, runs.table
    if labels is not None:
        labels = replace(labels, lines=labels.places())
    table = replace(table, lines=table.places())
    return replace(runs, jobs=replace(runs.jobs, labels=labels), table=table)


def _keys(runs: Runs) -> Iterator[NDArray[Any]]:
    """Yield what rows are ordered by, the first first, as numbers (n,) each."""
    jobs, labels = runs.jobs, runs.jobs.labels
    columns = {**({} if labels is None else labels.columns), **runs.table.columns}
    rank = {name: _LATER.get(COLUMNS[name].group, 0) if name in COLUMNS else 3 for name in columns}
    names = sorted(columns, key=lambda name: (rank[name], name))
    for name in names:
        if rank[name] == 0:
            yield _sortable(columns[name])
    yield _ranks([_workload_words(one) for one in jobs.workloads])[jobs.workload_index]
    yield _ranks([_cluster_words(one) for one in jobs.clusters])[jobs.cluster_index]
    for name in NAMES:
        yield getattr(jobs.plans, name)
    for name in names:
        if rank[name] > 0:
            yield _sortable(columns[name])


def _sortable(column: NDArray[Any]) -> NDArray[Any]:
    """Return a column as numbers that sort as its cells do, (n,)."""
    if column.dtype != object:
        # NaN is unlike itself; all blanks are alike, and come last.
        return np.where(np.isnan(column), np.inf, column)
    cells = column.tolist()
    place = {cell: i for i, cell in enumerate(sorted(set(cells)))}
    if len(place) == 1:
        return np.zeros(len(cells), dtype=np.int64)
    return np.fromiter(map(place.__getitem__, cells), np.int64, len(cells))


def _ranks(words: Sequence[str]) -> NDArray[np.int64]:
    """Return the rank of each text among the distinct ones, and one more, -1, for what is unknown."""
    place = {text: i for i, text in enumerate(sorted(set(words)))}
    return np.array([*(place[text] for text in words), -1], dtype=np.int64)


def _workload_words(one: Workload) -> str:
    """Return what tells a workload from others where no label does."""
    flops = (one.graph.forward_flops, one.graph.backward_flops)
    said: tuple[Hashable, ...] = (
        one.name, one.framework, one.precision, one.seq_len, one.dataset_size, one.params, *flops,
    )  # fmt: skip
    return repr(said)


def _cluster_words(one: Cluster) -> str:
    """Return what tells a cluster from others where no label does."""
    return repr((one.name, one.device.id, one.nodes, one.devices_per_node, one.intra, one.inter))


def _numbered(jobs: Jobs) -> Jobs:
    """Return the jobs with their distinct workloads and clusters in the order of the rows."""
    workloads, workload_index = _by_rows(jobs.workloads, jobs.workload_index)
    clusters, cluster_index = _by_rows(jobs.clusters, jobs.cluster_index)
    return replace(
        jobs, workloads=workloads, clusters=clusters, workload_index=workload_index,
        cluster_index=cluster_index,
    )  # fmt: skip


def _by_rows(
    values: tuple[T, ...], index: NDArray[np.int32]
) -> tuple[tuple[T, ...], NDArray[np.int32]]:
    """Return the values that rows name, in their order, and each row's position, -1 of none."""
    named, first = np.unique(index, return_index=True)
    order = [int(i) for i in named[np.argsort(first)] if i >= 0]
    place = np.full(len(values) + 1, -1, dtype=np.int32)
    place[order] = np.arange(len(order))
    return tuple(values[i] for i in order), place[index]
