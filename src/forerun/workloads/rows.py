"""Rows of the runs table become Jobs and Runs: each distinct workload and cluster is met once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from forerun.domain.forecast import is_none
from forerun.domain.workload import Workload
from forerun.errors import ForerunError
from forerun.tables import Jobs, Runs, Table
from forerun.workloads.row_clusters import clusters_from_table
from forerun.workloads.row_implied import implied_plans
from forerun.workloads.row_plan_texts import spread_plans
from forerun.workloads.row_plans import plans_from_table

if TYPE_CHECKING:
    from forerun.catalog import Catalog

WorkloadReader = Callable[[Mapping[str, Any]], "Workload | str"]


def jobs_from_table(table: Table, catalog: Catalog, read: WorkloadReader | None = None) -> Jobs:
    """Return the n rows of a table as n jobs, each with its reason where it cannot be one.

    A row never raises: an unknown workload or device leaves its reason in `workload_problem` or
    `cluster_problem` and the index -1, an unreadable or illegal plan in `plan_problem`. What
    blank cells mean is said in `row_plans` and `row_clusters`.

    Args:
        table: any runs table; `labels` of the result is this table.
        catalog: where devices and links are looked up.
        read: the workload of a row's cells (`workload_from_columns` by default; or what runs mean
            by their labels: `own_labels.OwnLabels.read`).
    """
    from forerun.workloads.columns import WORKLOAD_COLUMNS, workload_from_columns

    labels, (table, said) = table, spread_plans(table)
    workloads, index, workload_problems = _workloads(
        table, tuple(WORKLOAD_COLUMNS), read or workload_from_columns
    )
    if table.problems is not None:  # a row with a cell that could not be read is no job
        unread = ~is_none(table.problems)
        workload_problems = np.where(unread, table.problems, workload_problems)
        index = np.where(unread, -1, index).astype(np.int32)
    found = clusters_from_table(table, catalog)
    plans, plan_problems = plans_from_table(table, found.devices)
    plans = implied_plans(plans, table, workloads, index, found.clusters, found.index)
    return Jobs(
        workloads=workloads,
        clusters=found.clusters,
        workload_index=index,
        cluster_index=found.index,
        plans=plans,
        workload_problem=workload_problems,
        cluster_problem=found.problems,
        plan_problem=np.where(is_none(said), plan_problems, said),
        labels=labels,
    ).checked()


def runs_from_table(table: Table, catalog: Catalog) -> Runs:
    """Return the rows of a table as runs: the jobs, and the table of what was measured.

    A blank global_batch that the other columns imply is filled in, so that `Runs.step_seconds`
    can turn a rate into a step; `jobs.labels` is the table as it was given.
    """
    jobs = jobs_from_table(table, catalog)
    given, micro = table.numbers("global_batch"), table.numbers("micro_batch")
    reasons = () if jobs.plan_problem is None else jobs.plan_problem
    legal = np.array([reason is None for reason in reasons], dtype=bool)
    implied = np.where(legal & ~np.isnan(micro), jobs.plans.global_batch, np.nan)
    filled = np.where(np.isnan(given), implied, given)
    return Runs(jobs, table.with_columns(global_batch=filled))


def _workloads(
    table: Table, columns: tuple[str, ...], read: WorkloadReader
) -> tuple[tuple[Workload, ...], NDArray[np.int32], NDArray[np.object_]]:
    """Return the distinct workloads, each row's position (-1: none) and its reason."""
    first, group = table.groups(columns)
    part = Table({c: table.columns[c] for c in columns if c in table}, len(table))
    workloads: list[Workload] = []
    index = np.full(len(first), -1, dtype=np.int32)
    problems = np.full(len(first), None, dtype=object)
    for g, row in enumerate(first):
        try:
            answer = read(part.row(int(row)))
        except ForerunError as error:
            answer = str(error)
        if isinstance(answer, str):
            problems[g] = answer
            continue
        index[g] = len(workloads)
        workloads.append(answer)
    return tuple(workloads), index[group], problems[group]
