"""Job columns: whole jobs as the columns of the runs table that describe them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from forerun.domain.hardware import Cluster
from forerun.domain.plan import MEMORY_FORMATS, RECOMPUTE, SYNC
from forerun.domain.plan_columns import NAMES
from forerun.domain.workload import Workload
from forerun.errors import RequestError
from forerun.tables.jobs import Jobs
from forerun.tables.table import Table

T = TypeVar("T")
_WORDS: Mapping[str, tuple[str, ...]] = {
    "recompute": RECOMPUTE, "sync": SYNC, "memory_format": MEMORY_FORMATS,
    "sequence_parallel": ("false", "true"),
}  # fmt: skip


def _machine(cluster: Cluster) -> str:
    if not cluster.instance_type or not cluster.provider:
        return cluster.instance_type
    return f"{cluster.provider}:{cluster.instance_type}"


_OF_WORKLOAD: Mapping[str, Callable[[Workload], Any]] = {
    "workload": lambda w: w.name, "family": lambda w: w.family,
    "framework": lambda w: w.framework, "dataset": lambda w: w.dataset,
    "precision": lambda w: w.precision, "optimizer": lambda w: w.optimizer,
    "task": lambda w: w.task, "dataset_size": lambda w: w.dataset_size or np.nan,
    "params": lambda w: w.params or np.nan, "seq_len": lambda w: w.seq_len or np.nan,
    "image_size": lambda w: w.image_size or np.nan,
    "gmacs": lambda w: w.graph.forward_flops / 2e9 or np.nan,
}  # fmt: skip
_OF_CLUSTER: Mapping[str, Callable[[Cluster], Any]] = {
    "device": lambda c: c.device.id, "instance_type": _machine,
    "placement": lambda c: "-".join(map(str, c.placement)),
    "nodes": lambda c: c.nodes, "devices": lambda c: c.devices,
    "devices_per_node": lambda c: c.devices_per_node,
    "price_usd_per_hour": lambda c: np.nan if c.dollars_per_hour is None else c.dollars_per_hour,
}  # fmt: skip


def job_columns(jobs: Jobs) -> Table:
    """Return n whole jobs as n rows of a runs table, blank where a job does not say.

    Names, sizes and totals of the workload, the cluster with its price, every field of the plan.
    The column `cluster` is not among them: beside a device it is a label, and 2 and 4 nodes of one
    cluster would be two.
    What no column can hold (the operation graph, the links) is not in it.

    Raises:
        RequestError: a row has no workload or no cluster.
    """
    lacking = (jobs.workload_index < 0) | (jobs.cluster_index < 0)
    if lacking.any():
        raise RequestError(
            f"the columns of job {int(np.flatnonzero(lacking)[0])}",
            "it has no workload or no cluster", "give whole jobs",
        )  # fmt: skip
    columns = {
        **_spread(_OF_WORKLOAD, jobs.workloads, jobs.workload_index),
        **_spread(_OF_CLUSTER, jobs.clusters, jobs.cluster_index),
    }
    for name, values in vars(jobs.plans).items():
        words = _WORDS.get(name)
        columns[name] = (
            values.astype(np.float64)
            if words is None
            else np.array(words, dtype=object)[values.astype(np.intp)]
        )
    return Table(columns, len(jobs))


def described(table: Table, jobs: Jobs) -> Table:
    """Return n rows with the columns of their n jobs, where these are whole.

    A cell of the table stays, but for the plan's, which are the job's.

    Raises:
        RequestError: there are not as many jobs as rows.
    """
    if len(table) != len(jobs):
        raise RequestError(
            f"{len(table)} rows with {len(jobs)} jobs", "they are not as many", "give a job a row"
        )
    whole = (jobs.workload_index >= 0) & (jobs.cluster_index >= 0)
    if not whole.any():
        return table
    told = job_columns(jobs.take(np.flatnonzero(whole)))
    columns = {}
    for name, cells in told.columns.items():
        text = cells.dtype == object
        column = (table.texts(name) if text else table.numbers(name)).copy()
        blank = column == "" if text else np.isnan(column)
        rows = whole & (blank | (name in NAMES))
        column[rows] = cells[rows[whole]]
        columns[name] = column
    unread = {
        name: np.where(whole, "", texts).astype(object) if name in NAMES else texts
        for name, texts in table.unread.items()
    }
    return replace(table.with_columns(**columns), unread=unread)


def _spread(
    readers: Mapping[str, Callable[[T], Any]], values: Sequence[T], index: NDArray[np.int32]
) -> dict[str, NDArray[Any]]:
    """Return each reader's answer of the distinct values, at the rows that have them."""
    columns = {}
    for name, read in readers.items():
        answers = [read(value) for value in values]
        kind = object if any(isinstance(a, str) for a in answers) else np.float64
        columns[name] = np.array(answers, dtype=kind)[index]
    return columns
